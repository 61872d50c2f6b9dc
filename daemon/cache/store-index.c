/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/cache/store-index-private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/hash.h"

#define INDEX_VERSION 2
#define INDEX_APPLICATION 0x6b766443

_Static_assert(sizeof(struct index_state) == 64, "hashed: no padding");

#define COLUMNS "id, parent, ns, hash, first, uid, created, expires, rank, slot, children, pins,"\
		" priority, tokens, sum"
#define NEVER "9223372036854775807"

static const char *const statements[N_STATEMENTS] = {
	[BEGIN] = "BEGIN IMMEDIATE",
	[COMMIT] = "COMMIT",
	[ROLLBACK] = "ROLLBACK",
	[STATE] = "SELECT root, seed, next_id, n_slots, n_free, use, n_pinned, sum FROM state WHERE one = 1",
	[STATE_SET] = "INSERT OR REPLACE INTO state VALUES (1, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
	[NS] = "SELECT id, sum FROM namespace WHERE name = ?1",
	[NS_ADD] = "INSERT INTO namespace VALUES (?1, ?2, ?3)",
	[NS_REMOVE] = "DELETE FROM namespace WHERE id = ?1",
	[NS_NEXT] = "SELECT id, name, sum FROM namespace WHERE name > ?1 ORDER BY name LIMIT 1",
	[NS_NAME] = "SELECT id, name, sum FROM namespace WHERE id = ?1",
	[GET] = "SELECT " COLUMNS " FROM entry WHERE id = ?1",
	[CHILD] = "SELECT " COLUMNS " FROM entry INDEXED BY entry_child WHERE parent = ?1 AND hash = ?2",
	[CHILDREN] = "SELECT " COLUMNS " FROM entry INDEXED BY entry_child WHERE parent = ?1 LIMIT ?2",
	[BY_SLOT] = "SELECT " COLUMNS " FROM entry INDEXED BY entry_slot WHERE slot = ?1 AND slot >= 0",
	[LAST_OF] = "SELECT " COLUMNS " FROM entry WHERE id < ?1 AND (?2 = 0 OR ns = ?2) ORDER BY id DESC LIMIT 1",
	[NEXT] = "SELECT " COLUMNS " FROM entry WHERE id > ?1 ORDER BY id LIMIT 1",
	[NEXT_OF] = "SELECT " COLUMNS " FROM entry INDEXED BY entry_ns WHERE ns = ?2 AND id > ?1 ORDER BY id LIMIT 1",
	[EXPIRED] = "SELECT " COLUMNS " FROM entry INDEXED BY entry_expires"
		    " WHERE children = 0 AND pins = 0 AND expires < " NEVER " AND expires <= ?1"
		    " ORDER BY expires LIMIT 1",
	[LOWEST] = "SELECT " COLUMNS " FROM entry INDEXED BY entry_rank"
		   " WHERE children = 0 AND pins = 0 AND uid = ?1 ORDER BY rank LIMIT 1",
	[INSERT] = "INSERT INTO entry (" COLUMNS ")"
		   " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
	[UPDATE] = "UPDATE entry SET expires = ?2, rank = ?3, slot = ?4, children = ?5, pins = ?6, priority = ?7,"
		   " sum = ?8 WHERE id = ?1",
	[DELETE] = "DELETE FROM entry WHERE id = ?1",
	[FREE_TAKE] = "DELETE FROM free WHERE slot = (SELECT min(slot) FROM free) RETURNING slot",
	[FREE_PUT] = "INSERT INTO free VALUES (?1)",
	[FREE_REMOVE] = "DELETE FROM free WHERE slot = ?1 RETURNING slot",
	[PIN_ADD] = "INSERT OR IGNORE INTO pin VALUES (?1, ?2, ?3) RETURNING uid",
	[PIN_REMOVE] = "DELETE FROM pin WHERE entry = ?1 AND uid = ?2 RETURNING uid",
	[PIN_NEXT] = "SELECT uid, sum FROM pin WHERE entry = ?1 AND uid >= ?2 ORDER BY uid LIMIT 1",
	[OWNER_NEXT] = "SELECT uid, n, used, sum FROM owner WHERE uid >= ?1 ORDER BY uid LIMIT 1",
	[OWNER_SET] = "INSERT OR REPLACE INTO owner VALUES (?1, ?2, ?3, ?4)",
	[OWNER_REMOVE] = "DELETE FROM owner WHERE uid = ?1",
	/* UNION: ends also where damaged rows go round in a circle. */
	[N_BELOW] = "WITH RECURSIVE below(id) AS (SELECT id FROM entry INDEXED BY entry_child WHERE parent = ?1 UNION"
		    " SELECT entry.id FROM below JOIN entry INDEXED BY entry_child ON entry.parent = below.id LIMIT ?2)"
		    " SELECT count(*) FROM below",
};

