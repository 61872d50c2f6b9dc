/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "daemon/cache/tree-private.h"
#include "ipc/base/hash.h"

/* --- namespaces --- */

static struct list *ns_bucket(struct tree *t, uint64_t hash)
{
	return &t->namespaces[hash % TREE_NS_BUCKETS];
}

static uint64_t name_hash(const struct tree *t, struct tree_name name)
{
	return hash_u64(name.bytes, name.n, t->config.seed);
}

struct tree_ns *tree_ns_find(struct tree *t, struct tree_name name)
{
	struct list *head = ns_bucket(t, name_hash(t, name));

	list_for_each(l, head) {
		struct tree_ns *ns = list_entry(l, struct tree_ns, link);

		if (ns->n_name == name.n && !memcmp(ns->name, name.bytes, name.n))
			return ns;
	}
	return NULL;
}

static struct tree_ns *ns_new(struct tree *t, struct tree_name name)
{
	struct tree_ns *ns = calloc(1, sizeof(*ns) + name.n);

	if (!ns)
		return NULL;
	memcpy(ns->name, name.bytes, name.n);
	ns->n_name = name.n;
	ns->hash = name_hash(t, name);
	ns->root.id = t->next_id++;
	ns->root.ns = ns;
	ns->tree = t;
	list_push_back(ns_bucket(t, ns->hash), &ns->link);
	t->stats.n_namespaces++;
	return ns;
}

int tree_ns_get(struct tree *t, struct tree_name name, struct tree_ns **out)
{
	struct tree_ns *ns = tree_ns_find(t, name);

	if (!ns)
		ns = ns_new(t, name);
	if (!ns)
		return -ENOMEM;
	ns->n_paths++;
	*out = ns;
	return 0;
}

static void ns_collect(struct tree *t, struct tree_ns *ns)
{
	if (ns->n_paths || ns->n_entries)
		return;
	list_unlink(&ns->link);
	t->stats.n_namespaces--;
	free(ns);
}

void tree_ns_put(struct tree *t, struct tree_ns *ns)
{
	ns->n_paths--;
	ns_collect(t, ns);
}

/* --- the index --- */

/*
 * XXH3 of short inputs all but adds the seed to the bytes, so that consecutive ids and
 * small tokens would make up for each other: ids are spread first (Stafford's
 * variant 13 of MurmurHash3's finalizer, as in splitmix64).
 */
