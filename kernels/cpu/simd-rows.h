/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd-rows.h - vector kernels that treat one row; the operations and their
 * order are those of ref-rows.c.
 *
 * Limit: rows are in the first or second level cache; together these take a
 * few per cent of a step.
 */
#ifndef KC_SIMD_ROWS_H
#define KC_SIMD_ROWS_H

#include <float.h>
#include <math.h>

#include "cpu.h"
#include "elementary.h"

/* kc_exp_end() */
INLINE vf vf_exp_end(vf t, vf r)
{
	vf p;

#define FIRST(c) p = vf_set1(c);
#define NEXT(c) p = vf_fma(p, r, vf_set1(c));
	KC_EXP_SERIES(FIRST, NEXT)
#undef FIRST
#undef NEXT
	return vf_as_float(vi_add(vi_as_int(p), vi_shift_left_23(vi_as_int(t))));
}

/* kc_exp() */
INLINE vf vf_exp(vf x)
{
	vf t, n, r;

	x = vf_max(vf_min(x, vf_set1(KC_EXP_MAX)), vf_set1(KC_EXP_MIN));
	t = vf_fma(x, vf_set1(KC_LOG2E), vf_set1(KC_EXP_ROUND));
	n = vf_sub(t, vf_set1(KC_EXP_ROUND));
	r = vf_fma(n, vf_set1(-KC_LN2_HIGH), x);
	return vf_exp_end(t, vf_fma(n, vf_set1(-KC_LN2_LOW), r));
}

/* kc_exp_weight() */
INLINE vf vf_exp_weight(vf x)
{
	vf t;

	x = vf_max(x, vf_set1(KC_EXP_MIN));
	t = vf_fma(x, vf_set1(KC_LOG2E), vf_set1(KC_EXP_ROUND));
	return vf_exp_end(t, vf_fma(vf_sub(t, vf_set1(KC_EXP_ROUND)), vf_set1(-KC_LN2_HIGH), x));
}

INLINE vf vf_softcap(vf x, vf cap)
{
	vf e = vf_exp(vf_mul(vf_div(x, cap), vf_set1(2.0f)));

	return vf_mul(cap, vf_sub(vf_set1(1.0f), vf_div(vf_set1(2.0f), vf_add(e, vf_set1(1.0f)))));
}

/* 16 * n values to integers of magnitude <= top; returns the scale. */
INLINE float quantize_some(const float *x, const int n, const float top, vi *r)
{
	vf v[2 * VN], max = vf_zero(), inverse;
	float scale;

	UNROLL
	for (int i = 0; i < n * VN; i++) {
		v[i] = vf_load(x + i * VW);
		max = vf_max(vf_abs(v[i]), max);
	}
	scale = vf_reduce_max(max) / top;
	inverse = vf_set1(scale >= FLT_MIN ? 1.0f / scale : 0);
	scale = scale >= FLT_MIN ? scale : 0;
	UNROLL
	for (int i = 0; i < n * VN; i++) {
		vf t = vf_min(vf_mul(v[i], inverse), vf_set1(top));

		r[i] = vf_round(vf_max(t, vf_set1(-top)));
	}
	return scale;
}

/* Scale times sum of 16 integers. */
INLINE float scaled_sum(float scale, const vi r[VN])
{
	vi sum = r[0];

	UNROLL
	for (int i = 1; i < VN; i++)
		sum = vi_add(sum, r[i]);
	return scale * (float)vi_reduce_add(sum);
}

static void simd_quantize(const float *x, uint32_t n, int8_t *q, float *d, float *h, float *s)
{
	for (uint32_t b = 0; b < n / KC_BLOCK; b++, x += KC_BLOCK, d += 2, h += 2) {
		vi r[2 * VN];

		d[0] = quantize_some(x, 1, 127.0f, r);
		d[1] = quantize_some(x + KC_HALF, 1, 127.0f, r + VN);
		h[0] = scaled_sum(d[0], r);
		h[1] = scaled_sum(d[1], r + VN);
		s[b] = h[0] + h[1];
		vi_store_bytes(q + (size_t)b * KC_BLOCK, r);
	}
}

static void simd_quantize16(const float *x, uint32_t n, int16_t *q, float *d)
{
	for (uint32_t b = 0; b < n / KC_BLOCK; b++) {
		vi r[2 * VN];

		d[b] = quantize_some(x + (size_t)b * KC_BLOCK, 2, 32767.0f, r);
		vi_store_pairs(q + (size_t)b * KC_BLOCK, r);
	}
}

