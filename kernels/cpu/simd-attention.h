/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd-attention.h - vector attention over one segment.
 *
 * First all scores of the segment, then the softmax of each query, then the values, each in the order of
 * ref-attention.c.  Keys lie so that lanes are positions, values so that lanes are channels (kv.h): what is stored
 * becomes floats and is multiplied at once, without a shuffle.  Scales are applied outside of the innermost loops: to
 * the sum of a group's products (Q8), to the query once per block (keys of Q4), to the weight (values).
 *
 * Few queries (decode) read the blocks themselves; many (prefill) share some positions' keys or values that
 * were turned into floats once.  Both are the same kernels, and the same bits.
 *
 * Limit, decode: the bytes of keys and values, per position and kv head 4 * head_dim (F16), 2 * head_dim +
 * 4 * groups (Q8) or head_dim + 4 * groups + head_dim / 8 (Q4), over memory bandwidth.  Beside it per 16 positions and
 * channel, once for keys and once for values: 16 / VW conversions (F16 one instruction of two micro-operations
 * each, Q8 two, Q4 two and a half) and 16 / VW multiply-adds per query.
 * Limit, prefill: the multiply-add rate, 2 * head_dim per query and position, and the exponential, some 15 vector
 * operations per VW positions.  A sum waits four cycles for its last addition and two are begun in each, so eight sums
 * are the least that keeps the multipliers busy: with 32 registers there are sixteen (MAX_TOGETHER).
 */
#ifndef KC_SIMD_ATTENTION_H
#define KC_SIMD_ATTENTION_H

#include <math.h>
#include <string.h>

#include "simd-attend-scores.h"
#include "simd-attend-values.h"

/* --- softmax --------------------------------------------------------------------- */

