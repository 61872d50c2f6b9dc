/* SPDX-License-Identifier: Apache-2.0 */
/* Plain C attention over one segment, and the merge of segments. */
#include "ref.h"

#include <math.h>
#include <string.h>

#include "elementary.h"
#include "half.h"

/* Key of a tile's position i, channel c, as it is stored: without scales, and a nibble where it is. */
static float stored_key(const struct kc_kv *tile, uint32_t i, uint32_t c)
{
	uint32_t at = c * KC_KV_TILE + i, nibble;

	if (tile->type == KB_KV_F16)
		return kc_f16_to_f32(((const uint16_t *)(const void *)tile->k)[at]);
	if (tile->type == KB_KV_Q8)
		return (float)(int8_t)tile->k[at];
	nibble = ((const uint32_t *)(const void *)tile->k)[c / 8 * KC_KV_TILE + i] >> 4 * (c % 8) & 15;
	return (float)nibble / kc_nibble_scale(c);
}

static float stored_value(const struct kc_kv *tile, uint32_t i, uint32_t c)
{
	size_t at = (size_t)i * tile->head_dim + c;
	uint32_t in_group = c % KB_KV_GROUP, half = kc_group_channels(tile->head_dim, c / KB_KV_GROUP) / 2;
	uint8_t byte;

	if (tile->type == KB_KV_F16)
		return kc_f16_to_f32(((const uint16_t *)(const void *)tile->v)[at]);
	if (tile->type == KB_KV_Q8)
		return (float)(int8_t)tile->v[at];
	byte = tile->v[(at - in_group) / 2 + in_group % half];
	return (float)(in_group < half ? byte & 15 : byte >> 4);
}

/* What the offsets of a Q4 block's keys add to every score of the query. */
static float key_offsets(const struct kc_kv *tile, const float *q)
{
	float products[KC_LANES] = { 0 };

	for (uint32_t c = 0; c < tile->head_dim; c++)
		products[c % KC_LANES] = fmaf(q[c], kc_f16_to_f32(tile->k_m[c]), products[c % KC_LANES]);
	return kc_ref_tree(products);
}

static float score(const struct kc_queries *a, const float *q, uint32_t t)
{
	struct kc_kv tile = kc_kv_at(a, t);
	float s = tile.type == KB_KV_Q4 ? key_offsets(&tile, q) : 0;

	for (uint32_t g = 0; g < kb_kv_groups(a->head_dim); g++) {
		uint32_t first = g * KB_KV_GROUP, n = kc_group_channels(a->head_dim, g);
		float sum = 0;

		for (uint32_t c = first; c < first + n; c++) {
			float x = q[c];

			if (tile.type == KB_KV_Q4)
				x = x * kc_f16_to_f32(tile.k_d[c]) * kc_nibble_scale(c);
			sum = fmaf(x, stored_key(&tile, t % KC_KV_TILE, c), sum);
		}
		if (tile.type == KB_KV_Q8)
			s = fmaf(kc_f16_to_f32(tile.k_d[(size_t)g * tile.stride + t % KC_KV_TILE]), sum, s);
		else
			s += sum;
	}
	s *= a->scale;
	return a->softcap > 0 ? kc_softcap(s, a->softcap) : s;
}

/* o += p v; what a Q4 value's offsets add goes to the partial sums of its groups. */
static void add_value(const struct kc_queries *a, uint32_t t, float p, float *o, float (*offsets)[KC_LANES])
{
	struct kc_kv tile = kc_kv_at(a, t);

	for (uint32_t g = 0; g < kb_kv_groups(a->head_dim); g++) {
		uint32_t first = g * KB_KV_GROUP, n = kc_group_channels(a->head_dim, g), i = t % KC_KV_TILE;
		size_t scale = (size_t)g * tile.stride + i;
		float w = tile.type == KB_KV_F16 ? p : p * kc_f16_to_f32(tile.v_d[scale]);

		for (uint32_t c = first; c < first + n; c++)
			o[c] = fmaf(w, stored_value(&tile, i, c), o[c]);
		if (tile.type == KB_KV_Q4)
			offsets[g][i] = fmaf(p, kc_f16_to_f32(tile.v_m[scale]), offsets[g][i]);
	}
}

