/* SPDX-License-Identifier: Apache-2.0 */
/* The AVX2 level: the vector kernels with 8 lanes. */
#include "features.h"
#include "simd-avx2.h"
#include "simd-level.h"
#include "simd-product.h"

const struct kc_level kc_level_avx2 = {
	.name = "avx2",
	.supported = kc_has_avx2,
	.product = simd_product,
	.product_streams = simd_product_streams,
	SIMD_LEVEL,
};
