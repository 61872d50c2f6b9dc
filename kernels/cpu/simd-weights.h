/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd-weights.h - what all vector products share: the weights of layout.h in
 * registers.  Arguments named type, half and j are constants in the end.
 */
#ifndef KC_SIMD_WEIGHTS_H
#define KC_SIMD_WEIGHTS_H

#include "cpu.h"

/* X(type), for the code of each. */
#define EACH_TYPE(X) \
	X(KB_F32) X(KB_F16) X(KB_BF16) X(KB_Q4_0) X(KB_Q4_1) X(KB_Q5_0) X(KB_Q5_1) X(KB_Q8_0) X(KB_Q2_K) \
	X(KB_Q3_K) X(KB_Q4_K) X(KB_Q5_K) X(KB_Q6_K) X(KB_IQ4_NL) X(KB_IQ4_XS)

/* Asks for the bytes `ahead` of p. */
INLINE void prefetch_ahead(const uint8_t *p, size_t bytes, size_t ahead)
{
	for (size_t i = 0; i < bytes; i += 64)
		_mm_prefetch((const char *)p + ahead + i, _MM_HINT_T0);
}

/* One half (16 columns) of a step being unpacked: planes whose pieces give several columns. */
struct unpack {
	vi low[VN], high[VN];
};

SPECIALIZED void unpack_begin(struct unpack *u, const enum kb_type type, const uint8_t *quants, const int half)
{
	const struct kc_layout *l = &kc_layouts[type];
	const uint8_t *high = quants + l->low * KC_PIECE;

	UNROLL
	for (int v = 0; v < VN; v++, quants += VW * 4, high += VW * 4) {
		if (l->low == 2)
			u->low[v] = vi_load(quants + half * KC_PIECE);
		if (l->high == 2)
			u->high[v] = vi_load(high + half * KC_PIECE);
		if (l->high != 1)
			continue;
		/* The bit of piece 0 goes to where it belongs in the weight; the next ones follow. */
		u->high[v] = vi_load(high);
		if (l->low == 4 && !half)
			u->high[v] = vi_shift_left(u->high[v], 4);
		if (l->low == 2)
			u->high[v] = half ? vi_shift_right(u->high[v], 2) : vi_shift_left(u->high[v], 2);
	}
}

/* Weights of columns 4j .. 4j + 3 of the half, as bytes; called for ascending j. */
SPECIALIZED vi unpack_next(struct unpack *u, const enum kb_type type, const uint8_t *quants, const int half,
			   const int j, const int v)
{
	const struct kc_layout *l = &kc_layouts[type];
	vi w;

	quants += v * VW * 4;
	if (l->low == 8)
		return vi_load(quants + (4 * half + j) * KC_PIECE);
	if (l->low == 4) {
		w = vi_load(quants + j * KC_PIECE);
		w = half ? vi_high_nibbles(w) : vi_low_nibbles(w);
	} else {
		w = vi_and(u->low[v], vi_set1_byte(3));
		u->low[v] = vi_shift_right(u->low[v], 2);
	}
	if (l->high == 1) {
		w = vi_or(w, vi_and(u->high[v], vi_set1_byte(l->low == 4 ? 16 : 4)));
		u->high[v] = vi_shift_right(u->high[v], 1);
	}
	if (l->high == 2) {
		w = vi_or(w, vi_shift_left(vi_and(u->high[v], vi_set1_byte(3)), 4));
		u->high[v] = vi_shift_right(u->high[v], 2);
		w = vi_sub_bytes(w, vi_set1_byte(32));
	}
	return type == KB_IQ4_NL || type == KB_IQ4_XS ? vi_lookup(kc_iq4, w) : w;
}

/*
 * kc_scale() and kc_offset() of the rows of one vector; block and scales point
 * at its numbers, unit counts 16 columns from the block's first.
 */
SPECIALIZED vf load_scale(const enum kb_type type, const uint8_t *block, const uint8_t *scales, uint32_t unit)
{
	const struct kc_layout *l = &kc_layouts[type];
	vf d = vf_load_f16(block);
	vi s;

	if (!l->n_scales)
		return d;
	scales += (l->fine ? unit : unit / 2) * KC_LANES;
	s = l->min ? vi_load_u8(scales) : vi_load_i8(scales);
	return vf_mul(d, vf_of_int(type == KB_Q2_K ? vi_and(s, vi_set1(15)) : s));
}

SPECIALIZED vf load_offset(const enum kb_type type, const uint8_t *block, const uint8_t *scales, uint32_t unit)
{
	const struct kc_layout *l = &kc_layouts[type];
	vf m;
	vi s;

	if (!l->min) {
		const float middle = type == KB_Q4_0 ? -8.0f : type == KB_Q5_0 ? -16.0f : -4.0f;

		return vf_mul(vf_set1(middle), load_scale(type, block, scales, unit));
	}
	m = vf_load_f16(block + 2 * KC_LANES);
	if (!l->n_scales)
		return m;
	if (type == KB_Q2_K)
		s = vi_shift_right(vi_load_u8(scales + unit * KC_LANES), 4);
	else
		s = vi_load_u8(scales + (8 + unit / 2) * KC_LANES);
	return vf_mul(vf_neg(m), vf_of_int(s));
}

#endif
