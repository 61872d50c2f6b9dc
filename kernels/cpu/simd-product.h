/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd-product.h - vector products.  Lanes are output rows, so that there is
 * no horizontal sum, and each output is one chain over K in ascending order
 * whatever the number of batch rows.
 *
 * Limit, matrix x vector: bytes of weights over memory bandwidth.  A block of
 * 32 x 16 Q4_1 weights is 320 bytes; AVX2 needs about 90 instructions for it,
 * some 25 cycles, against 45 to 60 for its bytes at 20 GB/s per core.
 *
 * Limit, matrix x matrix: the multiply rate.  A block of 32 x 8 takes, for each
 * batch row, 8 maddubs, 8 adds and 9 more on AVX2 (25 for 256 products), and 8
 * dpbusd and 7 more for 32 x 16 on AVX-512 (15 for 512 products); unpacking is
 * shared by up to MAX_PRODUCT_ROWS batch rows.
 */
#ifndef KC_SIMD_PRODUCT_H
#define KC_SIMD_PRODUCT_H

#include "cpu.h"

/* Ahead of the weights being used, in bytes: about 100 ns at full speed. */
#define PREFETCH 2048

struct product_task {
	const uint8_t *w;	/* the group */
	const struct kc_rows *in;
	uint32_t row;		/* first batch row */
	float *out;
	size_t out_stride;
	bool stream;		/* the group comes from memory */
};

INLINE void prefetch(const uint8_t *p, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 64)
		_mm_prefetch((const char *)p + PREFETCH + i, _MM_HINT_T0);
}

/* Runs step for piece j = 0 .. n - 1: unrolled where few rows leave registers free. */
#define EACH_PIECE(n, n_rows, step) \
	do { \
		if ((n_rows) <= 2) { \
			UNROLL \
			for (int j = 0; j < (n); j++) \
				step; \
		} else { \
			NO_UNROLL \
			for (int j = 0; j < (n); j++) \
				step; \
		} \
	} while (0)

/* Half (low or high nibbles) of a 64-byte piece of 4-bit weights times four activations of each row. */
SPECIALIZED void step_q4(const uint8_t *w, const int half, const int8_t *x, size_t x_stride, const int n_rows,
			 const int n_vecs, vi *dot)
{
	vi nibbles[VN];

	UNROLL
	for (int v = 0; v < n_vecs; v++) {
		vi pair = vi_load(w + v * VW * 4);

		nibbles[v] = half ? vi_high_nibbles(pair) : vi_low_nibbles(pair);
	}
	UNROLL
	for (int r = 0; r < n_rows; r++) {
		vi four = vi_bytes4(x + r * x_stride);

		UNROLL
		for (int v = 0; v < n_vecs; v++)
			dot[r * n_vecs + v] = dot_nibbles(dot[r * n_vecs + v], nibbles[v], four);
	}
}

/* One piece of 8-bit weights times four 16-bit activations of each row. */
SPECIALIZED void step_q8(const uint8_t *w, const int16_t *x, size_t x_stride, const int n_rows,
			 const int n_vecs, vi *dot)
{
	struct dot_weights weights[VN];

	UNROLL
	for (int v = 0; v < n_vecs; v++)
		weights[v] = dot_bytes_weights(vi_load(w + v * VW * 4));
	UNROLL
	for (int r = 0; r < n_rows; r++) {
		UNROLL
		for (int v = 0; v < n_vecs; v++)
			dot[r * n_vecs + v] = dot_bytes(dot[r * n_vecs + v], weights[v], x + r * x_stride);
	}
}

/*
 * Q4_0 and Q4_1: n_rows batch rows, and n_vecs vectors of weight rows from vector
 * `first`; all are constants after inlining.
 */
