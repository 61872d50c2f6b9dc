/* SPDX-License-Identifier: Apache-2.0 */
/* The products of the level "amx" against plain C; simde-check.h says how, the rest is as in "avx512". */
#define EMULATED "amx"
#define KC_VNNI
#define KC_AMX
#include "simde-check.h"
