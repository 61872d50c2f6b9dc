/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/sentencepiece-text.h"

#include <string.h>

size_t sentencepiece_escape(const uint8_t *text, size_t n, uint8_t *out)
{
	uint8_t *start = out;

	for (size_t i = 0; i < n; i++) {
		if (text[i] != ' ') {
			*out++ = text[i];
			continue;
		}
		memcpy(out, SENTENCEPIECE_SPACE, SENTENCEPIECE_SPACE_BYTES);
		out += SENTENCEPIECE_SPACE_BYTES;
	}
	return (size_t)(out - start);
}

size_t sentencepiece_unescape(const uint8_t *text, size_t n, uint8_t *out)
{
	uint8_t *start = out;

	for (size_t i = 0; i < n;) {
		if (n - i >= SENTENCEPIECE_SPACE_BYTES &&
		    memcmp(text + i, SENTENCEPIECE_SPACE, SENTENCEPIECE_SPACE_BYTES) == 0) {
			*out++ = ' ';
			i += SENTENCEPIECE_SPACE_BYTES;
		} else {
			*out++ = text[i++];
		}
	}
	return (size_t)(out - start);
}

static int hex_digit(uint8_t c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int sentencepiece_byte(const uint8_t *text, size_t n)
{
	int high, low;

	if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
		return -1;
	high = hex_digit(text[3]);
	low = hex_digit(text[4]);
	return high < 0 || low < 0 ? -1 : high << 4 | low;
}
