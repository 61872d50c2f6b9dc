/* SPDX-License-Identifier: Apache-2.0 */
/*
 * UTF-8 against table 3-7 of the Unicode Standard, written here as a list of
 * byte ranges, and against the standard's examples of maximal subparts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "ipc/base/checked.h"
#include "ipc/base/error.h"
#include "ipc/base/utf8.h"

/* Table 3-7, "Well-Formed UTF-8 Byte Sequences": the rows as printed. */
static const struct row {
	int n;
	uint8_t range[4][2];
} table_3_7[] = {
	{ 1, { { 0x00, 0x7f } } },
	{ 2, { { 0xc2, 0xdf }, { 0x80, 0xbf } } },
	{ 3, { { 0xe0, 0xe0 }, { 0xa0, 0xbf }, { 0x80, 0xbf } } },
	{ 3, { { 0xe1, 0xec }, { 0x80, 0xbf }, { 0x80, 0xbf } } },
	{ 3, { { 0xed, 0xed }, { 0x80, 0x9f }, { 0x80, 0xbf } } },
	{ 3, { { 0xee, 0xef }, { 0x80, 0xbf }, { 0x80, 0xbf } } },
	{ 4, { { 0xf0, 0xf0 }, { 0x90, 0xbf }, { 0x80, 0xbf }, { 0x80, 0xbf } } },
	{ 4, { { 0xf1, 0xf3 }, { 0x80, 0xbf }, { 0x80, 0xbf }, { 0x80, 0xbf } } },
	{ 4, { { 0xf4, 0xf4 }, { 0x80, 0x8f }, { 0x80, 0xbf }, { 0x80, 0xbf } } },
};

/* The longest prefix of p[0..n) that some row begins with; *whole if it is all of the row. */
static int oracle_prefix(const uint8_t *p, size_t n, bool *whole)
{
	int best = 0;

	*whole = false;
	for (size_t r = 0; r < ARRAY_SIZE(table_3_7); r++) {
		const struct row *row = &table_3_7[r];
		int k = 0;

		while (k < row->n && (size_t)k < n && p[k] >= row->range[k][0] && p[k] <= row->range[k][1])
			k++;
		if (k > best) {
			best = k;
			*whole = k == row->n;
		}
	}
	return best;
}

static int oracle_scan(const uint8_t *p, size_t n)
{
	bool whole;
	int k = oracle_prefix(p, n, &whole);

	if (whole)
		return k;
	if (k > 0 && (size_t)k == n)
		return 0;
	return k > 0 ? -k : -1;
}

/* By the bits of the pattern of table 3-6. */
static uint32_t oracle_code_point(const uint8_t *p, int len)
{
	switch (len) {
	case 1:
		return p[0];
	case 2:
		return (p[0] - 0xc0u) * 64 + (p[1] - 0x80u);
	case 3:
		return (p[0] - 0xe0u) * 4096 + (p[1] - 0x80u) * 64 + (p[2] - 0x80u);
	default:
		return (p[0] - 0xf0u) * 262144 + (p[1] - 0x80u) * 4096 + (p[2] - 0x80u) * 64 + (p[3] - 0x80u);
	}
}

static void check(const uint8_t *bytes, size_t n)
{
	/* On the heap and exactly n long, so that a sanitizer sees a byte read too many. */
	uint8_t *p = malloc(n);
	int want, got;
	uint32_t cp = 0xdeadbeef;

	assert_non_null(p);
	memcpy(p, bytes, n);
	want = oracle_scan(p, n);
	got = utf8_scan(p, n);
	if (want != got)
		fail_msg("%02x %02x %02x %02x (%zu): %d, not %d", p[0], n > 1 ? p[1] : 0, n > 2 ? p[2] : 0,
			 n > 3 ? p[3] : 0, n, got, want);
	assert_int_equal(utf8_decode(p, n, &cp), want);
	if (want > 0) {
		uint8_t back[4];
		assert_int_equal(cp, oracle_code_point(p, want));
		assert_int_equal(utf8_encode(cp, back), want);
		assert_memory_equal(back, p, want);
	} else {
		assert_int_equal(cp, 0xdeadbeef);
	}
	free(p);
}

/* Whether p[0..n) is well formed, and what may be released of it, by scanning from the start. */
static void check_whole(const uint8_t *p, size_t n)
{
	size_t i = 0, complete = n;
	bool valid = true;

	while (i < n) {
		int r = oracle_scan(p + i, n - i);
		if (r <= 0)
			valid = false;
		if (r == 0) {
			complete = i;
			break;
		}
		i += (size_t)abs(r);
	}
	assert_int_equal(utf8_valid(p, n), valid);
	assert_int_equal(utf8_complete(p, n), complete);
}

static void all_up_to_three(void **state)
{
	uint8_t p[3];

	for (int a = 0; a < 256; a++) {
		p[0] = (uint8_t)a;
		check(p, 1);
		check_whole(p, 1);
		for (int b = 0; b < 256; b++) {
			p[1] = (uint8_t)b;
			check(p, 2);
			check_whole(p, 2);
			for (int c = 0; c < 256; c++) {
				p[2] = (uint8_t)c;
				if (utf8_scan(p, 3) != oracle_scan(p, 3))
					check(p, 3);
				check_whole(p, 3);
			}
		}
	}
}

