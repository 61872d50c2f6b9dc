/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tree.h - the prefix tree: whose KV is in which block.
 *
 *     namespace "uid:1000"
 *       `- [t0 ... t15]         entry: one block of the pool, a full one
 *            |- [t16 ... t31]   branches share what is before them
 *            |    `- [t32 t33]  short leaf: the open tail of a sequence that ended
 *            `- [u16 ... u31]   pending: claimed by a sequence that will compute it
 *
 * A tree is made for one root identity (model, KV type, numerics ...: everything that
 * the stored numbers depend on but the tokens) and refers to blocks of its pool_root.
 * Inside it each namespace is a tree of its own: what was stored under one name is not found
 * under another.  An entry is found by the id of its parent and a hash of its own tokens;
 * equal hashes chain and token ids are always compared.  Ids are never reused.
 *
 * A sequence walks the tree with a `struct tree_path`.  Its life:
 *
 *     init -> lookup -+-> (waits) -> woken -> lookup ...
 *                     `-> blocks, copy of the tail, claim -> enter, enter ... -> keep_tail -> deinit
 *                                                   ^------- reset (preempted) <---'
 *
 * Lookup moves the path to the deepest entry that holds its tokens.  What is on the
 * path stays until it moves away.  What it is going to compute it claims, so that others with
 * the same tokens wait rather than compute it too; entering a block that is full makes
 * it of use to all.  Where it is there already, the sequence's copy is given up for it.
 * A sequence that can't go on (parked, preempted, throttled, cancelled) abandons its claims;
 * those who waited for them are woken, look up again, and the first claims them.
 *
 * References: an entry holds one on its block, a sequence one on each of its own table.
 * The uid that had a block computed is charged for it (by the pool) and for
 * its entry (here, as ACCOUNT_KV) until it is evicted.  Entries come from memory that is
 * reserved with the tree; a table of tokens is in it, no pointer to a request's.
 *
 * Thread: the engine thread.  No clock: `now` is in ns, monotonic.
 */
#ifndef KVD_TREE_H
#define KVD_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/cache/evict.h"
#include "daemon/cache/host.h"
#include "daemon/cache/pool.h"
#include "ipc/base/account.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/list.h"

struct tree;
struct tree_ns;		/* a namespace: as long as it has entries or paths */
struct tree_entry;

#define TREE_E_FULL 1	/* no entry is left, or none of the bounded share of pins */
#define TREE_E_QUOTA 2	/* the uid's share is used up */
#define TREE_E_PARENT 3	/* what is before it is not in the tree, or no longer wanted there */
#define TREE_E_GONE 4	/* it is not there any more */

#define TREE_NAME_MAX 255u	/* bytes of a namespace's name */

/* A namespace's name: any bytes. */
struct tree_name {
	const void *bytes;
	size_t n;
};

struct tree_config {
	struct accounts *accounts;
	struct pool_root *root;
	struct host *host;		/* for what is evicted, shared with other trees; NULL: none */
	uint64_t seed;			/* of the hash: random, so that nobody makes tokens that collide */
	uint32_t hash_bits;		/* of the hash that are used; 0: 64.  Fewer for tests */
	uint32_t max_entries;		/* with a block, and as many pending; 0: pool_root_capacity() */
	uint32_t max_pinned;		/* blocks on pinned paths, counted for each pin; 0: a quarter of max_entries */
	uint64_t idle_ns;		/* see evict.h; 0: ten minutes */
	enum evict_policy policy;
	bool whole_blocks;		/* reuse is to the block, not to the token: a KV type that is sealed */
};

/* 0, -EINVAL, -ENOMEM. */
int tree_new(struct tree **out, const struct tree_config *config);
/* Every path is gone.  All entries go. */
void tree_free(struct tree *t);
CLEANUP_DEFINE(struct tree, tree_free)

/* --- a sequence's way through it --- */

