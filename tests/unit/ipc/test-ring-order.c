/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of each pair of words of the sleep and the room rule, without any
 * sleep.  Readers that leave out a part of the rule live in this file, to prove that
 * the test sees what it is for.
 */
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

#include "tests/unit/ipc/prng.h"
#include "tests/unit/ipc/ring-fixture.h"

enum rule {
	WHOLE,
	NO_SECOND_LOOK,		/* the reader sets its flag and sleeps */
	NO_ORDER,		/* it looks, but with acquire and release only */
};

/*
 * One round: the ring is empty; at the same moment the reader is about to sleep and
 * the writer publishes a record.  If the reader sleeps and the writer sends
 * no wake, it is lost.  Or: the ring is full; at the same moment the reader gives all of
 * it back and the writer wants to write.  If the writer parks and the reader sends no
 * room, it is parked for ever.  A round takes about a microsecond, so that the
 * two meet within the few nanoseconds in which a store may be passed by a later load.
 */
struct litmus {
	struct ring_fixture f;
	enum rule rule;
	bool (*half)(struct litmus *);	/* the reader's half */
	/* The last round in which: */
	_Atomic uint32_t prepared;	/* the writer has filled the ring, or left it empty */
	_Atomic uint32_t ready;		/* the reader has taken what is there */
	_Atomic uint32_t round;		/* both begin */
	_Atomic uint32_t decided;	/* the reader has done its half */
	_Atomic uint32_t settled;	/* and the writer */
	_Atomic uint32_t over;		/* nothing is left of it */
	_Atomic bool quiet;		/* what the reader's half returned */
	_Atomic bool end;
};

/* The reader's decision to sleep. */
static bool about_to_sleep(enum rule rule, struct ring_reader *r)
{
	uint64_t w;

	switch (rule) {
	case NO_SECOND_LOOK:
		atomic_store(&r->client->reader_waiting, 1);
		return true;
	case NO_ORDER:
		atomic_store_explicit(&r->client->reader_waiting, 1, memory_order_release);
		w = atomic_load_explicit(&r->header->write_index, memory_order_acquire);
		return w == r->read_index && !atomic_load_explicit(&r->header->closed, memory_order_acquire);
	default:
		return ring_sleep(r);
	}
}

static void await(_Atomic uint32_t *word, uint32_t value, _Atomic bool *end)
{
	for (uint32_t i = 1; atomic_load_explicit(word, memory_order_acquire) != value; i++) {
		if (atomic_load(end))
			return;
		if (i % 4096 == 0)
			sched_yield();
	}
}

/* To the n-th CPU that we may use: on one and the same the two never meet. */
static void pin(pthread_t thread, int n)
{
	cpu_set_t all, one;

	if (sched_getaffinity(0, sizeof(all), &all) < 0)
		return;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &all) || n-- > 0)
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		(void)pthread_setaffinity_np(thread, sizeof(one), &one);
		return;
	}
}

/* The reader's half of a round; true: it sends nothing, or sleeps. */
typedef bool (*half_fn)(struct litmus *l);

/* A sleep: the ring is empty. */
static bool half_sleep(struct litmus *l)
{
	return about_to_sleep(l->rule, &l->f.reader);
}

/* Room: the ring is full, and all of it is read. */
static bool half_consume(struct litmus *l)
{
	return !ring_consume(&l->f.reader);
}

static void take_all(struct ring_reader *r)
{
	struct ring_record record;

	while (ring_next(r, &record) == 0)
		continue;
}

static void delay(uint64_t *seed)
{
	for (volatile uint32_t i = prng_below(seed, 400); i > 0; i--)
		continue;
}

static void *litmus_reader(void *arg)
{
	struct litmus *l = arg;
	struct ring_reader *r = &l->f.reader;
	uint64_t seed = 11;

	for (uint32_t round = 1;; round++) {
		await(&l->prepared, round, &l->end);
		take_all(r);
		atomic_store_explicit(&l->ready, round, memory_order_release);
		await(&l->round, round, &l->end);
		if (atomic_load(&l->end))
			return NULL;
		delay(&seed);
		atomic_store_explicit(&l->quiet, l->half(l), memory_order_relaxed);
		atomic_store_explicit(&l->decided, round, memory_order_release);
		/* Not earlier: the flag is the writer's to see until then. */
		await(&l->settled, round, &l->end);
		take_all(r);
		ring_consume(r);
		ring_awake(r);
		atomic_store_explicit(&l->over, round, memory_order_release);
	}
}

