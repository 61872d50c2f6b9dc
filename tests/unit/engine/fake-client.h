/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake-client.h - a client of the engine: a sink that notes what it gets and
 * can be full or gone, and what each request should give when run alone.
 * After fake-model.h.
 */
#ifndef KVD_TESTS_FAKE_CLIENT_H
#define KVD_TESTS_FAKE_CLIENT_H

#include <stdio.h>

#include "daemon/engine/engine.h"
#include "daemon/engine/text.h"

#define FAKE_TOKENS_MAX 512
#define FAKE_TEXT_MAX 4096
#define FAKE_REQUESTS_MAX 256
#define FAKE_PROMPT_TOP 3		/* alternatives of prompt tokens that requests ask for, if any */

/* What a request gave, or should give. */
struct fake_result {
	int32_t tokens[FAKE_TOKENS_MAX];
	size_t n_tokens;
	char text[FAKE_TEXT_MAX];
	size_t n_text;
	uint32_t finish;	/* enum sink_finish; 0: none */
	uint32_t stop_index;
	uint32_t error;		/* enum sink_error; 0: none */
	uint32_t n_prompt, n_generated;	/* of the usage event */
	uint32_t n_cached, miss;
	int32_t miss_token;
	uint32_t n_progress, progress_done;
	uint32_t n_alternatives;
	uint32_t n_prompts;		/* prompt log-probabilities */
	uint32_t first_position;	/* of them */
	int32_t prompt_ids[FAKE_TOKENS_MAX];
	float prompt_logprobs[FAKE_TOKENS_MAX];
	uint32_t n_prompt_tops[FAKE_TOKENS_MAX];
	int32_t prompt_tops[FAKE_TOKENS_MAX][FAKE_PROMPT_TOP];
	float prompt_top_logprobs[FAKE_TOKENS_MAX][FAKE_PROMPT_TOP];
	bool has_embedding;
	float embedding[FAKE_N_EMBD];
	bool released;
	uint32_t released_as;	/* first, second, ... from 1 */
};

struct fake_client {
	struct sink sink;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool full, gone;		/* now */
	uint32_t full_one_in;		/* becomes full at random; 0: never */
	uint32_t full_after;		/* becomes full after so many emits; 0: never */
	unsigned random;
	uint32_t n_unflushed, n_flushes, n_released;
	uint32_t n_violations;
	const char *violation;
	struct fake_result results[FAKE_REQUESTS_MAX];	/* by request id */
};

static void fake_client_violation(struct fake_client *c, const char *what)
{
	if (!c->n_violations++)
		c->violation = what;
}

static void fake_note_token(struct fake_client *c, struct fake_result *r, const struct sink_event *e)
{
	size_t n;
	const uint8_t *bytes = tokenizer_bytes(NULL, e->token.id, &n);

	if (n != e->token.n_bytes || memcmp(bytes, e->token.bytes, n) != 0)
		fake_client_violation(c, "the token's bytes are not the token's");
	if (e->token.is_control != tokenizer_is_control(NULL, e->token.id))
		fake_client_violation(c, "is_control is wrong");
	if (r->n_tokens < FAKE_TOKENS_MAX)
		r->tokens[r->n_tokens++] = e->token.id;
	else
		fake_client_violation(c, "too many tokens");
}

static void fake_note_prompt(struct fake_client *c, struct fake_result *r, const struct sink_event *e)
{
	size_t n;
	const uint8_t *bytes = tokenizer_bytes(NULL, e->prompt.id, &n);

	if (n != e->prompt.n_bytes || memcmp(bytes, e->prompt.bytes, n) != 0)
		fake_client_violation(c, "the prompt token's bytes are not the token's");
	if (r->n_tokens)
		fake_client_violation(c, "a prompt token after a generated one");
	if (!r->n_prompts)
		r->first_position = e->prompt.position;
	if (e->prompt.position != r->first_position + r->n_prompts || r->n_prompts == FAKE_TOKENS_MAX) {
		fake_client_violation(c, "prompt tokens lost, repeated or out of order");
		return;
	}
	r->prompt_ids[r->n_prompts] = e->prompt.id;
	r->prompt_logprobs[r->n_prompts++] = e->prompt.logprob;
}

