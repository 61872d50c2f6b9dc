/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tree-private.h - the tree's state and what its files offer each other.
 *
 *   tree.c          paths: lookup, claims, entering
 *   tree-entry.c    entries come, are found, locked, and go; namespaces
 *   tree-order.c    the children of an entry in the order of their tokens
 *   tree-room.c     who goes, from the pool to the host tier or for good, and what comes back
 *   tree-keep.c     what outlives the process, and what an earlier one has left
 *   tree-control.c  pins, removal, figures
 *   tree-list.c     views of entries
 *   tree-share.c    bytes that leave the tree and come in
 */
#ifndef KVD_TREE_PRIVATE_H
#define KVD_TREE_PRIVATE_H

#include "daemon/cache/tree.h"

#define TREE_NS_BUCKETS 64u

/*
 *   (free) -- claimed --> PENDING -- filled --> READY -----------------------------> (free)
 *      |                     |                  ^  |                                    ^
 *      `----- entered ------)|(-----------------'  `- evicted --> STORED -- evicted ----+
 *                            |                  ^-- restored, entered --'               |
 *                            `---- abandoned -------------------------------------------'
 *
 * A pending entry's parent is ready, or pending and claimed by the same path.  A ready entry's parent is ready:
 * what is stored has only stored ones below it, so that leaves go first in either tier.
 *
 * Locks: an entry is locked by each path whose `at` or `tail` it is, each pin, being pending, and each
 * child that is locked.  What is not locked can go, leaves first: a ready entry without ready children is on offer
 * in the tree's order, a stored one without children in the host's.
 * Doomed: dropped while it was locked; it goes with its last lock.
 */
struct tree_entry {
	uint64_t id;			/* 0: free */
	uint64_t hash;			/* of its tokens, by its parent's id */
	struct tree_entry *chain;	/* the next in its bucket; of free ones */
	struct tree_ns *ns;
	struct tree_entry *parent;	/* NULL: the root of its namespace */
	struct tree_entry *children;	/* the ready and stored ones: root of their treap */
	struct tree_entry *left, *right, *up;	/* in its parent's treap */
	int32_t *tokens;		/* [n_tokens] */
	uint32_t n_tokens, first;
	uint64_t disk_id;		/* 0: none */
	uint32_t block;
	struct host_block host;		/* of a stored one; empty: it was damaged */
	uint32_t n_resident;		/* children that have a block of the pool */
	uint32_t n_locks, n_users, n_pins, n_held;
	bool pending, stored, doomed;
	bool detached;			/* doomed, and neither its parent nor the index knows it */
	struct tree_path *owner;	/* of a pending one */
	struct list waiters;		/* for a pending one */
	struct list pending_link;	/* in tree.pending */
	uint64_t created;
	struct kept_record *kept;	/* of a ready one: its record; NULL: it has none */
	bool adopted;			/* it comes from an earlier process, ... */
	bool unverified;		/* ... and its block was not looked at yet */
	struct evict_item item;
	struct charge charge;
};

struct tree_ns {
	struct list link;		/* in its bucket */
	struct tree *tree;
	uint64_t hash;			/* of its name */
	uint32_t n_entries, n_paths;
	struct tree_entry root;
	size_t n_name;
	unsigned char name[];
};

struct tree_pin {
	struct list link;
	struct tree_entry *entry;
	uid_t uid;
	uint32_t n_blocks;
	struct charge charge;
};

struct tree {
	struct tree_config config;
	uint32_t block_tokens;
	uint64_t hash_mask;
	struct tree_entry *slab;	/* [max_slab] */
	int32_t *tokens;		/* [max_slab][block_tokens] */
	uint32_t max_slab;		/* ready, pending and stored */
	uint32_t n_slab;		/* of it were ever used */
	struct tree_entry *free;
	struct tree_entry **buckets;	/* [n_buckets] by id of parent and hash */
	uint64_t *ghosts;		/* [n_buckets] what has gone, see tree-entry.c */
	uint32_t n_buckets;		/* a power of two */
	uint64_t next_id;
	uint32_t n_locked;		/* not counting stored ones */
	uint32_t n_held;		/* calls of tree_hold() */
	uint32_t n_unverified;
	bool closing;			/* it is about to go: what is kept stays so */
	struct list namespaces[TREE_NS_BUCKETS];
	struct list pending;		/* entries */
	struct list woken;		/* paths */
	struct list pins;
	struct evict evict;
	struct tree_stats stats;
};

/* What is in use, or kept by a pin, does not expire. */
static inline bool tree_expired(const struct tree_entry *e, uint64_t now)
{
	return !e->n_locks && evict_expired(&e->item, now);
}

/* Stored, but what was there is damaged: it says nothing until it is computed again. */
static inline bool tree_is_void(const struct tree_entry *e)
{
	return e->stored && !e->host.n_bytes;
}

static inline struct evict *tree_evict_of(struct tree *t, const struct tree_entry *e)
{
	return e->stored ? host_evict(t->config.host) : &t->evict;
}

