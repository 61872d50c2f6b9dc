/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shares of accounts: what each of them got in the time in which it had work, divided by its weight, is the same for
 * all within a token; an account alone has all; nobody waits for ever, and nothing is saved up.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/engine/scheduler.h"
#include "ipc/base/checked.h"

#define N_SEQS 128
#define N_UIDS 6

struct world {
	struct scheduler s;
	struct sched_model model;
	struct sched_seq seqs[N_SEQS];
	uint64_t n_got[N_SEQS];		/* tokens */
};

static void start(struct world *w, uint32_t max_seqs, uint32_t quantum)
{
	memset(w, 0, sizeof(*w));
	scheduler_init(&w->s, max_seqs, quantum, quantum);
	scheduler_init_model(&w->model, 16);
}

static uint32_t plan(struct scheduler *s, struct sched_model *m, uint32_t quantum)
{
	uint32_t n = scheduler_plan_decode(s, m);

	return n + scheduler_plan_prefill(s, m, quantum);
}

static struct sched_seq *add(struct world *w, size_t i, uid_t uid, uint32_t weight, uint32_t n_tokens)
{
	w->seqs[i] = (struct sched_seq){ .n_tokens = n_tokens };
	assert_int_equal(scheduler_add(&w->s, &w->seqs[i], &w->model, uid), 0);
	scheduler_set_weight(&w->seqs[i], weight);
	scheduler_push(&w->s, &w->seqs[i]);
	return &w->seqs[i];
}

/* One that decodes, from now on. */
static struct sched_seq *add_decoding(struct world *w, size_t i, uid_t uid, uint32_t weight)
{
	struct sched_seq *seq = add(w, i, uid, weight, 10);

	scheduler_activate(&w->s, seq);
	seq->n_computed = 9;
	return seq;
}

static void stop(struct world *w)
{
	for (size_t i = 0; i < N_SEQS; i++)
		if (w->seqs[i].share)
			scheduler_remove(&w->s, &w->seqs[i]);
	assert_true(list_empty(&w->s.admit_turns));
}

/* A step; those that decode go on doing so. */
static uint32_t step(struct world *w, uint64_t got[])
{
	uint32_t n_rows = plan(&w->s, &w->model, UINT32_MAX), n = 0;

	scheduler_for_each_active(seq, &w->model) {
		bool decodes = seq->n_tokens - seq->n_computed == 1;

		assert_true(seq->n_rows <= seq->n_tokens - seq->n_computed);
		seq->n_computed += seq->n_rows;
		seq->n_tokens += decodes && seq->n_rows;
		got[seq->share->uid->uid] += seq->n_rows;
		w->n_got[seq - w->seqs] += seq->n_rows;
		n += seq->n_rows;
	}
	assert_int_equal(n, n_rows);
	return n_rows;
}

static void check_shares(uint32_t weight_1, uint32_t n_1, uint32_t weight_2, uint32_t n_2)
{
	uint64_t got[3] = { 0 };
	struct world w;

	start(&w, N_SEQS, 64);
	for (uint32_t i = 0; i < n_1 + n_2; i++)
		add_decoding(&w, i, i < n_1 ? 1 : 2, i < n_1 ? weight_1 : weight_2);
	for (int i = 0; i < 2400; i++) {
		assert_true(step(&w, got));
		/* Within one token of either. */
		assert_true(got[1] * weight_2 <= (got[2] + 1) * weight_1 + weight_2);
		assert_true(got[2] * weight_1 <= (got[1] + 1) * weight_2 + weight_1);
	}
	/* Inside each, turns: nobody is more than one behind another. */
	for (uint32_t i = 0; i < n_1 + n_2; i++) {
		uint32_t first = i < n_1 ? 0 : n_1;

		assert_true(w.n_got[i] <= w.n_got[first] + 1 && w.n_got[first] <= w.n_got[i] + 1);
	}
	stop(&w);
}

static void test_two(void **state)
{
	(void)state;
	check_shares(100, 1, 100, 1);
	check_shares(100, 1, 100, 50);
	check_shares(100, 7, 100, 50);
	check_shares(300, 1, 100, 1);
	check_shares(100, 1, 300, 50);
	check_shares(300, 1, 100, 50);
	check_shares(1, 3, SCHED_WEIGHT_MAX, 5);
	check_shares(77, 13, 1234, 3);
}

