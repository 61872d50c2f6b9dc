/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/http-connection.h"

#include <event2/buffer.h>
#include <event2/event.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/server/http-access.h"
#include "daemon/server/http-route.h"
#include "daemon/server/http-server.h"
#include "daemon/server/server-internal.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"

#define STEPS_MAX 64		/* reads of HTTP_READ_MAX bytes and replies, before others have their turn */
#define LINGER_S 2
#define LITTLE 16384u		/* unsent bytes: drained() */
#define SECOND_NS 1000000000u

static void run(struct http_connection *c);

/* --- the end of things --------------------------------------------------------------------- */

static void free_event(struct event *event)
{
	if (event)
		event_free(event);
}

static void free_exchange(struct http_connection *c)
{
	struct http_exchange *x = c->exchange;

	if (!x)
		return;
	c->exchange = NULL;
	if (x->headers)
		evbuffer_free(x->headers);
	free(x);
}

/* The exchange that is there gets no reply any more, nor the end of its stream. */
static void abandon(struct http_connection *c)
{
	struct http_exchange *x = c->exchange;

	if (x && c->state == HTTP_HANDLING) {
		http_exchange_count(x, 0);
		if (x->closed)
			x->closed(x);
	}
	free_exchange(c);
}

static void connection_free(struct http_connection *c)
{
	struct http *http = c->http;

	abandon(c);
	free_event(c->readable);
	free_event(c->writable);
	if (c->in)
		evbuffer_free(c->in);
	if (c->out)
		evbuffer_free(c->out);
	http_parser_deinit(&c->parser);
	close(c->fd);
	list_unlink(&c->link);
	list_unlink(&c->turn);
	http->n_connections--;
	http->n_refused -= c->over_quota;
	charge_deinit(&c->body);
	charge_deinit(&c->session);
	free(c);
	http_connections_changed(http);
}

static void set_deadline(struct http_connection *c, uint32_t seconds)
{
	c->deadline_ns = seconds ? clock_ns() + (uint64_t)seconds * SECOND_NS : 0;
}

/* --- bytes out ------------------------------------------------------------------------------- */

void http_connection_break(struct http_connection *c)
{
	c->gone = true;
	event_active(c->readable, EV_READ, 0);
}

void http_connection_send(struct http_connection *c)
{
	const struct server_config *config = &c->http->server->config;
	int n = 0;

	while (!c->blocked && !c->gone && evbuffer_get_length(c->out)) {
		n = evbuffer_write(c->out, c->fd);
		if (n > 0) {
			/* That of a request that is still coming stays as it is. */
			if (c->state != HTTP_READING)
				c->deadline_ns = 0;
		} else if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
			c->blocked = errno == EAGAIN;
		} else {
			http_connection_break(c);
		}
	}
	if (c->gone) {
		evbuffer_drain(c->out, evbuffer_get_length(c->out));
		return;
	}
	c->above = c->above || evbuffer_get_length(c->out) > LITTLE;
	if (!c->blocked)
		return;
	if (!c->deadline_ns)
		set_deadline(c, config->http_idle_s);
	if (event_add(c->writable, NULL) < 0)
		http_connection_break(c);
}

static void on_writable(evutil_socket_t fd, short what, void *arg)
{
	struct http_connection *c = arg;
	struct http_exchange *x = c->exchange;

	c->blocked = false;
	http_connection_send(c);
	if (c->state == HTTP_HANDLING && x && c->above && !c->gone && evbuffer_get_length(c->out) <= LITTLE) {
		c->above = false;
		/* It may end the exchange, and the connection with it. */
		if (x->drained) {
			x->drained(x);
			return;
		}
	}
	run(c);
}

void http_connection_replied(struct http_connection *c)
{
	free_exchange(c);
	http_parser_deinit(&c->parser);
	charge_deinit(&c->body);
	c->state = HTTP_FLUSHING;
	http_connection_send(c);
	if (!c->running)
		run(c);
}

/* --- a request's head ------------------------------------------------------------------------ */

/* Not at all HTTP, or too much, or too late: this is said, and the connection ends. */
static void refuse(struct http_connection *c, unsigned status, const char *why)
{
	struct http_exchange *x = c->exchange;

	c->keep = false;
	c->deadline_ns = 0;
	if (!x) {
		x = calloc(1, sizeof(*x));
		if (!x) {
			c->gone = true;
			return;
		}
		x->server = c->http->server;
		x->peer = c->peer;
		x->connection = c;
		c->exchange = x;
	}
	c->state = HTTP_HANDLING;
	http_reply_error(x, &(struct http_error){ .status = status,
						  .retry_after_s = status == 429 || status == 503 }, "%s", why);
}

/* What was found out before the body came is said now. */
static void reply_refusal(struct http_exchange *x)
{
	if (x->refusal.status == 204)
		http_reply(x, 204, NULL, NULL, 0);
	else
		http_reply_error(x, &x->refusal, "%s", x->refusal_text);
}

