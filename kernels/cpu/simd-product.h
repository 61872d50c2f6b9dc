/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd-product.h - products on AVX2.  Lanes are output rows, so that there is
 * no horizontal sum, and each output is one chain over K in ascending order
 * whatever the number of batch rows.
 *
 * Limit, matrix x vector: bytes of weights over memory bandwidth.  A block of
 * 32 x 16 Q4_1 weights is 320 bytes; AVX2 needs about 90 instructions for it,
 * some 30 cycles, which is 28 to 32 GB/s at 3 GHz, against 60 to 90 cycles for
 * its bytes at 11 to 16 GB/s per core.  Measured out of caches (Zen 3): 24 to 28
 * GB/s; Q8_0 32; Q5_0 20; Q6_K 15; F16 22; F32 44.  Out of memory, one thread, as
 * one stream / as four: Q4_1 12.7 / 16.0, Q8_0 13.2 / 15.7, Q4_K 11.0 / 13.2,
 * Q6_K 12.0 / 12.8.
 *
 * Limit, matrix x matrix: the multiply rate, see simd-panel.h, which has blocks
 * times four rows and more.
 *
 * F16 and F32: two fma of 8 lanes per cycle, 48 GMAC/s at 3 GHz; measured 39 to
 * 47 with four rows.
 */
#ifndef KC_SIMD_PRODUCT_H
#define KC_SIMD_PRODUCT_H

#include "simd-weights.h"

/* Batch rows held in registers. */
#define MAX_BLOCK_ROWS 2
#define MAX_FLOAT_ROWS 4
/* Groups that are worth a stream of their own. */
#define LEAST_STREAM 4u

struct product_task {
	const uint8_t *w;	/* the group */
	const struct kc_rows *in;
	uint32_t row;		/* first batch row */
	float *out;
	size_t out_stride;
	bool stream;		/* the group comes from memory */
};

/* Lets gcc 12 forget where a pointer comes from: it finds addresses that take more registers, and spills. */
#define OPAQUE(pointer) __asm__("" : "+r"(pointer))

/* 32 columns, of the group and of the first of n_rows batch rows; type and n_rows are constants in the end. */
struct step {
	const uint8_t *block, *scales, *quants;
	uint32_t unit;		/* the columns' first 16 in the block */
	const struct kc_rows *in;
	size_t b;		/* in->q and so on, in 32 columns */
};

SPECIALIZED void load_scales(const struct step *t, const enum kb_type type, uint32_t unit, vf *dw)
{
	UNROLL
	for (int v = 0; v < VN; v++)
		dw[v] = load_scale(type, t->block + v * VW * 2, t->scales + v * VW, unit);
}

SPECIALIZED void clear(vi *dot, const int n)
{
	UNROLL
	for (int i = 0; i < n; i++)
		dot[i] = vi_zero();
}

/* Columns 4j .. 4j + 3 of a half times the activations of each row; x: of the half, of the first row. */
SPECIALIZED void piece_8(struct unpack *u, const enum kb_type type, const uint8_t *quants, const int half,
			 const int j, const int8_t *x, size_t x_stride, const int n_rows, vi *dot)
{
	vi w[VN];

	UNROLL
	for (int v = 0; v < VN; v++)
		w[v] = unpack_next(u, type, quants, half, j, v);
	UNROLL
	for (int r = 0; r < n_rows; r++) {
		vi four = vi_bytes4(x + r * x_stride + 4 * j);

		UNROLL
		for (int v = 0; v < VN; v++)
			dot[r * VN + v] = dot_small(dot[r * VN + v], w[v], four);
	}
}

SPECIALIZED void piece_16(struct unpack *u, const enum kb_type type, const uint8_t *quants, const int half,
			  const int j, const int16_t *x, size_t x_stride, const int n_rows, vi *dot)
{
	struct dot_weights w[VN];

	UNROLL
	for (int v = 0; v < VN; v++)
		w[v] = dot_bytes_weights(unpack_next(u, type, quants, half, j, v));
	UNROLL
	for (int r = 0; r < n_rows; r++) {
		UNROLL
		for (int v = 0; v < VN; v++)
			dot[r * VN + v] = dot_bytes(dot[r * VN + v], w[v], x + r * x_stride + 4 * j);
	}
}

