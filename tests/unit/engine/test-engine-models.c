/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two models of different geometry in one engine: turns, blocks of a pool that
 * both need, models that come and go under load.  Each request must give what it
 * gives alone.
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

static struct fake_request make_other(struct engine_model *em, uint64_t id, uid_t uid, size_t n_prompt,
				      uint32_t max_tokens)
{
	struct fake_request r = make_request(id, uid, n_prompt, max_tokens);

	r.em = em;
	r.model = &other_model;
	return r;
}

static void check_other(struct fixture *f, const struct fake_request *r)
{
	static struct fake_result want;

	fake_expect(r, other_model.n_ctx, &want);
	fake_check_whole(&f->client->results[r->id], r, &want);
}

/* Steps alternate, whoever came first; names, contexts and figures are each model's own. */
static void test_turns(void **state)
{
	struct fixture f = start(&config_default);
	struct engine_model *em = add_other(f.engine);
	struct fake_request a = make_request(0, 1, 5, 30), b = make_other(em, 1, 2, 5, 30);
	struct engine_model_stats stats;
	struct engine_stats all;

	(void)state;
	assert_string_equal(engine_model_name(f.em), "fake");
	assert_string_equal(engine_model_name(em), "other");
	assert_int_equal(engine_model_n_ctx(em), 80);
	assert_int_equal(engine_model_block_bytes(em), other_model.block_bytes);
	fake_model.n_steps = other_model.n_steps = 0;
	fake.n_allowed = 2;
	submit(&f, &a);
	fake_wait_step(3);
	submit(&f, &b);
	for (uint64_t step = 3; step < 33; step++) {
		fake_wait_step(step);
		assert_int_equal(other_model.n_steps, (step - 2) / 2);
		fake_allow(1);
	}
	engine_model_stats(f.engine, em, &stats);
	assert_int_equal(stats.n_requests, 1);
	assert_int_equal(stats.n_running, 1);
	fake_allow(UINT64_MAX);
	fake_client_wait_released(f.client, 2);
	check_whole(&f, &a);
	check_other(&f, &b);
	engine_model_stats(f.engine, em, &stats);
	engine_stats(f.engine, &all);
	assert_int_equal(stats.generated_tokens, f.client->results[1].n_tokens);
	assert_int_equal(all.generated_tokens,
			 f.client->results[0].n_tokens + f.client->results[1].n_tokens);
	assert_int_equal(stats.prompt_tokens, 5);
	assert_int_equal(all.prompt_tokens, 10);
	assert_int_equal(stats.n_requests, 0);
	assert_int_equal(stats.steps, other_model.n_steps);
	stop(&f);
	engine_model_free(em);
}

/* Removed in mid-step: its requests hear of it, running, queued or parked; the other's go on. */
static void test_remove(void **state)
{
	struct engine_config config = config_default;
	struct fake_client *full = fake_client_new(2);
	struct fake_request a = make_request(0, 1, 5, 60), r;
	struct engine_model_stats stats;
	struct removal removal;
	struct engine_model *em;
	struct fixture f;

	(void)state;
	config.max_seqs = 2;
	f = start(&config);
	em = add_other(f.engine);
	fake_client_set(full, true, false);
	r = make_other(em, 0, 3, 5, 60);
	assert_int_equal(fake_submit(f.engine, full, 2, &r), 0);
	do {
		engine_model_stats(f.engine, em, &stats);
		usleep(100);
	} while (!stats.n_parked);
	fake.n_allowed = fake.n_entered + 4;
	submit(&f, &a);
	for (uint64_t id = 1; id < 4; id++) {
		r = make_other(em, id, 2, 5, 60);
		submit(&f, &r);
	}
	fake_wait_step(fake.n_allowed + 1);
	ask_removal(f.engine, em, &removal);
	assert_int_equal(fake_submit(f.engine, f.client, 1, &(struct fake_request){
		.em = em, .id = 9, .n_prompt = 1, .prompt = { 3 }, .params = r.params }), ENGINE_E_UNLOADED);
	assert_false(is_removed(&removal));
	fake_allow(UINT64_MAX);
	wait_removal(&removal);
	for (uint64_t id = 1; id < 4; id++) {
		assert_int_equal(f.client->results[id].error, SINK_ERROR_UNLOADED);
		assert_true(f.client->results[id].released);
	}
	assert_int_equal(full->results[0].error, SINK_ERROR_UNLOADED);
	assert_true(full->results[0].released);
	fake_client_wait_released(f.client, 4);
	check_whole(&f, &a);
	assert_int_equal(fake_submit(f.engine, f.client, 1, &(struct fake_request){
		.em = em, .id = 9, .n_prompt = 1, .prompt = { 3 }, .params = r.params }), ENGINE_E_UNLOADED);
	engine_model_free(em);
	em = add_other(f.engine);	/* and again */
	r = make_other(em, 10, 1, 5, 5);
	submit(&f, &r);
	fake_client_wait_released(f.client, 5);
	check_other(&f, &r);
	fake_client_free(full);
	stop(&f);
	engine_model_free(em);
}

