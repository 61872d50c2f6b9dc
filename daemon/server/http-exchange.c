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

static void add_date(struct evbuffer *out)
{
	static const char *const days[] = { "Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat" };
	static const char *const months[] = { "Jan", "Feb", "Mar", "Apr", "May", "Jun",
					      "Jul", "Aug", "Sep", "Oct", "Nov", "Dec" };
	time_t now = time(NULL);
	struct tm t;

	if (gmtime_r(&now, &t))
		evbuffer_add_printf(out, "Date: %s, %02d %s %d %02d:%02d:%02d GMT\r\n", days[t.tm_wday], t.tm_mday,
				    months[t.tm_mon], t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
}

/* length: of the body; -1: it comes in chunks, -2: it lasts until the end of the connection. */
static void add_head(struct http_exchange *x, unsigned status, const char *content_type, long long length)
{
	struct http_connection *c = x->connection;
	struct evbuffer *out = c->out;

	evbuffer_add_printf(out, "HTTP/1.1 %u %s\r\n", status, row_of(status)->reason);
	add_date(out);
	if (content_type)
		evbuffer_add_printf(out, "Content-Type: %s\r\n", content_type);
	if (status == 204)
		length = -2;
	if (length >= 0)
		evbuffer_add_printf(out, "Content-Length: %lld\r\n", length);
	else if (length == -1)
		evbuffer_add_printf(out, "Transfer-Encoding: chunked\r\n");
	evbuffer_add_printf(out, "Connection: %s\r\n", c->keep ? "keep-alive" : "close");
	if (x->headers)
		evbuffer_add_buffer(out, x->headers);
	evbuffer_add(out, "\r\n", 2);
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

void http_reply_json(struct http_exchange *x, unsigned status, json_t *json)
{
	_cleanup_(freep) char *text = json ? json_dumps(json, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;

	json_decref(json);
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
	static const char no_memory[] = "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\","
					"\"param\":null,\"code\":null}}";
	_cleanup_(freep) char *text = NULL;
	char message[MESSAGE_MAX], seconds[16];
	json_t *json;
	va_list args;

	va_start(args, fmt);
	write_message(message, sizeof(message), fmt, args);
	va_end(args);
	if (e->retry_after_s) {
		snprintf(seconds, sizeof(seconds), "%u", e->retry_after_s);
		http_header(x, "Retry-After", seconds);
	}
	json = http_error_object(e, message);
	text = json ? json_dumps(json, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
	json_decref(json);
	if (text)
		http_reply(x, e->status, "application/json", text, strlen(text));
	else
		http_reply(x, 500, "application/json", no_memory, sizeof(no_memory) - 1);
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
