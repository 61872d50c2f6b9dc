/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/hparams.h"

#include <math.h>
#include <stdio.h>

#include "daemon/model/gguf-private.h"
#include "daemon/model/keys.h"
#include "ipc/base/checked.h"

#define MAX_SOFTCAP 1e6f

/* One number for all layers, or an array of equal ones. */
static int read_head_count_kv(struct keys *k, uint32_t n_layers, uint32_t *out)
{
	struct keys_name key = keys_name(k, "attention.head_count_kv");
	struct gguf_array a;
	uint64_t first = 0, v = 0;

	if (keys_array(k, "attention.head_count_kv", &a))
		return keys_u32_or(k, "attention.head_count_kv", 1, HPARAMS_MAX_HEADS, out);
	if (a.n != n_layers)
		return diag_set(k->diag, -EINVAL, "metadata key \"%s\": has %llu elements for %u layers",
				key.text, (unsigned long long)a.n, n_layers);
	for (uint64_t i = 0; i < a.n; i++) {
		if (!gguf_array_uint(&a, i, &v) || !v || v > HPARAMS_MAX_HEADS)
			return diag_set(k->diag, -EINVAL,
					"metadata key \"%s\": element %llu is not a number from 1 to %u",
					key.text, (unsigned long long)i, HPARAMS_MAX_HEADS);
		if (i && v != first)
			return diag_set(k->diag, -EINVAL,
					"metadata key \"%s\": layers of different size are not supported",
					key.text);
		first = v;
	}
	*out = (uint32_t)first;
	return 0;
}

static int read_heads(struct keys *k, struct hparams *hp)
{
	uint32_t value_dim;
	int r;

	r = keys_u32(k, "attention.head_count", 1, HPARAMS_MAX_HEADS, &hp->n_heads);
	if (r)
		return r;
	hp->n_kv_heads = hp->n_heads;
	r = read_head_count_kv(k, hp->n_layers, &hp->n_kv_heads);
	if (r)
		return r;
	if (!hp->n_kv_heads || hp->n_heads % hp->n_kv_heads)
		return diag_set(k->diag, -EINVAL, "metadata key \"%s\": %u is no divisor of the %u heads",
				keys_name(k, "attention.head_count_kv").text, hp->n_kv_heads, hp->n_heads);
	hp->head_dim = 0;
	r = keys_u32_or(k, "attention.key_length", 16, HPARAMS_MAX_HEAD_DIM, &hp->head_dim);
	if (r)
		return r;
	if (!hp->head_dim) {
		if (hp->n_embd % hp->n_heads)
			return diag_set(k->diag, -EINVAL,
					"metadata key \"%s\": %u is no divisor of the embedding's %u",
					keys_name(k, "attention.head_count").text, hp->n_heads, hp->n_embd);
		hp->head_dim = hp->n_embd / hp->n_heads;
	}
	if (hp->head_dim % 16 || hp->head_dim > HPARAMS_MAX_HEAD_DIM)
		return diag_set(k->diag, -EINVAL,
				"metadata key \"%s\": heads of %u are not supported (a multiple of 16 is)",
				keys_name(k, "attention.key_length").text, hp->head_dim);
	value_dim = hp->head_dim;
	r = keys_u32_or(k, "attention.value_length", 1, HPARAMS_MAX_HEAD_DIM, &value_dim);
	if (r)
		return r;
	if (hp->n_heads * hp->head_dim % 32)
		return diag_set(k->diag, -EINVAL, "metadata key \"%s\": %u heads of %u are no multiple of 32",
				keys_name(k, "attention.head_count").text, hp->n_heads, hp->head_dim);
	if (value_dim != hp->head_dim)
		return diag_set(k->diag, -EINVAL,
				"metadata key \"%s\": %u differs from the keys' %u, which is not supported",
				keys_name(k, "attention.value_length").text, value_dim, hp->head_dim);
	return 0;
}

/* Layers with a window and layers without one have heads of one size and rotate as much of them. */
static int refuse_other_local_heads(struct keys *k, const struct hparams *hp)
{
	const struct {
		const char *suffix;
		uint32_t n;
	} same[] = {
		{ "attention.key_length_swa", hp->head_dim },
		{ "attention.value_length_swa", hp->head_dim },
		{ "rope.dimension_count_swa", hp->rope.n_dims },
	};

	for (size_t i = 0; i < ARRAY_SIZE(same); i++) {
		uint32_t n = same[i].n;
		int r = keys_u32_or(k, same[i].suffix, n, n, &n);

		if (r)
			return r;
	}
	return 0;
}

/* A number n (every n-th layer is global; 0: none is), or by layer whether it is local. */
static int read_window_pattern(struct keys *k, const struct arch *arch, struct hparams *hp)
{
	static const char suffix[] = "attention.sliding_window_pattern";
	uint32_t every = arch->global_every;
	struct gguf_array a;
	uint64_t v = 0;

	if (keys_array(k, suffix, &a)) {
		int r = keys_u32_or(k, suffix, 0, HPARAMS_MAX_LAYERS, &every);

		for (uint32_t i = 0; i < hp->n_layers && !r; i++)
			hp->local[i] = !every || i % every < every - 1;
		return r;
	}
	if (a.n != hp->n_layers)
		return diag_set(k->diag, -EINVAL, "metadata key \"%s\": has %llu elements for %u layers",
				keys_name(k, suffix).text, (unsigned long long)a.n, hp->n_layers);
	for (uint32_t i = 0; i < hp->n_layers; i++) {
		if (a.type == GGUF_BOOL)
			v = a.data[i];
		else if (!gguf_array_uint(&a, i, &v) || v > 1)
			return diag_set(k->diag, -EINVAL, "metadata key \"%s\": element %u is neither 0 nor 1",
					keys_name(k, suffix).text, i);
		hp->local[i] = v;
	}
	return 0;
}

