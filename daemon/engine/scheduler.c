/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/scheduler.h"

#include <errno.h>
#include <stdlib.h>

#include "ipc/base/checked.h"

#define seq_of(l) list_entry((l), struct sched_seq, link)
#define uid_of(l) list_entry((l), struct sched_uid, admit_link)
#define share_of(l) list_entry((l), struct sched_share, link)
#define share_of_turn(l) list_entry((l), struct sched_share, turn_link)

void scheduler_init(struct scheduler *s, uint32_t max_seqs, uint32_t quantum, uint32_t logits_quantum)
{
	*s = (struct scheduler){
		.max_seqs = max_seqs, .quantum = quantum, .logits_quantum = logits_quantum, .fair = true,
	};
	list_init(&s->admit_turns);
	list_init(&s->parked);
	list_init(&s->ready);
	list_init(&s->held);
}

void scheduler_init_model(struct sched_model *m, uint32_t block_tokens)
{
	*m = (struct sched_model){ .block_tokens = block_tokens };
	list_init(&m->turns);
}

static struct sched_uid *find_uid(struct scheduler *s, uid_t uid)
{
	list_for_each(l, &s->admit_turns) {
		struct sched_uid *u = uid_of(l);
		if (u->uid == uid)
			return u;
	}
	return NULL;
}

static struct sched_uid *uid_new(struct scheduler *s, uid_t uid)
{
	struct sched_uid *u = calloc(1, sizeof(*u));

	if (!u)
		return NULL;
	u->uid = uid;
	u->weight = SCHED_WEIGHT;
	list_init(&u->waiting);
	list_init(&u->shares);
	list_push_back(&s->admit_turns, &u->admit_link);
	return u;
}

/* One that has no shares. */
static void uid_free(struct sched_uid *u)
{
	list_unlink(&u->admit_link);
	free(u);
}

static struct sched_share *find_share(struct sched_uid *u, const struct sched_model *model)
{
	list_for_each(l, &u->shares) {
		if (share_of(l)->model == model)
			return share_of(l);
	}
	return NULL;
}

static struct sched_share *share_new(struct sched_uid *u, struct sched_model *model)
{
	struct sched_share *share = calloc(1, sizeof(*share));

	if (!share)
		return NULL;
	share->uid = u;
	share->model = model;
	list_init(&share->active);
	list_push_back(&u->shares, &share->link);
	list_push_back(&model->turns, &share->turn_link);
	return share;
}

static struct sched_share *get_share(struct scheduler *s, uid_t uid, struct sched_model *model)
{
	struct sched_uid *u = find_uid(s, uid);
	struct sched_share *share = u ? find_share(u, model) : NULL;

	if (share)
		return share;
	if (!u)
		u = uid_new(s, uid);
	if (!u)
		return NULL;
	share = share_new(u, model);
	if (!share && list_empty(&u->shares))
		uid_free(u);
	return share;
}

int scheduler_add(struct scheduler *s, struct sched_seq *seq, struct sched_model *model, uid_t uid)
{
	struct sched_share *share = get_share(s, uid, model);

	if (!share)
		return -ENOMEM;
	share->n_refs++;
	list_init(&seq->link);
	seq->share = share;
	seq->state = SCHED_NONE;
	seq->arrival = s->next_arrival++;
	seq->rank = UINT64_MAX;
	return 0;
}

void scheduler_set_weight(struct sched_seq *seq, uint32_t weight)
{
	seq->share->uid->weight = MIN(MAX(weight, 1u), SCHED_WEIGHT_MAX);
}

/* Counts seq in the state that it is in, or no more: +1 or -1. */
static void count(struct scheduler *s, const struct sched_seq *seq, uint32_t by)
{
	struct sched_model *m = seq->share->model;

	switch (seq->state) {
	case SCHED_WAITING:
	case SCHED_HELD:
		s->n_waiting += by;
		m->n_waiting += by;
		break;
	case SCHED_ACTIVE:
		s->n_active += by;
		m->n_active += by;
		seq->share->uid->n_active += by;
		break;
	case SCHED_PARKED:
		s->n_parked += by;
		m->n_parked += by;
		break;
	case SCHED_READY:
		s->n_ready += by;
		m->n_ready += by;
		seq->share->uid->n_ready += by;
		break;
	case SCHED_NONE:
		break;
	}
}

