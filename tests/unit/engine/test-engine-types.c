/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Types of keys and values: reuse to the token or to the block and what is said of it; open blocks, of which there are
 * few; what other engines have left, of the same type or of another.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/engine/fake-model.h"
#include "tests/unit/engine/fake-client.h"
#include "tests/unit/engine/fixture.h"

#define BLOCK KB_Q4_BLOCK_TOKENS
#define OPEN_BYTES (4u * BLOCK * 16u)	/* F16 of one head of 16 channels */

static struct engine_config config_of(enum kb_kv_type type)
{
	struct engine_config config = config_default;

	config.kv_type = type;
	return config;
}

static struct fixture start_type(enum kb_kv_type type)
{
	struct engine_config config = config_of(type);

	return start(&config);
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
	uint32_t n_released = f->client->n_released;

	submit(f, r);
	fake_client_wait_released(f->client, n_released + 1);
	check_whole(f, r);
	return fake.n_rows_seen - before;
}

static void check_usage(const struct fixture *f, uint64_t id, uint32_t n_cached, enum sink_miss miss, int32_t token)
{
	const struct fake_result *got = &f->client->results[id];

	assert_int_equal(got->n_cached, n_cached);
	assert_int_equal(got->miss, miss);
	assert_int_equal(got->miss_token, token);
}

static struct engine_stats stats_of(const struct fixture *f)
{
	struct engine_stats stats;

	engine_stats(f->engine, &stats);
	return stats;
}

static void test_to_the_token(void **state)
{
	struct fake_request r = cached_request(0, 1, 50, 9);
	struct fixture f = start_type(KB_KV_Q8);

	assert_int_equal(engine_model_block_bytes(f.em), FAKE_CHUNK / FAKE_BLOCKS_PER_CHUNK / 4 * 3);
	assert_int_equal(run(&f, &r), 50 + 8);
	r.id = 1;
	assert_int_equal(run(&f, &r), 1 + 8);
	check_usage(&f, 1, 49, SINK_MISS_NONE, r.prompt[49]);
	r = cached_request(2, 1, 50, 1);
	r.prompt[37] = 22;
	assert_int_equal(run(&f, &r), 50 - 37);
	check_usage(&f, 2, 37, SINK_MISS_DIFFERS, 22);
	assert_int_equal(fake.max_open_seen, 0);
	stop(&f);
}

/* The same again, prompts that end at a block's end and beside it, and branches in the middle of one. */
static void test_to_the_block(void **state)
{
	struct fixture f = start_type(KB_KV_Q4);
	struct fake_request r = cached_request(0, 1, 80, 9);

	assert_int_equal(run(&f, &r), 80 + 8);
	check_usage(&f, 0, 0, SINK_MISS_EMPTY, r.prompt[0]);
	r.id = 1;
	assert_int_equal(run(&f, &r), 80 - 64 + 8);
	check_usage(&f, 1, 64, SINK_MISS_BLOCK, r.prompt[64]);
	r = cached_request(2, 1, 65, 1);
	assert_int_equal(run(&f, &r), 1);
	check_usage(&f, 2, 64, SINK_MISS_NONE, r.prompt[64]);
	r = cached_request(3, 1, 64, 1);
	assert_int_equal(run(&f, &r), 32);
	check_usage(&f, 3, 32, SINK_MISS_BLOCK, r.prompt[32]);
	r = cached_request(4, 1, 80, 1);
	r.prompt[40] = 22;
	assert_int_equal(run(&f, &r), 80 - 32);
	check_usage(&f, 4, 32, SINK_MISS_DIFFERS, 22);
	r = cached_request(5, 1, 80, 1);
	r.prompt[70] = 22;
	assert_int_equal(run(&f, &r), 80 - 64);
	check_usage(&f, 5, 64, SINK_MISS_BLOCK, r.prompt[64]);
	r = cached_request(6, 1, 80, 1);
	r.prompt[0] = 22;
	assert_int_equal(run(&f, &r), 80);
	check_usage(&f, 6, 0, SINK_MISS_DIFFERS, 22);
	r.id = 7;
	r.params.ns = "b";
	assert_int_equal(run(&f, &r), 80);
	check_usage(&f, 7, 0, SINK_MISS_EMPTY, 22);
	/* Whole blocks alone: 2 of the first, 1 branch; 2 and 2 of those that begin otherwise. */
	assert_int_equal(stats_of(&f).blocks_cached, 2 + 1 + 2 + 2);
	stop(&f);
}

