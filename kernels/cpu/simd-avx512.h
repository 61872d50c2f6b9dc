/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd-avx512.h - the vector of simd-*.h on AVX-512 F, BW, DQ and VL, and on VNNI
 * where the level defines KC_VNNI: 16 lanes.  See simd-avx2.h.  KC_EMULATED: a
 * test has functions in place of the intrinsics.
 */
#ifndef KC_SIMD_AVX512_H
#define KC_SIMD_AVX512_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "simd-common.h"

#define VW 16
#define VN (16 / VW)

/*
 * Ahead of the weights being used, in bytes: some 250 ns at the speed of one core.  Decoding on a Zen 5, two threads,
 * tokens per second with 1,024, 2,048, 4,096 and 8,192 bytes: 496, 533, 574, 627; with 16,384 and 32,768 as with 8,192.
 */
#define PREFETCH 8192

typedef __m512 vf;
typedef __m512i vi;

INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
INLINE vf vf_set1(float x) { return _mm512_set1_ps(x); }
INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE void vf_add_product(vf *sum, vf a, vf b) { *sum = _mm512_fmadd_ps(a, b, *sum); }
INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
INLINE vi vi_set1(int32_t x) { return _mm512_set1_epi32(x); }
INLINE vf vf_as_float(vi a) { return _mm512_castsi512_ps(a); }
INLINE vi vi_as_int(vf a) { return _mm512_castps_si512(a); }
INLINE vf vf_abs(vf a) { return vf_as_float(vi_and(vi_as_int(a), vi_set1(0x7fffffff))); }
INLINE vf vf_neg(vf a) { return vf_as_float(_mm512_xor_si512(vi_as_int(a), vi_set1(INT32_MIN))); }
INLINE vf vf_swap_1(vf a) { return _mm512_permute_ps(a, 0xb1); }
INLINE vf vf_swap_2(vf a) { return _mm512_permute_ps(a, 0x4e); }
INLINE vf vf_swap_4(vf a) { return _mm512_shuffle_f32x4(a, a, 0xb1); }
INLINE vf vf_swap_8(vf a) { return _mm512_shuffle_f32x4(a, a, 0x4e); }
INLINE vf vf_of_int(vi a) { return _mm512_cvtepi32_ps(a); }
INLINE vi vf_round(vf a) { return _mm512_cvtps_epi32(a); }
INLINE vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
INLINE void vi_store(void *p, vi v) { _mm512_storeu_si512(p, v); }
INLINE vi vi_zero(void) { return _mm512_setzero_si512(); }
INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
INLINE vi vi_low_nibbles(vi a) { return vi_and(a, vi_set1(0x0f0f0f0f)); }
INLINE vi vi_high_nibbles(vi a) { return vi_and(_mm512_srli_epi16(a, 4), vi_set1(0x0f0f0f0f)); }
INLINE vi vi_shift_left_23(vi a) { return _mm512_slli_epi32(a, 23); }
INLINE vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
#define vi_shift_left(a, n) _mm512_slli_epi32(a, n)
#define vi_shift_right(a, n) _mm512_srli_epi32(a, n)
INLINE vi vi_set1_byte(int8_t x) { return _mm512_set1_epi8(x); }
INLINE vi vi_sub_bytes(vi a, vi b) { return _mm512_sub_epi8(a, b); }

INLINE vi vi_lookup(const int8_t table[16], vi a)
{
	__m128i t = _mm_loadu_si128((const __m128i *)(const void *)table);

	return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(t), a);
}

INLINE vi vi_load_u8(const void *p)
{
	return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}

INLINE vi vi_load_i8(const void *p)
{
	return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p));
}

INLINE vi vi_load_nibbles(const void *p, int i)
{
	__m128i x = _mm_loadl_epi64((const __m128i *)p);

	/* The high ones of a byte go above the low ones of all. */
	x = _mm_unpacklo_epi64(x, _mm_srli_epi16(x, 4));
	return _mm512_cvtepu8_epi32(_mm_and_si128(x, _mm_set1_epi8(15)));
}

