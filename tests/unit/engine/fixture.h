/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fixture.h - an engine over the fake model with one client, for tests of one
 * situation at a time.  After fake-model.h and fake-client.h.
 */
#ifndef KVD_TESTS_FIXTURE_H
#define KVD_TESTS_FIXTURE_H

#include "daemon/cache/store.h"

#define MIB (UINT64_C(1) << 20)
#define QUANTUM 8

/* Of another geometry: 7 blocks to a chunk where fake_model has 4. */
static struct model other_model = {
	.info = { .name = "other", .n_vocab = FAKE_N_VOCAB }, .n_ctx = 80, .block_bytes = 292 << 10, .first_hash = 99,
};

/* Asked to remove a model, and whether it was. */
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

static inline void ask_removal(struct engine *e, struct engine_model *em, struct removal *r)
{
	*r = (struct removal){ .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
	assert_int_equal(engine_remove_model(e, em, note_removed, r), 0);
}

static inline bool is_removed(struct removal *r)
{
	bool done;

	pthread_mutex_lock(&r->lock);
	done = r->done;
	pthread_mutex_unlock(&r->lock);
	return done;
}

static inline void wait_removal(struct removal *r)
{
	pthread_mutex_lock(&r->lock);
	while (!r->done)
		pthread_cond_wait(&r->changed, &r->lock);
	pthread_mutex_unlock(&r->lock);
}

static inline struct engine_model *add_other(struct engine *e)
{
	struct engine_model *em = NULL;
	struct diag diag = DIAG_NULL;

	assert_int_equal(engine_add_model(e, &other_model, &em, &diag), 0);
	return em;
}

/* An engine with a client, and what is needed to take both down. */
struct fixture {
	struct engine *engine;
	struct engine_model *em;	/* of fake_model */
	struct accounts *accounts;
	struct fake_client *client;	/* key 1 */
	struct store *store;		/* NULL: none */
};

static const struct engine_config config_default __attribute__((unused)) = {
	.backend = &fake_backend, .kv_memory = 12 * MIB, .max_seqs = 4, .prefill_quantum = QUANTUM,
	.attention_mass = true,
};

static inline struct store *open_store(const char *dir, uint64_t max_bytes)
{
	struct store_config config = { .dir = dir, .max_bytes = max_bytes };
	struct diag diag = DIAG_NULL;
	struct store *s = NULL;

	assert_int_equal(store_new(&s, &config, &diag), 0);
	return s;
}

static inline struct fixture start_with(const struct engine_config *config, struct accounts *accounts)
{
	struct fixture f = { .accounts = accounts, .client = fake_client_new(1), .store = config->store };
	struct engine_config c = *config;
	struct diag diag = DIAG_NULL;

	c.accounts = accounts;
	fake_reset(config->prefill_quantum);
	assert_int_equal(engine_new(&f.engine, &c, &diag), 0);
	assert_int_equal(engine_add_model(f.engine, &fake_model, &f.em, &diag), 0);
	fake_em = f.em;
	return f;
}

static inline struct fixture start(const struct engine_config *config)
{
	return start_with(config, fake_accounts(UINT64_MAX, UINT64_MAX, UINT64_MAX));
}

/* Nothing may be left: no block, no charge, no sequence. */
static inline void stop(struct fixture *f)
{
	fake_allow(UINT64_MAX);
	engine_free(f->engine);
	engine_model_free(f->em);
	if (f->store)
		store_stop(f->store);
	store_free(f->store);
	fake_check_nothing_charged(f->accounts, 8);
	accounts_free(f->accounts);
	fake_client_free(f->client);
	assert_int_equal(fake.n_open, 0);
	if (fake.n_violations)
		fail_msg("%s (%u in all)", fake.violation, fake.n_violations);
}

static inline struct fake_request make_request(uint64_t id, uid_t uid, size_t n_prompt, uint32_t max_tokens)
{
	struct fake_request r = {
		.id = id,
		.uid = uid,
		.n_prompt = n_prompt,
		.params = {.max_tokens = max_tokens,
			   .ignore_eos = true,
			   .sampling = {.temperature = 1, .top_p = 0.95f, .repeat_penalty = 1, .seed = id}},
	};

	for (size_t i = 0; i < n_prompt; i++)
		r.prompt[i] = (int32_t)(3 + (id * 7 + i * i) % (FAKE_N_VOCAB - 3));
	return r;
}

static inline void submit(struct fixture *f, const struct fake_request *r)
{
	assert_int_equal(fake_submit(f->engine, f->client, 1, r), 0);
}

static inline void check_whole(struct fixture *f, const struct fake_request *r)
{
	static struct fake_result want;

	fake_expect(r, fake_model.n_ctx, &want);
	fake_check_whole(&f->client->results[r->id], r, &want);
}

static inline void check_cancelled(struct fixture *f, const struct fake_request *r)
{
	static struct fake_result want;

	fake_expect(r, fake_model.n_ctx, &want);
	fake_check_cancelled(&f->client->results[r->id], &want);
}

/* Bytes that a request is charged for, from its submission to its end. */
static inline uint64_t memory_of(const struct fake_request *r)
{
	struct fixture f = start(&config_default);
	uint64_t bytes;

	fake.n_allowed = 0;
	submit(&f, r);
	bytes = account_used(f.accounts, r->uid, ACCOUNT_MEMORY);
	stop(&f);
	return bytes;
}

#endif
