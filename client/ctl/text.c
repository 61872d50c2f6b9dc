/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/text.h"

/*
 * Length of the well-formed sequence at p (Unicode 15.0, table 3-7) and its code
 * point, or 0 if there is none.
 */
static size_t utf8_sequence(const uint8_t *p, size_t n, uint32_t *cp)
{
	static const uint32_t least[5] = { 0, 0, 0x80, 0x800, 0x10000 };
	size_t len;
	uint32_t v;

	if (p[0] < 0x80) {
		*cp = p[0];
		return 1;
	}
	if (p[0] < 0xc2 || p[0] > 0xf4)
		return 0;
	len = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
	if (n < len)
		return 0;
	v = p[0] & (0x7f >> len);
	for (size_t i = 1; i < len; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return 0;
		v = v << 6 | (p[i] & 0x3f);
	}
	if (v < least[len] || v > 0x10ffff || (v >= 0xd800 && v < 0xe000))
		return 0;
	*cp = v;
	return len;
}

static const char replacement[3] = { '\xef', '\xbf', '\xbd' };

size_t text_visible(const void *p, size_t n, char *out)
{
	const uint8_t *s = p;
	size_t o = 0;

	for (size_t i = 0; i < n;) {
		uint32_t cp;
		size_t len = utf8_sequence(s + i, n - i, &cp);
		if (!len) {
			memcpy(out + o, replacement, 3);
			o += 3;
			i++;
			continue;
		}
		if ((cp < 0x20 && cp != '\n' && cp != '\t') || cp == 0x7f) {
			out[o++] = '^';
			out[o++] = (char)(cp ^ 0x40);
		} else if (cp >= 0x80 && cp < 0xa0) {
			/* two bytes in, eight out */
			char form[9];
			snprintf(form, sizeof(form), "<U+%04X>", cp);
			memcpy(out + o, form, 8);
			o += 8;
		} else {
			memcpy(out + o, s + i, len);
			o += len;
		}
		i += len;
	}
	return o;
}

void text_print_visible(FILE *f, const void *p, size_t n)
{
	const char *s = p;
	char out[256 * TEXT_VISIBLE_MAX];

	/* cut where a code point begins, so that none is torn */
	while (n) {
		size_t k = n < 256 ? n : 256;
		while (k < n && k > 252 && ((uint8_t)s[k] & 0xc0) == 0x80)
			k--;
		size_t n_out = text_visible(s, k, out);
		fwrite(out, 1, n_out, f);
		s += k;
		n -= k;
	}
}

size_t text_utf8(const void *p, size_t n, char *out)
{
	const uint8_t *s = p;
	size_t o = 0;

	for (size_t i = 0; i < n;) {
		uint32_t cp;
		size_t len = utf8_sequence(s + i, n - i, &cp);
		if (len) {
			memcpy(out + o, s + i, len);
			o += len;
			i += len;
		} else {
			memcpy(out + o, replacement, 3);
			o += 3;
			i++;
		}
	}
	return o;
}

/* The escaped form of what begins at p; returns how many bytes of p it covers. */
static size_t quote_one(const uint8_t *p, size_t n, char out[8])
{
	static const char *const named[] = { ['\n'] = "\\n", ['\t'] = "\\t", ['\r'] = "\\r",
					     ['"'] = "\\\"", ['\\'] = "\\\\" };
	uint32_t cp;
	size_t len = utf8_sequence(p, n, &cp);

	if (len && cp < sizeof(named) / sizeof(named[0]) && named[cp]) {
		memcpy(out, named[cp], strlen(named[cp]) + 1);
		return 1;
	}
	if (!len || cp < 0x20 || cp == 0x7f) {
		snprintf(out, 8, "\\x%02x", p[0]);
		return 1;
	}
	if (cp >= 0x80 && cp < 0xa0) {
		snprintf(out, 8, "\\u%04x", cp);
		return len;
	}
	memcpy(out, p, len);
	out[len] = '\0';
	return len;
}

void text_quote(const void *p, size_t n, char *out, size_t n_out)
{
	const uint8_t *s = p;
	size_t o = 0;

	out[o++] = '"';
	for (size_t i = 0; i < n;) {
		char one[8];
		size_t used = quote_one(s + i, n - i, one), len = strlen(one);
		/* room is kept for the end: ..." and NUL */
		if (o + len + 5 > n_out) {
			memcpy(out + o, "...", 3);
			o += 3;
			break;
		}
		memcpy(out + o, one, len);
		o += len;
		i += used;
	}
	out[o++] = '"';
	out[o] = '\0';
}

size_t text_columns(const char *p)
{
	size_t n = 0;

	for (; *p; p++)
		n += ((uint8_t)*p & 0xc0) != 0x80;
	return n;
}

static int text_reserve(struct text_buffer *b, size_t more)
{
	size_t capacity = b->capacity ? b->capacity : 256;

	if (more > SIZE_MAX / 4 - b->n)
		return -ENOMEM;
	while (capacity < b->n + more)
		capacity *= 2;
	if (capacity == b->capacity)
		return 0;
	char *data = realloc(b->data, capacity);
	if (!data)
		return -ENOMEM;
	b->data = data;
	b->capacity = capacity;
	return 0;
}

int text_append(struct text_buffer *b, const void *p, size_t n)
{
	int r = text_reserve(b, n + 1);

	if (r)
		return r;
	if (n)
		memcpy(b->data + b->n, p, n);
	b->n += n;
	b->data[b->n] = '\0';
	return 0;
}

int text_read_all(int fd, size_t max, struct text_buffer *b)
{
	for (;;) {
		int r = text_reserve(b, 65536);
		if (r)
			return r;
		ssize_t n = read(fd, b->data + b->n, 65535);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		b->n += (size_t)n;
		b->data[b->n] = '\0';
		if (!n)
			return 0;
		if (b->n > max)
			return -EFBIG;
	}
}
