/* SPDX-License-Identifier: Apache-2.0 */
/* simd-attend-scores.h - products of queries and keys, by positions; simd-attention.h has the limits. */
#ifndef KC_SIMD_ATTEND_SCORES_H
#define KC_SIMD_ATTEND_SCORES_H

#include "simd-attend.h"

/* kc_nibble_scale() */
static const float nibble_scales[16] = { 1, 0x1p-4f, 0x1p-8f, 0x1p-12f, 0x1p-16f, 0x1p-20f, 0x1p-24f, 1,
					 1, 0x1p-4f, 0x1p-8f, 0x1p-12f, 0x1p-16f, 0x1p-20f, 0x1p-24f, 1 };

/* Part v of the 16 keys of channel `place` of the eight at k; without scales. */
INLINE vf load_key(const int from, const void *k, const int place, const int v)
{
	const int at = place * (int)KC_KV_TILE + v * VW;
	vi words;

	switch (from) {
	case FROM_F16:
		return vf_load_f16((const uint16_t *)k + at);
	case FROM_Q8:
		return vf_of_int(vi_load_i8((const int8_t *)k + at));
	case FROM_Q4:
		words = vi_load((const uint32_t *)k + v * VW);
		if (place == 7)
			return vf_of_int(vi_shift_right(words, 28));
		return vf_of_int(vi_and(words, vi_set1(15 << 4 * (place % 7))));
	default:
		return vf_load((const float *)k + at);
	}
}

struct score_task {
	const float *q[MAX_TOGETHER];	/* Q4: times the block's scales */
	float start[MAX_TOGETHER];		/* what the offsets of Q4 add */
	const uint8_t *k[N_TILES], *ahead[N_TILES];
	const uint16_t *k_d[N_TILES];		/* Q8 */
	uint32_t stride;			/* of k_d */
	uint32_t head_dim;
	float scale, softcap;
};

/* Sums over one group's channels c .. c + n - 1, for n_queries queries and n_tiles tiles. */
SPECIALIZED void score_group(const struct score_task *t, const int from, const int n_queries, const int n_tiles,
			     uint32_t c, uint32_t n, vf *sums)
{
	const size_t step = stored_bytes(from, 8 * KC_KV_TILE);
	size_t at = stored_bytes(from, (size_t)c * KC_KV_TILE);
	const float *q[MAX_TOGETHER];

	UNROLL
	for (int j = 0; j < n_queries; j++)
		q[j] = t->q[j] + c;
	for (size_t end = at + n / 8 * step; at < end; at += step) {
		for (int i = 0; i < n_tiles && from != FROM_FLOATS; i++)
			prefetch_bytes(t->ahead[i] + at, step);
		UNROLL
		for (int place = 0; place < 8; place++) {
			vf x[MAX_TOGETHER];

			UNROLL
			for (int j = 0; j < n_queries; j++)
				x[j] = vf_set1(q[j][place]);
			UNROLL
			for (int i = 0; i < n_tiles * VN; i++) {
				vf k = load_key(from, t->k[i / VN] + at, place, i % VN);

				UNROLL
				for (int j = 0; j < n_queries; j++)
					vf_add_product(&sums[j * n_tiles * VN + i], x[j], k);
			}
		}
		UNROLL
		for (int j = 0; j < n_queries; j++)
			q[j] += 8;
	}
}

