/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each ready entry has a record in the pool's kept index (kept.h), if there is one and what is before the entry
 * has one as well; the record goes before the entry's block does.  A tree that ends leaves them there.
 *
 * Adopted entries get new ids: records name each other by blocks and serials of their own.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/cache/tree-private.h"
#include "ipc/base/checked.h"
#include "ipc/base/hash.h"

/* --- records --- */

/* Of a block that nobody writes to any more; of an open tail as well: what is behind its tokens stays as it is. */
static uint64_t block_sum(const struct tree *t, uint32_t block)
{
	const struct kb_geometry *g = pool_root_geometry(t->config.root);

	return hash_u64(pool_block_memory(t->config.root, block), g->block_bytes, 0);
}

void tree_keep(struct tree *t, struct tree_entry *e)
{
	struct kept_record r = { 0 };

	if (e->kept || e->stored || e->doomed || pool_root_kept(t->config.root) == KEPT_NONE ||
	    e->ns->n_name > KEPT_NAME_MAX || (e->parent->parent && !e->parent->kept) ||
	    !pool_block_record(t->config.root, e->block))
		return;
	if (e->parent->parent) {
		r.parent_serial = e->parent->kept->serial;
		r.parent_block = e->parent->block;
	}
	r.last_use = e->item.last_use;
	r.expires = e->item.expires;
	r.hits = e->item.hits;
	r.priority = e->item.priority;
	r.kv_sum = block_sum(t, e->block);
	r.created = e->created;
	r.uid = e->item.uid->uid;
	r.first = e->first;
	r.n_tokens = e->n_tokens;
	memcpy(r.tokens, e->tokens, e->n_tokens * sizeof(*e->tokens));
	r.n_name = (uint32_t)e->ns->n_name;
	memcpy(r.name, e->ns->name, e->ns->n_name);
	e->kept = pool_block_keep(t->config.root, e->block, &r);
	t->stats.n_kept += e->kept != NULL;
}

static void is_verified(struct tree *t, struct tree_entry *e)
{
	t->n_unverified -= e->unverified;
	e->unverified = false;
}

void tree_unkeep(struct tree *t, struct tree_entry *e)
{
	is_verified(t, e);
	if (!e->kept || t->closing)
		return;
	pool_block_unkeep(t->config.root, e->block);
	e->kept = NULL;
	t->stats.n_kept--;
}

/* --- first use --- */

bool tree_block_is_good(struct tree *t, struct tree_entry *e)
{
	if (!e->unverified)
		return true;
	if (block_sum(t, e->block) != e->kept->kv_sum)
		return false;
	is_verified(t, e);
	t->stats.verified++;
	return true;
}

bool tree_verified(struct tree *t, struct tree_entry *e)
{
	if (tree_block_is_good(t, e))
		return true;
	t->stats.kept_damaged++;
	tree_drop(t, e);
	return false;
}

/* At most max of those that were not; returns how many. */
static uint32_t verify_way(struct tree *t, struct tree_entry *e, const int32_t *tokens, uint32_t n, uint64_t now,
			   uint32_t max)
{
	uint32_t n_verified = 0;

	for (uint32_t end = e->first + e->n_tokens; t->n_unverified && n >= end && n - end >= t->block_tokens;
	     end += t->block_tokens) {
		e = tree_full_child(t, e, tokens + end, now);
		if (!e || e->stored || (e->unverified && n_verified == max))
			break;
		n_verified += e->unverified;
		if (!tree_verified(t, e))
			break;
	}
	return n_verified;
}

void tree_verify_way(struct tree *t, struct tree_entry *e, const int32_t *tokens, uint32_t n, uint64_t now)
{
	(void)verify_way(t, e, tokens, n, now, UINT32_MAX);
}

uint32_t tree_verify(struct tree_path *p, const int32_t *tokens, uint32_t n, uint64_t now, uint32_t max)
{
	return n && !p->at->doomed ? verify_way(p->tree, p->at, tokens, n - 1, now, max) : 0;
}

/* --- adoption --- */

/* Blocks with a record, in the order of their positions: so parents come before children. */
struct candidate {
	uint32_t first, block;
};

struct adoption {
	struct tree *tree;
	struct candidate *candidates;
	uint32_t n, max;
	struct tree_entry **by_block;	/* [capacity] */
	uint32_t n_vocab;
	bool any_pins;
	struct tree_adopted result;
};

static bool get_record(const struct tree *t, uint32_t block, struct kept_record *out)
{
	const struct pool_root *root = t->config.root;
	uint32_t per_chunk = pool_root_geometry(root)->blocks_per_chunk;

	return kept_get(pool_root_index(root), pool_root_kept(root), block / per_chunk, block % per_chunk, out);
}

static void note_candidate(void *arg, uint32_t block)
{
	struct adoption *a = arg;

	if (a->n < a->max)
		a->candidates[a->n++] = (struct candidate){
			.first = pool_block_record(a->tree->config.root, block)->first, .block = block,
		};
}

static int compare(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	if (x->first != y->first)
		return x->first < y->first ? -1 : 1;
	return x->block < y->block ? -1 : x->block > y->block;
}

static bool tokens_are_valid(const struct adoption *a, const struct kept_record *r)
{
	for (uint32_t i = 0; i < r->n_tokens; i++)
		if (r->tokens[i] < 0 || (a->n_vocab && (uint32_t)r->tokens[i] >= a->n_vocab))
			return false;
	return r->n_tokens == a->tree->block_tokens ||
	       (r->n_tokens < a->tree->block_tokens && !a->tree->config.whole_blocks);
}

/* The adopted entry before it, or the root of its namespace, which has one path more; NULL: it is not there. */
static struct tree_entry *parent_of(struct adoption *a, const struct kept_record *r)
{
	struct tree_name name = { r->name, r->n_name };
	struct tree_entry *parent;
	struct tree_ns *ns;

