/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http-counts.h - what the HTTP endpoint has done since the start, of all its peers together.
 *
 * Thread: the loop thread.
 */
#ifndef KVD_SERVER_HTTP_COUNTS_H
#define KVD_SERVER_HTTP_COUNTS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HTTP_COUNTS_ROUTES_MAX 24
#define HTTP_COUNTS_OTHER "other"	/* what has no route */
#define HTTP_COUNTS_CLASSES 6		/* by the first digit of the status; 0: the client left before its reply */

struct http_counts_route {
	const char *name;		/* the route's path, or "other"; NULL: this and the following are free */
	uint64_t replies[HTTP_COUNTS_CLASSES];
};

struct http_counts {
	struct http_counts_route routes[HTTP_COUNTS_ROUTES_MAX];
	uint64_t connections, connections_refused;
	uint64_t streams, streams_open;		/* replies that come piece by piece */
	uint64_t bytes_received, bytes_sent;	/* of bodies */
};

/* A request has ended; route: one of few strings, which stays; status 0: nobody was there any more. */
static inline void http_counts_reply(struct http_counts *c, const char *route, unsigned status)
{
	unsigned class = status / 100 < HTTP_COUNTS_CLASSES ? status / 100 : 0;

	for (size_t i = 0; i < HTTP_COUNTS_ROUTES_MAX; i++) {
		struct http_counts_route *r = &c->routes[i];

		if (!r->name)
			r->name = route;
		if (strcmp(r->name, route) == 0) {
			r->replies[class]++;
			return;
		}
	}
}

#endif