/* acc += dw * d * dot; d: of the first row. */
SPECIALIZED void add_dots(vf *acc, const vf *dw, const float *d, size_t d_stride, const vi *dot, const int n_rows)
{
	UNROLL
	for (int r = 0; r < n_rows; r++) {
		const vf dx = vf_set1(d[r * d_stride]);

		UNROLL
		for (int v = 0; v < VN; v++) {
			const int i = r * VN + v;

			acc[i] = vf_fma(vf_mul(dw[v], dx), vf_of_int(dot[i]), acc[i]);
		}
	}
}

SPECIALIZED void load_offsets(const struct step *t, const enum kb_type type, uint32_t unit, vf *offset)
{
	UNROLL
	for (int v = 0; v < VN; v++)
		offset[v] = load_offset(type, t->block + v * VW * 2, t->scales + v * VW, unit);
}

/* acc += offset * h for one unit; h: of the first row. */
SPECIALIZED void add_offsets(vf *acc, const struct step *t, const enum kb_type type, uint32_t unit, const float *h,
			     size_t h_stride, const int n_rows)
{
	vf offset[VN];

	load_offsets(t, type, unit, offset);
	UNROLL
	for (int r = 0; r < n_rows; r++) {
		const vf hx = vf_set1(h[r * h_stride]);

		UNROLL
		for (int v = 0; v < VN; v++)
			acc[r * VN + v] = vf_fma(offset[v], hx, acc[r * VN + v]);
	}
}

/* 32 columns; sum [n_rows][VN] */
SPECIALIZED void step_8(vf *sum, const struct step *t, const enum kb_type type, const int n_rows)
{
	const bool fine = kc_layouts[type].fine;
	const size_t cols = t->in->cols, halves = cols / KC_HALF;
	const int8_t *x = t->in->q + t->b * KC_BLOCK;
	const float *d = t->in->d + 2 * t->b, *h = t->in->h + 2 * t->b;
	vf acc[MAX_BLOCK_ROWS * VN], dw[VN];

	UNROLL
	for (int half = 0; half < 2; half++) {
		vi dot[MAX_BLOCK_ROWS * VN];
		struct unpack u;

		clear(dot, n_rows * VN);
		unpack_begin(&u, type, t->quants, half);
		OPAQUE(x);
		UNROLL
		for (int j = 0; j < 4; j++)
			piece_8(&u, type, t->quants, half, j, x + half * 16, cols, n_rows, dot);
		UNROLL
		for (int i = 0; i < n_rows * VN; i++) {
			dot[i] = dot_small_end(dot[i]);
			acc[i] = sum[i];
		}
		load_scales(t, type, t->unit + (fine ? (uint32_t)half : 0), dw);
		add_dots(acc, dw, d + half, halves, dot, n_rows);
		if (half && !fine)
			add_offsets(acc, t, type, t->unit, t->in->s + t->b, halves / 2, n_rows);
		if (half && fine) {
			add_offsets(acc, t, type, t->unit, h, halves, n_rows);
			add_offsets(acc, t, type, t->unit + 1, h + 1, halves, n_rows);
		}
		UNROLL
		for (int i = 0; i < n_rows * VN; i++)
			sum[i] = acc[i];
	}
}

SPECIALIZED void step_16(vf *sum, const struct step *t, const enum kb_type type, const int n_rows)
{
	const bool fine = kc_layouts[type].fine;
	const size_t cols = t->in->cols;
	const int16_t *x = t->in->q16 + t->b * KC_BLOCK;
	const float *d = t->in->d16 + t->b;
	vi dot[MAX_BLOCK_ROWS * VN];
	vf dw[VN];

	UNROLL
	for (int half = 0; half < 2; half++) {
		struct unpack u;

		if (fine || !half)
			clear(dot, n_rows * VN);
		unpack_begin(&u, type, t->quants, half);
		OPAQUE(x);
		UNROLL
		for (int j = 0; j < 4; j++)
			piece_16(&u, type, t->quants, half, j, x + half * 16, cols, n_rows, dot);
		if (!fine && !half)
			continue;
		load_scales(t, type, t->unit + (fine ? (uint32_t)half : 0), dw);
		add_dots(sum, dw, d, cols / KC_BLOCK, dot, n_rows);
	}
}

