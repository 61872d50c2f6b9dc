/* SPDX-License-Identifier: Apache-2.0 */
/* The level "avx512" against plain C on a machine without it; simde-check.h says how. */
#define EMULATED "avx512"
#include "simde-check.h"
