/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tokenizer on small vocabularies made here: merges against a plain
 * quadratic implementation, special tokens, BOS, bytes, and the work that long
 * words take.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/model/bpe.h"
#include "daemon/model/tokenizer.h"
#include "ipc/base/checked.h"
#include "tests/unit/model/tiny-vocab.h"

static struct tiny_vocab v;

static uint32_t next_random(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(*state >> 33);
}

static struct tokenizer *tokenizer_of(const char *pre)
{
	struct tokenizer_source source = tiny_source(&v, pre);

	return tiny_tokenizer(&source);
}

static struct token_list encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags)
{
	struct token_list l = { 0 };

	assert_int_equal(tokenizer_encode(t, text, n, flags, &l), 0);
	return l;
}

/* Ids up to a -1. */
static void check_ids(const struct tokenizer *t, const char *text, unsigned flags, const int32_t *want)
{
	struct token_list l = encode(t, text, strlen(text), flags);
	size_t n = 0;

	while (want[n] >= 0)
		n++;
	if (l.n != n || (n && memcmp(l.ids, want, n * sizeof(*want)))) {
		for (size_t i = 0; i < l.n; i++)
			print_error("%d ", l.ids[i]);
		fail_msg("\"%s\" with flags %u", text, flags);
	}
	free(l.ids);
}

#define CHECK_IDS(t, text, flags, ...) \
	check_ids(t, text, flags, (const int32_t[]){ __VA_ARGS__ __VA_OPT__(,) - 1 })

/* The bytes of the tokens are the text. */
static void check_lossless(const struct tokenizer *t, const void *text, size_t n, unsigned flags)
{
	struct token_list l = encode(t, text, n, flags);
	const uint8_t *p = text;
	size_t at = 0;

	for (size_t i = 0; i < l.n; i++) {
		size_t k;
		const uint8_t *bytes = tokenizer_bytes(t, l.ids[i], &k);

		assert_true(k > 0 && k <= n - at);
		assert_memory_equal(bytes, p + at, k);
		at += k;
	}
	assert_int_equal(at, n);
	free(l.ids);
}

/* --- merges ----------------------------------------------------------------- */

/* Random merges over the letters a to d; each token is two earlier ones. */
static void random_vocab(uint64_t *seed, size_t n_merges)
{
	char texts[64][40] = { "a", "b", "c", "d" };
	size_t n = 4;

	tiny_init(&v);
	for (size_t tries = 0; n < 4 + n_merges && tries < 1000; tries++) {
		const char *left = texts[next_random(seed) % n], *right = texts[next_random(seed) % n];
		char joined[80], merge[81];
		bool known = false;

		snprintf(joined, sizeof(joined), "%s%s", left, right);
		snprintf(merge, sizeof(merge), "%s %s", left, right);
		for (size_t i = 0; i < n; i++)
			known = known || strcmp(texts[i], joined) == 0;
		if (known || strlen(joined) > 12)
			continue;
		snprintf(texts[n++], sizeof(texts[0]), "%.12s", joined);
		tiny_add(&v, joined, TOKEN_NORMAL);
		tiny_merge(&v, merge);
	}
	/* Some results have a second way to them. */
	for (size_t k = 0; k < n_merges / 2; k++) {
		const char *whole = texts[4 + next_random(seed) % (n - 4)];
		size_t cut = 1 + next_random(seed) % (strlen(whole) - 1);

		for (size_t i = 0; i < n; i++)
			for (size_t j = 0; j < n; j++)
				if (strlen(texts[i]) == cut && memcmp(texts[i], whole, cut) == 0 &&
				    strcmp(texts[j], whole + cut) == 0) {
					char merge[81];

					snprintf(merge, sizeof(merge), "%.39s %.39s", texts[i], texts[j]);
					tiny_merge(&v, merge);
				}
	}
}

