/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd-amx.h - products of many rows on AMX-INT8 tiles; of few rows, and of floats,
 * by simd-product-512.h.  The sums are the same integers, so the bits are the same.
 *
 * A tile multiplication takes 16 rows of activations (A) times 16 lanes (B), over the
 * columns that are under one scale: a piece of 16 lanes x 4 columns, as layout.h
 * has them, is a row of B.  The 16 x 16 sums (C) go through memory to
 * vectors, where scales are applied in the order of NUMERICS.md.  Activations of
 * 16 bits are 256 * hi + lo: two multiplications, signed and unsigned.
 *
 * Limit, in cycles of Sapphire Rapids for 16 rows x 16 lanes.  A multiplication
 * takes one for each row of A, 16, however few columns; a tile is stored in 16, loaded in
 * 8.  For 32 columns of 8-bit activations, two units of 16:
 *     tiles        2 x 16
 *     stores       2 x 16
 *     loads        2 x (16 C + 16 dx + 8 s + 16 A + 4 B) / 2 = 60
 *     vectors      2 x (16 conversions + 16 multiplications + 24 FMAs) / 2 = 56
 * so some 60 against 130 with dpbusd.  For 32 columns of 16-bit ones under one
 * scale, one unit of two multiplications:
 *     tiles 32, stores 32, loads (32 C + 16 dx + 32 A + 8 B) / 2 = 44,
 *     vectors (16 shifts + 16 additions + 16 + 16 + 16 FMAs) / 2 = 40
 * so 45 against 152 with dpwssd; fine scales (Q6_K) twice that, 88 against 176.  Scales bind: were
 * there one for 64 columns, tiles alone would be the limit, five times less.  Below
 * nine rows a tile is half empty, and dpbusd as fast.  Weights are unpacked once for
 * 64 rows: 20 instructions for 32 columns, 4 of 240 cycles.
 */
#ifndef KC_SIMD_AMX_H
#define KC_SIMD_AMX_H

#include "simd-product-512.h"

#define TILE_ROWS 16u		/* rows of A and of C */
#define TILE_LEAST 9u		/* rows for which a tile is used */
#define TILE_PANELS 4u		/* row blocks that share unpacked weights */
#define TILE_SUMS 256		/* of C */
#define TILE_AHEAD 2048		/* bytes between weights that are unpacked and those asked for */
/*
 * Sums are added one turn after their multiplication, which takes 52 cycles and a
 * store; a turn is two tiles of C.  Two turns are 4 KiB: loads of one don't wait for
 * the other's stores, whose addresses would differ in higher bits alone were there more.
 */
#define TILE_RING 2u

/* What LDTILECFG loads. */
struct tile_config {
	uint8_t palette, start_row, reserved[14];
	uint16_t bytes[16];	/* of a row, by tile */
	uint8_t rows[16];
};
_Static_assert(sizeof(struct tile_config) == 64, "as LDTILECFG reads it");

/* A chunk of the activations of a row block. */
union tile_panel {
	union panel panel;
	struct {
		int8_t high[TILE_ROWS][Q_STRIDE];
		uint8_t low[TILE_ROWS][Q_STRIDE];
		float d[TILE_ROWS][S_STRIDE];
	} form_16;
};

/* A row block times a group, over a chunk. */
struct tile_run {
	struct run rows;
	const void *a[2];	/* planes of activations: 8 bits; or high and low bytes */
	const uint8_t *b;	/* unpacked: pieces of ascending columns */
	int32_t (*c)[2 * TILE_SUMS];	/* [TILE_RING] sums of two halves, or planes */
};

/* gcc 12 does not know that it reads memory. */
#define TILE_LOAD(tile, base, stride) \
	do { \
		__asm__ volatile("" ::: "memory"); \
		_tile_loadd(tile, base, stride); \
	} while (0)

/* Columns that are multiplied at once. */
static inline uint32_t tile_unit(enum kb_type type)
{
	return kc_layouts[type].form == KC_FORM_16 && !kc_layouts[type].fine ? KC_BLOCK : KC_HALF;
}

