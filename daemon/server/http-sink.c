/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/http-sink.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/server/stats-pages.h"
#include "ipc/base/checked.h"
#include "ipc/protocol.h"

/* A request's last batch: the text that sink.h promises, usage with its token, done, heads. */
#define FINAL_ROOM (4096 + KVD_MISS_BYTES_MAX + sizeof(struct batch_head) + 3 * sizeof(struct sink_event) + 64)
#define BUFFER_MIN 4096u
#define ALIGN 8u

/* In a buffer: head, events, then what they point to, in their order.  Multiples of ALIGN. */
struct batch_head {
	size_t size;	/* of all of it */
	uint64_t request;
	size_t n_events;
};

struct buffer {
	uint8_t *data;
	size_t n, capacity;
};

/* FREE -> LIVE -> ENDED (its last batch is there) -> FREE, or LIVE -> FREE. */
enum request_state { REQUEST_FREE, REQUEST_LIVE, REQUEST_ENDED };

struct http_sink {
	struct sink sink;	/* first */
	_Atomic unsigned refs;
	struct mailbox *mailbox;
	struct mail free_mail, ready_mail;
	void (*ready)(void *arg);
	void *arg;
	struct stats_page *page;
	struct charge memory;

	struct buffer front;	/* the loop thread's */
	size_t front_at;

	pthread_mutex_t lock;	/* guards what follows */
	struct buffer back;	/* capacity >= n + n_live * FINAL_ROOM */
	size_t n_live;
	bool posted;		/* ready_mail is on its way */
	bool parked;		/* a batch did not fit since http_sink_room() */
	bool closed, failed;
	size_t n_requests;
	uint8_t states[];	/* [n_requests] of enum request_state */
};

