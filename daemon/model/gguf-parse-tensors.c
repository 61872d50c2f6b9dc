/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptions of tensors in a header, and where their data lie. */
#include <stdlib.h>

#include "daemon/model/gguf-cursor.h"
#include "ipc/base/checked.h"

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
static int check_tensor(struct gguf_cursor *c, uint32_t type, uint32_t n_dims, const uint64_t *dims)
{
	uint32_t block_elements, block_bytes;
	uint64_t n = 1, n_bytes;

	for (uint32_t i = 0; i < n_dims; i++) {
		if (!dims[i])
			return diag_set(c->diag, -EINVAL, "%s: dimension %u is 0", c->field, i);
		if (!checked_mul_u64(n, dims[i], &n))
			return diag_set(c->diag, -EINVAL, "%s: the product of its dimensions overflows",
					c->field);
	}
	if (!gguf_tensor_type_block(type, &block_elements, &block_bytes))
		return diag_set(c->diag, -EINVAL, "%s: type %u is not known", c->field, type);
	if (dims[0] % block_elements)
		return diag_set(c->diag, -EINVAL, "%s: dimension 0 is %llu, no multiple of %s's blocks of %u",
				c->field, (unsigned long long)dims[0], gguf_tensor_type_name(type),
				block_elements);
	if (!checked_mul_u64(n / block_elements, block_bytes, &n_bytes))
		return diag_set(c->diag, -EINVAL, "%s: its size overflows", c->field);
	return 0;
}

static int parse_tensor(struct gguf_cursor *c, uint32_t index)
{
	uint64_t dims[GGUF_MAX_DIMS], offset;
	struct gguf_string name;
	uint32_t n_dims, type;
	int r;

	gguf_cursor_field(c, "tensor %u", index);
	r = gguf_cursor_name(c, "tensor", index, GGUF_MAX_TENSOR_NAME, &name);
	if (r)
		return r;
	gguf_cursor_field(c, "tensor \"%s\"", gguf_quote(name).text);
	r = gguf_cursor_u32(c, &n_dims);
	if (r)
		return r;
	if (!n_dims || n_dims > GGUF_MAX_DIMS)
		return diag_set(c->diag, -EINVAL, "%s: has %u dimensions (1 to %u are allowed)", c->field,
				n_dims, GGUF_MAX_DIMS);
	for (uint32_t i = 0; i < n_dims; i++) {
		r = gguf_cursor_u64(c, &dims[i]);
		if (r)
			return r;
	}
	r = gguf_cursor_u32(c, &type);
	if (r)
		return r;
	r = gguf_cursor_u64(c, &offset);
	if (r)
		return r;
	return check_tensor(c, type, n_dims, dims);
}

int gguf_check_layout(struct gguf *g, uint64_t alignment, struct diag *diag)
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
			return diag_set(diag, -EINVAL,
					"tensor \"%s\": offset %llu is no multiple of the alignment %llu",
					gguf_quote(t.name).text, (unsigned long long)t.offset,
					(unsigned long long)alignment);
		if (t.offset > room || t.n_bytes > room - t.offset)
			return diag_set(diag, -EINVAL,
					"tensor \"%s\": %llu bytes at offset %llu of the data end beyond the "
					"file's %llu bytes",
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

int gguf_parse_tensors(struct gguf *g, struct gguf_cursor *c)
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
