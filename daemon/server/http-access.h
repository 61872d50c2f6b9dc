/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http-access.h - who asks, and whether it may.
 *
 *	Unix socket			the uid of SO_PEERCRED, and its groups
 *	TCP, a file of keys		its key's account and namespace; without one: only what is open to all
 *	TCP of this machine, no keys	the uid by http-peer.h; where that is not known: NOBODY
 *
 * Over TCP a Host must be ours (http-host.h); an Origin, which browsers send, must be allowed.
 *
 * Thread: the loop thread.
 */
#ifndef KVD_SERVER_HTTP_ACCESS_H
#define KVD_SERVER_HTTP_ACCESS_H

#include <stdbool.h>

#include "daemon/server/http-exchange.h"
#include "daemon/server/http-parse.h"

struct http_listener;

/* Who has connected, as far as the kernel says so.  False: nobody who is served at all. */
bool http_access_peer(const struct http_listener *l, int fd, struct http_peer *out);

/*
 * The head of a request is there, its path in x.  True: it was refused (http_refuse()), or is a browser's question
 * that is answered in the same way, with status 204.  Else x->peer is who asks.
 */
bool http_access_check(struct http_exchange *x, const struct http_parser *head);

#endif
