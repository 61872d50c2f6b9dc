/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SentencePiece: merges against a plain quadratic implementation; a small
 * vocabulary, and with KVD_TEST_GEMMA set that of Gemma 3, against the ids of
 * `sentencepiece` (recorded); spaces, bytes and unknown characters.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/model/gguf.h"
#include "daemon/model/sentencepiece.h"
#include "daemon/model/tokenizer.h"
#include "ipc/base/checked.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "tests/unit/model/oracle-file.h"
#include "tests/unit/model/tiny-vocab.h"

#define VOCAB "tests/data/sentencepiece-vocab.txt"
#define ORACLE "tests/data/sentencepiece-oracle.txt"
#define MARK "\xe2\x96\x81"

static struct tiny_vocab v;
static float scores[TINY_MAX];

static uint32_t next_random(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(*state >> 33);
}

static int32_t add(const char *text, int32_t type, float score)
{
	scores[v.n] = score;
	return tiny_add(&v, text, type);
}

/* <unk>, <s>, </s> and the bytes; 259 tokens. */
static void init_vocab(bool with_bytes)
{
	v.n = v.n_merges = v.n_texts = 0;
	add("<unk>", TOKEN_UNKNOWN, 0);
	add("<s>", TOKEN_CONTROL, 0);
	add("</s>", TOKEN_CONTROL, 0);
	for (int b = 0; b < 256 && with_bytes; b++) {
		char name[8];

		snprintf(name, sizeof(name), "<0x%02X>", b);
		add(name, TOKEN_BYTE, 0);
	}
}

static int32_t byte_id(uint8_t byte)
{
	return 3 + byte;
}

static struct tokenizer_source source_of(void)
{
	struct tokenizer_source source = tiny_source(&v, "");

	source.model = TOKENIZER_SENTENCEPIECE;
	source.scores = scores;
	source.unknown = 0;
	source.bos = 1;
	source.eos = 2;
	return source;
}

static struct tokenizer *tokenizer_of(int add_space_prefix)
{
	struct tokenizer_source source = source_of();

	source.add_space_prefix = add_space_prefix;
	return tiny_tokenizer(&source);
}

static struct token_list encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags)
{
	struct token_list l = { 0 };

	assert_int_equal(tokenizer_encode(t, text, n, flags, &l), 0);
	return l;
}

static void check_same(const char *name, const struct token_list *l, const int32_t *want, size_t n_want)
{
	if (l->n == n_want && (n_want == 0 || memcmp(l->ids, want, n_want * sizeof(*want)) == 0))
		return;
	for (size_t i = 0; i < l->n && i < 100; i++)
		print_error("%d ", l->ids[i]);
	fail_msg("%s: other ids", name);
}

/* Ids up to a -1. */
static void check_ids(const struct tokenizer *t, const char *text, unsigned flags, const int32_t *want)
{
	struct token_list l = encode(t, text, strlen(text), flags);
	size_t n = 0;

	while (want[n] >= 0)
		n++;
	check_same(text, &l, want, n);
	free(l.ids);
}

#define CHECK_IDS(t, text, flags, ...) \
	check_ids(t, text, flags, (const int32_t[]){ __VA_ARGS__ __VA_OPT__(,) - 1 })

/* The bytes of the ids, one behind the other, are the text. */
static void check_text(const struct tokenizer *t, const struct token_list *l, const char *text, size_t n)
{
	int32_t previous = -1;
	size_t at = 0;

	for (size_t i = 0; i < l->n; previous = l->ids[i++]) {
		size_t k;
		const uint8_t *bytes = tokenizer_bytes_after(t, previous, l->ids[i], &k);

		assert_true(k <= n - at);
		assert_memory_equal(bytes, text + at, k);
		at += k;
	}
	assert_int_equal(at, n);
}

/* --- merges ----------------------------------------------------------------- */

static int32_t find_token(const char *text, size_t n)
{
	for (size_t i = 0; i < v.n; i++)
		if (v.types[i] == TOKEN_NORMAL && v.tokens[i].n == n && memcmp(v.tokens[i].data, text, n) == 0)
			return (int32_t)i;
	return -1;
}

