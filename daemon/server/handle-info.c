/* SPDX-License-Identifier: Apache-2.0 */
/* status, models, ps: what is there and what runs. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/engine/cache-control.h"
#include "daemon/engine/disk-store.h"
#include "daemon/model/chat-template.h"
#include "daemon/server/dispatch.h"
#include "daemon/server/http-server.h"
#include "daemon/server/server-internal.h"
#include "daemon/server/session.h"
#include "daemon/server/submission.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"

static const char *state_name(const struct server *server)
{
	return models_starting(server->models) ? "loading" : "ready";
}

/* Asks the engine on behalf of a session; a failure is told to it. */
static void ask(struct session *s, uint64_t id, void (*answer)(struct views_query *q))
{
	if (s->n_queries >= SESSION_QUERIES_MAX) {
		session_error(s, id, KVD_CODE_BUSY, "", "too many questions of this session are unanswered",
			      0);
		return;
	}
	s->n_queries++;
	if (views_ask(&s->server->views, s->key, id, answer)) {
		s->n_queries--;
		session_error(s, id, KVD_CODE_NO_MEMORY, "", "out of memory", 0);
	}
}

/* The session that asked, if it is still there and can be answered. */
static struct session *answered(struct views_query *q)
{
	struct session *s = server_session(q->server, q->session);

	if (!s)
		return NULL;
	s->n_queries--;
	if (q->failed) {
		session_error(s, q->message, KVD_CODE_NO_MEMORY, "", "out of memory", 0);
		return NULL;
	}
	return s;
}

/* --- status -------------------------------------------------------------------- */

/* What is the same whoever asks. */
static void fill_status(const struct server *server, uint64_t id, struct msg_status_reply *out)
{
	const struct model_host *host = models_host(server->models);

	*out = (struct msg_status_reply){
		.id = id,
		.version = KVD_VERSION,
		.device = model_host_device(host),
		.level = model_host_level(host),
		.state = state_name(server),
		.pid = (uint32_t)getpid(),
		.n_threads = model_host_n_threads(host),
		.n_models = models_count(server->models),
		.uptime_ns = clock_ns() - server->started_ns,
		.weight_bytes = models_weight_bytes(server->models),
		.loading_percent = models_percent(server->models),
		.no_cache = server->config.no_cache,
		.kv_type = kv_type_name(server->config.kv_type),
	};
}

static void fill_disk(const struct disk_store_stats *disk, struct msg_status_reply *out)
{
	out->disk_bytes = disk->max_bytes;
	out->disk_bytes_used = disk->bytes;
	out->disk_blocks = disk->n_blocks;
	out->disk_lookups = disk->lookups;
	out->disk_hits = disk->hits;
	out->disk_written = disk->written;
	out->disk_read = disk->read;
	out->disk_evicted = disk->evicted;
	out->disk_damaged = disk->damaged;
	out->disk_errors = disk->errors;
	out->disk_trouble = disk->trouble[0] ? disk->trouble : NULL;
}

static void reply_totals(struct session *s, uint64_t id)
{
	struct server *server = s->server;
	struct engine *engine = models_engine(server->models);
	struct engine_stats stats = { 0 };
	struct disk_store_stats disk;
	struct msg_status_reply reply;

	if (engine)
		engine_stats(engine, &stats);
	fill_status(server, id, &reply);
	reply.n_sessions = server->n_sessions;
	reply.n_running = stats.n_running;
	reply.n_queued = stats.n_queued + server_n_waiting(server, true, 0);
	reply.n_parked = stats.n_parked;
	reply.kv_bytes = stats.kv_bytes;
	reply.kv_bytes_used = stats.kv_bytes_used;
	reply.open_bytes = stats.open_bytes;
	reply.prompt_tokens = stats.prompt_tokens;
	reply.generated_tokens = stats.generated_tokens;
	reply.requests_done = stats.requests_done;
	reply.requests_cancelled = stats.requests_cancelled;
	reply.preemptions = stats.preemptions;
	reply.blocks_used = stats.blocks_used;
	reply.blocks_cached = stats.blocks_cached;
	reply.blocks_free = stats.blocks_free;
	reply.cache_lookups = stats.cache_lookups;
	reply.cache_hits = stats.cache_hits;
	reply.cached_tokens = stats.cached_tokens;
	reply.cache_evicted = stats.cache_evicted;
	reply.host_bytes = stats.host_bytes;
	reply.host_bytes_used = stats.host_bytes_used;
	reply.host_blocks = stats.host_blocks;
	reply.host_stored = stats.host_stored;
	reply.host_restored = stats.host_restored;
	disk_store_stats(model_host_store(models_host(server->models)), &disk);
	fill_disk(&disk, &reply);
	session_send(s, KVD_MSG_STATUS_REPLY, &reply);
}

