/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/engine.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/engine/engine-private.h"
#include "daemon/model/kv-type.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"

#define MAX_SEQS_MAX 4096u
#define EXPIRY_SLACK_NS UINT64_C(100000000)
#define EXPIRED_PER_ROUND 64u	/* entries of the cache; the next round goes on */
#define QUANTUM_MAX (1u << 20)
#define LOGITS_QUANTUM (OUTPUT_PROMPTS_MAX - 1u)	/* and the first token, which has no logits */

/* --- commands, any thread --- */

int engine_submit(struct engine *e, struct engine_request *r, struct diag *diag)
{
	struct engine_model *em = r->model;
	uint64_t bytes;
	int err = 0;

	if (r->n_prompt > em->n_ctx_model - 1)
		return diag_set(diag, ENGINE_E_CONTEXT, "the prompt has %u tokens, the context %u",
				r->n_prompt, em->n_ctx_model);
	if (r->n_prompt > em->n_ctx - 1)
		return diag_set(diag, ENGINE_E_TOO_BIG, "the prompt has %u tokens, the KV memory holds %u",
				r->n_prompt, em->n_ctx);
	for (uint32_t i = 0; i < r->n_prompt; i++)
		if (r->tokens[i] < 0 || (uint32_t)r->tokens[i] >= em->n_vocab)
			return diag_set(diag, -EINVAL,
					"prompt: token id %d at position %u is not in the vocabulary",
					r->tokens[i], i);
	if (r->pooling.kind != ENGINE_POOLING_NONE && !e->be->ops->hidden)
		return diag_set(diag, -ENOTSUP, "the device gives no hidden states");
	if (charge_init(&r->charge_request, e->accounts, r->uid, ACCOUNT_REQUESTS, 1))
		return diag_set(diag, ENGINE_E_QUOTA, "too many requests of uid %u", (unsigned)r->uid);
	bytes = request_bound(r);
	if (charge_init(&r->charge_memory, e->accounts, r->uid, ACCOUNT_MEMORY, bytes)) {
		charge_deinit(&r->charge_request);
		return diag_set(diag, ENGINE_E_QUOTA, "the requests of uid %u hold too much memory",
				(unsigned)r->uid);
	}
	if (pooling_reserve(&r->pooling, em->n_embd)) {
		charge_deinit(&r->charge_request);
		charge_deinit(&r->charge_memory);
		return diag_set(diag, -ENOMEM, "no memory for an embedding");
	}
	r->submit_ns = clock_ns();

	pthread_mutex_lock(&e->lock);
	if (e->stop)
		err = -ESHUTDOWN;
	else if (em->removing)
		err = ENGINE_E_UNLOADED;
	else if (e->published.n_queued + e->n_incoming >= e->max_queue)
		err = ENGINE_E_BUSY;
	if (!err) {
		list_push_back(&e->incoming, &r->link);
		e->n_incoming++;
		em->n_incoming++;
		em->n_requests++;
		pthread_cond_signal(&e->wake);
	}
	pthread_mutex_unlock(&e->lock);
	if (err) {
		charge_deinit(&r->charge_request);
		charge_deinit(&r->charge_memory);
		return diag_set(diag, err,
				err == ENGINE_E_BUSY       ? "the queue is full"
				: err == ENGINE_E_UNLOADED ? "the model is being unloaded"
							   : "the engine is stopping");
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

static int post_call(struct engine *e, const struct engine_call *call)
{
	int err = 0;

	pthread_mutex_lock(&e->lock);
	if (e->stop) {
		err = -ESHUTDOWN;
	} else if (e->n_calls == ENGINE_CALLS_MAX) {
		err = ENGINE_E_BUSY;
	} else {
		e->calls[e->n_calls++] = *call;
		pthread_cond_signal(&e->wake);
	}
	pthread_mutex_unlock(&e->lock);
	return err;
}

int engine_ps(struct engine *e, engine_ps_fn fn, void *arg)
{
	return post_call(e, &(struct engine_call){ .ps = fn, .arg = arg });
}

int engine_call(struct engine *e, void (*fn)(struct engine *e, void *arg), void *arg)
{
	return post_call(e, &(struct engine_call){ .fn = fn, .arg = arg });
}

void engine_stats(struct engine *e, struct engine_stats *out)
{
	pthread_mutex_lock(&e->lock);
	*out = e->published;
	out->n_queued += e->n_incoming;
	pthread_mutex_unlock(&e->lock);
}

/* --- the thread --- */

/* Under the lock. */
static void publish_model(struct engine *e, struct engine_model *em)
{
	struct engine_model_stats *m = &em->stats;
	struct engine_stats *s = &e->stats;
	struct tree_stats tree;

	m->n_running = em->sched.n_active;
	m->n_queued = em->sched.n_waiting;
	m->n_parked = em->sched.n_parked + em->sched.n_ready;
	m->blocks_cached = tree_n_evictable(em->tree);
	m->blocks_used = pool_root_n_used(em->root) - m->blocks_cached;
	m->blocks_free = pool_root_n_free(em->root);
	m->blocks_capacity = pool_root_capacity(em->root);
	m->kv_bytes_used = m->blocks_used * em->block_bytes;
	tree_stats(em->tree, &tree);
	m->host_blocks = tree.n_stored;
	m->host_stored = tree.stored;
	m->host_restored = tree.restored;
	m->host_damaged = tree.damaged;
	m->blocks_kept = tree.n_kept;
	m->kept_adopted = tree.adopted;
	m->kept_verified = tree.verified;
	m->kept_damaged = tree.kept_damaged;
	em->published = *m;

	s->cache_evicted += tree.evicted;
	s->blocks_used += m->blocks_used;
	s->blocks_cached += m->blocks_cached;
	s->kv_bytes_used += m->kv_bytes_used;
	s->host_stored += m->host_stored;
	s->host_restored += m->host_restored;
	s->host_damaged += m->host_damaged;
	s->blocks_kept += m->blocks_kept;
	s->kept_adopted += m->kept_adopted;
	s->kept_verified += m->kept_verified;
	s->kept_damaged += m->kept_damaged;
	if (!s->blocks_capacity || m->blocks_capacity < s->blocks_capacity) {
		s->blocks_capacity = m->blocks_capacity;
		s->blocks_free = m->blocks_free;
	}
}

/* Under the lock. */
static void publish_host(struct engine *e)
{
	struct engine_stats *s = &e->stats;
	struct host_stats host;

	if (!e->host)
		return;
	host_stats(e->host, &host);
	s->host_bytes = host.bytes;
	s->host_bytes_used = host.used;
	s->host_bytes_plain = host.plain;
	s->host_blocks = host.n_blocks;
}

void engine_publish(struct engine *e)
{
	struct engine_stats *s = &e->stats;
	struct pool_stats pool;

	pthread_mutex_lock(&e->lock);
	s->n_running = e->sched.n_active;
	s->n_queued = e->sched.n_waiting;
	s->n_parked = e->sched.n_parked + e->sched.n_ready;
	s->blocks_used = s->blocks_cached = s->blocks_free = s->blocks_capacity = 0;
	s->kv_bytes_used = s->host_stored = s->host_restored = s->host_damaged = 0;
	s->blocks_kept = 0;
	s->kept_adopted = s->kept_verified = s->kept_damaged = 0;
	pool_stats(e->pool, &pool);
	s->kv_bytes_dormant = pool.n_chunks_dormant * pool.chunk_bytes;
	s->cache_evicted = e->evicted_before;
	list_for_each(l, &e->models)
		publish_model(e, list_entry(l, struct engine_model, link));
	publish_host(e);
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
		.model = r->model,
		.client = r->client,
		.id = r->id,
		.uid = r->uid,
		.phase = phase_of(e, r),
		.n_prompt = r->n_prompt,
		.n_computed = r->seq.n_computed,
		.n_generated = r->n_generated,
		.n_blocks = r->seq.n_blocks,
		.n_preempted = r->n_preempted,
		.kv_bytes = r->seq.n_blocks * r->model->block_bytes + (r->open ? r->model->open_bytes : 0),
		.age_ns = clock_ns() - r->submit_ns,
	};
}

/* Answers a listing; an empty one where there is no memory for it. */
static void answer_ps(struct engine *e, const struct engine_call *call)
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
	call->ps(call->arg, views, n);
}

