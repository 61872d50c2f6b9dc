/* SPDX-License-Identifier: Apache-2.0 */
/*
 * merge-queue.h - the merges that wait to be applied, smallest first.
 *
 * An entry is rank << 32 | place: the smallest number is the lowest rank, and
 * the leftmost place among equals.
 *
 * Two parts: a sorted list, which is taken from its beginning, and a binary heap
 * with what came since.  Where the list is used up and the heap is large, the
 * heap is sorted by radix and becomes the list.  So a run of one character,
 * whose merges come rank by rank, costs the same per entry however long it is;
 * no text costs more than log n per entry.
 *
 * One thread at a time.
 */
#ifndef KVD_MERGE_QUEUE_H
#define KVD_MERGE_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct merge_queue {
	uint64_t *list;		/* [capacity] ascending from at to n_list */
	uint64_t *heap;		/* [capacity] */
	size_t at, n_list, n_heap;
	size_t capacity;
	bool filling;		/* nothing was taken yet: heap is in the order of pushes */
	bool by_place;		/* while filling: places came in ascending order */
	uint64_t n_steps;	/* how often an entry was moved or looked at: the measure of work */
};

#define MERGE_QUEUE_NULL ((struct merge_queue){ 0 })

/* Empties the queue and makes room for n entries.  0 or -ENOMEM. */
int merge_queue_reset(struct merge_queue *q, size_t n);
void merge_queue_deinit(struct merge_queue *q);

/* There is room. */
void merge_queue_push(struct merge_queue *q, uint64_t entry);
/* False when there is none. */
bool merge_queue_pop(struct merge_queue *q, uint64_t *entry);

static inline uint64_t merge_queue_entry(uint32_t rank, uint32_t place)
{
	return (uint64_t)rank << 32 | place;
}

#endif