/* A group of each of some streams: whose it is, and how far ahead of its weights (0: not at all) to ask for more. */
struct streams {
	const struct kc_stream *of;
	uint32_t n;
	size_t group;		/* its place in each, bytes */
	size_t ahead;
};

/* Quantised weights: the streams' groups side by side, 32 columns of each in turn; sums [n][n_rows * VN]. */
SPECIALIZED void product_blocks(vf (*sums)[MAX_BLOCK_ROWS * VN], const struct product_task *t,
				const struct streams *streams, const enum kb_type type, const int n_rows)
{
	const struct kc_layout *l = &kc_layouts[type];
	const uint32_t n_blocks = t->in->cols / l->weights;
	size_t at = streams->group;
	struct step s = { .in = t->in, .b = (size_t)t->row * (t->in->cols / KC_BLOCK) };

	for (uint32_t i = 0; i < streams->n; i++) {
		UNROLL
		for (int j = 0; j < n_rows * VN; j++)
			sums[i][j] = vf_zero();
	}
	for (uint32_t b = 0; b < n_blocks; b++, at += kc_block_bytes(l)) {
		for (uint32_t i = 0; streams->ahead && i < streams->n; i++)
			prefetch_ahead(streams->of[i].w + at, kc_quants_offset(l), streams->ahead);
		NO_UNROLL
		for (s.unit = 0; s.unit < l->weights / KC_HALF; s.unit += 2, s.b++) {
			NO_UNROLL
			for (uint32_t i = 0; i < streams->n; i++) {
				s.block = streams->of[i].w + at;
				s.scales = s.block + kc_scales_offset(l);
				s.quants = s.block + kc_quants_offset(l) + s.unit / 2 * kc_quants_bytes(l);
				if (streams->ahead)
					prefetch_ahead(s.quants, kc_quants_bytes(l), streams->ahead);
				if (l->form == KC_FORM_8)
					step_8(sums[i], &s, type, n_rows);
				else
					step_16(sums[i], &s, type, n_rows);
			}
		}
	}
}

/* One group, two batch rows. */
SPECIALIZED void product_two_rows(const struct product_task *t, const enum kb_type type)
{
	const struct kc_stream stream = { .w = t->w };
	const struct streams one = { &stream, 1, 0, PREFETCH };
	vf sums[1][MAX_BLOCK_ROWS * VN];

	product_blocks(sums, t, &one, type, 2);
	UNROLL
	for (int i = 0; i < 2 * VN; i++)
		vf_store(t->out + i / VN * t->out_stride + i % VN * VW, sums[0][i]);
}

/* One row: all groups of the streams. */
SPECIALIZED void product_streams_blocks(const struct product_task *t, struct streams *streams, size_t group_bytes,
					uint32_t n_groups, const enum kb_type type)
{
	vf sums[KC_MAX_STREAMS][MAX_BLOCK_ROWS * VN];

	streams->ahead = PREFETCH / streams->n;
	for (uint32_t g = 0; g < n_groups; g++, streams->group += group_bytes) {
		product_blocks(sums, t, streams, type, 1);
		for (uint32_t i = 0; i < streams->n; i++) {
			UNROLL
			for (int v = 0; v < VN; v++)
				vf_store(streams->of[i].out + (size_t)g * KC_LANES + v * VW, sums[i][v]);
		}
	}
}

/* F32, F16 and BF16; size: bytes of an element. */
SPECIALIZED void product_float(const struct product_task *t, const enum kb_type type, const int n_rows)
{
	const size_t size = type == KB_F32 ? 4 : 2;
	const uint32_t cols = t->in->cols;
	const float *x = t->in->f + (size_t)t->row * cols;
	const uint8_t *w = t->w;
	vf acc[MAX_FLOAT_ROWS * VN];

	UNROLL
	for (int i = 0; i < n_rows * VN; i++)
		acc[i] = vf_zero();
	for (uint32_t k = 0; k < cols; k++, w += size * KC_LANES) {
		if (t->stream)
			_mm_prefetch((const char *)w + PREFETCH, _MM_HINT_T0);
		UNROLL
		for (int v = 0; v < VN; v++) {
			const uint8_t *at = w + v * VW * size;
			vf weights;

			if (type == KB_F32)
				weights = vf_load((const float *)(const void *)at);
			else
				weights = type == KB_F16 ? vf_load_f16(at) : vf_load_bf16(at);
			UNROLL
			for (int r = 0; r < n_rows; r++)
				acc[r * VN + v] =
					vf_fma(weights, vf_set1(x[(size_t)r * cols + k]), acc[r * VN + v]);
		}
	}
	UNROLL
	for (int i = 0; i < n_rows * VN; i++)
		vf_store(t->out + i / VN * t->out_stride + i % VN * VW, acc[i]);
}

