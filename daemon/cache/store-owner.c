/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which uid has how much.  The uids of an open root are in memory, in their order; what a transaction changed goes
 * into the index with it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/cache/store-root.h"
#include "ipc/base/checked.h"

#define ACTIVE_NS (INT64_C(7 * 24 * 3600) * 1000000000)	/* since it wrote last: a week */
#define SHARES_MAX 1024u	/* uids that are looked at; what others have is anybody's */

/* --- of one root --- */

static int reserve(struct disk_root *r, uint32_t n)
{
	uint32_t max = MAX(2 * r->max_owners, 8);
	struct index_owner *owners;

	if (n <= r->max_owners)
		return 0;
	owners = reallocarray(r->owners, max, sizeof(*owners));
	if (!owners)
		return -ENOMEM;
	r->owners = owners;
	r->max_owners = max;
	return 0;
}

int disk_owners_load(struct disk_root *r)
{
	uint32_t next = 0;
	int err = 0;

	r->n_owners = 0;
	do {
		err = reserve(r, r->n_owners + 1);
		if (!err)
			err = index_owner_next(r->index, next, &r->owners[r->n_owners]);
		if (!err)
			next = r->owners[r->n_owners++].uid + 1;
	} while (!err && next);
	return err == INDEX_E_NONE ? 0 : err;
}

/* The first with a uid of at least that. */
static uint32_t find(const struct disk_root *r, uint32_t uid)
{
	uint32_t low = 0, high = r->n_owners;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (r->owners[middle].uid < uid)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

int disk_owner_add(struct disk_root *r, uint32_t uid, int by, int64_t now)
{
	uint32_t i = find(r, uid);
	struct index_owner *owner;
	int err;

	if (i == r->n_owners || r->owners[i].uid != uid) {
		err = by < 0 ? -EUCLEAN : reserve(r, r->n_owners + 1);
		if (err)
			return err;
		memmove(&r->owners[i + 1], &r->owners[i], (r->n_owners - i) * sizeof(*r->owners));
		r->owners[i] = (struct index_owner){ .uid = uid };
		r->n_owners++;
	}
	owner = &r->owners[i];
	owner->n += by;
	owner->used = MAX(owner->used, now);
	owner->changed = true;
	return owner->n < 0 ? -EUCLEAN : 0;
}

int disk_owners_flush(struct disk_root *r)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < r->n_owners; i++) {
		struct index_owner *owner = &r->owners[i];
		int err = owner->changed ? index_owner_set(r->index, owner) : 0;

		if (err)
			return err;
		owner->changed = false;
		if (owner->n)
			r->owners[n++] = *owner;
	}
	r->n_owners = n;
	return 0;
}

/* --- of all roots together --- */

struct share {
	uint32_t uid;
	bool active;
	uint64_t bytes;
};

struct shares {
	uint32_t n, n_active;
	uint64_t bytes;
	struct share of[SHARES_MAX];
};

static struct share *share_of(struct shares *all, uint32_t uid)
{
	for (uint32_t i = 0; i < all->n; i++)
		if (all->of[i].uid == uid)
			return &all->of[i];
	return NULL;
}

static void add_root(struct shares *all, const struct disk_root *r, int64_t now)
{
	for (uint32_t i = 0; i < r->n_owners; i++) {
		const struct index_owner *owner = &r->owners[i];
		struct share *s = share_of(all, owner->uid);

		if (!s && all->n < SHARES_MAX) {
			s = &all->of[all->n++];
			*s = (struct share){ .uid = owner->uid };
		}
		if (!s || owner->n <= 0)
			continue;
		s->bytes += (uint64_t)owner->n * r->slots.stride;
		all->bytes += (uint64_t)owner->n * r->slots.stride;
		/* Where the clock was set back nobody is idle. */
		s->active |= now - owner->used <= ACTIVE_NS;
	}
}

static bool is_beyond(const struct shares *all, const struct share *s)
{
	return s->active && s->bytes > all->bytes / all->n_active;
}

/* Whoever has written within a week has a share; the largest of those beyond theirs gives way to one within its own. */
static bool choose(struct shares *all, const struct disk *d, uint32_t u, int64_t now, uint32_t *uid)
{
	const struct share *of_u, *largest = NULL;

	list_for_each(l, &d->roots)
		if (list_entry(l, struct disk_root, link)->open)
			add_root(all, list_entry(l, struct disk_root, link), now);
	for (uint32_t i = 0; i < all->n; i++)
		all->n_active += all->of[i].active;
	of_u = share_of(all, u);
	if (all->n_active < 2 || !of_u || !of_u->active || is_beyond(all, of_u))
		return false;
	for (uint32_t i = 0; i < all->n; i++)
		if (is_beyond(all, &all->of[i]) && (!largest || all->of[i].bytes > largest->bytes))
			largest = &all->of[i];
	if (largest)
		*uid = largest->uid;
	return largest != NULL;
}

bool disk_owner_beyond_share(const struct disk *d, uint32_t u, int64_t now, uint32_t *uid)
{
	_cleanup_(freep) struct shares *all = calloc(1, sizeof(*all));

	return all && choose(all, d, u, now, uid);
}
