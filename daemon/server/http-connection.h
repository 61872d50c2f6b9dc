/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http-connection.h - one connection of an HTTP client: bytes in, requests, bytes out.
 *
 *	READING --request is whole--> HANDLING --reply, or end of a stream--> FLUSHING --all is sent--+
 *	  ^  \                                                                  ^                     |
 *	  |   +-- no request, or too late: an error ----------------------------+                     |
 *	  +---------------------- the connection is kept <--------------------------------------------+
 *	                                                                                              |
 *	gone <-- LINGERING: what still comes is thrown away, so that the reply is not lost <----------+
 *
 * One request at a time: what a client sends ahead stays in the socket, and is read when its turn comes.
 * While a request is handled nothing is read, but the end of the client's stream is noticed at once: it ends
 * the exchange (closed()).  A client that half-closes has ended, too.
 *
 * Time: a request has config.http_request_s to come in whole, headers and body, counted from its first byte or from the
 * accept; a connection waits config.http_idle_s for the next one, and as long for a client that takes nothing
 * of what is to be sent.  Deadlines are looked at once a second (http_connection_tick()).
 *
 * All descriptors are watched edge-triggered, so that nothing is ever reported twice: an error of
 * a connection that is not read can't keep the loop busy.
 *
 * Thread: the loop thread.
 */
#ifndef KVD_SERVER_HTTP_CONNECTION_H
#define KVD_SERVER_HTTP_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/server/http-exchange.h"
#include "daemon/server/http-parse.h"
#include "ipc/base/account.h"
#include "ipc/base/list.h"

struct event;
struct evbuffer;
struct http;
struct http_listener;

enum http_connection_state { HTTP_READING, HTTP_HANDLING, HTTP_FLUSHING, HTTP_LINGERING };

struct http_connection {
	struct list link;		/* in http.connections */
	struct list turn;		/* in http.turns: it goes on when others have had theirs */
	struct http *http;
	const struct http_listener *listener;
	int fd;
	struct event *readable, *writable;
	struct evbuffer *in, *out;	/* in: read, but of a later request */
	enum http_connection_state state;
	struct http_parser parser;
	struct http_exchange *exchange;	/* from the head of a request until its reply */
	struct http_peer peer;		/* as it was when the connection came; requests with keys have their own */
	struct charge session, body;
	uid_t session_account;		/* whom `session` is charged to */
	uint64_t deadline_ns;		/* 0: none */
	bool over_quota;		/* let in only to be told so */
	bool keep;			/* for another request, after this reply */
	bool blocked;			/* the socket takes no more now */
	bool above;			/* more is unsent than drained() allows */
	bool running, gone;
};

/* Takes fd over, whatever happens; peer is who came. */
void http_connection_new(struct http *http, const struct http_listener *listener, int fd,
			 const struct http_peer *peer);
/* The end, from outside: what is handled gets closed(), and the client 503 if it has had no reply yet. */
void http_connection_stop(struct http_connection *c);
/* Its turn has come again. */
void http_connection_go_on(struct http_connection *c);
/* Looks at its deadline. */
void http_connection_tick(struct http_connection *c, uint64_t now_ns);

/* The connection counts for this account from now on.  0, ACCOUNT_E_QUOTA, -ENOMEM. */
int http_connection_charge(struct http_connection *c, uid_t account);

/* --- between http-connection.c and http-exchange.c --- */

/* The exchange ends with this status; 0: nobody is there any more. */
void http_exchange_count(const struct http_exchange *x, unsigned status);

/* Sends what is in `out`, as far as the socket takes it. */
void http_connection_send(struct http_connection *c);
/* It ends soon, from the loop: whoever handles the request hears of it then. */
void http_connection_break(struct http_connection *c);
/* The reply is in `out`: x is freed, and the connection goes on. */
void http_connection_replied(struct http_connection *c);

#endif
