/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's side of a ring that a hostile daemon fills, and changes while it is read.
 *
 * Input: 8 bytes read index, 2 bytes unread, 1 byte flags, 4 bytes writer_waiting; the rest
 * is laid into the ring from the read index on.
 */
#include "ipc/ring.h"
#include "tests/fuzz/ring-memory.h"

#define RING KVD_RING_MIN

struct sides {
	struct segment ring, client;
	uint64_t start, end;	/* read and write index */
};

static void lay(const struct sides *s, const uint8_t *data, size_t n)
{
	uint8_t *ring = segment_data(&s->ring);

	for (size_t i = 0; i < n && i < RING; i++)
		ring[(s->start + i) % RING] = data[i];
}

static void check_within(const struct sides *s, const uint8_t *p, size_t n)
{
	const uint8_t *data = segment_data(&s->ring);

	FUZZ_CHECK(p >= data && n <= (size_t)(data + RING - p));
	fuzz_touch(p, n);
}

/* The daemon may write the record anew after it was checked. */
static void check_alternatives(const struct sides *s, const struct ring_record *record)
{
	FUZZ_CHECK(record->alternatives.n <= record->alternatives.size);
	for (uint32_t i = 0; i < record->alternatives.n; i++) {
		struct ring_alternative a;
		int r = ring_record_alternative(record, i, &a);

		FUZZ_CHECK(r == 0 || r == RING_E_CORRUPT);
		if (r == 0)
			check_within(s, a.bytes, a.n_bytes);
	}
}

static void check_record(const struct sides *s, const struct ring_record *record, int scribble)
{
	FUZZ_CHECK(record->type > KVD_REC_PAD && record->type <= KVD_REC_ERROR);
	if (scribble) {
		uint8_t *ring = segment_data(&s->ring);

		for (size_t i = 0; i < 512; i++)
			ring[(s->start + i * 8) % RING] ^= (uint8_t)(0x5a + i);
	}
	if (record->n_bytes)
		check_within(s, record->bytes, record->n_bytes);
	if (record->type == KVD_REC_ALTERNATIVES)
		check_alternatives(s, record);
}

/* Reads all; returns how the ring ended and how many records came. */
static int read_all(const struct sides *s, int consume, int scribble, size_t *n_records)
{
	struct ring_reader reader;
	struct ring_record record;
	int r;

	atomic_store(&segment_client(&s->client)->read_index, s->start);
	ring_reader_init(&reader, &s->ring, &s->client);
	for (*n_records = 0; (r = ring_next(&reader, &record)) == 0; ++*n_records) {
		FUZZ_CHECK(*n_records < RING / 16);
		check_record(s, &record, scribble);
		if (consume)
			(void)ring_consume(&reader);
		FUZZ_CHECK(reader.read_index - s->start <= s->end - s->start);
	}
	FUZZ_CHECK(r == RING_E_EMPTY || r == RING_E_CLOSED || r == RING_E_CORRUPT);
	FUZZ_CHECK(ring_next(&reader, &record) == r);
	(void)ring_consume(&reader);
	(void)ring_sleep(&reader);
	ring_awake(&reader);
	if (r != RING_E_CORRUPT)
		FUZZ_CHECK(atomic_load(&segment_client(&s->client)->read_index) == s->end);
	return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct fuzz_input in = { data, n };
	struct sides s = { ring_memory_new(RING), ring_memory_new(KVD_ARENA_MIN), 0, 0 };
	size_t n_once, n_again;
	uint32_t unread;
	uint8_t flags;
	int r;

	s.start = fuzz_number(&in, 8);
	unread = (uint32_t)fuzz_number(&in, 2);
	flags = fuzz_u8(&in);
	/* Mostly multiples of 8, as the protocol has them. */
	if (!(flags & 1)) {
		s.start &= ~UINT64_C(7);
		unread &= ~7u;
	}
	s.end = s.start + unread;
	if (flags & 2)
		s.end = s.start + RING;
	if (flags & 4)
		s.end ^= (uint64_t)fuzz_u8(&in) << 33;
	atomic_store(&segment_ring(&s.ring)->writer_waiting, (uint32_t)fuzz_number(&in, 4));
	atomic_store(&segment_ring(&s.ring)->write_index, s.end);
	atomic_store(&segment_ring(&s.ring)->closed, flags >> 3 & 1u);
	lay(&s, in.data, in.n);
	r = read_all(&s, 0, 0, &n_once);
	FUZZ_CHECK(read_all(&s, 1, 0, &n_again) == r && n_again == n_once);
	if (s.start % 8 == 0)
		(void)read_all(&s, 1, 1, &n_again);
	ring_memory_free(&s.ring);
	ring_memory_free(&s.client);
	return 0;
}