/* As many in each step as if fairness were nothing to think of, also when others have come and gone. */
static void test_alone(void **state)
{
	uint64_t got[N_UIDS] = { 0 };
	struct world w;

	(void)state;
	start(&w, N_SEQS, 64);
	for (size_t i = 0; i < 50; i++)
		add_decoding(&w, i, 1, 100);
	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < 100; i++)
			assert_int_equal(step(&w, got), 50);
		add_decoding(&w, 60, 2, 100);
		for (int i = 0; i < 100; i++)
			assert_int_equal(step(&w, got), 2);
		scheduler_remove(&w.s, &w.seqs[60]);
	}
	assert_int_equal(got[2], 500);
	stop(&w);
}

/* One that was away, or comes anew, gets its share from then on and no more. */
static void test_nothing_saved(void **state)
{
	uint64_t got[3] = { 0 };
	struct world w;

	(void)state;
	start(&w, N_SEQS, 64);
	for (size_t i = 0; i < 8; i++)
		add_decoding(&w, i, i < 4 ? 1 : 2, 100);
	for (int i = 0; i < 10; i++)
		step(&w, got);
	for (size_t i = 4; i < 8; i++)
		scheduler_park(&w.s, &w.seqs[i]);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(step(&w, got), 4);
	for (size_t i = 4; i < 8; i++)
		scheduler_activate(&w.s, &w.seqs[i]);
	memset(got, 0, sizeof(got));
	for (int i = 0; i < 20; i++) {
		step(&w, got);
		assert_true(got[2] <= got[1] + 1 && got[1] <= got[2] + 1);
	}
	/* The same where both were away, one of them for longer. */
	for (size_t i = 0; i < 4; i++)
		scheduler_park(&w.s, &w.seqs[i]);
	for (int i = 0; i < 1000; i++)
		step(&w, got);
	for (size_t i = 4; i < 8; i++)
		scheduler_park(&w.s, &w.seqs[i]);
	assert_int_equal(step(&w, got), 0);
	for (size_t i = 0; i < 8; i++)
		scheduler_activate(&w.s, &w.seqs[i]);
	memset(got, 0, sizeof(got));
	for (int i = 0; i < 20; i++) {
		step(&w, got);
		assert_true(got[2] <= got[1] + 1 && got[1] <= got[2] + 1);
	}
	stop(&w);
}

/* What accounts got while two of them both had work, for each pair. */
struct pairs {
	uint64_t got[N_UIDS][N_UIDS];	/* [a][b]: a's, since a and b both have work */
	bool had_work[N_UIDS];
};

static void note_step(struct pairs *p, const bool work[], const uint64_t rows[], const uint32_t weight[])
{
	for (int a = 0; a < N_UIDS; a++) {
		for (int b = 0; b < N_UIDS; b++) {
			if (!work[a] || !work[b] || !p->had_work[a] || !p->had_work[b])
				p->got[a][b] = 0;
			if (work[a] && work[b])
				p->got[a][b] += rows[a];
		}
	}
	for (int a = 0; a < N_UIDS; a++) {
		p->had_work[a] = work[a];
		for (int b = 0; b < N_UIDS; b++) {
			double ahead = (double)p->got[a][b] / weight[a] - (double)p->got[b][a] / weight[b];

			assert_true(ahead <= (1.0 / weight[a] + 1.0 / weight[b]) * (1 + 1e-6));
		}
	}
}

