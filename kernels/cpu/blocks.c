/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GGUF's blocks of quantised weights, put into the order of our planes.  The
 * layouts are those of ggml-common.h (struct block_*); bits are described here as
 * they are read.
 */
#include "layout.h"

/* Sixteen numbers of a byte each; shifts are masked, or their numbers so small, that none carries to the next. */
typedef uint64_t bytes16 __attribute__((vector_size(16)));
typedef uint32_t words4 __attribute__((vector_size(16)));

#define EACH(x) ((bytes16){ (x) * UINT64_C(0x0101010101010101), (x) * UINT64_C(0x0101010101010101) })

static bytes16 load_16(const uint8_t *p)
{
	bytes16 v;

	memcpy(&v, p, sizeof(v));
	return v;
}

static void store_word(uint8_t *p, uint64_t v)
{
	uint32_t word = (uint32_t)v;

	memcpy(p, &word, sizeof(word));
}

/* Quants 0 to 15 and 16 to 31 of 32 columns into a row's words of a plane of 4 bits; returns where the next goes. */
static uint8_t *put_4(uint8_t *out, bytes16 a, bytes16 b)
{
	a |= b << 4;
	memcpy(out, &a, sizeof(a));
	return out + sizeof(a);
}

/* The same, 2 bits: a word for each half. */
static uint8_t *put_2(uint8_t *out, bytes16 a, bytes16 b)
{
	uint64_t v = a[0] | a[1] << 4, w = b[0] | b[1] << 4;

	store_word(out, v | v >> 32 << 2);
	store_word(out + 4, w | w >> 32 << 2);
	return out + 8;
}

/* The same, 1 bit. */
static uint8_t *put_1(uint8_t *out, bytes16 a, bytes16 b)
{
	uint64_t v;

	a |= b << 4;
	v = a[0] | a[1] << 2;
	store_word(out, v | v >> 32 << 1);
	return out + 4;
}

/* The same of 32 bits that belong to one weight each: byte c has every fourth, from bit c on, moved together. */
static void put_bits(uint8_t *out, const uint8_t *src)
{
	uint32_t bits;
	words4 v;

	memcpy(&bits, src, sizeof(bits));
	v = (words4){ bits, bits >> 1, bits >> 2, bits >> 3 } & 0x11111111;
	v = (v | v >> 3) & 0x03030303;
	v = (v | v >> 6) & 0x000f000f;
	v = (v | v >> 12) & 0xff;
	store_word(out, v[0] | v[1] << 8 | v[2] << 16 | v[3] << 24);
}

/* 8 scales and 8 minimums of 6 bits: four of each whole, the others in nibbles and the upper bits of those. */
static void read_scales_k4(const uint8_t *src, uint8_t *scales)
{
	for (uint32_t i = 0; i < 4; i++) {
		scales[i] = src[i] & 63;
		scales[8 + i] = src[4 + i] & 63;
		scales[4 + i] = (uint8_t)((src[8 + i] & 15) | src[i] >> 6 << 4);
		scales[12 + i] = (uint8_t)(src[8 + i] >> 4 | src[4 + i] >> 6 << 4);
	}
}

/* 16 scales of 6 bits: nibbles in 8 bytes, upper pairs in 4; 32 stands for 0. */
static void read_scales_k3(const uint8_t *src, uint8_t *scales)
{
	for (uint32_t i = 0; i < 16; i++) {
		int low = src[i % 8] >> 4 * (i / 8) & 15, high = src[8 + i % 4] >> 2 * (i / 4) & 3;

		scales[i] = (uint8_t)((low | high << 4) - 32);
	}
}

/* 8 scales of 6 bits: 16 bits of upper pairs, then nibbles; 32 stands for 0. */
static void read_scales_iq4(const uint8_t *src, uint8_t *scales)
{
	for (uint32_t i = 0; i < 8; i++) {
		int high = src[i / 4] >> 2 * (i % 4) & 3, low = src[2 + i / 2] >> 4 * (i % 2) & 15;

		scales[i] = (uint8_t)((low | high << 4) - 32);
	}
}

/* Of 128 weights, byte i holds i, i + 32, i + 64 and i + 96, two bits each from the lowest on: the k-th 32 of all. */
static const uint8_t *pairs_of(const uint8_t *src, uint32_t k, uint32_t *shift)
{
	*shift = 2 * (k % 4);
	return src + (size_t)k / 4 * 32;
}

