/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arch.h - what differs between architectures, as tables.
 *
 * An architecture is one file, arch-NAME.c, with a `struct arch`: how its
 * positions turn, what a layer sees, which activation it has, and a row for every tensor: its name
 * in the file, its shape in terms of the hyper-parameters, and the operand of the
 * backend's operations that it becomes.  Reading, checking and running are
 * common to all.  To add one: write its file, add it to `archs` in arch.c.
 */
#ifndef KVD_ARCH_H
#define KVD_ARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/model/gguf.h"
#include "ipc/base/error.h"
#include "kernels/backend.h"

/* The operands of one layer's operations; they stay where they are while the model lives. */
struct model_layer {
	struct kb_attn_in attn_in;
	struct kb_attention attention;
	struct kb_attn_out attn_out;
	struct kb_ffn ffn;
};

/* The operands outside the layers. */
struct model_ends {
	const struct kb_tensor *embed;		/* [n_vocab] x n_embd */
	struct kb_logits logits;
};

/* A dimension in terms of the hyper-parameters. */
enum arch_dim {
	ARCH_ONE,
	ARCH_EMBD,
	ARCH_VOCAB,
	ARCH_FF,
	ARCH_HEAD,	/* head_dim */
	ARCH_Q,		/* n_heads * head_dim */
	ARCH_KV,	/* n_kv_heads * head_dim */
};

/*
 * Rows of a table that follow each other with one name are consecutive rows of that tensor of the file:
 * how a fused projection becomes several operands.
 */
struct arch_tensor {
	const char *name;	/* of a layer's tensor: what follows "blk.N." */
	enum kb_use use;
	enum arch_dim rows, cols;	/* vectors: rows is ARCH_ONE */
	bool optional;
	size_t slot;		/* offset of the operand in struct model_layer or struct model_ends */
};

#define ARCH_MAX_PARTS 3u	/* of one tensor */

/* Lists of divisors of the rotation's frequencies that a file may have. */
enum arch_rope_divisors {
	ARCH_ROPE_FREQS = 1,		/* one list for all contexts */
	ARCH_ROPE_LONG_SHORT = 2,	/* one for long contexts, one for short ones */
};
#define ARCH_ROPE_FREQS_NAME "rope_freqs.weight"
#define ARCH_ROPE_LONG_NAME "rope_factors_long.weight"
#define ARCH_ROPE_SHORT_NAME "rope_factors_short.weight"

enum arch_window { ARCH_WINDOW_NONE, ARCH_WINDOW_OPTIONAL, ARCH_WINDOW_REQUIRED };

struct hparams;

struct arch {
	const char *name;	/* general.architecture, and the prefix of the hyper-parameters' keys */
	enum kb_rope_style rope_style;
	enum kb_activation activation;
	bool tied_output;	/* without output.weight the embedding is used */
	bool scaled_embedding;	/* embeddings are multiplied by sqrt(n_embd) */
	bool softcaps;		/* attn_logit_softcapping and final_logit_softcapping may be there */
	unsigned rope_divisors;	/* of enum arch_rope_divisors */
	float rope_base;	/* without rope.freq_base */
	enum arch_window window;	/* attention.sliding_window */
	uint32_t global_every;	/* every so many-th layer sees everything, the others the window; 0: none does */
	float local_rope_base;	/* of layers with a window; 0: as all others */
	double (*attention_scale)(const struct hparams *hp);	/* NULL: 1 / sqrt(head_dim) */
	const struct arch_tensor *ends;
	size_t n_ends;
	const struct arch_tensor *layer;
	size_t n_layer;
};

/* By the file's general.architecture; -EINVAL with diag: absent or not supported. */
int arch_find(const struct arch **out, const struct gguf *g, struct diag *diag);

/* An operand's place, for the tables. */
#define ARCH_END(member) offsetof(struct model_ends, member)
#define ARCH_LAYER(member) offsetof(struct model_layer, member)

extern const struct arch arch_gemma3, arch_llama, arch_phi3, arch_qwen2, arch_qwen3;

#endif
