/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/base/utf8.h"

#include <string.h>

/* What table 3-7 says of a first byte: how many follow, and where the second may lie. */
struct lead {
	uint8_t n_more;		/* 0: no first byte of a longer sequence */
	uint8_t low, high;	/* of the second byte; any later one is 80..BF */
};

static struct lead lead_of(uint8_t b)
{
	if (b < 0xc2 || b > 0xf4)
		return (struct lead){ 0 };
	if (b < 0xe0)
		return (struct lead){ 1, 0x80, 0xbf };
	if (b < 0xf0)
		return (struct lead){ 2, b == 0xe0 ? 0xa0 : 0x80, b == 0xed ? 0x9f : 0xbf };
	return (struct lead){ 3, b == 0xf0 ? 0x90 : 0x80, b == 0xf4 ? 0x8f : 0xbf };
}

int utf8_scan(const uint8_t *p, size_t n)
{
	struct lead lead;

	if (p[0] < 0x80)
		return 1;
	lead = lead_of(p[0]);
	if (lead.n_more == 0)
		return -1;
	for (int i = 1; i <= lead.n_more; i++) {
		uint8_t low = i == 1 ? lead.low : 0x80, high = i == 1 ? lead.high : 0xbf;
		if ((size_t)i >= n)
			return 0;
		if (p[i] < low || p[i] > high)
			return -i;
	}
	return lead.n_more + 1;
}

int utf8_decode(const uint8_t *p, size_t n, uint32_t *cp)
{
	static const uint8_t first_bits[5] = { 0, 0x7f, 0x1f, 0x0f, 0x07 };
	int len = utf8_scan(p, n);

	if (len > 0) {
		uint32_t v = p[0] & first_bits[len];
		for (int i = 1; i < len; i++)
			v = v << 6 | (p[i] & 0x3f);
		*cp = v;
	}
	return len;
}

size_t utf8_encode(uint32_t cp, uint8_t out[4])
{
	if (cp < 0x80) {
		out[0] = (uint8_t)cp;
		return 1;
	}
	if (cp < 0x800) {
		out[0] = (uint8_t)(0xc0 | cp >> 6);
		out[1] = (uint8_t)(0x80 | (cp & 0x3f));
		return 2;
	}
	if (cp < 0x10000) {
		out[0] = (uint8_t)(0xe0 | cp >> 12);
		out[1] = (uint8_t)(0x80 | (cp >> 6 & 0x3f));
		out[2] = (uint8_t)(0x80 | (cp & 0x3f));
		return 3;
	}
	out[0] = (uint8_t)(0xf0 | cp >> 18);
	out[1] = (uint8_t)(0x80 | (cp >> 12 & 0x3f));
	out[2] = (uint8_t)(0x80 | (cp >> 6 & 0x3f));
	out[3] = (uint8_t)(0x80 | (cp & 0x3f));
	return 4;
}

bool utf8_valid(const uint8_t *p, size_t n)
{
	size_t i = 0;

	while (i < n) {
		uint64_t word;
		int len;

		/* Most text is ASCII: eight bytes at once. */
		if (n - i >= sizeof(word)) {
			memcpy(&word, p + i, sizeof(word));
			if ((word & 0x8080808080808080u) == 0) {
				i += sizeof(word);
				continue;
			}
		}
		len = utf8_scan(p + i, n - i);
		if (len <= 0)
			return false;
		i += (size_t)len;
	}
	return true;
}

size_t utf8_complete(const uint8_t *p, size_t n)
{
	/* A sequence begins at its first byte that is no continuation, whatever
	 * lies before; so only the last three bytes can tell. */
	for (size_t k = 1; k <= 3 && k <= n; k++) {
		if ((p[n - k] & 0xc0) == 0x80)
			continue;
		return utf8_scan(p + n - k, k) == 0 ? n - k : n;
	}
	return n;
}

void utf8_make_readable(char *text, size_t n)
{
	for (size_t i = 0; i < n;) {
		const uint8_t *p = (const uint8_t *)text + i;
		uint32_t cp = 0;
		int len = utf8_decode(p, n - i, &cp);
		size_t took = len > 0 ? (size_t)len : len < 0 ? (size_t)-len : n - i;

		if (len <= 0 || cp < 0x20 || (cp >= 0x7f && cp < 0xa0))
			memset(text + i, '?', took);
		i += took;
	}
}
