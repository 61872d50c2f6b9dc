/* SPDX-License-Identifier: Apache-2.0 */
/* simd-common.h - 256-bit pieces that the AVX2 and the AVX-512 vector share. */
#ifndef KC_SIMD_COMMON_H
#define KC_SIMD_COMMON_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
/*
 * Loops over registers, and what must be inlined for its arguments to be
 * constants.  KC_NO_UNROLL is for builds whose instrumentation would blow the
 * code up: they run the same operations from memory.
 */
#ifdef KC_NO_UNROLL
#define UNROLL
#define UNROLL_4
#define SPECIALIZED static __attribute__((unused))
#else
#define UNROLL _Pragma("GCC unroll 32")
#define UNROLL_4 _Pragma("GCC unroll 4")
#define SPECIALIZED INLINE
#endif
#define NO_UNROLL _Pragma("GCC unroll 1")

INLINE float reduce_max_8(__m256 v)
{
	__m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

	m = _mm_max_ps(m, _mm_movehl_ps(m, m));
	m = _mm_max_ss(m, _mm_shuffle_ps(m, m, 1));
	return _mm_cvtss_f32(m);
}

/* Lane i + lane i+4, then i + i+2, then 0 + 1. */
INLINE float reduce_add_8(__m256 v)
{
	__m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

	s = _mm_add_ps(s, _mm_movehl_ps(s, s));
	s = _mm_add_ss(s, _mm_shuffle_ps(s, s, 1));
	return _mm_cvtss_f32(s);
}

INLINE int32_t reduce_add_int_8(__m256i v)
{
	__m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));

	s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
	s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
	return _mm_cvtsi128_si32(s);
}

#endif
