/* SPDX-License-Identifier: Apache-2.0 */
/* A ring and a client segment in plain memory, so that a sanitizer knows where they end. */
#ifndef KVD_TEST_FUZZ_RING_MEMORY_H
#define KVD_TEST_FUZZ_RING_MEMORY_H

#include "ipc/segment.h"
#include "tests/fuzz/fuzz.h"

static inline struct segment ring_memory_new(uint32_t data_size)
{
	struct segment s = { .fd = -1, .size = KVD_SEGMENT_DATA + data_size };

	s.map = aligned_alloc(4096, s.size);
	FUZZ_CHECK(s.map);
	memset(s.map, 0, s.size);
	return s;
}

static inline void ring_memory_free(struct segment *s)
{
	free(s->map);
}

#endif
