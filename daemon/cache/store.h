/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - KV blocks on disk, so that they survive the process.  FORMAT.md says what lies there.
 *
 * One store is one directory and one thread, which does all input and output.  Inside it each root identity
 * (model, KV type, numerics ...: everything that the stored numbers depend on but tokens and namespace) has a
 * `struct store_root`.  Entries form a tree as in tree.h: an entry is found from the one before it by its own
 * tokens, which are always compared, in a namespace.  Full blocks and, as leaves, open tails may be stored.
 *
 * The caller puts a request, a struct of its own, into a queue and gets it back, done, from store_poll(): nothing here
 * blocks it, and nothing but a request's result ever says that something went wrong:
 *
 *     fill in -> store_put() ... -> wake() -> store_poll() -> request->done()
 *
 * A request and all that it points to stay alive and unchanged until done() is called.  Writes wait in a
 * bounded queue, behind all else, and so do touches; other requests are handled in their order.  What a store_wipe or
 * store_drop concerns is not found by requests that were put after it, nor stored by those put before.
 *
 * Whatever goes wrong with the disk is a miss, an event (one line for the log) and a pause before
 * the next try: no error for anybody.
 *
 * Times are the caller's: ns of one clock that goes on across restarts (CLOCK_REALTIME). If it is set
 * back, entries expire later; nothing else depends on it.
 *
 * Thread: one caller's, but for wipes and the callbacks in store_config. store_new() and store_stop() wait for the
 * disk.
 */
#ifndef KVD_STORE_H
#define KVD_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/cache/store-identity.h"
#include "daemon/cache/store-slot.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/error.h"
#include "ipc/base/list.h"

struct store;
struct store_root;

#define STORE_NEVER UINT64_MAX		/* expires: never */
#define STORE_BYTES_MIN (UINT64_C(2) << 20)
#define STORE_QUEUE_MAX 64u
#define STORE_PINS_MAX 8u		/* of an entry that are told */
#define STORE_TROUBLE_MAX 127u

#define STORE_E_FULL 1			/* the queue of writes is full: not stored */

struct store_config {
	const char *dir;		/* made if it is missing */
	uint64_t max_bytes;		/* of all files; at least STORE_BYTES_MIN */
	uint32_t max_queue;		/* writes that wait; 0: STORE_QUEUE_MAX */
	uint64_t retry_ns;		/* the first pause after an error, doubled each time; 0: a second */
	/* On the store's thread: one sentence for the log. */
	void (*event)(void *arg, const char *text);
	/* The same of what is no trouble; NULL: nobody wants to know. */
	void (*note)(void *arg, const char *text);
	/* A field of an identity for people, in out[size]: "q8"; "": it has no words for it.  NULL: never any. */
	void (*describe)(const struct store_field *f, char *out, size_t size);
	/* See store_set_wake(). */
	void (*wake)(void *arg);
	void *arg;			/* of event, note and wake */
	/* For tests. */
	const struct store_io *io;
	uint32_t hash_bits;		/* of the tokens' hashes that are used; 0: 64 */
};

/* -EBUSY: another daemon uses the directory; -EINVAL, -ENOMEM; -errno of making or opening it; with a sentence. */
int store_new(struct store **out, const struct store_config *config, struct diag *diag);
/*
 * wake: called on the store's thread when there is something for store_poll() after there was nothing; it
 * calls nothing of the store's. NULL: nobody waits. Once this has returned, what was set before is not called any more.
 */
void store_set_wake(struct store *s, void (*wake)(void *arg), void *arg);
/* Handles what is queued, commits, closes all and ends the thread; store_poll() then delivers the last requests. */
void store_stop(struct store *s);
/* After store_stop() and store_poll(); every root was put away. */
void store_free(struct store *s);
CLEANUP_DEFINE(struct store, store_free)

/* --- roots --- */

/*
 * Opens a root in the background, or makes it. Models that have the same one share it.
 * block_tokens: of a full block, at most STORE_TOKENS_MAX.  name: of the model, for a note on what is there of it, but
 * of another identity; NULL: none is wanted.  0, -EINVAL, -ENOMEM.
 */
int store_root_new(struct store_root **out, struct store *s, const struct store_identity *identity, const char *name,
		   uint32_t block_tokens, uint64_t block_bytes);
/*
 * Puts it away; it may be opened again. What was put before is still handled, in the background; nothing may be put
 * for it from now on.  Its blocks stay on disk.
 */
void store_root_free(struct store_root *root);
CLEANUP_DEFINE(struct store_root, store_root_free)

/* --- requests --- */

/* Bytes that a namespace is called by, at most STORE_NAME_MAX. */
struct store_name {
	const void *bytes;
	uint32_t n;
};

