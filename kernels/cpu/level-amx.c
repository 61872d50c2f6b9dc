/* SPDX-License-Identifier: Apache-2.0 */
/* The level of AMX-INT8, with AVX-512 and VNNI. */
#define KC_VNNI
#include "features.h"
#include "simd-avx512.h"
#include "simd-amx.h"
#include "simd-level.h"

const struct kc_level kc_level_amx = {
	.name = "amx",
	.supported = kc_has_amx,
	.product = amx_product,
	SIMD_LEVEL,
};
