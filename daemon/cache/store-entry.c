/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "daemon/cache/store-root.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"

#define QUIET_NS UINT64_C(60000000000)
#define CHILDREN_MAX 256u		/* looked at for the one that has most in common */

/* A time as a row has it. */
static int64_t row_time(uint64_t expires)
{
	return expires >= (uint64_t)INDEX_NEVER ? INDEX_NEVER : (int64_t)expires;
}

/* What matters more is as if it were used later, by as many uses as there are slots. */
static int64_t rank_of(struct disk_root *r, uint32_t first, int priority)
{
	return r->disk->use + first / r->block_tokens + priority * r->state.n_slots;
}

static uint32_t row_priority(int priority)
{
	return priority < 0 ? 0 : priority > 0 ? 2 : 1;
}

/* --- writing --- */

uint64_t disk_real_id(const struct disk_root *r, uint64_t id)
{
	uint32_t i = (uint32_t)(id % DISK_ALIASES);

	return r->aliases[i].id == id ? r->aliases[i].real : id;
}

static void note_alias(struct disk_root *r, uint64_t id, uint64_t real)
{
	uint32_t i = (uint32_t)(id % DISK_ALIASES);

	r->aliases[i].id = id;
	r->aliases[i].real = real;
}

static int namespace_of(struct disk_root *r, const struct store_name *name, int64_t *ns)
{
	int err = index_namespace(r->index, name->bytes, name->n, ns);

	if (err != INDEX_E_NONE)
		return err;
	*ns = disk_take_id(r);
	return index_namespace_add(r->index, name->bytes, name->n, *ns);
}

/*
 * What a write is to follow: a row, or a namespace (then parent->id is its, and n_tokens is 0).
 * INDEX_E_NONE: there is no such.
 */
static int parent_of(struct disk_root *r, const struct store_write *w, struct index_row *parent)
{
	int64_t ns;
	int err;

	if (!w->parent) {
		if (w->first)
			return INDEX_E_NONE;
		err = namespace_of(r, &w->name, &ns);
		if (!err)
			*parent = (struct index_row){ .id = ns, .ns = ns };
		return err;
	}
	err = index_namespace(r->index, w->name.bytes, w->name.n, &ns);
	if (!err)
		err = index_get(r->index, (int64_t)disk_real_id(r, w->parent), parent);
	if (!err && (parent->ns != ns || parent->n_tokens != r->block_tokens ||
		     parent->first + parent->n_tokens != w->first))
		err = INDEX_E_NONE;
	return err;
}

static int take_slot(struct disk_root *r, int64_t *slot)
{
	int err = disk_take_free_slot(r, slot);

	if (err != INDEX_E_NONE)
		return err;
	if (!disk_may_grow(r, 1))
		return INDEX_E_NONE;
	*slot = r->state.n_slots++;
	return 0;
}

static int write_slot(struct disk_root *r, const struct store_write *w, const struct index_row *row)
{
	struct slot_meta meta = {
		.id = (uint64_t)row->id,
		.parent = (uint64_t)row->parent,
		.created = (uint64_t)row->created,
		.uid = row->uid,
		.first = row->first,
		.n_tokens = row->n_tokens,
		.n_name = w->name.n,
	};

	memcpy(meta.tokens, row->tokens, row->n_tokens * sizeof(row->tokens[0]));
	if (w->name.n)
		memcpy(meta.name, w->name.bytes, w->name.n);
	r->slots_written = true;
	r->disk->stats.slot_bytes_written += r->slots.stride;
	r->disk->stats.block_bytes_written += r->block_bytes;
	r->disk->stats.tokens_written += row->n_tokens;
	return slot_write(&r->slots, (uint64_t)row->slot, &meta, w->block);
}

/* The block is not there: a new row, or one whose slot was given up. */
static int store_row(struct disk_root *r, const struct store_write *w, const struct index_row *parent,
		     struct index_row *row, bool refill)
{
	struct index_row p = *parent;
	int err = take_slot(r, &row->slot);

	if (!err)
		err = write_slot(r, w, row);
	if (!err)
		err = refill ? index_update(r->index, row) : index_insert(r->index, row);
	if (!err && !refill)
		err = disk_owner_add(r, row->uid, 1, row->created);
	if (err || refill || p.id == p.ns)
		return err;
	p.children++;
	return index_update(r->index, &p);
}

