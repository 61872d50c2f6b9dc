/* SPDX-License-Identifier: Apache-2.0 */
/* cache_export, cache_import, cache_verify: work that takes long, each on a thread of its own. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "daemon/engine/share.h"
#include "daemon/server/dispatch.h"
#include "daemon/server/log.h"
#include "daemon/server/server-internal.h"
#include "daemon/server/session.h"
#include "daemon/server/share-file.h"
#include "ipc/base/checked.h"

#define SHARES_UID_MAX 2	/* at work, of one uid */
#define SHARES_MAX 8		/* and in all: as many threads there may be */

enum share_op { SHARE_EXPORT, SHARE_IMPORT, SHARE_VERIFY };

struct share {
	struct list link;		/* in server.shares */
	struct model_job job;
	struct server *server;
	struct engine *engine;
	struct engine_model *em;
	uint64_t session, message;	/* who asked, and the id to answer with */
	bool tell_progress;
	enum share_op op;
	struct cache_scope scope;
	struct share_file file;		/* export, import */
	char ns[KVD_NAMESPACE_MAX + 1];	/* import: into this one ... */
	bool one_place;			/* ... all of it */
	uint32_t count;			/* verify */
	struct charge memory;

	atomic_bool given_up;		/* set by the loop's thread */
	_Atomic uint64_t done, total;	/* set by the share's */
	int result;
	struct share_figures figures;
	struct diag diag;
};

static void share_free(struct share *x)
{
	if (!x)
		return;
	list_unlink(&x->link);
	share_file_deinit(&x->file);
	charge_deinit(&x->memory);
	free(x);
}
CLEANUP_DEFINE(struct share, share_free)

/* --- on the share's thread ------------------------------------------------------------ */

static bool is_cancelled(void *arg)
{
	struct share *x = arg;

	return atomic_load(&x->given_up) || atomic_load(&x->job.model->going);
}

static int write_bytes(void *arg, const void *data, size_t n)
{
	struct share *x = arg;

	return share_file_write(&x->file, data, n);
}

static int read_bytes(void *arg, void *data, size_t n, size_t *got)
{
	struct share *x = arg;

	return share_file_read(&x->file, data, n, got);
}

static void note_progress(void *arg, uint64_t done, uint64_t total)
{
	struct share *x = arg;

	atomic_store(&x->total, total);
	atomic_store(&x->done, done);
}

static void run(struct job *job)
{
	struct share *x = list_entry(list_entry(job, struct model_job, job), struct share, job);
	const struct share_ops ops = {
		.write = write_bytes, .read = read_bytes, .is_cancelled = is_cancelled, .progress = note_progress,
		.arg = x,
	};
	const struct import_place place = { .uid = x->scope.uid, .ns = x->ns, .one_place = x->one_place };

	switch (x->op) {
	case SHARE_EXPORT:
		x->result = engine_export(x->engine, x->em, &x->scope, &ops, &x->figures, &x->diag);
		break;
	case SHARE_IMPORT:
		x->result = engine_import(x->engine, x->em, &place, &ops, &x->figures, &x->diag);
		break;
	case SHARE_VERIFY:
		x->result = engine_verify(x->engine, x->em, &x->scope, x->count, &ops, &x->figures, &x->diag);
	}
	/* Here, since a file that was removed meanwhile may take a while to close. */
	share_file_deinit(&x->file);
}

/* --- answers --------------------------------------------------------------------------- */

static enum kvd_code code_of(const struct share *x)
{
	switch (x->result) {
	case 0:
		return KVD_CODE_OK;
	case SHARE_E_NO_MODEL:
		return KVD_CODE_UNLOADED;
	case SHARE_E_FILE:
	case SHARE_E_OTHER:
		return KVD_CODE_FILE;
	case SHARE_E_QUOTA:
		return KVD_CODE_QUOTA;
	case SHARE_E_FULL:
	case -ENOMEM:
		return KVD_CODE_NO_MEMORY;
	case SHARE_E_UNABLE:
		return KVD_CODE_BAD_MESSAGE;
	case -ESHUTDOWN:
		return KVD_CODE_SHUTDOWN;
	case -ECANCELED:
		return x->server->stopping ? KVD_CODE_SHUTDOWN :
		       atomic_load(&x->job.model->going) ? KVD_CODE_UNLOADED : KVD_CODE_CANCELLED;
	default:
		return x->op == SHARE_VERIFY ? KVD_CODE_INTERNAL : KVD_CODE_FILE;
	}
}

