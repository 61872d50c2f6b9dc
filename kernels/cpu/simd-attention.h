/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd-attention.h - vector attention over one segment.
 *
 * A tile of 32 positions at a time is turned into floats once for all queries:
 * keys transposed, so that lanes are positions and the 16 partial sums of a
 * score are added without shuffles; values as they lie, lanes being channels.
 * First all scores of the segment, then the softmax of each query, then the
 * values, each in the order of ref-attention.c.
 *
 * Limit, prefill: the multiply-add rate, 2 * head_dim per query and position;
 * the tree of partial sums adds 15 additions to head_dim of them.  Limit,
 * decode: 4 * head_dim bytes per position and kv head over memory bandwidth.
 */
#ifndef KC_SIMD_ATTENTION_H
#define KC_SIMD_ATTENTION_H

#include <math.h>
#include <string.h>

#include "cpu.h"
#include "simd-rows.h"

#define TILE KC_ATTEND_TILE
#define SCORE_VECS 2	/* vectors of positions that a score kernel holds */

struct score_task {
	const float *q[2];
	const float *keys;	/* [head_dim][TILE], from the first position wanted */
	uint32_t head_dim;
};

struct score_sums {
	vf v[2 * SCORE_VECS];	/* query, vector */
};

/* Channel d of each score. */
SPECIALIZED void score_step(const struct score_task *t, const int n_queries, uint32_t d, struct score_sums *s)
{
	UNROLL
	for (int v = 0; v < SCORE_VECS; v++) {
		vf k = vf_load(t->keys + (size_t)d * TILE + v * VW);

		UNROLL
		for (int j = 0; j < n_queries; j++)
			s->v[j * SCORE_VECS + v] = vf_fma(vf_set1(t->q[j][d]), k, s->v[j * SCORE_VECS + v]);
	}
}

/* Partial sum i of each score: channels i, i + 16, ... */
SPECIALIZED struct score_sums score_leaf(const struct score_task *t, const int n_queries,
					 const uint32_t head_dim, const int i)
{
	struct score_sums s;

	UNROLL
	for (int j = 0; j < n_queries * SCORE_VECS; j++)
		s.v[j] = vf_zero();
	if (head_dim == 64) {
		UNROLL
		for (uint32_t d = 0; d < 64; d += 16)
			score_step(t, n_queries, d + (uint32_t)i, &s);
	} else {
		NO_UNROLL
		for (uint32_t d = 0; d < head_dim; d += 16)
			score_step(t, n_queries, d + (uint32_t)i, &s);
	}
	return s;
}

/* The tree of partial sums, depth first; each node adds those 8, 4, 2, 1 apart. */
#define SCORE_NODE(name, child, apart) \
	SPECIALIZED struct score_sums name(const struct score_task *t, const int n_queries, \
					   const uint32_t head_dim, const int i) \
	{ \
		struct score_sums a = child(t, n_queries, head_dim, i); \
		struct score_sums b = child(t, n_queries, head_dim, i + (apart)); \
		UNROLL \
		for (int j = 0; j < n_queries * SCORE_VECS; j++) \
			a.v[j] = vf_add(a.v[j], b.v[j]); \
		return a; \
	}
SCORE_NODE(score_node_8, score_leaf, 8)
SCORE_NODE(score_node_4, score_node_8, 4)
SCORE_NODE(score_node_2, score_node_4, 2)
SCORE_NODE(score_node_1, score_node_2, 1)

/* Scores of one tile for one or two queries, stored at rows of KC_SEGMENT. */
SPECIALIZED void score_tile(const struct kc_queries *a, struct score_task *t, const int n_queries,
			    const uint32_t head_dim, float *out)
{
	const float *keys = t->keys;

	for (uint32_t p = 0; p < TILE; p += SCORE_VECS * VW) {
		struct score_sums s;

		t->keys = keys + p;
		s = score_node_1(t, n_queries, head_dim, 0);
		for (int j = 0; j < n_queries * SCORE_VECS; j++) {
			vf v = vf_mul(s.v[j], vf_set1(a->scale));

			if (a->softcap > 0)
				v = vf_softcap(v, vf_set1(a->softcap));
			vf_store(out + j / SCORE_VECS * KC_SEGMENT + p + j % SCORE_VECS * VW, v);
		}
	}
	t->keys = keys;
}

