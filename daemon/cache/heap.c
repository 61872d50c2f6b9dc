/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/cache/heap.h"

#include <stddef.h>

static bool before(const struct heap_node *a, const struct heap_node *b)
{
	return a->key < b->key || (a->key == b->key && a->tie < b->tie);
}

/* Two heaps by their tops, which have no siblings; either may be NULL. */
static struct heap_node *meld(struct heap_node *a, struct heap_node *b)
{
	struct heap_node *top, *other;

	if (!a || !b)
		return a ? a : b;
	top = before(b, a) ? b : a;
	other = top == a ? b : a;
	other->prev = top;
	other->next = top->child;
	if (top->child)
		top->child->prev = other;
	top->child = other;
	return top;
}

/* The classic two passes: siblings in pairs from the left, the pairs from the right. */
static struct heap_node *combine(struct heap_node *first)
{
	struct heap_node *pairs = NULL, *top = NULL;

	while (first) {
		struct heap_node *a = first, *b = a->next;

		first = b ? b->next : NULL;
		a->next = a->prev = NULL;
		if (b)
			b->next = b->prev = NULL;
		a = meld(a, b);
		a->next = pairs;
		pairs = a;
	}
	while (pairs) {
		struct heap_node *next = pairs->next;

		pairs->next = NULL;
		top = meld(top, pairs);
		pairs = next;
	}
	return top;
}

void heap_push(struct heap *h, struct heap_node *n, uint64_t key, uint64_t tie)
{
	*n = (struct heap_node){ .key = key, .tie = tie, .linked = true };
	h->top = meld(h->top, n);
}

void heap_remove(struct heap *h, struct heap_node *n)
{
	struct heap_node *below;

	if (!n->linked)
		return;
	below = combine(n->child);
	if (h->top == n) {
		h->top = below;
	} else {
		if (n->prev->child == n)
			n->prev->child = n->next;
		else
			n->prev->next = n->next;
		if (n->next)
			n->next->prev = n->prev;
		h->top = meld(h->top, below);
	}
	*n = (struct heap_node){ 0 };
}