/* It builds on what is above. */
#include "simd-panel.h"

/* Not inlined: all one-row products are this one, whose code is large. */
static __attribute__((noinline)) void simd_product_streams(const struct kb_tensor *w, const struct kc_stream *of,
							   uint32_t n_streams, uint32_t n_groups,
							   const struct kc_rows *in, uint32_t row)
{
	const struct product_task t = { .in = in, .row = row };
	struct streams streams = { .of = of, .n = n_streams };

	switch (w->type) {
#define CASE(type) case type: \
		if (kc_layouts[type].weights > 1) \
			product_streams_blocks(&t, &streams, w->group_bytes, n_groups, type); \
		break;
	EACH_TYPE(CASE)
#undef CASE
	}
}

/* All batch rows of one group of floats. */
SPECIALIZED void product_group_floats(struct product_task *t, const enum kb_type type, uint32_t n_rows)
{
	for (t->stream = true; n_rows >= MAX_FLOAT_ROWS; n_rows -= MAX_FLOAT_ROWS, t->stream = false) {
		product_float(t, type, MAX_FLOAT_ROWS);
		t->row += MAX_FLOAT_ROWS;
		t->out += MAX_FLOAT_ROWS * t->out_stride;
	}
	for (; n_rows; n_rows--, t->stream = false) {
		product_float(t, type, 1);
		t->row++;
		t->out += t->out_stride;
	}
}

/* All batch rows of one group of w. */
SPECIALIZED void product_group(struct product_task *t, const struct kb_tensor *w, const enum kb_type type,
			       uint32_t n_rows)
{
	if (kc_layouts[type].weights == 1) {
		product_group_floats(t, type, n_rows);
		return;
	}
	if (n_rows >= PANEL_ROWS) {
		panel_product(t, type, n_rows);
		return;
	}
	if (n_rows >= 2) {
		product_two_rows(t, type);
		n_rows -= 2;
		t->row += 2;
		t->out += 2 * t->out_stride;
	}
	if (n_rows)
		simd_product_streams(w, &(struct kc_stream){ t->w, t->out }, 1, 1, t->in, t->row);
}

/* One row, in as many streams as there can be; how many groups are done. */
static uint32_t product_one_row(const struct kb_tensor *w, uint32_t group0, uint32_t n_groups,
				const struct kc_rows *in, uint32_t row, float *out)
{
	struct kc_stream streams[KC_MAX_STREAMS];
	uint32_t each = n_groups / KC_MAX_STREAMS;

	if (each < LEAST_STREAM || !kc_type_quantized(w->type))
		return 0;
	for (uint32_t i = 0; i < KC_MAX_STREAMS; i++)
		streams[i] = (struct kc_stream){ w->data + w->group_bytes * (group0 + i * each),
						 out + (size_t)i * each * KC_LANES };
	simd_product_streams(w, streams, KC_MAX_STREAMS, each, in, row);
	return each * KC_MAX_STREAMS;
}

static void simd_product(const struct kb_tensor *w, uint32_t group0, uint32_t n_groups,
			 const struct kc_rows *in, uint32_t row0, uint32_t n_rows, float *out,
			 size_t out_stride)
{
	uint32_t done = n_rows == 1 ? product_one_row(w, group0, n_groups, in, row0, out) : 0;

	for (uint32_t g = done; g < n_groups; g++) {
		struct product_task t = { .w = w->data + w->group_bytes * (group0 + g), .in = in, .row = row0,
					  .out = out + (size_t)g * KC_LANES, .out_stride = out_stride };

		switch (w->type) {
#define CASE(type) case type: product_group(&t, w, type, n_rows); break;
		EACH_TYPE(CASE)
#undef CASE
		}
	}
}

#endif
