/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/cache-entry.h"

const char *cache_priority_name(uint32_t priority)
{
	return priority == KVD_CACHE_LOW ? "low" : priority == KVD_CACHE_HIGH ? "high" : "normal";
}

json_t *cache_entry_json(const struct kvd_cache_entry *e)
{
	return json_pack("{s:o,s:o,s:s,s:o,s:o,s:o,s:b,s:o,s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:s,s:b,s:s}",
			 "entry", json_u64(e->entry), "parent", json_u64(e->parent), "namespace", e->ns,
			 "uid", json_u64(e->uid), "n_tokens", json_u64(e->n_tokens), "first", json_u64(e->first),
			 "joined", e->joined, "bytes", json_u64(e->bytes), "tier", e->tier,
			 "age_ns", json_u64(e->age_ns), "idle_ns", json_u64(e->idle_ns),
			 "ttl_ns", e->ttl_ns ? json_u64(e->ttl_ns) : json_null(),
			 "hits", json_u64(e->hits), "n_users", json_u64(e->n_users), "n_pins", json_u64(e->n_pins),
			 "priority", cache_priority_name(e->priority), "pinned", e->pinned, "words", e->words);
}

/* Where an entry is, by its number. */
struct place {
	uint64_t number;
	size_t i;
};

static int by_number(const void *a, const void *b)
{
	const struct place *x = a, *y = b;

	return x->number < y->number ? -1 : x->number > y->number;
}

/* [n] in the order of numbers, or NULL. */
static struct place *places_new(const struct kvd_cache_entry *entries, size_t n)
{
	struct place *places = calloc(n ? n : 1, sizeof(*places));

	for (size_t i = 0; places && i < n; i++)
		places[i] = (struct place){ entries[i].entry, i };
	if (places)
		qsort(places, n, sizeof(*places), by_number);
	return places;
}

const char *const cache_tiers[CACHE_TIERS] = { "memory", "host", "disk" };

unsigned cache_entry_tiers(const struct kvd_cache_entry *e)
{
	unsigned in = 0;

	for (unsigned i = 0; i < CACHE_TIERS; i++)
		if (strstr(e->tier, cache_tiers[i]))
			in |= 1u << i;
	return in;
}

/* "host+disk" and so on, in the order of the tiers. */
static void name_tiers(struct cache_row *row)
{
	size_t at = 0;

	row->tier[0] = '\0';
	for (unsigned i = 0; i < CACHE_TIERS; i++)
		if (row->in_tiers & 1u << i)
			at += (size_t)snprintf(row->tier + at, sizeof(row->tier) - at, "%s%s", at ? "+" : "",
					       cache_tiers[i]);
}

static void add_entry(struct cache_row *row, const struct kvd_cache_entry *e)
{
	row->in_tiers |= cache_entry_tiers(e);
	name_tiers(row);
	row->last = e;
	row->n_tokens += e->n_tokens;
	row->bytes += e->bytes;
	row->idle_ns = e->idle_ns < row->idle_ns ? e->idle_ns : row->idle_ns;
	row->hits = e->hits > row->hits ? e->hits : row->hits;
	row->n_users = e->n_users > row->n_users ? e->n_users : row->n_users;
	if (e->ttl_ns && (!row->ttl_ns || e->ttl_ns < row->ttl_ns))
		row->ttl_ns = e->ttl_ns;
}

/* A new row at the end of those that follow `up`. */
static size_t add_row(struct cache_rows *r, const struct kvd_cache_entry *e, size_t up)
{
	size_t i = r->n++, *first, *last;
	struct cache_row *row = &r->rows[i];

	*row = (struct cache_row){ .first = e, .idle_ns = UINT64_MAX, .up = up, .down = CACHE_ROW_NONE,
				   .next = CACHE_ROW_NONE, .last_down = CACHE_ROW_NONE };
	if (up != CACHE_ROW_NONE)
		row->depth = r->rows[up].depth + 1;
	first = up == CACHE_ROW_NONE ? &r->first : &r->rows[up].down;
	last = up == CACHE_ROW_NONE ? &r->last : &r->rows[up].last_down;
	if (*first == CACHE_ROW_NONE)
		*first = i;
	else
		r->rows[*last].next = i;
	*last = i;
	return i;
}

int cache_rows_init(struct cache_rows *r, const struct kvd_cache_entry *entries, size_t n)
{
	size_t *row_of = calloc(n ? n : 1, sizeof(*row_of));
	struct place *places = places_new(entries, n);

	*r = (struct cache_rows){ .rows = calloc(n ? n : 1, sizeof(*r->rows)), .first = CACHE_ROW_NONE,
				  .last = CACHE_ROW_NONE };
	if (!row_of || !places || !r->rows) {
		free(row_of);
		free(places);
		cache_rows_deinit(r);
		return -ENOMEM;
	}
	/* A parent comes first, or is none of ours to see. */
	for (size_t i = 0; i < n; i++) {
		const struct kvd_cache_entry *e = &entries[i];
		const struct place key = { e->parent, 0 };
		const struct place *p = bsearch(&key, places, n, sizeof(*places), by_number);
		size_t up = p && p->i < i ? row_of[p->i] : CACHE_ROW_NONE;
		/* One that came while its siblings were listed may say that it is the only one. */
		bool joined = e->joined && up != CACHE_ROW_NONE && r->rows[up].last == &entries[p->i] &&
			      r->rows[up].down == CACHE_ROW_NONE;

		row_of[i] = joined ? up : add_row(r, e, up);
		add_entry(&r->rows[row_of[i]], e);
	}
	free(row_of);
	free(places);
	return 0;
}

void cache_rows_deinit(struct cache_rows *r)
{
	free(r->rows);
	r->rows = NULL;
}

size_t cache_rows_next(const struct cache_rows *r, size_t i)
{
	if (r->rows[i].down != CACHE_ROW_NONE)
		return r->rows[i].down;
	while (i != CACHE_ROW_NONE && r->rows[i].next == CACHE_ROW_NONE)
		i = r->rows[i].up;
	return i == CACHE_ROW_NONE ? i : r->rows[i].next;
}