/* What was generated is there as well; a turn of a chat that goes back to an earlier one. */
static void test_turns(void **state)
{
	struct fixture f = start_type(KB_KV_Q4);
	struct fake_request r = cached_request(0, 1, 60, 20), next = cached_request(1, 1, 60, 3);

	run(&f, &r);
	memcpy(next.prompt + 60, f.client->results[0].tokens, 20 * sizeof(*r.prompt));
	next.n_prompt = 80;
	assert_int_equal(run(&f, &next), 80 - 64 + 2);
	assert_int_equal(f.client->results[1].n_cached, 64);
	next = cached_request(2, 1, 40, 3);
	assert_int_equal(run(&f, &next), 40 - 32 + 2);
	stop(&f);
}

/* Four at once: one prefill of the whole blocks. */
static void test_once(void **state)
{
	struct fixture f = start_type(KB_KV_Q4);

	fake.n_allowed = 0;
	for (uint64_t id = 0; id < 4; id++) {
		struct fake_request r = cached_request(id, 1, 70, 20);

		submit(&f, &r);
	}
	fake_allow(UINT64_MAX);
	fake_client_wait_released(f.client, 4);
	for (uint64_t id = 0; id < 4; id++) {
		struct fake_request r = cached_request(id, 1, 70, 20);

		check_whole(&f, &r);
		check_usage(&f, id, id ? 64 : 0, id ? SINK_MISS_BLOCK : SINK_MISS_EMPTY, r.prompt[id ? 64 : 0]);
	}
	assert_int_equal(fake.n_rows_seen, 70 + 3 * 6 + 4 * 19);
	assert_int_equal(fake.max_open_seen, 4);
	stop(&f);
}

/* 8 blocks for four that need 3: they are preempted, and go on bit-identically. */
static void test_preempted(void **state)
{
	struct engine_config config = config_of(KB_KV_Q4);
	struct fixture f;

	for (int cached = 0; cached < 2; cached++) {
		config.kv_memory = 2 * MIB;
		f = start(&config);
		for (uint64_t id = 0; id < 8; id++) {
			struct fake_request r = make_request(id, id % 2, 30, 60);

			r.params.ns = cached ? "a" : NULL;
			submit(&f, &r);
		}
		fake_client_wait_released(f.client, 8);
		for (uint64_t id = 0; id < 8; id++) {
			struct fake_request r = make_request(id, id % 2, 30, 60);

			check_whole(&f, &r);
		}
		assert_true(stats_of(&f).preemptions > 0);
		assert_int_equal(stats_of(&f).open_bytes, 0);
		stop(&f);
	}
}

static void wait_parked(const struct fixture *f, uint32_t n)
{
	while (stats_of(f).n_parked < n)
		usleep(100);
}

/*
 * Two that nobody reads have the open blocks of as many places; two others run, and the first go on from the
 * beginning of a block, also where memory was short just then.
 */
static void test_lost_open(void **state)
{
	struct engine_config config = config_of(KB_KV_Q4);
	struct fake_client *other = fake_client_new(2);
	static struct fake_result want;
	struct fixture f;

	config.max_seqs = 2;
	f = start(&config);
	f.client->full_after = 6;
	for (uint64_t id = 0; id < 2; id++) {
		struct fake_request r = make_request(id, 1, 40, 30);

		submit(&f, &r);
	}
	wait_parked(&f, 2);
	assert_int_equal(stats_of(&f).open_bytes, 2 * OPEN_BYTES);
	for (uint64_t id = 0; id < 2; id++) {
		struct fake_request r = make_request(id, 2, 40, 30);

		assert_int_equal(fake_submit(f.engine, other, 2, &r), 0);
	}
	fake_client_wait_released(other, 2);
	assert_int_equal(stats_of(&f).open_bytes, 0);
	assert_int_equal(stats_of(&f).preemptions, 0);
	fake.n_open_fails = 1;
	fake_client_set(f.client, false, false);
	engine_room(f.engine, 1);
	fake_client_wait_released(f.client, 2);
	for (uint64_t id = 0; id < 2; id++) {
		struct fake_request r = make_request(id, 1, 40, 30);

		check_whole(&f, &r);
		r.uid = 2;
		fake_expect(&r, fake_model.n_ctx, &want);
		fake_check_whole(&other->results[id], &r, &want);
	}
	assert_int_equal(fake.max_open_seen, 2);
	/* All of 4 and, from position 32 on and from 0 on, what was computed again. */
	assert_true(fake.n_rows_seen > 4 * 69 + 8 + 40);
	fake_client_free(other);
	stop(&f);
}

