/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/engine.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/engine-private.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"

#define MAX_SEQS_MAX 4096u
#define QUANTUM_MAX (1u << 20)

/* --- commands, any thread --- */

int engine_submit(struct engine *e, struct engine_request *r, struct diag *diag)
{
	uint64_t bytes = (uint64_t)r->n_prompt * sizeof(*r->tokens);
	int err = 0;

	if (r->n_prompt > e->n_ctx_model - 1)
		return diag_set(diag, ENGINE_E_CONTEXT, "the prompt has %u tokens, the context %u",
				r->n_prompt, e->n_ctx_model);
	if (r->n_prompt > e->n_ctx - 1)
		return diag_set(diag, ENGINE_E_TOO_BIG, "the prompt has %u tokens, the KV memory holds %u",
				r->n_prompt, e->n_ctx);
	for (uint32_t i = 0; i < r->n_prompt; i++)
		if (r->tokens[i] < 0 || (uint32_t)r->tokens[i] >= e->n_vocab)
			return diag_set(diag, -EINVAL,
					"prompt: token id %d at position %u is not in the vocabulary",
					r->tokens[i], i);
	if (charge_init(&r->charge_request, e->accounts, r->uid, ACCOUNT_REQUESTS, 1))
		return diag_set(diag, ENGINE_E_QUOTA, "too many requests of uid %u", (unsigned)r->uid);
	if (charge_init(&r->charge_memory, e->accounts, r->uid, ACCOUNT_MEMORY, bytes)) {
		charge_deinit(&r->charge_request);
		return diag_set(diag, ENGINE_E_QUOTA, "the prompts of uid %u hold too much memory",
				(unsigned)r->uid);
	}
	r->submit_ns = clock_ns();

	pthread_mutex_lock(&e->lock);
	if (e->stop)
		err = -ESHUTDOWN;
	else if (e->published.n_queued + e->n_incoming >= e->max_queue)
		err = ENGINE_E_BUSY;
	if (!err) {
		list_push_back(&e->incoming, &r->link);
		e->n_incoming++;
		pthread_cond_signal(&e->wake);
	}
	pthread_mutex_unlock(&e->lock);
	if (err) {
		charge_deinit(&r->charge_request);
		charge_deinit(&r->charge_memory);
		return diag_set(diag, err,
				err == ENGINE_E_BUSY ? "the queue is full" : "the engine is stopping");
	}
	return 0;
}

enum flag { FLAG_CANCEL, FLAG_ROOM };

static bool flag_list(struct list *head, uint64_t client, const uint64_t *id, enum flag flag)
{
	bool found = false;

	list_for_each(l, head) {
		struct engine_request *r = list_entry(l, struct engine_request, link);

		if (r->client != client || (id && r->id != *id))
			continue;
		atomic_store(flag == FLAG_CANCEL ? &r->cancel : &r->room, true);
		found = true;
	}
	return found;
}

/* Sets a flag of the client's requests (of one of them if id); nothing that could fail or be lost. */
static void set_flag(struct engine *e, uint64_t client, const uint64_t *id, enum flag flag)
{
	bool incoming, live;

	pthread_mutex_lock(&e->lock);
	incoming = flag_list(&e->incoming, client, id, flag);
	live = flag_list(&e->requests, client, id, flag);
	if (incoming || live) {
		e->attention = true;
		pthread_cond_signal(&e->wake);
	}
	pthread_mutex_unlock(&e->lock);
}

void engine_cancel(struct engine *e, uint64_t client, uint64_t id)
{
	set_flag(e, client, &id, FLAG_CANCEL);
}

void engine_cancel_client(struct engine *e, uint64_t client)
{
	set_flag(e, client, NULL, FLAG_CANCEL);
}

void engine_room(struct engine *e, uint64_t client)
{
	set_flag(e, client, NULL, FLAG_ROOM);
}

int engine_ps(struct engine *e, engine_ps_fn fn, void *arg)
{
	int err = 0;

	pthread_mutex_lock(&e->lock);
	if (e->stop) {
		err = -ESHUTDOWN;
	} else if (e->n_ps == ENGINE_PS_MAX) {
		err = ENGINE_E_BUSY;
	} else {
		e->ps[e->n_ps++] = (struct engine_ps_command){ .fn = fn, .arg = arg };
		pthread_cond_signal(&e->wake);
	}
	pthread_mutex_unlock(&e->lock);
	return err;
}

