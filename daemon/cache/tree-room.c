/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who makes room.  A victim of the pool goes on to the host tier, coded, where there is one; what makes room there
 * goes for good.  Below what is ready there may be stored entries, below stored ones nothing else.
 */
#include <errno.h>

#include "daemon/cache/tree-private.h"
#include "ipc/base/checked.h"

/* The host counts its own budget for each entry. */
_Static_assert(sizeof(struct tree_entry) + 32 * sizeof(int32_t) <= HOST_ENTRY_BYTES, "entries are larger");

/* --- for good --- */

static struct tree_entry *deepest_below(struct tree_entry *e)
{
	while (e->children)
		e = tree_order_first(e);
	return e;
}

static void remove_one(struct tree *t, struct tree_entry *e, uint64_t now)
{
	bool expired = tree_expired(e, now);

	tree_note_ghost(t, e, expired);
	evict_note_victim(tree_evict_of(t, e), &e->item);
	tree_entry_remove(t, e);
	t->stats.expired += expired;
	t->stats.evicted += !expired;
}

uint32_t tree_remove_all(struct tree *t, struct tree_entry *e, uint64_t now)
{
	uint32_t n = 1;

	for (; e->children; n++)
		remove_one(t, deepest_below(e), now);
	remove_one(t, e, now);
	return n;
}

static struct evict_item *victim_of(struct evict *order, uid_t uid, uint64_t now)
{
	struct evict_uid *only = evict_uid_get(order, uid);
	struct evict_item *item;

	if (!only)
		return NULL;
	item = evict_victim(order, only, now);
	evict_uid_unref(order, only);
	return item;
}

/* Something stored goes, whatever tree's it is. */
static bool shrink_host(struct host *h, const uid_t *uid, uint64_t now)
{
	struct evict *order = host_evict(h);
	struct evict_item *item = uid ? victim_of(order, *uid, now) : evict_victim(order, NULL, now);
	struct tree_entry *e;

	if (!item)
		return false;
	e = list_entry(item, struct tree_entry, item);
	remove_one(e->ns->tree, e, now);
	return true;
}

/* --- to the host tier and back --- */

static uint64_t plain_bytes(const struct tree *t, const struct tree_entry *e)
{
	return kb_tokens_bytes(pool_root_geometry(t->config.root), e->n_tokens);
}

/* The host has what e's block holds, at the cost of what it has of others.  0, HOST_E_FULL, HOST_E_QUOTA, -errno. */
static int put_block(struct tree *t, struct tree_entry *e, uint64_t now, struct host_block *out)
{
	uid_t uid = e->item.uid->uid;
	struct host *h = t->config.host;
	uint64_t n = plain_bytes(t, e);
	int err;

	do {
		/* For the largest that may come, so that it takes new memory once. */
		err = host_reserve(h, kb_block_bytes(pool_root_geometry(t->config.root)));
	} while (err == HOST_E_FULL && shrink_host(h, NULL, now));
	if (!err)
		err = pool_block_read(t->config.root, e->block, e->n_tokens, host_plain(h));
	if (!err)
		err = host_encode(h, n);
	if (err)
		return err;
	do {
		err = host_put(h, uid, out);
	} while ((err == HOST_E_FULL && shrink_host(h, NULL, now)) ||
		 (err == HOST_E_QUOTA && shrink_host(h, &uid, now)));
	return err;
}

/* A ready one, not locked, that has no ready ones below: gives its block back.  False: it can't be stored. */
static bool store(struct tree *t, struct tree_entry *e, uint64_t now)
{
	struct host_block block = { 0 };
	struct evict *order;
	struct evict_uid *u;

	if (!t->config.host || !tree_block_is_good(t, e))
		return false;
	order = host_evict(t->config.host);
	u = evict_uid_get(order, e->item.uid->uid);
	if (!u)
		return false;
	if (put_block(t, e, now, &block)) {
		evict_uid_unref(order, u);
		return false;
	}
	evict_note_victim(&t->evict, &e->item);
	evict_item_transfer(&t->evict, order, &e->item, u);
	tree_unkeep(t, e);
	pool_block_unref(t->config.root, e->block);
	e->host = block;
	e->stored = true;
	e->parent->n_resident--;
	t->stats.n_stored++;
	t->stats.stored_bytes += host_block_bytes(&block);
	t->stats.stored++;
	tree_offer(t, e);
	tree_offer(t, e->parent);
	return true;
}