/* Sequences come, go, are away for a while: at any time, and over any time. */
static void test_random(void **state)
{
	static const uint32_t weights[] = { 100, 100, 300, 50, 1000, 1 };
	struct pairs pairs;
	struct world w;

	(void)state;
	srand(5);
	for (int round = 0; round < 30; round++) {
		uint32_t weight[N_UIDS], since[N_UIDS] = { 0 };

		start(&w, N_SEQS, 64);
		memset(&pairs, 0, sizeof(pairs));
		for (int u = 0; u < N_UIDS; u++)
			weight[u] = weights[rand() % (round % 2 ? 6 : 3)];
		for (int i = 0; i < 2000; i++) {
			size_t k = (size_t)rand() % (round % 3 ? 20 : N_SEQS);
			uint64_t rows[N_UIDS] = { 0 };
			bool work[N_UIDS] = { false }, all = false;
			uint32_t n[N_UIDS] = { 0 }, most = 0;

			if (!w.seqs[k].share)
				add_decoding(&w, k, (uid_t)(k % N_UIDS), weight[k % N_UIDS]);
			else if (rand() % 3 == 0)
				scheduler_remove(&w.s, &w.seqs[k]);
			else if (w.seqs[k].state == SCHED_ACTIVE)
				scheduler_park(&w.s, &w.seqs[k]);
			else
				scheduler_activate(&w.s, &w.seqs[k]);
			scheduler_for_each_active(seq, &w.model) {
				work[seq->share->uid->uid] = true;
				n[seq->share->uid->uid]++;
			}
			step(&w, rows);
			for (int u = 0; u < N_UIDS; u++) {
				all |= n[u] && rows[u] == n[u];
				/* The lightest waits no longer than the others need for what its token is worth. */
				since[u] = work[u] && !rows[u] ? since[u] + 1 : 0;
				for (int v = 0; v < N_UIDS; v++)
					most = MAX(most, weight[v] / weight[u] + 2);
				assert_true(since[u] <= most);
			}
			assert_true(all || !w.model.n_active);
			note_step(&pairs, work, rows, weight);
		}
		stop(&w);
	}
}

/* Prompts without end: tokens of prefill are by weight, with any quantum. */
static void test_prefill(void **state)
{
	static const uint32_t weights[] = { 100, 300, 1000, 70 };

	(void)state;
	srand(6);
	for (int round = 0; round < 60; round++) {
		uint32_t quantum = round < 8 ? (uint32_t)round + 1 : (uint32_t)rand() % 300 + 1;
		uint32_t n = 2 + (uint32_t)rand() % 3;
		uint64_t got[N_UIDS] = { 0 };
		uint32_t sum = 0;
		struct world w;

		start(&w, N_SEQS, quantum);
		for (uint32_t u = 0; u < n; u++) {
			for (uint32_t k = 0; k < 3; k++)
				scheduler_activate(&w.s, add(&w, u * 3 + k, u, weights[u], 1u << 28));
			sum += weights[u];
		}
		for (int i = 0; i < 1000; i++) {
			assert_int_equal(step(&w, got), quantum);
			for (uint32_t u = 0; u < n; u++) {
				double fair = (double)(i + 1) * quantum * weights[u] / sum;

				assert_true(fabs((double)got[u] - fair) <= n + 1);
			}
		}
		stop(&w);
	}
}

/* A prompt of another account does not change who decodes, nor the reverse. */
static void test_both(void **state)
{
	uint64_t got[4] = { 0 };
	struct world w;

	(void)state;
	start(&w, N_SEQS, 30);
	add_decoding(&w, 0, 1, 100);
	for (size_t i = 1; i < 10; i++)
		add_decoding(&w, i, 2, 100);
	scheduler_activate(&w.s, add(&w, 20, 2, 100, 100000));
	scheduler_activate(&w.s, add(&w, 21, 3, 200, 100000));
	for (int i = 0; i < 100; i++)
		assert_int_equal(step(&w, got), 2 + 30);
	assert_int_equal(got[1], 100);
	assert_int_equal(got[2], 100 + 1000);
	assert_int_equal(got[3], 2000);
	assert_int_equal(plan(&w.s, &w.model, 7), 2 + 7);	/* less than the quantum */
	assert_int_equal(plan(&w.s, &w.model, 0), 2);
	stop(&w);
}

static uint32_t claim_all(struct world *w)
{
	struct sched_seq *seq, *victim = NULL;
	uint32_t n = 0;

	while ((seq = scheduler_claim(&w->s, &victim))) {
		assert_true(n++ < N_SEQS);
		assert_int_equal(victim->state, SCHED_ACTIVE);
		assert_true(seq->state == SCHED_WAITING || seq->state == SCHED_READY);
		assert_ptr_not_equal(seq->share->uid, victim->share->uid);
		scheduler_ready(&w->s, victim);
		scheduler_activate(&w->s, seq);
		assert_int_equal(w->s.n_active, w->s.max_seqs);
	}
	return n;
}

