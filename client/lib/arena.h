/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena.h - who has which part of the client segment's arena.
 *
 * The arena itself is shared with the daemon, so nothing is kept in it but the
 * bytes: blocks are embedded in what they belong to (a request, a question) and
 * linked in the order of their offsets.  First fit; a client has few blocks at a
 * time.  Thread: the client's lock.
 */
#ifndef KVD_LIB_ARENA_H
#define KVD_LIB_ARENA_H

#include <stdint.h>

#include "ipc/base/list.h"

#define ARENA_ALIGN 8u

struct arena {
	uint32_t size;
	struct list blocks;
};

struct arena_block {
	struct list link;
	uint32_t offset, size;
};

static inline void arena_init(struct arena *a, uint32_t size)
{
	a->size = size;
	list_init(&a->blocks);
}

static inline void arena_block_init(struct arena_block *b)
{
	list_init(&b->link);
	b->offset = b->size = 0;
}

/* Takes size bytes (rounded up to ARENA_ALIGN, at least that).  0 or -ENOSPC. */
int arena_alloc(struct arena *a, struct arena_block *b, uint64_t size);
/* Twice, or a block that has nothing, is harmless. */
void arena_free(struct arena_block *b);
/* The largest size that arena_alloc() would grant now. */
uint32_t arena_largest(const struct arena *a);

#endif
