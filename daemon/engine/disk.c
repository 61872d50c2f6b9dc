/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The disk behind the tree: what is full is written behind, what a request could use is read before it runs.
 *
 *     waiting --ask--> held: looked up --answer--> waiting --blocks--> held: read --done--> ready
 *
 * The store's thread works on memory of jobs, never on a request's: a request may end at any time, its job
 * goes on alone and holds the blocks that are written or read.  Bytes go from the pool to the file, and from
 * the file to the pool, in one copy.  Whatever fails is a miss.
 */
#include <stdlib.h>

#include "daemon/cache/store.h"
#include "daemon/engine/engine-private.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"

#define READS_AT_ONCE 8u
#define BACKLOG_MAX 65536u		/* blocks; what is beyond is written when it is used again */
#define EXPIRY_PAUSE_NS UINT64_C(1000000000)	/* so that one look does for many */
#define FLUSH_NS UINT64_C(5000000000)	/* at the end; more than that is left behind */

struct disk_write {
	struct store_write write;	/* first: the store gives it back */
	struct engine_model *model;
	struct tree_ref ref;
	int32_t tokens[STORE_TOKENS_MAX];
	char name[];
};

/* Blocks that are in the tree and not on disk, in the order in which they go there; some may be gone meanwhile. */
struct disk_backlog {
	uint32_t first, n;
	uint32_t capacity;		/* a power of two */
	struct tree_ref refs[];		/* [capacity], a ring */
};

struct disk_touch {
	struct store_touch touch;	/* first */
	struct engine_model *model;
	struct tree_ref ref;
};

struct disk_expire {
	struct store_expire expire;	/* first */
	struct engine *engine;
};

struct disk_read {
	struct store_read read;		/* first */
	struct disk_job *job;
	uint32_t i;			/* which of those found */
	uint32_t block;
	bool busy;
};

struct disk_job {
	struct store_lookup lookup;	/* first */
	struct engine *engine;
	struct engine_model *model;
	struct engine_request *request;	/* NULL: it has ended */
	char *name;
	int32_t *tokens;		/* [n_tokens] the sequence's first */
	struct store_found *found;
	uint32_t n_found;
	uint32_t n_there;		/* of them in the tree when the reads began */
	uint32_t next, end, n_busy;	/* of those found: to be read next, at the end of the reads, being read */
	uint32_t n_read;		/* the first so many are there */
	bool answered;
	bool wiped;			/* meanwhile: what comes is of no use */
	struct disk_read reads[READS_AT_ONCE];
};

static void *memory_of(const struct engine_model *em, uint32_t block)
{
	struct engine *e = em->engine;

	return e->be->ops->block_memory(pool_device(e->pool), pool_root_geometry(em->root), block);
}

/* --- writing behind --- */

/* The disk has lost what it had: all that leads to ref is written again when it is used next. */
static void forget_path(struct tree_ref ref)
{
	for (; ref.entry; ref = tree_ref_parent(ref))
		tree_set_disk_id(ref, 0);
}

/* The disk is to be asked for what has expired once more, then: ns of its clock. */
static void look_at_expiry(struct engine *e, uint64_t expires)
{
	uint64_t now = clock_real_ns(), left = expires > now ? expires - now : 0;

	if (expires != STORE_NEVER && left < EVICT_NEVER / 2)
		e->disk_expiry = MIN(e->disk_expiry, clock_ns() + left + EXPIRY_PAUSE_NS);
}

static void write_done(struct store_request *request)
{
	struct disk_write *w = (struct disk_write *)request;
	bool there = request->result == STORE_OK || request->result == STORE_EXISTS;

	tree_set_disk_id(w->ref, there ? w->write.stored_id : 0);
	if (there)
		look_at_expiry(w->model->engine, w->write.expires);
	if (there)
		engine_disk_pin_written(w->model, w->ref);
	/* Where the parent failed to be written, too, it has no id by now. */
	if (request->result == STORE_ORPHAN && tree_disk_id(tree_ref_parent(w->ref)))
		forget_path(tree_ref_parent(w->ref));
	tree_let_go(w->model->tree, w->ref);
	w->model->n_disk_jobs--;
	free(w);
}

