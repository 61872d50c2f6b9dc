/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tokenizer from GGUF files: fields that are wrong, made here in memory;
 * and with KVD_TEST_MODEL set the default model's, against the ids of
 * `tokenizers` (recorded).
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/model/gguf.h"
#include "daemon/model/tokenizer.h"
#include "ipc/base/checked.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "tests/unit/model/oracle-file.h"
#include "tests/unit/model/tiny-vocab.h"

/* A file's metadata while it is written. */
struct writer {
	uint8_t bytes[1 << 16];
	size_t n;
	uint64_t n_kv;
};

static struct tiny_vocab v;

static void put(struct writer *w, const void *data, size_t n)
{
	assert_true(n <= sizeof(w->bytes) - w->n);
	memcpy(w->bytes + w->n, data, n);
	w->n += n;
}

static void put_u32(struct writer *w, uint32_t x)
{
	put(w, &x, sizeof(x));
}

static void put_u64(struct writer *w, uint64_t x)
{
	put(w, &x, sizeof(x));
}

static void put_string(struct writer *w, struct gguf_string s)
{
	put_u64(w, s.n);
	put(w, s.data, s.n);
}

static void put_key(struct writer *w, const char *key, enum gguf_type type)
{
	put_string(w, (struct gguf_string){ key, strlen(key) });
	put_u32(w, type);
	w->n_kv++;
}

static void add_string(struct writer *w, const char *key, const char *value)
{
	put_key(w, key, GGUF_STRING);
	put_string(w, (struct gguf_string){ value, strlen(value) });
}

static void add_u32(struct writer *w, const char *key, uint32_t value)
{
	put_key(w, key, GGUF_U32);
	put_u32(w, value);
}

static void add_strings(struct writer *w, const char *key, const struct gguf_string *strings, size_t n)
{
	put_key(w, key, GGUF_ARRAY);
	put_u32(w, GGUF_STRING);
	put_u64(w, n);
	for (size_t i = 0; i < n; i++)
		put_string(w, strings[i]);
}

/* n four-byte elements, all alike but the last. */
static void add_numbers(struct writer *w, const char *key, enum gguf_type type, size_t n, int32_t value,
			int32_t last)
{
	put_key(w, key, GGUF_ARRAY);
	put_u32(w, type);
	put_u64(w, n);
	for (size_t i = 0; i < n; i++)
		put_u32(w, (uint32_t)(i + 1 == n ? last : value));
}

static int load(struct writer *w, struct tokenizer **t, struct diag *diag)
{
	_cleanup_(gguf_freep) struct gguf *g = NULL;
	static struct writer whole;

	whole.n = 0;
	put(&whole, "GGUF\3\0\0\0", 8);
	put_u64(&whole, 0);
	put_u64(&whole, w->n_kv);
	put(&whole, w->bytes, w->n);
	if (gguf_parse(&g, whole.bytes, whole.n, whole.n, diag))
		fail_msg("the test's file is wrong: %s", diag->text);
	return tokenizer_new(t, g, diag);
}

/* The fields, of which one may be left out or replaced by what is in other. */
enum field { NO_FIELD, MODEL, PRE, TOKENS, TYPES, MERGES, BOS, EOS };

static void write_fields(struct writer *w, enum field without, const struct writer *other)
{
	*w = (struct writer){ 0 };
	tiny_init(&v);
	tiny_add(&v, "ab", TOKEN_NORMAL);
	tiny_merge(&v, "a b");
	tiny_add(&v, "<s>", TOKEN_CONTROL);
	tiny_add(&v, "</s>", TOKEN_CONTROL);
	if (without != MODEL)
		add_string(w, "tokenizer.ggml.model", "gpt2");
	if (without != PRE)
		add_string(w, "tokenizer.ggml.pre", "gpt-2");
	if (without != TOKENS)
		add_strings(w, "tokenizer.ggml.tokens", v.tokens, v.n);
	if (without != TYPES)
		add_numbers(w, "tokenizer.ggml.token_type", GGUF_I32, v.n, TOKEN_NORMAL, TOKEN_CONTROL);
	if (without != MERGES)
		add_strings(w, "tokenizer.ggml.merges", v.merges, v.n_merges);
	if (without != BOS)
		add_u32(w, "tokenizer.ggml.bos_token_id", 257);
	if (without != EOS)
		add_u32(w, "tokenizer.ggml.eos_token_id", 258);
	if (other) {
		put(w, other->bytes, other->n);
		w->n_kv += other->n_kv;
	}
}

