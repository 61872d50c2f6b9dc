/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's behaviour one situation at a time, over a fake model that finds
 * every misuse of the KV pool; steps are held at a gate where it matters which
 * phase a request is in.
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

#define MIB (UINT64_C(1) << 20)
#define QUANTUM 8

/* An engine with a client, and what is needed to take both down. */
struct fixture {
	struct engine *engine;
	struct accounts *accounts;
	struct fake_client *client;	/* key 1 */
};

static const struct engine_config config_default = {
	.backend = &fake_backend, .model = &fake_model,
	.kv_memory = 12 * MIB, .max_seqs = 4, .prefill_quantum = QUANTUM,
};

static struct fixture start_with(const struct engine_config *config, struct accounts *accounts)
{
	struct fixture f = { .accounts = accounts, .client = fake_client_new(1) };
	struct engine_config c = *config;
	struct diag diag = DIAG_NULL;

	c.accounts = accounts;
	fake_reset(config->prefill_quantum);
	assert_int_equal(engine_new(&f.engine, &c, &diag), 0);
	return f;
}

static struct fixture start(const struct engine_config *config)
{
	return start_with(config, fake_accounts(UINT64_MAX, UINT64_MAX, UINT64_MAX));
}

/* Nothing may be left: no block, no charge, no sequence. */
static void stop(struct fixture *f)
{
	fake_allow(UINT64_MAX);
	engine_free(f->engine);
	fake_check_nothing_charged(f->accounts, 8);
	accounts_free(f->accounts);
	fake_client_free(f->client);
	if (fake.n_violations)
		fail_msg("%s (%u in all)", fake.violation, fake.n_violations);
}

static struct fake_request make_request(uint64_t id, uid_t uid, size_t n_prompt, uint32_t max_tokens)
{
	struct fake_request r = {
		.id = id, .uid = uid, .n_prompt = n_prompt,
		.params = { .max_tokens = max_tokens, .ignore_eos = true,
			    .sampling = { .temperature = 1, .top_p = 0.95f, .repeat_penalty = 1, .seed = id } },
	};

	for (size_t i = 0; i < n_prompt; i++)
		r.prompt[i] = (int32_t)(3 + (id * 7 + i * i) % (FAKE_N_VOCAB - 3));
	return r;
}

static void submit(struct fixture *f, const struct fake_request *r)
{
	assert_int_equal(fake_submit(f->engine, f->client, 1, r), 0);
}

static void check_whole(struct fixture *f, const struct fake_request *r)
{
	static struct fake_result want;

	fake_expect(r, fake_model.n_ctx, &want);
	fake_check_whole(&f->client->results[r->id], r, &want);
}

static void check_cancelled(struct fixture *f, const struct fake_request *r)
{
	static struct fake_result want;

	fake_expect(r, fake_model.n_ctx, &want);
	fake_check_cancelled(&f->client->results[r->id], &want);
}

/* Many kinds of requests, one after the other. */
static void test_alone(void **state)
{
	struct fixture f = start(&config_default);
	uint32_t n_finish[5] = { 0 };

	(void)state;
	srand(1);
	for (uint64_t id = 0; id < 150; id++) {
		struct fake_request r = make_request(id, 1, (size_t)rand() % 60 + 1, (uint32_t)rand() % 60 + 1);
		struct sampler_params *p = &r.params.sampling;

		r.params.ignore_eos = rand() % 2;
		p->temperature = rand() % 3 ? 1 : 0;
		p->repeat_penalty = rand() % 2 ? 1 : 1.2f;
		p->repeat_last_n = 20;
		p->logprobs = rand() % 2;
		p->n_logprobs = p->logprobs ? (uint32_t)rand() % 5 : 0;
		r.params.stop = r.stop;
		r.params.n_stop = (size_t)rand() % 3;
		r.stop[0] = id % 2 ? "aba" : "\xc3\xa4";
		r.stop[1] = "hellohello";
		if (rand() % 8 == 0)
			r.params.max_tokens = UINT32_MAX;
		submit(&f, &r);
		fake_client_wait_released(f.client, (uint32_t)id + 1);
		check_whole(&f, &r);
		n_finish[f.client->results[id].finish]++;
	}
	for (uint32_t i = SINK_FINISH_STOP; i <= SINK_FINISH_LENGTH; i++)
		assert_true(n_finish[i] > 5);	/* each was tried */
	stop(&f);
}

