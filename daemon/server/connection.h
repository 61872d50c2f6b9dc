/* SPDX-License-Identifier: Apache-2.0 */
/*
 * connection.h - datagrams in and out of one client's socket, without meaning.
 *
 * Nothing waits: what the socket does not take is kept in a short queue, and
 * while that queue holds anything no more is read, so that a client that does
 * not read its replies can't make more of them.  If the queue overflows, or
 * the peer closes, the connection is dead: sends are ignored, and `closed` is
 * called from the loop soon after, never from inside a call of the owner's.
 *
 * Thread: the loop thread.
 */
#ifndef KVD_SERVER_CONNECTION_H
#define KVD_SERVER_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/list.h"

#define CONNECTION_QUEUE_MAX 64		/* datagrams */
#define CONNECTION_BATCH 16		/* datagrams read before others have their turn */

struct event;
struct event_base;
struct connection;

struct connection_ops {
	/* One datagram, and the descriptor that came with it, taken over; -1: none. */
	void (*message)(struct connection *c, const void *data, size_t n, int fd);
	/* A datagram that was thrown away: FDPASS_E_TRUNCATED or FDPASS_E_FDS (more than one). */
	void (*discarded)(struct connection *c, int why);
	/* The last call: dead; connection_deinit() it. */
	void (*closed)(struct connection *c);
};

struct connection {
	const struct connection_ops *ops;
	int fd;
	struct event *readable, *writable;
	uint8_t *buffer;
	struct list queue;
	size_t n_queued;
	bool dead;
};

/*
 * fd: non-blocking; taken over on success.  buffer: KVD_MESSAGE_MAX bytes that
 * connections of one loop may share.  0 or -ENOMEM.
 */
int connection_init(struct connection *c, struct event_base *base, int fd, uint8_t *buffer,
		    const struct connection_ops *ops);
/* Not from inside message() or discarded(); a zeroed connection is fine. */
void connection_deinit(struct connection *c);

void connection_send(struct connection *c, const void *data, size_t n);
/* The same for what is not worth keeping: lost if the socket does not take it now. */
void connection_hint(struct connection *c, const void *data, size_t n);
/* As the first message only: nothing is queued.  0 or -errno. */
int connection_send_fds(struct connection *c, const void *data, size_t n, const int *fds, size_t n_fds);
/* Makes it dead. */
void connection_kill(struct connection *c);

#endif
