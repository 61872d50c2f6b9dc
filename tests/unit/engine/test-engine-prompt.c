/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log-probabilities of the prompt's tokens: against a computation of the test's own,
 * and equal to the bit however the prompt was cut, who else ran, and how often
 * the reader was full or the sequence preempted.
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

static struct fake_request make_prompt(uint64_t id, uid_t uid, size_t n_prompt, uint32_t from, uint32_t max_tokens)
{
	struct fake_request r = make_request(id, uid, n_prompt, max_tokens);

	r.params.prompt_logprobs = true;
	r.params.prompt_logprobs_from = from;
	r.params.prompt_alternatives = id % 2 ? FAKE_PROMPT_TOP : 0;
	return r;
}

/* Every length and beginning around the ends, with and without tokens to follow. */
static void test_positions(void **state)
{
	static const uint32_t lengths[] = { 1, 2, 3, 8, 9, 40, 95 };
	struct fixture f = start(&config_default);
	uint32_t n = 0;

	(void)state;
	for (size_t l = 0; l < ARRAY_SIZE(lengths); l++) {
		const uint32_t froms[] = { 0, 1, 2, lengths[l] / 2, lengths[l] - 1, lengths[l], UINT32_MAX };

		for (size_t i = 0; i < ARRAY_SIZE(froms); i++) {
			struct fake_request r = make_prompt(n, 1, lengths[l], froms[i], n % 3);
			const struct fake_result *got = &f.client->results[n];

			submit(&f, &r);
			fake_client_wait_released(f.client, ++n);
			check_whole(&f, &r);
			if (froms[i] < lengths[l])
				assert_int_equal(got->n_prompts, lengths[l] - froms[i]);
			if (!froms[i])
				assert_true(isnan(got->prompt_logprobs[0]) && !got->n_prompt_tops[0]);
		}
	}
	stop(&f);
}

/* Nothing is computed with logits that nobody asked for, and no row twice. */
static void test_cost(void **state)
{
	struct fixture f = start(&config_default);
	struct fake_request r = make_prompt(0, 1, 90, 60, 0);

	(void)state;
	submit(&f, &r);
	fake_client_wait_released(f.client, 1);
	check_whole(&f, &r);
	assert_int_equal(fake.n_rows_seen, 90);
	assert_int_equal(fake.n_logits_seen, 30);
	stop(&f);
}

static void run_all(uint32_t quantum, uint32_t max_seqs, uint64_t kv_memory, uint32_t full_one_in,
		    float logprobs[8][FAKE_TOKENS_MAX])
{
	struct engine_config config = config_default;
	struct fixture f;
	uint32_t n_released;

	config.prefill_quantum = quantum;
	config.max_seqs = max_seqs;
	config.kv_memory = kv_memory;
	f = start(&config);
	f.client->full_one_in = full_one_in;
	for (uint64_t id = 0; id < 8; id++) {
		struct fake_request r = make_prompt(id, (uid_t)(id % 3), 40 + id * 3, (uint32_t)id, 8);

		submit(&f, &r);
	}
	do {
		fake_client_set(f.client, false, false);
		engine_room(f.engine, 1);
		usleep(50);
		pthread_mutex_lock(&f.client->lock);
		n_released = f.client->n_released;
		pthread_mutex_unlock(&f.client->lock);
	} while (n_released < 8);
	for (uint64_t id = 0; id < 8; id++) {
		struct fake_request r = make_prompt(id, (uid_t)(id % 3), 40 + id * 3, (uint32_t)id, 8);
		static struct fake_result want;

		fake_expect(&r, MIN(fake_model.n_ctx, (uint32_t)(kv_memory / (FAKE_CHUNK / 4) * 16)), &want);
		fake_check_whole(&f.client->results[id], &r, &want);
		memcpy(logprobs[id], f.client->results[id].prompt_logprobs, sizeof(logprobs[id]));
	}
	stop(&f);
}

static void test_same_bits(void **state)
{
	static float alone[8][FAKE_TOKENS_MAX], other[8][FAKE_TOKENS_MAX];
	static const struct { uint32_t quantum, max_seqs, mib, full_one_in; } ways[] = {
		{ 1, 8, 64, 0 }, { 8, 8, 64, 0 }, { 256, 8, 64, 0 }, { 256, 2, 4, 0 }, { 8, 4, 4, 3 }, { 64, 8, 4, 2 },
	};

	(void)state;
	run_all(256, 1, 64 * MIB, 0, alone);
	for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
		run_all(ways[i].quantum, ways[i].max_seqs, ways[i].mib * MIB, ways[i].full_one_in, other);
		assert_memory_equal(alone, other, sizeof(alone));
	}
}