/* A stored one's bytes are in host_plain() then. */
int tree_decode(struct tree *t, struct tree_entry *e, uint64_t *n)
{
	struct host *h = t->config.host;
	int err;

	*n = plain_bytes(t, e);
	err = host_get(h, &e->host, *n);
	if (err != HOST_E_DAMAGED)
		return err > 0 ? -ENOMEM : err;
	/* The entry stays for those below it, which are as good as before once it is computed again. */
	tree_note_ghost(t, e, false);
	t->stats.stored_bytes -= host_block_bytes(&e->host);
	host_drop(h, &e->host, *n);
	t->stats.damaged++;
	return TREE_E_GONE;
}

int tree_load(struct tree *t, struct tree_entry *e, uint32_t block)
{
	uint64_t n;
	int err = tree_decode(t, e, &n);

	if (!err)
		err = pool_block_write(t->config.root, block, e->n_tokens, host_plain(t->config.host));
	t->stats.restored += !err;
	return err;
}

/* --- room --- */

/* A victim of the pool leaves it. */
static void evict(struct tree *t, struct tree_entry *e, uint64_t now)
{
	if (tree_expired(e, now) || !store(t, e, now))
		tree_remove_all(t, e, now);
}

static bool evict_of(struct tree *t, uid_t uid, uint64_t now)
{
	struct evict_item *item;

	/* Coded bytes are charged as well: moving them there would give back little. */
	if (t->config.host && shrink_host(t->config.host, &uid, now))
		return true;
	item = victim_of(&t->evict, uid, now);
	if (item)
		tree_remove_all(t, list_entry(item, struct tree_entry, item), now);
	return item != NULL;
}

bool tree_evict(struct tree *t, const uid_t *uid, uint64_t now)
{
	struct evict_item *item;

	if (uid)
		return evict_of(t, *uid, now);
	item = evict_victim(&t->evict, NULL, now);
	if (item)
		evict(t, list_entry(item, struct tree_entry, item), now);
	return item != NULL;
}

static struct tree_entry *ready_below(struct tree_entry *e)
{
	for (e = tree_order_first(e); e->stored;)
		e = tree_order_next(e);
	return e;
}

static void evict_below(struct tree *t, struct tree_entry *top, uint64_t now)
{
	while (top->n_resident) {
		struct tree_entry *e = ready_below(top);

		/* Down to the last one, which goes; what is above it is met again. */
		while (e->n_resident)
			e = ready_below(e);
		evict(t, e, now);
	}
	evict(t, top, now);
}

void tree_evict_blocks(struct tree *t, tree_block_fn fn, void *arg, uint64_t now)
{
	for (uint32_t i = 0; i < t->n_slab; i++) {
		struct tree_entry *e = &t->slab[i];

		if (e->id && !e->pending && !e->stored && !e->n_locks && fn(arg, e->block))
			evict_below(t, e, now);
	}
}

static void for_each_before(const struct tree_entry *e, void (*fn)(void *arg, uint32_t block), void *arg)
{
	for (; e->parent; e = e->parent)
		if (!e->stored)
			fn(arg, e->block);
}

void tree_pinned_blocks(const struct tree *t, void (*fn)(void *arg, uint32_t block), void *arg)
{
	list_for_each(l, &t->pins)
		for_each_before(list_entry(l, struct tree_pin, link)->entry, fn, arg);
	for (uint32_t i = 0; t->n_held && i < t->n_slab; i++)
		if (t->slab[i].id && t->slab[i].n_held)
			for_each_before(&t->slab[i], fn, arg);
}

uint32_t tree_expire(struct tree *t, uint64_t now, uint32_t max)
{
	struct evict_item *item;
	uint32_t n = 0;

	while (t->config.host && n < max && (item = evict_next_expired(host_evict(t->config.host), now))) {
		struct tree_entry *e = list_entry(item, struct tree_entry, item);

		remove_one(e->ns->tree, e, now);
		n++;
	}
	while (n < max && (item = evict_next_expired(&t->evict, now)))
		n += tree_remove_all(t, list_entry(item, struct tree_entry, item), now);
	return n;
}

uint64_t tree_next_expiry(const struct tree *t)
{
	uint64_t next = evict_next_expiry(&t->evict);

	return t->config.host ? MIN(next, evict_next_expiry(host_evict(t->config.host))) : next;
}

uint32_t tree_n_evictable(const struct tree *t)
{
	return t->stats.n_entries - t->stats.n_stored - t->n_locked;
}