INLINE const float *query_at(const struct kc_queries *a, uint32_t j)
{
	return a->q + j / a->n_heads * a->q_stride + (size_t)(j % a->n_heads) * a->head_dim;
}

SPECIALIZED void score_all(const struct kc_queries *a, uint32_t n, const float *keys, const uint32_t head_dim,
		      float *scores)
{
	uint32_t j = 0;

	for (; j < n; j += 2) {
		struct score_task t = { .keys = keys, .head_dim = head_dim };

		t.q[0] = query_at(a, j);
		if (j + 1 < n) {
			t.q[1] = query_at(a, j + 1);
			score_tile(a, &t, 2, head_dim, scores + (size_t)j * KC_SEGMENT);
		} else {
			score_tile(a, &t, 1, head_dim, scores + (size_t)j * KC_SEGMENT);
		}
	}
}

/*
 * Blocks lie far apart, so the hardware does not see the next one coming: each
 * tile is loaded while the one before it is used.  ahead: the 16 positions to
 * load next, for each half of the tile.
 */
struct tile_ahead {
	const uint16_t *half[TILE / 16];
};

static struct tile_ahead tile_ahead(const struct kc_queries *a, uint32_t t, uint32_t end, bool values)
{
	struct tile_ahead ahead;

	for (uint32_t i = 0; i < TILE / 16; i++) {
		uint32_t at = KC_MIN(t + i * 16, end - 1) & ~15u;

		ahead.half[i] = values ? kc_value(a, at) : kc_key(a, at);
	}
	return ahead;
}

/* Keys of TILE positions from t on, transposed; blocks of 16 that begin at end or beyond are not read. */
static void load_keys(const struct kc_queries *a, uint32_t t, uint32_t end, float *keys,
		      struct tile_ahead ahead)
{
	for (uint32_t i = 0; i < TILE && t + i < end; i += 16) {
		/* 16 positions lie in one block, and blocks are whole. */
		const uint16_t *k = kc_key(a, t + i), *next = ahead.half[i / 16];

		for (uint32_t h = 0; h < 16; h += 8) {
			/* 16 steps of 128 bytes for head_dim 64: all of `next`. */
			for (uint32_t d = 0; d < a->head_dim; d += 8, next += 64) {
				_mm_prefetch((const char *)next, _MM_HINT_T0);
				_mm_prefetch((const char *)(next + 32), _MM_HINT_T0);
				transpose_f16_8x8(k + (size_t)h * a->head_dim + d, a->head_dim,
						  keys + (size_t)d * TILE + i + h, TILE);
			}
		}
	}
}

/* Values of the positions of a tile that are in begin .. end - 1. */
static void load_values(const struct kc_queries *a, uint32_t t, uint32_t begin, uint32_t end, float *values,
			struct tile_ahead ahead)
{
	size_t head_dim = a->head_dim;

	for (uint32_t i = 0; i < TILE && t + i < end; i += 16) {
		uint32_t j = begin > t + i ? begin - t - i : 0, n = KC_MIN(end - t - i, 16);
		const uint16_t *v = kc_value(a, t + i), *next = ahead.half[i / 16];
		float *out = values + i * head_dim;

		for (size_t k = j * head_dim; k < n * head_dim; k += 16) {
			_mm_prefetch((const char *)(next + k), _MM_HINT_T0);
			UNROLL
			for (int h = 0; h < VN; h++)
				vf_store(out + k + h * VW, vf_load_f16(v + k + h * VW));
		}
	}
}