void engine_stats(struct engine *e, struct engine_stats *out)
{
	pthread_mutex_lock(&e->lock);
	*out = e->published;
	out->n_queued += e->n_incoming;
	pthread_mutex_unlock(&e->lock);
}

/* --- the thread --- */

static void publish(struct engine *e)
{
	struct engine_stats *s = &e->stats;

	pthread_mutex_lock(&e->lock);
	s->n_running = e->sched.n_active;
	s->n_queued = e->sched.n_waiting;
	s->n_parked = e->sched.n_parked + e->sched.n_ready;
	s->blocks_used = pool_root_n_used(e->root);
	s->blocks_free = pool_root_n_free(e->root);
	s->blocks_capacity = pool_root_capacity(e->root);
	s->kv_bytes_used = s->blocks_used * pool_root_geometry(e->root)->block_bytes;
	e->published = *s;
	pthread_mutex_unlock(&e->lock);
}

static enum engine_phase phase_of(const struct engine *e, const struct engine_request *r)
{
	bool recomputes = r->seq.n_tokens - r->seq.n_computed > 1 && !e->no_cache;

	switch (r->seq.state) {
	case SCHED_ACTIVE:
		return !r->n_generated || recomputes ? ENGINE_PREFILL : ENGINE_DECODE;
	case SCHED_PARKED:
	case SCHED_READY:
		return ENGINE_PARKED;
	default:
		return ENGINE_QUEUED;
	}
}

static void view_of(const struct engine *e, const struct engine_request *r, struct engine_request_view *v)
{
	*v = (struct engine_request_view){
		.client = r->client,
		.id = r->id,
		.uid = r->uid,
		.phase = phase_of(e, r),
		.n_prompt = r->n_prompt,
		.n_computed = r->seq.n_computed,
		.n_generated = r->n_generated,
		.n_blocks = r->seq.n_blocks,
		.n_preempted = r->n_preempted,
		.age_ns = clock_ns() - r->submit_ns,
	};
}

/* Answers a listing; an empty one where there is no memory for it. */
static void answer_ps(struct engine *e, const struct engine_ps_command *command)
{
	_cleanup_(freep) struct engine_request_view *views = NULL;
	size_t n = 0, i = 0;

	list_for_each(l, &e->requests)
		n++;
	if (n)
		views = calloc(n, sizeof(*views));
	if (!views)
		n = 0;
	list_for_each(l, &e->requests)
		if (i < n)
			view_of(e, list_entry(l, struct engine_request, link), &views[i++]);
	command->fn(command->arg, views, n);
}

/* Puts a new request into the queue. */
static void enqueue(struct engine *e, struct engine_request *r)
{
	if (scheduler_add(&e->sched, &r->seq, r->uid))
		engine_fail(e, r, SINK_ERROR_NO_MEMORY, "out of memory");
	else
		scheduler_push(&e->sched, &r->seq);
}

/* Acts on the flags that other threads set. */
static void attend(struct engine *e)
{
	list_for_each_safe(l, next, &e->requests) {
		struct engine_request *r = list_entry(l, struct engine_request, link);

		if (atomic_load(&r->cancel))
			engine_finish(e, r, SINK_FINISH_CANCELLED);
		else if (r->seq.state == SCHED_PARKED && atomic_load(&r->room))
			engine_deliver(e, r);
	}
}

/*
 * Waits for a command unless there is work, then carries out all that came.
 * False: the engine stops.
 */
