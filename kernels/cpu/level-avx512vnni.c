/* SPDX-License-Identifier: Apache-2.0 */
/* The level of AVX-512 with VNNI. */
#define KC_VNNI
#include "simd-avx512.h"
#include "simd-level.h"
#include "simd-product-512.h"

static bool supported(void)
{
	return kc_cpu_has_avx512() && __builtin_cpu_supports("avx512vnni");
}

const struct kc_level kc_level_avx512vnni = {
	.name = "avx512vnni",
	.supported = supported,
	.product = simd_product,
	SIMD_LEVEL,
};
