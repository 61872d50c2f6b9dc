/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Embeddings: against a loop of the test's own, and equal to the bit however the prompt was cut, who else ran, how
 * often the sequence was preempted, and what the cache had of it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include <unistd.h>

#include "tests/unit/engine/fake-model.h"
#include "tests/unit/engine/fake-client.h"
#include "tests/unit/engine/fixture.h"

static struct fake_request make_embedding(uint64_t id, uid_t uid, size_t n_prompt, enum engine_pooling pooling)
{
	struct fake_request r = make_request(id, uid, n_prompt, 7);

	r.params.pooling = pooling;
	r.params.prompt_logprobs = true;	/* neither counts */
	return r;
}

static struct fake_result *result(const struct fixture *f, uint64_t id)
{
	return &f->client->results[id];
}

/* Runs it alone; returns the rows that it took. */
static uint64_t run(struct fixture *f, const struct fake_request *r)
{
	uint64_t before = fake.n_rows_seen;

	submit(f, r);
	fake_client_wait_released(f->client, (uint32_t)r->id + 1);
	check_whole(f, r);
	return fake.n_rows_seen - before;
}

/* No head is computed, and no state that is not wanted. */
static void test_values(void **state)
{
	static const uint32_t lengths[] = { 1, 2, 8, 9, 16, 17, 95 };
	struct fixture f = start(&config_default);
	uint32_t id = 0;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(lengths); i++) {
		uint64_t before = fake.n_hidden_seen;
		struct fake_request mean = make_embedding(id++, 1, lengths[i], ENGINE_POOLING_MEAN);
		struct fake_request last = make_embedding(id++, 1, lengths[i], ENGINE_POOLING_LAST);

		assert_int_equal(run(&f, &mean), lengths[i]);
		assert_int_equal(fake.n_hidden_seen - before, lengths[i]);
		assert_int_equal(run(&f, &last), lengths[i]);
		assert_int_equal(fake.n_hidden_seen - before, lengths[i] + 1);
	}
	assert_int_equal(fake.n_logits_seen, 0);
	stop(&f);
}

#define N_MANY 12

static struct fake_request many(uint64_t id)
{
	struct fake_request r = make_embedding(id, (uid_t)(id % 3), 30 + id * 4,
					       id % 2 ? ENGINE_POOLING_MEAN : ENGINE_POOLING_LAST);

	/* Some generate beside them; some share a cache, and the beginning of their prompts. */
	if (id % 4 == 3)
		r = make_request(id, (uid_t)(id % 3), 30 + id, 20);
	if (id % 3 == 1) {
		r.params.ns = "shared";
		for (uint32_t i = 0; i < 40 && i < r.n_prompt; i++)
			r.prompt[i] = (int32_t)(3 + i % 19);
	}
	return r;
}

/* Returns how often sequences were preempted. */
static uint64_t run_many(uint32_t quantum, uint32_t max_seqs, uint64_t kv_memory, uint32_t full_one_in)
{
	struct engine_config config = config_default;
	struct engine_stats stats;
	struct fixture f;
	uint32_t n_released;

	config.prefill_quantum = quantum;
	config.max_seqs = max_seqs;
	config.kv_memory = kv_memory;
	f = start(&config);
	f.client->full_one_in = full_one_in;
	for (uint64_t id = 0; id < N_MANY; id++) {
		struct fake_request r = many(id);

		submit(&f, &r);
	}
	do {
		fake_client_set(f.client, false, false);
		engine_room(f.engine, 1);
		usleep(50);
		pthread_mutex_lock(&f.client->lock);
		n_released = f.client->n_released;
		pthread_mutex_unlock(&f.client->lock);
	} while (n_released < N_MANY);
	for (uint64_t id = 0; id < N_MANY; id++) {
		struct fake_request r = many(id);

		check_whole(&f, &r);
	}
	engine_stats(f.engine, &stats);
	stop(&f);
	return stats.preemptions;
}

static void test_same_bits(void **state)
{
	uint64_t n_preempted = 0;

	(void)state;
	run_many(1, 8, 64 * MIB, 0);
	run_many(8, 8, 64 * MIB, 0);
	run_many(256, 1, 64 * MIB, 0);
	for (uint32_t quantum = 1; quantum < 100; quantum *= 3)
		n_preempted += run_many(quantum, 8, 4 * MIB, 1 + quantum % 4);
	assert_true(n_preempted > 0);
}

/* Both leave their KV; "last" takes all but the last token, "mean" none, since no states are kept. */
static void test_cache(void **state)
{
	struct fixture f = start(&config_default);
	struct fake_request cold[2], warm[4];

	(void)state;
	for (uint32_t i = 0; i < 2; i++) {
		cold[i] = make_embedding(i, 1, 70, i ? ENGINE_POOLING_LAST : ENGINE_POOLING_MEAN);
		cold[i].params.ns = i ? "last" : "mean";
		assert_int_equal(run(&f, &cold[i]), 70);
		assert_int_equal(result(&f, i)->n_cached, 0);
	}
	for (uint32_t i = 0; i < 4; i++) {
		struct fake_request *r = &warm[i];

		*r = cold[i % 2];
		r->id = 2 + i;
		r->params.pooling = i < 2 ? ENGINE_POOLING_LAST : ENGINE_POOLING_MEAN;
		assert_int_equal(run(&f, r), i < 2 ? 1 : 70);
		assert_int_equal(result(&f, r->id)->n_cached, i < 2 ? 69 : 0);
		assert_int_equal(result(&f, r->id)->miss, i < 2 ? SINK_MISS_NONE : SINK_MISS_LOGPROBS);
	}
	/* A prompt that goes on from there finds it as well. */
	warm[0] = cold[0];
	warm[0].id = 6;
	warm[0].params.pooling = ENGINE_POOLING_NONE;
	warm[0].params.prompt_logprobs = false;
	assert_int_equal(run(&f, &warm[0]), 1 + 6);
	stop(&f);
}

