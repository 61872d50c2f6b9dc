/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http-exchange.h - one HTTP request and its reply, as handlers see them.
 *
 *	          http_reply*() ------------------------------+
 *	         /                                            v
 *	handler() --(later)-- http_stream_begin() .. write* .. end() --> freed
 *	         \                          |
 *	          client gone, or time is up --> closed() --> freed
 *
 * The handler of a route is called once the whole request is there and its sender is
 * known and let in.  It replies at once, or later from the loop thread; a handler that does not reply at
 * once sets `closed` first.  Each exchange ends with exactly one of: a reply, the end of a
 * stream, closed().  It is freed inside of these: nobody touches it afterwards.
 *
 * Thread: the loop thread.
 */
#ifndef KVD_SERVER_HTTP_EXCHANGE_H
#define KVD_SERVER_HTTP_EXCHANGE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/server/namespace.h"

struct evbuffer;
struct http_connection;
struct http_key;
struct http_parser;
struct server;

enum http_peer_kind {
	HTTP_PEER_NOBODY,	/* let in, but nobody says who it is: nothing is shared with it */
	HTTP_PEER_UID,		/* the kernel says so */
	HTTP_PEER_KEY,		/* a bearer key of the file says so */
};

/* Who asks. */
struct http_peer {
	enum http_peer_kind kind;
	uid_t account;			/* charged for what it takes: its uid, or what stands for its key (account.h) */
	bool is_admin;			/* may be told what others do */
	char own[KVD_NAMESPACE_MAX + 1];	/* its namespace; NOBODY: "" */
	uint32_t groups;		/* as in namespace_choose() */
	uint32_t weight;		/* of its share of the device; 100: one user's */
	const struct http_key *key;	/* KEY */
};

/* Errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}}. */
struct http_error {
	unsigned status;		/* 400 ... */
	const char *type;		/* NULL: by status: "invalid_request_error", "authentication_error",
					 * "permission_error", "not_found_error", "rate_limit_error", "server_error" */
	const char *param;		/* the field, "messages[2].content"; NULL: null */
	const char *code;		/* "context_length_exceeded"; NULL: null */
	unsigned retry_after_s;		/* 0: no such header */
};

struct http_exchange {
	/* For the handler to read. */
	struct server *server;
	struct http_peer peer;
	const char *path;		/* decoded, without the query */
	const char *query;		/* undecoded; NULL: none */
	const uint8_t *body;		/* [n_body], contiguous, until the exchange ends or http_body_release() */
	size_t n_body;

	/* The handler's. */
	void *data;
	/* The client is gone, or the endpoint stops: release what belongs to data.  x is freed after it. */
	void (*closed)(struct http_exchange *x);
	/* A stream's: what is unsent has become little (http_stream_pending()).  May be NULL. */
	void (*drained)(struct http_exchange *x);

	/* http-connection.c's and http-exchange.c's. */
	struct http_connection *connection;
	const struct http_route *route;
	struct evbuffer *headers;	/* lines of http_header(); NULL: none */
	struct http_error refusal;	/* status: it is refused with this, once its body has been passed over */
	char refusal_text[200];
	bool is_head, is_streaming, is_chunked;
};

/* The message is made well-formed UTF-8 without control characters. */
__attribute__((format(printf, 3, 4)))
void http_reply_error(struct http_exchange *x, const struct http_error *e, const char *fmt, ...);
/* Notes that x is to be refused with this: what finds it out before the body is there. */
__attribute__((format(printf, 3, 4)))
void http_refuse(struct http_exchange *x, const struct http_error *e, const char *fmt, ...);
/* Takes the reference to json over; NULL (no memory) becomes a 500. */
void http_reply_json(struct http_exchange *x, unsigned status, json_t *json);
void http_reply(struct http_exchange *x, unsigned status, const char *content_type, const void *data, size_t n);
/* Before a reply or a stream: one more header.  0, -ENOMEM; -EINVAL: the value has a control character. */
int http_header(struct http_exchange *x, const char *name, const char *value);

/* A header of the request, the first of this name, until the exchange ends; NULL: none. */
const char *http_request_header(const struct http_exchange *x, const char *name);
/* The body is not needed any more. */
void http_body_release(struct http_exchange *x);

/* 200 and the headers, then pieces as they come: each is sent at once. */
void http_stream_begin(struct http_exchange *x, const char *content_type);
void http_stream_write(struct http_exchange *x, const void *data, size_t n);
/* Bytes that the client has not taken yet; whoever writes keeps this bounded. */
size_t http_stream_pending(const struct http_exchange *x);
void http_stream_end(struct http_exchange *x);

/* The text of one that needs no memory. */
#define HTTP_ERROR_NO_MEMORY \
	"{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\",\"param\":null," \
	"\"code\":\"out_of_memory\"}}"
/* The text of a JSON value, malloc'd; takes the reference over.  NULL: no memory, or there was no value. */
char *http_json_text(json_t *json);
/* What an error object looks like, for events in a stream.  NULL: no memory. */
json_t *http_error_object(const struct http_error *e, const char *message);

typedef void (*http_handler)(struct http_exchange *x);

/* http-route.c has the table. */
struct http_route {
	const char *method;		/* "GET"; HEAD is served by these, without the body */
	const char *path;		/* exact; with a '/' at its end: also what is below it */
	http_handler handler;
	bool is_open;			/* also for who has no key where keys are asked for */
};

/* The handlers, by file. */
void http_get_health(struct http_exchange *x);		/* http-info.c */
void http_get_models(struct http_exchange *x);
void http_get_openapi(struct http_exchange *x);		/* http-openapi.c */
void http_get_metrics(struct http_exchange *x);		/* http-metrics.c */
void http_post_tokenize(struct http_exchange *x);	/* http-tokenize.c */
void http_post_detokenize(struct http_exchange *x);
void http_post_completions(struct http_exchange *x);	/* http-completions.c */
void http_post_chat(struct http_exchange *x);
void http_post_embeddings(struct http_exchange *x);	/* http-embeddings.c */

#endif
