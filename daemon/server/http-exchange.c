/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/http-exchange.h"

#include <event2/buffer.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/server/http-connection.h"
#include "daemon/server/http-route.h"
#include "daemon/server/http-server.h"
#include "ipc/base/checked.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/utf8.h"

#define MESSAGE_MAX 512
#define HEAD_MAX 512

/* --- what a status is called and means (RFC 9110, 15; RFC 6585) ---------------------------- */

static const struct status_row {
	unsigned status;
	const char *reason, *type;
} statuses[] = {
	{ 200, "OK", NULL },
	{ 204, "No Content", NULL },
	{ 400, "Bad Request", "invalid_request_error" },
	{ 401, "Unauthorized", "authentication_error" },
	{ 403, "Forbidden", "permission_error" },
	{ 404, "Not Found", "not_found_error" },
	{ 405, "Method Not Allowed", "invalid_request_error" },
	{ 408, "Request Timeout", "invalid_request_error" },
	{ 413, "Content Too Large", "invalid_request_error" },
	{ 414, "URI Too Long", "invalid_request_error" },
	{ 415, "Unsupported Media Type", "invalid_request_error" },
	{ 417, "Expectation Failed", "invalid_request_error" },
	{ 421, "Misdirected Request", "invalid_request_error" },
	{ 429, "Too Many Requests", "rate_limit_error" },
	{ 431, "Request Header Fields Too Large", "invalid_request_error" },
	{ 500, "Internal Server Error", "server_error" },
	{ 501, "Not Implemented", "invalid_request_error" },
	{ 503, "Service Unavailable", "server_error" },
	{ 504, "Gateway Timeout", "server_error" },
	{ 505, "HTTP Version Not Supported", "invalid_request_error" },
};

static const struct status_row *row_of(unsigned status)
{
	static const struct status_row client = { 400, "Error", "invalid_request_error" };
	static const struct status_row server = { 500, "Error", "server_error" };

	for (size_t i = 0; i < ARRAY_SIZE(statuses); i++) {
		if (statuses[i].status == status)
			return &statuses[i];
	}
	return status < 500 ? &client : &server;
}

/* --- heads ---------------------------------------------------------------------------------------- */

int http_header(struct http_exchange *x, const char *name, const char *value)
{
	for (const char *s = value; *s; s++) {
		if ((unsigned char)*s < 0x20 || *s == 0x7f)
			return -EINVAL;
	}
	if (!x->headers)
		x->headers = evbuffer_new();
	if (!x->headers || evbuffer_add_printf(x->headers, "%s: %s\r\n", name, value) < 0)
		return -ENOMEM;
	return 0;
}

/* "Date: ...", or nothing; at most n bytes. */
static void put_date(char *out, size_t n)
{
	static const char *const days[] = { "Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat" };
	static const char *const months[] = { "Jan", "Feb", "Mar", "Apr", "May", "Jun",
					      "Jul", "Aug", "Sep", "Oct", "Nov", "Dec" };
	time_t now = time(NULL);
	struct tm t;

	out[0] = '\0';
	if (gmtime_r(&now, &t))
		snprintf(out, n, "Date: %s, %02d %s %d %02d:%02d:%02d GMT\r\n", days[t.tm_wday], t.tm_mday,
			 months[t.tm_mon], t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
}

/*
 * length: of the body; -1: it comes in chunks, -2: it lasts until the end of the connection.  All of it, or the
 * connection breaks.
 */
static void add_head(struct http_exchange *x, unsigned status, const char *content_type, long long length)
{
	struct http_connection *c = x->connection;
	char date[64], size[64] = "", text[HEAD_MAX];
	int n;

	put_date(date, sizeof(date));
	if (status == 204)
		length = -2;
	if (length >= 0)
		snprintf(size, sizeof(size), "Content-Length: %lld\r\n", length);
	else if (length == -1)
		snprintf(size, sizeof(size), "Transfer-Encoding: chunked\r\n");
	n = snprintf(text, sizeof(text), "HTTP/1.1 %u %s\r\n%s%s%s%s%sConnection: %s\r\n", status,
		     row_of(status)->reason, date, content_type ? "Content-Type: " : "",
		     content_type ? content_type : "", content_type ? "\r\n" : "", size,
		     c->keep ? "keep-alive" : "close");
	if (n < 0 || (size_t)n >= sizeof(text) || evbuffer_add(c->out, text, (size_t)n) < 0 ||
	    (x->headers && evbuffer_add_buffer(c->out, x->headers) < 0) || evbuffer_add(c->out, "\r\n", 2) < 0)
		http_connection_break(c);
}

const char *http_request_header(const struct http_exchange *x, const char *name)
{
	return http_parser_field(&x->connection->parser, name);
}

void http_body_release(struct http_exchange *x)
{
	struct http_connection *c = x->connection;

	free(c->parser.body);
	c->parser.body = NULL;
	c->parser.n_body = 0;
	x->body = NULL;
	x->n_body = 0;
	charge_deinit(&c->body);
}

void http_exchange_count(const struct http_exchange *x, unsigned status)
{
	struct http_counts *counts = &x->connection->http->counts;

	counts->streams_open -= x->is_streaming;
	http_counts_reply(counts, x->route ? x->route->path : HTTP_COUNTS_OTHER, status);
}

/* --- replies ----------------------------------------------------------------------------------------- */

void http_reply(struct http_exchange *x, unsigned status, const char *content_type, const void *data, size_t n)
{
	struct http_connection *c = x->connection;

	add_head(x, status, content_type, (long long)n);
	if (n && !x->is_head && evbuffer_add(c->out, data, n) < 0)
		http_connection_break(c);
	c->http->counts.bytes_sent += n;
	http_exchange_count(x, status);
	http_connection_replied(c);
}

/* json_dumps() of jansson 2.14 leaves out what it has no memory for; this finds the size first, and then needs none. */
char *http_json_text(json_t *json)
{
	size_t flags = JSON_COMPACT | JSON_ENSURE_ASCII, n = json ? json_dumpb(json, NULL, 0, flags) : 0;
	char *text = n ? malloc(n + 1) : NULL;

	if (text && json_dumpb(json, text, n, flags) != n) {
		free(text);
		text = NULL;
	}
	if (text)
		text[n] = '\0';
	json_decref(json);
	return text;
}

void http_reply_json(struct http_exchange *x, unsigned status, json_t *json)
{
	_cleanup_(freep) char *text = http_json_text(json);

	if (text)
		http_reply(x, status, "application/json", text, strlen(text));
	else
		http_reply_error(x, &(struct http_error){ .status = 500 }, "out of memory");
}

json_t *http_error_object(const struct http_error *e, const char *message)
{
	return json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error", "message", message, "type",
			 e->type ? e->type : row_of(e->status)->type, "param", e->param, "code", e->code);
}

