/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `phi3`: Phi-3, Phi-3.5 and Phi-4 mini (arXiv:2404.14219): q, k and v are one matrix, gate and up
 * another, in this order; long contexts by LongRoPE; part of a head may stay unrotated.
 */
#include "daemon/model/arch.h"

#include "ipc/base/checked.h"

static const struct arch_tensor ends[] = {
	{ "token_embd.weight", KB_USE_MATRIX, ARCH_VOCAB, ARCH_EMBD, false, ARCH_END(embed) },
	{ "output_norm.weight", KB_USE_VECTOR, ARCH_ONE, ARCH_EMBD, false, ARCH_END(logits.norm) },
	{ "output.weight", KB_USE_MATRIX, ARCH_VOCAB, ARCH_EMBD, true, ARCH_END(logits.head) },
};

static const struct arch_tensor layer[] = {
	{ "attn_norm.weight", KB_USE_VECTOR, ARCH_ONE, ARCH_EMBD, false, ARCH_LAYER(attn_in.norm) },
	{ "attn_qkv.weight", KB_USE_MATRIX, ARCH_Q, ARCH_EMBD, false, ARCH_LAYER(attn_in.wq) },
	{ "attn_qkv.weight", KB_USE_MATRIX, ARCH_KV, ARCH_EMBD, false, ARCH_LAYER(attn_in.wk) },
	{ "attn_qkv.weight", KB_USE_MATRIX, ARCH_KV, ARCH_EMBD, false, ARCH_LAYER(attn_in.wv) },
	{ "attn_output.weight", KB_USE_MATRIX, ARCH_EMBD, ARCH_Q, false, ARCH_LAYER(attn_out.wo) },
	{ "ffn_norm.weight", KB_USE_VECTOR, ARCH_ONE, ARCH_EMBD, false, ARCH_LAYER(ffn.norm) },
	{ "ffn_up.weight", KB_USE_MATRIX, ARCH_FF, ARCH_EMBD, false, ARCH_LAYER(ffn.gate) },
	{ "ffn_up.weight", KB_USE_MATRIX, ARCH_FF, ARCH_EMBD, false, ARCH_LAYER(ffn.up) },
	{ "ffn_down.weight", KB_USE_MATRIX, ARCH_EMBD, ARCH_FF, false, ARCH_LAYER(ffn.down) },
};

const struct arch arch_phi3 = {
	.name = "phi3",
	.rope_style = KB_ROPE_HALVES,
	.activation = KB_SILU,
	.tied_output = true,
	.rope_divisors = ARCH_ROPE_LONG_SHORT,
	.rope_base = 10000,
	.window = ARCH_WINDOW_OPTIONAL,
	.ends = ends,
	.n_ends = ARRAY_SIZE(ends),
	.layer = layer,
	.n_layer = ARRAY_SIZE(layer),
};
