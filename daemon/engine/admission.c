/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/engine-private.h"
#include "ipc/base/clock.h"

void engine_release_blocks(struct engine *e, struct engine_request *r)
{
	while (r->seq.n_blocks)
		pool_block_unref(e->root, r->blocks[--r->seq.n_blocks]);
	r->seq.n_computed = 0;
}

static uint32_t blocks_for(const struct engine *e, uint32_t n_tokens)
{
	return (n_tokens + e->block_tokens - 1) / e->block_tokens;
}

/* Until the request holds n blocks.  What pool_block_get() says, or -ENOMEM. */
static int take_blocks(struct engine *e, struct engine_request *r, uint32_t n)
{
	int err = request_reserve_blocks(r, n);

	while (!err && r->seq.n_blocks < n) {
		err = pool_block_get(e->root, r->uid, &r->blocks[r->seq.n_blocks]);
		if (!err)
			r->seq.n_blocks++;
	}
	return err;
}

/* A parked one stays parked: its reader must make room first. */
static void preempt(struct engine *e, struct sched_seq *seq)
{
	struct engine_request *r = request_of(seq);

	engine_release_blocks(e, r);
	if (seq->state != SCHED_PARKED)
		scheduler_push(&e->sched, seq);
	r->n_preempted++;
	e->stats.preemptions++;
}

/*
 * The pool has room for n more blocks, and one for each sequence that runs, so
 * that the new one does not make them preempt it at once.
 */
static bool make_room(struct engine *e, uint32_t n)
{
	uint64_t want = (uint64_t)n + e->sched.n_active;

	if ((uint64_t)pool_root_n_free(e->root) + scheduler_idle_blocks(&e->sched) < want)
		return false;
	while (pool_root_n_free(e->root) < want) {
		struct sched_seq *victim = scheduler_victim(&e->sched, NULL, true);

		if (!victim)
			return false;
		preempt(e, victim);
	}
	return true;
}

/* The uid's blocks are used up: its own other sequences decide what happens. */
static bool yield_to_own(struct engine *e, struct engine_request *r)
{
	struct sched_uid *owner = r->seq.owner;
	struct sched_seq *victim;

	engine_release_blocks(e, r);
	victim = scheduler_victim(&e->sched, owner, true);
	if (victim) {
		preempt(e, victim);
		return true;
	}
	if (list_empty(&owner->active))
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
	uint32_t n = blocks_for(e, r->seq.n_tokens + 1);
	int err;

	if (!make_room(e, n))
		return false;
	do {
		err = take_blocks(e, r, n);
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

/* Whether no other sequence could give blocks to this one, in the uid or at all. */
static bool is_only_one(const struct engine *e, const struct sched_seq *seq, bool in_uid)
{
	return in_uid ? seq->owner->active.next == seq->owner->active.prev : e->sched.n_active == 1;
}

/* seq lacks blocks: gets them, or one sequence less holds any. */
static void provide(struct engine *e, struct sched_seq *seq)
{
	struct engine_request *r = request_of(seq);
	int err = take_blocks(e, r, blocks_for(e, seq->n_tokens));
	bool quota = err == POOL_E_QUOTA;
	struct sched_seq *victim;

	if (!err)
		return;
	if (err < 0) {
		engine_fail(e, r, SINK_ERROR_NO_MEMORY, "out of memory");
		return;
	}
	victim = scheduler_victim(&e->sched, quota ? seq->owner : NULL, false);
	if (victim && (victim != seq || !is_only_one(e, seq, quota)))
		preempt(e, victim);
	else if (quota)
		engine_fail(e, r, SINK_ERROR_QUOTA,
			    "the sequence needs more KV blocks than its user may have");
	else
		engine_fail(e, r, SINK_ERROR_NO_MEMORY, "the sequence does not fit the KV memory");
}

void engine_provide_blocks(struct engine *e)
{
	struct sched_seq *seq;

	while ((seq = scheduler_short_of_blocks(&e->sched, e->block_tokens)))
		provide(e, seq);
}
