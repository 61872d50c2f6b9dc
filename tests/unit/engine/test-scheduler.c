/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler's decisions: turns, order, bounds; sequences here are nothing but numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/engine/scheduler.h"
#include "ipc/base/checked.h"

#define N_SEQS 64
#define LOGITS_QUANTUM 5u

static struct sched_model model;

static void start(struct scheduler *s, uint32_t max_seqs, uint32_t quantum)
{
	scheduler_init(s, max_seqs, quantum, MIN(quantum, LOGITS_QUANTUM));
	scheduler_init_model(&model, 4);
}

static uint32_t plan(struct scheduler *s, struct sched_model *m)
{
	uint32_t n = scheduler_plan_decode(s, m);

	return n + scheduler_plan_prefill(s, m, UINT32_MAX);
}

static struct sched_seq *add_to(struct scheduler *s, struct sched_model *m, struct sched_seq *seq, uid_t uid,
				uint32_t n_tokens)
{
	*seq = (struct sched_seq){ .n_tokens = n_tokens };
	assert_int_equal(scheduler_add(s, seq, m, uid), 0);
	scheduler_push(s, seq);
	return seq;
}

static struct sched_seq *add(struct scheduler *s, struct sched_seq *seq, uid_t uid, uint32_t n_tokens)
{
	return add_to(s, &model, seq, uid, n_tokens);
}

static void remove_all(struct scheduler *s, struct sched_seq *seqs, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (seqs[i].share)
			scheduler_remove(s, &seqs[i]);
	assert_true(list_empty(&s->admit_turns));
	assert_true(list_empty(&model.turns));
	assert_int_equal(model.n_waiting + model.n_active + model.n_parked + model.n_ready, 0);
	assert_int_equal(s->n_waiting + s->n_active + s->n_parked + s->n_ready, 0);
}

/* uid 1 floods the queue first; the others still get every third place. */
static void test_turns(void **state)
{
	struct sched_seq seqs[N_SEQS];
	struct scheduler s;
	size_t n = 0, next[4] = { 0 };
	uint64_t last[4] = { 0 };

	(void)state;
	start(&s, N_SEQS, 64);
	for (int i = 0; i < 20; i++)
		add(&s, &seqs[n++], 1, 10);
	for (int i = 0; i < 5; i++)
		add(&s, &seqs[n++], 2, 10);
	for (int i = 0; i < 5; i++)
		add(&s, &seqs[n++], 3, 10);
	assert_int_equal(s.n_waiting, 30);
	scheduler_admit_begin(&s);
	for (int i = 0; i < 30; i++) {
		struct sched_seq *seq = scheduler_admit_next(&s);
		uid_t uid;

		assert_non_null(seq);
		uid = seq->share->uid->uid;
		if (i < 15)
			assert_int_equal(uid, i % 3 + 1);
		if (next[uid]++)	/* first come, first served */
			assert_true(seq->arrival > last[uid]);
		last[uid] = seq->arrival;
		scheduler_activate(&s, seq);
		assert_int_equal(seq->rank, i);
	}
	assert_null(scheduler_admit_next(&s));
	remove_all(&s, seqs, n);
}

/* Of three uids each has its turn after two others at the latest, for ever. */
static void test_no_starvation(void **state)
{
	static struct sched_seq seqs[2000];
	struct scheduler s;
	size_t n = 0;
	int since[3] = { 0 };

	(void)state;
	srand(1);
	start(&s, 4, 64);
	while (n < 1900) {
		struct sched_seq *seq;

		for (uid_t uid = 0; uid < 3; uid++)	/* uid 0 sends most */
			for (int i = rand() % (uid ? 2 : 6); i > 0 && n < 1990; i--)
				add(&s, &seqs[n++], uid, 10);
		scheduler_admit_begin(&s);
		while ((seq = scheduler_admit_next(&s))) {
			uid_t admitted = seq->share->uid->uid;

			scheduler_activate(&s, seq);
			for (uid_t uid = 0; uid < 3; uid++) {
				bool waits = false;

				for (size_t i = 0; i < n; i++)
					waits |= seqs[i].state == SCHED_WAITING && seqs[i].share->uid->uid == uid;
				since[uid] = waits && uid != admitted ? since[uid] + 1 : 0;
				assert_in_range(since[uid], 0, 2);
			}
		}
		for (size_t i = 0; i < n; i++)
			if (seqs[i].state == SCHED_ACTIVE && rand() % 2)
				scheduler_remove(&s, &seqs[i]);
	}
	remove_all(&s, seqs, n);
}

