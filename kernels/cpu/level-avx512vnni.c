/* SPDX-License-Identifier: Apache-2.0 */
/* The level of AVX-512 with VNNI. */
#define KC_VNNI
#include "features.h"
#include "simd-avx512.h"
#include "simd-level.h"
#include "simd-product-512.h"

const struct kc_level kc_level_avx512vnni = {
	.name = "avx512vnni",
	.supported = kc_has_avx512vnni,
	.product = simd_product,
	SIMD_LEVEL,
};
