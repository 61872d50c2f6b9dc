/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cancel, full and gone readers, preemption, and who waits for whom: steps are
 * held at a gate where it matters which phase a request is in.
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

/* Cancelled in its first step of prefill, in the queue, and in decode: no step more. */
static void test_cancel(void **state)
{
	struct engine_config config = config_default;
	struct fake_request a = make_request(0, 1, 40, 20), b = make_request(1, 1, 4, 20);
	struct fake_request c = make_request(2, 2, 4, 20);
	struct fixture f;

	(void)state;
	config.max_seqs = 1;
	f = start(&config);
	fake.n_allowed = 0;
	submit(&f, &a);
	fake_wait_step(1);
	submit(&f, &b);
	submit(&f, &c);
	engine_cancel(f.engine, 1, 0);
	engine_cancel(f.engine, 1, 1);
	engine_cancel(f.engine, 1, 77);
	engine_cancel_client(f.engine, 77);
	fake_allow(1);
	fake_client_wait_released(f.client, 2);
	check_cancelled(&f, &a);
	check_cancelled(&f, &b);
	assert_int_equal(f.client->results[0].n_tokens, 0);
	assert_int_equal(f.client->results[1].n_tokens, 0);
	fake_wait_step(2);	/* c's, which was queued behind */
	fake_allow(3);
	fake_wait_step(5);
	engine_cancel_client(f.engine, 1);
	fake_allow(1);
	fake_client_wait_released(f.client, 3);
	check_cancelled(&f, &c);
	assert_int_equal(f.client->results[2].n_tokens, 3);
	assert_int_equal(fake.n_entered, 5);
	stop(&f);
}

/* The reader is gone: seen at the next emit, which frees everything; others go on. */
static void test_gone(void **state)
{
	struct fixture f = start(&config_default);
	struct fake_client *other = fake_client_new(2);
	struct fake_request a = make_request(0, 1, 10, 60), b = make_request(0, 2, 10, 60);
	static struct fake_result want;

	(void)state;
	fake.n_allowed = 4;
	a.params.progress = true;
	submit(&f, &a);
	assert_int_equal(fake_submit(f.engine, other, 2, &b), 0);
	fake_wait_step(5);
	fake_client_set(f.client, false, true);
	fake_allow(UINT64_MAX);
	fake_client_wait_released(f.client, 1);
	fake_client_wait_released(other, 1);
	fake_expect(&b, fake_model.n_ctx, &want);
	fake_check_whole(&other->results[0], &b, &want);
	fake_client_free(other);
	stop(&f);
}

/* A full client stalls itself alone, and goes on where it was. */
static void test_parked(void **state)
{
	struct fixture f = start(&config_default);
	struct fake_client *other = fake_client_new(2);
	struct fake_request a = make_request(0, 1, 10, 40), b = make_request(0, 2, 10, 40);
	static struct fake_result want;
	struct engine_stats stats;

	(void)state;
	fake_client_set(f.client, true, false);
	submit(&f, &a);
	assert_int_equal(fake_submit(f.engine, other, 2, &b), 0);
	fake_client_wait_released(other, 1);
	fake_expect(&b, fake_model.n_ctx, &want);
	fake_check_whole(&other->results[0], &b, &want);
	assert_int_equal(f.client->results[0].n_tokens, 0);
	engine_room(f.engine, 1);	/* not true: it stays parked */
	engine_room(f.engine, 99);
	fake_client_set(f.client, false, false);
	engine_room(f.engine, 1);
	fake_client_wait_released(f.client, 1);
	check_whole(&f, &a);
	engine_stats(f.engine, &stats);
	assert_int_equal(stats.preemptions, 0);

	/* Parked, then cancelled. */
	a = make_request(1, 1, 10, 40);
	fake_client_set(f.client, true, false);
	submit(&f, &a);
	do {
		engine_stats(f.engine, &stats);
		usleep(100);
	} while (!stats.n_parked);
	assert_int_equal(stats.n_running, 0);
	engine_cancel(f.engine, 1, 1);
	fake_client_wait_released(f.client, 2);
	check_cancelled(&f, &a);
	fake_client_free(other);
	stop(&f);
}

