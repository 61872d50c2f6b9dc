/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring-sink.h - the sink (daemon/engine/sink.h) that writes into a session's
 * token ring.
 *
 * It owns the session's shared memory and a duplicate of its socket for
 * wake-ups, and lives until the session has closed it and every request was released:
 * so no closed descriptor number is ever written to and no unmapped ring.
 *
 * Threads: the sink's own functions on the engine's thread or a worker; the rest as
 * noted.  It is freed on the loop thread, by its mail.
 */
#ifndef KVD_SERVER_RING_SINK_H
#define KVD_SERVER_RING_SINK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/engine/sink.h"
#include "daemon/server/mailbox.h"
#include "ipc/base/account.h"
#include "ipc/segment.h"

struct ring_sink;
struct stats_page;

struct ring_sink_config {
	struct mailbox *mailbox;
	int sock;			/* duplicated */
	uint32_t ring_bytes, arena_bytes;
	struct accounts *accounts;	/* charged for both, */
	uid_t uid;			/* to uid */
	struct stats_page *page;	/* counts what is emitted; a reference is taken */
	/* Loop thread, once: the client broke the rules of its read index.  Not
	 * after ring_sink_close(). */
	void (*broken)(void *arg);
	void *arg;
};

#define RING_SINK_E_QUOTA 1	/* the segments are over the uid's limit */
#define RING_SINK_E_DUPLICATE 2	/* a request with this id is there */
#define RING_SINK_E_FULL 3	/* no more requests fit the ring now */
#define RING_SINK_E_GONE 4	/* the client broke the rules */

/* Loop thread.  0; RING_SINK_E_QUOTA; -errno.  The caller has one reference. */
int ring_sink_new(struct ring_sink **out, const struct ring_sink_config *config);

/* Any thread. */
void ring_sink_ref(struct ring_sink *s);
void ring_sink_unref(struct ring_sink *s);

/* Loop thread: the session ends.  Emitting fails from now on; drops the session's reference. */
void ring_sink_close(struct ring_sink *s);

const struct segment *ring_sink_ring(const struct ring_sink *s);
const struct segment *ring_sink_client(const struct ring_sink *s);
/* Loop thread: both descriptors were sent. */
void ring_sink_close_fds(struct ring_sink *s);

/*
 * Any thread: before a request is submitted.  Reserves the space of its last
 * records until they are written, and takes a reference until it is released.
 * 0; RING_SINK_E_DUPLICATE; RING_SINK_E_FULL; RING_SINK_E_GONE.
 */
int ring_sink_add(struct ring_sink *s, uint64_t request);
/* A request that was added and never submitted is over; like release(). */
void ring_sink_drop(struct ring_sink *s, uint64_t request);

struct sink *ring_sink_sink(struct ring_sink *s);

/* Loop thread: `room` came.  Whether requests wait for it (engine_room()). */
bool ring_sink_room(struct ring_sink *s);
/* Loop thread: `wait` came.  The same, since its sender may have missed that the ring was full. */
bool ring_sink_wait(struct ring_sink *s);

#endif
