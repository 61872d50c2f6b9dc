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

/* 7 blocks in a chunk, where fake_model has 4. */
static struct model other_model = {
	.info = { .name = "other", .n_vocab = FAKE_N_VOCAB }, .n_ctx = 80, .block_bytes = 292 << 10, .first_hash = 99,
};

struct removal {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool done;
};

static void note_removed(void *arg)
{
	struct removal *r = arg;

	pthread_mutex_lock(&r->lock);
	r->done = true;
	pthread_cond_signal(&r->changed);
	pthread_mutex_unlock(&r->lock);
}

static void ask_removal(struct engine *e, struct engine_model *em, struct removal *r)
{
	*r = (struct removal){ .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
	assert_int_equal(engine_remove_model(e, em, note_removed, r), 0);
}

static void wait_removal(struct removal *r)
{
	pthread_mutex_lock(&r->lock);
	while (!r->done)
		pthread_cond_wait(&r->changed, &r->lock);
	pthread_mutex_unlock(&r->lock);
}

static struct engine_model *add_other(struct engine *e)
{
	struct engine_model *em = NULL;
	struct diag diag = DIAG_NULL;

	assert_int_equal(engine_add_model(e, &other_model, &em, &diag), 0);
	return em;
}

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
	assert_false(removal.done);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_turns),
		cmocka_unit_test(test_remove),
		cmocka_unit_test(test_block_too_large),
	};

	alarm(120);	/* a hang is a failure */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
