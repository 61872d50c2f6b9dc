/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store-index.h - the index of one root: rows in an SQLite database (FORMAT.md,
 * "index").  It knows rows and transactions and touches no slot.
 *
 * Every row that is read is checked against its sum.  Changes happen within a
 * transaction of the caller's.
 *
 * Errors: -EUCLEAN: the index is damaged (or of another version or root) and is to be moved aside; other -errno: the
 * operation failed; the caller rolls back, reads the state again, and may try later.
 * Thread: the store's.
 */
#ifndef KVD_STORE_INDEX_H
#define KVD_STORE_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/cache/store-slot.h"
#include "ipc/base/cleanup.h"

#define INDEX_E_NONE 1			/* there is no such row */
#define INDEX_NO_SLOT (-1)
#define INDEX_PAGE 4096u
#define INDEX_NEVER INT64_MAX		/* expires */

struct index_row {
	int64_t id, parent, ns;
	int64_t hash;			/* of tokens */
	int64_t created, expires;
	int64_t rank;
	int64_t slot;
	uint32_t uid, first, children;
	uint32_t pins;			/* on it and on those below it */
	uint32_t priority;		/* 0 low, 1 normal, 2 high */
	uint32_t n_tokens;
	int32_t tokens[STORE_TOKENS_MAX];	/* zeros after n_tokens */
};

struct index_state {
	uint8_t root[16];
	int64_t seed;			/* of hashes */
	int64_t next_id;		/* ids from here on were never given out */
	int64_t n_slots, n_free;
	int64_t use;			/* counts uses */
	int64_t n_pinned;		/* entries with pins */
};

/* What a uid has in the root. */
struct index_owner {
	int64_t n;			/* entries */
	int64_t used;			/* when it wrote last */
	uint32_t uid;
	bool changed;			/* the caller's: not in the index yet */
};

struct index;

/*
 * path: of an existing file, which may be empty: then the index begins with
 * that state, otherwise its root must be the same.  hash_mask: of the bits of hashes that are used.
 */
int index_new(struct index **out, const char *path, const struct index_state *first, uint64_t hash_mask);
/* Rolls back, checkpoints and closes. */
void index_free(struct index *x);
CLEANUP_DEFINE(struct index, index_free)

int index_begin(struct index *x);
int index_commit(struct index *x);
void index_rollback(struct index *x);
bool index_in_transaction(const struct index *x);
/* Moves the log into the database if it has more than so many pages; the next commit begins it anew. */
int index_checkpoint(struct index *x, uint32_t pages);
/* Bytes written so far, as far as SQLite tells: pages to the log and from it to the database. */
uint64_t index_bytes_written(const struct index *x);

int index_state(struct index *x, struct index_state *out);
int index_state_set(struct index *x, const struct index_state *state);

/* 0, INDEX_E_NONE, -errno. */
int index_namespace(struct index *x, const void *name, uint32_t n_name, int64_t *id);
int index_namespace_add(struct index *x, const void *name, uint32_t n_name, int64_t id);
int index_namespace_remove(struct index *x, int64_t id);
/* The first name after that one, byte by byte: name [STORE_NAME_MAX]. */
int index_namespace_next(struct index *x, const void *after, uint32_t n_after, uint8_t *name, uint32_t *n_name,
			 int64_t *id);
int index_namespace_name(struct index *x, int64_t id, uint8_t *name, uint32_t *n_name);

int index_get(struct index *x, int64_t id, struct index_row *out);
/* The child of parent with exactly these tokens. */
int index_child(struct index *x, int64_t parent, const int32_t *tokens, uint32_t n_tokens, struct index_row *out);
/*
 * Of the children of parent that have a slot and are not expired the one that has most first tokens in common with
 * these, at least one; looks at no more than max.  INDEX_E_NONE.
 */
int index_best_child(struct index *x, int64_t parent, const int32_t *tokens, uint32_t n_tokens, int64_t now,
		     uint32_t max, struct index_row *out, uint32_t *n_common);
/* Any child. */
int index_any_child(struct index *x, int64_t parent, struct index_row *out);
/* The one in that slot. */
int index_by_slot(struct index *x, int64_t slot, struct index_row *out);
/* Of a namespace (0: of any) that with the greatest id below `below`. */
int index_last_of(struct index *x, int64_t ns, int64_t below, struct index_row *out);
/* Of a namespace (0: of any) that with the lowest id above `after`. */
int index_next_of(struct index *x, int64_t ns, int64_t after, struct index_row *out);
/* A leaf without pins that has expired; that of the uid's of the lowest rank. */
int index_expired(struct index *x, int64_t now, struct index_row *out);
int index_lowest(struct index *x, uint32_t uid, struct index_row *out);

/* Fills row->hash. */
int index_insert(struct index *x, struct index_row *row);
/* Of a row that is there: expires, rank, slot, children, pins, priority. */
int index_update(struct index *x, const struct index_row *row);
int index_delete(struct index *x, int64_t id);

/* Pins of an entry. Adding: INDEX_E_NONE where it is there already; removing: where it is not. */
int index_pin_add(struct index *x, int64_t entry, uint32_t uid);
int index_pin_remove(struct index *x, int64_t entry, uint32_t uid);
/* Entries below it, at most max are counted. */
int index_n_below(struct index *x, int64_t id, uint32_t max, uint32_t *n);
/* The first of the entry's with a uid of at least that. */
int index_pin_next(struct index *x, int64_t entry, uint32_t uid_min, uint32_t *uid);

/* The first with a uid of at least that. INDEX_E_NONE. */
int index_owner_next(struct index *x, uint32_t uid_min, struct index_owner *out);
/* n 0: it goes. */
int index_owner_set(struct index *x, const struct index_owner *owner);

/* Free slots. */
int index_free_take(struct index *x, int64_t *slot);		/* the lowest; 0, INDEX_E_NONE */
int index_free_put(struct index *x, int64_t slot);
int index_free_remove(struct index *x, int64_t slot);		/* if it is free: 0, INDEX_E_NONE */

#endif
