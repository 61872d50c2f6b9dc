/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.h - stream-load: many streams of tokens at once, through HTTP or through shared memory, and what
 * they cost the one who reads them.
 *
 * One thread and one epoll for all streams, so that the reader takes little of the machine that it
 * measures. Each stream is a connection (HTTP) or a session (shared memory) that makes one request after
 * the other. A request's seed tells it from all others, in this program's log and in kvd-times'.
 */
#ifndef TESTS_LOAD_H
#define TESTS_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct stream;

struct load_transport {
	/* Connects.  False: it can't, which was said. */
	bool (*open)(struct stream *s);
	/* Sends the next request. */
	bool (*submit)(struct stream *s);
	/* Takes all that is there: load_token() for each token, load_done() at the end of a request. */
	bool (*take)(struct stream *s);
	void (*close)(struct stream *s);
};

struct load {
	const struct load_transport *transport;
	const char *address;		/* of the socket */
	const char *prompt;
	uint32_t n_streams, n_requests, n_tokens;	/* at once; of each; of a request */
	uint64_t seed;
	FILE *times;			/* of struct load_time; NULL: nobody wants to know */
	int epoll;

	uint32_t n_running;		/* streams that have not ended */
	uint64_t tokens, pieces, bytes;	/* of finished requests; events with text; received */
};

/* When a token was there: entry of the log, and of the one that kvd-times keeps. */
struct load_time {
	uint64_t seed, index, ns;	/* CLOCK_MONOTONIC; index 0: a request's first token */
};

struct stream {
	struct load *load;
	uint32_t index, n_made;		/* requests begun */
	uint64_t seed;			/* of the request */
	uint32_t n_seen;		/* tokens of it that came */
	uint32_t prompt_tokens, cached_tokens;
	int fd;				/* to be polled */
	void *data;			/* the transport's */
};

extern const struct load_transport load_http, load_ring;

uint64_t load_now(void);
/* A token, or text of one, is there. */
void load_token(struct stream *s, uint64_t now);
/* The request has ended with so many tokens: the next one begins, or the stream ends.  False: it failed. */
bool load_done(struct stream *s, uint32_t n_tokens);
__attribute__((format(printf, 2, 3)))
bool load_fail(const struct stream *s, const char *fmt, ...);	/* always false */

#endif
