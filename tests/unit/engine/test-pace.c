/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Against a simulated device, whose noise the true times don't have: steps with prefill take at most about three
 * times one without, and prompts still get most of what that allows.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "daemon/engine/pace.h"
#include "ipc/base/checked.h"

#define RATIO 3
#define QUANTUM 256u

struct device {
	double weights, row, attention;	/* ns of a step, of a row, of a row for each position before it */
	double noise;			/* relative, of most steps */
	int spike_one_in;		/* steps that take up to ten times as long; 0: none */
};

static double uniform(void)
{
	return (double)rand() / RAND_MAX;
}

static double true_ns(const struct device *d, uint32_t n_decode, double decode_position, uint32_t n_prefill,
		      double positions)
{
	return d->weights + d->row * (n_decode + n_prefill) +
	       d->attention * (n_decode * decode_position + positions);
}

static double measured_ns(const struct device *d, double ns)
{
	ns *= 1 + d->noise * (uniform() + uniform() - 1);
	if (d->spike_one_in && rand() % d->spike_one_in == 0)
		ns *= 1 + 9 * uniform();
	return ns;
}

struct figures {
	uint32_t n_steps, n_long;	/* with prefill; those over the ratio and a tenth of it */
	double worst;			/* ratio */
	double tokens, possible;	/* of prefill; at exactly the ratio */
};

/* One prompt from position first, beside n sequences, as the engine does it. */
static void prefill(struct pace *p, const struct device *d, uint32_t n, double decode_position, uint32_t first,
		    uint32_t n_prompt, struct figures *f)
{
	uint32_t at = first;

	while (at < n_prompt) {
		uint32_t tokens = 0, max = MIN(QUANTUM, n_prompt - at);
		double decode = true_ns(d, n, decode_position, 0, 0), positions, ns, each;

		if (!n)
			tokens = max;
		else if (!pace_wants_decode(p, n))
			tokens = pace_tokens(p, at, (RATIO - 1) * pace_decode_ns(p, n), max);
		positions = tokens * (at + (tokens - 1) / 2.0);
		ns = true_ns(d, n, decode_position, tokens, positions);
		pace_note(p, &(struct pace_step){ n, tokens, (uint64_t)positions, (uint64_t)measured_ns(d, ns) });
		at += tokens;
		if (!n || !tokens)
			continue;
		each = d->row + d->attention * at;
		f->n_steps++;
		f->n_long += ns > 1.1 * RATIO * decode;
		f->worst = MAX(f->worst, ns / decode);
		f->tokens += tokens;
		f->possible += MIN((RATIO - 1) * decode / each, (double)max);
	}
}

static void decode(struct pace *p, const struct device *d, uint32_t n, double position, int n_steps)
{
	for (int i = 0; i < n_steps; i++)
		pace_note(p, &(struct pace_step){ n, 0, 0, (uint64_t)measured_ns(d, true_ns(d, n, position, 0, 0)) });
}

static void check(const struct figures *f, double worst, double least_use)
{
	if (f->worst > worst || f->n_long > f->n_steps / 20)
		fail_msg("at worst %.2f times as long, %u of %u too long", f->worst, f->n_long, f->n_steps);
	if (f->tokens < least_use * f->possible)
		fail_msg("%.0f prompt tokens where %.0f are possible", f->tokens, f->possible);
}

/* Weights 6 ms, 0.4 ms a row, attention as dear as the row at 4,000 positions: a small model on two cores. */
static const struct device small = { .weights = 6e6, .row = 4e5, .attention = 100 };
/* Large batches are nearly free, steps are short. */
static const struct device fast = { .weights = 8e5, .row = 2e3, .attention = 0.2 };
static const struct device devices[] = {
	{ 6e6, 4e5, 100, 0.1, 0 }, { 6e6, 4e5, 100, 0.3, 20 }, { 8e5, 2e3, 0.2, 0.2, 10 }, { 5e7, 1e6, 500, 0.2, 30 },
};

