/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/http-server.h"

#include <event2/event.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/server/http-access.h"
#include "daemon/server/http-connection.h"
#include "daemon/server/listener.h"
#include "daemon/server/log.h"
#include "daemon/server/server-internal.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"

#define TICK_S 1
#define SEND_BUFFER (128 << 10)	/* bytes in the kernel, which doubles them for its own needs */

/* --- connections ------------------------------------------------------------------------------- */

static void set_options(int fd)
{
	static const struct { int level, name, value; } options[] = {
		/* Tokens are small, and each is wanted at once. */
		{ IPPROTO_TCP, TCP_NODELAY, 1 },
		/* The kernel would keep megabytes for a client that does not read, which nobody is charged for. */
		{ SOL_SOCKET, SO_SNDBUF, SEND_BUFFER },
		/* A machine that is gone without a word is noticed in a minute and a half. */
		{ SOL_SOCKET, SO_KEEPALIVE, 1 },
		{ IPPROTO_TCP, TCP_KEEPIDLE, 60 }, { IPPROTO_TCP, TCP_KEEPINTVL, 10 }, { IPPROTO_TCP, TCP_KEEPCNT, 3 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(options); i++)
		setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof(options[i].value));
}

static void on_accepted(void *arg, int fd)
{
	struct http_listener *l = arg;
	struct http_peer peer;

	if (!http_access_peer(l, fd, &peer)) {
		log_info("http: a user that is not known here was turned away");
		close(fd);
		return;
	}
	if (!l->address.path)
		set_options(fd);
	http_connection_new(l->http, l, fd, &peer);
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
	struct http *http = arg;
	uint64_t now = clock_ns();

	list_for_each_safe(e, next, &http->connections)
		http_connection_tick(list_entry(e, struct http_connection, link), now);
}

void http_wait_for_turn(struct http *http, struct list *turn)
{
	struct timeval now = { 0 };

	list_unlink(turn);
	list_push_back(&http->turns, turn);
	/* A timer: what is made active inside of a callback runs before the loop looks at descriptors again. */
	event_add(http->next_turn, &now);
}

static void on_next_turn(evutil_socket_t fd, short what, void *arg)
{
	struct http *http = arg;
	struct list turns = LIST_INIT(turns);

	/* Those that have still more to do come behind. */
	while (!list_empty(&http->turns)) {
		struct list *turn = http->turns.next;

		list_unlink(turn);
		list_push_back(&turns, turn);
	}
	while (!list_empty(&turns)) {
		struct http_connection *c = list_entry(turns.next, struct http_connection, turn);

		list_unlink(&c->turn);
		http_connection_go_on(c);
	}
}

void http_connections_changed(struct http *http)
{
	struct timeval tick = { .tv_sec = TICK_S };

	if (!http->n_connections)
		event_del(http->tick);
	else if (!event_pending(http->tick, EV_TIMEOUT, NULL))
		event_add(http->tick, &tick);
	server_sessions_changed(http->server);
}

/* --- sockets ------------------------------------------------------------------------------------ */