/* Puts a new request into the queue. */
static void enqueue(struct engine *e, struct engine_request *r)
{
	if (engine_prefix_init(e, r) || scheduler_add(&e->sched, &r->seq, &r->model->sched, r->uid)) {
		engine_fail(e, r, SINK_ERROR_NO_MEMORY, "out of memory");
		return;
	}
	scheduler_set_weight(&r->seq, r->params.weight ? r->params.weight : ENGINE_WEIGHT);
	engine_deadline_set(e, r);
	scheduler_push(&e->sched, &r->seq);
}

static void stop_requests(struct engine *e)
{
	list_for_each_safe(l, next, &e->requests) {
		struct engine_request *r = list_entry(l, struct engine_request, link);

		engine_fail(e, r, SINK_ERROR_SHUTDOWN, "the daemon stops");
	}
	engine_settle(e);
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

/* Under the lock: new models are the thread's now. */
static void take_models(struct engine *e)
{
	while (!list_empty(&e->added)) {
		struct list *l = e->added.next;

		list_unlink(l);
		list_push_back(&e->models, l);
	}
}

/* Under the lock: returns the first of the new requests in e->requests, its head if there are none. */
static struct list *take_requests(struct engine *e)
{
	struct list *last = e->requests.prev;

	while (!list_empty(&e->incoming)) {
		struct list *l = e->incoming.next;
		struct engine_model *em = list_entry(l, struct engine_request, link)->model;

		/* Still counted as waiting until the next publishing. */
		em->published.n_queued++;
		em->n_incoming--;
		list_unlink(l);
		list_push_back(&e->requests, l);
	}
	e->published.n_queued += e->n_incoming;
	e->n_incoming = 0;
	return last->next;
}

static struct timespec timespec_of(uint64_t ns)
{
	return (struct timespec){ .tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u) };
}