/* A message may be cut inside of a character. */
static void write_message(char *out, size_t n, const char *fmt, va_list args)
{
	vsnprintf(out, n, fmt, args);
	utf8_make_readable(out, strlen(out));
}

void http_reply_error(struct http_exchange *x, const struct http_error *e, const char *fmt, ...)
{
	_cleanup_(freep) char *text = NULL;
	char message[MESSAGE_MAX], seconds[16];
	va_list args;

	va_start(args, fmt);
	write_message(message, sizeof(message), fmt, args);
	va_end(args);
	if (e->retry_after_s) {
		snprintf(seconds, sizeof(seconds), "%u", e->retry_after_s);
		http_header(x, "Retry-After", seconds);
	}
	/* OpenAI's clients send what took too long again by themselves, unless they are told not to. */
	if (e->status == 408 && e->code)
		http_header(x, "x-should-retry", "false");
	text = http_json_text(http_error_object(e, message));
	if (text)
		http_reply(x, e->status, "application/json", text, strlen(text));
	else
		http_reply(x, 500, "application/json", HTTP_ERROR_NO_MEMORY, strlen(HTTP_ERROR_NO_MEMORY));
}

void http_refuse(struct http_exchange *x, const struct http_error *e, const char *fmt, ...)
{
	va_list args;

	x->refusal = *e;
	va_start(args, fmt);
	write_message(x->refusal_text, sizeof(x->refusal_text), fmt, args);
	va_end(args);
}

/* --- streams ------------------------------------------------------------------------------------------ */

void http_stream_begin(struct http_exchange *x, const char *content_type)
{
	struct http_connection *c = x->connection;

	x->is_streaming = true;
	c->http->counts.streams++;
	c->http->counts.streams_open++;
	x->is_chunked = c->parser.minor > 0;
	if (!x->is_chunked)
		c->keep = false;
	add_head(x, 200, content_type, x->is_chunked ? -1 : -2);
	http_connection_send(c);
}

void http_stream_write(struct http_exchange *x, const void *data, size_t n)
{
	struct http_connection *c = x->connection;

	/* An empty chunk would be the end. */
	if (!n || x->is_head || c->gone)
		return;
	if ((x->is_chunked && evbuffer_add_printf(c->out, "%zx\r\n", n) < 0) || evbuffer_add(c->out, data, n) < 0 ||
	    (x->is_chunked && evbuffer_add(c->out, "\r\n", 2) < 0))
		http_connection_break(c);
	c->http->counts.bytes_sent += n;
	http_connection_send(c);
}

size_t http_stream_pending(const struct http_exchange *x)
{
	return evbuffer_get_length(x->connection->out);
}

void http_stream_end(struct http_exchange *x)
{
	struct http_connection *c = x->connection;

	if (x->is_chunked && !x->is_head && evbuffer_add(c->out, "0\r\n\r\n", 5) < 0)
		http_connection_break(c);
	http_exchange_count(x, 200);
	http_connection_replied(c);
}