/* Embedded in a request.  Fields are the tree's. */
struct tree_path {
	struct tree *tree;
	struct tree_ns *ns;
	struct evict_uid *uid;
	struct evict_uid *host_uid;	/* the same in the host's order, NULL without one */
	struct tree_entry *at;		/* its own prefix ends here; held */
	struct tree_entry *tail;	/* held until tree_tail_done() */
	struct tree_entry *claim;	/* the deepest pending entry of its own */
	struct list wait_link;		/* in an entry's waiters, or those woken */
	uint32_t depth;			/* blocks from the root to at */
	struct evict_terms terms;
	bool waits;
	bool restores;			/* the last lookup found stored blocks, and is not counted yet ... */
	uint32_t lookup_from;		/* ... it began at this position */
};

/* terms: of what the sequence uses and leaves.  0, -EINVAL, -ENOMEM. */
int tree_path_init(struct tree_path *p, struct tree *t, struct tree_name name, uid_t uid,
		   const struct evict_terms *terms, uint64_t now);
/* A zeroed one is fine, twice too. */
void tree_path_deinit(struct tree_path *p, uint64_t now);
/* Back to the root: holds and claims nothing, waits for nothing. */
void tree_path_reset(struct tree_path *p, uint64_t now);

/* An entry, as long as its tree is there; once the entry is gone it stands for nothing, and does no harm. */
struct tree_ref {
	struct tree_entry *entry;
	uint64_t id;
};

enum tree_miss {	/* why not all of a prompt (but its last token) was found */
	TREE_MISS_NONE,		/* it was */
	TREE_MISS_EMPTY,	/* nothing is stored from there on */
	TREE_MISS_DIFFERS,	/* another token is stored there */
	TREE_MISS_EXPIRED,
	TREE_MISS_EVICTED,
	TREE_MISS_NAMESPACE,	/* another namespace of the caller's has it */
	TREE_MISS_BLOCK,	/* less than a block is missing, and blocks are of use as a whole */
};

struct tree_match {
	uint32_t n_tokens;	/* found, from position 0 on: blocks of the path and the tail */
	uint32_t n_tail;	/* of them in the last, partly matching block ... */
	uint32_t tail_block;	/* ... the first n_tail tokens of this one: kb_ops.copy_tokens() puts them into
				 * a block of the sequence's own, or a copy of the whole where the backend lacks it */
	bool tail_stored;	/* it has no block: tree_restore_tail() puts them there */
	uint32_t n_stored;	/* blocks after the path's that are in the host tier: n_tail is 0 and miss EVICTED
				 * until tree_restore() has brought them back and the lookup is repeated */
	uint32_t n_pending;	/* tokens after the path's blocks that others are computing */
	bool waits;		/* the path waits for them; it was not moved */
	enum tree_miss miss;	/* at position n_tokens */
	uint32_t n_same;	/* TREE_MISS_DIFFERS: tokens from there on that do not, in a block that is of no use */
	uint32_t miss_also;	/* TREE_MISS_NAMESPACE: which of `also` has it */
};

/*
 * The longest stored prefix of a prompt, at most n - 1 tokens.  The path goes on from where it is; tokens[0]
 * is the sequence's first.  may_wait: where others are computing more of
 * it, the path waits for that instead of moving, and is woken when it
 * is there or abandoned.  also: other namespaces that the caller may know of, for `miss` alone.
 */
void tree_lookup(struct tree_path *p, const int32_t *tokens, uint32_t n, bool may_wait,
		 const struct tree_name *also, size_t n_also, uint64_t now, struct tree_match *out);
/* What a lookup would find now; nothing changes, nothing is counted. */
struct tree_peek {
	uint32_t n_tokens, n_tail, n_pending, n_stored;	/* as in tree_match */
	bool tail_stored;
	uint32_t n_evictable;		/* entries that could be evicted now, and not once the path holds them */
	uint32_t n_unverified;		/* of the whole blocks found: tree_verify() */
	struct tree_ref last;		/* the deepest whole block, stored ones included; the root: nothing */
};
void tree_peek(const struct tree_path *p, const int32_t *tokens, uint32_t n, uint64_t now, struct tree_peek *out);
/* The next path that is not to wait any more, or NULL: first those who began first to wait for an entry. */
struct tree_path *tree_next_woken(struct tree *t);

