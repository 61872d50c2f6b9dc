/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The size of blocks, chosen on machines that the test makes up: noise, what one size leaves in the caches for
 * the next, and slowness decide nothing; a clear gain does.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/engine/block-size.h"

#define N_MACHINES 200

struct machine {
	uint32_t percent[BLOCK_SIZE_N];	/* of the time that 32 takes */
	uint32_t noise;			/* percent, either way */
	uint32_t burst;			/* one step in so many takes three times as long; 0: none */
	uint32_t after[BLOCK_SIZE_N];	/* percent of its time, where it runs right after this size */
	uint64_t unit;			/* ns of a step for each token of the context */
	uint64_t random;
	uint32_t last;
	uint32_t n_steps, fails_at;
	uint64_t ns;			/* in all */
};

static struct machine machine_make(uint32_t p16, uint32_t p64, uint64_t seed)
{
	return (struct machine){
		.percent = { p16, 100, p64 }, .after = { 100, 100, 100 }, .unit = 1000,
		.random = seed * 2654435761u + 1,
	};
}

static uint32_t draw(struct machine *m, uint32_t n)
{
	m->random = m->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(m->random >> 33) % n;
}

static int step(void *arg, uint32_t i, uint32_t context, uint64_t *ns)
{
	struct machine *m = arg;
	uint64_t t = context * m->unit * m->percent[i] / 100;

	assert_true(i < BLOCK_SIZE_N);
	m->n_steps++;
	if (m->fails_at && m->n_steps == m->fails_at)
		return -ENOMEM;
	t = t * m->after[m->last] / 100;
	if (m->noise)
		t = t * (100 - m->noise + draw(m, 2 * m->noise + 1)) / 100;
	if (m->burst && !draw(m, m->burst))
		t *= 3;
	m->last = i;
	m->ns += t;
	*ns = t;
	return 0;
}

static uint32_t choose(struct machine *m)
{
	struct block_size_times times;

	assert_int_equal(block_size_run(step, m, &times), 0);
	return block_size_pick(&times);
}

static uint32_t pick_of(uint64_t t16, uint64_t t32, uint64_t t64)
{
	const struct block_size_times times = { .n_rounds = 1, .ns = { { t16, t32, t64 } } };

	return block_size_pick(&times);
}

static void test_one_round(void **state)
{
	assert_int_equal(pick_of(100, 100, 100), 32);
	assert_int_equal(pick_of(95, 100, 95), 32);
	assert_int_equal(pick_of(94, 100, 100), 16);
	assert_int_equal(pick_of(94, 100, 90), 64);
	assert_int_equal(pick_of(90, 100, 94), 16);
	assert_int_equal(pick_of(1, UINT64_MAX, UINT64_MAX), 16);
	assert_int_equal(pick_of(UINT64_MAX, 1, UINT64_MAX), 32);
}

/* Three rounds of four, not the sum of all. */
static void test_most_rounds(void **state)
{
	struct block_size_times times = { .n_rounds = 8 };

	for (uint32_t n_fast = 0; n_fast <= 8; n_fast++) {
		for (uint32_t r = 0; r < 8; r++) {
			times.ns[r][0] = r < n_fast ? 50 : 101;
			times.ns[r][1] = times.ns[r][2] = 100;
		}
		assert_int_equal(block_size_pick(&times), n_fast >= 6 ? 16 : 32);
		assert_int_equal(block_size_percent(&times, 0), n_fast >= 5 ? 50 : 101);
		assert_int_equal(block_size_percent(&times, 2), 100);
	}
}

static void test_noise(void **state)
{
	for (uint64_t seed = 0; seed < N_MACHINES; seed++) {
		struct machine m = machine_make(100, 100, seed);

		m.noise = 12;
		m.burst = seed % 2 ? 7 : 0;
		assert_int_equal(choose(&m), 32);
		m = machine_make(97, 97, seed);
		m.noise = 5;
		assert_int_equal(choose(&m), 32);
	}
}

static void test_clear_gain(void **state)
{
	for (uint64_t seed = 0; seed < N_MACHINES; seed++) {
		struct machine m = machine_make(100, 80, seed);

		m.noise = 10;
		m.burst = seed % 2 ? 40 : 0;
		assert_int_equal(choose(&m), 64);
		m = machine_make(80, 95, seed);
		m.noise = 10;
		assert_int_equal(choose(&m), 16);
	}
}

/* Whoever follows one size finds much of its memory in the caches: that is no property of any other. */
static void test_neighbours(void **state)
{
	for (uint32_t i = 0; i < BLOCK_SIZE_N; i++) {
		struct machine m = machine_make(100, 100, i);

		m.after[i] = 60;
		assert_int_equal(choose(&m), 32);
	}
}

/* As many rounds as fit, but enough; all sizes alike. */
static void test_budget(void **state)
{
	static const struct { uint64_t unit; uint32_t n_rounds; } cases[] = {
		{ 1, BLOCK_SIZE_ROUNDS }, { 1000, BLOCK_SIZE_ROUNDS }, { 100000, BLOCK_SIZE_ROUNDS_MIN },
		/* 3 x 3,548 tokens in a round. */
		{ BLOCK_SIZE_BUDGET_NS / (UINT64_C(10644) * 10), 10 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct machine m = machine_make(100, 100, i);
		struct block_size_times times;

		m.unit = cases[i].unit;
		assert_int_equal(block_size_run(step, &m, &times), 0);
		assert_int_equal(times.n_rounds, cases[i].n_rounds);
		assert_int_equal(m.n_steps, 1 + 9 * cases[i].n_rounds);
		for (uint32_t r = 0; r < times.n_rounds; r++)
			for (uint32_t size = 0; size < BLOCK_SIZE_N; size++)
				assert_int_equal(times.ns[r][size], 3548 * m.unit);
	}
}

static void test_error(void **state)
{
	for (uint32_t at = 1; at <= 1 + 9 * BLOCK_SIZE_ROUNDS; at += 20) {
		struct machine m = machine_make(100, 100, 1);
		struct block_size_times times = { .n_rounds = 77 };

		m.fails_at = at;
		assert_int_equal(block_size_run(step, &m, &times), -ENOMEM);
		assert_int_equal(times.n_rounds, 77);
		assert_int_equal(m.n_steps, at);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_round),
		cmocka_unit_test(test_most_rounds),
		cmocka_unit_test(test_noise),
		cmocka_unit_test(test_clear_gain),
		cmocka_unit_test(test_neighbours),
		cmocka_unit_test(test_budget),
		cmocka_unit_test(test_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