/* A reader that has no room when the vector is there gets it later, once; blocks are not held meanwhile. */
static void test_full(void **state)
{
	struct fixture f = start(&config_default);
	struct fake_request r[2];
	struct engine_stats stats;

	(void)state;
	fake_client_set(f.client, true, false);
	for (uint32_t i = 0; i < 2; i++) {
		r[i] = make_embedding(i, 1, 60, i ? ENGINE_POOLING_LAST : ENGINE_POOLING_MEAN);
		submit(&f, &r[i]);
	}
	do {
		engine_stats(f.engine, &stats);
		usleep(100);
	} while (stats.n_parked < 2);
	assert_int_equal(stats.blocks_used, 0);
	engine_cancel(f.engine, 1, 1);
	fake_client_wait_released(f.client, 1);
	assert_int_equal(result(&f, 1)->finish, SINK_FINISH_CANCELLED);
	assert_false(result(&f, 1)->has_embedding);
	fake_client_set(f.client, false, false);
	engine_room(f.engine, 1);
	fake_client_wait_released(f.client, 2);
	check_whole(&f, &r[0]);
	stop(&f);
}

/* Within a step, as any other; what was computed stays. */
static void test_cancel(void **state)
{
	struct fixture f = start(&config_default);
	struct fake_request r = make_embedding(0, 1, 80, ENGINE_POOLING_MEAN), next = r;

	(void)state;
	r.params.ns = next.params.ns = "a";
	next.id = 1;
	next.params.pooling = ENGINE_POOLING_LAST;
	fake.n_allowed = 4;
	submit(&f, &r);
	fake_wait_step(5);
	engine_cancel(f.engine, 1, 0);
	fake_allow(UINT64_MAX);
	fake_client_wait_released(f.client, 1);
	assert_int_equal(result(&f, 0)->finish, SINK_FINISH_CANCELLED);
	assert_false(result(&f, 0)->has_embedding);
	assert_in_range(fake.n_rows_seen, 4 * QUANTUM, 6 * QUANTUM);
	assert_in_range(run(&f, &next), 80 - 6 * QUANTUM, 80 - 4 * QUANTUM);
	stop(&f);
}

static void test_step_fails(void **state)
{
	struct fixture f = start(&config_default);
	struct fake_request r = make_embedding(0, 1, 80, ENGINE_POOLING_MEAN);
	struct fake_request next = make_embedding(1, 1, 80, ENGINE_POOLING_MEAN);

	(void)state;
	fake.fail_step = 3;
	submit(&f, &r);
	fake_client_wait_released(f.client, 1);
	assert_int_equal(result(&f, 0)->error, SINK_ERROR_INTERNAL);
	assert_false(result(&f, 0)->has_embedding);
	assert_int_equal(run(&f, &next), 80);
	stop(&f);
}

/* Its arrays are charged before they are there. */
static void test_charged(void **state)
{
	struct fake_request none = make_embedding(0, 1, 40, ENGINE_POOLING_NONE);
	struct fake_request last = make_embedding(0, 1, 40, ENGINE_POOLING_LAST);
	struct fake_request mean = make_embedding(0, 1, 40, ENGINE_POOLING_MEAN);
	uint64_t bytes;
	struct fixture f;

	(void)state;
	none.params.max_tokens = 0;
	none.params.prompt_logprobs = false;
	bytes = memory_of(&none);
	assert_int_equal(memory_of(&last), bytes + FAKE_N_EMBD * sizeof(float));
	bytes += FAKE_N_EMBD * (sizeof(float) + sizeof(double));
	assert_int_equal(memory_of(&mean), bytes);
	f = start_with(&config_default, fake_accounts(UINT64_MAX, bytes - 1, UINT64_MAX));
	assert_int_equal(fake_submit(f.engine, f.client, 1, &mean), ENGINE_E_QUOTA);
	assert_int_equal(fake_submit(f.engine, f.client, 1, &last), 0);
	fake_client_wait_released(f.client, 1);
	check_whole(&f, &last);
	stop(&f);
}

static void test_device_without(void **state)
{
	struct kb_ops ops = fake_ops;
	struct kb_backend be = { .ops = &ops };
	struct engine_config config = config_default;
	struct fake_request r = make_embedding(0, 1, 9, ENGINE_POOLING_LAST), plain = make_request(0, 1, 9, 3);
	struct fixture f;

	(void)state;
	ops.hidden = NULL;
	ops.step_hidden = NULL;
	config.backend = &be;
	f = start(&config);
	assert_int_equal(fake_submit(f.engine, f.client, 1, &r), -ENOTSUP);
	run(&f, &plain);
	stop(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_values),	cmocka_unit_test(test_same_bits),  cmocka_unit_test(test_cache),
		cmocka_unit_test(test_full),	cmocka_unit_test(test_cancel),	   cmocka_unit_test(test_step_fails),
		cmocka_unit_test(test_charged), cmocka_unit_test(test_device_without),
	};

	alarm(120);	/* a hang is a failure */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
