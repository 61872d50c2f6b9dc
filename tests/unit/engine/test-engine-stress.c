/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random requests of several clients and users at once, in a pool far too small
 * for them: sinks fill up at random, requests are cancelled at random, sequences
 * are preempted.  What each request gave must be what it gives alone, and
 * nothing may be left at the end.  KVD_TEST_LONG=1 does more rounds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include <sched.h>
#include <unistd.h>

#include "tests/unit/engine/fake-model.h"
#include "tests/unit/engine/fake-client.h"

#define MIB (UINT64_C(1) << 20)
#define N_CLIENTS 4
#define N_UIDS 3
#define N_REQUESTS 60	/* of each client */

struct client {
	struct fake_client *c;
	struct fake_request requests[N_REQUESTS];
	bool cancelled[N_REQUESTS];
	uint32_t n_submitted;
};

struct world {
	struct engine *engine;
	struct engine_model *em;
	struct accounts *accounts;
	struct client clients[N_CLIENTS];
	unsigned random;
	bool cancels;
};

static uint32_t pick(struct world *w, uint32_t n)
{
	return (uint32_t)rand_r(&w->random) % n;
}

static void make_random(struct world *w, struct fake_request *r, uint32_t client, uint32_t i)
{
	struct sampler_params *p = &r->params.sampling;

	*r = (struct fake_request){ .id = i, .uid = client % N_UIDS };
	r->n_prompt = pick(w, pick(w, 3) ? 30 : 94) + 1;
	for (size_t t = 0; t < r->n_prompt; t++)
		r->prompt[t] = (int32_t)(3 + pick(w, FAKE_N_VOCAB - 3));
	r->params.max_tokens = pick(w, 10) ? pick(w, 70) : UINT32_MAX;
	r->params.ignore_eos = pick(w, 3) > 0;
	r->params.progress = pick(w, 2);
	r->params.prompt_logprobs = !pick(w, 3);
	r->params.prompt_logprobs_from = pick(w, 3) ? 0 : pick(w, 100);
	r->params.stop = r->stop;
	r->params.n_stop = pick(w, 3);
	r->stop[0] = pick(w, 2) ? "abab" : "\xe2\x82\xac";
	r->stop[1] = pick(w, 2) ? "hello\n" : "ba";
	*p = (struct sampler_params){
		.temperature = pick(w, 4) ? 1 : 0,
		.top_k = pick(w, 2) ? 0 : 8,
		.top_p = 0.95f,
		.min_p = 0.01f,
		.repeat_penalty = pick(w, 2) ? 1 : 1.1f,
		.repeat_last_n = 32,
		.seed = client * 1000 + i,
		.logprobs = (int)pick(w, 2),
		.n_logprobs = pick(w, 4),
	};
	if (!p->logprobs)
		p->n_logprobs = 0;
}

static void submit_one(struct world *w, uint32_t client)
{
	struct client *c = &w->clients[client];

	if (c->n_submitted == N_REQUESTS)
		return;
	make_random(w, &c->requests[c->n_submitted], client, c->n_submitted);
	assert_int_equal(fake_submit(w->engine, c->c, client, &c->requests[c->n_submitted]), 0);
	c->n_submitted++;
}

static void cancel_one(struct world *w, uint32_t client)
{
	struct client *c = &w->clients[client];
	uint32_t id;

	if (!w->cancels || !c->n_submitted)
		return;
	id = pick(w, c->n_submitted);
	c->cancelled[id] = true;
	engine_cancel(w->engine, client, id);
}

static void make_room(struct world *w, uint32_t client)
{
	fake_client_set(w->clients[client].c, false, false);
	engine_room(w->engine, client);
}

static bool all_released(struct world *w)
{
	bool all = true;

	for (uint32_t i = 0; i < N_CLIENTS; i++) {
		struct fake_client *c = w->clients[i].c;

		pthread_mutex_lock(&c->lock);
		all &= c->n_released == N_REQUESTS;
		pthread_mutex_unlock(&c->lock);
	}
	return all;
}

static void drive(struct world *w)
{
	while (!all_released(w)) {
		uint32_t client = pick(w, N_CLIENTS);

		switch (pick(w, 8)) {
		case 0:
		case 1:
			submit_one(w, client);
			break;
		case 2:
			if (!pick(w, 4))
				cancel_one(w, client);
			break;
		case 3:
			make_room(w, client);
			break;
		case 4:
			usleep(pick(w, 200));
			break;
		default:
			sched_yield();
		}
	}
}

