/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.h - inside of libkvd: one attachment to the daemon.
 *
 * Locks.  `lock` guards everything in struct kvd_client but the descriptors and
 * mappings, which do not change.  It is never held while a thread sleeps in
 * poll() or sends.
 *
 * The socket is read by one thread at a time, the one that set `reading`; it
 * hands each message to whom it concerns:
 *
 *	kvd_next()        sleeps in poll() on the socket, or only on `poke` while another
 *	                  thread reads; a signal interrupts it either way
 *	kvd_status() ...  sleep in poll() on the socket, or on `cond` while another
 *	                  thread reads
 *
 * A thread that stops reading wakes the others, so that one of them goes on.
 * What concerns kvd_next() but was read by another thread (a wake, a refusal) also
 * makes `poke` readable, and with it kvd_fd(), which is an epoll over both: so an
 * application that polls misses nothing that kvd_status() took from the socket.
 */
#ifndef KVD_LIB_CLIENT_H
#define KVD_LIB_CLIENT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/kvd.h"
#include "client/lib/arena.h"
#include "ipc/base/error.h"
#include "ipc/base/list.h"
#include "ipc/codec.h"
#include "ipc/ring.h"
#include "ipc/segment.h"

#define KVD_API __attribute__((visibility("default")))

#define CALL_TIMEOUT_MS 30000	/* for an answer, and for room to send a message */

/* Something that was submitted, until its last event was taken. */
struct request {
	struct list link;		/* in kvd_client.requests or .refused */
	uint64_t id;
	struct arena_block prompt;	/* free once the daemon has answered */
	/* A refusal, filled in when it comes: allocated before, so that it can't get lost. */
	uint32_t code;
	char field[KVD_FIELD_MAX + 1];
	char text[KVD_ERROR_TEXT_MAX + 1];
};

/* A question that waits for its answer. */
struct call {
	struct list link;		/* in kvd_client.calls */
	uint64_t id;
	enum kvd_message expected;
	struct arena_block memory;	/* the daemon may write there until it answers */
	bool sent, answered;
	bool abandoned;			/* nobody waits any more: freed by the answer */
	uint32_t percent;		/* of a load */
	uint64_t done, total;		/* of an export, import or verification */
	uint64_t heard_ns;		/* when the daemon last told about it */
	struct msg *reply;		/* of the expected kind, or error */
};

struct kvd_client {
	int sock, epoll, poke;
	struct segment ring, segment;

	pthread_mutex_t lock;
	pthread_cond_t cond;		/* CLOCK_MONOTONIC */
	bool reading;			/* a thread sleeps on the socket */
	bool next_active;		/* a thread is in kvd_next() */
	bool next_sleeping;		/* it waits for `poke` alone */
	bool poked;
	bool room_owed;			/* `room` could not be sent yet */
	int broken;			/* KVD_E_CLOSED or KVD_E_PROTOCOL; 0: attached */
	char broken_why[200];
	uint64_t last_id;
	struct list requests, refused, calls;
	struct arena arena;
	uint8_t *datagram;		/* [KVD_MESSAGE_MAX] */

	/* What kvd_next() gave out. */
	struct ring_reader reader;
	struct kvd_event event;
	struct kvd_alternative alternatives[KVD_LOGPROBS_MAX + 1];
	struct request *ended;		/* the refusal that event points to */
	unsigned since_socket;		/* records taken since the socket was looked at */

	char error[256];
	int code;
	char field[KVD_FIELD_MAX + 1];
};

__attribute__((format(printf, 2, 3)))
void client_say(struct kvd_client *c, const char *fmt, ...);
__attribute__((format(printf, 3, 4)))
void client_say_broken(struct kvd_client *c, int r, const char *fmt, ...);

static inline int client_result(int r)
{
	return r;
}

/* Remembers a failure's sentence; is r.  With the lock held.  Macros, since analysers do not see
 * what a variadic function returns. */
#define client_fail(c, r, ...) (client_say((c), __VA_ARGS__), client_result(r))
/* The attachment is over, with r; the first reason stays. */
#define client_break(c, r, ...) (client_say_broken((c), (r), __VA_ARGS__), client_result(r))

/* Says again why it is over; returns c->broken. */
static inline int client_still_broken(struct kvd_client *c)
{
	int r = c->broken;

	client_say(c, "%s", c->broken_why);
	return r;
}