/* Takes seq out of the list of its state. */
static void leave(struct scheduler *s, struct sched_seq *seq)
{
	list_unlink(&seq->link);
	count(s, seq, -1u);
	seq->state = SCHED_NONE;
}

static void enter(struct scheduler *s, struct sched_seq *seq, enum sched_state state)
{
	seq->state = state;
	count(s, seq, 1);
}

void scheduler_remove(struct scheduler *s, struct sched_seq *seq)
{
	struct sched_share *share = seq->share;
	struct sched_uid *u = share->uid;

	leave(s, seq);
	seq->share = NULL;
	if (--share->n_refs)
		return;
	list_unlink(&share->turn_link);
	list_unlink(&share->link);
	free(share);
	if (list_empty(&u->shares))
		uid_free(u);
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
	insert_by_age(&seq->share->uid->waiting, seq);
	enter(s, seq, SCHED_WAITING);
}

/* seq is about to leave the queue before those who came earlier. */
static void note_overtaken(struct sched_seq *seq)
{
	list_for_each(l, &seq->share->uid->waiting) {
		if (l == &seq->link)
			break;
		seq_of(l)->n_overtaken++;
	}
}

void scheduler_activate(struct scheduler *s, struct sched_seq *seq)
{
	struct sched_uid *u = seq->share->uid;

	if (seq->state == SCHED_WAITING) {
		note_overtaken(seq);
		list_unlink(&u->admit_link);
		list_push_back(&s->admit_turns, &u->admit_link);
	}
	leave(s, seq);
	if (seq->rank == UINT64_MAX)
		seq->rank = s->next_rank++;
	insert_by_age(&seq->share->active, seq);
	seq->n_rows = 0;
	enter(s, seq, SCHED_ACTIVE);
}

void scheduler_hold(struct scheduler *s, struct sched_seq *seq)
{
	leave(s, seq);
	list_push_back(&s->held, &seq->link);
	enter(s, seq, SCHED_HELD);
}

void scheduler_park(struct scheduler *s, struct sched_seq *seq)
{
	leave(s, seq);
	insert_by_age(&s->parked, seq);
	enter(s, seq, SCHED_PARKED);
}

void scheduler_ready(struct scheduler *s, struct sched_seq *seq)
{
	leave(s, seq);
	insert_by_age(&s->ready, seq);
	enter(s, seq, SCHED_READY);
}

void scheduler_admit_begin(struct scheduler *s)
{
	list_for_each(l, &s->admit_turns)
		uid_of(l)->skipped = false;
}

/* Who of the uid's waiting sequences is next; there is one. */
static struct sched_seq *choose(struct scheduler *s, struct sched_uid *u)
{
	struct sched_seq *best = seq_of(u->waiting.next);
	uint32_t n_best = 0, n_seen = 0;

	/* Preempted ones are owed their place. */
	if (!s->n_cached || best->rank != UINT64_MAX || best->n_overtaken >= SCHED_OVERTAKEN_MAX ||
	    u->waiting.next == u->waiting.prev)
		return best;
	list_for_each(l, &u->waiting) {
		uint32_t n = s->n_cached(seq_of(l));

		if (n > n_best) {
			n_best = n;
			best = seq_of(l);
		}
		if (++n_seen == SCHED_WINDOW)
			break;
	}
	return best;
}

struct sched_seq *scheduler_admit_next(struct scheduler *s)
{
	if (s->n_active >= s->max_seqs)
		return NULL;
	list_for_each(l, &s->admit_turns) {
		struct sched_uid *u = uid_of(l);
		if (!u->skipped && !list_empty(&u->waiting))
			return choose(s, u);
	}
	return NULL;
}

void scheduler_admit_skip(struct scheduler *s, struct sched_seq *seq)
{
	seq->share->uid->skipped = true;
}

struct sched_seq *scheduler_ready_next(struct scheduler *s)
{
	if (s->n_active >= s->max_seqs || list_empty(&s->ready))
		return NULL;
	return seq_of(s->ready.next);
}

/* --- places --- */

/* With one more, or less. */
static uint64_t places(const struct sched_uid *u, int more)
{
	return (uint64_t)((int64_t)u->n_active + more);
}

/* a would have fewer places than b, by their weights. */
static bool has_less(const struct sched_uid *a, const struct sched_uid *b, int more)
{
	return places(a, more) * b->weight < places(b, more) * a->weight;
}

