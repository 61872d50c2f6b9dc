/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workers.h - a few threads for what is too slow for the loop and needs no
 * device: tokenising and rendering prompts.
 *
 * Jobs may be put in before the threads start: what arrives while the model
 * loads waits here.  A free worker takes the oldest job of the uid that has
 * the fewest jobs running, so that one uid's heap of work doesn't hold up the
 * others.
 */
#ifndef KVD_SERVER_WORKERS_H
#define KVD_SERVER_WORKERS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "daemon/server/mailbox.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/list.h"

struct job {
	struct list link;
	struct mail mail;
	uid_t uid;
	bool queued;				/* the pool's */
	bool dropped;				/* run() was not called: dropped or stopped first */
	void (*run)(struct job *job);		/* on a worker */
	void (*done)(struct job *job);		/* then on the loop thread; may free the job */
};

struct workers;

#define WORKERS_E_FULL 1	/* the queue is full, or the pool stopped */

int workers_new(struct workers **out, struct mailbox *mailbox, size_t max_queue);
/* After workers_stop(), or if never started and the queue is empty. */
void workers_free(struct workers *w);
CLEANUP_DEFINE(struct workers, workers_free)

/* Loop thread.  0; WORKERS_E_FULL.  uid, run and done are set by the caller. */
int workers_submit(struct workers *w, struct job *job);

/* Loop thread: done() comes soon without run(), if no worker has taken the job yet. */
void workers_drop(struct workers *w, struct job *job);

/* Starts threads until there are n; the first ones' name is theirs all.  0 or -errno (then no thread runs). */
int workers_start(struct workers *w, unsigned n, const char *name);

/* Drops what is queued, waits for what runs, joins the threads.  The last
 * done() calls are in the mailbox afterwards. */
void workers_stop(struct workers *w);

#endif