uint32_t tree_path_n_blocks(const struct tree_path *p);
/* Block numbers of the path's blocks from the nth on, tree_path_n_blocks() - n of them. */
void tree_path_blocks(const struct tree_path *p, uint32_t n, uint32_t *blocks);
/* tail_block of the last lookup was copied, or is not wanted. */
void tree_tail_done(struct tree_path *p);

/*
 * The sequence is going to compute the blocks that n tokens fill, beyond its path.  Claims them up to the
 * first that is there or claimed already, or as far as memory and quota go: a claim
 * is a courtesy.  Returns the number of blocks claimed.
 */
uint32_t tree_claim(struct tree_path *p, const int32_t *tokens, uint32_t n, uint64_t now);
/* Gives up what it claimed and has not entered. */
void tree_abandon(struct tree_path *p);

/*
 * The block after the path's is full: tokens [block_tokens] are its.  The path moves on to it.
 * *block is the sequence's, with a reference of its own; where the tree has that block already, it is exchanged
 * for the tree's.  0; TREE_E_FULL, TREE_E_QUOTA, TREE_E_PARENT, -ENOMEM: nothing has changed, it may be tried again.
 */
int tree_enter(struct tree_path *p, const int32_t *tokens, uint64_t now, uint32_t *block);
/*
 * A sequence ends with n < block_tokens tokens after its path: keeps them as a short leaf, unless
 * something there begins with them.  The same errors.
 */
int tree_keep_tail(struct tree_path *p, const int32_t *tokens, uint32_t n, uint32_t block, uint64_t now);

/*
 * The block after the path's is in the host tier: tokens [block_tokens] are its.  *block is the sequence's, with a
 * reference of its own: gets the content, and the path moves on to it. Where somebody
 * has brought it back already, *block is exchanged for the tree's.
 * 0; TREE_E_GONE: it was damaged, or went: a miss; TREE_E_QUOTA, TREE_E_PARENT, -ENOMEM.
 */
int tree_restore(struct tree_path *p, const int32_t *tokens, uint64_t now, uint32_t *block);
/* The tail of the last lookup is stored: its tokens come into a block of one's own.  0, TREE_E_GONE, -ENOMEM. */
int tree_restore_tail(struct tree_path *p, uint32_t block);

/* The path's ith block. */
struct tree_ref tree_path_ref(const struct tree_path *p, uint32_t i);
/* One on a path stays as it is, with its block, until it is let go, also where it is not found any more. */
void tree_hold(struct tree *t, struct tree_ref ref);
void tree_let_go(struct tree *t, struct tree_ref ref);
/*
 * Its tokens' keys and values, from whatever tier, as kb_ops.block_read() gives them.  0; TREE_E_GONE: it is gone, or
 * was damaged; -ENOMEM; -ENOTSUP.
 */
int tree_read(struct tree *t, struct tree_ref ref, void *dst);
/* The path moves on to the block that has these tokens [block_tokens], if it is there; that is no hit. */
bool tree_step(struct tree_path *p, const int32_t *tokens, uint64_t now);
/* Under what id the disk has it: the caller's to note.  0: it has not, or the entry is gone. */
uint64_t tree_disk_id(struct tree_ref ref);
void tree_set_disk_id(struct tree_ref ref, uint64_t id);
/* The one before it; before the first block, and where the entry is gone: nothing, whose entry is NULL. */
struct tree_ref tree_ref_parent(struct tree_ref ref);

/* The path's blocks drew these shares (0 .. 1) of attention lately: [n], the first n blocks. */
void tree_path_mass(struct tree_path *p, const float *mass, uint32_t n);

/* --- what outlives the process --- */

