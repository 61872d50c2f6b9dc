/* SPDX-License-Identifier: Apache-2.0 */
/* Plain C products: one order of sums for every type and level (NUMERICS.md). */
#include "ref.h"

#include <math.h>
#include <string.h>

#include "half.h"

/* Half of a block of 32 times 8-bit activations. */
static int32_t dot_8(const int32_t *w, const int8_t *x)
{
	int32_t sum = 0;

	for (uint32_t k = 0; k < KC_HALF; k++)
		sum += w[k] * x[k];
	return sum;
}

/* The same for 16-bit ones, each four of them in the order 0, 2, 1, 3. */
static int32_t dot_16(const int32_t *w, const int16_t *x)
{
	static const uint8_t order[4] = { 0, 2, 1, 3 };
	int32_t sum = 0;

	for (uint32_t k = 0; k < KC_HALF; k++)
		sum += w[k] * x[k / 4 * 4 + order[k % 4]];
	return sum;
}

/* Columns 32 * b .. 32 * b + 31 of one row; unit: their first 16 in the block. */
static float step_8(enum kb_type type, const uint8_t *block, uint32_t lane, uint32_t unit, const int32_t *w,
		    const struct kc_rows *in, size_t b, float y)
{
	const int8_t *q = in->q + b * KC_BLOCK;
	const float *d = in->d + 2 * b, *h = in->h + 2 * b;

	for (uint32_t i = 0; i < 2; i++)
		y = fmaf(kc_scale(type, block, lane, unit + i) * d[i],
			 (float)dot_8(w + (size_t)i * KC_HALF, q + (size_t)i * KC_HALF), y);
	if (!kc_layouts[type].fine)
		return fmaf(kc_offset(type, block, lane, unit), in->s[b], y);
	for (uint32_t i = 0; i < 2; i++)
		y = fmaf(kc_offset(type, block, lane, unit + i), h[i], y);
	return y;
}

static float step_16(enum kb_type type, const uint8_t *block, uint32_t lane, uint32_t unit, const int32_t *w,
		     const struct kc_rows *in, size_t b, float y)
{
	const int16_t *q = in->q16 + b * KC_BLOCK;
	int32_t dot[2] = { dot_16(w, q), dot_16(w + KC_HALF, q + KC_HALF) };

	if (!kc_layouts[type].fine)
		return fmaf(kc_scale(type, block, lane, unit) * in->d16[b], (float)(dot[0] + dot[1]), y);
	for (uint32_t i = 0; i < 2; i++)
		y = fmaf(kc_scale(type, block, lane, unit + i) * in->d16[b], (float)dot[i], y);
	return y;
}

/* 32 columns of a group, from `unit` on in their block, times those of one row. */
static void step_blocks(enum kb_type type, const uint8_t *block, uint32_t unit, const struct kc_rows *in, size_t b,
			float y[KC_LANES])
{
	const struct kc_layout *l = &kc_layouts[type];
	const uint8_t *quants = block + kc_quants_offset(l) + unit / 2 * kc_quants_bytes(l);

	for (uint32_t i = 0; i < KC_LANES; i++) {
		int32_t q[KC_BLOCK];

		for (uint32_t k = 0; k < KC_BLOCK; k++)
			q[k] = kc_quant(type, quants, i, k);
		if (l->form == KC_FORM_8)
			y[i] = step_8(type, block, i, unit, q, in, b, y[i]);
		else
			y[i] = step_16(type, block, i, unit, q, in, b, y[i]);
	}
}

static void group_blocks(enum kb_type type, const uint8_t *w, const struct kc_rows *in, uint32_t row,
			 float y[KC_LANES])
{
	const struct kc_layout *l = &kc_layouts[type];
	size_t b = (size_t)row * (in->cols / KC_BLOCK);

	for (uint32_t k = 0; k < in->cols; k += l->weights, w += kc_block_bytes(l)) {
		for (uint32_t unit = 0; unit < l->weights / KC_HALF; unit += 2)
			step_blocks(type, w, unit, in, b++, y);
	}
}

static void group_f32(const uint8_t *w, const struct kc_rows *in, uint32_t row, float y[KC_LANES])
{
	const float *x = in->f + (size_t)row * in->cols;

	for (uint32_t k = 0; k < in->cols; k++, w += 4 * KC_LANES) {
		float v[KC_LANES];

		memcpy(v, w, sizeof(v));
		for (uint32_t i = 0; i < KC_LANES; i++)
			y[i] = fmaf(v[i], x[k], y[i]);
	}
}

static void group_f16(const uint8_t *w, const struct kc_rows *in, uint32_t row, float y[KC_LANES])
{
	const float *x = in->f + (size_t)row * in->cols;

	for (uint32_t k = 0; k < in->cols; k++, w += 2 * KC_LANES) {
		for (uint32_t i = 0; i < KC_LANES; i++)
			y[i] = fmaf(kc_load_f16(w + 2 * (size_t)i), x[k], y[i]);
	}
}

static void group_bf16(const uint8_t *w, const struct kc_rows *in, uint32_t row, float y[KC_LANES])
{
	const float *x = in->f + (size_t)row * in->cols;

	for (uint32_t k = 0; k < in->cols; k++, w += 2 * KC_LANES) {
		uint16_t v[KC_LANES];

		memcpy(v, w, sizeof(v));
		for (uint32_t i = 0; i < KC_LANES; i++)
			y[i] = fmaf(kc_bf16_to_f32(v[i]), x[k], y[i]);
	}
}

static void group_product(enum kb_type type, const uint8_t *w, const struct kc_rows *in, uint32_t row,
			  float y[KC_LANES])
{
	switch (type) {
	case KB_F32: group_f32(w, in, row, y); break;
	case KB_F16: group_f16(w, in, row, y); break;
	case KB_BF16: group_bf16(w, in, row, y); break;
	default: group_blocks(type, w, in, row, y);
	}
}

void kc_ref_product(const struct kb_tensor *w, uint32_t group0, uint32_t n_groups, const struct kc_rows *in,
		    uint32_t row0, uint32_t n_rows, float *out, size_t out_stride)
{
	for (uint32_t g = 0; g < n_groups; g++) {
		for (uint32_t i = 0; i < n_rows; i++) {
			float y[KC_LANES] = { 0 };

			group_product(w->type, w->data + w->group_bytes * (group0 + g), in, row0 + i, y);
			memcpy(out + i * out_stride + (size_t)g * KC_LANES, y, sizeof(y));
		}
	}
}