static uint32_t n_active_of(const struct world *w, uid_t uid)
{
	uint32_t n = 0;

	for (size_t i = 0; i < N_SEQS; i++)
		n += w->seqs[i].share && w->seqs[i].state == SCHED_ACTIVE && w->seqs[i].share->uid->uid == uid;
	return n;
}

/* One user has all places, and 34 more that wait; another comes. */
static void test_places(void **state)
{
	struct sched_seq *seq, *victim;
	struct world w;
	size_t i;

	(void)state;
	start(&w, 16, 64);
	for (i = 0; i < 50; i++)
		add(&w, i, 1, 100, 10);
	scheduler_admit_begin(&w.s);
	while ((seq = scheduler_admit_next(&w.s)))
		scheduler_activate(&w.s, seq);
	assert_null(scheduler_claim(&w.s, &victim));
	add(&w, i++, 2, 100, 10);
	scheduler_admit_begin(&w.s);
	assert_null(scheduler_admit_next(&w.s));
	assert_int_equal(claim_all(&w), 1);
	assert_int_equal(w.seqs[50].state, SCHED_ACTIVE);
	assert_int_equal(w.seqs[15].state, SCHED_READY);	/* the youngest */
	for (; i < 70; i++)
		add(&w, i, 2, 100, 10);
	assert_int_equal(claim_all(&w), 7);
	assert_int_equal(n_active_of(&w, 2), 8);
	/* A third with three times the weight: 3, 3 and 10. */
	for (; i < 90; i++)
		add(&w, i, 3, 300, 10);
	assert_int_equal(claim_all(&w), 9);
	assert_int_equal(n_active_of(&w, 3), 9);
	/* Ready ones claim as well; who is skipped does not. */
	scheduler_admit_skip(&w.s, &w.seqs[89]);
	for (size_t k = 0; k < 2; k++) {
		for (i = 70; i < 90 && w.seqs[i].state != SCHED_ACTIVE; i++)
			;
		scheduler_park(&w.s, &w.seqs[i]);
		scheduler_ready(&w.s, &w.seqs[i]);
		scheduler_activate(&w.s, &w.seqs[20 + k]);
	}
	assert_int_equal(claim_all(&w), 2);
	assert_int_equal(n_active_of(&w, 3), 9);
	w.s.fair = false;
	add(&w, 100, 4, 100, 10);
	assert_int_equal(claim_all(&w), 0);
	stop(&w);
}

/* However many have however many: it comes to rest, and then nobody could give one without being poorer. */
static void test_places_rest(void **state)
{
	(void)state;
	srand(7);
	for (int round = 0; round < 300; round++) {
		uint32_t weight[N_UIDS], n[N_UIDS];
		bool waits[N_UIDS] = { false };
		struct sched_seq *seq;
		struct world w;

		start(&w, 1 + (uint32_t)rand() % 20, 64);
		for (size_t u = 0; u < N_UIDS; u++)
			weight[u] = rand() % 2 ? 100 : 1 + (uint32_t)rand() % 1000;
		for (size_t i = 0; i < N_SEQS; i++)
			add(&w, i, (uid_t)((uint32_t)rand() % 100 < 60 ? 0 : (uint32_t)rand() % N_UIDS), weight[0], 10);
		for (size_t i = 0; i < N_SEQS; i++)
			scheduler_set_weight(&w.seqs[i], weight[w.seqs[i].share->uid->uid]);
		scheduler_admit_begin(&w.s);
		while ((seq = scheduler_admit_next(&w.s)))
			scheduler_activate(&w.s, seq);
		claim_all(&w);
		for (size_t i = 0; i < N_SEQS; i++)
			waits[w.seqs[i].share->uid->uid] |= w.seqs[i].state != SCHED_ACTIVE;
		for (size_t u = 0; u < N_UIDS; u++)
			n[u] = n_active_of(&w, (uid_t)u);
		for (size_t a = 0; a < N_UIDS; a++)
			for (size_t b = 0; b < N_UIDS; b++)
				assert_false(a != b && n[a] && waits[b] &&
					     (uint64_t)(n[a] - 1) * weight[b] >= (uint64_t)(n[b] + 1) * weight[a]);
		stop(&w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_two),
		cmocka_unit_test(test_alone),
		cmocka_unit_test(test_nothing_saved),
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_prefill),
		cmocka_unit_test(test_both),
		cmocka_unit_test(test_places),
		cmocka_unit_test(test_places_rest),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
