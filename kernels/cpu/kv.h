/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv.h - how keys and values lie inside of a block, and what writes them.
 *
 * A block holds [layer][kv_head] { keys, values }, kb_head_bytes() each; with n = block_tokens, d = head_dim and
 * g = kb_kv_groups(d), arrays one after the other:
 *
 *          keys                                     values
 *     F16  f16 [n / 16][d][16]                      f16 [n][d]
 *     Q8   int8 [n / 16][d][16]                     int8 [n][d]
 *          f16 scale [g][n]                         f16 scale [g][n]
 *     Q4   uint32 [2][d / 8][16]: channel c in      nibbles [32][d / 2]: of a group of c channels, byte i has
 *          bits 4 (c % 8) .. + 3                    channel i (low) and i + c / 2 (high)
 *          f16 d [d], f16 m [d]                     f16 d [g][32], f16 m [g][32]
 *
 * So lanes are positions where keys are read and channels where values are, and nothing is ever transposed:
 * a score is a chain of multiply-adds per lane, and so is an output.  An open block is an F16 block of
 * KB_Q4_BLOCK_TOKENS tokens.
 */
#ifndef KC_KV_H
#define KC_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"

#define KC_KV_TILE 16u		/* positions of one tile of keys; a tile lies in one block */

struct kc_level;

/* One tile's keys and values. */
struct kc_kv {
	enum kb_kv_type type;
	uint32_t head_dim;
	uint32_t stride;	/* from one group's scales to the next, elements: block_tokens */
	uint8_t *k, *v;		/* the tile's first element */
	/* Q8: [g] scales of the tile's positions, `stride` apart; Q4: of keys, [d] of the block */
	uint16_t *k_d, *k_m;
	uint16_t *v_d, *v_m;
};

/* The tile with token `token` of the block whose part of this head begins at `head`. */
struct kc_kv kc_kv_tile(enum kb_kv_type type, uint32_t head_dim, uint32_t block_tokens, uint8_t *head,
			uint32_t token);

/* Keys or values of position i of a tile; F16 and Q8.  head_dim <= KC_MAX_HEAD_DIM. */
void kc_kv_store(const struct kc_level *level, const struct kc_kv *tile, uint32_t i, bool value, const float *x);

/* A head's part of an F16 block of KB_Q4_BLOCK_TOKENS tokens becomes one of Q4. */
void kc_kv_seal(uint8_t *to, const uint8_t *from, uint32_t head_dim);

/* A head's first n_tokens to memory without gaps, and back; kb_tokens_bytes() over all heads. */
void kc_kv_pack(const struct kb_geometry *g, const uint8_t *head, uint32_t n_tokens, uint8_t *to);
void kc_kv_unpack(const struct kb_geometry *g, uint8_t *head, uint32_t n_tokens, const uint8_t *from);
/* From head to head. */
void kc_kv_copy(const struct kb_geometry *g, uint8_t *to, const uint8_t *from, uint32_t n_tokens);

struct kb_open {
	uint64_t bytes;
	uint8_t *data;		/* [layer][kv_head], as in a block */
};

int kc_open_new(struct kb_backend *be, const struct kb_geometry *g, struct kb_open **out);
void kc_open_free(struct kb_backend *be, struct kb_open *open);

/* Q4's are 32: kb_head_bytes() is 0 for others. */
static inline bool kc_block_tokens_valid(const struct kb_geometry *g)
{
	return g->block_tokens == 16 || g->block_tokens == 32 || g->block_tokens == 64;
}

/* Channels of group i of a head. */
static inline uint32_t kc_group_channels(uint32_t head_dim, uint32_t i)
{
	uint32_t left = head_dim - i * KB_KV_GROUP;

	return left < KB_KV_GROUP ? left : KB_KV_GROUP;
}

/*
 * A key of Q4 stays where it is in its word when it is read: channel c counts 16^(c % 8), which this takes back
 * exactly; but for the uppermost, which is shifted down, since words are signed.
 */
static inline float kc_nibble_scale(uint32_t channel)
{
	uint32_t place = channel % 8;

	return place == 7 ? 1.0f : 1.0f / (float)(1u << 4 * place);
}

#endif