enum store_result {
	STORE_OK,
	STORE_MISS,		/* nothing of it there, or not to be read */
	STORE_EXISTS,		/* a write: it was there already */
	STORE_DROPPED,		/* a write: there is no room, or it was wiped */
	STORE_ORPHAN,		/* a write: what is before it is not there */
	STORE_FAILED,		/* a write: the disk */
};

enum store_kind {	/* set by the functions below */
	STORE_OPEN, STORE_CLOSE, STORE_WRITE, STORE_LOOKUP, STORE_READ, STORE_TOUCH, STORE_DROP, STORE_WIPE,
	STORE_LIST, STORE_SHOW, STORE_PIN, STORE_EXPIRE,
};

/* Embedded in every request. */
struct store_request {
	void (*done)(struct store_request *r);	/* the caller's; called by store_poll(), may free the request */
	enum store_result result;
	bool at_once;				/* done() is called on the store's thread, and not by store_poll() */
	struct list link;			/* the store's */
	struct store_root *root;
	enum store_kind kind;
};

/*
 * Stores a block. Completed when it is committed. One write goes straight from `block` to the file.
 */
struct store_write {
	struct store_request request;
	struct store_name name;
	uint64_t parent;		/* id of the entry before it (also of a write that is not done yet); 0: none */
	const int32_t *tokens;		/* [n_tokens]; fewer than a full block: an open tail */
	uint32_t n_tokens;
	uint32_t first;			/* its first position */
	uid_t uid;			/* who had it computed */
	int priority;			/* below 0: goes before others; above: after them */
	uint64_t now, expires;		/* no later than its parent does by then */
	const void *block;		/* [block_bytes] */
	uint64_t id;			/* set at once, so that what follows it may be put */
	uint64_t stored_id;		/* result: what it is stored as; another one where it was there already */
};
/* 0; STORE_E_FULL: dropped and counted; done() is not called. */
int store_write(struct store_root *root, struct store_write *w);

struct store_found {
	uint64_t id;
	uint32_t n_tokens;		/* of the entry ... */
	uint32_t n_common;		/* ... that are the ones asked for: less in the last one only */
	uid_t pinned_by[STORE_PINS_MAX];
	uint32_t n_pins;
};

/*
 * The longest stored prefix of tokens below an entry; counts as a use of what it finds. Its blocks are read and
 * verified by store_read() only.
 */
struct store_lookup {
	struct store_request request;
	struct store_name name;
	uint64_t parent;		/* tokens follow this entry; 0: they begin the sequence */
	const int32_t *tokens;
	uint32_t n_tokens;
	uint64_t now;
	uint64_t expires;		/* what is found, and all before it, expires no earlier; 0: as it is */
	int priority;			/* of what is found from now on, as in store_write */
	struct store_found *found;	/* [max_found] */
	uint32_t max_found;
	uint32_t n_found;		/* result */
};
void store_lookup(struct store_root *root, struct store_lookup *l);

/* Reads a block into memory of the caller, whose content is worth something with STORE_OK only. */
struct store_read {
	struct store_request request;
	struct store_name name;
	uint64_t id, parent;		/* parent 0: it begins a sequence */
	const int32_t *tokens;		/* that it has to begin with: at least one */
	uint32_t n_tokens;
	uint32_t first;
	void *block;			/* [block_bytes] */
	/* Results. */
	uid_t uid;
	uint64_t created;
	uint32_t n_stored;
	int32_t stored[STORE_TOKENS_MAX];	/* the tokens of the whole entry */
};
void store_read(struct store_root *root, struct store_read *r);

/* An entry and all before it were used.  STORE_MISS: it is not there, or its block was given up. */
struct store_touch {
	struct store_request request;
	uint64_t id;
	uint64_t expires;		/* no earlier; 0: as it is */
};
void store_touch(struct store_root *root, struct store_touch *t);

struct store_removed {
	uint64_t entries, tokens, bytes;	/* bytes of blocks */
};

/*
 * Removes an entry and all below it: that with this id, and, where tokens are given, the one that they lead to, if
 * it is there under another one.  Writes that wait for it are dropped, and those behind them become orphans.
 */
struct store_drop {
	struct store_request request;
	uint64_t id;			/* 0: none */
	struct store_name name;
	const int32_t *tokens;		/* [n_tokens] from the beginning to the end of the entry; NULL, 0: none */
	uint32_t n_tokens;
	struct store_removed removed;	/* result */
};
void store_drop(struct store_root *root, struct store_drop *d);

/*
 * Removes a namespace, or all of them, from every root, also from those that are not open, or from one.  STORE_FAILED:
 * something may be left.
 */
struct store_wipe {
	struct store_request request;
	bool all;
	struct store_name name;
	bool below;			/* those, too, whose names begin with it and a slash */
	struct store_removed removed;	/* result; of roots that are not open, too */
};
/* root NULL: of all. */
void store_wipe(struct store *s, struct store_root *root, struct store_wipe *w);

