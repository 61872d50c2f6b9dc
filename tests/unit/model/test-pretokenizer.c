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

/* As the models' tokenizer.json and llama.cpp have them. */
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define ENDING "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define PLAIN_GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define PLAIN_LLAMA3(NUMBER) \
	CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" NUMBER "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" ENDING
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define PLAIN_CASED(U, L, SUFFIX) \
	"[^\\r\\n\\p{L}\\p{N}]?" U "*" L "+" SUFFIX "|[^\\r\\n\\p{L}\\p{N}]?" U "+" L "*" SUFFIX
#define PLAIN_BLOOM " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"
#define PLAIN_CJK "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
#define DEEPSEEK_LETTERS \
	"A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}" \
	"\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}-\\x{377}" \
	"\\x{37b}-\\x{37d}\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}" \
	"\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}" \
	"\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}" \
	"\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}" \
	"\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}" \
	"\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}" \
	"\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}" \
	"\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}" \
	"\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}" \
	"\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}" \
	"\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}\\x{2183}-\\x{2184}" \
	"\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}\\x{2cf2}-\\x{2cf3}" \
	"\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}" \
	"\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}" \
	"\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}" \
	"\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}" \
	"\\x{1e900}-\\x{1e943}"
/* As sc:, without the extensions. */
#define NOT_HAN "(?!\\p{sc:Han})"

