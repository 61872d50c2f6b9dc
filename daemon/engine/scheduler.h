/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scheduler.h - who is next: decisions alone, without device, pool or clock.
 *
 *                 push                    activate
 *      (new) ------------> WAITING --------------------> ACTIVE
 *                             ^                          |  ^
 *                             |  push (preempted)        |  | activate
 *                             +--------------------------+  |
 *                             |                    park  |  |
 *                             |                          v  |
 *                             +-------- READY <------- PARKED
 *                               push           ready
 *
 * HELD: was WAITING; what it waits for is not a place (push brings it back).
 * WAITING: holds no blocks.  ACTIVE: takes part in steps, at most max_seqs.
 * PARKED: its reader must make room first; holds blocks or, preempted, none.
 * READY: was parked, has blocks, waits for a place among the active.
 *
 * Among waiting sequences uids take turns; inside a uid preempted ones come
 * first, then first come, first served, but of the first SCHED_WINDOW the one that
 * has most of its tokens in the cache, so that they are not evicted meanwhile; nobody
 * is overtaken more than SCHED_OVERTAKEN_MAX times.  A sequence's rank is the order in
 * which sequences were first admitted; it keeps its rank when preempted, so the
 * one of lowest rank always gets on, and every one becomes that some day.
 *
 * Sequences of several models live side by side: places, turns and ranks are
 * common to all, a step is planned for one model at a time.
 *
 * Where several accounts (uids, or what stands for a key) have work, they share by
 * weight: places, tokens of decoding and tokens of prefill.
 *
 * Decoding: each account has a virtual time for each model, which a token moves on by 1 / weight.  In a step
 * the account that would be the last one even after a token of every sequence it has gets them all, and the others
 * as many as don't take them beyond that one:
 *
 *	horizon = min over accounts of (time + n_decoding / weight)
 *	tokens = min(n_decoding, (horizon - time) * weight)
 *
 * So all are less than one token of theirs behind the horizon, and an account alone always has all of its sequences
 * in the step.  One that had nothing to decode continues where the first of the others is: what it did not use is
 * not saved up, and leaving gains nothing.
 * (Virtual token counters: Sheng et al. 2024, arXiv:2401.00588; start times: Goyal, Vin, Cheng 1996.)
 * Inside an account sequences take turns, by rank.
 *
 * Prefill: the quantum is divided by weight, whoever is behind first, since what is odd goes to the first.
 *
 * Thread: the engine thread.
 */
#ifndef KVD_SCHEDULER_H
#define KVD_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ipc/base/list.h"

#define SCHED_WINDOW 8u
#define SCHED_OVERTAKEN_MAX 16u
#define SCHED_WEIGHT 100u
#define SCHED_WEIGHT_MAX 10000u
/* Virtual time of a token at weight 1; many weights divide it. */
#define SCHED_TOKEN (UINT64_C(720720) * SCHED_WEIGHT)

enum sched_state { SCHED_NONE, SCHED_WAITING, SCHED_HELD, SCHED_ACTIVE, SCHED_PARKED, SCHED_READY };

/* Embedded in what stands for a model; outlives its sequences. */
struct sched_model {
	struct list turns;		/* of sched_share; the first has its turn in prefill */
	uint32_t block_tokens;
	uint32_t n_waiting, n_active, n_parked, n_ready;
	uint64_t decode_end, prefill_end;	/* the furthest virtual times that any account has got to */
};

/* A uid that has sequences. */
struct sched_uid {
	struct list admit_link;		/* in scheduler.admit_turns */
	struct list shares;		/* one for each model that it has sequences of */
	uid_t uid;
	uint32_t weight;
	uint32_t n_active, n_ready;
	struct list waiting;		/* by rank, then arrival */
	bool skipped;			/* in this round of admission */
};

/* A uid's sequences of one model. */
struct sched_share {
	struct list turn_link;		/* in sched_model.turns */
	struct list link;		/* in sched_uid.shares */
	struct sched_uid *uid;
	struct sched_model *model;
	struct list active;		/* by rank */
	uint32_t n_refs;		/* sequences */
	uint64_t decode_time, prefill_time;	/* virtual */
	uint32_t n_decoding;		/* sequences that have one token to compute, in the plan now or last */
	bool prefills;			/* some have more */
	uint64_t last_rank;		/* of the sequence whose turn in decoding was last */
};

/* Embedded in a request. */
struct sched_seq {
	struct list link;
	struct sched_share *share;	/* NULL: not the scheduler's */
	enum sched_state state;
	uint64_t arrival;
	uint64_t rank;			/* UINT64_MAX: never admitted yet */
	uint32_t n_tokens;		/* known: prompt and generated */
	uint32_t n_computed;		/* of them in the KV cache */
	uint32_t n_blocks;		/* held */
	uint32_t n_rows;		/* planned for the step */
	uint32_t n_overtaken;		/* times that a later one of its uid was admitted */
	/* Tokens at positions logits_from .. logits_to - 1 are computed with logits. */
	uint32_t logits_from, logits_to;
};