static uint32_t check_results(struct world *w)
{
	static struct fake_result want;
	uint32_t n_whole = 0;

	for (uint32_t i = 0; i < N_CLIENTS; i++) {
		for (uint32_t j = 0; j < N_REQUESTS; j++) {
			const struct fake_result *got = &w->clients[i].c->results[j];

			fake_expect(&w->clients[i].requests[j], fake_model.n_ctx, &want);
			if (w->clients[i].cancelled[j] && got->finish == SINK_FINISH_CANCELLED) {
				fake_check_cancelled(got, &want);
				continue;
			}
			fake_check_whole(got, &w->clients[i].requests[j], &want);
			n_whole++;
		}
	}
	return n_whole;
}

static uint64_t run_world(struct engine_config *config, unsigned seed, bool full_sinks, bool cancels)
{
	struct world *w = calloc(1, sizeof(*w));
	struct engine_stats stats;
	uint32_t n_whole;

	assert_non_null(w);
	*w = (struct world){ .random = seed, .cancels = cancels,
			     .accounts = fake_accounts(UINT64_MAX, UINT64_MAX, UINT64_MAX) };
	config->backend = &fake_backend;
	config->accounts = w->accounts;
	fake_reset(config->prefill_quantum);
	assert_int_equal(engine_new(&w->engine, config, NULL), 0);
	assert_int_equal(engine_add_model(w->engine, &fake_model, &w->em, NULL), 0);
	fake_em = w->em;
	for (uint32_t i = 0; i < N_CLIENTS; i++) {
		w->clients[i].c = fake_client_new(seed + i);
		w->clients[i].c->full_one_in = full_sinks ? 30 : 0;
	}
	drive(w);
	engine_stats(w->engine, &stats);
	n_whole = check_results(w);
	assert_int_equal(stats.requests_done, n_whole);
	assert_int_equal(stats.requests_done + stats.requests_cancelled, N_CLIENTS * N_REQUESTS);
	assert_int_equal(stats.requests_failed, 0);
	assert_int_equal(stats.n_running + stats.n_queued + stats.n_parked, 0);
	assert_int_equal(stats.blocks_used, 0);
	assert_true(fake.max_seqs_seen <= config->max_seqs);
	fake_check_nothing_charged(w->accounts, N_UIDS);
	engine_free(w->engine);
	engine_model_free(w->em);
	if (fake.n_violations)
		fail_msg("%s (%u in all)", fake.violation, fake.n_violations);
	for (uint32_t i = 0; i < N_CLIENTS; i++)
		fake_client_free(w->clients[i].c);
	accounts_free(w->accounts);
	free(w);
	return stats.preemptions;
}

static int n_rounds(void)
{
	return getenv("KVD_TEST_LONG") ? 60 : 4;
}

static void test_small_pool(void **state)
{
	uint64_t preemptions = 0;

	(void)state;
	for (int i = 0; i < n_rounds(); i++) {
		struct engine_config config = { .kv_memory = 4 * MIB, .max_seqs = 6, .prefill_quantum = 16 };
		preemptions += run_world(&config, 100 + (unsigned)i, false, false);
	}
	assert_true(preemptions > 10);
}

static void test_everything(void **state)
{
	uint64_t preemptions = 0;

	(void)state;
	for (int i = 0; i < n_rounds(); i++) {
		struct engine_config config = {
			.kv_memory = (i % 2 ? 4 : 8) * MIB, .max_seqs = 8, .prefill_quantum = i % 3 ? 16 : 1,
			.block_tokens = i % 2 ? 16 : 32,
		};
		preemptions += run_world(&config, 200 + (unsigned)i, true, true);
	}
	assert_true(preemptions > 10);
}

static void test_no_cache(void **state)
{
	struct engine_config config = {
		.kv_memory = 6 * MIB, .max_seqs = 8, .prefill_quantum = 64, .no_cache = true};

	(void)state;
	run_world(&config, 300, true, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_small_pool),
		cmocka_unit_test(test_everything),
		cmocka_unit_test(test_no_cache),
	};

	alarm(getenv("KVD_TEST_LONG") ? 900 : 120);	/* a hang is a failure */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
