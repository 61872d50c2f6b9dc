/* SPDX-License-Identifier: Apache-2.0 */
#include "kv.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "half.h"

#define F16_MAX 65504.0f

static uint16_t *halves(uint8_t *p)
{
	return (uint16_t *)(void *)p;
}

struct kc_kv kc_kv_tile(enum kb_kv_type type, uint32_t head_dim, uint32_t block_tokens, uint8_t *head,
			uint32_t token)
{
	size_t dim = head_dim, n = block_tokens, groups = kb_kv_groups(head_dim);
	size_t first = token / KC_KV_TILE * KC_KV_TILE;
	struct kc_kv t = { .type = type, .head_dim = head_dim, .stride = block_tokens };
	uint8_t *values;

	switch (type) {
	case KB_KV_F16:
		t.k = head + first * dim * 2;
		t.v = head + (n + first) * dim * 2;
		break;
	case KB_KV_Q8:
		values = head + n * (dim + 2 * groups);
		t.k = head + first * dim;
		t.k_d = halves(head + n * dim) + first;
		t.v = values + first * dim;
		t.v_d = halves(values + n * dim) + first;
		break;
	case KB_KV_Q4:
		values = head + n * dim / 2 + 4 * dim;
		t.k = head + first * dim / 2;
		t.k_d = halves(head + n * dim / 2);
		t.k_m = t.k_d + dim;
		t.v = values + first * dim / 2;
		t.v_d = halves(values + n * dim / 2) + first;
		t.v_m = t.v_d + groups * n;
		break;
	}
	return t;
}

static void store_f16(const struct kc_level *level, const struct kc_kv *tile, uint32_t i, bool value, const float *x)
{
	uint32_t dim = tile->head_dim;
	uint16_t y[KC_MAX_HEAD_DIM], *k = halves(tile->k);

	if (value) {
		level->store_f16(halves(tile->v) + (size_t)i * dim, x, dim);
		return;
	}
	level->store_f16(y, x, dim);
	for (uint32_t c = 0; c < dim; c++)
		k[c * KC_KV_TILE + i] = y[c];
}

/* n <= KB_KV_GROUP values, `step` bytes apart; returns their scale.  A NaN counts as -127. */
static uint16_t quantize8(const float *x, uint32_t n, uint8_t *to, size_t step)
{
	float max = 0, d, inverse;
	uint16_t scale;

	for (uint32_t c = 0; c < n; c++) {
		float a = fabsf(x[c]);

		max = a > max ? a : max;
	}
	scale = kc_f32_to_f16(fminf(max / 127.0f, F16_MAX));
	d = kc_f16_to_f32(scale);
	inverse = d > 0 ? 1.0f / d : 0;
	for (uint32_t c = 0; c < n; c++) {
		float t = x[c] * inverse;

		t = t > -127.0f ? t : -127.0f;
		t = t < 127.0f ? t : 127.0f;
		to[c * step] = (uint8_t)(int8_t)lrintf(t);
	}
	return scale;
}

static void store_q8(const struct kc_kv *tile, uint32_t i, bool value, const float *x)
{
	uint32_t dim = tile->head_dim;

	for (uint32_t g = 0; g < kb_kv_groups(dim); g++) {
		uint32_t n = kc_group_channels(dim, g), c = g * KB_KV_GROUP;
		size_t scale = (size_t)g * tile->stride + i;

		if (value)
			tile->v_d[scale] = quantize8(x + c, n, tile->v + (size_t)i * dim + c, 1);
		else
			tile->k_d[scale] = quantize8(x + c, n, tile->k + c * KC_KV_TILE + i, KC_KV_TILE);
	}
}

void kc_kv_store(const struct kc_level *level, const struct kc_kv *tile, uint32_t i, bool value, const float *x)
{
	if (tile->type == KB_KV_Q8)
		store_q8(tile, i, value, x);
	else
		store_f16(level, tile, i, value, x);
}

/* --- Q4 ----------------------------------------------------------------------- */