/* A reader that is full in mid-prompt: parked with its place kept, nothing lost or said twice. */
static void test_full(void **state)
{
	struct fixture f = start(&config_default);
	struct fake_request r = make_prompt(1, 1, 60, 0, 4), other = make_request(0, 2, 5, 60);
	struct engine_stats stats;

	(void)state;
	f.client->full_after = 21;
	submit(&f, &r);
	do {
		engine_stats(f.engine, &stats);
		usleep(100);
	} while (!stats.n_parked);
	assert_int_equal(f.client->results[1].n_prompts, 21);
	/* The reader hears of what came before. */
	pthread_mutex_lock(&f.client->lock);
	while (f.client->n_unflushed)
		pthread_cond_wait(&f.client->changed, &f.client->lock);
	pthread_mutex_unlock(&f.client->lock);
	fake_client_set(f.client, false, false);
	submit(&f, &other);		/* runs on while the prompt waits */
	fake_client_wait_released(f.client, 1);
	check_whole(&f, &other);
	engine_room(f.engine, 1);
	fake_client_wait_released(f.client, 2);
	check_whole(&f, &r);
	stop(&f);
}

/* More alternatives than there are tokens, and more than are kept: cut. */
static void test_many_alternatives(void **state)
{
	struct fixture f = start(&config_default);
	struct fake_request r = make_prompt(1, 1, 30, 0, 0);
	struct engine_request_params params = r.params;
	uint64_t bytes[2];

	(void)state;
	for (int i = 0; i < 2; i++) {
		fake.n_allowed = fake.n_entered;
		r.params.prompt_alternatives = i ? UINT32_MAX : ENGINE_PROMPT_ALTERNATIVES_MAX;
		submit(&f, &r);
		bytes[i] = account_used(f.accounts, 1, ACCOUNT_MEMORY);
		engine_cancel(f.engine, 1, 1);
		fake_allow(UINT64_MAX);
		fake_client_wait_released(f.client, (uint32_t)i + 1);
		f.client->results[1] = (struct fake_result){ 0 };
	}
	assert_int_equal(bytes[0], bytes[1]);
	r.params = params;
	submit(&f, &r);
	fake_client_wait_released(f.client, 3);
	check_whole(&f, &r);
	stop(&f);
}

/* Penalties look at what was generated alone, preempted or not. */
static void test_penalties(void **state)
{
	struct engine_config config = config_default;
	struct fake_request r[4];
	struct fixture f;

	(void)state;
	config.kv_memory = 4 * MIB;
	f = start(&config);
	for (uint32_t i = 0; i < 4; i++) {
		r[i] = make_request(i, i % 2, 20 + i, 40);
		r[i].params.sampling.presence_penalty = 0.5f;
		r[i].params.sampling.frequency_penalty = i % 2 ? 1.5f : -0.3f;
		submit(&f, &r[i]);
	}
	fake_client_wait_released(f.client, 4);
	for (uint32_t i = 0; i < 4; i++)
		check_whole(&f, &r[i]);
	stop(&f);
}

/* Cancelled while it is parked in mid-prompt. */
static void test_cancel(void **state)
{
	struct fixture f = start(&config_default);
	struct fake_request r = make_prompt(0, 1, 60, 0, 4);
	struct engine_stats stats;

	(void)state;
	f.client->full_after = 21;
	submit(&f, &r);
	do {
		engine_stats(f.engine, &stats);
		usleep(100);
	} while (!stats.n_parked);
	engine_cancel(f.engine, 1, 0);
	fake_client_wait_released(f.client, 1);
	check_cancelled(&f, &r);
	stop(&f);
}

/* Another's decoding gets a token in every step beside it. */
static void test_stalls_nobody(void **state)
{
	struct fixture f = start(&config_default);
	struct fake_request stream = make_request(0, 1, 3, 40), prompt = make_prompt(1, 2, 90, 0, 0);

	(void)state;
	fake.n_allowed = 2;
	submit(&f, &stream);
	fake_wait_step(3);
	submit(&f, &prompt);
	for (uint64_t step = 3; step < 3 + 90 / QUANTUM; step++) {
		fake_wait_step(step);
		assert_int_equal(f.client->results[0].n_tokens, step - 1);
		fake_allow(1);
	}
	fake_allow(UINT64_MAX);
	fake_client_wait_released(f.client, 2);
	check_whole(&f, &stream);
	check_whole(&f, &prompt);
	stop(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_positions), cmocka_unit_test(test_cost),   cmocka_unit_test(test_same_bits),
		cmocka_unit_test(test_full),	  cmocka_unit_test(test_cancel), cmocka_unit_test(test_stalls_nobody),
		cmocka_unit_test(test_many_alternatives), cmocka_unit_test(test_penalties),
	};

	alarm(120);	/* a hang is a failure */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