static const struct {
	const char *name, *stages[6];
} plain[] = {
	{ "smollm", { "\\p{N}", PLAIN_GPT2 } },
	{ "gpt-2", { PLAIN_GPT2 } },
	{ "llama-bpe", { PLAIN_LLAMA3("\\p{N}{1,3}") } },
	{ "qwen2", { PLAIN_LLAMA3("\\p{N}") } },
	{ "default", { "[\\p{P}\\$\\+<=>\\^~\\|]+", PLAIN_GPT2, "\\p{N}+", "[0-9][0-9][0-9]" } },
	{ "qwen35",
	  { CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
			"| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" ENDING } },
	{ "seed-coder",
	  { CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" ENDING } },
	{ "bailingmoe",
	  { "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*"
	    "|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+" } },
	{ "tekken", { PLAIN_CASED(UPPER, LOWER, "") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" ENDING } },
	{ "gpt-4o",
	  { PLAIN_CASED(UPPER, LOWER, CONTRACTION "?") "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" ENDING } },
	{ "kimi-k2",
	  { "\\p{sc:Han}+|" PLAIN_CASED("(?:" NOT_HAN UPPER ")", "(?:" NOT_HAN LOWER ")", CONTRACTION "?")
	    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" ENDING } },
	{ "deepseek-llm",
	  { "[\\r\\n]", "\\s?[" DEEPSEEK_LETTERS "]+",
	    "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+",
	    "\\s+$", PLAIN_CJK, "\\p{N}+" } },
	{ "deepseek-coder", { "[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", PLAIN_CJK, "\\p{N}" } },
	{ "deepseek-v3",
	  { "\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
	    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
	    "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" ENDING } },
	{ "falcon", { "[\\p{P}\\$\\+<=>\\^~\\|`]+", PLAIN_GPT2, "[0-9][0-9][0-9]" } },
	{ "bloom", { PLAIN_BLOOM } },
	{ "viking", { PLAIN_BLOOM, "\\p{N}" } },
};

#define N_NAMES ARRAY_SIZE(plain)
#define N_STAGES ARRAY_SIZE(plain[0].stages)

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
		p[i] = new_by_name(plain[i].name);
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

				while (strcmp(plain[i].name, one))
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
	pcre2_code *stages[N_STAGES];
	pcre2_match_data *match;
	size_t lengths[256], n;
};

static void reference_init(struct reference *ref, const char *const *patterns)
{
	*ref = (struct reference){ .match = pcre2_match_data_create(1, NULL) };
	assert_non_null(ref->match);
	for (size_t i = 0; i < N_STAGES && patterns[i]; i++) {
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
	for (size_t i = 0; i < N_STAGES; i++)
		pcre2_code_free(ref->stages[i]);
	pcre2_match_data_free(ref->match);
}

static void reference_split(struct reference *ref, size_t stage, const uint8_t *text, size_t n)
{
	size_t at = 0;

	if (n == 0)
		return;
	if (stage == N_STAGES || !ref->stages[stage]) {
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
	static const char chars[] = " \n\raA1's/";
	size_t base = strlen(chars);

	for (size_t i = 0; i < N_NAMES; i++) {
		struct pretokenizer *p = new_by_name(plain[i].name);
		struct reference ref;

		reference_init(&ref, plain[i].stages);
		for (size_t n = 1, count = base; n <= 5; n++, count *= base)
			for (size_t k = 0; k < count; k++) {
				uint8_t text[8];

				for (size_t j = 0, rest = k; j < n; j++, rest /= base)
					text[j] = (uint8_t)chars[rest % base];
				check_plain(p, &ref, plain[i].name, text, n);
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
					  '$',  0x301,  0x200d, 0x1f,   0x7f, 0x10ffff, 'A',    'B',  0x1c5,
					  0x2b0, 0xaa,  0x301,  0x4e00, 0x3005, 0xd55c, 0x3000, '/',  0x20ac,
					  0x3001, 0x3002, 0xff21, 0x30a2, '`', 0x964,  '(',     0x10d0, 'z' };
	uint64_t seed = 1;

	for (size_t i = 0; i < N_NAMES; i++) {
		struct pretokenizer *p = new_by_name(plain[i].name);
		struct reference ref;

		reference_init(&ref, plain[i].stages);
		for (int k = 0; k < 5000; k++) {
			uint8_t text[4 * 24];
			size_t n = 0, n_chars = 1 + next_random(&seed) % 24;

			while (n_chars--)
				n += utf8_encode(chars[next_random(&seed) % ARRAY_SIZE(chars)], text + n);
			check_plain(p, &ref, plain[i].name, text, n);
		}
		reference_deinit(&ref);
		pretokenizer_free(p);
	}
}

/* A long run of one unit, and what stands before and behind; a million bytes where asked for. */
static void long_runs(void **state)
{
	static const char *const units[] = {
		"A", " ", "7", "!", "\n", "\r\n", "\t", " \n", "\n ", "   \n", "'", "'s", "a ", "\x01", "<|",
		"\xf0\x9f\x91\xa9\xe2\x80\x8d", "a\xcc\x81", "\xcc\x81", "\xe5\x93\x88", "\xe2\x80\xa8",
		"\xc2\xa0", "\xd9\xa1", "aA", "A\xed\x95\x9c", "A\xcc\x81", "/", "/\n",
		"\xe3\x80\x80", "`", "(", " .", "A ",
	};
	static const char *const ends[] = { "x", "\n" };
	size_t n_max = getenv("KVD_TEST_LONG") ? 1000000 : 50000;
	uint8_t *text = malloc(n_max + 2 + 8);

	assert_non_null(text);
	for (size_t i = 0; i < N_NAMES; i++) {
		struct pretokenizer *p = new_by_name(plain[i].name);

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
	static const char *const wrong[] = { "", "smol", "smollm2", "gpt2", "superbpe" };
	struct pretokenizer *p = NULL;

	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		struct diag diag = DIAG_NULL;

		assert_int_equal(pretokenizer_new(&p, wrong[i], strlen(wrong[i]), &diag), -EINVAL);
		assert_null(p);
		assert_non_null(strstr(diag.text, "tokenizer.ggml.pre"));
		assert_non_null(strstr(diag.text, wrong[i]));
		for (size_t k = 0; k < N_NAMES; k++)
			if (strcmp(plain[k].name, "bailingmoe"))
				assert_non_null(strstr(diag.text, plain[k].name));
	}
}

/* Names that share a pattern, and what is presumed of them. */
static void other_names(void **state)
{
	static const struct {
		const char *name, *same;
		bool add_bos, whole_words;
	} cases[] = {
		{ "llama3", "llama-bpe", true, true }, { "llama-v3", "llama-bpe", true, true },
		{ "falcon3", "llama-bpe", true, true }, { "lfm2", "llama-bpe", true, true },
		{ "tekken", "tekken", true, true }, { "dbrx", "llama-bpe" }, { "smaug-bpe", "llama-bpe" },
		{ "glm4", "llama-bpe" }, { "chatglm-bpe", "llama-bpe" }, { "stablelm2", "qwen2" },
		{ "hunyuan", "qwen2" }, { "megrez", "qwen2" }, { "deepseek-r1-qwen", "qwen2" },
		{ "starcoder", "smollm" }, { "refact", "smollm" }, { "command-r", "smollm" },
		{ "codeshell", "smollm" }, { "exaone", "smollm" }, { "minerva-7b", "smollm" }, { "mpt", "gpt-2" },
		{ "olmo", "gpt-2" }, { "jais", "gpt-2" }, { "phi-2", "gpt-2" }, { "trillion", "gpt-2" },
		{ "a.x-4.0", "gpt-2" }, { "mellum", "gpt-2" }, { "roberta-bpe", "gpt-2" }, { "llama4", "gpt-4o" },
		{ "poro-chat", "bloom" }, { "hunyuan-dense", "deepseek-v3" }, { "default", "default" },
	};
	static const char text[] = "Hello's WORLD'LL 12345 (x), \xc3\xa9t\xc3\xa9\n\n  `$a/\n/ \xe6\xbc\xa2";

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct pretokenizer *a = new_by_name(cases[i].name), *b = new_by_name(cases[i].same);
		size_t got[64], want[64];
		size_t n = split(a, (const uint8_t *)text, sizeof(text) - 1, got, 64);

		assert_int_equal(split(b, (const uint8_t *)text, sizeof(text) - 1, want, 64), n);
		assert_memory_equal(got, want, n * sizeof(*got));
		assert_int_equal(pretokenizer_add_bos(a), cases[i].add_bos);
		assert_int_equal(pretokenizer_whole_words(a), cases[i].whole_words);
		pretokenizer_free(a);
		pretokenizer_free(b);
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
		cmocka_unit_test(other_names),
	};

	return cmocka_run_group_tests_name("pretokenizer", tests, NULL, NULL);
}
