/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/ring-sink.h"

#include <assert.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "daemon/server/stats-pages.h"
#include "ipc/base/checked.h"
#include "ipc/base/fd.h"
#include "ipc/codec.h"
#include "ipc/fdpass.h"
#include "ipc/ring.h"

static_assert((int)SINK_FINISH_CANCELLED == KVD_FINISH_CANCELLED &&
		      (int)SINK_FINISH_STOP == KVD_FINISH_STOP &&
		      (int)SINK_FINISH_STOP_STRING == KVD_FINISH_STOP_STRING &&
		      (int)SINK_FINISH_LENGTH == KVD_FINISH_LENGTH,
	      "the protocol's numbers");
static_assert((int)SINK_ERROR_QUOTA == KVD_CODE_QUOTA && (int)SINK_ERROR_BUSY == KVD_CODE_BUSY &&
		      (int)SINK_ERROR_CONTEXT_LENGTH == KVD_CODE_CONTEXT_LENGTH &&
		      (int)SINK_ERROR_NO_MEMORY == KVD_CODE_NO_MEMORY &&
		      (int)SINK_ERROR_SHUTDOWN == KVD_CODE_SHUTDOWN &&
		      (int)SINK_ERROR_INTERNAL == KVD_CODE_INTERNAL,
	      "the protocol's numbers");
static_assert((int)SINK_MISS_NO_CACHE == KVD_MISS_NO_CACHE && (int)SINK_MISS_EMPTY == KVD_MISS_EMPTY &&
		      (int)SINK_MISS_DIFFERS == KVD_MISS_DIFFERS && (int)SINK_MISS_EXPIRED == KVD_MISS_EXPIRED &&
		      (int)SINK_MISS_EVICTED == KVD_MISS_EVICTED &&
		      (int)SINK_MISS_NAMESPACE == KVD_MISS_NAMESPACE &&
		      (int)SINK_MISS_LOGPROBS == KVD_MISS_LOGPROBS && (int)SINK_MISS_KEY == KVD_MISS_KEY &&
		      (int)SINK_MISS_BLOCK == KVD_MISS_BLOCK,
	      "the protocol's numbers");

/*
 * FREE -> LIVE -> ENDED -> FREE.  ENDED: its last record is written, so the
 * client may use the id again, but the engine has not released it yet.  There
 * may be one LIVE and several ENDED of the same id; of those it doesn't
 * matter which one a release ends.
 */
struct entry {
	enum { ENTRY_FREE, ENTRY_LIVE, ENTRY_ENDED } state;
	uint64_t request;
};

struct ring_sink {
	struct sink sink;	/* first */
	_Atomic unsigned refs;
	struct mailbox *mailbox;
	struct mail free_mail, broken_mail;
	void (*broken)(void *arg);	/* loop thread; NULL once closed */
	void *arg;
	struct stats_page *page;
	struct charge memory;
	struct segment ring, client;
	int sock;
	uint8_t wake[16];
	size_t n_wake;

	pthread_mutex_t lock;	/* guards what follows; held while a batch is written */
	struct ring_writer writer;
	bool writer_made;
	bool parked;		/* a batch did not fit since the last `room` */
	bool is_broken, closed;
	struct entry entries[2 * KVD_SESSION_REQUESTS_MAX];
};

