/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/probe-ways.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#define N_SUMS 8u

#ifdef __x86_64__

/* Sums of a piece in `streams` parts side by side; each turn takes 8 registers, from each stream 8 / streams. */
#define DEFINE_READ(NAME, TARGET, VECTOR, ZERO, LOAD, ADD, STREAMS, AHEAD, HINT) \
__attribute__((target(TARGET))) static uint64_t NAME(const char *piece) \
{ \
	const size_t part = PROBE_PIECE / (STREAMS), each = N_SUMS / (STREAMS) * sizeof(VECTOR); \
	VECTOR s[N_SUMS]; \
	uint64_t out[sizeof(VECTOR) / 8]; \
 \
	for (size_t k = 0; k < N_SUMS; k++) \
		s[k] = ZERO(); \
	for (size_t at = 0; at < part; at += each) { \
		_Pragma("GCC unroll 8") \
		for (size_t k = 0; k < N_SUMS; k++) { \
			const char *p = piece + k % (STREAMS) * part + at + k / (STREAMS) * sizeof(VECTOR); \
 \
			if ((AHEAD) && (size_t)(p - piece) % 64 == 0) \
				_mm_prefetch(p + (AHEAD), HINT); \
			s[k] = ADD(s[k], LOAD((const void *)p)); \
		} \
	} \
	for (size_t k = 1; k < N_SUMS; k++) \
		s[0] = ADD(s[0], s[k]); \
	memcpy(out, &s[0], sizeof(out)); \
	return out[0] + out[1]; \
}

#define READ_16(NAME, STREAMS, AHEAD, HINT) \
	DEFINE_READ(NAME, "sse2", __m128i, _mm_setzero_si128, _mm_load_si128, _mm_add_epi64, STREAMS, AHEAD, HINT)
#define READ_32(NAME, STREAMS, AHEAD, HINT) \
	DEFINE_READ(NAME, "avx2", __m256i, _mm256_setzero_si256, _mm256_load_si256, _mm256_add_epi64, STREAMS, \
		    AHEAD, HINT)
#define READ_64(NAME, STREAMS, AHEAD, HINT) \
	DEFINE_READ(NAME, "avx512f", __m512i, _mm512_setzero_si512, _mm512_load_si512, _mm512_add_epi64, STREAMS, \
		    AHEAD, HINT)

READ_16(read_16, 1, 0, _MM_HINT_T0)
READ_32(read_32, 1, 0, _MM_HINT_T0)
READ_32(read_32_ahead, 1, 2048, _MM_HINT_T0)
READ_32(read_32_2, 2, 0, _MM_HINT_T0)
READ_32(read_32_4, 4, 0, _MM_HINT_T0)
READ_32(read_32_4_ahead, 4, 1024, _MM_HINT_T0)
READ_32(read_32_8, 8, 0, _MM_HINT_T0)
READ_64(read_64, 1, 0, _MM_HINT_T0)
READ_64(read_64_ahead, 1, 2048, _MM_HINT_T0)
READ_64(read_64_4, 4, 0, _MM_HINT_T0)
READ_64(read_64_8, 8, 0, _MM_HINT_T0)

/* The widest come last; as many of them count as the CPU has. */
static const struct probe_read_way read_ways[] = {
	{ "16-byte loads", read_16 },
	{ "32-byte loads", read_32 },
	{ "32-byte loads, prefetch", read_32_ahead },
	{ "32-byte loads, 2 streams", read_32_2 },
	{ "32-byte loads, 4 streams", read_32_4 },
	{ "32-byte loads, 4 streams, prefetch", read_32_4_ahead },
	{ "32-byte loads, 8 streams", read_32_8 },
	{ "64-byte loads", read_64 },
	{ "64-byte loads, prefetch", read_64_ahead },
	{ "64-byte loads, 4 streams", read_64_4 },
	{ "64-byte loads, 8 streams", read_64_8 },
};
#define N_WAYS_16 1u
#define N_WAYS_32 7u
#define N_WAYS_64 11u

uint32_t probe_read_ways(const struct probe_read_way **ways)
{
	if (ways)
		*ways = read_ways;
	return __builtin_cpu_supports("avx512f") ? N_WAYS_64 : __builtin_cpu_supports("avx2") ? N_WAYS_32 : N_WAYS_16;
}

#define CHAINS 12u
#define INT8_CHAINS 4u		/* additions of integers take one cycle, and AVX2 has 16 registers */
#define INT8_TOGETHER 4
#define INT8_PRODUCTS (INT8_TOGETHER * INT8_CHAINS)	/* instructions of a turn */

/* Operands that the compiler can't know. */
static volatile uint8_t operand_byte = 3;
static volatile float operand_float = 0.5f;

/* N sums side by side, each of turns times STEP(sum, a, b). */
#define DEFINE_ARITHMETIC(NAME, N, TARGET, VECTOR, ZERO, OPERAND, STEP, ADD) \
__attribute__((target(TARGET))) static uint64_t NAME(uint32_t turns) \
{ \
	VECTOR a = OPERAND, b = a, s[N]; \
	uint64_t out[sizeof(VECTOR) / 8]; \
 \
	for (uint32_t k = 0; k < (N); k++) \
		s[k] = ZERO(); \
	for (uint32_t i = 0; i < turns; i++) { \
		/* So that it is not the same product each time. */ \
		__asm__ volatile("" : "+v"(a), "+v"(b)); \
		_Pragma("GCC unroll 12") \
		for (uint32_t k = 0; k < (N); k++) \
			s[k] = STEP(s[k], a, b); \
	} \
	for (uint32_t k = 1; k < (N); k++) \
		s[0] = ADD(s[0], s[k]); \
	memcpy(out, &s[0], sizeof(out)); \
	return out[0]; \
}