/* The definition: of all pairs of neighbours merge the one of lowest rank, leftmost first. */
static size_t merge_by_definition(const char *word, size_t n, struct gguf_string *parts)
{
	for (size_t i = 0; i < n; i++)
		parts[i] = (struct gguf_string){ word + i, 1 };
	for (;;) {
		size_t best = n, best_rank = SIZE_MAX;

		for (size_t i = 0; i + 1 < n; i++) {
			/* The later of two merges of one pair counts. */
			for (size_t rank = v.n_merges; rank-- > 0;) {
				struct gguf_string m = v.merges[rank];

				if (m.n != parts[i].n + 1 + parts[i + 1].n || m.data[parts[i].n] != ' ' ||
				    memcmp(m.data, parts[i].data, parts[i].n) ||
				    memcmp(m.data + parts[i].n + 1, parts[i + 1].data, parts[i + 1].n))
					continue;
				if (rank < best_rank) {
					best = i;
					best_rank = rank;
				}
				break;
			}
		}
		if (best == n)
			return n;
		parts[best].n += parts[best + 1].n;
		memmove(parts + best + 1, parts + best + 2, (n - best - 2) * sizeof(*parts));
		n--;
	}
}

static void merges_by_definition(void **state)
{
	uint64_t seed = 3;

	for (int round = 0; round < 200; round++) {
		struct tokenizer *t;

		random_vocab(&seed, 3 + next_random(&seed) % 30);
		t = tokenizer_of("gpt-2");
		for (int k = 0; k < 40; k++) {
			char word[41] = "";
			size_t n = 1 + next_random(&seed) % 40, n_parts;
			struct gguf_string parts[41];
			struct token_list l;

			for (size_t i = 0; i < n; i++)
				word[i] = (char)('a' + next_random(&seed) % 4);
			n_parts = merge_by_definition(word, n, parts);
			l = encode(t, word, n, 0);
			assert_int_equal(l.n, n_parts);
			for (size_t i = 0; i < n_parts; i++) {
				size_t n_bytes;
				const uint8_t *bytes = tokenizer_bytes(t, l.ids[i], &n_bytes);

				assert_int_equal(n_bytes, parts[i].n);
				assert_memory_equal(bytes, parts[i].data, n_bytes);
			}
			free(l.ids);
		}
		tokenizer_free(t);
	}
}

/* Heap operations for one word of n bytes. */
static uint64_t work_of(const struct bpe *b, const struct vocab *vocab, const char *word, size_t n)
{
	struct bpe_work w = BPE_WORK_NULL;
	struct token_list l = { 0 };
	uint64_t n_steps;
	size_t n_bytes = 0;

	assert_int_equal(bpe_encode(b, vocab, (const uint8_t *)word, n, &w, &l), 0);
	for (size_t i = 0; i < l.n; i++)
		n_bytes += vocab->tokens[l.ids[i]].n_bytes;
	assert_int_equal(n_bytes, n);
	n_steps = w.queue.n_steps;
	free(l.ids);
	bpe_work_deinit(&w);
	return n_steps;
}

/* 10 kB to 1 MB: work grows by n log n, not faster. */
static void work_of_long_words(void **state)
{
	static const char *const units[] = {
		"a", "ab", "abc", "aab", "abcd", "aaaaaaab", "d", "abcdabcdabcd"
	};
	size_t n_max = 1000000;
	char *word = malloc(n_max);
	struct vocab vocab;
	struct bpe b;
	uint64_t seed = 5;

	assert_non_null(word);
	random_vocab(&seed, 40);
	tiny_add(&v, "aa", TOKEN_NORMAL);
	tiny_merge(&v, "a a");
	if (vocab_init(&vocab, VOCAB_BYTE_LEVEL, v.tokens, v.types, v.n, NULL)) {
		/* "aa" was drawn already. */
		v.n--;
		v.n_merges--;
		assert_int_equal(vocab_init(&vocab, VOCAB_BYTE_LEVEL, v.tokens, v.types, v.n, NULL), 0);
	}
	assert_int_equal(bpe_init(&b, &vocab, v.merges, v.n_merges, false, NULL), 0);
	for (size_t u = 0; u <= ARRAY_SIZE(units); u++)
		for (size_t n = 10000; n <= n_max; n *= 10) {
			uint64_t log2_n = 64 - (uint64_t)__builtin_clzll(n);

			for (size_t i = 0; i < n; i++)
				word[i] = u < ARRAY_SIZE(units) ? units[u][i % strlen(units[u])] :
								  (char)('a' + next_random(&seed) % 4);
			/* At most 3 n entries, each put in and taken out. */
			assert_in_range(work_of(&b, &vocab, word, n), 0, 6 * n * (log2_n + 1));
		}
	bpe_deinit(&b);
	vocab_deinit(&vocab);
	free(word);
}

