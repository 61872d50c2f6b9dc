/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/session.h"

#include <event2/event.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/server/dispatch.h"
#include "daemon/server/server-internal.h"
#include "daemon/server/submission.h"
#include "ipc/fdpass.h"

static void on_message(struct connection *c, const void *data, size_t n, int fd)
{
	dispatch_message((struct session *)c, data, n, fd);
}

static void on_discarded(struct connection *c, int why)
{
	dispatch_discarded((struct session *)c, why);
}

static void on_closed(struct connection *c)
{
	session_free((struct session *)c);
}

static const struct connection_ops ops = {
	.message = on_message,
	.discarded = on_discarded,
	.closed = on_closed,
};

static void on_greet_timeout(evutil_socket_t fd, short what, void *arg)
{
	struct session *s = arg;

	session_refuse(s, KVD_CODE_BAD_MESSAGE, "no hello came in time");
}

/* Tells a peer that gets no session why, without waiting for its hello. */
static void refuse_at_once(struct server *server, int fd, uid_t uid, enum kvd_code code, const char *why)
{
	const struct msg_refused msg = { .code = code, .message = why };

	server_log_refusal(server, uid, why);
	if (codec_encode_refused(&server->send_buffer, &msg) == 0)
		(void)fdpass_send(fd, server->send_buffer.data, server->send_buffer.n, NULL, 0,
				  FDPASS_DONTWAIT);
	fdpass_close(fd);
}

/* Who may have a session: charges it.  False: refused already. */
static bool admit(struct server *server, int fd, const struct fdpass_peer *peer, struct charge *charge)
{
	int r;

	if (!server_uid_is_known(server, peer->uid)) {
		refuse_at_once(server, fd, peer->uid, KVD_CODE_PERMISSION,
			       "this user is not known in the daemon's namespace");
		return false;
	}
	if (server->n_sessions >= server->config.max_sessions) {
		refuse_at_once(server, fd, peer->uid, KVD_CODE_QUOTA, "too many sessions in all");
		return false;
	}
	r = charge_init(charge, server->accounts, peer->uid, ACCOUNT_SESSIONS, 1);
	if (r < 0 || (r && server->n_refused >= SESSION_REFUSED_MAX)) {
		refuse_at_once(server, fd, peer->uid, r < 0 ? KVD_CODE_NO_MEMORY : KVD_CODE_QUOTA,
			       r < 0 ? "out of memory" : "too many sessions of this user");
		return false;
	}
	return true;
}

void session_new(struct server *server, int fd)
{
	struct timeval patience = { .tv_sec = SESSION_GREET_S };
	struct charge charge = CHARGE_NULL;
	struct fdpass_peer peer;
	struct session *s;

	if (fdpass_peer(fd, &peer) < 0) {
		close(fd);
		return;
	}
	if (!admit(server, fd, &peer, &charge))
		return;
	s = calloc(1, sizeof(*s));
	if (s && connection_init(&s->connection, server->base, fd, server->receive_buffer, &ops) < 0) {
		free(s);
		s = NULL;
	}
	if (!s) {
		charge_deinit(&charge);
		refuse_at_once(server, fd, peer.uid, KVD_CODE_NO_MEMORY, "out of memory");
		return;
	}
	s->server = server;
	s->key = ++server->next_session;
	s->uid = peer.uid;
	s->pid = peer.pid;
	s->groups = namespaces_groups_of(&server->namespaces, fd, peer.gid);
	s->charge = charge;
	list_init(&s->submissions);
	list_push_back(&server->sessions, &s->link);
	if (charge.account)
		server->n_sessions++;
	else
		server->n_refused++;
	s->greet_timer = event_new(server->base, -1, 0, on_greet_timeout, s);
	if (!s->greet_timer || event_add(s->greet_timer, &patience) < 0)
		connection_kill(&s->connection);
	server_sessions_changed(server);
}

void session_free(struct session *s)
{
	struct server *server = s->server;
	struct engine *engine = models_engine(server->models);

	list_for_each_safe(e, next, &s->submissions) {
		struct submission *submission = list_entry(e, struct submission, link);

		submission->owner = NULL;
		list_unlink(&submission->link);
		submission_cancel(submission);
	}
	models_give_up(server->models, &(struct models_asker){ s->key, 0 });
	server_give_up_shares(server, s->key, 0);
	if (engine && s->sink)
		engine_cancel_client(engine, s->key);
	if (s->sink)
		ring_sink_close(s->sink);
	if (s->greet_timer)
		event_free(s->greet_timer);
	connection_deinit(&s->connection);
	stats_page_unref(s->page);
	if (s->charge.account)
		server->n_sessions--;
	else
		server->n_refused--;
	charge_deinit(&s->charge);
	list_unlink(&s->link);
	free(s);
	server_sessions_changed(server);
}

void session_send(struct session *s, enum kvd_message id, const void *msg)
{
	struct codec_buf *buf = &s->server->send_buffer;

	if (codec_encode(buf, id, msg))
		connection_kill(&s->connection);
	else
		connection_send(&s->connection, buf->data, buf->n);
}

void session_error(struct session *s, uint64_t id, enum kvd_code code, const char *field, const char *message,
		   uint64_t count)
{
	session_send(s, KVD_MSG_ERROR, &(struct msg_error){
		.id = id, .code = code, .field = field, .message = message, .count = count,
	});
}

void session_no_place(struct session *s, uint64_t id)
{
	struct diag why;
	enum kvd_code code = models_no_place(s->server->models, &why);

	session_error(s, id, code, "", why.text, 0);
}

struct served_model *session_model(struct session *s, uint64_t id, const char *name)
{
	struct diag why = DIAG_NULL;
	struct served_model *m = models_choose(s->server->models, name, &why);

	if (!m)
		session_error(s, id, KVD_CODE_NO_MODEL, name ? "model" : "", why.text, 0);
	return m;
}

void session_refuse(struct session *s, enum kvd_code code, const char *message)
{
	server_log_refusal(s->server, s->uid, message);
	session_send(s, KVD_MSG_REFUSED, &(struct msg_refused){ .code = code, .message = message });
	connection_kill(&s->connection);
}

void session_violation(struct session *s)
{
	if (++s->n_violations >= SESSION_VIOLATIONS_MAX)
		connection_kill(&s->connection);
}
