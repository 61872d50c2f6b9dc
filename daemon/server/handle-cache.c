/* SPDX-License-Identifier: Apache-2.0 */
/* cache_*: what is in the cache, and what is to be kept or go. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/engine/cache-control.h"
#include "daemon/server/dispatch.h"
#include "daemon/server/log.h"
#include "daemon/server/server-internal.h"
#include "daemon/server/session.h"
#include "ipc/base/checked.h"

_Static_assert(CACHE_PAGE_MAX == KVD_CACHE_LS_MAX && CACHE_NAME_MAX == KVD_NAMESPACE_MAX &&
	       CACHE_WORDS_MAX == KVD_CACHE_WORDS_MAX && CACHE_TEXT_MAX == KVD_CACHE_TEXT_MAX &&
	       CACHE_PINS_MAX == KVD_CACHE_PINS_MAX, "the protocol's numbers");

/* So that one who asks much leaves room in the engine's queue: of one uid, and in all. */
#define QUERIES_UID_MAX 4
#define QUERIES_MAX 32

/* A command on its way to the engine and back. */
struct cache_query {
	struct list link;			/* in server.cache_queries */
	struct cache_command command;
	struct mail mail;
	struct server *server;
	uint64_t session, message;		/* who asked, and the id to answer with */
	char model[KVD_MODEL_NAME_MAX + 1];
	struct charge memory;
	struct cache_entry entries[];		/* of a listing */
};

static void cache_query_free(struct cache_query *q)
{
	if (!q)
		return;
	list_unlink(&q->link);
	charge_deinit(&q->memory);
	free(q);
}
CLEANUP_DEFINE(struct cache_query, cache_query_free)

/* --- answers --- */

static struct msg_cache_entry message_of(const struct cache_entry *e)
{
	return (struct msg_cache_entry){
		.entry = e->number, .parent = e->parent, .namespace = e->ns, .uid = e->uid,
		.n_tokens = e->n_tokens, .first = e->first, .joined = e->joined, .bytes = e->bytes,
		.tier = e->tier, .age_ns = e->age_ns, .idle_ns = e->idle_ns, .ttl_ns = e->ttl_ns,
		.hits = e->hits, .n_users = e->n_users, .n_pins = e->n_pins, .priority = e->priority,
		.pinned = e->pinned, .words = e->words,
	};
}

static void answer_ls(struct session *s, const struct cache_query *q)
{
	struct msg_cache_entry entries[KVD_CACHE_LS_MAX];

	for (uint32_t i = 0; i < q->command.n; i++)
		entries[i] = message_of(&q->entries[i]);
	session_send(s, KVD_MSG_CACHE_LS_REPLY, &(struct msg_cache_ls_reply){
		.id = q->message, .model = q->model, .block_tokens = q->command.block_tokens,
		.entries = entries, .n_entries = q->command.n, .next = q->command.next,
	});
}

static void answer_show(struct session *s, const struct cache_query *q)
{
	const struct cache_command *c = &q->command;
	struct msg_cache_entry entry = message_of(&q->entries[0]);
	uint32_t uids[KVD_CACHE_PINS_MAX];

	for (uint32_t i = 0; i < c->n_pinned_by; i++)
		uids[i] = c->pinned_by[i];
	session_send(s, KVD_MSG_CACHE_SHOW_REPLY, &(struct msg_cache_show_reply){
		.id = q->message, .model = q->model, .entries = &entry, .n_entries = 1, .chain = c->chain_first,
		.n_path = c->n_path, .n_below = c->n_below, .pinned_by = uids, .n_pinned_by = c->n_pinned_by,
		.text = c->text, .own = c->own_text,
	});
}

static void answer_failure(struct session *s, const struct cache_query *q)
{
	char text[KVD_ERROR_TEXT_MAX];

	switch (q->command.result) {
	case CACHE_E_NO_MODEL:
		session_error(s, q->message, KVD_CODE_NO_MODEL, "model", "the model was unloaded", 0);
		return;
	case CACHE_E_NO_ENTRY:
		snprintf(text, sizeof(text), "there is no entry %llu", (unsigned long long)q->command.entry);
		session_error(s, q->message, KVD_CODE_NO_ENTRY, "entry", text, 0);
		return;
	case CACHE_E_FULL:
		session_error(s, q->message, KVD_CODE_QUOTA, "entry", "as much as may be pinned in all is", 0);
		return;
	case CACHE_E_QUOTA:
		session_error(s, q->message, KVD_CODE_QUOTA, "entry",
			      "this user's share of memory for keys and values is used up", 0);
		return;
	case CACHE_E_NOT_PINNED:
		session_error(s, q->message, KVD_CODE_BAD_FIELD, "entry", q->command.all ?
			      "it is not pinned" : "it is not pinned by this user", 0);
		return;
	case CACHE_E_DENIED:
		session_error(s, q->message, KVD_CODE_PERMISSION, "entry",
			      "only root and the daemon's own user may drop entries of shared namespaces", 0);
		return;
	case CACHE_E_DISK:
		session_error(s, q->message, KVD_CODE_INTERNAL, "",
			      "not all of it could be removed from disk; the daemon's log says why", 0);
		return;
	default:
		session_error(s, q->message, KVD_CODE_NO_MEMORY, "", "out of memory", 0);
	}
}

