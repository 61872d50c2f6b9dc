/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/byte-alphabet.h"

#include <string.h>

#include "ipc/base/utf8.h"

/*
 * The bytes that are not printable in Latin-1 lie in three ranges; their
 * characters are 0x100 plus the place among them:
 *     00..20 -> 100..120, 7f..a0 -> 121..142, ad -> 143
 */
uint32_t byte_alphabet_char(uint8_t byte)
{
	if (byte <= 0x20)
		return 0x100u + byte;
	if (byte >= 0x7f && byte <= 0xa0)
		return 0x121u + (byte - 0x7fu);
	return byte == 0xad ? 0x143 : byte;
}

int byte_alphabet_byte(uint32_t cp)
{
	if (cp >= 0x100 && cp <= 0x120)
		return (int)(cp - 0x100);
	if (cp >= 0x121 && cp <= 0x142)
		return (int)(cp - 0x121 + 0x7f);
	if (cp == 0x143)
		return 0xad;
	return cp <= 0xff && byte_alphabet_char((uint8_t)cp) == cp ? (int)cp : -1;
}

size_t byte_alphabet_encode(const uint8_t *bytes, size_t n, uint8_t *out)
{
	uint8_t *start = out;

	for (size_t i = 0; i < n; i++)
		out += utf8_encode(byte_alphabet_char(bytes[i]), out);
	return (size_t)(out - start);
}

size_t byte_alphabet_decode(const uint8_t *text, size_t n, uint8_t *out)
{
	size_t n_out = 0;

	for (size_t i = 0; i < n;) {
		uint32_t cp;
		int len = utf8_decode(text + i, n - i, &cp);
		int byte = len > 0 ? byte_alphabet_byte(cp) : -1;

		if (byte < 0) {
			memcpy(out, text, n);
			return n;
		}
		out[n_out++] = (uint8_t)byte;
		i += (size_t)len;
	}
	return n_out;
}
