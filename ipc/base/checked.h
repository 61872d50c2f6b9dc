/* SPDX-License-Identifier: Apache-2.0 */
/* Checked arithmetic: each returns true and writes *out, or false on overflow. */
#ifndef KVD_BASE_CHECKED_H
#define KVD_BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool checked_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
	uint64_t r;
	if (__builtin_add_overflow(a, b, &r))
		return false;
	*out = r;
	return true;
}

static inline bool checked_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
	uint64_t r;
	if (__builtin_mul_overflow(a, b, &r))
		return false;
	*out = r;
	return true;
}

/* Rounds up to a multiple of a power of two. */
static inline bool checked_align_u64(uint64_t v, uint64_t align, uint64_t *out)
{
	uint64_t r;
	if (!checked_add_u64(v, align - 1, &r))
		return false;
	*out = r & ~(align - 1);
	return true;
}

#define MIN(a, b) ({ __typeof__(a) min_a_ = (a); __typeof__(b) min_b_ = (b); min_a_ < min_b_ ? min_a_ : min_b_; })
#define MAX(a, b) ({ __typeof__(a) max_a_ = (a); __typeof__(b) max_b_ = (b); max_a_ > max_b_ ? max_a_ : max_b_; })
#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

#endif