/* Nothing outlives what is before it, without which it can't be found: uses are what makes a path stay. */
static int64_t expiry_of(const struct store_write *w, const struct index_row *parent)
{
	int64_t expires = row_time(w->expires);

	return parent->id == parent->ns ? expires : MIN(expires, parent->expires);
}

static struct index_row row_of(struct disk_root *r, const struct store_write *w, const struct index_row *parent)
{
	struct index_row row = {
		.id = (int64_t)w->id,
		.parent = parent->id,
		.ns = parent->ns,
		.created = row_time(w->now),
		.expires = expiry_of(w, parent),
		.rank = rank_of(r, w->first, w->priority),
		.priority = row_priority(w->priority),
		.slot = INDEX_NO_SLOT,
		.uid = w->uid,
		.first = w->first,
		.n_tokens = w->n_tokens,
	};

	memcpy(row.tokens, w->tokens, w->n_tokens * sizeof(row.tokens[0]));
	return row;
}

static int write_entry(struct disk_root *r, struct store_write *w, enum store_result *result)
{
	struct index_row parent, row;
	int err = disk_begin(r, 0);

	if (err)
		return err;
	err = parent_of(r, w, &parent);
	if (err == INDEX_E_NONE) {
		r->disk->stats.dropped_parent++;
		*result = STORE_ORPHAN;
		return 0;
	}
	if (err)
		return err;
	err = index_child(r->index, parent.id, w->tokens, w->n_tokens, &row);
	if (err && err != INDEX_E_NONE)
		return err;
	r->disk->use++;
	if (!err && row.slot != INDEX_NO_SLOT) {
		r->disk->stats.exists++;
		note_alias(r, w->id, (uint64_t)row.id);
		w->stored_id = (uint64_t)row.id;
		row.rank = rank_of(r, row.first, w->priority);
		row.priority = row_priority(w->priority);
		row.expires = MAX(row.expires, expiry_of(w, &parent));
		*result = STORE_EXISTS;
		return index_update(r->index, &row);
	}
	*result = STORE_OK;
	w->stored_id = w->id;
	if (err) {
		row = row_of(r, w, &parent);
		err = store_row(r, w, &parent, &row, false);
	} else {
		note_alias(r, w->id, (uint64_t)row.id);
		w->stored_id = (uint64_t)row.id;
		err = store_row(r, w, &parent, &row, true);
	}
	if (err == INDEX_E_NONE) {
		r->disk->stats.dropped_room++;
		*result = STORE_DROPPED;
		return 0;
	}
	return err;
}

enum store_result disk_write(struct disk_root *r, struct store_write *w)
{
	enum store_result result = STORE_FAILED;
	int err;

	if (!disk_root_open(r) || !disk_root_writable(r)) {
		r->disk->stats.dropped_paused++;
		return STORE_DROPPED;
	}
	if (!w->n_tokens || w->n_tokens > r->block_tokens || w->name.n > STORE_NAME_MAX || w->expires <= w->now) {
		r->disk->stats.dropped_room++;
		return STORE_DROPPED;
	}
	err = write_entry(r, w, &result);
	if (err) {
		disk_failed(r, err, "writing");
		return STORE_FAILED;
	}
	return result;
}

/* --- finding --- */

/*
 * It was used. Ranks are kept about: not every use is worth a write.
 */
static int use_row(struct disk_root *r, struct index_row *row, int64_t expires, int priority)
{
	int64_t rank = rank_of(r, row->first, priority), slack = r->state.n_slots / 8;
	int err;

	if (!disk_root_writable(r) || (rank - row->rank <= slack && row->expires >= expires &&
				       row->priority == row_priority(priority)))
		return 0;
	err = disk_begin(r, 0);
	row->priority = row_priority(priority);
	row->rank = MAX(row->rank, rank);
	row->expires = MAX(row->expires, expires);
	return err ? err : index_update(r->index, row);
}

/* It and all before it, in one transaction, so that none ever expires before what follows it. */
static int use_path(struct disk_root *r, struct index_row *row, int64_t expires)
{
	int err;

	while (!(err = use_row(r, row, expires, (int)row->priority - 1)) && row->parent != row->ns) {
		err = index_get(r->index, row->parent, row);
		if (err)
			return err == INDEX_E_NONE ? -EUCLEAN : err;
	}
	return err;
}