/* What follows a prompt token is its; those of generated ones are only counted. */
static void fake_note_alternatives(struct fake_client *c, struct fake_result *r, const struct sink_event *e)
{
	uint32_t at = r->n_prompts - 1;

	if (!e->alternatives.n)
		fake_client_violation(c, "an event with no alternatives");
	if (r->n_tokens) {
		r->n_alternatives += (uint32_t)e->alternatives.n;
		return;
	}
	if (!r->n_prompts || r->n_prompt_tops[at] || e->alternatives.n > FAKE_PROMPT_TOP) {
		fake_client_violation(c, "alternatives of no token, repeated, or too many");
		return;
	}
	for (size_t i = 0; i < e->alternatives.n; i++) {
		const struct sink_alternative *a = &e->alternatives.items[i];
		size_t n;
		const uint8_t *bytes = tokenizer_bytes(NULL, a->id, &n);

		if (n != a->n_bytes || memcmp(bytes, a->bytes, n) != 0)
			fake_client_violation(c, "an alternative's bytes are not its");
		r->prompt_tops[at][i] = a->id;
		r->prompt_top_logprobs[at][i] = a->logprob;
	}
	r->n_prompt_tops[at] = (uint32_t)e->alternatives.n;
}

static void fake_note(struct fake_client *c, struct fake_result *r, const struct sink_event *e)
{
	if (r->finish || r->error || r->released)
		fake_client_violation(c, "an event after the last");
	switch (e->type) {
	case SINK_TOKEN:
		fake_note_token(c, r, e);
		break;
	case SINK_TEXT:
		if (!e->text.n_bytes || r->n_text + e->text.n_bytes > FAKE_TEXT_MAX)
			fake_client_violation(c, "no text, or too much");
		memcpy(r->text + r->n_text, e->text.bytes, e->text.n_bytes);
		r->n_text += e->text.n_bytes;
		break;
	case SINK_ALTERNATIVES:
		fake_note_alternatives(c, r, e);
		break;
	case SINK_PROMPT:
		fake_note_prompt(c, r, e);
		break;
	case SINK_EMBEDDING:
		if (r->has_embedding || r->n_tokens || e->embedding.n != FAKE_N_EMBD)
			fake_client_violation(c, "a second embedding, of another size or beside tokens");
		r->has_embedding = true;
		memcpy(r->embedding, e->embedding.values, sizeof(r->embedding));
		break;
	case SINK_PROGRESS:
		r->n_progress++;
		r->progress_done = e->progress.done;
		break;
	case SINK_USAGE:
		r->n_prompt = e->usage.prompt_tokens;
		r->n_generated = e->usage.generated_tokens;
		r->n_cached = e->usage.cached_tokens;
		r->miss = e->usage.miss;
		r->miss_token = e->usage.miss_token;
		break;
	case SINK_DONE:
		r->finish = e->done.reason;
		r->stop_index = e->done.stop_index;
		break;
	case SINK_ERROR:
		r->error = e->error.code;
		if (!e->error.text || !e->error.text[0])
			fake_client_violation(c, "an error without a sentence");
		break;
	default:
		fake_client_violation(c, "an event that nobody asked for");
	}
}

static int fake_emit(struct sink *sink, uint64_t request, const struct sink_event *events, size_t n)
{
	struct fake_client *c = (struct fake_client *)sink;
	bool last = n && (events[n - 1].type == SINK_DONE || events[n - 1].type == SINK_ERROR);
	int r = 0;

	pthread_mutex_lock(&c->lock);
	if (!last && c->full_one_in && (uint32_t)rand_r(&c->random) % c->full_one_in == 0)
		c->full = true;
	if (c->gone) {
		r = SINK_E_GONE;
	} else if (!last && c->full) {
		r = events[0].type == SINK_PROGRESS ? 0 : SINK_E_FULL;
	} else {
		if (n && events[0].type == SINK_ALTERNATIVES)
			fake_client_violation(c, "alternatives apart from their token");
		for (size_t i = 0; i < n; i++)
			fake_note(c, &c->results[request], &events[i]);
		c->n_unflushed++;
		if (c->full_after && !--c->full_after)
			c->full = true;
	}
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
	return r;
}

static void fake_flush(struct sink *sink)
{
	struct fake_client *c = (struct fake_client *)sink;

	pthread_mutex_lock(&c->lock);
	c->n_unflushed = 0;
	c->n_flushes++;
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
}

