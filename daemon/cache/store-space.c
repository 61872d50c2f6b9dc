/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>

#include "daemon/cache/store-root.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"

#define LOG_RESERVE_MAX (UINT64_C(2) << 20)

uint64_t disk_log_reserve(const struct disk *d)
{
	return MIN(d->max_bytes / 8, LOG_RESERVE_MAX);
}

uint64_t disk_root_bytes(const struct disk_root *r)
{
	uint64_t slots, log;

	if (!r->open)
		return r->slots_bytes + r->log_bytes + r->other_bytes;
	slots = (uint64_t)r->state.n_slots * r->slots.stride;
	log = disk_log_reserve(r->disk);
	return MAX(slots, r->slots_bytes) + MAX(log, r->log_bytes) + r->other_bytes;
}

uint64_t disk_bytes(const struct disk *d)
{
	uint64_t bytes = 0;

	list_for_each(l, &d->roots)
		bytes += disk_root_bytes(list_entry(l, struct disk_root, link));
	return bytes;
}

/* What there may be now: less for a while where the medium was full. */
static uint64_t limit(const struct disk *d)
{
	return d->reduced_until > clock_ns() ? MIN(d->reduced_bytes, d->max_bytes) : d->max_bytes;
}

static uint64_t growable(const struct disk_root *r)
{
	uint64_t bytes = disk_bytes(r->disk), max = limit(r->disk);

	return bytes < max ? (max - bytes) / r->slots.stride : 0;
}

bool disk_may_grow(const struct disk_root *r, uint64_t n)
{
	return growable(r) >= n;
}

/* The leaf that was used longest ago; INDEX_E_NONE. */
static int find_lowest(struct disk_root *r, struct index_row *out)
{
	struct index_row row;
	bool found = false;

	for (uint32_t i = 0; i < r->n_owners; i++) {
		int err = r->owners[i].n ? index_lowest(r->index, r->owners[i].uid, &row) : INDEX_E_NONE;

		if (err < 0)
			return err;
		if (err || (found && row.rank >= out->rank))
			continue;
		*out = row;
		found = true;
	}
	return found ? 0 : INDEX_E_NONE;
}

/* Who goes next. *beyond: it is of a uid that has more than its share, and spares somebody else. */
static int find_victim(struct disk_root *r, int64_t now, struct index_row *out, bool *beyond)
{
	uint32_t uid;
	struct index_row row;
	int err = find_lowest(r, out);

	*beyond = false;
	if (err || !disk_owner_beyond_share(r->disk, out->uid, now, &uid))
		return err;
	err = index_lowest(r->index, uid, &row);
	if (!err) {
		*out = row;
		*beyond = true;
	}
	return MIN(err, 0);
}

int disk_evict(struct disk_root *r, int64_t n_free, int64_t now)
{
	struct index_row row;
	int err = 0;

	while (!err && r->state.n_free + r->n_freed < n_free) {
		bool expired, beyond;

		err = index_expired(r->index, now, &row);
		expired = !err;
		if (err == INDEX_E_NONE)
			err = find_victim(r, now, &row, &beyond);
		if (!err)
			err = disk_begin(r, 1);
		if (!err)
			err = disk_remove_leaf(r, &row);
		if (err)
			break;
		r->disk->stats.evicted += !expired;
		r->disk->stats.expired += expired;
	}
	return err == INDEX_E_NONE ? 0 : err;
}

static int expire(struct disk_root *r, int64_t now, uint64_t *next)
{
	struct index_row row;
	int err = 0;

	for (uint32_t n = 0; n < DISK_CHANGES_MAX; n++) {
		err = index_expired(r->index, now, &row);
		if (!err)
			err = disk_begin(r, 1);
		if (!err)
			err = disk_remove_leaf(r, &row);
		if (err)
			break;
		r->punch = true;
		r->disk->stats.expired++;
	}
	if (!err)
		*next = (uint64_t)now;
	else if (err == INDEX_E_NONE)
		err = index_expired(r->index, INDEX_NEVER - 1, &row);
	if (!err && *next == STORE_NEVER)
		*next = (uint64_t)row.expires;
	return err == INDEX_E_NONE ? 0 : err;
}

