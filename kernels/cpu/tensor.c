/* SPDX-License-Identifier: Apache-2.0 */
/* Weights: made, filled group by group (repack.h), and single rows back. */
#include "cpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "half.h"
#include "repack.h"

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
	r = kc_arena_get(cpu->arena, t->bytes, &t->data, &t->place);
	if (r) {
		free(t);
		return r;
	}
	/* What lies behind the last row or column. */
	if ((t->use == KB_USE_VECTOR ? t->cols : t->rows) % KC_LANES)
		memset(t->data + t->group_bytes * (t->n_groups - 1), 0, t->group_bytes);
	*out = t;
	return 0;
}

void kc_tensor_free(struct kb_backend *be, struct kb_tensor *t)
{
	struct kc_backend *cpu = (struct kc_backend *)be;

	if (!t)
		return;
	kc_arena_put(cpu->arena, t->place);
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
	for (uint32_t i = 0; i < n_rows; i += KC_LANES)
		kc_repack_group(t->data + t->group_bytes * ((row0 + i) / KC_LANES), t->type, t->cols,
				(const uint8_t *)src + row_bytes * i, row_bytes, KC_MIN(n_rows - i, KC_LANES));
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
