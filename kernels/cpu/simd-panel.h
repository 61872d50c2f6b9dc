/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd-panel.h - products of many batch rows on AVX2, four of them at a time.
 *
 * What rows share is prepared once, some hundred columns at a time, in a panel
 * in the first-level cache: scales and offsets as floats and, where taking them
 * apart costs much or rows are many, the quants.  Then all rows pass over it.
 * Each output is the same chain over K as with one row; between panels it waits
 * in memory.
 *
 * Limit.  32 columns of 8 outputs and one batch row, 256 products, are 8
 * maddubs, 6 adds, 2 maddwd, 2 conversions, 2 multiplications and 3 fma: 23
 * instructions for four pipes, of which two multiply integers: 10 of them take 5
 * cycles.  Such a mix without dependences runs at four per cycle, with those of
 * a row at 3.3, with loads of activations and scales at 3 (Zen 3): 7.5 cycles,
 * 34 products per cycle, 100 GMAC/s at 3 GHz; without scales (16 instructions)
 * 48 per cycle.  Measured out of the first-level cache: 85 to 90 and 140 GMAC/s;
 * 10 to 15 % less where quants are taken apart.  With 16-bit activations the
 * instructions are 16 maddwd, 15 adds and 3: 66 GMAC/s.
 * Broadcasts of four activations are loads, shared by two vectors of outputs.
 */
#ifndef KC_SIMD_PANEL_H
#define KC_SIMD_PANEL_H

#include "cpu.h"

/* Steps, of 32 columns: with quants as words, with quants as bytes, and without quants. */
#define PANEL_WORDS 16u
#define PANEL_BYTES 32u
#define PANEL_SCALES 48u
#define PANEL_ROWS 4

/* Of step b of a group: */
struct panel {
	_Alignas(64) float scale[PANEL_SCALES][2][KC_LANES];	/* of the halves; [1]: if fine */
	_Alignas(64) float offset[PANEL_SCALES][2][KC_LANES];
	const uint8_t *packed[PANEL_SCALES];			/* the quants in memory */
	/*
	 * Quants taken apart, [b][half][j] as bytes, 64 of them.  For 16-bit activations they are words: first
	 * all `even`, then all `odd` of dot_bytes_weights().
	 */
	_Alignas(64) uint8_t quants[PANEL_WORDS * KC_BLOCK * KC_LANES * 2];
};

/* Bytes of the quants of one half in a panel. */
#define PANEL_HALF_8 ((size_t)KC_HALF * KC_LANES)
#define PANEL_HALF_16 (2 * PANEL_HALF_8)

/* What a pass takes the quants from: a panel, or memory as a type of weights has them. */
#define FROM_PANEL KB_F32

/* The quants of one half of a step into a panel. */
SPECIALIZED void panel_unpack(uint8_t *to, const enum kb_type type, const uint8_t *quants, const int half)
{
	struct unpack u;

	unpack_begin(&u, type, quants, half);
	UNROLL
	for (int i = 0; i < 4 * VN; i++) {
		vi w = unpack_next(&u, type, quants, half, i / VN, i % VN);
		struct dot_weights pair;

		if (kc_layouts[type].form == KC_FORM_8) {
			vi_store(to + i * VW * 4, w);
			continue;
		}
		pair = dot_bytes_weights(w);
		vi_store(to + (2 * (i / VN) * VN + i % VN) * VW * 4, pair.even);
		vi_store(to + ((2 * (i / VN) + 1) * VN + i % VN) * VW * 4, pair.odd);
	}
}