/* Llama 3: a word that is a token is one, though no merges lead to it. */
static void whole_words(void **state)
{
	struct tokenizer *t;
	int32_t abc, long_one;
	char name[301];

	tiny_init(&v);
	abc = tiny_add(&v, "abc", TOKEN_NORMAL);
	memset(name, 'x', 300);
	name[300] = 0;
	long_one = tiny_add(&v, name, TOKEN_NORMAL);
	tiny_add(&v, "bcd", TOKEN_CONTROL);
	t = tokenizer_of("llama-bpe");
	CHECK_IDS(t, "abc", 0, abc);
	CHECK_IDS(t, "abcd", 0, 'a', 'b', 'c', 'd');
	CHECK_IDS(t, "bcd", 0, 'b', 'c', 'd');
	CHECK_IDS(t, name, 0, long_one);
	tokenizer_free(t);
	t = tokenizer_of("gpt-2");
	CHECK_IDS(t, "abc", 0, 'a', 'b', 'c');
	tokenizer_free(t);
}

/* --- special tokens ------------------------------------------------------------ */

static void special_tokens(void **state)
{
	struct tokenizer *t;
	int32_t end, end2, user, user2, spaces;

	tiny_init(&v);
	end = tiny_add(&v, "<|end|>", TOKEN_CONTROL);
	end2 = tiny_add(&v, "<|end|>x", TOKEN_CONTROL);
	user = tiny_add(&v, "<u>", TOKEN_USER_DEFINED);
	user2 = tiny_add(&v, "<u><|end|>", TOKEN_USER_DEFINED);
	spaces = tiny_add(&v, "   ", TOKEN_USER_DEFINED);
	t = tokenizer_of("gpt-2");
	CHECK_IDS(t, "a<|end|>b", TOKENIZE_SPECIAL, 'a', end, 'b');
	CHECK_IDS(t, "<|end|>", 0, '<', '|', 'e', 'n', 'd', '|', '>');
	/* Leftmost, then longest. */
	CHECK_IDS(t, "<|end|>x<|end|>", TOKENIZE_SPECIAL, end2, end);
	CHECK_IDS(t, "<u><|end|>", TOKENIZE_SPECIAL, user2);
	CHECK_IDS(t, "<u><|end|x", TOKENIZE_SPECIAL, user, '<', '|', 'e', 'n', 'd', '|', 'x');
	/* User-defined tokens always. */
	CHECK_IDS(t, "<u><u>", 0, user, user);
	CHECK_IDS(t, "<u><|end|>", 0, user2);
	CHECK_IDS(t, "a     b", 0, 'a', spaces, ' ', ' ', 'b');
	CHECK_IDS(t, "<|end<|end|>", TOKENIZE_SPECIAL, '<', '|', 'e', 'n', 'd', end);
	CHECK_IDS(t, "", TOKENIZE_SPECIAL);
	assert_true(tokenizer_is_control(t, end));
	assert_false(tokenizer_is_control(t, user));
	assert_false(tokenizer_is_control(t, 'a'));
	assert_false(tokenizer_is_control(t, -1));
	assert_false(tokenizer_is_control(t, 100000));
	assert_int_equal(tokenizer_control_id(t, "<|end|>"), end);
	assert_int_equal(tokenizer_control_id(t, "<u>"), -1);
	assert_int_equal(tokenizer_control_id(t, "<|"), -1);
	assert_int_equal(tokenizer_control_id(t, ""), -1);
	tokenizer_free(t);
}

