/* SPDX-License-Identifier: Apache-2.0 */
/* The AVX2 level: the vector kernels with 8 lanes. */
#include "simd-avx2.h"
#include "simd-attention.h"
#include "simd-product.h"
#include "simd-rows.h"

static bool supported(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && kc_cpu_has_f16c();
}

const struct kc_level kc_level_avx2 = {
	.name = "avx2",
	.supported = supported,
	.quantize = simd_quantize,
	.quantize16 = simd_quantize16,
	.rmsnorm = simd_rmsnorm,
	.rotate = simd_rotate,
	.gated = simd_gated,
	.softcap = simd_softcap,
	.store_f16 = simd_store_f16,
	.product = simd_product,
	.attend = simd_attend,
	.merge = simd_merge,
};
