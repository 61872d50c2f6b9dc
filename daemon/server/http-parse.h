/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http-parse.h - bytes to HTTP/1.x requests: the codec, without I/O.
 *
 *	HEAD --empty line--> (HTTP_PARSE_HEAD) --> BODY or chunks and trailer --> (HTTP_PARSE_DONE)
 *	  \                                          \
 *	   +-- anything that is not exactly a request: HTTP_PARSE_BAD, with the status that says so
 *
 * After RFC 9110 and 9112, and strict wherever those leave a choice, since what two programs read differently
 * is how one smuggles a request past another: lines end in CR LF; no blank before a colon, no folded lines;
 * one Content-Length of digits, or one "Transfer-Encoding: chunked", never both; no control
 * characters, and no NUL in a path however it is written.  After HTTP_PARSE_BAD nothing more can be read
 * from the connection.
 *
 * Memory: the head's buffer (at most HTTP_HEAD_MAX) and the body's, which grows with what has really come.
 */
#ifndef KVD_SERVER_HTTP_PARSE_H
#define KVD_SERVER_HTTP_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTTP_HEAD_MAX 65536u	/* bytes of request line and headers */
#define HTTP_TARGET_MAX 8192u
#define HTTP_FIELDS_MAX 100u
#define HTTP_METHOD_MAX 32u
#define HTTP_TRAILER_MAX 8192u	/* bytes of all trailer lines; also of one line with a chunk's size */

enum http_parse {
	HTTP_PARSE_MORE,	/* all was taken; more is needed */
	HTTP_PARSE_HEAD,	/* the head is there; the fields below can be read */
	HTTP_PARSE_DONE,	/* the request is whole */
	HTTP_PARSE_BAD,		/* status and why say what is wrong */
};

/* A header, in the parser's memory. */
struct http_field {
	const char *name, *value;
};

struct http_parser {
	/* The caller's, from http_parser_init() on. */
	uint64_t max_body;
	bool discard;		/* from HTTP_PARSE_HEAD on: the body is counted, not kept */
	/* Asked before the body's buffer becomes this large.  0, or the HTTP status to refuse it with. */
	unsigned (*grow)(void *arg, size_t capacity);
	void *arg;

	/* From HTTP_PARSE_HEAD until http_parser_next(). */
	const char *method;
	char *path;		/* decoded, without the query; "*" for OPTIONS */
	const char *query;	/* undecoded, without '?'; NULL: none */
	const char *host;	/* of an absolute target, else of the Host header; NULL: HTTP/1.0 without one */
	unsigned minor;		/* HTTP/1.minor */
	bool keep_alive;	/* the client would use the connection again */
	bool expects_continue;
	bool has_body;
	uint64_t content_length;	/* 0 where it is chunked */
	bool chunked;
	struct http_field fields[HTTP_FIELDS_MAX];
	size_t n_fields;

	/* From HTTP_PARSE_DONE on: [n_body], contiguous; NULL where it is empty or discarded. */
	uint8_t *body;
	size_t n_body;

	/* HTTP_PARSE_BAD: */
	unsigned status;
	const char *why;

	/* Private. */
	int state;
	struct http_text {
		char *data;
		size_t n, capacity;
		bool last_cr;
	} head, line;		/* line: of a chunk's size, or of the trailer */
	size_t head_line;	/* where the head's last line begins */
	size_t body_capacity;
	uint64_t left;		/* bytes of the body, or of this chunk */
	uint64_t n_seen;	/* bytes of the body so far, kept or not */
	size_t n_trailer;
};

void http_parser_init(struct http_parser *p, uint64_t max_body);
void http_parser_deinit(struct http_parser *p);
/* After HTTP_PARSE_DONE: what it holds is freed, and the next request may come. */
void http_parser_next(struct http_parser *p);

/* Takes bytes; *used says how many: all with HTTP_PARSE_MORE, those up to that point otherwise. */
enum http_parse http_parser_feed(struct http_parser *p, const uint8_t *data, size_t n, size_t *used);

/* Whether anything of a request has come. */
bool http_parser_begun(const struct http_parser *p);
/* The first header of this name, or NULL. */
const char *http_parser_field(const struct http_parser *p, const char *name);

/* Whether word is in value, a list between commas; without regard to case; NULL is an empty list. */
bool http_list_has(const char *value, const char *word);

#endif