static bool take_commands(struct engine *e, bool work)
{
	struct engine_ps_command ps[ENGINE_PS_MAX];
	bool stop, attention;
	struct list *first_new;
	size_t n_ps;

	pthread_mutex_lock(&e->lock);
	while (!work && !e->stop && !e->attention && !e->n_ps && list_empty(&e->incoming))
		pthread_cond_wait(&e->wake, &e->lock);
	first_new = list_empty(&e->incoming) ? &e->requests : e->incoming.next;
	while (!list_empty(&e->incoming)) {
		struct list *l = e->incoming.next;

		list_unlink(l);
		list_push_back(&e->requests, l);
	}
	/* Still counted as waiting until the next publish(). */
	e->published.n_queued += e->n_incoming;
	e->n_incoming = 0;
	attention = e->attention;
	e->attention = false;
	n_ps = e->n_ps;
	memcpy(ps, e->ps, n_ps * sizeof(*ps));
	e->n_ps = 0;
	stop = e->stop;
	pthread_mutex_unlock(&e->lock);

	for (struct list *l = first_new, *next; l != &e->requests; l = next) {
		next = l->next;
		enqueue(e, list_entry(l, struct engine_request, link));
	}
	if (attention)
		attend(e);
	for (size_t i = 0; i < n_ps; i++)
		answer_ps(e, &ps[i]);
	return !stop;
}

/* Sleeps before a step; false, and at once, when the engine stops. */
static bool delay(struct engine *e)
{
	uint64_t until = clock_ns() + e->step_delay_ns;
	struct timespec ts = {
		.tv_sec = (time_t)(until / 1000000000u),
		.tv_nsec = (long)(until % 1000000000u),
	};
	bool stop;

	if (!e->step_delay_ns)
		return true;
	pthread_mutex_lock(&e->lock);
	while (!e->stop && clock_ns() < until)
		pthread_cond_timedwait(&e->wake, &e->lock, &ts);
	stop = e->stop;
	pthread_mutex_unlock(&e->lock);
	return !stop;
}

static void *engine_main(void *arg)
{
	struct engine *e = arg;
	bool work = false;

	pthread_setname_np(pthread_self(), "kvd-engine");
	while (take_commands(e, work)) {
		engine_settle(e);
		engine_admit(e);
		publish(e);
		work = e->sched.n_active > 0;
		if (work && delay(e))
			engine_step(e);
		publish(e);
		engine_settle(e);
	}
	list_for_each_safe(l, next, &e->requests) {
		struct engine_request *r = list_entry(l, struct engine_request, link);

		engine_fail(e, r, SINK_ERROR_SHUTDOWN, "the daemon stops");
	}
	engine_settle(e);
	return NULL;
}

/* --- life --- */

static int create_cache(struct engine *e, const struct engine_config *config, struct diag *diag)
{
	struct kb_geometry geometry;
	uint64_t capacity, chunk_bytes;
	int err;

	model_geometry(e->model, KB_KV_F16, e->block_tokens, &geometry);
	if (!geometry.block_bytes)
		return diag_set(diag, -EINVAL, "the model's KV blocks are too large");
	chunk_bytes = pool_chunk_bytes_for(geometry.block_bytes, config->kv_memory);
	if (!chunk_bytes || config->kv_memory < chunk_bytes)
		return diag_set(diag, -EINVAL,
				"the KV memory of %llu bytes is smaller than one chunk of %llu",
				(unsigned long long)config->kv_memory, (unsigned long long)chunk_bytes);
	err = pool_new(&e->pool, e->be, e->accounts, config->kv_memory, chunk_bytes);
	if (!err)
		err = pool_root_new(&e->root, e->pool, &geometry);
	if (err)
		return diag_set(diag, err, "the KV pool of %llu bytes can't be made: %s",
				(unsigned long long)config->kv_memory, strerror(-err));
	capacity = (uint64_t)pool_root_capacity(e->root) * e->block_tokens;
	e->n_ctx_model = model_n_ctx(e->model);
	e->n_ctx = (uint32_t)MIN((uint64_t)e->n_ctx_model, capacity);
	if (e->n_ctx < 2)
		return diag_set(diag, -EINVAL, "the context is %u tokens: too short", e->n_ctx);
	e->stats.kv_bytes = pool_root_capacity(e->root) * geometry.block_bytes;
	return 0;
}

