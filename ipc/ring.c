/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's side; the client's is ring-reader.c. */
#include "ipc/ring.h"

#include <errno.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/utf8.h"

#define HEAD sizeof(struct kvd_record)

/* A last batch leaves 8 bytes of its reserve for a record that grows before the ring's end. */
#define FINAL_MAX (KVD_RING_FINAL_RESERVE - 8)

_Static_assert(sizeof(struct kvd_record) == 16, "PROTOCOL.md, Records");
_Static_assert(offsetof(struct kvd_record_token, bytes) == 32, "PROTOCOL.md, Records");
_Static_assert(offsetof(struct kvd_record_text, bytes) == 24, "PROTOCOL.md, Records");
_Static_assert(offsetof(struct kvd_record_alternatives, items) == 24, "PROTOCOL.md, Records");
_Static_assert(sizeof(struct kvd_record_alternative) == 16, "PROTOCOL.md, Records");
_Static_assert(offsetof(struct kvd_record_prompt, bytes) == 32, "PROTOCOL.md, Records");
_Static_assert(sizeof(struct kvd_record_progress) == 24, "PROTOCOL.md, Records");
_Static_assert(offsetof(struct kvd_record_usage, bytes) == 64, "PROTOCOL.md, Records");
_Static_assert(sizeof(struct kvd_record_done) == 24, "PROTOCOL.md, Records");
_Static_assert(offsetof(struct kvd_record_error, bytes) == 24, "PROTOCOL.md, Records");
_Static_assert(offsetof(struct kvd_ring_header, write_index) == 64, "PROTOCOL.md, Shared memory");
_Static_assert(offsetof(struct kvd_ring_header, writer_waiting) == 128, "PROTOCOL.md, Shared memory");
_Static_assert(offsetof(struct kvd_ring_header, closed) == 132, "PROTOCOL.md, Shared memory");
_Static_assert(offsetof(struct kvd_client_header, reader_waiting) == 64, "PROTOCOL.md, Shared memory");
_Static_assert(offsetof(struct kvd_client_header, magic) == 128, "PROTOCOL.md, Shared memory");
_Static_assert(offsetof(struct kvd_client_header, arena_size) == 144, "PROTOCOL.md, Shared memory");
_Static_assert(offsetof(struct kvd_record_usage, bytes) + KVD_MISS_BYTES_MAX +
	       offsetof(struct kvd_record_text, bytes) + KVD_RING_FINAL_TEXT +
	       offsetof(struct kvd_record_error, bytes) + KVD_ERROR_TEXT_MAX <= FINAL_MAX,
	       "a last batch fits");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2, "shared between processes");

int ring_writer_init(struct ring_writer *w, const struct segment *ring, const struct segment *client,
		     uint64_t start)
{
	int r;

	if (start % KVD_SEGMENT_DATA)
		return -EINVAL;
	memset(w, 0, sizeof(*w));
	r = pthread_mutex_init(&w->lock, NULL);
	if (r)
		return -r;
	w->header = segment_ring(ring);
	w->data = segment_data(ring);
	w->size = segment_data_size(ring);
	w->client = segment_client(client);
	w->write_index = w->read_index = w->staged = start;
	w->max_reserved = KVD_RING_REQUESTS(w->size);
	atomic_store(&w->header->write_index, start);
	atomic_store(&w->client->read_index, start);
	return 0;
}

void ring_writer_deinit(struct ring_writer *w)
{
	if (!w->header)
		return;
	pthread_mutex_destroy(&w->lock);
	memset(w, 0, sizeof(*w));
}

/* Believes the client's cursor if it lies between the last one and what is published. */
static void refresh(struct ring_writer *w)
{
	uint64_t r = atomic_load(&w->client->read_index);

	if (r - w->read_index > w->write_index - w->read_index)
		w->gone = true;
	else
		w->read_index = r;
}

