/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout.h - how each type of weights lies in memory, and what a stored number
 * means: the one place that tells the types apart, for every CPU level.
 *
 * A matrix is cut into groups of 16 rows; lanes are rows.  A group is, by type,
 *     elements (F32, F16, BF16):  [cols] { element [16] }
 *     blocks:  [cols / weights] { f16 d[16]; f16 m[16] if there is a minimum;
 *                                 uint8 scales[n_scales][16]; quants [weights / 32] }
 * quants of 32 columns x 16 rows are planes of 64-byte pieces { uint8 [16 rows][4] }.
 * Column k has half = k / 16, j = k % 16 / 4, c = k % 4; it is found in the plane of
 *     8 bits: byte c of piece 4 * half + j
 *     4 bits: byte c of piece j, the low or (half 1) the high nibble
 *     2 bits: byte c of piece half, bits 2j and 2j + 1
 *     1 bit:  byte c of the only piece, bit 4 * half + j
 * The low plane comes first; 5 and 6 bits are 4 low and 1 or 2 high ones, 3 bits
 * are 2 and 1.  scales are integers: one per 16 or per 32 columns, in ascending
 * order; for Q4_K and Q5_K eight scales, then eight minimums; for Q2_K both in
 * one byte, the minimum in the high nibble.
 *
 * All this takes the bytes of the file, and a few more where the file has 6-bit
 * scales: Q4_K 148 bytes for 144, Q5_K 180 for 176, Q3_K 114 for 110, IQ4_XS 138
 * for 136.
 */
#ifndef KC_LAYOUT_H
#define KC_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "half.h"
#include "kernels/backend.h"

#define KC_LANES 16u		/* weight rows of one group; partial sums of a reduction */
#define KC_BLOCK 32u		/* columns of one step of a product */
#define KC_HALF 16u		/* activations of 8 bits under one scale */
#define KC_PIECE 64u		/* bytes */
#define KC_MAX_WEIGHTS 256u	/* of one block */
#define KC_MAX_SCALES 16u	/* of one block */

/* Forms of the activations (struct kc_rows), as bits; 0: floats. */
enum { KC_FORM_8 = 1, KC_FORM_16 = 2 };

struct kc_layout {
	uint16_t source;	/* bytes of one block, or element, of one row in GGUF; 0: no such type */
	uint16_t weights;	/* of one block; 1: elements */
	uint8_t form;		/* what it is multiplied with */
	bool min;
	uint8_t n_scales;	/* bytes of scales, per row and block */
	bool fine;		/* a scale per 16 columns, not per 32 */
	uint8_t low, high;	/* bits in the two planes */
};

static const struct kc_layout kc_layouts[] = {
	[KB_F32] = { .source = 4, .weights = 1 },
	[KB_F16] = { .source = 2, .weights = 1 },
	[KB_BF16] = { .source = 2, .weights = 1 },
	[KB_Q4_0] = { 18, 32, KC_FORM_8, .low = 4 },
	[KB_Q4_1] = { 20, 32, KC_FORM_8, .min = true, .low = 4 },
	[KB_Q5_0] = { 22, 32, KC_FORM_8, .low = 4, .high = 1 },
	[KB_Q5_1] = { 24, 32, KC_FORM_8, .min = true, .low = 4, .high = 1 },
	[KB_Q8_0] = { 34, 32, KC_FORM_16, .low = 8 },
	[KB_Q2_K] = { 84, 256, KC_FORM_8, .min = true, .n_scales = 16, .fine = true, .low = 2 },
	[KB_Q3_K] = { 110, 256, KC_FORM_8, .n_scales = 16, .fine = true, .low = 2, .high = 1 },
	[KB_Q4_K] = { 144, 256, KC_FORM_8, .min = true, .n_scales = 16, .low = 4 },
	[KB_Q5_K] = { 176, 256, KC_FORM_8, .min = true, .n_scales = 16, .low = 4, .high = 1 },
	[KB_Q6_K] = { 210, 256, KC_FORM_16, .n_scales = 16, .fine = true, .low = 4, .high = 2 },
	[KB_IQ4_NL] = { 18, 32, KC_FORM_16, .low = 4 },
	[KB_IQ4_XS] = { 136, 256, KC_FORM_16, .n_scales = 8, .low = 4 },
};
#define KC_N_LAYOUTS (sizeof(kc_layouts) / sizeof(kc_layouts[0]))

/* IQ4_NL and IQ4_XS: what the 16 quants stand for (ggml-common.h, kvalues_iq4nl). */
static const int8_t kc_iq4[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };

static inline bool kc_type_known(enum kb_type type)
{
	return (size_t)type < KC_N_LAYOUTS && kc_layouts[type].source;
}

static inline bool kc_type_quantized(enum kb_type type)
{
	return kc_layouts[type].weights > 1;
}

