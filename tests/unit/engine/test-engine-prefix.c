/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefixes: what is taken from the cache, counted in rows that the model computed; who waits for whom; what is
 * said of what was not found.  The fake model finds a block that is wrong.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include <unistd.h>

#include "daemon/engine/scheduler.h"
#include "tests/unit/engine/fake-model.h"
#include "tests/unit/engine/fake-client.h"
#include "tests/unit/engine/fixture.h"

static struct fake_request cached_request(uint64_t id, uid_t uid, size_t n_prompt, uint32_t max_tokens)
{
	struct fake_request r = make_request(id, uid, n_prompt, max_tokens);

	for (size_t i = 0; i < n_prompt; i++)
		r.prompt[i] = (int32_t)(3 + (i * i + i / 7) % (FAKE_N_VOCAB - 3));
	r.params.ns = "a";
	return r;
}

static const struct fake_result *result(const struct fixture *f, uint64_t id)
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

static void check_usage(const struct fixture *f, uint64_t id, uint32_t n_cached, enum sink_miss miss, int32_t token)
{
	assert_int_equal(result(f, id)->n_cached, n_cached);
	assert_int_equal(result(f, id)->miss, miss);
	assert_int_equal(result(f, id)->miss_token, token);
}

static void set_tokens(struct fake_request *r, size_t from, const int32_t *tokens, size_t n)
{
	memcpy(r->prompt + from, tokens, n * sizeof(*tokens));
	r->n_prompt = from + n;
}

/* The same again, the next turn of a chat, a rewind, a branch: to the token. */
static void test_reuse(void **state)
{
	struct fixture f = start(&config_default);
	struct fake_request r = cached_request(0, 1, 50, 9), next;
	static const int32_t others[] = { 20, 19, 18, 17 };

	(void)state;
	assert_int_equal(run(&f, &r), 50 + 8);
	check_usage(&f, 0, 0, SINK_MISS_EMPTY, r.prompt[0]);
	r.id = 1;
	assert_int_equal(run(&f, &r), 1 + 8);
	check_usage(&f, 1, 49, SINK_MISS_NONE, r.prompt[49]);

	/* All but the last sampled token, whose KV nobody needed yet. */
	next = cached_request(2, 1, 50, 5);
	set_tokens(&next, 50, result(&f, 0)->tokens, 9);
	next.params.sampling.seed = 2;
	set_tokens(&next, 59, others, 2);
	assert_int_equal(run(&f, &next), 61 - 58 + 4);
	assert_int_equal(result(&f, 2)->n_cached, 58);

	next = cached_request(3, 1, 37, 5);
	set_tokens(&next, 37, others, 4);
	assert_int_not_equal(others[0], r.prompt[37]);
	assert_int_equal(run(&f, &next), 4 + 4);
	check_usage(&f, 3, 37, SINK_MISS_DIFFERS, others[0]);

	next.prompt[0] = 22;
	next.id = 4;
	assert_int_equal(run(&f, &next), 41 + 4);
	check_usage(&f, 4, 0, SINK_MISS_DIFFERS, 22);
	stop(&f);
}

/* Under another name nothing is found; a request without one finds and leaves nothing. */
static void test_namespaces(void **state)
{
	struct fixture f = start(&config_default);
	struct fake_request r = cached_request(0, 1, 50, 1);

	(void)state;
	run(&f, &r);
	r.id = 1;
	r.params.ns = "b";
	assert_int_equal(run(&f, &r), 50);
	check_usage(&f, 1, 0, SINK_MISS_EMPTY, r.prompt[0]);
	r.id = 2;
	r.params.ns = NULL;
	assert_int_equal(run(&f, &r), 50);
	check_usage(&f, 2, 0, SINK_MISS_NO_CACHE, r.prompt[0]);
	r.id = 3;
	r.uid = 2;
	r.params.ns = "a";	/* whoever may use the name */
	assert_int_equal(run(&f, &r), 1);
	stop(&f);
}

/* Four at once: one prefill and one copy of what is common. */
static void test_once(void **state)
{
	struct fixture f = start(&config_default);
	struct engine_stats stats;

	(void)state;
	fake.n_allowed = 0;
	for (uint64_t id = 0; id < 4; id++) {
		struct fake_request r = cached_request(id, 1, 40, 20);

		submit(&f, &r);
	}
	fake_allow(7);		/* 5 steps of 8 rows, and 2 of all four: every one has its blocks */
	fake_wait_step(8);
	engine_stats(f.engine, &stats);
	assert_int_equal(stats.n_running, 4);
	assert_int_equal(stats.blocks_used, 2 + 4);	/* 2 in common, and one for each */
	fake_allow(UINT64_MAX);
	fake_client_wait_released(f.client, 4);
	for (uint64_t id = 0; id < 4; id++) {
		struct fake_request r = cached_request(id, 1, 40, 20);

		check_whole(&f, &r);
		assert_int_equal(result(&f, id)->n_cached, id ? 32 : 0);
	}
	/* The rest of a block, 8 tokens, is each one's own. */
	assert_int_equal(fake.n_rows_seen, 40 + 3 * 8 + 4 * 19);
	stop(&f);
}

