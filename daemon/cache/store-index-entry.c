/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/cache/store-index-private.h"

#include <errno.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/hash.h"

_Static_assert(sizeof(struct index_row) == 8 * 8 + 4 * 6 + 4 * STORE_TOKENS_MAX, "hashed: no padding");

/* --- entries --- */

static int64_t row_sum(const struct index *x, const struct index_row *row)
{
	return (int64_t)hash_u64(row, sizeof(*row), x->sum_seed);
}

static int64_t tokens_hash(const struct index *x, const int32_t *tokens, uint32_t n_tokens)
{
	return (int64_t)(hash_u64(tokens, n_tokens * sizeof(*tokens), (uint64_t)x->seed) & x->hash_mask);
}

/* The row that a statement stands at. */
static int read_row(const struct index *x, sqlite3_stmt *s, struct index_row *out)
{
	struct index_row row = {
		.id = sqlite3_column_int64(s, 0),
		.parent = sqlite3_column_int64(s, 1),
		.ns = sqlite3_column_int64(s, 2),
		.hash = sqlite3_column_int64(s, 3),
		.first = (uint32_t)sqlite3_column_int64(s, 4),
		.uid = (uint32_t)sqlite3_column_int64(s, 5),
		.created = sqlite3_column_int64(s, 6),
		.expires = sqlite3_column_int64(s, 7),
		.rank = sqlite3_column_int64(s, 8),
		.slot = sqlite3_column_int64(s, 9),
		.children = (uint32_t)sqlite3_column_int64(s, 10),
		.pins = (uint32_t)sqlite3_column_int64(s, 11),
		.priority = (uint32_t)sqlite3_column_int64(s, 12),
	};
	const void *tokens = sqlite3_column_blob(s, 13);
	size_t n = (size_t)sqlite3_column_bytes(s, 13);

	if (!tokens || n > sizeof(row.tokens) || n % sizeof(row.tokens[0]))
		return -EUCLEAN;
	memcpy(row.tokens, tokens, n);
	row.n_tokens = (uint32_t)(n / sizeof(row.tokens[0]));
	if (sqlite3_column_int64(s, 14) != row_sum(x, &row))
		return -EUCLEAN;
	*out = row;
	return 0;
}

/* The first row of a statement, which it ends. */
static int first_row(struct index *x, sqlite3_stmt *s, struct index_row *out)
{
	int r = index_step(x, s);

	if (!r)
		r = read_row(x, s, out);
	sqlite3_reset(s);
	return r;
}

int index_get(struct index *x, int64_t id, struct index_row *out)
{
	sqlite3_stmt *s = index_use(x, GET);

	sqlite3_bind_int64(s, 1, id);
	return first_row(x, s, out);
}

int index_child(struct index *x, int64_t parent, const int32_t *tokens, uint32_t n_tokens, struct index_row *out)
{
	sqlite3_stmt *s = index_use(x, CHILD);
	struct index_row row;
	int r;

	sqlite3_bind_int64(s, 1, parent);
	sqlite3_bind_int64(s, 2, tokens_hash(x, tokens, n_tokens));
	while (!(r = index_step(x, s))) {
		r = read_row(x, s, &row);
		if (r)
			break;
		if (row.n_tokens == n_tokens && !memcmp(row.tokens, tokens, n_tokens * sizeof(*tokens))) {
			*out = row;
			break;
		}
	}
	sqlite3_reset(s);
	return r;
}

static uint32_t common(const struct index_row *row, const int32_t *tokens, uint32_t n_tokens)
{
	uint32_t n = MIN(row->n_tokens, n_tokens), i = 0;

	while (i < n && row->tokens[i] == tokens[i])
		i++;
	return i;
}

int index_best_child(struct index *x, int64_t parent, const int32_t *tokens, uint32_t n_tokens, int64_t now,
		     uint32_t max, struct index_row *out, uint32_t *n_common)
{
	sqlite3_stmt *s = index_use(x, CHILDREN);
	struct index_row row, best;
	uint32_t most = 0;
	int r;

	sqlite3_bind_int64(s, 1, parent);
	sqlite3_bind_int64(s, 2, max);
	while (!(r = index_step(x, s))) {
		uint32_t n;

		r = read_row(x, s, &row);
		if (r)
			break;
		n = common(&row, tokens, n_tokens);
		if (n > most && row.slot != INDEX_NO_SLOT && (row.expires > now || row.pins)) {
			most = n;
			best = row;
		}
	}
	sqlite3_reset(s);
	if (r != INDEX_E_NONE)
		return r;
	if (!most)
		return INDEX_E_NONE;
	*out = best;
	*n_common = most;
	return 0;
}