/* Against looking for every token at every place. */
static void special_tokens_by_definition(void **state)
{
	uint64_t seed = 11;

	for (int round = 0; round < 300; round++) {
		size_t n_special = 1 + next_random(&seed) % 8;
		struct tokenizer *t;

		tiny_init(&v);
		for (size_t i = 0; i < n_special; i++) {
			char name[8] = "";
			size_t n = 2 + next_random(&seed) % 5;
			bool known = false;

			for (size_t k = 0; k < n; k++)
				name[k] = (char)('a' + next_random(&seed) % 3);
			for (size_t k = 256; k < v.n; k++)
				known = known ||
					(v.tokens[k].n == n && memcmp(v.tokens[k].data, name, n) == 0);
			if (!known)
				tiny_add(&v, name,
					 next_random(&seed) % 2 ? TOKEN_CONTROL : TOKEN_USER_DEFINED);
		}
		t = tokenizer_of("gpt-2");
		for (int k = 0; k < 40; k++) {
			unsigned flags = k % 2 ? TOKENIZE_SPECIAL : 0;
			char text[33] = "";
			int32_t want[34];
			size_t n = next_random(&seed) % 32, n_want = 0;

			for (size_t i = 0; i < n; i++)
				text[i] = (char)('a' + next_random(&seed) % 4);
			for (size_t i = 0; i < n;) {
				size_t best = 0, best_n = 1;

				for (size_t s = 256; s < v.n; s++)
					if (v.tokens[s].n <= n - i && v.tokens[s].n > best_n &&
					    memcmp(v.tokens[s].data, text + i, v.tokens[s].n) == 0 &&
					    (flags || v.types[s] == TOKEN_USER_DEFINED)) {
						best = s;
						best_n = v.tokens[s].n;
					}
				want[n_want++] = best ? (int32_t)best : text[i];
				i += best_n;
			}
			want[n_want] = -1;
			check_ids(t, text, flags, want);
		}
		tokenizer_free(t);
	}
}

/* No vocabulary makes ordinary text a control token. */
static void no_control_token_from_text(void **state)
{
	static const char *const pre[] = { "smollm", "gpt-2", "llama-bpe", "qwen2", "default" };

	tiny_init(&v);
	tiny_add(&v, "ab", TOKEN_CONTROL);
	tiny_add(&v, "bc", TOKEN_NORMAL);
	tiny_add(&v, "abc", TOKEN_UNKNOWN);
	tiny_add(&v, "cd", TOKEN_NORMAL);
	tiny_merge(&v, "a b");
	tiny_merge(&v, "b c");
	tiny_merge(&v, "ab c");
	tiny_merge(&v, "a bc");
	tiny_merge(&v, "c d");
	v.types['x'] = TOKEN_CONTROL;
	for (size_t i = 0; i < ARRAY_SIZE(pre); i++) {
		struct tokenizer_source source = tiny_source(&v, pre[i]);
		struct tokenizer *t;

		/* A role makes a control token, whatever the type. */
		source.eos = 259;
		t = tiny_tokenizer(&source);
		CHECK_IDS(t, "abc", 0, 'a', 257);
		CHECK_IDS(t, "ab", 0, 'a', 'b');
		CHECK_IDS(t, "cd", 0, 'c', 'd');
		/* A byte without a token is left out. */
		CHECK_IDS(t, "axb", 0, 'a', 'b');
		CHECK_IDS(t, "abcxcd", TOKENIZE_SPECIAL, 258, 'x', 259);
		tokenizer_free(t);
	}
}

/* A megabyte of openings that never close, and of tokens side by side. */
static void many_openings(void **state)
{
	static const char *const units[] = { "<|", "<", "<|end|", "<|end|>", "<u", "<u>" };
	size_t n_max = 1000000;
	char *text = malloc(n_max);
	struct tokenizer *t;

	assert_non_null(text);
	tiny_init(&v);
	tiny_add(&v, "<|end|>", TOKEN_CONTROL);
	tiny_add(&v, "<u>", TOKEN_USER_DEFINED);
	t = tokenizer_of("gpt-2");
	for (size_t u = 0; u < ARRAY_SIZE(units); u++) {
		for (size_t i = 0; i < n_max; i++)
			text[i] = units[u][i % strlen(units[u])];
		check_lossless(t, text, n_max, TOKENIZE_SPECIAL);
	}
	tokenizer_free(t);
	free(text);
}

/* --- BOS, end of generation ------------------------------------------------------ */

