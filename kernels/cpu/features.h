/* SPDX-License-Identifier: Apache-2.0 */
/*
 * features.h - which CPU levels this machine has: instructions by CPUID, and registers that the system saves by
 * XCR0 ("Intel 64 and IA-32 Architectures Software Developer's Manual", volume 1, chapters 13 to 15 and 18;
 * volume 2, CPUID).  Compiled for any x86-64, which level-*.c are not: these run before anything is known.
 *
 * Any thread.
 */
#ifndef KC_FEATURES_H
#define KC_FEATURES_H

#include <stdbool.h>

/* AVX2, FMA and F16C. */
bool kc_has_avx2(void);
/* F, BW, DQ and VL, and what AVX2 has. */
bool kc_has_avx512(void);
bool kc_has_avx512vnni(void);
/*
 * AMX-INT8 with tiles of the size that the kernels use, and VNNI.  Asks the system for the tiles, for all threads of
 * this process and its children; asking again does no harm.  Refused where a thread has an alternate signal stack
 * that is too small for them.
 */
bool kc_has_amx(void);

#endif