static const char schema[] =
	"CREATE TABLE state (one INTEGER PRIMARY KEY, root BLOB, seed INTEGER, next_id INTEGER, n_slots INTEGER,"
	" n_free INTEGER, use INTEGER, n_pinned INTEGER, sum INTEGER);"
	"CREATE TABLE namespace (id INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE, sum INTEGER);"
	"CREATE TABLE entry (id INTEGER PRIMARY KEY, parent INTEGER NOT NULL, ns INTEGER NOT NULL,"
	" hash INTEGER NOT NULL, first INTEGER, uid INTEGER, created INTEGER, expires INTEGER, rank INTEGER,"
	" slot INTEGER, children INTEGER, pins INTEGER, priority INTEGER,"
	" tokens BLOB NOT NULL, sum INTEGER);"
	"CREATE INDEX entry_child ON entry (parent, hash);"
	"CREATE UNIQUE INDEX entry_slot ON entry (slot) WHERE slot >= 0;"
	"CREATE INDEX entry_ns ON entry (ns);"
	"CREATE INDEX entry_rank ON entry (uid, rank) WHERE children = 0 AND pins = 0;"
	"CREATE INDEX entry_expires ON entry (expires) WHERE children = 0 AND pins = 0 AND expires < " NEVER ";"
	"CREATE TABLE pin (entry INTEGER, uid INTEGER, sum INTEGER, PRIMARY KEY (entry, uid)) WITHOUT ROWID;"
	"CREATE TABLE owner (uid INTEGER PRIMARY KEY, n INTEGER, used INTEGER, sum INTEGER);"
	"CREATE TABLE free (slot INTEGER PRIMARY KEY);";

/*
 * Exclusive: one connection, whose index of the log is in its own memory, no
 * file of it.  No mapping, which a file cut short would turn into a signal.
 * The log is moved over by index_checkpoint() alone, so that its size is ours to bound.
 */
static const char settings[] =
	"PRAGMA page_size = 4096; PRAGMA locking_mode = EXCLUSIVE; PRAGMA mmap_size = 0;"
	"PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA secure_delete = ON;"
	"PRAGMA temp_store = MEMORY; PRAGMA cache_size = -4096;"
	"PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0; PRAGMA journal_size_limit = 262144;";

/* --- errors --- */

static int error_of(sqlite3 *db, int code)
{
	int err = sqlite3_system_errno(db);

	switch (code & 0xff) {
	case SQLITE_OK:
	case SQLITE_ROW:
	case SQLITE_DONE:
		return 0;
	case SQLITE_NOMEM:
		return -ENOMEM;
	case SQLITE_FULL:
		return -ENOSPC;
	case SQLITE_READONLY:
		return -EROFS;
	case SQLITE_BUSY:
	case SQLITE_LOCKED:
		return -EBUSY;
	case SQLITE_PERM:
	case SQLITE_AUTH:
		return -EACCES;
	case SQLITE_CANTOPEN:
		return err > 0 ? -err : -EACCES;
	case SQLITE_IOERR:
		return code == SQLITE_IOERR_CORRUPTFS ? -EUCLEAN : err > 0 ? -err : -EIO;
	default:	/* it says that it is malformed, or is not the database that the statements are for */
		return -EUCLEAN;
	}
}

/* --- statements --- */

sqlite3_stmt *index_use(struct index *x, enum statement which)
{
	sqlite3_stmt *s = x->statements[which];

	sqlite3_reset(s);
	sqlite3_clear_bindings(s);
	return s;
}

