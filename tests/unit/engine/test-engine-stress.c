/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random requests of several clients and users at once, in a pool far too small
 * for them: sinks fill up at random, requests are cancelled at random, sequences
 * are preempted, a model is taken away and comes back.  What each request gave
 * must be what it gives alone, and nothing may be left at the end; that all of
 * them end shows that nobody starves.  KVD_TEST_LONG=1 does more rounds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include <ftw.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/engine/fake-model.h"
#include "tests/unit/engine/fake-client.h"
#include "tests/unit/engine/fixture.h"

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
	struct engine_model *em, *other;	/* other: NULL where there is one model */
	struct removal removal;		/* of the other */
	bool removing;
	struct accounts *accounts;
	struct client clients[N_CLIENTS];
	unsigned random;
	struct options {
		bool two_models, full_sinks, cancels, reloads, cache, disk;
	} options;
};

static uint32_t pick(struct world *w, uint32_t n)
{
	return (uint32_t)rand_r(&w->random) % n;
}

/* Prompts that begin alike, under names that some share; a few have no part in the cache. */
static void share_prefix(struct world *w, struct fake_request *r)
{
	static const char *const names[] = { "uid:0", "uid:1", "uid:2", "public" };
	uint32_t family = pick(w, 3), n = pick(w, (uint32_t)r->n_prompt + 1);

	for (uint32_t t = 0; t < n; t++)
		r->prompt[t] = (int32_t)(3 + (family * 7 + t * t) % (FAKE_N_VOCAB - 3));
	if (pick(w, 8))
		r->params.ns = pick(w, 3) ? names[r->uid] : names[3];
	r->params.ttl_ns = pick(w, 3) ? 0 : 1 + pick(w, 1000000);
}

static void make_random(struct world *w, struct fake_request *r, uint32_t client, uint32_t i)
{
	struct sampler_params *p = &r->params.sampling;

	*r = (struct fake_request){ .id = i, .uid = client % N_UIDS };
	if (w->other && pick(w, 2)) {
		r->em = w->other;
		r->model = &other_model;
	}
	r->n_prompt = pick(w, pick(w, 3) ? 30 : 78) + 1;
	for (size_t t = 0; t < r->n_prompt; t++)
		r->prompt[t] = (int32_t)(3 + pick(w, FAKE_N_VOCAB - 3));
	if (w->options.cache)
		share_prefix(w, r);
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
	struct fake_request *r = &c->requests[c->n_submitted];
	int err;

	if (c->n_submitted == N_REQUESTS)
		return;
	make_random(w, r, client, c->n_submitted);
	err = fake_submit(w->engine, c->c, client, r);
	if (w->removing && r->em) {
		assert_int_equal(err, ENGINE_E_UNLOADED);
		return;
	}
	assert_int_equal(err, 0);
	c->n_submitted++;
}

static void cancel_one(struct world *w, uint32_t client)
{
	struct client *c = &w->clients[client];
	uint32_t id;

	if (!w->options.cancels || !c->n_submitted)
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

/* Takes the other model away, or puts it back once it is gone. */
static void reload(struct world *w)
{
	if (!w->options.reloads)
		return;
	if (!w->removing) {
		ask_removal(w->engine, w->other, &w->removal);
		w->removing = true;
	} else if (is_removed(&w->removal)) {
		engine_model_free(w->other);
		w->other = add_other(w->engine);
		w->removing = false;
	}
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
		case 5:
			if (!pick(w, 200))
				reload(w);
			break;
		default:
			sched_yield();
		}
	}
}

/* Returns how many are whole. */
static uint32_t check_results(struct world *w, uint32_t *n_unloaded)
{
	static struct fake_result want;
	uint32_t n_whole = 0;

	*n_unloaded = 0;

	for (uint32_t i = 0; i < N_CLIENTS; i++) {
		for (uint32_t j = 0; j < N_REQUESTS; j++) {
			const struct fake_result *got = &w->clients[i].c->results[j];
			const struct fake_request *r = &w->clients[i].requests[j];

			fake_expect(r, (r->model ? r->model : &fake_model)->n_ctx, &want);
			if (w->options.reloads && r->model && got->error == SINK_ERROR_UNLOADED) {
				fake_check_beginning(got, &want);
				++*n_unloaded;
				continue;
			}
			if (w->clients[i].cancelled[j] && got->finish == SINK_FINISH_CANCELLED) {
				fake_check_cancelled(got, &want);
				continue;
			}
			fake_check_whole(got, r, &want);
			n_whole++;
		}
	}
	return n_whole;
}

static char disk_dir[] = "/tmp/kvd-unit-XXXXXX";

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

/* Blocks of Q4 have more tokens, and take less. */
static void set_type(struct engine_config *config, uint32_t i, bool two_models)
{
	config->kv_type = (enum kb_kv_type)(i % 3);
	if (config->kv_type != KB_KV_Q4)
		return;
	config->block_tokens = KB_Q4_BLOCK_TOKENS;
	config->kv_memory = two_models ? 4 * MIB : 2 * MIB;
}

