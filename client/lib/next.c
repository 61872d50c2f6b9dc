/* SPDX-License-Identifier: Apache-2.0 */
/* kvd_next(): records of the ring, and refusals from the socket, as events. */
#include <errno.h>
#include <string.h>

#include "client/lib/client.h"
#include "ipc/base/clock.h"

#define ROOM_WAIT_MS 100	/* for the socket to take `room`; the next call tries again */
#define SOCKET_EVERY 32		/* records, while a request is unanswered: a refusal must not starve */

/* Sends `room` if one is owed.  With the lock held, given up meanwhile. */
static void send_room(struct kvd_client *c)
{
	_cleanup_(codec_buf_deinit) struct codec_buf buf = CODEC_BUF_NULL;
	struct msg_room room = { 0 };

	if (!c->room_owed || c->broken || codec_encode_room(&buf, &room))
		return;
	pthread_mutex_unlock(&c->lock);
	int r = client_send(c, &buf, ROOM_WAIT_MS);
	pthread_mutex_lock(&c->lock);
	if (r != KVD_E_TIMEOUT && r != -ENOMEM)
		c->room_owed = false;
}

/* Nothing points into the records taken so far. */
static void release_records(struct kvd_client *c)
{
	if (ring_consume(&c->reader))
		c->room_owed = true;
	send_room(c);
}

static int event_alternatives(struct kvd_client *c, const struct ring_record *record)
{
	struct ring_alternative a;

	if (record->alternatives.n > KVD_LOGPROBS_MAX + 1)
		return RING_E_CORRUPT;
	for (uint32_t i = 0; i < record->alternatives.n; i++) {
		if (ring_record_alternative(record, i, &a))
			return RING_E_CORRUPT;
		c->alternatives[i] = (struct kvd_alternative){ a.id, a.logprob, a.bytes, a.n_bytes };
	}
	c->event.alternatives = c->alternatives;
	c->event.n_alternatives = record->alternatives.n;
	return 0;
}

/* enum kvd_event_type has the numbers of the records. */
static int fill_event(struct kvd_client *c, const struct ring_record *r)
{
	struct kvd_event *e = &c->event;

	*e = (struct kvd_event){ .type = (enum kvd_event_type)r->type, .request = r->request,
				 .bytes = r->bytes,
				 .n_bytes = r->n_bytes, .field = "" };
	switch (r->type) {
	case KVD_REC_TOKEN:
		e->id = r->token.id;
		e->logprob = r->token.logprob;
		e->is_control = r->token.is_control;
		return 0;
	case KVD_REC_ALTERNATIVES:
		return event_alternatives(c, r);
	case KVD_REC_PROMPT:
		e->id = r->prompt.id;
		e->logprob = r->prompt.logprob;
		e->position = r->prompt.position;
		return 0;
	case KVD_REC_PROGRESS:
		e->done = r->progress.done;
		e->total = r->progress.total;
		return 0;
	case KVD_REC_USAGE:
		e->prompt_tokens = r->usage.prompt_tokens;
		e->cached_tokens = r->usage.cached_tokens;
		e->generated_tokens = r->usage.generated_tokens;
		e->miss = r->usage.miss;
		e->id = r->usage.miss_token;
		e->queue_ns = r->usage.queue_ns;
		e->prefill_ns = r->usage.prefill_ns;
		e->decode_ns = r->usage.decode_ns;
		return 0;
	case KVD_REC_DONE:
		e->finish = r->done.reason;
		e->stop_index = r->done.stop_index;
		return 0;
	case KVD_REC_ERROR:
		e->code = r->error.code;
		return 0;
	default:
		return 0;
	}
}

/* A record of a request: its prompt has been copied, and the last one ends it. */
static int take_record(struct kvd_client *c, const struct ring_record *record)
{
	struct request *request = client_find_request(c, record->request);

	if (!request)
		return RING_E_EMPTY;	/* not ours any more: skip it */
	int r = fill_event(c, record);
	if (r)
		return r;
	arena_free(&request->prompt);
	if (record->type == KVD_REC_DONE || record->type == KVD_REC_ERROR)
		request_free(request);
	return 0;
}