int index_step(struct index *x, sqlite3_stmt *s)
{
	int code = sqlite3_step(s);

	if (code == SQLITE_ROW)
		return 0;
	if (code == SQLITE_DONE)
		return INDEX_E_NONE;
	return error_of(x->db, sqlite3_extended_errcode(x->db));
}

int index_run(struct index *x, sqlite3_stmt *s)
{
	int r = index_step(x, s);

	sqlite3_reset(s);
	return r == INDEX_E_NONE ? 0 : r;
}

int index_number(struct index *x, sqlite3_stmt *s, int64_t *out)
{
	int r = index_step(x, s);

	if (!r) {
		*out = sqlite3_column_int64(s, 0);
		/* A statement that changes something is not over before it says so. */
		r = index_step(x, s);
		r = r == INDEX_E_NONE ? 0 : r ? r : -EUCLEAN;
	}
	sqlite3_reset(s);
	return r;
}

/* --- opening --- */

static int on_commit(void *arg, sqlite3 *db, const char *name, int pages)
{
	struct index *x = arg;

	x->log_pages = (uint32_t)pages;
	return SQLITE_OK;
}

static int execute(struct index *x, const char *sql)
{
	sqlite3_exec(x->db, sql, NULL, NULL, NULL);
	return error_of(x->db, sqlite3_extended_errcode(x->db));
}

/* A number that a pragma gives. */
static int pragma(struct index *x, const char *sql, int64_t *out)
{
	sqlite3_stmt *s = NULL;
	int r = error_of(x->db, sqlite3_prepare_v2(x->db, sql, -1, &s, NULL));

	if (!r)
		r = index_step(x, s);
	if (!r)
		*out = sqlite3_column_int64(s, 0);
	sqlite3_finalize(s);
	return r == INDEX_E_NONE ? -EUCLEAN : r;
}

static int configure(struct index *x)
{
	sqlite3_stmt *s = NULL;
	int on = 1, r;

	sqlite3_extended_result_codes(x->db, 1);
	sqlite3_busy_timeout(x->db, 0);
	sqlite3_db_config(x->db, SQLITE_DBCONFIG_DEFENSIVE, 1, &on);
	sqlite3_db_config(x->db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, &on);
	sqlite3_db_config(x->db, SQLITE_DBCONFIG_ENABLE_VIEW, 0, &on);
	sqlite3_limit(x->db, SQLITE_LIMIT_LENGTH, 1 << 20);
	r = execute(x, settings);
	if (r)
		return r;
	/* Setting wal_autocheckpoint takes the hook away. */
	sqlite3_wal_hook(x->db, on_commit, x);
	r = error_of(x->db, sqlite3_prepare_v2(x->db, "PRAGMA journal_mode = WAL", -1, &s, NULL));
	if (!r)
		r = index_step(x, s);
	if (!r && strcmp((const char *)sqlite3_column_text(s, 0), "wal"))
		r = -EIO;
	sqlite3_finalize(s);
	return r == INDEX_E_NONE ? -EIO : r;
}

static int prepare(struct index *x)
{
	for (size_t i = 0; i < N_STATEMENTS; i++) {
		if (sqlite3_prepare_v3(x->db, statements[i], -1, SQLITE_PREPARE_PERSISTENT, &x->statements[i], NULL))
			return error_of(x->db, sqlite3_extended_errcode(x->db));
	}
	return 0;
}

static int create(struct index *x, const struct index_state *first)
{
	char marks[128];
	int r;

	snprintf(marks, sizeof(marks), "PRAGMA application_id = %d; PRAGMA user_version = %d;", INDEX_APPLICATION,
		 INDEX_VERSION);
	r = execute(x, "BEGIN IMMEDIATE");
	if (!r)
		r = execute(x, schema);
	if (!r)
		r = execute(x, marks);
	if (!r)
		r = prepare(x);
	if (!r)
		r = index_state_set(x, first);
	if (!r)
		r = index_commit(x);
	return r;
}

