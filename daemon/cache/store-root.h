/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store-root.h - what the store's thread does with one root: slots and index
 * together, in transactions.  No queue, no other thread.
 *
 *   store-root.c    opens, closes, commits; what is damaged is moved aside
 *   store-entry.c   entries: written, found, read, removed
 *   store-list.c    what is there, and pins
 *   store-owner.c   which uid has how much
 *   store-space.c   the bytes of all roots: who gives way
 *   store-others.c  what is there of a model, but of another identity
 *   store.c         the queue, the thread, figures
 *
 * A root is closed (dormant: nobody has it open; or its last open failed), or open. A
 * transaction begins with the first change and ends with disk_commit() or, after an error, disk_failed().
 *
 * Thread: the store's.
 */
#ifndef KVD_STORE_ROOT_H
#define KVD_STORE_ROOT_H

#include "daemon/cache/store-index.h"
#include "daemon/cache/store.h"

#define DISK_BATCH 16u			/* writes of one transaction */
#define DISK_CHANGES_MAX 48u		/* slots that one transaction may free */
#define DISK_ALIASES 256u
#define DISK_IDS (INT64_C(1) << 24)	/* reserved at a time */

/* What all roots share. */
struct disk {
	const struct store_io *io;
	int fd;				/* the directory */
	char *path;			/* canonical */
	uint64_t max_bytes, retry_ns, hash_mask;
	uint64_t reduced_bytes, reduced_until;	/* the medium was full: keep within this for a while; monotonic */
	void (*event)(void *arg, const char *text);
	void (*note)(void *arg, const char *text);
	void (*describe)(const struct store_field *f, char *out, size_t size);
	void *arg;
	struct list roots;		/* struct disk_root.link */
	int64_t use;			/* counts uses, across roots */
	struct store_stats stats;
};

struct disk_root {
	struct list link;
	struct disk *disk;
	char name[33];
	uint32_t n_users;		/* 0: dormant */
	uint8_t id[16];
	uint32_t block_tokens;
	uint64_t block_bytes;
	uint8_t *identity;		/* the file's content; NULL: not read yet */
	uint32_t n_identity;
	bool useless;			/* its identity is damaged or of another version */
	bool other;			/* its model was opened with another identity */

	bool open;
	int fd, slots_fd;
	struct slot_file slots;
	struct index *index;
	struct index_state state;	/* as of the transaction */
	bool slots_written, punch;
	bool lost;			/* set where a transaction was rolled back */
	struct index_owner *owners;	/* [n_owners] as of the transaction, by uid */
	uint32_t n_owners, max_owners;
	int64_t freed[DISK_CHANGES_MAX];	/* by the transaction: free when it is committed */
	uint32_t n_freed;
	uint64_t slots_bytes, log_bytes, other_bytes;	/* of its files */
	uint64_t index_written;		/* of index_bytes_written(), counted already */

	uint64_t paused_until, pause_ns;	/* after an error; monotonic */
	uint64_t cut_until;		/* not cut again before; monotonic */
	uint64_t quiet_until;		/* no event about reading before; monotonic */
	int64_t ids_next, ids_end;	/* for namespaces: taken in the transaction or before */

	/* Writes that found their block there already under another id. */
	struct { uint64_t id, real; } aliases[DISK_ALIASES];
};

/* A root's file `identity`, its id and its name. */
int disk_identity_make(const struct store_identity *fields, uint32_t block_tokens, uint64_t block_bytes,
		       uint8_t **file, uint32_t *n, uint8_t id[16], char name[33]);

/* A dormant one. -ENOMEM. */
int disk_root_new(struct disk_root **out, struct disk *d, const char *name);
/* Somebody is going to use it: takes over what its file `identity` has to be. */
void disk_root_expect(struct disk_root *r, uint8_t *identity, uint32_t n_identity, const uint8_t id[16]);
void disk_root_free(struct disk_root *r);

/* Opens it if it is closed and not paused.  False: it is of no use now. */
bool disk_root_open(struct disk_root *r);
/* What its file `identity` says is known: read, where it was not yet.  0, -errno; -EUCLEAN: it is damaged. */
int disk_root_identify(struct disk_root *r);
/* The fields of an identity that is known. */
const uint8_t *disk_root_fields(const struct disk_root *r, uint32_t *n);
/* Commits and closes. */
void disk_root_close(struct disk_root *r);
/* False: an error was not long ago, nothing is to be written. */
bool disk_root_writable(const struct disk_root *r);

/* Everything in it goes; it begins cold. 0, -errno. */
int disk_root_clear(struct disk_root *r);
/* Another root was there, or nobody can tell what: directory and all go. */
int disk_root_remove(struct disk_root *r);