static void four_at_the_edges(void **state)
{
	static const uint8_t edge[] = { 0x00, 0x41, 0x7f, 0x80, 0x81, 0x8f, 0x90, 0x9f, 0xa0, 0xbe,
					0xbf, 0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xec, 0xed, 0xee,
					0xef, 0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xf8, 0xfc, 0xfe, 0xff };
	uint8_t p[5];

	for (size_t a = 0; a < ARRAY_SIZE(edge); a++)
		for (size_t b = 0; b < ARRAY_SIZE(edge); b++)
			for (size_t c = 0; c < ARRAY_SIZE(edge); c++)
				for (size_t d = 0; d < ARRAY_SIZE(edge); d++) {
					memcpy(p, (uint8_t[]){ edge[a], edge[b], edge[c], edge[d], edge[a] },
					       5);
					for (size_t n = 1; n <= 4; n++)
						check(p, n);
					check_whole(p, 4);
					check_whole(p, 5);
				}
}

static void every_scalar_value(void **state)
{
	uint32_t cp, back;
	uint8_t p[4];

	for (cp = 0; cp <= 0x10ffff; cp++) {
		size_t n;

		if (cp >= 0xd800 && cp <= 0xdfff)
			continue;
		n = utf8_encode(cp, p);
		assert_int_equal(utf8_decode(p, n, &back), (int)n);
		assert_int_equal(back, cp);
		assert_int_equal(oracle_scan(p, n), (int)n);
	}
}

/* Lengths of the pieces that each become one U+FFFD, or are well formed. */
struct subparts {
	const char *bytes;
	size_t n;
	int pieces[12];		/* as utf8_scan() returns them, 0-terminated */
};

static void maximal_subparts(void **state)
{
	static const struct subparts cases[] = {
		/* Table 3-8: non-shortest forms */
		{ "\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", 9, { -1, -1, -1, -1, -1, -1, -1, -1, 1 } },
		/* Table 3-9: surrogates */
		{ "\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", 9, { -1, -1, -1, -1, -1, -1, -1, -1, 1 } },
		/* Table 3-10: other ill-formed sequences */
		{ "\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", 9, { -1, -1, -1, -1, -1, 1, -1, -1, 1 } },
		/* Table 3-11: truncated sequences */
		{ "\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", 9, { -2, -1, -3, -2, 1 } },
		/* Section 3.9's example of U+FFFD substitution */
		{ "\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64", 13,
		  { 1, -3, -2, -1, 1, -1, 1, -1, -1, 1 } },
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const uint8_t *p = (const uint8_t *)cases[i].bytes;
		size_t at = 0;

		for (int k = 0; cases[i].pieces[k]; k++) {
			assert_int_equal(utf8_scan(p + at, cases[i].n - at), cases[i].pieces[k]);
			at += (size_t)abs(cases[i].pieces[k]);
		}
		assert_int_equal(at, cases[i].n);
	}
}

static void long_texts(void **state)
{
	static const char text[] =
		"plain ASCII of some length, gr\xc3\xbc\xc3\x9f dich \xf0\x9f\x91\x8b\xf0\x9f\x8f\xbd!";
	const uint8_t *p = (const uint8_t *)text;
	size_t n = sizeof(text) - 1;

	assert_true(utf8_valid(p, 0));
	assert_int_equal(utf8_complete(p, 0), 0);
	for (size_t from = 0; from <= n; from++)
		for (size_t to = from; to <= n; to++)
			check_whole(p + from, to - from);
}

static void made_readable(void **state)
{
	static const struct { const char *text, *want; } cases[] = {
		{ "", "" }, { "plain", "plain" }, { "a\x1b[2J\n\x7f", "a?[2J??" },
		{ "gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f" }, { "\xf0\x9f\x91\xa9", "\xf0\x9f\x91\xa9" },
		{ "\xff" "a\xe2\x82" "b\xed\xa0\x80", "?a??b???" }, { "cut \xf0\x9f\x91", "cut ???" },
		{ "\xc0\xaf", "??" }, { "\xc2\x9b" "2J\xc2\xa0", "??2J\xc2\xa0" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		char text[32];

		memcpy(text, cases[i].text, strlen(cases[i].text) + 1);
		utf8_make_readable(text, strlen(text));
		assert_string_equal(text, cases[i].want);
	}
}

/* A sentence is text, whatever is quoted in it and wherever it is cut. */
static void sentences(void **state)
{
	for (int n = 0; n < 300; n++) {
		struct diag diag = DIAG_NULL;

		assert_int_equal(diag_set(&diag, -EINVAL, "%*s \xff\n\xf0\x9f\x91\xa9\xc3\xbc", n, ""), -EINVAL);
		assert_true(utf8_valid((const uint8_t *)diag.text, strlen(diag.text)));
		assert_null(strchr(diag.text, '\n'));
		diag_write(&diag, "later");
		assert_null(strstr(diag.text, "later"));
	}
	diag_write(NULL, "to nobody");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_up_to_three),
		cmocka_unit_test(four_at_the_edges),
		cmocka_unit_test(every_scalar_value),
		cmocka_unit_test(maximal_subparts),
		cmocka_unit_test(long_texts),
		cmocka_unit_test(made_readable),
		cmocka_unit_test(sentences),
	};

	return cmocka_run_group_tests_name("utf8", tests, NULL, NULL);
}
