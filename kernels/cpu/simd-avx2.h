/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd-avx2.h - the vector of simd-*.h on AVX2 with FMA and F16C: 8 lanes.
 *
 * simd-avx512.h offers the same names with 16 lanes; its comments are here.
 */
#ifndef KC_SIMD_AVX2_H
#define KC_SIMD_AVX2_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "simd-common.h"

#define VW 8		/* floats in a vector */
#define VN (16 / VW)	/* vectors for the 16 lanes of a group or reduction */

/* Ahead of the weights being used, in bytes: about 100 ns at full speed; all streams together (simd-product.h). */
#define PREFETCH 2048

typedef __m256 vf;
typedef __m256i vi;

INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void vf_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
INLINE vf vf_set1(float x) { return _mm256_set1_ps(x); }
INLINE vf vf_zero(void) { return _mm256_setzero_ps(); }
INLINE vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
INLINE vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
INLINE vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
/* sum += a * b, in place: gcc 12 copies and spills sums that it adds itself */
INLINE void vf_add_product(vf *sum, vf a, vf b)
{
	__asm__("vfmadd231ps %2, %1, %0" : "+x"(*sum) : "x"(a), "x"(b));
}
/* a > b ? a : b and a < b ? a : b, so b where one is a NaN */
INLINE vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
INLINE vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
INLINE vf vf_abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
INLINE vf vf_neg(vf a) { return _mm256_xor_ps(_mm256_set1_ps(-0.0f), a); }
/* Lane i becomes lane i ^ 1, 2, 4. */
INLINE vf vf_swap_1(vf a) { return _mm256_permute_ps(a, 0xb1); }
INLINE vf vf_swap_2(vf a) { return _mm256_permute_ps(a, 0x4e); }
INLINE vf vf_swap_4(vf a) { return _mm256_permute2f128_ps(a, a, 1); }
INLINE vf vf_of_int(vi a) { return _mm256_cvtepi32_ps(a); }
INLINE vi vf_round(vf a) { return _mm256_cvtps_epi32(a); }
INLINE vf vf_as_float(vi a) { return _mm256_castsi256_ps(a); }
INLINE vi vi_as_int(vf a) { return _mm256_castps_si256(a); }
INLINE vi vi_load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE void vi_store(void *p, vi v) { _mm256_storeu_si256((__m256i *)p, v); }
INLINE vi vi_zero(void) { return _mm256_setzero_si256(); }
INLINE vi vi_set1(int32_t x) { return _mm256_set1_epi32(x); }
INLINE vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
INLINE vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
INLINE vi vi_high_nibbles(vi a) { return _mm256_and_si256(_mm256_srli_epi16(a, 4), _mm256_set1_epi8(15)); }
INLINE vi vi_low_nibbles(vi a) { return _mm256_and_si256(a, _mm256_set1_epi8(15)); }
INLINE vi vi_shift_left_23(vi a) { return _mm256_slli_epi32(a, 23); }
INLINE vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
/* Bits cross from byte to byte: masked afterwards. */
#define vi_shift_left(a, n) _mm256_slli_epi32(a, n)
#define vi_shift_right(a, n) _mm256_srli_epi32(a, n)
INLINE vi vi_set1_byte(int8_t x) { return _mm256_set1_epi8(x); }
INLINE vi vi_sub_bytes(vi a, vi b) { return _mm256_sub_epi8(a, b); }
/* table[a] for every byte of a, 0 .. 15 */
INLINE vi vi_lookup(const int8_t table[16], vi a)
{
	__m128i t = _mm_loadu_si128((const __m128i *)(const void *)table);

	return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t), a);
}