static void simd_rmsnorm(float *y, const float *x, const float *w, uint32_t n, float eps)
{
	vf squares[VN], inverse;

	UNROLL
	for (int i = 0; i < VN; i++)
		squares[i] = vf_zero();
	for (uint32_t k = 0; k < n; k += 16) {
		UNROLL
		for (int i = 0; i < VN; i++) {
			vf v = vf_load(x + k + i * VW);

			squares[i] = vf_fma(v, v, squares[i]);
		}
	}
	inverse = vf_set1(1.0f / sqrtf(vf_reduce_add(squares) / (float)n + eps));
	for (uint32_t k = 0; k < n; k += VW)
		vf_store(y + k, vf_mul(vf_mul(vf_load(x + k), inverse), vf_load(w + k)));
}

static void simd_rotate(float *x, const float *angles, uint32_t n_dims, enum kb_rope_style style)
{
	uint32_t half = n_dims / 2, i = 0;

	if (style == KB_ROPE_INTERLEAVED) {
		for (; i < half; i++) {
			float a = x[2 * i], b = x[2 * i + 1];

			x[2 * i] = fmaf(a, angles[i], -(b * angles[half + i]));
			x[2 * i + 1] = fmaf(a, angles[half + i], b * angles[i]);
		}
		return;
	}
	for (; i + VW <= half; i += VW) {
		vf a = vf_load(x + i), b = vf_load(x + half + i);
		vf c = vf_load(angles + i), s = vf_load(angles + half + i);

		vf_store(x + i, vf_fma(a, c, vf_neg(vf_mul(b, s))));
		vf_store(x + half + i, vf_fma(a, s, vf_mul(b, c)));
	}
	for (; i < half; i++) {
		float a = x[i], b = x[half + i];

		x[i] = fmaf(a, angles[i], -(b * angles[half + i]));
		x[half + i] = fmaf(a, angles[half + i], b * angles[i]);
	}
}

/* Steps inside of a vector: the upper lane of each pair is subtracted. */
INLINE vf hadamard_lanes(vf v)
{
	static const float signs[4][16] = {
		{ 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1 },
		{ 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1 },
		{ 1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1 },
		{ 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1 },
	};

	v = vf_fma(v, vf_load(signs[0]), vf_swap_1(v));
	v = vf_fma(v, vf_load(signs[1]), vf_swap_2(v));
	v = vf_fma(v, vf_load(signs[2]), vf_swap_4(v));
#if VW == 16
	v = vf_fma(v, vf_load(signs[3]), vf_swap_8(v));
#endif
	return v;
}

static void simd_hadamard(float *x, uint32_t n)
{
	uint32_t width = kc_hadamard_width(n);
	vf scale = vf_set1(1.0f / sqrtf((float)width));

	for (uint32_t k = 0; k < n; k += VW)
		vf_store(x + k, hadamard_lanes(vf_mul(vf_load(x + k), scale)));
	for (uint32_t step = VW; step < width; step *= 2) {
		for (uint32_t i = 0; i < n; i += 2 * step) {
			for (uint32_t k = i; k < i + step; k += VW) {
				vf a = vf_load(x + k), b = vf_load(x + k + step);

				vf_store(x + k, vf_add(a, b));
				vf_store(x + k + step, vf_sub(a, b));
			}
		}
	}
}

static void simd_gated(float *gate, const float *up, uint32_t n, enum kb_activation activation)
{
	for (uint32_t k = 0; k < n; k += VW) {
		vf x = vf_load(gate + k), u = vf_neg(x);

		if (activation == KB_GELU_TANH)
			u = vf_mul(x, vf_fma(vf_mul(x, x), vf_set1(KC_GELU_B), vf_set1(KC_GELU_A)));
		x = vf_div(x, vf_add(vf_set1(1.0f), vf_exp(u)));
		vf_store(gate + k, vf_mul(x, vf_load(up + k)));
	}
}

static void simd_softcap(float *x, uint32_t n, float cap)
{
	for (uint32_t k = 0; k < n; k += VW)
		vf_store(x + k, vf_softcap(vf_load(x + k), vf_set1(cap)));
}

static void simd_store_f16(uint16_t *y, const float *x, uint32_t n)
{
	for (uint32_t k = 0; k < n; k += VW)
		vf_store_f16(y + k, vf_load(x + k));
}

#endif