static uint64_t run_world(struct engine_config *config, unsigned seed, struct options options)
{
	struct world *w = calloc(1, sizeof(*w));
	struct engine_stats stats;
	uint32_t n_whole, n_unloaded;

	assert_non_null(w);
	*w = (struct world){ .random = seed, .options = options,
			     .accounts = fake_accounts(UINT64_MAX, UINT64_MAX, UINT64_MAX) };
	config->backend = &fake_backend;
	config->accounts = w->accounts;
	if (options.disk)
		config->store = open_store(disk_dir, 24 * MIB);	/* too little: blocks go there, too */
	fake_reset(config->prefill_quantum);
	assert_int_equal(engine_new(&w->engine, config, NULL), 0);
	assert_int_equal(engine_add_model(w->engine, &fake_model, &w->em, NULL), 0);
	fake_em = w->em;
	if (options.two_models)
		w->other = add_other(w->engine);
	for (uint32_t i = 0; i < N_CLIENTS; i++) {
		w->clients[i].c = fake_client_new(seed + i);
		w->clients[i].c->full_one_in = options.full_sinks ? 30 : 0;
	}
	drive(w);
	do {
		engine_stats(w->engine, &stats);
	} while (options.disk && stats.blocks_used && !usleep(100));	/* on their way there */
	n_whole = check_results(w, &n_unloaded);
	assert_int_equal(stats.requests_done, n_whole);
	assert_int_equal(stats.requests_done + stats.requests_cancelled + n_unloaded, N_CLIENTS * N_REQUESTS);
	assert_int_equal(stats.requests_failed, n_unloaded);
	assert_int_equal(stats.n_running + stats.n_queued + stats.n_parked, 0);
	assert_int_equal(stats.blocks_used, 0);
	assert_true(fake.max_seqs_seen <= config->max_seqs);
	assert_true(fake.max_open_seen <= config->max_seqs);
	assert_int_equal(stats.open_bytes, 0);
	engine_free(w->engine);
	assert_int_equal(fake.n_open, 0);
	if (config->store)
		store_stop(config->store);
	store_free(config->store);
	fake_check_nothing_charged(w->accounts, N_UIDS);
	engine_model_free(w->em);
	engine_model_free(w->other);
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

		set_type(&config, (uint32_t)i, false);
		preemptions += run_world(&config, 100 + (unsigned)i, (struct options){ 0 });
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
		struct options options = { .full_sinks = true, .cancels = true };

		set_type(&config, (uint32_t)i, false);
		preemptions += run_world(&config, 200 + (unsigned)i, options);
	}
	assert_true(preemptions > 10);
}

/* Chunks are few and all of them wanted by both. */
static void test_two_models(void **state)
{
	uint64_t preemptions = 0;

	(void)state;
	for (int i = 0; i < n_rounds(); i++) {
		struct engine_config config = {
			.kv_memory = (i % 2 ? 4 : 6) * MIB, .max_seqs = 8, .prefill_quantum = i % 3 ? 16 : 1,
		};
		struct options options = { .two_models = true, .full_sinks = i % 2, .cancels = i % 4 > 1 };

		set_type(&config, (uint32_t)i, true);
		preemptions += run_world(&config, 400 + (unsigned)i, options);
	}
	assert_true(preemptions > 10);
}

/* One of them comes and goes; nobody's answer of the other is hurt. */
static void test_reloads(void **state)
{
	(void)state;
	for (int i = 0; i < n_rounds(); i++) {
		struct engine_config config = { .kv_memory = 6 * MIB, .max_seqs = 8, .prefill_quantum = 16 };
		struct options options = { true, .full_sinks = i % 2, .cancels = i % 4 > 1, .reloads = true };

		set_type(&config, (uint32_t)i, true);
		run_world(&config, 500 + (unsigned)i, options);
	}
}

/* All of it once more, with prefixes that are shared, a cache that fills the pool, and sometimes a disk behind it. */
static void test_shared(void **state)
{
	(void)state;
	assert_non_null(mkdtemp(disk_dir));
	for (int i = 0; i < 2 * n_rounds(); i++) {
		struct engine_config config = {
			.kv_memory = (i % 2 ? 4 : 8) * MIB, .max_seqs = 8, .prefill_quantum = i % 3 ? 16 : 1,
			.block_tokens = i % 4 ? 16 : 32,
		};
		struct options options = { .full_sinks = i % 2, .cancels = i % 4 > 1, .cache = true };

		options.two_models = i % 8 > 3;
		options.disk = i % 4 == 1 || i % 8 == 4;
		options.reloads = options.two_models && i % 3 == 0;
		config.kv_memory += options.two_models ? 2 * MIB : 0;
		set_type(&config, (uint32_t)i, options.two_models);
		run_world(&config, 600 + (unsigned)i, options);
	}
	nftw(disk_dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void test_no_cache(void **state)
{
	struct engine_config config = {
		.kv_memory = 6 * MIB, .max_seqs = 8, .prefill_quantum = 64, .no_cache = true};

	(void)state;
	run_world(&config, 300, (struct options){ .full_sinks = true, .cancels = true });
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_small_pool),
		cmocka_unit_test(test_everything),
		cmocka_unit_test(test_two_models),
		cmocka_unit_test(test_reloads),
		cmocka_unit_test(test_shared),
		cmocka_unit_test(test_no_cache),
	};

	alarm(getenv("KVD_TEST_LONG") ? 900 : 120);	/* a hang is a failure */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