static void read_q2_k(const uint8_t *src, struct kc_numbers *out)
{
	uint8_t *planes = out->planes;

	memcpy(out->scales, src, 16);
	for (uint32_t k = 0; k < 8; k++) {
		uint32_t shift;
		const uint8_t *pairs = pairs_of(src + 16, k, &shift);

		planes = put_2(planes, load_16(pairs) >> shift & EACH(3), load_16(pairs + 16) >> shift & EACH(3));
	}
	memcpy(out->dm, src + 80, 4);
}

/* The upper bit of weight 32 * k + i is bit k of byte i. */
static void read_q3_k(const uint8_t *src, struct kc_numbers *out)
{
	uint8_t *planes = out->planes;

	for (uint32_t k = 0; k < 8; k++) {
		uint32_t shift;
		const uint8_t *pairs = pairs_of(src + 32, k, &shift);

		planes = put_2(planes, load_16(pairs) >> shift & EACH(3), load_16(pairs + 16) >> shift & EACH(3));
		planes = put_1(planes, load_16(src) >> k & EACH(1), load_16(src + 16) >> k & EACH(1));
	}
	read_scales_k3(src + 96, out->scales);
	memcpy(out->dm, src + 108, 2);
}

/* Q4_K and, with upper bits as in Q3_K, Q5_K.  Of 64 weights, byte i holds i and, in the high nibble, i + 32. */
static void read_q45_k(const uint8_t *src, bool five, struct kc_numbers *out)
{
	const uint8_t *nibbles = src + (five ? 48 : 16), *bits = src + 16;
	uint8_t *planes = out->planes;

	memcpy(out->dm, src, 4);
	read_scales_k4(src + 4, out->scales);
	for (uint32_t k = 0; k < 8; k++) {
		const uint8_t *at = nibbles + (size_t)k / 2 * 32;
		uint32_t shift = k % 2 * 4;

		planes = put_4(planes, load_16(at) >> shift & EACH(15), load_16(at + 16) >> shift & EACH(15));
		if (five)
			planes = put_1(planes, load_16(bits) >> k & EACH(1), load_16(bits + 16) >> k & EACH(1));
	}
}

/* Of 128 weights, byte i holds i and, in the high nibble, i + 64; then the upper bits of all, in pairs. */
static void read_q6_k(const uint8_t *src, struct kc_numbers *out)
{
	uint8_t *planes = out->planes;

	for (uint32_t k = 0; k < 8; k++) {
		const uint8_t *at = src + (size_t)k / 4 * 64 + (size_t)k % 2 * 32, *pairs;
		uint32_t shift = k % 4 / 2 * 4, pair_shift;

		pairs = pairs_of(src + 128, k, &pair_shift);
		planes = put_4(planes, load_16(at) >> shift & EACH(15), load_16(at + 16) >> shift & EACH(15));
		planes = put_2(planes, load_16(pairs) >> pair_shift & EACH(3),
			       load_16(pairs + 16) >> pair_shift & EACH(3));
	}
	memcpy(out->scales, src + 192, 16);
	memcpy(out->dm, src + 208, 2);
}

/* Of 32 weights, byte i holds i and, in the high nibble, i + 16: as a group does. */
static void read_iq4_xs(const uint8_t *src, struct kc_numbers *out)
{
	memcpy(out->dm, src, 2);
	read_scales_iq4(src + 2, out->scales);
	memcpy(out->planes, src + 8, 128);
}

/* Q5_0 and Q5_1: d, m if there is one, upper bits, then nibbles as a group has them. */
static void read_q5(const uint8_t *src, bool min, struct kc_numbers *out)
{
	const uint8_t *bits = src + (min ? 4 : 2);

	memcpy(out->dm, src, 4);
	memcpy(out->planes, bits + 4, 16);
	put_bits(out->planes + 16, bits);
}

void kc_block_read(enum kb_type type, const uint8_t *src, struct kc_numbers *out)
{
	switch (type) {
	case KB_Q2_K: read_q2_k(src, out); break;
	case KB_Q3_K: read_q3_k(src, out); break;
	case KB_Q4_K: read_q45_k(src, false, out); break;
	case KB_Q5_K: read_q45_k(src, true, out); break;
	case KB_Q6_K: read_q6_k(src, out); break;
	case KB_IQ4_XS: read_iq4_xs(src, out); break;
	default: read_q5(src, kc_layouts[type].min, out);
	}
}