/*
 * Whether n last batches, of at most KVD_RING_FINAL_RESERVE bytes each, could
 * still be written from index on: all of them before the ring's end, or, since
 * the one that meets the end wastes less than its size, with one more to spare.
 * Once true, it stays true when one of the n is written and when the reader reads.
 */
static bool reserve_fits(const struct ring_writer *w, uint64_t index, uint64_t n)
{
	uint64_t free_bytes = w->size - (index - w->read_index);
	uint64_t to_end = w->size - (index & (w->size - 1));

	return n * KVD_RING_FINAL_RESERVE <= MIN(free_bytes, to_end) ||
	       (n + 1) * KVD_RING_FINAL_RESERVE <= free_bytes;
}

static bool fits(const struct ring_writer *w, uint64_t index)
{
	if (index - w->read_index > w->size)
		return false;
	return w->final || reserve_fits(w, index, w->n_reserved);
}

int ring_reserve(struct ring_writer *w)
{
	int r = 0;

	pthread_mutex_lock(&w->lock);
	refresh(w);
	if (w->gone || w->closed)
		r = RING_E_GONE;
	else if (w->n_reserved >= w->max_reserved || !reserve_fits(w, w->write_index, w->n_reserved + 1))
		r = RING_E_FULL;
	else
		w->n_reserved++;
	pthread_mutex_unlock(&w->lock);
	return r;
}

void ring_unreserve(struct ring_writer *w)
{
	pthread_mutex_lock(&w->lock);
	w->n_reserved--;
	pthread_mutex_unlock(&w->lock);
}

void ring_begin(struct ring_writer *w, bool final)
{
	pthread_mutex_lock(&w->lock);
	w->staged = w->write_index;
	w->staged_bytes = 0;
	w->final = final;
	w->error = w->gone || w->closed ? RING_E_GONE : 0;
}

/* The space up to index is needed: 0, RING_E_FULL (the client is asked for room) or RING_E_GONE. */
static int need(struct ring_writer *w, uint64_t index)
{
	if (fits(w, index))
		return 0;
	refresh(w);
	if (!w->gone && !fits(w, index)) {
		if (++w->n_parked == 0)
			w->n_parked = 1;
		atomic_store(&w->header->writer_waiting, w->n_parked);
		refresh(w);
	}
	if (w->gone)
		return RING_E_GONE;
	return fits(w, index) ? 0 : RING_E_FULL;
}

static void put_head(uint8_t *p, uint64_t size, enum kvd_record_type type, uint64_t request)
{
	struct kvd_record head = { .size = (uint32_t)size, .type = (uint16_t)type, .request = request };

	memcpy(p, &head, sizeof(head));
}

/*
 * Stages a record of n bytes, head included: writes the head and zeroes the rest's
 * padding.  NULL if the batch has failed.
 */
static uint8_t *stage(struct ring_writer *w, enum kvd_record_type type, uint64_t request, size_t n)
{
	uint64_t max = w->final ? FINAL_MAX : KVD_RING_BATCH_MAX(w->size);
	uint64_t at = w->staged & (w->size - 1), to_end = w->size - at;
	uint64_t size, pad = 0;

	if (w->error)
		return NULL;
	if (n > max || ((n + 7) & ~(size_t)7) > max - w->staged_bytes) {
		w->error = -EMSGSIZE;
		return NULL;
	}
	size = (n + 7) & ~(size_t)7;
	w->staged_bytes += size;
	if (size > to_end)
		pad = to_end;
	else if (to_end - size == 8)
		size += 8;
	w->error = need(w, w->staged + pad + size);
	if (w->error)
		return NULL;
	if (pad > 0) {
		put_head(w->data + at, pad, KVD_REC_PAD, 0);
		at = 0;
	}
	put_head(w->data + at, size, type, request);
	memset(w->data + at + n, 0, size - n);
	w->staged += pad + size;
	return w->data + at;
}

/* Writes the fixed part behind the head of a record whose struct is *r. */
#define PUT_FIXED(p, r, end) memcpy((p) + HEAD, (const uint8_t *)(r) + HEAD, (end) - HEAD)