static void free_now(struct http_sink *s)
{
	free(s->front.data);
	free(s->back.data);
	charge_deinit(&s->memory);
	stats_page_unref(s->page);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

static void deliver_free(struct mail *mail)
{
	free_now(list_entry(mail, struct http_sink, free_mail));
}

static void unref(struct http_sink *s)
{
	if (atomic_fetch_sub(&s->refs, 1) == 1)
		mailbox_post(s->mailbox, &s->free_mail);
}

static void deliver_ready(struct mail *mail)
{
	struct http_sink *s = list_entry(mail, struct http_sink, ready_mail);

	pthread_mutex_lock(&s->lock);
	s->posted = false;
	pthread_mutex_unlock(&s->lock);
	if (s->ready)
		s->ready(s->arg);
	unref(s);
}

/* Locked. */
static void post_ready(struct http_sink *s)
{
	if (s->posted || s->closed)
		return;
	s->posted = true;
	atomic_fetch_add(&s->refs, 1);
	mailbox_post(s->mailbox, &s->ready_mail);
}

/* --- a batch's bytes ------------------------------------------------------------------- */

static size_t aligned(size_t n)
{
	return (n + (ALIGN - 1)) & ~(size_t)(ALIGN - 1);
}

/* What an event points to: up to one stretch of bytes, or alternatives with one each. */
static const uint8_t **bytes_of(struct sink_event *e, size_t *n)
{
	*n = 0;
	switch (e->type) {
	case SINK_TOKEN:
		*n = e->token.n_bytes;
		return &e->token.bytes;
	case SINK_TEXT:
		*n = e->text.n_bytes;
		return &e->text.bytes;
	case SINK_PROMPT:
		*n = e->prompt.n_bytes;
		return &e->prompt.bytes;
	case SINK_USAGE:
		e->usage.n_miss_bytes = MIN(e->usage.n_miss_bytes, (size_t)KVD_MISS_BYTES_MAX);
		*n = e->usage.n_miss_bytes;
		return &e->usage.miss_bytes;
	case SINK_EMBEDDING:
		*n = e->embedding.n * sizeof(e->embedding.values[0]);
		return (const uint8_t **)(void *)&e->embedding.values;
	case SINK_ERROR:
		*n = strlen(e->error.text) + 1;
		return (const uint8_t **)(void *)&e->error.text;
	case SINK_ALTERNATIVES:
	case SINK_PROGRESS:
	case SINK_DONE:
	default:
		return NULL;
	}
}

static size_t size_of(const struct sink_event *event)
{
	struct sink_event e = *event;
	size_t n, total;

	bytes_of(&e, &n);
	total = aligned(n);
	if (e.type == SINK_ALTERNATIVES) {
		total += aligned(e.alternatives.n * sizeof(e.alternatives.items[0]));
		for (size_t i = 0; i < e.alternatives.n; i++)
			total += aligned(e.alternatives.items[i].n_bytes);
	}
	return total;
}

static uint8_t *append(uint8_t *to, const void *data, size_t n)
{
	if (n)
		memcpy(to, data, n);
	return to + aligned(n);
}

/* Pointers are written as they are, and set when the batch is read, where it stands then. */
static uint8_t *append_parts(uint8_t *to, const struct sink_event *event)
{
	struct sink_event e = *event;
	const uint8_t **bytes;
	size_t n;

	if (e.type == SINK_ALTERNATIVES) {
		to = append(to, e.alternatives.items, e.alternatives.n * sizeof(e.alternatives.items[0]));
		for (size_t i = 0; i < e.alternatives.n; i++)
			to = append(to, e.alternatives.items[i].bytes, e.alternatives.items[i].n_bytes);
		return to;
	}
	bytes = bytes_of(&e, &n);
	return bytes ? append(to, *bytes, n) : to;
}

static void write_batch(struct http_sink *s, uint64_t request, const struct sink_event *events, size_t n, size_t size)
{
	struct batch_head head = { .size = size, .request = request, .n_events = n };
	uint8_t *to = append(s->back.data + s->back.n, &head, sizeof(head));

	to = append(to, events, n * sizeof(events[0]));
	for (size_t i = 0; i < n; i++)
		to = append_parts(to, &events[i]);
	s->back.n += size;
}

/* Sets an event's pointers to what stands at `at`; where the next one's stands. */
static uint8_t *set_pointers(struct sink_event *e, uint8_t *at)
{
	const uint8_t **bytes;
	size_t n;

	if (e->type == SINK_ALTERNATIVES) {
		struct sink_alternative *items = (struct sink_alternative *)(void *)at;

		at += aligned(e->alternatives.n * sizeof(items[0]));
		for (size_t i = 0; i < e->alternatives.n; i++) {
			items[i].bytes = at;
			at += aligned(items[i].n_bytes);
		}
		e->alternatives.items = items;
		return at;
	}
	bytes = bytes_of(e, &n);
	if (bytes)
		*bytes = at;
	return at + aligned(n);
}

/* --- emitting ----------------------------------------------------------------------------- */

/* Room for n bytes.  False: there is no memory. */
static bool grow(struct buffer *b, size_t n)
{
	size_t capacity = MAX(b->capacity, (size_t)BUFFER_MIN);
	uint8_t *grown;

	if (n <= b->capacity)
		return true;
	while (capacity < n)
		capacity *= 2;
	grown = realloc(b->data, capacity);
	if (!grown)
		return false;
	b->data = grown;
	b->capacity = capacity;
	return true;
}

static bool is_last(const struct sink_event *events, size_t n)
{
	return n && (events[n - 1].type == SINK_DONE || events[n - 1].type == SINK_ERROR);
}

/* Locked.  What emit() returns. */
static int take(struct http_sink *s, uint64_t request, const struct sink_event *events, size_t n)
{
	size_t size = aligned(sizeof(struct batch_head)) + aligned(n * sizeof(events[0]));
	bool last = is_last(events, n);
	size_t reserved;

	if (s->closed || s->failed || request >= s->n_requests || s->states[request] != REQUEST_LIVE)
		return SINK_E_GONE;
	for (size_t i = 0; i < n; i++)
		size += size_of(&events[i]);
	if (!last && s->back.n && s->back.n + size > HTTP_SINK_QUEUE_MAX) {
		if (n == 1 && events[0].type == SINK_PROGRESS)
			return 0;
		s->parked = true;
		return SINK_E_FULL;
	}
	/* The last batch has the room that was kept for it. */
	reserved = (s->n_live - last) * FINAL_ROOM;
	if (!grow(&s->back, s->back.n + size + reserved)) {
		s->failed = true;
		post_ready(s);
		return SINK_E_GONE;
	}
	write_batch(s, request, events, n, size);
	if (last) {
		s->states[request] = REQUEST_ENDED;
		s->n_live--;
	}
	return 0;
}

static int sink_emit(struct sink *sink, uint64_t request, const struct sink_event *events, size_t n)
{
	struct http_sink *s = (struct http_sink *)sink;
	int r;

	pthread_mutex_lock(&s->lock);
	r = take(s, request, events, n);
	pthread_mutex_unlock(&s->lock);
	for (size_t i = 0; !r && s->page && i < n; i++)
		stats_page_count(s->page, &events[i]);
	return r;
}

static void sink_flush(struct sink *sink)
{
	struct http_sink *s = (struct http_sink *)sink;

	pthread_mutex_lock(&s->lock);
	if (s->back.n)
		post_ready(s);
	pthread_mutex_unlock(&s->lock);
}

static void end_request(struct http_sink *s, uint64_t request, bool submitted)
{
	enum request_state state;

	pthread_mutex_lock(&s->lock);
	state = s->states[request];
	s->states[request] = REQUEST_FREE;
	s->n_live -= state == REQUEST_LIVE;
	pthread_mutex_unlock(&s->lock);
	if (state == REQUEST_LIVE && submitted && s->page)
		stats_page_count_gone(s->page);
	if (state != REQUEST_FREE)
		unref(s);
}

static void sink_release(struct sink *sink, uint64_t request)
{
	end_request((struct http_sink *)sink, request, true);
}

void http_sink_drop(struct http_sink *s, uint64_t request)
{
	end_request(s, request, false);
}

static const struct sink_ops ops = {
	.emit = sink_emit,
	.flush = sink_flush,
	.release = sink_release,
};

int http_sink_add(struct http_sink *s, uint64_t request)
{
	int r = -EINVAL;

	pthread_mutex_lock(&s->lock);
	if (request < s->n_requests && s->states[request] == REQUEST_FREE) {
		r = grow(&s->back, s->back.n + (s->n_live + 1) * FINAL_ROOM) ? 0 : -ENOMEM;
		if (!r) {
			s->states[request] = REQUEST_LIVE;
			s->n_live++;
			atomic_fetch_add(&s->refs, 1);
		}
	}
	pthread_mutex_unlock(&s->lock);
	return r;
}

/* --- reading ------------------------------------------------------------------------------ */

/* The buffers change places, where the new back one is as large as it has to be. */
static void change_places(struct http_sink *s)
{
	pthread_mutex_lock(&s->lock);
	if (s->back.n && !s->closed) {
		struct buffer read = s->front;

		if (grow(&read, s->n_live * FINAL_ROOM)) {
			s->front = s->back;
			s->back = read;
			s->back.n = 0;
			s->front_at = 0;
		} else {
			/* grow() has left it as it was. */
			s->failed = true;
		}
	}
	pthread_mutex_unlock(&s->lock);
}

bool http_sink_next(struct http_sink *s, struct http_batch *out)
{
	struct batch_head head;
	struct sink_event *events;
	uint8_t *at;

	if (s->front_at == s->front.n) {
		s->front_at = s->front.n = 0;
		change_places(s);
	}
	if (s->front_at == s->front.n)
		return false;
	at = s->front.data + s->front_at;
	memcpy(&head, at, sizeof(head));
	events = (struct sink_event *)(void *)(at + aligned(sizeof(head)));
	at = (uint8_t *)events + aligned(head.n_events * sizeof(events[0]));
	for (size_t i = 0; i < head.n_events; i++)
		at = set_pointers(&events[i], at);
	s->front_at += head.size;
	*out = (struct http_batch){ .request = head.request, .events = events, .n = head.n_events };
	return true;
}

bool http_sink_room(struct http_sink *s)
{
	bool parked;

	pthread_mutex_lock(&s->lock);
	parked = s->parked;
	s->parked = false;
	pthread_mutex_unlock(&s->lock);
	return parked;
}

bool http_sink_failed(struct http_sink *s)
{
	bool failed;

	pthread_mutex_lock(&s->lock);
	failed = s->failed;
	pthread_mutex_unlock(&s->lock);
	return failed;
}

/* --- making and ending ---------------------------------------------------------------------- */

int http_sink_new(struct http_sink **out, const struct http_sink_config *config)
{
	struct http_sink *s;
	int r;

	if (config->n_requests > HTTP_SINK_REQUESTS_MAX)
		return -EINVAL;
	s = calloc(1, sizeof(*s) + config->n_requests);
	if (!s)
		return -ENOMEM;
	s->sink.ops = &ops;
	atomic_init(&s->refs, 1);
	s->mailbox = config->mailbox;
	s->free_mail.deliver = deliver_free;
	s->ready_mail.deliver = deliver_ready;
	s->ready = config->ready;
	s->arg = config->arg;
	s->n_requests = config->n_requests;
	s->page = config->page ? stats_page_ref(config->page) : NULL;
	pthread_mutex_init(&s->lock, NULL);
	/* Both buffers; they may be twice as large as what is in them. */
	r = charge_init(&s->memory, config->accounts, config->account, ACCOUNT_MEMORY,
			4 * (HTTP_SINK_QUEUE_MAX + (uint64_t)config->n_requests * FINAL_ROOM));
	if (r) {
		free_now(s);
		return r == ACCOUNT_E_QUOTA ? HTTP_SINK_E_QUOTA : r;
	}
	*out = s;
	return 0;
}

void http_sink_close(struct http_sink *s)
{
	s->ready = NULL;
	pthread_mutex_lock(&s->lock);
	s->closed = true;
	pthread_mutex_unlock(&s->lock);
	unref(s);
}

struct sink *http_sink_sink(struct http_sink *s)
{
	return &s->sink;
}
