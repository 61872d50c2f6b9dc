/* SPDX-License-Identifier: Apache-2.0 */
/* ref.h - the plain C kernels: the oracle of all others, written for clarity. */
#ifndef KC_REF_H
#define KC_REF_H

#include "cpu.h"

void kc_ref_product(const struct kb_tensor *w, uint32_t group0, uint32_t n_groups, const struct kc_rows *in,
		    uint32_t row0, uint32_t n_rows, float *out, size_t out_stride);
void kc_ref_attend(const struct kc_queries *a, uint32_t segment, const struct kc_partial *out,
		   float *scratch);
void kc_ref_merge(float *m, float *l, float *o, const struct kc_partial *part, uint32_t j, uint32_t head_dim);

/* Sum of 16 partial sums in the order of every level. */
static inline float kc_ref_tree(float s[KC_LANES])
{
	for (uint32_t n = KC_LANES / 2; n; n /= 2) {
		for (uint32_t i = 0; i < n; i++)
			s[i] += s[i + n];
	}
	return s[0];
}

#endif
