/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http-generate-private.h - an exchange that generates, for the two files that make it up:
 * http-generate.c (from the body to the engine) and http-generate-out.c (from the engine to the client).
 *
 * Thread: the loop thread.
 */
#ifndef KVD_SERVER_HTTP_GENERATE_PRIVATE_H
#define KVD_SERVER_HTTP_GENERATE_PRIVATE_H

#include <event2/util.h>

#include "daemon/server/http-exchange.h"
#include "daemon/server/http-format.h"
#include "daemon/server/http-request.h"
#include "daemon/server/http-sink.h"
#include "daemon/server/http-writer.h"
#include "daemon/server/submission.h"
#include "ipc/base/account.h"

struct event;
struct stats_page;

struct choice {
	struct generation *generation;
	struct submission *submission;	/* until the engine has it */
	uint64_t index;
	bool is_first;			/* of its prompt */
	bool role_said, ended;
	bool skips_bos;			/* its prompt's first token is none of the text's */
	enum kvd_finish finish;
	struct http_place place;	/* in the text of its tokens */
	struct http_writer text;	/* escaped; of a stream: what its first chunk begins with */
	struct http_logprobs logprobs;
	struct http_writer ids;		/* of a stream: since its last chunk */
};

struct generation {
	struct http_exchange *x;
	struct server *server;
	struct http_request *request;
	struct http_sink *sink;
	struct stats_page *page;
	uint64_t key;			/* the engine's client */
	struct event *timer;		/* of a stream */
	unsigned n_ticks;
	bool quiet;			/* nothing was written since the last tick */
	bool is_open, begun;		/* begun: a stream's head is out */
	struct http_head head;
	struct http_writer prefix;	/* of every chunk */
	struct http_writer out;		/* of a stream, not written yet */
	struct http_usage usage;
	struct charge collected;
	size_t n_waiting, n_ended, n_choices;
	struct choice choices[];
};

/* Cancels what runs, and lets go of everything but the exchange. */
void generation_free(struct generation *g);
/* The exchange ends with an error, in a stream as an event; param: the field, or NULL. */
void generation_fail(struct generation *g, enum kvd_code code, const char *param, const char *message);
/* Its head is sent, unless it was. */
void generation_begin_stream(struct generation *g);
/* Of a stream, every second. */
void generation_tick(evutil_socket_t fd, short what, void *arg);
/* Takes what the sink has, once all choices are with the engine.  The exchange may have ended afterwards. */
void generation_drain(struct generation *g);

#endif