static struct writer w;

static void whole_file(void **state)
{
	struct tokenizer *t;
	struct diag diag = DIAG_NULL;
	struct token_list l = { 0 };

	write_fields(&w, NO_FIELD, NULL);
	assert_int_equal(load(&w, &t, &diag), 0);
	assert_int_equal(tokenizer_n_vocab(t), 259);
	assert_int_equal(tokenizer_bos(t), 257);
	assert_int_equal(tokenizer_eos(t), 258);
	assert_true(tokenizer_is_eog(t, 258));
	assert_true(tokenizer_is_control(t, 257));
	assert_false(tokenizer_add_bos(t));
	/* The file's bytes are gone, the tokenizer's are its own. */
	assert_int_equal(tokenizer_encode(t, "abc<s>", 6, TOKENIZE_SPECIAL, &l), 0);
	assert_int_equal(l.n, 3);
	assert_int_equal(l.ids[0], 256);
	assert_int_equal(l.ids[2], 257);
	free(l.ids);
	tokenizer_free(t);
}

/* What may be missing. */
static void optional_fields(void **state)
{
	static const enum field optional[] = { PRE, TYPES, BOS, EOS };
	struct writer other = { 0 };

	for (size_t i = 0; i < ARRAY_SIZE(optional); i++) {
		struct tokenizer *t;
		struct diag diag = DIAG_NULL;
		struct token_list l = { 0 };

		write_fields(&w, optional[i], NULL);
		assert_int_equal(load(&w, &t, &diag), 0);
		if (optional[i] == BOS)
			assert_int_equal(tokenizer_bos(t), -1);
		if (optional[i] == PRE) {
			/* `default` cuts digits by three. */
			assert_int_equal(tokenizer_encode(t, "1234", 4, 0, &l), 0);
			assert_int_equal(l.n, 4);
			free(l.ids);
		}
		tokenizer_free(t);
	}
	put_key(&other, "tokenizer.ggml.add_bos_token", GGUF_BOOL);
	put(&other, "\1", 1);
	add_numbers(&other, "tokenizer.ggml.scores", GGUF_F32, 259, 0, 0);
	for (int i = 0; i < 2; i++) {
		struct tokenizer *t;
		struct diag diag = DIAG_NULL;

		write_fields(&w, NO_FIELD, &other);
		assert_int_equal(load(&w, &t, &diag), 0);
		assert_true(tokenizer_add_bos(t));
		tokenizer_free(t);
	}
}

static void check_refused(enum field without, const struct writer *other, const char *key, const char *what)
{
	struct tokenizer *t = NULL;
	struct diag diag = DIAG_NULL;

	write_fields(&w, without, other);
	assert_int_equal(load(&w, &t, &diag), -EINVAL);
	assert_null(t);
	if (!strstr(diag.text, key) || !strstr(diag.text, what))
		fail_msg("\"%s\" does not name %s and %s", diag.text, key, what);
}

#define REFUSED(without, key, what, statement) \
	do { \
		struct writer o = { 0 }; \
		statement; \
		check_refused(without, &o, key, what); \
	} while (0)

