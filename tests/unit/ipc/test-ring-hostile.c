/* SPDX-License-Identifier: Apache-2.0 */
/* Each side against another that writes garbage wherever it can. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/checked.h"
#include "tests/unit/ipc/prng.h"
#include "tests/unit/ipc/ring-fixture.h"

static int write_text(struct ring_fixture *f, size_t n)
{
	static const uint8_t text[4096];

	ring_begin(&f->writer, false);
	ring_put_text(&f->writer, 1, text, n);
	return ring_commit(&f->writer);
}

static void set_cursor(struct ring_fixture *f, uint64_t v)
{
	atomic_store(&segment_client(&f->client)->read_index, v);
}

/* Every value that is not between what was read and what was written ends the session. */
static void test_cursor_out_of_bounds(void **state)
{
	const uint64_t bad[] = { 0, 0xff8, 0x1000, 0x11f8, 0x1408, 0x2000, 1ull << 63, UINT64_MAX,
				 KVD_RING_MIN };

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		struct ring_fixture f;

		ring_fixture_init(&f, KVD_RING_MIN, 0x1000);
		assert_int_equal(write_text(&f, 1000), 0);	/* write index 0x1400 */
		set_cursor(&f, 0x1000 + 512);
		assert_false(ring_gone(&f.writer));
		set_cursor(&f, bad[i]);
		assert_true(ring_gone(&f.writer));
		/* For ever, whatever it says later. */
		set_cursor(&f, 0x1000 + 512);
		assert_true(ring_gone(&f.writer));
		assert_int_equal(write_text(&f, 8), RING_E_GONE);
		assert_int_equal(ring_reserve(&f.writer), RING_E_GONE);
		(void)ring_needs_wake(&f.writer);
		(void)ring_wait(&f.writer);
		ring_room(&f.writer);
		ring_fixture_deinit(&f);
	}
}

/* It is noticed when the ring is full, at the latest. */
static void test_cursor_noticed_when_full(void **state)
{
	struct ring_fixture f;
	int r;

	ring_fixture_init(&f, KVD_RING_MIN, 0);
	set_cursor(&f, 12345678);
	while ((r = write_text(&f, 1000)) == 0)
		continue;
	assert_int_equal(r, RING_E_GONE);
	ring_fixture_deinit(&f);
}

static _Atomic bool stop;

static void *scribble(void *arg)
{
	struct segment *s = arg;
	uint64_t seed = 99;

	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		uint64_t v = prng(&seed);

		atomic_store_explicit(&segment_client(s)->read_index,
				      v % 3 ? v % 70000 & ~7ull : v, memory_order_relaxed);
		atomic_store_explicit(&segment_client(s)->reader_waiting, (uint32_t)v, memory_order_relaxed);
	}
	return NULL;
}

/* The writer stays within its data while the client's words change under it. */
static void test_scribbling_client(void **state)
{
	for (int round = 0; round < 30; round++) {
		struct kvd_ring_header before;
		struct ring_fixture f;
		pthread_t thread;
		int n = 0;

		ring_fixture_init(&f, KVD_RING_MIN, 0);
		memcpy(&before, f.ring.map, offsetof(struct kvd_ring_header, write_index));
		atomic_store(&stop, false);
		assert_int_equal(pthread_create(&thread, NULL, scribble, &f.client), 0);
		for (; n < 100000000; n++) {
			int r = write_text(&f, (size_t)n % 900);

			(void)ring_needs_wake(&f.writer);
			(void)ring_wait(&f.writer);
			if (r == RING_E_GONE)
				break;
			assert_true(r == 0 || r == RING_E_FULL);
			if (r == RING_E_FULL)
				sched_yield();
			assert_true(f.writer.write_index - f.writer.read_index <= f.writer.size);
		}
		atomic_store(&stop, true);
		pthread_join(thread, NULL);
		assert_true(n < 100000000);
		assert_memory_equal(&before, f.ring.map, offsetof(struct kvd_ring_header, write_index));
		assert_int_equal(atomic_load(&f.writer.header->closed), 0);
		ring_fixture_deinit(&f);
	}
}

