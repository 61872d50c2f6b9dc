/* SPDX-License-Identifier: Apache-2.0 */
/* cache-entry.h - entries of the cache: in JSON, and joined to the stretches that a person sees. */
#ifndef KVD_CTL_CACHE_ENTRY_H
#define KVD_CTL_CACHE_ENTRY_H

#include "client/ctl/json.h"
#include "client/kvd.h"

json_t *cache_entry_json(const struct kvd_cache_entry *e);
const char *cache_priority_name(uint32_t priority);

#define CACHE_ROW_NONE SIZE_MAX

/* A chain: entries without branches. */
#define CACHE_TIERS 3u
extern const char *const cache_tiers[CACHE_TIERS];	/* "memory", "host", "disk" */
/* A bit for each tier that the entry is in. */
unsigned cache_entry_tiers(const struct kvd_cache_entry *e);

struct cache_row {
	const struct kvd_cache_entry *first, *last;
	uint64_t n_tokens, bytes;
	unsigned in_tiers;		/* a bit for each of CACHE_TIERS that one of its entries is in */
	char tier[20];			/* "memory+disk" */
	uint64_t idle_ns;		/* the least */
	uint64_t ttl_ns;		/* the least; 0: none expires */
	uint32_t hits, n_users;		/* the most */
	size_t up, down, next;		/* the row that it follows, the first that follows it, its next sibling */
	size_t last_down;
	unsigned depth;
};

struct cache_rows {
	struct cache_row *rows;
	size_t n;
	size_t first, last;		/* of those that follow none */
};

/* entries: parents before children; outlive the rows.  0 or -ENOMEM. */
int cache_rows_init(struct cache_rows *r, const struct kvd_cache_entry *entries, size_t n);
void cache_rows_deinit(struct cache_rows *r);
/* After row i, from r->first on, each before those that follow it; CACHE_ROW_NONE at the end. */
size_t cache_rows_next(const struct cache_rows *r, size_t i);

#endif
