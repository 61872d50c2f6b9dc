/* SPDX-License-Identifier: Apache-2.0 */
/* repack.h - weights from GGUF's layout into groups of 16 rows (layout.h). */
#ifndef KC_REPACK_H
#define KC_REPACK_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"

/*
 * The first n_rows <= 16 rows of a group of a matrix with cols columns: row i is in GGUF's layout at src + i * stride.
 * Lanes of other rows are left as they are; in a type of 16 bits they become 0.
 */
void kc_repack_group(uint8_t *group, enum kb_type type, uint32_t cols, const uint8_t *src, size_t stride,
		     uint32_t n_rows);

#endif