/* A ring of the reader's own kind, written by hand, with unmapped pages behind it. */
struct liar {
	struct ring_fixture f;
	uint8_t *data;
	uint8_t *area;
};

#define LIAR_AREA (3 * 4096 + KVD_SEGMENT_DATA + KVD_RING_MIN)

static void liar_init(struct liar *l)
{
	struct segment guarded;

	memset(l, 0, sizeof(*l));
	ring_fixture_init(&l->f, KVD_RING_MIN, 0);
	l->area = mmap(NULL, LIAR_AREA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(l->area, MAP_FAILED);
	guarded = l->f.ring;
	guarded.map = l->area + 4096;
	assert_int_equal(mprotect(guarded.map, guarded.size, PROT_READ | PROT_WRITE), 0);
	memcpy(guarded.map, l->f.ring.map, guarded.size);
	l->data = segment_data(&guarded);
	ring_reader_init(&l->f.reader, &guarded, &l->f.client);
}

static struct kvd_ring_header *liar_header(struct liar *l)
{
	return (struct kvd_ring_header *)(l->area + 4096);
}

static void liar_deinit(struct liar *l)
{
	munmap(l->area, LIAR_AREA);
	ring_fixture_deinit(&l->f);
}

static void put32(uint8_t *p, uint32_t v)
{
	memcpy(p, &v, 4);
}

struct lie {
	const char *what;
	uint32_t size;
	uint16_t type;
	uint32_t words[6];	/* from offset 16 on */
	uint64_t written;
	int result;
};

static const struct lie lies[] = {
	{ "good text", 32, KVD_REC_TEXT, { 8 }, 32, 0 },
	{ "size 0", 0, KVD_REC_TEXT, { 0 }, 32, RING_E_CORRUPT },
	{ "size 8", 8, KVD_REC_TEXT, { 0 }, 32, RING_E_CORRUPT },
	{ "size no multiple of 8", 28, KVD_REC_TEXT, { 0 }, 32, RING_E_CORRUPT },
	{ "size behind the write index", 40, KVD_REC_TEXT, { 0 }, 32, RING_E_CORRUPT },
	{ "size behind the data", KVD_RING_MIN + 8, KVD_REC_TEXT, { 0 }, KVD_RING_MIN, RING_E_CORRUPT },
	{ "size near 2^32", 0xfffffff8u, KVD_REC_TEXT, { 0 }, KVD_RING_MIN, RING_E_CORRUPT },
	{ "more written than there is", 32, KVD_REC_TEXT, { 0 }, KVD_RING_MIN + 8, RING_E_CORRUPT },
	{ "written backwards", 32, KVD_REC_TEXT, { 0 }, UINT64_MAX - 7, RING_E_CORRUPT },
	{ "half a record", 32, KVD_REC_TEXT, { 0 }, 8, RING_E_CORRUPT },
	{ "text of 9 in 8", 32, KVD_REC_TEXT, { 9 }, 32, RING_E_CORRUPT },
	{ "text of 2^32 - 1", 32, KVD_REC_TEXT, { UINT32_MAX }, 32, RING_E_CORRUPT },
	{ "text without its fixed part", 16, KVD_REC_TEXT, { 0 }, 16, RING_E_CORRUPT },
	{ "token without its fixed part", 24, KVD_REC_TOKEN, { 0 }, 24, RING_E_CORRUPT },
	{ "token of 1 in 0", 32, KVD_REC_TOKEN, { 0, 0, 1 }, 32, RING_E_CORRUPT },
	{ "good token", 40, KVD_REC_TOKEN, { 0, 0, 8 }, 40, 0 },
	{ "prompt of 9 in 8", 40, KVD_REC_PROMPT, { 0, 0, 0, 9 }, 40, RING_E_CORRUPT },
	{ "error of 9 in 8", 32, KVD_REC_ERROR, { 1, 9 }, 32, RING_E_CORRUPT },
	{ "short usage", 48, KVD_REC_USAGE, { 0 }, 48, RING_E_CORRUPT },
	{ "short done", 16, KVD_REC_DONE, { 0 }, 16, RING_E_CORRUPT },
	{ "short progress", 16, KVD_REC_PROGRESS, { 0 }, 16, RING_E_CORRUPT },
	{ "alternatives: 2 in 1", 40, KVD_REC_ALTERNATIVES, { 2 }, 40, RING_E_CORRUPT },
	{ "alternatives: 2^28 in 1", 40, KVD_REC_ALTERNATIVES, { 1u << 28 }, 40, RING_E_CORRUPT },
	{ "good alternatives", 40, KVD_REC_ALTERNATIVES, { 1, 0, 0, 0, 0, 40 }, 40, 0 },
	{ "pad to the middle", 32, KVD_REC_PAD, { 0 }, 64, RING_E_CORRUPT },
	{ "unknown type", 32, 1000, { UINT32_MAX }, 32, RING_E_EMPTY },
	{ "unknown type, bad size", 20, 1000, { 0 }, 32, RING_E_CORRUPT },
};

static void test_lying_daemon(void **state)
{
	for (size_t i = 0; i < ARRAY_SIZE(lies); i++) {
		const struct lie *lie = &lies[i];
		struct ring_record r;
		struct liar l;
		int got;

		liar_init(&l);
		put32(l.data, lie->size);
		put32(l.data + 4, lie->type);
		memcpy(l.data + 16, lie->words, sizeof(lie->words));
		atomic_store(&liar_header(&l)->write_index, lie->written);
		got = ring_next(&l.f.reader, &r);
		if (got != lie->result)
			fail_msg("%s: %d", lie->what, got);
		if (got == RING_E_CORRUPT) {
			assert_int_equal(ring_next(&l.f.reader, &r), RING_E_CORRUPT);
			assert_false(ring_consume(&l.f.reader));
			assert_false(ring_sleep(&l.f.reader));
		}
		liar_deinit(&l);
	}
}

static void test_lying_alternative(void **state)
{
	static const struct { uint32_t n_bytes, offset; int result; } items[] = {
		{ 0, 40, 0 }, { 8, 40, 0 }, { 48, 0, 0 }, { 9, 40, RING_E_CORRUPT },
		{ 0, 49, RING_E_CORRUPT }, { UINT32_MAX, 1, RING_E_CORRUPT },
		{ 1, UINT32_MAX, RING_E_CORRUPT }, { 1u << 31, 1u << 31, RING_E_CORRUPT },
	};

	for (size_t i = 0; i < ARRAY_SIZE(items); i++) {
		struct ring_alternative a;
		struct ring_record r;
		struct liar l;

		liar_init(&l);
		put32(l.data, 48);
		put32(l.data + 4, KVD_REC_ALTERNATIVES);
		put32(l.data + 16, 1);
		put32(l.data + 32, items[i].n_bytes);
		put32(l.data + 36, items[i].offset);
		atomic_store(&liar_header(&l)->write_index, 48);
		assert_int_equal(ring_next(&l.f.reader, &r), 0);
		assert_int_equal(ring_record_alternative(&r, 0, &a), items[i].result);
		liar_deinit(&l);
	}
}

/* Touches all that the record says is there; beyond the data it would fault. */
static uint32_t touch(const struct liar *l, const struct ring_record *r)
{
	uint32_t sum = 0;

	if (r->n_bytes > 0) {
		assert_true(r->bytes >= l->data && r->bytes + r->n_bytes <= l->data + KVD_RING_MIN);
		sum += r->bytes[0] + r->bytes[r->n_bytes - 1];
	}
	if (r->type != KVD_REC_ALTERNATIVES)
		return sum;
	for (uint32_t i = 0; i < r->alternatives.n; i++) {
		struct ring_alternative a;

		if (ring_record_alternative(r, i, &a) || a.n_bytes == 0)
			continue;
		assert_true(a.bytes >= l->data && a.bytes + a.n_bytes <= l->data + KVD_RING_MIN);
		sum += a.bytes[0] + a.bytes[a.n_bytes - 1];
	}
	return sum;
}

/* A ring full of numbers that look like heads of records. */
static void garbage(struct liar *l, uint64_t *seed)
{
	for (uint32_t at = 0; at < KVD_RING_MIN; at += 8) {
		uint64_t v = prng(seed);

		switch (v & 7) {
		case 0:
			break;		/* anything */
		case 1:
			v = v >> 32 & 0xff;
			break;
		default:
			v = (v >> 8 & 0xf8) | (v >> 16 & 7) << 32;
			break;
		}
		memcpy(l->data + at, &v, 8);
	}
}

static void test_random_ring(void **state)
{
	const int rounds = getenv("KVD_TEST_LONG") ? 3000 : 100;
	uint64_t seed = 5, n_records = 0;
	volatile uint32_t sum = 0;
	struct liar l;

	liar_init(&l);
	for (int i = 0; i < rounds; i++) {
		garbage(&l, &seed);
		for (int k = 0; k < 200; k++) {
			struct ring_record r;
			uint64_t start = prng(&seed) & ~7ull;

			atomic_store(&segment_client(&l.f.client)->read_index, start);
			l.f.reader.read_index = l.f.reader.consumed = l.f.reader.write_index = start;
			l.f.reader.corrupt = false;
			atomic_store(&liar_header(&l)->write_index,
				     start + (prng_below(&seed, KVD_RING_MIN + 64) & ~7u));
			while (ring_next(&l.f.reader, &r) == 0) {
				sum += touch(&l, &r);
				n_records++;
				if (prng_below(&seed, 4) == 0)
					ring_consume(&l.f.reader);
			}
		}
	}
	assert_true(n_records > (uint64_t)rounds * 10);
	liar_deinit(&l);
}

static void *rewrite(void *arg)
{
	struct liar *l = arg;
	uint64_t seed = 3;

	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		uint64_t v = prng(&seed);
		uint32_t at = prng_below(&seed, 64) * 4;

		__atomic_store_n((uint32_t *)(l->data + at), (uint32_t)(v & 1 ? v >> 32 : v >> 56),
				 __ATOMIC_RELAXED);
	}
	return NULL;
}

