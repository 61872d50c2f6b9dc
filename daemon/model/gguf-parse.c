/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses and validates the header of a GGUF file: counts, metadata, tensors.
 *
 * A cursor walks over the bytes once.  Arrays are allocated only once the bytes
 * that they index are in the buffer.
 */
#include <stdlib.h>

#include "daemon/model/gguf-cursor.h"
#include "ipc/base/checked.h"

#define MIN_KV_BYTES 14u	/* an empty-valued entry: length, 1 byte of key, type, 1 byte */
#define MIN_TENSOR_BYTES 33u	/* length, 1 byte of name, n_dims, one dim, type, offset */

static int check_bools(struct gguf_cursor *c, const uint8_t *p, uint64_t n)
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

static int parse_string_array(struct gguf_cursor *c, uint64_t n, struct offset_list *offsets)
{
	size_t start = c->pos;
	struct gguf_string s;
	int r;

	if (n > (c->file_size - c->pos) / 8)
		return diag_set(c->diag, -EINVAL, "%s: %llu strings do not fit the file's %llu bytes",
				c->field, (unsigned long long)n, (unsigned long long)c->file_size);
	r = gguf_cursor_need(c, n * 8);
	if (r)
		return r;
	r = offset_list_reserve(offsets, (size_t)n);
	if (r)
		return r;
	for (uint64_t i = 0; i < n; i++) {
		r = gguf_cursor_string(c, &s);
		if (r)
			return r;
		offsets->items[offsets->n++] = (uint32_t)((const uint8_t *)s.data - (c->bytes + start));
	}
	return 0;
}

static int parse_array(struct gguf_cursor *c, struct offset_list *offsets)
{
	uint64_t n, n_bytes;
	uint32_t type, size;
	int r;

	r = gguf_cursor_u32(c, &type);
	if (r)
		return r;
	r = gguf_cursor_u64(c, &n);
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
		return diag_set(c->diag, -EINVAL,
				"%s: %llu elements of %u bytes do not fit the file's %llu bytes", c->field,
				(unsigned long long)n, size, (unsigned long long)c->file_size);
	r = gguf_cursor_skip(c, n_bytes);
	if (r || type != GGUF_BOOL)
		return r;
	return check_bools(c, c->bytes + c->pos - n_bytes, n);
}

static int parse_value(struct gguf_cursor *c, struct offset_list *offsets)
{
	struct gguf_string s;
	uint32_t type, size;
	int r;

	r = gguf_cursor_u32(c, &type);
	if (r)
		return r;
	if (type == GGUF_STRING)
		return gguf_cursor_string(c, &s);
	if (type == GGUF_ARRAY)
		return parse_array(c, offsets);
	size = gguf_type_bytes(type);
	if (!size)
		return diag_set(c->diag, -EINVAL, "%s: value type %u is not known", c->field, type);
	r = gguf_cursor_skip(c, size);
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

static int parse_kvs(struct gguf *g, struct gguf_cursor *c)
{
	struct offset_list offsets = { 0 };
	int r = 0;

	g->kv = malloc(MAX(g->n_kv, 1u) * sizeof(*g->kv));
	if (!g->kv)
		return -ENOMEM;
	for (uint32_t i = 0; i < g->n_kv && !r; i++) {
		struct gguf_string key;

		g->kv[i] = (struct gguf_kv){ .key = (uint32_t)c->pos, .strings = (uint32_t)offsets.n };
		gguf_cursor_field(c, "metadata key %u", i);
		r = gguf_cursor_name(c, "metadata key", i, GGUF_MAX_KEY, &key);
		if (r)
			break;
		gguf_cursor_field(c, "metadata key \"%s\"", gguf_quote(key).text);
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

static int parse_preamble(struct gguf *g, struct gguf_cursor *c)
{
	uint64_t n_tensors, n_kv;
	int r;

	gguf_cursor_field(c, "magic");
	r = gguf_cursor_skip(c, 4);
	if (r)
		return r;
	if (memcmp(c->bytes, "GGUF", 4) != 0)
		return diag_set(c->diag, -EINVAL, "magic: not a GGUF file");
	gguf_cursor_field(c, "version");
	r = gguf_cursor_u32(c, &g->version);
	if (r)
		return r;
	if (g->version != 2 && g->version != 3)
		return diag_set(c->diag, -EINVAL, "version: %u%s is not supported (2 and 3 are)", g->version,
				g->version && !(g->version & 0xffff) ? " (big-endian)" : "");
	gguf_cursor_field(c, "number of tensors");
	r = gguf_cursor_u64(c, &n_tensors);
	if (r)
		return r;
	gguf_cursor_field(c, "number of metadata keys");
	r = gguf_cursor_u64(c, &n_kv);
	if (r)
		return r;
	if (n_tensors > GGUF_MAX_TENSORS || n_tensors > (c->file_size - c->pos) / MIN_TENSOR_BYTES)
		return diag_set(c->diag, -EINVAL,
				"number of tensors: %llu do not fit (at most %u, and %u bytes each)",
				(unsigned long long)n_tensors, GGUF_MAX_TENSORS, MIN_TENSOR_BYTES);
	if (n_kv > GGUF_MAX_KV || n_kv > (c->file_size - c->pos) / MIN_KV_BYTES)
		return diag_set(c->diag, -EINVAL,
				"number of metadata keys: %llu do not fit (at most %u, and %u bytes each)",
				(unsigned long long)n_kv, GGUF_MAX_KV, MIN_KV_BYTES);
	g->n_tensors = (uint32_t)n_tensors;
	g->n_kv = (uint32_t)n_kv;
	return 0;
}

static int parse(struct gguf *g, struct gguf_cursor *c)
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
	r = gguf_parse_tensors(g, c);
	if (r)
		return r;
	g->n_bytes = c->pos;
	return gguf_check_layout(g, alignment, c->diag);
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
	struct gguf_cursor c = { .bytes = bytes, .n = n, .file_size = file_size, .diag = diag };
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
