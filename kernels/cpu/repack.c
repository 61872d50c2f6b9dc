/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights from GGUF's layout into groups of 16 rows (layout.h).
 *
 * Limit: memory.  Each byte of the file is read once and written once, so that the work on it should take less than
 * the 0.2 to 0.4 ns that this costs.  Both layouts have a row's numbers in words of four bytes, so a group is a
 * transposition of words: four rows by four words at a time, in registers, all 64 bytes of a line before the next.
 * The types with blocks of 32 and one plane are that alone; the others are first put into planes row by row (blocks.c).
 */
#include "repack.h"

#include <string.h>

#include "cpu.h"
#include "layout.h"

#define WORD 4u
#define LINE_WORDS (KC_PIECE / WORD)

typedef uint32_t words4 __attribute__((vector_size(16)));

static words4 load_words4(const uint8_t *p)
{
	words4 v;

	memcpy(&v, p, sizeof(v));
	return v;
}

static void store_words4(uint8_t *p, words4 v)
{
	memcpy(p, &v, sizeof(v));
}

/* Four words of each of four rows into four pieces. */
static void transpose_4(uint8_t *piece, const uint8_t *src, size_t stride)
{
	words4 a = load_words4(src), b = load_words4(src + stride);
	words4 c = load_words4(src + 2 * stride), d = load_words4(src + 3 * stride);
	words4 ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
	words4 cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);

	store_words4(piece, __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5));
	store_words4(piece + KC_PIECE, __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7));
	store_words4(piece + (size_t)2 * KC_PIECE, __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5));
	store_words4(piece + (size_t)3 * KC_PIECE, __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7));
}

/* n_words words of each of n_rows <= 16 rows, which begin stride bytes apart, into as many pieces. */
static void scatter(uint8_t *pieces, const uint8_t *src, size_t stride, uint32_t n_words, uint32_t n_rows)
{
	uint32_t whole_words = n_words & ~3u, whole_rows = n_rows & ~3u;

	/* A line of each of four rows at a time: where rows are 4 KiB apart, more would not stay in the cache. */
	for (uint32_t line = 0; line < whole_words; line += LINE_WORDS) {
		for (uint32_t lane = 0; lane < whole_rows; lane += 4)
			for (uint32_t j = line; j < whole_words && j < line + LINE_WORDS; j += 4)
				transpose_4(pieces + (size_t)j * KC_PIECE + (size_t)lane * WORD,
					    src + lane * stride + (size_t)j * WORD, stride);
	}
	for (uint32_t lane = 0; lane < n_rows; lane++) {
		for (uint32_t j = lane < whole_rows ? whole_words : 0; j < n_words; j++)
			memcpy(pieces + (size_t)j * KC_PIECE + (size_t)lane * WORD,
			       src + lane * stride + (size_t)j * WORD, WORD);
	}
}

/* Words of two elements each: pieces of one element for all rows. */
static void split_halves(uint8_t *out, const uint8_t *pieces, uint32_t n_words)
{
	for (uint32_t j = 0; j < n_words; j++) {
		uint32_t words[KC_LANES];
		uint16_t low[KC_LANES], high[KC_LANES];

		memcpy(words, pieces + (size_t)j * KC_PIECE, sizeof(words));
		for (uint32_t lane = 0; lane < KC_LANES; lane++) {
			low[lane] = (uint16_t)words[lane];
			high[lane] = (uint16_t)(words[lane] >> 16);
		}
		memcpy(out + (size_t)j * KC_PIECE, low, sizeof(low));
		memcpy(out + (size_t)j * KC_PIECE + sizeof(low), high, sizeof(high));
	}
}

static void repack_elements_2(uint8_t *group, const uint8_t *src, size_t stride, uint32_t cols, uint32_t n_rows)
{
	uint8_t pieces[LINE_WORDS * KC_PIECE] = { 0 };

	for (uint32_t k = 0; k < cols; k += 2 * LINE_WORDS) {
		uint32_t n_words = KC_MIN(cols - k, 2 * LINE_WORDS) / 2;

		scatter(pieces, src + (size_t)k * 2, stride, n_words, n_rows);
		split_halves(group + (size_t)k * 2 * KC_LANES, pieces, n_words);
	}
}

/* Blocks whose bytes, after d and m, are the words of one plane. */
static void repack_direct(uint8_t *block, const struct kc_layout *l, const uint8_t *src, size_t stride,
			  uint32_t n_blocks, uint32_t n_rows)
{
	uint32_t n_f16 = l->min ? 2 : 1;

	for (uint32_t b = 0; b < n_blocks; b++, block += kc_block_bytes(l), src += l->source) {
		for (uint32_t lane = 0; lane < n_rows; lane++)
			for (uint32_t i = 0; i < n_f16; i++)
				memcpy(block + 2 * (size_t)(i * KC_LANES + lane),
				       src + lane * stride + (size_t)2 * i, 2);
		scatter(block + kc_quants_offset(l), src + (size_t)2 * n_f16, stride, l->low, n_rows);
	}
}

/* --- types whose bits change places ---------------------------------------------------- */

static void put_scales(uint8_t *block, const struct kc_layout *l, const struct kc_numbers *rows, uint32_t n_rows)
{
	uint8_t *scales = block + kc_scales_offset(l);

	for (uint32_t lane = 0; lane < n_rows; lane++) {
		const struct kc_numbers *n = &rows[lane];

		memcpy(block + 2 * (size_t)lane, n->dm, 2);
		if (l->min)
			memcpy(block + 2 * (size_t)(KC_LANES + lane), n->dm + 2, 2);
		for (uint32_t i = 0; i < l->n_scales; i++)
			scales[(size_t)i * KC_LANES + lane] = n->scales[i];
	}
}

static void repack_blocks(uint8_t *block, enum kb_type type, const uint8_t *src, size_t stride, uint32_t n_blocks,
			  uint32_t n_rows)
{
	const struct kc_layout *l = &kc_layouts[type];
	struct kc_numbers rows[KC_LANES];

	for (uint32_t b = 0; b < n_blocks; b++, block += kc_block_bytes(l), src += l->source) {
		for (uint32_t lane = 0; lane < n_rows; lane++)
			kc_block_read(type, src + lane * stride, &rows[lane]);
		put_scales(block, l, rows, n_rows);
		scatter(block + kc_quants_offset(l), rows[0].planes, sizeof(rows[0]),
			(l->low + l->high) * (l->weights / KC_BLOCK), n_rows);
	}
}

/* --- all ----------------------------------------------------------------------------- */

void kc_repack_group(uint8_t *group, enum kb_type type, uint32_t cols, const uint8_t *src, size_t stride,
		     uint32_t n_rows)
{
	const struct kc_layout *l = &kc_layouts[type];
	uint32_t n_blocks = cols / l->weights;

	if (!kc_type_quantized(type)) {
		if (l->source == WORD)
			scatter(group, src, stride, cols, n_rows);
		else
			repack_elements_2(group, src, stride, cols, n_rows);
	} else if (l->weights == KC_BLOCK && !l->high) {
		repack_direct(group, l, src, stride, n_blocks, n_rows);
	} else {
		repack_blocks(group, type, src, stride, n_blocks, n_rows);
	}
}