static void bos(void **state)
{
	struct tokenizer_source source;
	struct tokenizer *t;
	int32_t id;

	tiny_init(&v);
	id = tiny_add(&v, "<s>", TOKEN_CONTROL);
	for (int add = -1; add <= 1; add++)
		for (int llama = 0; llama <= 1; llama++) {
			bool want = add < 0 ? llama : add;

			source = tiny_source(&v, llama ? "llama-bpe" : "gpt-2");
			source.bos = id;
			source.add_bos = add;
			t = tiny_tokenizer(&source);
			assert_int_equal(tokenizer_bos(t), id);
			assert_int_equal(tokenizer_add_bos(t), want);
			CHECK_IDS(t, "a", 0, 'a');
			if (want) {
				CHECK_IDS(t, "a", TOKENIZE_BOS, id, 'a');
				CHECK_IDS(t, "", TOKENIZE_BOS, id);
				CHECK_IDS(t, "<s>a", TOKENIZE_BOS | TOKENIZE_SPECIAL, id, 'a');
				CHECK_IDS(t, "<s>", TOKENIZE_BOS | TOKENIZE_SPECIAL, id);
				CHECK_IDS(t, "a<s>", TOKENIZE_BOS | TOKENIZE_SPECIAL, id, 'a', id);
				CHECK_IDS(t, "<s>a", TOKENIZE_BOS, id, '<', 's', '>', 'a');
			} else {
				CHECK_IDS(t, "a", TOKENIZE_BOS, 'a');
				CHECK_IDS(t, "<s>a", TOKENIZE_BOS | TOKENIZE_SPECIAL, id, 'a');
			}
			tokenizer_free(t);
		}
	/* Asked for, but there is none. */
	source = tiny_source(&v, "gpt-2");
	source.add_bos = 1;
	t = tiny_tokenizer(&source);
	assert_int_equal(tokenizer_bos(t), -1);
	CHECK_IDS(t, "a", TOKENIZE_BOS, 'a');
	tokenizer_free(t);
}

static void appends(void **state)
{
	struct token_list l = { 0 };
	struct tokenizer_source source;
	struct tokenizer *t;

	tiny_init(&v);
	source = tiny_source(&v, "gpt-2");
	source.bos = tiny_add(&v, "<s>", TOKEN_CONTROL);
	source.n_tokens = v.n;
	source.add_bos = 1;
	t = tiny_tokenizer(&source);
	assert_int_equal(token_list_push(&l, source.bos), 0);
	assert_int_equal(tokenizer_encode(t, "ab", 2, TOKENIZE_BOS, &l), 0);
	assert_int_equal(l.n, 4);
	assert_int_equal(l.ids[1], source.bos);
	assert_int_equal(l.ids[3], 'b');
	/* Too long: refused before a byte is read, what there was stays. */
	assert_int_equal(tokenizer_encode(t, "", (size_t)TOKENIZER_MAX_TEXT + 1, 0, &l), -EINVAL);
	assert_int_equal(l.n, 4);
	free(l.ids);
	tokenizer_free(t);
}

static void end_of_generation(void **state)
{
	struct tokenizer_source source;
	struct tokenizer *t;
	int32_t eos, eot, eom, im_end, other, normal;

	tiny_init(&v);
	eos = tiny_add(&v, "EOS", TOKEN_CONTROL);
	eot = tiny_add(&v, "EOT!", TOKEN_CONTROL);
	eom = tiny_add(&v, "EOM", TOKEN_NORMAL);
	im_end = tiny_add(&v, "<|im_end|>", TOKEN_CONTROL);
	other = tiny_add(&v, "<|im_start|>", TOKEN_CONTROL);
	normal = tiny_add(&v, "<|eot_id|>", TOKEN_NORMAL);
	source = tiny_source(&v, "gpt-2");
	source.eos = eos;
	source.eot = eot;
	source.eom = eom;
	t = tiny_tokenizer(&source);
	assert_true(tokenizer_is_eog(t, eos));
	assert_true(tokenizer_is_eog(t, eot));
	assert_true(tokenizer_is_eog(t, eom));
	assert_true(tokenizer_is_eog(t, im_end));
	assert_false(tokenizer_is_eog(t, other));
	assert_false(tokenizer_is_eog(t, normal));
	assert_false(tokenizer_is_eog(t, 'a'));
	assert_false(tokenizer_is_eog(t, -1));
	assert_int_equal(tokenizer_eos(t), eos);
	assert_int_equal(tokenizer_bos(t), -1);
	assert_int_equal(tokenizer_n_vocab(t), v.n);
	tokenizer_free(t);
}

