/* SPDX-License-Identifier: Apache-2.0 */
/* Plain C attention over one segment, and the merge of segments. */
#include "ref.h"

#include <math.h>
#include <string.h>

#include "elementary.h"
#include "half.h"

static float score(const struct kc_queries *a, const float *q, uint32_t t)
{
	const uint16_t *key = kc_key(a, t);
	float products[KC_LANES] = { 0 }, s;

	for (uint32_t d = 0; d < a->head_dim; d++)
		products[d % KC_LANES] = fmaf(q[d], kc_f16_to_f32(key[d]), products[d % KC_LANES]);
	s = kc_ref_tree(products) * a->scale;
	return a->softcap > 0 ? kc_softcap(s, a->softcap) : s;
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
	float max = -INFINITY, sums[KC_LANES] = { 0 };

	for (uint32_t t = t0; t < t1; t++) {
		p[t - t0] = score(a, q, t);
		max = p[t - t0] > max ? p[t - t0] : max;
	}
	for (uint32_t t = t0; t < t1; t++) {
		p[t - t0] = kc_exp(p[t - t0] - max);
		sums[t % KC_LANES] += p[t - t0];
	}
	memset(o, 0, a->head_dim * sizeof(*o));
	for (uint32_t t = t0; t < t1; t++) {
		const uint16_t *value = kc_value(a, t);

		for (uint32_t d = 0; d < a->head_dim; d++)
			o[d] = fmaf(p[t - t0], kc_f16_to_f32(value[d]), o[d]);
	}
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
