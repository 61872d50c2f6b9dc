/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fdstore.h - descriptors that the service manager passes at the start, and those that it keeps
 * for the next one (sd_listen_fds(3), sd_notify(3): FDSTORE=1).
 *
 * What comes is told apart by name and by kind: at most one listening socket, of any name but
 * ours, and the memfds that an earlier process has stored:
 *
 *	kvd-pool	the pool of blocks	engine.h, kept_pool
 *	kvd-index	what is in it		engine.h, kept_index
 *	kvd-life	how it ended		life.h
 *
 * A memfd is open for reading and writing, and sealed against being made shorter.  Anything else, a name
 * that comes twice, and a pool without index or the other way round are closed, taken out of the store, and
 * logged in a line.
 *
 * Without $NOTIFY_SOCKET nothing is stored.  A manager that keeps nothing does not say so:
 * the messages are lost then.
 *
 * Thread: fdstore_new() before there are others; then one at a time.
 */
#ifndef KVD_SERVER_FDSTORE_H
#define KVD_SERVER_FDSTORE_H

#include <stdbool.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/error.h"

struct fdstore;

enum fdstore_slot { FDSTORE_POOL, FDSTORE_INDEX, FDSTORE_LIFE, FDSTORE_N_SLOTS };

/*
 * Takes over what the manager passed; the environment does not speak of it any more.  *sock: the
 * listening socket, the caller's now, or -1.  -EINVAL: more than one socket, or the environment makes no
 * sense; -ENOMEM; diag says what is wrong.
 */
int fdstore_new(struct fdstore **out, int *sock, struct diag *diag);
void fdstore_free(struct fdstore *s);
CLEANUP_DEFINE(struct fdstore, fdstore_free)

/* Whether there is a service manager. */
bool fdstore_offered(const struct fdstore *s);

/* What came in this place, the caller's now; -1: nothing. */
int fdstore_take(struct fdstore *s, enum fdstore_slot slot);
/* Closes what came, if it was not taken, and has the manager forget it. */
void fdstore_drop(struct fdstore *s, enum fdstore_slot slot);
/*
 * Has the manager keep this file, which stays the caller's, instead of what it has; -1: nothing.  The same file as
 * before is no message.
 */
void fdstore_put(struct fdstore *s, enum fdstore_slot slot, int fd);

#endif