/* What somebody removed is worth a line. */
static void log_removal(const struct session *s, const struct cache_command *c)
{
	if (c->op == CACHE_WIPE)
		log_info("uid %u wiped %llu entries of the cache, %llu on disk (%s)", (unsigned)s->uid,
			 (unsigned long long)c->n_entries, (unsigned long long)c->disk_entries,
			 c->all ? "all" : c->scope.filter);
}

static void answer(struct session *s, const struct cache_query *q)
{
	const struct cache_command *c = &q->command;

	if (c->result) {
		answer_failure(s, q);
		return;
	}
	switch (c->op) {
	case CACHE_LS:
		answer_ls(s, q);
		break;
	case CACHE_SHOW:
		answer_show(s, q);
		break;
	default:
		log_removal(s, c);
		session_send(s, KVD_MSG_CACHE_DONE, &(struct msg_cache_done){
			.id = q->message, .n_entries = c->n_entries, .n_tokens = c->n_tokens, .bytes = c->bytes,
			.disk_entries = c->disk_entries, .disk_bytes = c->disk_bytes,
		});
	}
}

static void deliver(struct mail *mail)
{
	_cleanup_(cache_query_freep) struct cache_query *q = list_entry(mail, struct cache_query, mail);
	struct session *s = server_session(q->server, q->session);

	if (!s)
		return;
	s->n_queries--;
	answer(s, q);
}

/* On the engine's thread, or the disk's. */
static void on_done(struct cache_command *c)
{
	struct cache_query *q = list_entry(c, struct cache_query, command);

	mailbox_post(q->server->mailbox, &q->mail);
}

/* --- questions --- */

/* Whether the uid may ask one thing more. */
static bool has_turn(const struct server *server, uid_t uid)
{
	unsigned n = 0, n_own = 0;

	list_for_each(l, &server->cache_queries) {
		n++;
		n_own += list_entry(l, struct cache_query, link)->command.scope.uid == uid;
	}
	return n < QUERIES_MAX && n_own < QUERIES_UID_MAX;
}

/* NULL after an error to the session. */
static struct cache_query *query_new(struct session *s, uint64_t id, enum cache_op op)
{
	_cleanup_(cache_query_freep) struct cache_query *q = NULL;
	size_t n = op == CACHE_LS ? CACHE_PAGE_MAX : op == CACHE_SHOW;
	size_t size = sizeof(*q) + n * sizeof(q->entries[0]);
	int r;

	if (s->n_queries >= SESSION_QUERIES_MAX || !has_turn(s->server, s->uid)) {
		session_error(s, id, KVD_CODE_BUSY, "", "too many questions are unanswered; try again", 0);
		return NULL;
	}
	q = calloc(1, size);
	if (q)
		list_init(&q->link);
	r = q ? charge_init(&q->memory, s->server->accounts, s->uid, ACCOUNT_MEMORY, size) : -ENOMEM;
	if (r) {
		session_error(s, id, r == ACCOUNT_E_QUOTA ? KVD_CODE_QUOTA : KVD_CODE_NO_MEMORY, "",
			      r == ACCOUNT_E_QUOTA ? "this user's share of memory is used up" : "out of memory", 0);
		return NULL;
	}
	q->server = s->server;
	q->session = s->key;
	q->message = id;
	q->mail.deliver = deliver;
	q->command.op = op;
	q->command.done = on_done;
	q->command.entries = q->entries;
	q->command.scope.uid = s->uid;
	q->command.scope.admin = server_is_admin(s->server, s->uid);
	namespace_own(s->uid, q->command.scope.own);
	return steal_ptr(q);
}

/* False after an error to the session. */
static bool choose_model(struct session *s, struct cache_query *q, const char *name)
{
	const struct served_model *m = session_model(s, q->message, name);

	if (!m)
		return false;
	if (!m->hosted.engine_model) {
		session_error(s, q->message, KVD_CODE_LOADING, "model", "the model is still loading", 0);
		return false;
	}
	q->command.model = m->hosted.engine_model;
	snprintf(q->model, sizeof(q->model), "%s", m->name);
	return true;
}