static void refused_fields(void **state)
{
	static const char model[] = "tokenizer.ggml.model", pre[] = "tokenizer.ggml.pre",
			  tokens[] = "tokenizer.ggml.tokens", types[] = "tokenizer.ggml.token_type",
			  merges[] = "tokenizer.ggml.merges", bos[] = "tokenizer.ggml.bos_token_id",
			  scores[] = "tokenizer.ggml.scores", add[] = "tokenizer.ggml.add_bos_token";

	check_refused(MODEL, NULL, model, "missing");
	check_refused(TOKENS, NULL, tokens, "missing");
	check_refused(MERGES, NULL, merges, "missing");
	REFUSED(MODEL, model, "t5", add_string(&o, model, "t5"));
	REFUSED(MODEL, scores, "missing", add_string(&o, model, "llama"));
	REFUSED(MODEL, model, "\"\"", add_string(&o, model, ""));
	REFUSED(MODEL, model, "", add_u32(&o, model, 1));
	REFUSED(PRE, pre, "superbpe", add_string(&o, pre, "superbpe"));
	REFUSED(PRE, pre, "", add_u32(&o, pre, 1));
	REFUSED(TOKENS, tokens, "empty", add_strings(&o, tokens, NULL, 0));
	REFUSED(TOKENS, tokens, "", add_numbers(&o, tokens, GGUF_I32, 259, 1, 1));
	REFUSED(TOKENS, tokens, "", add_string(&o, tokens, "x"));
	/* One token fewer: every array has the wrong length then, the first one is named. */
	REFUSED(TOKENS, types, "259 entries for 258 tokens", add_strings(&o, tokens, v.tokens, 258));
	REFUSED(TYPES, types, "258 entries", add_numbers(&o, types, GGUF_I32, 258, 1, 1));
	REFUSED(TYPES, types, "0 entries", add_numbers(&o, types, GGUF_I32, 0, 1, 1));
	REFUSED(TYPES, types, "258", add_numbers(&o, types, GGUF_I32, 259, 1, 7));
	REFUSED(TYPES, types, "258", add_numbers(&o, types, GGUF_I32, 259, 1, -1));
	REFUSED(TYPES, types, "", add_numbers(&o, types, GGUF_F32, 259, 1, 1));
	REFUSED(TYPES, types, "", add_strings(&o, types, v.tokens, 259));
	REFUSED(MERGES, merges, "", add_numbers(&o, merges, GGUF_I32, 2, 1, 1));
	REFUSED(MERGES, merges, "no token",
		add_strings(&o, merges, (struct gguf_string[]){ { "a c", 3 } }, 1));
	REFUSED(BOS, bos, "", add_u32(&o, bos, 259));
	REFUSED(BOS, bos, "", add_u32(&o, bos, UINT32_MAX));
	REFUSED(BOS, bos, "", add_string(&o, bos, "1"));
	REFUSED(NO_FIELD, scores, "258 entries", add_numbers(&o, scores, GGUF_F32, 258, 0, 0));
	REFUSED(NO_FIELD, scores, "", add_numbers(&o, scores, GGUF_I32, 259, 0, 0));
	REFUSED(NO_FIELD, add, "", add_u32(&o, add, 1));
}

/* --- the default model ------------------------------------------------------------ */

static struct tokenizer *model;

static int setup_model(void **state)
{
	const char *path = getenv("KVD_TEST_MODEL");
	_cleanup_(fd_closep) int fd = -1;
	_cleanup_(gguf_freep) struct gguf *g = NULL;
	struct diag diag = DIAG_NULL;

	if (!path || !*path)
		return 0;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || gguf_read(&g, fd, &diag) || tokenizer_new(&model, g, &diag)) {
		print_error("%s: %s\n", path, diag.text);
		return -1;
	}
	return 0;
}

static int teardown_model(void **state)
{
	tokenizer_free(model);
	return 0;
}

static void check_ids(const char *name, const char *text, size_t n, unsigned flags, const int32_t *want,
		      size_t n_want)
{
	struct token_list l = { 0 };

	assert_int_equal(tokenizer_encode(model, text, n, flags, &l), 0);
	if (l.n != n_want || (l.n && memcmp(l.ids, want, l.n * sizeof(*want))))
		fail_msg("%s, flags %u: other ids", name, flags);
	if (!(flags & TOKENIZE_SPECIAL))
		for (size_t i = 0; i < l.n; i++)
			assert_false(tokenizer_is_control(model, l.ids[i]));
	free(l.ids);
}

static void recorded_ids(void **state)
{
	struct oracle_file o;
	_cleanup_(freep) char *text = NULL;
	char name[64] = "";
	size_t n = 0, n_texts = 0, n_plain = 0;
	char *kind;

	if (!model)
		skip();
	oracle_open(&o, "tests/data/tokenizer-oracle.txt");
	/* Ids without control tokens hold with and without the flag; where there are any, `plain` follows. */
	for (kind = oracle_next(&o); kind; kind = oracle_next(&o)) {
		if (strcmp(kind, "text") == 0) {
			snprintf(name, sizeof(name), "%s", oracle_word(&o));
			free(text);
			text = strdup(oracle_word(&o));
			n = oracle_decode(text);
			n_texts++;
		} else if (strcmp(kind, "ids") == 0 || strcmp(kind, "plain") == 0) {
			bool plain = *kind == 'p', any_control = false;
			size_t n_want;
			int32_t *want = oracle_numbers(&o, &n_want);

			for (size_t i = 0; i < n_want; i++)
				any_control = any_control || tokenizer_is_control(model, want[i]);
			assert_false(plain && any_control);
			if (!plain)
				check_ids(name, text, n, TOKENIZE_SPECIAL | TOKENIZE_BOS, want, n_want);
			if (!any_control)
				check_ids(name, text, n, 0, want, n_want);
			n_plain += plain;
			free(want);
		}
	}
	oracle_close(&o);
	assert_true(n_texts >= 120 && n_plain >= 8);
}

