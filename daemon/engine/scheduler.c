/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/scheduler.h"

#include <errno.h>
#include <stdlib.h>

#include "ipc/base/checked.h"

#define seq_of(l) list_entry((l), struct sched_seq, link)
#define uid_of_admit(l) list_entry((l), struct sched_uid, admit_link)
#define uid_of_prefill(l) list_entry((l), struct sched_uid, prefill_link)

void scheduler_init(struct scheduler *s, uint32_t max_seqs, uint32_t quantum)
{
	*s = (struct scheduler){ .max_seqs = max_seqs, .quantum = quantum };
	list_init(&s->admit_turns);
	list_init(&s->prefill_turns);
	list_init(&s->parked);
	list_init(&s->ready);
}

static struct sched_uid *find_uid(struct scheduler *s, uid_t uid)
{
	list_for_each(l, &s->admit_turns) {
		struct sched_uid *u = uid_of_admit(l);
		if (u->uid == uid)
			return u;
	}
	return NULL;
}

int scheduler_add(struct scheduler *s, struct sched_seq *seq, uid_t uid)
{
	struct sched_uid *u = find_uid(s, uid);

	if (!u) {
		u = calloc(1, sizeof(*u));
		if (!u)
			return -ENOMEM;
		u->uid = uid;
		list_init(&u->waiting);
		list_init(&u->active);
		list_push_back(&s->admit_turns, &u->admit_link);
		list_push_back(&s->prefill_turns, &u->prefill_link);
	}
	u->n_refs++;
	list_init(&seq->link);
	seq->owner = u;
	seq->state = SCHED_NONE;
	seq->arrival = s->next_arrival++;
	seq->rank = UINT64_MAX;
	return 0;
}

/* Takes seq out of the list of its state. */
static void leave(struct scheduler *s, struct sched_seq *seq)
{
	list_unlink(&seq->link);
	s->n_waiting -= seq->state == SCHED_WAITING;
	s->n_active -= seq->state == SCHED_ACTIVE;
	s->n_parked -= seq->state == SCHED_PARKED;
	s->n_ready -= seq->state == SCHED_READY;
	seq->state = SCHED_NONE;
}

void scheduler_remove(struct scheduler *s, struct sched_seq *seq)
{
	struct sched_uid *u = seq->owner;

	leave(s, seq);
	seq->owner = NULL;
	if (--u->n_refs)
		return;
	list_unlink(&u->admit_link);
	list_unlink(&u->prefill_link);
	free(u);
}

static bool older(const struct sched_seq *a, const struct sched_seq *b)
{
	return a->rank < b->rank || (a->rank == b->rank && a->arrival < b->arrival);
}

/* Most come last, so the search begins there. */
static void insert_by_age(struct list *head, struct sched_seq *seq)
{
	struct list *where = head;

	while (where->prev != head && older(seq, seq_of(where->prev)))
		where = where->prev;
	list_insert_before(where, &seq->link);
}

void scheduler_push(struct scheduler *s, struct sched_seq *seq)
{
	leave(s, seq);
	insert_by_age(&seq->owner->waiting, seq);
	seq->state = SCHED_WAITING;
	s->n_waiting++;
}

void scheduler_activate(struct scheduler *s, struct sched_seq *seq)
{
	struct sched_uid *u = seq->owner;

	if (seq->state == SCHED_WAITING) {
		list_unlink(&u->admit_link);
		list_push_back(&s->admit_turns, &u->admit_link);
	}
	leave(s, seq);
	if (seq->rank == UINT64_MAX)
		seq->rank = s->next_rank++;
	insert_by_age(&u->active, seq);
	seq->state = SCHED_ACTIVE;
	seq->n_rows = 0;
	s->n_active++;
}

void scheduler_park(struct scheduler *s, struct sched_seq *seq)
{
	leave(s, seq);
	insert_by_age(&s->parked, seq);
	seq->state = SCHED_PARKED;
	s->n_parked++;
}

void scheduler_ready(struct scheduler *s, struct sched_seq *seq)
{
	leave(s, seq);
	insert_by_age(&s->ready, seq);
	seq->state = SCHED_READY;
	s->n_ready++;
}

void scheduler_admit_begin(struct scheduler *s)
{
	list_for_each(l, &s->admit_turns)
		uid_of_admit(l)->skipped = false;
}

struct sched_seq *scheduler_admit_next(struct scheduler *s)
{
	if (s->n_active >= s->max_seqs)
		return NULL;
	list_for_each(l, &s->admit_turns) {
		struct sched_uid *u = uid_of_admit(l);
		if (!u->skipped && !list_empty(&u->waiting))
			return seq_of(u->waiting.next);
	}
	return NULL;
}

