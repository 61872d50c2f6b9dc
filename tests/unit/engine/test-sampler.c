/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sampler against a naive one in double precision that sorts everything:
 * the same sets, the same distribution, the same log-probabilities.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <stdbool.h>

#include "daemon/engine/sampler.h"

#define N_MAX 5000

static const struct sampler_params greedy = { .top_p = 1, .repeat_penalty = 1 };

static const struct sampler_history none;

struct naive_token {
	int32_t id;
	double logit, p;
};

struct naive {
	struct naive_token tokens[N_MAX];	/* sorted */
	size_t n_kept;
	double border;	/* least distance of a probability to a cut: below 1e-5 the set is a toss-up */
};

static struct naive naive;

static int by_logit(const void *a, const void *b)
{
	const struct naive_token *x = a, *y = b;

	if (x->logit != y->logit)
		return x->logit > y->logit ? -1 : 1;
	return x->id < y->id ? -1 : 1;
}

static void adjust(double *logits, const struct sampler_params *p, const struct sampler_history *h)
{
	static bool seen[N_MAX];
	size_t from = h->n > p->repeat_last_n ? h->n - p->repeat_last_n : 0;

	memset(seen, 0, sizeof(seen));
	for (size_t i = 0; i < p->n_bias; i++)
		logits[p->bias[i].id] += (double)p->bias[i].bias;
	for (size_t i = from; i < h->n; i++) {
		double *l = &logits[h->tokens[i]];

		if (!seen[h->tokens[i]])
			*l = *l > 0 ? *l / (double)p->repeat_penalty : *l * (double)p->repeat_penalty;
		seen[h->tokens[i]] = true;
	}
	memset(seen, 0, sizeof(seen));
	for (size_t i = h->n_prompt; i < h->n; i++) {
		int32_t id = h->tokens[i];

		/* mu -= c * frequency + (c > 0) * presence, a token at a time */
		logits[id] -= (double)p->frequency_penalty + (seen[id] ? 0 : (double)p->presence_penalty);
		seen[id] = true;
	}
}

/* Everything as the header says it, with one full sort. */
static void naive_distribution(const struct sampler_params *p, const float *logits, size_t n,
			       const struct sampler_history *h)
{
	static double l[N_MAX];
	double sum = 0, kept = 0, cum = 0;
	size_t k = p->top_k && p->top_k < n ? p->top_k : n, n_kept;

	for (size_t i = 0; i < n; i++)
		l[i] = isnan(logits[i]) ? -INFINITY : (double)logits[i];
	adjust(l, p, h);
	for (size_t i = 0; i < n; i++)
		naive.tokens[i] = (struct naive_token){ .id = (int32_t)i, .logit = l[i] };
	qsort(naive.tokens, n, sizeof(*naive.tokens), by_logit);
	for (size_t i = 0; i < n; i++) {
		naive.tokens[i].p =
			exp((naive.tokens[i].logit - naive.tokens[0].logit) / (double)p->temperature);
		if (i < k)
			sum += naive.tokens[i].p;
	}
	naive.border = 1;
	for (n_kept = 0; n_kept < k; n_kept++) {
		double q = naive.tokens[n_kept].p;

		if (p->top_p < 1)
			naive.border = fmin(naive.border, fabs(cum / sum - (double)p->top_p));
		if (p->min_p > 0)
			naive.border = fmin(naive.border, fabs(q - (double)p->min_p));
		if (n_kept && ((p->top_p < 1 && cum >= (double)p->top_p * sum) || q < (double)p->min_p))
			break;
		cum += q;
		kept += q;
	}
	if (p->top_p < 1)
		naive.border = fmin(naive.border, fabs(cum / sum - (double)p->top_p));
	naive.n_kept = n_kept;
	for (size_t i = 0; i < n_kept; i++)
		naive.tokens[i].p /= kept;
}

static float gaussian(void)
{
	double u = (rand() + 1.0) / (RAND_MAX + 2.0), v = rand() / (double)RAND_MAX;

	return (float)(sqrt(-2 * log(u)) * cos(2 * M_PI * v));
}

