/* SPDX-License-Identifier: Apache-2.0 */
/* Plain C kernels that treat one row: quantisation, norms, rotation, activations. */
#include "ref.h"

#include <float.h>
#include <math.h>

#include "elementary.h"

/* n values to integers of magnitude <= top; returns the scale. */
static float quantize_some(const float *x, uint32_t n, float top, int32_t *q)
{
	float max = 0, scale, inverse = 0;

	for (uint32_t k = 0; k < n; k++)
		max = fabsf(x[k]) > max ? fabsf(x[k]) : max;
	scale = max / top;
	if (scale >= FLT_MIN)
		inverse = 1.0f / scale;
	else
		scale = 0;
	for (uint32_t k = 0; k < n; k++) {
		float t = x[k] * inverse;

		t = t < top ? t : top;
		t = t > -top ? t : -top;
		q[k] = (int32_t)lrintf(t);
	}
	return scale;
}

static void ref_quantize(const float *x, uint32_t n, int8_t *q, float *d, float *h, float *s)
{
	for (uint32_t i = 0; i < n / KC_HALF; i++) {
		int32_t v[KC_HALF], sum = 0;

		d[i] = quantize_some(x + (size_t)i * KC_HALF, KC_HALF, 127.0f, v);
		for (uint32_t k = 0; k < KC_HALF; k++) {
			q[(size_t)i * KC_HALF + k] = (int8_t)v[k];
			sum += v[k];
		}
		h[i] = d[i] * (float)sum;
		if (i % 2)
			s[i / 2] = h[i - 1] + h[i];
	}
}

static void ref_quantize16(const float *x, uint32_t n, int16_t *q, float *d)
{
	static const uint8_t order[4] = { 0, 2, 1, 3 };

	for (uint32_t b = 0; b < n / KC_BLOCK; b++) {
		int32_t v[KC_BLOCK];

		d[b] = quantize_some(x + (size_t)b * KC_BLOCK, KC_BLOCK, 32767.0f, v);
		for (uint32_t k = 0; k < KC_BLOCK; k++)
			q[(size_t)b * KC_BLOCK + k] = (int16_t)v[k / 4 * 4 + order[k % 4]];
	}
}

static void ref_rmsnorm(float *y, const float *x, const float *w, uint32_t n, float eps)
{
	float squares[KC_LANES] = { 0 }, inverse;

	for (uint32_t k = 0; k < n; k++)
		squares[k % KC_LANES] = fmaf(x[k], x[k], squares[k % KC_LANES]);
	inverse = 1.0f / sqrtf(kc_ref_tree(squares) / (float)n + eps);
	for (uint32_t k = 0; k < n; k++)
		y[k] = x[k] * inverse * w[k];
}

static void ref_rotate(float *x, const float *angles, uint32_t n_dims, enum kb_rope_style style)
{
	uint32_t half = n_dims / 2;

	for (uint32_t i = 0; i < half; i++) {
		float *x0 = style == KB_ROPE_HALVES ? &x[i] : &x[2 * i];
		float *x1 = style == KB_ROPE_HALVES ? &x[i + half] : &x[2 * i + 1];
		float c = angles[i], s = angles[half + i], a = *x0, b = *x1;

		*x0 = fmaf(a, c, -(b * s));
		*x1 = fmaf(a, s, b * c);
	}
}

static void ref_hadamard(float *x, uint32_t n)
{
	uint32_t width = kc_hadamard_width(n);
	float scale = 1.0f / sqrtf((float)width);

	for (uint32_t i = 0; i < n; i++)
		x[i] *= scale;
	for (uint32_t step = 1; step < width; step *= 2) {
		for (uint32_t i = 0; i < n; i++) {
			float a = x[i], b;

			if (i & step)
				continue;
			b = x[i + step];
			x[i] = a + b;
			x[i + step] = a - b;
		}
	}
}

static void ref_gated(float *gate, const float *up, uint32_t n, enum kb_activation activation)
{
	for (uint32_t k = 0; k < n; k++) {
		float x = gate[k], u = -x;

		if (activation == KB_GELU_TANH)
			u = x * fmaf(x * x, KC_GELU_B, KC_GELU_A);
		gate[k] = x / (1.0f + kc_exp(u)) * up[k];
	}
}

static void ref_softcap(float *x, uint32_t n, float cap)
{
	for (uint32_t k = 0; k < n; k++)
		x[k] = kc_softcap(x[k], cap);
}

static void ref_store_f16(uint16_t *y, const float *x, uint32_t n)
{
	for (uint32_t k = 0; k < n; k++)
		y[k] = kc_f32_to_f16(x[k]);
}

static bool always(void)
{
	return true;
}

const struct kc_level kc_level_c = {
	.name = "c",
	.supported = always,
	.quantize = ref_quantize,
	.quantize16 = ref_quantize16,
	.rmsnorm = ref_rmsnorm,
	.rotate = ref_rotate,
	.hadamard = ref_hadamard,
	.gated = ref_gated,
	.softcap = ref_softcap,
	.store_f16 = ref_store_f16,
	.product = kc_ref_product,
	.attend = kc_ref_attend,
	.merge = kc_ref_merge,
};
