/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stop strings and UTF-8: however a text is cut into tokens, the result must
 * equal the rule applied to the whole text at once by naive search.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <errno.h>

#include "daemon/engine/text.h"
#include "ipc/base/utf8.h"

#define TEXT_MAX 600

struct expected {
	uint8_t bytes[3 * TEXT_MAX];
	size_t n;
	bool stopped;
	size_t index;
};

/* Well-formed sequences as they are, each maximal ill-formed subpart as U+FFFD. */
static void naive_utf8(const uint8_t *p, size_t n, struct expected *out)
{
	for (size_t i = 0; i < n;) {
		int len = utf8_scan(p + i, n - i);

		if (len > 0) {
			memcpy(out->bytes + out->n, p + i, (size_t)len);
			out->n += (size_t)len;
			i += (size_t)len;
		} else {
			memcpy(out->bytes + out->n, "\xef\xbf\xbd", 3);
			out->n += 3;
			i += len ? (size_t)-len : n - i;
		}
	}
}

/* The earliest start wins, then the shortest (first complete), then the first listed. */
static void naive_rule(const uint8_t *text, size_t n, const char *const *stop, size_t n_stop,
		       struct expected *out)
{
	size_t start = n;

	*out = (struct expected){ 0 };
	for (size_t i = 0; i < n && start == n; i++) {
		for (size_t j = 0; j < n_stop; j++) {
			size_t len = strlen(stop[j]);

			if (len > n - i || memcmp(text + i, stop[j], len) != 0)
				continue;
			if (out->stopped && strlen(stop[out->index]) <= len)
				continue;
			out->stopped = true;
			out->index = j;
			start = i;
		}
	}
	naive_utf8(text, start, out);
}

/* How many bytes at the end of text could still begin a stop string. */
static size_t naive_held(const uint8_t *text, size_t n, const char *const *stop, size_t n_stop)
{
	for (size_t from = n > 255 ? n - 255 : 0; from < n; from++)
		for (size_t j = 0; j < n_stop; j++)
			if (strlen(stop[j]) > n - from && memcmp(text + from, stop[j], n - from) == 0)
				return n - from;
	return 0;
}

static bool occurs(const uint8_t *text, size_t n, const char *const *stop, size_t n_stop)
{
	struct expected e;

	naive_rule(text, n, stop, n_stop, &e);
	return e.stopped;
}

/*
 * Pushes the text in pieces of random length.  Besides the result, what is
 * released after each push must be exactly what the rule lets go: everything
 * but the possible beginning of a stop string and an incomplete code point.
 */
static void check(const uint8_t *text, size_t n, const char *const *stop, size_t n_stop, size_t piece_max)
{
	struct text_buffer out = { 0 };
	struct text_filter f;
	struct expected want;
	size_t i = 0;

	naive_rule(text, n, stop, n_stop, &want);
	assert_int_equal(text_filter_init(&f, stop, n_stop), 0);
	while (i < n && !f.decided) {
		size_t piece = (size_t)rand() % piece_max + 1;

		piece = piece > n - i ? n - i : piece;
		assert_int_equal(text_filter_push(&f, text + i, piece, &out), 0);
		i += piece;
		assert_true(utf8_valid(out.bytes, out.n));
		if (!occurs(text, i, stop, n_stop)) {
			size_t free_bytes = i - naive_held(text, i, stop, n_stop);
			struct expected shown = { 0 };

			naive_utf8(text, utf8_complete(text, free_bytes), &shown);
			assert_int_equal(out.n, shown.n);
			assert_memory_equal(out.bytes, shown.bytes, shown.n);
		}
	}
	assert_int_equal(text_filter_finish(&f, &out), 0);
	assert_int_equal(f.decided, want.stopped);
	if (want.stopped)
		assert_int_equal(f.match_index, want.index);
	assert_int_equal(out.n, want.n);
	if (want.n)
		assert_memory_equal(out.bytes, want.bytes, want.n);
	free(out.bytes);
	text_filter_deinit(&f);
}

static void test_known(void **state)
{
	static const struct {
		const char *text, *stop[4], *want;
	} cases[] = {
		{ "aaab", { "aab" }, "a" },
		{ "hello", { "h" }, "" },
		{ "hello", { "hello" }, "" },
		{ "hello", { "hellox" }, "hello" },
		{ "hello", { "lo", "llo" }, "he" },
		{ "abcd", { "bc", "abcd" }, "" },
		{ "abcx", { "bc", "abcd" }, "a" },
		{ "xabc", { "abcd", "bc", "c" }, "xa" },
		{ "abab abac", { "abac" }, "abab " },
		{ "a\xc3\xa4z", { "\xa4" }, "a\xef\xbf\xbd" },
		{ "a\xf0\x9f\x91\xa9\xe2\x80\x8d" "b", { "\xe2\x80\x8d" }, "a\xf0\x9f\x91\xa9" },
		{ "\xf0\x9f\x91", { "x" }, "\xef\xbf\xbd" },
		{ "\xff\xe2\x82", { "\x82x" }, "\xef\xbf\xbd\xef\xbf\xbd" },
		{ "", { "x" }, "" },
	};

	(void)state;
	for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
		size_t n_stop = 0;
		struct expected e;

		while (cases[c].stop[n_stop])
			n_stop++;
		naive_rule((const uint8_t *)cases[c].text, strlen(cases[c].text), cases[c].stop, n_stop, &e);
		assert_int_equal(e.n, strlen(cases[c].want));
		assert_memory_equal(e.bytes, cases[c].want, e.n);
		for (int i = 0; i < 20; i++)
			check((const uint8_t *)cases[c].text, strlen(cases[c].text), cases[c].stop, n_stop,
			      1 + i % 5);
	}
}

