/* SPDX-License-Identifier: Apache-2.0 */
/* The products of the level "avx512vnni" against plain C; simde-check.h says how, the rest is as in "avx512". */
#define EMULATED "avx512vnni"
#define KC_VNNI
#include "simde-check.h"