/* The definition: of all neighbours that are a token together merge those of the best score, leftmost first. */
static size_t merge_by_definition(const char *text, size_t n, struct gguf_string *parts)
{
	for (size_t i = 0; i < n; i++)
		parts[i] = (struct gguf_string){ text + i, 1 };
	for (;;) {
		size_t best = n;
		float best_score = -INFINITY;

		for (size_t i = 0; i + 1 < n; i++) {
			int32_t id = find_token(parts[i].data, parts[i].n + parts[i + 1].n);

			if (id >= 0 && scores[id] > best_score) {
				best = i;
				best_score = scores[id];
			}
		}
		if (best == n)
			return n;
		parts[best].n += parts[best + 1].n;
		memmove(parts + best + 1, parts + best + 2, (n - best - 2) * sizeof(*parts));
		n--;
	}
}

/* Tokens of the letters a to d, some of which are none themselves; scores in any order, often equal. */
static void random_vocab(uint64_t *seed)
{
	size_t n_tokens = 3 + next_random(seed) % 40;

	init_vocab(true);
	for (size_t k = 0; k < n_tokens; k++) {
		char text[8] = "";
		size_t n = 1 + next_random(seed) % 6;

		for (size_t i = 0; i < n; i++)
			text[i] = (char)('a' + next_random(seed) % 4);
		if (find_token(text, n) < 0)
			add(text, TOKEN_NORMAL, -(float)(next_random(seed) % 20));
	}
}

static void merges_by_definition(void **state)
{
	uint64_t seed = 7;

	for (int round = 0; round < 150; round++) {
		struct tokenizer *t;

		random_vocab(&seed);
		t = tokenizer_of(0);
		for (int k = 0; k < 40; k++) {
			char text[61] = "";
			size_t n = 1 + next_random(&seed) % 60, n_parts, n_want = 0;
			struct gguf_string parts[61];
			int32_t want[61];
			struct token_list l;

			for (size_t i = 0; i < n; i++)
				text[i] = (char)('a' + next_random(&seed) % 4);
			n_parts = merge_by_definition(text, n, parts);
			for (size_t i = 0; i < n_parts; i++) {
				int32_t id = find_token(parts[i].data, parts[i].n);

				want[n_want++] = id >= 0 ? id : byte_id((uint8_t)parts[i].data[0]);
			}
			l = encode(t, text, n, 0);
			check_same(text, &l, want, n_want);
			free(l.ids);
		}
		tokenizer_free(t);
	}
}

/* Long enough for the queue to be sorted: the same as by definition on a text of many letters. */
static void long_text_by_definition(void **state)
{
	static char text[4501];
	static struct gguf_string parts[4501];
	uint64_t seed = 9;

	for (int round = 0; round < 2; round++) {
		struct tokenizer *t;
		struct token_list l;
		size_t n_parts, at = 0;

		random_vocab(&seed);
		for (const char *c = "abcd"; *c; c++)
			if (find_token(c, 1) < 0)
				add((char[]){ *c, 0 }, TOKEN_NORMAL, -30);
		t = tokenizer_of(0);
		for (size_t i = 0; i < sizeof(text) - 1; i++)
			text[i] = round == 0 ? 'a' : (char)('a' + next_random(&seed) % 4);
		n_parts = merge_by_definition(text, sizeof(text) - 1, parts);
		l = encode(t, text, sizeof(text) - 1, 0);
		assert_int_equal(l.n, n_parts);
		for (size_t i = 0; i < n_parts; at += parts[i++].n)
			assert_int_equal(l.ids[i], find_token(text + at, parts[i].n));
		free(l.ids);
		tokenizer_free(t);
	}
}

/* --- spaces, bytes, special tokens ---------------------------------------------- */