/* Scores of n_tiles tiles for n_queries queries, stored at rows of KC_SEGMENT.  scaled: keys are those of Q8. */
SPECIALIZED void score_tiles(const struct score_task *t, const int from, const int n_queries, const int n_tiles,
			     const bool scaled, float *out)
{
	vf s[MAX_TOGETHER * N_TILES * VN];
	const int n = n_queries * n_tiles * VN;

	UNROLL
	for (int i = 0; i < n; i++)
		s[i] = vf_set1(t->start[i / (n_tiles * VN)]);
	for (uint32_t g = 0; g < kb_kv_groups(t->head_dim); g++) {
		vf sums[MAX_TOGETHER * N_TILES * VN];

		UNROLL
		for (int i = 0; i < n; i++)
			sums[i] = vf_zero();
		score_group(t, from, n_queries, n_tiles, g * KB_KV_GROUP, kc_group_channels(t->head_dim, g), sums);
		UNROLL
		for (int i = 0; i < n; i++) {
			const uint16_t *d = t->k_d[i / VN % n_tiles] + (size_t)g * t->stride + i % VN * VW;

			s[i] = scaled ? vf_fma(vf_load_f16(d), sums[i], s[i]) : vf_add(s[i], sums[i]);
		}
	}
	UNROLL
	for (int i = 0; i < n; i++) {
		vf v = vf_mul(s[i], vf_set1(t->scale));

		if (t->softcap > 0)
			v = vf_softcap(v, vf_set1(t->softcap));
		vf_store(out + (size_t)(i / (n_tiles * VN)) * KC_SEGMENT + i % (n_tiles * VN) * VW, v);
	}
}

/* n_queries and each tile by itself. */
SPECIALIZED void score_each_tile(const struct score_task *t, const int from, const int n_queries, const bool scaled,
				 float *out)
{
	for (int i = 0; i < (int)N_TILES; i++) {
		struct score_task one = *t;

		one.k[0] = t->k[i];
		one.k_d[0] = t->k_d[i];
		one.ahead[0] = t->ahead[i];
		score_tiles(&one, from, n_queries, 1, scaled, out + (size_t)i * KC_KV_TILE);
	}
}

/*
 * With 16 registers four queries fill them with one tile, fewer with two; three do where words and masks of Q4 need
 * some too.
 */
SPECIALIZED void score_queries(struct score_task *t, const int from, int n_queries, const bool scaled, float *out)
{
	switch (n_queries) {
	case 1:
		score_tiles(t, from, 1, N_TILES, scaled, out);
		return;
	case 2:
		score_tiles(t, from, 2, N_TILES, scaled, out);
		return;
	case 3:
		if (MAX_TOGETHER == 4 && from == FROM_Q4)
			score_each_tile(t, from, 3, scaled, out);
		else
			score_tiles(t, from, 3, N_TILES, scaled, out);
		return;
	}
#if MAX_TOGETHER == 8
	switch (n_queries) {
	case 4:
		score_tiles(t, from, 4, N_TILES, scaled, out);
		return;
	case 6:
		score_tiles(t, from, 6, N_TILES, scaled, out);
		return;
	}
	score_tiles(t, from, 8, N_TILES, scaled, out);
#else
	score_each_tile(t, from, 4, scaled, out);
#endif
}

static void score_by_source(struct score_task *t, int from, int n_queries, bool scaled, float *out)
{
	switch (from) {
	case FROM_F16:
		score_queries(t, FROM_F16, n_queries, false, out);
		break;
	case FROM_Q8:
		score_queries(t, FROM_Q8, n_queries, true, out);
		break;
	case FROM_Q4:
		score_queries(t, FROM_Q4, n_queries, false, out);
		break;
	default:
		if (scaled)
			score_queries(t, FROM_FLOATS, n_queries, true, out);
		else
			score_queries(t, FROM_FLOATS, n_queries, false, out);
	}
}

/* Queries times the scales of a block's keys, and their products with its offsets. */
static void scale_queries(const struct attend *x, const struct kc_kv *block)
{
	float *d = x->key_scales, *m = d + block->head_dim;

	for (uint32_t c = 0; c < block->head_dim; c += VW) {
		vf_store(d + c, vf_load_f16(block->k_d + c));
		vf_store(m + c, vf_load_f16(block->k_m + c));
	}
	for (uint32_t j = 0; j < x->n; j++) {
		const float *q = query_at(x->a, j);
		float *y = x->scaled + (size_t)j * block->head_dim;
		vf sums[VN];

		UNROLL
		for (int i = 0; i < VN; i++)
			sums[i] = vf_zero();
		for (uint32_t c = 0; c < block->head_dim; c += 16) {
			UNROLL
			for (int i = 0; i < VN; i++) {
				uint32_t at = c + (uint32_t)(i * VW);
				vf v = vf_load(q + at);

				sums[i] = vf_fma(v, vf_load(m + at), sums[i]);
				v = vf_mul(v, vf_load(d + at));
				vf_store(y + at, vf_mul(v, vf_load(nibble_scales + at % 16)));
			}
		}
		x->start[j] = vf_reduce_add(sums);
	}
}