/* --- bytes ------------------------------------------------------------------------ */

static void ill_formed_text(void **state)
{
	struct tokenizer *t;
	int32_t e_acute, user;
	uint64_t seed = 17;

	tiny_init(&v);
	e_acute = tiny_add(&v, "\xc3\x83\xc2\xa9", TOKEN_NORMAL);	/* the bytes c3 a9 in the alphabet */
	tiny_merge(&v, "\xc3\x83 \xc2\xa9");
	user = tiny_add(&v, "\xe2\x82", TOKEN_USER_DEFINED);		/* hostile: half a character */
	t = tokenizer_of("gpt-2");
	CHECK_IDS(t, "\xc3\xa9", 0, e_acute);
	CHECK_IDS(t, "\xc3", 0, 0xc3);
	CHECK_IDS(t, "a\xff" "b", 0, 'a', 0xff, 'b');
	/* The e1 is cut off, the c3 a9 behind it is whole. */
	CHECK_IDS(t, "\xe1\xc3\xa9", 0, 0xe1, e_acute);
	CHECK_IDS(t, "\xed\xa0\x80", 0, 0xed, 0xa0, 0x80);
	CHECK_IDS(t, "\xe2\x82\xac", 0, user, 0xac);
	for (int b = 0; b < 256; b++) {
		uint8_t text[3] = { 'x', (uint8_t)b, 'y' };

		check_lossless(t, text + 1, 1, 0);
		check_lossless(t, text, 3, 0);
	}
	for (int k = 0; k < 3000; k++) {
		uint8_t text[64];
		size_t n = next_random(&seed) % 64;

		for (size_t i = 0; i < n; i++)
			text[i] = (uint8_t)(next_random(&seed) % 3 ? next_random(&seed)
								   : 0x80 | next_random(&seed) % 64);
		check_lossless(t, text, n, k % 2);
	}
	tokenizer_free(t);
}

static void bytes_of_tokens(void **state)
{
	struct tokenizer *t;
	int32_t space_a, control, user, plain, mixed, empty;
	size_t n;

	tiny_init(&v);
	space_a = tiny_add(&v, "\xc4\xa0" "a", TOKEN_NORMAL);		/* U+0120 is the space */
	control = tiny_add(&v, "<\xc4\xa0>", TOKEN_CONTROL);
	user = tiny_add(&v, " \xc4\xa0", TOKEN_USER_DEFINED);
	plain = tiny_add(&v, "\xe4\xb8\xad", TOKEN_NORMAL);		/* not of the alphabet */
	mixed = tiny_add(&v, "\xc4\xa0\xe4\xb8\xad", TOKEN_NORMAL);
	empty = tiny_add(&v, "", TOKEN_UNUSED);
	tiny_add(&v, "", TOKEN_UNUSED);
	t = tokenizer_of("gpt-2");
	for (int b = 0; b < 256; b++) {
		const uint8_t *bytes = tokenizer_bytes(t, b, &n);

		assert_int_equal(n, 1);
		assert_int_equal(bytes[0], b);
	}
	assert_memory_equal(tokenizer_bytes(t, space_a, &n), " a", 2);
	assert_int_equal(n, 2);
	assert_memory_equal(tokenizer_bytes(t, control, &n), "<\xc4\xa0>", 4);
	assert_int_equal(n, 4);
	assert_memory_equal(tokenizer_bytes(t, user, &n), " \xc4\xa0", 3);
	assert_int_equal(n, 3);
	assert_memory_equal(tokenizer_bytes(t, plain, &n), "\xe4\xb8\xad", 3);
	assert_int_equal(n, 3);
	assert_memory_equal(tokenizer_bytes(t, mixed, &n), "\xc4\xa0\xe4\xb8\xad", 5);
	assert_int_equal(n, 5);
	tokenizer_bytes(t, empty, &n);
	assert_int_equal(n, 0);
	assert_non_null(tokenizer_bytes(t, -1, &n));
	assert_int_equal(n, 0);
	n = 1;
	tokenizer_bytes(t, (int32_t)tokenizer_n_vocab(t), &n);
	assert_int_equal(n, 0);
	tokenizer_free(t);
}

