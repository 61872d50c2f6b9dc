/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text to ids and back.  Every byte has a token here, so the bytes of the ids are
 * the text, whatever the text; what is one word is compared with a naive merger.
 *
 * Input: one byte that chooses the pre-tokenizer and the flags, then the text.
 */
#include <stdbool.h>

#include "tests/fuzz/vocab-file.h"

static const char *const pre_tokenizers[] = { "smollm", "gpt-2", "llama-bpe", "qwen2", "default" };

static const struct tokenizer *tokenizer_of(size_t i)
{
	static struct tokenizer *made[ARRAY_SIZE(pre_tokenizers)];

	if (!made[i])
		made[i] = vocab_tokenizer(pre_tokenizers[i]);
	return made[i];
}

static void check_ids(const struct tokenizer *t, const struct token_list *ids, unsigned flags, const uint8_t *text,
		      size_t n)
{
	size_t at = 0, first = 0, n_bytes;

	if ((flags & TOKENIZE_BOS) && tokenizer_add_bos(t)) {
		FUZZ_CHECK(ids->n && ids->ids[0] == tokenizer_bos(t));
		/* Not doubled: one that the text brings is the same one. */
		tokenizer_bytes(t, ids->ids[0], &n_bytes);
		if (!((flags & TOKENIZE_SPECIAL) && n >= n_bytes &&
		      memcmp(text, tokenizer_bytes(t, ids->ids[0], &n_bytes), n_bytes) == 0))
			first = 1;
	}
	for (size_t i = first; i < ids->n; i++) {
		const uint8_t *bytes = tokenizer_bytes(t, ids->ids[i], &n_bytes);

		FUZZ_CHECK(ids->ids[i] >= 0 && ids->ids[i] < VOCAB_SIZE);
		FUZZ_CHECK((flags & TOKENIZE_SPECIAL) || !tokenizer_is_control(t, ids->ids[i]));
		FUZZ_CHECK(n_bytes && n_bytes <= n - at && memcmp(bytes, text + at, n_bytes) == 0);
		at += n_bytes;
	}
	FUZZ_CHECK(at == n);
}

/* The token that two merge to, and the rank of that; -1 if they don't. */
static int32_t merge_of(const struct tokenizer *t, int32_t left, int32_t right)
{
	size_t n_left, n_right;
	const uint8_t *a = tokenizer_bytes(t, left, &n_left), *b = tokenizer_bytes(t, right, &n_right);

	for (size_t rank = 0; rank < ARRAY_SIZE(vocab_merges); rank++) {
		const char *m = vocab_merges[rank];
		size_t n = strcspn(m, " ");

		if (n == n_left && memcmp(m, a, n) == 0 && strlen(m + n + 1) == n_right &&
		    memcmp(m + n + 1, b, n_right) == 0)
			return VOCAB_FIRST_MERGE + (int32_t)rank;
	}
	return -1;
}

/* Letters only: one word, in an alphabet where letters are themselves. */
static bool is_word(const uint8_t *text, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (text[i] < 'a' || text[i] > 'z')
			return false;
	return n > 0 && n <= 256;
}

/* The pair of lowest rank first, leftmost first, until there is none. */
static void check_word(const struct tokenizer *t, const struct token_list *ids, const uint8_t *text, size_t n)
{
	int32_t word[256];

	for (size_t i = 0; i < n; i++)
		word[i] = VOCAB_FIRST_BYTE + text[i];
	for (;;) {
		int32_t best = INT32_MAX;
		size_t where = 0;

		for (size_t i = 0; i + 1 < n; i++) {
			int32_t merged = merge_of(t, word[i], word[i + 1]);

			if (merged >= 0 && merged < best) {
				best = merged;
				where = i;
			}
		}
		if (best == INT32_MAX)
			break;
		word[where] = best;
		memmove(word + where + 1, word + where + 2, (n - where - 2) * sizeof(*word));
		n--;
	}
	FUZZ_CHECK(ids->n == n && memcmp(ids->ids, word, n * sizeof(*word)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct fuzz_input in = { data, n };
	uint8_t choice = fuzz_u8(&in);
	const struct tokenizer *t = tokenizer_of((choice >> 2) % ARRAY_SIZE(pre_tokenizers));
	unsigned flags = (choice & 1 ? TOKENIZE_SPECIAL : 0) | (choice & 2 ? TOKENIZE_BOS : 0);
	struct token_list ids = { 0 };
	uint8_t *text = fuzz_copy(in.data, in.n);

	FUZZ_CHECK(tokenizer_encode(t, (const char *)text, in.n, flags, &ids) == 0);
	check_ids(t, &ids, flags, text, in.n);
	/* llama-bpe takes words that are tokens whole, whatever the merges say. */
	if (!(flags & TOKENIZE_BOS) && (choice >> 2) % ARRAY_SIZE(pre_tokenizers) != 2 && is_word(text, in.n))
		check_word(t, &ids, text, in.n);
	free(ids.ids);
	free(text);
	return 0;
}