static void test_refusals(void **state)
{
	struct engine_config config = config_default;
	struct fake_request r = make_request(0, 1, 95, 5);
	struct fixture f;

	(void)state;
	config.max_queue = 2;
	config.max_seqs = 1;
	f = start_with(&config, fake_accounts(4, 600, UINT64_MAX));
	fake.n_allowed = 0;
	submit(&f, &r);			/* the longest: 95 + 1 tokens fill the context */
	r.id = 1;
	r.n_prompt = 96;
	assert_int_equal(fake_submit(f.engine, f.client, 1, &r), ENGINE_E_CONTEXT);
	r = make_request(1, 1, 56, 5);	/* 4 (95 + 56) bytes are more than 600 */
	assert_int_equal(fake_submit(f.engine, f.client, 1, &r), ENGINE_E_QUOTA);
	r = make_request(1, 1, 5, 5);
	r.prompt[4] = (int32_t)FAKE_N_VOCAB;
	assert_int_equal(fake_submit(f.engine, f.client, 1, &r), -EINVAL);
	r.prompt[4] = -1;
	assert_int_equal(fake_submit(f.engine, f.client, 1, &r), -EINVAL);
	fake_wait_step(1);
	for (uint64_t id = 1; id < 3; id++) {
		r = make_request(id, 2, 5, 5);
		submit(&f, &r);
	}
	r = make_request(3, 2, 5, 5);
	assert_int_equal(fake_submit(f.engine, f.client, 1, &r), ENGINE_E_BUSY);
	fake_allow(UINT64_MAX);
	fake_client_wait_released(f.client, 3);
	for (uint64_t id = 0; id < 3; id++) {
		r = make_request(id, id ? 2 : 1, id ? 5 : 95, 5);
		check_whole(&f, &r);
	}
	assert_int_equal(f.client->results[0].n_tokens, 1);
	assert_int_equal(f.client->results[0].finish, SINK_FINISH_LENGTH);
	stop(&f);

	f = start_with(&config_default, fake_accounts(1, UINT64_MAX, UINT64_MAX));
	fake.n_allowed = 0;
	r = make_request(0, 1, 5, 5);
	submit(&f, &r);
	r = make_request(1, 1, 5, 5);
	assert_int_equal(fake_submit(f.engine, f.client, 1, &r), ENGINE_E_QUOTA);
	r = make_request(1, 2, 5, 5);
	submit(&f, &r);
	stop(&f);

	config.kv_memory = 2 * MIB;	/* 4 blocks: 64 tokens */
	f = start(&config);
	r = make_request(0, 1, 64, 5);
	assert_int_equal(fake_submit(f.engine, f.client, 1, &r), ENGINE_E_TOO_BIG);
	r = make_request(0, 1, 63, UINT32_MAX);
	submit(&f, &r);
	fake_client_wait_released(f.client, 1);
	assert_int_equal(f.client->results[0].finish, SINK_FINISH_LENGTH);
	assert_int_equal(f.client->results[0].n_tokens, 1);
	stop(&f);
}

static void test_bad_config(void **state)
{
	struct engine_config config = config_default;
	struct diag diag = DIAG_NULL;
	struct engine *e = NULL;

	(void)state;
	config.accounts = fake_accounts(1, 1, 1);
	config.kv_memory = MIB;
	assert_int_equal(engine_new(&e, &config, &diag), -EINVAL);
	assert_true(diag.text[0]);
	config.kv_memory = 12 * MIB;
	config.block_tokens = 17;
	assert_int_equal(engine_new(&e, &config, NULL), -EINVAL);
	config.block_tokens = 16;
	config.max_seqs = UINT32_MAX;
	assert_int_equal(engine_new(&e, &config, NULL), -EINVAL);
	assert_null(e);
	engine_free(NULL);
	accounts_free(config.accounts);
}

