/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words against those of `tokenizers` (recorded), against the plain patterns
 * that the possessive ones stand for, and over long runs, where a match that is
 * not linear goes beyond its limit and fails.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/model/pretokenizer.h"
#include "ipc/base/checked.h"
#include "ipc/base/utf8.h"
#include "tests/unit/model/oracle-file.h"

static const char *const names[] = { "smollm", "gpt-2", "llama-bpe", "qwen2", "default" };

#define N_NAMES ARRAY_SIZE(names)

/* As the models' tokenizer.json and llama.cpp have them. */
#define PLAIN_GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define PLAIN_LLAMA3(NUMBER) \
	"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" NUMBER \
	"| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
static const char *const plain[N_NAMES][4] = {
	{ "\\p{N}", PLAIN_GPT2 },
	{ PLAIN_GPT2 },
	{ PLAIN_LLAMA3("\\p{N}{1,3}") },
	{ PLAIN_LLAMA3("\\p{N}") },
	{ "[\\p{P}\\$\\+<=>\\^~\\|]+", PLAIN_GPT2, "\\p{N}+", "[0-9][0-9][0-9]" },
};

struct words {
	const uint8_t *next;	/* where the next word has to begin */
	size_t *lengths;
	size_t n, max;		/* those beyond max are counted, not kept */
};

static int take_word(void *arg, const uint8_t *word, size_t n)
{
	struct words *w = arg;

	assert_true(n > 0);
	assert_ptr_equal(word, w->next);
	w->next = word + n;
	if (w->n < w->max)
		w->lengths[w->n] = n;
	w->n++;
	return 0;
}

static struct pretokenizer *new_by_name(const char *name)
{
	struct pretokenizer *p;
	struct diag diag = DIAG_NULL;

	if (pretokenizer_new(&p, name, strlen(name), &diag))
		fail_msg("%s", diag.text);
	return p;
}

static size_t split(const struct pretokenizer *p, const uint8_t *text, size_t n, size_t *lengths, size_t max)
{
	struct words w = { .next = text, .lengths = lengths, .max = max };
	int r = pretokenizer_split(p, text, n, take_word, &w);

	assert_int_equal(r, 0);
	assert_ptr_equal(w.next, text + n);
	return w.n;
}

static void recorded_words(void **state)
{
	struct pretokenizer *p[N_NAMES];
	struct oracle_file o;
	_cleanup_(freep) char *text = NULL;
	size_t n = 0, n_texts = 0, n_checked = 0;
	char name[64] = "";
	char *kind;

	for (size_t i = 0; i < N_NAMES; i++)
		p[i] = new_by_name(names[i]);
	oracle_open(&o, "tests/data/tokenizer-oracle.txt");
	while ((kind = oracle_next(&o))) {
		if (strcmp(kind, "text") == 0) {
			snprintf(name, sizeof(name), "%s", oracle_word(&o));
			free(text);
			text = strdup(oracle_word(&o));
			n = oracle_decode(text);
			n_texts++;
		} else if (strcmp(kind, "words") == 0) {
			char *pre = oracle_word(&o);
			size_t n_want, got[4096];
			int32_t *want = oracle_numbers(&o, &n_want);

			for (char *one; (one = strsep(&pre, ",")); n_checked++) {
				size_t i = 0, n_got;

				while (strcmp(names[i], one))
					assert_true(++i < N_NAMES);
				n_got = split(p[i], (const uint8_t *)text, n, got, ARRAY_SIZE(got));
				if (n_got != n_want)
					fail_msg("%s, %s: %zu words, not %zu", name, one, n_got, n_want);
				for (size_t k = 0; k < n_want; k++)
					if (got[k] != (size_t)want[k])
						fail_msg("%s, %s: word %zu has %zu bytes, not %d", name, one,
							 k, got[k], want[k]);
			}
			free(want);
		}
	}
	oracle_close(&o);
	assert_true(n_texts >= 120);
	assert_int_equal(n_checked, n_texts * N_NAMES);
	for (size_t i = 0; i < N_NAMES; i++)
		pretokenizer_free(p[i]);
}

