/* SPDX-License-Identifier: Apache-2.0 */
/* Weights: from GGUF's layout into groups of 16 rows (cpu.h), and single rows back. */
#include "cpu.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "half.h"

#define MAX_ROWS (1u << 28)
#define MAX_COLS (1u << 24)

/* Bytes of 32 weights of one row in GGUF and of 16 such rows here; 0: no such type. */
static uint32_t source_bytes(enum kb_type type)
{
	switch (type) {
	case KB_F32: return 128;
	case KB_F16:
	case KB_BF16: return 64;
	case KB_Q4_0: return 18;
	case KB_Q4_1: return 20;
	case KB_Q8_0: return 34;
	}
	return 0;
}

static bool desc_valid(const struct kb_tensor_desc *d)
{
	if (!d->rows || d->rows > MAX_ROWS || !d->cols || d->cols > MAX_COLS)
		return false;
	if (d->use == KB_USE_VECTOR)
		return d->rows == 1;
	return d->use == KB_USE_MATRIX && d->cols % KC_BLOCK == 0;
}

int kc_tensor_new(struct kb_backend *be, const struct kb_tensor_desc *desc, struct kb_tensor **out)
{
	struct kc_backend *cpu = (struct kc_backend *)be;
	struct kb_tensor *t;
	int r;

	if (!desc_valid(desc))
		return -EINVAL;
	if (!source_bytes(desc->type) || (desc->use == KB_USE_VECTOR && kc_type_quantized(desc->type)))
		return -ENOTSUP;
	t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	t->type = desc->type;
	t->use = desc->use;
	t->rows = desc->rows;
	t->cols = desc->cols;
	if (t->use == KB_USE_VECTOR) {
		t->group_bytes = sizeof(float) * (((size_t)t->cols + KC_LANES - 1) / KC_LANES * KC_LANES);
		t->n_groups = 1;
	} else {
		t->group_bytes = (size_t)source_bytes(t->type) * KC_LANES * (t->cols / KC_BLOCK);
		t->n_groups = (t->rows + KC_LANES - 1) / KC_LANES;
	}
	t->bytes = (uint64_t)t->group_bytes * t->n_groups;
	r = kc_arena_get(cpu->arena, t->bytes, &t->data, &t->chunk);
	if (r) {
		free(t);
		return r;
	}
	*out = t;
	return 0;
}

void kc_tensor_free(struct kb_backend *be, struct kb_tensor *t)
{
	struct kc_backend *cpu = (struct kc_backend *)be;

	if (!t)
		return;
	kc_arena_put(cpu->arena, t->chunk);
	free(t);
}

uint64_t kc_tensor_bytes(const struct kb_tensor *t)
{
	return t->bytes;
}

static void fill_vector(struct kb_tensor *t, const uint8_t *src)
{
	float *y = (float *)(void *)t->data;

	if (t->type == KB_F32) {
		memcpy(y, src, sizeof(float) * t->cols);
		return;
	}
	for (uint32_t i = 0; i < t->cols; i++) {
		uint16_t h;

		memcpy(&h, src + 2 * (size_t)i, sizeof(h));
		y[i] = t->type == KB_F16 ? kc_f16_to_f32(h) : kc_bf16_to_f32(h);
	}
}

/* One row of elements of `size` bytes into its lane. */
static void fill_elements(uint8_t *group, uint32_t lane, const uint8_t *src, uint32_t cols, uint32_t size)
{
	for (uint32_t k = 0; k < cols; k++)
		memcpy(group + ((size_t)k * KC_LANES + lane) * size, src + (size_t)k * size, size);
}

/* One row of blocks {n_scales f16, n_pieces x 4 bytes} into its lane. */
static void fill_blocks(uint8_t *group, uint32_t lane, const uint8_t *src, uint32_t n_blocks,
			uint32_t n_scales, uint32_t n_pieces)
{
	for (uint32_t b = 0; b < n_blocks; b++) {
		for (uint32_t i = 0; i < n_scales; i++, src += 2)
			memcpy(group + (size_t)i * 2 * KC_LANES + 2 * (size_t)lane, src, 2);
		group += (size_t)n_scales * 2 * KC_LANES;
		for (uint32_t j = 0; j < n_pieces; j++, src += 4)
			memcpy(group + (size_t)j * 4 * KC_LANES + 4 * (size_t)lane, src, 4);
		group += (size_t)n_pieces * 4 * KC_LANES;
	}
}