/* A tile's keys as floats, [head_dim][16]. */
SPECIALIZED void convert_keys(const int from, const struct kc_kv *tile, const uint8_t *ahead, float *out)
{
	const size_t step = stored_bytes(from, 8 * KC_KV_TILE);
	const uint8_t *k = tile->k;

	for (uint32_t c = 0; c < tile->head_dim; c += 8, k += step, ahead += step, out += 8 * KC_KV_TILE) {
		prefetch_bytes(ahead, step);
		UNROLL
		for (int place = 0; place < 8; place++) {
			UNROLL
			for (int v = 0; v < VN; v++)
				vf_store(out + place * (int)KC_KV_TILE + v * VW, load_key(from, k, place, v));
		}
	}
}

static void convert_keys_of(const struct kc_kv *tile, const uint8_t *ahead, float *out)
{
	if (tile->type == KB_KV_F16)
		convert_keys(FROM_F16, tile, ahead, out);
	else if (tile->type == KB_KV_Q8)
		convert_keys(FROM_Q8, tile, ahead, out);
	else
		convert_keys(FROM_Q4, tile, ahead, out);
}

/* Scales of the keys that are next, and of the values that will be. */
static void prefetch_scales(const struct kc_kv *tile)
{
	if (tile->type == KB_KV_Q4) {
		prefetch_bytes((const uint8_t *)tile->k_d, (size_t)4 * tile->head_dim);
		prefetch_bytes((const uint8_t *)tile->v_d, (size_t)4 * kb_kv_groups(tile->head_dim) * tile->stride);
	}
	for (uint32_t g = 0; g < kb_kv_groups(tile->head_dim) && tile->type == KB_KV_Q8; g++) {
		_mm_prefetch((const char *)(tile->k_d + (size_t)g * tile->stride), _MM_HINT_T0);
		_mm_prefetch((const char *)(tile->v_d + (size_t)g * tile->stride), _MM_HINT_T0);
	}
}

/* Scores of all queries with the positions of two tiles, from position r of the segment on. */
static void score_all(const struct attend *x, uint32_t r)
{
	const struct kc_queries *a = x->a;
	const struct kc_kv *tiles = x->tiles + r / KC_KV_TILE, *next = tiles + KEYS_AHEAD;
	bool last = x->base + r + KEYS_AHEAD * KC_KV_TILE >= x->end;
	enum kb_kv_type type = tiles[0].type;
	struct score_task task = { .stride = tiles[0].stride, .head_dim = a->head_dim, .scale = a->scale,
				   .softcap = a->softcap };

	for (uint32_t i = 0; i < N_TILES; i++) {
		float *floats = x->floats + (size_t)i * KC_KV_TILE * a->head_dim;
		/* After the last keys come the first values. */
		const uint8_t *ahead = last ? next[i].v : next[i].k;

		task.k[i] = x->direct ? tiles[i].k : (const uint8_t *)floats;
		task.k_d[i] = tiles[i].k_d;
		task.ahead[i] = ahead;
		if (!x->direct)
			convert_keys_of(&tiles[i], ahead, floats);
		prefetch_scales(&next[i]);
	}
	if (type == KB_KV_Q4)
		scale_queries(x, &tiles[0]);
	for (uint32_t j = 0, n; j < x->n; j += n) {
		n = queries_together(x->n - j);
		for (uint32_t i = 0; i < n; i++) {
			task.q[i] = type == KB_KV_Q4 ? x->scaled + (size_t)(j + i) * a->head_dim : query_at(a, j + i);
			task.start[i] = type == KB_KV_Q4 ? x->start[j + i] : 0;
		}
		score_by_source(&task, x->direct ? (int)type : FROM_FLOATS, (int)n, type == KB_KV_Q8,
				x->scores + (size_t)j * KC_SEGMENT + r);
	}
}

#endif