/* The first is cancelled in the middle of its prefill: another goes on from there. */
static void test_take_over(void **state)
{
	struct fixture f = start(&config_default);
	struct fake_request r = cached_request(0, 1, 70, 3);
	uint64_t rows;

	(void)state;
	fake.n_allowed = 0;
	for (; r.id < 3; r.id++)
		submit(&f, &r);
	fake_allow(4);		/* 32 of 70 */
	fake_wait_step(5);
	engine_cancel(f.engine, 1, 0);
	fake_allow(UINT64_MAX);
	fake_client_wait_released(f.client, 3);
	r.id = 0;
	check_cancelled(&f, &r);
	for (r.id = 1; r.id < 3; r.id++)
		check_whole(&f, &r);
	rows = fake.n_rows_seen;
	/* 5 steps of the first; then one of the others from there, and the other's last 6 tokens. */
	assert_in_range(rows, 40 + 30 + 6 + 2 * 2, 40 + 38 + 6 + 2 * 2);
	stop(&f);
}

/* The first is parked in its prefill, since nobody reads: it holds nobody up, and finds the work done. */
static void test_owner_parked(void **state)
{
	struct fake_client *other = fake_client_new(2);
	struct fixture f = start(&config_default);
	struct fake_request r = cached_request(0, 1, 70, 3), s = r;
	static struct fake_result want;

	(void)state;
	r.params.prompt_logprobs = true;
	r.params.prompt_logprobs_from = 20;
	fake.n_allowed = 0;
	fake_client_set(f.client, true, false);
	submit(&f, &r);
	fake_wait_step(1);
	assert_int_equal(fake_submit(f.engine, other, 2, &s), 0);
	fake_allow(UINT64_MAX);
	fake_client_wait_released(other, 1);
	fake_expect(&s, fake_model.n_ctx, &want);
	fake_check_whole(&other->results[0], &s, &want);
	assert_int_equal(other->results[0].n_cached, 16);
	fake_client_set(f.client, false, false);
	engine_room(f.engine, 1);
	fake_client_wait_released(f.client, 1);
	check_whole(&f, &r);
	fake_client_free(other);
	stop(&f);
}

/* A token whose log-probability is wanted is computed, and all after it. */
static void test_prompt_logprobs(void **state)
{
	struct fixture f = start(&config_default);
	struct fake_request r = cached_request(0, 1, 50, 2);

	(void)state;
	run(&f, &r);
	r.params.prompt_logprobs = true;
	for (r.id = 1; r.id < 5; r.id++) {
		static const uint32_t froms[] = { 0, 1, 20, 49 };
		uint32_t from = froms[r.id - 1], n_cached = from ? from - 1 : 0;

		r.params.prompt_logprobs_from = from;
		assert_int_equal(run(&f, &r), 50 - n_cached + 1);
		check_usage(&f, r.id, n_cached, SINK_MISS_LOGPROBS, r.prompt[n_cached]);
	}
	stop(&f);
}

/* Few rows with logits fit a step: nobody waits for one who wants them all, but what both compute is kept once. */
static void test_slow_owner(void **state)
{
	struct fixture f = start(&config_default);
	struct fake_request r = cached_request(0, 1, 70, 3), s = cached_request(1, 1, 70, 30);
	struct engine_stats stats;

	(void)state;
	r.params.prompt_logprobs = true;
	r.params.max_tokens = 30;
	fake.n_allowed = 0;
	submit(&f, &r);
	submit(&f, &s);
	fake_allow(30);
	fake_wait_step(31);
	engine_stats(f.engine, &stats);
	assert_int_equal(stats.n_running, 2);
	assert_int_equal(stats.blocks_used, 4 + 2 * 2);
	fake_allow(UINT64_MAX);
	fake_client_wait_released(f.client, 2);
	check_whole(&f, &r);
	check_whole(&f, &s);
	assert_int_equal(result(&f, 1)->n_cached, 0);
	stop(&f);
}

/* What has gone is not there, and said to have gone. */
static void test_gone(void **state)
{
	struct engine_config config = config_default;
	struct fake_request r = cached_request(0, 1, 40, 1), s;
	struct engine_stats stats;
	struct fixture f;

	(void)state;
	config.kv_memory = 2 * MIB;	/* 4 blocks */
	f = start(&config);
	run(&f, &r);
	engine_stats(f.engine, &stats);
	assert_int_equal(stats.blocks_used, 0);
	assert_int_equal(stats.blocks_cached, 3);
	assert_int_equal(stats.blocks_free, 1);
	s = make_request(1, 1, 60, 1);
	s.params.ns = "a";
	assert_int_equal(run(&f, &s), 60);
	r.id = 2;
	assert_int_equal(run(&f, &r), 40);
	check_usage(&f, 2, 0, SINK_MISS_EVICTED, r.prompt[0]);
	engine_stats(f.engine, &stats);
	assert_int_equal(stats.preemptions, 0);
	stop(&f);

	f = start(&config_default);
	r.id = 0;
	r.params.ttl_ns = 1;
	run(&f, &r);
	usleep(10);
	r.id = 1;
	assert_int_equal(run(&f, &r), 40);
	check_usage(&f, 1, 0, SINK_MISS_EXPIRED, r.prompt[0]);
	/* An engine that has nothing else to do lets it go by itself. */
	do {
		usleep(1000);
		engine_stats(f.engine, &stats);
	} while (stats.blocks_cached);
	stop(&f);
}

