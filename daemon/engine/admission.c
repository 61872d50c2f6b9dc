/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/engine-private.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"

static uint32_t blocks_for(const struct engine_model *em, uint32_t n_tokens)
{
	return (n_tokens + em->block_tokens - 1) / em->block_tokens;
}

int engine_get_block(struct engine *e, struct engine_request *r, uint32_t *block)
{
	struct engine_model *em = r->model;
	int err;

	do {
		err = pool_block_get(em->root, r->uid, block);
	} while ((err == POOL_E_FULL && engine_evict(e, em)) ||
		 (err == POOL_E_QUOTA && engine_evict_of(e, em, r->uid)));
	return err;
}

/* Until the request holds n blocks.  What pool_block_get() says, or -ENOMEM. */
static int take_blocks(struct engine *e, struct engine_request *r, uint32_t n)
{
	int err = request_reserve_blocks(r, n);

	while (!err && r->seq.n_blocks < n) {
		err = engine_get_block(e, r, &r->blocks[r->seq.n_blocks]);
		if (!err)
			r->seq.n_blocks++;
	}
	return err;
}

/*
 * There is room for n more blocks of the model, evicting all but n_kept of what could be, and one for each of its
 * sequences that run, so that the new one does not make them preempt it at once.
 */
static bool make_room(struct engine *e, struct engine_model *em, uint32_t n, uint32_t n_kept)
{
	uint64_t want = (uint64_t)n + n_kept + em->sched.n_active;

	if (engine_n_available(e, em, want) >= want)
		return true;
	if (e->sched.n_active && engine_n_available(e, em, want) + engine_reclaimable_idle(e, em) < want)
		return false;
	while (engine_n_available(e, em, want) < want)
		if (!engine_reclaim(e, em, UINT64_MAX))
			return false;
	return true;
}

/* The disk, or verify.c, has blocks in its hands, or a sequence will run when another has done something for it. */
static bool on_its_way(const struct engine *e)
{
	list_for_each(l, &e->models)
		if (list_entry(l, struct engine_model, link)->n_disk_jobs)
			return true;
	return e->n_lent || !list_empty(&e->sched.held);
}

/* What the uid may have is used up: its own other sequences decide what happens. */
static bool yield_to_own(struct engine *e, struct engine_request *r, const char *why)
{
	struct sched_uid *owner = r->seq.share->uid;
	struct sched_seq *victim;

	victim = scheduler_victim(&e->sched, owner, NULL, true);
	if (victim) {
		engine_preempt(e, victim);
		return true;
	}
	if (!owner->n_active)
		engine_fail(e, r, SINK_ERROR_QUOTA, why);
	else
		scheduler_admit_skip(&e->sched, &r->seq);
	return false;
}

/*
 * Its blocks: those that are there, new ones until it has n, and its open one.  What take_blocks() and
 * engine_open_get() say.
 */
static int fill_table(struct engine *e, struct engine_request *r, uint32_t n, bool tail, uint64_t now)
{
	uint32_t n_tail, tail_block = 0;
	int err = engine_open_get(e, r);

	if (!err)
		err = engine_prefix_take(r, tail, now, &n_tail, &tail_block);
	if (!err)
		err = take_blocks(e, r, n);
	if (!err)
		err = engine_prefix_copy_tail(e, r, n_tail, tail_block);
	if (err)
		engine_release_blocks(e, r);
	return err;
}

/*
 * There is room for the request's n blocks.  *tail: also to hold the one that the beginning of its
 * first new block is copied from; if only that is too much, it goes without.
 */
static bool make_room_for(struct engine *e, struct engine_request *r, uint32_t n, const struct tree_peek *peek,
			  bool *tail)
{
	uint32_t n_found = (peek->n_tokens - peek->n_tail) / r->model->block_tokens;

	*tail = peek->n_tail && make_room(e, r->model, n - n_found, peek->n_evictable);
	return *tail || make_room(e, r->model, n - n_found, MIN(peek->n_evictable, n_found));
}

/* Nothing runs, or is about to, that could end and make room. */
static bool nothing_to_wait_for(const struct engine *e)
{
	return !e->sched.n_active && !e->sched.n_ready && !on_its_way(e);
}

/* False: it must wait for blocks, and nobody may overtake it. */
static bool wait_for_blocks(struct engine *e, struct engine_request *r)
{
	if (!nothing_to_wait_for(e)) {
		e->lacks_blocks = true;
		return false;
	}
	engine_fail(e, r, SINK_ERROR_NO_MEMORY, "the request does not fit the KV memory beside what is pinned there");
	return true;
}