INLINE vf vf_load_f16(const void *p)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE void vf_store_f16(void *p, vf v)
{
	_mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

INLINE vf vf_load_bf16(const void *p)
{
	__m512i v = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));

	return vf_as_float(_mm512_slli_epi32(v, 16));
}

INLINE __m256 upper_half(vf v)
{
	return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
}

INLINE float vf_reduce_max(vf v)
{
	return reduce_max_8(_mm256_max_ps(_mm512_castps512_ps256(v), upper_half(v)));
}

INLINE float vf_reduce_add(const vf v[VN])
{
	return reduce_add_8(_mm256_add_ps(_mm512_castps512_ps256(v[0]), upper_half(v[0])));
}

INLINE int32_t vi_reduce_add(vi v)
{
	__m256i low = _mm512_castsi512_si256(v), high = _mm512_extracti64x4_epi64(v, 1);

	return reduce_add_int_8(_mm256_add_epi32(low, high));
}

INLINE void vi_store_bytes(int8_t *p, const vi v[32 / VW])
{
	_mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(v[0]));
	_mm_storeu_si128((__m128i *)(p + 16), _mm512_cvtepi32_epi8(v[1]));
}

INLINE void vi_store_pairs(int16_t *p, const vi v[32 / VW])
{
	UNROLL
	for (int i = 0; i < 2; i++) {
		__m256i a = _mm512_cvtepi32_epi16(v[i]);

		a = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(a, 0xd8), 0xd8);
		_mm256_storeu_si256((__m256i *)(void *)(p + 16 * (size_t)i), a);
	}
}

INLINE vi vi_pair(const int16_t *p)
{
	int32_t x;

	memcpy(&x, p, sizeof(x));
	return _mm512_set1_epi32(x);
}

INLINE vi vi_bytes4(const int8_t *p)
{
	int32_t x;

	memcpy(&x, p, sizeof(x));
	return _mm512_set1_epi32(x);
}

#ifdef KC_VNNI
/* dpbusd adds four products to 32 bits and does not saturate. */
INLINE vi dot_small(vi sum, vi w, vi x)
{
	return _mm512_dpbusd_epi32(sum, w, x);
}

INLINE vi dot_small_end(vi sum)
{
	return sum;
}

/* dpwssd adds two products of 16 bits. */
INLINE vi dot_pairs(vi sum, vi w, vi x)
{
	return _mm512_dpwssd_epi32(sum, w, x);
}
#ifndef KC_EMULATED
#define DOT_AT
/* The same with x at p: gcc 12 loads what the multiplication could take from memory itself. */
struct four_bytes {
	char bytes[4];
};

INLINE vi dot_small_at(vi sum, vi w, const void *p)
{
	__asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*(const struct four_bytes *)p));
	return sum;
}

INLINE vi dot_pairs_at(vi sum, vi w, const void *p)
{
	__asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*(const struct four_bytes *)p));
	return sum;
}
#endif
#else
/* As in simd-avx2.h: at most four of these fit 16 bits. */
INLINE vi dot_small(vi sum, vi w, vi x)
{
	return _mm512_add_epi16(sum, _mm512_maddubs_epi16(w, x));
}

INLINE vi dot_small_end(vi sum)
{
	return _mm512_madd_epi16(sum, _mm512_set1_epi16(1));
}

INLINE vi dot_pairs(vi sum, vi w, vi x)
{
	vi both = _mm512_madd_epi16(w, x);

#ifdef KC_EMULATED
	return _mm512_add_epi32(sum, both);
#else
	/* In place: gcc 12 copies and spills sums that it adds itself, some fifty of them per step. */
	__asm__("vpaddd %1, %0, %0" : "+v"(sum) : "v"(both));
	return sum;
#endif
}
#endif

#ifndef DOT_AT
INLINE vi dot_small_at(vi sum, vi w, const int8_t *p)
{
	return dot_small(sum, w, vi_bytes4(p));
}

INLINE vi dot_pairs_at(vi sum, vi w, const int16_t *p)
{
	return dot_pairs(sum, w, vi_pair(p));
}
#endif

struct dot_weights {
	vi even, odd;
};

INLINE struct dot_weights dot_bytes_weights(vi w)
{
	return (struct dot_weights){ _mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8), _mm512_srai_epi16(w, 8) };
}

#endif