static int note_found(struct disk_root *r, struct store_lookup *l, const struct index_row *row, uint32_t n_common)
{
	struct store_found *f = &l->found[l->n_found++];
	uint32_t uid, next = 0;
	int err = 0;

	*f = (struct store_found){ .id = (uint64_t)row->id, .n_tokens = row->n_tokens, .n_common = n_common };
	while (row->pins && f->n_pins < STORE_PINS_MAX && !(err = index_pin_next(r->index, row->id, next, &uid))) {
		f->pinned_by[f->n_pins++] = uid;
		next = uid + 1;
		if (!next)
			break;
	}
	return err == INDEX_E_NONE ? 0 : err;
}

/* The next block of the prompt, or what has most in common with it. */
static int find_child(struct disk_root *r, const struct store_lookup *l, int64_t parent, uint32_t at, int64_t now,
		      struct index_row *row, uint32_t *n)
{
	int err = INDEX_E_NONE;

	*n = MIN(l->n_tokens - at, r->block_tokens);
	if (*n == r->block_tokens)
		err = index_child(r->index, parent, l->tokens + at, *n, row);
	if (err == INDEX_E_NONE ||
	    (!err && (row->slot == INDEX_NO_SLOT || (row->expires <= now && !row->pins && !row->children))))
		err = index_best_child(r->index, parent, l->tokens + at, *n, now, CHILDREN_MAX, row, n);
	return err;
}

/* *n_valid: of those found; what has expired counts only before one that is pinned. */
static int lookup(struct disk_root *r, struct store_lookup *l, uint32_t *n_valid)
{
	int64_t now = (int64_t)MIN(l->now, (uint64_t)INT64_MAX), expires = l->expires ? row_time(l->expires) : 0;
	int64_t parent, ns;
	struct index_row row;
	uint32_t at = 0, n;
	int err = index_namespace(r->index, l->name.bytes, l->name.n, &ns);

	parent = ns;
	if (!err && l->parent) {
		parent = (int64_t)disk_real_id(r, l->parent);
		err = index_get(r->index, parent, &row);
		if (!err && row.ns != ns)
			err = INDEX_E_NONE;
		if (!err)
			err = use_path(r, &row, expires);
	}
	while (!err && l->n_found < l->max_found && at < l->n_tokens) {
		err = find_child(r, l, parent, at, now, &row, &n);
		if (!err)
			err = note_found(r, l, &row, n);
		if (!err && (row.expires > now || row.pins)) {
			err = use_row(r, &row, expires, l->priority);
			*n_valid = l->n_found;
		}
		if (!err && n < r->block_tokens)
			break;
		at += r->block_tokens;
		parent = row.id;
	}
	return err == INDEX_E_NONE ? 0 : err;
}

enum store_result disk_lookup(struct disk_root *r, struct store_lookup *l)
{
	uint32_t n_valid = 0;
	int err;

	l->n_found = 0;
	r->disk->stats.lookups++;
	r->disk->stats.lookup_tokens += l->n_tokens;
	if (l->name.n > STORE_NAME_MAX || !disk_root_open(r))
		return STORE_MISS;
	r->disk->use++;
	err = lookup(r, l, &n_valid);
	if (err) {
		disk_failed(r, err, "looking up");
		n_valid = 0;
	}
	l->n_found = n_valid;
	for (uint32_t i = 0; i < n_valid; i++)
		r->disk->stats.found_tokens += l->found[i].n_common;
	r->disk->stats.lookup_hits += l->n_found > 0;
	return l->n_found ? STORE_OK : STORE_MISS;
}

enum store_result disk_touch(struct disk_root *r, uint64_t id, uint64_t expires)
{
	struct index_row row;
	int err;

	if (!disk_root_open(r))
		return STORE_MISS;
	r->disk->use++;
	err = index_get(r->index, (int64_t)disk_real_id(r, id), &row);
	if (!err && row.slot == INDEX_NO_SLOT)
		err = INDEX_E_NONE;
	if (!err)
		err = use_path(r, &row, expires ? row_time(expires) : 0);
	if (err < 0)
		disk_failed(r, err, "noting a use");
	return err ? STORE_MISS : STORE_OK;
}

/* --- reading --- */

