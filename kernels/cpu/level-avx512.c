/* SPDX-License-Identifier: Apache-2.0 */
/* The level of AVX-512 F, BW, DQ and VL: the vector kernels with 16 lanes. */
#include "features.h"
#include "simd-avx512.h"
#include "simd-level.h"
#include "simd-product-512.h"

const struct kc_level kc_level_avx512 = {
	.name = "avx512",
	.supported = kc_has_avx512,
	.product = simd_product,
	SIMD_LEVEL,
};
