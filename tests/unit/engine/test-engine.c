/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine over a fake model that finds every misuse of the KV pool: results,
 * refusals, quotas, failures, the end.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include <unistd.h>

#include "daemon/engine/output.h"
#include "tests/unit/engine/fake-model.h"
#include "tests/unit/engine/fake-client.h"
#include "tests/unit/engine/fixture.h"

/* Many kinds of requests, one after the other. */
static void test_alone(void **state)
{
	struct fixture f = start(&config_default);
	uint32_t n_finish[5] = { 0 };

	(void)state;
	srand(1);
	for (uint64_t id = 0; id < 150; id++) {
		struct fake_request r =
			make_request(id, 1, (size_t)rand() % 60 + 1, (uint32_t)rand() % 60 + 1);
		struct sampler_params *p = &r.params.sampling;

		r.params.ignore_eos = rand() % 2;
		p->temperature = rand() % 3 ? 1 : 0;
		p->repeat_penalty = rand() % 2 ? 1 : 1.2f;
		p->repeat_last_n = 20;
		p->logprobs = rand() % 2;
		p->n_logprobs = p->logprobs ? (uint32_t)rand() % 5 : 0;
		r.params.stop = r.stop;
		r.params.n_stop = (size_t)rand() % 3;
		r.stop[0] = id % 2 ? "aba" : "\xc3\xa4";
		r.stop[1] = "hellohello";
		if (rand() % 8 == 0)
			r.params.max_tokens = UINT32_MAX;
		submit(&f, &r);
		fake_client_wait_released(f.client, (uint32_t)id + 1);
		check_whole(&f, &r);
		n_finish[f.client->results[id].finish]++;
	}
	for (uint32_t i = SINK_FINISH_STOP; i <= SINK_FINISH_LENGTH; i++)
		assert_true(n_finish[i] > 5);	/* each was tried */
	stop(&f);
}

static void test_refusals(void **state)
{
	struct engine_config config = config_default;
	struct fake_request r = make_request(1, 1, 56, 5);
	uint64_t memory = memory_of(&r) - 1;
	struct fixture f;

	(void)state;
	config.max_queue = 2;
	config.max_seqs = 1;
	r = make_request(0, 1, 95, 5);
	f = start_with(&config, fake_accounts(4, memory_of(&r) + memory, UINT64_MAX));
	fake.n_allowed = 0;
	submit(&f, &r);			/* the longest: 95 + 1 tokens fill the context */
	r.id = 1;
	r.n_prompt = 96;
	assert_int_equal(fake_submit(f.engine, f.client, 1, &r), ENGINE_E_CONTEXT);
	r = make_request(1, 1, 56, 5);	/* with the first one byte too many */
	assert_int_equal(fake_submit(f.engine, f.client, 1, &r), ENGINE_E_QUOTA);
	r = make_request(1, 1, 5, 5);
	r.prompt[4] = (int32_t)FAKE_N_VOCAB;
	assert_int_equal(fake_submit(f.engine, f.client, 1, &r), -EINVAL);
	r.prompt[4] = -1;
	assert_int_equal(fake_submit(f.engine, f.client, 1, &r), -EINVAL);
	fake_wait_step(1);
	for (uint64_t id = 1; id < 3; id++) {
		r = make_request(id, 2, 5, 5);
		submit(&f, &r);
	}
	r = make_request(3, 3, 5, 5);
	assert_int_equal(fake_submit(f.engine, f.client, 1, &r), ENGINE_E_BUSY);
	fake_allow(UINT64_MAX);
	fake_client_wait_released(f.client, 3);
	for (uint64_t id = 0; id < 3; id++) {
		r = make_request(id, id ? 2 : 1, id ? 5 : 95, 5);
		check_whole(&f, &r);
	}
	assert_int_equal(f.client->results[0].n_tokens, 1);
	assert_int_equal(f.client->results[0].finish, SINK_FINISH_LENGTH);
	stop(&f);

	f = start_with(&config_default, fake_accounts(1, UINT64_MAX, UINT64_MAX));
	fake.n_allowed = 0;
	r = make_request(0, 1, 5, 5);
	submit(&f, &r);
	r = make_request(1, 1, 5, 5);
	assert_int_equal(fake_submit(f.engine, f.client, 1, &r), ENGINE_E_QUOTA);
	r = make_request(1, 2, 5, 5);
	submit(&f, &r);
	stop(&f);

	config.kv_memory = 2 * MIB;	/* 4 blocks: 64 tokens */
	f = start(&config);
	r = make_request(0, 1, 64, 5);
	assert_int_equal(fake_submit(f.engine, f.client, 1, &r), ENGINE_E_TOO_BIG);
	r = make_request(0, 1, 63, UINT32_MAX);
	submit(&f, &r);
	fake_client_wait_released(f.client, 1);
	assert_int_equal(f.client->results[0].finish, SINK_FINISH_LENGTH);
	assert_int_equal(f.client->results[0].n_tokens, 1);
	stop(&f);
}

