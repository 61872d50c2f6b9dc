/* SPDX-License-Identifier: Apache-2.0 */
/* simd-level.h - what the levels with vectors share: all kernels but the product. */
#ifndef KC_SIMD_LEVEL_H
#define KC_SIMD_LEVEL_H

#include "simd-attention.h"
#include "simd-rows.h"

#define SIMD_LEVEL \
	.quantize = simd_quantize, \
	.quantize16 = simd_quantize16, \
	.rmsnorm = simd_rmsnorm, \
	.rotate = simd_rotate, \
	.hadamard = simd_hadamard, \
	.gated = simd_gated, \
	.softcap = simd_softcap, \
	.store_f16 = simd_store_f16, \
	.attend = simd_attend, \
	.merge = simd_merge

#endif