/* Locks, forgets the last failure. */
void client_enter(struct kvd_client *c);
/* Unlocks, returns r. */
int client_leave(struct kvd_client *c, int r);

/* --- socket.c --- */

/*
 * Sends a message, waiting at most timeout_ms for room.  Without the lock.
 * 0; KVD_E_CLOSED; KVD_E_TIMEOUT; -errno.
 */
int client_send(struct kvd_client *c, const struct codec_buf *buf, int timeout_ms);
/* The same with a descriptor, which stays the caller's; -1: none. */
int client_send_fd(struct kvd_client *c, const struct codec_buf *buf, int fd, int timeout_ms);

/*
 * One datagram without waiting, as fdpass_recv().  A daemon that closed with
 * messages of ours unread gives ECONNRESET before what it had sent: that is
 * passed over, and the end of the connection comes as FDPASS_E_EOF.
 */
int client_recv_datagram(struct kvd_client *c, size_t *n, int *fds, size_t max_fds, size_t *n_fds);

/*
 * Takes one message from the socket, if one is there, and hands it on.  With the lock
 * held.  True if there was one, or if the state has changed (c->broken).
 */
bool client_receive(struct kvd_client *c, bool is_next);

/*
 * Sleeps until something may have changed.  With the lock held; it is given up
 * meanwhile.  deadline_ns: CLOCK_MONOTONIC, UINT64_MAX for never.
 * 0; -ETIMEDOUT; -EINTR (only kvd_next(), is_next).
 */
int client_wait(struct kvd_client *c, uint64_t deadline_ns, bool is_next);

void client_poke(struct kvd_client *c);
void client_unpoke(struct kvd_client *c);

/* --- submit.c --- */

struct request *client_find_request(struct kvd_client *c, uint64_t id);
void request_free(struct request *r);	/* unlinks, gives its memory back; NULL is fine */

/* --- query.c --- */

/* With the lock held; NULL: no memory. */
struct call *call_new(struct kvd_client *c, enum kvd_message expected);
void call_free(struct call *call);	/* NULL is fine */
/*
 * The two halves of call_exchange(): sends buf, with a descriptor unless fd is -1; waits for the answer until
 * deadline_ns.  With the lock held, given up meanwhile.  call_begin(): 0 or a failure that is said;
 * call_await(): 0: call->reply is there; -ETIMEDOUT, not said; KVD_E_CLOSED, KVD_E_PROTOCOL, -errno, said.
 */
int call_begin(struct kvd_client *c, struct call *call, const struct codec_buf *buf, int fd);
int call_await(struct kvd_client *c, struct call *call, uint64_t deadline_ns);
/*
 * Sends buf and waits for the answer, call->reply.  With the lock held, given up
 * meanwhile.  0; KVD_E_CLOSED, KVD_E_PROTOCOL, KVD_E_TIMEOUT; -errno.
 */
int call_exchange(struct kvd_client *c, struct call *call, const struct codec_buf *buf);
/*
 * Ends a call that was given up or is done with: the daemon may still write into
 * the memory that it was given, so that stays taken until it answers.
 */
void call_finish(struct kvd_client *c, struct call *call);
/*
 * The answer to what takes long, of which the daemon tells several times a second.  wants_stop is called as often,
 * without the lock: true gives it up.  0: call->reply is there; -ECANCELED; KVD_E_TIMEOUT and others as
 * call_await(), said.
 */
typedef bool (*call_stop_fn)(void *arg, const struct call *call);
int call_await_long(struct kvd_client *c, struct call *call, call_stop_fn wants_stop, void *arg);
/* What that answer means: 0; -ECANCELED: it was given up; KVD_E_REFUSED. */
int call_long_result(struct kvd_client *c, const struct call *call);
/* Remembers why the daemon refused; KVD_E_REFUSED. */
int call_refused(struct kvd_client *c, const struct msg_error *e);
/*
 * A whole question: *message begins with its id, which is filled in.  *out is the answered call, to be freed by
 * call_free(); an answer that is an error is call_refused().
 */
int call_ask(struct kvd_client *c, enum kvd_message question, enum kvd_message expected, void *message,
	     struct call **out);

#endif