static void test_preempted_first(void **state)
{
	struct sched_seq seqs[6];
	struct scheduler s;

	(void)state;
	start(&s, 3, 64);
	for (size_t i = 0; i < 6; i++)
		add(&s, &seqs[i], 1, 10);
	scheduler_admit_begin(&s);
	for (size_t i = 0; i < 3; i++)
		scheduler_activate(&s, scheduler_admit_next(&s));
	assert_null(scheduler_admit_next(&s));	/* all places taken */
	scheduler_push(&s, &seqs[2]);
	scheduler_push(&s, &seqs[1]);
	for (size_t i = 1; i < 3; i++) {	/* the older of the two first, then the new ones */
		assert_ptr_equal(scheduler_admit_next(&s), &seqs[i]);
		scheduler_activate(&s, &seqs[i]);
		assert_int_equal(seqs[i].rank, i);
	}
	scheduler_remove(&s, &seqs[0]);
	assert_ptr_equal(scheduler_admit_next(&s), &seqs[3]);
	remove_all(&s, seqs, 6);
}

static void test_skip(void **state)
{
	struct sched_seq seqs[4];
	struct scheduler s;

	(void)state;
	start(&s, 8, 64);
	for (size_t i = 0; i < 4; i++)
		add(&s, &seqs[i], i % 2 + 1, 10);
	scheduler_admit_begin(&s);
	assert_ptr_equal(scheduler_admit_next(&s), &seqs[0]);
	scheduler_admit_skip(&s, &seqs[0]);
	for (size_t i = 1; i < 4; i += 2) {
		assert_ptr_equal(scheduler_admit_next(&s), &seqs[i]);
		scheduler_activate(&s, &seqs[i]);
	}
	assert_null(scheduler_admit_next(&s));
	scheduler_admit_begin(&s);	/* the turn was not lost */
	assert_ptr_equal(scheduler_admit_next(&s), &seqs[0]);
	remove_all(&s, seqs, 4);
}

static void test_victims(void **state)
{
	struct sched_seq seqs[6];
	struct scheduler s;

	(void)state;
	start(&s, 8, 64);
	for (size_t i = 0; i < 6; i++) {
		add(&s, &seqs[i], i % 2 + 1, 10);
		scheduler_admit_begin(&s);
		scheduler_activate(&s, scheduler_admit_next(&s));
		seqs[i].n_blocks = (uint32_t)i + 1;
	}
	scheduler_park(&s, &seqs[0]);
	scheduler_park(&s, &seqs[1]);
	scheduler_park(&s, &seqs[2]);
	scheduler_ready(&s, &seqs[2]);
	assert_int_equal(scheduler_idle_blocks(&s, &model), 1 + 2 + 3);
	assert_ptr_equal(scheduler_victim(&s, NULL, &model, false), &seqs[1]);
	assert_ptr_equal(scheduler_victim(&s, seqs[0].share->uid, NULL, false), &seqs[0]);
	seqs[1].n_blocks = 0;
	assert_ptr_equal(scheduler_victim(&s, NULL, &model, true), &seqs[0]);
	seqs[0].n_blocks = 0;
	assert_ptr_equal(scheduler_victim(&s, NULL, &model, true), &seqs[2]);
	seqs[2].n_blocks = 0;
	assert_null(scheduler_victim(&s, NULL, &model, true));
	assert_ptr_equal(scheduler_victim(&s, NULL, &model, false), &seqs[5]);
	assert_ptr_equal(scheduler_victim(&s, seqs[0].share->uid, NULL, false), &seqs[4]);
	assert_ptr_equal(scheduler_ready_next(&s), &seqs[2]);
	/* The oldest that lacks blocks comes first: 10 tokens need 3 of 4. */
	assert_null(scheduler_short_of_blocks(&model));
	seqs[3].n_tokens = 17;
	seqs[4].n_tokens = 21;
	assert_ptr_equal(scheduler_short_of_blocks(&model), &seqs[3]);
	seqs[3].n_tokens = 16;
	assert_ptr_equal(scheduler_short_of_blocks(&model), &seqs[4]);
	remove_all(&s, seqs, 6);
}

