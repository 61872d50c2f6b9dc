/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One or two passes over the vocabulary and no full sort: what the cuts leave
 * is gathered first (a bounded heap for top-k, a floor under which no token can
 * be in the result otherwise), then popped in order from a heap until the
 * probability asked for is reached.
 *
 * Exponentials are computed four at a time in single precision and summed in
 * double precision, in one fixed order.
 */
#include "daemon/engine/sampler.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"

typedef float f32x4 __attribute__((vector_size(16)));
typedef float f32x4_unaligned __attribute__((vector_size(16), aligned(4)));
typedef int32_t i32x4 __attribute__((vector_size(16)));

struct candidate {
	float logit;
	int32_t id;
	float weight;	/* exp((logit - max) / temperature) */
};

struct sampler {
	uint32_t n_vocab;
	uint32_t n_padded;		/* a multiple of 4; the rest is -inf */
	uint32_t *counts;		/* [n_vocab] of tokens in a history; all 0 between two uses */
	float *logits;			/* [n_padded] after bias and penalty */
	float *weights;			/* [n_padded] */
	struct candidate *candidates;	/* [n_vocab] */
	struct candidate ranked[SAMPLER_TOP_MAX];
	struct sampler_top top[SAMPLER_TOP_MAX];
};

int sampler_new(struct sampler **out, uint32_t n_vocab)
{
	_cleanup_(sampler_freep) struct sampler *s = NULL;

	if (!n_vocab || n_vocab > INT32_MAX - 3)
		return -EINVAL;
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->n_vocab = n_vocab;
	s->n_padded = (n_vocab + 3) & ~3u;
	s->counts = calloc(n_vocab, sizeof(*s->counts));
	s->logits = aligned_alloc(16, s->n_padded * sizeof(float));
	s->weights = aligned_alloc(16, s->n_padded * sizeof(float));
	s->candidates = calloc(n_vocab, sizeof(*s->candidates));
	if (!s->counts || !s->logits || !s->weights || !s->candidates)
		return -ENOMEM;
	*out = steal_ptr(s);
	return 0;
}

void sampler_free(struct sampler *s)
{
	if (!s)
		return;
	free(s->counts);
	free(s->logits);
	free(s->weights);
	free(s->candidates);
	free(s);
}

/* --- random numbers: xoshiro256++ 1.0 and splitmix64 (Blackman, Vigna) --- */