/* A user's statuses, until the engine has told how much of the cache is his: one question for all of them. */
struct own_status {
	struct list link;			/* in server.own_statuses */
	struct cache_command command;
	struct mail mail;
	struct server *server;
	struct list replies;			/* struct own_reply */
};

struct own_reply {
	struct list link;
	uint64_t session;
	struct msg_status_reply reply;		/* its strings outlive it */
};

static void own_status_free(struct own_status *own)
{
	list_for_each_safe(l, next, &own->replies) {
		list_unlink(l);
		free(list_entry(l, struct own_reply, link));
	}
	list_unlink(&own->link);
	free(own);
}

static void deliver_own(struct mail *mail)
{
	struct own_status *own = list_entry(mail, struct own_status, mail);

	list_for_each(l, &own->replies) {
		struct own_reply *r = list_entry(l, struct own_reply, link);
		struct session *s = server_session(own->server, r->session);

		if (!s)
			continue;
		s->n_queries--;
		r->reply.blocks_cached = own->command.n_entries;
		session_send(s, KVD_MSG_STATUS_REPLY, &r->reply);
	}
	own_status_free(own);
}

/* On the engine's thread. */
static void on_usage(struct cache_command *c)
{
	struct own_status *own = list_entry(c, struct own_status, command);

	mailbox_post(own->server->mailbox, &own->mail);
}

/* The question that is under way for the uid, or a new one; NULL: it can't be asked. */
static struct own_status *ask_usage(struct server *server, struct engine *engine, uid_t uid)
{
	struct own_status *own;

	list_for_each(l, &server->own_statuses) {
		own = list_entry(l, struct own_status, link);
		if (own->command.scope.uid == uid)
			return own;
	}
	own = calloc(1, sizeof(*own));
	if (!own)
		return NULL;
	own->command.op = CACHE_USAGE;
	own->command.scope.uid = uid;
	own->command.done = on_usage;
	own->mail.deliver = deliver_own;
	own->server = server;
	list_init(&own->link);
	list_init(&own->replies);
	if (engine_cache(engine, &own->command)) {
		free(own);
		return NULL;
	}
	list_push_back(&server->own_statuses, &own->link);
	return own;
}

static void reply_own(struct session *s, struct engine *engine, const struct msg_status_reply *reply)
{
	struct own_reply *r = engine ? calloc(1, sizeof(*r)) : NULL;
	struct own_status *own = r ? ask_usage(s->server, engine, s->uid) : NULL;

	if (own) {
		r->session = s->key;
		r->reply = *reply;
		list_push_back(&own->replies, &r->link);
		s->n_queries++;
		return;
	}
	free(r);
	if (engine)
		session_error(s, reply->id, KVD_CODE_BUSY, "", "the engine has too much to answer; try again", 0);
	else
		session_send(s, KVD_MSG_STATUS_REPLY, reply);
}

