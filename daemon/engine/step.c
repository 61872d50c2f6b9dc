/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "daemon/engine/engine-private.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"

/* Its last token is in the step, and one more is wanted. */
static bool wants_logits(const struct engine_request *r)
{
	return r->seq.n_computed + r->seq.n_rows == r->seq.n_tokens && r->n_generated < r->params.max_tokens;
}

static void add_to_batch(struct engine *e, struct kb_batch *b, struct engine_request *r)
{
	uint32_t block_tokens = r->model->block_tokens;
	struct sched_seq *seq = &r->seq;
	uint32_t first = seq->n_computed, end = first + seq->n_rows, first_row = b->n_rows;
	struct step_entry *entry = &e->entries[b->n_seqs];

	memcpy(e->row_tokens + b->n_rows, r->tokens + seq->n_computed, seq->n_rows * sizeof(*r->tokens));
	e->seqs[b->n_seqs++] = (struct kb_seq){
		.first_row = first_row,
		.n_rows = seq->n_rows,
		.first_pos = first,
		.n_blocks = (end + block_tokens - 1) / block_tokens,
		.block_table = r->blocks,
		.open = r->open,
	};
	engine_mass_ask(e, r, &e->seqs[b->n_seqs - 1]);
	b->n_rows += seq->n_rows;
	*entry = (struct step_entry){
		.request = r, .first_logits = b->n_logits, .generates = wants_logits(r),
		.decodes = seq->n_tokens - seq->n_computed == 1,
		.first_hidden = b->n_hidden,
	};
	for (uint32_t p = MAX(first, seq->logits_from); p < MIN(end, seq->logits_to); p++) {
		e->logit_rows[b->n_logits++] = first_row + p - first;
		entry->n_prompt_logits++;
	}
	if (entry->generates)
		e->logit_rows[b->n_logits++] = b->n_rows - 1;
	for (uint32_t p = MAX(first, r->pooling.next); p < MIN(end, r->pooling.end); p++) {
		e->hidden_rows[b->n_hidden++] = first_row + p - first;
		entry->n_hidden++;
	}
}

static void build_batch(struct engine *e, struct engine_model *em, struct kb_batch *b)
{
	*b = (struct kb_batch){
		.tokens = e->row_tokens,
		.seqs = e->seqs,
		.logit_rows = e->logit_rows,
		.hidden_rows = e->hidden_rows,
		.pool = pool_device(e->pool),
		.geometry = pool_root_geometry(em->root),
	};
	scheduler_for_each_active(seq, &em->sched) {
		if (seq->n_rows)
			add_to_batch(e, b, request_of(seq));
	}
}

static int run_batch(struct engine *e, struct engine_model *em, const struct kb_batch *b)
{
	uint64_t begin = clock_ns(), ns;
	int err = model_step(em->model, em->ws, b);

	if (!err)
		err = e->be->ops->step_wait(em->ws);
	em->last_step_ns = begin;
	e->step_end_ns = clock_ns();
	ns = e->step_end_ns - begin;
	if (!err)
		engine_gap_note(e, em, b, ns);
	e->stats.busy_ns += ns;
	em->stats.busy_ns += ns;
	e->stats.steps++;
	em->stats.steps++;
	return err;
}

/* Why the sequence ends with the token that it just got; 0: it doesn't. */
static enum sink_finish ending(const struct engine_request *r, int32_t id)
{
	if (output_stopped(&r->output))
		return SINK_FINISH_STOP_STRING;
	if (!r->params.ignore_eos && tokenizer_is_eog(r->model->tokenizer, id))
		return SINK_FINISH_STOP;
	if (r->n_generated >= r->params.max_tokens || r->seq.n_tokens >= r->model->n_ctx)
		return SINK_FINISH_LENGTH;
	return 0;
}

/* A token was drawn: the time since the one before it, 0 where it is the first. */
static uint64_t note_time(struct engine_request *r)
{
	uint64_t now = clock_ns(), gap = r->first_token_ns ? now - r->last_token_ns : 0;

	if (!r->first_token_ns)
		r->first_token_ns = now;
	r->last_token_ns = now;
	return gap;
}

/* Draws the next token, and delivers it. */
static void generate(struct engine *e, struct engine_request *r, const float *logits)
{
	struct engine_model *em = r->model;
	struct sampler_history history = { .tokens = r->tokens, .n = r->seq.n_tokens, .n_prompt = r->n_prompt };
	struct sampler_result token;
	int32_t previous = r->tokens[r->seq.n_tokens - 1];

	if (sampler_sample(em->sampler, &r->params.sampling, &r->rng, logits, &history, &token)) {
		engine_fail(e, r, SINK_ERROR_INTERNAL, "no token can follow: none has a finite logit");
		return;
	}
	if (request_append_token(r, token.id) ||
	    output_token(&r->output, em->tokenizer, previous, &token, note_time(r))) {
		engine_fail(e, r, SINK_ERROR_NO_MEMORY, "out of memory");
		return;
	}
	e->stats.generated_tokens++;
	em->stats.generated_tokens++;
	if (e->no_cache)
		r->seq.n_computed = 0;
	r->ending = ending(r, token.id);
	engine_deliver(e, r);
}

