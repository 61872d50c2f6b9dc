/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenizer-source.h - what a tokenizer is made from, as plain arrays, so that
 * one can be made without a file.
 */
#ifndef KVD_TOKENIZER_SOURCE_H
#define KVD_TOKENIZER_SOURCE_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/model/gguf.h"
#include "daemon/model/tokenizer.h"
#include "ipc/base/error.h"

enum tokenizer_model {
	TOKENIZER_BPE,			/* byte-level BPE: "gpt2" */
	TOKENIZER_SENTENCEPIECE,	/* SentencePiece's BPE: "llama" */
};

/* Everything is copied; ids are -1 where there is none. */
struct tokenizer_source {
	enum tokenizer_model model;
	const struct gguf_string *tokens;	/* [n_tokens] */
	const int32_t *types;			/* [n_tokens] enum token_type; NULL: all normal */
	size_t n_tokens;
	const float *scores;			/* [n_tokens] SentencePiece only */
	const struct gguf_string *merges;	/* [n_merges] "LEFT RIGHT" by rank; BPE only */
	size_t n_merges;
	struct gguf_string pre;			/* name of the pre-tokenizer; BPE only */
	int32_t bos, eos, eot, eom;
	int32_t unknown;			/* SentencePiece only */
	/* 0, 1; -1: as is usual with the model and its pre-tokenizer */
	int add_bos, add_eos;
	int add_space_prefix, remove_extra_whitespaces;	/* SentencePiece only */
};

/* 0, -ENOMEM, -EINVAL with diag naming the tokenizer.ggml.* field. */
int tokenizer_new_from(struct tokenizer **out, const struct tokenizer_source *source, struct diag *diag);

#endif