static void put_bytes(uint8_t *p, const uint8_t *bytes, size_t n)
{
	if (n > 0)
		memcpy(p, bytes, n);
}

/* So that the sum with a record's fixed part can't wrap; stage() refuses it later. */
static size_t bounded(size_t n)
{
	return MIN(n, (size_t)KVD_RING_MAX);
}

void ring_put_token(struct ring_writer *w, uint64_t request, int32_t id, float logprob, bool is_control,
		    const uint8_t *bytes, size_t n)
{
	const size_t fixed = offsetof(struct kvd_record_token, bytes);
	struct kvd_record_token t = {
		.id = id, .logprob = logprob, .n_bytes = (uint32_t)n, .is_control = is_control,
	};
	uint8_t *p = stage(w, KVD_REC_TOKEN, request, fixed + bounded(n));

	if (!p)
		return;
	PUT_FIXED(p, &t, fixed);
	put_bytes(p + fixed, bytes, n);
}

void ring_put_text(struct ring_writer *w, uint64_t request, const uint8_t *bytes, size_t n)
{
	const size_t fixed = offsetof(struct kvd_record_text, bytes);
	struct kvd_record_text t = { .n_bytes = (uint32_t)n };
	uint8_t *p = stage(w, KVD_REC_TEXT, request, fixed + bounded(n));

	if (!p)
		return;
	PUT_FIXED(p, &t, fixed);
	put_bytes(p + fixed, bytes, n);
}

void ring_put_alternatives(struct ring_writer *w, uint64_t request, const struct ring_alternative *items,
			   size_t n)
{
	const size_t fixed = offsetof(struct kvd_record_alternatives, items);
	struct kvd_record_alternatives a = { .n = (uint32_t)n };
	size_t at = fixed + n * sizeof(struct kvd_record_alternative), size = at;
	uint8_t *p;

	if (n > KVD_LOGPROBS_MAX + 1) {
		w->error = w->error ? w->error : -EMSGSIZE;
		return;
	}
	for (size_t i = 0; i < n; i++)
		size += bounded(items[i].n_bytes);
	p = stage(w, KVD_REC_ALTERNATIVES, request, size);
	if (!p)
		return;
	PUT_FIXED(p, &a, fixed);
	for (size_t i = 0; i < n; i++) {
		struct kvd_record_alternative item = {
			.id = items[i].id, .logprob = items[i].logprob,
			.n_bytes = (uint32_t)items[i].n_bytes, .bytes_offset = (uint32_t)at,
		};

		memcpy(p + fixed + i * sizeof(item), &item, sizeof(item));
		put_bytes(p + at, items[i].bytes, items[i].n_bytes);
		at += items[i].n_bytes;
	}
}

void ring_put_prompt(struct ring_writer *w, uint64_t request, int32_t id, float logprob, uint32_t position,
		     const uint8_t *bytes, size_t n)
{
	const size_t fixed = offsetof(struct kvd_record_prompt, bytes);
	struct kvd_record_prompt t = {
		.id = id, .logprob = logprob, .position = position, .n_bytes = (uint32_t)n,
	};
	uint8_t *p = stage(w, KVD_REC_PROMPT, request, fixed + bounded(n));

	if (!p)
		return;
	PUT_FIXED(p, &t, fixed);
	put_bytes(p + fixed, bytes, n);
}

void ring_put_progress(struct ring_writer *w, uint64_t request, uint32_t done, uint32_t total)
{
	struct kvd_record_progress t = { .done = done, .total = total };
	uint8_t *p = stage(w, KVD_REC_PROGRESS, request, sizeof(t));

	if (p)
		PUT_FIXED(p, &t, sizeof(t));
}