/* The plain patterns by the book: a stage cuts pieces, and the next one cuts those. */
struct reference {
	pcre2_code *stages[4];
	pcre2_match_data *match;
	size_t lengths[256], n;
};

static void reference_init(struct reference *ref, const char *const *patterns)
{
	*ref = (struct reference){ .match = pcre2_match_data_create(1, NULL) };
	assert_non_null(ref->match);
	for (size_t i = 0; i < 4 && patterns[i]; i++) {
		int error;
		size_t at;

		ref->stages[i] = pcre2_compile((PCRE2_SPTR)patterns[i], PCRE2_ZERO_TERMINATED,
					       PCRE2_UTF | PCRE2_UCP, &error, &at, NULL);
		assert_non_null(ref->stages[i]);
		pcre2_jit_compile(ref->stages[i], PCRE2_JIT_COMPLETE);
	}
}

static void reference_deinit(struct reference *ref)
{
	for (size_t i = 0; i < 4; i++)
		pcre2_code_free(ref->stages[i]);
	pcre2_match_data_free(ref->match);
}

static void reference_split(struct reference *ref, size_t stage, const uint8_t *text, size_t n)
{
	size_t at = 0;

	if (n == 0)
		return;
	if (stage == 4 || !ref->stages[stage]) {
		assert_true(ref->n < ARRAY_SIZE(ref->lengths));
		ref->lengths[ref->n++] = n;
		return;
	}
	while (at < n) {
		size_t start = n, end = n;

		if (pcre2_match(ref->stages[stage], text, n, at, 0, ref->match, NULL) > 0) {
			start = pcre2_get_ovector_pointer(ref->match)[0];
			end = pcre2_get_ovector_pointer(ref->match)[1];
		}
		reference_split(ref, stage + 1, text + at, start - at);
		reference_split(ref, stage + 1, text + start, end - start);
		at = end;
	}
}

static void check_plain(const struct pretokenizer *p, struct reference *ref, const char *name,
			const uint8_t *text, size_t n)
{
	size_t got[256], n_got = split(p, text, n, got, ARRAY_SIZE(got));

	ref->n = 0;
	reference_split(ref, 0, text, n);
	if (n_got != ref->n || memcmp(got, ref->lengths, n_got * sizeof(*got)))
		fail_msg("%s: differs from the plain pattern on \"%.*s\"", name, (int)n, text);
}

/* Every string of at most five of these characters. */
static void plain_patterns_exhaustive(void **state)
{
	static const char chars[] = " \n\ra1's.";
	size_t base = strlen(chars);

	for (size_t i = 0; i < N_NAMES; i++) {
		struct pretokenizer *p = new_by_name(names[i]);
		struct reference ref;

		reference_init(&ref, plain[i]);
		for (size_t n = 1, count = base; n <= 5; n++, count *= base)
			for (size_t k = 0; k < count; k++) {
				uint8_t text[8];

				for (size_t j = 0, rest = k; j < n; j++, rest /= base)
					text[j] = (uint8_t)chars[rest % base];
				check_plain(p, &ref, names[i], text, n);
			}
		reference_deinit(&ref);
		pretokenizer_free(p);
	}
}

static uint32_t next_random(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(*state >> 33);
}