/* A prompt whose beginning was kept, in a pool that it fills: what is kept for it does not stand in its way. */
static void test_fills_pool(void **state)
{
	struct engine_config config = config_default;
	struct fake_request r = cached_request(0, 1, 20, 1);
	struct fixture f;

	(void)state;
	config.kv_memory = 2 * MIB;
	f = start(&config);
	run(&f, &r);
	r = cached_request(1, 1, 60, 1);
	r.prompt[19] = 22;		/* 3 tokens of a block that would have to be kept beside its own 4 */
	assert_int_equal(run(&f, &r), 60 - 16);
	assert_int_equal(result(&f, 1)->n_cached, 16);
	stop(&f);
}

/* What a uid has in the cache is within its share, and gives way to what it does next. */
static void test_quota(void **state)
{
	struct accounts *accounts = fake_accounts(UINT64_MAX, UINT64_MAX, 4 * 512 * 1024 + 20000);
	struct fake_request other = cached_request(0, 2, 60, 1);
	struct fixture f = start_with(&config_default, accounts);

	(void)state;
	run(&f, &other);
	for (uint64_t id = 1; id < 9; id++) {
		struct fake_request r = make_request(id, 1, 50, 3);

		r.params.ns = id % 2 ? "a" : "b";
		run(&f, &r);
		assert_true(account_used(accounts, 1, ACCOUNT_KV) <= 4 * 512 * 1024 + 20000);
		assert_true(account_used(accounts, 1, ACCOUNT_KV) > 0);
	}
	/* What another has does not go for it, though it is older; but its last block is in the way of a copy. */
	other.id = 9;
	assert_int_equal(run(&f, &other), 60 - 48);
	stop(&f);
}

/* A model that comes later gets a share of the pool for its cache, though the first has filled it. */
static void test_two_models(void **state)
{
	struct fixture f = start(&config_default);
	struct engine_model *other = add_other(f.engine);
	static struct fake_result want;
	struct engine_stats stats;
	uint64_t id = 0;

	(void)state;
	do {
		struct fake_request r = make_request(id++, 1, 60, 1);

		r.params.ns = "a";
		r.prompt[0] = (int32_t)(3 + id % 20);
		run(&f, &r);
		engine_stats(f.engine, &stats);
	} while (stats.blocks_free);
	for (int i = 0; i < 4; i++) {
		struct fake_request r = make_request(id, 1, 60, 1);

		r.params.ns = "a";
		r.prompt[0] = 3 + i % 3;
		r.em = other;
		r.model = &other_model;
		submit(&f, &r);
		fake_client_wait_released(f.client, (uint32_t)++id);
		fake_expect(&r, other_model.n_ctx, &want);
		fake_check_whole(result(&f, id - 1), &r, &want);
		assert_int_equal(result(&f, id - 1)->n_cached, i < 3 ? 0 : 59);
	}
	engine_stats(f.engine, &stats);
	assert_int_equal(stats.preemptions, 0);
	stop(&f);
	engine_model_free(other);
}

/* One place, and a queue: what finds its prefix goes first, but the first is not put off for ever. */
static void test_order(void **state)
{
	struct engine_config config = config_default;
	struct fake_request r = cached_request(0, 1, 40, 2);
	struct fixture f;

	(void)state;
	config.max_seqs = 1;
	f = start(&config);
	run(&f, &r);
	fake.n_allowed = fake.n_entered;
	r = make_request(1, 1, 3, 2);
	submit(&f, &r);		/* holds the place until all are there */
	fake_wait_step(fake.n_allowed + 1);
	r = make_request(2, 1, 10, 1);
	submit(&f, &r);
	for (uint64_t id = 3; id < 3 + SCHED_OVERTAKEN_MAX + 4; id++) {
		r = cached_request(id, 1, 41, 1);
		r.prompt[40] = (int32_t)(3 + id % 20);
		submit(&f, &r);
	}
	fake_allow(UINT64_MAX);
	fake_client_wait_released(f.client, 3 + SCHED_OVERTAKEN_MAX + 4);
	assert_int_equal(result(&f, 3)->released_as, 3);
	assert_int_equal(result(&f, 2)->released_as, 3 + SCHED_OVERTAKEN_MAX);
	stop(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_reuse),
		cmocka_unit_test(test_namespaces),
		cmocka_unit_test(test_once),
		cmocka_unit_test(test_take_over),
		cmocka_unit_test(test_owner_parked),
		cmocka_unit_test(test_prompt_logprobs),
		cmocka_unit_test(test_slow_owner),
		cmocka_unit_test(test_gone),
		cmocka_unit_test(test_fills_pool),
		cmocka_unit_test(test_quota),
		cmocka_unit_test(test_two_models),
		cmocka_unit_test(test_order),
	};

	alarm(60);	/* a hang is a failure */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
