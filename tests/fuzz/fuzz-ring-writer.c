/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's side of a ring whose client writes what it likes into its own
 * segment.  Each batch that was committed must be in the ring exactly as it was put,
 * and the space for the last batches of running requests must be there always.
 *
 * Input: 2 bytes of where the indexes begin, then operations of one byte with their arguments.
 */
#include <stdbool.h>

#include "ipc/base/checked.h"
#include "ipc/ring.h"
#include "tests/fuzz/ring-memory.h"

#define RING KVD_RING_MIN
#define MAX_OPS 400
#define MAX_BATCH 8	/* records */

struct put {
	enum kvd_record_type type;
	uint64_t request;
	uint32_t value;
	size_t n;
};

struct run {
	struct segment ring, client, shadow;	/* shadow: a client segment of our own, to read batches with */
	struct ring_writer writer;
	struct put batch[MAX_BATCH];
	size_t n_batch;
	uint64_t cursor;	/* an honest client's, as long as it is one */
	uint32_t n_live;	/* requests that have not written their last batch */
	bool gone;		/* the client certainly broke the rules */
};

static uint8_t bytes[16384];

static void put(struct run *u, struct fuzz_input *in)
{
	static const enum kvd_record_type types[] = { KVD_REC_TOKEN, KVD_REC_TEXT, KVD_REC_PROMPT, KVD_REC_PROGRESS };
	struct put *p = &u->batch[u->n_batch++];

	p->type = types[fuzz_u8(in) % ARRAY_SIZE(types)];
	p->request = fuzz_u8(in);
	p->value = (uint32_t)fuzz_number(in, 4);
	p->n = (size_t)fuzz_number(in, 2) % sizeof(bytes);
	switch (p->type) {
	case KVD_REC_TOKEN:
		ring_put_token(&u->writer, p->request, (int32_t)p->value, 1, false, bytes, p->n);
		break;
	case KVD_REC_TEXT:
		ring_put_text(&u->writer, p->request, bytes, p->n);
		break;
	case KVD_REC_PROMPT:
		ring_put_prompt(&u->writer, p->request, (int32_t)p->value, 0, 0, bytes, p->n);
		break;
	default:
		ring_put_progress(&u->writer, p->request, p->value, p->value);
		p->n = 0;
		break;
	}
}

static void put_last(struct run *u, struct fuzz_input *in)
{
	struct ring_usage usage = { .miss = fuzz_u8(in) };

	u->batch[0] = (struct put){ KVD_REC_TEXT, 1, 0, (size_t)fuzz_number(in, 2) % (KVD_RING_FINAL_TEXT + 1) };
	u->batch[1] = (struct put){ KVD_REC_USAGE, 1, usage.miss, 0 };
	u->batch[2] = (struct put){ KVD_REC_DONE, 1, usage.miss, 0 };
	u->n_batch = 3;
	ring_put_text(&u->writer, 1, bytes, u->batch[0].n);
	ring_put_usage(&u->writer, 1, &usage);
	ring_put_done(&u->writer, 1, KVD_FINISH_STOP, usage.miss);
}

static void check_put(const struct ring_record *r, const struct put *p)
{
	FUZZ_CHECK(r->type == p->type && r->request == p->request && r->n_bytes == p->n);
	FUZZ_CHECK(!p->n || memcmp(r->bytes, bytes, p->n) == 0);
	if (p->type == KVD_REC_TOKEN)
		FUZZ_CHECK((uint32_t)r->token.id == p->value);
	if (p->type == KVD_REC_PROMPT)
		FUZZ_CHECK((uint32_t)r->prompt.id == p->value);
	if (p->type == KVD_REC_PROGRESS)
		FUZZ_CHECK(r->progress.done == p->value);
	if (p->type == KVD_REC_USAGE)
		FUZZ_CHECK(r->usage.miss == p->value);
	if (p->type == KVD_REC_DONE)
		FUZZ_CHECK(r->done.stop_index == p->value);
}

/* What was written from index on, as a client with a segment of its own reads it. */
static void check_batch(struct run *u, uint64_t from)
{
	struct ring_reader reader;
	struct ring_record record;

	atomic_store(&segment_client(&u->shadow)->read_index, from);
	ring_reader_init(&reader, &u->ring, &u->shadow);
	for (size_t i = 0; i < u->n_batch; i++) {
		FUZZ_CHECK(ring_next(&reader, &record) == 0);
		check_put(&record, &u->batch[i]);
	}
	FUZZ_CHECK(reader.read_index == u->writer.write_index);
}

