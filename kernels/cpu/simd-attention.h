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
 * operations per VW positions.
 */
#ifndef KC_SIMD_ATTENTION_H
#define KC_SIMD_ATTENTION_H

#include <math.h>
#include <string.h>

#include "cpu.h"
#include "simd-rows.h"

#define PAIR 32u		/* positions whose scores are computed together */
#define N_TILES (PAIR / KC_KV_TILE)
#define SPAN KC_ATTEND_TILE	/* positions whose values are turned into floats together */
/* kc_nibble_scale() */
static const float nibble_scales[16] = { 1, 0x1p-4f, 0x1p-8f, 0x1p-12f, 0x1p-16f, 0x1p-20f, 0x1p-24f, 1,
					 1, 0x1p-4f, 0x1p-8f, 0x1p-12f, 0x1p-16f, 0x1p-20f, 0x1p-24f, 1 };
#define DIRECT_QUERIES 8u	/* so many read the blocks themselves */

/* Where keys or values come from. */
enum source { FROM_F16 = KB_KV_F16, FROM_Q8 = KB_KV_Q8, FROM_Q4 = KB_KV_Q4, FROM_FLOATS };

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

/* Part v of the n_vecs vectors of one position's channels of a group, which begins at p. */
INLINE vf load_value(const int from, const void *p, const int n_vecs, const int v)
{
	vi x;

	switch (from) {
	case FROM_F16:
		return vf_load_f16((const uint16_t *)p + v * VW);
	case FROM_Q8:
		return vf_of_int(vi_load_i8((const int8_t *)p + v * VW));
	case FROM_Q4:
		if (n_vecs == VN)
			return vf_of_int(vi_load_nibbles(p, v));
		x = vi_load_u8((const uint8_t *)p + v % (n_vecs / 2) * VW);
		return vf_of_int(v < n_vecs / 2 ? vi_and(x, vi_set1(15)) : vi_shift_right(x, 4));
	default:
		return vf_load((const float *)p + v * VW);
	}
}

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
 * Blocks lie far apart, so the hardware does not see the next one coming: while a tile is used, the same bytes of the
 * next one are asked for.
 */
INLINE void prefetch_bytes(const uint8_t *p, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 64)
		_mm_prefetch((const char *)p + i, _MM_HINT_T0);
}

/* --- scores --------------------------------------------------------------------- */

#define MAX_SCORE_QUERIES 4

struct score_task {
	const float *q[MAX_SCORE_QUERIES];	/* Q4: times the block's scales */
	float start[MAX_SCORE_QUERIES];		/* what the offsets of Q4 add */
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
	const float *q[MAX_SCORE_QUERIES];

