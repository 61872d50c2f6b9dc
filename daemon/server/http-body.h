/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http-body.h - a request's body is read at once or, if it is long, by a worker, since the loop has others to answer.
 *
 * Thread: the loop thread, but for read().
 */
#ifndef KVD_SERVER_HTTP_BODY_H
#define KVD_SERVER_HTTP_BODY_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/server/http-exchange.h"
#include "daemon/server/http-fields.h"
#include "ipc/base/account.h"

/* Where the bytes stand: in the exchange, or in a copy of its own. */
struct http_body {
	uint8_t *copy;		/* NULL: the exchange's */
	struct charge memory;
};
/* Nothing refers to it any more.  Twice is harmless. */
void http_body_deinit(struct http_body *body);

/* Of one endpoint. */
struct http_body_reader {
	/* Any thread: what the body says; it may refer to the bytes.  NULL: the refusal is filled in. */
	void *(*read)(const uint8_t *bytes, size_t n, struct http_refusal *why);
	/* The exchange goes on with it, and has it and the body now. */
	void (*take)(struct http_exchange *x, void *request, struct http_body *body);
	/* The exchange is gone. */
	void (*free)(void *request);
};

/* Ends in a reply, in closed(), or in take(), which may be inside. */
void http_body_read(struct http_exchange *x, const struct http_body_reader *reader);

#endif
