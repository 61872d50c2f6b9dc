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

static bool desc_valid(const struct kb_tensor_desc *d)
{
	if (!d->rows || d->rows > MAX_ROWS || !d->cols || d->cols > MAX_COLS)
		return false;
	if (d->use == KB_USE_VECTOR)
		return d->rows == 1;
	return d->use == KB_USE_MATRIX && d->cols % KC_BLOCK == 0 && d->cols % kc_layouts[d->type].weights == 0;
}

int kc_tensor_new(struct kb_backend *be, const struct kb_tensor_desc *desc, struct kb_tensor **out)
{
	struct kc_backend *cpu = (struct kc_backend *)be;
	struct kb_tensor *t;
	int r;

	if (!kc_type_known(desc->type))
		return -ENOTSUP;
	if (!desc_valid(desc))
		return -EINVAL;
	if (desc->use == KB_USE_VECTOR && kc_type_quantized(desc->type))
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
		t->group_bytes = kc_block_bytes(&kc_layouts[t->type]) * (t->cols / kc_layouts[t->type].weights);
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

/* 32 quants into the places of one row in a plane of `bits` bits, which holds zeros. */
static void fill_plane(uint8_t *plane, uint32_t bits, uint32_t lane, const uint8_t *q)
{
	uint8_t *at = plane + 4 * (size_t)lane, row[KC_BLOCK];
	uint32_t n_pieces = bits, per_byte = 8 / bits;

	/* Byte c of piece j is row[4 j + c]. */
	for (uint32_t i = 0; i < 4 * n_pieces; i++)
		row[i] = 0;
	switch (bits) {
	case 8:
		memcpy(row, q, KC_BLOCK);
		break;
	case 4:
		for (uint32_t k = 0; k < KC_HALF; k++)
			row[k] = (uint8_t)(q[k] | q[KC_HALF + k] << 4);
		break;
	default:
		/* Each half fills a piece of pairs, or half a piece of single bits. */
		for (uint32_t k = 0; k < KC_BLOCK; k++) {
			uint32_t place = k / 4 % per_byte * bits;

			row[k / 4 / per_byte * 4 + k % 4] |= (uint8_t)(q[k] << place);
		}
	}
	for (uint32_t j = 0; j < n_pieces; j++)
		memcpy(at + (size_t)j * KC_PIECE, row + 4 * (size_t)j, 4);
}

static void fill_block(uint8_t *block, const struct kc_layout *l, uint32_t lane, const struct kc_numbers *n)
{
	uint8_t *quants = block + kc_quants_offset(l), high[KC_BLOCK], low[KC_BLOCK];

	memcpy(block + 2 * (size_t)lane, n->dm, 2);
	if (l->min)
		memcpy(block + 2 * (size_t)(KC_LANES + lane), n->dm + 2, 2);
	for (uint32_t i = 0; i < l->n_scales; i++)
		block[kc_scales_offset(l) + (size_t)i * KC_LANES + lane] = n->scales[i];
	for (uint32_t k = 0; k < l->weights; k += KC_BLOCK, quants += kc_quants_bytes(l)) {
		for (uint32_t i = 0; i < KC_BLOCK; i++) {
			low[i] = n->q[k + i] & (uint8_t)((1u << l->low) - 1);
			high[i] = (uint8_t)(n->q[k + i] >> l->low);
		}
		fill_plane(quants, l->low, lane, low);
		if (l->high)
			fill_plane(quants + l->low * KC_PIECE, l->high, lane, high);
	}
}

static void fill_row(struct kb_tensor *t, uint32_t row, const uint8_t *src)
{
	const struct kc_layout *l = &kc_layouts[t->type];
	uint8_t *group = t->data + t->group_bytes * (row / KC_LANES);
	uint32_t lane = row % KC_LANES;
	struct kc_numbers numbers;

	if (!kc_type_quantized(t->type)) {
		fill_elements(group, lane, src, t->cols, l->source);
		return;
	}
	for (uint32_t k = 0; k < t->cols; k += l->weights, src += l->source, group += kc_block_bytes(l)) {
		kc_block_read(t->type, src, &numbers);
		fill_block(group, l, lane, &numbers);
	}
}

int kc_tensor_fill(struct kb_backend *be, struct kb_tensor *t, uint32_t row0, uint32_t n_rows,
		   const void *src)
{
	size_t row_bytes = (size_t)kc_layouts[t->type].source * (t->cols / kc_layouts[t->type].weights);

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

static void row_block(enum kb_type type, const uint8_t *block, uint32_t lane, float *y)
{
	const struct kc_layout *l = &kc_layouts[type];

	for (uint32_t k = 0; k < l->weights; k++) {
		const uint8_t *quants = block + kc_quants_offset(l) + k / KC_BLOCK * kc_quants_bytes(l);

		y[k] = fmaf(kc_scale(type, block, lane, k / KC_HALF),
			    (float)kc_quant(type, quants, lane, k % KC_BLOCK),
			    kc_offset(type, block, lane, k / KC_HALF));
	}
}

void kc_tensor_row(const struct kb_tensor *t, uint32_t row, float *y)
{
	const struct kc_layout *l = &kc_layouts[t->type];
	const uint8_t *group = t->data + t->group_bytes * (row / KC_LANES);
	uint32_t lane = row % KC_LANES;

	if (!kc_type_quantized(t->type)) {
		row_elements(t, group, lane, y);
		return;
	}
	for (uint32_t k = 0; k < t->cols; k += l->weights, group += kc_block_bytes(l))
		row_block(t->type, group, lane, y + k);
}
