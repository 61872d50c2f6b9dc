/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server-internal.h - the server's state, for the files of this directory that
 * make it up: server.c (life), acceptor.c, session.c, dispatch.c and the
 * handle-*.c.  Loop thread only.
 */
#ifndef KVD_SERVER_INTERNAL_H
#define KVD_SERVER_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/server/acceptor.h"
#include "daemon/server/listener.h"
#include "daemon/server/mailbox.h"
#include "daemon/server/models.h"
#include "daemon/server/namespace.h"
#include "daemon/server/server.h"
#include "daemon/server/fair-weights.h"
#include "daemon/server/stats-pages.h"
#include "daemon/server/views.h"
#include "daemon/server/workers.h"
#include "ipc/base/account.h"
#include "ipc/base/list.h"
#include "ipc/codec.h"

struct event;
struct event_base;
struct fdstore;
struct http;
struct life;
struct session;
struct watch;

struct server {
	struct server_config config;
	uint64_t started_ns;
	uid_t overflow_uid;
	struct account_limits uid_limits;	/* of each uid */
	struct namespaces namespaces;
	struct fair_weights weights;		/* of users */

	struct event_base *base;
	struct mailbox *mailbox;
	struct accounts *accounts;
	struct workers *workers;
	struct models *models;
	struct stats_pages *pages;

	struct fdstore *fdstore;
	struct life *life;		/* NULL: there is no service manager */
	struct event *life_timer;
	struct listener *listener;
	struct acceptor acceptor;
	struct http *http;		/* NULL: there is no HTTP endpoint */
	int signal_fd;
	struct event *signal_event, *stats_timer, *idle_timer;
	struct watch *watch;		/* of the engine */

	struct list sessions;		/* of struct session */
	unsigned n_sessions;		/* charged ones */
	unsigned n_refused;		/* kept for a moment to be told why */
	uint64_t next_session;		/* keys of the engine's clients: sessions, exchanges (server_http_client()) */
	struct list http_submissions;	/* struct submission.link: what the workers have of the HTTP endpoint */
	struct views_feed views;
	struct list cache_queries;	/* on their way to the engine and back, see handle-cache.c */
	struct list shares;		/* at work, see handle-share.c */
	struct workers *share_workers;	/* theirs; its threads are made as they are needed */
	struct list own_statuses;	/* the same, see handle-info.c */
	bool stats_asked;		/* the statistics pages wait for views */

	uint8_t *receive_buffer;	/* [KVD_MESSAGE_MAX], shared by all connections */
	struct codec_buf send_buffer;
	uint64_t refusal_logged_ns;
	unsigned n_refusals_unlogged;

	bool ready;			/* the models of the configuration are loaded */
	bool stopping;
	int status;			/* exit status */
};

/* Root and the daemon's own user see everything. */
bool server_is_admin(const struct server *s, uid_t uid);
/* Whether uid says who a peer is: not if it stands for many, or for an account of another kind. */
bool server_uid_is_known(const struct server *s, uid_t uid);
/* The session with this key, or NULL. */
struct session *server_session(const struct server *s, uint64_t key);
/* A key for an exchange of the HTTP endpoint that has requests in the engine: with SERVER_CLIENT_HTTP set. */
#define SERVER_CLIENT_HTTP (UINT64_C(1) << 48)
static inline uint64_t server_http_client(struct server *s)
{
	return ++s->next_session | SERVER_CLIENT_HTTP;
}
/* Requests that wait for a worker; of one uid, or of all. */
uint32_t server_n_waiting(const struct server *s, bool all, uid_t uid);
/* n_sessions has changed. */
void server_sessions_changed(struct server *s);
/* Fills the statistics pages soon. */
void server_update_stats(struct server *s);
/* models_config.loaded and .unloaded, in handle-load.c: answer who asked. */
void server_loaded(void *arg, struct served_model *m);
void server_unloaded(void *arg, const struct served_model *m, const struct models_asker *asker);
/* Tells those who load how far it has come. */
void server_tell_progress(struct server *s);
/* Tells those who export, import or verify the same. */
void server_tell_share_progress(struct server *s);
/* Those of a session (0: of all), with this message (0: all of them) end soon. */
void server_give_up_shares(struct server *s, uint64_t session, uint64_t message);
/* A model of the configuration has loaded, or has not. */
void server_started(struct server *s, const struct served_model *m);
/* Tells the service manager how many models are served. */
void server_tell_manager(struct server *s);
/* A line for the log, at most one a second. */
void server_log_refusal(struct server *s, uid_t uid, const char *why);
void server_stop(struct server *s, int status);

#endif