static void space_prefix(void **state)
{
	int32_t mark, hi, mark_hi, user;
	struct tokenizer *t;

	init_vocab(true);
	mark = add(MARK, TOKEN_NORMAL, -10);
	add("H", TOKEN_NORMAL, -11);
	add("i", TOKEN_NORMAL, -12);
	hi = add("Hi", TOKEN_NORMAL, -1);
	mark_hi = add(MARK "Hi", TOKEN_NORMAL, -2);
	user = add("<u>", TOKEN_USER_DEFINED, 0);
	/* As is usual: a space goes before. */
	t = tokenizer_of(-1);
	CHECK_IDS(t, "Hi", 0, mark_hi);
	CHECK_IDS(t, " Hi", 0, mark, mark_hi);
	CHECK_IDS(t, "Hi Hi", 0, mark_hi, mark_hi);
	CHECK_IDS(t, "", 0);
	CHECK_IDS(t, " ", 0, mark, mark);
	CHECK_IDS(t, MARK "Hi", 0, mark, mark_hi);
	CHECK_IDS(t, "Hi", TOKENIZE_BOS, 1, mark_hi);
	CHECK_IDS(t, "", TOKENIZE_BOS, 1);
	/* After control tokens too, not after user-defined ones. */
	CHECK_IDS(t, "<s>Hi</s>Hi", TOKENIZE_SPECIAL, 1, mark_hi, 2, mark_hi);
	CHECK_IDS(t, "<s></s>", TOKENIZE_SPECIAL, 1, 2);
	CHECK_IDS(t, "<s>Hi", TOKENIZE_SPECIAL | TOKENIZE_BOS, 1, mark_hi);
	CHECK_IDS(t, "<u>Hi<u> Hi", 0, mark, user, hi, user, mark_hi);
	CHECK_IDS(t, "<s><u>Hi", TOKENIZE_SPECIAL, 1, mark, user, hi);
	CHECK_IDS(t, "\xffHi", 0, mark, byte_id(0xff), hi);
	tokenizer_free(t);
	t = tokenizer_of(0);
	CHECK_IDS(t, "Hi", 0, hi);
	CHECK_IDS(t, " Hi", 0, mark_hi);
	CHECK_IDS(t, "<s>Hi<u>Hi", TOKENIZE_SPECIAL, 1, hi, user, hi);
	CHECK_IDS(t, "\xff" "Hi", 0, byte_id(0xff), hi);
	tokenizer_free(t);
}

static void extra_whitespaces(void **state)
{
	int32_t mark, a, tag;
	struct tokenizer_source source;
	struct tokenizer *t;

	init_vocab(true);
	mark = add(MARK, TOKEN_NORMAL, -10);
	a = add("a", TOKEN_NORMAL, -11);
	tag = add("<u>", TOKEN_USER_DEFINED, 0);
	source = source_of();
	source.remove_extra_whitespaces = 1;
	t = tiny_tokenizer(&source);
	CHECK_IDS(t, "  a   a  ", 0, mark, a, mark, a);
	CHECK_IDS(t, "a<u>  <u>", 0, mark, a, tag, mark, tag);
	CHECK_IDS(t, "     ", 0);
	tokenizer_free(t);
	source.add_space_prefix = 0;
	t = tiny_tokenizer(&source);
	CHECK_IDS(t, "  a   a  ", 0, a, mark, a);
	tokenizer_free(t);
}

/* What a token's bytes are depends on where it stands. */
static void bytes_after(void **state)
{
	int32_t mark_hi, hi, mark, two, user;
	struct tokenizer *t;
	const uint8_t *bytes;
	size_t n;

	init_vocab(true);
	mark_hi = add(MARK "Hi", TOKEN_NORMAL, -1);
	hi = add("Hi", TOKEN_NORMAL, -2);
	mark = add(MARK, TOKEN_NORMAL, -3);
	two = add("x" MARK "y" MARK, TOKEN_NORMAL, -4);
	user = add("  ", TOKEN_USER_DEFINED, 0);
	for (int with = 0; with < 2; with++) {
		const struct {
			int32_t previous, id;
			const char *want;
		} cases[] = {
			{ hi, mark_hi, " Hi" }, { hi, hi, "Hi" }, { hi, mark, " " }, { hi, two, "x y " },
			{ hi, user, "  " }, { -1, hi, "Hi" }, { 1, hi, "Hi" }, { -1, two, "x y " },
			{ -1, mark_hi, with ? "Hi" : " Hi" }, { 1, mark_hi, with ? "Hi" : " Hi" },
			{ 2, mark, with ? "" : " " }, { -1, byte_id(' '), " " }, { hi, byte_id(0xff), "\xff" },
			{ user, mark_hi, " Hi" }, { byte_id('x'), mark_hi, " Hi" }, { -1, 1, "<s>" },
		};

		t = tokenizer_of(with);
		for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
			bytes = tokenizer_bytes_after(t, cases[i].previous, cases[i].id, &n);
			assert_int_equal(n, strlen(cases[i].want));
			assert_memory_equal(bytes, cases[i].want, n);
		}
		bytes = tokenizer_bytes(t, mark_hi, &n);
		assert_int_equal(n, 3);
		tokenizer_bytes_after(t, -1, -5, &n);
		assert_int_equal(n, 0);
		tokenizer_bytes_after(t, -1, (int32_t)v.n, &n);
		assert_int_equal(n, 0);
		tokenizer_free(t);
	}
}

