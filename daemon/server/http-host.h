/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http-host.h - whether a Host header names us, so that a web page can't reach the endpoint through
 * a name of its own that leads here (DNS rebinding).
 *
 * Ours are "localhost" and what is below it, the address that the connection has reached, any loopback address
 * where that is one, and the names of the configuration.  The port does not matter: it may be forwarded.
 *
 * Thread: any.
 */
#ifndef KVD_SERVER_HTTP_HOST_H
#define KVD_SERVER_HTTP_HOST_H

#include <stdbool.h>
#include <sys/socket.h>

/* local: where the connection ends, AF_INET or AF_INET6.  more: names between commas, or NULL. */
bool http_host_is_ours(const char *host, const struct sockaddr *local, const char *more);

#endif