/* Before a change: within a transaction, with room for so many freed slots (it may commit for that). */
int disk_begin(struct disk_root *r, uint32_t n_freed);
/* Syncs and commits what was changed. On failure nothing of it was; the error is dealt with. */
int disk_commit(struct disk_root *r);
/* An operation failed: rolls back; moves a damaged index aside, or pauses. */
void disk_failed(struct disk_root *r, int err, const char *doing);
/* DISK_IDS ids from *first on, durable; commits. 0, -errno. */
int disk_reserve_ids(struct disk_root *r, int64_t *first);
/* One that is durable together with what the transaction does with it. */
int64_t disk_take_id(struct disk_root *r);
/* A slot goes when the transaction is committed. */
void disk_free_slot(struct disk_root *r, int64_t slot);
/* One that is free, within a transaction. 0; INDEX_E_NONE: there is none; -EUCLEAN: the list of them can't be right. */
int disk_take_free_slot(struct disk_root *r, int64_t *slot);
/* A line for the log; good: it is no trouble. */
__attribute__((format(printf, 3, 4)))
void disk_event(struct disk *d, bool good, const char *fmt, ...);
/* Looks at the sizes of its files again. */
void disk_root_measure(struct disk_root *r);

/* --- store-entry.c: each deals with errors of its own --- */

/* STORE_OK: it is in the transaction, which disk_commit() may still lose. */
enum store_result disk_write(struct disk_root *r, struct store_write *w);
enum store_result disk_lookup(struct disk_root *r, struct store_lookup *l);
enum store_result disk_read(struct disk_root *r, struct store_read *read);
enum store_result disk_touch(struct disk_root *r, uint64_t id, uint64_t expires);
/* Adds to *removed what went, also where not all of it did: STORE_FAILED. */
enum store_result disk_drop(struct disk_root *r, const struct store_drop *d, struct store_removed *removed);
/* Of w all, or a name with or without those below it. */
enum store_result disk_wipe(struct disk_root *r, const struct store_wipe *w, struct store_removed *removed);
/* What has expired goes, as much as one transaction takes; when there is something again.  Commits. */
uint64_t disk_expire(struct disk_root *r, uint64_t now);
/* A row whose slot is of no use: nothing is found by it any more. Within a transaction. */
int disk_give_up_slot(struct disk_root *r, struct index_row *row);
/* Removes a leaf within the transaction. */
int disk_remove_leaf(struct disk_root *r, const struct index_row *row);

/* --- store-list.c --- */

enum store_result disk_list(struct disk_root *r, struct store_list *l);
enum store_result disk_show(struct disk_root *r, struct store_show *s);
/* Commits. */
enum store_result disk_pin(struct disk_root *r, const struct store_pin *p);
/* Within the transaction: all pins of a row that is about to go. */
int disk_remove_pins(struct disk_root *r, const struct index_row *row);
/* What is stored for a write that followed an alias. */
uint64_t disk_real_id(const struct disk_root *r, uint64_t id);
/* Whether the namespace is called so, or begins with that and a slash. */
bool disk_name_within(const void *name, uint32_t n, const struct store_name *top);

/* --- store-owner.c --- */

/* Reads them.  0, -EUCLEAN, -ENOMEM. */
int disk_owners_load(struct disk_root *r);
/* The uid has `by` entries more; it is active at `now`, if that is not 0.  0, -ENOMEM, -EUCLEAN. */
int disk_owner_add(struct disk_root *r, uint32_t uid, int by, int64_t now);
/* Those that changed go into the index. */
int disk_owners_flush(struct disk_root *r);
/*
 * Whose leaf is to go first, of all open roots together: *uid.  False: whoever's is of the lowest rank.  u: whose that
 * is.
 */
bool disk_owner_beyond_share(const struct disk *d, uint32_t u, int64_t now, uint32_t *uid);

/* --- store-space.c --- */

/* Bytes of a root; of all roots; logs at their largest. */
uint64_t disk_root_bytes(const struct disk_root *r);
uint64_t disk_bytes(const struct disk *d);
/*
 * What is kept free for a root's log: it is moved over when it has a quarter of that, and one transaction of at
 * most DISK_BATCH writes and DISK_CHANGES_MAX removals takes less than the rest.
 */
uint64_t disk_log_reserve(const struct disk *d);
/* Whether the file of slots may grow by n. */
bool disk_may_grow(const struct disk_root *r, uint64_t n);
/* Makes sure that the root has n slots that are free or may be added; commits. False: it has not one. */
bool disk_make_room(struct disk_root *r, uint32_t n, int64_t now);
/* Within the root's transaction: leaves go until so many slots are or become free. */
int disk_evict(struct disk_root *r, int64_t n_free, int64_t now);
/* Gives n slots' bytes back to the file system, if there are so many. */
int disk_shrink(struct disk_root *r, uint64_t n, int64_t now);
/* At the start: more is there than there may be. */
void disk_fit(struct disk *d);

/* --- store-others.c --- */

/* Roots of r's model that nobody has open: of what use they are not is a note, with their bytes. */
void disk_note_others(struct disk_root *r, const char *model);
/* Of those that were found so, and that still nobody has open. */
uint64_t disk_useless_bytes(const struct disk *d);

#endif
