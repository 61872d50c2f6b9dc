/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text to ids and back with a SentencePiece vocabulary that has every byte: the bytes of the
 * ids are the text, with a space for each U+2581; a stretch of letters is compared with a naive
 * merger.
 *
 * Input: one byte of flags, then the text.
 */
#include <stdbool.h>

#include "tests/fuzz/vocab-file.h"

#define SPACE "\342\226\201"

/* By score, the best first; single characters are the last. */
static const char *const pieces[] = {
	(SPACE "the"), "the", "he", (SPACE "t"), "th", "abab", "ab", "ing", "in", "aaaa", "aa",
	(SPACE SPACE SPACE SPACE), (SPACE SPACE), "ba", "\303\251t", ("n" SPACE), "bab", SPACE,
	"a", "b", "c", "d", "e", "g", "h", "i", "n", "t", "x", "\303\251", "1", "2", "\344\270\226",
};

static const char *const specials[] = { "<unk>", "<s>", "</s>", "<user thing>", "<end_of_turn>" };

#define FIRST_BYTE ((int32_t)ARRAY_SIZE(specials))
#define FIRST_PIECE (FIRST_BYTE + 256)
#define N_TOKENS (FIRST_PIECE + (int32_t)ARRAY_SIZE(pieces))
/* Pieces that score alike: the leftmost pair wins. */
#define SCORE(i) ((float)(-((i) >> 1)))

static void put_tokens(struct vocab_file *f)
{
	static const uint32_t types[] = { 2, 3, 3, 4, 3 };
	char name[8];

	vocab_put_array(f, "tokenizer.ggml.tokens", GGUF_STRING, N_TOKENS);
	for (size_t i = 0; i < ARRAY_SIZE(specials); i++)
		vocab_put_string(f, specials[i], strlen(specials[i]));
	for (unsigned b = 0; b < 256; b++) {
		snprintf(name, sizeof(name), "<0x%02X>", b);
		vocab_put_string(f, name, 6);
	}
	for (size_t i = 0; i < ARRAY_SIZE(pieces); i++)
		vocab_put_string(f, pieces[i], strlen(pieces[i]));
	vocab_put_array(f, "tokenizer.ggml.token_type", GGUF_I32, N_TOKENS);
	for (int32_t i = 0; i < N_TOKENS; i++)
		vocab_put_u32(f, i < FIRST_BYTE ? types[i] : i < FIRST_PIECE ? 6 : 1);
	vocab_put_array(f, "tokenizer.ggml.scores", GGUF_F32, N_TOKENS);
	for (int32_t i = 0; i < N_TOKENS; i++) {
		float score = i < FIRST_PIECE ? 0 : SCORE(i - FIRST_PIECE);

		vocab_put(f, &score, sizeof(score));
	}
}

static struct tokenizer *new_tokenizer(bool add_space, bool collapse)
{
	static struct vocab_file f;
	struct tokenizer *t = NULL;
	struct gguf *g = NULL;
	struct diag diag = DIAG_NULL;
	uint8_t flag = add_space;

	f.n = 0;
	vocab_put(&f, "GGUF\3\0\0\0", 8);
	vocab_put_u64(&f, 0);
	vocab_put_u64(&f, 8);
	vocab_put_key(&f, "tokenizer.ggml.model", GGUF_STRING);
	vocab_put_string(&f, "llama", 5);
	put_tokens(&f);
	vocab_put_key(&f, "tokenizer.ggml.bos_token_id", GGUF_U32);
	vocab_put_u32(&f, 1);
	vocab_put_key(&f, "tokenizer.ggml.eos_token_id", GGUF_U32);
	vocab_put_u32(&f, 2);
	vocab_put_key(&f, "tokenizer.ggml.add_space_prefix", GGUF_BOOL);
	vocab_put(&f, &flag, 1);
	flag = collapse;
	vocab_put_key(&f, "tokenizer.ggml.remove_extra_whitespaces", GGUF_BOOL);
	vocab_put(&f, &flag, 1);
	if (gguf_parse(&g, f.bytes, f.n, f.n, &diag) || tokenizer_new(&t, g, &diag))
		fprintf(stderr, "%s\n", diag.text);
	FUZZ_CHECK(t);
	gguf_free(g);
	return t;
}