/* Takes q over. */
static void ask(struct session *s, struct cache_query *q)
{
	struct engine *engine = models_engine(s->server->models);
	struct store *store = model_host_store(models_host(s->server->models));
	bool of_disk = !engine && store && q->command.op == CACHE_WIPE;
	int r = 0;

	s->n_queries++;
	list_push_back(&s->server->cache_queries, &q->link);
	if (engine)
		r = engine_cache(engine, &q->command);
	else if (of_disk)
		r = cache_wipe_disk(store, &q->command) ? 0 : ENGINE_E_BUSY;
	if ((engine || of_disk) && !r)
		return;
	s->n_queries--;
	if (r)
		session_error(s, q->message, r == ENGINE_E_BUSY ? KVD_CODE_BUSY : KVD_CODE_SHUTDOWN, "",
			      r == ENGINE_E_BUSY ? "the engine has too much to answer; try again"
						 : "the daemon is stopping", 0);
	else
		answer(s, q);	/* no engine yet: an empty cache */
	cache_query_free(q);
}

static bool set_filter(struct session *s, struct cache_query *q, const char *namespace)
{
	if (namespace_filter(s->uid, namespace, q->command.scope.filter))
		return true;
	session_error(s, q->message, KVD_CODE_BAD_FIELD, "namespace", "the name is too long", 0);
	return false;
}

void handle_cache_ls(struct session *s, struct msg **msg)
{
	const struct msg_cache_ls *m = &(*msg)->cache_ls;
	_cleanup_(cache_query_freep) struct cache_query *q = query_new(s, m->id, CACHE_LS);

	if (!q || !choose_model(s, q, m->model) || (m->namespace && !set_filter(s, q, m->namespace)))
		return;
	q->command.after = m->after;
	ask(s, steal_ptr(q));
}

/* Those that name an entry. */
static void on_entry(struct session *s, uint64_t id, enum cache_op op, const char *model, uint64_t entry, bool all,
		     bool chain)
{
	_cleanup_(cache_query_freep) struct cache_query *q = NULL;

	if (all && !server_is_admin(s->server, s->uid)) {
		session_error(s, id, KVD_CODE_PERMISSION, "all",
			      "only root and the daemon's own user may remove everybody's pins", 0);
		return;
	}
	q = query_new(s, id, op);
	if (!q || !choose_model(s, q, model))
		return;
	q->command.entry = entry;
	q->command.all = all;
	q->command.chain = chain;
	ask(s, steal_ptr(q));
}

void handle_cache_show(struct session *s, struct msg **msg)
{
	const struct msg_cache_show *m = &(*msg)->cache_show;

	on_entry(s, m->id, CACHE_SHOW, m->model, m->entry, false, false);
}

void handle_cache_pin(struct session *s, struct msg **msg)
{
	const struct msg_cache_pin *m = &(*msg)->cache_pin;

	on_entry(s, m->id, CACHE_PIN, m->model, m->entry, false, false);
}

void handle_cache_unpin(struct session *s, struct msg **msg)
{
	const struct msg_cache_unpin *m = &(*msg)->cache_unpin;

	on_entry(s, m->id, CACHE_UNPIN, m->model, m->entry, m->all, false);
}

void handle_cache_drop(struct session *s, struct msg **msg)
{
	const struct msg_cache_drop *m = &(*msg)->cache_drop;

	on_entry(s, m->id, CACHE_DROP, m->model, m->entry, false, m->chain);
}

/* Others than administrators wipe what is their own. */
static bool may_wipe(struct session *s, const struct msg_cache_wipe *m, const struct cache_scope *scope)
{
	if (scope->admin || (!m->all && namespace_within(scope->filter, scope->own)))
		return true;
	session_error(s, m->id, KVD_CODE_PERMISSION, m->all ? "all" : "namespace",
		      "only root and the daemon's own user may wipe what is not their own", 0);
	return false;
}

void handle_cache_wipe(struct session *s, struct msg **msg)
{
	const struct msg_cache_wipe *m = &(*msg)->cache_wipe;
	_cleanup_(cache_query_freep) struct cache_query *q = query_new(s, m->id, CACHE_WIPE);

	if (!q || !set_filter(s, q, m->namespace ? m->namespace : "own") || !may_wipe(s, m, &q->command.scope) ||
	    (m->model && !choose_model(s, q, m->model)))
		return;
	q->command.all = m->all;
	ask(s, steal_ptr(q));
}
