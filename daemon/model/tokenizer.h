/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenizer.h - text to token ids and back.
 *
 * Immutable after loading; usable from any thread at once.  Time and memory
 * are linear in the input (n log n at worst), without recursion, whatever the
 * text.
 *
 * Input need not be valid UTF-8: ill-formed bytes become one byte token each.
 * Every byte has a token in most vocabularies; where one is missing, byte-level
 * BPE leaves the byte out, as `tokenizers` does (some control characters and
 * never-valid bytes with SmolLM2), and SentencePiece has an unknown token.
 * Otherwise the bytes of the tokens are the text.
 */
#ifndef KVD_TOKENIZER_H
#define KVD_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/error.h"

struct gguf;
struct tokenizer;

#define TOKENIZER_MAX_TEXT (1u << 30)	/* bytes of one text */

enum tokenizer_flags {
	TOKENIZE_SPECIAL = 1 << 0,	/* control tokens written in the text become their ids */
	TOKENIZE_BOS = 1 << 1,		/* BOS first, where the model asks for one; never doubled */
	TOKENIZE_EOS = 1 << 2,		/* EOS last, where the model asks for one; never doubled */
};

/* A growable list of ids; zero-initialise, free(ids). */
struct token_list {
	int32_t *ids;
	size_t n, capacity;
};

int token_list_push(struct token_list *l, int32_t id);	/* 0 or -ENOMEM */

/* Reads tokenizer.ggml.* ; -EINVAL with diag naming the field. */
int tokenizer_new(struct tokenizer **out, const struct gguf *g, struct diag *diag);
void tokenizer_free(struct tokenizer *t);

/*
 * Appends the ids of text[0..n).  Without TOKENIZE_SPECIAL no control token can
 * come out, whatever the text says.  0, -ENOMEM, -EINVAL where the text is
 * longer than TOKENIZER_MAX_TEXT; out keeps what it had on failure.
 */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags,
		     struct token_list *out);

uint32_t tokenizer_n_vocab(const struct tokenizer *t);
/* The bytes that a token stands for in text (may be no whole code point).
 * Control tokens: their name.  *n = 0 for an id out of range.  The bytes live as long as t. */
const uint8_t *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *n);
/*
 * The bytes that a token adds to a text behind the token previous (-1: at its
 * beginning).  Those of tokenizer_bytes(), except that some tokenizers put a space
 * before a text that begins or follows a control token: it is none of the
 * text's.  So the bytes of tokenizer_encode()'s ids are its text.
 */
const uint8_t *tokenizer_bytes_after(const struct tokenizer *t, int32_t previous, int32_t id, size_t *n);
/* The bytes of ids one behind the other, to out (NULL: they are only counted); how many. */
size_t tokenizer_join(const struct tokenizer *t, const int32_t *ids, size_t n_ids, uint8_t *out);
/* Control tokens (bos, im_start...) are not shown as text. */
bool tokenizer_is_control(const struct tokenizer *t, int32_t id);
/* End of generation: eos, eot, and the tokens known by name (<|im_end|>, <|eot_id|>, ...). */
bool tokenizer_is_eog(const struct tokenizer *t, int32_t id);
/* -1 where the model has none. */
int32_t tokenizer_bos(const struct tokenizer *t);
int32_t tokenizer_eos(const struct tokenizer *t);
bool tokenizer_add_bos(const struct tokenizer *t);
/* Whether a space is put before text that begins or follows a control token. */
bool tokenizer_adds_space(const struct tokenizer *t);
/* The id of a control token by its exact name, -1 if none. */
int32_t tokenizer_control_id(const struct tokenizer *t, const char *name);

#endif
