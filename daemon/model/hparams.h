/* SPDX-License-Identifier: Apache-2.0 */
/* hparams.h - a model's hyper-parameters, read from its metadata and checked. */
#ifndef KVD_HPARAMS_H
#define KVD_HPARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/model/arch.h"
#include "daemon/model/gguf.h"
#include "daemon/model/rope.h"
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
	struct rope_params rope;	/* of layers without a window, or of all */
	float local_rope_base;	/* of layers with a window, unscaled; 0: as all others */
	uint32_t window;	/* local layers: the last so many positions, its own included, are seen; 0: all */
	float norm_eps;
	float embd_scale;	/* embeddings are multiplied by it */
	float attention_scale;	/* scores are multiplied by it */
	float attention_softcap, logit_softcap;	/* 0: none */
	bool local[HPARAMS_MAX_LAYERS];	/* by layer, if there is a window: whether it has it */
};

/* -EINVAL with diag: a key is missing, of the wrong type, out of range, or asks for what is not supported. */
int hparams_read(struct hparams *out, const struct arch *arch, const struct gguf *g, struct diag *diag);

uint32_t hparams_dim(const struct hparams *hp, enum arch_dim dim);

#endif