/* Tiles 0 and 1 are C, 2 and 3 A, 4 and 5 B. */
static void tile_configure(enum kb_type type)
{
	const uint32_t unit = tile_unit(type);
	struct tile_config config = { .palette = 1 };

	for (uint32_t i = 0; i < 6; i++) {
		config.bytes[i] = (uint16_t)(i == 2 || i == 3 ? unit : KC_PIECE);
		config.rows[i] = (uint8_t)(i < 4 ? TILE_ROWS : unit / 4);
	}
	/* gcc 12 believes that it reads eight bytes. */
	__asm__ volatile("" : : "r"(&config) : "memory");
	_tile_loadconfig(&config);
}

/* --- one chunk --------------------------------------------------------------------- */

SPECIALIZED void tile_unpack(const enum kb_type type, const uint8_t *block, uint32_t cols, uint8_t *b)
{
	const struct kc_layout *l = &kc_layouts[type];

	for (uint32_t k = 0; k < cols; k += l->weights, block += kc_block_bytes(l)) {
		const uint8_t *quants = block + kc_quants_offset(l);

		prefetch_ahead(block, kc_quants_offset(l), TILE_AHEAD);
		NO_UNROLL
		for (uint32_t i = 0; i < l->weights; i += KC_BLOCK) {
			prefetch_ahead(quants, kc_quants_bytes(l), TILE_AHEAD);
			UNROLL
			for (int half = 0; half < 2; half++) {
				struct unpack u;

				unpack_begin(&u, type, quants, half);
				UNROLL
				for (int j = 0; j < 4; j++)
					vi_store(b + (4 * half + j) * (int)KC_PIECE,
						 unpack_next(&u, type, quants, half, j, 0));
			}
			quants += kc_quants_bytes(l);
			b += KC_BLOCK * KC_LANES;
		}
	}
}

/* Two halves of 32 columns. */
SPECIALIZED void tile_multiply_8(const int8_t *x, const uint8_t *b, int32_t *c)
{
	TILE_LOAD(2, x, Q_STRIDE);
	TILE_LOAD(4, b, KC_PIECE);
	_tile_zero(0);
	_tile_dpbsud(0, 2, 4);
	_tile_stored(0, c, KC_PIECE);
	TILE_LOAD(3, x + KC_HALF, Q_STRIDE);
	TILE_LOAD(5, b + KC_HALF * KC_LANES, KC_PIECE);
	_tile_zero(1);
	_tile_dpbsud(1, 3, 5);
	_tile_stored(1, c + TILE_SUMS, KC_PIECE);
}

/* Two planes of the columns under one scale. */
SPECIALIZED void tile_multiply_16(const int8_t *high, const uint8_t *low, const uint8_t *b, int32_t *c)
{
	TILE_LOAD(4, b, KC_PIECE);
	TILE_LOAD(2, high, Q_STRIDE);
	_tile_zero(0);
	_tile_dpbssd(0, 2, 4);
	_tile_stored(0, c, KC_PIECE);
	TILE_LOAD(3, low, Q_STRIDE);
	_tile_zero(1);
	_tile_dpbusd(1, 3, 4);
	_tile_stored(1, c + TILE_SUMS, KC_PIECE);
}

SPECIALIZED void tile_add_8(vf *acc, const struct step *t, const enum kb_type type, const int32_t *c)
{
	const bool fine = kc_layouts[type].fine;

	UNROLL
	for (int half = 0; half < 2; half++, c += TILE_SUMS) {
		const vf dw = load_scale(type, t->block, t->scales, t->unit + (fine ? (uint32_t)half : 0));

		UNROLL
		for (int r = 0; r < (int)TILE_ROWS; r++) {
			const vf scale = vf_mul(dw, vf_set1(t->d[r * (int)D_STRIDE + half]));

			acc[r] = vf_fma(scale, vf_of_int(vi_load(c + r * (int)KC_LANES)), acc[r]);
		}
	}
	add_offsets(acc, t, type, TILE_ROWS);
}

SPECIALIZED void tile_add_16(vf *acc, const struct step *t, const enum kb_type type, const int32_t *c)
{
	const vf dw = load_scale(type, t->block, t->scales, t->unit);

	UNROLL
	for (int r = 0; r < (int)TILE_ROWS; r++) {
		const vf scale = vf_mul(dw, vf_set1(t->d16[r * (int)S_STRIDE]));
		const vi high = vi_load(c + r * (int)KC_LANES), low = vi_load(c + TILE_SUMS + r * (int)KC_LANES);

		acc[r] = vf_fma(scale, vf_of_int(vi_add(vi_shift_left(high, 8), low)), acc[r]);
	}
}

