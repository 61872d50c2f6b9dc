/* SPDX-License-Identifier: Apache-2.0 */
/* simd-attend-values.h - sums of values times weights, by channels; simd-attention.h has the limits. */
#ifndef KC_SIMD_ATTEND_VALUES_H
#define KC_SIMD_ATTEND_VALUES_H

#include "simd-attend.h"

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

/* Values of some tiles for some queries: o += sum of w v over positions r0 .. r1 - 1, counted from the first tile's. */
struct value_task {
	const float *w;			/* of the first query; the next ones' are KC_SEGMENT further each */
	float *o[MAX_TOGETHER];		/* of one group's channels */
	const struct kc_kv *tiles;	/* or floats, [][head_dim] */
	const uint8_t *floats;
	size_t at, step;		/* bytes from a position to the group, and to the next position */
	uint32_t r0, r1;
};

/* n positions from p on, for n_queries queries and `count` vectors, from `first` on, of the n_vecs that a group has. */
SPECIALIZED void add_products(const int from, const uint8_t *p, const uint8_t *ahead, size_t step,
			      const float *w, uint32_t n, const int n_queries, const int n_vecs,
			      const int first, const int count, vf *acc)
{
	UNROLL_4
	for (uint32_t k = 0; k < n; k++, p += step, ahead += step) {
		vf weight[MAX_TOGETHER];

		if (from != FROM_FLOATS && !first)
			_mm_prefetch((const char *)ahead, _MM_HINT_T0);
		UNROLL
		for (int j = 0; j < n_queries; j++)
			weight[j] = vf_set1(w[(size_t)j * KC_SEGMENT + k]);
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
	vf acc[MAX_TOGETHER * 2 * VN];

	UNROLL
	for (int i = 0; i < n_queries * count; i++)
		acc[i] = vf_load(t->o[i / count] + (first + i % count) * VW);
	for (uint32_t r = t->r0, n; r < t->r1; r += n) {
		uint32_t in = r % KC_KV_TILE;
		const struct kc_kv *tile = t->tiles + r / KC_KV_TILE;

		if (from == FROM_FLOATS) {
			n = t->r1 - r;
			add_products(from, t->floats + r * t->step + t->at, NULL, t->step, t->w + r, n, n_queries,
				     n_vecs, first, count, acc);
		} else {
			n = KC_MIN(KC_KV_TILE - in, t->r1 - r);
			add_products(from, tile[0].v + in * t->step + t->at,
				     tile[VALUES_AHEAD].v + in * t->step + t->at, t->step, t->w + r, n, n_queries,
				     n_vecs, first, count, acc);
		}
	}
	UNROLL
	for (int i = 0; i < n_queries * count; i++)
		vf_store(t->o[i / count] + (first + i % count) * VW, acc[i]);
}

/* A whole group's channels; with 16 registers four queries fill them with half of those. */
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
#if MAX_TOGETHER == 8
	switch (n_queries) {
	case 4:
		accumulate(t, from, 4, n_vecs, 0, n_vecs);
		return;
	case 6:
		accumulate(t, from, 6, n_vecs, 0, n_vecs);
		return;
	}
	accumulate(t, from, 8, n_vecs, 0, n_vecs);
#else
	accumulate(t, from, 4, n_vecs, 0, VN);
	if (n_vecs > VN)
		accumulate(t, from, 4, n_vecs, VN, n_vecs - VN);
#endif
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
	float scaled[MAX_TOGETHER][KC_SEGMENT];

	if (r0 >= r1)
		return;
	for (uint32_t g = 0; g < kb_kv_groups(head_dim); g++) {
		task.at = stored_bytes(span->from, (size_t)g * KB_KV_GROUP);
		task.w = span->scaled ? scaled[0] : x->scores + (size_t)j * KC_SEGMENT + span->r;
		for (uint32_t i = 0; i < n; i++) {
			const float *p = x->scores + (size_t)(j + i) * KC_SEGMENT + span->r;
			const float *d = x->value_scales + (size_t)g * KC_SEGMENT + span->r;

			for (uint32_t r = r0 & ~15u; span->scaled && r < r1; r += 16) {
				UNROLL
				for (int v = 0; v < VN; v++)
					vf_store(scaled[i] + r + v * VW,
						 vf_mul(vf_load(p + r + v * VW), vf_load(d + r + v * VW)));
			}
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
		uint32_t r0[MAX_TOGETHER], r1[MAX_TOGETHER], begin = 0, end = span->n;

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
				convert_values_of(tile, tile[VALUES_AHEAD].v, x->floats + (size_t)n * x->a->head_dim);
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
	uint32_t groups = kb_kv_groups(x->a->head_dim);

	for (uint32_t r = (x->begin - x->base) & ~(KC_KV_TILE - 1); r < x->end - x->base; r += KC_KV_TILE) {
		const struct kc_kv *tile = &x->tiles[r / KC_KV_TILE];
		float *d = x->value_scales + r, *m = x->value_offsets + r;

		for (size_t g = 0; g < (size_t)groups * tile->stride; g += tile->stride) {
			UNROLL
			for (int i = 0; i < VN; i++) {
				if (tile->type != KB_KV_F16)
					vf_store(d + i * VW, vf_load_f16(tile->v_d + g + i * VW));
				if (tile->type == KB_KV_Q4)
					vf_store(m + i * VW, vf_load_f16(tile->v_m + g + i * VW));
				else
					vf_store(m + i * VW, vf_zero());
			}
			d += KC_SEGMENT;
			m += KC_SEGMENT;
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

#endif