/* Each maximal subpart of an ill-formed sequence by its bytes, whatever is around. */
static void ill_formed_text(void **state)
{
	static const char *const texts[] = {
		"\xff", "a\xc3", "\xe2\x96", "\xe2\x96 \x81", "\xf0\x9f\x98", "\xed\xa0\x80", "\xc0\xaf",
		"\xe2\x96\x81\x81",
		"\xf4\x90\x80\x80", "\x80 \x80", " \xc3 ", "z\xf0\x9fz", "\xe2\xe2\x96\x81",
	};
	struct tokenizer *t;

	init_vocab(true);
	add(MARK, TOKEN_NORMAL, -1);
	add(MARK MARK, TOKEN_NORMAL, -2);
	for (int with = 0; with < 2; with++) {
		t = tokenizer_of(with);
		for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
			struct token_list l = encode(t, texts[i], strlen(texts[i]), 0);
			char text[32], *from;

			/* U+2581 comes back as a space: there is no telling them apart. */
			strcpy(text, texts[i]);
			while ((from = strstr(text, MARK))) {
				*from = ' ';
				memmove(from + 1, from + 3, strlen(from + 3) + 1);
			}
			check_text(t, &l, text, strlen(text));
			free(l.ids);
		}
		CHECK_IDS(t, "\xc3\xff", 0, with ? 259 : byte_id(0xc3), with ? byte_id(0xc3) : byte_id(0xff),
			  with ? byte_id(0xff) : -1);
		tokenizer_free(t);
	}
}

/* Without byte tokens a run of unknown characters is one unknown token. */
static void unknown_token(void **state)
{
	struct tokenizer_source source;
	struct tokenizer *t;
	int32_t a;

	init_vocab(false);
	a = add("a", TOKEN_NORMAL, -1);
	t = tokenizer_of(0);
	CHECK_IDS(t, "aXYZaX", 0, a, 0, a, 0);
	CHECK_IDS(t, "X\xff\xffY", 0, 0);
	CHECK_IDS(t, "X</s>Y", TOKENIZE_SPECIAL, 0, 2, 0);
	tokenizer_free(t);
	source = source_of();
	source.add_space_prefix = 0;
	source.unknown = -1;
	t = tiny_tokenizer(&source);
	CHECK_IDS(t, "aXYZaX", 0, a, a);
	tokenizer_free(t);
}

/* Byte tokens and control tokens come from no text; without types, bytes are known by their names. */
static void byte_tokens(void **state)
{
	struct tokenizer_source source;
	struct tokenizer *t;
	struct token_list l;

	init_vocab(true);
	for (const char *p = "<0x41>s/"; *p; p++)
		if (find_token(p, 1) < 0)
			add((char[]){ *p, 0 }, TOKEN_NORMAL, -9);
	for (int with_types = 0; with_types < 2; with_types++) {
		source = source_of();
		source.add_space_prefix = 0;
		if (!with_types)
			source.types = NULL;
		t = tiny_tokenizer(&source);
		l = encode(t, "<0x41><s></s>", 13, 0);
		assert_int_equal(l.n, 13);
		for (size_t i = 0; i < l.n; i++)
			assert_true(l.ids[i] >= 259);
		free(l.ids);
		CHECK_IDS(t, "A\n", 0, byte_id('A'), byte_id('\n'));
		tokenizer_free(t);
	}
}

