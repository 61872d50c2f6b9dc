/* SPDX-License-Identifier: Apache-2.0 */
/*
 * half.h - IEEE 754 binary16 and bfloat16 to and from float, bit for bit what
 * the F16C instructions give: round to nearest even, NaNs made quiet.
 */
#ifndef KC_HALF_H
#define KC_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t kc_float_bits(float f)
{
	uint32_t b;

	memcpy(&b, &f, sizeof(b));
	return b;
}

static inline float kc_bits_float(uint32_t b)
{
	float f;

	memcpy(&f, &b, sizeof(f));
	return f;
}

static inline float kc_f16_to_f32(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
	uint32_t exponent = (h >> 10) & 31, mantissa = h & 0x3ffu;

	if (exponent == 31)
		return kc_bits_float(sign | 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0));
	if (exponent)
		return kc_bits_float(sign | (exponent + 112) << 23 | mantissa << 13);
	return kc_bits_float(sign | kc_float_bits((float)mantissa * 0x1p-24f));
}

static inline uint16_t kc_f32_to_f16(float f)
{
	uint32_t bits = kc_float_bits(f), sign = bits >> 16 & 0x8000u, a = bits & 0x7fffffffu;

	if (a > 0x7f800000u)
		return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x3ffu));
	if (a >= 0x477ff000u)	/* 65520 and above round to infinity */
		return (uint16_t)(sign | 0x7c00u);
	if (a < 0x38800000u)	/* subnormal: the unit in the last place of 0.5f is 2^-24 */
		return (uint16_t)(sign | (kc_float_bits(kc_bits_float(a) + 0.5f) - 0x3f000000u));
	a += 0xfffu + (a >> 13 & 1);
	return (uint16_t)(sign | (a - 0x38000000u) >> 13);
}

static inline float kc_bf16_to_f32(uint16_t h)
{
	return kc_bits_float((uint32_t)h << 16);
}

#endif