/* A block that no chunk can hold is refused with both numbers; the engine goes on without the model. */
static void test_block_too_large(void **state)
{
	static struct model large = {
		.info = { .name = "large", .n_vocab = FAKE_N_VOCAB }, .n_ctx = 80, .block_bytes = 3 * MIB,
	};
	struct fixture f = start(&config_default);
	struct engine_model *em = NULL;
	struct diag diag = DIAG_NULL;
	struct fake_request r = make_request(0, 1, 5, 5);
	char number[24];

	(void)state;
	assert_int_equal(engine_add_model(f.engine, &large, &em, &diag), -EINVAL);
	assert_null(em);
	snprintf(number, sizeof(number), "%llu", (unsigned long long)(3 * MIB));
	assert_non_null(strstr(diag.text, number));
	snprintf(number, sizeof(number), "%llu", (unsigned long long)(2 * MIB));
	assert_non_null(strstr(diag.text, number));
	submit(&f, &r);
	fake_client_wait_released(f.client, 1);
	check_whole(&f, &r);
	stop(&f);
}

/* Two chunks; the older grows into the second, where the younger of the other model is, and the younger waits. */
static void test_older_gets_chunk(void **state)
{
	struct engine_config config = config_default;
	struct fake_request a = make_request(0, 1, 10, 80), b;
	struct engine_model_stats stats;
	struct engine_stats all;
	struct engine_model *em;
	struct fixture f;

	(void)state;
	config.kv_memory = 4 * MIB;
	f = start(&config);
	em = add_other(f.engine);
	fake.n_allowed = 2;
	submit(&f, &a);
	fake_wait_step(3);
	b = make_other(em, 1, 2, 10, 60);
	submit(&f, &b);
	fake_allow(UINT64_MAX);
	fake_client_wait_released(f.client, 2);
	check_whole(&f, &a);
	check_other(&f, &b);
	assert_int_equal(f.client->results[0].released_as, 1);
	engine_stats(f.engine, &all);
	assert_int_equal(all.preemptions, 1);

	/* The other way round: the one that grows is the younger, and gives way. */
	fake.n_allowed = fake.n_entered + 2;
	b = make_other(em, 2, 2, 10, 70);
	submit(&f, &b);
	fake_wait_step(fake.n_allowed + 1);
	a = make_request(3, 1, 10, 80);
	submit(&f, &a);
	fake_allow(UINT64_MAX);
	fake_client_wait_released(f.client, 4);
	check_other(&f, &b);
	check_whole(&f, &a);
	assert_int_equal(f.client->results[2].released_as, 3);
	engine_model_stats(f.engine, em, &stats);
	assert_int_equal(stats.n_requests, 0);
	engine_stats(f.engine, &all);
	assert_int_equal(all.preemptions, 2);
	stop(&f);
	engine_model_free(em);
}