static void random_logits(float *logits, size_t n, float spread)
{
	for (size_t i = 0; i < n; i++) {
		logits[i] = spread * gaussian();
		if (rand() % 4 == 0 && i)	/* ties */
			logits[i] = logits[(size_t)rand() % i];
	}
}

/*
 * Draws many times: every token that comes is in the naive set, and counts
 * follow the probabilities.  The statistic is Pearson's chi-square over the
 * tokens with an expectation of 5 or more, the rest taken together; its
 * standard deviation is sqrt(2 df), and six of those are allowed.
 */
static void check_draws(struct sampler *s, const struct sampler_params *p, const float *logits, size_t n,
			const struct sampler_history *h, int n_draws)
{
	static int counts[N_MAX];
	struct sampler_result result;
	struct sampler_rng rng;
	double chi = 0, rest = 0;
	int df = -1, rest_count = 0;

	memset(counts, 0, sizeof(counts));
	sampler_rng_init(&rng, p->seed);
	for (int i = 0; i < n_draws; i++) {
		assert_int_equal(sampler_sample(s, p, &rng, logits, h, &result), 0);
		assert_in_range(result.id, 0, n - 1);
		counts[result.id]++;
	}
	for (size_t i = 0; i < naive.n_kept; i++) {
		double expected = naive.tokens[i].p * n_draws;
		int count = counts[naive.tokens[i].id];

		counts[naive.tokens[i].id] = 0;
		if (expected < 5) {
			rest += expected;
			rest_count += count;
			continue;
		}
		chi += (count - expected) * (count - expected) / expected;
		df++;
	}
	if (rest >= 5) {
		chi += (rest_count - rest) * (rest_count - rest) / rest;
		df++;
	} else {
		assert_true(rest_count < 5 + 6 * 3);
	}
	for (size_t i = 0; i < n; i++)
		assert_int_equal(counts[i], 0);	/* outside the set */
	if (df > 0)
		assert_true(chi < df + 6 * sqrt(2.0 * df) + 6);
}

/* Small vocabularies and random settings: every border of a set comes up. */
static void test_sets(void **state)
{
	static float logits[N_MAX];
	struct sampler *s;
	int n_checked = 0;

	(void)state;
	srand(1);
	for (int round = 0; round < 60; round++) {
		size_t n = (size_t)(rand() % 60 + 1);
		struct sampler_params p = {
			.temperature = 0.2f + (float)(rand() % 20) / 10,
			.repeat_penalty = 1,
			.seed = (uint64_t)round,
			.top_p = rand() % 2 ? 1 : (float)(rand() % 100) / 100,
			.top_k = rand() % 2 ? 0 : (uint32_t)rand() % 30,
			.min_p = rand() % 2 ? 0 : (float)(rand() % 50) / 100,
		};

		random_logits(logits, n, 1.5f);
		naive_distribution(&p, logits, n, &none);
		if (naive.border < 1e-5)
			continue;
		assert_int_equal(sampler_new(&s, (uint32_t)n), 0);
		check_draws(s, &p, logits, n, &none, 4000);
		sampler_free(s);
		n_checked++;
	}
	assert_true(n_checked > 50);
}

/* A larger vocabulary, the usual settings, and each cut alone. */
static void test_distribution(void **state)
{
	static const struct sampler_params cases[] = {
		{ .temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 1 },
		{ .temperature = 0.8f, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1, .seed = 2 },
		{ .temperature = 1.5f, .top_p = 0.9f, .repeat_penalty = 1, .seed = 3 },
		{ .temperature = 1, .top_p = 1, .min_p = 0.02f, .repeat_penalty = 1, .seed = 4 },
		{ .temperature = 2, .top_p = 1, .top_k = 40, .repeat_penalty = 1, .seed = 5 },
		{ .temperature = 3, .top_p = 0.999f, .top_k = 600, .repeat_penalty = 1, .seed = 6 },
		{ .temperature = 0.01f, .top_p = 1, .repeat_penalty = 1, .seed = 7 },
		{ .temperature = 1, .top_p = 0, .repeat_penalty = 1, .seed = 8 },
		{ .temperature = 1, .top_p = 1, .min_p = 1, .repeat_penalty = 1, .seed = 9 },
	};
	static float logits[N_MAX];
	struct sampler *s;

	(void)state;
	srand(2);
	assert_int_equal(sampler_new(&s, 1027), 0);	/* no multiple of 4 */
	for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
		random_logits(logits, 1027, 3);
		logits[17] = NAN;
		logits[18] = -INFINITY;
		naive_distribution(&cases[c], logits, 1027, &none);
		check_draws(s, &cases[c], logits, 1027, &none, 3000);
	}
	sampler_free(s);
}