/* The quantised forms of activations that a matrix of this type takes. */
static inline unsigned kc_type_forms(enum kb_type type)
{
	return kc_layouts[type].form;
}

/* Bytes before the quants of a block of 16 rows; before its scales; of the quants of 32 columns; of all. */
static inline size_t kc_scales_offset(const struct kc_layout *l)
{
	return (l->min ? 2 : 1) * sizeof(uint16_t) * KC_LANES;
}

static inline size_t kc_quants_offset(const struct kc_layout *l)
{
	return kc_scales_offset(l) + (size_t)l->n_scales * KC_LANES;
}

static inline size_t kc_quants_bytes(const struct kc_layout *l)
{
	return (size_t)(l->low + l->high) * KC_PIECE;
}

static inline size_t kc_block_bytes(const struct kc_layout *l)
{
	if (l->weights == 1)
		return (size_t)l->source * KC_LANES;
	return kc_quants_offset(l) + l->weights / KC_BLOCK * kc_quants_bytes(l);
}

static inline float kc_load_f16(const uint8_t *p)
{
	uint16_t h;

	memcpy(&h, p, sizeof(h));
	return kc_f16_to_f32(h);
}

/*
 * What a block of one row stores for its columns 16 * unit .. 16 * unit + 15:
 * w[k] = scale * quant[k] + offset.  scale * quant and offset are exact in
 * binary32, since d and m have 11 bits, scales at most 7 and quants at most 7.
 */
static inline float kc_scale(enum kb_type type, const uint8_t *block, uint32_t lane, uint32_t unit)
{
	const struct kc_layout *l = &kc_layouts[type];
	const uint8_t *scales = block + kc_scales_offset(l) + lane;
	float d = kc_load_f16(block + 2 * (size_t)lane);

	if (!l->n_scales)
		return d;
	scales += (size_t)(l->fine ? unit : unit / 2) * KC_LANES;
	if (type == KB_Q2_K)
		return d * (float)(*scales & 15);
	return d * (l->min ? (float)*scales : (float)(int8_t)*scales);
}

static inline float kc_offset(enum kb_type type, const uint8_t *block, uint32_t lane, uint32_t unit)
{
	const struct kc_layout *l = &kc_layouts[type];
	const uint8_t *scales = block + kc_scales_offset(l) + lane;
	float m;

	switch (type) {
	case KB_Q4_0: return -8.0f * kc_scale(type, block, lane, unit);
	case KB_Q5_0: return -16.0f * kc_scale(type, block, lane, unit);
	case KB_Q3_K: return -4.0f * kc_scale(type, block, lane, unit);
	default: break;
	}
	if (!l->min)
		return 0;
	m = kc_load_f16(block + 2 * (size_t)(KC_LANES + lane));
	if (!l->n_scales)
		return m;
	if (type == KB_Q2_K)
		return -m * (float)(scales[(size_t)unit * KC_LANES] >> 4);
	return -m * (float)scales[(size_t)(8 + unit / 2) * KC_LANES];
}

/* The number in a plane of `bits` bits for column k of 32. */
static inline unsigned kc_plane(const uint8_t *plane, uint32_t bits, uint32_t lane, uint32_t k)
{
	uint32_t half = k / KC_HALF, j = k % KC_HALF / 4;
	const uint8_t *at = plane + 4 * (size_t)lane + k % 4;

	switch (bits) {
	case 8: return at[(size_t)(4 * half + j) * KC_PIECE];
	case 4: return at[(size_t)j * KC_PIECE] >> 4 * half & 15;
	case 2: return at[(size_t)half * KC_PIECE] >> 2 * j & 3;
	default: return at[0] >> (4 * half + j) & 1;
	}
}

/* The quant of column k of 32, as it is multiplied: unsigned by 8-bit activations, signed by 16-bit ones. */
static inline int32_t kc_quant(enum kb_type type, const uint8_t *quants, uint32_t lane, uint32_t k)
{
	const struct kc_layout *l = &kc_layouts[type];
	unsigned q = kc_plane(quants, l->low, lane, k);

	if (l->high)
		q |= kc_plane(quants + l->low * KC_PIECE, l->high, lane, k) << l->low;
	switch (type) {
	case KB_Q8_0: return (int8_t)q;
	case KB_Q6_K: return (int32_t)q - 32;
	case KB_IQ4_NL:
	case KB_IQ4_XS: return kc_iq4[q];
	default: return (int32_t)q;
	}
}

/* blocks.c: one row's block, as a group has it; not of types with blocks of 32 and one plane, which lie like that. */
struct kc_numbers {
	uint8_t dm[4];				/* d, m: F16, little-endian */
	uint8_t scales[KC_MAX_SCALES];
	uint8_t planes[KC_MAX_WEIGHTS];		/* its four bytes of each piece, one piece after the other */
};

void kc_block_read(enum kb_type type, const uint8_t *src, struct kc_numbers *out);

#endif