/* The text as it comes back: a space for U+2581. */
static size_t spaced(const uint8_t *text, size_t n, uint8_t *out)
{
	size_t n_out = 0;

	for (size_t i = 0; i < n; n_out++) {
		bool space = n - i >= 3 && memcmp(text + i, SPACE, 3) == 0;

		out[n_out] = space ? ' ' : text[i];
		i += space ? 3 : 1;
	}
	return n_out;
}

static void check_ids(const struct tokenizer *t, const struct token_list *ids, unsigned flags, const uint8_t *text,
		      size_t n, bool exact)
{
	size_t at = 0, n_want, first = 0;
	uint8_t *want = malloc(n + 1);

	FUZZ_CHECK(want);
	n_want = spaced(text, n, want);
	if ((flags & TOKENIZE_BOS) && tokenizer_add_bos(t)) {
		FUZZ_CHECK(ids->n && ids->ids[0] == tokenizer_bos(t));
		first = !((flags & TOKENIZE_SPECIAL) && n >= 3 && memcmp(text, "<s>", 3) == 0);
	}
	for (size_t i = first; i < ids->n; i++) {
		size_t n_bytes;
		const uint8_t *bytes;

		FUZZ_CHECK(ids->ids[i] >= 0 && ids->ids[i] < N_TOKENS);
		FUZZ_CHECK((flags & TOKENIZE_SPECIAL) || !tokenizer_is_control(t, ids->ids[i]));
		bytes = tokenizer_bytes_after(t, i ? ids->ids[i - 1] : -1, ids->ids[i], &n_bytes);
		if (!exact)
			continue;
		FUZZ_CHECK(n_bytes <= n_want - at && (!n_bytes || memcmp(bytes, want + at, n_bytes) == 0));
		at += n_bytes;
	}
	FUZZ_CHECK(!exact || at == n_want);
	free(want);
}

/* Letters that are all pieces. */
static bool is_plain(const uint8_t *text, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!text[i] || !strchr("abcdeghintx", text[i]))
			return false;
	return n > 0 && n <= 200;
}

static int32_t find_piece(const char *text, size_t n)
{
	for (size_t i = 0; i < ARRAY_SIZE(pieces); i++)
		if (strlen(pieces[i]) == n && memcmp(pieces[i], text, n) == 0)
			return (int32_t)i;
	return -1;
}

/* The pair that together scores highest first, leftmost of equals, until there is none. */
static void check_merges(const struct token_list *ids, const uint8_t *text, size_t n)
{
	size_t start[201];

	for (size_t i = 0; i <= n; i++)
		start[i] = i;
	for (size_t best = 0; best != SIZE_MAX;) {
		float score = 0;

		best = SIZE_MAX;
		for (size_t i = 0; i + 2 <= n; i++) {
			int32_t piece = find_piece((const char *)text + start[i], start[i + 2] - start[i]);

			if (piece >= 0 && (best == SIZE_MAX || SCORE(piece) > score)) {
				best = i;
				score = SCORE(piece);
			}
		}
		if (best != SIZE_MAX) {
			memmove(start + best + 1, start + best + 2, (n - best - 1) * sizeof(*start));
			n--;
		}
	}
	FUZZ_CHECK(ids->n == n);
	for (size_t i = 0; i < n; i++)
		FUZZ_CHECK(ids->ids[i] ==
			   FIRST_PIECE + find_piece((const char *)text + start[i], start[i + 1] - start[i]));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static struct tokenizer *tokenizers[4];
	struct fuzz_input in = { data, n };
	uint8_t choice = fuzz_u8(&in);
	unsigned which = choice >> 2 & 3, flags = (choice & 1 ? TOKENIZE_SPECIAL : 0) | (choice & 2 ? TOKENIZE_BOS : 0);
	struct token_list ids = { 0 };
	uint8_t *text = fuzz_copy(in.data, in.n);

	if (!tokenizers[which])
		tokenizers[which] = new_tokenizer(which & 1, which & 2);
	FUZZ_CHECK(tokenizer_encode(tokenizers[which], (const char *)text, in.n, flags, &ids) == 0);
	check_ids(tokenizers[which], &ids, flags, text, in.n, !(which & 2));
	if (!(flags & TOKENIZE_BOS) && which == 0 && is_plain(text, in.n))
		check_merges(&ids, text, in.n);
	free(ids.ids);
	free(text);
	return 0;
}
