/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/gguf-cursor.h"

#include "ipc/base/checked.h"
#include "ipc/base/utf8.h"

void gguf_cursor_field(struct gguf_cursor *c, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(c->field, sizeof(c->field), fmt, ap);
	va_end(ap);
}

int gguf_cursor_need(struct gguf_cursor *c, uint64_t n)
{
	if (n > c->file_size - c->pos)
		return diag_set(c->diag, -EINVAL, "%s: %llu bytes at %zu reach beyond the file's %llu bytes",
				c->field, (unsigned long long)n, c->pos, (unsigned long long)c->file_size);
	if (n > GGUF_MAX_HEADER - c->pos)
		return diag_set(c->diag, -EINVAL, "%s: the header is longer than %u bytes", c->field,
				GGUF_MAX_HEADER);
	if (n > c->n - c->pos) {
		c->need = c->pos + (size_t)n;
		return GGUF_E_MORE;
	}
	return 0;
}

int gguf_cursor_u32(struct gguf_cursor *c, uint32_t *out)
{
	int r = gguf_cursor_need(c, 4);

	if (r)
		return r;
	*out = gguf_load_u32(c->bytes + c->pos);
	c->pos += 4;
	return 0;
}

int gguf_cursor_u64(struct gguf_cursor *c, uint64_t *out)
{
	int r = gguf_cursor_need(c, 8);

	if (r)
		return r;
	*out = gguf_load_u64(c->bytes + c->pos);
	c->pos += 8;
	return 0;
}

int gguf_cursor_skip(struct gguf_cursor *c, uint64_t n)
{
	int r = gguf_cursor_need(c, n);

	if (r)
		return r;
	c->pos += (size_t)n;
	return 0;
}

int gguf_cursor_string(struct gguf_cursor *c, struct gguf_string *out)
{
	uint64_t n;
	int r;

	r = gguf_cursor_u64(c, &n);
	if (r)
		return r;
	r = gguf_cursor_need(c, n);
	if (r)
		return r;
	*out = (struct gguf_string){ .data = (const char *)c->bytes + c->pos, .n = (size_t)n };
	c->pos += (size_t)n;
	return 0;
}

struct gguf_quoted gguf_quote(struct gguf_string s)
{
	struct gguf_quoted q;
	size_t n = MIN(s.n, (size_t)63);

	for (size_t i = 0; i < n; i++) {
		unsigned char ch = (unsigned char)s.data[i];
		q.text[i] = ch >= 0x20 && ch < 0x7f && ch != '"' ? (char)ch : '?';
	}
	memcpy(q.text + n, s.n > n ? "..." : "", s.n > n ? 4 : 1);
	return q;
}

/* Names are not empty, not too long, UTF-8 and without control characters. */
static int check_name(struct gguf_cursor *c, const char *kind, uint32_t index, struct gguf_string s,
		      size_t max)
{
	if (!s.n || s.n > max)
		return diag_set(c->diag, -EINVAL, "%s %u: its name has %zu bytes (1 to %zu are allowed)",
				kind, index, s.n, max);
	if (!utf8_valid((const uint8_t *)s.data, s.n))
		return diag_set(c->diag, -EINVAL, "%s %u: its name \"%s\" is not UTF-8", kind,
				index, gguf_quote(s).text);
	for (size_t i = 0; i < s.n; i++)
		if ((unsigned char)s.data[i] < 0x20 || s.data[i] == 0x7f)
			return diag_set(c->diag, -EINVAL, "%s %u: its name \"%s\" has a control character",
					kind, index, gguf_quote(s).text);
	return 0;
}

int gguf_cursor_name(struct gguf_cursor *c, const char *kind, uint32_t index, size_t max,
		     struct gguf_string *out)
{
	struct gguf_string s;
	int r;

	r = gguf_cursor_string(c, &s);
	if (r)
		return r;
	r = check_name(c, kind, index, s, max);
	if (r)
		return r;
	*out = s;
	return 0;
}