static int open_existing(struct index *x, const struct index_state *first)
{
	struct index_state state = { 0 };
	int64_t application, version;
	int r = pragma(x, "PRAGMA application_id", &application);

	if (!r)
		r = pragma(x, "PRAGMA user_version", &version);
	if (!r && (application != INDEX_APPLICATION || version != INDEX_VERSION))
		r = -EUCLEAN;
	if (!r)
		r = prepare(x);
	if (!r)
		r = index_state(x, &state);
	if (!r && memcmp(state.root, first->root, sizeof(state.root)))
		r = -EUCLEAN;
	if (!r)
		x->seed = state.seed;
	return r;
}

int index_new(struct index **out, const char *path, const struct index_state *first, uint64_t hash_mask)
{
	_cleanup_(index_freep) struct index *x = calloc(1, sizeof(*x));
	int64_t pages;
	int r;

	if (!x)
		return -ENOMEM;
	x->hash_mask = hash_mask;
	x->seed = first->seed;
	memcpy(&x->sum_seed, first->root, sizeof(x->sum_seed));
	r = sqlite3_open_v2(path, &x->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_NOFOLLOW, NULL);
	if (!x->db)
		return -ENOMEM;
	r = error_of(x->db, r);
	if (!r)
		r = configure(x);
	if (!r)
		r = pragma(x, "PRAGMA page_count", &pages);
	if (!r)
		r = pages > 1 ? open_existing(x, first) : create(x, first);
	if (r)
		return r;
	*out = steal_ptr(x);
	return 0;
}

void index_free(struct index *x)
{
	if (!x)
		return;
	for (size_t i = 0; i < N_STATEMENTS; i++)
		sqlite3_finalize(x->statements[i]);
	sqlite3_close(x->db);
	free(x);
}

/* --- transactions --- */

int index_begin(struct index *x)
{
	return index_run(x, index_use(x, BEGIN));
}

int index_commit(struct index *x)
{
	return index_run(x, index_use(x, COMMIT));
}

void index_rollback(struct index *x)
{
	/* What is still being read would keep it open. */
	for (size_t i = 0; i < N_STATEMENTS; i++)
		sqlite3_reset(x->statements[i]);
	/* SQLite has rolled back on its own after some errors. */
	if (index_in_transaction(x))
		index_run(x, index_use(x, ROLLBACK));
}

bool index_in_transaction(const struct index *x)
{
	return !sqlite3_get_autocommit(x->db);
}

int index_checkpoint(struct index *x, uint32_t pages)
{
	int mode = pages ? SQLITE_CHECKPOINT_PASSIVE : SQLITE_CHECKPOINT_TRUNCATE, in_log, moved;
	int code;

	if (x->log_pages <= pages)
		return 0;
	code = sqlite3_wal_checkpoint_v2(x->db, NULL, mode, &in_log, &moved);
	if (code != SQLITE_OK)
		return error_of(x->db, sqlite3_extended_errcode(x->db));
	if (pages)
		x->bytes_moved += (uint64_t)MAX(moved, 0) * INDEX_PAGE;
	else
		x->bytes_moved += (uint64_t)x->log_pages * INDEX_PAGE;
	x->log_pages = 0;
	return 0;
}

uint64_t index_bytes_written(const struct index *x)
{
	int pages = 0, highest = 0;

	sqlite3_db_status(x->db, SQLITE_DBSTATUS_CACHE_WRITE, &pages, &highest, 0);
	return (uint64_t)pages * INDEX_PAGE + x->bytes_moved;
}

/* --- state and namespaces --- */

static int64_t state_sum(const struct index *x, const struct index_state *state)
{
	return (int64_t)hash_u64(state, sizeof(*state), x->sum_seed);
}

int index_state(struct index *x, struct index_state *out)
{
	sqlite3_stmt *s = index_use(x, STATE);
	struct index_state state = { 0 };
	int r = index_step(x, s);

	if (r)
		return r == INDEX_E_NONE ? -EUCLEAN : r;
	if (sqlite3_column_type(s, 0) != SQLITE_BLOB || sqlite3_column_bytes(s, 0) != sizeof(state.root))
		r = -EUCLEAN;
	else
		memcpy(state.root, sqlite3_column_blob(s, 0), sizeof(state.root));
	state.seed = sqlite3_column_int64(s, 1);
	state.next_id = sqlite3_column_int64(s, 2);
	state.n_slots = sqlite3_column_int64(s, 3);
	state.n_free = sqlite3_column_int64(s, 4);
	state.use = sqlite3_column_int64(s, 5);
	state.n_pinned = sqlite3_column_int64(s, 6);
	if (sqlite3_column_int64(s, 7) != state_sum(x, &state) || state.n_slots < 0 || state.next_id <= 0)
		r = -EUCLEAN;
	sqlite3_reset(s);
	if (!r)
		*out = state;
	return r;
}