	if (!r->parent_serial)
		return !r->first && !tree_ns_get(a->tree, name, &ns) ? &ns->root : NULL;
	if (r->parent_block >= pool_root_capacity(a->tree->config.root))
		return NULL;
	parent = a->by_block[r->parent_block];
	if (!parent || parent->kept->serial != r->parent_serial || parent->n_tokens != a->tree->block_tokens ||
	    parent->first + parent->n_tokens != r->first || parent->ns->n_name != r->n_name ||
	    memcmp(parent->ns->name, r->name, r->n_name))
		return NULL;
	parent->ns->n_paths++;
	return parent;
}

static void take_terms(struct tree_entry *e, const struct kept_record *r, uint64_t now)
{
	e->created = MIN(r->created, now);
	e->item.last_use = MAX(MIN(r->last_use, now), UINT64_C(1));
	e->item.expires = r->expires;
	e->item.hits = MIN(r->hits, 1u << 20);
	if (r->priority >= EVICT_PRIORITY_LOW && r->priority <= EVICT_PRIORITY_HIGH)
		e->item.priority = (enum evict_priority)r->priority;
}

static int charge_both(struct adoption *a, struct tree_entry *parent, const struct kept_record *r, uint32_t block,
		       uint64_t now, struct tree_entry **out)
{
	struct tree *t = a->tree;
	struct evict_uid *u = evict_uid_get(&t->evict, r->uid);
	struct tree_entry *e;
	int err;

	if (!u)
		return -ENOMEM;
	err = tree_entry_new(t, parent, r->tokens, r->n_tokens, u, now, &e);
	if (!err) {
		err = pool_block_adopt(t->config.root, r->uid, block);
		if (err)
			tree_entry_remove(t, e);
		else
			*out = e;
	}
	evict_uid_unref(&t->evict, u);
	return err;
}

static bool adopt_below(struct adoption *a, struct tree_entry *parent, const struct kept_record *r, uint32_t block,
			uint64_t now)
{
	struct tree *t = a->tree;
	struct tree_entry *e = NULL;

	if (tree_child(t, parent, r->tokens, r->n_tokens)) {
		a->result.n_bad++;
		return false;
	}
	if (charge_both(a, parent, r, block, now, &e)) {
		a->result.n_quota++;
		return false;
	}
	tree_entry_place(t, e, block);
	pool_block_unref(t->config.root, block);	/* the tree has its own */
	if (parent->parent)
		evict_withdraw(&t->evict, &parent->item);	/* on offer since a child was refused */
	take_terms(e, r, now);
	for (uint32_t i = 0; i < KEPT_PINS; i++)
		a->any_pins |= r->pins[i] != 0;
	e->kept = pool_block_record(t->config.root, block);
	e->adopted = e->unverified = true;
	t->n_unverified++;
	a->by_block[block] = e;
	return true;
}

static bool adopt_one(struct adoption *a, uint32_t block, uint64_t now)
{
	struct kept_record r;
	struct tree_entry *parent;
	struct tree_ns *ns;
	bool done;

	if (!get_record(a->tree, block, &r) || !tokens_are_valid(a, &r)) {
		a->result.n_bad++;
		return false;
	}
	parent = parent_of(a, &r);
	if (!parent) {
		a->result.n_orphans++;
		return false;
	}
	ns = parent->ns;
	done = adopt_below(a, parent, &r, block, now);
	tree_ns_put(a->tree, ns);
	return done;
}

static void repin(struct tree *t, struct tree_entry *e)
{
	uid_t uid;

	for (uint32_t i = 0; i < KEPT_PINS; i++) {
		if (!kept_pinned_by(e->kept, i, &uid))
			e->kept->pins[i] = 0;
		else if (tree_pin(t, e, uid))
			kept_unpin(e->kept, uid);
	}
}

/* Once all are there: what could go is on offer, and pins hold what they held. */
static void finish(struct adoption *a, uint64_t now)
{
	struct tree *t = a->tree;

	for (uint32_t i = 0; i < a->n; i++) {
		struct tree_entry *e = a->by_block[a->candidates[i].block];

		if (e)
			tree_offer(t, e);
	}
	for (uint32_t i = 0; a->any_pins && i < a->n; i++) {
		struct tree_entry *e = a->by_block[a->candidates[i].block];

		if (e)
			repin(t, e);
	}
}

static void adopt_all(struct adoption *a, uint64_t now)
{
	struct tree *t = a->tree;

	pool_root_wake(t->config.root, note_candidate, a);
	qsort(a->candidates, a->n, sizeof(*a->candidates), compare);
	for (uint32_t i = 0; i < a->n; i++) {
		uint32_t block = a->candidates[i].block;

		if (adopt_one(a, block, now))
			a->result.n_entries++;
		else
			pool_block_unkeep(t->config.root, block);
	}
	pool_root_settle(t->config.root);
	finish(a, now);
	t->stats.adopted += a->result.n_entries;
	t->stats.n_kept += a->result.n_entries;
}

int tree_adopt(struct tree *t, uint32_t n_vocab, uint64_t now, struct tree_adopted *out)
{
	struct adoption a = { .tree = t, .max = pool_root_n_dormant(t->config.root), .n_vocab = n_vocab };
	int err = 0;

	if (a.max) {
		a.candidates = calloc(a.max, sizeof(*a.candidates));
		a.by_block = calloc(pool_root_capacity(t->config.root), sizeof(*a.by_block));
		if (a.candidates && a.by_block)
			adopt_all(&a, now);
		else
			err = -ENOMEM;
		free(a.candidates);
		free(a.by_block);
	}
	if (!err)
		*out = a.result;
	return err;
}
