/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rope.h - how positions turn: the angle per position of each pair of dimensions,
 * and the scale of both parts, for every kind of scaling that files state.
 *
 *   unscaled   inv_freq[i] = base^(-2i / n_dims)  (Su et al. 2021, arXiv:2104.09864)
 *   linear     divided by factor  (Chen et al. 2023, arXiv:2306.15595)
 *   YaRN       between the two, by how often a pair turns within the original
 *              context  (Peng et al. 2023, arXiv:2309.00071)
 *   LongRoPE   divided by one of two lists of the file  (Ding et al. 2024,
 *              arXiv:2402.13753)
 * Llama 3's scaling is a list of divisors in the file (rope_freqs.weight).
 *
 * Immutable after reading; any thread.
 */
#ifndef KVD_MODEL_ROPE_H
#define KVD_MODEL_ROPE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/model/arch.h"
#include "daemon/model/keys.h"

#define ROPE_MAX_BASE 1e15f

enum rope_scaling { ROPE_UNSCALED, ROPE_LINEAR, ROPE_YARN, ROPE_LONG };

struct rope_params {
	enum rope_scaling scaling;
	uint32_t n_dims;	/* rotated dimensions of a head, even */
	float base;
	float factor;		/* linear, YaRN: the context is so many times the original one */
	uint32_t n_ctx_orig;	/* YaRN, LongRoPE: positions of the original context */
	float attn_factor;	/* multiplies sine and cosine, with any scaling */
	float yarn_ext;		/* YaRN: share of the original frequencies where they are kept; 1 */
	float yarn_fast, yarn_slow;	/* YaRN: turns within the original context; 32, 1 */
	float yarn_attn;	/* YaRN: what multiplies sine and cosine; 0: 1 + 0.1 ln factor */
};

/*
 * Reads the keys "rope.*".  n_dims: what there is without rope.dimension_count, and its bound.  -EINVAL
 * with diag: a key is missing, out of range, or asks for what is not supported.
 */
int rope_read(struct rope_params *out, const struct arch *arch, uint32_t n_dims, uint32_t n_ctx_train,
	      struct keys *keys);

/*
 * inv_freq: [n_dims / 2].  divisors: the file's list of as many, or NULL.
 */
void rope_inv_freq(const struct rope_params *rope, const float *divisors, float *inv_freq);

/* What sine and cosine are multiplied by. */
float rope_scale(const struct rope_params *rope);

/*
 * LongRoPE: whether the list for long contexts is the one to use.  It hangs on the context that
 * a model is opened with and never on the length of a sequence, whose bits would change on the way.
 */
static inline bool rope_is_long(const struct rope_params *rope, uint32_t n_ctx)
{
	return n_ctx > rope->n_ctx_orig;
}

#endif