/* n <= KB_KV_GROUP values to d * q + m; infinities are kept in range, a NaN counts as the least. */
static void quantize4(const float *x, uint32_t n, uint8_t *q, uint16_t *d_out, uint16_t *m_out)
{
	float low = INFINITY, high = -INFINITY, d, m, inverse;

	for (uint32_t i = 0; i < n; i++) {
		low = x[i] < low ? x[i] : low;
		high = x[i] > high ? x[i] : high;
	}
	low = fmaxf(fminf(low, F16_MAX), -F16_MAX);
	high = fmaxf(fminf(high, F16_MAX), -F16_MAX);
	*m_out = kc_f32_to_f16(low);
	m = kc_f16_to_f32(*m_out);
	*d_out = kc_f32_to_f16(high > m ? (high - m) / 15.0f : 0);
	d = kc_f16_to_f32(*d_out);
	inverse = d > 0 ? 1.0f / d : 0;
	for (uint32_t i = 0; i < KB_KV_GROUP; i++) {
		float t = i < n ? (x[i] - m) * inverse : 0;

		t = t > 0 ? t : 0;
		t = t < 15.0f ? t : 15.0f;
		q[i] = (uint8_t)lrintf(t);
	}
}

/* Channel c of the keys of a whole block. */
_Static_assert(KB_Q4_BLOCK_TOKENS == KB_KV_GROUP, "quantize4() serves both");
static void seal_key(const struct kc_kv tiles[2], const uint16_t *from, uint32_t c)
{
	uint32_t dim = tiles[0].head_dim;
	float x[KB_Q4_BLOCK_TOKENS];
	uint8_t q[KB_KV_GROUP];

	for (uint32_t i = 0; i < KB_Q4_BLOCK_TOKENS; i++)
		x[i] = kc_f16_to_f32(from[((size_t)(i / KC_KV_TILE) * dim + c) * KC_KV_TILE + i % KC_KV_TILE]);
	quantize4(x, KB_Q4_BLOCK_TOKENS, q, &tiles[0].k_d[c], &tiles[0].k_m[c]);
	for (uint32_t i = 0; i < KB_Q4_BLOCK_TOKENS; i++) {
		uint32_t *words = (uint32_t *)(void *)tiles[i / KC_KV_TILE].k + c / 8 * KC_KV_TILE;
		uint32_t old = c % 8 ? words[i % KC_KV_TILE] : 0;

		words[i % KC_KV_TILE] = old | (uint32_t)q[i] << 4 * (c % 8);
	}
}

static void seal_value(const struct kc_kv *tile, uint32_t i, const uint16_t *from)
{
	uint32_t dim = tile->head_dim;

	for (uint32_t g = 0; g < kb_kv_groups(dim); g++) {
		uint32_t n = kc_group_channels(dim, g);
		uint8_t q[KB_KV_GROUP], *to = tile->v + (size_t)i * dim / 2 + g * KB_KV_GROUP / 2;
		size_t at = (size_t)g * tile->stride + i;
		float x[KB_KV_GROUP];

		for (uint32_t c = 0; c < n; c++)
			x[c] = kc_f16_to_f32(from[g * KB_KV_GROUP + c]);
		quantize4(x, n, q, &tile->v_d[at], &tile->v_m[at]);
		for (uint32_t c = 0; c < n / 2; c++)
			to[c] = (uint8_t)(q[c] | q[c + n / 2] << 4);
	}
}

void kc_kv_seal(uint8_t *to, const uint8_t *from, uint32_t head_dim)
{
	const uint32_t n = KB_Q4_BLOCK_TOKENS;
	const uint16_t *keys = (const uint16_t *)(const void *)from, *values = keys + (size_t)n * head_dim;
	struct kc_kv tiles[2];

	for (uint32_t i = 0; i < 2; i++)
		tiles[i] = kc_kv_tile(KB_KV_Q4, head_dim, n, to, i * KC_KV_TILE);
	for (uint32_t c = 0; c < head_dim; c++)
		seal_key(tiles, keys, c);
	for (uint32_t i = 0; i < n; i++)
		seal_value(&tiles[i / KC_KV_TILE], i % KC_KV_TILE, values + (size_t)i * head_dim);
}

/* --- parts of blocks ------------------------------------------------------------- */

static void copy_rows(uint8_t *to, size_t to_step, const uint8_t *from, size_t from_step, size_t n_rows, size_t bytes)
{
	for (size_t i = 0; i < n_rows; i++)
		memcpy(to + i * to_step, from + i * from_step, bytes);
}