static void test_no_memory(void **state)
{
	struct fake_request r = cached_request(0, 1, 40, 3);
	struct fixture f = start_type(KB_KV_Q4);

	fake.n_open_fails = 1;
	submit(&f, &r);
	fake_client_wait_released(f.client, 1);
	assert_int_equal(f.client->results[0].error, SINK_ERROR_NO_MEMORY);
	r.id = 1;
	run(&f, &r);
	stop(&f);
}

/* A user's memory has room for one open block: his requests run one after the other; for none: they are refused. */
static void test_quota(void **state)
{
	struct engine_config config = config_of(KB_KV_Q4);
	struct fake_request r = make_request(0, 1, 40, 30), s = make_request(1, 1, 40, 30);
	struct fixture f = start(&config);
	uint64_t memory;

	fake.n_allowed = 0;
	submit(&f, &r);
	memory = account_used(f.accounts, 1, ACCOUNT_MEMORY);
	fake_wait_step(1);
	memory = MIN(memory, account_used(f.accounts, 1, ACCOUNT_MEMORY) - OPEN_BYTES);
	assert_int_equal(account_used(f.accounts, 1, ACCOUNT_MEMORY), memory + OPEN_BYTES);
	stop(&f);

	f = start_with(&config, fake_accounts(UINT64_MAX, 2 * memory + OPEN_BYTES, UINT64_MAX));
	submit(&f, &r);
	submit(&f, &s);
	fake_client_wait_released(f.client, 2);
	check_whole(&f, &r);
	check_whole(&f, &s);
	assert_int_equal(fake.max_open_seen, 1);
	stop(&f);

	f = start_with(&config, fake_accounts(UINT64_MAX, memory + OPEN_BYTES - 1, UINT64_MAX));
	submit(&f, &r);
	fake_client_wait_released(f.client, 1);
	assert_int_equal(f.client->results[0].error, SINK_ERROR_QUOTA);
	stop(&f);
}

/* What is wanted of the prompt's tokens is computed from the block's beginning on. */
static void test_prompt(void **state)
{
	static const uint32_t froms[] = { 0, 1, 20, 33, 40, 64, 65, 79 };
	struct fake_request r = cached_request(0, 1, 80, 1);
	struct fixture f = start_type(KB_KV_Q4);

	run(&f, &r);
	r.params.prompt_logprobs = true;
	for (r.id = 1; r.id <= ARRAY_SIZE(froms); r.id++) {
		uint32_t from = froms[r.id - 1], n_cached = from ? (from - 1) / BLOCK * BLOCK : 0;

		r.params.prompt_logprobs_from = from;
		assert_int_equal(run(&f, &r), 80 - n_cached);
		check_usage(&f, r.id, n_cached, SINK_MISS_LOGPROBS, r.prompt[n_cached]);
	}
	r.params.prompt_logprobs = false;
	r.params.max_tokens = 0;
	r.params.pooling = ENGINE_POOLING_LAST;
	assert_int_equal(run(&f, &r), 80 - 64);
	check_usage(&f, r.id, 64, SINK_MISS_BLOCK, r.prompt[64]);
	r.id++;
	r.params.pooling = ENGINE_POOLING_MEAN;
	assert_int_equal(run(&f, &r), 80);
	check_usage(&f, r.id, 0, SINK_MISS_LOGPROBS, r.prompt[0]);
	stop(&f);
}

