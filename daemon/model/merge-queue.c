/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/merge-queue.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MIN_SORTED 4096		/* a heap of fewer entries stays one */
#define DIGIT_BITS 11
#define N_DIGITS (1u << DIGIT_BITS)

int merge_queue_reset(struct merge_queue *q, size_t n)
{
	q->at = q->n_list = q->n_heap = 0;
	q->filling = q->by_place = true;
	if (n <= q->capacity)
		return 0;
	if (n > SIZE_MAX / sizeof(*q->heap))
		return -ENOMEM;
	free(q->list);
	free(q->heap);
	q->list = malloc(n * sizeof(*q->list));
	q->heap = malloc(n * sizeof(*q->heap));
	q->capacity = q->list && q->heap ? n : 0;
	return q->capacity ? 0 : -ENOMEM;
}

void merge_queue_deinit(struct merge_queue *q)
{
	free(q->list);
	free(q->heap);
	*q = MERGE_QUEUE_NULL;
}

static void sift_up(struct merge_queue *q, size_t i, uint64_t entry)
{
	while (i > 0 && q->heap[(i - 1) / 2] > entry) {
		q->heap[i] = q->heap[(i - 1) / 2];
		i = (i - 1) / 2;
		q->n_steps++;
	}
	q->heap[i] = entry;
	q->n_steps++;
}

static void sift_down(struct merge_queue *q, size_t i, uint64_t entry)
{
	for (;;) {
		size_t child = 2 * i + 1;

		q->n_steps++;
		if (child >= q->n_heap)
			break;
		if (child + 1 < q->n_heap && q->heap[child + 1] < q->heap[child])
			child++;
		if (q->heap[child] >= entry)
			break;
		q->heap[i] = q->heap[child];
		i = child;
	}
	q->heap[i] = entry;
}

/* One stable pass by the digit that begins at a bit; false if all entries have the same. */
static bool sort_by_digit(const uint64_t *from, uint64_t *to, size_t n, unsigned bit)
{
	size_t starts[N_DIGITS] = { 0 }, sum = 0;

	for (size_t i = 0; i < n; i++)
		starts[from[i] >> bit & (N_DIGITS - 1)]++;
	if (starts[from[0] >> bit & (N_DIGITS - 1)] == n)
		return false;
	for (size_t d = 0; d < N_DIGITS; d++) {
		size_t count = starts[d];

		starts[d] = sum;
		sum += count;
	}
	for (size_t i = 0; i < n; i++)
		to[starts[from[i] >> bit & (N_DIGITS - 1)]++] = from[i];
	return true;
}

/* What is in the heap becomes the list, which is used up. */
static void sort_heap(struct merge_queue *q)
{
	uint64_t *from = q->heap, *to = q->list;

	for (unsigned bit = q->filling && q->by_place ? 32 : 0; bit < 64; bit += DIGIT_BITS) {
		uint64_t *swap = from;

		q->n_steps += q->n_heap;
		if (!sort_by_digit(from, to, q->n_heap, bit))
			continue;
		from = to;
		to = swap;
	}
	q->list = from;
	q->heap = to;
	q->at = 0;
	q->n_list = q->n_heap;
	q->n_heap = 0;
}

/* Puts the entries in order before one is taken. */
static void settle(struct merge_queue *q)
{
	if (q->at == q->n_list && q->n_heap >= MIN_SORTED)
		sort_heap(q);
	else if (q->filling)
		for (size_t i = q->n_heap / 2; i-- > 0;)
			sift_down(q, i, q->heap[i]);
	q->filling = false;
}

void merge_queue_push(struct merge_queue *q, uint64_t entry)
{
	if (!q->filling) {
		sift_up(q, q->n_heap++, entry);
		return;
	}
	if (q->n_heap > 0 && (uint32_t)entry < (uint32_t)q->heap[q->n_heap - 1])
		q->by_place = false;
	q->heap[q->n_heap++] = entry;
	q->n_steps++;
}

bool merge_queue_pop(struct merge_queue *q, uint64_t *entry)
{
	if (q->filling || q->at == q->n_list)
		settle(q);
	q->n_steps++;
	if (q->at < q->n_list && (q->n_heap == 0 || q->list[q->at] < q->heap[0])) {
		*entry = q->list[q->at++];
		return true;
	}
	if (q->n_heap == 0)
		return false;
	*entry = q->heap[0];
	if (--q->n_heap > 0)
		sift_down(q, 0, q->heap[q->n_heap]);
	return true;
}