static bool admit_one(struct engine *e, struct engine_request *r)
{
	static const char more_kv[] = "the request needs more KV blocks than its user may have";
	static const char more_memory[] = "the request needs more memory than its user may have";
	/* One more than it has: the place of the token that comes out. */
	uint32_t n = blocks_for(r->model, r->seq.n_tokens + 1);
	uint64_t now = clock_ns();	/* one, so that what was peeked at is found */
	struct tree_peek peek;
	bool tail;
	int err;

	engine_prefix_peek(r, now, &peek);
	if (peek.n_unverified) {
		if (engine_kept_verify(e, r, now))
			return false;
		engine_prefix_peek(r, now, &peek);
	}
	if (peek.n_pending && engine_prefix_wait(e, r, now))
		return true;
	if (engine_disk_ask(e, r, &peek))
		return true;
	if (!make_room_for(e, r, n, &peek, &tail))
		return wait_for_blocks(e, r);
	if (peek.n_stored) {
		if (engine_prefix_restore(e, r, now))
			return false;
		now = clock_ns();
		engine_prefix_peek(r, now, &peek);
		if (!make_room_for(e, r, n, &peek, &tail))
			return wait_for_blocks(e, r);
	}
	do {
		err = fill_table(e, r, n, tail, now);
		/* The block that it would copy from may be what is one too many. */
		if (err > 0 && tail)
			err = fill_table(e, r, n, tail = false, now);
	} while ((err == POOL_E_QUOTA && yield_to_own(e, r, more_kv)) ||
		 (err == ENGINE_OPEN_E_QUOTA && yield_to_own(e, r, more_memory)) ||
		 (err == POOL_E_FULL && nothing_to_wait_for(e) && engine_reclaim(e, r->model, UINT64_MAX)));
	if (err == POOL_E_QUOTA || err == ENGINE_OPEN_E_QUOTA)
		return true;
	if (err == POOL_E_FULL)
		return wait_for_blocks(e, r);
	if (err) {
		engine_fail(e, r, SINK_ERROR_NO_MEMORY, "out of memory");
		return true;
	}
	if (!r->admit_ns)
		r->admit_ns = clock_ns();
	r->yields = false;
	engine_prefix_claim(r);
	if (!engine_disk_read(e, r))
		scheduler_activate(&e->sched, &r->seq);
	return true;
}

/* A ready one.  Where it has lost its open block and gets none, admission decides what becomes of it. */
static void activate(struct engine *e, struct sched_seq *seq)
{
	request_of(seq)->yields = false;
	if (engine_open_get(e, request_of(seq)))
		engine_preempt(e, seq);
	else
		scheduler_activate(&e->sched, seq);
}

static void activate_ready(struct engine *e)
{
	struct sched_seq *seq;

	while ((seq = scheduler_ready_next(&e->sched)))
		activate(e, seq);
}

/* Its place, and its blocks where they are needed, are for others. */
static void yield(struct engine *e, struct sched_seq *seq)
{
	request_of(seq)->yields = true;
	scheduler_ready(&e->sched, seq);
}

/*
 * As admit_one().  Where seq would wait for blocks, and its account has nothing that runs, those that have more than
 * one sequence running give up what the youngest of them have, until there is room.
 */
static bool admit(struct engine *e, struct sched_seq *seq)
{
	struct sched_seq *victim;

	for (;;) {
		e->lacks_blocks = false;
		if (admit_one(e, request_of(seq)))
			return true;
		victim = e->lacks_blocks ? scheduler_yielder(&e->sched, seq) : NULL;
		if (!victim)
			return false;
		yield(e, victim);
	}
}

/* seq gets the place of an account that has more than its share of them.  As admit_one(). */
static bool take_place(struct engine *e, struct sched_seq *seq, struct sched_seq *victim)
{
	yield(e, victim);
	if (seq->state == SCHED_WAITING)
		return admit(e, seq);
	activate(e, seq);
	return true;
}

void engine_admit(struct engine *e)
{
	struct sched_seq *seq, *victim;
	bool more = true;

	engine_prefix_woken(e);
	activate_ready(e);
	scheduler_admit_begin(&e->sched);
	while (more) {
		while (more && (seq = scheduler_admit_next(&e->sched)))
			more = admit(e, seq);
		seq = more ? scheduler_claim(&e->sched, &victim) : NULL;
		if (!seq)
			break;
		more = take_place(e, seq, victim);
		/* Nobody got into it, then. */
		activate_ready(e);
	}
	activate_ready(e);
	/* Others need not wait for what those compute who gave up their place. */
	list_for_each(l, &e->sched.ready) {
		struct engine_request *r = request_of(list_entry(l, struct sched_seq, link));

		if (r->yields)
			engine_prefix_abandon(r);
		r->yields = false;
	}
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
	int err = take_blocks(e, r, blocks_for(r->model, seq->n_tokens));

	if (!err)
		return;
	if (err < 0)
		engine_fail(e, r, SINK_ERROR_NO_MEMORY, "out of memory");
	else if (err == POOL_E_QUOTA)
		provide_from_own(e, seq);
	else if (engine_reclaim(e, r->model, seq->rank))
		return;
	else if (e->sched.n_active > 1 || on_its_way(e))
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