/* Scores of positions r0 .. r1 - 1 of the segment become weights, zero around them up to multiples of 16. */
static void softmax(float *p, uint32_t r0, uint32_t r1, float *m, float *l)
{
	uint32_t begin = r0 & ~15u, end = (r1 + 15) & ~15u;
	vf max = vf_set1(-INFINITY), sums[VN];

	for (uint32_t r = begin; r < r0; r++)
		p[r] = -INFINITY;
	for (uint32_t r = r1; r < end; r++)
		p[r] = -INFINITY;
	for (uint32_t r = begin; r < end; r += VW)
		max = vf_max(vf_load(p + r), max);
	*m = vf_reduce_max(max);
	max = vf_set1(*m);
	for (uint32_t r = begin; r < end; r += VW)
		vf_store(p + r, vf_exp(vf_sub(vf_load(p + r), max)));
	for (uint32_t r = begin; r < r0; r++)
		p[r] = 0;
	for (uint32_t r = r1; r < end; r++)
		p[r] = 0;
	UNROLL
	for (int i = 0; i < VN; i++)
		sums[i] = vf_zero();
	for (uint32_t r = begin; r < end; r += 16) {
		UNROLL
		for (int i = 0; i < VN; i++)
			sums[i] = vf_add(sums[i], vf_load(p + r + i * VW));
	}
	*l = vf_reduce_add(sums);
}

/* Sums of the weights of each granule; positions r0 .. r1 - 1 of the segment have one. */
static void sum_granules(const float *p, uint32_t r0, uint32_t r1, float *mass)
{
	uint32_t begin = r0 / KC_GRANULE, end = (r1 + KC_GRANULE - 1) / KC_GRANULE;

	memset(mass, 0, KC_GRANULES * sizeof(*mass));
	for (uint32_t g = begin; g < end; g++) {
		vf v[VN];

		UNROLL
		for (int i = 0; i < VN; i++)
			v[i] = vf_load(p + g * KC_GRANULE + i * VW);
		mass[g] = vf_reduce_add(v);
	}
}

/* o += sum over n positions of p v, for n_queries queries and n_vecs vectors of channels. */
SPECIALIZED void accumulate(float *o, uint32_t head_dim, const float *p, const float *v, uint32_t n,
			    const int n_queries, const int n_vecs)
{
	vf acc[2 * 8];

	UNROLL
	for (int i = 0; i < n_queries * n_vecs; i++)
		acc[i] = vf_load(o + (size_t)(i / n_vecs) * head_dim + i % n_vecs * VW);
	for (uint32_t t = 0; t < n; t++, v += head_dim) {
		vf weight[2];

		UNROLL
		for (int j = 0; j < n_queries; j++)
			weight[j] = vf_set1(p[(size_t)j * KC_SEGMENT + t]);
		UNROLL
		for (int i = 0; i < n_vecs; i++) {
			vf value = vf_load(v + i * VW);

			UNROLL
			for (int j = 0; j < n_queries; j++)
				acc[j * n_vecs + i] = vf_fma(weight[j], value, acc[j * n_vecs + i]);
		}
	}
	UNROLL
	for (int i = 0; i < n_queries * n_vecs; i++)
		vf_store(o + (size_t)(i / n_vecs) * head_dim + i % n_vecs * VW, acc[i]);
}

/* All channels; positions r0 .. r1 - 1 of the tile. */
SPECIALIZED void accumulate_queries(float *o, uint32_t head_dim, const float *p, const float *values,
				    uint32_t r0, uint32_t r1, const int n_queries)
{
	uint32_t d = 0;

	if (r0 >= r1)
		return;
	p += r0;
	values += (size_t)r0 * head_dim;
	for (; d + 4 * VW <= head_dim; d += 4 * VW)
		accumulate(o + d, head_dim, p, values + d, r1 - r0, n_queries, 4);
	for (; d < head_dim; d += 16)
		accumulate(o + d, head_dim, p, values + d, r1 - r0, n_queries, VN);
}

/* The part of a tile (positions from `tile` of the segment on) that query j sees. */
INLINE void tile_range(const struct kc_queries *a, uint32_t j, uint32_t segment, uint32_t tile, uint32_t *r0,
		       uint32_t *r1)
{
	uint32_t t0, t1;

	*r0 = *r1 = 0;
	if (!kc_visible(a->first_pos + j / a->n_heads, a->window, segment, &t0, &t1))
		return;
	t0 -= segment * KC_SEGMENT;
	t1 -= segment * KC_SEGMENT;
	*r0 = t0 > tile ? t0 - tile : 0;
	*r1 = t1 > tile ? KC_MIN(t1 - tile, TILE) : 0;
}