void ring_put_usage(struct ring_writer *w, uint64_t request, const struct ring_usage *usage)
{
	struct kvd_record_usage t = {
		.prompt_tokens = usage->prompt_tokens, .cached_tokens = usage->cached_tokens,
		.generated_tokens = usage->generated_tokens, .miss = usage->miss,
		.queue_ns = usage->queue_ns, .prefill_ns = usage->prefill_ns, .decode_ns = usage->decode_ns,
		.miss_token = usage->miss_token,
	};
	const size_t fixed = offsetof(struct kvd_record_usage, bytes);
	uint8_t *p;

	t.n_bytes = (uint32_t)MIN(usage->n_miss_bytes, (size_t)KVD_MISS_BYTES_MAX);
	p = stage(w, KVD_REC_USAGE, request, fixed + t.n_bytes);
	if (!p)
		return;
	PUT_FIXED(p, &t, fixed);
	put_bytes(p + fixed, usage->miss_bytes, t.n_bytes);
}

void ring_put_done(struct ring_writer *w, uint64_t request, enum kvd_finish reason, uint32_t stop_index)
{
	struct kvd_record_done t = { .reason = reason, .stop_index = stop_index };
	uint8_t *p = stage(w, KVD_REC_DONE, request, sizeof(t));

	if (p)
		PUT_FIXED(p, &t, sizeof(t));
}

void ring_put_error(struct ring_writer *w, uint64_t request, enum kvd_code code, const char *text)
{
	const size_t fixed = offsetof(struct kvd_record_error, bytes);
	size_t n = strnlen(text, KVD_ERROR_TEXT_MAX);
	struct kvd_record_error t = { .code = code };
	uint8_t *p;

	if (text[n])
		n = utf8_complete((const uint8_t *)text, n);
	t.n_bytes = (uint32_t)n;
	p = stage(w, KVD_REC_ERROR, request, fixed + n);
	if (!p)
		return;
	PUT_FIXED(p, &t, fixed);
	put_bytes(p + fixed, (const uint8_t *)text, n);
}

size_t ring_staged(const struct ring_writer *w)
{
	return w->staged_bytes;
}

int ring_commit(struct ring_writer *w)
{
	int r = w->error;

	if (!r && w->staged != w->write_index) {
		w->write_index = w->staged;
		/* seq_cst, not release: ring_needs_wake() looks at the reader's flag next. */
		atomic_store(&w->header->write_index, w->write_index);
	}
	pthread_mutex_unlock(&w->lock);
	return r;
}

void ring_abort(struct ring_writer *w)
{
	pthread_mutex_unlock(&w->lock);
}

/* Takes a flag back; a look is cheaper than an exchange, and mostly enough. */
static bool take(_Atomic uint32_t *flag)
{
	return atomic_load(flag) != 0 && atomic_exchange(flag, 0) != 0;
}

bool ring_needs_wake(struct ring_writer *w)
{
	bool by_flag = take(&w->client->reader_waiting);
	bool by_message = take(&w->wait_message);

	return by_flag || by_message;
}

bool ring_wait(struct ring_writer *w)
{
	atomic_store(&w->wait_message, 1);
	if (atomic_load(&w->header->write_index) == atomic_load(&w->client->read_index) &&
	    !atomic_load(&w->header->closed))
		return false;
	return take(&w->wait_message);
}

void ring_room(struct ring_writer *w)
{
	/* A value set meanwhile may go too: the caller tries again after this. */
	atomic_store(&w->header->writer_waiting, 0);
}

void ring_close(struct ring_writer *w)
{
	pthread_mutex_lock(&w->lock);
	w->closed = true;
	atomic_store(&w->header->closed, 1);
	pthread_mutex_unlock(&w->lock);
}

bool ring_gone(struct ring_writer *w)
{
	bool gone;

	pthread_mutex_lock(&w->lock);
	refresh(w);
	gone = w->gone;
	pthread_mutex_unlock(&w->lock);
	return gone;
}

uint64_t ring_unread(struct ring_writer *w)
{
	uint64_t n;

	pthread_mutex_lock(&w->lock);
	refresh(w);
	n = w->write_index - w->read_index;
	pthread_mutex_unlock(&w->lock);
	return n;
}