uint64_t disk_expire(struct disk_root *r, uint64_t now)
{
	uint64_t next = STORE_NEVER;
	int err = expire(r, (int64_t)MIN(now, (uint64_t)INT64_MAX - 1), &next);

	if (err)
		disk_failed(r, err, "removing what has expired");
	else
		(void)disk_commit(r);
	return next;
}

/* What is in the last slot goes to a free one; what is not whole there goes. */
static int move_last(struct disk_root *r, struct index_row *row, void *scratch)
{
	int64_t to;
	int err = disk_take_free_slot(r, &to);

	if (err)
		return err;
	err = slot_copy(&r->slots, (uint64_t)row->slot, (uint64_t)to, scratch);
	if (err == SLOT_E_BAD) {
		row->slot = INDEX_NO_SLOT;
		r->state.n_free++;
		err = index_free_put(r->index, to);
		return err ? err : row->children ? index_update(r->index, row) : disk_remove_leaf(r, row);
	}
	if (err)
		return err;
	row->slot = to;
	r->slots_written = true;
	r->disk->stats.moved++;
	r->disk->stats.slot_bytes_written += r->slots.stride;
	return index_update(r->index, row);
}

/* The file's last slot is needed no more.  INDEX_E_NONE: no other is free for what is in it. */
static int give_last_slot(struct disk_root *r, void *scratch)
{
	struct index_row row;
	int err = disk_begin(r, 0);

	if (err)
		return err;
	err = index_free_remove(r->index, r->state.n_slots - 1);
	if (!err) {
		r->state.n_free--;
	} else if (err == INDEX_E_NONE) {
		err = index_by_slot(r->index, r->state.n_slots - 1, &row);
		/* Nobody's: what a failure left behind. */
		if (err == INDEX_E_NONE)
			err = 0;
		else if (!err)
			err = move_last(r, &row, scratch);
	}
	if (!err)
		r->state.n_slots--;
	return err;
}

static int shrink(struct disk_root *r, uint64_t n, int64_t now)
{
	_cleanup_(freep) void *scratch = malloc(r->slots.stride);
	int64_t target = r->state.n_slots - (int64_t)MIN(n, (uint64_t)r->state.n_slots);
	uint32_t moved = 0;
	int err;

	if (!scratch)
		return -ENOMEM;
	err = disk_evict(r, r->state.n_slots - target, now);
	if (!err)
		err = disk_commit(r);
	while (!err && r->state.n_slots > target) {
		err = give_last_slot(r, scratch);
		if (!err && ++moved % DISK_BATCH == 0)
			err = disk_commit(r);
	}
	if (err && err != INDEX_E_NONE)
		return err;
	err = disk_commit(r);
	return err ? err : slot_truncate(&r->slots, (uint64_t)r->state.n_slots);
}

int disk_shrink(struct disk_root *r, uint64_t n, int64_t now)
{
	int err = shrink(r, n, now);

	if (err)
		disk_failed(r, err, "giving room");
	else
		disk_root_measure(r);
	return err;
}

/* The rank of what would go next; INT64_MAX: there is nothing. */
static int64_t lowest_rank(struct disk_root *r, int64_t now, bool *beyond)
{
	struct index_row row;
	int err = find_victim(r, now, &row, beyond);

	if (err < 0)
		disk_failed(r, err, "looking for room");
	return err ? INT64_MAX : row.rank;
}

/* What nobody can read takes no room from what somebody can. True: it is gone. */
static bool remove_useless(struct disk_root *r)
{
	if (r->n_users || disk_root_open(r) || !r->useless || disk_root_remove(r))
		return false;
	disk_root_free(r);
	return true;
}

