/* SPDX-License-Identifier: Apache-2.0 */
/* hparams.h - a model's hyper-parameters, read from its metadata and checked. */
#ifndef KVD_HPARAMS_H
#define KVD_HPARAMS_H

#include <stdint.h>

#include "daemon/model/arch.h"
#include "daemon/model/gguf.h"
#include "ipc/base/error.h"

/* Bounds far above any model of today, low enough that products of two stay below 2^40. */
#define HPARAMS_MAX_LAYERS 1024u
#define HPARAMS_MAX_HEADS 1024u
#define HPARAMS_MAX_HEAD_DIM 1024u
#define HPARAMS_MAX_EMBD (1u << 16)
#define HPARAMS_MAX_FF (1u << 20)
#define HPARAMS_MAX_VOCAB (1u << 22)
#define HPARAMS_MAX_CTX (1u << 22)

struct hparams {
	uint32_t n_vocab, n_ctx_train, n_embd, n_layers, n_heads, n_kv_heads, head_dim, n_ff;
	uint32_t rope_dims;	/* rotated dimensions of a head */
	float rope_base;
	float rope_factor;	/* linear scaling: positions are divided by it; 1: none */
	float norm_eps;
};

/* -EINVAL with diag: a key is missing, of the wrong type, out of range, or asks for what is not supported. */
int hparams_read(struct hparams *out, const struct arch *arch, const struct gguf *g, struct diag *diag);

uint32_t hparams_dim(const struct hparams *hp, enum arch_dim dim);

/*
 * The angle per position of each pair, [rope_dims / 2]: base^(-2i/rope_dims),
 * divided by the linear factor and by factors[i] where given.
 */
void hparams_inv_freq(const struct hparams *hp, const float *factors, float *inv_freq);

#endif