/* The sentence for a failure, if the engine has none. */
static void explain(struct share *x, enum kvd_code code)
{
	const char *verb = x->op == SHARE_EXPORT ? "written" : "read";

	switch (code) {
	case KVD_CODE_QUOTA:
		diag_write(&x->diag, "this user's share of memory is used up");
		break;
	case KVD_CODE_NO_MEMORY:
		diag_write(&x->diag, "%s", x->result == SHARE_E_FULL ?
			   "there is no more free room for keys and values" : "out of memory");
		break;
	case KVD_CODE_UNLOADED:
		diag_write(&x->diag, "the model was unloaded");
		break;
	case KVD_CODE_SHUTDOWN:
		diag_write(&x->diag, "the daemon is stopping");
		break;
	case KVD_CODE_CANCELLED:
		diag_write(&x->diag, "it was given up");
		break;
	case KVD_CODE_BAD_MESSAGE:
		diag_write(&x->diag, "this device keeps its blocks to itself");
		break;
	case KVD_CODE_FILE:
		diag_write(&x->diag, "the file can't be %s: %s", verb, strerror(-x->result));
		break;
	case KVD_CODE_INTERNAL:
		diag_write(&x->diag, "the model's step failed: %s", strerror(-x->result));
		break;
	default:
		break;
	}
}

static void answer(struct session *s, struct share *x)
{
	const struct share_figures *f = &x->figures;
	enum kvd_code code = code_of(x);
	bool in_part = x->op == SHARE_IMPORT && f->n_entries + f->n_there;

	if (code != KVD_CODE_OK)
		explain(x, code);
	if (code != KVD_CODE_OK && !in_part)
		session_error(s, x->message, code, "", x->diag.text, 0);
	else if (x->op == SHARE_VERIFY)
		session_send(s, KVD_MSG_CACHE_VERIFIED, &(struct msg_cache_verified){
			.id = x->message, .n_entries = f->n_entries, .n_tokens = f->n_tokens, .bytes = f->bytes,
			.n_differ = f->n_differ, .compute_ns = f->ns, .message = x->diag.text,
		});
	else
		session_send(s, KVD_MSG_CACHE_SHARED, &(struct msg_cache_shared){
			.id = x->message, .n_entries = f->n_entries, .n_tokens = f->n_tokens, .bytes = f->bytes,
			.n_there = f->n_there, .n_left = f->n_left, .code = code,
			.message = code == KVD_CODE_OK ? "" : x->diag.text,
		});
}

/* A difference is a fault of memory, disk or program: worth a line whoever asked. */
static void log_share(const struct share *x)
{
	const struct share_figures *f = &x->figures;

	if (f->n_differ)
		log_error("the cache of model %s: %llu of %llu entries differ from what is computed, and went; %s",
			  x->job.model->name, (unsigned long long)f->n_differ,
			  (unsigned long long)(f->n_entries + f->n_differ), x->diag.text);
	if (x->op == SHARE_IMPORT && f->n_entries)
		log_info("uid %u imported %llu entries into the cache of model %s", (unsigned)x->scope.uid,
			 (unsigned long long)f->n_entries, x->job.model->name);
}

static void done(struct job *job)
{
	_cleanup_(share_freep) struct share *x = list_entry(list_entry(job, struct model_job, job), struct share, job);
	struct session *s = server_session(x->server, x->session);

	if (job->dropped)
		x->result = -ECANCELED;
	log_share(x);
	if (s) {
		s->n_queries--;
		answer(s, x);
	}
	model_job_end(&x->job);
}

/* --- questions --------------------------------------------------------------------------- */

static bool has_turn(const struct server *server, uid_t uid, unsigned *n)
{
	unsigned n_own = 0;

	*n = 0;
	list_for_each(l, &server->shares) {
		(*n)++;
		n_own += list_entry(l, struct share, link)->scope.uid == uid;
	}
	return *n < SHARES_MAX && n_own < SHARES_UID_MAX;
}

/* The model, for as long as the share lives.  False after an error to the session. */
static bool choose_model(struct session *s, struct share *x, const char *name, struct served_model **out)
{
	struct served_model *m = session_model(s, x->message, name);

	if (!m)
		return false;
	if (!m->hosted.engine_model || m->state != SERVED_READY) {
		session_error(s, x->message, KVD_CODE_LOADING, "model", "the model is still loading", 0);
		return false;
	}
	x->engine = models_engine(s->server->models);
	x->em = m->hosted.engine_model;
	*out = m;
	return true;
}

/* NULL after an error to the session. */
static struct share *share_new(struct session *s, uint64_t id, enum share_op op, bool progress)
{
	struct share *x = NULL;
	unsigned n;
	int r;

