/* SPDX-License-Identifier: Apache-2.0 */
/* A small vocabulary for tests: the 256 byte tokens (ids 0..255), and what is added. */
#ifndef KVD_TESTS_TINY_VOCAB_H
#define KVD_TESTS_TINY_VOCAB_H

#include <string.h>

#include "daemon/model/byte-alphabet.h"
#include "daemon/model/tokenizer-source.h"
#include "daemon/model/vocab.h"
#include "ipc/base/utf8.h"

#define TINY_MAX 4096

struct tiny_vocab {
	struct gguf_string tokens[TINY_MAX], merges[TINY_MAX];
	int32_t types[TINY_MAX];
	size_t n, n_merges;
	char texts[1 << 16];
	size_t n_texts;
};

static inline struct gguf_string tiny_text(struct tiny_vocab *v, const void *text, size_t n)
{
	struct gguf_string s = { .data = v->texts + v->n_texts, .n = n };

	assert_true(n <= sizeof(v->texts) - v->n_texts);
	memcpy(v->texts + v->n_texts, text, n);
	v->n_texts += n;
	return s;
}

static inline int32_t tiny_add(struct tiny_vocab *v, const char *text, int32_t type)
{
	assert_true(v->n < TINY_MAX);
	v->tokens[v->n] = tiny_text(v, text, strlen(text));
	v->types[v->n] = type;
	return (int32_t)v->n++;
}

static inline void tiny_merge(struct tiny_vocab *v, const char *text)
{
	assert_true(v->n_merges < TINY_MAX);
	v->merges[v->n_merges++] = tiny_text(v, text, strlen(text));
}

static inline void tiny_init(struct tiny_vocab *v)
{
	v->n = v->n_merges = v->n_texts = 0;
	for (int b = 0; b < 256; b++) {
		uint8_t text[5] = { 0 };

		utf8_encode(byte_alphabet_char((uint8_t)b), text);
		tiny_add(v, (const char *)text, TOKEN_NORMAL);
	}
}

static inline struct tokenizer_source tiny_source(const struct tiny_vocab *v, const char *pre)
{
	return (struct tokenizer_source){
		.tokens = v->tokens, .types = v->types, .n_tokens = v->n, .merges = v->merges, .n_merges = v->n_merges,
		.pre = { pre, strlen(pre) }, .bos = -1, .eos = -1, .eot = -1, .eom = -1, .unknown = -1,
		.add_bos = -1, .add_eos = -1, .add_space_prefix = -1, .remove_extra_whitespaces = -1,
	};
}

static inline struct tokenizer *tiny_tokenizer(const struct tokenizer_source *source)
{
	struct tokenizer *t;
	struct diag diag = DIAG_NULL;

	if (tokenizer_new_from(&t, source, &diag))
		fail_msg("%s", diag.text);
	return t;
}

#endif
