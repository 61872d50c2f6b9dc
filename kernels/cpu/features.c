/* SPDX-License-Identifier: Apache-2.0 */
/* CPUID, XCR0, and the permission for tiles. */
#include "features.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TILE_BIT (1u << 24)		/* leaf 7, EDX; gcc and clang name them differently */
#define INT8_BIT (1u << 25)
#define XCR0_TILES (3u << 17)		/* XTILECFG and XTILEDATA */
#define XTILEDATA 18
#define REQUEST_PERMISSION 0x1023	/* ARCH_REQ_XCOMP_PERM of asm/prctl.h, which is newer than some systems */

/* Not __builtin_cpu_supports(): clang before 17 does not know this one. */
static bool has_f16c(void)
{
	unsigned a, b, c, d;

	return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* The builtin also asks whether the system saves the registers (OSXSAVE, XCR0). */
bool kc_has_avx2(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

bool kc_has_avx512(void)
{
	return kc_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool kc_has_avx512vnni(void)
{
	return kc_has_avx512() && __builtin_cpu_supports("avx512vnni");
}

/* Palette 1: 8 tiles of 16 rows of 64 bytes; multiplied 16 rows at a time. */
static bool tiles_have_size(void)
{
	unsigned a, b, c, d;

	if (!__get_cpuid_count(0x1d, 0, &a, &b, &c, &d) || a < 1 || !__get_cpuid_count(0x1d, 1, &a, &b, &c, &d))
		return false;
	if ((a & 0xffff) < 8192 || a >> 16 != 1024 || (b & 0xffff) != 64 || b >> 16 < 8 || (c & 0xffff) != 16)
		return false;
	return __get_cpuid_count(0x1e, 0, &a, &b, &c, &d) && (b & 0xff) >= 16 && (b >> 8 & 0xffff) >= 64;
}

static bool tiles_are_saved(void)
{
	unsigned a, d;

	__asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
	return (a & XCR0_TILES) == XCR0_TILES;
}

/* What the builtin found says that there is XGETBV. */
bool kc_has_amx(void)
{
	unsigned a, b, c, d;

	if (!kc_has_avx512vnni() || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & TILE_BIT) || !(d & INT8_BIT))
		return false;
	return tiles_have_size() && tiles_are_saved() && !syscall(SYS_arch_prctl, REQUEST_PERMISSION, XTILEDATA);
}