/* Of an entry whose time is monotonic, in the disk's. */
static uint64_t disk_expiry(uint64_t expires, uint64_t now)
{
	uint64_t monotonic = clock_ns(), left = expires > monotonic ? expires - monotonic : 0;

	return expires == EVICT_NEVER || left >= STORE_NEVER - now ? STORE_NEVER : now + left;
}

static struct disk_write *write_new(struct engine_model *em, struct tree_ref ref, const struct tree_view *v)
{
	struct disk_write *w = calloc(1, sizeof(*w) + v->name.n);
	uint64_t now = clock_real_ns();

	if (!w)
		return NULL;
	w->model = em;
	w->ref = ref;
	if (v->name.n)
		memcpy(w->name, v->name.bytes, v->name.n);
	memcpy(w->tokens, v->tokens, v->n_tokens * sizeof(*w->tokens));
	w->write = (struct store_write){
		.request.done = write_done,
		.name = { w->name, (uint32_t)v->name.n },
		.parent = tree_disk_id(tree_ref_parent(ref)),
		.tokens = w->tokens,
		.n_tokens = v->n_tokens,
		.first = v->first,
		.uid = v->uid,
		.priority = v->priority,
		.now = now,
		.expires = disk_expiry(v->expires, now),
		.block = memory_of(em, v->block),
	};
	return w;
}

/* False: not now. */
static bool write_behind(struct engine_model *em, struct tree_ref ref)
{
	struct tree_ref parent = tree_ref_parent(ref);
	struct tree_view v;
	struct disk_write *w;

	/* What follows a block that is not there can't be kept either. */
	if (!tree_ref_view(em->tree, ref, &v) || v.tier != TREE_TIER_POOL || tree_disk_id(ref) ||
	    (parent.entry && !tree_disk_id(parent)))
		return true;
	w = write_new(em, ref, &v);
	if (!w)
		return false;
	if (store_write(em->disk, &w->write)) {
		free(w);
		return false;
	}
	tree_hold(em->tree, ref);
	em->n_disk_jobs++;
	tree_set_disk_id(ref, w->write.id);
	return true;
}

/* As much as the store takes.  False: nothing is left, or nothing was taken and nothing is on its way. */
static bool write_backlog(struct engine_model *em)
{
	struct disk_backlog *b = em->backlog;

	while (b && b->n && em->n_disk_jobs < STORE_QUEUE_MAX && write_behind(em, b->refs[b->first])) {
		b->first = (b->first + 1) & (b->capacity - 1);
		b->n--;
	}
	return b && b->n && em->n_disk_jobs;
}

/* Room for n more.  False: there is none. */
static bool backlog_reserve(struct engine_model *em, uint32_t n)
{
	struct disk_backlog *old = em->backlog, *b;
	uint32_t capacity = old ? old->capacity : 64, n_old = old ? old->n : 0;

	if (n > BACKLOG_MAX - n_old)
		return false;
	while (capacity < n_old + n)
		capacity *= 2;
	if (old && capacity == old->capacity)
		return true;
	b = calloc(1, sizeof(*b) + capacity * sizeof(*b->refs));
	if (!b)
		return false;
	b->capacity = capacity;
	for (; b->n < n_old; b->n++)
		b->refs[b->n] = old->refs[(old->first + b->n) & (old->capacity - 1)];
	free(old);
	em->backlog = b;
	return true;
}

/* Blocks of the path from ref up that the disk has not got, at most n of them. */
static void backlog_add(struct engine_model *em, struct tree_ref ref, uint32_t n)
{
	struct disk_backlog *b;
	struct tree_ref at = ref;
	uint32_t k = 0;

	for (; k < n && at.entry && !tree_disk_id(at); k++)
		at = tree_ref_parent(at);
	if (!k || !backlog_reserve(em, k))
		return;
	b = em->backlog;
	b->n += k;
	for (uint32_t i = b->n; k--; ref = tree_ref_parent(ref))
		b->refs[(b->first + --i) & (b->capacity - 1)] = ref;
}

void engine_disk_write(struct engine_request *r)
{
	uint32_t n = r->path.tree ? tree_path_n_blocks(&r->path) : 0, before = MIN(r->n_on_disk, n);

	if (!r->model->disk)
		return;
	if (n > before)
		backlog_add(r->model, tree_path_ref(&r->path, n - 1), n - before);
	r->n_on_disk = n;
	write_backlog(r->model);
}