static bool wants_place(const struct sched_uid *u)
{
	return u->n_ready || (!u->skipped && !list_empty(&u->waiting));
}

static struct sched_seq *oldest_ready(struct scheduler *s, const struct sched_uid *u)
{
	list_for_each(l, &s->ready) {
		if (seq_of(l)->share->uid == u)
			return seq_of(l);
	}
	return NULL;
}

static struct sched_seq *youngest_active_of(const struct sched_uid *u)
{
	struct sched_seq *youngest = NULL;

	list_for_each(l, &u->shares) {
		struct list *active = &share_of(l)->active;

		if (!list_empty(active) && (!youngest || older(youngest, seq_of(active->prev))))
			youngest = seq_of(active->prev);
	}
	return youngest;
}

struct sched_seq *scheduler_claim(struct scheduler *s, struct sched_seq **victim)
{
	struct sched_uid *poor = NULL, *rich = NULL;
	struct sched_seq *seq;

	if (!s->fair || s->n_active < s->max_seqs)
		return NULL;
	list_for_each(l, &s->admit_turns) {
		struct sched_uid *u = uid_of(l);

		if (wants_place(u) && (!poor || has_less(u, poor, 1)))
			poor = u;
		if (u->n_active && (!rich || has_less(rich, u, -1)))
			rich = u;
	}
	/* The one who gives it must not be the poorer one then: nothing would come to rest. */
	if (!poor || !rich || rich == poor ||
	    places(rich, -1) * poor->weight < places(poor, 1) * rich->weight)
		return NULL;
	seq = oldest_ready(s, poor);
	*victim = youngest_active_of(rich);
	return seq ? seq : choose(s, poor);
}

struct sched_seq *scheduler_yielder(struct scheduler *s, const struct sched_seq *seq)
{
	struct sched_uid *rich = NULL;

	if (!s->fair || seq->share->uid->n_active)
		return NULL;
	list_for_each(l, &s->admit_turns) {
		struct sched_uid *u = uid_of(l);

		if (u->n_active > 1 && (!rich || has_less(rich, u, -1)))
			rich = u;
	}
	return rich ? youngest_active_of(rich) : NULL;
}

/* --- who gives way --- */

/* The youngest in a list sorted by age that holds blocks. */
static struct sched_seq *youngest_holder(struct list *head, const struct sched_uid *uid,
					 const struct sched_model *model)
{
	for (struct list *l = head->prev; l != head; l = l->prev) {
		struct sched_seq *seq = seq_of(l);
		if (seq->n_blocks && (!uid || seq->share->uid == uid) && (!model || seq->share->model == model))
			return seq;
	}
	return NULL;
}

static struct sched_seq *youngest_active(struct scheduler *s, const struct sched_uid *uid,
					 const struct sched_model *model)
{
	struct sched_seq *youngest = NULL;

	list_for_each(l, &s->admit_turns) {
		if (uid && uid_of(l) != uid)
			continue;
		list_for_each(k, &uid_of(l)->shares) {
			struct sched_seq *seq = youngest_holder(&share_of(k)->active, NULL, model);
			if (seq && (!youngest || older(youngest, seq)))
				youngest = seq;
		}
	}
	return youngest;
}

struct sched_seq *scheduler_victim(struct scheduler *s, const struct sched_uid *uid,
				   const struct sched_model *model, bool idle_only)
{
	struct sched_seq *victim = youngest_holder(&s->parked, uid, model);

	if (!victim)
		victim = youngest_holder(&s->ready, uid, model);
	if (!victim && !idle_only)
		victim = youngest_active(s, uid, model);
	return victim;
}

static uint32_t blocks_in(const struct list *head, const struct sched_model *model)
{
	uint32_t n = 0;

	list_for_each(l, head)
		if (seq_of(l)->share->model == model)
			n += seq_of(l)->n_blocks;
	return n;
}

uint32_t scheduler_idle_blocks(const struct scheduler *s, const struct sched_model *model)
{
	return blocks_in(&s->parked, model) + blocks_in(&s->ready, model);
}

struct sched_seq *scheduler_short_of_blocks(struct sched_model *m)
{
	struct sched_seq *oldest = NULL;

	scheduler_for_each_active(seq, m) {
		if ((uint64_t)seq->n_blocks * m->block_tokens < seq->n_tokens && (!oldest || older(seq, oldest)))
			oldest = seq;
	}
	return oldest;
}
