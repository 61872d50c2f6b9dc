/* SPDX-License-Identifier: Apache-2.0 */
/* Questions that the daemon answers with one message. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/client.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"

void call_free(struct call *call)
{
	if (!call)
		return;
	list_unlink(&call->link);
	arena_free(&call->memory);
	msg_free(call->reply);
	free(call);
}

struct call *call_new(struct kvd_client *c, enum kvd_message expected)
{
	struct call *call = calloc(1, sizeof(*call));

	if (!call)
		return NULL;
	call->id = ++c->last_id;
	call->expected = expected;
	list_init(&call->link);
	arena_block_init(&call->memory);
	return call;
}

int call_begin(struct kvd_client *c, struct call *call, const struct codec_buf *buf, int fd)
{
	list_push_back(&c->calls, &call->link);
	pthread_mutex_unlock(&c->lock);
	int r = client_send_fd(c, buf, fd, CALL_TIMEOUT_MS);
	pthread_mutex_lock(&c->lock);
	call->sent = !r;
	if (!r)
		return 0;
	if (r == KVD_E_CLOSED)
		return client_fail(c, r, "the daemon is gone");
	return client_fail(c, r, "cannot send to the daemon: %s", r == KVD_E_TIMEOUT ? "it does not read" :
			   strerror(-r));
}

int call_await(struct kvd_client *c, struct call *call, uint64_t deadline_ns)
{
	while (!call->answered) {
		if (c->broken)
			return client_still_broken(c);
		int r = client_wait(c, deadline_ns, false);
		if (r == -ETIMEDOUT)
			return call->answered ? 0 : r;
		if (r && !call->answered)
			return client_fail(c, r, "cannot wait for the daemon: %s", strerror(-r));
	}
	return 0;
}

int call_exchange(struct kvd_client *c, struct call *call, const struct codec_buf *buf)
{
	uint64_t deadline_ns = clock_ns() + (uint64_t)CALL_TIMEOUT_MS * 1000000;
	int r = call_begin(c, call, buf, -1);

	if (!r)
		r = call_await(c, call, deadline_ns);
	return r == -ETIMEDOUT ? client_fail(c, KVD_E_TIMEOUT, "the daemon does not answer") : r;
}

void call_finish(struct kvd_client *c, struct call *call)
{
	if (call->sent && !call->answered && !c->broken)
		call->abandoned = true;
	else
		call_free(call);
}

int call_refused(struct kvd_client *c, const struct msg_error *e)
{
	c->code = (int)e->code;
	snprintf(c->field, sizeof(c->field), "%s", e->field);
	return client_fail(c, KVD_E_REFUSED, "%s", e->message);
}

int call_ask(struct kvd_client *c, enum kvd_message question, enum kvd_message expected, void *message,
	     struct call **out)
{
	_cleanup_(codec_buf_deinit) struct codec_buf buf = CODEC_BUF_NULL;
	struct call *call;
	int r;

	if (c->broken)
		return client_still_broken(c);
	call = call_new(c, expected);
	if (!call)
		return -ENOMEM;
	memcpy(message, &call->id, sizeof(call->id));
	r = codec_encode(&buf, question, message);
	if (r == -EINVAL)
		client_fail(c, r, "the name of a model or namespace, or the number of an entry, is not valid");
	if (!r)
		r = call_exchange(c, call, &buf);
	if (!r && call->reply->id == KVD_MSG_ERROR)
		r = call_refused(c, &call->reply->error);
	if (r)
		call_finish(c, call);
	else
		*out = call;
	return r;
}

/* A string of the daemon, which the codec has checked for length. */
#define COPY(dst, src) snprintf(dst, sizeof(dst), "%s", src)

