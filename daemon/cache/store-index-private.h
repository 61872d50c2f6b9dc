/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store-index-private.h - the statements of the index, for its files.
 *
 *   store-index.c          opening, transactions, state, namespaces
 *   store-index-entry.c    entries, free slots, pins, owners
 */
#ifndef KVD_STORE_INDEX_PRIVATE_H
#define KVD_STORE_INDEX_PRIVATE_H

#include <sqlite3.h>

#include "daemon/cache/store-index.h"

enum statement {
	BEGIN, COMMIT, ROLLBACK,
	STATE, STATE_SET,
	NS, NS_ADD, NS_REMOVE, NS_NEXT, NS_NAME,
	GET, CHILD, CHILDREN, BY_SLOT, LAST_OF, NEXT, NEXT_OF, EXPIRED, LOWEST,
	INSERT, UPDATE, DELETE,
	FREE_TAKE, FREE_PUT, FREE_REMOVE,
	PIN_ADD, PIN_REMOVE, PIN_NEXT,
	OWNER_NEXT, OWNER_SET, OWNER_REMOVE, N_BELOW,
	N_STATEMENTS
};

struct index {
	sqlite3 *db;
	sqlite3_stmt *statements[N_STATEMENTS];
	uint64_t sum_seed, hash_mask;
	int64_t seed;
	uint32_t log_pages;
	uint64_t bytes_moved;		/* by checkpoints */
};

/* Ready for binding; the last use of it is over. */
sqlite3_stmt *index_use(struct index *x, enum statement which);
/* 0: a row; INDEX_E_NONE: there is none (any more); -errno. */
int index_step(struct index *x, sqlite3_stmt *s);
/* Runs a statement without results and ends it. */
int index_run(struct index *x, sqlite3_stmt *s);
/* The only number that a statement gives. */
int index_number(struct index *x, sqlite3_stmt *s, int64_t *out);

#endif
