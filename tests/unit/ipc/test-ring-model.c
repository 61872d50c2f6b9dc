/* SPDX-License-Identifier: Apache-2.0 */
/* The ring against a plain queue, in one thread, at random and where space is tight. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "tests/unit/ipc/prng.h"
#include "tests/unit/ipc/ring-fixture.h"

struct expected {
	enum kvd_record_type type;
	uint64_t request;
	uint32_t value;		/* of a number in the record, and the first byte's value */
	uint32_t n_bytes;
};

#define QUEUE 8192

struct oracle {
	struct ring_fixture f;
	struct expected queue[QUEUE];
	size_t first, n, staged;
	uint32_t n_live, n_reserved;
	uint64_t seed, request;
	uint64_t n_committed, n_full, n_final, n_laps;
};

static uint8_t pattern(uint32_t value, size_t i)
{
	return (uint8_t)(value * 31u + i * 7u);
}

static const uint8_t *fill(uint32_t value, size_t n)
{
	static uint8_t buf[32768];

	for (size_t i = 0; i < n; i++)
		buf[i] = pattern(value, i);
	return buf;
}

static void expect(struct oracle *o, enum kvd_record_type type, uint32_t value, uint32_t n_bytes)
{
	assert_true(o->n + o->staged < QUEUE);
	o->queue[(o->first + o->n + o->staged++) % QUEUE] =
		(struct expected){ .type = type, .request = o->request, .value = value, .n_bytes = n_bytes };
}

static uint32_t random_length(struct oracle *o)
{
	switch (prng_below(&o->seed, 8)) {
	case 0:
		return 0;
	case 1:
		return prng_below(&o->seed, 5000);
	default:
		return prng_below(&o->seed, 40);
	}
}

static void put_random(struct oracle *o)
{
	struct ring_writer *w = &o->f.writer;
	uint32_t value = (uint32_t)prng(&o->seed), n = random_length(o);

	switch (prng_below(&o->seed, 4)) {
	case 0:
		ring_put_token(w, o->request, (int32_t)value, 0.5f, value & 1, fill(value, n), n);
		expect(o, KVD_REC_TOKEN, value, n);
		break;
	case 1:
		ring_put_text(w, o->request, fill(value, n), n);
		expect(o, KVD_REC_TEXT, 0, n);
		o->queue[(o->first + o->n + o->staged - 1) % QUEUE].value = value;
		break;
	case 2:
		ring_put_prompt(w, o->request, (int32_t)value, 0, 1, fill(value, n), n);
		expect(o, KVD_REC_PROMPT, value, n);
		break;
	default:
		ring_put_progress(w, o->request, value, n);
		expect(o, KVD_REC_PROGRESS, value, 0);
		break;
	}
}

static void write_batch(struct oracle *o)
{
	struct ring_writer *w = &o->f.writer;
	uint64_t unread = ring_unread(w), bytes;
	uint32_t k = 1 + prng_below(&o->seed, 5);
	int r;

	o->request++;
	o->staged = 0;
	ring_begin(w, false);
	for (uint32_t i = 0; i < k; i++)
		put_random(o);
	bytes = ring_staged(w);
	r = ring_commit(w);
	if (r == -EMSGSIZE) {
		assert_true(bytes + 5100 > KVD_RING_BATCH_MAX(w->size));
		return;
	}
	if (r == 0) {
		o->n += o->staged;
		o->n_committed++;
		/* The reserve is whole. */
		assert_true(w->size - ring_unread(w) >= (uint64_t)o->n_live * KVD_RING_FINAL_RESERVE);
		return;
	}
	/* Full only if it is: what was staged is at most all of it, pads waste at most one record. */
	assert_int_equal(r, RING_E_FULL);
	assert_true(unread + 2 * bytes + 5100 + (o->n_reserved + 1ull) * KVD_RING_FINAL_RESERVE > w->size);
	o->n_full++;
}

/* The last batch of a request always fits. */
static void write_final(struct oracle *o)
{
	struct ring_usage usage = { 0 };
	struct ring_writer *w = &o->f.writer;
	uint32_t value = (uint32_t)prng(&o->seed);
	uint32_t n = prng_below(&o->seed, 2) ? KVD_RING_FINAL_TEXT : random_length(o) % KVD_RING_FINAL_TEXT;

	o->request++;
	o->staged = 0;
	usage.miss = value;
	ring_begin(w, true);
	ring_put_text(w, o->request, fill(value, n), n);
	expect(o, KVD_REC_TEXT, value, n);
	ring_put_usage(w, o->request, &usage);
	expect(o, KVD_REC_USAGE, value, 0);
	ring_put_done(w, o->request, KVD_FINISH_STOP, value);
	expect(o, KVD_REC_DONE, value, 0);
	assert_int_equal(ring_commit(w), 0);
	o->n += o->staged;
	o->n_live--;
	o->n_final++;
}

static uint32_t number_of(const struct ring_record *r, uint32_t otherwise)
{
	switch (r->type) {
	case KVD_REC_TOKEN:
		return (uint32_t)r->token.id;
	case KVD_REC_PROMPT:
		return (uint32_t)r->prompt.id;
	case KVD_REC_PROGRESS:
		return r->progress.done;
	case KVD_REC_USAGE:
		return r->usage.miss;
	case KVD_REC_DONE:
		return r->done.stop_index;
	default:
		return otherwise;
	}
}

