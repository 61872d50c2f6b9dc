/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/engine-private.h"
#include "ipc/base/clock.h"

static uint32_t blocks_for(const struct engine_model *em, uint32_t n_tokens)
{
	return (n_tokens + em->block_tokens - 1) / em->block_tokens;
}

/* Until the request holds n blocks.  What pool_block_get() says, or -ENOMEM. */
static int take_blocks(struct engine_request *r, uint32_t n)
{
	int err = request_reserve_blocks(r, n);

	while (!err && r->seq.n_blocks < n) {
		err = pool_block_get(r->model->root, r->uid, &r->blocks[r->seq.n_blocks]);
		if (!err)
			r->seq.n_blocks++;
	}
	return err;
}

/*
 * The pool has room for n more blocks of the model, and one for each of its
 * sequences that run, so that the new one does not make them preempt it at once.
 */
static bool make_room(struct engine *e, struct engine_model *em, uint32_t n)
{
	uint64_t want = (uint64_t)n + em->sched.n_active;

	if (pool_root_n_free(em->root) >= want)
		return true;
	if (pool_root_n_free(em->root) + engine_reclaimable_idle(e, em) < want)
		return false;
	while (pool_root_n_free(em->root) < want)
		if (!engine_reclaim(e, em, UINT64_MAX))
			return false;
	return true;
}

/* The uid's blocks are used up: its own other sequences decide what happens. */
static bool yield_to_own(struct engine *e, struct engine_request *r)
{
	struct sched_uid *owner = r->seq.share->uid;
	struct sched_seq *victim;

	engine_release_blocks(e, r);
	victim = scheduler_victim(&e->sched, owner, NULL, true);
	if (victim) {
		engine_preempt(e, victim);
		return true;
	}
	if (!owner->n_active)
		engine_fail(e, r, SINK_ERROR_QUOTA,
			    "the request needs more KV blocks than its user may have");
	else
		scheduler_admit_skip(&e->sched, &r->seq);
	return false;
}

/* False: it must wait for blocks, and nobody may overtake it. */
static bool admit_one(struct engine *e, struct engine_request *r)
{
	/* One more than it has: the place of the token that comes out. */
	uint32_t n = blocks_for(r->model, r->seq.n_tokens + 1);
	int err;

	if (!make_room(e, r->model, n))
		return false;
	do {
		err = take_blocks(r, n);
	} while (err == POOL_E_QUOTA && yield_to_own(e, r));
	if (err == POOL_E_QUOTA)
		return true;
	if (err == POOL_E_FULL) {
		engine_release_blocks(e, r);
		return false;
	}
	if (err) {
		engine_fail(e, r, SINK_ERROR_NO_MEMORY, "out of memory");
		return true;
	}
	if (!r->admit_ns)
		r->admit_ns = clock_ns();
	scheduler_activate(&e->sched, &r->seq);
	return true;
}

void engine_admit(struct engine *e)
{
	struct sched_seq *seq;

	while ((seq = scheduler_ready_next(&e->sched)))
		scheduler_activate(&e->sched, seq);
	scheduler_admit_begin(&e->sched);
	while ((seq = scheduler_admit_next(&e->sched)))
		if (!admit_one(e, request_of(seq)))
			break;
}

/* The uid's blocks are used up: its youngest sequence gives way, this one if there is no other. */
static void provide_from_own(struct engine *e, struct sched_seq *seq)
{
	struct sched_uid *owner = seq->share->uid;
	struct sched_seq *victim = scheduler_victim(&e->sched, owner, NULL, false);

	if (victim && (victim != seq || owner->n_active > 1))
		engine_preempt(e, victim);
	else
		engine_fail(e, request_of(seq), SINK_ERROR_QUOTA,
			    "the sequence needs more KV blocks than its user may have");
}

/* seq lacks blocks: gets them, or one sequence less holds any. */
static void provide(struct engine *e, struct sched_seq *seq)
{
	struct engine_request *r = request_of(seq);
	int err = take_blocks(r, blocks_for(r->model, seq->n_tokens));

	if (!err)
		return;
	if (err < 0)
		engine_fail(e, r, SINK_ERROR_NO_MEMORY, "out of memory");
	else if (err == POOL_E_QUOTA)
		provide_from_own(e, seq);
	else if (engine_reclaim(e, r->model, seq->rank))
		return;
	else if (e->sched.n_active > 1)
		engine_preempt(e, seq);
	else
		engine_fail(e, r, SINK_ERROR_NO_MEMORY, "the sequence does not fit the KV memory");
}

void engine_provide_blocks(struct engine *e, struct engine_model *em)
{
	struct sched_seq *seq;

	while ((seq = scheduler_short_of_blocks(&em->sched)))
		provide(e, seq);
}