static uint64_t seed_of(const struct tree *t, uint64_t id)
{
	id = (id ^ id >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	id = (id ^ id >> 27) * UINT64_C(0x94d049bb133111eb);
	return t->config.seed ^ id ^ id >> 31;
}

static uint64_t hash_tokens(const struct tree *t, const struct tree_entry *parent, const int32_t *tokens,
			    uint32_t n_tokens)
{
	return hash_u64(tokens, n_tokens * sizeof(*tokens), seed_of(t, parent->id)) & t->hash_mask;
}

static struct tree_entry **bucket_of(const struct tree *t, uint64_t hash)
{
	return &t->buckets[hash & (t->n_buckets - 1)];
}

struct tree_entry *tree_child(const struct tree *t, const struct tree_entry *parent, const int32_t *tokens,
			      uint32_t n_tokens)
{
	uint64_t hash = hash_tokens(t, parent, tokens, n_tokens);

	for (struct tree_entry *e = *bucket_of(t, hash); e; e = e->chain)
		if (e->hash == hash && e->parent->id == parent->id && e->n_tokens == n_tokens &&
		    !memcmp(e->tokens, tokens, n_tokens * sizeof(*tokens)))
			return e;
	return NULL;
}

static void index_insert(struct tree *t, struct tree_entry *e)
{
	struct tree_entry **bucket = bucket_of(t, e->hash);

	for (const struct tree_entry *other = *bucket; other; other = other->chain)
		if (other->hash == e->hash) {
			t->stats.collisions++;
			break;
		}
	e->chain = *bucket;
	*bucket = e;
}

void tree_unlink_child(struct tree *t, struct tree_entry *e)
{
	struct tree_entry **place = bucket_of(t, e->hash);

	while (*place != e)
		place = &(*place)->chain;
	*place = e->chain;
	e->chain = NULL;
	if (e->pending)
		return;
	tree_order_remove(e->parent, e);
	e->parent->n_resident -= !e->stored;
}

/* --- what has gone --- */

/*
 * A table of hashes, each in the one place where it may be: the newer wins.  The lowest
 * bit says why it went.  It explains misses and nothing else, so that an error does no
 * harm.  The root's id is new whenever its namespace is, so its name stands in.
 */
static uint64_t ghost_key(const struct tree *t, const struct tree_entry *parent, const int32_t *tokens,
			  uint32_t n_tokens)
{
	uint64_t id = parent->parent ? parent->id : parent->ns->hash;

	return hash_u64(tokens, n_tokens * sizeof(*tokens), seed_of(t, id)) & ~UINT64_C(1);
}

static uint64_t *ghost_place(const struct tree *t, uint64_t key)
{
	return &t->ghosts[(key >> 1) & (t->n_buckets - 1)];
}

void tree_note_ghost(struct tree *t, const struct tree_entry *e, bool expired)
{
	uint64_t key = ghost_key(t, e->parent, e->tokens, e->n_tokens);

	*ghost_place(t, key) = key | expired;
}

enum tree_miss tree_ghost(const struct tree *t, const struct tree_entry *parent, const int32_t *tokens,
			  uint32_t n_tokens)
{
	uint64_t key = ghost_key(t, parent, tokens, n_tokens), found = *ghost_place(t, key);

	if ((found & ~UINT64_C(1)) != key)
		return TREE_MISS_NONE;
	return found & 1 ? TREE_MISS_EXPIRED : TREE_MISS_EVICTED;
}

/* --- entries --- */

uint64_t tree_entry_bytes(const struct tree *t)
{
	return sizeof(struct tree_entry) + t->block_tokens * sizeof(int32_t);
}

static int charge_entry(struct tree *t, struct charge *charge, const struct evict_uid *uid)
{
	int err = charge_init(charge, t->config.accounts, uid->uid, ACCOUNT_KV, tree_entry_bytes(t));

	return err == ACCOUNT_E_QUOTA ? TREE_E_QUOTA : err;
}

/* A zeroed one out of the slab, but for its room for tokens. */
static struct tree_entry *slab_take(struct tree *t)
{
	struct tree_entry *e = t->free;

	if (e) {
		t->free = e->chain;
	} else if (t->n_slab < t->max_slab) {
		e = &t->slab[t->n_slab];
		e->tokens = t->tokens + (size_t)t->n_slab++ * t->block_tokens;
	} else {
		return NULL;
	}
	*e = (struct tree_entry){ .tokens = e->tokens };
	return e;
}

static void slab_put(struct tree *t, struct tree_entry *e)
{
	e->id = 0;
	e->chain = t->free;
	t->free = e;
}

int tree_entry_new(struct tree *t, struct tree_entry *parent, const int32_t *tokens, uint32_t n_tokens,
		   struct evict_uid *uid, uint64_t now, struct tree_entry **out)
{
	struct charge charge = CHARGE_NULL;
	struct tree_entry *e;
	int err = charge_entry(t, &charge, uid);

	if (err)
		return err;
	e = slab_take(t);
	if (!e) {
		charge_deinit(&charge);
		return TREE_E_FULL;
	}
	e->id = t->next_id++;
	e->ns = parent->ns;
	e->parent = parent;
	e->first = parent->first + parent->n_tokens;
	e->n_tokens = n_tokens;
	memcpy(e->tokens, tokens, n_tokens * sizeof(*tokens));
	e->hash = hash_tokens(t, parent, tokens, n_tokens);
	e->pending = true;
	e->created = now;
	e->charge = charge;
	list_init(&e->waiters);
	list_init(&e->pending_link);
	list_push_back(&t->pending, &e->pending_link);
	uid->n_refs++;
	evict_item_init(&t->evict, &e->item, uid, e->first);
	index_insert(t, e);
	e->ns->n_entries++;
	t->stats.n_entries++;
	t->stats.n_pending++;
	*out = e;
	return 0;
}

static void drop_stored(struct tree *t, struct tree_entry *e)
{
	t->stats.stored_bytes -= host_block_bytes(&e->host);
	host_drop(t->config.host, &e->host, kb_tokens_bytes(pool_root_geometry(t->config.root), e->n_tokens));
	t->stats.n_stored--;
}

void tree_offer(struct tree *t, struct tree_entry *e)
{
	if (!e->parent || e->n_locks || e->pending)
		return;
	if (e->stored ? !e->children : !e->n_resident)
		evict_offer(tree_evict_of(t, e), &e->item);
}

static void give_block(struct tree *t, struct tree_entry *e)
{
	tree_unkeep(t, e);
	pool_block_unref(t->config.root, e->block);
}

void tree_entry_remove(struct tree *t, struct tree_entry *e)
{
	struct tree_entry *parent = e->parent;
	struct tree_ns *ns = e->ns;

	if (!e->detached)
		tree_unlink_child(t, e);
	if (e->pending) {
		t->stats.n_pending--;
		list_unlink(&e->pending_link);
	} else {
		t->stats.tokens -= e->n_tokens;
		if (e->stored)
			drop_stored(t, e);
		else
			give_block(t, e);
	}
	evict_item_deinit(tree_evict_of(t, e), &e->item);
	charge_deinit(&e->charge);
	slab_put(t, e);
	t->stats.n_entries--;
	ns->n_entries--;
	tree_offer(t, parent);
	ns_collect(t, ns);
}

/* Short leaves that e begins with say nothing that e does not. */
static void absorb(struct tree *t, struct tree_entry *e)
{
	for (uint32_t n = 1; n < e->n_tokens; n++) {
		struct tree_entry *shorter = tree_child(t, e->parent, e->tokens, n);

		if (!shorter || shorter->n_locks)
			continue;
		e->item.hits += shorter->item.hits;
		tree_entry_remove(t, shorter);
	}
}

void tree_entry_fill(struct tree *t, struct tree_entry *e, uint32_t block)
{
	absorb(t, e);
	tree_entry_place(t, e, block);
}

void tree_entry_place(struct tree *t, struct tree_entry *e, uint32_t block)
{
	pool_block_ref(t->config.root, block);
	e->block = block;
	e->pending = false;
	e->owner = NULL;
	list_unlink(&e->pending_link);
	tree_order_insert(e->parent, e);
	e->parent->n_resident++;
	t->stats.n_pending--;
	t->stats.tokens += e->n_tokens;
	t->stats.entered++;
}

int tree_entry_move(struct tree *t, struct tree_entry *e, struct evict_uid *uid)
{
	struct charge charge = CHARGE_NULL;
	int err;

	if (e->item.uid == uid)
		return 0;
	err = charge_entry(t, &charge, uid);
	if (err)
		return err;
	charge_deinit(&e->charge);
	e->charge = charge;
	uid->n_refs++;
	evict_item_move(&t->evict, &e->item, uid);
	return 0;
}

int tree_entry_promote(struct tree *t, struct tree_entry *e, struct evict_uid *uid, uint32_t block)
{
	struct charge charge = CHARGE_NULL;
	int err = 0;

	if (e->item.uid->uid != uid->uid)
		err = charge_entry(t, &charge, uid);
	if (err)
		return err;
	if (charge.account) {
		charge_deinit(&e->charge);
		e->charge = charge;
	}
	drop_stored(t, e);
	uid->n_refs++;
	evict_item_transfer(host_evict(t->config.host), &t->evict, &e->item, uid);
	e->stored = false;
	pool_block_ref(t->config.root, block);
	e->block = block;
	e->parent->n_resident++;
	t->n_locked += e->n_locks > 0;
	tree_offer(t, e);
	return 0;
}

/* --- locks --- */

void tree_lock(struct tree *t, struct tree_entry *e)
{
	for (; e && !e->n_locks++; e = e->parent) {
		if (!e->parent)
			return;
		evict_withdraw(tree_evict_of(t, e), &e->item);
		t->n_locked += !e->stored;
	}
}

void tree_unlock(struct tree *t, struct tree_entry *e)
{
	while (!--e->n_locks && e->parent) {
		struct tree_entry *parent = e->parent;

		t->n_locked -= !e->stored;
		/* Its parent has the lock that e was, so that this goes no further up. */
		if (!e->children && (e->pending || e->doomed))
			tree_entry_remove(t, e);
		else
			tree_offer(t, e);
		e = parent;
	}
}
