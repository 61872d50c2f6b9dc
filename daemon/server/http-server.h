/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http-server.h - the HTTP endpoint: its listening sockets, its connections.
 *
 * By file: http-parse (bytes to requests), http-connection (one client's socket), http-access (who asks, and whether
 * it may), http-route (which handler), http-exchange (what handlers see); the handlers are beside.
 *
 * HTTP is read by a codec of our own on libevent's loop and buffers.  libevent's evhttp (2.1.12) was weighed first:
 * it takes the first of two Content-Lengths, passes over a Transfer-Encoding that it doesn't know, answers a
 * method that it doesn't know with status 0, reads without bound while it replies, has no say before a body
 * is there, and ends the process where it is surprised.
 *
 * Thread: the loop thread; http_new() before others exist.
 */
#ifndef KVD_SERVER_HTTP_SERVER_H
#define KVD_SERVER_HTTP_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "daemon/server/acceptor.h"
#include "daemon/server/http-address.h"
#include "daemon/server/http-counts.h"
#include "daemon/server/http-keys.h"
#include "daemon/server/http-peer.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/error.h"
#include "ipc/base/list.h"

#define HTTP_LISTENERS_MAX 8
#define HTTP_READ_MAX 65536
#define HTTP_REFUSED_MAX 16	/* connections that are kept for a moment to be told why they are refused, in all */

struct event;
struct http;
struct listener;
struct server;

struct http_listener {
	struct http *http;
	struct http_address address;	/* TCP: as it was bound, with its port */
	struct listener *unix_listener;	/* of a Unix socket */
	int fd;				/* of a TCP one */
	struct acceptor acceptor;
	bool asks_key;			/* who comes here needs one */
};

struct http {
	struct server *server;
	struct http_listener listeners[HTTP_LISTENERS_MAX];
	size_t n_listeners;
	struct list connections;	/* struct http_connection */
	unsigned n_connections, n_refused;
	struct http_counts counts;
	struct event *tick, *next_turn;
	struct list turns;		/* struct http_connection.turn: they have more to do */
	struct http_keys *keys;		/* NULL: there is no file of keys */
	struct http_peer_finder finder;
	time_t created;			/* when the endpoint began, for models */
	bool stopping;
	bool busy;			/* a connection runs: `scratch` is in use */
	uint8_t scratch[HTTP_READ_MAX];
};

/* Reads the keys and binds what server.config.http names.  0 or -errno; diag. */
int http_new(struct http **out, struct server *server, struct diag *diag);
/* Accepts connections from now on.  0 or -ENOMEM. */
int http_start(struct http *http);
/* Accepts nobody any more. */
void http_close_listeners(struct http *http);
/* Ends all connections: what is still handled is told so. */
void http_free(struct http *http);
CLEANUP_DEFINE(struct http, http_free)

/* A connection, by its `turn`, goes on once the loop has looked at all others. */
void http_wait_for_turn(struct http *http, struct list *turn);
/* n_connections has changed. */
void http_connections_changed(struct http *http);

#endif