static inline void tree_touch(struct tree *t, struct tree_entry *e, uint64_t now, const struct evict_terms *terms,
			      bool hit)
{
	evict_touch(tree_evict_of(t, e), &e->item, now, terms, hit);
	if (e->kept)
		kept_touch(e->kept, e->item.last_use, e->item.expires, e->item.hits, e->item.priority);
}

/* tree.c: gives up the deepest of the path's claims, of which it has one. */
void tree_abandon_last(struct tree_path *p);

/* tree-keep.c; without a kept pool all do nothing */
/* A ready one with its terms: it is found again by the next process, if what is before it is. */
void tree_keep(struct tree *t, struct tree_entry *e);
/* It is not any more. Before its block is given back. */
void tree_unkeep(struct tree *t, struct tree_entry *e);
/* It may be used. False: its block was damaged, and it is gone with all below it. */
bool tree_verified(struct tree *t, struct tree_entry *e);
/* Whether it would be; it stays. */
bool tree_block_is_good(struct tree *t, struct tree_entry *e);
/* tree_verified() for the full blocks on the way of tokens below e, up to position n. */
void tree_verify_way(struct tree *t, struct tree_entry *e, const int32_t *tokens, uint32_t n, uint64_t now);

/* tree.c: the full block of these tokens, if it is there to be used: in the pool, or stored */
struct tree_entry *tree_full_child(const struct tree *t, const struct tree_entry *e, const int32_t *tokens,
				   uint64_t now);

/* tree-entry.c */
struct tree_ns *tree_ns_find(struct tree *t, struct tree_name name);
int tree_ns_get(struct tree *t, struct tree_name name, struct tree_ns **out);	/* one path more: 0, -ENOMEM */
void tree_ns_put(struct tree *t, struct tree_ns *ns);
uint64_t tree_entry_bytes(const struct tree *t);
/* A pending one, not locked and without owner.  0, TREE_E_FULL, TREE_E_QUOTA, -ENOMEM. */
int tree_entry_new(struct tree *t, struct tree_entry *parent, const int32_t *tokens, uint32_t n_tokens,
		   struct evict_uid *uid, uint64_t now, struct tree_entry **out);
/* One that is not locked and has no children. */
void tree_entry_remove(struct tree *t, struct tree_entry *e);
/* Gives it a block; takes a reference of the tree's own. Shorter leaves that say nothing else go. */
void tree_entry_fill(struct tree *t, struct tree_entry *e, uint32_t block);
/* The same, but for the leaves. */
void tree_entry_place(struct tree *t, struct tree_entry *e, uint32_t block);
/* Another uid pays for it.  0, TREE_E_QUOTA, -ENOMEM. */
int tree_entry_move(struct tree *t, struct tree_entry *e, struct evict_uid *uid);
/* A stored one gets a block of the pool, as by tree_entry_fill(), and what was stored goes.  As tree_entry_move(). */
int tree_entry_promote(struct tree *t, struct tree_entry *e, struct evict_uid *uid, uint32_t block);
/* If it could go, it is on offer from now on. */
void tree_offer(struct tree *t, struct tree_entry *e);
/* The child with exactly these tokens, pending or not. */
struct tree_entry *tree_child(const struct tree *t, const struct tree_entry *parent, const int32_t *tokens,
			      uint32_t n_tokens);
void tree_unlink_child(struct tree *t, struct tree_entry *e);
void tree_lock(struct tree *t, struct tree_entry *e);
/* It may be gone then, and all that only it kept. */
void tree_unlock(struct tree *t, struct tree_entry *e);
/* Remembers that it went, so that a miss can be explained. */
void tree_note_ghost(struct tree *t, const struct tree_entry *e, bool expired);
/* Whether a child with these tokens went lately, and why: TREE_MISS_NONE if not. */
enum tree_miss tree_ghost(const struct tree *t, const struct tree_entry *parent, const int32_t *tokens,
			  uint32_t n_tokens);

/* tree-room.c: decodes a stored one into a block.  0; TREE_E_GONE: it is void now; -errno: not now. */
int tree_load(struct tree *t, struct tree_entry *e, uint32_t block);
/* The same into host_plain(): n bytes of it. */
int tree_decode(struct tree *t, struct tree_entry *e, uint64_t *n);
/* An unlocked one goes with what is stored below it, leaves first; returns how many entries went. */
uint32_t tree_remove_all(struct tree *t, struct tree_entry *e, uint64_t now);

/* tree-control.c: all of one */
void tree_wipe_ns(struct tree *t, struct tree_ns *ns);

/* tree-order.c */
void tree_order_insert(struct tree_entry *parent, struct tree_entry *e);
void tree_order_remove(struct tree_entry *parent, struct tree_entry *e);
struct tree_entry *tree_order_first(const struct tree_entry *parent);
struct tree_entry *tree_order_next(struct tree_entry *e);
struct tree_entry *tree_order_prev(struct tree_entry *e);
/* The last child before these tokens and the first that is not, either NULL. */
void tree_order_find(const struct tree_entry *parent, const int32_t *tokens, uint32_t n_tokens,
		     struct tree_entry **before, struct tree_entry **after);
/* How many first tokens they have in common. */
uint32_t tree_common(const struct tree_entry *e, const int32_t *tokens, uint32_t n_tokens);

#endif
