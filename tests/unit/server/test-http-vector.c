/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors in a reply, read back: as numbers by the C library, as base64 by a decoder of the test's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <float.h>
#include <math.h>

#include "daemon/server/http-vector.h"
#include "ipc/base/checked.h"

#define N_MAX 1000

/* [a,b,...] */
static void read_numbers(const struct http_writer *w, float *out, uint32_t n)
{
	char *text = malloc(w->n + 1), *p = text, *end;

	assert_non_null(text);
	memcpy(text, w->data, w->n);
	text[w->n] = '\0';
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(*p++, i ? ',' : '[');
		out[i] = strtof(p, &end);
		assert_ptr_not_equal(end, p);
		p = end;
	}
	assert_string_equal(p, n ? "]" : "[]");
	free(text);
}

static unsigned digit(char c)
{
	if (c >= 'A' && c <= 'Z')
		return (unsigned)(c - 'A');
	if (c >= 'a' && c <= 'z')
		return (unsigned)(c - 'a') + 26;
	if (c >= '0' && c <= '9')
		return (unsigned)(c - '0') + 52;
	assert_true(c == '+' || c == '/');
	return c == '+' ? 62 : 63;
}

static void read_base64(const struct http_writer *w, float *out, uint32_t n)
{
	uint8_t bytes[4 * N_MAX + 3];
	size_t n_bytes = 0;

	assert_true(w->n >= 2 && w->data[0] == '"' && w->data[w->n - 1] == '"');
	assert_int_equal((w->n - 2) % 4, 0);
	for (size_t i = 1; i < w->n - 1; i += 4) {
		const char *c = w->data + i;
		bool last = i + 5 == w->n;
		unsigned pad = !last ? 0 : c[2] == '=' ? 2 : c[3] == '=';
		uint32_t v = digit(c[0]) << 18 | digit(c[1]) << 12;

		v |= pad < 2 ? digit(c[2]) << 6 : 0;
		v |= pad < 1 ? digit(c[3]) : 0;
		for (unsigned k = 0; k < 3 - pad; k++)
			bytes[n_bytes++] = (uint8_t)(v >> (16 - 8 * k));
		/* What is cut off is zero. */
		assert_int_equal(v & ((1u << 8 * pad) - 1), 0);
		assert_true(!pad || c[3] == '=');
	}
	assert_int_equal(n_bytes, 4 * (size_t)n);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t bits = (uint32_t)bytes[4 * i] | (uint32_t)bytes[4 * i + 1] << 8 |
				(uint32_t)bytes[4 * i + 2] << 16 | (uint32_t)bytes[4 * i + 3] << 24;

		memcpy(&out[i], &bits, sizeof(bits));
	}
}

static void check(const float *values, uint32_t n)
{
	static float a[N_MAX], b[N_MAX];
	struct http_writer numbers = { 0 }, base64 = { 0 };
	long double sum = 0, length;

	for (uint32_t i = 0; i < n; i++)
		sum += (long double)values[i] * (long double)values[i];
	length = sum > 0 ? sqrtl(sum) : 1;
	http_put_vector(&numbers, values, n);
	http_put_vector_base64(&base64, values, n);
	assert_false(numbers.failed || base64.failed);
	read_numbers(&numbers, a, n);
	read_base64(&base64, b, n);
	if (n)
		assert_memory_equal(a, b, n * sizeof(a[0]));
	for (uint32_t i = 0; i < n; i++) {
		double want = (double)((long double)values[i] / length);

		assert_true(fabs((double)b[i] - want) <= 1e-7 * fabs(want) + (double)FLT_TRUE_MIN);
	}
	http_writer_deinit(&numbers);
	http_writer_deinit(&base64);
}

static void test_values(void **state)
{
	static const float few[] = { 0.25f, -0.5f, 3, 1e-7f, -0.0f };
	static const float huge[] = { FLT_MAX, -FLT_MAX, 1, FLT_MAX };
	static const float tiny[] = { FLT_TRUE_MIN, -FLT_TRUE_MIN, 0, 1e-40f };
	static const float zeros[4];
	static float many[N_MAX];

	for (uint32_t n = 0; n <= ARRAY_SIZE(few); n++)
		check(few, n);
	check(huge, ARRAY_SIZE(huge));
	check(tiny, ARRAY_SIZE(tiny));
	check(zeros, ARRAY_SIZE(zeros));
	srand(1);
	for (uint32_t n = 1; n <= N_MAX; n = n * 3 / 2 + 1) {
		for (uint32_t i = 0; i < n; i++)
			many[i] = ((float)rand() / (float)RAND_MAX - 0.5f) * (i % 7 ? 3 : 1000);
		check(many, n);
	}
}

/* The bytes of 3/5 and 4/5, by hand: 9a 99 19 3f, cd cc 4c 3f. */
static void test_by_hand(void **state)
{
	static const float values[] = { 3, 4 };
	struct http_writer w = { 0 };

	http_put_vector_base64(&w, values, 2);
	http_put_vector(&w, values, 2);
	assert_int_equal(w.n, strlen("\"mpkZP83MTD8=\"[0.600000024,0.800000012]"));
	assert_memory_equal(w.data, "\"mpkZP83MTD8=\"[0.600000024,0.800000012]", w.n);
	http_writer_deinit(&w);
}

static void test_finite(void **state)
{
	float values[3] = { 1, FLT_MAX, -FLT_MAX };

	assert_true(http_vector_is_finite(values, 3));
	values[2] = -INFINITY;
	assert_false(http_vector_is_finite(values, 3));
	assert_true(http_vector_is_finite(values, 2));
	values[0] = NAN;
	assert_false(http_vector_is_finite(values, 1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_by_hand),
		cmocka_unit_test(test_finite),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