static void read_some(struct oracle *o, uint32_t most)
{
	struct ring_record r;

	for (uint32_t i = 0; i < most && o->n > 0; i++) {
		struct expected *e = &o->queue[o->first];

		assert_int_equal(ring_next(&o->f.reader, &r), 0);
		assert_int_equal(r.type, e->type);
		assert_true(r.request == e->request);
		assert_int_equal(r.n_bytes, e->n_bytes);
		assert_int_equal(number_of(&r, e->value), e->value);
		for (uint32_t k = 0; k < r.n_bytes; k++)
			assert_int_equal(r.bytes[k], pattern(e->value, k));
		o->first = (o->first + 1) % QUEUE;
		o->n--;
		if (prng_below(&o->seed, 3) == 0)
			ring_consume(&o->f.reader);
	}
	if (o->n == 0)
		assert_int_equal(ring_next(&o->f.reader, &r), RING_E_EMPTY);
	ring_consume(&o->f.reader);
}

/* Anything that is allowed fits when everything was read. */
static void check_progress(struct oracle *o)
{
	struct ring_writer *w = &o->f.writer;
	uint32_t n = KVD_RING_BATCH_MAX(w->size) - 24;

	read_some(o, UINT32_MAX);
	assert_int_equal(ring_unread(w), 0);
	o->request++;
	o->staged = 0;
	ring_begin(w, false);
	ring_put_text(w, o->request, fill(1, n), n);
	expect(o, KVD_REC_TEXT, 1, n);
	assert_int_equal(ring_commit(w), 0);
	o->n += o->staged;
}

static void run_oracle(uint64_t start, uint64_t seed, int steps)
{
	static struct oracle o;

	memset(&o, 0, sizeof(o));
	o.seed = seed;
	ring_fixture_init(&o.f, KVD_RING_MIN, start);
	for (int i = 0; i < steps; i++) {
		switch (prng_below(&o.seed, 16)) {
		case 0:
		case 1:
			if (ring_reserve(&o.f.writer) == 0) {
				o.n_live++;
				o.n_reserved++;
			}
			break;
		case 2:
			if (o.n_live > 0)
				write_final(&o);
			break;
		case 3:
			if (o.n_reserved > o.n_live) {
				ring_unreserve(&o.f.writer);
				o.n_reserved--;
			}
			break;
		case 4:
			read_some(&o, prng_below(&o.seed, 60));
			break;
		case 5:
			if (prng_below(&o.seed, 40) == 0)
				check_progress(&o);
			break;
		case 6:
			/* All that is live ends now, with nobody reading. */
			while (prng_below(&o.seed, 20) == 0 && o.n_live > 0)
				write_final(&o);
			break;
		default:
			write_batch(&o);
			break;
		}
	}
	while (o.n_live > 0)
		write_final(&o);
	read_some(&o, UINT32_MAX);
	assert_int_equal(ring_unread(&o.f.writer), 0);
	o.n_laps = (o.f.writer.write_index - start) / KVD_RING_MIN;
	/* It did meet what it is about. */
	assert_true(o.n_full > 50 && o.n_final > 50 && o.n_laps > 20 && o.n_committed > 500);
	ring_fixture_deinit(&o.f);
}

static void test_against_queue(void **state)
{
	int times = getenv("KVD_TEST_LONG") ? 200 : 6;

	for (int i = 0; i < times; i++)
		run_oracle(0, (uint64_t)i + 1, 30000);
}

/* Both indexes pass 2^64 on the way. */
static void test_index_wrap(void **state)
{
	static const uint64_t starts[] = { UINT64_MAX - 4095, UINT64_MAX - 8191,
					   0 - (uint64_t)KVD_RING_MIN * 3 + 4096 };

	for (size_t i = 0; i < ARRAY_SIZE(starts); i++)
		run_oracle(starts[i], i + 77, 30000);
}

/* Every offset at which a last batch can meet the ring's end, with the whole reserve in use. */
static void test_final_at_every_offset(void **state)
{
	const uint32_t n_max = KVD_RING_REQUESTS(KVD_RING_MIN);
	static struct oracle o;

	for (uint32_t shift = 0; shift < KVD_RING_MIN; shift += 16 + 8 * (shift % 3)) {
		memset(&o, 0, sizeof(o));
		ring_fixture_init(&o.f, KVD_RING_MIN, 0);
		for (uint32_t at = 0; at + 24 <= shift; at += 24) {	/* moves both indexes on */
			ring_begin(&o.f.writer, false);
			ring_put_progress(&o.f.writer, 0, 0, 0);
			assert_int_equal(ring_commit(&o.f.writer), 0);
			assert_int_equal(ring_next(&o.f.reader, &(struct ring_record){ 0 }), 0);
			ring_consume(&o.f.reader);
		}
		for (uint32_t i = 0; i < n_max; i++)
			assert_int_equal(ring_reserve(&o.f.writer), 0);
		o.n_live = o.n_reserved = n_max;
		/* As full as it gets, with small records. */
		for (int r = 0; r == 0;) {
			ring_begin(&o.f.writer, false);
			ring_put_progress(&o.f.writer, 0, 7, 7);
			r = ring_commit(&o.f.writer);
			if (r == 0) {
				o.staged = 0;
				o.request = 0;
				expect(&o, KVD_REC_PROGRESS, 7, 0);
				o.n++;
			}
		}
		o.staged = 0;
		while (o.n_live > 0) {
			o.seed = shift;
			write_final(&o);
		}
		read_some(&o, UINT32_MAX);
		ring_fixture_deinit(&o.f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_against_queue),
		cmocka_unit_test(test_index_wrap),
		cmocka_unit_test(test_final_at_every_offset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