static void litmus_start(struct litmus *l, enum rule rule, half_fn half, pthread_t *thread, cpu_set_t *cpus)
{
	memset(l, 0, sizeof(*l));
	ring_fixture_init(&l->f, KVD_RING_MIN, UINT64_MAX - 4095);
	l->rule = rule;
	l->half = half;
	assert_int_equal(sched_getaffinity(0, sizeof(*cpus), cpus), 0);
	assert_int_equal(pthread_create(thread, NULL, litmus_reader, l), 0);
	pin(*thread, 1);
	pin(pthread_self(), 0);
}

static void litmus_stop(struct litmus *l, pthread_t thread, const cpu_set_t *cpus)
{
	atomic_store(&l->end, true);
	pthread_join(thread, NULL);
	(void)pthread_setaffinity_np(pthread_self(), sizeof(*cpus), cpus);
	ring_fixture_deinit(&l->f);
}

/* Both sides have decided; returns whether the reader was quiet. */
static bool litmus_settle(struct litmus *l, uint32_t round)
{
	atomic_store_explicit(&l->settled, round, memory_order_release);
	await(&l->decided, round, &l->end);
	return atomic_load(&l->quiet);
}

static int write_small(struct litmus *l)
{
	ring_begin(&l->f.writer, false);
	ring_put_progress(&l->f.writer, 1, 0, 0);
	return ring_commit(&l->f.writer);
}

/* How many wake-ups are lost in n rounds, or until the first if until_lost. */
static uint32_t run_sleep_litmus(enum rule rule, uint32_t n, bool until_lost)
{
	static struct litmus l;
	uint64_t seed = 12;
	uint32_t n_lost = 0;
	cpu_set_t cpus;
	pthread_t thread;

	litmus_start(&l, rule, half_sleep, &thread, &cpus);
	for (uint32_t round = 1; round <= n && !(until_lost && n_lost > 0); round++) {
		bool woken;

		atomic_store_explicit(&l.prepared, round, memory_order_release);
		await(&l.ready, round, &l.end);
		atomic_store_explicit(&l.round, round, memory_order_release);
		delay(&seed);
		assert_int_equal(write_small(&l), 0);
		woken = ring_needs_wake(&l.f.writer);
		n_lost += litmus_settle(&l, round) && !woken;
		await(&l.over, round, &l.end);
	}
	litmus_stop(&l, thread, &cpus);
	return n_lost;
}

static int write_large(struct litmus *l)
{
	static const uint8_t text[KVD_RING_BATCH_MAX(KVD_RING_MIN) - 24];

	ring_begin(&l->f.writer, false);
	ring_put_text(&l->f.writer, 1, text, sizeof(text));
	return ring_commit(&l->f.writer);
}

/* How many times in n rounds the writer parks for ever. */
static uint32_t run_room_litmus(uint32_t n)
{
	static struct litmus l;
	uint64_t seed = 13;
	uint32_t n_lost = 0;
	cpu_set_t cpus;
	pthread_t thread;

	litmus_start(&l, WHOLE, half_consume, &thread, &cpus);
	for (uint32_t round = 1; round <= n; round++) {
		int r;

		while (write_large(&l) == 0)
			continue;
		ring_room(&l.f.writer);
		atomic_store_explicit(&l.prepared, round, memory_order_release);
		await(&l.ready, round, &l.end);
		atomic_store_explicit(&l.round, round, memory_order_release);
		delay(&seed);
		r = write_large(&l);
		assert_true(r == 0 || r == RING_E_FULL);
		n_lost += litmus_settle(&l, round) && r == RING_E_FULL;
		await(&l.over, round, &l.end);
	}
	litmus_stop(&l, thread, &cpus);
	return n_lost;
}

static uint32_t scaled(uint32_t n)
{
	return getenv("KVD_TEST_LONG") ? n * 20 : n;
}

static void test_order(void **state)
{
	assert_int_equal(run_sleep_litmus(WHOLE, scaled(30000), false), 0);
	/* And the rounds do see a reader that forgets the second look. */
	assert_true(run_sleep_litmus(NO_SECOND_LOOK, 1000, false) > 0);
}

static void test_order_of_room(void **state)
{
	assert_int_equal(run_room_litmus(scaled(20000)), 0);
}

/*
 * Acquire and release are not enough.  Whether that shows depends on two cores being
 * ours at the same moment, so that only the long run insists.
 */
static void test_missing_order_is_seen(void **state)
{
	assert_int_equal(run_sleep_litmus(NO_ORDER, 20000000, true), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_order_of_room),
	};
	const struct CMUnitTest long_tests[] = {
		cmocka_unit_test(test_missing_order_is_seen),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);

	if (getenv("KVD_TEST_LONG"))
		failed += cmocka_run_group_tests(long_tests, NULL, NULL);
	return failed;
}
