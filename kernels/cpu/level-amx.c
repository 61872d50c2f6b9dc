/* SPDX-License-Identifier: Apache-2.0 */
/* The level of AMX-INT8, with AVX-512 and VNNI. */
#include <sys/syscall.h>
#include <unistd.h>

#define KC_VNNI
#include "simd-avx512.h"
#include "simd-amx.h"
#include "simd-level.h"

#define CPUID_TILE (1u << 24)	/* leaf 7, EDX; gcc and clang name them differently */
#define CPUID_INT8 (1u << 25)
#define XCR0_TILES (3u << 17)	/* XTILECFG and XTILEDATA: the system saves them */
#define XTILEDATA 18
#define REQUEST_PERMISSION 0x1023	/* ARCH_REQ_XCOMP_PERM of asm/prctl.h, which is newer than some systems */

/* Tiles must be asked for, once for all threads; asking again does no harm. */
static bool supported(void)
{
	unsigned a, b, c, d;

	if (!kc_cpu_has_avx512() || !__builtin_cpu_supports("avx512vnni") || !__get_cpuid_count(7, 0, &a, &b, &c, &d) ||
	    !(d & CPUID_TILE) || !(d & CPUID_INT8))
		return false;
	__asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
	return (a & XCR0_TILES) == XCR0_TILES && !syscall(SYS_arch_prctl, REQUEST_PERMISSION, XTILEDATA);
}

const struct kc_level kc_level_amx = {
	.name = "amx",
	.supported = supported,
	.product = amx_product,
	SIMD_LEVEL,
};