static void test_penalty_and_bias(void **state)
{
	const struct sampler_bias bias[] = { { 3, 2.5f }, { 5, -INFINITY }, { 7, -1 } };
	const int32_t tokens[] = { 9, 1, 2, 2, 3, 1, 8 };
	struct sampler_history history = { tokens, 7, 7 };
	struct sampler_params p = {
		.temperature = 1, .top_p = 1, .repeat_penalty = 1.7f, .repeat_last_n = 6, .seed = 5,
		.bias = bias, .n_bias = 3,
	};
	float logits[12];
	struct sampler *s;

	(void)state;
	srand(3);
	assert_int_equal(sampler_new(&s, 12), 0);
	for (int round = 0; round < 20; round++) {
		random_logits(logits, 12, 2);
		p.repeat_last_n = round % 2 ? 6 : UINT32_MAX;
		p.repeat_penalty = round % 3 ? 1.7f : 1;
		p.presence_penalty = round % 4 == 1 ? 0.8f : 0;
		p.frequency_penalty = round % 5 > 2 ? (float)(round % 5) - 3.4f : 0;
		history.n_prompt = (size_t)round % 8;
		naive_distribution(&p, logits, 12, &history);
		check_draws(s, &p, logits, 12, &history, 3000);
	}
	sampler_free(s);
}

static int32_t pick(struct sampler *s, const struct sampler_params *p, const float *logits)
{
	struct sampler_rng rng, before;
	struct sampler_result result;

	sampler_rng_init(&rng, 1);
	before = rng;
	assert_int_equal(sampler_sample(s, p, &rng, logits, &none, &result), 0);
	if (p->temperature == 0)
		assert_memory_equal(&rng, &before, sizeof(rng));
	assert_true(isnan(result.logprob));
	return result.id;
}

static void test_greedy(void **state)
{
	struct sampler_params biased = greedy, tiny = greedy;
	struct sampler_bias bias = { 4, 100 };
	float logits[9] = { 1, 7, NAN, 7, -3, 6.5f, 7, 0, 7 };
	struct sampler_result result = { .id = 77 };
	struct sampler_rng rng;
	struct sampler *s;

	(void)state;
	assert_int_equal(sampler_new(&s, 9), 0);
	assert_int_equal(pick(s, &greedy, logits), 1);
	logits[8] = 7.5f;
	assert_int_equal(pick(s, &greedy, logits), 8);
	logits[0] = logits[7] = INFINITY;
	assert_int_equal(pick(s, &greedy, logits), 0);
	tiny.temperature = 1e-45f;
	logits[7] = 1;
	assert_int_equal(pick(s, &tiny, logits), 0);
	logits[0] = 1;
	biased.bias = &bias;
	biased.n_bias = 1;
	assert_int_equal(pick(s, &biased, logits), 4);
	bias = (struct sampler_bias){ 8, -INFINITY };
	assert_int_equal(pick(s, &biased, logits), 1);
	for (int i = 0; i < 9; i++)
		logits[i] = i % 2 ? NAN : -INFINITY;
	sampler_rng_init(&rng, 1);
	assert_int_equal(sampler_sample(s, &greedy, &rng, logits, &none, &result), -EINVAL);
	assert_int_equal(result.id, 77);
	logits[8] = 1;	/* forbidden by the bias */
	assert_int_equal(sampler_sample(s, &biased, &rng, logits, &none, &result), -EINVAL);
	sampler_free(s);
	sampler_free(NULL);
	assert_int_equal(sampler_new(&s, 0), -EINVAL);
}