/* Two queries share what both see; what one sees before or after it does alone. */
static void value_tile(const struct kc_queries *a, uint32_t n, uint32_t segment, uint32_t tile,
		       const float *scores, const float *values, float *out)
{
	uint32_t head_dim = a->head_dim;

	for (uint32_t j = 0; j < n; j += 2) {
		const float *p = scores + (size_t)j * KC_SEGMENT + tile, *p1 = p + KC_SEGMENT;
		float *o = out + (size_t)j * head_dim, *o1 = o + head_dim;
		uint32_t a0, a1, b0, b1, begin, end;

		tile_range(a, j, segment, tile, &a0, &a1);
		if (j + 1 == n) {
			accumulate_queries(o, head_dim, p, values, a0, a1, 1);
			break;
		}
		tile_range(a, j + 1, segment, tile, &b0, &b1);
		begin = KC_MAX(a0, b0);
		end = KC_MIN(a1, b1);
		if (begin >= end) {
			accumulate_queries(o, head_dim, p, values, a0, a1, 1);
			accumulate_queries(o1, head_dim, p1, values, b0, b1, 1);
			continue;
		}
		accumulate_queries(o, head_dim, p, values, a0, begin, 1);
		accumulate_queries(o1, head_dim, p1, values, b0, begin, 1);
		accumulate_queries(o, head_dim, p, values, begin, end, 2);
		accumulate_queries(o, head_dim, p, values, end, a1, 1);
		accumulate_queries(o1, head_dim, p1, values, end, b1, 1);
	}
}

static void simd_attend(const struct kc_queries *a, uint32_t segment, const struct kc_partial *out,
			float *scratch)
{
	uint32_t n = a->n_rows * a->n_heads, base = segment * KC_SEGMENT, begin = UINT32_MAX, end = 0, t0, t1;
	float *scores = scratch, *keys = scores + (size_t)KC_MAX_QUERIES * KC_SEGMENT;
	float *values = keys + (size_t)TILE * a->head_dim;
	uint32_t first;

	for (uint32_t i = 0; i < a->n_rows; i++) {
		if (!kc_visible(a->first_pos + i, a->window, segment, &t0, &t1))
			continue;
		begin = KC_MIN(begin, t0);
		end = KC_MAX(end, t1);
	}
	first = begin & ~(TILE - 1);
	for (uint32_t t = first; t < end; t += TILE) {
		bool last = t + TILE >= end;

		load_keys(a, t, end, keys, tile_ahead(a, last ? first : t + TILE, end, last));
		if (a->head_dim == 64)
			score_all(a, n, keys, 64, scores + (t - base));
		else
			score_all(a, n, keys, a->head_dim, scores + (t - base));
	}
	for (uint32_t j = 0; j < n; j++) {
		out->m[j] = -INFINITY;
		out->l[j] = 0;
		if (!kc_visible(a->first_pos + j / a->n_heads, a->window, segment, &t0, &t1))
			continue;
		softmax(scores + (size_t)j * KC_SEGMENT, t0 - base, t1 - base, &out->m[j], &out->l[j]);
		if (out->mass)
			sum_granules(scores + (size_t)j * KC_SEGMENT, t0 - base, t1 - base,
				     out->mass + (size_t)j * KC_GRANULES);
	}
	memset(out->o, 0, (size_t)n * a->head_dim * sizeof(float));
	for (uint32_t t = first; t < end; t += TILE) {
		load_values(a, t, begin, end, values, tile_ahead(a, t + TILE, end, true));
		value_tile(a, n, segment, t - base, scores, values, out->o);
	}
}

static void simd_merge(float *m, float *l, float *o, const struct kc_partial *part, uint32_t j,
		       uint32_t head_dim)
{
	const float *part_o = part->o + (size_t)j * head_dim;
	float max, old, new;

	if (part->l[j] == 0)
		return;
	if (*l == 0) {
		*m = part->m[j];
		*l = part->l[j];
		memcpy(o, part_o, head_dim * sizeof(*o));
		return;
	}
	max = part->m[j] > *m ? part->m[j] : *m;
	old = kc_exp(*m - max);
	new = kc_exp(part->m[j] - max);
	*m = max;
	*l = fmaf(*l, old, part->l[j] * new);
	for (uint32_t d = 0; d < head_dim; d += VW)
		vf_store(o + d,
			 vf_fma(vf_load(o + d), vf_set1(old), vf_mul(vf_load(part_o + d), vf_set1(new))));
}

#endif