static int bind_tcp(struct http_listener *l, const char *text, struct diag *diag)
{
	_cleanup_(fd_closep) int fd =
		socket(l->address.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int on = 1;

	if (fd < 0)
		return diag_set(diag, -errno, "http: cannot make a socket for %s: %s", text, strerror(errno));
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (l->address.sa.sa_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
	if (bind(fd, &l->address.sa, l->address.n) < 0)
		return diag_set(diag, -errno, "http: cannot bind %s: %s", text, strerror(errno));
	if (listen(fd, SOMAXCONN) < 0)
		return diag_set(diag, -errno, "http: cannot listen on %s: %s", text, strerror(errno));
	/* Port 0 has become one. */
	if (getsockname(fd, &l->address.sa, &l->address.n) < 0)
		return -errno;
	l->fd = fd_steal(&fd);
	return 0;
}

static int open_listener(struct http *http, const char *text, struct diag *diag)
{
	const struct server_config *config = &http->server->config;
	struct http_listener *l = &http->listeners[http->n_listeners];
	int r;

	if (http->n_listeners == HTTP_LISTENERS_MAX)
		return diag_set(diag, -EINVAL, "http: more than %d addresses", HTTP_LISTENERS_MAX);
	*l = (struct http_listener){ .http = http, .fd = -1 };
	r = http_address_parse(&l->address, text, diag);
	if (r)
		return r;
	l->asks_key = http->keys && !l->address.path;
	if (!l->asks_key && !http_address_is_local(&l->address))
		return diag_set(diag, -EINVAL, "http: %s is not only for this machine: that needs http-keys", text);
	r = l->address.path ? listener_new(&l->unix_listener, l->address.path, SOCK_STREAM, config->socket_mode, diag)
			    : bind_tcp(l, text, diag);
	if (r)
		return r < 0 ? r : -EADDRINUSE;
	http->n_listeners++;
	return 0;
}

/* --- life ------------------------------------------------------------------------------------------ */

int http_new(struct http **out, struct server *server, struct diag *diag)
{
	_cleanup_(http_freep) struct http *http = calloc(1, sizeof(*http));
	int r = 0;

	if (!http)
		return -ENOMEM;
	http->server = server;
	http->created = time(NULL);
	list_init(&http->connections);
	list_init(&http->turns);
	http->finder.fd = -1;
	if (server->config.http_keys)
		r = http_keys_load(&http->keys, server->config.http_keys, diag);
	for (size_t i = 0; i < server->config.n_http && !r; i++)
		r = open_listener(http, server->config.http[i], diag);
	if (r)
		return r;
	*out = steal_ptr(http);
	return 0;
}

/* What the file does not say is as for a user. */
static int set_limits(struct http *http)
{
	int r = 0;

	for (size_t i = 0; http->keys && i < http->keys->n && !r; i++) {
		const struct http_key *k = &http->keys->keys[i];
		struct account_limits limits = http->server->uid_limits;

		for (int kind = 0; kind < ACCOUNT_N_KINDS; kind++) {
			if (k->limits.max[kind] != UINT64_MAX)
				limits.max[kind] = k->limits.max[kind];
		}
		r = accounts_set_limits(http->server->accounts, k->account, &limits);
	}
	return r;
}

int http_start(struct http *http)
{
	struct event_base *base = http->server->base;
	int r = set_limits(http);

	if (r)
		return r;
	/* Without it, nobody who comes over TCP is known. */
	r = http->keys ? 0 : http_peer_finder_init(&http->finder);
	if (r)
		log_warning("http: users can't be told apart over TCP: %s", strerror(-r));
	http->tick = event_new(base, -1, EV_PERSIST, on_tick, http);
	http->next_turn = event_new(base, -1, 0, on_next_turn, http);
	if (!http->tick || !http->next_turn)
		return -ENOMEM;
	for (size_t i = 0; i < http->n_listeners; i++) {
		struct http_listener *l = &http->listeners[i];
		char text[HTTP_ADDRESS_TEXT_MAX];

		r = acceptor_init(&l->acceptor, base, l->address.path ? listener_fd(l->unix_listener) : l->fd,
				  on_accepted, l);
		if (r)
			return r;
		if (l->address.path) {
			log_info("http: listening on unix:%s", l->address.path);
			continue;
		}
		http_address_print(&l->address, text);
		log_info("http: listening on %s", text);
	}
	return 0;
}

void http_close_listeners(struct http *http)
{
	for (size_t i = 0; i < http->n_listeners; i++) {
		struct http_listener *l = &http->listeners[i];

		acceptor_deinit(&l->acceptor);
		listener_free(l->unix_listener);
		fd_closep(&l->fd);
	}
	http->n_listeners = 0;
}

void http_free(struct http *http)
{
	if (!http)
		return;
	http->stopping = true;
	http_close_listeners(http);
	list_for_each_safe(e, next, &http->connections)
		http_connection_stop(list_entry(e, struct http_connection, link));
	if (http->tick)
		event_free(http->tick);
	if (http->next_turn)
		event_free(http->next_turn);
	http_peer_finder_deinit(&http->finder);
	http_keys_free(http->keys);
	free(http);
}
