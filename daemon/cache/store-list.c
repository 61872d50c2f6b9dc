/* SPDX-License-Identifier: Apache-2.0 */
/* What is there, for people to look at, and what they want to have kept. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/cache/store-root.h"
#include "ipc/base/checked.h"

#define PINNED_PART 4			/* of the slots that there may be, as much as may be pinned */

/* --- views --- */

static bool is_joined(const struct index_row *parent, const struct index_row *row)
{
	return parent->children == 1 && parent->uid == row->uid && !parent->pins;
}

static int view_of(struct disk_root *r, const struct index_row *row, struct store_view *out)
{
	struct index_row parent;
	uint32_t n_name, next = 0, uid;
	int err;

	*out = (struct store_view){
		.id = (uint64_t)row->id,
		.parent = row->parent == row->ns ? 0 : (uint64_t)row->parent,
		.created = (uint64_t)row->created,
		.expires = row->expires == INDEX_NEVER ? STORE_NEVER : (uint64_t)row->expires,
		.uid = row->uid,
		.first = row->first,
		.n_tokens = row->n_tokens,
		.priority = (int)row->priority - 1,
	};
	memcpy(out->tokens, row->tokens, sizeof(out->tokens));
	err = index_namespace_name(r->index, row->ns, out->name, &n_name);
	if (err)
		return err == INDEX_E_NONE ? -EUCLEAN : err;
	out->n_name = n_name;
	while (row->pins && out->n_pins < STORE_PINS_MAX && !(err = index_pin_next(r->index, row->id, next, &uid))) {
		out->pinned_by[out->n_pins++] = uid;
		next = uid + 1;
		if (!next)
			break;
	}
	if (err < 0 || !out->parent)
		return MIN(err, 0);
	err = index_get(r->index, row->parent, &parent);
	out->joined = !err && is_joined(&parent, row);
	return err == INDEX_E_NONE ? 0 : err;
}

