/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk-store.h - where blocks are kept for good: the store of a daemon's state directory.
 *
 *     STATE/          0700 where it is made here; may hold other things
 *       cache/        the store's alone: FORMAT.md
 *
 * It is opened and locked before models are loaded, so that a second daemon learns early that it is
 * one, and outlives the engine.
 *
 * A cache is no reason not to start: what is wrong is an event, and the daemon runs without.  Only what
 * somebody has named and can't have meant is refused.
 *
 * Thread: any, before the store is an engine's or after.
 */
#ifndef KVD_DISK_STORE_H
#define KVD_DISK_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/error.h"

struct store;

#define DISK_STORE_AUTO UINT64_MAX

struct disk_store_config {
	const char *state_dir;		/* NULL: nobody knows one */
	bool named;			/* somebody meant this one: it is no default place */
	/*
	 * Of all files.  DISK_STORE_AUTO: 8 GiB, at most a tenth of what the file system has left, counted
	 * with what the store has already.
	 */
	uint64_t max_bytes;
	/* From the store's thread, and from disk_store_open(): a line for the log. */
	void (*event)(void *arg, const char *text);
	/* From the store's thread: the same of what is no trouble.  NULL: nobody wants to know. */
	void (*note)(void *arg, const char *text);
	void *arg;
};

/*
 * 0; *out is NULL where there is none and an event has said why.  -EBUSY (another daemon uses it), -ENOENT, -ENOTDIR:
 * a directory that was named can't be that; -ENOMEM, -EINVAL; with a sentence.
 */
int disk_store_open(struct store **out, const struct disk_store_config *config, struct diag *diag);
/* No engine has it any more; what is queued gets to the disk.  NULL is fine. */
void disk_store_close(struct store *s);
CLEANUP_DEFINE(struct store, disk_store_close)

struct disk_store_stats {
	uint64_t max_bytes, bytes;	/* of all files; bytes counts logs at the largest that they may become */
	uint64_t useless_bytes;		/* of these: of models that were loaded, of another KV type, level ... */
	uint64_t n_blocks;		/* of models that are loaded */
	/* Since the start: prompts asked for, those of which something was there; blocks. */
	uint64_t lookups, hits, written, read, evicted, damaged;
	uint64_t errors;		/* of the medium */
	char trouble[128];		/* what was last wrong; "": nothing now */
};
/* Any thread; s NULL: zeros. */
void disk_store_stats(struct store *s, struct disk_store_stats *out);

#endif
