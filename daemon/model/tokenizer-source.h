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

/* Everything is copied; ids are -1 where there is none. */
struct tokenizer_source {
	const struct gguf_string *tokens;	/* [n_tokens] */
	const int32_t *types;			/* [n_tokens] enum token_type; NULL: all normal */
	size_t n_tokens;
	const struct gguf_string *merges;	/* [n_merges] "LEFT RIGHT" by rank */
	size_t n_merges;
	struct gguf_string pre;			/* name of the pre-tokenizer */
	int32_t bos, eos, eot, eom;
	int add_bos;				/* -1: as is usual with the pre-tokenizer */
};

/* 0, -ENOMEM, -EINVAL with diag naming the tokenizer.ggml.* field. */
int tokenizer_new_from(struct tokenizer **out, const struct tokenizer_source *source, struct diag *diag);

#endif
