/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GGUF's blocks of quantised weights, taken apart into numbers.  The layouts
 * are those of ggml-common.h (struct block_*); bits are described here as they
 * are read.
 */
#include "layout.h"

/* Eight bytes at once; shifts are masked so that none carries to the next. */
#define EACH_BYTE(x) ((x) * UINT64_C(0x0101010101010101))

static uint64_t load_8(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	return v;
}

static void store_8(uint8_t *p, uint64_t v)
{
	memcpy(p, &v, sizeof(v));
}

/* Byte i holds weight i and, in the high nibble, weight i + n; n a multiple of 8. */
static void read_nibbles(const uint8_t *src, uint32_t n, uint8_t *q)
{
	for (uint32_t i = 0; i < n; i += 8) {
		store_8(q + i, load_8(src + i) & EACH_BYTE(15));
		store_8(q + n + i, load_8(src + i) >> 4 & EACH_BYTE(15));
	}
}

/* Of 128 weights, byte i holds i, i + 32, i + 64 and i + 96, two bits each from the lowest on. */
static void read_pairs(const uint8_t *src, uint8_t *q)
{
	for (uint32_t part = 0; part < 4; part++) {
		for (uint32_t i = 0; i < 32; i += 8)
			store_8(q + 32 * part + i, load_8(src + i) >> 2 * part & EACH_BYTE(3));
	}
}

/* Of 256 weights, bit part of byte i belongs to weight 32 * part + i. */
static void add_bits(const uint8_t *src, uint32_t shift, uint8_t *q)
{
	for (uint32_t part = 0; part < 8; part++) {
		for (uint32_t i = 0; i < 32; i += 8) {
			uint64_t bits = (load_8(src + i) >> part & EACH_BYTE(1)) << shift;

			store_8(q + 32 * part + i, load_8(q + 32 * part + i) | bits);
		}
	}
}

/* Bit i of 32 belongs to weight i. */
static void add_bits_32(const uint8_t *src, uint8_t *q)
{
	for (uint32_t i = 0; i < 4; i++, q += 8) {
		uint32_t bits = src[i];

		for (uint32_t j = 0; j < 8; j++)
			q[j] |= (uint8_t)((bits >> j & 1) << 4);
	}
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

static void read_q2_k(const uint8_t *src, struct kc_numbers *out)
{
	memcpy(out->scales, src, 16);
	read_pairs(src + 16, out->q);
	read_pairs(src + 48, out->q + 128);
	memcpy(out->dm, src + 80, 4);
}

static void read_q3_k(const uint8_t *src, struct kc_numbers *out)
{
	read_pairs(src + 32, out->q);
	read_pairs(src + 64, out->q + 128);
	add_bits(src, 2, out->q);
	read_scales_k3(src + 96, out->scales);
	memcpy(out->dm, src + 108, 2);
}

/* Q4_K and, with upper bits, Q5_K */
static void read_q45_k(const uint8_t *src, bool five, struct kc_numbers *out)
{
	const uint8_t *nibbles = src + (five ? 48 : 16);

	memcpy(out->dm, src, 4);
	read_scales_k4(src + 4, out->scales);
	for (uint32_t i = 0; i < 4; i++)
		read_nibbles(nibbles + (size_t)i * 32, 32, out->q + (size_t)i * 64);
	if (five)
		add_bits(src + 16, 4, out->q);
}

static void read_q6_k(const uint8_t *src, struct kc_numbers *out)
{
	uint8_t upper[KC_MAX_WEIGHTS];

	for (uint32_t i = 0; i < 2; i++) {
		read_nibbles(src + (size_t)i * 64, 64, out->q + (size_t)i * 128);
		read_pairs(src + 128 + (size_t)i * 32, upper + (size_t)i * 128);
	}
	for (uint32_t i = 0; i < KC_MAX_WEIGHTS; i++)
		out->q[i] |= (uint8_t)(upper[i] << 4);
	memcpy(out->scales, src + 192, 16);
	memcpy(out->dm, src + 208, 2);
}

static void read_iq4_xs(const uint8_t *src, struct kc_numbers *out)
{
	memcpy(out->dm, src, 2);
	read_scales_iq4(src + 2, out->scales);
	for (uint32_t i = 0; i < 8; i++)
		read_nibbles(src + 8 + (size_t)i * 16, 16, out->q + (size_t)i * 32);
}

/* Blocks of 32: d, m if there is one, upper bits if there are, then nibbles or bytes. */
static void read_32(const struct kc_layout *l, const uint8_t *src, struct kc_numbers *out)
{
	uint32_t n = l->min ? 4 : 2;
	const uint8_t *upper = src + n;

	memcpy(out->dm, src, n);
	if (l->low == 8) {
		memcpy(out->q, src + n, 32);
		return;
	}
	read_nibbles(src + n + (l->high ? 4 : 0), 16, out->q);
	if (l->high)
		add_bits_32(upper, out->q);
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
	default: read_32(&kc_layouts[type], src, out);
	}
}