int index_any_child(struct index *x, int64_t parent, struct index_row *out)
{
	sqlite3_stmt *s = index_use(x, CHILDREN);

	sqlite3_bind_int64(s, 1, parent);
	sqlite3_bind_int64(s, 2, 1);
	return first_row(x, s, out);
}

int index_by_slot(struct index *x, int64_t slot, struct index_row *out)
{
	sqlite3_stmt *s = index_use(x, BY_SLOT);

	sqlite3_bind_int64(s, 1, slot);
	return first_row(x, s, out);
}

int index_last_of(struct index *x, int64_t ns, int64_t below, struct index_row *out)
{
	sqlite3_stmt *s = index_use(x, LAST_OF);

	sqlite3_bind_int64(s, 1, below);
	sqlite3_bind_int64(s, 2, ns);
	return first_row(x, s, out);
}

int index_expired(struct index *x, int64_t now, struct index_row *out)
{
	sqlite3_stmt *s = index_use(x, EXPIRED);

	sqlite3_bind_int64(s, 1, now);
	return first_row(x, s, out);
}

int index_lowest(struct index *x, uint32_t uid, struct index_row *out)
{
	sqlite3_stmt *s = index_use(x, LOWEST);

	sqlite3_bind_int64(s, 1, uid);
	return first_row(x, s, out);
}

int index_next_of(struct index *x, int64_t ns, int64_t after, struct index_row *out)
{
	sqlite3_stmt *s = index_use(x, ns ? NEXT_OF : NEXT);

	sqlite3_bind_int64(s, 1, after);
	if (ns)
		sqlite3_bind_int64(s, 2, ns);
	return first_row(x, s, out);
}

int index_insert(struct index *x, struct index_row *row)
{
	sqlite3_stmt *s = index_use(x, INSERT);

	row->hash = tokens_hash(x, row->tokens, row->n_tokens);
	sqlite3_bind_int64(s, 1, row->id);
	sqlite3_bind_int64(s, 2, row->parent);
	sqlite3_bind_int64(s, 3, row->ns);
	sqlite3_bind_int64(s, 4, row->hash);
	sqlite3_bind_int64(s, 5, row->first);
	sqlite3_bind_int64(s, 6, row->uid);
	sqlite3_bind_int64(s, 7, row->created);
	sqlite3_bind_int64(s, 8, row->expires);
	sqlite3_bind_int64(s, 9, row->rank);
	sqlite3_bind_int64(s, 10, row->slot);
	sqlite3_bind_int64(s, 11, row->children);
	sqlite3_bind_int64(s, 12, row->pins);
	sqlite3_bind_int64(s, 13, row->priority);
	sqlite3_bind_blob(s, 14, row->tokens, (int)(row->n_tokens * sizeof(row->tokens[0])), SQLITE_STATIC);
	sqlite3_bind_int64(s, 15, row_sum(x, row));
	return index_run(x, s);
}

int index_update(struct index *x, const struct index_row *row)
{
	sqlite3_stmt *s = index_use(x, UPDATE);

	sqlite3_bind_int64(s, 1, row->id);
	sqlite3_bind_int64(s, 2, row->expires);
	sqlite3_bind_int64(s, 3, row->rank);
	sqlite3_bind_int64(s, 4, row->slot);
	sqlite3_bind_int64(s, 5, row->children);
	sqlite3_bind_int64(s, 6, row->pins);
	sqlite3_bind_int64(s, 7, row->priority);
	sqlite3_bind_int64(s, 8, row_sum(x, row));
	return index_run(x, s);
}

int index_delete(struct index *x, int64_t id)
{
	sqlite3_stmt *s = index_use(x, DELETE);

	sqlite3_bind_int64(s, 1, id);
	return index_run(x, s);
}