/*
 * As the kernels of that level multiply: four products of bytes added up as words, these to sums.  In assembly, or the
 * compiler makes one product for all.
 */
#define DEFINE_INT8_STEP(NAME, TARGET, VECTOR, PREFIX, ADD) \
__attribute__((target(TARGET), always_inline)) static inline VECTOR NAME(VECTOR sum, VECTOR a, VECTOR b) \
{ \
	VECTOR words, more; \
 \
	__asm__ volatile("vpmaddubsw %2, %1, %0" : "=v"(words) : "v"(a), "v"(b)); \
	for (int i = 1; i < INT8_TOGETHER; i++) { \
		__asm__ volatile("vpmaddubsw %2, %1, %0" : "=v"(more) : "v"(a), "v"(b)); \
		words = PREFIX##_add_epi16(words, more); \
	} \
	return ADD(sum, PREFIX##_madd_epi16(words, PREFIX##_set1_epi16(1))); \
}
DEFINE_INT8_STEP(int8_step_32, "avx2", __m256i, _mm256, _mm256_add_epi32)
DEFINE_INT8_STEP(int8_step_64, "avx512f,avx512bw", __m512i, _mm512, _mm512_add_epi32)

#define FMA_STEP_32(sum, a, b) _mm256_fmadd_ps(a, b, sum)
#define FMA_STEP_64(sum, a, b) _mm512_fmadd_ps(a, b, sum)

DEFINE_ARITHMETIC(int8_avx2, INT8_CHAINS, "avx2", __m256i, _mm256_setzero_si256,
		  _mm256_set1_epi8((char)operand_byte), int8_step_32, _mm256_add_epi32)
DEFINE_ARITHMETIC(fma_avx2, CHAINS, "avx2,fma", __m256, _mm256_setzero_ps, _mm256_set1_ps(operand_float),
		  FMA_STEP_32, _mm256_add_ps)
DEFINE_ARITHMETIC(int8_vnni, CHAINS, "avx512f,avx512vnni", __m512i, _mm512_setzero_si512,
		  _mm512_set1_epi8((char)operand_byte), _mm512_dpbusd_epi32, _mm512_add_epi32)
DEFINE_ARITHMETIC(int8_avx512, INT8_CHAINS, "avx512f,avx512bw", __m512i, _mm512_setzero_si512,
		  _mm512_set1_epi8((char)operand_byte), int8_step_64, _mm512_add_epi32)
DEFINE_ARITHMETIC(fma_avx512, CHAINS, "avx512f", __m512, _mm512_setzero_ps, _mm512_set1_ps(operand_float),
		  FMA_STEP_64, _mm512_add_ps)

/* The best first, by the level of the backend from which on it is used. */
static const struct probe_arithmetic_way arithmetic_ways[] = {
	{ "vpdpbusd, 64 bytes", "avx512vnni", PROBE_INT8, 64 * CHAINS, int8_vnni },
	{ "vpmaddubsw, vpaddw and vpmaddwd, 64 bytes", "avx512", PROBE_INT8, 64 * INT8_PRODUCTS, int8_avx512 },
	{ "vpmaddubsw, vpaddw and vpmaddwd, 32 bytes", "avx2", PROBE_INT8, 32 * INT8_PRODUCTS, int8_avx2 },
	{ "vfmadd, 16 floats", "avx512", PROBE_FMA, 16 * CHAINS, fma_avx512 },
	{ "vfmadd, 8 floats", "avx2", PROBE_FMA, 8 * CHAINS, fma_avx2 },
};

/* 0 to 2; a level that is not known here has all that the machine has. */
static int rank_of(const char *level)
{
	return !strcmp(level, "avx2") ? 0 : !strcmp(level, "avx512") ? 1 : 2;
}

static bool has(const char *level)
{
	switch (rank_of(level)) {
	case 0:
		return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
	case 1:
		return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
	default:
		return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vnni");
	}
}

const struct probe_arithmetic_way *probe_arithmetic_way(enum probe_kind kind, const char *level)
{
	for (size_t i = 0; i < sizeof(arithmetic_ways) / sizeof(arithmetic_ways[0]); i++) {
		const struct probe_arithmetic_way *way = &arithmetic_ways[i];

		if (way->kind == kind && has(way->level) && (!level || rank_of(way->level) <= rank_of(level)))
			return way;
	}
	return NULL;
}

#else

static uint64_t read_plain(const char *piece)
{
	uint64_t s[N_SUMS] = { 0 };

	for (size_t i = 0; i < PROBE_PIECE / sizeof(uint64_t); i += N_SUMS)
		for (size_t k = 0; k < N_SUMS; k++)
			s[k] += ((const uint64_t *)(const void *)piece)[i + k];
	return s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

static const struct probe_read_way read_ways[] = { { "8-byte loads", read_plain } };

uint32_t probe_read_ways(const struct probe_read_way **ways)
{
	if (ways)
		*ways = read_ways;
	return 1;
}

const struct probe_arithmetic_way *probe_arithmetic_way(enum probe_kind kind, const char *level)
{
	(void)kind;
	(void)level;
	return NULL;
}

#endif
