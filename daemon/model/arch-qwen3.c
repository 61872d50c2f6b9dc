/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `qwen3`: Qwen3's dense models (arXiv:2505.09388): q and k of each head are normalised before the
 * rotation; heads are as large as the file says (attention.key_length), not n_embd / n_heads.
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
	{ "attn_q_norm.weight", KB_USE_VECTOR, ARCH_ONE, ARCH_HEAD, false, ARCH_LAYER(attn_in.q_norm) },
	{ "attn_k_norm.weight", KB_USE_VECTOR, ARCH_ONE, ARCH_HEAD, false, ARCH_LAYER(attn_in.k_norm) },
	{ "attn_output.weight", KB_USE_MATRIX, ARCH_EMBD, ARCH_Q, false, ARCH_LAYER(attn_out.wo) },
	{ "ffn_norm.weight", KB_USE_VECTOR, ARCH_ONE, ARCH_EMBD, false, ARCH_LAYER(ffn.norm) },
	{ "ffn_gate.weight", KB_USE_MATRIX, ARCH_FF, ARCH_EMBD, false, ARCH_LAYER(ffn.gate) },
	{ "ffn_up.weight", KB_USE_MATRIX, ARCH_FF, ARCH_EMBD, false, ARCH_LAYER(ffn.up) },
	{ "ffn_down.weight", KB_USE_MATRIX, ARCH_EMBD, ARCH_FF, false, ARCH_LAYER(ffn.down) },
};

const struct arch arch_qwen3 = {
	.name = "qwen3",
	.rope_style = KB_ROPE_HALVES,
	.activation = KB_SILU,
	.tied_output = true,
	.rope_base = 10000,
	.ends = ends,
	.n_ends = ARRAY_SIZE(ends),
	.layer = layer,
	.n_layer = ARRAY_SIZE(layer),
};
