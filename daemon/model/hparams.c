/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/hparams.h"

#include <math.h>
#include <stdio.h>

#include "daemon/model/gguf-private.h"

/* A reader of the keys below one prefix. */
struct reader {
	const struct gguf *g;
	const struct arch *arch;
	struct diag *diag;
};

struct key {
	char text[96];
};

static struct key key_of(const struct reader *rd, const char *suffix)
{
	struct key k;

	snprintf(k.text, sizeof(k.text), "%s.%s", rd->arch->name, suffix);
	return k;
}

static int missing(const struct reader *rd, const char *suffix)
{
	return diag_set(rd->diag, -EINVAL, "metadata key \"%s\": missing", key_of(rd, suffix).text);
}

/* A number that must be there. */
static int read_u32(const struct reader *rd, const char *suffix, uint32_t min, uint32_t max, uint32_t *out)
{
	int r = gguf_get_u32(rd->g, key_of(rd, suffix).text, min, max, out, rd->diag);

	return r == GGUF_E_ABSENT ? missing(rd, suffix) : r;
}

/* One that may be absent; *out is its default. */
static int read_u32_or(const struct reader *rd, const char *suffix, uint32_t min, uint32_t max, uint32_t *out)
{
	int r = gguf_get_u32(rd->g, key_of(rd, suffix).text, min, max, out, rd->diag);

	return r == GGUF_E_ABSENT ? 0 : r;
}

/* A positive number below max; *out is its default, 0 meaning that it must be there. */
static int read_positive_f32(const struct reader *rd, const char *suffix, float max, float *out)
{
	float v = *out;
	int r = gguf_get_f32(rd->g, key_of(rd, suffix).text, &v, rd->diag);

	if (r < 0)
		return r;
	if (r == GGUF_E_ABSENT)
		return v > 0 ? 0 : missing(rd, suffix);
	if (!(v > 0 && v <= max))
		return diag_set(rd->diag, -EINVAL,
				"metadata key \"%s\": %g is out of range (above 0, at most %g)",
				key_of(rd, suffix).text, (double)v, (double)max);
	*out = v;
	return 0;
}

/* One number for all layers, or an array of equal ones. */
static int read_head_count_kv(const struct reader *rd, uint32_t n_layers, uint32_t *out)
{
	struct key key = key_of(rd, "attention.head_count_kv");
	struct gguf_array a;
	uint64_t first = 0, v = 0;
	int r;

	r = gguf_get_any_array(rd->g, key.text, &a, NULL);
	if (r)
		return read_u32_or(rd, "attention.head_count_kv", 1, HPARAMS_MAX_HEADS, out);
	if (a.n != n_layers)
		return diag_set(rd->diag, -EINVAL, "metadata key \"%s\": has %llu elements for %u layers",
				key.text, (unsigned long long)a.n, n_layers);
	for (uint64_t i = 0; i < a.n; i++) {
		if (!gguf_array_uint(&a, i, &v) || !v || v > HPARAMS_MAX_HEADS)
			return diag_set(rd->diag, -EINVAL,
					"metadata key \"%s\": element %llu is not a number from 1 to %u",
					key.text, (unsigned long long)i, HPARAMS_MAX_HEADS);
		if (i && v != first)
			return diag_set(rd->diag, -EINVAL,
					"metadata key \"%s\": layers of different size are not supported",
					key.text);
		first = v;
	}
	*out = (uint32_t)first;
	return 0;
}