/* Exactly, where nothing is in the way. */
static void test_exact(void **state)
{
	struct figures f = { 0 };
	struct pace p = { 0 };

	(void)state;
	assert_int_equal(pace_decode_ns(&p, 4), 0);
	assert_true(pace_wants_decode(&p, 4));
	assert_int_equal(pace_tokens(&p, 0, 1000000, 256), PACE_FIRST);
	assert_int_equal(pace_tokens(&p, 0, 1000000, 7), 7);
	decode(&p, &small, 4, 500, 3);
	assert_false(pace_wants_decode(&p, 4));
	assert_true(pace_wants_decode(&p, 5));
	assert_int_equal(pace_decode_ns(&p, 4), 6e6 + 4 * 4e5 + 4 * 500 * 100);
	prefill(&p, &small, 4, 500, 0, 6000, &f);
	check(&f, RATIO + 0.1, 0.75);
	/* Once more: all classes are known. */
	f = (struct figures){ 0 };
	prefill(&p, &small, 4, 500, 0, 6000, &f);
	check(&f, RATIO + 0.1, 0.85);
	/* However little time there is, a prompt gets on, and never beyond what it has. */
	assert_int_equal(pace_tokens(&p, 100, 0, 256), PACE_LEAST);
	assert_int_equal(pace_tokens(&p, 100, 0, 2), 2);
	assert_int_equal(pace_tokens(&p, 100, UINT64_MAX, 256), 256);
	assert_int_equal(pace_tokens(&p, UINT32_MAX, 1000000, 256), PACE_LEAST);
}

/* Many prompts of many lengths, some with a beginning in the cache, beside a batch that changes. */
static void test_noise(void **state)
{
	(void)state;
	for (size_t k = 0; k < ARRAY_SIZE(devices); k++) {
		struct figures f = { 0 };
		struct pace p = { 0 };

		srand(7 + (unsigned)k);
		for (int round = 0; round < 200; round++) {
			uint32_t n = (uint32_t)rand() % 5 * ((uint32_t)rand() % 5);
			uint32_t n_prompt = 1 + (uint32_t)rand() % 6000, first = rand() % 4 ? 0 : n_prompt / 2;

			if (round == 10)	/* nothing was known before */
				f = (struct figures){ 0 };
			decode(&p, &devices[k], MAX(n, 1u), 400 + 10 * round, rand() % 30);
			prefill(&p, &devices[k], n, 400 + 10 * round, first, n_prompt, &f);
		}
		check(&f, devices[k].noise > 0.25 ? RATIO * 2 : RATIO + 1, 0.7);
	}
}

/* The same answers to the same notes. */
static void test_deterministic(void **state)
{
	struct pace p[2] = { { .token_ns = { 0 } }, { .token_ns = { 0 } } };

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct figures f = { 0 };

		srand(3);
		decode(&p[i], &devices[1], 3, 100, 5);
		prefill(&p[i], &devices[1], 3, 100, 0, 3000, &f);
	}
	assert_memory_equal(&p[0], &p[1], sizeof(p[0]));
}

/* The device becomes four times slower, then as fast again: a few steps later all is well. */
static void test_change(void **state)
{
	struct device d = small;
	struct pace p = { 0 };

	(void)state;
	d.noise = 0.1;
	decode(&p, &d, 2, 300, 10);
	for (int round = 0; round < 6; round++) {
		struct figures f = { 0 };
		double by = round % 2 ? 0.25 : 4;

		d.weights *= by;
		d.row *= by;
		d.attention *= by;
		decode(&p, &d, 2, 300, 10);
		prefill(&p, &d, 2, 300, 0, 3000, &f);	/* learns */
		f = (struct figures){ 0 };
		prefill(&p, &d, 2, 300, 0, 3000, &f);
		check(&f, RATIO * 1.3, 0.7);
	}
}

/* A step without prefill is asked for now and then, so that what grows is noticed; not often. */
static void test_stale(void **state)
{
	struct figures f = { 0 };
	struct pace p = { 0 };
	uint32_t n_asked = 0;

	(void)state;
	decode(&p, &fast, 1, 0, PACE_KNOWN);
	for (uint32_t i = 0; i < 50 * PACE_STALE; i++) {
		if (pace_wants_decode(&p, 1)) {
			n_asked++;
			decode(&p, &fast, 1, 100000, 1);
		} else {
			prefill(&p, &fast, 1, 100000, 1000, 1001, &f);
		}
	}
	assert_in_range(n_asked, 48, 50);
	assert_true(pace_decode_ns(&p, 1) == (uint64_t)true_ns(&fast, 1, 100000, 0, 0));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_exact),
		cmocka_unit_test(test_noise),
		cmocka_unit_test(test_deterministic),
		cmocka_unit_test(test_change),
		cmocka_unit_test(test_stale),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