static void free_now(struct ring_sink *s)
{
	if (s->writer_made)
		ring_writer_deinit(&s->writer);
	segment_deinit(&s->ring);
	segment_deinit(&s->client);
	charge_deinit(&s->memory);
	stats_page_unref(s->page);
	fd_closep(&s->sock);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

static void deliver_free(struct mail *mail)
{
	free_now(list_entry(mail, struct ring_sink, free_mail));
}

static void deliver_broken(struct mail *mail)
{
	struct ring_sink *s = list_entry(mail, struct ring_sink, broken_mail);

	if (s->broken)
		s->broken(s->arg);
	ring_sink_unref(s);
}

void ring_sink_ref(struct ring_sink *s)
{
	atomic_fetch_add(&s->refs, 1);
}

void ring_sink_unref(struct ring_sink *s)
{
	if (atomic_fetch_sub(&s->refs, 1) == 1)
		mailbox_post(s->mailbox, &s->free_mail);
}

/* Locked. */
static void set_broken(struct ring_sink *s)
{
	if (s->is_broken || s->closed)
		return;
	s->is_broken = true;
	ring_sink_ref(s);
	mailbox_post(s->mailbox, &s->broken_mail);
}

static struct entry *find(struct ring_sink *s, uint64_t request, int state)
{
	for (size_t i = 0; i < ARRAY_SIZE(s->entries); i++) {
		if (s->entries[i].state == (unsigned)state && s->entries[i].request == request)
			return &s->entries[i];
	}
	return NULL;
}

/* --- emitting ---------------------------------------------------------------- */

static void put_alternatives(struct ring_writer *w, uint64_t request, const struct sink_event *e)
{
	struct ring_alternative items[KVD_LOGPROBS_MAX + 1];
	size_t n = MIN(e->alternatives.n, ARRAY_SIZE(items));

	for (size_t i = 0; i < n; i++) {
		const struct sink_alternative *a = &e->alternatives.items[i];

		items[i] = (struct ring_alternative){
			.id = a->id, .logprob = a->logprob, .bytes = a->bytes, .n_bytes = a->n_bytes,
		};
	}
	ring_put_alternatives(w, request, items, n);
}

static void put(struct ring_writer *w, uint64_t request, const struct sink_event *e)
{
	switch (e->type) {
	case SINK_TOKEN:
		ring_put_token(w, request, e->token.id, e->token.logprob, e->token.is_control,
			       e->token.bytes, e->token.n_bytes);
		break;
	case SINK_TEXT:
		ring_put_text(w, request, e->text.bytes, e->text.n_bytes);
		break;
	case SINK_ALTERNATIVES:
		put_alternatives(w, request, e);
		break;
	case SINK_PROMPT:
		ring_put_prompt(w, request, e->prompt.id, e->prompt.logprob, e->prompt.position,
				e->prompt.bytes, e->prompt.n_bytes);
		break;
	case SINK_PROGRESS:
		ring_put_progress(w, request, e->progress.done, e->progress.total);
		break;
	case SINK_USAGE:
		ring_put_usage(w, request, &(struct ring_usage){
			.prompt_tokens = e->usage.prompt_tokens, .cached_tokens = e->usage.cached_tokens,
			.generated_tokens = e->usage.generated_tokens, .miss = e->usage.miss,
			.queue_ns = e->usage.queue_ns, .prefill_ns = e->usage.prefill_ns,
			.decode_ns = e->usage.decode_ns, .miss_token = e->usage.miss_token,
			.miss_bytes = e->usage.miss_bytes, .n_miss_bytes = e->usage.n_miss_bytes,
		});
		break;
	case SINK_DONE:
		ring_put_done(w, request, (enum kvd_finish)e->done.reason, e->done.stop_index);
		break;
	case SINK_EMBEDDING:
		break;	/* no message asks for one */
	case SINK_ERROR:
		ring_put_error(w, request, (enum kvd_code)e->error.code, e->error.text);
		break;
	}
}

static int write_batch(struct ring_writer *w, uint64_t request, const struct sink_event *events, size_t n,
		       bool final)
{
	ring_begin(w, final);
	for (size_t i = 0; i < n; i++)
		put(w, request, &events[i]);
	return ring_commit(w);
}

/* A batch was written. */
static void written(struct ring_sink *s, uint64_t request, const struct sink_event *events, size_t n,
		    bool final)
{
	struct entry *entry = final ? find(s, request, ENTRY_LIVE) : NULL;

	for (size_t i = 0; i < n; i++)
		stats_page_count(s->page, &events[i]);
	if (entry) {
		entry->state = ENTRY_ENDED;
		ring_unreserve(&s->writer);
	}
}

static int sink_emit(struct sink *sink, uint64_t request, const struct sink_event *events, size_t n)
{
	struct ring_sink *s = (struct ring_sink *)sink;
	bool final = n && (events[n - 1].type == SINK_DONE || events[n - 1].type == SINK_ERROR);
	int r;

	pthread_mutex_lock(&s->lock);
	if (s->closed || s->is_broken) {
		pthread_mutex_unlock(&s->lock);
		return SINK_E_GONE;
	}
	r = write_batch(&s->writer, request, events, n, final);
	/* More than what is reserved for the end: it takes its turn like any other. */
	if (final && r == -EMSGSIZE)
		r = write_batch(&s->writer, request, events, n, false);
	if (r == 0) {
		written(s, request, events, n, final);
	} else if (r == RING_E_FULL) {
		if (n == 1 && events[0].type == SINK_PROGRESS) {
			r = 0;
		} else {
			s->parked = true;
			r = SINK_E_FULL;
		}
	} else {
		set_broken(s);
		r = SINK_E_GONE;
	}
	pthread_mutex_unlock(&s->lock);
	return r;
}

/* A full socket holds something that the reader will wake up for; a closed one is the loop's business. */
static void send_wake(struct ring_sink *s)
{
	(void)fdpass_send(s->sock, s->wake, s->n_wake, NULL, 0, FDPASS_DONTWAIT);
}

static void sink_flush(struct sink *sink)
{
	struct ring_sink *s = (struct ring_sink *)sink;
	bool wake;

	pthread_mutex_lock(&s->lock);
	wake = !s->closed && ring_needs_wake(&s->writer);
	pthread_mutex_unlock(&s->lock);
	if (wake)
		send_wake(s);
}

static void end_request(struct ring_sink *s, uint64_t request, bool submitted)
{
	struct entry *entry;

	pthread_mutex_lock(&s->lock);
	entry = find(s, request, ENTRY_ENDED);
	if (!entry) {
		entry = find(s, request, ENTRY_LIVE);
		if (entry)
			ring_unreserve(&s->writer);
		if (entry && submitted)
			stats_page_count_gone(s->page);
	}
	if (entry)
		entry->state = ENTRY_FREE;
	pthread_mutex_unlock(&s->lock);
	if (entry)
		ring_sink_unref(s);
}

static void sink_release(struct sink *sink, uint64_t request)
{
	end_request((struct ring_sink *)sink, request, true);
}

void ring_sink_drop(struct ring_sink *s, uint64_t request)
{
	end_request(s, request, false);
}

static const struct sink_ops ops = {
	.emit = sink_emit,
	.flush = sink_flush,
	.release = sink_release,
};

/* --- making and ending ---------------------------------------------------------- */

static int make_wake(struct ring_sink *s)
{
	struct codec_buf buf = CODEC_BUF_NULL;
	int r = codec_encode_wake(&buf, &(struct msg_wake){ 0 });

	if (!r && buf.n > sizeof(s->wake))
		r = -EMSGSIZE;
	if (!r) {
		memcpy(s->wake, buf.data, buf.n);
		s->n_wake = buf.n;
	}
	codec_buf_deinit(&buf);
	return r;
}

static int make(struct ring_sink *s, const struct ring_sink_config *c)
{
	int r = charge_init(&s->memory, c->accounts, c->uid, ACCOUNT_MEMORY,
			    (uint64_t)c->ring_bytes + c->arena_bytes + 2 * KVD_SEGMENT_DATA);

	if (r)
		return r == ACCOUNT_E_QUOTA ? RING_SINK_E_QUOTA : r;
	s->sock = fcntl(c->sock, F_DUPFD_CLOEXEC, 3);
	if (s->sock < 0)
		return -errno;
	r = make_wake(s);
	if (!r)
		r = segment_new_ring(&s->ring, c->ring_bytes);
	if (!r)
		r = segment_new_client(&s->client, c->arena_bytes);
	if (!r)
		r = ring_writer_init(&s->writer, &s->ring, &s->client, 0);
	if (!r)
		s->writer_made = true;
	return r;
}

int ring_sink_new(struct ring_sink **out, const struct ring_sink_config *config)
{
	struct ring_sink *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return -ENOMEM;
	s->sink.ops = &ops;
	atomic_init(&s->refs, 1);
	s->mailbox = config->mailbox;
	s->free_mail.deliver = deliver_free;
	s->broken_mail.deliver = deliver_broken;
	s->broken = config->broken;
	s->arg = config->arg;
	s->page = stats_page_ref(config->page);
	s->ring = s->client = SEGMENT_NULL;
	s->sock = -1;
	pthread_mutex_init(&s->lock, NULL);
	r = make(s, config);
	if (r) {
		free_now(s);
		return r;
	}
	*out = s;
	return 0;
}

void ring_sink_close(struct ring_sink *s)
{
	bool wake;

	s->broken = NULL;
	pthread_mutex_lock(&s->lock);
	s->closed = true;
	ring_close(&s->writer);
	wake = ring_needs_wake(&s->writer);
	pthread_mutex_unlock(&s->lock);
	if (wake)
		send_wake(s);
	ring_sink_unref(s);
}

const struct segment *ring_sink_ring(const struct ring_sink *s)
{
	return &s->ring;
}

const struct segment *ring_sink_client(const struct ring_sink *s)
{
	return &s->client;
}

void ring_sink_close_fds(struct ring_sink *s)
{
	segment_close_fd(&s->ring);
	segment_close_fd(&s->client);
}

int ring_sink_add(struct ring_sink *s, uint64_t request)
{
	struct entry *entry = NULL;
	int r = 0;

	pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < ARRAY_SIZE(s->entries) && !entry; i++) {
		if (s->entries[i].state == ENTRY_FREE)
			entry = &s->entries[i];
	}
	if (s->closed || s->is_broken) {
		r = RING_SINK_E_GONE;
	} else if (find(s, request, ENTRY_LIVE)) {
		r = RING_SINK_E_DUPLICATE;
	} else if (!entry) {
		r = RING_SINK_E_FULL;
	} else {
		r = ring_reserve(&s->writer);
		if (r == RING_E_FULL) {
			r = RING_SINK_E_FULL;
		} else if (r) {
			set_broken(s);
			r = RING_SINK_E_GONE;
		}
	}
	if (!r) {
		*entry = (struct entry){ .state = ENTRY_LIVE, .request = request };
		ring_sink_ref(s);
	}
	pthread_mutex_unlock(&s->lock);
	return r;
}

struct sink *ring_sink_sink(struct ring_sink *s)
{
	return &s->sink;
}

/* --- room and wait ------------------------------------------------------------- */

/* Locked. */
static bool take_parked(struct ring_sink *s)
{
	bool parked = s->parked;

	ring_room(&s->writer);
	s->parked = false;
	return parked;
}

bool ring_sink_room(struct ring_sink *s)
{
	bool parked;

	pthread_mutex_lock(&s->lock);
	parked = take_parked(s);
	pthread_mutex_unlock(&s->lock);
	return parked;
}

bool ring_sink_wait(struct ring_sink *s)
{
	bool parked, wake;

	pthread_mutex_lock(&s->lock);
	parked = take_parked(s);
	wake = ring_wait(&s->writer);
	pthread_mutex_unlock(&s->lock);
	if (wake)
		send_wake(s);
	return parked;
}