/* A prompt alone: it is computed, nothing is generated. */
static void test_no_tokens(void **state)
{
	struct fixture f = start(&config_default);
	struct fake_request r = make_request(0, 1, 50, 0);

	(void)state;
	submit(&f, &r);
	fake_client_wait_released(f.client, 1);
	check_whole(&f, &r);
	assert_int_equal(fake.n_rows_seen, 50);
	r = make_request(1, 1, 1, 1);
	submit(&f, &r);
	fake_client_wait_released(f.client, 2);
	check_whole(&f, &r);
	stop(&f);
}

static void test_progress(void **state)
{
	struct fixture f = start(&config_default);
	struct fake_request r = make_request(0, 1, 50, 3);

	(void)state;
	r.params.progress = true;
	submit(&f, &r);
	fake_client_wait_released(f.client, 1);
	check_whole(&f, &r);
	assert_int_equal(f.client->results[0].n_progress, (50 + QUANTUM - 1) / QUANTUM);
	assert_int_equal(f.client->results[0].progress_done, 50);
	stop(&f);
}

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

/* A uid's share of blocks: one request beyond it fails, two within it take turns. */
static void test_block_quota(void **state)
{
	struct fake_request r;
	struct fixture f;

	(void)state;
	f = start_with(&config_default, fake_accounts(UINT64_MAX, UINT64_MAX, 3));
	r = make_request(0, 1, 60, 5);
	submit(&f, &r);
	fake_client_wait_released(f.client, 1);
	assert_int_equal(f.client->results[0].error, SINK_ERROR_QUOTA);
	assert_int_equal(f.client->results[0].n_tokens, 0);
	r = make_request(1, 1, 20, 60);
	submit(&f, &r);
	fake_client_wait_released(f.client, 2);
	assert_int_equal(f.client->results[1].error, SINK_ERROR_QUOTA);
	assert_int_equal(f.client->results[1].n_tokens, 48 - 20 + 1);
	for (uint64_t id = 2; id < 8; id++) {
		r = make_request(id, id < 6 ? 1 : 2, 10, 30);
		submit(&f, &r);
	}
	fake_client_wait_released(f.client, 8);
	for (uint64_t id = 2; id < 8; id++) {
		r = make_request(id, 1, 10, 30);
		check_whole(&f, &r);
	}
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

/* A failing step ends the requests in it; the engine goes on. */
static void test_step_fails(void **state)
{
	struct fixture f = start(&config_default);
	struct fake_request r;
	struct engine_stats stats;

	(void)state;
	fake.n_allowed = 0;
	fake.fail_step = 6;
	for (uint64_t id = 0; id < 2; id++) {
		r = make_request(id, 1, 4, 20);
		submit(&f, &r);
	}
	fake_allow(UINT64_MAX);
	fake_client_wait_released(f.client, 2);
	for (uint64_t id = 0; id < 2; id++)
		assert_int_equal(f.client->results[id].error, SINK_ERROR_INTERNAL);
	r = make_request(2, 1, 20, 20);
	submit(&f, &r);
	fake_client_wait_released(f.client, 3);
	check_whole(&f, &r);
	engine_stats(f.engine, &stats);
	assert_int_equal(stats.requests_failed, 2);
	assert_int_equal(stats.requests_done, 1);
	stop(&f);
}

/* Logits that are all NaN end that request, not its neighbour. */
static void test_nan(void **state)
{
	struct fixture f = start(&config_default);
	struct fake_request a = make_request(0, 1, 9, 20), b = make_request(1, 1, 9, 20);

	(void)state;
	a.prompt[8] = FAKE_POISON;
	submit(&f, &a);
	submit(&f, &b);
	fake_client_wait_released(f.client, 2);
	assert_int_equal(f.client->results[0].error, SINK_ERROR_INTERNAL);
	check_whole(&f, &b);
	stop(&f);
}

/* The baseline gives the same tokens, and computes every position again for each. */
static void test_no_cache(void **state)
{
	struct engine_config config = config_default;
	struct fake_request r = make_request(0, 1, 10, 20);
	struct fixture f;

	(void)state;
	config.no_cache = true;
	f = start(&config);
	submit(&f, &r);
	fake_client_wait_released(f.client, 1);
	check_whole(&f, &r);
	assert_int_equal(fake.n_rows_seen, (10 + 29) * 20 / 2);
	for (uint64_t id = 1; id < 9; id++) {
		r = make_request(id, (uid_t)id, 30, 30);
		submit(&f, &r);
	}
	fake_client_wait_released(f.client, 9);
	for (uint64_t id = 1; id < 9; id++) {
		r = make_request(id, (uid_t)id, 30, 30);
		check_whole(&f, &r);
	}
	fake_check_nothing_charged(f.accounts, 10);
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

/* Running, waiting and parked requests all hear of the end. */
static void test_shutdown(void **state)
{
	struct engine_config config = config_default;
	struct fake_client *full = fake_client_new(2);
	struct fake_request r;
	struct engine_stats stats;
	struct fixture f;

	(void)state;
	config.max_seqs = 2;
	f = start(&config);
	r = make_request(0, 2, 4, 80);
	fake_client_set(full, true, false);
	assert_int_equal(fake_submit(f.engine, full, 2, &r), 0);
	do {
		engine_stats(f.engine, &stats);
		usleep(100);
	} while (!stats.n_parked);
	for (uint64_t id = 0; id < 5; id++) {
		r = make_request(id, 1, 4, 80);
		submit(&f, &r);
	}
	engine_free(f.engine);
	assert_int_equal(full->results[0].error, SINK_ERROR_SHUTDOWN);
	assert_true(full->results[0].released);
	for (uint64_t id = 0; id < 5; id++) {
		struct fake_result *result = &f.client->results[id];

		assert_true(result->released);
		assert_true(result->error == SINK_ERROR_SHUTDOWN || result->finish == SINK_FINISH_LENGTH);
	}
	fake_check_nothing_charged(f.accounts, 8);
	accounts_free(f.accounts);
	fake_client_free(f.client);
	fake_client_free(full);
}

/* A delay of an hour before each step does not delay the end. */
static void test_delay(void **state)
{
	struct engine_config config = config_default;
	struct fake_request r = make_request(0, 1, 4, 80);
	struct engine_stats stats;
	struct fixture f;

	(void)state;
	config.step_delay_ns = UINT64_C(3600000000000);
	f = start(&config);
	submit(&f, &r);
	do {
		engine_stats(f.engine, &stats);
		usleep(100);
	} while (!stats.n_running);
	usleep(2000);	/* most likely it sleeps now */
	engine_free(f.engine);
	assert_int_equal(f.client->results[0].error, SINK_ERROR_SHUTDOWN);
	assert_int_equal(fake.n_entered, 0);
	fake_check_nothing_charged(f.accounts, 8);
	accounts_free(f.accounts);
	fake_client_free(f.client);
}

/* Who sees the end of a request may send the next one at once, even with a quota of one. */
static void test_quota_is_free_at_end(void **state)
{
	struct fixture f = start_with(&config_default, fake_accounts(1, 40, 1));

	(void)state;
	for (uint64_t id = 0; id < 200; id++) {
		struct fake_request r = make_request(id, 1, 10, 3);

		submit(&f, &r);
		pthread_mutex_lock(&f.client->lock);
		while (!f.client->results[id].finish)
			pthread_cond_wait(&f.client->changed, &f.client->lock);
		pthread_mutex_unlock(&f.client->lock);
	}
	fake_client_wait_released(f.client, 200);
	stop(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_alone),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_bad_config),
		cmocka_unit_test(test_no_tokens),
		cmocka_unit_test(test_progress),
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_gone),
		cmocka_unit_test(test_parked),
		cmocka_unit_test(test_parked_at_end),
		cmocka_unit_test(test_parked_preempted),
		cmocka_unit_test(test_preempted),
		cmocka_unit_test(test_block_quota),
		cmocka_unit_test(test_prefill_stalls_nobody),
		cmocka_unit_test(test_step_fails),
		cmocka_unit_test(test_nan),
		cmocka_unit_test(test_no_cache),
		cmocka_unit_test(test_phases),
		cmocka_unit_test(test_shutdown),
		cmocka_unit_test(test_delay),
		cmocka_unit_test(test_quota_is_free_at_end),
	};

	alarm(120);	/* a hang is a failure */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