SPECIALIZED void panel_step(struct panel *p, const struct step *t, const enum kb_type type, uint32_t b,
			    const bool unpack)
{
	const struct kc_layout *l = &kc_layouts[type];
	const size_t half_bytes = l->form == KC_FORM_8 ? PANEL_HALF_8 : PANEL_HALF_16;

	p->packed[b] = t->quants;
	UNROLL
	for (int half = 0; half < 2; half++) {
		vf v[VN];

		if (unpack)
			panel_unpack(p->quants + (2 * b + (uint32_t)half) * half_bytes, type, t->quants, half);
		if (half && !l->fine)
			continue;
		load_scales(t, type, t->unit + (uint32_t)half, v);
		UNROLL
		for (int i = 0; i < VN; i++)
			vf_store(p->scale[b][half] + i * VW, v[i]);
		if (l->form != KC_FORM_8)
			continue;
		load_offsets(t, type, t->unit + (uint32_t)half, v);
		UNROLL
		for (int i = 0; i < VN; i++)
			vf_store(p->offset[b][half] + i * VW, v[i]);
	}
}

SPECIALIZED void panel_fill(struct panel *p, const uint8_t *block, const enum kb_type type, uint32_t n_steps,
			    const bool unpack)
{
	const struct kc_layout *l = &kc_layouts[type];

	for (uint32_t b = 0; b < n_steps; block += kc_block_bytes(l)) {
		struct step s = { .block = block, .scales = block + kc_scales_offset(l),
				  .quants = block + kc_quants_offset(l) };

		NO_UNROLL
		for (s.unit = 0; s.unit < l->weights / KC_HALF; s.unit += 2, s.quants += kc_quants_bytes(l))
			panel_step(p, &s, type, b++, unpack);
	}
}

/* What the passes over a panel bring from memory meanwhile: the weights after it, into the second-level cache. */
struct ahead {
	const uint8_t *at, *end;
	uint32_t lines;		/* of 64 bytes, at most, for each step */
};

INLINE void ahead_fetch(struct ahead *a)
{
	for (uint32_t i = 0; i < a->lines && a->at < a->end; i++, a->at += 64)
		_mm_prefetch((const char *)a->at, _MM_HINT_T1);
}

/* One pass: some batch rows times a panel. */
struct pass {
	struct panel *p;
	const struct kc_rows *in;
	size_t row, b0;		/* the first row, and the panel's first step in it */
	uint32_t n_steps;
};

/* 32 columns further, in a register for each row: gcc 12 would keep a hundred sums of addresses on the stack. */
#define EACH_ROW_NEXT(x, n_rows) \
	do { \
		UNROLL \
		for (int r = 0; r < (n_rows); r++) { \
			(x)[r] += KC_BLOCK; \
			OPAQUE((x)[r]); \
		} \
	} while (0)

/* dot [n_rows][VN]: 16-bit sums of one half.  keep: where the quants go, taken apart; NULL: nowhere. */
SPECIALIZED void half_8(vi *dot, const uint8_t *w, const enum kb_type from, uint8_t *keep,
			const int8_t *const *x, const int half, const int n_rows)
{
	UNROLL
	for (int j = 0; j < 4; j++) {
		vi q[VN];

		UNROLL
		for (int v = 0; v < VN; v++)
			q[v] = from == FROM_PANEL ? vi_load(w + (j * VN + v) * VW * 4) :
						    unpack_next(NULL, from, w, half, j, v);
		UNROLL
		for (int v = 0; v < VN && keep; v++)
			vi_store(keep + (j * VN + v) * VW * 4, q[v]);
		UNROLL
		for (int r = 0; r < n_rows; r++) {
			vi four = vi_bytes4(x[r] + half * 16 + 4 * j);

			UNROLL
			for (int v = 0; v < VN; v++)
				dot[r * VN + v] = j ? dot_small(dot[r * VN + v], q[v], four) :
						      dot_small_first(q[v], four);
		}
	}
}

