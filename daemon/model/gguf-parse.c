/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses and validates the header of a GGUF file.
 *
 * A cursor walks over the bytes once.  A length that points beyond the file is
 * an error there and then; one that points beyond the buffer stops the walk
 * with GGUF_E_MORE.  Arrays are allocated only once the bytes that they index
 * are in the buffer.
 */
#include <stdlib.h>

#include "daemon/model/gguf-private.h"
#include "ipc/base/checked.h"
#include "ipc/base/utf8.h"

#define MIN_KV_BYTES 14u	/* an empty-valued entry: length, 1 byte of key, type, 1 byte */
#define MIN_TENSOR_BYTES 33u	/* length, 1 byte of name, n_dims, one dim, type, offset */

struct cursor {
	const uint8_t *bytes;
	size_t n;		/* bytes in the buffer */
	size_t pos;
	uint64_t file_size;
	size_t need;		/* with GGUF_E_MORE */
	struct diag *diag;
	char field[96];		/* what is being read, for the sentence */
};

__attribute__((format(printf, 2, 3)))
static void cursor_field(struct cursor *c, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(c->field, sizeof(c->field), fmt, ap);
	va_end(ap);
}

/* Makes sure that n bytes follow in the buffer. */
static int cursor_need(struct cursor *c, uint64_t n)
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

static int cursor_u32(struct cursor *c, uint32_t *out)
{
	int r = cursor_need(c, 4);

	if (r)
		return r;
	*out = gguf_load_u32(c->bytes + c->pos);
	c->pos += 4;
	return 0;
}

static int cursor_u64(struct cursor *c, uint64_t *out)
{
	int r = cursor_need(c, 8);

	if (r)
		return r;
	*out = gguf_load_u64(c->bytes + c->pos);
	c->pos += 8;
	return 0;
}

static int cursor_skip(struct cursor *c, uint64_t n)
{
	int r = cursor_need(c, n);

	if (r)
		return r;
	c->pos += (size_t)n;
	return 0;
}

static int cursor_string(struct cursor *c, struct gguf_string *out)
{
	uint64_t n;
	int r;

	r = cursor_u64(c, &n);
	if (r)
		return r;
	r = cursor_need(c, n);
	if (r)
		return r;
	*out = (struct gguf_string){ .data = (const char *)c->bytes + c->pos, .n = (size_t)n };
	c->pos += (size_t)n;
	return 0;
}