/* One turn on: in the weights, and in the scales of the activations. */
SPECIALIZED void tile_next(struct step *t, const enum kb_type type)
{
	const struct kc_layout *l = &kc_layouts[type];

	if (l->form == KC_FORM_8) {
		t->d += 2;
		t->h += 2;
		t->s++;
		t->unit += 2;
	} else {
		t->unit += l->fine ? 1 : 2;
		t->d16 += t->unit % 2 ? 0 : 1;
	}
	if (t->unit < l->weights / KC_HALF)
		return;
	t->unit = 0;
	t->block += kc_block_bytes(l);
	t->scales += kc_block_bytes(l);
}

SPECIALIZED void tile_run(const struct tile_run *t, const enum kb_type type)
{
	const struct kc_layout *l = &kc_layouts[type];
	const uint32_t turn = l->form == KC_FORM_8 || !l->fine ? KC_BLOCK : KC_HALF, n = t->rows.cols / turn;
	struct step s = { .block = t->rows.w, .scales = t->rows.w + kc_scales_offset(l), .d = t->rows.d,
			  .h = t->rows.h, .s = t->rows.s, .d16 = t->rows.d16 };
	const uint8_t *x = t->a[0], *low = t->a[1], *b = t->b;
	vf acc[TILE_ROWS];

	load_sums(acc, &t->rows, t->rows.out, TILE_ROWS);
	for (uint32_t i = 0; i <= n; i++) {
		const size_t col = (size_t)i * turn;

		if (i < n && l->form == KC_FORM_8)
			tile_multiply_8((const int8_t *)x + col, b + col * KC_LANES, t->c[i % TILE_RING]);
		else if (i < n)
			tile_multiply_16((const int8_t *)x + col, low + col, b + col * KC_LANES, t->c[i % TILE_RING]);
		if (!i)
			continue;
		if (l->form == KC_FORM_8)
			tile_add_8(acc, &s, type, t->c[(i - 1) % TILE_RING]);
		else
			tile_add_16(acc, &s, type, t->c[(i - 1) % TILE_RING]);
		tile_next(&s, type);
	}
	store_sums(acc, &t->rows, t->rows.out, TILE_ROWS);
}

/* Code of each type. */
struct tile_code {
	void (*unpack)(const uint8_t *block, uint32_t cols, uint8_t *b);
	void (*run)(const struct tile_run *t);
};

#define EACH_BLOCK_TYPE(X) \
	X(KB_Q4_0) X(KB_Q4_1) X(KB_Q5_0) X(KB_Q5_1) X(KB_Q8_0) X(KB_Q2_K) X(KB_Q3_K) X(KB_Q4_K) X(KB_Q5_K) \
	X(KB_Q6_K) X(KB_IQ4_NL) X(KB_IQ4_XS)
#define CODE(type) \
	static void tile_unpack_##type(const uint8_t *block, uint32_t cols, uint8_t *b) \
	{ \
		tile_unpack(type, block, cols, b); \
	} \
	static void tile_run_##type(const struct tile_run *t) { tile_run(t, type); }
EACH_BLOCK_TYPE(CODE)
#undef CODE

static const struct tile_code tile_codes[] = {
#define CODE(type) [type] = { tile_unpack_##type, tile_run_##type },
	EACH_BLOCK_TYPE(CODE)
#undef CODE
};

/* --- all rows ------------------------------------------------------------------------ */

/* Of n activations of 16 bits, each four in the order 0, 2, 1, 3, the high and the low bytes in ascending order. */
static void tile_split(const int16_t *q, uint32_t n, int8_t *high, uint8_t *low)
{
	for (uint32_t k = 0; k < n; k += 16) {
		__m128i x[2], h[2], l[2];

		for (int i = 0; i < 2; i++) {
			x[i] = _mm_loadu_si128((const __m128i *)(const void *)(q + k + 8 * (size_t)i));
			x[i] = _mm_shufflehi_epi16(_mm_shufflelo_epi16(x[i], 0xd8), 0xd8);
			h[i] = _mm_srai_epi16(x[i], 8);
			l[i] = _mm_and_si128(x[i], _mm_set1_epi16(255));
		}
		_mm_storeu_si128((__m128i *)(void *)(high + k), _mm_packs_epi16(h[0], h[1]));
		_mm_storeu_si128((__m128i *)(void *)(low + k), _mm_packus_epi16(l[0], l[1]));
	}
}