/* Few letters, so that prefixes overlap; bytes that make and break code points. */
static const char *const alphabets[] = {
	"ab", "abc", "a\xc3\xa4\xe2\x82\xac", "\xf0\x9f\x91\xa9\x61\xff", "x\xe2\x80\x8d"
};

static void random_string(char *out, size_t n, const char *alphabet)
{
	for (size_t i = 0; i < n; i++)
		out[i] = alphabet[(size_t)rand() % strlen(alphabet)];
	out[n] = 0;
}

static void test_random(void **state)
{
	int n_stopped = 0, n_rounds = getenv("KVD_TEST_LONG") ? 300000 : 10000;

	(void)state;
	srand(1);
	for (int round = 0; round < n_rounds; round++) {
		const char *alphabet = alphabets[(size_t)rand() % 5];
		size_t n = (size_t)rand() % 40, n_stop = (size_t)rand() % 5;
		char text[TEXT_MAX + 1], strings[5][9];
		const char *stop[5];

		random_string(text, n, alphabet);
		for (size_t i = 0; i < n_stop; i++) {
			random_string(strings[i], (size_t)rand() % 8 + 1, alphabet);
			stop[i] = strings[i];
		}
		n_stopped += occurs((const uint8_t *)text, n, stop, n_stop);
		check((const uint8_t *)text, n, stop, n_stop, (size_t)rand() % 6 + 1);
	}
	assert_in_range(n_stopped, n_rounds / 5, n_rounds * 9 / 10);	/* both ends are tried */
}

/* Long stop strings, cut from the text or nearly so. */
static void test_long(void **state)
{
	(void)state;
	srand(2);
	for (int round = 0; round < 100; round++) {
		char text[TEXT_MAX + 1], string[TEXT_STOP_BYTES_MAX + 1];
		size_t n = 300 + (size_t)rand() % 300, len = 200 + (size_t)rand() % 57;
		const char *stop[1] = { string };

		random_string(text, n, "aaaaaaab");
		memcpy(string, text + n - len, len);
		string[len] = 0;
		if (round % 2)
			string[len - 1] ^= 1;
		check((const uint8_t *)text, n, stop, 1, 40);
	}
}

/* What is held, and what one push lets go, stays within the bound: long stop strings, ill-formed bytes. */
static void test_bound(void **state)
{
	(void)state;
	srand(3);
	for (int round = 0; round < 2000; round++) {
		const char *alphabet = round % 3 ? "aaaaaaab" : "\xff\xff\xff\xe2";
		char string[2][TEXT_STOP_BYTES_MAX + 1], piece[301];
		const char *stop[2] = { string[0], string[1] };
		size_t n_stop = (size_t)rand() % 3, max_push = (size_t)rand() % 300 + 1;
		struct text_buffer out = { 0 };
		struct text_filter f;
		uint64_t bound;

		for (size_t i = 0; i < n_stop; i++)
			random_string(string[i], (size_t)rand() % TEXT_STOP_BYTES_MAX + 1, alphabet);
		assert_int_equal(text_filter_init(&f, stop, n_stop), 0);
		bound = text_filter_bound(&f, (uint32_t)max_push);
		for (int i = 0; i < 50; i++) {
			size_t n = (size_t)rand() % max_push + 1;

			random_string(piece, n, alphabet);
			out.n = 0;
			assert_int_equal(text_filter_push(&f, (const uint8_t *)piece, n, &out), 0);
			assert_true(f.held.capacity + out.capacity <= bound);
		}
		out.n = 0;
		assert_int_equal(text_filter_finish(&f, &out), 0);
		assert_true(f.held.capacity + out.capacity <= bound);
		free(out.bytes);
		text_filter_deinit(&f);
	}
}

static void test_limits(void **state)
{
	char text[TEXT_STOP_BYTES_MAX + 2];
	const char *stop[TEXT_STOP_MAX + 1];
	struct text_filter f;

	(void)state;
	memset(text, 'x', sizeof(text));
	text[TEXT_STOP_BYTES_MAX + 1] = 0;
	for (size_t i = 0; i <= TEXT_STOP_MAX; i++)
		stop[i] = text + 1;
	assert_int_equal(text_filter_init(&f, stop, TEXT_STOP_MAX + 1), -EINVAL);
	assert_int_equal(text_filter_init(&f, stop, TEXT_STOP_MAX), 0);
	text_filter_deinit(&f);
	stop[1] = text;
	assert_int_equal(text_filter_init(&f, stop, 2), -EINVAL);
	stop[1] = "";
	assert_int_equal(text_filter_init(&f, stop, 2), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_known),
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_long),
		cmocka_unit_test(test_bound),
		cmocka_unit_test(test_limits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
