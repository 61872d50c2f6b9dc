/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http-generate.h - the life of an exchange that generates.
 *
 *	         every choice is with the engine
 *	WAITING ---------------------------------> OPEN --all ended--> reply, or end of the stream
 *	   |                                         |
 *	   +---- one is refused: reply --------------+---- one fails: reply, or an event in the stream
 *
 * Each choice of each prompt is a request of its own (submission.h), all of them with one
 * sink (http-sink.h).  When the client goes, or one fails, all are cancelled, wherever they are.
 *
 * Thread: the loop thread.
 */
#ifndef KVD_SERVER_HTTP_GENERATE_H
#define KVD_SERVER_HTTP_GENERATE_H

#include "daemon/server/http-exchange.h"
#include "daemon/server/http-request.h"

/* Replies, now or later.  Takes a reference to the request over; looks at its body no longer than this call. */
void http_generate(struct http_exchange *x, struct http_request *request);

#endif