SPECIALIZED void product_q4(const struct product_task *t, const bool has_min, const int n_rows,
			    const int first, const int n_vecs)
{
	const size_t block_bytes = (has_min ? 20 : 18) * KC_LANES, quants = (has_min ? 4 : 2) * KC_LANES;
	const uint32_t cols = t->in->cols, n_blocks = cols / KC_BLOCK;
	const int8_t *x = t->in->q + (size_t)t->row * cols;
	const float *d = t->in->d + (size_t)t->row * n_blocks * 2, *s = t->in->s + (size_t)t->row * n_blocks;
	const uint8_t *w = t->w;
	vf acc[MAX_PRODUCT_ROWS * VN];

	UNROLL
	for (int i = 0; i < n_rows * n_vecs; i++)
		acc[i] = vf_zero();
	for (uint32_t b = 0; b < n_blocks; b++, w += block_bytes, x += KC_BLOCK) {
		const uint8_t *pieces = w + quants + first * VW * 4;
		vf dw[VN];

		if (t->stream)
			prefetch(w, block_bytes);
		UNROLL
		for (int v = 0; v < n_vecs; v++)
			dw[v] = vf_load_f16(w + (first + v) * VW * 2);
		UNROLL
		for (int half = 0; half < 2; half++) {
			vi dot[MAX_PRODUCT_ROWS * VN];

			UNROLL
			for (int i = 0; i < n_rows * n_vecs; i++)
				dot[i] = vi_zero();
			EACH_PIECE(4, n_rows,
				   step_q4(pieces + j * 64, half, x + half * 16 + 4 * j, cols, n_rows, n_vecs,
					   dot));
			UNROLL
			for (int i = 0; i < n_rows * n_vecs; i++) {
				vf sum = vf_of_int(dot_nibbles_end(dot[i]));
				vf scale = vf_set1(d[((size_t)(i / n_vecs) * n_blocks + b) * 2 + half]);

				acc[i] = vf_fma(vf_mul(dw[i % n_vecs], scale), sum, acc[i]);
			}
		}
		UNROLL
		for (int i = 0; i < n_rows * n_vecs; i++) {
			vf offset;

			if (has_min)
				offset = vf_load_f16(w + 2 * KC_LANES + (first + i % n_vecs) * VW * 2);
			else
				offset = vf_mul(vf_set1(-8.0f), dw[i % n_vecs]);
			acc[i] = vf_fma(offset, vf_set1(s[(size_t)(i / n_vecs) * n_blocks + b]), acc[i]);
		}
	}
	UNROLL
	for (int i = 0; i < n_rows * n_vecs; i++)
		vf_store(t->out + i / n_vecs * t->out_stride + (first + i % n_vecs) * VW, acc[i]);
}

SPECIALIZED void product_q8(const struct product_task *t, const int n_rows, const int first, const int n_vecs)
{
	const size_t block_bytes = 34 * KC_LANES;
	const uint32_t cols = t->in->cols, n_blocks = cols / KC_BLOCK;
	const int16_t *x = t->in->q16 + (size_t)t->row * cols;
	const float *d = t->in->d16 + (size_t)t->row * n_blocks;
	const uint8_t *w = t->w;
	vf acc[MAX_PRODUCT_ROWS * VN];

	UNROLL
	for (int i = 0; i < n_rows * n_vecs; i++)
		acc[i] = vf_zero();
	for (uint32_t b = 0; b < n_blocks; b++, w += block_bytes, x += KC_BLOCK) {
		const uint8_t *pieces = w + 2 * KC_LANES + first * VW * 4;
		vi dot[MAX_PRODUCT_ROWS * VN];

		if (t->stream)
			prefetch(w, block_bytes);
		UNROLL
		for (int i = 0; i < n_rows * n_vecs; i++)
			dot[i] = vi_zero();
		EACH_PIECE(8, n_rows, step_q8(pieces + j * 64, x + 4 * j, cols, n_rows, n_vecs, dot));
		UNROLL
		for (int v = 0; v < n_vecs; v++) {
			vf dw = vf_load_f16(w + (first + v) * VW * 2);

			UNROLL
			for (int r = 0; r < n_rows; r++) {
				vf scale = vf_mul(dw, vf_set1(d[(size_t)r * n_blocks + b]));
				const int i = r * n_vecs + v;

				acc[i] = vf_fma(scale, vf_of_int(dot[i]), acc[i]);
			}
		}
	}
	UNROLL
	for (int i = 0; i < n_rows * n_vecs; i++)
		vf_store(t->out + i / n_vecs * t->out_stride + (first + i % n_vecs) * VW, acc[i]);
}