/* What was asked for under the lock and is done without it. */
struct commands {
	struct list *first_new;		/* requests */
	struct list removals;
	struct engine_call calls[ENGINE_CALLS_MAX];
	size_t n_calls;
	bool attention, stop;
};

static bool anything_asked(const struct engine *e)
{
	return e->stop || e->attention || e->disk_done || e->n_calls || !list_empty(&e->incoming) ||
	       !list_empty(&e->removals);
}

/* When an idle engine is next to look at its cache: a little late, so that one look does for many entries. */
static uint64_t next_expiry(const struct engine *e)
{
	uint64_t next = e->store && !e->disk_expiring ? e->disk_expiry : EVICT_NEVER;

	list_for_each(l, &e->models)
		next = MIN(next, tree_next_expiry(list_entry(l, struct engine_model, link)->tree));
	return next >= EVICT_NEVER - EXPIRY_SLACK_NS ? EVICT_NEVER : MAX(next, clock_ns()) + EXPIRY_SLACK_NS;
}

static void expire(struct engine *e)
{
	uint64_t now = clock_ns();

	list_for_each(l, &e->models)
		tree_expire(list_entry(l, struct engine_model, link)->tree, now, EXPIRED_PER_ROUND);
}

/* Under the lock, which is given up meanwhile: until something is asked, or until then. */
static void wait_until(struct engine *e, uint64_t until)
{
	struct timespec ts = timespec_of(until);

	while (!anything_asked(e) && clock_ns() < until) {
		if (until == EVICT_NEVER)
			pthread_cond_wait(&e->wake, &e->lock);
		else
			pthread_cond_timedwait(&e->wake, &e->lock, &ts);
	}
}