/* --- free slots --- */

int index_free_take(struct index *x, int64_t *slot)
{
	return index_number(x, index_use(x, FREE_TAKE), slot);
}

int index_free_put(struct index *x, int64_t slot)
{
	sqlite3_stmt *s = index_use(x, FREE_PUT);

	sqlite3_bind_int64(s, 1, slot);
	return index_run(x, s);
}

int index_free_remove(struct index *x, int64_t slot)
{
	sqlite3_stmt *s = index_use(x, FREE_REMOVE);
	int64_t removed;

	sqlite3_bind_int64(s, 1, slot);
	return index_number(x, s, &removed);
}

int index_n_below(struct index *x, int64_t id, uint32_t max, uint32_t *n)
{
	sqlite3_stmt *s = index_use(x, N_BELOW);
	int64_t found;
	int r;

	sqlite3_bind_int64(s, 1, id);
	sqlite3_bind_int64(s, 2, max);
	r = index_number(x, s, &found);
	if (!r)
		*n = (uint32_t)found;
	return r;
}

/* --- pins and owners --- */

static int64_t pin_sum(const struct index *x, int64_t entry, uint32_t uid)
{
	const int64_t columns[] = { entry, uid };

	return (int64_t)hash_u64(columns, sizeof(columns), x->sum_seed);
}

int index_pin_add(struct index *x, int64_t entry, uint32_t uid)
{
	sqlite3_stmt *s = index_use(x, PIN_ADD);
	int64_t added;

	sqlite3_bind_int64(s, 1, entry);
	sqlite3_bind_int64(s, 2, uid);
	sqlite3_bind_int64(s, 3, pin_sum(x, entry, uid));
	return index_number(x, s, &added);
}

int index_pin_remove(struct index *x, int64_t entry, uint32_t uid)
{
	sqlite3_stmt *s = index_use(x, PIN_REMOVE);
	int64_t removed;

	sqlite3_bind_int64(s, 1, entry);
	sqlite3_bind_int64(s, 2, uid);
	return index_number(x, s, &removed);
}

int index_pin_next(struct index *x, int64_t entry, uint32_t uid_min, uint32_t *uid)
{
	sqlite3_stmt *s = index_use(x, PIN_NEXT);
	int r;

	sqlite3_bind_int64(s, 1, entry);
	sqlite3_bind_int64(s, 2, uid_min);
	r = index_step(x, s);
	if (!r) {
		uint32_t found = (uint32_t)sqlite3_column_int64(s, 0);

		if (sqlite3_column_int64(s, 1) != pin_sum(x, entry, found))
			r = -EUCLEAN;
		else
			*uid = found;
	}
	sqlite3_reset(s);
	return r;
}

static int64_t owner_sum(const struct index *x, const struct index_owner *owner)
{
	const int64_t columns[] = { owner->uid, owner->n, owner->used };

	return (int64_t)hash_u64(columns, sizeof(columns), x->sum_seed);
}

int index_owner_next(struct index *x, uint32_t uid_min, struct index_owner *out)
{
	sqlite3_stmt *s = index_use(x, OWNER_NEXT);
	int r;

	sqlite3_bind_int64(s, 1, uid_min);
	r = index_step(x, s);
	if (!r) {
		struct index_owner owner = {
			.uid = (uint32_t)sqlite3_column_int64(s, 0),
			.n = sqlite3_column_int64(s, 1),
			.used = sqlite3_column_int64(s, 2),
		};

		if (sqlite3_column_int64(s, 3) != owner_sum(x, &owner) || owner.n <= 0)
			r = -EUCLEAN;
		else
			*out = owner;
	}
	sqlite3_reset(s);
	return r;
}

int index_owner_set(struct index *x, const struct index_owner *owner)
{
	sqlite3_stmt *s = index_use(x, owner->n ? OWNER_SET : OWNER_REMOVE);

	sqlite3_bind_int64(s, 1, owner->uid);
	if (owner->n) {
		sqlite3_bind_int64(s, 2, owner->n);
		sqlite3_bind_int64(s, 3, owner->used);
		sqlite3_bind_int64(s, 4, owner_sum(x, owner));
	}
	return index_run(x, s);
}