static bool meta_is_of(const struct slot_meta *m, const struct index_row *row)
{
	return m->id == (uint64_t)row->id && m->parent == (uint64_t)row->parent &&
	       m->created == (uint64_t)row->created && m->uid == row->uid && m->first == row->first &&
	       m->n_tokens == row->n_tokens &&
	       !memcmp(m->tokens, row->tokens, sizeof(row->tokens));
}

static bool meta_is_asked(const struct slot_meta *m, const struct index_row *row, const struct store_read *read,
			  uint64_t parent)
{
	return (parent ? m->parent == parent : m->parent == (uint64_t)row->ns) && m->first == read->first &&
	       read->n_tokens && read->n_tokens <= m->n_tokens && m->n_name == read->name.n &&
	       (!m->n_name || !memcmp(m->name, read->name.bytes, m->n_name)) &&
	       !memcmp(m->tokens, read->tokens, read->n_tokens * sizeof(m->tokens[0]));
}

/* The row stays for what follows it, until the block is written again. */
int disk_give_up_slot(struct disk_root *r, struct index_row *row)
{
	r->disk->stats.damaged++;
	if (!row->children && !row->pins)
		return disk_remove_leaf(r, row);
	disk_free_slot(r, row->slot);
	row->slot = INDEX_NO_SLOT;
	return index_update(r->index, row);
}

static void note_read_error(struct disk_root *r, int err)
{
	uint64_t now = clock_ns();

	r->disk->stats.errors++;
	if (now < r->quiet_until)
		return;
	r->quiet_until = now + QUIET_NS;
	disk_event(r->disk, false, "cache on disk, root %.8s: reading: %s; a miss", r->name, strerror(-err));
}

static int read_entry(struct disk_root *r, struct store_read *read, struct slot_meta *meta)
{
	struct index_row row;
	int err = index_get(r->index, (int64_t)disk_real_id(r, read->id), &row);

	if (!err && row.slot == INDEX_NO_SLOT)
		err = INDEX_E_NONE;
	if (err)
		return err;
	err = slot_read(&r->slots, (uint64_t)row.slot, meta, read->block);
	if (err < 0) {
		note_read_error(r, err);
		return INDEX_E_NONE;
	}
	r->disk->stats.bytes_read += r->slots.stride;
	if (err || !meta_is_of(meta, &row)) {
		/* The slot is not what the row says. */
		err = disk_root_writable(r) ? disk_begin(r, 1) : INDEX_E_NONE;
		if (!err)
			err = disk_give_up_slot(r, &row);
		return err ? err : INDEX_E_NONE;
	}
	return meta_is_asked(meta, &row, read, disk_real_id(r, read->parent)) ? 0 : INDEX_E_NONE;
}

enum store_result disk_read(struct disk_root *r, struct store_read *read)
{
	struct slot_meta meta;
	int err = INDEX_E_NONE;

	r->disk->stats.reads++;
	if (disk_root_open(r))
		err = read_entry(r, read, &meta);
	if (err < 0)
		disk_failed(r, err, "reading");
	if (err) {
		r->disk->stats.read_misses++;
		return STORE_MISS;
	}
	r->disk->stats.read_ok++;
	read->uid = meta.uid;
	read->created = meta.created;
	read->n_stored = meta.n_tokens;
	memcpy(read->stored, meta.tokens, sizeof(read->stored));
	return STORE_OK;
}

/* --- removing --- */

int disk_remove_leaf(struct disk_root *r, const struct index_row *row)
{
	struct index_row other;
	int err = row->pins ? disk_remove_pins(r, row) : 0;

	if (!err)
		err = index_delete(r->index, row->id);
	if (!err)
		err = disk_owner_add(r, row->uid, -1, 0);
	if (err)
		return err;
	if (row->slot != INDEX_NO_SLOT)
		disk_free_slot(r, row->slot);
	if (row->parent == row->ns) {
		err = index_any_child(r->index, row->ns, &other);
		return err == INDEX_E_NONE ? index_namespace_remove(r->index, row->ns) : err;
	}
	err = index_get(r->index, row->parent, &other);
	if (err || !other.children)
		return err == INDEX_E_NONE || !err ? -EUCLEAN : err;
	other.children--;
	return index_update(r->index, &other);
}