static void fake_release(struct sink *sink, uint64_t request)
{
	struct fake_client *c = (struct fake_client *)sink;
	struct fake_result *r = &c->results[request];

	pthread_mutex_lock(&c->lock);
	if (r->released)
		fake_client_violation(c, "released twice");
	if (c->n_unflushed)
		fake_client_violation(c, "released before the flush");
	if (!r->finish && !r->error && !c->gone)
		fake_client_violation(c, "released without an end");
	r->released = true;
	r->released_as = ++c->n_released;
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
}

static const struct sink_ops fake_sink_ops = {
	.emit = fake_emit, .flush = fake_flush, .release = fake_release
};

static struct fake_client *fake_client_new(unsigned random)
{
	struct fake_client *c = calloc(1, sizeof(*c));

	assert_non_null(c);
	c->sink.ops = &fake_sink_ops;
	c->random = random;
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->changed, NULL);
	return c;
}

static void fake_client_free(struct fake_client *c)
{
	if (c->n_violations)
		fail_msg("%s (%u in all)", c->violation, c->n_violations);
	pthread_mutex_destroy(&c->lock);
	pthread_cond_destroy(&c->changed);
	free(c);
}

static inline void fake_client_wait_released(struct fake_client *c, uint32_t n)
{
	pthread_mutex_lock(&c->lock);
	while (c->n_released < n)
		pthread_cond_wait(&c->changed, &c->lock);
	pthread_mutex_unlock(&c->lock);
}

static inline void fake_client_set(struct fake_client *c, bool full, bool gone)
{
	pthread_mutex_lock(&c->lock);
	c->full = full;
	c->gone = gone;
	pthread_mutex_unlock(&c->lock);
}

/* --- what a request asks for and should get --- */

struct fake_request {
	struct engine_model *em;	/* NULL: fake_em */
	const struct model *model;	/* NULL: fake_model */
	uint64_t id;
	uid_t uid;
	int32_t prompt[FAKE_TOKENS_MAX];
	size_t n_prompt;
	const char *stop[3];
	struct engine_request_params params;
};

/* The model of requests that name none. */
static struct engine_model *fake_em;

static int fake_submit(struct engine *e, struct fake_client *c, uint64_t client, const struct fake_request *r)
{
	struct engine_request *request = NULL;
	struct diag diag = DIAG_NULL;
	int32_t *prompt = malloc(r->n_prompt * sizeof(*prompt));
	int err;

	assert_non_null(prompt);
	memcpy(prompt, r->prompt, r->n_prompt * sizeof(*prompt));
	err = engine_request_new(&request, r->em ? r->em : fake_em, client, r->id, r->uid, prompt, r->n_prompt,
				 &r->params, &c->sink);
	assert_int_equal(err, 0);
	err = engine_submit(e, request, &diag);
	if (err) {
		assert_true(diag.text[0]);
		engine_request_free(request);
	}
	return err;
}

static enum sink_finish fake_expected_end(const struct fake_request *r, const struct fake_result *out,
					  const struct text_filter *filter, uint32_t n_ctx)
{
	if (filter->decided)
		return SINK_FINISH_STOP_STRING;
	if (!r->params.ignore_eos && out->tokens[out->n_tokens - 1] == FAKE_EOS)
		return SINK_FINISH_STOP;
	if (out->n_tokens >= r->params.max_tokens || r->n_prompt + out->n_tokens >= n_ctx)
		return SINK_FINISH_LENGTH;
	return 0;
}

/* Log-softmax, with the C library's functions in double precision. */
static double fake_logprob(const float *logits, int32_t id)
{
	double sum = 0;

	for (uint32_t v = 0; v < FAKE_N_VOCAB; v++)
		sum += isnan(logits[v]) ? 0 : exp((double)logits[v]);
	return sum > 0 ? (double)logits[id] - log(sum) : NAN;
}

/* The most likely ones, by going through all of them for each. */
static void fake_expect_tops(const float *logits, struct fake_result *out, uint32_t at)
{
	bool taken[FAKE_N_VOCAB + 1] = { false };

	for (uint32_t n = 0; n < FAKE_PROMPT_TOP; n++) {
		int32_t best = -1;

		for (uint32_t v = 0; v < FAKE_N_VOCAB; v++)
			if (!taken[v] && logits[v] > (best < 0 ? -INFINITY : logits[best]))
				best = (int32_t)v;
		if (best < 0)
			return;
		taken[best] = true;
		out->prompt_tops[at][n] = best;
		out->prompt_top_logprobs[at][n] = (float)fake_logprob(logits, best);
		out->n_prompt_tops[at]++;
	}
}