/* Waits for a command unless there is work. */
static void collect(struct engine *e, bool work, struct commands *c)
{
	pthread_mutex_lock(&e->lock);
	if (!work) {
		engine_rest(e);
		wait_until(e, MIN(next_expiry(e), engine_next_deadline(e)));
	}
	engine_pulse(e);
	take_models(e);
	c->first_new = take_requests(e);
	c->attention = e->attention;
	e->attention = e->disk_done = false;
	c->n_calls = e->stop ? e->n_calls : MIN(e->n_calls, (size_t)ENGINE_CALLS_ROUND);
	memcpy(c->calls, e->calls, c->n_calls * sizeof(*c->calls));
	e->n_calls -= c->n_calls;
	memmove(e->calls, e->calls + c->n_calls, e->n_calls * sizeof(*e->calls));
	list_init(&c->removals);
	while (!list_empty(&e->removals)) {
		struct list *l = e->removals.next;

		list_unlink(l);
		list_push_back(&c->removals, l);
	}
	c->stop = e->stop;
	pthread_mutex_unlock(&e->lock);
}

static void remove_models(struct engine *e, struct list *removals)
{
	while (!list_empty(removals)) {
		struct engine_model *em = list_entry(removals->next, struct engine_model, removal_link);

		list_unlink(&em->removal_link);
		engine_let_go(e, em);
	}
}

/* Carries out all that came.  False: the engine stops. */
static bool take_commands(struct engine *e, bool work)
{
	struct commands c;

	collect(e, work, &c);
	/* A command that asks for what is on disk finds the model there that has just come. */
	engine_disk_poll(e);
	engine_kept_adopt(e);
	for (struct list *l = c.first_new, *next; l != &e->requests; l = next) {
		next = l->next;
		enqueue(e, list_entry(l, struct engine_request, link));
	}
	if (c.attention)
		attend(e);
	if (c.stop)
		stop_requests(e);
	remove_models(e, &c.removals);
	for (size_t i = 0; i < c.n_calls; i++) {
		engine_pulse(e);
		if (c.calls[i].fn)
			c.calls[i].fn(e, c.calls[i].arg);
		else
			answer_ps(e, &c.calls[i]);
	}
	return !c.stop;
}