/* Records that change between the look at their numbers and their use. */
static void test_changing_ring(void **state)
{
	uint64_t seed = 8;
	pthread_t thread;
	struct liar l;

	liar_init(&l);
	atomic_store(&stop, false);
	assert_int_equal(pthread_create(&thread, NULL, rewrite, &l), 0);
	for (int i = 0; i < 200000; i++) {
		struct ring_record r;

		l.f.reader.read_index = l.f.reader.consumed = l.f.reader.write_index = 0;
		l.f.reader.corrupt = false;
		atomic_store(&liar_header(&l)->write_index, 256);
		__atomic_store_n((uint32_t *)l.data, 16 + prng_below(&seed, 20) * 8, __ATOMIC_RELAXED);
		__atomic_store_n((uint32_t *)(l.data + 4), 1 + prng_below(&seed, 8), __ATOMIC_RELAXED);
		while (ring_next(&l.f.reader, &r) == 0) {
			assert_true(r.n_bytes == 0 ||
				    (r.bytes >= l.data && r.bytes + r.n_bytes <= l.data + 256));
			if (r.type != KVD_REC_ALTERNATIVES)
				continue;
			for (uint32_t k = 0; k < r.alternatives.n; k++) {
				struct ring_alternative a;

				assert_true(k < 256);
				if (ring_record_alternative(&r, k, &a) == 0)
					assert_true(a.bytes + a.n_bytes <= l.data + 256);
			}
		}
	}
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
	liar_deinit(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cursor_out_of_bounds),
		cmocka_unit_test(test_cursor_noticed_when_full),
		cmocka_unit_test(test_scribbling_client),
		cmocka_unit_test(test_lying_daemon),
		cmocka_unit_test(test_lying_alternative),
		cmocka_unit_test(test_random_ring),
		cmocka_unit_test(test_changing_ring),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