static int read_heads(const struct reader *rd, struct hparams *hp)
{
	uint32_t value_dim;
	int r;

	r = read_u32(rd, "attention.head_count", 1, HPARAMS_MAX_HEADS, &hp->n_heads);
	if (r)
		return r;
	hp->n_kv_heads = hp->n_heads;
	r = read_head_count_kv(rd, hp->n_layers, &hp->n_kv_heads);
	if (r)
		return r;
	if (!hp->n_kv_heads || hp->n_heads % hp->n_kv_heads)
		return diag_set(rd->diag, -EINVAL, "metadata key \"%s\": %u is no divisor of the %u heads",
				key_of(rd, "attention.head_count_kv").text, hp->n_kv_heads, hp->n_heads);
	hp->head_dim = 0;
	r = read_u32_or(rd, "attention.key_length", 16, HPARAMS_MAX_HEAD_DIM, &hp->head_dim);
	if (r)
		return r;
	if (!hp->head_dim) {
		if (hp->n_embd % hp->n_heads)
			return diag_set(rd->diag, -EINVAL,
					"metadata key \"%s\": %u is no divisor of the embedding's %u",
					key_of(rd, "attention.head_count").text, hp->n_heads, hp->n_embd);
		hp->head_dim = hp->n_embd / hp->n_heads;
	}
	if (hp->head_dim % 16 || hp->head_dim > HPARAMS_MAX_HEAD_DIM)
		return diag_set(rd->diag, -EINVAL,
				"metadata key \"%s\": heads of %u are not supported (a multiple of 16 is)",
				key_of(rd, "attention.key_length").text, hp->head_dim);
	value_dim = hp->head_dim;
	r = read_u32_or(rd, "attention.value_length", 1, HPARAMS_MAX_HEAD_DIM, &value_dim);
	if (r)
		return r;
	if (value_dim != hp->head_dim)
		return diag_set(rd->diag, -EINVAL,
				"metadata key \"%s\": %u differs from the keys' %u, which is not supported",
				key_of(rd, "attention.value_length").text, value_dim, hp->head_dim);
	return 0;
}

static int read_rope_scaling(const struct reader *rd, struct hparams *hp)
{
	struct key key = key_of(rd, "rope.scaling.type");
	struct gguf_string type = { "", 0 };
	int r;

	hp->rope_factor = 1;
	r = gguf_get_string(rd->g, key.text, &type, rd->diag);
	if (r < 0)
		return r;
	if (r == GGUF_E_ABSENT) /* the key of older files */
		return read_positive_f32(rd, "rope.scale_linear", 1e6f, &hp->rope_factor);
	if (gguf_string_eq(type, "none"))
		return 0;
	if (!gguf_string_eq(type, "linear"))
		return diag_set(rd->diag, -EINVAL,
				"metadata key \"%s\": \"%s\" is not supported (none and linear are)",
				key.text, gguf_quote(type).text);
	return read_positive_f32(rd, "rope.scaling.factor", 1e6f, &hp->rope_factor);
}

static int read_rope(const struct reader *rd, struct hparams *hp)
{
	int r;

	hp->rope_dims = hp->head_dim;
	r = read_u32_or(rd, "rope.dimension_count", 2, hp->head_dim, &hp->rope_dims);
	if (r)
		return r;
	if (hp->rope_dims % 2)
		return diag_set(rd->diag, -EINVAL, "metadata key \"%s\": %u is odd",
				key_of(rd, "rope.dimension_count").text, hp->rope_dims);
	hp->rope_base = 10000;
	r = read_positive_f32(rd, "rope.freq_base", 1e15f, &hp->rope_base);
	if (r)
		return r;
	return read_rope_scaling(rd, hp);
}

/* What would change the arithmetic, and is not known here, is refused. */
static int refuse_unsupported(const struct reader *rd)
{
	uint32_t n_experts = 0;
	bool causal = true;
	int r;

	r = read_u32_or(rd, "expert_count", 0, UINT32_MAX, &n_experts);
	if (r)
		return r;
	if (n_experts)
		return diag_set(rd->diag, -EINVAL,
				"metadata key \"%s\": mixtures of experts are not supported",
				key_of(rd, "expert_count").text);
	r = gguf_get_bool(rd->g, key_of(rd, "attention.causal").text, &causal, rd->diag);
	if (r < 0)
		return r;
	if (!causal)
		return diag_set(rd->diag, -EINVAL, "metadata key \"%s\": only causal attention is supported",
				key_of(rd, "attention.causal").text);
	return 0;
}