/* acc [n_rows][VN] += panel times rows */
SPECIALIZED void pass_8(float *acc, const struct pass *t, const enum kb_type from, const bool keep,
			const bool fine, const int n_rows, struct ahead *ahead)
{
	const size_t halves = t->in->cols / KC_HALF, blocks = t->in->cols / KC_BLOCK;
	const float *d = t->in->d + t->row * halves + 2 * t->b0, *h = t->in->h + t->row * halves + 2 * t->b0;
	const float *s = t->in->s + t->row * blocks + t->b0;
	const int8_t *x[PANEL_ROWS];

	UNROLL
	for (int r = 0; r < n_rows; r++)
		x[r] = t->in->q + (t->row + (size_t)r) * t->in->cols + t->b0 * KC_BLOCK;
	for (uint32_t b = 0; b < t->n_steps; b++, d += 2, h += 2, s++) {
		const uint8_t *w = from == FROM_PANEL ? t->p->quants + 2 * b * PANEL_HALF_8 : t->p->packed[b];
		const float *offset = t->p->offset[b][0];

		ahead_fetch(ahead);
		UNROLL
		for (int half = 0; half < 2; half++) {
			const float *dw = t->p->scale[b][fine ? half : 0];
			vi dot[PANEL_ROWS * VN];

			half_8(dot, from == FROM_PANEL ? w + half * PANEL_HALF_8 : w, from,
			       keep ? t->p->quants + (2 * b + (uint32_t)half) * PANEL_HALF_8 : NULL, x, half, n_rows);
			UNROLL
			for (int i = 0; i < n_rows * VN; i++) {
				const size_t r = i / VN, v = i % VN * VW;
				vf y = vf_load(acc + (size_t)i * VW);

				y = vf_fma(vf_mul(vf_load(dw + v), vf_set1(d[r * halves + (size_t)half])),
					   vf_of_int(dot_small_end(dot[i])), y);
				if (half && !fine)
					y = vf_fma(vf_load(offset + v), vf_set1(s[r * blocks]), y);
				if (half && fine) {
					y = vf_fma(vf_load(offset + v), vf_set1(h[r * halves]), y);
					y = vf_fma(vf_load(offset + KC_LANES + v), vf_set1(h[r * halves + 1]), y);
				}
				vf_store(acc + (size_t)i * VW, y);
			}
			/* The accumulators stay in memory: there are registers for the dots alone. */
			__asm__("" ::: "memory");
		}
		EACH_ROW_NEXT(x, n_rows);
	}
}

/* dot [n_rows][VN] += one half, or begins with it; words: the i-th two columns of each row. */
SPECIALIZED void half_16(vi *dot, const uint8_t *w, const enum kb_type from, uint8_t *keep,
			 const int16_t *const *x, const int half, const bool first, const int n_rows)
{
	struct dot_weights packed[VN];

	UNROLL
	for (int i = 0; i < 8; i++) {
		vi q[VN];

		UNROLL
		for (int v = 0; v < VN; v++) {
			if (from == FROM_PANEL) {
				q[v] = vi_load(w + (i * VN + v) * VW * 4);
				continue;
			}
			if (i % 2 == 0)
				packed[v] = dot_bytes_weights(unpack_next(NULL, from, w, half, i / 2, v));
			q[v] = i % 2 ? packed[v].odd : packed[v].even;
			if (keep)
				vi_store(keep + (i * VN + v) * VW * 4, q[v]);
		}
		UNROLL
		for (int r = 0; r < n_rows; r++) {
			vi two = vi_pair(x[r] + half * 16 + 2 * i);

			UNROLL
			for (int v = 0; v < VN; v++)
				dot[r * VN + v] = first && !i ? dot_pair_first(q[v], two) :
								dot_pair(dot[r * VN + v], q[v], two);
		}
	}
}