static int read_window(struct keys *k, const struct arch *arch, struct hparams *hp)
{
	int r;

	if (arch->window == ARCH_WINDOW_NONE)
		return 0;
	if (arch->window == ARCH_WINDOW_REQUIRED)
		r = keys_u32(k, "attention.sliding_window", 1, HPARAMS_MAX_CTX, &hp->window);
	else
		r = keys_u32_or(k, "attention.sliding_window", 0, HPARAMS_MAX_CTX, &hp->window);
	if (r)
		return r;
	r = read_window_pattern(k, arch, hp);
	if (r)
		return r;
	if (arch->local_rope_base) {
		hp->local_rope_base = arch->local_rope_base;
		r = keys_positive_alias(k, "rope.freq_base_swa", "rope.local.freq_base", ROPE_MAX_BASE,
					&hp->local_rope_base);
		if (r)
			return r;
	}
	return refuse_other_local_heads(k, hp);
}

static int read_scales(struct keys *k, const struct arch *arch, struct hparams *hp)
{
	int r;

	hp->embd_scale = arch->scaled_embedding ? sqrtf((float)hp->n_embd) : 1;
	hp->attention_scale =
		(float)(arch->attention_scale ? arch->attention_scale(hp) : 1.0 / sqrt(hp->head_dim));
	if (!arch->softcaps)
		return 0;
	r = keys_not_negative(k, "attn_logit_softcapping", MAX_SOFTCAP, &hp->attention_softcap);
	if (r)
		return r;
	return keys_not_negative(k, "final_logit_softcapping", MAX_SOFTCAP, &hp->logit_softcap);
}

/* What would change the arithmetic, and is not known here, is refused. */
static int refuse_unsupported(struct keys *k)
{
	uint32_t n_experts = 0;
	bool causal = true;
	int r;

	r = keys_u32_or(k, "expert_count", 0, UINT32_MAX, &n_experts);
	if (r)
		return r;
	if (n_experts)
		return diag_set(k->diag, -EINVAL,
				"metadata key \"%s\": mixtures of experts are not supported",
				keys_name(k, "expert_count").text);
	r = keys_bool_or(k, "attention.causal", &causal);
	if (r)
		return r;
	if (!causal)
		return diag_set(k->diag, -EINVAL, "metadata key \"%s\": only causal attention is supported",
				keys_name(k, "attention.causal").text);
	return 0;
}

/* The vocabulary is as large as the list of tokens. */
static int read_vocab(struct keys *k, struct hparams *hp)
{
	struct gguf_array tokens;
	int r;

	r = gguf_get_array(k->g, "tokenizer.ggml.tokens", GGUF_STRING, &tokens, k->diag);
	if (r == GGUF_E_ABSENT)
		return diag_set(k->diag, -EINVAL, "metadata key \"tokenizer.ggml.tokens\": missing");
	if (r)
		return r;
	if (!tokens.n || tokens.n > HPARAMS_MAX_VOCAB)
		return diag_set(k->diag, -EINVAL,
				"metadata key \"tokenizer.ggml.tokens\": %llu tokens (1 to %u are allowed)",
				(unsigned long long)tokens.n, HPARAMS_MAX_VOCAB);
	hp->n_vocab = (uint32_t)tokens.n;
	return keys_u32_or(k, "vocab_size", hp->n_vocab, hp->n_vocab, &hp->n_vocab);
}

static int read_sizes(struct keys *k, struct hparams *hp)
{
	int r;

	r = keys_u32(k, "block_count", 1, HPARAMS_MAX_LAYERS, &hp->n_layers);
	if (r)
		return r;
	r = keys_u32(k, "context_length", 1, HPARAMS_MAX_CTX, &hp->n_ctx_train);
	if (r)
		return r;
	r = keys_u32(k, "embedding_length", 32, HPARAMS_MAX_EMBD, &hp->n_embd);
	if (r)
		return r;
	r = keys_u32(k, "feed_forward_length", 32, HPARAMS_MAX_FF, &hp->n_ff);
	if (r)
		return r;
	if (hp->n_embd % 32)
		return diag_set(k->diag, -EINVAL, "metadata key \"%s\": %u is no multiple of 32",
				keys_name(k, "embedding_length").text, hp->n_embd);
	if (hp->n_ff % 32)
		return diag_set(k->diag, -EINVAL, "metadata key \"%s\": %u is no multiple of 32",
				keys_name(k, "feed_forward_length").text, hp->n_ff);
	return 0;
}

static int read_all(struct keys *k, const struct arch *arch, struct hparams *hp)
{
	int r;

	r = refuse_unsupported(k);
	if (r)
		return r;
	r = read_sizes(k, hp);
	if (r)
		return r;
	r = read_heads(k, hp);
	if (r)
		return r;
	r = rope_read(&hp->rope, arch, hp->head_dim, hp->n_ctx_train, k);
	if (r)
		return r;
	r = read_window(k, arch, hp);
	if (r)
		return r;
	r = read_scales(k, arch, hp);
	if (r)
		return r;
	r = keys_positive(k, "attention.layer_norm_rms_epsilon", 1, &hp->norm_eps);
	if (r)
		return r;
	r = read_vocab(k, hp);
	if (r)
		return r;
	return keys_check_rest(k);
}

int hparams_read(struct hparams *out, const struct arch *arch, const struct gguf *g, struct diag *diag)
{
	struct keys k = { .g = g, .arch = arch->name, .diag = diag };
	struct hparams hp = { 0 };
	int r;

	r = read_all(&k, arch, &hp);
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
