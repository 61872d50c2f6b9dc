/* SPDX-License-Identifier: Apache-2.0 */
/* Plain C products: one order of sums for every type and level (NUMERICS.md). */
#include "ref.h"

#include <math.h>
#include <string.h>

#include "half.h"

/* One group of weights times one row of activations. */
typedef void (*group_fn)(const uint8_t *w, const struct kc_rows *in, uint32_t row, float y[KC_LANES]);

static float scale_at(const uint8_t *p, uint32_t lane)
{
	uint16_t h;

	memcpy(&h, p + 2 * (size_t)lane, sizeof(h));
	return kc_f16_to_f32(h);
}

/* half 0: the low nibbles, k = 0 .. 15; half 1: the high ones. */
static int32_t dot_q4(const uint8_t *w, uint32_t half, const int8_t *x)
{
	int32_t sum = 0;

	for (uint32_t k = 0; k < KC_HALF; k++)
		sum += (w[k / 4 * 4 * KC_LANES + k % 4] >> 4 * half & 15) * x[k];
	return sum;
}

static int32_t dot_q8(const uint8_t *w, const int16_t *x)
{
	static const uint8_t order[4] = { 0, 2, 1, 3 };
	int32_t sum = 0;

	for (uint32_t k = 0; k < 32; k++)
		sum += (int8_t)w[k / 4 * 4 * KC_LANES + k % 4] * x[k / 4 * 4 + order[k % 4]];
	return sum;
}

/* One block of 4-bit weights, offset per unit of activation. */
static float block_q4(const uint8_t *quants, float dw, float offset, const int8_t *q, const float *d, float s,
		      float y)
{
	for (uint32_t half = 0; half < 2; half++)
		y = fmaf(dw * d[half], (float)dot_q4(quants, half, q + half * KC_HALF), y);
	return fmaf(offset, s, y);
}

static void group_q4_0(const uint8_t *w, const struct kc_rows *in, uint32_t row, float y[KC_LANES])
{
	uint32_t n_blocks = in->cols / KC_BLOCK;
	const int8_t *q = in->q + (size_t)row * in->cols;
	const float *d = in->d + (size_t)row * n_blocks * 2, *s = in->s + (size_t)row * n_blocks;

	for (uint32_t b = 0; b < n_blocks; b++, w += 18 * KC_LANES, q += KC_BLOCK, d += 2) {
		for (uint32_t i = 0; i < KC_LANES; i++) {
			float dw = scale_at(w, i);

			y[i] = block_q4(w + 2 * KC_LANES + 4 * (size_t)i, dw, -8.0f * dw, q, d, s[b], y[i]);
		}
	}
}

static void group_q4_1(const uint8_t *w, const struct kc_rows *in, uint32_t row, float y[KC_LANES])
{
	uint32_t n_blocks = in->cols / KC_BLOCK;
	const int8_t *q = in->q + (size_t)row * in->cols;
	const float *d = in->d + (size_t)row * n_blocks * 2, *s = in->s + (size_t)row * n_blocks;

	for (uint32_t b = 0; b < n_blocks; b++, w += 20 * KC_LANES, q += KC_BLOCK, d += 2) {
		for (uint32_t i = 0; i < KC_LANES; i++)
			y[i] = block_q4(w + 4 * KC_LANES + 4 * (size_t)i, scale_at(w, i),
					scale_at(w + 2 * KC_LANES, i), q, d, s[b], y[i]);
	}
}

static void group_q8_0(const uint8_t *w, const struct kc_rows *in, uint32_t row, float y[KC_LANES])
{
	uint32_t n_blocks = in->cols / KC_BLOCK;
	const int16_t *q = in->q16 + (size_t)row * in->cols;
	const float *d = in->d16 + (size_t)row * n_blocks;

	for (uint32_t b = 0; b < n_blocks; b++, w += 34 * KC_LANES, q += KC_BLOCK) {
		for (uint32_t i = 0; i < KC_LANES; i++) {
			int32_t dot = dot_q8(w + 2 * KC_LANES + 4 * (size_t)i, q);

			y[i] = fmaf(scale_at(w, i) * d[b], (float)dot, y[i]);
		}
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
			y[i] = fmaf(scale_at(w, i), x[k], y[i]);
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

static group_fn group_of(enum kb_type type)
{
	switch (type) {
	case KB_Q4_0: return group_q4_0;
	case KB_Q4_1: return group_q4_1;
	case KB_Q8_0: return group_q8_0;
	case KB_F16: return group_f16;
	case KB_BF16: return group_bf16;
	default: return group_f32;
	}
}

void kc_ref_product(const struct kb_tensor *w, uint32_t group0, uint32_t n_groups, const struct kc_rows *in,
		    uint32_t row0, uint32_t n_rows, float *out, size_t out_stride)
{
	group_fn group = group_of(w->type);

	for (uint32_t g = 0; g < n_groups; g++) {
		for (uint32_t i = 0; i < n_rows; i++) {
			float y[KC_LANES] = { 0 };

			group(w->data + w->group_bytes * (group0 + g), in, row0 + i, y);
			memcpy(out + i * out_stride + (size_t)g * KC_LANES, y, sizeof(y));
		}
	}
}
