/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of the model's own sequences are had one sequence at a time.  Those
 * of other models are of use only when a whole chunk comes free, so one chunk
 * is chosen and the sequences that hold blocks in it go, no others: the chunk
 * whose oldest holder is the youngest, since that holder is the one who loses most.
 */
#include "daemon/engine/engine-private.h"
#include "ipc/base/checked.h"

#define AGE_IDLE UINT64_MAX	/* younger than any that runs */

void engine_release_blocks(struct engine *e, struct engine_request *r)
{
	while (r->seq.n_blocks)
		pool_block_unref(r->model->root, r->blocks[--r->seq.n_blocks]);
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
	return seq->state == SCHED_ACTIVE ? seq->rank : AGE_IDLE;
}

/* Fills e->chunks with what the sequences of other models hold. */
static void survey(struct engine *e, const struct engine_model *em)
{
	struct pool_stats pool;

	pool_stats(e->pool, &pool);
	for (uint32_t c = 0; c < pool.n_chunks; c++)
		e->chunks[c] = (struct engine_chunk){ .age = AGE_IDLE };
	list_for_each(l, &e->requests) {
		const struct engine_request *r = list_entry(l, struct engine_request, link);

		if (r->model == em)
			continue;
		for (uint32_t i = 0; i < r->seq.n_blocks; i++) {
			struct engine_chunk *c = &e->chunks[pool_block_chunk(r->model->root, r->blocks[i])];

			c->n_blocks++;
			c->age = MIN(c->age, age_of(&r->seq));
		}
	}
}

/* The chunk to empty: holders above rank, or idle; NO_CHUNK if there is none. */
#define NO_CHUNK UINT32_MAX
static uint32_t choose_chunk(const struct engine *e, uint64_t rank)
{
	uint32_t best = NO_CHUNK;
	struct pool_stats pool;

	pool_stats(e->pool, &pool);
	for (uint32_t i = 0; i < pool.n_chunks; i++) {
		const struct engine_chunk *c = &e->chunks[i], *b = &e->chunks[best == NO_CHUNK ? 0 : best];

		if (!c->n_blocks || (c->age != AGE_IDLE && c->age <= rank))
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

static bool any_idle(const struct engine *e)
{
	return e->sched.n_parked || e->sched.n_ready;
}

static bool empty_chunk(struct engine *e, const struct engine_model *em, uint64_t rank)
{
	uint32_t chunk;

	if (rank == AGE_IDLE && !any_idle(e))
		return false;
	survey(e, em);
	chunk = choose_chunk(e, rank);
	if (chunk == NO_CHUNK)
		return false;
	list_for_each(l, &e->requests) {
		struct engine_request *r = list_entry(l, struct engine_request, link);

		if (r->model != em && holds_in_chunk(r, chunk))
			engine_preempt(e, &r->seq);
	}
	return true;
}

bool engine_reclaim(struct engine *e, struct engine_model *em, uint64_t rank)
{
	struct sched_seq *victim = scheduler_victim(&e->sched, NULL, &em->sched, true);

	if (victim) {
		engine_preempt(e, victim);
		return true;
	}
	if (empty_chunk(e, em, AGE_IDLE))
		return true;
	if (rank == UINT64_MAX)
		return false;
	victim = scheduler_victim(&e->sched, NULL, &em->sched, false);
	if (victim && victim->rank > rank) {
		engine_preempt(e, victim);
		return true;
	}
	return empty_chunk(e, em, rank);
}

uint64_t engine_reclaimable_idle(struct engine *e, struct engine_model *em)
{
	uint64_t n = scheduler_idle_blocks(&e->sched, &em->sched);
	struct pool_stats pool;

	if (!any_idle(e))
		return 0;
	pool_stats(e->pool, &pool);
	survey(e, em);
	for (uint32_t c = 0; c < pool.n_chunks; c++)
		if (e->chunks[c].n_blocks && e->chunks[c].age == AGE_IDLE)
			n += pool_root_geometry(em->root)->blocks_per_chunk;
	return n;
}