static void fill_status(struct kvd_status *out, const struct msg_status_reply *m)
{
	*out = (struct kvd_status){
		.pid = m->pid, .n_threads = m->n_threads, .n_models = m->n_models,
		.n_sessions = m->n_sessions,
		.n_running = m->n_running, .n_queued = m->n_queued, .n_parked = m->n_parked,
		.uptime_ns = m->uptime_ns, .kv_bytes = m->kv_bytes, .kv_bytes_used = m->kv_bytes_used,
		.weight_bytes = m->weight_bytes, .prompt_tokens = m->prompt_tokens,
		.generated_tokens = m->generated_tokens, .requests_done = m->requests_done,
		.requests_cancelled = m->requests_cancelled, .preemptions = m->preemptions,
		.loading_percent = m->loading_percent, .no_cache = m->no_cache,
		.blocks_used = m->blocks_used, .blocks_cached = m->blocks_cached, .blocks_free = m->blocks_free,
		.cache_lookups = m->cache_lookups, .cache_hits = m->cache_hits,
		.cached_tokens = m->cached_tokens, .cache_evicted = m->cache_evicted,
		.host_bytes = m->host_bytes, .host_bytes_used = m->host_bytes_used, .host_blocks = m->host_blocks,
		.host_stored = m->host_stored, .host_restored = m->host_restored,
		.disk_bytes = m->disk_bytes, .disk_bytes_used = m->disk_bytes_used, .disk_blocks = m->disk_blocks,
		.disk_lookups = m->disk_lookups, .disk_hits = m->disk_hits, .disk_written = m->disk_written,
		.disk_read = m->disk_read, .disk_evicted = m->disk_evicted, .disk_damaged = m->disk_damaged,
		.disk_errors = m->disk_errors, .open_bytes = m->open_bytes,
	};
	COPY(out->kv_type, m->kv_type);
	if (m->disk_trouble)
		COPY(out->disk_trouble, m->disk_trouble);
	COPY(out->version, m->version);
	COPY(out->device, m->device);
	COPY(out->level, m->level);
	COPY(out->state, m->state);
}

KVD_API int kvd_status(struct kvd_client *c, struct kvd_status *out)
{
	struct call *call = NULL;

	client_enter(c);
	int r = call_ask(c, KVD_MSG_STATUS, KVD_MSG_STATUS_REPLY, &(struct msg_status){ 0 }, &call);
	if (!r)
		fill_status(out, &call->reply->status_reply);
	call_free(call);
	return client_leave(c, r);
}

static void fill_model(struct kvd_model *out, const struct msg_model *m)
{
	*out = (struct kvd_model){
		.n_ctx = m->n_ctx, .n_ctx_train = m->n_ctx_train, .n_vocab = m->n_vocab,
		.n_layers = m->n_layers,
		.n_embd = m->n_embd, .n_params = m->n_params, .file_bytes = m->file_bytes,
		.weight_bytes = m->weight_bytes,
	};
	COPY(out->name, m->name);
	COPY(out->arch, m->arch);
	COPY(out->title, m->title);
	COPY(out->state, m->state);
	COPY(out->chat_template, m->chat_template);
	COPY(out->hash, m->hash);
	out->percent = m->percent;
	out->uid = m->uid;
	out->is_default = m->is_default;
	out->block_tokens = m->block_tokens;
	out->block_bytes = m->block_bytes;
	if (m->block_tokens_by)
		COPY(out->block_tokens_by, m->block_tokens_by);
}

KVD_API int kvd_models(struct kvd_client *c, struct kvd_model **models, size_t *n)
{
	struct call *call = NULL;

	client_enter(c);
	int r = call_ask(c, KVD_MSG_MODELS, KVD_MSG_MODELS_REPLY, &(struct msg_models){ 0 }, &call);
	if (!r) {
		const struct msg_models_reply *m = &call->reply->models_reply;
		struct kvd_model *list = calloc(m->n_models ? m->n_models : 1, sizeof(*list));
		for (size_t i = 0; list && i < m->n_models; i++)
			fill_model(&list[i], &m->models[i]);
		if (list) {
			*models = list;
			*n = m->n_models;
		} else {
			r = -ENOMEM;
		}
	}
	call_free(call);
	return client_leave(c, r);
}

static void fill_process(struct kvd_process *out, const struct msg_process *m)
{
	*out = (struct kvd_process){
		.session = m->session, .request = m->request, .uid = m->uid, .pid = m->pid,
		.prompt_tokens = m->prompt_tokens, .computed_tokens = m->computed_tokens,
		.generated_tokens = m->generated_tokens, .blocks = m->blocks, .age_ns = m->age_ns,
	};
	COPY(out->client, m->client);
	COPY(out->phase, m->phase);
	COPY(out->model, m->model);
}

KVD_API int kvd_ps(struct kvd_client *c, struct kvd_process **list, size_t *n)
{
	struct call *call = NULL;

	client_enter(c);
	int r = call_ask(c, KVD_MSG_PS, KVD_MSG_PS_REPLY, &(struct msg_ps){ 0 }, &call);
	if (!r) {
		const struct msg_ps_reply *m = &call->reply->ps_reply;
		struct kvd_process *p = calloc(m->n_processes ? m->n_processes : 1, sizeof(*p));
		for (size_t i = 0; p && i < m->n_processes; i++)
			fill_process(&p[i], &m->processes[i]);
		if (p) {
			*list = p;
			*n = m->n_processes;
		} else {
			r = -ENOMEM;
		}
	}
	call_free(call);
	return client_leave(c, r);
}
