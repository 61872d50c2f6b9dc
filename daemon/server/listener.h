/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listener.h - a listening AF_UNIX socket and its place in the file system: the SOCK_SEQPACKET one
 * of attached programs, or a SOCK_STREAM one.
 *
 * PATH.lock is held by flock(2) for the listener's life, so that of two daemons
 * on one path the second is refused, while a socket that a killed daemon left
 * behind is known to be stale and replaced.  What is not a socket is never
 * removed, nor is a socket that another program listens on.
 *
 * Thread: listener_new() before other threads start (it sets the umask around
 * bind(2), which is what makes the mode right from the first instant);
 * afterwards the loop thread.
 */
#ifndef KVD_SERVER_LISTENER_H
#define KVD_SERVER_LISTENER_H

#include <sys/stat.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/error.h"

struct listener;

#define LISTENER_E_BUSY 1	/* another daemon serves this path */

/*
 * Binds path, a socket of this type, with exactly `mode`, whatever the umask.  A missing directory is
 * made (one level; 0755 for root, else 0700).  0; LISTENER_E_BUSY;
 * -ENAMETOOLONG: 108 bytes or more; -EEXIST: something that is not a socket is
 * there; -errno.  diag always says what is wrong.
 */
int listener_new(struct listener **out, const char *path, int type, mode_t mode, struct diag *diag);

/*
 * Takes over a listening socket made by somebody else (socket activation).
 * -EINVAL: not a listening AF_UNIX SOCK_SEQPACKET socket (fd stays the
 * caller's).  Nothing is unlinked at the end.
 */
int listener_adopt(struct listener **out, int fd, struct diag *diag);

/* Closes; unlinks the socket if it is still ours, and the lock file. */
void listener_free(struct listener *l);
CLEANUP_DEFINE(struct listener, listener_free)

int listener_fd(const struct listener *l);
/* The path; for an adopted socket its address. */
const char *listener_path(const struct listener *l);

#endif
