/* SPDX-License-Identifier: Apache-2.0 */
#include <event2/event.h>
#include <stdio.h>
#include <string.h>

#include "daemon/server/dispatch.h"
#include "daemon/server/server-internal.h"
#include "daemon/server/session.h"

static void on_broken(void *arg)
{
	struct session *s = arg;

	session_error(s, 0, KVD_CODE_BAD_MESSAGE, "read_index",
		      "the read index went back or passed the write index", 0);
	connection_kill(&s->connection);
}

static int send_welcome(struct session *s)
{
	struct server *server = s->server;
	const int fds[KVD_WELCOME_FDS] = {
		ring_sink_ring(s->sink)->fd,
		ring_sink_client(s->sink)->fd,
		stats_pages_fd(server->pages, s->page, server_is_admin(server, s->uid)),
	};
	const struct msg_welcome welcome = {
		.version = KVD_PROTOCOL_VERSION,
		.session = s->key,
		.ring = segment_data_size(ring_sink_ring(s->sink)),
		.arena = segment_data_size(ring_sink_client(s->sink)),
		.server = "kvd " KVD_VERSION,
		.state = models_starting(server->models) ? "loading" : "ready",
	};
	int r = codec_encode_welcome(&server->send_buffer, &welcome);

	if (r)
		return r;
	return connection_send_fds(&s->connection, server->send_buffer.data, server->send_buffer.n,
				   fds, KVD_WELCOME_FDS);
}

void handle_hello(struct session *s, struct msg **msg)
{
	const struct msg_hello *hello = &(*msg)->hello;
	struct server *server = s->server;
	struct ring_sink_config config = {
		.mailbox = server->mailbox,
		.sock = s->connection.fd,
		.ring_bytes = hello->ring,
		.arena_bytes = hello->arena,
		.accounts = server->accounts,
		.uid = s->uid,
		.broken = on_broken,
		.arg = s,
	};
	int r;

	snprintf(s->name, sizeof(s->name), "%s", hello->client);
	r = stats_pages_get(server->pages, s->uid, &s->page);
	if (!r) {
		config.page = s->page;
		r = ring_sink_new(&s->sink, &config);
	}
	if (r == RING_SINK_E_QUOTA) {
		session_refuse(s, KVD_CODE_QUOTA,
			       "the shared memory of this user is used up; end a session, or ask for less");
		return;
	}
	if (r) {
		session_refuse(s, KVD_CODE_NO_MEMORY, strerror(-r));
		return;
	}
	if (send_welcome(s)) {
		connection_kill(&s->connection);
		return;
	}
	ring_sink_close_fds(s->sink);
	event_del(s->greet_timer);
	s->state = SESSION_OPEN;
	server_update_stats(server);
}