static void test_bad_config(void **state)
{
	struct engine_config config = config_default;
	struct diag diag = DIAG_NULL;
	struct engine *e = NULL;

	(void)state;
	config.accounts = fake_accounts(1, 1, 1);
	config.kv_memory = MIB;
	assert_int_equal(engine_new(&e, &config, &diag), -EINVAL);
	assert_true(diag.text[0]);
	config.kv_memory = 12 * MIB;
	config.block_tokens = 17;
	assert_int_equal(engine_new(&e, &config, NULL), -EINVAL);
	config.block_tokens = 16;
	config.max_seqs = UINT32_MAX;
	assert_int_equal(engine_new(&e, &config, NULL), -EINVAL);
	assert_null(e);
	engine_free(NULL);
	accounts_free(config.accounts);
}

/* A prompt alone: it is computed, nothing is generated. */
static void test_no_tokens(void **state)
{
	struct fixture f = start(&config_default);
	struct fake_request r = make_request(0, 1, 50, 0);

	(void)state;
	submit(&f, &r);
	fake_client_wait_released(f.client, 1);
	check_whole(&f, &r);
	assert_int_equal(fake.n_rows_seen, 50);
	r = make_request(1, 1, 1, 1);
	submit(&f, &r);
	fake_client_wait_released(f.client, 2);
	check_whole(&f, &r);
	stop(&f);
}

static void test_progress(void **state)
{
	struct fixture f = start(&config_default);
	struct fake_request r = make_request(0, 1, 50, 3);

	(void)state;
	r.params.progress = true;
	submit(&f, &r);
	fake_client_wait_released(f.client, 1);
	check_whole(&f, &r);
	assert_int_equal(f.client->results[0].n_progress, (50 + QUANTUM - 1) / QUANTUM);
	assert_int_equal(f.client->results[0].progress_done, 50);
	stop(&f);
}

/* A uid's share of blocks: one request beyond it fails, two within it take turns. */
static void test_block_quota(void **state)
{
	struct fake_request r;
	struct fixture f;

	(void)state;
	f = start_with(&config_default, fake_accounts(UINT64_MAX, UINT64_MAX, 3 * FAKE_CHUNK / FAKE_BLOCKS_PER_CHUNK));
	r = make_request(0, 1, 60, 5);
	submit(&f, &r);
	fake_client_wait_released(f.client, 1);
	assert_int_equal(f.client->results[0].error, SINK_ERROR_QUOTA);
	assert_int_equal(f.client->results[0].n_tokens, 0);
	r = make_request(1, 1, 20, 60);
	submit(&f, &r);
	fake_client_wait_released(f.client, 2);
	assert_int_equal(f.client->results[1].error, SINK_ERROR_QUOTA);
	assert_int_equal(f.client->results[1].n_tokens, 48 - 20 + 1);
	for (uint64_t id = 2; id < 8; id++) {
		r = make_request(id, id < 6 ? 1 : 2, 10, 30);
		submit(&f, &r);
	}
	fake_client_wait_released(f.client, 8);
	for (uint64_t id = 2; id < 8; id++) {
		r = make_request(id, 1, 10, 30);
		check_whole(&f, &r);
	}
	stop(&f);
}