/* The other model's reader is full: its chunk is the first to go, though its sequence is the oldest. */
static void test_parked_gives_chunk(void **state)
{
	struct engine_config config = config_default;
	struct fake_client *full = fake_client_new(2);
	struct fake_request a = make_request(0, 1, 70, 20), b;
	struct engine_model_stats stats;
	struct engine_model *em;
	struct fixture f;
	static struct fake_result want;

	(void)state;
	config.kv_memory = 4 * MIB;
	f = start(&config);
	em = add_other(f.engine);
	b = make_other(em, 0, 2, 10, 60);
	fake_client_set(full, true, false);
	assert_int_equal(fake_submit(f.engine, full, 2, &b), 0);
	do {
		engine_model_stats(f.engine, em, &stats);
		usleep(100);
	} while (!stats.n_parked);
	assert_int_equal(stats.blocks_used, 1);
	submit(&f, &a);
	fake_client_wait_released(f.client, 1);
	check_whole(&f, &a);
	engine_model_stats(f.engine, em, &stats);
	assert_int_equal(stats.n_parked, 1);
	assert_int_equal(stats.blocks_used, 0);
	fake_client_set(full, false, false);
	engine_room(f.engine, 2);
	fake_client_wait_released(full, 1);
	fake_expect(&b, other_model.n_ctx, &want);
	fake_check_whole(&full->results[0], &b, &want);
	fake_client_free(full);
	stop(&f);
	engine_model_free(em);
}

/* A uid at its limit of KV memory waits for itself over all models; another goes on beside it. */
static void test_quota(void **state)
{
	struct fixture f = start_with(&config_default,
				      fake_accounts(UINT64_MAX, UINT64_MAX, 3 * FAKE_CHUNK / FAKE_BLOCKS_PER_CHUNK));
	struct engine_model *em = add_other(f.engine);
	struct fake_request r;

	(void)state;
	r = make_other(em, 0, 1, 79, 1);	/* 5 blocks of 292 KiB: within it */
	submit(&f, &r);
	fake_client_wait_released(f.client, 1);
	check_other(&f, &r);
	r = make_request(1, 1, 60, 1);		/* 4 of 512 KiB: never */
	submit(&f, &r);
	fake_client_wait_released(f.client, 2);
	assert_int_equal(f.client->results[1].error, SINK_ERROR_QUOTA);
	for (uint64_t id = 2; id < 12; id++) {
		uid_t uid = id < 8 ? 1 : 2;

		r = id % 2 ? make_request(id, uid, 20, 20) : make_other(em, id, uid, 30, 30);
		submit(&f, &r);
	}
	fake_client_wait_released(f.client, 12);
	for (uint64_t id = 2; id < 12; id++) {
		r = id % 2 ? make_request(id, 1, 20, 20) : make_other(em, id, 1, 30, 30);
		if (id % 2)
			check_whole(&f, &r);
		else
			check_other(&f, &r);
	}
	stop(&f);
	engine_model_free(em);
}

/* The engine ends while a model is being removed: who asked is told, or was refused. */
static void test_shutdown(void **state)
{
	struct fixture f = start(&config_default);
	struct engine_model *em = add_other(f.engine);
	struct fake_request a = make_request(0, 1, 5, 60), b = make_other(em, 1, 1, 5, 60);
	struct removal removal;

	(void)state;
	submit(&f, &a);
	submit(&f, &b);
	ask_removal(f.engine, em, &removal);
	stop(&f);
	assert_true(is_removed(&removal));
	engine_model_free(em);
	engine_model_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_turns),
		cmocka_unit_test(test_remove),
		cmocka_unit_test(test_block_too_large),
		cmocka_unit_test(test_older_gets_chunk),
		cmocka_unit_test(test_parked_gives_chunk),
		cmocka_unit_test(test_quota),
		cmocka_unit_test(test_shutdown),
	};

	alarm(120);	/* a hang is a failure */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