/* F32, F16 and BF16; size: bytes of an element. */
SPECIALIZED void product_float(const struct product_task *t, const enum kb_type type, const int n_rows)
{
	const size_t size = type == KB_F32 ? 4 : 2;
	const uint32_t cols = t->in->cols;
	const float *x = t->in->f + (size_t)t->row * cols;
	const uint8_t *w = t->w;
	vf acc[MAX_PRODUCT_ROWS * VN];

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

/* With more than two rows the registers hold one vector of weight rows at a time. */
#define FOR_VECTORS(n_rows, call) \
	do { \
		if ((n_rows) * VN <= 8) { \
			call(0, VN); \
			break; \
		} \
		UNROLL \
		for (int first = 0; first < VN; first++) \
			call(first, 1); \
	} while (0)

#define CALL_Q4_0(first, n_vecs) product_q4(t, false, n_rows, first, n_vecs)
#define CALL_Q4_1(first, n_vecs) product_q4(t, true, n_rows, first, n_vecs)
#define CALL_Q8_0(first, n_vecs) product_q8(t, n_rows, first, n_vecs)

SPECIALIZED void product_rows(const struct product_task *t, const enum kb_type type, const int n_rows)
{
	switch (type) {
	case KB_Q4_0: FOR_VECTORS(n_rows, CALL_Q4_0); break;
	case KB_Q4_1: FOR_VECTORS(n_rows, CALL_Q4_1); break;
	case KB_Q8_0: FOR_VECTORS(n_rows, CALL_Q8_0); break;
	default: product_float(t, type, n_rows);
	}
}

/* All batch rows of one group. */
SPECIALIZED void product_group(struct product_task *t, const enum kb_type type, uint32_t n_rows)
{
	uint32_t step;

	for (t->stream = true; n_rows; n_rows -= step, t->stream = false) {
		if (n_rows >= MAX_PRODUCT_ROWS)
			product_rows(t, type, step = MAX_PRODUCT_ROWS);
#if MAX_PRODUCT_ROWS > 4
		else if (n_rows >= 4)
			product_rows(t, type, step = 4);
#endif
		else if (n_rows >= 2)
			product_rows(t, type, step = 2);
		else
			product_rows(t, type, step = 1);
		t->row += step;
		t->out += step * t->out_stride;
	}
}

static void simd_product(const struct kb_tensor *w, uint32_t group0, uint32_t n_groups,
			 const struct kc_rows *in, uint32_t row0, uint32_t n_rows, float *out,
			 size_t out_stride)
{
	for (uint32_t g = 0; g < n_groups; g++) {
		struct product_task t = { .w = w->data + w->group_bytes * (group0 + g), .in = in, .row = row0,
					  .out = out + (size_t)g * KC_LANES, .out_stride = out_stride };

		switch (w->type) {
		case KB_F32: product_group(&t, KB_F32, n_rows); break;
		case KB_F16: product_group(&t, KB_F16, n_rows); break;
		case KB_BF16: product_group(&t, KB_BF16, n_rows); break;
		case KB_Q4_0: product_group(&t, KB_Q4_0, n_rows); break;
		case KB_Q4_1: product_group(&t, KB_Q4_1, n_rows); break;
		case KB_Q8_0: product_group(&t, KB_Q8_0, n_rows); break;
		}
	}
}

#endif