/* --- uses --- */

static void touch_done(struct store_request *request)
{
	struct disk_touch *t = (struct disk_touch *)request;

	if (request->result == STORE_MISS) {
		forget_path(t->ref);
		backlog_add(t->model, t->ref, UINT32_MAX);
	}
	t->model->n_disk_jobs--;
	free(t);
}

static uint64_t expiry_of(const struct engine_request *r, uint64_t now)
{
	return r->params.ttl_ns && r->params.ttl_ns < STORE_NEVER - now ? now + r->params.ttl_ns : STORE_NEVER;
}

/* What is used out of memory is not to be what the disk has not seen used for longest. */
static void touch(struct engine_request *r, struct tree_ref ref, uint64_t expires)
{
	struct disk_touch *t = calloc(1, sizeof(*t));

	if (!t)
		return;
	t->model = r->model;
	t->ref = ref;
	t->touch = (struct store_touch){ .request.done = touch_done, .id = tree_disk_id(ref), .expires = expires };
	r->disk_touched = true;
	r->model->n_disk_jobs++;
	store_touch(r->model->disk, &t->touch);
}

/* --- the store --- */

static void wake(void *arg)
{
	struct engine *e = arg;

	pthread_mutex_lock(&e->lock);
	e->disk_done = true;
	pthread_cond_signal(&e->wake);
	pthread_mutex_unlock(&e->lock);
}

void engine_disk_open(struct engine *e, struct store *store)
{
	if (!store || e->no_cache)
		return;
	e->store = store;
	store_set_wake(store, wake, e);
}

static void add_model(struct engine *e, struct engine_model *em)
{
	struct store_identity *id;

	em->disk_tried = true;
	if (!e->be->ops->block_memory)
		return;
	id = calloc(1, sizeof(*id));
	if (!id)
		return;		/* without a disk, then */
	e->disk_expiry = 0;
	engine_identify(e, em, id);
	(void)store_root_new(&em->disk, e->store, id, model_info(em->model)->name, em->block_tokens,
			     pool_root_geometry(em->root)->block_bytes);
	free(id);
}

static void expire_done(struct store_request *request)
{
	struct disk_expire *x = (struct disk_expire *)request;
	struct engine *e = x->engine;

	look_at_expiry(e, x->expire.next);
	e->disk_expiring = false;
	free(x);
}

static void expire(struct engine *e)
{
	struct disk_expire *x;

	if (e->disk_expiring || clock_ns() < e->disk_expiry)
		return;
	e->disk_expiry = EVICT_NEVER;
	x = calloc(1, sizeof(*x));
	if (!x)
		return;
	x->engine = e;
	x->expire = (struct store_expire){ .request.done = expire_done, .now = clock_real_ns() };
	e->disk_expiring = true;
	store_expire(e->store, &x->expire);
}

void engine_disk_poll(struct engine *e)
{
	if (!e->store)
		return;
	list_for_each(l, &e->models) {
		struct engine_model *em = list_entry(l, struct engine_model, link);

		if (!em->disk_tried)
			add_model(e, em);
	}
	store_poll(e->store);
	expire(e);
	list_for_each(l, &e->models)
		write_backlog(list_entry(l, struct engine_model, link));
}

static void wait_for_disk(struct engine *e)
{
	pthread_mutex_lock(&e->lock);
	while (!e->disk_done)
		pthread_cond_wait(&e->wake, &e->lock);
	e->disk_done = false;
	pthread_mutex_unlock(&e->lock);
}

/* Until nothing of the model's is in the store's hands; as long as the disk takes. */
static void wait_for_jobs(struct engine *e, const struct engine_model *em)
{
	for (store_poll(e->store); em->n_disk_jobs; store_poll(e->store))
		wait_for_disk(e);
}

void engine_disk_remove(struct engine *e, struct engine_model *em)
{
	if (!em->disk)
		return;
	wait_for_jobs(e, em);
	/* The last blocks of what has just ended, mostly; but as fast as the disk is, and no longer than this. */
	for (uint64_t end = clock_ns() + FLUSH_NS; write_backlog(em) && clock_ns() < end;)
		wait_for_jobs(e, em);
	wait_for_jobs(e, em);
	store_root_free(em->disk);
	em->disk = NULL;
	free(em->backlog);
	em->backlog = NULL;
}

