/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is done beside sequences that decode, so that their tokens keep coming: between two of their steps the
 * prompts, and what admission brings back from the host tier or verifies, take no longer than a step without all that
 * takes, times the configured percentage less 100.  Models take turns: with several at work each keeps to that by
 * itself.
 */
#include "daemon/engine/engine-private.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"

/* A step may be so long in any case: nobody reads faster. */
#define GAP_FLOOR_NS UINT64_C(4000000)

static uint64_t beside(const struct engine *e, const struct engine_model *em)
{
	uint64_t decode = pace_decode_ns(&em->pace, em->n_decode), all;

	if (!checked_mul_u64(decode, e->gap_percent, &all))
		return UINT64_MAX;
	return MAX(all / 100, decode ? GAP_FLOOR_NS : 0) - decode;
}

/* In all, between two steps; UINT64_MAX: nobody waits for the next one. */
static uint64_t gap_ns(const struct engine *e)
{
	uint64_t ns = UINT64_MAX;

	if (!e->gap_percent)
		return ns;
	list_for_each(l, &e->models) {
		const struct engine_model *em = list_entry(l, struct engine_model, link);

		if (em->sched.n_active && em->n_decode)
			ns = MIN(ns, beside(e, em));
	}
	return ns;
}

static uint64_t spent_ns(const struct engine *e)
{
	return clock_ns() - e->step_end_ns;
}

bool engine_gap_used(const struct engine *e)
{
	uint64_t ns = gap_ns(e);

	/* The rest is the prompts'. */
	return ns != UINT64_MAX && spent_ns(e) >= ns / 2;
}

uint32_t engine_gap_tokens(const struct engine *e, const struct engine_model *em, uint32_t position)
{
	uint64_t ns = gap_ns(e);

	if (ns == UINT64_MAX)
		return e->sched.quantum;
	if (em->n_decode && pace_wants_decode(&em->pace, em->n_decode))
		return 0;
	return pace_tokens(&em->pace, position, ns - MIN(ns, spent_ns(e)), e->sched.quantum);
}

void engine_gap_note(struct engine *e, struct engine_model *em, const struct kb_batch *b, uint64_t ns)
{
	struct pace_step step = { .n_decode = em->n_decode, .n_prefill = b->n_rows - em->n_decode, .ns = ns };

	for (uint32_t i = 0; i < b->n_seqs && step.n_prefill; i++) {
		const struct kb_seq *seq = &b->seqs[i];

		if (!e->entries[i].decodes)
			step.positions += (uint64_t)seq->n_rows * seq->first_pos +
					  (uint64_t)seq->n_rows * (seq->n_rows - 1) / 2;
	}
	pace_note(&em->pace, &step);
}
