/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pretokenizer.h - cuts text into words, which are then encoded one by one.
 *
 * A pre-tokenizer is one to six patterns, each applied to what the one before
 * left; matches and the text between them become pieces of their own, and a
 * piece is all that the next pattern sees (so "end of text" is the piece's end).
 * The patterns are those of the models' tokenizer.json, and of llama.cpp for
 * `default`, written so that the matching time is linear in the text whatever
 * it is; pretokenizer-patterns.c says how.
 *
 * Immutable; any thread.
 */
#ifndef KVD_PRETOKENIZER_H
#define KVD_PRETOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/error.h"

struct pretokenizer;

/* One word; never empty.  A negative return ends the splitting. */
typedef int (*pretokenizer_word_fn)(void *arg, const uint8_t *word, size_t n);

/* name: tokenizer.ggml.pre.  0, -ENOMEM, -EINVAL with diag for an unknown one. */
int pretokenizer_new(struct pretokenizer **out, const char *name, size_t n_name, struct diag *diag);
void pretokenizer_free(struct pretokenizer *p);
CLEANUP_DEFINE(struct pretokenizer, pretokenizer_free)

/* What llama.cpp's loader presumes of a model with this pre-tokenizer. */
bool pretokenizer_add_bos(const struct pretokenizer *p);		/* where the file does not say */
bool pretokenizer_whole_words(const struct pretokenizer *p);	/* a word that is a token is taken whole */

/*
 * Calls fn for the words of text[0..n) in order; together they are the text.
 * text must be well-formed UTF-8.  0, -ENOMEM, -EINVAL if a match went beyond
 * its limits (which no text does), or what fn returned.
 */
int pretokenizer_split(const struct pretokenizer *p, const uint8_t *text, size_t n, pretokenizer_word_fn fn,
		       void *arg);

#endif
