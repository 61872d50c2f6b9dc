/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share.h - what the cache holds leaves it as bytes, comes in as bytes, and is compared with what the model computes.
 *
 * These calls take as long as the other side of a pipe, or the model, takes: each is for a thread of its own, which is
 * neither the engine's nor the loop's.  They visit the engine's thread for a few blocks at a time, between steps, copy
 * those, and hold nothing meanwhile: so a slow reader stalls its own export alone, and what goes away in the middle is
 * left out with what follows it.
 *
 * The model stays in the engine until the call returns, and the engine is not freed.
 */
#ifndef KVD_SHARE_H
#define KVD_SHARE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/engine/cache-control.h"
#include "ipc/base/error.h"

/* The caller's side; all are called on the thread of the call. */
struct share_ops {
	/* All n bytes.  0; -ECANCELED, -errno. */
	int (*write)(void *arg, const void *data, size_t n);
	/* n bytes, or fewer at the end.  0 and *got; -ECANCELED, -errno. */
	int (*read)(void *arg, void *data, size_t n, size_t *got);
	bool (*is_cancelled)(void *arg);
	/* Entries done, of how many; of an import total is 0. */
	void (*progress)(void *arg, uint64_t done, uint64_t total);
	void *arg;
};

struct share_figures {
	uint64_t n_entries, n_tokens, bytes;	/* written; taken; compared */
	uint64_t n_there;			/* import: entries that were there already */
	uint64_t n_left;			/* import: entries that what they follow was missing for */
	uint64_t n_differ;			/* verify: entries that differed, and were dropped */
	uint64_t ns;				/* verify: in computing and comparing */
};

#define SHARE_E_NO_MODEL 1	/* it has been unloaded */
#define SHARE_E_FILE 2		/* the file is not one, damaged or cut: the sentence says where */
#define SHARE_E_OTHER 3		/* it is of another model, type, level ...: the sentence says which */
#define SHARE_E_QUOTA 4		/* the uid may hold no more: the rest was left */
#define SHARE_E_FULL 5		/* there is no free room: the rest was left */
#define SHARE_E_UNABLE 6	/* this device can't */

/*
 * All functions: 0; SHARE_E_*; -ECANCELED; -ESHUTDOWN; -ENOMEM; what write() and read() say.  *figures is
 * filled in whatever happens: what came before a failure stays.
 */

/*
 * Writes, as EXPORT.md says, what is stored under scope->filter and the namespaces below it; who asks owns
 * them, or is an administrator.
 */
int engine_export(struct engine *e, struct engine_model *em, const struct cache_scope *scope,
		  const struct share_ops *ops, struct share_figures *figures, struct diag *diag);
/*
 * Takes a file's blocks into the namespace ns of the uid, those with a key into the one of that key below it;
 * one_place: all into ns.  They are charged to the uid, and take free room, or that of blocks of the uid's own that
 * nobody has used since this began.
 */
struct import_place {
	uid_t uid;
	const char *ns;
	bool one_place;
};
int engine_import(struct engine *e, struct engine_model *em, const struct import_place *place,
		  const struct share_ops *ops, struct share_figures *figures, struct diag *diag);
/*
 * Computes entries that the scope shows, chosen at random, until n have been compared or there are no more; each with
 * all before it.  What differs is dropped; diag says which the first was.  As long as others run it takes about a
 * quarter of the time.
 */
int engine_verify(struct engine *e, struct engine_model *em, const struct cache_scope *scope, uint32_t n,
		  const struct share_ops *ops, struct share_figures *figures, struct diag *diag);

#endif