/* A given token's numbers are those that it has when it is drawn, with as many alternatives as asked for. */
static void check_score(struct sampler *s, const float *logits, const struct sampler_result *drawn)
{
	struct sampler_result want = *drawn, result;
	struct sampler_top top[20];

	memcpy(top, drawn->top, sizeof(top));
	for (int i = -1; i < 20; i++) {
		int32_t id = i < 0 ? want.id : top[i].id;
		uint32_t n_top = (uint32_t)(i + 1) % 20;

		sampler_score(s, logits, id, n_top, &result);
		assert_int_equal(result.id, id);
		assert_true(result.logprob == (i < 0 ? want.logprob : top[i].logprob));
		assert_int_equal(result.n_top, n_top);
		assert_memory_equal(result.top, top, n_top * sizeof(*top));
	}
}

/* Of the raw logits, whatever bias, penalty and temperature do to the draw. */
static void test_logprobs(void **state)
{
	const struct sampler_bias bias = { 100, 50 };
	const int32_t tokens[] = { 1, 2, 3 };
	const struct sampler_history h = { tokens, 3, 1 };
	struct sampler_params p = {
		.temperature = 0.7f, .top_p = 0.9f, .repeat_penalty = 1.3f, .repeat_last_n = 64,
		.presence_penalty = 2, .bias = &bias, .n_bias = 1, .logprobs = 1, .n_logprobs = 20,
	};
	const struct sampler_params one = { .temperature = 1, .top_p = 1, .repeat_penalty = 1 };
	static float logits[N_MAX];
	struct sampler_result result;
	struct sampler_rng rng;
	struct sampler *s;

	(void)state;
	srand(4);
	sampler_rng_init(&rng, 4);
	assert_int_equal(sampler_new(&s, 3001), 0);
	for (int round = 0; round < 50; round++) {
		double own = NAN;

		random_logits(logits, 3001, round % 2 ? 5 : 0.5f);
		logits[0] = NAN;
		naive_distribution(&one, logits, 3001, &none);
		p.temperature = round % 3 ? 0.7f : 0;
		assert_int_equal(sampler_sample(s, &p, &rng, logits, &h, &result), 0);
		assert_int_equal(result.n_top, 20);
		for (int i = 0; i < 20; i++) {
			assert_int_equal(result.top[i].id, naive.tokens[i].id);
			assert_true(fabs((double)result.top[i].logprob - log(naive.tokens[i].p)) < 2e-5);
		}
		for (int i = 0; i < 3001; i++)
			if (naive.tokens[i].id == result.id)
				own = log(naive.tokens[i].p);
		assert_true(fabs((double)result.logprob - own) < 2e-5);
		check_score(s, logits, &result);
		sampler_score(s, logits, 0, 0, &result);
		assert_true(result.logprob == -INFINITY && !result.n_top);	/* NaN counts as that */
	}
	p.n_logprobs = 0;
	assert_int_equal(sampler_sample(s, &p, &rng, logits, &h, &result), 0);
	assert_int_equal(result.n_top, 0);
	assert_false(isnan(result.logprob));
	sampler_free(s);

	/* Fewer tokens than asked for. */
	assert_int_equal(sampler_new(&s, 3), 0);
	p = greedy;
	p.logprobs = 1;
	p.n_logprobs = 20;
	logits[0] = -INFINITY;
	logits[1] = 1;
	logits[2] = 1;
	assert_int_equal(sampler_sample(s, &p, &rng, logits, &none, &result), 0);
	assert_int_equal(result.n_top, 2);
	assert_int_equal(result.id, 1);
	assert_true(fabsf(result.top[1].logprob - logf(0.5f)) < 1e-6f);
	sampler_score(s, logits, 0, UINT32_MAX, &result);
	assert_true(result.logprob == -INFINITY && result.n_top == 2);
	logits[1] = logits[2] = NAN;
	sampler_score(s, logits, 1, 2, &result);
	assert_true(isnan(result.logprob) && !result.n_top);
	sampler_free(s);
}