static void check_writer(const struct run *u)
{
	const struct ring_writer *w = &u->writer;
	const struct kvd_ring_header *h = segment_ring(&u->ring);

	FUZZ_CHECK(w->write_index - w->read_index <= w->size);
	FUZZ_CHECK(atomic_load(&h->write_index) == w->write_index);
	FUZZ_CHECK(h->magic == 0 && h->version == 0 && h->data_offset == 0 && h->data_size == 0);
	FUZZ_CHECK(!u->gone || w->gone);
	if (!w->gone)
		FUZZ_CHECK(w->size - (w->write_index - w->read_index) >= (uint64_t)u->n_live * KVD_RING_FINAL_RESERVE);
}

static void write_batch(struct run *u, struct fuzz_input *in, bool last)
{
	uint64_t before = u->writer.write_index;
	size_t n = 1 + fuzz_u8(in) % MAX_BATCH;
	int r;

	if (last && !u->n_live)
		return;
	u->n_batch = 0;
	ring_begin(&u->writer, last);
	if (last)
		put_last(u, in);
	for (size_t i = 0; !last && i < n; i++)
		put(u, in);
	if (!last && fuzz_u8(in) == 0xff) {
		ring_abort(&u->writer);
		FUZZ_CHECK(u->writer.write_index == before);
		return;
	}
	r = ring_commit(&u->writer);
	FUZZ_CHECK(r == 0 || r == RING_E_FULL || r == RING_E_GONE || r == -EMSGSIZE);
	FUZZ_CHECK(r == 0 || u->writer.write_index == before);
	FUZZ_CHECK(!u->gone || r != 0);
	if (r == 0)
		check_batch(u, before);
	if (last) {
		FUZZ_CHECK(r == 0 || r == RING_E_GONE);
		u->n_live--;
		ring_unreserve(&u->writer);
	}
}

/* Anything at all in the client's words; what is certainly against the rules is remembered. */
static void scribble(struct run *u, struct fuzz_input *in)
{
	uint64_t v = fuzz_number(in, 8);

	if (fuzz_u8(in) & 1)
		v = u->writer.read_index + v % (RING * 2);
	atomic_store(&segment_client(&u->client)->read_index, v);
	atomic_store(&segment_client(&u->client)->reader_waiting, (uint32_t)v);
	if (v - u->writer.read_index > u->writer.write_index - u->writer.read_index) {
		FUZZ_CHECK(ring_gone(&u->writer));
		u->gone = true;
	}
	u->cursor = v;
}

/* An honest client reads some records; after a dishonest word it only looks. */
static void read_some(struct run *u, struct fuzz_input *in)
{
	size_t n = fuzz_u8(in);
	uint64_t w = u->writer.write_index;

	for (size_t i = 0; i < n && u->cursor != w && w - u->cursor <= RING; i++) {
		uint64_t step = 8 * (1 + (uint64_t)fuzz_u8(in));

		u->cursor += MIN(step, w - u->cursor);
	}
	atomic_store(&segment_client(&u->client)->read_index, u->cursor);
	ring_room(&u->writer);
}

static void step(struct run *u, struct fuzz_input *in)
{
	switch (fuzz_u8(in) % 8) {
	case 0:
		scribble(u, in);
		break;
	case 1:
		if (ring_reserve(&u->writer) == 0)
			u->n_live++;
		break;
	case 2:
		write_batch(u, in, true);
		break;
	case 3:
	case 4:
		read_some(u, in);
		break;
	case 5:
		(void)ring_needs_wake(&u->writer);
		(void)ring_wait(&u->writer);
		break;
	default:
		write_batch(u, in, false);
		break;
	}
	check_writer(u);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct fuzz_input in = { data, n };
	struct run u = {
		.ring = ring_memory_new(RING), .client = ring_memory_new(KVD_ARENA_MIN),
		.shadow = ring_memory_new(KVD_ARENA_MIN),
	};

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(i * 37 + i / 256);
	/* From near 2^64, so that both indexes pass it. */
	u.cursor = 0 - KVD_SEGMENT_DATA * fuzz_number(&in, 2);
	FUZZ_CHECK(ring_writer_init(&u.writer, &u.ring, &u.client, u.cursor) == 0);
	for (size_t i = 0; i < MAX_OPS && in.n; i++)
		step(&u, &in);
	while (u.n_live)
		write_batch(&u, &in, true);
	ring_close(&u.writer);
	FUZZ_CHECK(ring_reserve(&u.writer) == RING_E_GONE);
	ring_writer_deinit(&u.writer);
	ring_memory_free(&u.ring);
	ring_memory_free(&u.client);
	ring_memory_free(&u.shadow);
	return 0;
}