static void fill_row(struct kb_tensor *t, uint32_t row, const uint8_t *src)
{
	uint8_t *group = t->data + t->group_bytes * (row / KC_LANES);
	uint32_t lane = row % KC_LANES, n_blocks = t->cols / KC_BLOCK;

	switch (t->type) {
	case KB_F32: fill_elements(group, lane, src, t->cols, 4); break;
	case KB_F16:
	case KB_BF16: fill_elements(group, lane, src, t->cols, 2); break;
	case KB_Q4_0: fill_blocks(group, lane, src, n_blocks, 1, 4); break;
	case KB_Q4_1: fill_blocks(group, lane, src, n_blocks, 2, 4); break;
	case KB_Q8_0: fill_blocks(group, lane, src, n_blocks, 1, 8); break;
	}
}

int kc_tensor_fill(struct kb_backend *be, struct kb_tensor *t, uint32_t row0, uint32_t n_rows,
		   const void *src)
{
	size_t row_bytes = (size_t)source_bytes(t->type) * (t->cols / KC_BLOCK);

	if (row0 % KC_LANES || row0 > t->rows || n_rows > t->rows - row0)
		return -EINVAL;
	if (n_rows % KC_LANES && row0 + n_rows != t->rows)
		return -EINVAL;
	if (t->use == KB_USE_VECTOR) {
		if (n_rows)
			fill_vector(t, src);
		return 0;
	}
	for (uint32_t i = 0; i < n_rows; i++)
		fill_row(t, row0 + i, (const uint8_t *)src + row_bytes * i);
	/* Lanes past the last row keep the zeros of fresh memory. */
	return 0;
}

static float load_f16(const uint8_t *p)
{
	uint16_t h;

	memcpy(&h, p, sizeof(h));
	return kc_f16_to_f32(h);
}

static void row_elements(const struct kb_tensor *t, const uint8_t *group, uint32_t lane, float *y)
{
	uint32_t size = t->type == KB_F32 ? 4 : 2;

	for (uint32_t k = 0; k < t->cols; k++) {
		const uint8_t *p = group + ((size_t)k * KC_LANES + lane) * size;
		uint16_t h;

		if (t->type == KB_F32) {
			memcpy(&y[k], p, 4);
			continue;
		}
		memcpy(&h, p, 2);
		y[k] = t->type == KB_F16 ? kc_f16_to_f32(h) : kc_bf16_to_f32(h);
	}
}

static void row_q8(const uint8_t *group, uint32_t lane, uint32_t n_blocks, float *y)
{
	for (uint32_t b = 0; b < n_blocks; b++, group += 34 * KC_LANES) {
		float d = load_f16(group + 2 * (size_t)lane);
		const uint8_t *q = group + 2 * KC_LANES + 4 * (size_t)lane;

		for (uint32_t k = 0; k < KC_BLOCK; k++)
			*y++ = d * (float)(int8_t)q[k / 4 * 4 * KC_LANES + k % 4];
	}
}

static void row_q4(const uint8_t *group, uint32_t lane, uint32_t n_blocks, bool has_min, float *y)
{
	for (uint32_t b = 0; b < n_blocks; b++) {
		float d = load_f16(group + 2 * (size_t)lane);
		float m = has_min ? load_f16(group + 2 * KC_LANES + 2 * (size_t)lane) : -8.0f * d;
		const uint8_t *q = group + (has_min ? 4 : 2) * KC_LANES + 4 * (size_t)lane;

		for (uint32_t k = 0; k < KC_BLOCK; k++) {
			uint8_t pair = q[k % 16 / 4 * 4 * KC_LANES + k % 4];

			*y++ = fmaf(d, (float)(k < 16 ? pair & 15 : pair >> 4), m);
		}
		group += (has_min ? 20 : 18) * KC_LANES;
	}
}

void kc_tensor_row(const struct kb_tensor *t, uint32_t row, float *y)
{
	const uint8_t *group = t->data + t->group_bytes * (row / KC_LANES);
	uint32_t lane = row % KC_LANES, n_blocks = t->cols / KC_BLOCK;

	switch (t->type) {
	case KB_Q8_0: row_q8(group, lane, n_blocks, y); break;
	case KB_Q4_0: row_q4(group, lane, n_blocks, false, y); break;
	case KB_Q4_1: row_q4(group, lane, n_blocks, true, y); break;
	default: row_elements(t, group, lane, y);
	}
}
