/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/rope.h"

#include <math.h>

#include "daemon/model/gguf-private.h"
#include "ipc/base/checked.h"

#define MAX_FACTOR 1e6f
#define MAX_TURNS 1e6f
#define MAX_SCALE 1e3f
#define MAX_CTX_ORIG (1u << 22)

static int read_base(struct rope_params *rope, const struct arch *arch, struct keys *k)
{
	rope->base = arch->rope_base;
	if (!arch->local_rope_base)
		return keys_positive(k, "rope.freq_base", ROPE_MAX_BASE, &rope->base);
	return keys_positive_alias(k, "rope.freq_base", "rope.global.freq_base", ROPE_MAX_BASE, &rope->base);
}

/* Without a type: a linear factor, where there is one, or lists of the file. */
static enum rope_scaling infer_scaling(const struct rope_params *rope, const struct arch *arch,
				       const struct keys *k)
{
	uint64_t i;

	if ((arch->rope_divisors & ARCH_ROPE_LONG_SHORT) &&
	    !gguf_tensor_find(k->g, ARCH_ROPE_LONG_NAME, &i))
		return ROPE_LONG;
	return rope->factor == 1 ? ROPE_UNSCALED : ROPE_LINEAR;
}

static int read_scaling(struct rope_params *rope, const struct arch *arch, struct keys *k)
{
	static const char *const names[] = { "none", "linear", "yarn", "longrope" };
	struct gguf_string type = { "", 0 };
	int r;

	r = keys_string(k, "rope.scaling.type", &type);
	if (r < 0)
		return r;
	if (r == GGUF_E_ABSENT) {
		rope->scaling = infer_scaling(rope, arch, k);
		return 0;
	}
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		if (!gguf_string_eq(type, names[i]))
			continue;
		rope->scaling = (enum rope_scaling)i;
		if (rope->scaling == ROPE_LONG && !(arch->rope_divisors & ARCH_ROPE_LONG_SHORT))
			break;
		return 0;
	}
	return diag_set(k->diag, -EINVAL, "metadata key \"%s\": \"%s\" is not supported (none, linear, yarn%s are)",
			keys_name(k, "rope.scaling.type").text, gguf_quote(type).text,
			arch->rope_divisors & ARCH_ROPE_LONG_SHORT ? ", longrope" : "");
}

/* Each kind's numbers; those of other kinds are checked too, and not used. */
static int read_factors(struct rope_params *rope, struct keys *k)
{
	int r;

	rope->factor = 1;
	r = keys_positive(k, "rope.scale_linear", MAX_FACTOR, &rope->factor); /* the key of older files */
	if (r)
		return r;
	r = keys_positive(k, "rope.scaling.factor", MAX_FACTOR, &rope->factor);
	if (r)
		return r;
	rope->attn_factor = 1;
	r = keys_positive(k, "rope.scaling.attn_factor", MAX_SCALE, &rope->attn_factor);
	if (r)
		return r;
	return keys_u32_or(k, "rope.scaling.original_context_length", 1, MAX_CTX_ORIG, &rope->n_ctx_orig);
}

static int read_yarn(struct rope_params *rope, struct keys *k)
{
	int r;

	rope->yarn_ext = 1;
	rope->yarn_fast = 32;
	rope->yarn_slow = 1;
	r = keys_not_negative(k, "rope.scaling.yarn_ext_factor", 1, &rope->yarn_ext);
	if (r)
		return r;
	r = keys_not_negative(k, "rope.scaling.yarn_attn_factor", MAX_SCALE, &rope->yarn_attn);
	if (r)
		return r;
	r = keys_positive(k, "rope.scaling.yarn_beta_fast", MAX_TURNS, &rope->yarn_fast);
	if (r)
		return r;
	return keys_positive(k, "rope.scaling.yarn_beta_slow", MAX_TURNS, &rope->yarn_slow);
}

/* A kind of scaling needs its numbers: a default would be a guess. */
static int require(const struct rope_params *rope, const struct keys *k)
{
	static const struct {
		const char *suffix;
		unsigned kinds;
	} needed[] = {
		{ "rope.scaling.factor", 1u << ROPE_YARN },
		{ "rope.scaling.original_context_length", 1u << ROPE_YARN | 1u << ROPE_LONG },
		{ "rope.scaling.attn_factor", 1u << ROPE_LONG },
	};

	for (size_t i = 0; i < ARRAY_SIZE(needed); i++)
		if ((needed[i].kinds >> rope->scaling & 1) &&
		    !gguf_has(k->g, keys_name(k, needed[i].suffix).text))
			return diag_set(k->diag, -EINVAL, "metadata key \"%s\": missing",
					keys_name(k, needed[i].suffix).text);
	return 0;
}

int rope_read(struct rope_params *out, const struct arch *arch, uint32_t n_dims, uint32_t n_ctx_train,
	      struct keys *keys)
{
	struct rope_params rope = { .n_dims = n_dims, .n_ctx_orig = n_ctx_train };
	int r;

	r = keys_u32_or(keys, "rope.dimension_count", 2, n_dims, &rope.n_dims);
	if (r)
		return r;
	if (rope.n_dims % 2)
		return diag_set(keys->diag, -EINVAL, "metadata key \"%s\": %u is odd",
				keys_name(keys, "rope.dimension_count").text, rope.n_dims);
	r = read_base(&rope, arch, keys);
	if (r)
		return r;
	r = read_factors(&rope, keys);
	if (r)
		return r;
	r = read_yarn(&rope, keys);
	if (r)
		return r;
	r = read_scaling(&rope, arch, keys);
	if (r)
		return r;
	r = require(&rope, keys);
	if (r)
		return r;
	*out = rope;
	return 0;
}

/* The pair (a real number) that turns so many times within the original context. */
static double pair_of_turns(const struct rope_params *rope, double turns)
{
	return rope->n_dims * log(rope->n_ctx_orig / (turns * 2 * M_PI)) / (2 * log((double)rope->base));
}

/* YaRN: the share of its original frequency that pair i keeps. */
static double yarn_share(const struct rope_params *rope, uint32_t i)
{
	double low = fmax(floor(pair_of_turns(rope, rope->yarn_fast)), 0);
	double high = fmin(ceil(pair_of_turns(rope, rope->yarn_slow)), rope->n_dims - 1);
	double ramp = (i - low) / fmax(high - low, 0.001);

	return (1 - fmin(fmax(ramp, 0), 1)) * rope->yarn_ext;
}

void rope_inv_freq(const struct rope_params *rope, const float *divisors, float *inv_freq)
{
	for (uint32_t i = 0; i < rope->n_dims / 2; i++) {
		double f = pow((double)rope->base, -2.0 * i / rope->n_dims), share = 1;

		if (rope->scaling == ROPE_LINEAR)
			share = 0;
		else if (rope->scaling == ROPE_YARN)
			share = yarn_share(rope, i);
		f = f / (double)rope->factor * (1 - share) + f * share;
		inv_freq[i] = (float)(divisors ? f / (double)divisors[i] : f);
	}
}

float rope_scale(const struct rope_params *rope)
{
	double scale = 1;

	if (rope->scaling == ROPE_YARN && rope->yarn_attn > 0)
		scale = (double)rope->yarn_attn;
	else if (rope->scaling == ROPE_YARN && rope->factor > 1)
		scale = 1 + 0.1 * log((double)rope->factor);
	return (float)(scale * (double)rope->attn_factor);
}