/* VW bytes as integers. */
INLINE vi vi_load_u8(const void *p)
{
	return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

INLINE vi vi_load_i8(const void *p)
{
	return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

/* 16 nibbles: the low ones of 8 bytes, then the high ones; vector i of them. */
INLINE vi vi_load_nibbles(const void *p, int i)
{
	vi x = vi_load_u8(p);

	return i ? _mm256_srli_epi32(x, 4) : _mm256_and_si256(x, _mm256_set1_epi32(15));
}

INLINE vf vf_load_f16(const void *p)
{
	return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

INLINE void vf_store_f16(void *p, vf v)
{
	_mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

INLINE vf vf_load_bf16(const void *p)
{
	__m256i v = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));

	return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
}

/* Largest lane; no NaNs. */
INLINE float vf_reduce_max(vf v)
{
	return reduce_max_8(v);
}

/* Sum of 16 lanes, by halves. */
INLINE float vf_reduce_add(const vf v[VN])
{
	return reduce_add_8(_mm256_add_ps(v[0], v[1]));
}

INLINE int32_t vi_reduce_add(vi v)
{
	return reduce_add_int_8(v);
}

/* 32 integers in -128..127 to bytes. */
INLINE void vi_store_bytes(int8_t *p, const vi v[32 / VW])
{
	__m256i a = _mm256_packs_epi32(v[0], v[1]), b = _mm256_packs_epi32(v[2], v[3]);
	__m256i c = _mm256_packs_epi16(a, b);

	/* The packs work inside 128-bit halves. */
	c = _mm256_permutevar8x32_epi32(c, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
	_mm256_storeu_si256((__m256i *)p, c);
}

/* 32 integers of 16 bits, of each four in the order 0, 2, 1, 3. */
INLINE void vi_store_pairs(int16_t *p, const vi v[32 / VW])
{
	UNROLL
	for (int i = 0; i < 2; i++) {
		__m256i a = _mm256_shuffle_epi32(v[2 * i], 0xd8),
			b = _mm256_shuffle_epi32(v[2 * i + 1], 0xd8);

		/* The pack works inside 128-bit halves. */
		a = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
		_mm256_storeu_si256((__m256i *)(void *)(p + 16 * (size_t)i), a);
	}
}

/* Two activations in every lane. */
INLINE vi vi_pair(const int16_t *p)
{
	int32_t x;

	memcpy(&x, p, sizeof(x));
	return _mm256_set1_epi32(x);
}

/* Four activation bytes in every lane. */
INLINE vi vi_bytes4(const int8_t *p)
{
	int32_t x;

	memcpy(&x, p, sizeof(x));
	return _mm256_set1_epi32(x);
}

/*
 * Dot product of 16 weights of up to 5 bits per lane: four steps of four.  A
 * step's pair sums are at most 2 * 31 * 127 = 7,874 in magnitude, so that four
 * add up to at most 31,496 in 16 bits; one multiply-add by ones then widens them.
 */
INLINE vi dot_small(vi sum, vi w, vi x)
{
	__m256i pairs = _mm256_maddubs_epi16(w, x);

	/* In place: gcc 12 copies and spills sums that it adds itself, a quarter slower. */
	__asm__("vpaddw %1, %0, %0" : "+x"(sum) : "x"(pairs));
	return sum;
}

INLINE vi dot_small_first(vi w, vi x)
{
	return _mm256_maddubs_epi16(w, x);
}

INLINE vi dot_small_end(vi sum)
{
	return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
}

/*
 * Signed bytes times 16-bit activations: the four bytes of a lane as two pairs
 * of 16 bits, (0, 2) and (1, 3), which is the order of the activations.  32
 * products of at most 128 * 32,767 fit 32 bits.
 */
struct dot_weights {
	vi even, odd;
};

INLINE struct dot_weights dot_bytes_weights(vi w)
{
	return (struct dot_weights){ _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8), _mm256_srai_epi16(w, 8) };
}

/* Two weights of 16 bits per lane times two activations. */
INLINE vi dot_pair_first(vi w, vi x)
{
	return _mm256_madd_epi16(w, x);
}

INLINE vi dot_pair(vi sum, vi w, vi x)
{
	__m256i product = _mm256_madd_epi16(w, x);

	/* as above */
	__asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(product));
	return sum;
}

/* x: the four activations of a step. */
INLINE vi dot_bytes(vi sum, struct dot_weights w, const int16_t *x)
{
	__m256i even = _mm256_madd_epi16(w.even, vi_pair(x)), odd = _mm256_madd_epi16(w.odd, vi_pair(x + 2));

	/* as above */
	__asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(even));
	__asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(odd));
	return sum;
}

#endif