struct scheduler {
	uint32_t max_seqs, quantum, logits_quantum;
	bool fair;			/* false: all that decode are in every step, and places stay whose they are */
	uint32_t logits_left;		/* of it, while a step is planned */
	/* Tokens of a waiting sequence that are in the cache, or NULL: nobody knows. */
	uint32_t (*n_cached)(struct sched_seq *seq);
	uint64_t next_arrival, next_rank;
	struct list admit_turns;	/* uids; the first has its turn */
	struct list parked, ready;	/* by rank */
	struct list held;
	uint32_t n_waiting, n_active, n_parked, n_ready;
};

void scheduler_init(struct scheduler *s, uint32_t max_seqs, uint32_t quantum, uint32_t logits_quantum);
void scheduler_init_model(struct sched_model *m, uint32_t block_tokens);

/* Before anything else with seq, which is zeroed but for n_tokens.  0 or -ENOMEM. */
int scheduler_add(struct scheduler *s, struct sched_seq *seq, struct sched_model *model, uid_t uid);
/* Its account's, from now on: 1 .. SCHED_WEIGHT_MAX, others count as the nearest. */
void scheduler_set_weight(struct sched_seq *seq, uint32_t weight);
/* From whatever state; its blocks are gone. */
void scheduler_remove(struct scheduler *s, struct sched_seq *seq);

void scheduler_push(struct scheduler *s, struct sched_seq *seq);
void scheduler_activate(struct scheduler *s, struct sched_seq *seq);
/* Out of the queue until it is pushed; counted as waiting. */
void scheduler_hold(struct scheduler *s, struct sched_seq *seq);
void scheduler_park(struct scheduler *s, struct sched_seq *seq);
void scheduler_ready(struct scheduler *s, struct sched_seq *seq);

/*
 * A round of admission: begin, then next until it returns NULL; between two
 * calls the sequence returned is activated, removed, or its uid skipped.
 * Activation is what takes a uid's turn.
 */
void scheduler_admit_begin(struct scheduler *s);
struct sched_seq *scheduler_admit_next(struct scheduler *s);
void scheduler_admit_skip(struct scheduler *s, struct sched_seq *seq);

/* The oldest of the ready ones, if there is a place for it. */
struct sched_seq *scheduler_ready_next(struct scheduler *s);

/*
 * All places are taken, and some account has so few of them, for its weight, that one with more should give it one
 * of its: returns the waiting or ready sequence that is to have it, *victim is the active one that is to be ready
 * instead, the youngest of its account.  NULL: they are fairly divided.  Within a round of admission.
 */
struct sched_seq *scheduler_claim(struct scheduler *s, struct sched_seq **victim);

/*
 * seq waits, and its account has nothing active: the youngest active sequence, other than its only one, of the account
 * that has most of them for its weight.  NULL: there is none.
 */
struct sched_seq *scheduler_yielder(struct scheduler *s, const struct sched_seq *seq);

/*
 * Who gives back blocks first: of the parked ones the youngest, then of the
 * ready, then of the active (unless idle_only).  uid, model: only sequences of
 * that one, unless NULL.  NULL: nobody holds any.
 */
struct sched_seq *scheduler_victim(struct scheduler *s, const struct sched_uid *uid,
				   const struct sched_model *model, bool idle_only);

/* Blocks that scheduler_victim(..., model, true) can free. */
uint32_t scheduler_idle_blocks(const struct scheduler *s, const struct sched_model *model);

/* The model's oldest active sequence that holds too few blocks for its tokens, or NULL. */
struct sched_seq *scheduler_short_of_blocks(struct sched_model *m);

/* scheduler-plan.c */
/*
 * Sets n_rows of every active sequence of the model, in two parts: one for some of those that have one token to
 * compute, and 0 for all others; returns how many, not 0 where there are any.
 */
uint32_t scheduler_plan_decode(struct scheduler *s, struct sched_model *m);
/*
 * Then at most quantum (up to the scheduler's) in all for those that have more, shared by weight between uids and
 * first come, first served inside one; of these at most logits_quantum in all with logits, where who is behind
 * comes first.  Returns how many, not 0 where there are any, and a quantum.
 */
uint32_t scheduler_plan_prefill(struct scheduler *s, struct sched_model *m, uint32_t quantum);
/* Whether any has more than one token to compute; *position: how many the furthest of them has behind it. */
bool scheduler_prefills(struct sched_model *m, uint32_t *position);

/* All active sequences of a model, uid by uid; the body must not move any. */
#define scheduler_for_each_active(seq, m) \
	for (struct list *turn_ = (m)->turns.next; turn_ != &(m)->turns; turn_ = turn_->next) \
		for (struct sched_seq *seq = scheduler_first_active_(turn_); seq; \
		     seq = scheduler_next_active_(seq))

static inline struct sched_seq *scheduler_first_active_(struct list *turn_link)
{
	struct sched_share *share = list_entry(turn_link, struct sched_share, turn_link);

	return list_empty(&share->active) ? NULL : list_entry(share->active.next, struct sched_seq, link);
}

static inline struct sched_seq *scheduler_next_active_(struct sched_seq *seq)
{
	return seq->link.next == &seq->share->active ? NULL
						     : list_entry(seq->link.next, struct sched_seq, link);
}

#endif