static const float *logits_of(const struct engine *e, const struct engine_model *em, uint32_t i)
{
	return e->be->ops->step_logits(em->ws) + (size_t)i * em->n_vocab;
}

/* The log-probabilities of prompt tokens that the step has made known; the first token has none. */
static void note_prompt(const struct engine *e, const struct step_entry *entry)
{
	struct engine_request *r = entry->request;
	struct engine_model *em = r->model;
	struct sampler_result token = { .id = r->tokens[0], .logprob = NAN };

	if (!r->next_prompt && r->params.prompt_logprobs)
		request_note_prompt(r, &token);
	for (uint32_t i = 0; i < entry->n_prompt_logits; i++) {
		sampler_score(em->sampler, logits_of(e, em, entry->first_logits + i), r->tokens[r->next_prompt],
			      r->params.prompt_alternatives, &token);
		request_note_prompt(r, &token);
	}
}

/* The hidden states that the step has made known; with the last one the vector is there. */
static void pool_hidden(const struct engine *e, const struct step_entry *entry)
{
	struct engine_request *r = entry->request;
	uint32_t n_embd = r->model->n_embd;

	for (uint32_t i = 0; i < entry->n_hidden; i++)
		pooling_add(&r->pooling, e->be->ops->step_hidden(r->model->ws) +
						 (size_t)(entry->first_hidden + i) * n_embd);
	if (entry->n_hidden && r->pooling.next == r->pooling.end)
		output_embedding(&r->output, pooling_result(&r->pooling), n_embd);
}

/* The step has computed the entry's rows. */
static void advance(struct engine *e, const struct step_entry *entry)
{
	struct engine_request *r = entry->request;
	struct engine_model *em = r->model;
	uint32_t prompt_rows = 0;

	if (r->seq.n_computed < r->n_prompt)
		prompt_rows = MIN(r->seq.n_rows, r->n_prompt - r->seq.n_computed);
	e->stats.prompt_tokens += prompt_rows;
	em->stats.prompt_tokens += prompt_rows;
	r->seq.n_computed += r->seq.n_rows;
	engine_prefix_enter(r);
	engine_disk_write(r);
	if (atomic_load(&r->cancel)) {
		engine_finish(e, r, SINK_FINISH_CANCELLED);
		return;
	}
	if (r->params.pin && !r->pinned && r->seq.n_computed >= r->n_prompt) {
		const char *why = engine_prefix_pin(r);

		if (why) {
			engine_fail(e, r, SINK_ERROR_QUOTA, why);
			return;
		}
	}
	if (prompt_rows && r->params.progress && !r->n_generated) {
		engine_progress(e, r);
		if (!r->seq.share)	/* its reader is gone */
			return;
	}
	note_prompt(e, entry);
	pool_hidden(e, entry);
	if (entry->generates) {
		generate(e, r, logits_of(e, em, entry->first_logits + entry->n_prompt_logits));
		return;
	}
	if (r->seq.n_computed == r->seq.n_tokens)
		r->ending = SINK_FINISH_LENGTH;
	if (r->ending || output_pending(&r->output))
		engine_deliver(e, r);
}

static void fail_batch(struct engine *e, const struct kb_batch *b, int err)
{
	enum sink_error code = err == -ENOMEM ? SINK_ERROR_NO_MEMORY : SINK_ERROR_INTERNAL;

	for (uint32_t i = 0; i < b->n_seqs; i++)
		engine_fail(e, e->entries[i].request, code, "the model's step failed");
}

/* Rows of the step. */
static uint32_t plan(struct engine *e, struct engine_model *em)
{
	uint32_t position;

	em->n_decode = scheduler_plan_decode(&e->sched, &em->sched);
	if (!scheduler_prefills(&em->sched, &position))
		return em->n_decode;
	return em->n_decode + scheduler_plan_prefill(&e->sched, &em->sched, engine_gap_tokens(e, em, position));
}

void engine_step(struct engine *e, struct engine_model *em)
{
	struct kb_batch batch;
	int err;

	engine_provide_blocks(e, em);
	if (!plan(e, em))
		return;
	build_batch(e, em, &batch);
	err = run_batch(e, em, &batch);
	if (err) {
		fail_batch(e, &batch, err);
		return;
	}
	for (uint32_t i = 0; i < batch.n_seqs; i++) {
		engine_mass_take(e->entries[i].request, &e->seqs[i]);
		advance(e, &e->entries[i]);
	}
}