/* Sleeps before a step; false, and at once, when the engine stops. */
static bool delay(struct engine *e)
{
	uint64_t until = clock_ns() + e->step_delay_ns;
	struct timespec ts = timespec_of(until);
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

/* The model whose turn it is among those that have something to do, or NULL; it goes to the end. */
static struct engine_model *next_model(struct engine *e)
{
	list_for_each(l, &e->models) {
		struct engine_model *em = list_entry(l, struct engine_model, link);

		if (!em->sched.n_active)
			continue;
		list_unlink(l);
		list_push_back(&e->models, l);
		return em;
	}
	return NULL;
}

static void *engine_main(void *arg)
{
	struct engine *e = arg;
	struct engine_model *em = NULL;

	pthread_setname_np(pthread_self(), "kvd-engine");
	while (take_commands(e, em != NULL)) {
		engine_pulse(e);
		expire(e);
		engine_deadlines(e);
		engine_admit(e);
		engine_publish(e);
		/* Who is told that a request ended finds it in the figures. */
		engine_settle(e);
		em = next_model(e);
		engine_pulse(e);
		if (em && delay(e))
			engine_step(e, em);
		engine_publish(e);
		engine_settle(e);
	}
	return NULL;
}

/* --- life --- */

static int create_host(struct engine *e, uint64_t bytes, struct diag *diag)
{
	int err;

	if (!bytes || e->no_cache)
		return 0;
	err = host_new(&e->host, e->accounts, bytes, EVICT_SCORE, EVICT_IDLE_NS);
	if (err)
		return diag_set(diag, err, "the host memory of %llu bytes can't be made: %s",
				(unsigned long long)bytes, strerror(-err));
	return 0;
}

static int create_batch(struct engine *e, struct diag *diag)
{
	uint32_t max_seqs = e->sched.max_seqs, max_rows = max_seqs + e->sched.quantum;

	e->row_tokens = calloc(max_rows, sizeof(*e->row_tokens));
	e->seqs = calloc(max_seqs, sizeof(*e->seqs));
	e->entries = calloc(max_seqs, sizeof(*e->entries));
	e->logit_rows = calloc(max_seqs + e->sched.logits_quantum, sizeof(*e->logit_rows));
	e->hidden_rows = calloc(max_rows, sizeof(*e->hidden_rows));
	if (!e->row_tokens || !e->seqs || !e->entries || !e->logit_rows || !e->hidden_rows)
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
	uint32_t quantum = config->prefill_quantum ? config->prefill_quantum : 256;
	struct engine *e = calloc(1, sizeof(*e));

	if (!e)
		return NULL;
	if (init_locks(e)) {
		free(e);
		return NULL;
	}
	list_init(&e->models);
	list_init(&e->added);
	list_init(&e->removals);
	list_init(&e->incoming);
	list_init(&e->requests);
	list_init(&e->finished);
	scheduler_init(&e->sched, config->max_seqs ? config->max_seqs : 16, quantum,
		       MIN(quantum, LOGITS_QUANTUM));
	e->sched.n_cached = engine_prefix_n_cached;
	e->sched.fair = !config->no_fairness;
	e->be = config->backend;
	e->accounts = config->accounts;
	e->kv_type = config->kv_type;
	e->block_tokens = config->block_tokens ? config->block_tokens : kv_type_block_tokens(config->kv_type);
	e->max_queue = config->max_queue ? config->max_queue : 1024;
	e->gap_percent = config->gap_percent;
	e->no_cache = config->no_cache;
	e->kept_event = config->kept_event;
	e->kept_event_arg = config->kept_event_arg;
	e->measures_mass = config->attention_mass && config->backend->ops->measures_mass;
	e->step_delay_ns = config->step_delay_ns;
	e->number_key = engine_random();
	return e;
}

int engine_new(struct engine **out, const struct engine_config *config, struct diag *diag)
{
	_cleanup_(fd_closep) int kept_pool = config->kept_pool > STDERR_FILENO ? config->kept_pool : -1;
	_cleanup_(fd_closep) int kept_index = config->kept_index > STDERR_FILENO ? config->kept_index : -1;
	_cleanup_(engine_freep) struct engine *e = NULL;
	int err;

	if (config->max_seqs > MAX_SEQS_MAX || config->prefill_quantum > QUANTUM_MAX)
		return diag_set(diag, -EINVAL, "at most %u sequences and %u prompt tokens in one step",
				MAX_SEQS_MAX, QUANTUM_MAX);
	if (config->block_tokens && config->block_tokens != 16 && config->block_tokens != 32 &&
	    config->block_tokens != 64)
		return diag_set(diag, -EINVAL, "a block has 16, 32 or 64 tokens, not %u",
				config->block_tokens);
	if (config->kv_type == KB_KV_Q4 && config->block_tokens && config->block_tokens != KB_Q4_BLOCK_TOKENS)
		return diag_set(diag, -EINVAL, "a block of type q4 has %u tokens, not %u", KB_Q4_BLOCK_TOKENS,
				config->block_tokens);
	e = engine_alloc(config);
	if (!e)
		return -ENOMEM;
	err = engine_kept_open(e, config, &kept_pool, &kept_index, diag);
	if (!err)
		err = create_host(e, config->host_memory, diag);
	if (!err)
		err = create_batch(e, diag);
	if (err)
		return err;
	engine_disk_open(e, config->store);
	engine_publish(e);
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

static void release_models(struct engine *e, struct list *models)
{
	while (!list_empty(models))
		engine_model_release(e, list_entry(models->next, struct engine_model, link));
}

void engine_free(struct engine *e)
{
	if (!e)
		return;
	if (e->thread_started)
		stop_thread(e);
	release_models(e, &e->models);
	release_models(e, &e->added);
	engine_disk_close(e);
	pool_free(e->pool);
	host_free(e->host);
	free(e->chunks);
	free(e->row_tokens);
	free(e->seqs);
	free(e->entries);
	free(e->logit_rows);
	free(e->hidden_rows);
	pthread_mutex_destroy(&e->lock);
	pthread_cond_destroy(&e->wake);
	free(e);
}
