/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http-sink.h - the sink (daemon/engine/sink.h) of one HTTP exchange and all of its choices.
 *
 * The engine's thread appends batches of events to one buffer while the loop thread reads those of another;
 * when it has read all, the two change places.  So nothing is copied twice, nothing is allocated per token, and
 * a lock is held only while a batch is appended.
 *
 *	emit() -> [ back ] --change places--> [ front ] -> http_sink_next()
 *
 * The back one is bounded: a reader that stops stalls its own requests.  Room for the last
 * batch of each request is there from http_sink_add() on.
 *
 * It lives until it is closed and every request was released.  It is freed on the loop
 * thread, by its mail.
 */
#ifndef KVD_SERVER_HTTP_SINK_H
#define KVD_SERVER_HTTP_SINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/engine/sink.h"
#include "daemon/server/mailbox.h"
#include "ipc/base/account.h"

struct http_sink;
struct stats_page;

#define HTTP_SINK_REQUESTS_MAX 1024	/* of one exchange */
#define HTTP_SINK_QUEUE_MAX (64u << 10)	/* bytes that wait, then the requests do; one batch may be more */

struct http_sink_config {
	struct mailbox *mailbox;
	struct accounts *accounts;	/* charged for the buffers, */
	uid_t account;			/* to this one */
	struct stats_page *page;	/* counts what is emitted; a reference is taken; NULL: nobody counts */
	size_t n_requests;		/* at most; their ids are 0 .. n_requests - 1 */
	/* Loop thread: there is something to read.  Not after http_sink_close(). */
	void (*ready)(void *arg);
	void *arg;
};

#define HTTP_SINK_E_QUOTA 1	/* the buffers are over the account's limit */

/* Loop thread.  0; HTTP_SINK_E_QUOTA; -ENOMEM. */
int http_sink_new(struct http_sink **out, const struct http_sink_config *config);
/* Loop thread: emitting fails from now on, nothing is read any more; the caller's reference goes. */
void http_sink_close(struct http_sink *s);

struct sink *http_sink_sink(struct http_sink *s);

/*
 * Any thread, before a request is submitted: room for its last records, and a reference until it is
 * released.  0 or -ENOMEM.
 */
int http_sink_add(struct http_sink *s, uint64_t request);
/* A request that was added and never submitted is over. */
void http_sink_drop(struct http_sink *s, uint64_t request);

/* What was emitted in one call. */
struct http_batch {
	uint64_t request;
	const struct sink_event *events;	/* [n] */
	size_t n;
};
/* Loop thread: the next one, valid until the next call.  False: nothing is there. */
bool http_sink_next(struct http_sink *s, struct http_batch *out);
/* Loop thread: something was read; whether requests wait for that (engine_room()). */
bool http_sink_room(struct http_sink *s);
/* Loop thread: something was lost for want of memory; whoever it was for can't be answered. */
bool http_sink_failed(struct http_sink *s);

#endif
