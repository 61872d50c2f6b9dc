/* SPDX-License-Identifier: Apache-2.0 */
/* load and unload: who may, and what those who asked are told in the end. */
#include <stdio.h>
#include <string.h>

#include "daemon/server/dispatch.h"
#include "daemon/server/log.h"
#include "daemon/server/server-internal.h"
#include "daemon/server/session.h"
#include "ipc/base/fd.h"

/* A session may have so many loads and unloads unanswered as other questions. */
static bool check_queries(struct session *s, uint64_t id)
{
	if (s->n_queries < SESSION_QUERIES_MAX)
		return true;
	session_error(s, id, KVD_CODE_BUSY, "", "too many questions of this session are unanswered", 0);
	return false;
}

/* --- load -------------------------------------------------------------------------- */

static void refuse_load(struct session *s, const struct msg_load *m, int r)
{
	char text[KVD_MODEL_NAME_MAX + 64];

	switch (r) {
	case MODELS_E_EXISTS:
		snprintf(text, sizeof(text), "there is a model \"%s\" already", m->name);
		session_error(s, m->id, KVD_CODE_EXISTS, "name", text, 0);
		break;
	case MODELS_E_FULL:
		snprintf(text, sizeof(text), "%d models are there, no more are possible", KVD_MODELS_MAX);
		session_error(s, m->id, KVD_CODE_QUOTA, "", text, 0);
		break;
	default:
		session_error(s, m->id, KVD_CODE_NO_MEMORY, "", "out of memory", 0);
	}
}

static void tell_progress(struct session *s, uint64_t id, unsigned percent)
{
	struct codec_buf *buf = &s->server->send_buffer;

	if (codec_encode_loading(buf, &(struct msg_loading){ .id = id, .percent = percent }) == 0)
		connection_hint(&s->connection, buf->data, buf->n);
}

void handle_load(struct session *s, struct msg **msg)
{
	const struct msg_load *m = &(*msg)->load;
	bool admin = server_is_admin(s->server, s->uid);
	int r;

	if (!admin && !s->server->config.uid_weights) {
		session_error(s, m->id, KVD_CODE_PERMISSION, "",
			      "only root and the daemon's own user may load models here", 0);
		return;
	}
	if (!check_queries(s, m->id))
		return;
	r = models_load(s->server->models, &(struct models_load){
		.name = m->name, .fd = *s->received_fd, .n_ctx = m->n_ctx, .uid = s->uid, .charged = !admin,
		.asker = { s->key, m->id }, .tell_progress = m->progress,
	});
	if (r) {
		refuse_load(s, m, r);
		return;
	}
	fd_steal(s->received_fd);
	s->n_queries++;
	if (m->progress)
		tell_progress(s, m->id, 0);
	server_sessions_changed(s->server);
}

void server_tell_progress(struct server *server)
{
	for (struct served_model *m = models_next(server->models, NULL); m; m = models_next(server->models, m)) {
		struct session *s = m->asker.session ? server_session(server, m->asker.session) : NULL;

		if (s && m->tell_progress && m->state == SERVED_LOADING)
			tell_progress(s, m->asker.message, atomic_load(&m->percent));
	}
}

static void log_loaded(const struct served_model *m)
{
	const struct model_info *info;

	if (m->code != KVD_CODE_OK) {
		log_warning("model %s, loaded by uid %u: %s", m->name, (unsigned)m->uid, m->why.text);
		return;
	}
	info = model_info(m->hosted.model);
	log_info("model %s loaded (%s, %llu parameters, context %u) for uid %u", m->name, info->arch,
		 (unsigned long long)info->n_params, engine_model_n_ctx(m->hosted.engine_model),
		 (unsigned)m->uid);
}

static void answer_load(struct session *s, const struct served_model *m)
{
	s->n_queries--;
	if (m->code == KVD_CODE_OK)
		session_send(s, KVD_MSG_LOADED, &(struct msg_loaded){
			.id = m->asker.message, .name = m->name,
			.n_ctx = engine_model_n_ctx(m->hosted.engine_model),
			.weight_bytes = model_info(m->hosted.model)->weight_bytes,
		});
	else
		session_error(s, m->asker.message, m->code, "", m->why.text, 0);
}

void server_loaded(void *arg, struct served_model *m)
{
	struct server *server = arg;
	struct session *s = m->asker.session ? server_session(server, m->asker.session) : NULL;

	if (m->code == KVD_CODE_OK || (!m->at_start && m->code != KVD_CODE_SHUTDOWN))
		log_loaded(m);
	if (s)
		answer_load(s, m);
	if (m->at_start)
		server_started(server, m);
	server_tell_manager(server);
	server_update_stats(server);
	server_sessions_changed(server);
}

/* --- unload ------------------------------------------------------------------------ */

void handle_unload(struct session *s, struct msg **msg)
{
	const struct msg_unload *u = &(*msg)->unload;
	struct served_model *m = models_find(s->server->models, u->model);
	struct diag why = DIAG_NULL;

	if (!m) {
		(void)models_choose(s->server->models, u->model, &why);
		session_error(s, u->id, KVD_CODE_NO_MODEL, "model", why.text, 0);
		return;
	}
	if (!server_is_admin(s->server, s->uid) && (!m->charged || m->uid != s->uid)) {
		session_error(s, u->id, KVD_CODE_PERMISSION, "",
			      "only root, the daemon's own user and who loaded the model may unload it", 0);
		return;
	}
	if (!check_queries(s, u->id))
		return;
	s->n_queries++;
	if (models_unload(m, u->now, &(struct models_asker){ s->key, u->id })) {
		s->n_queries--;
		session_error(s, u->id, KVD_CODE_NO_MEMORY, "", "out of memory", 0);
	}
	server_sessions_changed(s->server);
}

void server_unloaded(void *arg, const struct served_model *m, const struct models_asker *asker)
{
	struct server *server = arg;
	struct session *s;

	if (!asker) {
		if (m->state == SERVED_UNLOADING)
			log_info("model %s unloaded", m->name);
		server_tell_manager(server);
		server_update_stats(server);
		return;
	}
	s = server_session(server, asker->session);
	if (!s)
		return;
	s->n_queries--;
	session_send(s, KVD_MSG_UNLOADED, &(struct msg_unloaded){ .id = asker->message });
}