/* Counters must not tell one user about another. */
static void answer_status(struct views_query *q)
{
	struct session *s = answered(q);
	struct engine *engine = models_engine(q->server->models);
	struct engine_stats stats = { 0 };
	struct msg_status_reply reply;
	struct kvd_stats own;

	if (!s)
		return;
	if (engine)
		engine_stats(engine, &stats);
	stats_page_read(s->page, s->server->accounts, q->views, q->n, &own);
	fill_status(s->server, q->message, &reply);
	reply.n_sessions = (uint32_t)own.n_sessions;
	reply.n_running = (uint32_t)own.n_running;
	reply.n_queued = (uint32_t)own.n_queued + server_n_waiting(s->server, false, s->uid);
	reply.n_parked = (uint32_t)own.n_parked;
	reply.kv_bytes = stats.kv_bytes;
	reply.kv_bytes_used = own.kv_bytes_used;
	reply.prompt_tokens = own.prompt_tokens;
	reply.generated_tokens = own.generated_tokens;
	reply.requests_done = own.requests_done;
	reply.requests_cancelled = own.requests_cancelled;
	reply.preemptions = own.preemptions;
	reply.cache_lookups = own.cache_lookups;
	reply.cache_hits = own.cache_hits;
	reply.cached_tokens = own.cached_tokens;
	for (size_t i = 0; i < q->n; i++)
		reply.blocks_used += q->views[i].uid == s->uid ? q->views[i].n_blocks : 0;
	reply_own(s, engine, &reply);
}

void handle_status(struct session *s, struct msg **msg)
{
	uint64_t id = (*msg)->status.id;

	if (server_is_admin(s->server, s->uid))
		reply_totals(s, id);
	else
		ask(s, id, answer_status);
}

/* --- models -------------------------------------------------------------------- */

struct described {
	struct msg_model item;
	char hash[KVD_HASH_MAX + 1];
};

static const char *state_of(const struct served_model *m)
{
	switch (m->state) {
	case SERVED_READY:
		return "ready";
	case SERVED_UNLOADING:
		return "unloading";
	case SERVED_FAILED:
		return "failed";
	default:
		return "loading";
	}
}

/* What is known once the file has been read. */
static void describe_loaded(const struct hosted_model *hosted, struct described *d)
{
	const struct model_info *info = model_info(hosted->model);
	const struct chat_template *template = model_chat_template(hosted->model);
	const char *template_name = template ? chat_template_name(template) : "none";
	struct msg_model *item = &d->item;

	for (size_t i = 0; i < sizeof(info->content_hash); i++)
		snprintf(d->hash + 2 * i, 3, "%02x", info->content_hash[i]);
	item->arch = info->arch;
	item->title = info->title;
	item->chat_template = template_name ? template_name : "unknown";
	item->n_ctx = engine_model_n_ctx(hosted->engine_model);
	item->n_ctx_train = info->n_ctx_train;
	item->n_vocab = info->n_vocab;
	item->n_layers = info->n_layers;
	item->n_embd = info->n_embd;
	item->n_params = info->n_params;
	item->file_bytes = info->file_bytes;
	item->weight_bytes = info->weight_bytes;
	item->block_tokens = engine_model_block_tokens(hosted->engine_model);
	item->block_tokens_by = block_size_origin_name(hosted->block_origin);
	item->block_bytes = engine_model_block_bytes(hosted->engine_model);
}

static void describe(const struct served_model *m, struct described *d)
{
	*d = (struct described){ .item = {
		.name = m->name,
		.arch = "",
		.title = "",
		.state = state_of(m),
		.chat_template = "",
		.percent = atomic_load(&m->percent),
		.uid = m->uid,
		.is_default = m == models_default(m->models),
	} };
	if (m->hosted.model)
		describe_loaded(&m->hosted, d);
}

void handle_models(struct session *s, struct msg **msg)
{
	const struct models *models = s->server->models;
	struct msg_model items[KVD_MODELS_MAX];
	struct described described[KVD_MODELS_MAX];
	size_t n = 0;

	for (struct served_model *m = models_next(models, NULL); m && n < KVD_MODELS_MAX;
	     m = models_next(models, m)) {
		describe(m, &described[n]);
		items[n] = described[n].item;
		items[n].hash = described[n].hash;
		n++;
	}
	session_send(s, KVD_MSG_MODELS_REPLY, &(struct msg_models_reply){
		.id = (*msg)->models.id, .models = items, .n_models = n,
	});
}

/* --- ps ------------------------------------------------------------------------- */