/* Rows behind the last valid one are copies of it. */
static void tile_fill(union tile_panel *p, struct tile_run *t, const struct kc_rows *in, uint32_t row, uint32_t col,
		      unsigned form)
{
	if (form == KC_FORM_8) {
		panel_fill(&p->panel, &t->rows, in, row, TILE_ROWS, col, form);
		t->a[0] = t->rows.q;
		return;
	}
	for (uint32_t i = 0; i < TILE_ROWS; i++) {
		size_t at = (size_t)(row + KC_MIN(i, t->rows.n_rows - 1)) * in->cols + col;

		tile_split(in->q16 + at, t->rows.cols, p->form_16.high[i], p->form_16.low[i]);
		memcpy(p->form_16.d[i], in->d16 + at / KC_BLOCK, t->rows.cols / KC_BLOCK * sizeof(float));
	}
	t->a[0] = p->form_16.high[0];
	t->a[1] = p->form_16.low[0];
	t->rows.d16 = p->form_16.d[0];
}

/* Where the sums, the unpacked weights and the activations of TILE_PANELS row blocks are meanwhile. */
struct tile_work {
	int32_t c[TILE_RING][2 * TILE_SUMS];
	uint8_t b[CHUNK * KC_LANES];
	union tile_panel panels[TILE_PANELS];
} __attribute__((aligned(64)));

/* A chunk of columns, from col on, of at most TILE_PANELS row blocks: n_rows rows from row0 on. */
static void tile_chunk(struct tile_work *work, const struct run *t, enum kb_type type, const struct kc_rows *in,
		       uint32_t row0, uint32_t n_rows, uint32_t col)
{
	const unsigned form = kc_type_forms(type);
	const uint32_t n = (n_rows + TILE_ROWS - 1) / TILE_ROWS;
	struct tile_run block[TILE_PANELS];

	for (uint32_t i = 0; i < n; i++) {
		block[i] = (struct tile_run){ .rows = *t, .b = work->b, .c = work->c };
		block[i].rows.n_rows = KC_MIN(TILE_ROWS, n_rows - i * TILE_ROWS);
		block[i].rows.out += i * TILE_ROWS * t->out_stride;
		tile_fill(&work->panels[i], &block[i], in, row0 + i * TILE_ROWS, col, form);
	}
	for (uint32_t g = 0; g < t->n_groups; g++) {
		tile_codes[type].unpack(block[0].rows.w, t->cols, work->b);
		for (uint32_t i = 0; i < n; i++) {
			tile_codes[type].run(&block[i]);
			block[i].rows.w += t->group_bytes;
			block[i].rows.out += KC_LANES;
		}
	}
}

static void tile_product(const struct kb_tensor *w, uint32_t group0, uint32_t n_groups, const struct kc_rows *in,
			 uint32_t row0, uint32_t n_rows, float *out, size_t out_stride)
{
	const struct kc_layout *l = &kc_layouts[w->type];
	struct run t = { .w = w->data + w->group_bytes * group0, .group_bytes = w->group_bytes, .n_groups = n_groups,
			 .out = out, .out_stride = out_stride };
	struct tile_work work;

	tile_configure(w->type);
	for (uint32_t col = 0; col < in->cols; col += t.cols) {
		t.cols = KC_MIN(CHUNK, in->cols - col);
		t.first = !col;
		for (uint32_t row = 0; row < n_rows; row += TILE_PANELS * TILE_ROWS) {
			t.out = out + row * out_stride;
			tile_chunk(&work, &t, w->type, in, row0 + row,
				   KC_MIN(TILE_PANELS * TILE_ROWS, n_rows - row), col);
		}
		t.w += t.cols / l->weights * kc_block_bytes(l);
	}
	_tile_release();
}

static void amx_product(const struct kb_tensor *w, uint32_t group0, uint32_t n_groups, const struct kc_rows *in,
			uint32_t row0, uint32_t n_rows, float *out, size_t out_stride)
{
	uint32_t left = n_rows % TILE_ROWS, tiled = left >= TILE_LEAST ? n_rows : n_rows - left;

	if (!kc_type_quantized(w->type))
		tiled = 0;
	if (tiled)
		tile_product(w, group0, n_groups, in, row0, tiled, out, out_stride);
	if (tiled < n_rows)
		simd_product(w, group0, n_groups, in, row0 + tiled, n_rows - tiled, out + tiled * out_stride,
			     out_stride);
}

#endif
