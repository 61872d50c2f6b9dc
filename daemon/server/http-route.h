/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http-route.h - which handler serves a method and a path.  Paths lead to functions alone, never to files.
 * Thread: the loop thread.
 */
#ifndef KVD_SERVER_HTTP_ROUTE_H
#define KVD_SERVER_HTTP_ROUTE_H

#include <stdbool.h>

#include "daemon/server/http-exchange.h"

/* Whether path is one that everybody may ask, with a key or without. */
bool http_route_is_open(const char *path);
/* Sets x->route; or refuses x: 404, or 405 with the methods that there are. */
void http_route_find(struct http_exchange *x, const char *method);
/* The methods of a path, "GET, HEAD"; false: there is no such path. */
bool http_route_methods(const char *path, char *out, size_t n);

#endif
