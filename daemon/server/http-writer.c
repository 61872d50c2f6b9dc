/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/http-writer.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "ipc/base/checked.h"
#include "ipc/base/utf8.h"

void http_writer_deinit(struct http_writer *w)
{
	free(w->data);
	*w = (struct http_writer){ 0 };
}

/* Room for n more bytes; NULL: there is none. */
static char *room(struct http_writer *w, size_t n)
{
	size_t capacity = w->capacity ? w->capacity : 256;
	char *grown;

	if (w->failed)
		return NULL;
	if (n <= w->capacity - w->n)
		return w->data + w->n;
	while (capacity - w->n < n) {
		if (capacity > SIZE_MAX / 4) {
			w->failed = true;
			return NULL;
		}
		capacity *= 2;
	}
	grown = realloc(w->data, capacity);
	if (!grown) {
		w->failed = true;
		return NULL;
	}
	w->data = grown;
	w->capacity = capacity;
	return w->data + w->n;
}

void http_put(struct http_writer *w, const void *data, size_t n)
{
	char *to = n ? room(w, n) : NULL;

	if (!to)
		return;
	memcpy(to, data, n);
	w->n += n;
}

void http_put_writer(struct http_writer *w, const struct http_writer *from)
{
	w->failed = w->failed || from->failed;
	http_put(w, from->data, from->n);
}

void http_put_format(struct http_writer *w, const char *fmt, ...)
{
	char text[256];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (n > 0)
		http_put(w, text, MIN((size_t)n, sizeof(text) - 1));
}

/* What stands for one byte in a string; 0: itself. */
static size_t escape(uint8_t c, char out[6])
{
	static const char hex[] = "0123456789abcdef";
	static const char names[] = "\"\"\\\\\bb\ff\nn\rr\tt";

	for (size_t i = 0; i < sizeof(names) - 1; i += 2) {
		if ((uint8_t)names[i] != c)
			continue;
		out[0] = '\\';
		out[1] = names[i + 1];
		return 2;
	}
	/* DEL is a control character as well, though JSON lets it stand. */
	if (c >= 0x20 && c != 0x7f)
		return 0;
	memcpy(out, "\\u00", 4);
	out[4] = hex[c >> 4];
	out[5] = hex[c & 15];
	return 6;
}

void http_put_escaped(struct http_writer *w, const uint8_t *bytes, size_t n)
{
	size_t begin = 0, i = 0;

	/* Stretches that stand as they are go at once. */
	while (i < n) {
		size_t n_escaped = 0;
		char escaped[6];
		int k = 1;

		if (bytes[i] < 0x80)
			n_escaped = escape(bytes[i], escaped);
		else
			k = utf8_scan(bytes + i, n - i);
		if (k > 0 && !n_escaped) {
			i += (size_t)k;
			continue;
		}
		http_put(w, bytes + begin, i - begin);
		if (n_escaped)
			http_put(w, escaped, n_escaped);
		else
			http_put(w, "\xef\xbf\xbd", 3);
		/* 0: cut at the end. */
		i += k > 0 ? 1 : k ? (size_t)-k : n - i;
		begin = i;
	}
	http_put(w, bytes + begin, n - begin);
}

void http_put_string(struct http_writer *w, const uint8_t *bytes, size_t n)
{
	http_put(w, "\"", 1);
	http_put_escaped(w, bytes, n);
	http_put(w, "\"", 1);
}

void http_put_cstring(struct http_writer *w, const char *text)
{
	http_put_string(w, (const uint8_t *)text, strlen(text));
}

void http_put_piece(struct http_writer *w, const uint8_t *bytes, size_t n)
{
	if (utf8_valid(bytes, n)) {
		http_put_string(w, bytes, n);
		return;
	}
	http_put_text(w, "\"bytes:");
	for (size_t i = 0; i < n; i++)
		http_put_format(w, "\\\\x%02x", bytes[i]);
	http_put(w, "\"", 1);
}

void http_put_u64(struct http_writer *w, uint64_t v)
{
	char text[20];
	size_t at = sizeof(text);

	do
		text[--at] = (char)('0' + v % 10);
	while (v /= 10);
	http_put(w, text + at, sizeof(text) - at);
}

void http_put_bytes(struct http_writer *w, const uint8_t *bytes, size_t n)
{
	http_put(w, "[", 1);
	for (size_t i = 0; i < n; i++) {
		if (i)
			http_put(w, ",", 1);
		http_put_u64(w, bytes[i]);
	}
	http_put(w, "]", 1);
}

void http_put_float(struct http_writer *w, float v)
{
	if (isnan(v))
		http_put_text(w, "null");
	else if (isinf(v))
		http_put_text(w, v < 0 ? "-9999.0" : "9999.0");
	else
		http_put_format(w, "%.9g", (double)v);
}
