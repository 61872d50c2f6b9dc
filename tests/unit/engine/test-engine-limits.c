/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deadlines in every phase of a request; blocks that one has and another needs; what others may know of how the engine
 * gets on.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include <unistd.h>

#include "daemon/engine/engine-private.h"
#include "ipc/base/clock.h"
#include "tests/unit/engine/fake-model.h"
#include "tests/unit/engine/fake-client.h"
#include "tests/unit/engine/fixture.h"

#define MS UINT64_C(1000000)

static uint64_t soon(uint64_t ms)
{
	return clock_ns() + ms * MS;
}

static void wait_past(uint64_t ns)
{
	while (clock_ns() <= ns)
		usleep(1000);
}

static void check_expired(struct fixture *f, uint64_t id)
{
	assert_int_equal(f->client->results[id].error, SINK_ERROR_DEADLINE);
	assert_int_equal(f->client->results[id].finish, 0);
}

static struct engine_stats stats_of(struct fixture *f)
{
	struct engine_stats stats;

	engine_stats(f->engine, &stats);
	return stats;
}

/* One that runs, in prefill or in decode, and one behind it in the queue: neither has another step. */
static void test_running_and_queued(void **state)
{
	struct engine_config config = config_default;

	(void)state;
	config.max_seqs = 1;
	for (int decodes = 0; decodes < 2; decodes++) {
		struct fake_request a = make_request(0, 1, decodes ? 4 : 60, 30), b = make_request(1, 1, 4, 5);
		struct fake_request c = make_request(2, 1, 4, 5);
		struct fixture f = start(&config);
		uint64_t end = soon(400);

		fake.n_allowed = 2;
		a.params.deadline_ns = end;
		b.params.deadline_ns = end - 1;
		c.params.deadline_ns = soon(3600 * 1000);
		submit(&f, &a);
		submit(&f, &b);
		submit(&f, &c);
		fake_wait_step(3);
		wait_past(end);
		fake_allow(1);
		fake_wait_step(4);	/* c's */
		assert_int_equal(f.client->n_released, 2);
		check_expired(&f, 0);
		check_expired(&f, 1);
		assert_int_equal(f.client->results[0].n_tokens, decodes ? 3 : 0);
		assert_int_equal(stats_of(&f).requests_failed, 2);
		fake_allow(UINT64_MAX);
		fake_client_wait_released(f.client, 3);
		check_whole(&f, &c);
		stop(&f);
	}
}

/* One whose time was up before the engine saw it gets no step at all. */
static void test_late(void **state)
{
	struct fake_request r = make_request(0, 1, 4, 5);
	struct fixture f = start(&config_default);

	(void)state;
	r.params.deadline_ns = 1;
	submit(&f, &r);
	fake_client_wait_released(f.client, 1);
	check_expired(&f, 0);
	assert_int_equal(fake.n_entered, 0);
	stop(&f);
}

/* Nobody reads and nothing runs: the engine wakes by itself. */
static void test_parked(void **state)
{
	struct fake_request r = make_request(0, 1, 4, 20);
	struct fixture f = start(&config_default);

	(void)state;
	f.client->full_after = 3;
	r.params.deadline_ns = soon(150);
	submit(&f, &r);
	fake_client_wait_released(f.client, 1);
	check_expired(&f, 0);
	assert_int_equal(stats_of(&f).n_parked, 0);
	stop(&f);
}

/* It waits for what another computes of its prefix; that one goes on. */
static void test_held(void **state)
{
	struct fake_request a = make_request(0, 1, 60, 5), b;
	struct fixture f = start(&config_default);
	uint64_t end = soon(400);

	(void)state;
	a.params.ns = "uid:1";
	b = a;
	b.id = 1;
	b.params.deadline_ns = end;
	fake.n_allowed = 0;
	submit(&f, &a);
	fake_wait_step(1);
	submit(&f, &b);
	fake_allow(1);
	fake_wait_step(2);
	assert_int_equal(stats_of(&f).n_queued, 1);
	wait_past(end);
	fake_allow(1);
	fake_wait_step(3);
	check_expired(&f, 1);
	fake_allow(UINT64_MAX);
	fake_client_wait_released(f.client, 2);
	check_whole(&f, &a);
	stop(&f);
}

/* Many, in any order: each ends by itself, and nobody before the time. */
static void test_many(void **state)
{
	struct engine_config config = config_default;
	struct fake_request r;
	struct fixture f;
	uint64_t begin;

	(void)state;
	srand(1);
	config.max_seqs = 1;
	f = start(&config);
	fake.n_allowed = 0;
	r = make_request(0, 1, 4, 20);
	submit(&f, &r);
	fake_wait_step(1);
	begin = clock_ns();
	for (uint64_t id = 1; id < 100; id++) {
		r = make_request(id, (uid_t)(id % 5), 4, 2);
		if (id % 4)
			r.params.deadline_ns = id % 4 == 3 ? begin + 3600 * 1000 * MS - id : begin + id * 7919 % 100;
		submit(&f, &r);
	}
	wait_past(begin + 100);
	fake_allow(UINT64_MAX);
	fake_client_wait_released(f.client, 100);
	for (uint64_t id = 1; id < 100; id++) {
		r = make_request(id, 1, 4, 2);
		if (id % 4 == 1 || id % 4 == 2)
			check_expired(&f, id);
		else
			check_whole(&f, &r);
	}
	stop(&f);
}