static int create_step(struct engine *e, struct diag *diag)
{
	uint32_t max_seqs = e->sched.max_seqs, max_rows = max_seqs + e->sched.quantum;
	struct kb_workspace_desc desc = { 0 };
	int err;

	model_workspace_desc(e->model, &desc);
	desc.max_rows = max_rows;
	desc.max_logits = max_seqs;
	err = e->be->ops->workspace_new(e->be, &desc, &e->ws);
	if (!err)
		err = sampler_new(&e->sampler, e->n_vocab);
	if (err)
		return diag_set(diag, err, "no workspace for steps of %u tokens: %s", max_rows,
				strerror(-err));
	e->row_tokens = calloc(max_rows, sizeof(*e->row_tokens));
	e->seqs = calloc(max_seqs, sizeof(*e->seqs));
	e->entries = calloc(max_seqs, sizeof(*e->entries));
	e->logit_rows = calloc(max_seqs, sizeof(*e->logit_rows));
	if (!e->row_tokens || !e->seqs || !e->entries || !e->logit_rows)
		return diag_set(diag, -ENOMEM, "no memory for steps of %u tokens", max_rows);
	return 0;
}

/* Signals are for other threads. */
static int start_thread(struct engine *e)
{
	sigset_t all, old;
	int err;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = pthread_create(&e->thread, NULL, engine_main, e);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	e->thread_started = !err;
	return -err;
}

static int init_locks(struct engine *e)
{
	pthread_condattr_t attr;
	int err = pthread_condattr_init(&attr);

	if (err)
		return -err;
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	err = pthread_cond_init(&e->wake, &attr);
	pthread_condattr_destroy(&attr);
	if (err)
		return -err;
	err = pthread_mutex_init(&e->lock, NULL);
	if (err)
		pthread_cond_destroy(&e->wake);
	return -err;
}

static struct engine *engine_alloc(const struct engine_config *config)
{
	struct engine *e = calloc(1, sizeof(*e));

	if (!e)
		return NULL;
	if (init_locks(e)) {
		free(e);
		return NULL;
	}
	list_init(&e->incoming);
	list_init(&e->requests);
	list_init(&e->finished);
	scheduler_init(&e->sched, config->max_seqs ? config->max_seqs : 16,
		       config->prefill_quantum ? config->prefill_quantum : 256);
	e->be = config->backend;
	e->model = config->model;
	e->accounts = config->accounts;
	e->tokenizer = model_tokenizer(config->model);
	e->n_vocab = model_info(config->model)->n_vocab;
	e->block_tokens = config->block_tokens ? config->block_tokens : 16;
	e->max_queue = config->max_queue ? config->max_queue : 1024;
	e->no_cache = config->no_cache;
	e->step_delay_ns = config->step_delay_ns;
	return e;
}

int engine_new(struct engine **out, const struct engine_config *config, struct diag *diag)
{
	_cleanup_(engine_freep) struct engine *e = NULL;
	int err;

	if (config->max_seqs > MAX_SEQS_MAX || config->prefill_quantum > QUANTUM_MAX)
		return diag_set(diag, -EINVAL, "at most %u sequences and %u prompt tokens in one step",
				MAX_SEQS_MAX, QUANTUM_MAX);
	if (config->block_tokens && config->block_tokens != 16 && config->block_tokens != 32 &&
	    config->block_tokens != 64)
		return diag_set(diag, -EINVAL, "a block has 16, 32 or 64 tokens, not %u",
				config->block_tokens);
	e = engine_alloc(config);
	if (!e)
		return -ENOMEM;
	err = create_cache(e, config, diag);
	if (!err)
		err = create_step(e, diag);
	if (err)
		return err;
	publish(e);
	err = start_thread(e);
	if (err)
		return diag_set(diag, err, "the engine's thread can't be started: %s", strerror(-err));
	*out = steal_ptr(e);
	return 0;
}

static void stop_thread(struct engine *e)
{
	pthread_mutex_lock(&e->lock);
	e->stop = true;
	pthread_cond_signal(&e->wake);
	pthread_mutex_unlock(&e->lock);
	pthread_join(e->thread, NULL);
}

void engine_free(struct engine *e)
{
	if (!e)
		return;
	if (e->thread_started)
		stop_thread(e);
	if (e->ws)
		e->be->ops->workspace_free(e->be, e->ws);
	sampler_free(e->sampler);
	pool_root_free(e->root);
	pool_free(e->pool);
	free(e->row_tokens);
	free(e->seqs);
	free(e->entries);
	free(e->logit_rows);
	pthread_mutex_destroy(&e->lock);
	pthread_cond_destroy(&e->wake);
	free(e);
}