/*
 * What is kept of the tree's root (pool_root_keep()) by an earlier process, or by an earlier tree, is in the tree from
 * now on, charged to the uids that it was charged to.  Once, before anything else is in it. Blocks are not looked
 * at: each is verified when it is first used, and one that is damaged goes then, with all below it.
 * n_vocab: token ids are less; 0: any.  0, -ENOMEM: nothing is taken over.
 */
struct tree_adopted {
	uint32_t n_entries;
	uint32_t n_orphans;		/* dropped: what was before them is not there ... */
	uint32_t n_quota;		/* ... the uid may not have so much */
	uint32_t n_bad;			/* ... they contradict others */
};
int tree_adopt(struct tree *t, uint32_t n_vocab, uint64_t now, struct tree_adopted *out);
/*
 * Verifies the first max blocks that a lookup would find and nobody has verified yet; returns how many those were.
 */
uint32_t tree_verify(struct tree_path *p, const int32_t *tokens, uint32_t n, uint64_t now, uint32_t max);

/* --- room --- */

/*
 * Frees one block of the pool that nobody uses; where there is a host tier, it goes on there.  uid not NULL:
 * gives back something that it is charged for, first what it has in the host tier, and for good.  False: there
 * is none.
 */
bool tree_evict(struct tree *t, const uid_t *uid, uint64_t now);
/* Frees, for good, one block of the pool that the uid is charged for and nobody has used since.  False: none. */
bool tree_evict_unused(struct tree *t, uid_t uid, uint64_t since, uint64_t now);
/* Removes what has expired and nobody uses, at most max entries; returns how many. */
uint32_t tree_expire(struct tree *t, uint64_t now, uint32_t max);
/* When tree_expire() will next have something to do, as far as is known now; EVICT_NEVER. */
uint64_t tree_next_expiry(const struct tree *t);
/*
 * Frees the blocks that fn wants of those that nobody uses; what is stored after them
 * goes, too.  Looks at all entries.
 */
typedef bool (*tree_block_fn)(void *arg, uint32_t block);
void tree_evict_blocks(struct tree *t, tree_block_fn fn, void *arg, uint64_t now);
/* Calls fn for every block of a pinned path, and of one that is held, for some more than once. */
void tree_pinned_blocks(const struct tree *t, void (*fn)(void *arg, uint32_t block), void *arg);
/* Blocks of the pool that tree_evict() can free in all. */
uint32_t tree_n_evictable(const struct tree *t);

/* --- control --- */

/*
 * Keeps the entry and all before it until it is unpinned.  uid is charged for
 * the blocks of the whole path, once for each pin.  0 (also if it had pinned it), TREE_E_FULL, TREE_E_QUOTA, -ENOMEM.
 */
int tree_pin(struct tree *t, struct tree_entry *e, uid_t uid);
/* False: the uid had not pinned it. */
bool tree_unpin(struct tree *t, struct tree_entry *e, uid_t uid);
/* Who pinned, one after another: i from 0.  False: there are no more. */
bool tree_pinned_by(const struct tree *t, const struct tree_entry *e, uint32_t i, uid_t *uid);
/*
 * Removes the entry and all below it, with pins and claims.  What is in use goes when it
 * is not any more, but nobody finds it from now on.
 */
void tree_drop(struct tree *t, struct tree_entry *e);
/* All of a namespace's; NULL: of all namespaces. */
void tree_wipe(struct tree *t, const struct tree_name *name);
/* By id, or NULL.  Looks at all entries. */
struct tree_entry *tree_find(struct tree *t, uint64_t id);
/* What follows parent (its entry NULL: what begins a sequence of the namespace) with these tokens; or nothing. */
struct tree_ref tree_find_child(const struct tree *t, struct tree_name name, struct tree_ref parent,
				const int32_t *tokens, uint32_t n_tokens);

enum tree_tier { TREE_TIER_POOL, TREE_TIER_HOST };