static int by_id(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static bool is_known(const uint64_t *known, uint32_t n, int64_t id)
{
	const uint64_t key = (uint64_t)id;

	return n && bsearch(&key, known, n, sizeof(key), by_id);
}

static bool is_listed(const struct store_list *l, const struct index_row *row, bool all)
{
	return row->slot != INDEX_NO_SLOT && (row->expires > (int64_t)l->now || row->pins) &&
	       (all || row->uid == l->uid) &&
	       !is_known(l->known, l->n_known, row->id);
}

/* Into its place in the order of ids. */
static int insert(struct disk_root *r, struct store_list *l, const struct index_row *row)
{
	uint32_t i = l->n < l->max ? l->n++ : l->max - 1;

	for (; i && l->views[i - 1].id > (uint64_t)row->id; i--)
		l->views[i] = l->views[i - 1];
	return view_of(r, row, &l->views[i]);
}

/* ns 0: of all. */
static int list_namespace(struct disk_root *r, struct store_list *l, int64_t ns, bool all)
{
	struct index_row row = { .id = (int64_t)l->after };
	int err;

	while (!(err = index_next_of(r->index, ns, row.id, &row))) {
		if (l->n == l->max && (uint64_t)row.id > l->views[l->n - 1].id)
			return 0;
		if (!is_listed(l, &row, all))
			continue;
		err = insert(r, l, &row);
		if (err)
			return err;
	}
	return err == INDEX_E_NONE ? 0 : err;
}

static int list_wanted(struct disk_root *r, struct store_list *l)
{
	uint8_t name[STORE_NAME_MAX];
	uint32_t n = 0;
	int64_t ns;
	int err = index_namespace(r->index, NULL, 0, &ns);

	do {
		enum store_want want = err ? STORE_WANT_NONE : l->wants(l->arg, &(struct store_name){ name, n });

		if (want != STORE_WANT_NONE)
			err = list_namespace(r, l, ns, want == STORE_WANT_ALL);
		if (err < 0)
			return err;
		err = index_namespace_next(r->index, name, n, name, &n, &ns);
	} while (!err);
	return err == INDEX_E_NONE ? 0 : err;
}

static int check(struct disk_root *r, struct store_list *l)
{
	struct index_row row;

	for (uint32_t i = 0; i < l->n_check; i++) {
		int err = index_get(r->index, (int64_t)disk_real_id(r, l->check[i]), &row);

		if (err < 0)
			return err;
		l->there[i] = !err && row.slot != INDEX_NO_SLOT;
	}
	return 0;
}

enum store_result disk_list(struct disk_root *r, struct store_list *l)
{
	int err;

	l->n = 0;
	if (l->n_check)
		memset(l->there, 0, l->n_check * sizeof(*l->there));
	if (!disk_root_open(r))
		return STORE_MISS;
	l->now = MIN(l->now, (uint64_t)INT64_MAX);
	err = check(r, l);
	if (!err && l->max)
		err = l->wants ? list_wanted(r, l) : list_namespace(r, l, 0, true);
	if (err) {
		disk_failed(r, err, "listing");
		l->n = 0;
		return STORE_MISS;
	}
	return STORE_OK;
}

/* From the entry to the beginning. */
static int show_path(struct disk_root *r, struct store_show *s, const struct index_row *row)
{
	struct index_row at = *row;
	bool joined = true;
	uint32_t before;
	int err = 0;

	s->chain = (uint64_t)row->id;

	for (s->n_path = 1; !err; s->n_path++) {
		for (uint32_t i = 0; i < at.n_tokens && at.first + i < s->max_tokens; i++)
			s->tokens[at.first + i] = at.tokens[i];
		if (at.parent == at.ns)
			break;
		before = at.first;
		err = index_get(r->index, at.parent, &at);
		/* Each is before its child, so that this ends. */
		if (!err && at.first >= before)
			err = -EUCLEAN;
		joined = joined && is_joined(&at, row) && !is_known(s->known, s->n_known, at.id);
		if (joined)
			s->chain = (uint64_t)at.id;
	}
	s->n_tokens = MIN(row->first + row->n_tokens, s->max_tokens);
	return err == INDEX_E_NONE ? -EUCLEAN : err;
}

enum store_result disk_show(struct disk_root *r, struct store_show *s)
{
	struct index_row row;
	int err;

	if (!disk_root_open(r))
		return STORE_MISS;
	memset(s->tokens, 0, s->max_tokens * sizeof(*s->tokens));
	err = index_get(r->index, (int64_t)disk_real_id(r, s->id), &row);
	if (!err && row.slot == INDEX_NO_SLOT)
		err = INDEX_E_NONE;
	if (!err)
		err = view_of(r, &row, &s->view);
	if (!err)
		err = show_path(r, s, &row);
	if (!err)
		err = index_n_below(r->index, row.id, STORE_BELOW_MAX, &s->n_below);
	if (err < 0)
		disk_failed(r, err, "showing");
	return err ? STORE_MISS : STORE_OK;
}

/* --- pins --- */

static int64_t depth_of(const struct disk_root *r, const struct index_row *row)
{
	return row->first / r->block_tokens + 1;
}

static int note_pins(struct disk_root *r, struct index_row *row, int by)
{
	r->state.n_pinned += by * depth_of(r, row);
	row->pins += (uint32_t)by;
	return r->state.n_pinned < 0 ? -EUCLEAN : index_update(r->index, row);
}

static bool may_pin(const struct disk_root *r, const struct index_row *row)
{
	uint64_t slots = r->disk->max_bytes / r->slots.stride;

	return (uint64_t)(r->state.n_pinned + depth_of(r, row)) <= slots / PINNED_PART;
}

static int pin(struct disk_root *r, struct index_row *row, uint32_t uid)
{
	int err = index_pin_add(r->index, row->id, uid);

	return err ? err : note_pins(r, row, 1);
}

static int unpin(struct disk_root *r, struct index_row *row, const struct store_pin *p)
{
	uint32_t uid = p->uid;
	int err = p->every ? index_pin_next(r->index, row->id, 0, &uid) : 0;

	while (!err) {
		err = row->pins ? index_pin_remove(r->index, row->id, uid) : INDEX_E_NONE;
		if (!err)
			err = note_pins(r, row, -1);
		if (err || !p->every)
			return err;
		err = index_pin_next(r->index, row->id, 0, &uid);
	}
	return err == INDEX_E_NONE && p->every && row->pins ? -EUCLEAN : MIN(err, 0);
}

enum store_result disk_pin(struct disk_root *r, const struct store_pin *p)
{
	struct index_row row;
	int err;

	if (!disk_root_open(r))
		return STORE_FAILED;
	err = index_get(r->index, (int64_t)disk_real_id(r, p->id), &row);
	if (err == INDEX_E_NONE)
		return STORE_MISS;
	if (!err && p->pin && !may_pin(r, &row))
		return STORE_DROPPED;
	if (!err)
		err = disk_begin(r, 0);
	if (!err)
		err = p->pin ? pin(r, &row, p->uid) : unpin(r, &row, p);
	if (err < 0) {
		disk_failed(r, err, "pinning");
		return STORE_FAILED;
	}
	if (disk_commit(r))
		return STORE_FAILED;
	return err && !p->pin ? STORE_MISS : STORE_OK;
}

int disk_remove_pins(struct disk_root *r, const struct index_row *row)
{
	uint32_t uid;
	int err;

	r->state.n_pinned -= row->pins * depth_of(r, row);
	while (!(err = index_pin_next(r->index, row->id, 0, &uid))) {
		err = index_pin_remove(r->index, row->id, uid);
		if (err)
			return err < 0 ? err : -EUCLEAN;
	}
	return err < 0 ? err : r->state.n_pinned < 0 ? -EUCLEAN : 0;
}
