/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heap.h - an intrusive pairing heap (Fredman, Sedgewick, Sleator, Tarjan 1986):
 * the least key on top, equal keys by `tie`.  It allocates nothing, so that
 * nothing can fail; push and top take constant time, removal of any node
 * O(log n) amortised.
 */
#ifndef KVD_HEAP_H
#define KVD_HEAP_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/list.h"

/* Zeroed: in no heap. */
struct heap_node {
	struct heap_node *child, *next;
	struct heap_node *prev;		/* the sibling before it, or its parent */
	uint64_t key, tie;
	bool linked;
};

/* Zeroed: empty. */
struct heap {
	struct heap_node *top;
};

void heap_push(struct heap *h, struct heap_node *n, uint64_t key, uint64_t tie);
/* One that is in no heap is left as it is. */
void heap_remove(struct heap *h, struct heap_node *n);

#define heap_entry(node, type, member) list_entry(node, type, member)

#endif
