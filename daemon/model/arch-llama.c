/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `llama`: Touvron et al. 2023, arXiv:2302.13971 (pre-norm, rotary positions,
 * SwiGLU), with grouped keys and values of Llama 2.  Also Mistral, SmolLM.
 * The file's q and k rows are ordered so that a rotation turns neighbours.
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
	{ "attn_q.weight", KB_USE_MATRIX, ARCH_Q, ARCH_EMBD, false, ARCH_LAYER(attn_in.wq) },
	{ "attn_k.weight", KB_USE_MATRIX, ARCH_KV, ARCH_EMBD, false, ARCH_LAYER(attn_in.wk) },
	{ "attn_v.weight", KB_USE_MATRIX, ARCH_KV, ARCH_EMBD, false, ARCH_LAYER(attn_in.wv) },
	{ "attn_q.bias", KB_USE_VECTOR, ARCH_ONE, ARCH_Q, true, ARCH_LAYER(attn_in.bq) },
	{ "attn_k.bias", KB_USE_VECTOR, ARCH_ONE, ARCH_KV, true, ARCH_LAYER(attn_in.bk) },
	{ "attn_v.bias", KB_USE_VECTOR, ARCH_ONE, ARCH_KV, true, ARCH_LAYER(attn_in.bv) },
	{ "attn_output.weight", KB_USE_MATRIX, ARCH_EMBD, ARCH_Q, false, ARCH_LAYER(attn_out.wo) },
	{ "attn_output.bias", KB_USE_VECTOR, ARCH_ONE, ARCH_EMBD, true, ARCH_LAYER(attn_out.bo) },
	{ "ffn_norm.weight", KB_USE_VECTOR, ARCH_ONE, ARCH_EMBD, false, ARCH_LAYER(ffn.norm) },
	{ "ffn_gate.weight", KB_USE_MATRIX, ARCH_FF, ARCH_EMBD, false, ARCH_LAYER(ffn.gate) },
	{ "ffn_up.weight", KB_USE_MATRIX, ARCH_FF, ARCH_EMBD, false, ARCH_LAYER(ffn.up) },
	{ "ffn_down.weight", KB_USE_MATRIX, ARCH_EMBD, ARCH_FF, false, ARCH_LAYER(ffn.down) },
};

const struct arch arch_llama = {
	.name = "llama",
	.rope_style = KB_ROPE_INTERLEAVED,
	.activation = KB_SILU,
	.tied_output = true,
	.rope_divisors = ARCH_ROPE_FREQS | ARCH_ROPE_LONG_SHORT,
	.rope_base = 10000,
	.ends = ends,
	.n_ends = ARRAY_SIZE(ends),
	.layer = layer,
	.n_layer = ARRAY_SIZE(layer),
};
