/* SPDX-License-Identifier: Apache-2.0 */
/* JSON as it is written: jansson reads it back, and finds what was put in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#include "daemon/server/http-writer.h"
#include "ipc/base/checked.h"
#include "ipc/base/utf8.h"

/* What a person makes of bytes with the Unicode Standard at hand: one U+FFFD for each ill-formed subpart. */
static size_t repaired(const uint8_t *bytes, size_t n, uint8_t *out)
{
	size_t to = 0;

	for (size_t i = 0; i < n;) {
		int k = utf8_scan(bytes + i, n - i);

		if (k > 0) {
			for (int j = 0; j < k; j++)
				out[to++] = bytes[i + (size_t)j];
			i += (size_t)k;
		} else {
			out[to++] = 0xef;
			out[to++] = 0xbf;
			out[to++] = 0xbd;
			i += k ? (size_t)-k : n - i;
		}
	}
	return to;
}

static void check_string(const uint8_t *bytes, size_t n)
{
	struct http_writer w = { 0 };
	uint8_t *wanted = malloc(3 * n + 1);
	size_t n_wanted = repaired(bytes, n, wanted);
	json_t *v;

	http_put_string(&w, bytes, n);
	assert_false(w.failed);
	for (size_t i = 0; i < w.n; i++)
		assert_true((uint8_t)w.data[i] >= 0x20 && w.data[i] != 0x7f);
	v = json_loadb(w.data, w.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	assert_non_null(v);
	assert_int_equal(json_string_length(v), n_wanted);
	assert_memory_equal(json_string_value(v), wanted, n_wanted);
	json_decref(v);
	http_writer_deinit(&w);
	free(wanted);
}

static void test_strings(void **state)
{
	static const char text[] = "quote \" backslash \\ / \b\f\n\r\t \x1b \x7f é € 😀 \xc3( \xe2\x82( \xf0\x9f\x98";
	uint8_t bytes[64];
	uint64_t random = 1;

	check_string((const uint8_t *)text, sizeof(text));
	check_string((const uint8_t *)"", 0);
	for (unsigned a = 0; a < 256; a++) {
		for (unsigned b = 0; b < 256; b++) {
			bytes[0] = (uint8_t)a;
			bytes[1] = (uint8_t)b;
			check_string(bytes, 2);
		}
	}
	/* Leads and trails in any order, so that sequences of all lengths come up. */
	for (unsigned i = 0; i < 20000; i++) {
		size_t n = i % sizeof(bytes);

		for (size_t k = 0; k < n; k++) {
			random = random * 6364136223846793005u + 1442695040888963407u;
			bytes[k] = (uint8_t)((random >> 60 & 3 ? 0x80 : 0) | (random >> 50 & 0x7f));
		}
		check_string(bytes, n);
	}
}

static void written(struct http_writer *w, const char *text)
{
	assert_int_equal(w->n, strlen(text));
	assert_memory_equal(w->data, text, w->n);
	w->n = 0;
}

static void test_pieces(void **state)
{
	struct http_writer w = { 0 };

	http_put_piece(&w, (const uint8_t *)"\xe2\x82\xac\n", 4);
	written(&w, "\"\xe2\x82\xac\\n\"");
	http_put_piece(&w, (const uint8_t *)"a\xe2\x82", 3);
	written(&w, "\"bytes:\\\\x61\\\\xe2\\\\x82\"");
	http_put_bytes(&w, (const uint8_t *)"a\xe2\x82", 3);
	written(&w, "[97,226,130]");
	http_put_bytes(&w, NULL, 0);
	written(&w, "[]");
	http_put_piece(&w, NULL, 0);
	written(&w, "\"\"");
	http_writer_deinit(&w);
}

static void test_numbers(void **state)
{
	static const float values[] = { 0.0f, -0.5f, -1.0f / 3, -123456.78f, -1e-30f, 1e30f, 16777217.0f, -0x1p-149f };
	struct http_writer w = { 0 };
	json_t *v;

	for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
		http_put_float(&w, values[i]);
		v = json_loadb(w.data, w.n, JSON_DECODE_ANY, NULL);
		assert_true(json_is_number(v));
		assert_true((float)json_number_value(v) == values[i]);
		json_decref(v);
		w.n = 0;
	}
	http_put_float(&w, NAN);
	written(&w, "null");
	http_put_float(&w, -INFINITY);
	written(&w, "-9999.0");
	http_put_u64(&w, 0);
	written(&w, "0");
	http_put_u64(&w, UINT64_MAX);
	written(&w, "18446744073709551615");
	http_writer_deinit(&w);
}

/* It grows, and what fails stays failed and is passed on. */
static void test_growth(void **state)
{
	struct http_writer w = { 0 }, failed = { .failed = true };

	for (unsigned i = 0; i < 100000; i++)
		http_put_u64(&w, i % 10);
	assert_int_equal(w.n, 100000);
	for (unsigned i = 0; i < 100000; i++)
		assert_int_equal(w.data[i], '0' + (int)(i % 10));
	http_put_text(&failed, "x");
	assert_true(failed.failed && !failed.n);
	http_put_writer(&w, &failed);
	assert_true(w.failed);
	http_put_text(&w, "x");
	assert_int_equal(w.n, 100000);
	http_writer_deinit(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_strings),
		cmocka_unit_test(test_pieces),
		cmocka_unit_test(test_numbers),
		cmocka_unit_test(test_growth),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
