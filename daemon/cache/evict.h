/* SPDX-License-Identifier: Apache-2.0 */
/*
 * evict.h - which cached block goes first.
 *
 * The tree offers blocks that could go (leaves that nobody uses) and withdraws
 * them; this file keeps them in order and names a victim.  Nothing here knows
 * tokens, blocks or the tree.
 *
 * Score (GreedyDual with frequency, after Cherkasova 1998 and Cao, Irani 1997):
 *
 *     score = base + cost * (1 + hits / 4) * (1 + mass) * priority
 *
 * base is the score of its uid's last victim at the time of the block's last use, so
 * that what is not used ages, without a clock: recency and worth are on one scale.
 * cost is what the block takes to compute again, growing with its position;
 * hits are later uses, up to EVICT_HITS_MAX; mass is the share of attention that it drew, as
 * told from outside, 0 if nobody tells; priority is 1/4, 1 or 4, as its last user said.  It ranks a
 * uid's blocks among each other: it takes no place from another uid.
 *
 * Order of victims:
 *   1. what has expired;
 *   2. of the uids' lowest scores the one used least recently, if that was more than idle_ns ago;
 *   3. the same, however recent, unless its uid has no more than its share and another has more, whose own
 *      lowest was used within idle_ns / 10: that one floods the cache.  A share is
 *      capacity / uids that were active within idle_ns;
 *   4. then the lowest score of the uid that has most.
 *
 * So what somebody within its share uses is not lost to one who floods the cache; what nobody has used
 * for long takes no place from either.  As long as the blocks of all live for a minute, place goes to those who
 * use it, whoever they are: strict shares cost 7 % of the hits on the trace `chats` (tests/tools/cache-replay).
 *
 * Of mass no gain has been seen: on the traces `chats` and `agents`, with half of it assumed at position 0 and a
 * quarter at the end, hits stay within 0.1 %; shares that have nothing to do with later use cost up to 2 %.
 *
 * Each call takes O(log n) amortised; nothing is scanned and nothing but a uid allocated.
 * Thread: the engine thread.  Times are in ns of one monotonic clock.
 */
#ifndef KVD_EVICT_H
#define KVD_EVICT_H

#include <sys/types.h>

#include "daemon/cache/heap.h"

#define EVICT_NEVER UINT64_MAX
#define EVICT_HITS_MAX 2u
#define EVICT_COST_UNIT 1024u	/* a block at position 0 */

enum evict_priority { EVICT_PRIORITY_LOW = -1, EVICT_PRIORITY_NORMAL, EVICT_PRIORITY_HIGH };

#define EVICT_IDLE_NS (UINT64_C(600) * 1000000000u)	/* where none is chosen: ten minutes */

/* How a sequence wants to have kept what it uses. */
struct evict_terms {
	uint64_t ttl;			/* it expires so long after its last use; 0: never */
	enum evict_priority priority;
};

/* EVICT_LRU: least recently used alone, whoever's; a baseline for measurements. */
enum evict_policy { EVICT_SCORE, EVICT_LRU };

/* A uid that has blocks or sequences. */
struct evict_uid {
	struct list link;		/* in evict.active or .idle, the longest inactive first */
	uid_t uid;
	bool idle;
	uint32_t n_refs;		/* blocks and sequences */
	uint32_t n_blocks;
	uint32_t n_active;		/* sequences */
	uint64_t last_active;
	uint64_t base;			/* the score of its last victim */
	struct heap leaves;		/* of its items, by score */
	struct heap_node by_size, by_age;	/* while it has leaves */
};

/* Embedded in what may be evicted. */
struct evict_item {
	struct heap_node by_score, by_expiry;
	struct evict_uid *uid;
	uint64_t use;			/* counts uses of all items: equal scores go by the last one */
	uint64_t base, last_use, expires;
	uint32_t cost;			/* in units of 1/EVICT_COST_UNIT */
	uint32_t hits;
	float mass;			/* 0 .. 1 */
	enum evict_priority priority;	/* of its last use */
};

struct evict {
	enum evict_policy policy;
	uint32_t capacity;		/* blocks */
	uint64_t idle_ns;
	struct list active, idle;	/* uids */
	uint32_t n_active;
	uint64_t n_uses;
	/* Uids that have leaves: the most blocks first; the least recent use of the lowest score first. */
	struct heap by_size, by_age;
	struct heap by_expiry;		/* leaves that expire */
};

void evict_init(struct evict *e, enum evict_policy policy, uint32_t capacity, uint64_t idle_ns);

/* The uid with one reference more, or NULL: no memory. */
struct evict_uid *evict_uid_get(struct evict *e, uid_t uid);
void evict_uid_unref(struct evict *e, struct evict_uid *u);
/* A sequence of the uid begins, goes on (by 0) or ends: +1, 0, -1. */
void evict_uid_activity(struct evict *e, struct evict_uid *u, int by, uint64_t now);

/*
 * item is zeroed.  Takes over a reference to u and counts the block, of tokens from position first on.  One that
 * is not full is worth as much: less, by its tokens, measured 1 to 2 % fewer hits on the trace `chats`.
 */
void evict_item_init(struct evict *e, struct evict_item *item, struct evict_uid *u, uint32_t first);
/* It is gone: withdrawn, not counted any more. */
void evict_item_deinit(struct evict *e, struct evict_item *item);
/* Another uid had it computed after all; takes over a reference to u.  It is not offered now. */
void evict_item_move(struct evict *e, struct evict_item *item, struct evict_uid *u);

/*
 * Goes over from one order to another, in which u is its uid; takes over a reference to u. Its times, hits and
 * mass stay. It is not offered then.
 */
void evict_item_transfer(struct evict *from, struct evict *to, struct evict_item *item, struct evict_uid *u);

/* It was used now, and expires no earlier than these terms say; hit: what it holds was of use to another. */
void evict_touch(struct evict *e, struct evict_item *item, uint64_t now, const struct evict_terms *terms, bool hit);
bool evict_expired(const struct evict_item *item, uint64_t now);
uint64_t evict_score(const struct evict *e, const struct evict_item *item);

/* It could go from now on, or no longer; both may be said twice. */
void evict_offer(struct evict *e, struct evict_item *item);
void evict_withdraw(struct evict *e, struct evict_item *item);

/* An item that was offered, of that uid only unless NULL; NULL: there is none. */
struct evict_item *evict_victim(struct evict *e, const struct evict_uid *only, uint64_t now);
/* When the first of those offered expires; EVICT_NEVER. */
uint64_t evict_next_expiry(const struct evict *e);
/* The next offered one that has expired, or NULL. */
struct evict_item *evict_next_expired(const struct evict *e, uint64_t now);
/* The victim is about to go: what its uid uses from now on is worth more. */
void evict_note_victim(const struct evict *e, const struct evict_item *item);

#endif