struct listing {
	const struct session *reader;	/* sees its own uid's, or all */
	bool all;
	struct msg_process items[KVD_PS_MAX];
	size_t n;
	bool truncated;
};

/* One more, of this uid or account; NULL: not for this reader. */
static struct msg_process *next_item(struct listing *l, uid_t uid)
{
	struct msg_process *p;

	if (!l->all && uid != l->reader->uid)
		return NULL;
	if (l->n == KVD_PS_MAX) {
		l->truncated = true;
		return NULL;
	}
	p = &l->items[l->n++];
	*p = (struct msg_process){ .uid = uid };
	return p;
}

static struct msg_process *next_of_session(struct listing *l, const struct session *owner)
{
	struct msg_process *p = next_item(l, owner->uid);

	if (!p)
		return NULL;
	p->session = owner->key;
	p->pid = owner->pid > 0 ? (uint32_t)owner->pid : 0;
	p->client = owner->name;
	return p;
}

/* Of the HTTP endpoint: the kernel names no process. */
static struct msg_process *next_of_http(struct listing *l, uint64_t client, uid_t account)
{
	const struct http *http = l->reader->server->http;
	const struct http_key *key = http ? http_keys_of(http->keys, account) : NULL;
	struct msg_process *p = next_item(l, account);

	if (!p)
		return NULL;
	p->session = client & ~SERVER_CLIENT_HTTP;
	p->client = key ? key->name : "http";
	return p;
}

static void list_view(struct listing *l, const struct engine_request_view *v)
{
	static const char *const phases[] = {
		[ENGINE_QUEUED] = "queued", [ENGINE_PREFILL] = "prefill",
		[ENGINE_DECODE] = "decode", [ENGINE_PARKED] = "parked",
	};
	const struct server *server = l->reader->server;
	const struct session *owner = server_session(server, v->client);
	const struct served_model *model = models_of_engine(server->models, v->model);
	struct msg_process *p = NULL;

	if (owner)
		p = next_of_session(l, owner);
	else if (v->client & SERVER_CLIENT_HTTP)
		p = next_of_http(l, v->client, v->uid);
	/* A session that has gone takes its requests along within a step. */
	if (!p)
		return;
	p->request = v->id;
	p->model = model ? model->name : "";
	p->phase = phases[v->phase];
	p->prompt_tokens = v->n_prompt;
	p->computed_tokens = v->n_computed;
	p->generated_tokens = v->n_generated;
	p->blocks = v->n_blocks;
	p->age_ns = v->age_ns;
}

/* What waits for a worker, or for the model; owner NULL: of the HTTP endpoint. */
static void list_waiting(struct listing *l, const struct list *submissions, const struct session *owner)
{
	list_for_each(e, submissions) {
		struct submission *submission = list_entry(e, struct submission, link);
		struct msg_process *p;

		if (atomic_load(&submission->submitted))
			continue;
		p = owner ? next_of_session(l, owner) : next_of_http(l, submission->client, submission->uid);
		if (!p)
			continue;
		p->request = submission->id;
		p->model = submission->job.model->name;
		p->phase = "queued";
		p->age_ns = clock_ns() - submission->created_ns;
	}
}

static void answer_ps(struct views_query *q)
{
	struct session *s = answered(q);
	struct listing l = { .reader = s };

	if (!s)
		return;
	l.all = server_is_admin(s->server, s->uid);
	for (size_t i = 0; i < q->n; i++)
		list_view(&l, &q->views[i]);
	list_for_each(e, &s->server->sessions) {
		const struct session *owner = list_entry(e, struct session, link);

		list_waiting(&l, &owner->submissions, owner);
	}
	list_waiting(&l, &s->server->http_submissions, NULL);
	session_send(s, KVD_MSG_PS_REPLY, &(struct msg_ps_reply){
		.id = q->message, .processes = l.items, .n_processes = l.n, .truncated = l.truncated,
	});
}

void handle_ps(struct session *s, struct msg **msg)
{
	ask(s, (*msg)->ps.id, answer_ps);
}