struct tree_view {
	struct tree_entry *entry;	/* valid until the tree changes */
	uint64_t id, parent;		/* parent 0: the root of its namespace */
	struct tree_name name;		/* its namespace's */
	const int32_t *tokens;
	uint32_t n_tokens, first;	/* at positions first .. first + n_tokens - 1 */
	enum tree_tier tier;
	uint32_t block;			/* TREE_TIER_POOL */
	uint64_t bytes;			/* in its tier; 0: it was damaged there, and says nothing */
	uid_t uid;			/* who is charged */
	uint32_t hits, n_users, n_pins;
	uint64_t created, last_use, expires, score;
	enum evict_priority priority;
	float mass;			/* share of attention that it drew lately, 0 .. 1 */
	bool evictable;
	bool joined;			/* of the same chain as its parent, see below */
};

/* All entries that hold a block in either tier, each after its parent, until fn returns false. */
typedef bool (*tree_walk_fn)(void *arg, const struct tree_view *view);
void tree_walk(const struct tree *t, tree_walk_fn fn, void *arg);

/*
 * The n entries of lowest ids above `after` that fn wants (NULL: all), by ascending id; returns how many.  So the
 * entries that stay are listed page by page, each once and after its parent, whatever
 * comes and goes meanwhile.  Looks at all entries.
 */
typedef bool (*tree_want_fn)(void *arg, struct tree_name name, uid_t uid);
uint32_t tree_list(struct tree *t, uint64_t after, tree_want_fn fn, void *arg, struct tree_view *out, uint32_t n);
void tree_view(const struct tree *t, struct tree_entry *e, struct tree_view *out);
/* False: it is not there to be found any more. */
bool tree_ref_view(const struct tree *t, struct tree_ref ref, struct tree_view *out);
/*
 * A chain: an entry, its only child, and so on, as long as they are charged to the same uid and none but the last
 * is pinned by itself.  The first of that which e is in.
 */
struct tree_entry *tree_chain_first(struct tree_entry *e);
/* The blocks from the root to e. */
uint32_t tree_depth(const struct tree_entry *e);
/* The entries below e, and their tokens. */
uint32_t tree_n_below(struct tree_entry *e, uint64_t *n_tokens);
/* Copies the at most n first tokens of those from the root to the end of e; returns how many. */
uint32_t tree_path_tokens(const struct tree_entry *e, int32_t *tokens, uint32_t n);
/* tree_wipe() of the namespaces that fn wants (uid is not told); returns how many entries they had. */
uint32_t tree_wipe_if(struct tree *t, tree_want_fn fn, void *arg);
/* At most n names of namespaces that fn wants (uid is not told), valid until the tree changes; returns how many. */
uint32_t tree_names(const struct tree *t, tree_want_fn fn, void *arg, struct tree_name *out, uint32_t n);
/*
 * The last entry of the path that ends within the first n tokens; NULL: there is none.
 */
struct tree_entry *tree_path_entry(const struct tree_path *p, uint32_t n);
/* The blocks that the uid is charged for. */
uint32_t tree_n_blocks_of(const struct tree *t, uid_t uid);

struct tree_stats {
	uint32_t n_namespaces, n_entries, n_pending, n_pinned;	/* n_pinned as max_pinned counts */
	uint64_t bytes;			/* of entries; their blocks are the pool's */
	uint64_t tokens;		/* stored */
	uint64_t lookups, hits;		/* that did not wait; that found a token */
	uint64_t asked_tokens, hit_tokens;
	uint64_t waits, abandoned;	/* lookups that waited; claims given up */
	uint64_t entered, deduplicated, evicted, expired, refused;
	uint64_t collisions;		/* entries that came under the hash of another */
	uint32_t n_stored;		/* entries in the host tier */
	uint64_t stored_bytes;		/* that they take there */
	uint64_t stored, restored, damaged;	/* went there; came back; could not */
	uint32_t n_kept;		/* entries that the next process would find */
	uint64_t adopted, verified, kept_damaged;	/* of an earlier process: all; used; could not be */
};
void tree_stats(const struct tree *t, struct tree_stats *out);

#endif
