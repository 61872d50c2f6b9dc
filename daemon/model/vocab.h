/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vocab.h - the token table: what each id is written as in the file, the bytes
 * it stands for, its type, and the way back from a text to its id.
 *
 * Made from plain arrays; keeps copies of its own.  Immutable once it is made
 * (vocab_set_control() belongs to the making); any thread.
 */
#ifndef KVD_VOCAB_H
#define KVD_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/model/gguf.h"
#include "daemon/model/keyed-hash.h"
#include "ipc/base/error.h"

/* tokenizer.ggml.token_type, numbers of the format. */
enum token_type {
	TOKEN_UNDEFINED = 0,
	TOKEN_NORMAL = 1,
	TOKEN_UNKNOWN = 2,
	TOKEN_CONTROL = 3,
	TOKEN_USER_DEFINED = 4,
	TOKEN_UNUSED = 5,
	TOKEN_BYTE = 6,
};

#define VOCAB_MAX_TOKENS (1u << 22)

/* How tokens are written in the file. */
enum vocab_alphabet {
	VOCAB_BYTE_LEVEL,	/* bytes as printable characters: byte-alphabet.h */
	VOCAB_SENTENCEPIECE,	/* U+2581 for a space, byte tokens: sentencepiece-text.h */
};

struct vocab_token {
	uint32_t text, n_text;		/* as in the file; offset into arena */
	uint32_t bytes, n_bytes;	/* what it stands for */
	uint8_t type;			/* enum token_type */
	bool control;			/* never comes from ordinary text */
};

struct vocab {
	struct vocab_token *tokens;
	uint32_t n;
	uint32_t longest;		/* bytes of the longest text */
	uint8_t *arena;
	struct hash_key key;
	uint32_t *slots;		/* [mask + 1] open addressing: by text, id + 1 and bits of the hash; 0: free */
	uint32_t mask;
	enum vocab_alphabet alphabet;
	int32_t byte_ids[256];		/* the token of one byte, -1: the vocabulary has none */
};

#define VOCAB_NULL ((struct vocab){ 0 })

/*
 * types may be NULL: all normal, except that "<0xXX>" is a byte for SentencePiece.
 * Two tokens with one text are refused, empty ones are placeholders that no text
 * leads to.
 * 0, -ENOMEM, -EINVAL with diag naming the field and the token.
 */
int vocab_init(struct vocab *v, enum vocab_alphabet alphabet, const struct gguf_string *tokens,
	       const int32_t *types, size_t n, struct diag *diag);
void vocab_deinit(struct vocab *v);

/* Treats the token as a control token, whatever its type says. */
void vocab_set_control(struct vocab *v, int32_t id);

/* The id of a text as it stands in the file, -1 if there is none. */
int32_t vocab_find(const struct vocab *v, const void *text, size_t n);
/* As vocab_find(), but no control token: what merges may lead to. */
int32_t vocab_find_ordinary(const struct vocab *v, const void *text, size_t n);

/* What merges of SentencePiece may lead to. */
static inline bool vocab_is_piece(const struct vocab_token *t)
{
	return !t->control && t->type != TOKEN_BYTE;
}

static inline const uint8_t *vocab_text(const struct vocab *v, int32_t id)
{
	return v->arena + v->tokens[id].text;
}

static inline const uint8_t *vocab_bytes(const struct vocab *v, int32_t id)
{
	return v->arena + v->tokens[id].bytes;
}

#endif