static void add_eos(void **state)
{
	struct tokenizer_source source;
	struct tokenizer *t;

	init_vocab(true);
	source = source_of();
	source.add_space_prefix = 0;
	t = tiny_tokenizer(&source);
	CHECK_IDS(t, "\n", TOKENIZE_EOS, byte_id('\n'));
	CHECK_IDS(t, "\n", TOKENIZE_BOS, 1, byte_id('\n'));
	tokenizer_free(t);
	source.add_eos = 1;
	source.add_bos = 0;
	t = tiny_tokenizer(&source);
	CHECK_IDS(t, "\n", TOKENIZE_EOS | TOKENIZE_BOS, byte_id('\n'), 2);
	CHECK_IDS(t, "\n</s>", TOKENIZE_EOS | TOKENIZE_SPECIAL, byte_id('\n'), 2);
	CHECK_IDS(t, "", TOKENIZE_EOS, 2);
	CHECK_IDS(t, "\n", 0, byte_id('\n'));
	tokenizer_free(t);
}

static void check_refused(const struct tokenizer_source *source, const char *field, const char *what)
{
	struct tokenizer *t = NULL;
	struct diag diag = DIAG_NULL;

	assert_int_equal(tokenizer_new_from(&t, source, &diag), -EINVAL);
	assert_null(t);
	if (!strstr(diag.text, field) || !strstr(diag.text, what))
		fail_msg("\"%s\" does not name %s and %s", diag.text, field, what);
}

static void refused(void **state)
{
	static const float wrong[] = { NAN, -NAN, INFINITY, -INFINITY };
	struct tokenizer_source source;
	char long_text[SENTENCEPIECE_MAX_PIECE + 2];

	init_vocab(true);
	source = source_of();
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++)
		for (size_t id = 0; id < v.n; id += 129) {
			scores[id] = wrong[i];
			check_refused(&source, "tokenizer.ggml.scores", "not finite");
			scores[id] = 0;
		}
	source.scores = NULL;
	check_refused(&source, "tokenizer.ggml.scores", "missing");
	source = source_of();
	source.unknown = (int32_t)v.n;
	check_refused(&source, "tokenizer.ggml.unknown_token_id", "259");
	add("<0xZZ>", TOKEN_BYTE, 0);
	source = source_of();
	check_refused(&source, "tokenizer.ggml.token_type", "<0xZZ>");
	v.types[259] = TOKEN_NORMAL;
	memset(long_text, 'x', sizeof(long_text) - 1);
	long_text[sizeof(long_text) - 1] = 0;
	add(long_text, TOKEN_NORMAL, 0);
	source = source_of();
	check_refused(&source, "tokenizer.ggml.tokens", "1025");
}

/* --- recorded ids ---------------------------------------------------------------- */

/* id + 1 of the piece, 0 at the end of the file. */
static int32_t read_piece(struct oracle_file *o)
{
	char text[128];
	int32_t type;
	float score;

	if (!oracle_next(o))
		return 0;
	type = (int32_t)strtol(oracle_word(o), NULL, 10);
	score = strtof(oracle_word(o), NULL);
	snprintf(text, sizeof(text), "%s", oracle_word(o));
	text[oracle_decode(text)] = 0;
	return add(text, type, score) + 1;
}

static void read_vocab(void)
{
	struct oracle_file o;

	v.n = v.n_texts = 0;
	oracle_open(&o, VOCAB);
	while (read_piece(&o))
		;
	oracle_close(&o);
	assert_int_equal(v.n, 640);
}

/* The small vocabulary with these flags; unknown: with control tokens in place of bytes. */
static struct tokenizer *small(int add_space_prefix, int remove_extra, bool bytes)
{
	struct tokenizer_source source;

	for (size_t i = 0; i < v.n && !bytes; i++)
		if (v.types[i] == TOKEN_BYTE)
			v.types[i] = TOKEN_CONTROL;
	source = source_of();
	source.add_space_prefix = add_space_prefix;
	source.remove_extra_whitespaces = remove_extra;
	return tiny_tokenizer(&source);
}