/* What has expired and is not pinned goes, from open roots; some of it, where it is much. */
struct store_expire {
	struct store_request request;
	uint64_t now;
	uint64_t next;			/* result: when there will be something, `now`: still; STORE_NEVER */
};
void store_expire(struct store *s, struct store_expire *e);

/* --- for people --- */

/* An entry, as the index has it. */
struct store_view {
	uint64_t id, parent;		/* parent 0: it begins a sequence */
	uint8_t name[STORE_NAME_MAX];	/* its namespace's */
	uint32_t n_name;
	int32_t tokens[STORE_TOKENS_MAX];
	uint32_t n_tokens, first;
	uid_t uid;
	uint64_t created, expires;
	int priority;
	uid_t pinned_by[STORE_PINS_MAX];	/* the first of them */
	uint32_t n_pins;
	bool joined;			/* the only child of its parent, of the same uid, and that is not pinned */
};

/* On the store's thread: what of a namespace is to be listed. */
enum store_want { STORE_WANT_NONE, STORE_WANT_OWN, STORE_WANT_ALL };	/* OWN: what is the uid's */
typedef enum store_want (*store_want_fn)(const void *arg, const struct store_name *name);

/* The entries of lowest ids above `after`, by id, so after their parents; damaged and expired ones are not told. */
struct store_list {
	struct store_request request;
	uint64_t now;
	uint64_t after;
	store_want_fn wants;		/* NULL: all of all */
	const void *arg;
	uid_t uid;
	const uint64_t *known;		/* [n_known] ids, ascending, that are left out */
	uint32_t n_known;
	struct store_view *views;	/* [max] */
	uint32_t max, n;		/* n: result */
	/* Besides: whether these are there. */
	const uint64_t *check;		/* [n_check] */
	bool *there;			/* [n_check] result */
	uint32_t n_check;
};
void store_list(struct store_root *root, struct store_list *l);

#define STORE_BELOW_MAX 65536u
/* STORE_MISS: there is none. */
struct store_show {
	struct store_request request;
	uint64_t id;
	int32_t *tokens;		/* [max_tokens] result: what the sequence begins with ... */
	uint32_t max_tokens, n_tokens;	/* ... so many of them */
	const uint64_t *known;		/* [n_known] ids, ascending, at which the chain begins anew */
	uint32_t n_known;
	struct store_view view;		/* result */
	uint64_t chain;			/* result: the first of those that are joined to it, itself or before it */
	uint32_t n_path, n_below;	/* result: entries to it and below it, at most STORE_BELOW_MAX of these */
};
void store_show(struct store_root *root, struct store_show *s);

/*
 * An entry stays, with all before it, as long as somebody has it pinned.  STORE_OK, also if he had; STORE_MISS: it
 * is not there, or was not pinned; STORE_DROPPED: no more may be pinned in all.  Waits behind writes.
 */
struct store_pin {
	struct store_request request;
	uint64_t id;
	uid_t uid;
	bool pin;			/* false: no longer */
	bool every;			/* all pins go */
};
void store_pin(struct store_root *root, struct store_pin *p);

/* Calls done() of what is done; returns how many. */
uint32_t store_poll(struct store *s);

/* --- figures --- */

struct store_stats {
	uint64_t bytes, max_bytes;	/* of all files; bytes counts the logs at the largest that they may become */
	uint64_t n_roots, n_open;
	uint64_t n_slots, n_free;	/* of the open roots */
	uint64_t useless_bytes;		/* of `bytes`: of a model that is or was open, but of another identity */
	uint64_t queued;		/* writes */
	uint64_t written, exists;	/* writes done: stored; there already */
	uint64_t dropped_full, dropped_parent, dropped_room, dropped_paused, dropped_wiped, failed;
	uint64_t lookups, lookup_hits, lookup_tokens, found_tokens;
	uint64_t reads, read_ok, read_misses;
	uint64_t damaged;		/* slots that did not fit their row or their checksum */
	uint64_t resets;		/* indexes moved aside */
	uint64_t errors;		/* of the disk */
	uint64_t evicted, expired, removed, moved;
	uint64_t tokens_written;
	uint64_t block_bytes_written;	/* blocks alone: what there was to write */
	uint64_t slot_bytes_written;	/* with headers, padding and slots moved */
	uint64_t index_bytes_written;	/* pages, to the log and from there */
	uint64_t bytes_read;
	uint64_t commits;
	char trouble[STORE_TROUBLE_MAX + 1];	/* the last event; "": none since all worked again */
};
/* Any thread. */
void store_stats(struct store *s, struct store_stats *out);

#endif