/*
 * One user has all blocks, in several sequences: another needs not wait for one of these to end.  Nobody's answer
 * changes, and with one sequence of each nobody has to give way.
 */
static void test_blocks_of_others(void **state)
{
	struct engine_config config = config_default;

	(void)state;
	config.max_seqs = 8;
	config.prefill_quantum = 128;
	for (int fair = 0; fair < 2; fair++) {
		struct fake_request one = make_request(4, 2, 80, 1), many[4];
		struct fixture f;

		config.no_fairness = !fair;
		f = start(&config);
		fake.n_allowed = 0;
		for (uint64_t id = 0; id < 4; id++) {
			many[id] = make_request(id, 1, 76, 15);
			submit(&f, &many[id]);
		}
		fake_allow(5);
		fake_wait_step(6);	/* all have 5 of the 24 blocks, and decode */
		submit(&f, &one);
		fake_allow(UINT64_MAX);
		fake_client_wait_released(f.client, 5);
		assert_int_equal(f.client->results[4].released_as == 1, fair);
		assert_int_equal(stats_of(&f).preemptions > 0, fair);
		check_whole(&f, &one);
		for (uint64_t id = 0; id < 4; id++)
			check_whole(&f, &many[id]);
		stop(&f);
	}
}

/* Held in a step it is stuck, for longer and longer; with nothing to do it is not. */
static void test_stuck(void **state)
{
	struct fake_request r = make_request(0, 1, 4, 5);
	struct fixture f = start(&config_default);
	uint64_t begin, first, second;

	(void)state;
	while (engine_stuck_ns(f.engine))
		usleep(1000);
	fake.n_allowed = 0;
	begin = clock_ns();
	submit(&f, &r);
	fake_wait_step(1);
	usleep(2000);
	first = engine_stuck_ns(f.engine);
	usleep(2000);
	second = engine_stuck_ns(f.engine);
	assert_true(first > 0 && second > first);
	assert_true(second <= clock_ns() - begin);
	fake_allow(1);
	fake_wait_step(2);
	assert_true(engine_stuck_ns(f.engine) < clock_ns() - begin);
	fake_allow(UINT64_MAX);
	fake_client_wait_released(f.client, 1);
	while (engine_stuck_ns(f.engine))
		usleep(1000);
	stop(&f);
}

static void set_figures(struct engine *e, uint64_t interval_ns, uint32_t n_queued, uint32_t n_running)
{
	pthread_mutex_lock(&e->lock);
	e->end_interval_ns = interval_ns;
	e->published.n_queued = n_queued;
	e->published.n_running = n_running;
	pthread_mutex_unlock(&e->lock);
}

static void test_wait_hint(void **state)
{
	struct charge own = CHARGE_NULL;
	struct fixture f = start(&config_default);
	struct fake_request r = make_request(0, 1, 4, 5);

	(void)state;
	while (engine_stuck_ns(f.engine))
		usleep(1000);
	assert_int_equal(engine_wait_hint(f.engine, 1), ENGINE_WAIT_MIN);	/* nothing is known */
	set_figures(f.engine, 500 * MS, 40, 4);
	assert_int_equal(engine_wait_hint(f.engine, 1), 5);	/* 10 of those that wait */
	assert_int_equal(charge_init(&own, f.accounts, 1, ACCOUNT_REQUESTS, 2), 0);
	assert_int_equal(engine_wait_hint(f.engine, 1), 11);	/* one of its two among 44 */
	assert_int_equal(engine_wait_hint(f.engine, 2), 5);
	set_figures(f.engine, 500 * MS, 1024, 4);
	assert_int_equal(engine_wait_hint(f.engine, 1), ENGINE_WAIT_MAX);
	set_figures(f.engine, UINT64_MAX, 1024, 4);
	assert_int_equal(engine_wait_hint(f.engine, 1), ENGINE_WAIT_MAX);
	charge_deinit(&own);
	set_figures(f.engine, 0, 0, 0);
	submit(&f, &r);
	fake_client_wait_released(f.client, 1);
	assert_int_equal(engine_wait_hint(f.engine, 1), ENGINE_WAIT_MIN);
	stop(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_running_and_queued),
		cmocka_unit_test(test_late),
		cmocka_unit_test(test_parked),
		cmocka_unit_test(test_held),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_blocks_of_others),
		cmocka_unit_test(test_stuck),
		cmocka_unit_test(test_wait_hint),
	};

	alarm(120);	/* a hang is a failure */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
