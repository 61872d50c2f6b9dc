/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simde-avx512.h - AVX-512 in terms of AVX2 by SIMDe, under the native names, so
 * that the AVX-512 kernels can be run where the CPU lacks it; with the few
 * intrinsics that SIMDe 0.7 has not.
 */
#ifndef KERNELS_SIMDE_AVX512_H
#define KERNELS_SIMDE_AVX512_H

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>

/* Two halves of a 512-bit value. */
static inline __m256 half_ps(simde__m512 v, int i)
{
	__m256 half[2];

	memcpy(half, &v, sizeof(v));
	return half[i];
}

static inline simde__m512 join_ps(__m256 low, __m256 high)
{
	__m256 half[2] = { low, high };
	simde__m512 v;

	memcpy(&v, half, sizeof(v));
	return v;
}

static inline simde__m512i join_int(__m256i low, __m256i high)
{
	__m256i half[2] = { low, high };
	simde__m512i v;

	memcpy(&v, half, sizeof(v));
	return v;
}

static inline __m256i half_int(simde__m512i v, int i)
{
	__m256i half[2];

	memcpy(half, &v, sizeof(v));
	return half[i];
}

static inline simde__m512 test_cvtph_ps(__m256i v)
{
	return join_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(v)), _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1)));
}

static inline __m256i test_cvtps_ph(simde__m512 v)
{
	return _mm256_set_m128i(_mm256_cvtps_ph(half_ps(v, 1), _MM_FROUND_TO_NEAREST_INT),
				_mm256_cvtps_ph(half_ps(v, 0), _MM_FROUND_TO_NEAREST_INT));
}

static inline simde__m512i test_cvtepu16_epi32(__m256i v)
{
	return join_int(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(v)),
			_mm256_cvtepu16_epi32(_mm256_extracti128_si256(v, 1)));
}

static inline simde__m512i test_cvtepu8_epi32(__m128i v)
{
	return join_int(_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128(v, 8)));
}

static inline simde__m512i test_cvtepi8_epi32(__m128i v)
{
	return join_int(_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8)));
}

static inline simde__m512i test_cvtps_epi32(simde__m512 v)
{
	return join_int(_mm256_cvtps_epi32(half_ps(v, 0)), _mm256_cvtps_epi32(half_ps(v, 1)));
}

static inline simde__m512 test_cvtepi32_ps(simde__m512i v)
{
	return join_ps(_mm256_cvtepi32_ps(half_int(v, 0)), _mm256_cvtepi32_ps(half_int(v, 1)));
}

static inline __m128i test_cvtepi32_epi8(simde__m512i v)
{
	int32_t in[16];
	int8_t out[16];
	__m128i r;

	memcpy(in, &v, sizeof(in));
	for (int i = 0; i < 16; i++)
		out[i] = (int8_t)in[i];
	memcpy(&r, out, sizeof(r));
	return r;
}

static inline __m256i test_cvtepi32_epi16(simde__m512i v)
{
	int32_t in[16];
	int16_t out[16];
	__m256i r;

	memcpy(in, &v, sizeof(in));
	for (int i = 0; i < 16; i++)
		out[i] = (int16_t)in[i];
	memcpy(&r, out, sizeof(r));
	return r;
}

#undef _mm512_cvtph_ps
#undef _mm512_cvtps_ph
#undef _mm512_cvtepu16_epi32
#undef _mm512_cvtepu8_epi32
#undef _mm512_cvtepi8_epi32
#undef _mm512_cvtps_epi32
#undef _mm512_cvtepi32_ps
#undef _mm512_cvtepi32_epi8
#undef _mm512_cvtepi32_epi16
#undef _mm512_castsi512_ps
#undef _mm512_castps_si512
#undef _mm512_madd_epi16	/* SIMDe 0.7 names it with the arguments of the masked one */
#undef _mm512_extracti64x4_epi64
#undef _mm512_extractf64x4_pd
#undef _mm512_castps_pd
#define _mm512_permute_ps(v, i) join_ps(_mm256_permute_ps(half_ps(v, 0), i), _mm256_permute_ps(half_ps(v, 1), i))
#define _mm512_shuffle_f32x4(a, b, i) simde_mm512_shuffle_f32x4(a, b, i)
#define _mm512_cvtph_ps(v) test_cvtph_ps(v)
#define _mm512_cvtps_ph(v, mode) test_cvtps_ph(v)
#define _mm512_cvtepu16_epi32(v) test_cvtepu16_epi32(v)
#define _mm512_cvtepu8_epi32(v) test_cvtepu8_epi32(v)
#define _mm512_cvtepi8_epi32(v) test_cvtepi8_epi32(v)
#define _mm512_cvtps_epi32(v) test_cvtps_epi32(v)
#define _mm512_cvtepi32_ps(v) test_cvtepi32_ps(v)
#define _mm512_cvtepi32_epi8(v) test_cvtepi32_epi8(v)
#define _mm512_cvtepi32_epi16(v) test_cvtepi32_epi16(v)
#define _mm512_castsi512_ps(v) simde_mm512_castsi512_ps(v)
#define _mm512_castps_si512(v) simde_mm512_castps_si512(v)
#define _mm512_extracti64x4_epi64(v, i) half_int(v, i)
#define _mm512_madd_epi16(a, b) simde_mm512_madd_epi16(a, b)
#define _mm512_castps_pd(v) simde_mm512_castps_pd(v)
#define _mm512_extractf64x4_pd(v, i) simde_mm512_extractf64x4_pd(v, i)

#endif
