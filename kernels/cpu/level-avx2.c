/* SPDX-License-Identifier: Apache-2.0 */
/* The AVX2 level: the vector kernels with 8 lanes. */
#include "simd-avx2.h"
#include "simd-level.h"
#include "simd-product.h"

static bool supported(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && kc_cpu_has_f16c();
}

const struct kc_level kc_level_avx2 = {
	.name = "avx2",
	.supported = supported,
	.product = simd_product,
	SIMD_LEVEL,
};