struct candidate {
	struct disk_root *root;
	int64_t rank;
	bool beyond;
};

/* What spares somebody within his share; then what nobody has open; then what was used longest ago. */
static bool goes_before(const struct candidate *a, const struct candidate *b)
{
	if (!b->root || a->beyond != b->beyond)
		return !b->root || a->beyond;
	if (!a->root->n_users != !b->root->n_users)
		return !a->root->n_users;
	return a->rank < b->rank;
}

/* Who gives way. */
static struct disk_root *victim(struct disk *d, int64_t now)
{
	struct candidate best = { 0 };

	/* All are open before shares are counted. */
	list_for_each_safe(l, next, &d->roots)
		(void)remove_useless(list_entry(l, struct disk_root, link));
	list_for_each(l, &d->roots) {
		struct candidate c = { .root = list_entry(l, struct disk_root, link) };

		if (!disk_root_writable(c.root))
			continue;
		c.rank = lowest_rank(c.root, now, &c.beyond);
		if (c.rank != INT64_MAX && c.root->open && goes_before(&c, &best))
			best = c;
	}
	return best.root;
}

/* A dormant root without entries is but files. */
static void remove_empty(struct disk *d)
{
	list_for_each_safe(l, next, &d->roots) {
		struct disk_root *r = list_entry(l, struct disk_root, link);

		if (!r->n_users && r->open && !r->state.n_slots && !disk_root_remove(r))
			disk_root_free(r);
	}
}

static void shrink_for(struct disk_root *v, uint64_t bytes, int64_t now)
{
	/* Not again for each block: a sixteenth of it at a time. */
	uint64_t n = MAX((bytes + v->slots.stride - 1) / v->slots.stride, (uint64_t)v->state.n_slots / 16);

	if (disk_shrink(v, n, now))
		return;
	if (!v->n_users)
		remove_empty(v->disk);
}

bool disk_make_room(struct disk_root *r, uint32_t n, int64_t now)
{
	/* Each turn takes at least a slot from somebody; bounded all the same. */
	for (int turns = 0; turns < 64 && r->open; turns++) {
		uint64_t bytes = disk_bytes(r->disk), max = limit(r->disk);
		struct disk_root *v;

		if (bytes <= max && (uint64_t)r->state.n_free + growable(r) >= n)
			return true;
		v = victim(r->disk, now);
		if (!v || !r->open)
			break;
		if (v != r) {
			shrink_for(v, MAX(n * r->slots.stride, bytes > max ? bytes - max : 0), now);
		} else if (bytes > max) {
			if (disk_shrink(r, (bytes - max + r->slots.stride - 1) / r->slots.stride, now))
				break;
		} else {
			int err = disk_evict(r, n, now);

			if (err)
				disk_failed(r, err, "making room");
			if (err || disk_commit(r))
				break;
			break;
		}
	}
	return r->open && disk_bytes(r->disk) <= limit(r->disk) && (r->state.n_free > 0 || growable(r) > 0);
}

/* What is pinned has no room any more: a root goes as a whole. False: there is none. */
static bool remove_pinned(struct disk *d)
{
	list_for_each(l, &d->roots) {
		struct disk_root *r = list_entry(l, struct disk_root, link);

		if (r->n_users || !r->open || disk_root_remove(r))
			continue;
		disk_root_free(r);
		return true;
	}
	return false;
}

void disk_fit(struct disk *d)
{
	for (int turns = 0; turns < 256 && disk_bytes(d) > limit(d); turns++) {
		uint64_t over = disk_bytes(d) - limit(d);
		struct disk_root *v = victim(d, 0);

		remove_empty(d);
		/* A part at a time: what was used last of each root stays. */
		if (v)
			shrink_for(v, MIN(over, MAX((uint64_t)v->state.n_slots / 8, 1u) * v->slots.stride), 0);
		else if (!remove_pinned(d))
			break;
	}
}