/* A failing step ends the requests in it; the engine goes on. */
static void test_step_fails(void **state)
{
	struct fixture f = start(&config_default);
	struct fake_request r;
	struct engine_stats stats;

	(void)state;
	fake.n_allowed = 0;
	fake.fail_step = 6;
	for (uint64_t id = 0; id < 2; id++) {
		r = make_request(id, 1, 4, 20);
		submit(&f, &r);
	}
	fake_allow(UINT64_MAX);
	fake_client_wait_released(f.client, 2);
	for (uint64_t id = 0; id < 2; id++)
		assert_int_equal(f.client->results[id].error, SINK_ERROR_INTERNAL);
	r = make_request(2, 1, 20, 20);
	submit(&f, &r);
	fake_client_wait_released(f.client, 3);
	check_whole(&f, &r);
	engine_stats(f.engine, &stats);
	assert_int_equal(stats.requests_failed, 2);
	assert_int_equal(stats.requests_done, 1);
	stop(&f);
}

/* Logits that are all NaN end that request, not its neighbour. */
static void test_nan(void **state)
{
	struct fixture f = start(&config_default);
	struct fake_request a = make_request(0, 1, 9, 20), b = make_request(1, 1, 9, 20);

	(void)state;
	a.prompt[8] = FAKE_POISON;
	submit(&f, &a);
	submit(&f, &b);
	fake_client_wait_released(f.client, 2);
	assert_int_equal(f.client->results[0].error, SINK_ERROR_INTERNAL);
	check_whole(&f, &b);
	stop(&f);
}

/* The baseline gives the same tokens, and computes every position again for each. */
static void test_no_cache(void **state)
{
	struct engine_config config = config_default;
	struct fake_request r = make_request(0, 1, 10, 20);
	struct fixture f;

	(void)state;
	config.no_cache = true;
	f = start(&config);
	submit(&f, &r);
	fake_client_wait_released(f.client, 1);
	check_whole(&f, &r);
	assert_int_equal(fake.n_rows_seen, (10 + 29) * 20 / 2);
	for (uint64_t id = 1; id < 9; id++) {
		r = make_request(id, (uid_t)id, 30, 30);
		submit(&f, &r);
	}
	fake_client_wait_released(f.client, 9);
	for (uint64_t id = 1; id < 9; id++) {
		r = make_request(id, (uid_t)id, 30, 30);
		check_whole(&f, &r);
	}
	fake_check_nothing_charged(f.accounts, 10);
	stop(&f);
}

/* Running, waiting and parked requests all hear of the end. */
static void test_shutdown(void **state)
{
	struct engine_config config = config_default;
	struct fake_client *full = fake_client_new(2);
	struct fake_request r;
	struct engine_stats stats;
	struct fixture f;

	(void)state;
	config.max_seqs = 2;
	f = start(&config);
	r = make_request(0, 2, 4, 80);
	fake_client_set(full, true, false);
	assert_int_equal(fake_submit(f.engine, full, 2, &r), 0);
	do {
		engine_stats(f.engine, &stats);
		usleep(100);
	} while (!stats.n_parked);
	for (uint64_t id = 0; id < 5; id++) {
		r = make_request(id, 1, 4, 80);
		submit(&f, &r);
	}
	engine_free(f.engine);
	engine_model_free(f.em);
	assert_int_equal(full->results[0].error, SINK_ERROR_SHUTDOWN);
	assert_true(full->results[0].released);
	for (uint64_t id = 0; id < 5; id++) {
		struct fake_result *result = &f.client->results[id];

		assert_true(result->released);
		assert_true(result->error == SINK_ERROR_SHUTDOWN || result->finish == SINK_FINISH_LENGTH);
	}
	fake_check_nothing_charged(f.accounts, 8);
	accounts_free(f.accounts);
	fake_client_free(f.client);
	fake_client_free(full);
}

