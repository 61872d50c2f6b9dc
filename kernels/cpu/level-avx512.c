/* SPDX-License-Identifier: Apache-2.0 */
/* The AVX-512 VNNI level: the vector kernels with 16 lanes. */
#include "simd-avx512.h"
#include "simd-attention.h"
#include "simd-product.h"
#include "simd-rows.h"

static bool supported(void)
{
	/* The builtin also asks whether the system saves the registers (XGETBV). */
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
	       __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma") &&
	       kc_cpu_has_f16c();
}

const struct kc_level kc_level_avx512 = {
	.name = "avx512",
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