/* Scores of positions r0 .. r1 - 1 of the segment become weights, zero around them up to multiples of 16. */
static void softmax(float *p, uint32_t r0, uint32_t r1, float *m, float *l)
{
	uint32_t begin = r0 & ~15u, end = (r1 + 15) & ~15u;
	vf max[VN], sums[VN];

	for (uint32_t r = begin; r < r0; r++)
		p[r] = -INFINITY;
	for (uint32_t r = r1; r < end; r++)
		p[r] = -INFINITY;
	UNROLL
	for (int i = 0; i < VN; i++) {
		max[i] = vf_set1(-INFINITY);
		sums[i] = vf_zero();
	}
	for (uint32_t r = begin; r < end; r += 16) {
		UNROLL
		for (int i = 0; i < VN; i++)
			max[i] = vf_max(vf_load(p + r + i * VW), max[i]);
	}
	UNROLL
	for (int i = 1; i < VN; i++)
		max[0] = vf_max(max[i], max[0]);
	*m = vf_reduce_max(max[0]);
	max[0] = vf_set1(*m);
	for (uint32_t r = begin; r < end; r += 16) {
		UNROLL
		for (int i = 0; i < VN; i++)
			vf_store(p + r + i * VW, vf_exp_weight(vf_sub(vf_load(p + r + i * VW), max[0])));
		/* Only the first and the last have lanes that are not seen. */
		if (r < r0 || r + 16 > r1) {
			for (uint32_t k = r; k < r0; k++)
				p[k] = 0;
			for (uint32_t k = r1; k < r + 16; k++)
				p[k] = 0;
		}
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

/* --- all of it ----------------------------------------------------------------------- */

/* The next 16 positions of the same block. */
static void next_tile(struct kc_kv *tile)
{
	size_t bytes = stored_bytes((int)tile->type, (size_t)KC_KV_TILE * tile->head_dim);

	tile->k += bytes;
	tile->v += bytes;
	if (tile->type == KB_KV_Q8)
		tile->k_d += KC_KV_TILE;
	if (tile->type != KB_KV_F16)
		tile->v_d += KC_KV_TILE;
	if (tile->type == KB_KV_Q4)
		tile->v_m += KC_KV_TILE;
}

/* Tiles from those of the first pair to the last one that is seen; a few more stand for what comes after them. */
static void find_tiles(struct attend *x)
{
	uint32_t first = (x->begin & ~(PAIR - 1)) - x->base, r = first, block_tokens = x->a->geometry->block_tokens;
	struct kc_kv tile = { 0 };

	for (; x->base + r < x->end; r += KC_KV_TILE) {
		if (r == first || (x->base + r) % block_tokens == 0)
			tile = kc_kv_at(x->a, x->base + r);
		else
			next_tile(&tile);
		x->tiles[r / KC_KV_TILE] = tile;
	}
	if (r % PAIR) {
		x->tiles[r / KC_KV_TILE] = x->tiles[r / KC_KV_TILE - 1];
		r += KC_KV_TILE;
	}
	for (uint32_t i = 0, n = (r - first) / KC_KV_TILE; i < KEYS_AHEAD; i++)
		x->tiles[r / KC_KV_TILE + i] = x->tiles[first / KC_KV_TILE + i % n];
}

static void attend_init(struct attend *x, const struct kc_queries *a, uint32_t segment, float *scratch)
{
	size_t groups = kb_kv_groups(a->head_dim);
	uint32_t t0, t1;

	x->a = a;
	x->n = a->n_rows * a->n_heads;
	x->base = segment * KC_SEGMENT;
	x->begin = UINT32_MAX;
	x->end = 0;
	x->direct = x->n <= DIRECT_QUERIES;
	x->scores = scratch;
	x->floats = x->scores + (size_t)KC_MAX_QUERIES * KC_SEGMENT;
	x->scaled = x->floats + (size_t)SPAN * a->head_dim;
	x->start = x->scaled + (size_t)KC_MAX_QUERIES * a->head_dim;
	x->key_scales = x->start + KC_MAX_QUERIES;
	x->value_scales = x->key_scales + (size_t)2 * a->head_dim;
	x->value_offsets = x->value_scales + groups * KC_SEGMENT;
	for (uint32_t i = 0; i < a->n_rows; i++) {
		if (!kc_visible(a->first_pos + i, a->window, segment, &t0, &t1))
			continue;
		x->begin = KC_MIN(x->begin, t0);
		x->end = KC_MAX(x->end, t1);
	}
}

/* Query j's weights, and what belongs to them; r0, r1: what it sees of the segment. */
static void weigh(const struct attend *x, const struct kc_partial *out, uint32_t j, uint32_t r0, uint32_t r1)
{
	float *p = x->scores + (size_t)j * KC_SEGMENT;

	softmax(p, r0, r1, &out->m[j], &out->l[j]);
	if (out->mass)
		sum_granules(p, r0, r1, out->mass + (size_t)j * KC_GRANULES);
}

static void simd_attend(const struct kc_queries *a, uint32_t segment, const struct kc_partial *out, float *scratch)
{
	struct attend x;
	uint32_t t0, t1;

	attend_init(&x, a, segment, scratch);
	for (uint32_t j = 0; j < x.n; j++) {
		out->m[j] = -INFINITY;
		out->l[j] = 0;
	}
	if (x.begin >= x.end)
		return;
	find_tiles(&x);
	for (uint32_t r = (x.begin & ~(PAIR - 1)) - x.base; x.base + r < x.end; r += PAIR)
		score_all(&x, r);
	memset(out->o, 0, (size_t)x.n * a->head_dim * sizeof(float));
	if (a->geometry->kv_type != KB_KV_F16)
		load_value_scales(&x);
	for (uint32_t j = 0; j < x.n; j++) {
		if (kc_visible(a->first_pos + j / a->n_heads, a->window, segment, &t0, &t1))
			weigh(&x, out, j, t0 - x.base, t1 - x.base);
	}
	add_all_values(&x, out->o);
	for (uint32_t j = 0; j < x.n && a->geometry->kv_type == KB_KV_Q4; j++) {
		if (kc_visible(a->first_pos + j / a->n_heads, a->window, segment, &t0, &t1))
			add_value_offsets(&x, j, t0 - x.base, t1 - x.base, out->o + (size_t)j * a->head_dim);
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