/* --- sources that are refused ------------------------------------------------------- */

static void check_refused(const struct tokenizer_source *source, const char *field, const char *what)
{
	struct tokenizer *t = NULL;
	struct diag diag = DIAG_NULL;

	assert_int_equal(tokenizer_new_from(&t, source, &diag), -EINVAL);
	assert_null(t);
	if (!strstr(diag.text, field) || !strstr(diag.text, what))
		fail_msg("\"%s\" does not name %s and %s", diag.text, field, what);
	/* And without anyone to tell. */
	assert_int_equal(tokenizer_new_from(&t, source, NULL), -EINVAL);
}

static void refused_tokens(void **state)
{
	struct tokenizer_source source;
	char name[300];

	tiny_init(&v);
	source = tiny_source(&v, "gpt-2");
	source.n_tokens = 0;
	check_refused(&source, "tokenizer.ggml.tokens", "0 tokens");
	source.n_tokens = VOCAB_MAX_TOKENS + 1;
	check_refused(&source, "tokenizer.ggml.tokens", "4194305");
	tiny_add(&v, "twice", TOKEN_NORMAL);
	tiny_add(&v, "twice", TOKEN_CONTROL);
	source = tiny_source(&v, "gpt-2");
	check_refused(&source, "tokenizer.ggml.tokens", "256 and 257");
	source.n_tokens--;
	v.types[7] = 7;
	check_refused(&source, "tokenizer.ggml.token_type", "7");
	v.types[7] = -1;
	check_refused(&source, "tokenizer.ggml.token_type", "-1");
	v.types[7] = TOKEN_NORMAL;
	source.pre = (struct gguf_string){ "nobody", 6 };
	check_refused(&source, "tokenizer.ggml.pre", "nobody");
	source = tiny_source(&v, "gpt-2");
	source.n_tokens = 256;
	source.bos = 256;
	check_refused(&source, "tokenizer.ggml.bos_token_id", "256");
	source.bos = -2;
	check_refused(&source, "tokenizer.ggml.bos_token_id", "-2");
	source.bos = -1;
	source.eos = INT32_MAX;
	check_refused(&source, "tokenizer.ggml.eos_token_id", "2147483647");
	source.eos = -1;
	source.eot = 300;
	check_refused(&source, "tokenizer.ggml.eot_token_id", "300");
	source.eot = -1;
	source.eom = 300;
	check_refused(&source, "tokenizer.ggml.eom_token_id", "300");
	tiny_init(&v);
	memset(name, 'n', 299);
	name[299] = 0;
	tiny_add(&v, name, TOKEN_CONTROL);
	source = tiny_source(&v, "gpt-2");
	check_refused(&source, "tokenizer.ggml.tokens", "299");
}

static void refused_merges(void **state)
{
	static const char *const wrong[] = { "",   " ",    "a",    "ab",    " a", "a ",
					     "  ", "a zz", "zz a", "a b c", "a c" };

	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		struct tokenizer_source source;
		char quoted[16];

		tiny_init(&v);
		tiny_add(&v, "ab", TOKEN_NORMAL);
		tiny_merge(&v, "a b");
		tiny_merge(&v, wrong[i]);
		source = tiny_source(&v, "gpt-2");
		snprintf(quoted, sizeof(quoted), "1, \"%s\"", wrong[i]);
		check_refused(&source, "tokenizer.ggml.merges", quoted);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(merges_by_definition),
		cmocka_unit_test(work_of_long_words),
		cmocka_unit_test(whole_words),
		cmocka_unit_test(special_tokens),
		cmocka_unit_test(special_tokens_by_definition),
		cmocka_unit_test(no_control_token_from_text),
		cmocka_unit_test(many_openings),
		cmocka_unit_test(bos),
		cmocka_unit_test(appends),
		cmocka_unit_test(end_of_generation),
		cmocka_unit_test(ill_formed_text),
		cmocka_unit_test(bytes_of_tokens),
		cmocka_unit_test(refused_tokens),
		cmocka_unit_test(refused_merges),
	};

	return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