static void test_no_cache(void **state)
{
	struct engine_config config = config_of(KB_KV_Q4);
	struct fake_request r = make_request(0, 1, 40, 30);
	struct fixture f;

	config.no_cache = true;
	config.prefill_quantum = 64;
	f = start(&config);
	assert_true(run(&f, &r) > 30 * 40);
	stop(&f);
}

static void test_refused(void **state)
{
	struct accounts *accounts = fake_accounts(UINT64_MAX, UINT64_MAX, UINT64_MAX);
	struct kb_ops ops = fake_ops;
	struct kb_backend backend = { .ops = &ops };
	struct engine_config config = config_of(KB_KV_Q4);
	struct engine_model *em = NULL;
	struct engine *e = NULL;
	struct diag diag = DIAG_NULL;

	config.accounts = accounts;
	config.block_tokens = 16;
	assert_int_equal(engine_new(&e, &config, &diag), -EINVAL);
	assert_non_null(strstr(diag.text, "32 tokens, not 16"));
	diag = DIAG_NULL;
	ops.open_new = NULL;
	config.backend = &backend;
	config.block_tokens = 0;
	assert_int_equal(engine_new(&e, &config, &diag), 0);
	assert_int_equal(engine_add_model(e, &fake_model, &em, &diag), -ENOTSUP);
	assert_non_null(strstr(diag.text, "type q4"));
	engine_free(e);
	accounts_free(accounts);
}

/* --- what another engine has left --- */

static char dir[] = "/tmp/kvd-unit-XXXXXX";

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

/* Of the prompt's 75 tokens, from elsewhere: on disk are whole blocks. */
static const uint32_t whole_tokens[] = { [KB_KV_F16] = 64, [KB_KV_Q8] = 64, [KB_KV_Q4] = 64 };
static const uint32_t kept_tokens[] = { [KB_KV_F16] = 74, [KB_KV_Q8] = 74, [KB_KV_Q4] = 64 };

static void test_disk(void **state)
{
	struct fake_request r = cached_request(0, 1, 75, 9);

	assert_non_null(mkdtemp(dir));
	for (int round = 0; round < 2; round++) {
		for (int type = KB_KV_F16; type <= KB_KV_Q4; type++) {
			struct engine_config config = config_of((enum kb_kv_type)type);
			uint32_t n_cached = round ? whole_tokens[type] : 0;
			struct fixture f;

			config.store = open_store(dir, 64 * MIB);
			f = start(&config);
			assert_int_equal(run(&f, &r), 75 - n_cached + 8);
			check_usage(&f, 0, n_cached, round && type == KB_KV_Q4 ? SINK_MISS_BLOCK : SINK_MISS_EMPTY,
				    r.prompt[n_cached]);
			stop(&f);
		}
	}
	nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void test_kept(void **state)
{
	struct fake_request r = cached_request(0, 1, 75, 9);
	int pool = -1, index = -1;

	for (int round = 0; round < 2; round++) {
		for (int type = KB_KV_F16; type <= KB_KV_Q4; type++) {
			struct engine_config config = config_of((enum kb_kv_type)type);
			uint32_t n_cached = round ? kept_tokens[type] : 0;
			int fds[2];
			struct fixture f;

			config.kept_pool = pool;
			config.kept_index = index;
			f = start(&config);
			engine_kept_fds(f.engine, &fds[0], &fds[1]);
			pool = dup(fds[0]);
			index = dup(fds[1]);
			assert_int_equal(run(&f, &r), 75 - n_cached + 8);
			assert_int_equal(f.client->results[0].n_cached, n_cached);
			stop(&f);
		}
	}
	close(pool);
	close(index);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_to_the_token), cmocka_unit_test(test_to_the_block),
		cmocka_unit_test(test_turns),        cmocka_unit_test(test_once),
		cmocka_unit_test(test_preempted),    cmocka_unit_test(test_lost_open),
		cmocka_unit_test(test_no_memory),    cmocka_unit_test(test_quota),
		cmocka_unit_test(test_prompt),       cmocka_unit_test(test_no_cache),
		cmocka_unit_test(test_refused),      cmocka_unit_test(test_disk),
		cmocka_unit_test(test_kept),
	};

	alarm(120);	/* a hang is a failure */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