/* The head is there: who asks for what?  If it is refused, then as soon as the body is out of the way. */
static void begin_exchange(struct http_connection *c)
{
	struct http_parser *p = &c->parser;
	struct http_exchange *x = calloc(1, sizeof(*x));

	if (!x) {
		c->gone = true;
		return;
	}
	c->exchange = x;
	c->keep = p->keep_alive && !c->http->stopping && !c->over_quota;
	x->server = c->http->server;
	x->peer = c->peer;
	x->connection = c;
	x->path = p->path;
	x->query = p->query;
	x->is_head = !strcmp(p->method, "HEAD");
	if (c->over_quota)
		http_refuse(x, &(struct http_error){ .status = 429, .retry_after_s = 1 },
			    "too many connections of this user");
	else if (!http_access_check(x, p))
		http_route_find(x, p->method);
	p->discard = x->refusal.status;
	if (!p->has_body || !p->expects_continue)
		return;
	/* Who asks before it sends the body, and is refused, does not send it. */
	if (x->refusal.status) {
		c->keep = false;
		c->state = HTTP_HANDLING;
		c->deadline_ns = 0;
		reply_refusal(x);
	} else if (evbuffer_add_printf(c->out, "HTTP/1.1 100 Continue\r\n\r\n") < 0) {
		c->gone = true;
	} else {
		http_connection_send(c);
	}
}

/* The parser asks for more memory for a body. */
static unsigned charge_body(void *arg, size_t capacity)
{
	struct http_connection *c = arg;
	struct charge larger = CHARGE_NULL;
	int r = charge_init(&larger, c->http->server->accounts, c->exchange->peer.account, ACCOUNT_MEMORY, capacity);

	if (r)
		return r < 0 ? 503 : 429;
	charge_deinit(&c->body);
	c->body = larger;
	return 0;
}