/* 0 and c->event; RING_E_EMPTY; RING_E_CLOSED; KVD_E_PROTOCOL through c->broken and RING_E_CORRUPT. */
static int next_record(struct kvd_client *c)
{
	struct ring_record record;

	for (;;) {
		int r = ring_next(&c->reader, &record);
		if (!r)
			r = take_record(c, &record);
		else if (r != RING_E_CORRUPT)
			return r;
		if (!r) {
			c->since_socket++;
			return 0;
		}
		if (r == RING_E_CORRUPT) {
			client_break(c, KVD_E_PROTOCOL, "the daemon broke the protocol: the ring");
			return r;
		}
	}
}

static bool next_refusal(struct kvd_client *c)
{
	if (list_empty(&c->refused))
		return false;
	struct request *r = list_entry(c->refused.next, struct request, link);
	list_unlink(&r->link);
	c->ended = r;
	c->event = (struct kvd_event){ .type = KVD_EVENT_ERROR, .request = r->id, .code = r->code,
				       .field = r->field,
				       .bytes = (const uint8_t *)r->text, .n_bytes = strlen(r->text) };
	return true;
}

/* While another thread sleeps on the socket, what is there is its to take. */
static bool drain_socket(struct kvd_client *c)
{
	bool any = false;

	c->since_socket = 0;
	while (!c->reading && client_receive(c, true))
		any = true;
	return any;
}

/* One event if there is one now.  0; KVD_E_TIMEOUT: none; KVD_E_CLOSED, KVD_E_PROTOCOL. */
static int next_now(struct kvd_client *c)
{
	int broken = c->broken;

	client_unpoke(c);
	if (broken == KVD_E_PROTOCOL)
		return client_still_broken(c);
	if (c->since_socket >= SOCKET_EVERY && !list_empty(&c->requests))
		drain_socket(c);
	if (next_refusal(c))
		return 0;
	int r = next_record(c);
	if (!r)
		return 0;
	if (r == RING_E_CORRUPT)
		return KVD_E_PROTOCOL;
	/* what the daemon wrote before it went has been read, since broken was looked at first */
	if (broken)
		return client_still_broken(c);
	if (r == RING_E_CLOSED && !drain_socket(c))
		return client_break(c, KVD_E_CLOSED, "the daemon is stopping");
	return KVD_E_TIMEOUT;
}

/*
 * Nothing was there.  0: look again; KVD_E_TIMEOUT: announced that we sleep, and
 * nothing has come since.
 */
static int announce_sleep(struct kvd_client *c)
{
	if (c->broken || !list_empty(&c->refused))
		return 0;
	return ring_sleep(&c->reader) ? KVD_E_TIMEOUT : 0;
}

static int next_loop(struct kvd_client *c, int timeout_ms, uint64_t deadline_ns)
{
	for (;;) {
		int r = next_now(c);
		if (r != KVD_E_TIMEOUT)
			return r;
		/* also what was skipped, so that no writer waits for it */
		release_records(c);
		/*
		 * A wake that is never taken would keep kvd_fd() readable.  There is no
		 * spinning before the sleep: a token takes the daemon milliseconds and all
		 * of the cores, a sleep costs three system calls.
		 */
		if (!timeout_ms)
			drain_socket(c);
		if (!announce_sleep(c))
			continue;
		if (!timeout_ms)
			return KVD_E_TIMEOUT;
		r = client_wait(c, deadline_ns, true);
		if (r == -ETIMEDOUT)
			timeout_ms = 0;		/* one last look */
		else if (r)
			return r;
	}
}

KVD_API int kvd_next(struct kvd_client *c, int timeout_ms, const struct kvd_event **event)
{
	uint64_t deadline_ns = timeout_ms < 0 ? UINT64_MAX : clock_ns() + (uint64_t)timeout_ms * 1000000;

	client_enter(c);
	if (c->next_active)
		return client_leave(c, client_fail(c, -EBUSY, "another thread is in kvd_next()"));
	c->next_active = true;
	request_free(steal_ptr(c->ended));	/* what the last call gave out */
	release_records(c);
	int r = next_loop(c, timeout_ms, deadline_ns);
	if (!r)
		*event = &c->event;
	c->next_active = false;
	return client_leave(c, r);
}
