/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd-product-512.h - vector products of the AVX-512 levels.  Lanes are output
 * rows; each output is one chain over K in ascending order (NUMERICS.md).
 *
 * With 32 registers a step (32 columns x 16 lanes) is turned round: its unpacked
 * weights stay in registers, half by half, and the activation rows pass by, up
 * to 16 of them, whose sums stay in registers too.  So weights are unpacked once
 * for 16 rows, and a row needs no register but its sum.
 *
 * Rows that are multiplied together are copied, 1,024 columns at a time, to
 * where they lie a constant distance apart: otherwise their addresses would need
 * more registers than there are.  It takes some 25 cycles for a step of 16 rows, shared
 * by all groups of the task.
 *
 * Limit, matrix x vector: bytes of weights over memory bandwidth.  A step of Q4_1
 * is 320 bytes; on VNNI it takes 31 instructions of the two ports for vectors
 * of 512 bits (12 unpack, 8 dpbusd, 2 conversions, 2 multiplications, 3 FMAs, 4
 * for d and m), so 16 cycles: 20 bytes per cycle, beyond what a core can read.
 * Without VNNI 39 (8 maddubs, 6 additions and 2 madd for the 8 dpbusd), 20 cycles.
 *
 * Limit, matrix x matrix: for a step and row 8 dpbusd, 2 conversions, 2
 * multiplications, 3 FMAs: 15 on two ports, 7.5 cycles for 512 products; with
 * unpacking 8.2, 62 products per cycle.  Without VNNI 23 (8 maddubs, 6 additions,
 * as a sum's first two need none, 2 madd, 7 as above), with unpacking 12 cycles,
 * 43 products per cycle.  Types of 16-bit activations: 16
 * dpwssd and 3 more, or 6 where scales are fine; 8 rows: 48 to 41 products per cycle.
 *
 * Measured on a Zen 5 with VNNI, one thread, 4 GHz: Q4_1 out of the second cache 107 GB/s (26 bytes per cycle), out of
 * memory 35 to 39, which is what a core gets: longer distances and other hints than PREFETCH's change nothing.  Eight
 * rows: Q4_1 285 GMAC/s (70 products per cycle, since conversions have ports of their own there), Q8_0 183, Q4_K 237,
 * Q6_K 128; F16 94.
 */
#ifndef KC_SIMD_PRODUCT_512_H
#define KC_SIMD_PRODUCT_512_H

#include "simd-weights.h"

#define CHUNK 1024u		/* columns of quantised rows that are copied; whole blocks */
#define FLOAT_CHUNK 256u
#define MAX_ROWS_8 16		/* rows multiplied together, by form; floats: as 8 */
#define MAX_ROWS_16 8
#define ROWS_TOGETHER 4		/* of those, in step */
#define MAX_GROUPS 4		/* of floats, where few rows leave the multipliers waiting */

/* Distances of rows in a panel, padded so that they don't meet in one set of the cache. */
#define Q_STRIDE (CHUNK + 64)
#define Q16_STRIDE (CHUNK + 32)
#define D_STRIDE (CHUNK / KC_HALF + 8)
#define S_STRIDE (CHUNK / KC_BLOCK + 8)
#define F_STRIDE (FLOAT_CHUNK + 16)

/* A chunk of the rows that are multiplied together: those behind the last are copies of it. */
union panel {
	struct {
		int8_t q[MAX_ROWS_8][Q_STRIDE];
		float d[MAX_ROWS_8][D_STRIDE], h[MAX_ROWS_8][D_STRIDE], s[MAX_ROWS_8][S_STRIDE];
	} form_8;
	struct {
		int16_t q[MAX_ROWS_16][Q16_STRIDE];
		float d[MAX_ROWS_16][S_STRIDE];
	} form_16;
	float f[MAX_ROWS_8][F_STRIDE];
} __attribute__((aligned(64)));

/* A chunk of one or more groups times that of some rows. */
struct run {
	const uint8_t *w;	/* the chunk of the first group */
	size_t group_bytes;
	uint32_t n_groups;
	uint32_t cols;		/* of the chunk */
	bool first;		/* of the chunks: outputs are zero before */
	bool stream;		/* the weights come from memory */
	size_t ahead, skip;	/* bytes: how far it is asked for, inside the chunk; from its end to the next group's */
	uint32_t n_rows;	/* valid */
	float *out;
	size_t out_stride;
	/* Of the first row: of a panel, or of a row that is alone. */
	const float *f;
	const int8_t *q;
	const int16_t *q16;
	const float *d, *h, *s, *d16;
};

SPECIALIZED void load_sums(vf *acc, const struct run *t, float *out, const int n_rows)
{
	UNROLL
	for (int r = 0; r < n_rows; r++)
		acc[r] = t->first || (uint32_t)r >= t->n_rows ? vf_zero() : vf_load(out + r * t->out_stride);
}

SPECIALIZED void store_sums(const vf *acc, const struct run *t, float *out, const int n_rows)
{
	UNROLL
	for (int r = 0; r < n_rows; r++) {
		if ((uint32_t)r < t->n_rows)
			vf_store(out + r * t->out_stride, acc[r]);
	}
}

/* --- blocks of quantised weights -------------------------------------------------- */

/* 32 columns of a group, and of the first row. */
struct step {
	const uint8_t *block, *scales, *quants;
	uint32_t unit;		/* the columns' first 16 in the block */
	const int8_t *q;
	const int16_t *q16;
	const float *d, *h, *s, *d16;
};

/* Rows r .. r + n - 1 of a half; their sums don't wait for each other, so each need not wait for its own. */
SPECIALIZED void rows_8(vf *acc, const struct step *t, const vi w[4], const vf dw, const int half, const int r,
			const int n)
{
	const int8_t *x = t->q + r * (int)Q_STRIDE + 16 * half;
	const float *d = t->d + r * (int)D_STRIDE + half;
	vi dot[ROWS_TOGETHER];

	UNROLL
	for (int i = 0; i < n; i++)
		dot[i] = vi_zero();
	UNROLL
	for (int j = 0; j < 4; j++) {
		UNROLL
		for (int i = 0; i < n; i++)
			dot[i] = dot_small_at(dot[i], w[j], x + i * (int)Q_STRIDE + 4 * j);
	}
	UNROLL
	for (int i = 0; i < n; i++) {
		const vf scale = vf_mul(dw, vf_set1(d[i * (int)D_STRIDE]));

		acc[r + i] = vf_fma(scale, vf_of_int(dot_small_end(dot[i])), acc[r + i]);
	}
}

SPECIALIZED void half_8(vf *acc, const struct step *t, const enum kb_type type, const int half, const int n_rows)
{
	const vf dw = load_scale(type, t->block, t->scales, t->unit + (kc_layouts[type].fine ? (uint32_t)half : 0));
	const int together = n_rows < ROWS_TOGETHER ? n_rows : ROWS_TOGETHER;
	struct unpack u;
	vi w[4];

	unpack_begin(&u, type, t->quants, half);
	UNROLL
	for (int j = 0; j < 4; j++)
		w[j] = unpack_next(&u, type, t->quants, half, j, 0);
	UNROLL
	for (int r = 0; r < n_rows; r += together)
		rows_8(acc, t, w, dw, half, r, together);
}

/* What the minimums of a step's weights, or their middles, add. */
SPECIALIZED void add_offsets(vf *acc, const struct step *t, const enum kb_type type, const int n_rows)
{
	vf offset[2] = { load_offset(type, t->block, t->scales, t->unit) };

	if (!kc_layouts[type].fine) {
		UNROLL
		for (int r = 0; r < n_rows; r++)
			acc[r] = vf_fma(offset[0], vf_set1(t->s[r * (int)S_STRIDE]), acc[r]);
		return;
	}
	offset[1] = load_offset(type, t->block, t->scales, t->unit + 1);
	UNROLL
	for (int r = 0; r < n_rows; r++) {
		acc[r] = vf_fma(offset[0], vf_set1(t->h[r * (int)D_STRIDE]), acc[r]);
		acc[r] = vf_fma(offset[1], vf_set1(t->h[r * (int)D_STRIDE + 1]), acc[r]);
	}
}

SPECIALIZED void step_8(vf *acc, const struct step *t, const enum kb_type type, const int n_rows)
{
	half_8(acc, t, type, 0, n_rows);
	half_8(acc, t, type, 1, n_rows);
	add_offsets(acc, t, type, n_rows);
}

/* Four columns of the first row's x, of all rows. */
SPECIALIZED void piece_16(vi (*dot)[2], const struct dot_weights w, const int16_t *x, const int n_rows)
{
	/* Sums of few rows would wait for their last addition: they are two each, added in the end. */
	const int odd = n_rows <= 4;

	UNROLL
	for (int r = 0; r < n_rows; r++, x += Q16_STRIDE)
		dot[r][0] = dot_pairs_at(dot[r][0], w.even, x);
	x -= n_rows * (int)Q16_STRIDE;
	UNROLL
	for (int r = 0; r < n_rows; r++, x += Q16_STRIDE)
		dot[r][odd] = dot_pairs_at(dot[r][odd], w.odd, x + 2);
}

/* Columns under one scale: a half where scales are fine, else both. */
SPECIALIZED void part_16(vf *acc, const struct step *t, const enum kb_type type, const int half, const int n_rows)
{
	const int n_halves = kc_layouts[type].fine ? 1 : 2;
	vi dot[MAX_ROWS_16][2];
	vf dw;

	UNROLL
	for (int r = 0; r < n_rows; r++)
		dot[r][0] = dot[r][1] = vi_zero();
	UNROLL
	for (int h = half; h < half + n_halves; h++) {
		struct unpack u;

		unpack_begin(&u, type, t->quants, h);
		UNROLL
		for (int j = 0; j < 4; j++)
			piece_16(dot, dot_bytes_weights(unpack_next(&u, type, t->quants, h, j, 0)),
				 t->q16 + 16 * h + 4 * j, n_rows);
	}
	dw = load_scale(type, t->block, t->scales, t->unit + (uint32_t)half);
	UNROLL
	for (int r = 0; r < n_rows; r++) {
		const vf scale = vf_mul(dw, vf_set1(t->d16[r * (int)S_STRIDE]));
		const vi sum = n_rows <= 4 ? vi_add(dot[r][0], dot[r][1]) : dot[r][0];

		acc[r] = vf_fma(scale, vf_of_int(sum), acc[r]);
	}
}

SPECIALIZED void step_16(vf *acc, const struct step *t, const enum kb_type type, const int n_rows)
{
	part_16(acc, t, type, 0, n_rows);
	if (kc_layouts[type].fine)
		part_16(acc, t, type, 1, n_rows);
}

SPECIALIZED void run_blocks(const struct run *t, const enum kb_type type, const int n_rows, const uint8_t *block,
			    float *out)
{
	const struct kc_layout *l = &kc_layouts[type];
	struct step s = { .q = t->q, .q16 = t->q16, .d = t->d, .h = t->h, .s = t->s, .d16 = t->d16 };
	const uint8_t *last = block + t->cols / l->weights * kc_block_bytes(l) - t->ahead;
	vf acc[MAX_ROWS_8];

	load_sums(acc, t, out, n_rows);
	for (uint32_t k = 0; k < t->cols; k += l->weights, block += kc_block_bytes(l)) {
		const size_t ahead = t->ahead + (block < last ? 0 : t->skip);

		s.block = block;
		s.scales = block + kc_scales_offset(l);
		s.quants = block + kc_quants_offset(l);
		if (t->stream)
			prefetch_ahead(block, kc_quants_offset(l), ahead);
		NO_UNROLL
		for (s.unit = 0; s.unit < l->weights / KC_HALF; s.unit += 2) {
			if (t->stream)
				prefetch_ahead(s.quants, kc_quants_bytes(l), ahead);
			if (l->form == KC_FORM_8) {
				step_8(acc, &s, type, n_rows);
				s.q += KC_BLOCK;
				s.d += 2;
				s.h += 2;
				s.s++;
			} else {
				step_16(acc, &s, type, n_rows);
				s.q16 += KC_BLOCK;
				s.d16++;
			}
			s.quants += kc_quants_bytes(l);
		}
	}
	store_sums(acc, t, out, n_rows);
}

/* --- F32, F16 and BF16 ------------------------------------------------------------ */

/* Several groups where there are few rows: each sum waits for its last addition. */
SPECIALIZED void run_elements(const struct run *t, const enum kb_type type, const int n_rows, const int n_groups,
			      const uint8_t *w, float *out)
{
	const size_t size = kc_layouts[type].source, inside = t->ahead / (size_t)n_groups;
	const uint8_t *last = w + size * KC_LANES * t->cols - inside;
	const float *x = t->f;
	vf acc[MAX_GROUPS][MAX_ROWS_8];

	UNROLL
	for (int g = 0; g < n_groups; g++)
		load_sums(acc[g], t, out + g * KC_LANES, n_rows);
	for (uint32_t k = 0; k < t->cols; k++, x++, w += size * KC_LANES) {
		const size_t ahead = inside + (w < last ? 0 : t->skip + (size_t)(n_groups - 1) * t->group_bytes);

		UNROLL
		for (int g = 0; g < n_groups; g++) {
			const uint8_t *at = w + g * t->group_bytes;
			vf weights;

			if (t->stream)
				_mm_prefetch((const char *)at + ahead, _MM_HINT_T0);
			if (type == KB_F32)
				weights = vf_load((const float *)(const void *)at);
			else
				weights = type == KB_F16 ? vf_load_f16(at) : vf_load_bf16(at);
			UNROLL
			for (int r = 0; r < n_rows; r++)
				acc[g][r] = vf_fma(weights, vf_set1(x[r * (int)F_STRIDE]), acc[g][r]);
		}
	}
	UNROLL
	for (int g = 0; g < n_groups; g++)
		store_sums(acc[g], t, out + g * KC_LANES, n_rows);
}

SPECIALIZED void run_groups(const struct run *t, const enum kb_type type, const int n_rows)
{
	const int together = n_rows == 1 ? MAX_GROUPS : n_rows == 2 ? 2 : 1;
	const uint8_t *w = t->w;
	float *out = t->out;
	uint32_t g = 0;

	if (kc_layouts[type].weights > 1) {
		for (; g < t->n_groups; g++, w += t->group_bytes, out += KC_LANES)
			run_blocks(t, type, n_rows, w, out);
		return;
	}
	for (; together > 1 && g + together <= t->n_groups; g += together) {
		run_elements(t, type, n_rows, together, w, out);
		w += together * t->group_bytes;
		out += together * (int)KC_LANES;
	}
	for (; g < t->n_groups; g++, w += t->group_bytes, out += KC_LANES)
		run_elements(t, type, n_rows, 1, w, out);
}

/* --- rows that are multiplied together ------------------------------------------------ */

/* Code of each type for 1, 2, 4, 8 and 16 rows. */
#define N_SIZES 5
#define RUNS(type) \
	static void run_1_##type(const struct run *t) { run_groups(t, type, 1); } \
	static void run_2_##type(const struct run *t) { run_groups(t, type, 2); } \
	static void run_4_##type(const struct run *t) { run_groups(t, type, 4); } \
	static void run_8_##type(const struct run *t) { run_groups(t, type, 8); } \
	static void run_16_##type(const struct run *t) \
	{ \
		if (kc_layouts[type].form != KC_FORM_16) \
			run_groups(t, type, 16); \
	}
EACH_TYPE(RUNS)
#undef RUNS

static void (*const runs[][N_SIZES])(const struct run *t) = {
#define RUNS(type) [type] = { run_1_##type, run_2_##type, run_4_##type, run_8_##type, run_16_##type },
	EACH_TYPE(RUNS)
#undef RUNS
};

/* The size for the next of n rows; one row more than there are costs less than two runs. */
static uint32_t choose_size(uint32_t n, unsigned form)
{
	uint32_t size = form == KC_FORM_16 ? 3 : 4;

	while (n + 1 < 1u << size || (size == 1 && n == 1))
		size--;
	return size;
}

static void panel_fill(union panel *p, struct run *t, const struct kc_rows *in, uint32_t row, uint32_t n,
		       uint32_t col, unsigned form)
{
	for (uint32_t i = 0; i < n; i++) {
		size_t at = (size_t)(row + KC_MIN(i, t->n_rows - 1)) * in->cols + col;

		if (form == KC_FORM_8) {
			memcpy(p->form_8.q[i], in->q + at, t->cols);
			memcpy(p->form_8.d[i], in->d + at / KC_HALF, t->cols / KC_HALF * sizeof(float));
			memcpy(p->form_8.h[i], in->h + at / KC_HALF, t->cols / KC_HALF * sizeof(float));
			memcpy(p->form_8.s[i], in->s + at / KC_BLOCK, t->cols / KC_BLOCK * sizeof(float));
		} else if (form == KC_FORM_16) {
			memcpy(p->form_16.q[i], in->q16 + at, t->cols * sizeof(int16_t));
			memcpy(p->form_16.d[i], in->d16 + at / KC_BLOCK, t->cols / KC_BLOCK * sizeof(float));
		} else {
			memcpy(p->f[i], in->f + at, t->cols * sizeof(float));
		}
	}
	t->q = p->form_8.q[0];
	t->d = p->form_8.d[0];
	t->h = p->form_8.h[0];
	t->s = p->form_8.s[0];
	t->q16 = p->form_16.q[0];
	t->d16 = p->form_16.d[0];
	t->f = p->f[0];
}

static void take_row(struct run *t, const struct kc_rows *in, uint32_t row, uint32_t col, unsigned form)
{
	size_t at = (size_t)row * in->cols + col;

	if (form == KC_FORM_8) {
		t->q = in->q + at;
		t->d = in->d + at / KC_HALF;
		t->h = in->h + at / KC_HALF;
		t->s = in->s + at / KC_BLOCK;
	} else if (form == KC_FORM_16) {
		t->q16 = in->q16 + at;
		t->d16 = in->d16 + at / KC_BLOCK;
	} else {
		t->f = in->f + at;
	}
}

/* A chunk of columns, from col on, of all rows. */
static void product_chunk(struct run *t, const struct kb_tensor *w, const struct kc_rows *in, uint32_t row0,
			  uint32_t n_rows, uint32_t col, union panel *panel)
{
	const unsigned form = kc_type_forms(w->type);
	float *out = t->out;

	t->stream = true;
	for (uint32_t done = 0; done < n_rows; done += t->n_rows) {
		uint32_t size = choose_size(n_rows - done, form);

		t->n_rows = KC_MIN(1u << size, n_rows - done);
		if (size)
			panel_fill(panel, t, in, row0 + done, 1u << size, col, form);
		else
			take_row(t, in, row0 + done, col, form);
		t->out = out + done * t->out_stride;
		runs[w->type][size](t);
		t->stream = false;
	}
	t->out = out;
}

static void simd_product(const struct kb_tensor *w, uint32_t group0, uint32_t n_groups, const struct kc_rows *in,
			 uint32_t row0, uint32_t n_rows, float *out, size_t out_stride)
{
	const struct kc_layout *l = &kc_layouts[w->type];
	const uint32_t chunk = n_rows == 1 ? in->cols : l->weights == 1 ? FLOAT_CHUNK : CHUNK;
	struct run t = { .w = w->data + w->group_bytes * group0, .group_bytes = w->group_bytes, .n_groups = n_groups,
			 .out = out, .out_stride = out_stride };
	union panel panel;
	size_t bytes;

	for (uint32_t col = 0; col < in->cols; col += t.cols) {
		t.cols = KC_MIN(chunk, in->cols - col);
		t.first = !col;
		bytes = t.cols / l->weights * kc_block_bytes(l);
		t.skip = w->group_bytes - bytes;
		t.ahead = t.skip ? KC_MIN(PREFETCH, bytes) : PREFETCH;
		product_chunk(&t, w, in, row0, n_rows, col, &panel);
		t.w += bytes;
	}
}

#endif
