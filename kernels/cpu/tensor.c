/* SPDX-License-Identifier: Apache-2.0 */
/* Weights: from GGUF's layout into groups of 16 rows (cpu.h), and single rows back. */
#include "cpu.h"

#include <errno.h>
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

/* Four bytes; shifts and masks below never carry from one to the next. */
static uint32_t load_4(const uint8_t *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return v;
}

/* Four bytes of one row into a piece. */
static void store_4(uint8_t *plane, uint32_t piece, uint32_t lane, uint32_t v)
{
	memcpy(plane + (size_t)piece * KC_PIECE + 4 * (size_t)lane, &v, sizeof(v));
}

/* 32 quants, four to a word, into the places of one row in a plane of `bits` bits (layout.h). */
static void fill_plane(uint8_t *plane, uint32_t bits, uint32_t lane, const uint32_t q[8])
{
	switch (bits) {
	case 8:
		for (uint32_t j = 0; j < 8; j++)
			store_4(plane, j, lane, q[j]);
		break;
	case 4:
		for (uint32_t j = 0; j < 4; j++)
			store_4(plane, j, lane, q[j] | q[4 + j] << 4);
		break;
	case 2:
		for (uint32_t half = 0; half < 2; half++, q += 4)
			store_4(plane, half, lane, q[0] | q[1] << 2 | q[2] << 4 | q[3] << 6);
		break;
	default:
		store_4(plane, 0, lane, q[0] | q[1] << 1 | q[2] << 2 | q[3] << 3 | q[4] << 4 | q[5] << 5 |
					q[6] << 6 | q[7] << 7);
	}
}

static void fill_block(uint8_t *block, const struct kc_layout *l, uint32_t lane, const struct kc_numbers *n)
{
	uint32_t low_mask = ((1u << l->low) - 1) * 0x01010101u, high_mask = ((1u << l->high) - 1) * 0x01010101u;
	uint8_t *quants = block + kc_quants_offset(l);

	memcpy(block + 2 * (size_t)lane, n->dm, 2);
	if (l->min)
		memcpy(block + 2 * (size_t)(KC_LANES + lane), n->dm + 2, 2);
	for (uint32_t i = 0; i < l->n_scales; i++)
		block[kc_scales_offset(l) + (size_t)i * KC_LANES + lane] = n->scales[i];
	for (uint32_t k = 0; k < l->weights; k += KC_BLOCK, quants += kc_quants_bytes(l)) {
		uint32_t low[8], high[8];

		for (uint32_t i = 0; i < 8; i++) {
			uint32_t v = load_4(n->q + k + 4 * (size_t)i);

			low[i] = v & low_mask;
			high[i] = v >> l->low % 8 & high_mask;
		}
		fill_plane(quants, l->low, lane, low);
		if (l->high)
			fill_plane(quants + l->low * KC_PIECE, l->high, lane, high);
	}
}

/* Blocks whose bytes, after d and m, are the pieces of one plane. */
static void fill_pieces(uint8_t *group, const struct kc_layout *l, uint32_t lane, const uint8_t *src,
			uint32_t n_blocks)
{
	uint32_t n_f16 = l->min ? 2 : 1;

	for (uint32_t b = 0; b < n_blocks; b++, group += kc_block_bytes(l)) {
		uint8_t *quants = group + kc_quants_offset(l);

		for (uint32_t i = 0; i < n_f16; i++, src += 2)
			memcpy(group + 2 * (size_t)(i * KC_LANES + lane), src, 2);
		for (uint32_t j = 0; j < l->low; j++, src += 4)
			store_4(quants, j, lane, load_4(src));
	}
}

static void fill_row(struct kb_tensor *t, uint32_t row, const uint8_t *src)
{
	const struct kc_layout *l = &kc_layouts[t->type];
	uint8_t *group = t->data + t->group_bytes * (row / KC_LANES);
	uint32_t lane = row % KC_LANES;
	struct kc_numbers numbers;

	if (!kc_type_quantized(t->type)) {
		/* Apart, so that the size is known to the compiler. */
		if (l->source == 4)
			fill_elements(group, lane, src, t->cols, 4);
		else
			fill_elements(group, lane, src, t->cols, 2);
		return;
	}
	if (l->weights == KC_BLOCK && !l->high) {
		fill_pieces(group, l, lane, src, t->cols / KC_BLOCK);
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

/* The products are exact, so this is fma() too. */
static void row_block(enum kb_type type, const uint8_t *block, uint32_t lane, float *y)
{
	const struct kc_layout *l = &kc_layouts[type];
	const uint8_t *quants = block + kc_quants_offset(l);

	for (uint32_t unit = 0; unit < l->weights / KC_HALF; unit++) {
		float scale = kc_scale(type, block, lane, unit), offset = kc_offset(type, block, lane, unit);

		for (uint32_t k = unit % 2 * KC_HALF; k < (unit % 2 + 1) * KC_HALF; k++)
			*y++ = scale * (float)kc_quant(type, quants, lane, k) + offset;
		if (unit % 2)
			quants += kc_quants_bytes(l);
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