/* Its last token does not fit: the request ends once there is room, without blocks meanwhile. */
static void test_parked_at_end(void **state)
{
	struct fixture f = start(&config_default);
	struct fake_request a = make_request(0, 1, 10, 1);
	struct engine_stats stats;

	(void)state;
	fake_client_set(f.client, true, false);
	submit(&f, &a);
	do {
		engine_stats(f.engine, &stats);
		usleep(100);
	} while (!stats.n_parked);
	assert_int_equal(stats.blocks_used, 0);
	assert_int_equal(f.client->results[0].finish, 0);
	fake_client_set(f.client, false, false);
	engine_room(f.engine, 1);
	fake_client_wait_released(f.client, 1);
	check_whole(&f, &a);
	stop(&f);
}

struct listing {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool done;
	size_t n;
	struct engine_request_view views[8];
};

static void note_listing(void *arg, const struct engine_request_view *views, size_t n)
{
	struct listing *l = arg;

	pthread_mutex_lock(&l->lock);
	l->n = n;
	memcpy(l->views, views, (n < 8 ? n : 8) * sizeof(*views));
	l->done = true;
	pthread_cond_signal(&l->changed);
	pthread_mutex_unlock(&l->lock);
}

static void ask_listing(struct engine *e, struct listing *l)
{
	*l = (struct listing){ .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
	assert_int_equal(engine_ps(e, note_listing, l), 0);
}

static void wait_listing(struct listing *l)
{
	pthread_mutex_lock(&l->lock);
	while (!l->done)
		pthread_cond_wait(&l->changed, &l->lock);
	pthread_mutex_unlock(&l->lock);
}

/* Until the one request listed is in that phase with that many blocks. */
static void wait_phase(struct engine *e, enum engine_phase phase, uint32_t n_blocks, struct listing *l)
{
	do {
		ask_listing(e, l);
		wait_listing(l);
		usleep(100);
	} while (l->n != 1 || l->views[0].phase != phase || l->views[0].n_blocks != n_blocks);
}

/* 4 blocks in all: a parked one gives way, and goes on bit-identically. */
static void test_parked_preempted(void **state)
{
	struct engine_config config = config_default;
	struct fake_client *other = fake_client_new(2);
	struct fake_request a = make_request(0, 1, 20, 30), b = make_request(0, 2, 50, 10);
	static struct fake_result want;
	struct listing l;
	struct fixture f;

	(void)state;
	config.kv_memory = 2 * MIB;
	f = start(&config);
	fake_client_set(f.client, true, false);
	submit(&f, &a);
	wait_phase(f.engine, ENGINE_PARKED, 2, &l);
	assert_int_equal(fake_submit(f.engine, other, 2, &b), 0);
	fake_client_wait_released(other, 1);
	fake_expect(&b, 64, &want);
	fake_check_whole(&other->results[0], &b, &want);
	wait_phase(f.engine, ENGINE_PARKED, 0, &l);
	assert_int_equal(l.views[0].n_preempted, 1);
	assert_int_equal(l.views[0].n_computed, 0);
	assert_int_equal(l.views[0].n_generated, 1);
	fake_client_set(f.client, false, false);
	engine_room(f.engine, 1);
	fake_client_wait_released(f.client, 1);
	check_whole(&f, &a);

	/* Preempted, still parked, then cancelled. */
	a = make_request(1, 1, 20, 30);
	b = make_request(1, 2, 50, 10);
	fake_client_set(f.client, true, false);
	submit(&f, &a);
	wait_phase(f.engine, ENGINE_PARKED, 2, &l);
	assert_int_equal(fake_submit(f.engine, other, 2, &b), 0);
	fake_client_wait_released(other, 2);
	wait_phase(f.engine, ENGINE_PARKED, 0, &l);
	engine_cancel(f.engine, 1, 1);
	fake_client_wait_released(f.client, 2);
	check_cancelled(&f, &a);
	fake_client_free(other);
	stop(&f);
}

/* Two that grow beyond the pool together: the younger one gives way, both are right. */
static void test_preempted(void **state)
{
	struct engine_config config = config_default;
	struct fake_request a = make_request(0, 1, 10, 45), b = make_request(1, 1, 10, 45);
	struct engine_stats stats;
	struct fixture f;

	(void)state;
	config.kv_memory = 2 * MIB;
	f = start(&config);
	fake.n_allowed = 0;
	submit(&f, &a);
	submit(&f, &b);
	fake_allow(UINT64_MAX);
	fake_client_wait_released(f.client, 2);
	check_whole(&f, &a);
	check_whole(&f, &b);
	engine_stats(f.engine, &stats);
	assert_true(stats.preemptions > 0);
	stop(&f);
}

/* A decoding stream gets a token in every step while a long prompt is computed. */
static void test_prefill_stalls_nobody(void **state)
{
	struct fixture f = start(&config_default);
	struct fake_request stream = make_request(0, 1, 3, 40), prompt = make_request(1, 2, 90, 3);

	(void)state;
	fake.n_allowed = 2;
	submit(&f, &stream);
	fake_wait_step(3);
	submit(&f, &prompt);
	for (uint64_t step = 3; step < 3 + 90 / QUANTUM; step++) {
		fake_wait_step(step);
		assert_int_equal(f.client->results[0].n_tokens, step - 1);
		assert_int_equal(f.client->results[1].n_tokens, 0);
		fake_allow(1);
	}
	fake_allow(UINT64_MAX);
	fake_client_wait_released(f.client, 2);
	check_whole(&f, &stream);
	check_whole(&f, &prompt);
	assert_int_equal(fake.max_prefill_rows_seen, QUANTUM);
	stop(&f);
}

static void test_phases(void **state)
{
	struct engine_config config = config_default;
	struct fake_request r;
	struct listing l;
	struct fixture f;

	(void)state;
	config.max_seqs = 2;
	f = start(&config);
	fake.n_allowed = 2;
	r = make_request(0, 1, 4, 80);
	submit(&f, &r);
	fake_wait_step(3);
	r = make_request(1, 2, 80, 4);
	submit(&f, &r);
	r = make_request(2, 3, 7, 4);
	submit(&f, &r);
	fake_allow(2);
	fake_wait_step(5);
	ask_listing(f.engine, &l);	/* answered between the steps 5 and 6 */
	fake_allow(1);
	wait_listing(&l);
	assert_int_equal(l.n, 3);
	for (uint64_t i = 0; i < 3; i++) {
		assert_int_equal(l.views[i].client, 1);
		assert_int_equal(l.views[i].id, i);
		assert_int_equal(l.views[i].uid, i + 1);
	}
	assert_int_equal(l.views[0].phase, ENGINE_DECODE);
	assert_int_equal(l.views[0].n_prompt, 4);
	assert_int_equal(l.views[0].n_generated, 5);
	assert_int_equal(l.views[0].n_blocks, 1);
	assert_int_equal(l.views[1].phase, ENGINE_PREFILL);
	assert_int_equal(l.views[1].n_computed, 2 * QUANTUM);
	assert_int_equal(l.views[1].n_blocks, 6);
	assert_int_equal(l.views[2].phase, ENGINE_QUEUED);
	assert_int_equal(l.views[2].n_blocks, 0);
	stop(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_gone),
		cmocka_unit_test(test_parked),
		cmocka_unit_test(test_parked_at_end),
		cmocka_unit_test(test_parked_preempted),
		cmocka_unit_test(test_preempted),
		cmocka_unit_test(test_prefill_stalls_nobody),
		cmocka_unit_test(test_phases),
	};

	alarm(120);	/* a hang is a failure */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