static void add_offsets(uint32_t head_dim, float (*offsets)[KC_LANES], float *o)
{
	for (uint32_t g = 0; g < kb_kv_groups(head_dim); g++) {
		float sum = kc_ref_tree(offsets[g]);

		for (uint32_t c = 0; c < kc_group_channels(head_dim, g); c++)
			o[g * KB_KV_GROUP + c] += sum;
	}
}

/* Sums of the weights of positions t0 .. t1 - 1, granule by granule of their segment. */
static void sum_granules(const float *p, uint32_t t0, uint32_t t1, float *mass)
{
	for (uint32_t g = 0; g < KC_GRANULES; g++) {
		float weights[KC_LANES] = { 0 };

		for (uint32_t i = 0; i < KC_GRANULE; i++) {
			uint32_t t = t0 / KC_SEGMENT * KC_SEGMENT + g * KC_GRANULE + i;

			if (t >= t0 && t < t1)
				weights[i] = p[t - t0];
		}
		mass[g] = kc_ref_tree(weights);
	}
}

/* One query over positions t0 .. t1 - 1; p is room for their weights. */
static void attend_query(const struct kc_queries *a, const float *q, uint32_t t0, uint32_t t1, float *m,
			 float *l, float *o, float *p)
{
	float max = -INFINITY, sums[KC_LANES] = { 0 }, offsets[KC_MAX_HEAD_DIM / KB_KV_GROUP][KC_LANES] = { 0 };

	for (uint32_t t = t0; t < t1; t++) {
		p[t - t0] = score(a, q, t);
		max = p[t - t0] > max ? p[t - t0] : max;
	}
	for (uint32_t t = t0; t < t1; t++) {
		p[t - t0] = kc_exp_weight(p[t - t0] - max);
		sums[t % KC_LANES] += p[t - t0];
	}
	memset(o, 0, a->head_dim * sizeof(*o));
	for (uint32_t t = t0; t < t1; t++)
		add_value(a, t, p[t - t0], o, offsets);
	if (a->geometry->kv_type == KB_KV_Q4)
		add_offsets(a->head_dim, offsets, o);
	*m = max;
	*l = kc_ref_tree(sums);
}

void kc_ref_attend(const struct kc_queries *a, uint32_t segment, const struct kc_partial *out, float *scratch)
{
	for (uint32_t j = 0; j < a->n_rows * a->n_heads; j++) {
		const float *q = a->q + j / a->n_heads * a->q_stride + (size_t)(j % a->n_heads) * a->head_dim;
		uint32_t t0, t1;

		if (kc_visible(a->first_pos + j / a->n_heads, a->window, segment, &t0, &t1)) {
			attend_query(a, q, t0, t1, &out->m[j], &out->l[j], out->o + (size_t)j * a->head_dim,
				     scratch);
			if (out->mass)
				sum_granules(scratch, t0, t1, out->mass + (size_t)j * KC_GRANULES);
			continue;
		}
		out->m[j] = -INFINITY;
		out->l[j] = 0;
	}
}

void kc_ref_merge(float *m, float *l, float *o, const struct kc_partial *part, uint32_t j, uint32_t head_dim)
{
	const float *part_o = part->o + (size_t)j * head_dim;
	float max, old, new;

	if (part->l[j] == 0)
		return;
	if (*l == 0) {
		*m = part->m[j];
		*l = part->l[j];
		memcpy(o, part_o, head_dim * sizeof(*o));
		return;
	}
	max = part->m[j] > *m ? part->m[j] : *m;
	old = kc_exp(*m - max);
	new = kc_exp(part->m[j] - max);
	*m = max;
	*l = fmaf(*l, old, part->l[j] * new);
	for (uint32_t d = 0; d < head_dim; d++)
		o[d] = fmaf(o[d], old, part_o[d] * new);
}
