/* SPDX-License-Identifier: Apache-2.0 */
/* A vocabulary for tokenizer targets, as the header of a GGUF file in memory. */
#ifndef KVD_TEST_FUZZ_VOCAB_FILE_H
#define KVD_TEST_FUZZ_VOCAB_FILE_H

#include "daemon/model/gguf.h"
#include "daemon/model/tokenizer.h"
#include "ipc/base/checked.h"
#include "ipc/base/utf8.h"
#include "tests/fuzz/fuzz.h"

/* Byte-level BPE: pairs by rank, as the file has them (U+0120 is a space, U+010A a line end). */
static const char *const vocab_merges[] = {
	"t h", "th e", "\304\240 the", "\304\240 t", "\304\240t h", "i n", "in g", "a b", "ab ab", "abab abab", "a a",
	"aa aa", "\304\240 \304\240", "\304\240\304\240 \304\240\304\240", "\304\212 \304\212", "1 2", "12 3",
	"\303\203 \302\251", "o n", "e r", "! !", "' s", "m a", "ma n",
};

/* BOS, EOS, and the markers of the chat formats; those of one format are not all of another's. */
static const char *const vocab_control[] = {
	"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>", "<|start_header_id|>",
	"<|end_header_id|>", "<|eot_id|>", "<|user|>", "<|assistant|>", "<|end|>", "<|system|>", "[INST]", "[/INST]",
};
static const char vocab_user[] = "<user thing>";

#define VOCAB_FIRST_BYTE ((int32_t)ARRAY_SIZE(vocab_control) + 1)	/* the token of byte 0; 255 more follow */
#define VOCAB_FIRST_MERGE (VOCAB_FIRST_BYTE + 256)
#define VOCAB_SIZE (VOCAB_FIRST_MERGE + (int32_t)ARRAY_SIZE(vocab_merges))

struct vocab_file {
	uint8_t bytes[1 << 14];
	size_t n;
};

static inline void vocab_put(struct vocab_file *f, const void *p, size_t n)
{
	FUZZ_CHECK(n <= sizeof(f->bytes) - f->n);
	memcpy(f->bytes + f->n, p, n);
	f->n += n;
}

static inline void vocab_put_u32(struct vocab_file *f, uint32_t v)
{
	vocab_put(f, &v, sizeof(v));
}

static inline void vocab_put_u64(struct vocab_file *f, uint64_t v)
{
	vocab_put(f, &v, sizeof(v));
}

static inline void vocab_put_string(struct vocab_file *f, const char *s, size_t n)
{
	vocab_put_u64(f, n);
	vocab_put(f, s, n);
}

static inline void vocab_put_key(struct vocab_file *f, const char *key, uint32_t type)
{
	vocab_put_string(f, key, strlen(key));
	vocab_put_u32(f, type);
}

static inline void vocab_put_array(struct vocab_file *f, const char *key, uint32_t type, uint64_t n)
{
	vocab_put_key(f, key, GGUF_ARRAY);
	vocab_put_u32(f, type);
	vocab_put_u64(f, n);
}

/* A byte as byte-level vocabularies write it (GPT-2's bytes_to_unicode()). */
static inline void vocab_put_byte_token(struct vocab_file *f, int byte)
{
	uint32_t cp = 0x100;
	uint8_t text[4];

	for (int b = 0; b < 256; b++) {
		int printable = (b >= 33 && b < 127) || (b >= 161 && b < 173) || b >= 174;

		if (b == byte) {
			cp = printable ? (uint32_t)b : cp;
			break;
		}
		cp += !printable;
	}
	vocab_put_string(f, (const char *)text, utf8_encode(cp, text));
}

static inline void vocab_put_merge_token(struct vocab_file *f, const char *merge)
{
	size_t n = strlen(merge), left = strcspn(merge, " ");
	char text[64];

	memcpy(text, merge, left);
	memcpy(text + left, merge + left + 1, n - left - 1);
	vocab_put_string(f, text, n - 1);
}

static inline void vocab_put_tokens(struct vocab_file *f)
{
	vocab_put_array(f, "tokenizer.ggml.tokens", GGUF_STRING, VOCAB_SIZE);
	for (size_t i = 0; i < ARRAY_SIZE(vocab_control); i++)
		vocab_put_string(f, vocab_control[i], strlen(vocab_control[i]));
	vocab_put_string(f, vocab_user, strlen(vocab_user));
	for (int b = 0; b < 256; b++)
		vocab_put_byte_token(f, b);
	for (size_t i = 0; i < ARRAY_SIZE(vocab_merges); i++)
		vocab_put_merge_token(f, vocab_merges[i]);
	vocab_put_array(f, "tokenizer.ggml.token_type", GGUF_I32, VOCAB_SIZE);
	for (int32_t i = 0; i < VOCAB_SIZE; i++)
		vocab_put_u32(f, i < (int32_t)ARRAY_SIZE(vocab_control) ? 3 : i < VOCAB_FIRST_BYTE ? 4 : 1);
	vocab_put_array(f, "tokenizer.ggml.merges", GGUF_STRING, ARRAY_SIZE(vocab_merges));
	for (size_t i = 0; i < ARRAY_SIZE(vocab_merges); i++)
		vocab_put_string(f, vocab_merges[i], strlen(vocab_merges[i]));
}

/* A tokenizer with this pre-tokenizer; BOS and EOS are the first and the last control token. */
static inline struct tokenizer *vocab_tokenizer(const char *pre)
{
	static struct vocab_file f;
	struct tokenizer *t = NULL;
	struct gguf *g = NULL;
	struct diag diag = DIAG_NULL;

	f.n = 0;
	vocab_put(&f, "GGUF\3\0\0\0", 8);
	vocab_put_u64(&f, 0);
	vocab_put_u64(&f, 7);
	vocab_put_key(&f, "tokenizer.ggml.model", GGUF_STRING);
	vocab_put_string(&f, "gpt2", 4);
	vocab_put_key(&f, "tokenizer.ggml.pre", GGUF_STRING);
	vocab_put_string(&f, pre, strlen(pre));
	vocab_put_tokens(&f);
	vocab_put_key(&f, "tokenizer.ggml.bos_token_id", GGUF_U32);
	vocab_put_u32(&f, 0);
	vocab_put_key(&f, "tokenizer.ggml.eos_token_id", GGUF_U32);
	vocab_put_u32(&f, 2);
	if (gguf_parse(&g, f.bytes, f.n, f.n, &diag) || tokenizer_new(&t, g, &diag))
		fprintf(stderr, "%s\n", diag.text);
	FUZZ_CHECK(t);
	gguf_free(g);
	return t;
}

#endif