/* The vocabulary is as large as the list of tokens. */
static int read_vocab(const struct reader *rd, struct hparams *hp)
{
	struct gguf_array tokens;
	int r;

	r = gguf_get_array(rd->g, "tokenizer.ggml.tokens", GGUF_STRING, &tokens, rd->diag);
	if (r == GGUF_E_ABSENT)
		return diag_set(rd->diag, -EINVAL, "metadata key \"tokenizer.ggml.tokens\": missing");
	if (r)
		return r;
	if (!tokens.n || tokens.n > HPARAMS_MAX_VOCAB)
		return diag_set(rd->diag, -EINVAL,
				"metadata key \"tokenizer.ggml.tokens\": %llu tokens (1 to %u are allowed)",
				(unsigned long long)tokens.n, HPARAMS_MAX_VOCAB);
	hp->n_vocab = (uint32_t)tokens.n;
	return read_u32_or(rd, "vocab_size", hp->n_vocab, hp->n_vocab, &hp->n_vocab);
}

static int read_sizes(const struct reader *rd, struct hparams *hp)
{
	int r;

	r = read_u32(rd, "block_count", 1, HPARAMS_MAX_LAYERS, &hp->n_layers);
	if (r)
		return r;
	r = read_u32(rd, "context_length", 1, HPARAMS_MAX_CTX, &hp->n_ctx_train);
	if (r)
		return r;
	r = read_u32(rd, "embedding_length", 32, HPARAMS_MAX_EMBD, &hp->n_embd);
	if (r)
		return r;
	r = read_u32(rd, "feed_forward_length", 32, HPARAMS_MAX_FF, &hp->n_ff);
	if (r)
		return r;
	if (hp->n_embd % 32)
		return diag_set(rd->diag, -EINVAL, "metadata key \"%s\": %u is no multiple of 32",
				key_of(rd, "embedding_length").text, hp->n_embd);
	if (hp->n_ff % 32)
		return diag_set(rd->diag, -EINVAL, "metadata key \"%s\": %u is no multiple of 32",
				key_of(rd, "feed_forward_length").text, hp->n_ff);
	return 0;
}

int hparams_read(struct hparams *out, const struct arch *arch, const struct gguf *g, struct diag *diag)
{
	struct reader rd = { .g = g, .arch = arch, .diag = diag };
	struct hparams hp = { 0 };
	int r;

	r = refuse_unsupported(&rd);
	if (r)
		return r;
	r = read_sizes(&rd, &hp);
	if (r)
		return r;
	r = read_heads(&rd, &hp);
	if (r)
		return r;
	if (hp.n_heads * hp.head_dim % 32)
		return diag_set(diag, -EINVAL, "metadata key \"%s\": %u heads of %u are no multiple of 32",
				key_of(&rd, "attention.head_count").text, hp.n_heads, hp.head_dim);
	r = read_rope(&rd, &hp);
	if (r)
		return r;
	r = read_positive_f32(&rd, "attention.layer_norm_rms_epsilon", 1, &hp.norm_eps);
	if (r)
		return r;
	r = read_vocab(&rd, &hp);
	if (r)
		return r;
	*out = hp;
	return 0;
}

uint32_t hparams_dim(const struct hparams *hp, enum arch_dim dim)
{
	switch (dim) {
	case ARCH_ONE:
		return 1;
	case ARCH_EMBD:
		return hp->n_embd;
	case ARCH_VOCAB:
		return hp->n_vocab;
	case ARCH_FF:
		return hp->n_ff;
	case ARCH_HEAD:
		return hp->head_dim;
	case ARCH_Q:
		return hp->n_heads * hp->head_dim;
	case ARCH_KV:
		return hp->n_kv_heads * hp->head_dim;
	}
	return 0;
}

void hparams_inv_freq(const struct hparams *hp, const float *factors, float *inv_freq)
{
	for (uint32_t i = 0; i < hp->rope_dims / 2; i++) {
		double f = pow((double)hp->rope_base, -2.0 * i / hp->rope_dims) / (double)hp->rope_factor;

		inv_freq[i] = (float)(factors ? f / (double)factors[i] : f);
	}
}
