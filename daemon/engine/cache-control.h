/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache-control.h - people look into the cache, pin, drop and wipe.
 *
 * A command is filled in by any thread and carried out on the engine's, between steps; a listing comes
 * a page at a time, so that it takes no longer than a look at each entry.  What concerns the disk is answered when
 * that is done: what was dropped or wiped is in no file any more, and nothing on its way brings it back.
 *
 * An entry may be in memory, on disk, or both; then its number is that in memory.  Those on disk alone come last.
 *
 * Who may what.  Somebody sees the entries of his own namespaces (`own` and those below it) and those that he is
 * charged for in others: he has sent all of their tokens.  What tells of others' use of those is left out.  He
 * may pin what he sees, unpin what he has pinned, and drop and wipe in his own namespaces.  Administrators may
 * do everything.  What he may not see does not exist for him.
 *
 * Entries are known outside by numbers, not by their ids, which are given out one after the other to whoever
 * stores something: from two of his own one could tell how much others had stored meanwhile.
 */
#ifndef KVD_CACHE_CONTROL_H
#define KVD_CACHE_CONTROL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/engine/engine.h"

#define CACHE_NAME_MAX 127u	/* bytes of a namespace's name that are shown */
#define CACHE_WORDS_MAX 48u
#define CACHE_TEXT_MAX 1024u
#define CACHE_PAGE_MAX 120u
#define CACHE_PINS_MAX 16u

/* Who asks. */
struct cache_scope {
	uid_t uid;
	bool admin;
	char own[CACHE_NAME_MAX + 1];		/* his own namespace */
	char filter[CACHE_NAME_MAX + 1];	/* only this namespace and those below it; "": all */
};

/* One entry, plainly.  Text is UTF-8 but where the tokens are none, without control characters of one byte. */
struct cache_entry {
	uint64_t number, parent;	/* parent 0: it begins a prompt */
	char ns[CACHE_NAME_MAX + 1];
	uid_t uid;			/* who is charged */
	uint32_t n_tokens, first;
	bool joined;			/* of the same chain as its parent: see tree.h */
	uint64_t bytes;
	const char *tier;
	uint64_t age_ns, idle_ns;
	uint64_t ttl_ns;		/* until it expires; 0: never */
	uint32_t hits, n_users, n_pins;
	uint32_t priority;		/* 0 low, 1 normal, 2 high */
	bool pinned;			/* by who asks */
	char words[CACHE_WORDS_MAX + 1];
};

enum cache_op { CACHE_LS, CACHE_SHOW, CACHE_PIN, CACHE_UNPIN, CACHE_DROP, CACHE_WIPE, CACHE_USAGE };

#define CACHE_E_NO_MODEL 1	/* it has been unloaded */
#define CACHE_E_NO_ENTRY 2
#define CACHE_E_FULL 3		/* no more may be pinned in all */
#define CACHE_E_QUOTA 4		/* the uid may hold no more */
#define CACHE_E_NOT_PINNED 5
#define CACHE_E_DISK 7		/* not all of it could be removed from disk */
#define CACHE_E_DENIED 6	/* he sees it, but may not remove it: the namespace is shared */

struct cache_command {
	enum cache_op op;
	struct engine_model *model;	/* WIPE, USAGE: NULL, of all */
	struct cache_scope scope;
	uint64_t entry;			/* its number; all but LS, WIPE and USAGE */
	uint64_t after;			/* LS: `next` of the page before; 0: the first */
	bool all;			/* UNPIN, by administrators: everybody's pins.  WIPE: whatever the filter */
	bool chain;			/* DROP: from the first of its chain on */
	struct cache_entry *entries;	/* LS: [CACHE_PAGE_MAX] to be filled in; SHOW: [1] */

	int result;			/* 0, CACHE_E_*, -ENOMEM */
	uint32_t n;			/* LS, SHOW: of entries */
	uint64_t next;			/* LS: 0: there are no more */
	uint32_t block_tokens;		/* LS */
	/* SHOW: */
	uint64_t chain_first;
	uint32_t n_path, n_below;	/* entries from the root to it, below it */
	uid_t pinned_by[CACHE_PINS_MAX];
	uint32_t n_pinned_by;
	char text[CACHE_TEXT_MAX + 1];	/* what the prompt begins with */
	char own_text[CACHE_TEXT_MAX + 1];
	/* PIN, UNPIN, DROP, WIPE: concerned; USAGE: n_entries, blocks that the uid is charged for. */
	uint64_t n_entries, n_tokens, bytes;
	uint64_t disk_entries, disk_bytes;	/* DROP, WIPE: removed from disk, in memory or not */

	/* On the engine's thread, or the disk's, the last; must not block. */
	void (*done)(struct cache_command *c);
};

/* Any thread.  0; ENGINE_E_BUSY, -ESHUTDOWN: then done() is not called. */
int engine_cache(struct engine *e, struct cache_command *c);

struct store;
/* A wipe where there is no engine: what is on disk.  False: out of memory, done() is not called. */
bool cache_wipe_disk(struct store *store, struct cache_command *c);

#endif
