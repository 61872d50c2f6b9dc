/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sampler.h - logits to a token.
 *
 * Order, as is usual: logit bias, repetition penalty (Keskar et al. 2019,
 * arXiv:1909.05858), presence and frequency penalty (OpenAI's API reference: a
 * token that was generated n > 0 times loses presence + n * frequency),
 * temperature, top-k, top-p (Holtzman et al. 2020, arXiv:1904.09751), min-p
 * (Nguyen et al. 2024, arXiv:2407.01082), draw.
 * Temperature 0 is greedy: the highest logit after bias and penalties, the lowest
 * id among equals.
 * Deterministic: the same logits, parameters, history and seed give the same
 * token on every run (xoshiro256++ of Blackman and Vigna, seeded by splitmix64).
 */
#ifndef KVD_SAMPLER_H
#define KVD_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

#include "ipc/base/cleanup.h"

struct sampler_bias {
	int32_t id;
	float bias;	/* finite, or -INFINITY to forbid */
};

struct sampler_params {
	float temperature;	/* >= 0 */
	uint32_t top_k;		/* 0: off */
	float top_p;		/* 0..1; 1: off */
	float min_p;		/* 0..1; 0: off */
	float repeat_penalty;	/* > 0; 1: off */
	uint32_t repeat_last_n;	/* tokens looked back on, prompt included */
	float presence_penalty;	/* of generated tokens alone; 0: off; negative ones favour them */
	float frequency_penalty;
	uint64_t seed;
	const struct sampler_bias *bias;	/* [n_bias], owned by the request */
	size_t n_bias;
	uint32_t n_logprobs;	/* alternatives wanted; 0: only the token's own if logprobs */
	int logprobs;		/* whether log-probabilities are computed at all */
};

/* State of one sequence's draws; plain data, so that a preempted one resumes. */
struct sampler_rng {
	uint64_t s[4];
};

#define SAMPLER_TOP_MAX 256	/* n_logprobs is cut to it */

struct sampler;		/* scratch for one vocabulary, reused for every sequence */

int sampler_new(struct sampler **out, uint32_t n_vocab);
void sampler_free(struct sampler *s);
CLEANUP_DEFINE(struct sampler, sampler_free)

void sampler_rng_init(struct sampler_rng *rng, uint64_t seed);

struct sampler_result {
	int32_t id;
	float logprob;		/* of the unmodified distribution (softmax of the raw logits) */
	uint32_t n_top;		/* the n_logprobs most likely, descending; valid until the next call */
	const struct sampler_top { int32_t id; float logprob; } *top;
};

/* A sequence's tokens so far. */
struct sampler_history {
	const int32_t *tokens;	/* [n]; the first n_prompt were not generated */
	size_t n, n_prompt;
};

/*
 * logits is not changed; a NaN counts as -inf.  -EINVAL if every logit is -inf, or
 * is after the bias.  Takes one number from rng, or none when greedy.
 */
int sampler_sample(struct sampler *s, const struct sampler_params *p, struct sampler_rng *rng,
		   const float *logits, const struct sampler_history *history, struct sampler_result *out);

/*
 * The result that a given token would have, with n_top alternatives, at most
 * SAMPLER_TOP_MAX; a log-probability of NaN and none of them if every logit is -inf.
 */
void sampler_score(struct sampler *s, const float *logits, int32_t id, uint32_t n_top,
		   struct sampler_result *out);

#endif