static void fake_expect_prompt(const struct fake_request *r, struct fake_result *out)
{
	uint64_t hash = (r->model ? r->model : &fake_model)->first_hash;
	float logits[FAKE_N_VOCAB + 1];

	out->first_position = r->params.prompt_logprobs_from;
	for (uint32_t i = 0; r->params.prompt_logprobs && i < r->n_prompt; i++) {
		if (i >= out->first_position) {
			if (i && r->params.prompt_alternatives)
				fake_expect_tops(logits, out, out->n_prompts);
			out->prompt_ids[out->n_prompts] = r->prompt[i];
			out->prompt_logprobs[out->n_prompts++] =
				i ? (float)fake_logprob(logits, r->prompt[i]) : NAN;
		}
		hash = fake_hash(hash, r->prompt[i]);
		fake_logits(hash, r->prompt[i], logits);
	}
}

static void fake_expect_embedding(const struct fake_request *r, struct fake_result *out)
{
	uint64_t hash = (r->model ? r->model : &fake_model)->first_hash;
	double sums[FAKE_N_EMBD] = { 0 };
	float state[FAKE_N_EMBD] = { 0 };

	for (size_t i = 0; i < r->n_prompt; i++) {
		hash = fake_hash(hash, r->prompt[i]);
		fake_hidden(hash, state);
		for (uint32_t k = 0; k < FAKE_N_EMBD; k++)
			sums[k] += (double)state[k];
	}
	for (uint32_t k = 0; k < FAKE_N_EMBD; k++)
		out->embedding[k] = r->params.pooling == ENGINE_POOLING_LAST ? state[k]
									     : (float)(sums[k] / (double)r->n_prompt);
	out->has_embedding = true;
	out->finish = SINK_FINISH_LENGTH;
}

/* The request run alone: one loop over logits, sampler and text filter, no engine. */
static void fake_expect(const struct fake_request *r, uint32_t n_ctx, struct fake_result *out)
{
	int32_t tokens[FAKE_TOKENS_MAX];
	float logits[FAKE_N_VOCAB + 1];
	struct text_buffer text = { 0 };
	struct sampler_result token;
	struct text_filter filter;
	struct sampler_rng rng;
	struct sampler *s;
	size_t n = r->n_prompt;
	struct sampler_history history = { .tokens = tokens, .n_prompt = n };
	uint64_t hash = (r->model ? r->model : &fake_model)->first_hash;

	*out = (struct fake_result){ .finish = r->params.max_tokens ? 0 : SINK_FINISH_LENGTH };
	if (r->params.pooling != ENGINE_POOLING_NONE) {
		fake_expect_embedding(r, out);
		return;
	}
	fake_expect_prompt(r, out);
	memcpy(tokens, r->prompt, n * sizeof(*tokens));
	for (size_t i = 0; i < n; i++)
		hash = fake_hash(hash, tokens[i]);
	assert_int_equal(text_filter_init(&filter, r->params.stop, r->params.n_stop), 0);
	assert_int_equal(sampler_new(&s, FAKE_N_VOCAB), 0);
	sampler_rng_init(&rng, r->params.sampling.seed);
	while (!out->finish) {
		size_t n_bytes;
		const uint8_t *bytes;

		fake_logits(hash, tokens[n - 1], logits);
		history.n = n;
		assert_int_equal(sampler_sample(s, &r->params.sampling, &rng, logits, &history, &token), 0);
		tokens[n++] = out->tokens[out->n_tokens++] = token.id;
		hash = fake_hash(hash, token.id);
		bytes = tokenizer_bytes(NULL, token.id, &n_bytes);
		if (!tokenizer_is_control(NULL, token.id))
			assert_int_equal(text_filter_push(&filter, bytes, n_bytes, &text), 0);
		out->finish = fake_expected_end(r, out, &filter, n_ctx);
	}
	assert_int_equal(text_filter_finish(&filter, &text), 0);
	if (filter.decided)
		out->finish = SINK_FINISH_STOP_STRING;
	out->stop_index = filter.decided ? (uint32_t)filter.match_index : 0;
	out->n_text = text.n;
	if (text.n)
		memcpy(out->text, text.bytes, text.n);
	sampler_free(s);
	text_filter_deinit(&filter);
	free(text.bytes);
}