void scheduler_admit_skip(struct scheduler *s, struct sched_seq *seq)
{
	seq->owner->skipped = true;
}

struct sched_seq *scheduler_ready_next(struct scheduler *s)
{
	if (s->n_active >= s->max_seqs || list_empty(&s->ready))
		return NULL;
	return seq_of(s->ready.next);
}

/* The youngest in a list sorted by age that holds blocks. */
static struct sched_seq *youngest_holder(struct list *head, const struct sched_uid *uid)
{
	for (struct list *l = head->prev; l != head; l = l->prev) {
		struct sched_seq *seq = seq_of(l);
		if (seq->n_blocks && (!uid || seq->owner == uid))
			return seq;
	}
	return NULL;
}

struct sched_seq *scheduler_victim(struct scheduler *s, const struct sched_uid *uid, bool idle_only)
{
	struct sched_seq *victim = youngest_holder(&s->parked, uid);

	if (!victim)
		victim = youngest_holder(&s->ready, uid);
	if (victim || idle_only)
		return victim;
	list_for_each(l, &s->prefill_turns) {
		struct sched_seq *seq = youngest_holder(&uid_of_prefill(l)->active, uid);
		if (seq && (!victim || older(victim, seq)))
			victim = seq;
	}
	return victim;
}

uint32_t scheduler_idle_blocks(const struct scheduler *s)
{
	uint32_t n = 0;

	list_for_each(l, &s->parked)
		n += seq_of(l)->n_blocks;
	list_for_each(l, &s->ready)
		n += seq_of(l)->n_blocks;
	return n;
}

struct sched_seq *scheduler_short_of_blocks(struct scheduler *s, uint32_t block_tokens)
{
	struct sched_seq *oldest = NULL;

	scheduler_for_each_active(seq, s) {
		if ((uint64_t)seq->n_blocks * block_tokens < seq->n_tokens && (!oldest || older(seq, oldest)))
			oldest = seq;
	}
	return oldest;
}

/* Tokens of the quantum that seq could still use; those with one token don't need it. */
static uint32_t prefill_demand(const struct sched_seq *seq)
{
	uint32_t n = seq->n_tokens - seq->n_computed;

	return n > 1 ? n - seq->n_rows : 0;
}

static uint32_t uid_demand(const struct sched_uid *u)
{
	uint64_t n = 0;

	list_for_each(l, &u->active)
		n += prefill_demand(seq_of(l));
	return (uint32_t)MIN(n, (uint64_t)UINT32_MAX);
}

static uint32_t n_uids_with_demand(const struct scheduler *s)
{
	uint32_t n = 0;

	list_for_each(l, &s->prefill_turns)
		n += uid_demand(uid_of_prefill(l)) > 0;
	return n;
}

/* Gives the uid's sequences up to n rows, the oldest first; returns how many. */
static uint32_t grant(struct sched_uid *u, uint32_t n)
{
	uint32_t left = n;

	list_for_each(l, &u->active) {
		struct sched_seq *seq = seq_of(l);
		uint32_t rows = MIN(prefill_demand(seq), left);

		seq->n_rows += rows;
		left -= rows;
	}
	return n - left;
}

/* One even division of the budget; returns what nobody took. */
static uint32_t share(struct scheduler *s, uint32_t budget)
{
	uint32_t n_uids = n_uids_with_demand(s);

	list_for_each(l, &s->prefill_turns) {
		struct sched_uid *u = uid_of_prefill(l);

		if (!n_uids)
			break;
		if (!uid_demand(u))
			continue;
		/* Rounded up: the uids whose turn it is get the odd tokens. */
		budget -= grant(u, (budget + n_uids - 1) / n_uids);
		n_uids--;
	}
	return budget;
}

/* The first uid that was served goes to the end. */
static void rotate_prefill(struct scheduler *s)
{
	list_for_each(l, &s->prefill_turns) {
		if (!list_empty(&uid_of_prefill(l)->active)) {
			list_unlink(l);
			list_push_back(&s->prefill_turns, l);
			return;
		}
	}
}

uint32_t scheduler_plan(struct scheduler *s)
{
	uint32_t budget = s->quantum, n_rows = 0;

	scheduler_for_each_active(seq, s)
		seq->n_rows = seq->n_tokens - seq->n_computed == 1;
	while (budget && n_uids_with_demand(s))
		budget = share(s, budget);
	scheduler_for_each_active(seq, s)
		n_rows += seq->n_rows;
	rotate_prefill(s);
	return n_rows;
}