/* What every plan must keep to. */
static void check_plan(const struct sched_seq *seqs, size_t n, uint32_t quantum, uint32_t n_rows)
{
	uint64_t demand[5] = { 0 }, rows[5] = { 0 }, all_demand = 0, all_rows = 0;
	uint32_t n_decoding = 0, n_uids = 0;

	for (size_t i = 0; i < n; i++) {
		uint32_t left = seqs[i].n_tokens - seqs[i].n_computed;
		uid_t uid = seqs[i].share->uid->uid;

		assert_true(seqs[i].n_rows <= left);
		if (left == 1) {
			assert_int_equal(seqs[i].n_rows, 1);
			n_decoding++;
			continue;
		}
		n_uids += !demand[uid];
		demand[uid] += left;
		rows[uid] += seqs[i].n_rows;
		all_demand += left;
		all_rows += seqs[i].n_rows;
		/* Inside a uid none before an older one that could use more. */
		for (size_t j = 0; j < i; j++) {
			uint32_t left_j = seqs[j].n_tokens - seqs[j].n_computed;
			if (seqs[i].n_rows && left_j > 1 && seqs[j].share == seqs[i].share)
				assert_int_equal(seqs[j].n_rows, left_j);
		}
	}
	assert_int_equal(all_rows, MIN(all_demand, (uint64_t)quantum));
	assert_int_equal(n_rows, all_rows + n_decoding);
	for (uid_t uid = 0; uid < 5; uid++)
		if (demand[uid])
			assert_true(rows[uid] >= MIN(demand[uid], (uint64_t)quantum / n_uids));
}

static void test_plans(void **state)
{
	struct sched_seq seqs[16];
	struct scheduler s;

	(void)state;
	srand(2);
	for (int round = 0; round < 3000; round++) {
		size_t n = (size_t)rand() % 16 + 1;
		uint32_t quantum = (uint32_t)rand() % 40 + 1;

		start(&s, 16, quantum);
		s.fair = false;		/* all that decode have a row */
		for (size_t i = 0; i < n; i++) {
			add(&s, &seqs[i], (uid_t)(rand() % 5), (uint32_t)rand() % 60 + 1);
			scheduler_activate(&s, &seqs[i]);
			if (rand() % 3 == 0)
				seqs[i].n_computed = seqs[i].n_tokens - 1;
		}
		for (int step = 0; step < 3; step++) {
			check_plan(seqs, n, quantum, plan(&s, &model));
			for (size_t i = 0; i < n; i++) {
				seqs[i].n_computed += seqs[i].n_rows;
				seqs[i].n_tokens += seqs[i].n_computed == seqs[i].n_tokens;
			}
		}
		remove_all(&s, seqs, n);
	}
}

static uint32_t rows_with_logits(const struct sched_seq *seq)
{
	uint32_t n = 0;

	for (uint32_t p = seq->n_computed; p < seq->n_computed + seq->n_rows; p++)
		n += p >= seq->logits_from && p < seq->logits_to;
	return n;
}

/*
 * Rows with logits are bounded in each step, nobody who wants none is held up by
 * those who do, and all come to their end.
 */
static void test_logits(void **state)
{
	struct sched_seq seqs[12];
	struct scheduler s;

	(void)state;
	srand(3);
	for (int round = 0; round < 500; round++) {
		size_t n = (size_t)rand() % 12 + 1, n_left = n;
		uint32_t quantum = (uint32_t)rand() % 40 + 1;

		start(&s, 12, quantum);
		for (size_t i = 0; i < n; i++) {
			struct sched_seq *seq = add(&s, &seqs[i], (uid_t)(rand() % 4), (uint32_t)rand() % 60 + 2);

			if (rand() % 3) {
				seq->logits_from = (uint32_t)rand() % seq->n_tokens;
				seq->logits_to = seq->n_tokens - 1;
			}
			scheduler_activate(&s, seq);
		}
		for (int step = 0; n_left; step++) {
			uint32_t n_rows = plan(&s, &model), n_logits = 0, rows = 0, n_plain = 0;

			assert_true(step < 12 * 62);
			for (size_t i = 0; i < n; i++) {
				uint32_t left = seqs[i].n_tokens - seqs[i].n_computed;

				if (!seqs[i].share)
					continue;
				n_logits += rows_with_logits(&seqs[i]);
				rows += left > 1 ? seqs[i].n_rows : 0;
				n_plain += left > 1 && !seqs[i].logits_to ? left - seqs[i].n_rows : 0;
				assert_true(seqs[i].n_rows <= left);
				seqs[i].n_computed += seqs[i].n_rows;
				if (seqs[i].n_computed == seqs[i].n_tokens) {
					scheduler_remove(&s, &seqs[i]);
					n_left--;
				}
			}
			assert_true(n_rows);
			assert_true(n_logits <= LOGITS_QUANTUM && rows <= quantum);
			if (n_plain)	/* somebody could use more: all of the quantum is */
				assert_int_equal(rows, quantum);
		}
		remove_all(&s, seqs, n);
	}
}