	if (s->n_queries >= SESSION_QUERIES_MAX || !has_turn(s->server, s->uid, &n)) {
		session_error(s, id, KVD_CODE_BUSY, "", "too many exports, imports and verifications are at work", 0);
		return NULL;
	}
	x = calloc(1, sizeof(*x));
	if (x)
		list_init(&x->link);
	r = x ? charge_init(&x->memory, s->server->accounts, s->uid, ACCOUNT_MEMORY, sizeof(*x)) : -ENOMEM;
	if (r) {
		session_error(s, id, r == ACCOUNT_E_QUOTA ? KVD_CODE_QUOTA : KVD_CODE_NO_MEMORY, "",
			      r == ACCOUNT_E_QUOTA ? "this user's share of memory is used up" : "out of memory", 0);
		free(x);
		return NULL;
	}
	x->server = s->server;
	x->session = s->key;
	x->message = id;
	x->op = op;
	x->tell_progress = progress;
	x->job.job = (struct job){ .uid = s->uid, .run = run, .done = done };
	x->scope.uid = s->uid;
	x->scope.admin = server_is_admin(s->server, s->uid);
	namespace_own(s->uid, x->scope.own);
	x->file = SHARE_FILE_NULL;
	x->file.is_cancelled = is_cancelled;
	x->file.arg = x;
	return x;
}

static bool take_file(struct session *s, struct share *x)
{
	int r = share_file_init(&x->file, s->received_fd, x->op == SHARE_EXPORT, &x->diag);

	if (!r)
		return true;
	session_error(s, x->message, r == -EINVAL ? KVD_CODE_BAD_FIELD : KVD_CODE_FILE, "descriptor", x->diag.text, 0);
	return false;
}

static bool set_filter(struct session *s, struct share *x, const char *namespace)
{
	if (namespace_filter(s->uid, namespace, x->scope.filter))
		return true;
	session_error(s, x->message, KVD_CODE_BAD_FIELD, "namespace", "the name is too long", 0);
	return false;
}

/* Takes x over. */
static void start(struct session *s, struct share *x, struct served_model *m)
{
	struct server *server = s->server;
	unsigned n;
	int r;

	(void)has_turn(server, s->uid, &n);
	r = workers_start(server->share_workers, n + 1, "kvd-share");
	if (!r)
		r = model_job_start_on(&x->job, m, server->share_workers);
	if (r) {
		session_error(s, x->message, KVD_CODE_BUSY, "", "no thread can be had for it; try again", 0);
		share_free(x);
		return;
	}
	s->n_queries++;
	list_push_back(&server->shares, &x->link);
}

void handle_cache_export(struct session *s, struct msg **msg)
{
	const struct msg_cache_export *m = &(*msg)->cache_export;
	_cleanup_(share_freep) struct share *x = share_new(s, m->id, SHARE_EXPORT, m->progress);
	struct served_model *model;

	if (!x || !choose_model(s, x, m->model, &model) ||
	    !set_filter(s, x, m->namespace ? m->namespace : "own"))
		return;
	if (!x->scope.admin && !namespace_within(x->scope.filter, x->scope.own)) {
		session_error(s, m->id, KVD_CODE_PERMISSION, "namespace",
			      "only root and the daemon's own user may export what is not their own", 0);
		return;
	}
	if (take_file(s, x))
		start(s, steal_ptr(x), model);
}

void handle_cache_import(struct session *s, struct msg **msg)
{
	const struct msg_cache_import *m = &(*msg)->cache_import;
	_cleanup_(share_freep) struct share *x = share_new(s, m->id, SHARE_IMPORT, m->progress);
	struct served_model *model;

	if (!x || !choose_model(s, x, m->model, &model) || !take_file(s, x))
		return;
	x->one_place = m->cache_key != NULL;
	snprintf(x->ns, sizeof(x->ns), "%.*s%s%.*s", NAMESPACE_OWN_MAX, x->scope.own, m->cache_key ? "/" : "",
		 KVD_CACHE_KEY_MAX, m->cache_key ? m->cache_key : "");
	start(s, steal_ptr(x), model);
}

void handle_cache_verify(struct session *s, struct msg **msg)
{
	const struct msg_cache_verify *m = &(*msg)->cache_verify;
	_cleanup_(share_freep) struct share *x = share_new(s, m->id, SHARE_VERIFY, m->progress);
	struct served_model *model;

	if (!x || !choose_model(s, x, m->model, &model) || (m->namespace && !set_filter(s, x, m->namespace)))
		return;
	x->count = m->count ? m->count : KVD_CACHE_VERIFY_DEFAULT;
	start(s, steal_ptr(x), model);
}

/* --- for the other files of the server ---------------------------------------------------- */

void server_tell_share_progress(struct server *server)
{
	struct codec_buf *buf = &server->send_buffer;

	list_for_each(l, &server->shares) {
		struct share *x = list_entry(l, struct share, link);
		struct session *s = x->tell_progress ? server_session(server, x->session) : NULL;
		struct msg_cache_progress m = {
			.id = x->message, .done = atomic_load(&x->done), .total = atomic_load(&x->total),
		};

		if (s && codec_encode_cache_progress(buf, &m) == 0)
			connection_hint(&s->connection, buf->data, buf->n);
	}
}

void server_give_up_shares(struct server *server, uint64_t session, uint64_t message)
{
	list_for_each(l, &server->shares) {
		struct share *x = list_entry(l, struct share, link);

		if ((!session || x->session == session) && (!message || x->message == message))
			atomic_store(&x->given_up, true);
	}
}
