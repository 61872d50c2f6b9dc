/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of the model's own are had one at a time: of the cache, then one sequence after the other; but a model that
 * has less than an even share of the pool takes from what others keep first, so that its cache can grow.  Blocks
 * of other models are of use only when a whole chunk comes free, so one chunk
 * is chosen, and what is cached in it and the sequences that hold blocks in it go, no others: the chunk
 * whose oldest holder is the youngest, since that holder is the one who loses most.
 */
#include "daemon/engine/engine-private.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"

/* Beside the ranks of those that run: a chunk in which everything is ... */
#define AGE_CACHED UINT64_MAX		/* only kept for later */
#define AGE_IDLE (UINT64_MAX - 1)	/* that, or of sequences that do not run */
#define AGE_PINNED 0			/* older than any */

#define UNUSED_NS (UINT64_C(600) * 1000000000u)	/* a model that made no step for so long has no share */

void engine_release_blocks(struct engine *e, struct engine_request *r)
{
	engine_prefix_leave(r);
	while (r->seq.n_blocks)
		pool_block_unref(r->model->root, r->blocks[--r->seq.n_blocks]);
	engine_open_drop(e, r);
	r->seq.n_computed = 0;
}

void engine_preempt(struct engine *e, struct sched_seq *seq)
{
	struct engine_request *r = request_of(seq);

	engine_release_blocks(e, r);
	if (seq->state != SCHED_PARKED)
		scheduler_push(&e->sched, seq);
	r->n_preempted++;
	e->stats.preemptions++;
}

static uint64_t age_of(const struct sched_seq *seq)
{
	/* The disk writes into the blocks of one that is held. */
	if (seq->state == SCHED_HELD)
		return AGE_PINNED;
	return seq->state == SCHED_ACTIVE ? MIN(seq->rank + 1, AGE_IDLE - 1) : AGE_IDLE;
}

static void note_holder(struct engine *e, uint32_t chunk, uint64_t age)
{
	e->chunks[chunk].age = MIN(e->chunks[chunk].age, age);
}

struct survey {
	struct engine *engine;
	struct pool_root *root;
};

static void note_pinned(void *arg, uint32_t block)
{
	struct survey *s = arg;

	note_holder(s->engine, pool_block_chunk(s->root, block), AGE_PINNED);
}

static uint32_t n_chunks(const struct engine *e)
{
	struct pool_stats pool;

	pool_stats(e->pool, &pool);
	return pool.n_chunks;
}

static bool others_hold_blocks(const struct engine *e, const struct engine_model *em)
{
	list_for_each(l, &e->models) {
		const struct engine_model *other = list_entry(l, struct engine_model, link);

		if (other != em && pool_root_n_used(other->root))
			return true;
	}
	return false;
}

/* Fills e->chunks with what other models have. */
static void survey(struct engine *e, const struct engine_model *em)
{
	for (uint32_t c = 0; c < n_chunks(e); c++)
		e->chunks[c] = (struct engine_chunk){ .age = AGE_CACHED };
	list_for_each(l, &e->models) {
		struct engine_model *other = list_entry(l, struct engine_model, link);

		if (other == em)
			continue;
		for (uint32_t c = 0; c < n_chunks(e); c++)
			e->chunks[c].n_blocks += pool_root_n_used_in(other->root, c);
		tree_pinned_blocks(other->tree, note_pinned, &(struct survey){ e, other->root });
	}
	list_for_each(l, &e->requests) {
		const struct engine_request *r = list_entry(l, struct engine_request, link);

		for (uint32_t i = 0; r->model != em && i < r->seq.n_blocks; i++)
			note_holder(e, pool_block_chunk(r->model->root, r->blocks[i]), age_of(&r->seq));
	}
}

/* The chunk to empty: whose holders are younger than age; NO_CHUNK if there is none. */
#define NO_CHUNK UINT32_MAX
static uint32_t choose_chunk(const struct engine *e, uint64_t age)
{
	uint32_t best = NO_CHUNK;

	for (uint32_t i = 0; i < n_chunks(e); i++) {
		const struct engine_chunk *c = &e->chunks[i], *b = &e->chunks[best == NO_CHUNK ? 0 : best];

		if (!c->n_blocks || c->age <= age)
			continue;
		if (best == NO_CHUNK || c->age > b->age || (c->age == b->age && c->n_blocks < b->n_blocks))
			best = i;
	}
	return best;
}