/* The tokens' bytes are the text's, less those that the vocabulary has no token for. */
static void check_bytes(const uint8_t *text, size_t n)
{
	struct token_list l = { 0 };
	uint8_t *back = malloc(n + 1);
	size_t n_back = 0, n_want = 0;

	assert_non_null(back);
	assert_int_equal(tokenizer_encode(model, (const char *)text, n, TOKENIZE_SPECIAL, &l), 0);
	for (size_t i = 0; i < l.n; i++) {
		size_t k;
		const uint8_t *bytes = tokenizer_bytes(model, l.ids[i], &k);

		assert_true(k <= n - n_back);
		memcpy(back + n_back, bytes, k);
		n_back += k;
	}
	for (size_t i = 0; i < n; i++) {
		bool has_token = !strchr("\x04\x06\x13\x14\x16\x1d\xc0\xc1\xf1\xf2", text[i] ? text[i] : 1) &&
				 text[i] < 0xf5;

		if (!has_token)
			continue;
		assert_true(n_want < n_back);
		assert_int_equal(back[n_want++], text[i]);
	}
	assert_int_equal(n_want, n_back);
	free(back);
	free(l.ids);
}

static void all_byte_values(void **state)
{
	uint8_t text[512];
	uint64_t seed = 1;

	if (!model)
		skip();
	for (int b = 0; b < 256; b++) {
		text[b] = (uint8_t)b;
		check_bytes(text + b, 1);
	}
	check_bytes(text, 256);
	for (int b = 0; b < 256; b++)
		text[256 + b] = (uint8_t)(255 - b);
	check_bytes(text, 512);
	for (int round = 0; round < 2000; round++) {
		size_t n = (size_t)(round % 100);

		for (size_t i = 0; i < n; i++) {
			seed = seed * 6364136223846793005u + 1442695040888963407u;
			text[i] = (uint8_t)(seed >> 40);
			if (seed >> 63)
				text[i] = 0x80 | (text[i] & 0x7f);
		}
		check_bytes(text, n);
	}
}

/* A million bytes of one kind each. */
static void long_runs(void **state)
{
	static const char *const units[] = {
		"A", "a", " ", "\n", "7", "!", "the", "\xff", "<|", "<|im_end|>", "\r\n",
		"\xf0\x9f\x91\xa9\xe2\x80\x8d", "a\xcc\x81", "\xe5\x93\x88",
	};
	size_t n_max = 1000000;
	uint8_t *text;

	if (!model)
		skip();
	text = malloc(n_max);
	assert_non_null(text);
	for (size_t u = 0; u < ARRAY_SIZE(units); u++) {
		for (size_t i = 0; i < n_max; i++)
			text[i] = (uint8_t)units[u][i % strlen(units[u])];
		check_bytes(text, n_max);
	}
	free(text);
}

static void names_of_the_model(void **state)
{
	if (!model)
		skip();
	assert_int_equal(tokenizer_n_vocab(model), 49152);
	assert_int_equal(tokenizer_bos(model), 1);
	assert_int_equal(tokenizer_eos(model), 2);
	assert_false(tokenizer_add_bos(model));
	assert_int_equal(tokenizer_control_id(model, "<|im_start|>"), 1);
	assert_int_equal(tokenizer_control_id(model, "<|im_end|>"), 2);
	assert_true(tokenizer_is_eog(model, 0));
	assert_false(tokenizer_is_eog(model, 1));
	assert_true(tokenizer_is_eog(model, 2));
	for (int32_t id = 0; id < 49152; id++)
		assert_int_equal(tokenizer_is_control(model, id), id < 17);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(whole_file),	   cmocka_unit_test(optional_fields),
		cmocka_unit_test(refused_fields),  cmocka_unit_test(recorded_ids),
		cmocka_unit_test(all_byte_values), cmocka_unit_test(long_runs),
		cmocka_unit_test(names_of_the_model),
	};

	return cmocka_run_group_tests_name("tokenizer-load", tests, setup_model, teardown_model);
}
