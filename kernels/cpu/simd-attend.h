/* SPDX-License-Identifier: Apache-2.0 */
/* simd-attend.h - what one call of vector attention works with (simd-attention.h). */
#ifndef KC_SIMD_ATTEND_H
#define KC_SIMD_ATTEND_H

#include "cpu.h"
#include "simd-rows.h"

#define PAIR 32u		/* positions whose scores are computed together */
#define N_TILES (PAIR / KC_KV_TILE)
#define SPAN KC_ATTEND_TILE	/* positions whose values are turned into floats together */
#define DIRECT_QUERIES 8u	/* so many read the blocks themselves */
/* Queries of one pass, over two tiles' keys or a group's values: as many as there are registers for their sums. */
#if VN == 1
#define MAX_TOGETHER 8
#else
#define MAX_TOGETHER 4
#endif

/* Where keys or values come from. */
enum source { FROM_F16 = KB_KV_F16, FROM_Q8 = KB_KV_Q8, FROM_Q4 = KB_KV_Q4, FROM_FLOATS };

/* Bytes of n elements. */
INLINE size_t stored_bytes(const int from, size_t n)
{
	switch (from) {
	case FROM_F16:
		return n * 2;
	case FROM_Q8:
		return n;
	case FROM_Q4:
		return n / 2;
	default:
		return n * sizeof(float);
	}
}

/*
 * Blocks lie far apart, so the hardware does not see the next one coming: while a tile is used, the same bytes of a
 * later one are asked for, so many tiles further.
 */
#if VN == 1
#define KEYS_AHEAD 4u
#define VALUES_AHEAD 4u
#else
#define KEYS_AHEAD 2u
#define VALUES_AHEAD 1u
#endif
INLINE void prefetch_bytes(const uint8_t *p, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 64)
		_mm_prefetch((const char *)p + i, _MM_HINT_T0);
}

INLINE const float *query_at(const struct kc_queries *a, uint32_t j)
{
	return a->q + j / a->n_heads * a->q_stride + (size_t)(j % a->n_heads) * a->head_dim;
}

/*
 * How many of n queries go together.  With 16 registers threes, and fours where that saves a pass; with 32 as many as
 * there can be, but so that no pass is left with one.
 */
INLINE uint32_t queries_together(uint32_t n)
{
	static const uint8_t most[] = { 0, 1, 2, 3, 4, 3, 6, 4, 8, 6 };

	if (MAX_TOGETHER == 8)
		return n > 9 && n % 8 != 1 ? 8 : most[KC_MIN(n, 9)];
	return n == 8 || (n % 3 == 1 && n > 1) ? 4 : KC_MIN(n, 3);
}

/* What a call works with; floats are in the scratch memory. */
struct attend {
	const struct kc_queries *a;
	uint32_t n;		/* queries */
	uint32_t base;		/* first position of the segment */
	uint32_t begin, end;	/* positions that some query sees */
	bool direct;
	/* Those of the segment, as far as they are seen; what is read ahead at the end is there again. */
	struct kc_kv tiles[KC_SEGMENT / KC_KV_TILE + KEYS_AHEAD];
	float *scores;		/* [KC_MAX_QUERIES][KC_SEGMENT] */
	float *floats;		/* [head_dim][KC_KV_TILE] twice, or [SPAN][head_dim] */
	float *scaled;		/* [n][head_dim] */
	float *start;		/* [n] */
	float *key_scales;	/* [2][head_dim] */
	float *value_scales;	/* [groups][KC_SEGMENT] */
	float *value_offsets;	/* [groups][KC_SEGMENT] */
};

#endif