	UNROLL
	for (int j = 0; j < n_queries; j++)
		q[j] = t->q[j] + c;
	for (size_t end = at + n / 8 * step; at < end; at += step) {
		for (int i = 0; i < n_tiles && from != FROM_FLOATS; i++)
			prefetch_bytes(t->ahead[i] + at, step);
		UNROLL
		for (int place = 0; place < 8; place++) {
			vf x[MAX_SCORE_QUERIES];

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
	vf s[MAX_SCORE_QUERIES * N_TILES * VN];
	const int n = n_queries * n_tiles * VN;

	UNROLL
	for (int i = 0; i < n; i++)
		s[i] = vf_set1(t->start[i / (n_tiles * VN)]);
	for (uint32_t g = 0; g < kb_kv_groups(t->head_dim); g++) {
		vf sums[MAX_SCORE_QUERIES * N_TILES * VN];

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

/* Four queries fill the registers with one tile, fewer with two; three do where words and masks of Q4 need some too. */
SPECIALIZED void score_queries(struct score_task *t, const int from, int n_queries, const bool scaled, float *out)
{
	if (from == FROM_Q4 && n_queries == 3) {
		score_each_tile(t, from, 3, scaled, out);
		return;
	}
	switch (n_queries) {
	case 1:
		score_tiles(t, from, 1, N_TILES, scaled, out);
		return;
	case 2:
		score_tiles(t, from, 2, N_TILES, scaled, out);
		return;
	case 3:
		score_tiles(t, from, 3, N_TILES, scaled, out);
		return;
	}
	score_each_tile(t, from, 4, scaled, out);
}

/* How many of n queries go together: threes, and fours where that saves a pass. */
INLINE uint32_t queries_together(uint32_t n)
{
	return n == 8 || (n % 3 == 1 && n > 1) ? 4 : KC_MIN(n, 3);
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

INLINE const float *query_at(const struct kc_queries *a, uint32_t j)
{
	return a->q + j / a->n_heads * a->q_stride + (size_t)(j % a->n_heads) * a->head_dim;
}

/* What a call works with; floats are in the scratch memory. */
struct attend {
	const struct kc_queries *a;
	uint32_t n;		/* queries */
	uint32_t base;		/* first position of the segment */
	uint32_t begin, end;	/* positions that some query sees */
	bool direct;
	/* Those of the segment, as far as they are seen; what is read ahead at the end is there again. */
	struct kc_kv tiles[KC_SEGMENT / KC_KV_TILE + N_TILES];
	float *scores;		/* [KC_MAX_QUERIES][KC_SEGMENT] */
	float *floats;		/* [head_dim][KC_KV_TILE] twice, or [SPAN][head_dim] */
	float *scaled;		/* [n][head_dim] */
	float *start;		/* [n] */
	float *key_scales;	/* [2][head_dim] */
	float *value_scales;	/* [groups][KC_SEGMENT] */
	float *value_offsets;	/* [groups][KC_SEGMENT] */
};

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
	const struct kc_kv *tiles = x->tiles + r / KC_KV_TILE, *next = tiles + N_TILES;
	bool last = x->base + r + PAIR >= x->end;
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
		for (uint32_t k = r; k < r0; k++)
			p[k] = 0;
		for (uint32_t k = r1; k < r + 16; k++)
			p[k] = 0;
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

/* --- values ---------------------------------------------------------------------- */

/* Values of some tiles for some queries: o += sum of w v over positions r0 .. r1 - 1, counted from the first tile's. */
struct value_task {
	const float *w[MAX_SCORE_QUERIES];
	float *o[MAX_SCORE_QUERIES];	/* of one group's channels */
	const struct kc_kv *tiles;	/* or floats, [][head_dim] */
	const uint8_t *floats;
	size_t at, step;		/* bytes from a position to the group, and to the next position */
	uint32_t r0, r1;
};

/* n positions from p on, for n_queries queries and `count` vectors, from `first` on, of the n_vecs that a group has. */
SPECIALIZED void add_products(const int from, const uint8_t *p, const uint8_t *ahead, size_t step,
			      const float *const *w, uint32_t n, const int n_queries, const int n_vecs,
			      const int first, const int count, vf *acc)
{
	UNROLL_4
	for (uint32_t k = 0; k < n; k++, p += step, ahead += step) {
		vf weight[MAX_SCORE_QUERIES];

		if (from != FROM_FLOATS && !first)
			_mm_prefetch((const char *)ahead, _MM_HINT_T0);
		UNROLL
		for (int j = 0; j < n_queries; j++)
			weight[j] = vf_set1(w[j][k]);
		UNROLL
		for (int i = 0; i < count; i++) {
			vf value = load_value(from, p, n_vecs, first + i);

			UNROLL
			for (int j = 0; j < n_queries; j++)
				vf_add_product(&acc[j * count + i], weight[j], value);
		}
	}
}

SPECIALIZED void accumulate(const struct value_task *t, const int from, const int n_queries, const int n_vecs,
			    const int first, const int count)
{
	vf acc[MAX_SCORE_QUERIES * 2 * VN];
	const float *w[MAX_SCORE_QUERIES];

	UNROLL
	for (int i = 0; i < n_queries * count; i++)
		acc[i] = vf_load(t->o[i / count] + (first + i % count) * VW);
	for (uint32_t r = t->r0, n; r < t->r1; r += n) {
		uint32_t in = r % KC_KV_TILE;
		const struct kc_kv *tile = t->tiles + r / KC_KV_TILE;

		UNROLL
		for (int j = 0; j < n_queries; j++)
			w[j] = t->w[j] + r;
		if (from == FROM_FLOATS) {
			n = t->r1 - r;
			add_products(from, t->floats + r * t->step + t->at, NULL, t->step, w, n, n_queries, n_vecs,
				     first, count, acc);
		} else {
			n = KC_MIN(KC_KV_TILE - in, t->r1 - r);
			add_products(from, tile[0].v + in * t->step + t->at, tile[1].v + in * t->step + t->at, t->step,
				     w, n, n_queries, n_vecs, first, count, acc);
		}
	}
	UNROLL
	for (int i = 0; i < n_queries * count; i++)
		vf_store(t->o[i / count] + (first + i % count) * VW, acc[i]);
}

/* A whole group's channels; four queries fill the registers with half of them. */
SPECIALIZED void accumulate_group(const struct value_task *t, const int from, int n_queries, const int n_vecs)
{
	switch (n_queries) {
	case 1:
		accumulate(t, from, 1, n_vecs, 0, n_vecs);
		return;
	case 2:
		accumulate(t, from, 2, n_vecs, 0, n_vecs);
		return;
	case 3:
		accumulate(t, from, 3, n_vecs, 0, n_vecs);
		return;
	}
	accumulate(t, from, 4, n_vecs, 0, VN);
	if (n_vecs > VN)
		accumulate(t, from, 4, n_vecs, VN, n_vecs - VN);
}

static void accumulate_by_source(const struct value_task *t, int from, int n_queries, bool whole)
{
#define CASE(source) \
	case source: \
		if (whole) \
			accumulate_group(t, source, n_queries, 2 * VN); \
		else \
			accumulate_group(t, source, n_queries, VN); \
		break
	switch (from) {
	CASE(FROM_F16);
	CASE(FROM_Q8);
	CASE(FROM_Q4);
	CASE(FROM_FLOATS);
	}
#undef CASE
}

/* Some positions' values: as they are stored, all in one form, or as floats. */
struct value_span {
	int from;
	bool scaled;
	uint32_t r;		/* the first position, counted from the segment's; a multiple of 16 */
	uint32_t n;		/* too */
};

/* Positions r0 .. r1 - 1 of a span for queries j .. j + n - 1, which see them all. */
static void add_values(const struct attend *x, const struct value_span *span, uint32_t j, uint32_t n, uint32_t r0,
		       uint32_t r1, float *out)
{
	uint32_t head_dim = x->a->head_dim;
	struct value_task task = { .tiles = x->tiles + span->r / KC_KV_TILE, .floats = (const uint8_t *)x->floats,
				   .step = stored_bytes(span->from, head_dim), .r0 = r0, .r1 = r1 };
	float scaled[MAX_SCORE_QUERIES][KC_SEGMENT];

	if (r0 >= r1)
		return;
	for (uint32_t g = 0; g < kb_kv_groups(head_dim); g++) {
		task.at = stored_bytes(span->from, (size_t)g * KB_KV_GROUP);
		for (uint32_t i = 0; i < n; i++) {
			const float *p = x->scores + (size_t)(j + i) * KC_SEGMENT + span->r;
			const float *d = x->value_scales + (size_t)g * KC_SEGMENT + span->r;

			for (uint32_t r = r0 & ~15u; span->scaled && r < r1; r += VW)
				vf_store(scaled[i] + r, vf_mul(vf_load(p + r), vf_load(d + r)));
			task.w[i] = span->scaled ? scaled[i] : p;
			task.o[i] = out + (size_t)(j + i) * head_dim + g * KB_KV_GROUP;
		}
		accumulate_by_source(&task, span->from, (int)n, kc_group_channels(head_dim, g) == KB_KV_GROUP);
	}
}

/* The part of a span that query j sees. */
INLINE void span_range(const struct attend *x, const struct value_span *span, uint32_t j, uint32_t *r0, uint32_t *r1)
{
	const struct kc_queries *a = x->a;
	uint32_t t0, t1, first = x->base + span->r;

	*r0 = *r1 = 0;
	if (!kc_visible(a->first_pos + j / a->n_heads, a->window, x->base / KC_SEGMENT, &t0, &t1))
		return;
	*r0 = t0 > first ? t0 - first : 0;
	*r1 = t1 > first ? KC_MIN(t1 - first, span->n) : 0;
}

/* Queries share what all of them see; what one sees before or after it does alone. */
static void add_span(const struct attend *x, const struct value_span *span, float *out)
{
	for (uint32_t j = 0, n; j < x->n; j += n) {
		uint32_t r0[MAX_SCORE_QUERIES], r1[MAX_SCORE_QUERIES], begin = 0, end = span->n;

		n = queries_together(x->n - j);
		for (uint32_t i = 0; i < n; i++) {
			span_range(x, span, j + i, &r0[i], &r1[i]);
			begin = KC_MAX(begin, r0[i]);
			end = KC_MIN(end, r1[i]);
		}
		end = KC_MAX(begin, end);
		for (uint32_t i = 0; i < n; i++)
			add_values(x, span, j + i, 1, r0[i], KC_MIN(begin, r1[i]), out);
		add_values(x, span, j, n, begin, end, out);
		for (uint32_t i = 0; i < n; i++)
			add_values(x, span, j + i, 1, KC_MAX(KC_MAX(end, r0[i]), begin), r1[i], out);
	}
}

/* A tile's values as floats, [16][head_dim]. */
SPECIALIZED void convert_values(const int from, const struct kc_kv *tile, const uint8_t *ahead, float *out)
{
	uint32_t dim = tile->head_dim;

	for (uint32_t i = 0; i < KC_KV_TILE; i++) {
		for (uint32_t c = 0; c < dim; c += KB_KV_GROUP) {
			size_t at = stored_bytes(from, (size_t)i * dim + c);
			float *to = out + (size_t)i * dim + c;

			_mm_prefetch((const char *)ahead + at, _MM_HINT_T0);
			if (dim - c >= KB_KV_GROUP) {
				UNROLL
				for (int v = 0; v < 2 * VN; v++)
					vf_store(to + v * VW, load_value(from, tile->v + at, 2 * VN, v));
			} else {
				UNROLL
				for (int v = 0; v < VN; v++)
					vf_store(to + v * VW, load_value(from, tile->v + at, VN, v));
			}
		}
	}
}

static void convert_values_of(const struct kc_kv *tile, const uint8_t *ahead, float *out)
{
	if (tile->type == KB_KV_F16)
		convert_values(FROM_F16, tile, ahead, out);
	else if (tile->type == KB_KV_Q8)
		convert_values(FROM_Q8, tile, ahead, out);
	else
		convert_values(FROM_Q4, tile, ahead, out);
}

/* All values; positions of one span are stored in one form. */
static void add_all_values(const struct attend *x, float *out)
{
	uint32_t most = x->direct ? KC_SEGMENT : SPAN, r = (x->begin - x->base) & ~(KC_KV_TILE - 1);

	for (uint32_t n; r < x->end - x->base; r += n) {
		const struct kc_kv *tiles = x->tiles + r / KC_KV_TILE;
		struct value_span span = { FROM_FLOATS, tiles[0].type != KB_KV_F16, r, 0 };

		for (n = 0; n < most && x->base + r + n < x->end && tiles[n / KC_KV_TILE].type == tiles[0].type;
		     n += KC_KV_TILE) {
			const struct kc_kv *tile = tiles + n / KC_KV_TILE;

			if (!x->direct)
				convert_values_of(tile, tile[1].v, x->floats + (size_t)n * x->a->head_dim);
		}
		if (x->direct)
			span.from = (int)tiles[0].type;
		span.n = n;
		add_span(x, &span, out);
	}
}

/* Scales, and offsets of Q4, of the segment's values; an open block has neither. */
static void load_value_scales(const struct attend *x)
{
	bool offsets = x->a->geometry->kv_type == KB_KV_Q4;

	for (uint32_t r = (x->begin - x->base) & ~(KC_KV_TILE - 1); r < x->end - x->base; r += KC_KV_TILE) {
		struct kc_kv tile = x->tiles[r / KC_KV_TILE];

		for (uint32_t g = 0; g < kb_kv_groups(tile.head_dim); g++) {
			size_t from = (size_t)g * tile.stride, to = (size_t)g * KC_SEGMENT + r;

			UNROLL
			for (int i = 0; i < VN; i++) {
				bool plain = tile.type == KB_KV_F16;

				if (!plain)
					vf_store(x->value_scales + to + i * VW,
						 vf_load_f16(tile.v_d + from + i * VW));
				if (offsets)
					vf_store(x->value_offsets + to + i * VW,
						 plain ? vf_zero() : vf_load_f16(tile.v_m + from + i * VW));
			}
		}
	}
}

/* What the offsets of Q4 values add to query j's output; it sees positions r0 .. r1 - 1 of the segment. */
static void add_value_offsets(const struct attend *x, uint32_t j, uint32_t r0, uint32_t r1, float *o)
{
	const float *p = x->scores + (size_t)j * KC_SEGMENT, *m = x->value_offsets;
	uint32_t head_dim = x->a->head_dim;

	for (uint32_t c = 0; c < head_dim; c += KB_KV_GROUP, m += KC_SEGMENT) {
		vf sums[VN], sum;

		UNROLL
		for (int i = 0; i < VN; i++)
			sums[i] = vf_zero();
		for (uint32_t r = r0 & ~15u; r < r1; r += 16) {
			UNROLL
			for (int i = 0; i < VN; i++)
				sums[i] = vf_fma(vf_load(p + r + i * VW), vf_load(m + r + i * VW), sums[i]);
		}
		sum = vf_set1(vf_reduce_add(sums));
		for (uint32_t k = c; k < KC_MIN(c + KB_KV_GROUP, head_dim); k += VW)
			vf_store(o + k, vf_add(vf_load(o + k), sum));
	}
}

/* --- all of it ----------------------------------------------------------------------- */

/* Tiles from those of the first pair to the last one that is seen; two more stand for what comes after them. */
static void find_tiles(struct attend *x)
{
	uint32_t first = (x->begin & ~(PAIR - 1)) - x->base, r = first;

	for (; x->base + r < x->end; r += KC_KV_TILE)
		x->tiles[r / KC_KV_TILE] = kc_kv_at(x->a, x->base + r);
	if (r % PAIR) {
		x->tiles[r / KC_KV_TILE] = x->tiles[r / KC_KV_TILE - 1];
		r += KC_KV_TILE;
	}
	for (uint32_t i = 0; i < N_TILES; i++)
		x->tiles[r / KC_KV_TILE + i] = x->tiles[first / KC_KV_TILE + i];
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
