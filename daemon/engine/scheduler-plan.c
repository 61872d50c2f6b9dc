/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of one step, see scheduler.h. */
#include "daemon/engine/scheduler.h"
#include "ipc/base/checked.h"

#define seq_of(l) list_entry((l), struct sched_seq, link)
#define share_of_turn(l) list_entry((l), struct sched_share, turn_link)

static uint64_t token_time(const struct sched_share *share)
{
	return SCHED_TOKEN / share->uid->weight;
}

static bool decodes(const struct sched_seq *seq)
{
	return seq->n_tokens - seq->n_computed == 1;
}

/* --- decoding --- */

/* Gives up to n of the account's decoding sequences of ranks from..to a row; returns how many. */
static uint32_t grant_turns(struct sched_share *share, uint64_t from, uint64_t to, uint32_t n)
{
	uint32_t left = n;

	list_for_each(l, &share->active) {
		struct sched_seq *seq = seq_of(l);

		if (!left)
			break;
		if (!decodes(seq) || seq->rank < from || seq->rank > to)
			continue;
		seq->n_rows = 1;
		share->last_rank = seq->rank;
		left--;
	}
	return n - left;
}

/* A token for n of its sequences, those that come after the last one that had its turn. */
static void grant_decode(struct sched_share *share, uint32_t n)
{
	uint64_t last = share->last_rank;
	uint32_t n_after = grant_turns(share, last + 1, UINT64_MAX, n);

	grant_turns(share, 0, last, n - n_after);
	share->decode_time += n * token_time(share);
}

static uint32_t count_decoding(const struct sched_share *share)
{
	uint32_t n = 0;

	list_for_each(l, &share->active)
		n += decodes(seq_of(l));
	return n;
}

/* Those that begin to decode now do so where the first of the others is. */
static void set_decode_times(struct sched_model *m)
{
	list_for_each(l, &m->turns) {
		struct sched_share *share = share_of_turn(l);
		bool went_on = share->n_decoding;

		share->n_decoding = count_decoding(share);
		if (share->n_decoding && !went_on)
			share->decode_time = m->decode_end;
	}
}

uint32_t scheduler_plan_decode(struct scheduler *s, struct sched_model *m)
{
	uint64_t horizon = UINT64_MAX;
	uint32_t n_rows = 0;

	scheduler_for_each_active(seq, m)
		seq->n_rows = 0;
	set_decode_times(m);
	list_for_each(l, &m->turns) {
		struct sched_share *share = share_of_turn(l);

		if (share->n_decoding)
			horizon = MIN(horizon, share->decode_time + share->n_decoding * token_time(share));
	}
	list_for_each(l, &m->turns) {
		struct sched_share *share = share_of_turn(l);
		uint64_t n = share->n_decoding;

		if (s->fair && n)
			n = horizon <= share->decode_time ? 0 :
			    MIN(n, (horizon - share->decode_time) / token_time(share));
		if (n)
			grant_decode(share, (uint32_t)n);
		n_rows += (uint32_t)n;
		m->decode_end = MAX(m->decode_end, share->decode_time);
	}
	return n_rows;
}

/* --- prefill --- */

/* Rows with logits among n from position first. */
static uint32_t logits_among(const struct sched_seq *seq, uint32_t first, uint32_t n)
{
	uint32_t from = MAX(first, seq->logits_from), to = MIN(first + n, seq->logits_to);

	return from < to ? to - from : 0;
}

/* Tokens of the quantum that seq could still use; those with one token don't need it. */
static uint32_t prefill_demand(const struct scheduler *s, const struct sched_seq *seq)
{
	uint32_t n = seq->n_tokens - seq->n_computed, first = seq->n_computed + seq->n_rows;

	if (n <= 1)
		return 0;
	n -= seq->n_rows;
	/* The first row whose logits would be too many. */
	if (logits_among(seq, first, n) > s->logits_left)
		n = MAX(first, seq->logits_from) + s->logits_left - first;
	return n;
}

static uint32_t share_demand(const struct scheduler *s, const struct sched_share *share)
{
	uint64_t n = 0;

	list_for_each(l, &share->active)
		n += prefill_demand(s, seq_of(l));
	return (uint32_t)MIN(n, (uint64_t)UINT32_MAX);
}

/* Of the accounts that could use more; 0: there are none. */
static uint64_t weights_with_demand(const struct scheduler *s, const struct sched_model *m)
{
	uint64_t n = 0;

	list_for_each(l, &m->turns)
		n += share_demand(s, share_of_turn(l)) ? share_of_turn(l)->uid->weight : 0;
	return n;
}

/* Gives the uid's sequences up to n rows, the oldest first; returns how many. */
static uint32_t grant_prefill(struct scheduler *s, struct sched_share *share, uint32_t n)
{
	uint32_t left = n;

	list_for_each(l, &share->active) {
		struct sched_seq *seq = seq_of(l);
		uint32_t rows = MIN(prefill_demand(s, seq), left);

		s->logits_left -= logits_among(seq, seq->n_computed + seq->n_rows, rows);
		seq->n_rows += rows;
		left -= rows;
	}
	share->prefill_time += (n - left) * token_time(share);
	return n - left;
}

/* One division of the budget by weight; returns what nobody took. */
static uint32_t divide(struct scheduler *s, struct sched_model *m, uint32_t budget, uint64_t weights)
{
	list_for_each(l, &m->turns) {
		struct sched_share *share = share_of_turn(l);
		uint64_t weight = share->uid->weight;

		if (!weights)
			break;
		if (!share_demand(s, share))
			continue;
		/* Rounded up: what is odd goes to those who are behind. */
		budget -= grant_prefill(s, share, (uint32_t)((budget * weight + weights - 1) / weights));
		weights -= weight;
	}
	return budget;
}

/* As with decoding, for those that have a prompt now, and had none. */
static void set_prefill_times(const struct scheduler *s, struct sched_model *m)
{
	list_for_each(l, &m->turns) {
		struct sched_share *share = share_of_turn(l);
		bool went_on = share->prefills;

		share->prefills = share_demand(s, share);
		if (share->prefills && !went_on)
			share->prefill_time = m->prefill_end;
	}
}

/* Puts who is behind first.  Little has changed since the last time. */
static void sort_turns(struct sched_model *m)
{
	list_for_each_safe(l, next, &m->turns) {
		struct list *where = l->prev;

		while (where != &m->turns && share_of_turn(where)->prefill_time > share_of_turn(l)->prefill_time)
			where = where->prev;
		if (where == l->prev)
			continue;
		list_unlink(l);
		list_insert_before(where->next, l);
	}
}

uint32_t scheduler_plan_prefill(struct scheduler *s, struct sched_model *m, uint32_t quantum)
{
	uint32_t budget = MIN(quantum, s->quantum), left = budget;
	uint64_t weights;

	s->logits_left = s->logits_quantum;
	set_prefill_times(s, m);
	sort_turns(m);
	while (left && (weights = weights_with_demand(s, m)))
		left = divide(s, m, left, weights);
	list_for_each(l, &m->turns)
		m->prefill_end = MAX(m->prefill_end, share_of_turn(l)->prefill_time);
	return budget - left;
}

bool scheduler_prefills(struct sched_model *m, uint32_t *position)
{
	bool any = false;

	*position = 0;
	scheduler_for_each_active(seq, m) {
		if (decodes(seq))
			continue;
		any = true;
		*position = MAX(*position, seq->n_computed);
	}
	return any;
}