/* The client has closed its side, or the connection is broken; what it sent before doesn't matter. */
static bool peer_is_gone(const struct http_connection *c)
{
	struct pollfd p = { .fd = c->fd, .events = POLLRDHUP };

	return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

static void handle(struct http_connection *c)
{
	struct http_exchange *x = c->exchange;

	x->body = c->parser.body;
	x->n_body = c->parser.n_body;
	c->state = HTTP_HANDLING;
	c->deadline_ns = 0;
	c->http->counts.bytes_received += x->n_body;
	if (x->refusal.status)
		reply_refusal(x);
	else
		x->route->handler(x);
	/* The end of its stream may have been reported while it was still read. */
	if (c->state == HTTP_HANDLING && peer_is_gone(c))
		c->gone = true;
}

/* --- bytes in -------------------------------------------------------------------------------- */

/* Takes bytes until they, or this request, end; returns how many. */
static size_t consume(struct http_connection *c, const uint8_t *data, size_t n)
{
	struct http_parser *p = &c->parser;
	size_t at = 0;

	while (c->state == HTTP_READING && !c->gone) {
		bool begun = http_parser_begun(p);
		size_t used;
		enum http_parse r = http_parser_feed(p, data + at, n - at, &used);

		at += used;
		if (!begun && http_parser_begun(p))
			set_deadline(c, c->http->server->config.http_request_s);
		switch (r) {
		case HTTP_PARSE_MORE:
			return at;
		case HTTP_PARSE_HEAD:
			begin_exchange(c);
			break;
		case HTTP_PARSE_DONE:
			handle(c);
			break;
		case HTTP_PARSE_BAD:
			refuse(c, p->status, p->why);
			break;
		}
	}
	return at;
}

/* Reads what is there, for whatever it is.  False: there is nothing more now. */
static bool read_some(struct http_connection *c)
{
	size_t n = evbuffer_get_length(c->in), used;
	ssize_t got;

	if (n && c->state == HTTP_READING) {
		const uint8_t *data = evbuffer_pullup(c->in, -1);

		evbuffer_drain(c->in, data ? consume(c, data, n) : n);
		return true;
	}
	got = recv(c->fd, c->http->scratch, sizeof(c->http->scratch), MSG_DONTWAIT);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return errno == EINTR;
	if (got <= 0) {
		c->gone = true;
		return false;
	}
	if (c->state == HTTP_LINGERING)
		return true;
	used = consume(c, c->http->scratch, (size_t)got);
	if (used < (size_t)got && evbuffer_add(c->in, c->http->scratch + used, (size_t)got - used) < 0)
		c->gone = true;
	return true;
}

/* The reply is on its way: waits for that, and then for the next request or for the end. */
static bool after_reply(struct http_connection *c)
{
	if (evbuffer_get_length(c->out))
		return false;
	c->above = false;
	if (c->keep && !c->http->stopping) {
		http_parser_next(&c->parser);
		c->state = HTTP_READING;
		set_deadline(c, c->http->server->config.http_idle_s);
	} else {
		/* A close with unread bytes would reset the connection, and the client might never see the reply. */
		shutdown(c->fd, SHUT_WR);
		c->state = HTTP_LINGERING;
		set_deadline(c, LINGER_S);
	}
	return true;
}

/* Goes on as far as possible.  The connection may be gone afterwards. */
static void run(struct http_connection *c)
{
	unsigned n_steps = 0;
	bool more = true;

	/* Inside of another's: the scratch buffer is in use. */
	if (c->http->busy) {
		http_wait_for_turn(c->http, &c->turn);
		return;
	}
	c->http->busy = c->running = true;
	while (more && !c->gone) {
		if (++n_steps > STEPS_MAX) {
			http_wait_for_turn(c->http, &c->turn);
			break;
		}
		switch (c->state) {
		case HTTP_READING:
		case HTTP_LINGERING:
			more = read_some(c);
			break;
		case HTTP_HANDLING:
			more = false;
			break;
		case HTTP_FLUSHING:
			more = after_reply(c);
			break;
		}
	}
	c->http->busy = c->running = false;
	if (c->gone)
		connection_free(c);
}

void http_connection_go_on(struct http_connection *c)
{
	run(c);
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
	struct http_connection *c = arg;

	if (c->state == HTTP_HANDLING && peer_is_gone(c))
		c->gone = true;
	run(c);
}

/* --- life ------------------------------------------------------------------------------------ */

/* Says why to a connection that is not wanted at all. */
static void turn_away(int fd)
{
	static const char text[] =
		"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
		"Connection: close\r\nContent-Length: 107\r\n\r\n"
		"{\"error\": {\"message\": \"too many connections in all\", \"type\": \"server_error\","
		" \"param\": null, \"code\": null}}\n";

	(void)send(fd, text, sizeof(text) - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
	shutdown(fd, SHUT_WR);
	close(fd);
}

static int init(struct http_connection *c)
{
	struct event_base *base = c->http->server->base;

	http_parser_init(&c->parser, c->http->server->config.http_max_body);
	c->parser.grow = charge_body;
	c->parser.arg = c;
	c->in = evbuffer_new();
	c->out = evbuffer_new();
	c->readable = event_new(base, c->fd, EV_READ | EV_CLOSED | EV_ET | EV_PERSIST, on_readable, c);
	c->writable = event_new(base, c->fd, EV_WRITE | EV_ET, on_writable, c);
	if (!c->in || !c->out || !c->readable || !c->writable)
		return -ENOMEM;
	return event_add(c->readable, NULL) < 0 ? -ENOMEM : 0;
}

/* Closes the oldest connection of those that have not shown a key yet.  False: there is none. */
static bool make_room(struct http *http)
{
	list_for_each(e, &http->connections) {
		struct http_connection *c = list_entry(e, struct http_connection, link);

		if (c->state == HTTP_READING && !c->session.account && !c->over_quota) {
			connection_free(c);
			return true;
		}
	}
	return false;
}

void http_connection_new(struct http *http, const struct http_listener *listener, int fd,
			 const struct http_peer *peer)
{
	struct server *server = http->server;
	struct http_connection *c;
	int r = 0;

	http->counts.connections++;
	if (server->n_sessions + http->n_connections >= server->config.max_sessions && !make_room(http)) {
		http->counts.connections_refused++;
		turn_away(fd);
		return;
	}
	c = calloc(1, sizeof(*c));
	if (!c) {
		http->counts.connections_refused++;
		turn_away(fd);
		return;
	}
	c->http = http;
	c->listener = listener;
	c->fd = fd;
	c->peer = *peer;
	c->state = HTTP_READING;
	list_init(&c->turn);
	list_push_back(&http->connections, &c->link);
	http->n_connections++;
	/* Where keys say who it is, that is not known yet. */
	if (!listener->asks_key)
		r = http_connection_charge(c, peer->account);
	c->over_quota = r == ACCOUNT_E_QUOTA;
	http->n_refused += c->over_quota;
	http->counts.connections_refused += c->over_quota;
	if (r < 0 || (c->over_quota && http->n_refused > HTTP_REFUSED_MAX) || init(c) < 0) {
		connection_free(c);
		return;
	}
	set_deadline(c, server->config.http_request_s);
	http_connections_changed(http);
}

int http_connection_charge(struct http_connection *c, uid_t account)
{
	struct charge charge = CHARGE_NULL;
	int r;

	if (c->session.account && c->session_account == account)
		return 0;
	r = charge_init(&charge, c->http->server->accounts, account, ACCOUNT_SESSIONS, 1);
	if (r)
		return r;
	charge_deinit(&c->session);
	c->session = charge;
	c->session_account = account;
	return 0;
}

void http_connection_stop(struct http_connection *c)
{
	struct http_exchange *x = c->exchange;

	c->running = true;
	c->keep = false;
	if (c->state == HTTP_HANDLING && x) {
		if (x->closed)
			x->closed(x);
		x->closed = NULL;
		if (!x->is_streaming)
			http_reply_error(x, &(struct http_error){ .status = 503, .retry_after_s = 1 },
					 "the daemon is stopping");
	}
	http_connection_send(c);
	shutdown(c->fd, SHUT_WR);
	connection_free(c);
}

void http_connection_tick(struct http_connection *c, uint64_t now_ns)
{
	if (!c->deadline_ns || now_ns < c->deadline_ns)
		return;
	c->running = true;
	if (c->state == HTTP_READING && http_parser_begun(&c->parser))
		refuse(c, 408, "the request did not come in time");
	else
		c->gone = true;
	run(c);
}