static bool holds_in_chunk(const struct engine_request *r, uint32_t chunk)
{
	for (uint32_t i = 0; i < r->seq.n_blocks; i++)
		if (pool_block_chunk(r->model->root, r->blocks[i]) == chunk)
			return true;
	return false;
}

struct chunk_of {
	struct pool_root *root;
	uint32_t chunk;
};

static bool in_chunk(void *arg, uint32_t block)
{
	struct chunk_of *c = arg;

	return pool_block_chunk(c->root, block) == c->chunk;
}

/* Empties a chunk of another model's whose holders are all younger than age. */
static bool empty_chunk(struct engine *e, const struct engine_model *em, uint64_t age)
{
	uint32_t chunk;

	if (!others_hold_blocks(e, em))
		return false;
	survey(e, em);
	chunk = choose_chunk(e, age);
	if (chunk == NO_CHUNK)
		return false;
	list_for_each(l, &e->requests) {
		struct engine_request *r = list_entry(l, struct engine_request, link);

		if (r->model != em && holds_in_chunk(r, chunk))
			engine_preempt(e, &r->seq);
	}
	list_for_each(l, &e->models) {
		struct engine_model *other = list_entry(l, struct engine_model, link);

		if (other != em && pool_root_n_used_in(other->root, chunk))
			tree_evict_blocks(other->tree, in_chunk, &(struct chunk_of){ other->root, chunk }, clock_ns());
		if (other != em && pool_root_n_used_in(other->root, chunk))
			return false;	/* the disk has some in its hands: not yet */
	}
	return true;
}

/* It has less than an even share of the pool, among the models that were used lately. */
static bool below_share(const struct engine *e, const struct engine_model *em)
{
	uint64_t n_models = 1, now = clock_ns();

	list_for_each(l, &e->models) {
		const struct engine_model *other = list_entry(l, struct engine_model, link);

		n_models += other != em && now - other->last_step_ns < UNUSED_NS;
	}
	return pool_root_n_used(em->root) * em->block_bytes < e->stats.kv_bytes / n_models;
}

bool engine_evict(struct engine *e, struct engine_model *em)
{
	if (below_share(e, em) && empty_chunk(e, em, AGE_IDLE))
		return true;
	return tree_evict(em->tree, NULL, clock_ns()) || empty_chunk(e, em, AGE_IDLE);
}

bool engine_evict_of(struct engine *e, struct engine_model *em, uid_t uid)
{
	if (tree_evict(em->tree, &uid, clock_ns()))
		return true;
	list_for_each(l, &e->models)
		if (tree_evict(list_entry(l, struct engine_model, link)->tree, &uid, clock_ns()))
			return true;
	return false;
}

bool engine_reclaim(struct engine *e, struct engine_model *em, uint64_t rank)
{
	struct sched_seq *victim = scheduler_victim(&e->sched, NULL, &em->sched, true);

	if (victim) {
		engine_preempt(e, victim);
		return true;
	}
	if (empty_chunk(e, em, AGE_IDLE - 1))
		return true;
	if (rank == UINT64_MAX)
		return false;
	victim = scheduler_victim(&e->sched, NULL, &em->sched, false);
	if (victim && victim->rank > rank) {
		engine_preempt(e, victim);
		return true;
	}
	return empty_chunk(e, em, rank + 1);
}

/* Blocks that chunks of this age would give the model. */
static uint64_t blocks_of_age(struct engine *e, struct engine_model *em, uint64_t age)
{
	uint64_t n = 0;

	if (!others_hold_blocks(e, em))
		return 0;
	survey(e, em);
	for (uint32_t c = 0; c < n_chunks(e); c++)
		if (e->chunks[c].n_blocks && e->chunks[c].age == age)
			n += pool_root_geometry(em->root)->blocks_per_chunk;
	return n;
}

uint64_t engine_n_available(struct engine *e, struct engine_model *em, uint64_t enough)
{
	uint64_t n = (uint64_t)pool_root_n_free(em->root) + tree_n_evictable(em->tree);

	return n >= enough ? n : n + blocks_of_age(e, em, AGE_CACHED);
}

uint64_t engine_reclaimable_idle(struct engine *e, struct engine_model *em)
{
	if (!e->sched.n_parked && !e->sched.n_ready)
		return 0;
	return scheduler_idle_blocks(&e->sched, &em->sched) + blocks_of_age(e, em, AGE_IDLE);
}