/* Leaves first, so that a part of it leaves nothing without what is before it. */
static int remove_subtree(struct disk_root *r, int64_t id, struct store_removed *removed)
{
	struct index_row row;
	int64_t at = id;
	int err = 0;

	while (!err) {
		err = index_any_child(r->index, at, &row);
		if (!err) {
			at = row.id;
			continue;
		}
		if (err == INDEX_E_NONE)
			err = index_get(r->index, at, &row);
		if (!err)
			err = disk_begin(r, 1);
		if (!err)
			err = disk_remove_leaf(r, &row);
		if (err)
			return err == INDEX_E_NONE ? 0 : err;
		r->punch = true;
		removed->entries++;
		removed->tokens += row.n_tokens;
		removed->bytes += r->block_bytes;
		if (at == id)
			return 0;
		at = row.parent;
	}
	return err;
}

/* The entry at the end of these tokens, as they were computed one after the other. */
static int find_path(struct disk_root *r, const struct store_drop *d, int64_t *id)
{
	struct index_row row;
	uint32_t n;
	int err = index_namespace(r->index, d->name.bytes, d->name.n, id);

	for (uint32_t at = 0; !err && at < d->n_tokens; at += n) {
		n = MIN(d->n_tokens - at, r->block_tokens);
		err = index_child(r->index, *id, d->tokens + at, n, &row);
		*id = row.id;
	}
	return err;
}

enum store_result disk_drop(struct disk_root *r, const struct store_drop *d, struct store_removed *removed)
{
	int64_t id;
	int err = 0;

	if (!disk_root_open(r))
		return STORE_FAILED;
	if (d->id)
		err = remove_subtree(r, (int64_t)disk_real_id(r, d->id), removed);
	if (!err && d->n_tokens) {
		err = find_path(r, d, &id);
		if (!err)
			err = remove_subtree(r, id, removed);
		else if (err == INDEX_E_NONE)
			err = 0;
	}
	if (err)
		disk_failed(r, err, "dropping");
	else
		err = disk_commit(r);
	return err ? STORE_FAILED : STORE_OK;
}

static int wipe_namespace(struct disk_root *r, const void *name, uint32_t n, struct store_removed *removed)
{
	int64_t ns;
	struct index_row row;
	int err = index_namespace(r->index, name, n, &ns);

	while (!err) {
		err = index_any_child(r->index, ns, &row);
		if (!err)
			err = remove_subtree(r, row.id, removed);
	}
	return err == INDEX_E_NONE ? 0 : err;
}

bool disk_name_within(const void *name, uint32_t n, const struct store_name *top)
{
	return n >= top->n && (!top->n || !memcmp(name, top->bytes, top->n)) &&
	       (n == top->n || ((const uint8_t *)name)[top->n] == '/');
}

static bool begins_with(const void *name, uint32_t n, const struct store_name *top)
{
	return n >= top->n && (!top->n || !memcmp(name, top->bytes, top->n));
}

/* Names that begin alike follow each other. */
static int wipe_below(struct disk_root *r, const struct store_name *top, struct store_removed *removed)
{
	uint8_t name[STORE_NAME_MAX] = { 0 };
	uint32_t n = top->n;
	int64_t id;
	int err = 0;

	if (n)
		memcpy(name, top->bytes, n);
	while (!err) {
		err = index_namespace_next(r->index, name, n, name, &n, &id);
		if (err || !begins_with(name, n, top))
			break;
		if (disk_name_within(name, n, top))
			err = wipe_namespace(r, name, n, removed);
	}
	return err == INDEX_E_NONE ? 0 : err;
}

static int wipe_all(struct disk_root *r, struct store_removed *removed)
{
	uint64_t n = (uint64_t)(r->state.n_slots - r->state.n_free);

	removed->entries += n;
	removed->tokens += n * r->block_tokens;
	removed->bytes += n * r->block_bytes;
	return disk_root_clear(r);
}

enum store_result disk_wipe(struct disk_root *r, const struct store_wipe *w, struct store_removed *removed)
{
	int err;

	if (!disk_root_open(r))
		return STORE_FAILED;
	unlinkat(r->fd, "index.corrupt", 0);
	if (w->all)
		return wipe_all(r, removed) ? STORE_FAILED : STORE_OK;
	err = wipe_namespace(r, w->name.bytes, w->name.n, removed);
	if (!err && w->below)
		err = wipe_below(r, &w->name, removed);
	if (err)
		disk_failed(r, err, "wiping");
	else
		err = disk_commit(r);
	return err ? STORE_FAILED : STORE_OK;
}
