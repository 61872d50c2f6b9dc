/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The UTF-8 gate against a decoder that is written another way: from the
 * definition (Unicode 15.0, D92: scalar values, shortest form) instead of from the
 * table of well-formed sequences.
 */
#include <stdbool.h>

#include "ipc/base/utf8.h"
#include "tests/fuzz/fuzz.h"

/* How many bytes a first byte announces, 0 for none that can begin a sequence of scalar values. */
static size_t announced(uint8_t b)
{
	if (b < 0x80)
		return 1;
	if (b >= 0xc0 && b < 0xe0)
		return 2;
	if (b >= 0xe0 && b < 0xf0)
		return 3;
	return b >= 0xf0 && b < 0xf8 ? 4 : 0;
}

/* The value of n bytes, of which the first announces so many; false if one is no continuation. */
static bool value_of(const uint8_t *p, size_t n, uint32_t *out)
{
	uint32_t v = n == 1 ? p[0] : p[0] & (0xffu >> (n + 1));

	for (size_t i = 1; i < n; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return false;
		v = v << 6 | (p[i] & 0x3fu);
	}
	*out = v;
	return true;
}

/* Whether the value is a scalar one that needs n bytes. */
static bool is_shortest(uint32_t v, size_t n)
{
	static const uint32_t first[] = { 0, 0, 0x80, 0x800, 0x10000, 0x110000 };

	return v >= first[n] && v < first[n + 1] && !(v >= 0xd800 && v <= 0xdfff);
}

/* Whether some continuation bytes could complete the k bytes at p: tried, not reasoned. */
static bool can_be_completed(const uint8_t *p, size_t k)
{
	size_t n = announced(p[0]);
	uint8_t whole[4];

	if (n <= k)
		return false;
	memcpy(whole, p, k);
	for (uint32_t more = 0; more < 64; more++) {
		uint32_t v;

		/* The first missing byte decides; those behind it are free. */
		whole[k] = (uint8_t)(0x80 | more);
		memset(whole + k + 1, 0x80, 4 - k - 1);
		if (value_of(whole, n, &v) && is_shortest(v, n))
			return true;
	}
	return false;
}

/* utf8_scan() as its header describes it. */
static int scan(const uint8_t *p, size_t n)
{
	size_t len = announced(p[0]), k;
	uint32_t v;

	if (len && len <= n && value_of(p, len, &v) && is_shortest(v, len))
		return (int)len;
	/* The longest beginning that some well-formed sequence shares. */
	for (k = 0; k < n && k < 4 && can_be_completed(p, k + 1);)
		k++;
	if (k == n)
		return 0;
	return k ? -(int)k : -1;
}

static void check_decode(const uint8_t *p, size_t n, int len)
{
	uint8_t again[4];
	uint32_t cp = 0xdead, v;

	FUZZ_CHECK(utf8_decode(p, n, &cp) == len);
	if (len <= 0) {
		FUZZ_CHECK(cp == 0xdead);
		return;
	}
	FUZZ_CHECK(value_of(p, (size_t)len, &v) && v == cp);
	FUZZ_CHECK(utf8_encode(cp, again) == (size_t)len);
	FUZZ_CHECK(memcmp(again, p, (size_t)len) == 0);
}

/* What may be shown is everything but an incomplete sequence at the end. */
static void check_complete(const uint8_t *p, size_t n)
{
	size_t i = 0;

	while (i < n) {
		int len = scan(p + i, n - i);

		if (len == 0)
			break;
		i += (size_t)(len > 0 ? len : -len);
	}
	FUZZ_CHECK(utf8_complete(p, n) == i);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	bool valid = true;

	for (size_t i = 0; i < n;) {
		int len = utf8_scan(data + i, n - i);

		FUZZ_CHECK(len == scan(data + i, n - i));
		check_decode(data + i, n - i, len);
		valid = valid && len > 0;
		i += len > 0 ? (size_t)len : len < 0 ? (size_t)-len : n - i;
	}
	FUZZ_CHECK(utf8_valid(data, n) == valid);
	for (size_t k = 0; k <= n && k < 64; k++)
		check_complete(data, k);
	check_complete(data, n);
	return 0;
}
