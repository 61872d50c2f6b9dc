/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/cache/evict.h"

#include <stdlib.h>

#include "ipc/base/checked.h"

/*
 * Weights by measurement (tests/tools/cache-replay): a token at position 4,096 takes twice the work of one
 * at 0, but as much weight on cost and hits as that keeps long chats that are over.
 */
#define COST_DOUBLES_AT 8192u
#define HITS_DOUBLE_AT 4u
/* More than all else that sets the worth of two blocks apart, at least up to position 8,192. */
#define PRIORITY_FACTOR 4u

#define uid_of(l) list_entry((l), struct evict_uid, link)

void evict_init(struct evict *e, enum evict_policy policy, uint32_t capacity, uint64_t idle_ns)
{
	*e = (struct evict){ .policy = policy, .capacity = capacity, .idle_ns = idle_ns };
	list_init(&e->active);
	list_init(&e->idle);
}

/* --- uids --- */

static struct evict_uid *find_uid(struct list *head, uid_t uid)
{
	list_for_each(l, head)
		if (uid_of(l)->uid == uid)
			return uid_of(l);
	return NULL;
}

struct evict_uid *evict_uid_get(struct evict *e, uid_t uid)
{
	struct evict_uid *u = find_uid(&e->active, uid);

	if (!u)
		u = find_uid(&e->idle, uid);
	if (!u) {
		u = calloc(1, sizeof(*u));
		if (!u)
			return NULL;
		u->uid = uid;
		u->idle = true;
		list_push_back(&e->idle, &u->link);
	}
	u->n_refs++;
	return u;
}

void evict_uid_unref(struct evict *e, struct evict_uid *u)
{
	if (--u->n_refs)
		return;
	e->n_active -= !u->idle;
	list_unlink(&u->link);
	free(u);
}

static struct evict_item *lowest_of(const struct evict_uid *u)
{
	return u->leaves.top ? heap_entry(u->leaves.top, struct evict_item, by_score) : NULL;
}

/* Puts the uid where its leaves and its size say. */
static void rank_uid(struct evict *e, struct evict_uid *u)
{
	heap_remove(&e->by_size, &u->by_size);
	heap_remove(&e->by_age, &u->by_age);
	if (!u->leaves.top)
		return;
	heap_push(&e->by_size, &u->by_size, UINT64_MAX - u->n_blocks, u->uid);
	heap_push(&e->by_age, &u->by_age, lowest_of(u)->last_use, u->uid);
}

void evict_uid_activity(struct evict *e, struct evict_uid *u, int by, uint64_t now)
{
	u->n_active += (uint32_t)by;
	u->last_active = now;
	list_unlink(&u->link);
	list_push_back(&e->active, &u->link);
	e->n_active += u->idle;
	u->idle = false;
}

/* Those without sequences for idle_ns do not count any more. */
static void retire_idle(struct evict *e, uint64_t now)
{
	while (!list_empty(&e->active)) {
		struct evict_uid *u = uid_of(e->active.next);

		if (now - u->last_active <= e->idle_ns)
			return;
		if (u->n_active) {
			evict_uid_activity(e, u, 0, now);
			continue;
		}
		u->idle = true;
		e->n_active--;
		list_unlink(&u->link);
		list_push_back(&e->idle, &u->link);
	}
}

/* --- items --- */

void evict_item_init(struct evict *e, struct evict_item *item, struct evict_uid *u, uint32_t first)
{
	uint64_t cost = EVICT_COST_UNIT + (uint64_t)first * EVICT_COST_UNIT / COST_DOUBLES_AT;

	cost = MIN(cost, (uint64_t)UINT32_MAX);
	*item = (struct evict_item){
		.uid = u, .use = e->n_uses++, .base = u->base, .expires = EVICT_NEVER,
		.cost = (uint32_t)cost,
	};
	u->n_blocks++;
	rank_uid(e, u);
}

void evict_item_deinit(struct evict *e, struct evict_item *item)
{
	struct evict_uid *u = item->uid;

	evict_withdraw(e, item);
	u->n_blocks--;
	rank_uid(e, u);
	evict_uid_unref(e, u);
	item->uid = NULL;
}

static void change_uid(struct evict *from, struct evict *to, struct evict_item *item, struct evict_uid *u)
{
	item->uid->n_blocks--;
	rank_uid(from, item->uid);
	evict_uid_unref(from, item->uid);
	item->uid = u;
	item->base = u->base;
	u->n_blocks++;
	rank_uid(to, u);
}