/* With a quantum of one, uids take turns from step to step. */
static void test_prefill_turns(void **state)
{
	struct sched_seq seqs[6];
	struct scheduler s;

	(void)state;
	start(&s, 8, 1);
	for (size_t i = 0; i < 6; i++) {
		add(&s, &seqs[i], i < 4 ? 1 : (uid_t)i, 1000);
		scheduler_activate(&s, &seqs[i]);
	}
	for (int step = 0; step < 300; step++) {
		assert_int_equal(plan(&s, &model), 1);
		for (size_t i = 0; i < 6; i++)
			seqs[i].n_computed += seqs[i].n_rows;
	}
	assert_int_equal(seqs[0].n_computed, 100);
	assert_int_equal(seqs[1].n_computed, 0);
	assert_int_equal(seqs[4].n_computed, 100);
	assert_int_equal(seqs[5].n_computed, 100);
	remove_all(&s, seqs, 6);
}

/*
 * Two models: places and turns of admission are common, plans are each one's own;
 * a uid's turn in one model's steps does not depend on the other's.
 */
static void test_two_models(void **state)
{
	struct sched_model other;
	struct sched_seq seqs[8];
	struct scheduler s;

	(void)state;
	start(&s, 8, 1);
	scheduler_init_model(&other, 4);
	/* uids 1 and 2 have two of each model; one uid's come first. */
	for (size_t i = 0; i < 8; i++)
		add_to(&s, i % 2 ? &other : &model, &seqs[i], i < 4 ? 1 : 2, 1000);
	assert_int_equal(model.n_waiting, 4);
	assert_int_equal(other.n_waiting, 4);
	scheduler_admit_begin(&s);
	for (size_t i = 0; i < 8; i++) {
		struct sched_seq *seq = scheduler_admit_next(&s);

		assert_int_equal(seq->share->uid->uid, i % 2 + 1);
		scheduler_activate(&s, seq);
	}
	assert_int_equal(model.n_active, 4);
	assert_int_equal(other.n_active, 4);
	for (int step = 0; step < 100; step++) {
		struct sched_model *m = step % 2 ? &other : &model;

		assert_int_equal(plan(&s, m), 1);
		scheduler_for_each_active(seq, m)
			seq->n_computed += seq->n_rows;
	}
	for (size_t i = 0; i < 8; i++)	/* 50 steps of each model, half of them for each uid's oldest */
		assert_int_equal(seqs[i].n_computed, i % 4 < 2 ? 25 : 0);

	for (size_t i = 0; i < 8; i++)
		seqs[i].n_blocks = 250;
	seqs[6].n_tokens = seqs[7].n_tokens = 1001;
	assert_ptr_equal(scheduler_short_of_blocks(&model), &seqs[6]);
	assert_ptr_equal(scheduler_short_of_blocks(&other), &seqs[7]);
	assert_ptr_equal(scheduler_victim(&s, NULL, &model, false), &seqs[6]);
	assert_ptr_equal(scheduler_victim(&s, NULL, &other, false), &seqs[7]);
	assert_ptr_equal(scheduler_victim(&s, seqs[0].share->uid, &other, false), &seqs[3]);
	scheduler_park(&s, &seqs[1]);
	assert_int_equal(scheduler_idle_blocks(&s, &model), 0);
	assert_int_equal(scheduler_idle_blocks(&s, &other), 250);
	assert_null(scheduler_victim(&s, NULL, &model, true));
	assert_ptr_equal(scheduler_victim(&s, NULL, NULL, true), &seqs[1]);
	assert_int_equal(other.n_parked, 1);
	for (size_t i = 1; i < 8; i += 2)
		scheduler_remove(&s, &seqs[i]);
	assert_true(list_empty(&other.turns));
	assert_int_equal(other.n_active + other.n_parked, 0);
	remove_all(&s, seqs, 8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_turns),
		cmocka_unit_test(test_no_starvation),
		cmocka_unit_test(test_preempted_first),
		cmocka_unit_test(test_skip),
		cmocka_unit_test(test_victims),
		cmocka_unit_test(test_plans),
		cmocka_unit_test(test_logits),
		cmocka_unit_test(test_prefill_turns),
		cmocka_unit_test(test_two_models),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