static void plain_patterns_random(void **state)
{
	/* Spaces of every kind but U+180E, which PCRE2's \s holds for one. */
	static const uint32_t chars[] = { ' ',  ' ',    ' ',    '\n',   '\n', '\r',    '\t',    0x0b, 0x85,
					  0xa0, 0x2003, 0x2028, 0x3000, 'a',  's',     't',     'l',  'L',
					  'S',  'R',    'e',    0x17f,  0xe9, 0x4e2d,  0x1f600, '\'', '\'',
					  '1',  '2',    '3',    0x663,  0xb2, '.',     '!',     '<',  '|',
					  '$',  0x301,  0x200d, 0x1f,   0x7f, 0x10ffff };
	uint64_t seed = 1;

	for (size_t i = 0; i < N_NAMES; i++) {
		struct pretokenizer *p = new_by_name(names[i]);
		struct reference ref;

		reference_init(&ref, plain[i]);
		for (int k = 0; k < 20000; k++) {
			uint8_t text[4 * 24];
			size_t n = 0, n_chars = 1 + next_random(&seed) % 24;

			while (n_chars--)
				n += utf8_encode(chars[next_random(&seed) % ARRAY_SIZE(chars)], text + n);
			check_plain(p, &ref, names[i], text, n);
		}
		reference_deinit(&ref);
		pretokenizer_free(p);
	}
}

/* A million bytes of one unit, and what stands before and behind. */
static void long_runs(void **state)
{
	static const char *const units[] = {
		"A", " ", "7", "!", "\n", "\r\n", "\t", " \n", "\n ", "   \n", "'", "'s", "a ", "\x01", "<|",
		"\xf0\x9f\x91\xa9\xe2\x80\x8d", "a\xcc\x81", "\xcc\x81", "\xe5\x93\x88", "\xe2\x80\xa8",
		"\xc2\xa0", "\xd9\xa1",
	};
	static const char *const ends[] = { "x", "\n" };
	size_t n_max = 1000000;
	uint8_t *text = malloc(n_max + 2 + 8);

	assert_non_null(text);
	for (size_t i = 0; i < N_NAMES; i++) {
		struct pretokenizer *p = new_by_name(names[i]);

		for (size_t u = 0; u < ARRAY_SIZE(units); u++) {
			size_t n_unit = strlen(units[u]), n = 0;

			text[n++] = 'x';
			while (n + n_unit <= n_max) {
				memcpy(text + n, units[u], n_unit);
				n += n_unit;
			}
			for (size_t e = 0; e < ARRAY_SIZE(ends); e++) {
				size_t n_end = strlen(ends[e]);

				memcpy(text + n, ends[e], n_end);
				assert_true(split(p, text, n + n_end, NULL, 0) > 0);
			}
		}
		pretokenizer_free(p);
	}
	free(text);
}

static int stop_at_third(void *arg, const uint8_t *word, size_t n)
{
	return ++*(int *)arg == 3 ? -ENOMEM : 0;
}

static void callers_error_passes_up(void **state)
{
	struct pretokenizer *p = new_by_name("default");
	int n_words = 0;

	assert_int_equal(pretokenizer_split(p, (const uint8_t *)"a b c d", 7, stop_at_third, &n_words),
			 -ENOMEM);
	assert_int_equal(n_words, 3);
	assert_int_equal(pretokenizer_split(p, (const uint8_t *)"", 0, stop_at_third, &n_words), 0);
	assert_int_equal(n_words, 3);
	pretokenizer_free(p);
}

static void unknown_name(void **state)
{
	static const char *const wrong[] = { "", "smol", "smollm2", "gpt2", "deepseek-llm" };
	struct pretokenizer *p = NULL;

	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		struct diag diag = DIAG_NULL;

		assert_int_equal(pretokenizer_new(&p, wrong[i], strlen(wrong[i]), &diag), -EINVAL);
		assert_null(p);
		assert_non_null(strstr(diag.text, "tokenizer.ggml.pre"));
		assert_non_null(strstr(diag.text, wrong[i]));
		for (size_t k = 0; k < N_NAMES; k++)
			assert_non_null(strstr(diag.text, names[k]));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(recorded_words),
		cmocka_unit_test(plain_patterns_exhaustive),
		cmocka_unit_test(plain_patterns_random),
		cmocka_unit_test(long_runs),
		cmocka_unit_test(callers_error_passes_up),
		cmocka_unit_test(unknown_name),
	};

	return cmocka_run_group_tests_name("pretokenizer", tests, NULL, NULL);
}
