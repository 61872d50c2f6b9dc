/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A treap (Seidel, Aragon 1996): a search tree by tokens that is a heap by a hash of
 * the ids, hence of logarithmic depth, whatever the tokens are.  The
 * child that has most first tokens in common with a prompt is next to where the
 * prompt would be.
 */
#include <string.h>

#include "daemon/cache/tree-private.h"
#include "ipc/base/checked.h"

static uint64_t priority(const struct tree_entry *e)
{
	/* Fibonacci hashing: ids are consecutive. */
	uint64_t x = e->id * UINT64_C(0x9e3779b97f4a7c15);

	return (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
}

uint32_t tree_common(const struct tree_entry *e, const int32_t *tokens, uint32_t n_tokens)
{
	uint32_t n = MIN(e->n_tokens, n_tokens), i = 0;

	while (i < n && e->tokens[i] == tokens[i])
		i++;
	return i;
}

/* Lexicographic, the shorter first where one begins with the other. */
static bool before(const struct tree_entry *e, const int32_t *tokens, uint32_t n_tokens)
{
	uint32_t i = tree_common(e, tokens, n_tokens);

	if (i < e->n_tokens && i < n_tokens)
		return e->tokens[i] < tokens[i];
	return e->n_tokens < n_tokens;
}

/* Where the pointer to e is. */
static struct tree_entry **place_of(struct tree_entry *parent, struct tree_entry *e)
{
	if (!e->up)
		return &parent->children;
	return e->up->left == e ? &e->up->left : &e->up->right;
}

/* e, which is below another, takes its place and has it below. */
static void rotate_up(struct tree_entry *parent, struct tree_entry *e)
{
	struct tree_entry *top = e->up, **place = place_of(parent, top), **inner, **from;

	from = top->left == e ? &top->left : &top->right;
	inner = top->left == e ? &e->right : &e->left;
	*from = *inner;
	if (*inner)
		(*inner)->up = top;
	*inner = top;
	*place = e;
	e->up = top->up;
	top->up = e;
}

void tree_order_insert(struct tree_entry *parent, struct tree_entry *e)
{
	struct tree_entry **place = &parent->children;

	e->left = e->right = e->up = NULL;
	while (*place) {
		e->up = *place;
		place = before(*place, e->tokens, e->n_tokens) ? &(*place)->right : &(*place)->left;
	}
	*place = e;
	while (e->up && priority(e) > priority(e->up))
		rotate_up(parent, e);
}

void tree_order_remove(struct tree_entry *parent, struct tree_entry *e)
{
	struct tree_entry *below;

	while (e->left && e->right)
		rotate_up(parent, priority(e->left) > priority(e->right) ? e->left : e->right);
	below = e->left ? e->left : e->right;
	*place_of(parent, e) = below;
	if (below)
		below->up = e->up;
	e->left = e->right = e->up = NULL;
}

struct tree_entry *tree_order_first(const struct tree_entry *parent)
{
	struct tree_entry *e = parent->children;

	while (e && e->left)
		e = e->left;
	return e;
}

struct tree_entry *tree_order_next(struct tree_entry *e)
{
	if (e->right) {
		for (e = e->right; e->left;)
			e = e->left;
		return e;
	}
	while (e->up && e->up->right == e)
		e = e->up;
	return e->up;
}

struct tree_entry *tree_order_prev(struct tree_entry *e)
{
	if (e->left) {
		for (e = e->left; e->right;)
			e = e->right;
		return e;
	}
	while (e->up && e->up->left == e)
		e = e->up;
	return e->up;
}

void tree_order_find(const struct tree_entry *parent, const int32_t *tokens, uint32_t n_tokens,
		     struct tree_entry **before_out, struct tree_entry **after_out)
{
	struct tree_entry *e = parent->children;

	*before_out = *after_out = NULL;
	while (e) {
		if (before(e, tokens, n_tokens)) {
			*before_out = e;
			e = e->right;
		} else {
			*after_out = e;
			e = e->left;
		}
	}
}
