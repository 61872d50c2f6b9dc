/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "client/lib/arena.h"
#include "ipc/base/checked.h"

static uint32_t block_end(const struct list *l)
{
	const struct arena_block *b = list_entry(l, struct arena_block, link);

	return b->offset + b->size;
}

/* The gap before `next`, which may be the head: begins where the one before it ends. */
static uint32_t gap_before(const struct arena *a, const struct list *next, uint32_t *begin)
{
	*begin = next->prev == &a->blocks ? 0 : block_end(next->prev);
	uint32_t end = next == &a->blocks ? a->size : list_entry(next, struct arena_block, link)->offset;
	return end - *begin;
}

int arena_alloc(struct arena *a, struct arena_block *b, uint64_t size)
{
	uint32_t begin;

	if (size > a->size)
		return -ENOSPC;
	size = MAX((size + ARENA_ALIGN - 1) & ~(uint64_t)(ARENA_ALIGN - 1), (uint64_t)ARENA_ALIGN);
	struct list *next = a->blocks.next;
	for (;;) {
		if (gap_before(a, next, &begin) >= size)
			break;
		if (next == &a->blocks)
			return -ENOSPC;
		next = next->next;
	}
	b->offset = begin;
	b->size = (uint32_t)size;
	list_insert_before(next, &b->link);
	return 0;
}

void arena_free(struct arena_block *b)
{
	list_unlink(&b->link);
	b->offset = b->size = 0;
}

uint32_t arena_largest(const struct arena *a)
{
	uint32_t begin, largest = 0;

	for (const struct list *next = a->blocks.next;; next = next->next) {
		uint32_t gap = gap_before(a, next, &begin);
		largest = MAX(largest, gap & ~(ARENA_ALIGN - 1));
		if (next == &a->blocks)
			return largest;
	}
}