SPECIALIZED void pass_16(float *acc, const struct pass *t, const enum kb_type from, const bool keep,
			 const bool fine, const int n_rows, struct ahead *ahead)
{
	const size_t blocks = t->in->cols / KC_BLOCK;
	const float *d = t->in->d16 + t->row * blocks + t->b0;
	const int16_t *x[PANEL_ROWS];

	UNROLL
	for (int r = 0; r < n_rows; r++)
		x[r] = t->in->q16 + (t->row + (size_t)r) * t->in->cols + t->b0 * KC_BLOCK;
	for (uint32_t b = 0; b < t->n_steps; b++, d++) {
		const uint8_t *w = from == FROM_PANEL ? t->p->quants + 2 * b * PANEL_HALF_16 : t->p->packed[b];
		vi dot[PANEL_ROWS * VN];

		ahead_fetch(ahead);
		UNROLL
		for (int half = 0; half < 2; half++) {
			const float *dw = t->p->scale[b][fine ? half : 0];

			half_16(dot, from == FROM_PANEL ? w + half * PANEL_HALF_16 : w, from,
				keep ? t->p->quants + (2 * b + (uint32_t)half) * PANEL_HALF_16 : NULL, x, half,
				fine || !half, n_rows);
			if (!fine && !half)
				continue;
			UNROLL
			for (int i = 0; i < n_rows * VN; i++) {
				vf scale = vf_mul(vf_load(dw + i % VN * VW), vf_set1(d[i / VN * blocks]));

				vf_store(acc + (size_t)i * VW,
					 vf_fma(scale, vf_of_int(dot[i]), vf_load(acc + (size_t)i * VW)));
			}
			__asm__("" ::: "memory");
		}
		EACH_ROW_NEXT(x, n_rows);
	}
}

/* n_rows rows of outputs over one panel. */
SPECIALIZED void pass_rows(const struct pass *t, float *out, size_t out_stride, const enum kb_type from,
			   const bool keep, const unsigned form, const bool fine, const int n_rows,
			   struct ahead *ahead)
{
	_Alignas(64) float acc[PANEL_ROWS * KC_LANES];

	UNROLL
	for (int i = 0; i < n_rows * VN; i++)
		vf_store(acc + i * VW, t->b0 ? vf_load(out + i / VN * out_stride + i % VN * VW) : vf_zero());
	if (form == KC_FORM_8)
		pass_8(acc, t, from, keep, fine, n_rows, ahead);
	else
		pass_16(acc, t, from, keep, fine, n_rows, ahead);
	UNROLL
	for (int i = 0; i < n_rows * VN; i++)
		vf_store(out + i / VN * out_stride + i % VN * VW, vf_load(acc + i * VW));
}

/* Rows of the next pass: passes of nearly the same size, since each reads all quants. */
static inline uint32_t pass_size(uint32_t n_rows)
{
	uint32_t n_passes = (n_rows + PANEL_ROWS - 1) / PANEL_ROWS;

	return (n_rows + n_passes - 1) / n_passes;
}

/* A function for each way to pass; most types share one. */
#define PASS(name, from, form, fine) \
	static __attribute__((noinline)) void name(struct pass *t, uint32_t n_rows, float *out, size_t stride, \
						   struct ahead *ahead) \
	{ \
		uint32_t n; \
	\
		for (; n_rows; n_rows -= n, t->row += n, out += n * stride) { \
			n = pass_size(n_rows); \
			switch (n) { \
			case 1: pass_rows(t, out, stride, from, false, form, fine, 1, ahead); break; \
			case 2: pass_rows(t, out, stride, from, false, form, fine, 2, ahead); break; \
			case 3: pass_rows(t, out, stride, from, false, form, fine, 3, ahead); break; \
			default: pass_rows(t, out, stride, from, false, form, fine, 4, ahead); \
			} \
		} \
	}
PASS(pass_nibbles, KB_Q4_0, KC_FORM_8, false)
PASS(pass_panel_8, FROM_PANEL, KC_FORM_8, false)
PASS(pass_panel_8_fine, FROM_PANEL, KC_FORM_8, true)
PASS(pass_bytes, KB_Q8_0, KC_FORM_16, false)
PASS(pass_panel_16, FROM_PANEL, KC_FORM_16, false)
PASS(pass_panel_16_fine, FROM_PANEL, KC_FORM_16, true)

