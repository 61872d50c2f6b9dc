/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that outlives the engine: what one has computed, the next finds in the descriptors, counted in rows that the
 * model computed; a process that is killed; bits that flip meanwhile; models and sizes that change.  The fake model
 * finds every block that is not exactly the sequence's.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/engine/fake-model.h"
#include "tests/unit/engine/fake-client.h"
#include "tests/unit/engine/fixture.h"

/* What is kept between two engines: duplicates, as a service manager has them. */
static int kept_pool = -1, kept_index = -1;

static void forget(void)
{
	if (kept_pool >= 0)
		close(kept_pool);
	if (kept_index >= 0)
		close(kept_index);
	kept_pool = kept_index = -1;
}

static int setup(void **state)
{
	forget();
	return 0;
}

static struct fixture start_kept(const struct engine_config *config)
{
	struct engine_config c = *config;
	struct fixture f;
	int pool, index;

	c.kept_pool = kept_pool >= 0 ? dup(kept_pool) : -1;
	c.kept_index = kept_index >= 0 ? dup(kept_index) : -1;
	f = start(&c);
	engine_kept_fds(f.engine, &pool, &index);
	assert_true(pool >= 0 && index >= 0);
	forget();
	kept_pool = dup(pool);
	kept_index = dup(index);
	return f;
}

static struct fake_request cached_request(uint64_t id, uid_t uid, size_t n_prompt, uint32_t max_tokens)
{
	struct fake_request r = make_request(id, uid, n_prompt, max_tokens);

	for (size_t i = 0; i < n_prompt; i++)
		r.prompt[i] = (int32_t)(3 + (i * i + i / 7) % (FAKE_N_VOCAB - 3));
	r.params.ns = "a";
	return r;
}

/* Runs it alone; returns the rows that it took. */
static uint64_t run(struct fixture *f, const struct fake_request *r)
{
	uint64_t before = fake.n_rows_seen;
	uint32_t n_released = f->client->n_released;	/* nothing runs now */

	submit(f, r);
	fake_client_wait_released(f->client, n_released + 1);
	check_whole(f, r);
	return fake.n_rows_seen - before;
}

/* The next engine finds all, to the token, in the same namespace only. */
static void test_survives(void **state)
{
	struct fake_request r = cached_request(0, 1, 75, 9);
	struct fixture f = start_kept(&config_default);
	struct engine_kept kept;
	struct engine_stats stats;

	engine_kept(f.engine, &kept);
	assert_false(kept.given);
	assert_int_equal(run(&f, &r), 75 + 8);
	stop(&f);
	for (int i = 0; i < 3; i++) {
		f = start_kept(&config_default);
		engine_kept(f.engine, &kept);
		assert_true(kept.given && kept.taken);
		assert_int_equal(kept.n_blocks, 6);	/* 83 tokens have KV */
		assert_int_equal(kept.n_dropped, 0);
		assert_string_equal(kept.why, "");
		assert_int_equal(run(&f, &r), 1 + 8);
		assert_int_equal(f.client->results[0].n_cached, 74);
		engine_stats(f.engine, &stats);
		assert_int_equal(stats.kept_adopted, 6);
		assert_int_equal(stats.blocks_kept, 6);
		assert_int_equal(stats.kept_verified, 6);
		assert_int_equal(stats.kept_damaged, 0);
		assert_int_equal(stats.kv_bytes_dormant, 0);
		stop(&f);
	}
	f = start_kept(&config_default);
	r.params.ns = "b";
	assert_int_equal(run(&f, &r), 75 + 8);
	stop(&f);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, setup)
	const struct CMUnitTest tests[] = {
		TEST(test_survives),
	};

	alarm(60);	/* a hang is a failure */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