static void fake_check_logprob(uint32_t position, float a, float b)
{
	if (!(fabsf(a - b) <= 2e-6f * (1 + fabsf(b)) || a == b || (isnan(a) && isnan(b))))
		fail_msg("position %u: log-probability %.9g, not %.9g", position, (double)a, (double)b);
}

/* The prompt's log-probabilities, all of them or (one that was cancelled) a beginning. */
static void fake_check_prompt(const struct fake_result *got, const struct fake_result *want, bool whole)
{
	if (whole)
		assert_int_equal(got->n_prompts, want->n_prompts);
	assert_true(got->n_prompts <= want->n_prompts);
	if (got->n_prompts)
		assert_int_equal(got->first_position, want->first_position);
	assert_memory_equal(got->prompt_ids, want->prompt_ids, got->n_prompts * sizeof(*want->prompt_ids));
	for (uint32_t i = 0; i < got->n_prompts; i++) {
		fake_check_logprob(got->first_position + i, got->prompt_logprobs[i], want->prompt_logprobs[i]);
		assert_int_equal(got->n_prompt_tops[i], want->n_prompt_tops[i]);
		for (uint32_t j = 0; j < got->n_prompt_tops[i]; j++) {
			assert_int_equal(got->prompt_tops[i][j], want->prompt_tops[i][j]);
			fake_check_logprob(got->first_position + i, got->prompt_top_logprobs[i][j],
					   want->prompt_top_logprobs[i][j]);
		}
	}
}

/* A finished request gave exactly what it gives alone. */
static void fake_check_whole(const struct fake_result *got, const struct fake_request *r,
			     const struct fake_result *want)
{
	assert_int_equal(got->error, 0);
	assert_int_equal(got->finish, want->finish);
	assert_int_equal(got->stop_index, want->stop_index);
	fake_check_prompt(got, want, true);
	assert_int_equal(got->has_embedding, want->has_embedding);
	assert_memory_equal(got->embedding, want->embedding, sizeof(want->embedding));
	assert_int_equal(got->n_tokens, want->n_tokens);
	assert_memory_equal(got->tokens, want->tokens, want->n_tokens * sizeof(*want->tokens));
	assert_int_equal(got->n_text, want->n_text);
	assert_memory_equal(got->text, want->text, want->n_text);
	assert_int_equal(got->n_prompt, r->n_prompt);
	assert_int_equal(got->n_generated, want->n_tokens);
	if (r->params.sampling.n_logprobs)
		assert_in_range(got->n_alternatives, want->n_tokens,
				want->n_tokens * r->params.sampling.n_logprobs);
}

/* One that did not come to its end gave a beginning of it. */
static void fake_check_beginning(const struct fake_result *got, const struct fake_result *want)
{
	fake_check_prompt(got, want, false);
	assert_true(got->n_tokens <= want->n_tokens);
	assert_memory_equal(got->tokens, want->tokens, got->n_tokens * sizeof(*want->tokens));
	assert_true(got->n_text <= want->n_text);
	assert_memory_equal(got->text, want->text, got->n_text);
}

static void fake_check_cancelled(const struct fake_result *got, const struct fake_result *want)
{
	assert_int_equal(got->error, 0);
	assert_int_equal(got->finish, SINK_FINISH_CANCELLED);
	fake_check_beginning(got, want);
}

static struct accounts *fake_accounts(uint64_t max_requests, uint64_t max_memory, uint64_t max_kv_bytes)
{
	struct account_limits limits = { { UINT64_MAX, max_memory, max_requests, max_kv_bytes } };
	struct accounts *accounts;

	assert_int_equal(accounts_new(&accounts, &limits), 0);
	return accounts;
}

static void fake_check_nothing_charged(struct accounts *accounts, uid_t n_uids)
{
	for (uid_t uid = 0; uid < n_uids; uid++)
		for (int kind = 0; kind < ACCOUNT_N_KINDS; kind++)
			assert_int_equal(account_used(accounts, uid, (enum account_kind)kind), 0);
}

#endif
