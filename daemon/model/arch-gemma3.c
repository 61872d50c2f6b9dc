/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gemma3`: the text part of Gemma 3 (arXiv:2503.19786): five layers with a sliding window and a rope
 * base of their own, then one that sees everything; norms of q and k, and after attention and FFN.
 * The file's norm weights have their 1 added.
 */
#include "daemon/model/arch.h"

#include <math.h>

#include "daemon/model/hparams.h"
#include "ipc/base/checked.h"

static const struct arch_tensor ends[] = {
	{ "token_embd.weight", KB_USE_MATRIX, ARCH_VOCAB, ARCH_EMBD, false, ARCH_END(embed) },
	{ "output_norm.weight", KB_USE_VECTOR, ARCH_ONE, ARCH_EMBD, false, ARCH_END(logits.norm) },
	{ "output.weight", KB_USE_MATRIX, ARCH_VOCAB, ARCH_EMBD, true, ARCH_END(logits.head) },
};

static const struct arch_tensor layer[] = {
	{ "attn_norm.weight", KB_USE_VECTOR, ARCH_ONE, ARCH_EMBD, false, ARCH_LAYER(attn_in.norm) },
	{ "attn_q.weight", KB_USE_MATRIX, ARCH_Q, ARCH_EMBD, false, ARCH_LAYER(attn_in.wq) },
	{ "attn_k.weight", KB_USE_MATRIX, ARCH_KV, ARCH_EMBD, false, ARCH_LAYER(attn_in.wk) },
	{ "attn_v.weight", KB_USE_MATRIX, ARCH_KV, ARCH_EMBD, false, ARCH_LAYER(attn_in.wv) },
	{ "attn_q_norm.weight", KB_USE_VECTOR, ARCH_ONE, ARCH_HEAD, false, ARCH_LAYER(attn_in.q_norm) },
	{ "attn_k_norm.weight", KB_USE_VECTOR, ARCH_ONE, ARCH_HEAD, false, ARCH_LAYER(attn_in.k_norm) },
	{ "attn_output.weight", KB_USE_MATRIX, ARCH_EMBD, ARCH_Q, false, ARCH_LAYER(attn_out.wo) },
	{ "post_attention_norm.weight", KB_USE_VECTOR, ARCH_ONE, ARCH_EMBD, false,
	  ARCH_LAYER(attn_out.post_norm) },
	{ "ffn_norm.weight", KB_USE_VECTOR, ARCH_ONE, ARCH_EMBD, false, ARCH_LAYER(ffn.norm) },
	{ "ffn_gate.weight", KB_USE_MATRIX, ARCH_FF, ARCH_EMBD, false, ARCH_LAYER(ffn.gate) },
	{ "ffn_up.weight", KB_USE_MATRIX, ARCH_FF, ARCH_EMBD, false, ARCH_LAYER(ffn.up) },
	{ "ffn_down.weight", KB_USE_MATRIX, ARCH_EMBD, ARCH_FF, false, ARCH_LAYER(ffn.down) },
	{ "post_ffw_norm.weight", KB_USE_VECTOR, ARCH_ONE, ARCH_EMBD, false, ARCH_LAYER(ffn.post_norm) },
};

/*
 * 1 / sqrt(query_pre_attn_scalar), which files don't state: it is the head's size but in the 27B
 * model (known by its 62 layers), where it is n_embd / n_heads.
 */
#define LAYERS_OF_27B 62

static double attention_scale(const struct hparams *hp)
{
	if (hp->n_layers == LAYERS_OF_27B)
		return 1 / sqrt((double)hp->n_embd / hp->n_heads);
	return 1 / sqrt((double)hp->head_dim);
}

const struct arch arch_gemma3 = {
	.name = "gemma3",
	.rope_style = KB_ROPE_HALVES,
	.activation = KB_GELU_TANH,
	.tied_output = true,
	.scaled_embedding = true,
	.softcaps = true,
	.rope_base = 1e6f,
	.window = ARCH_WINDOW_REQUIRED,
	.global_every = 6,
	.local_rope_base = 1e4f,
	.attention_scale = attention_scale,
	.ends = ends,
	.n_ends = ARRAY_SIZE(ends),
	.layer = layer,
	.n_layer = ARRAY_SIZE(layer),
};