static struct tokenizer *load_gemma(void)
{
	const char *path = getenv("KVD_TEST_GEMMA");
	_cleanup_(fd_closep) int fd = -1;
	_cleanup_(gguf_freep) struct gguf *g = NULL;
	struct tokenizer *t = NULL;
	struct diag diag = DIAG_NULL;

	if (!path || !*path)
		return NULL;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || gguf_read(&g, fd, &diag) || tokenizer_new(&t, g, &diag))
		fail_msg("%s: %s", path, diag.text);
	return t;
}

/* A tokenizer, and the records that it has to agree with. */
struct recorded {
	const char *kind;
	struct tokenizer *t;
	bool lossless;
	size_t n_checked;
};

static void check_record(struct recorded *r, const char *name, const char *text, size_t n, unsigned flags,
			 const int32_t *want, size_t n_want)
{
	struct token_list l = encode(r->t, text, n, flags);

	check_same(name, &l, want, n_want);
	for (size_t i = 0; i < l.n && !flags; i++)
		if (tokenizer_is_control(r->t, l.ids[i]))
			assert_int_equal(l.ids[i], 0);
	if (r->lossless && !flags && !memmem(text, n, MARK, 3))
		check_text(r->t, &l, text, n);
	free(l.ids);
	r->n_checked++;
}

static void check_recorded(struct recorded *r, size_t n_kinds)
{
	_cleanup_(freep) char *text = NULL;
	struct oracle_file o;
	char name[64] = "", *kind;
	size_t n = 0;

	oracle_open(&o, ORACLE);
	while ((kind = oracle_next(&o))) {
		if (strcmp(kind, "text") == 0) {
			snprintf(name, sizeof(name), "%s", oracle_word(&o));
			free(text);
			text = strdup(oracle_word(&o));
			n = oracle_decode(text);
		}
		for (size_t i = 0; i < n_kinds; i++) {
			size_t n_kind = strlen(r[i].kind), n_want;
			bool special = strcmp(kind + strnlen(kind, n_kind), "-special") == 0;
			int32_t *want;

			if (strncmp(kind, r[i].kind, n_kind) || !(special || kind[n_kind] == 0))
				continue;
			want = oracle_numbers(&o, &n_want);
			check_record(&r[i], name, text, n, special ? TOKENIZE_SPECIAL : 0, want, n_want);
			free(want);
		}
	}
	oracle_close(&o);
}

static void recorded_small(void **state)
{
	struct recorded r[4] = { { "small", NULL, true }, { "bare", NULL, true }, { "trimmed" }, { "unknown" } };

	read_vocab();
	r[0].t = small(1, 0, true);
	r[1].t = small(0, 0, true);
	r[2].t = small(1, 1, true);
	r[3].t = small(1, 0, false);
	check_recorded(r, ARRAY_SIZE(r));
	for (size_t i = 0; i < ARRAY_SIZE(r); i++) {
		assert_true(r[i].n_checked >= 200);
		tokenizer_free(r[i].t);
	}
}

static void recorded_gemma(void **state)
{
	struct recorded r = { "gemma", load_gemma(), true };

	if (!r.t)
		skip();
	assert_int_equal(tokenizer_n_vocab(r.t), 262144);
	assert_true(tokenizer_add_bos(r.t));
	assert_int_equal(tokenizer_bos(r.t), 2);
	assert_true(tokenizer_is_eog(r.t, 1));
	assert_true(tokenizer_is_eog(r.t, tokenizer_control_id(r.t, "<end_of_turn>")));
	check_recorded(&r, 1);
	assert_true(r.n_checked >= 210);
	tokenizer_free(r.t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(merges_by_definition),	 cmocka_unit_test(long_text_by_definition),
		cmocka_unit_test(space_prefix),		 cmocka_unit_test(extra_whitespaces),
		cmocka_unit_test(bytes_after),		 cmocka_unit_test(ill_formed_text),
		cmocka_unit_test(unknown_token),	 cmocka_unit_test(byte_tokens),
		cmocka_unit_test(add_eos),		 cmocka_unit_test(refused),
		cmocka_unit_test(recorded_small),	 cmocka_unit_test(recorded_gemma),
	};

	return cmocka_run_group_tests_name("sentencepiece", tests, NULL, NULL);
}