/* The first four rows take the quants apart and leave them in the panel to the rest. */
#define PASS_ONCE(name, from, form, rest) \
	static __attribute__((noinline)) void name(struct pass *t, uint32_t n_rows, float *out, size_t stride, \
						   struct ahead *ahead) \
	{ \
		pass_rows(t, out, stride, from, true, form, false, 4, ahead); \
		t->row += 4; \
		rest(t, n_rows - 4, out + 4 * stride, stride, ahead); \
	}
PASS_ONCE(pass_nibbles_once, KB_Q4_0, KC_FORM_8, pass_panel_8)
PASS_ONCE(pass_bytes_once, KB_Q8_0, KC_FORM_16, pass_panel_16)

/* Who takes the quants apart: panel_fill(), the first pass, each pass. */
enum panel_way { PREPARED, ONCE, EACH };

/*
 * Rows up to which each pass takes the quants apart.  That costs a pass of four
 * rows a ninth of its instructions with nibbles, a seventh with bytes; leaving
 * them in the panel costs stores, once, and loads and shorter panels.
 */
#define EACH_NIBBLES 20u
#define EACH_BYTES 8u

SPECIALIZED enum panel_way panel_way(const enum kb_type type, uint32_t n_rows)
{
	const struct kc_layout *l = &kc_layouts[type];

	if (l->form == KC_FORM_8 && l->low == 4 && !l->high)
		return n_rows <= EACH_NIBBLES ? EACH : ONCE;
	if (l->form == KC_FORM_16 && l->low == 8)
		return n_rows <= EACH_BYTES ? EACH : ONCE;
	return PREPARED;
}

SPECIALIZED void pass_all(struct pass *t, const enum kb_type type, enum panel_way way, uint32_t n_rows,
			  float *out, size_t stride, struct ahead *ahead)
{
	const bool fine = kc_layouts[type].fine;

	if (kc_layouts[type].form == KC_FORM_8)
		(way == EACH ? pass_nibbles : way == ONCE ? pass_nibbles_once : fine ? pass_panel_8_fine :
		 pass_panel_8)(t, n_rows, out, stride, ahead);
	else
		(way == EACH ? pass_bytes : way == ONCE ? pass_bytes_once : fine ? pass_panel_16_fine :
		 pass_panel_16)(t, n_rows, out, stride, ahead);
}

/* All batch rows of one group; panels of nearly the same size. */
SPECIALIZED void panel_product(const struct product_task *t, const enum kb_type type, uint32_t n_rows)
{
	const struct kc_layout *l = &kc_layouts[type];
	const uint32_t n_blocks = t->in->cols / l->weights, steps = l->weights / KC_BLOCK;
	const enum panel_way way = panel_way(type, n_rows);
	const uint32_t with_quants = l->form == KC_FORM_8 ? PANEL_BYTES : PANEL_WORDS;
	const uint32_t room = way == EACH ? PANEL_SCALES : with_quants;
	const uint32_t n_panels = (n_blocks * steps + room - 1) / room;
	const uint32_t most = (n_blocks + n_panels - 1) / n_panels;
	const uint32_t n_passes = (n_rows + PANEL_ROWS - 1) / PANEL_ROWS;
	const uint8_t *w = t->w;
	struct panel p;
	uint32_t n;

	for (uint32_t b = 0; b < n_blocks; b += n) {
		struct pass pass;
		struct ahead ahead;
		size_t next;

		n = KC_MIN(n_blocks - b, most);
		if (way == PREPARED)
			panel_fill(&p, w, type, n * steps, true);
		else
			panel_fill(&p, w, type, n * steps, false);
		w += n * kc_block_bytes(l);
		next = (b + n < n_blocks ? KC_MIN(n_blocks - b - n, most) : most) * kc_block_bytes(l);
		ahead = (struct ahead){ w, w + next, (uint32_t)(next / 64 / (n * steps * n_passes)) + 1 };
		pass = (struct pass){ &p, t->in, t->row, (size_t)b * steps, n * steps };
		pass_all(&pass, type, way, n_rows, t->out, t->out_stride, &ahead);
	}
}

#endif