void engine_disk_close(struct engine *e)
{
	if (!e->store)
		return;
	for (store_poll(e->store); e->disk_expiring; store_poll(e->store))
		wait_for_disk(e);
	store_set_wake(e->store, NULL, NULL);
	e->store = NULL;
}

/* --- looking up --- */

static void job_free(struct disk_job *j)
{
	free(j->name);
	free(j->tokens);
	free(j->found);
	free(j);
}

static struct disk_job *job_new(struct engine *e, struct engine_request *r, uint32_t n_tokens)
{
	uint32_t block_tokens = r->model->block_tokens;
	struct disk_job *j = calloc(1, sizeof(*j));

	if (!j)
		return NULL;
	j->engine = e;
	j->model = r->model;
	j->request = r;
	j->name = strdup(r->ns);
	j->tokens = calloc(n_tokens, sizeof(*j->tokens));
	j->found = calloc(n_tokens / block_tokens, sizeof(*j->found));
	if (!j->name || !j->tokens || !j->found) {
		job_free(j);
		return NULL;
	}
	memcpy(j->tokens, r->tokens, n_tokens * sizeof(*j->tokens));
	return j;
}

static void lookup_done(struct store_request *request)
{
	struct disk_job *j = (struct disk_job *)request;

	j->model->n_disk_jobs--;
	if (!j->request) {
		job_free(j);
		return;
	}
	j->answered = true;
	/* Whole blocks: of one that is there in part the rest is soon computed. */
	for (uint32_t i = 0; request->result == STORE_OK && !j->wiped && i < j->lookup.n_found; i++) {
		if (j->found[i].n_common < j->model->block_tokens)
			break;
		j->n_found = i + 1;
	}
	scheduler_push(&j->engine->sched, &j->request->seq);
}

bool engine_disk_ask(struct engine *e, struct engine_request *r, const struct tree_peek *peek)
{
	uint32_t block_tokens = r->model->block_tokens, n = engine_prefix_n_lookup(r);
	uint32_t n_there = (peek->n_tokens - peek->n_tail) / block_tokens + peek->n_stored;
	uint64_t now = clock_real_ns();
	struct disk_job *j;

	if (!r->model->disk || !r->path.tree || r->disk_asked)
		return false;
	if (n <= (n_there + 1) * block_tokens) {
		if (tree_disk_id(peek->last) && !r->disk_touched)
			touch(r, peek->last, expiry_of(r, now));
		return false;
	}
	r->disk_asked = true;
	/* From the beginning: what the tree has may have no id yet, or one under which it is still to be written. */
	n = (n - 1) / block_tokens * block_tokens;
	j = job_new(e, r, n);
	if (!j)
		return false;
	j->lookup = (struct store_lookup){
		.request.done = lookup_done,
		.name = { j->name, (uint32_t)strlen(j->name) },
		.tokens = j->tokens,
		.n_tokens = n,
		.now = now,
		.expires = expiry_of(r, now),
		.priority = r->params.priority,
		.found = j->found,
		.max_found = n / block_tokens,
	};
	store_lookup(r->model->disk, &j->lookup);
	r->model->n_disk_jobs++;
	r->disk_job = j;
	scheduler_hold(&e->sched, &r->seq);
	return true;
}

/* --- reading --- */

/* The path's ith block is what was found on disk; whoever has it pinned there has it pinned. */
static void note_read(struct engine_request *r, uint32_t i, const struct store_found *found)
{
	struct tree_ref ref = tree_path_ref(&r->path, i);

	tree_set_disk_id(ref, found->id);
	/* Where that is refused it is pinned on disk alone. */
	for (uint32_t k = 0; k < found->n_pins; k++)
		(void)tree_pin(r->model->tree, ref.entry, found->pinned_by[k]);
}

/* It did not compute these: what it then misses is no longer for what the tree had not. */
static void note_found(struct engine_request *r)
{
	uint32_t n = engine_prefix_n_lookup(r) - 1, left;

	r->n_cached = r->seq.n_computed;
	r->n_same = 0;
	left = n - r->n_cached;
	if (!left && n + 1 == r->n_prompt)
		r->miss = SINK_MISS_NONE;
	else if (r->model->open_bytes && left < r->model->block_tokens)
		r->miss = n + 1 == r->n_prompt ? SINK_MISS_BLOCK : SINK_MISS_LOGPROBS;
}