/* OpenAI's formula to the number: greedy changes over exactly where the logits cross. */
static void test_counts(void **state)
{
	const int32_t tokens[] = { 0, 0, 0, 0, 1, 2, 1, 1, 1, 2, -1, 99 };	/* 1 four times, 2 twice */
	struct sampler_history h = { tokens, 10, 4 };
	struct sampler_params p = greedy;
	float logits[4] = { 0, 8, 4, 3 };
	struct sampler_result result;
	struct sampler_rng rng;
	struct sampler *s;

	(void)state;
	sampler_rng_init(&rng, 1);
	assert_int_equal(sampler_new(&s, 4), 0);
	p.presence_penalty = 0.5f;
	for (int step = 0; step < 40; step++) {
		float a, b;
		int want;

		p.frequency_penalty = (float)step / 16;	/* all exact in binary */
		a = 8 - (0.5f + 4 * p.frequency_penalty);
		b = 4 - (0.5f + 2 * p.frequency_penalty);
		want = a >= b && a >= 3 ? 1 : b >= 3 ? 2 : 3;
		/* Ids outside the vocabulary are nobody's. */
		h.n = step % 2 ? 10 : 12;
		assert_int_equal(sampler_sample(s, &p, &rng, logits, &h, &result), 0);
		assert_int_equal(result.id, want);
	}
	/* One that was forbidden stays so, however much a token is favoured. */
	p.presence_penalty = p.frequency_penalty = -2;
	logits[1] = -INFINITY;
	assert_int_equal(sampler_sample(s, &p, &rng, logits, &h, &result), 0);
	assert_int_equal(result.id, 2);
	sampler_free(s);
}

/* The same seed, the same tokens, whatever the scratch was used for before; logits stay. */
static void test_deterministic(void **state)
{
	struct sampler_params p = {.temperature = 1.1f,
				   .top_p = 0.95f,
				   .min_p = 0.01f,
				   .repeat_penalty = 1.1f,
				   .presence_penalty = 0.2f,
				   .frequency_penalty = 0.1f,
				   .repeat_last_n = 8};
	struct sampler_params other = p;
	static float logits[1000], copy[1000];
	struct sampler_result result, again;
	struct sampler_rng a, b, c;
	struct sampler *s;
	int32_t ids[300];

	(void)state;
	srand(5);
	other.top_k = 5;
	random_logits(logits, 1000, 2);
	memcpy(copy, logits, sizeof(copy));
	assert_int_equal(sampler_new(&s, 1000), 0);
	sampler_rng_init(&a, 42);
	sampler_rng_init(&b, 42);
	sampler_rng_init(&c, 43);
	for (size_t i = 0; i < 300; i++) {
		struct sampler_history h = { ids, i, 0 };

		assert_int_equal(sampler_sample(s, &p, &a, logits, &h, &result), 0);
		ids[i] = result.id;
	}
	for (size_t i = 0; i < 300; i++) {
		struct sampler_history h = { ids, i, 0 };

		assert_int_equal(sampler_sample(s, &other, &c, logits, &h, &again), 0);
		assert_int_equal(sampler_sample(s, &p, &b, logits, &h, &again), 0);
		assert_int_equal(again.id, ids[i]);
	}
	assert_memory_equal(logits, copy, sizeof(copy));
	sampler_free(s);
}

/* The published first outputs for the state 1, 2, 3, 4 (xoshiro256++ 1.0). */
static void test_generator(void **state)
{
	static const uint64_t expected[] = { 41943041, 58720359, 3588806011781223, 3591011842654386 };
	struct sampler_rng rng = { { 1, 2, 3, 4 } };
	struct sampler_params p = { .temperature = 1, .top_p = 1, .repeat_penalty = 1 };
	static float flat[1u << 20];
	struct sampler_result result;
	struct sampler *s;

	(void)state;
	/* All equal: the token drawn is the top 20 bits of the number. */
	assert_int_equal(sampler_new(&s, 1u << 20), 0);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(sampler_sample(s, &p, &rng, flat, &none, &result), 0);
		assert_int_equal(result.id, expected[i] >> 44);
	}
	sampler_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sets),
		cmocka_unit_test(test_distribution),
		cmocka_unit_test(test_penalty_and_bias),
		cmocka_unit_test(test_counts),
		cmocka_unit_test(test_greedy),
		cmocka_unit_test(test_logprobs),
		cmocka_unit_test(test_deterministic),
		cmocka_unit_test(test_generator),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