static uint64_t splitmix64(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

void sampler_rng_init(struct sampler_rng *rng, uint64_t seed)
{
	for (int i = 0; i < 4; i++)
		rng->s[i] = splitmix64(&seed);
}

static uint64_t rotl(uint64_t x, int k)
{
	return (x << k) | (x >> (64 - k));
}

static uint64_t rng_next(struct sampler_rng *rng)
{
	uint64_t *s = rng->s;
	uint64_t result = rotl(s[0] + s[3], 23) + s[0], t = s[1] << 17;

	s[2] ^= s[0];
	s[3] ^= s[1];
	s[1] ^= s[2];
	s[0] ^= s[3];
	s[2] ^= t;
	s[3] = rotl(s[3], 45);
	return result;
}

/* In [0, 1), 53 bits. */
static double rng_uniform(struct sampler_rng *rng)
{
	return (double)(rng_next(rng) >> 11) * 0x1p-53;
}

/* --- passes over the vocabulary --- */

/*
 * exp(x) for x <= 0 with a relative error of about 1e-7: x = n ln 2 + r,
 * |r| <= ln 2 / 2; the polynomial is the Taylor series to r^7 / 7!.  0 where the
 * result would be denormal.
 */
static inline f32x4 exp_f32x4(f32x4 x)
{
	const f32x4 magic = { 0x1.8p23f, 0x1.8p23f, 0x1.8p23f, 0x1.8p23f };
	i32x4 in_range = x > -87.0f;
	f32x4 xc = (f32x4)((i32x4)x & in_range);	/* also keeps -inf out of the arithmetic */
	f32x4 shifted = xc * 0x1.715476p+0f + magic;
	f32x4 n = shifted - magic;
	f32x4 r = xc - n * 0x1.62e4p-1f;
	f32x4 p;
	i32x4 e;

	r = r - n * 0x1.7f7d1cp-20f;
	p = 1.0f / 5040 * r + 1.0f / 720;
	p = p * r + 1.0f / 120;
	p = p * r + 1.0f / 24;
	p = p * r + 1.0f / 6;
	p = p * r + 0.5f;
	p = p * r + 1.0f;
	p = p * r + 1.0f;
	e = ((i32x4)shifted - (i32x4)magic + 127) << 23;
	return (f32x4)((i32x4)(p * (f32x4)e) & in_range);
}

static inline f32x4 select_f32x4(i32x4 mask, f32x4 a, f32x4 b)
{
	return (f32x4)(((i32x4)a & mask) | ((i32x4)b & ~mask));
}

static inline bool none_f32x4(i32x4 mask)
{
	typedef int64_t i64x2 __attribute__((vector_size(16)));
	i64x2 m = (i64x2)mask;

	return !(m[0] | m[1]);
}

/* NaN becomes -inf, +inf the largest number, so that differences are defined. */
static float clean(float x)
{
	return isnan(x) ? -INFINITY : x > FLT_MAX ? FLT_MAX : x;
}

/* Copies the logits, cleaned and padded with -inf. */
static void load_logits(struct sampler *s, const float *logits)
{
	const f32x4 inf = { INFINITY, INFINITY, INFINITY, INFINITY };
	const f32x4 max = { FLT_MAX, FLT_MAX, FLT_MAX, FLT_MAX };

	memcpy(s->logits, logits, s->n_vocab * sizeof(float));
	for (uint32_t i = s->n_vocab; i < s->n_padded; i++)
		s->logits[i] = -INFINITY;
	for (uint32_t i = 0; i < s->n_padded; i += 4) {
		f32x4 *v = (f32x4 *)(s->logits + i);
		*v = select_f32x4(*v <= inf, *v, -inf);	/* false for NaN */
		*v = select_f32x4(*v == inf, max, *v);
	}
}

/* The highest logit's id, the lowest among equals; -1 if all are -inf. */
static int32_t argmax(const float *logits, uint32_t n)
{
	f32x4 m = { -INFINITY, -INFINITY, -INFINITY, -INFINITY };
	float max = -INFINITY;
	uint32_t i = 0;

	for (; i + 4 <= n; i += 4) {
		f32x4 x = *(const f32x4_unaligned *)(logits + i);
		m = select_f32x4(x > m, x, m);	/* false for NaN */
	}
	for (; i < n; i++)
		if (logits[i] > max)
			max = logits[i];
	for (int j = 0; j < 4; j++)
		max = MAX(max, m[j]);
	if (max == -INFINITY)
		return -1;
	for (i = 0; logits[i] != max; i++)
		;
	return (int32_t)i;
}

/* weights = exp((logits - max) * scale); returns their sum. */
static double exp_pass(struct sampler *s, float max, float scale)
{
	double sum[4] = { 0 };

	for (uint32_t i = 0; i < s->n_padded; i += 4) {
		f32x4 w = exp_f32x4((*(const f32x4 *)(s->logits + i) - max) * scale);
		*(f32x4 *)(s->weights + i) = w;
		for (int j = 0; j < 4; j++)
			sum[j] += (double)w[j];
	}
	return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static float weight_of(float logit, float max, float scale)
{
	f32x4 x = { (logit - max) * scale, -INFINITY, -INFINITY, -INFINITY };

	return exp_f32x4(x)[0];
}

/* --- heaps of candidates --- */

/* The order of the result: higher logit first, then lower id. */
static bool before(const struct candidate *a, const struct candidate *b)
{
	return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

/* Restores a heap whose root may be wrong; the root comes first (or last, if `worst_first`). */
static void sift_down(struct candidate *heap, uint32_t n, uint32_t i, bool worst_first)
{
	struct candidate c = heap[i];

	for (;;) {
		uint32_t child = 2 * i + 1;

		if (child >= n)
			break;
		if (child + 1 < n && before(&heap[child + 1], &heap[child]) != worst_first)
			child++;
		if (before(&heap[child], &c) == worst_first)
			break;
		heap[i] = heap[child];
		i = child;
	}
	heap[i] = c;
}

static void heapify(struct candidate *heap, uint32_t n, bool worst_first)
{
	for (uint32_t i = n / 2; i-- > 0;)
		sift_down(heap, n, i, worst_first);
}

/* Moves the root behind the n - 1 others, to heap[n - 1]. */
static const struct candidate *pop(struct candidate *heap, uint32_t n)
{
	struct candidate first = heap[0];

	heap[0] = heap[n - 1];
	heap[n - 1] = first;
	if (n > 2)
		sift_down(heap, n - 1, 0, false);
	return &heap[n - 1];
}

/* The k best of the logits, in no order; -inf is left out.  Returns how many. */
static uint32_t gather_best(const float *logits, uint32_t n, uint32_t k, struct candidate *out)
{
	uint32_t n_out = 0, i = 0;

	for (; i < n && n_out < k; i++)
		if (logits[i] > -INFINITY)
			out[n_out++] = (struct candidate){ .logit = logits[i], .id = (int32_t)i };
	if (n_out < k || !k)
		return n_out;
	heapify(out, k, true);
	for (; i < n; i++) {
		if (!(logits[i] > out[0].logit))	/* an equal one has a higher id: behind */
			continue;
		out[0] = (struct candidate){ .logit = logits[i], .id = (int32_t)i };
		sift_down(out, k, 0, true);
	}
	return k;
}

/* --- the steps of sampling --- */

static void apply_bias(struct sampler *s, const struct sampler_params *p)
{
	for (size_t i = 0; i < p->n_bias; i++) {
		int32_t id = p->bias[i].id;

		if (id >= 0 && (uint32_t)id < s->n_vocab)
			s->logits[id] = clean(s->logits[id] + p->bias[i].bias);
	}
}

static float repeated(const struct sampler_params *p, float logit, uint32_t n)
{
	return logit > 0 ? logit / p->repeat_penalty : logit * p->repeat_penalty;
}

static float counted(const struct sampler_params *p, float logit, uint32_t n)
{
	return logit - (p->presence_penalty + (float)n * p->frequency_penalty);
}

typedef float (*penalty_fn)(const struct sampler_params *p, float logit, uint32_t n);

/* Each token that occurs among the n, however often, is penalised once. */
static void apply_penalty(struct sampler *s, const struct sampler_params *p, const int32_t *tokens, size_t n,
			  penalty_fn penalty)
{
	for (size_t i = 0; i < n; i++)
		if (tokens[i] >= 0 && (uint32_t)tokens[i] < s->n_vocab)
			s->counts[tokens[i]]++;
	for (size_t i = 0; i < n; i++) {
		int32_t id = tokens[i];

		if (id < 0 || (uint32_t)id >= s->n_vocab || !s->counts[id])
			continue;
		s->logits[id] = clean(penalty(p, s->logits[id], s->counts[id]));
		s->counts[id] = 0;
	}
}

static bool penalises_repeated(const struct sampler_params *p)
{
	return p->repeat_penalty != 1.0f && p->repeat_last_n;
}

static bool penalises_generated(const struct sampler_params *p)
{
	return p->presence_penalty != 0 || p->frequency_penalty != 0;
}

static void apply_penalties(struct sampler *s, const struct sampler_params *p, const struct sampler_history *h)
{
	size_t n = MIN((size_t)p->repeat_last_n, h->n);

	if (penalises_repeated(p))
		apply_penalty(s, p, h->tokens + (h->n - n), n, repeated);
	if (penalises_generated(p))
		apply_penalty(s, p, h->tokens + h->n_prompt, h->n - h->n_prompt, counted);
}

/* From all tokens, in the order of their ids. */
static int32_t draw_any(const struct sampler *s, double total, double u)
{
	double sum = 0, want = u * total;
	int32_t last = -1;

	for (uint32_t i = 0; i < s->n_vocab; i++) {
		if (!(s->weights[i] > 0))
			continue;
		sum += (double)s->weights[i];
		last = (int32_t)i;
		if (sum > want)
			break;
	}
	return last;
}

/*
 * Cuts the candidates, whose weights add up to total, by top-p and min-p: both
 * leave the first few in order.  Then draws from those.
 */
static int32_t draw_cut(struct candidate *c, uint32_t n, double total, const struct sampler_params *p,
			double u)
{
	double mass = 0, sum = 0, want, enough = p->top_p < 1 ? (double)p->top_p * total : INFINITY;
	uint32_t n_kept = 0;

	heapify(c, n, false);
	while (n_kept < n) {
		const struct candidate *next = pop(c, n - n_kept);

		if (n_kept && next->weight < p->min_p)
			break;
		mass += (double)next->weight;
		n_kept++;
		if (mass >= enough)
			break;
	}
	want = u * mass;
	for (uint32_t i = 0; i < n_kept; i++) {
		sum += (double)c[n - 1 - i].weight;
		if (sum > want)
			return c[n - 1 - i].id;
	}
	return c[n - n_kept].id;
}

/*
 * Without top-k.  A token of the nucleus has at least (1 - top_p) / n of the
 * mass: all that have less make up less than 1 - top_p together.
 */
static uint32_t gather_above_floor(struct sampler *s, const struct sampler_params *p, double total)
{
	double nucleus = p->top_p < 1 ? (1 - (double)p->top_p) / s->n_vocab * total : 0;
	/* 0.999: equal logits must not be split by rounding. */
	float floor = 0.999f * MIN(1.0f, MAX(p->min_p, (float)nucleus));
	uint32_t n = 0;

	for (uint32_t i = 0; i < s->n_padded; i += 4) {
		if (none_f32x4(*(const f32x4 *)(s->weights + i) >= floor))
			continue;
		for (uint32_t j = i; j < i + 4; j++) {
			if (s->weights[j] >= floor && s->logits[j] > -INFINITY)
				s->candidates[n++] = (struct candidate){
					.logit = s->logits[j], .id = (int32_t)j, .weight = s->weights[j]
				};
		}
	}
	return n;
}

static int32_t draw(struct sampler *s, const struct sampler_params *p, struct sampler_rng *rng, float max)
{
	/* Bounded, so that 0 * scale stays 0. */
	float scale = MIN(1.0f / p->temperature, FLT_MAX);
	double total = 0, u = rng_uniform(rng);
	uint32_t n;

	if (p->top_k && p->top_k < s->n_vocab) {
		n = gather_best(s->logits, s->n_vocab, p->top_k, s->candidates);
		for (uint32_t i = 0; i < n; i++) {
			s->candidates[i].weight = weight_of(s->candidates[i].logit, max, scale);
			total += (double)s->candidates[i].weight;
		}
		return draw_cut(s->candidates, n, total, p, u);
	}
	total = exp_pass(s, max, scale);
	if (p->top_p >= 1 && p->min_p <= 0)
		return draw_any(s, total, u);
	n = gather_above_floor(s, p, total);
	return draw_cut(s->candidates, n, total, p, u);
}

/* The logarithm of the sum of what s->logits holds, exponentiated. */
static double log_sum_exp(struct sampler *s, float max)
{
	return (double)max + log(exp_pass(s, max, 1.0f));
}

/*
 * The n_top most likely tokens by log-softmax of the raw logits, which s->logits
 * holds.  Returns how many there are.
 */
static uint32_t rank(struct sampler *s, uint32_t n_top, float max, double *log_sum)
{
	uint32_t n = gather_best(s->logits, s->n_vocab, n_top, s->ranked);

	*log_sum = log_sum_exp(s, max);
	heapify(s->ranked, n, false);
	for (uint32_t i = 0; i < n; i++) {
		const struct candidate *c = pop(s->ranked, n - i);

		s->top[i].id = c->id;
		s->top[i].logprob = (float)((double)c->logit - *log_sum);
	}
	return n;
}

int sampler_sample(struct sampler *s, const struct sampler_params *p, struct sampler_rng *rng,
		   const float *logits, const struct sampler_history *history, struct sampler_result *out)
{
	bool plain = !p->n_bias && !penalises_repeated(p) && !penalises_generated(p);
	struct sampler_result result = { .logprob = NAN, .top = s->top };
	uint32_t n_top = MIN(p->n_logprobs, (uint32_t)SAMPLER_TOP_MAX);
	int32_t best = argmax(logits, s->n_vocab);
	double log_sum = 0;

	if (best < 0)
		return -EINVAL;
	if (p->temperature > 0 || p->logprobs || !plain)
		load_logits(s, logits);
	if (p->logprobs)
		result.n_top = rank(s, n_top, clean(logits[best]), &log_sum);
	if (!plain) {
		apply_bias(s, p);
		apply_penalties(s, p, history);
		best = argmax(s->logits, s->n_vocab);
		if (best < 0)
			return -EINVAL;
	}
	result.id = best;
	if (p->temperature > 0)
		result.id = draw(s, p, rng, plain ? clean(logits[best]) : s->logits[best]);
	if (p->logprobs)
		result.logprob = (float)((double)clean(logits[result.id]) - log_sum);
	*out = result;
	return 0;
}

void sampler_score(struct sampler *s, const float *logits, int32_t id, uint32_t n_top,
		   struct sampler_result *out)
{
	struct sampler_result result = { .id = id, .logprob = NAN, .top = s->top };
	int32_t best = argmax(logits, s->n_vocab);
	double log_sum;

	if (best >= 0) {
		load_logits(s, logits);
		result.n_top = rank(s, MIN(n_top, (uint32_t)SAMPLER_TOP_MAX), clean(logits[best]), &log_sum);
		result.logprob = (float)((double)clean(logits[id]) - log_sum);
	}
	*out = result;
}