uint32_t gguf_type_bytes(uint32_t type)
{
	static const uint8_t bytes[] = {
		[GGUF_U8] = 1, [GGUF_I8] = 1, [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
		[GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
	};

	return type < ARRAY_SIZE(bytes) ? bytes[type] : 0;
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
static int check_name(struct cursor *c, const char *kind, uint64_t index, struct gguf_string s, size_t max)
{
	if (!s.n || s.n > max)
		return diag_set(c->diag, -EINVAL, "%s %llu: its name has %zu bytes (1 to %zu are allowed)", kind,
				(unsigned long long)index, s.n, max);
	if (!utf8_valid((const uint8_t *)s.data, s.n))
		return diag_set(c->diag, -EINVAL, "%s %llu: its name \"%s\" is not UTF-8", kind,
				(unsigned long long)index, gguf_quote(s).text);
	for (size_t i = 0; i < s.n; i++)
		if ((unsigned char)s.data[i] < 0x20 || s.data[i] == 0x7f)
			return diag_set(c->diag, -EINVAL, "%s %llu: its name \"%s\" has a control character", kind,
					(unsigned long long)index, gguf_quote(s).text);
	return 0;
}

static int check_bools(struct cursor *c, const uint8_t *p, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		if (p[i] > 1)
			return diag_set(c->diag, -EINVAL, "%s: %u is not a bool", c->field, p[i]);
	return 0;
}

/* Offsets of all strings, grown so that it stays smaller than the strings themselves. */
struct offset_list {
	uint32_t *items;
	size_t n, capacity;
};

static int offset_list_reserve(struct offset_list *l, size_t more)
{
	size_t capacity;
	uint32_t *items;

	if (more <= l->capacity - l->n)
		return 0;
	capacity = MAX(l->n + more, l->n * 2);
	items = realloc(l->items, capacity * sizeof(*items));
	if (!items)
		return -ENOMEM;
	l->items = items;
	l->capacity = capacity;
	return 0;
}

static int parse_string_array(struct cursor *c, uint64_t n, struct offset_list *offsets)
{
	size_t start = c->pos;
	struct gguf_string s;
	int r;

	if (n > (c->file_size - c->pos) / 8)
		return diag_set(c->diag, -EINVAL, "%s: %llu strings do not fit the file's %llu bytes", c->field,
				(unsigned long long)n, (unsigned long long)c->file_size);
	r = cursor_need(c, n * 8);
	if (r)
		return r;
	r = offset_list_reserve(offsets, (size_t)n);
	if (r)
		return r;
	for (uint64_t i = 0; i < n; i++) {
		r = cursor_string(c, &s);
		if (r)
			return r;
		offsets->items[offsets->n++] = (uint32_t)((const uint8_t *)s.data - (c->bytes + start));
	}
	return 0;
}

static int parse_array(struct cursor *c, struct offset_list *offsets)
{
	uint64_t n, n_bytes;
	uint32_t type, size;
	int r;

	r = cursor_u32(c, &type);
	if (r)
		return r;
	r = cursor_u64(c, &n);
	if (r)
		return r;
	if (type == GGUF_ARRAY)
		return diag_set(c->diag, -EINVAL, "%s: arrays of arrays are not supported", c->field);
	if (type == GGUF_STRING)
		return parse_string_array(c, n, offsets);
	size = gguf_type_bytes(type);
	if (!size)
		return diag_set(c->diag, -EINVAL, "%s: element type %u is not known", c->field, type);
	if (!checked_mul_u64(n, size, &n_bytes) || n_bytes > c->file_size - c->pos)
		return diag_set(c->diag, -EINVAL, "%s: %llu elements of %u bytes do not fit the file's %llu bytes",
				c->field, (unsigned long long)n, size, (unsigned long long)c->file_size);
	r = cursor_skip(c, n_bytes);
	if (r || type != GGUF_BOOL)
		return r;
	return check_bools(c, c->bytes + c->pos - n_bytes, n);
}

static int parse_value(struct cursor *c, struct offset_list *offsets)
{
	struct gguf_string s;
	uint32_t type, size;
	int r;

	r = cursor_u32(c, &type);
	if (r)
		return r;
	if (type == GGUF_STRING)
		return cursor_string(c, &s);
	if (type == GGUF_ARRAY)
		return parse_array(c, offsets);
	size = gguf_type_bytes(type);
	if (!size)
		return diag_set(c->diag, -EINVAL, "%s: value type %u is not known", c->field, type);
	r = cursor_skip(c, size);
	if (r || type != GGUF_BOOL)
		return r;
	return check_bools(c, c->bytes + c->pos - 1, 1);
}

static int compare_kv(const void *a, const void *b, void *arg)
{
	const uint8_t *bytes = arg;

	return gguf_string_compare(gguf_load_string(bytes + ((const struct gguf_kv *)a)->key),
				   gguf_load_string(bytes + ((const struct gguf_kv *)b)->key));
}

static int parse_kvs(struct gguf *g, struct cursor *c)
{
	struct offset_list offsets = { 0 };
	int r = 0;

	g->kv = malloc(MAX(g->n_kv, 1u) * sizeof(*g->kv));
	if (!g->kv)
		return -ENOMEM;
	for (uint32_t i = 0; i < g->n_kv && !r; i++) {
		struct gguf_string key;

		g->kv[i] = (struct gguf_kv){ .key = (uint32_t)c->pos, .strings = (uint32_t)offsets.n };
		cursor_field(c, "metadata key %u", i);
		r = cursor_string(c, &key);
		if (r)
			break;
		r = check_name(c, "metadata key", i, key, GGUF_MAX_KEY);
		if (r)
			break;
		cursor_field(c, "metadata key \"%s\"", gguf_quote(key).text);
		r = parse_value(c, &offsets);
	}
	g->string_offsets = offsets.items;
	if (r)
		return r;
	qsort_r(g->kv, g->n_kv, sizeof(*g->kv), compare_kv, g->bytes);
	for (uint32_t i = 1; i < g->n_kv; i++)
		if (!gguf_string_compare(gguf_kv_key(g, i - 1), gguf_kv_key(g, i)))
			return diag_set(c->diag, -EINVAL, "metadata key \"%s\": appears twice",
					gguf_quote(gguf_kv_key(g, i)).text);
	return 0;
}

size_t gguf_decode_tensor(const uint8_t *p, struct gguf_tensor *out)
{
	const uint8_t *start = p;
	uint32_t n_elements = 1, n_bytes = 1;

	out->name = gguf_load_string(p);
	p += 8 + out->name.n;
	out->n_dims = gguf_load_u32(p);
	p += 4;
	out->n_elements = 1;
	for (uint32_t i = 0; i < GGUF_MAX_DIMS; i++) {
		out->dims[i] = 1;
		if (i >= out->n_dims)
			continue;
		out->dims[i] = gguf_load_u64(p);
		out->n_elements *= out->dims[i];
		p += 8;
	}
	out->type = gguf_load_u32(p);
	out->offset = gguf_load_u64(p + 4);
	gguf_tensor_type_block(out->type, &n_elements, &n_bytes);
	out->n_bytes = out->n_elements / n_elements * n_bytes;
	return (size_t)(p + 12 - start);
}

/* Type, shape and size; c->field names the tensor. */
static int check_tensor(struct cursor *c, uint32_t type, uint32_t n_dims, const uint64_t *dims)
{
	uint32_t block_elements, block_bytes;
	uint64_t n = 1, n_bytes;

	for (uint32_t i = 0; i < n_dims; i++) {
		if (!dims[i])
			return diag_set(c->diag, -EINVAL, "%s: dimension %u is 0", c->field, i);
		if (!checked_mul_u64(n, dims[i], &n))
			return diag_set(c->diag, -EINVAL, "%s: the product of its dimensions overflows", c->field);
	}
	if (!gguf_tensor_type_block(type, &block_elements, &block_bytes))
		return diag_set(c->diag, -EINVAL, "%s: type %u is not known", c->field, type);
	if (dims[0] % block_elements)
		return diag_set(c->diag, -EINVAL, "%s: dimension 0 is %llu, no multiple of %s's blocks of %u", c->field,
				(unsigned long long)dims[0], gguf_tensor_type_name(type), block_elements);
	if (!checked_mul_u64(n / block_elements, block_bytes, &n_bytes))
		return diag_set(c->diag, -EINVAL, "%s: its size overflows", c->field);
	return 0;
}

static int parse_tensor(struct cursor *c, uint32_t index)
{
	uint64_t dims[GGUF_MAX_DIMS], offset;
	struct gguf_string name;
	uint32_t n_dims, type;
	int r;

	cursor_field(c, "tensor %u", index);
	r = cursor_string(c, &name);
	if (r)
		return r;
	r = check_name(c, "tensor", index, name, GGUF_MAX_TENSOR_NAME);
	if (r)
		return r;
	cursor_field(c, "tensor \"%s\"", gguf_quote(name).text);
	r = cursor_u32(c, &n_dims);
	if (r)
		return r;
	if (!n_dims || n_dims > GGUF_MAX_DIMS)
		return diag_set(c->diag, -EINVAL, "%s: has %u dimensions (1 to %u are allowed)", c->field, n_dims,
				GGUF_MAX_DIMS);
	for (uint32_t i = 0; i < n_dims; i++) {
		r = cursor_u64(c, &dims[i]);
		if (r)
			return r;
	}
	r = cursor_u32(c, &type);
	if (r)
		return r;
	r = cursor_u64(c, &offset);
	if (r)
		return r;
	return check_tensor(c, type, n_dims, dims);
}

/* Where the data of the tensors begins, and whether each lies there, alone. */
static int check_layout(struct gguf *g, uint64_t alignment, struct diag *diag)
{
	struct gguf_tensor t, before = { 0 };
	uint64_t room, end = 0;

	g->data_offset = (g->n_bytes + alignment - 1) & ~(alignment - 1);
	if (!g->n_tensors)
		return 0;
	if (g->data_offset > g->file_size)
		return diag_set(diag, -EINVAL, "tensor data: begins at %llu beyond the file's %llu bytes",
				(unsigned long long)g->data_offset, (unsigned long long)g->file_size);
	room = g->file_size - g->data_offset;
	for (uint32_t i = 0; i < g->n_tensors; i++) {
		gguf_decode_tensor(g->bytes + g->tensors[i], &t);
		if (t.offset % alignment)
			return diag_set(diag, -EINVAL, "tensor \"%s\": offset %llu is no multiple of the alignment %llu",
					gguf_quote(t.name).text, (unsigned long long)t.offset,
					(unsigned long long)alignment);
		if (t.offset > room || t.n_bytes > room - t.offset)
			return diag_set(diag, -EINVAL,
					"tensor \"%s\": %llu bytes at offset %llu of the data end beyond the file's %llu bytes",
					gguf_quote(t.name).text, (unsigned long long)t.n_bytes,
					(unsigned long long)t.offset, (unsigned long long)g->file_size);
		if (t.offset < end)
			return diag_set(diag, -EINVAL, "tensor \"%s\": overlaps tensor \"%s\"",
					gguf_quote(t.name).text, gguf_quote(before.name).text);
		end = t.offset + t.n_bytes;
		before = t;
	}
	return 0;
}

static int compare_offset(const void *a, const void *b, void *arg)
{
	const uint8_t *bytes = arg;
	struct gguf_tensor ta, tb;

	gguf_decode_tensor(bytes + *(const uint32_t *)a, &ta);
	gguf_decode_tensor(bytes + *(const uint32_t *)b, &tb);
	if (ta.offset != tb.offset)
		return ta.offset < tb.offset ? -1 : 1;
	return gguf_string_compare(ta.name, tb.name);
}

static int compare_name(const void *a, const void *b, void *arg)
{
	const struct gguf *g = arg;

	return gguf_string_compare(gguf_load_string(g->bytes + g->tensors[*(const uint32_t *)a]),
				   gguf_load_string(g->bytes + g->tensors[*(const uint32_t *)b]));
}

static int parse_tensors(struct gguf *g, struct cursor *c)
{
	int r;

	g->tensors = malloc(MAX(g->n_tensors, 1u) * sizeof(*g->tensors));
	g->tensors_by_name = malloc(MAX(g->n_tensors, 1u) * sizeof(*g->tensors_by_name));
	if (!g->tensors || !g->tensors_by_name)
		return -ENOMEM;
	for (uint32_t i = 0; i < g->n_tensors; i++) {
		g->tensors[i] = (uint32_t)c->pos;
		g->tensors_by_name[i] = i;
		r = parse_tensor(c, i);
		if (r)
			return r;
	}
	qsort_r(g->tensors, g->n_tensors, sizeof(*g->tensors), compare_offset, g->bytes);
	qsort_r(g->tensors_by_name, g->n_tensors, sizeof(*g->tensors_by_name), compare_name, g);
	for (uint32_t i = 1; i < g->n_tensors; i++)
		if (!compare_name(&g->tensors_by_name[i - 1], &g->tensors_by_name[i], g))
			return diag_set(c->diag, -EINVAL, "tensor \"%s\": appears twice",
					gguf_quote(gguf_load_string(g->bytes +
								    g->tensors[g->tensors_by_name[i]])).text);
	return 0;
}

static int parse_preamble(struct gguf *g, struct cursor *c)
{
	uint64_t n_tensors, n_kv;
	int r;

	cursor_field(c, "magic");
	r = cursor_skip(c, 4);
	if (r)
		return r;
	if (memcmp(c->bytes, "GGUF", 4) != 0)
		return diag_set(c->diag, -EINVAL, "magic: not a GGUF file");
	cursor_field(c, "version");
	r = cursor_u32(c, &g->version);
	if (r)
		return r;
	if (g->version != 2 && g->version != 3)
		return diag_set(c->diag, -EINVAL, "version: %u%s is not supported (2 and 3 are)", g->version,
				g->version && !(g->version & 0xffff) ? " (big-endian)" : "");
	cursor_field(c, "number of tensors");
	r = cursor_u64(c, &n_tensors);
	if (r)
		return r;
	cursor_field(c, "number of metadata keys");
	r = cursor_u64(c, &n_kv);
	if (r)
		return r;
	if (n_tensors > GGUF_MAX_TENSORS || n_tensors > (c->file_size - c->pos) / MIN_TENSOR_BYTES)
		return diag_set(c->diag, -EINVAL, "number of tensors: %llu do not fit (at most %u, and %u bytes each)",
				(unsigned long long)n_tensors, GGUF_MAX_TENSORS, MIN_TENSOR_BYTES);
	if (n_kv > GGUF_MAX_KV || n_kv > (c->file_size - c->pos) / MIN_KV_BYTES)
		return diag_set(c->diag, -EINVAL,
				"number of metadata keys: %llu do not fit (at most %u, and %u bytes each)",
				(unsigned long long)n_kv, GGUF_MAX_KV, MIN_KV_BYTES);
	g->n_tensors = (uint32_t)n_tensors;
	g->n_kv = (uint32_t)n_kv;
	return 0;
}

static int parse(struct gguf *g, struct cursor *c)
{
	uint32_t alignment = 32;
	int r;

	r = parse_preamble(g, c);
	if (r)
		return r;
	r = parse_kvs(g, c);
	if (r)
		return r;
	r = gguf_get_u32(g, "general.alignment", 1, GGUF_MAX_ALIGNMENT, &alignment, c->diag);
	if (r < 0)
		return r;
	if (alignment & (alignment - 1))
		return diag_set(c->diag, -EINVAL, "metadata key \"general.alignment\": %u is no power of two",
				alignment);
	r = parse_tensors(g, c);
	if (r)
		return r;
	g->n_bytes = c->pos;
	return check_layout(g, alignment, c->diag);
}

void gguf_deinit_indexes(struct gguf *g)
{
	free(g->kv);
	free(g->string_offsets);
	free(g->tensors);
	free(g->tensors_by_name);
	*g = (struct gguf){ 0 };
}

int gguf_parse_header(struct gguf *g, uint8_t *bytes, size_t n, uint64_t file_size, size_t *need,
		      struct diag *diag)
{
	struct cursor c = { .bytes = bytes, .n = n, .file_size = file_size, .diag = diag };
	int r;

	*g = (struct gguf){ .bytes = bytes, .file_size = file_size };
	r = parse(g, &c);
	if (!r)
		return 0;
	if (r == GGUF_E_MORE)
		*need = c.need;
	gguf_deinit_indexes(g);
	return r;
}