void evict_item_move(struct evict *e, struct evict_item *item, struct evict_uid *u)
{
	change_uid(e, e, item, u);
}

void evict_item_transfer(struct evict *from, struct evict *to, struct evict_item *item, struct evict_uid *u)
{
	evict_withdraw(from, item);
	change_uid(from, to, item, u);
	item->use = to->n_uses++;
}

void evict_touch(struct evict *e, struct evict_item *item, uint64_t now, const struct evict_terms *terms, bool hit)
{
	bool offered = item->by_score.linked;
	uint64_t expires;

	if (!terms->ttl || !checked_add_u64(now, terms->ttl, &expires))
		expires = EVICT_NEVER;
	evict_withdraw(e, item);
	/* The first use sets it, later ones only put it off. */
	if (!item->last_use || expires > item->expires)
		item->expires = expires;
	item->last_use = now;
	item->use = e->n_uses++;
	item->base = item->uid->base;
	item->hits += hit;
	item->priority = terms->priority;
	if (offered)
		evict_offer(e, item);
}

bool evict_expired(const struct evict_item *item, uint64_t now)
{
	return now >= item->expires;
}

uint64_t evict_score(const struct evict *e, const struct evict_item *item)
{
	uint64_t worth = (uint64_t)item->cost * (HITS_DOUBLE_AT + MIN(item->hits, EVICT_HITS_MAX)) / HITS_DOUBLE_AT;

	if (e->policy == EVICT_LRU)
		return item->last_use;
	worth += (uint64_t)((double)item->mass * (double)worth);
	if (item->priority == EVICT_PRIORITY_HIGH)
		worth *= PRIORITY_FACTOR;
	else if (item->priority == EVICT_PRIORITY_LOW)
		worth /= PRIORITY_FACTOR;
	return item->base + worth;
}

void evict_offer(struct evict *e, struct evict_item *item)
{
	if (item->by_score.linked)
		return;
	heap_push(&item->uid->leaves, &item->by_score, evict_score(e, item), item->use);
	if (item->expires != EVICT_NEVER)
		heap_push(&e->by_expiry, &item->by_expiry, item->expires, item->use);
	rank_uid(e, item->uid);
}

void evict_withdraw(struct evict *e, struct evict_item *item)
{
	if (!item->by_score.linked)
		return;
	heap_remove(&item->uid->leaves, &item->by_score);
	heap_remove(&e->by_expiry, &item->by_expiry);
	rank_uid(e, item->uid);
}

/* --- victims --- */

uint64_t evict_next_expiry(const struct evict *e)
{
	return e->by_expiry.top ? heap_entry(e->by_expiry.top, struct evict_item, by_expiry)->expires : EVICT_NEVER;
}

struct evict_item *evict_next_expired(const struct evict *e, uint64_t now)
{
	struct evict_item *item;

	if (!e->by_expiry.top)
		return NULL;
	item = heap_entry(e->by_expiry.top, struct evict_item, by_expiry);
	return evict_expired(item, now) ? item : NULL;
}

/* How much shorter than idle_ns the blocks of a uid beyond its share live where they come and go in a flood. */
#define FLOOD_PART 10u

static bool beyond_share(const struct evict *e, const struct evict_uid *u)
{
	return (uint64_t)u->n_blocks * e->n_active > e->capacity;
}

/* There are leaves.  See the order in evict.h. */
static const struct evict_uid *choose_uid(struct evict *e, uint64_t now)
{
	const struct evict_uid *oldest = heap_entry(e->by_age.top, struct evict_uid, by_age);
	const struct evict_uid *largest = heap_entry(e->by_size.top, struct evict_uid, by_size);

	if (e->policy == EVICT_LRU || now - lowest_of(oldest)->last_use > e->idle_ns)
		return oldest;
	retire_idle(e, now);
	if (beyond_share(e, oldest) || !beyond_share(e, largest) ||
	    now - lowest_of(largest)->last_use > e->idle_ns / FLOOD_PART)
		return oldest;
	return largest;
}

struct evict_item *evict_victim(struct evict *e, const struct evict_uid *only, uint64_t now)
{
	struct evict_item *expired = evict_next_expired(e, now);

	if (only)
		return lowest_of(only);
	if (!e->by_age.top || expired)
		return expired;
	return lowest_of(choose_uid(e, now));
}

void evict_note_victim(const struct evict *e, const struct evict_item *item)
{
	/* One that went since it had expired says nothing of what the others are worth. */
	if (item == lowest_of(item->uid))
		item->uid->base = MAX(item->uid->base, evict_score(e, item));
}