/* A delay of an hour before each step does not delay the end. */
static void test_delay(void **state)
{
	struct engine_config config = config_default;
	struct fake_request r = make_request(0, 1, 4, 80);
	struct engine_stats stats;
	struct fixture f;

	(void)state;
	config.step_delay_ns = UINT64_C(3600000000000);
	f = start(&config);
	submit(&f, &r);
	do {
		engine_stats(f.engine, &stats);
		usleep(100);
	} while (!stats.n_running);
	usleep(2000);	/* most likely it sleeps now */
	engine_free(f.engine);
	engine_model_free(f.em);
	assert_int_equal(f.client->results[0].error, SINK_ERROR_SHUTDOWN);
	assert_int_equal(fake.n_entered, 0);
	fake_check_nothing_charged(f.accounts, 8);
	accounts_free(f.accounts);
	fake_client_free(f.client);
}

/* All that a request can come to hold is charged before it begins, and only that. */
static void test_memory(void **state)
{
	static const struct sampler_bias bias[3] = { { 3, 1 }, { 4, 1 }, { 5, 1 } };
	struct fake_request r = make_request(0, 1, 10, 0);
	uint64_t least = memory_of(&r), stops;

	(void)state;
	r.params.max_tokens = 40;
	/* 40 tokens, and number and mass of the blocks for 51 instead of 11 positions. */
	assert_int_equal(memory_of(&r), least + 40 * sizeof(int32_t) + 3 * (sizeof(uint32_t) + sizeof(float)));
	r.params.max_tokens = UINT32_MAX;
	assert_int_equal(memory_of(&r), least + 86 * sizeof(int32_t) + 6 * (sizeof(uint32_t) + sizeof(float)));
	r.params.max_tokens = 0;
	r.params.sampling.bias = bias;
	r.params.sampling.n_bias = 3;
	assert_int_equal(memory_of(&r), least + sizeof(bias));
	r.params.sampling.n_bias = 0;
	r.params.sampling.logprobs = 1;
	r.params.sampling.n_logprobs = 5;
	assert_int_equal(memory_of(&r), least + 5 * sizeof(struct sink_alternative));
	r.params.sampling.n_logprobs = 0;
	r.params.prompt_logprobs = true;
	assert_int_equal(memory_of(&r), least + OUTPUT_PROMPTS_MAX * sizeof(struct output_prompt));
	r.params.prompt_logprobs = false;
	r.params.stop = r.stop;
	r.params.n_stop = 1;
	r.stop[0] = "0123456789abcdef0123456789abcdef";
	stops = memory_of(&r);
	assert_true(stops > least + 3 * 32);
	r.params.n_stop = 2;
	r.stop[1] = r.stop[0];
	assert_true(memory_of(&r) > stops + 3 * 32);
}

/* Who sees the end of a request may send the next one at once, even with a quota of one. */
static void test_quota_is_free_at_end(void **state)
{
	struct fake_request first = make_request(0, 1, 10, 3);
	uint64_t memory = memory_of(&first);
	struct fixture f =
		start_with(&config_default, fake_accounts(1, memory, FAKE_CHUNK / FAKE_BLOCKS_PER_CHUNK));

	(void)state;
	for (uint64_t id = 0; id < 200; id++) {
		struct fake_request r = make_request(id, 1, 10, 3);

		submit(&f, &r);
		pthread_mutex_lock(&f.client->lock);
		while (!f.client->results[id].finish)
			pthread_cond_wait(&f.client->changed, &f.client->lock);
		pthread_mutex_unlock(&f.client->lock);
	}
	fake_client_wait_released(f.client, 200);
	stop(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_alone),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_bad_config),
		cmocka_unit_test(test_no_tokens),
		cmocka_unit_test(test_progress),
		cmocka_unit_test(test_block_quota),
		cmocka_unit_test(test_step_fails),
		cmocka_unit_test(test_nan),
		cmocka_unit_test(test_no_cache),
		cmocka_unit_test(test_shutdown),
		cmocka_unit_test(test_delay),
		cmocka_unit_test(test_memory),
		cmocka_unit_test(test_quota_is_free_at_end),
	};

	alarm(120);	/* a hang is a failure */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