int index_state_set(struct index *x, const struct index_state *state)
{
	sqlite3_stmt *s = index_use(x, STATE_SET);

	sqlite3_bind_blob(s, 1, state->root, sizeof(state->root), SQLITE_STATIC);
	sqlite3_bind_int64(s, 2, state->seed);
	sqlite3_bind_int64(s, 3, state->next_id);
	sqlite3_bind_int64(s, 4, state->n_slots);
	sqlite3_bind_int64(s, 5, state->n_free);
	sqlite3_bind_int64(s, 6, state->use);
	sqlite3_bind_int64(s, 7, state->n_pinned);
	sqlite3_bind_int64(s, 8, state_sum(x, state));
	return index_run(x, s);
}

static int64_t namespace_sum(const struct index *x, const void *name, uint32_t n_name, int64_t id)
{
	return (int64_t)hash_u64(name, n_name, hash_u64(&id, sizeof(id), x->sum_seed));
}

int index_namespace(struct index *x, const void *name, uint32_t n_name, int64_t *id)
{
	sqlite3_stmt *s = index_use(x, NS);
	int64_t found;
	int r;

	/* A null pointer would be NULL, not the empty name. */
	sqlite3_bind_blob(s, 1, n_name ? name : "", (int)n_name, SQLITE_STATIC);
	r = index_step(x, s);
	if (!r) {
		found = sqlite3_column_int64(s, 0);
		if (sqlite3_column_int64(s, 1) != namespace_sum(x, name, n_name, found))
			r = -EUCLEAN;
		else
			*id = found;
	}
	sqlite3_reset(s);
	return r;
}

int index_namespace_add(struct index *x, const void *name, uint32_t n_name, int64_t id)
{
	sqlite3_stmt *s = index_use(x, NS_ADD);

	sqlite3_bind_int64(s, 1, id);
	sqlite3_bind_blob(s, 2, n_name ? name : "", (int)n_name, SQLITE_STATIC);
	sqlite3_bind_int64(s, 3, namespace_sum(x, name, n_name, id));
	return index_run(x, s);
}

int index_namespace_remove(struct index *x, int64_t id)
{
	sqlite3_stmt *s = index_use(x, NS_REMOVE);

	sqlite3_bind_int64(s, 1, id);
	return index_run(x, s);
}

/* The only row of a statement that gives id, name and sum. */
static int read_namespace(struct index *x, sqlite3_stmt *s, uint8_t *name, uint32_t *n_name, int64_t *id)
{
	int r = index_step(x, s), n;

	if (!r) {
		const void *bytes = sqlite3_column_blob(s, 1);
		int64_t found = sqlite3_column_int64(s, 0);

		n = sqlite3_column_bytes(s, 1);
		if (n > (int)STORE_NAME_MAX || sqlite3_column_type(s, 1) != SQLITE_BLOB ||
		    sqlite3_column_int64(s, 2) != namespace_sum(x, bytes, (uint32_t)n, found)) {
			r = -EUCLEAN;
		} else {
			if (n)
				memcpy(name, bytes, (size_t)n);
			*n_name = (uint32_t)n;
			*id = found;
		}
	}
	sqlite3_reset(s);
	return r;
}

int index_namespace_next(struct index *x, const void *after, uint32_t n_after, uint8_t *name, uint32_t *n_name,
			 int64_t *id)
{
	sqlite3_stmt *s = index_use(x, NS_NEXT);

	sqlite3_bind_blob(s, 1, n_after ? after : "", (int)n_after, SQLITE_STATIC);
	return read_namespace(x, s, name, n_name, id);
}

int index_namespace_name(struct index *x, int64_t id, uint8_t *name, uint32_t *n_name)
{
	sqlite3_stmt *s = index_use(x, NS_NAME);

	sqlite3_bind_int64(s, 1, id);
	return read_namespace(x, s, name, n_name, &id);
}