/* One of a head's arrays, or a tile of it: of each row the first bytes belong to the tokens wanted. */
struct part {
	size_t at, step, n_rows, bytes;
};

/* What the first n tokens of a head (F16 or Q8) are made of; returns how many parts. */
static size_t parts_of(const struct kb_geometry *g, uint32_t n, struct part *parts)
{
	size_t size = g->kv_type == KB_KV_F16 ? 2 : 1, dim = g->head_dim, bt = g->block_tokens, n_parts = 0;
	size_t scales = g->kv_type == KB_KV_Q8 ? kb_kv_groups(g->head_dim) : 0, plane = bt * (dim * size + 2 * scales);

	for (uint32_t t = 0; t < n; t += KC_KV_TILE)
		parts[n_parts++] = (struct part){ t * dim * size, KC_KV_TILE * size, dim,
						  KC_MIN(n - t, KC_KV_TILE) * size };
	parts[n_parts++] = (struct part){ bt * dim, 2 * bt, scales, 2 * (size_t)n };
	parts[n_parts++] = (struct part){ plane, 0, 1, n * dim * size };
	parts[n_parts++] = (struct part){ plane + bt * dim, 2 * bt, scales, 2 * (size_t)n };
	return n_parts;
}

/* Blocks have at most 64 tokens. */
#define MAX_PARTS (64 / KC_KV_TILE + 3)

void kc_kv_pack(const struct kb_geometry *g, const uint8_t *head, uint32_t n_tokens, uint8_t *to)
{
	struct part parts[MAX_PARTS];
	size_t n_parts;

	if (n_tokens == g->block_tokens) {
		memcpy(to, head, kb_head_bytes(g));
		return;
	}
	n_parts = parts_of(g, n_tokens, parts);
	for (const struct part *p = parts; p < parts + n_parts; p++) {
		copy_rows(to, p->bytes, head + p->at, p->step, p->n_rows, p->bytes);
		to += p->n_rows * p->bytes;
	}
}

void kc_kv_unpack(const struct kb_geometry *g, uint8_t *head, uint32_t n_tokens, const uint8_t *from)
{
	struct part parts[MAX_PARTS];
	size_t n_parts;

	if (n_tokens == g->block_tokens) {
		memcpy(head, from, kb_head_bytes(g));
		return;
	}
	n_parts = parts_of(g, n_tokens, parts);
	for (const struct part *p = parts; p < parts + n_parts; p++) {
		copy_rows(head + p->at, p->step, from, p->bytes, p->n_rows, p->bytes);
		from += p->n_rows * p->bytes;
	}
}

void kc_kv_copy(const struct kb_geometry *g, uint8_t *to, const uint8_t *from, uint32_t n_tokens)
{
	struct part parts[MAX_PARTS];
	size_t n_parts;

	if (n_tokens == g->block_tokens) {
		memcpy(to, from, kb_head_bytes(g));
		return;
	}
	n_parts = parts_of(g, n_tokens, parts);
	for (const struct part *p = parts; p < parts + n_parts; p++)
		copy_rows(to + p->at, p->step, from + p->at, p->step, p->n_rows, p->bytes);
}

/* --- open blocks ------------------------------------------------------------------ */

int kc_open_new(struct kb_backend *be, const struct kb_geometry *g, struct kb_open **out)
{
	uint64_t bytes = kb_open_bytes(g);
	struct kb_open *open;

	if (!bytes || bytes > SIZE_MAX / 2 || g->head_dim > KC_MAX_HEAD_DIM || g->head_dim % KC_LANES)
		return -EINVAL;
	open = malloc(sizeof(*open));
	if (!open)
		return -ENOMEM;
	/* Every element of it is written before it is read. */
	open->bytes = bytes;
	open->data = aligned_alloc(64, (bytes + 63) & ~(uint64_t)63);
	if (!open->data) {
		free(open);
		return -ENOMEM;
	}
	*out = open;
	return 0;
}

void kc_open_free(struct kb_backend *be, struct kb_open *open)
{
	if (!open)
		return;
	free(open->data);
	free(open);
}
