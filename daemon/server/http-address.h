/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http-address.h - where the HTTP endpoint listens, as people write it:
 *
 *	127.0.0.1:8080   [::1]:8080   localhost:8080   unix:/run/kvd/http.sock
 *
 * Numbers only, but for localhost: nothing is looked up by name.  Thread: any.
 */
#ifndef KVD_SERVER_HTTP_ADDRESS_H
#define KVD_SERVER_HTTP_ADDRESS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>

#include "ipc/base/error.h"

#define HTTP_ADDRESS_TEXT_MAX 64	/* of a TCP one */

struct http_address {
	const char *path;	/* of a Unix socket, in the text that was parsed; NULL: */
	union {
		struct sockaddr sa;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
	};
	socklen_t n;
};

/* 0; -EINVAL: diag says what is wrong. */
int http_address_parse(struct http_address *out, const char *text, struct diag *diag);
/* A Unix socket, or one that only this machine reaches. */
bool http_address_is_local(const struct http_address *a);
/* "127.0.0.1:8080" */
void http_address_print(const struct http_address *a, char out[HTTP_ADDRESS_TEXT_MAX]);
unsigned http_address_port(const struct http_address *a);

#endif