/* The blocks that are there now enter the tree, and the request goes on. */
static void reads_end(struct disk_job *j)
{
	struct engine_request *r = j->request;

	r->disk_job = NULL;
	r->seq.n_computed = j->n_read * j->model->block_tokens;
	if (!r->n_generated && !r->n_preempted && r->seq.n_computed > r->n_cached)
		note_found(r);
	engine_prefix_enter(r);
	for (uint32_t i = j->n_there; !j->wiped && i < MIN(tree_path_n_blocks(&r->path), j->n_read); i++)
		note_read(r, i, &j->found[i]);
	scheduler_ready(&j->engine->sched, &r->seq);
}

static void start_reads(struct disk_job *j);

static void read_done(struct store_request *request)
{
	struct disk_read *read = (struct disk_read *)request;
	struct disk_job *j = read->job;

	read->busy = false;
	j->n_busy--;
	pool_block_unref(j->model->root, read->block);
	/* Results come in order, as they were asked for; what follows one that is missing is of no use. */
	if (request->result == STORE_OK && read->i == j->n_read && !j->wiped)
		j->n_read++;
	else
		j->end = j->next;
	if (j->request)
		start_reads(j);
	if (j->n_busy)
		return;
	j->model->n_disk_jobs--;
	if (j->request)
		reads_end(j);
	job_free(j);
}

static void start_read(struct disk_job *j, struct disk_read *read)
{
	struct engine_model *em = j->model;
	uint32_t i = j->next++;

	*read = (struct disk_read){ .job = j, .i = i, .block = j->request->blocks[i], .busy = true };
	read->read = (struct store_read){
		.request.done = read_done,
		.name = j->lookup.name,
		.id = j->found[i].id,
		.parent = i ? j->found[i - 1].id : j->lookup.parent,
		.tokens = j->tokens + (size_t)i * em->block_tokens,
		.n_tokens = em->block_tokens,
		.first = i * em->block_tokens,
		.block = memory_of(em, read->block),
	};
	pool_block_ref(em->root, read->block);
	j->n_busy++;
	store_read(em->disk, &read->read);
}

static void start_reads(struct disk_job *j)
{
	for (uint32_t k = 0; k < READS_AT_ONCE && j->next < j->end; k++)
		if (!j->reads[k].busy)
			start_read(j, &j->reads[k]);
}

bool engine_disk_read(struct engine *e, struct engine_request *r)
{
	uint32_t depth = r->path.tree ? tree_path_n_blocks(&r->path) : 0;
	struct disk_job *j = r->disk_job;

	if (!j || !j->answered)
		return false;
	for (uint32_t i = 0; !j->wiped && i < MIN(depth, j->n_found); i++)
		tree_set_disk_id(tree_path_ref(&r->path, i), j->found[i].id);
	if (depth >= j->n_found) {
		/* Nothing is there, or the tree has it all by now. */
		r->disk_job = NULL;
		job_free(j);
		return false;
	}
	/* What is in the tree is not read. */
	j->next = j->n_read = j->n_there = depth;
	j->end = j->n_found;
	r->model->n_disk_jobs++;
	scheduler_hold(&e->sched, &r->seq);
	start_reads(j);
	return true;
}

void engine_disk_forget(struct engine_request *r)
{
	struct disk_job *j = r->disk_job;

	r->disk_job = NULL;
	if (!j)
		return;
	if (j->answered && !j->n_busy)
		job_free(j);
	else
		j->request = NULL;
}

void engine_disk_wiped(struct engine *e, const struct engine_model *em, tree_want_fn fn, void *arg)
{
	list_for_each(l, &e->requests) {
		struct engine_request *r = list_entry(l, struct engine_request, link);
		struct tree_name name = { r->ns, r->ns ? strlen(r->ns) : 0 };

		if (r->model != em || !r->ns || (fn && !fn(arg, name, r->uid)))
			continue;
		r->n_on_disk = 0;
		if (r->disk_job)
			r->disk_job->wiped = true;
		if (r->disk_job && r->disk_job->answered && !r->disk_job->n_busy)
			r->disk_job->n_found = 0;
	}
}
