/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pretokenizer-patterns.h - the patterns that pre-tokenizers are made of, and the
 * names by which files ask for them.  For pretokenizer.c only.
 *
 * The patterns are those of the models' tokenizer.json, and of llama.cpp for
 * `default`; several names share one.
 */
#ifndef KVD_PRETOKENIZER_PATTERNS_H
#define KVD_PRETOKENIZER_PATTERNS_H

#include <stdbool.h>
#include <stddef.h>

#define PRETOKENIZER_MAX_STAGES 6

struct pretokenizer_pattern {
	const char *name;
	const char *stages[PRETOKENIZER_MAX_STAGES];	/* NULL: no more */
};

/* The flags are what llama.cpp's loader presumes. */
struct pretokenizer_kind {
	const struct pretokenizer_pattern *pattern;
	bool add_bos, whole_words;
};

/* By tokenizer.ggml.pre; false if it is not known. */
bool pretokenizer_find(const char *name, size_t n, struct pretokenizer_kind *kind);
/* The names of the patterns, "a, b and c", as far as they fit. */
void pretokenizer_list(char *out, size_t size);

#endif
