/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/request.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/engine-private.h"
#include "ipc/base/checked.h"

static int copy_bias(struct engine_request *r, const struct sampler_params *from)
{
	struct sampler_bias *bias;

	r->params.sampling.bias = NULL;
	if (!from->n_bias)
		return 0;
	bias = calloc(from->n_bias, sizeof(*bias));
	if (!bias)
		return -ENOMEM;
	memcpy(bias, from->bias, from->n_bias * sizeof(*bias));
	r->params.sampling.bias = bias;
	return 0;
}

static int copy_name(char **out, const char *name)
{
	if (!name || !*name)
		return 0;
	if (strlen(name) > TREE_NAME_MAX)
		return -EINVAL;
	*out = strdup(name);
	return *out ? 0 : -ENOMEM;
}

static int copy_namespaces(struct engine_request *r, const struct engine_request_params *params)
{
	int err = params->n_also > ENGINE_ALSO_MAX ? -EINVAL : copy_name(&r->ns, params->ns);

	if (!r->ns)
		return err;
	if (!err)
		err = copy_name(&r->own, params->own);
	for (size_t i = 0; i < params->n_also && !err; i++)
		err = copy_name(&r->also[i], params->also[i]);
	return err;
}

static uint64_t names_bytes(const struct engine_request *r)
{
	uint64_t n = (r->ns ? strlen(r->ns) + 1 : 0) + (r->own ? strlen(r->own) + 1 : 0);

	for (size_t i = 0; i < ENGINE_ALSO_MAX && r->also[i]; i++)
		n += strlen(r->also[i]) + 1;
	return n;
}

/* A token's log-probability comes from the logits of the one before it. */
static void set_next_prompt(struct engine_request *r, uint32_t position)
{
	r->next_prompt = position;
	r->seq.logits_from = position ? position - 1 : 0;
	r->seq.logits_to = r->n_prompt - 1;
}

int engine_request_new(struct engine_request **out, struct engine_model *model, uint64_t client, uint64_t id,
		       uid_t uid, int32_t *prompt, size_t n_prompt,
		       const struct engine_request_params *params, struct sink *sink)
{
	struct engine_request *r;
	int err;

	if (!n_prompt || n_prompt > INT32_MAX)
		return -EINVAL;
	r = calloc(1, sizeof(*r));
	if (!r)
		return -ENOMEM;
	list_init(&r->link);
	r->model = model;
	r->client = client;
	r->id = id;
	r->uid = uid;
	r->sink = sink;
	r->params = *params;
	r->params.stop = NULL;
	r->params.n_stop = 0;
	r->params.ns = r->params.own = NULL;
	r->params.also = NULL;
	r->params.n_also = 0;
	r->params.prompt_alternatives = MIN(params->prompt_alternatives, ENGINE_PROMPT_ALTERNATIVES_MAX);
	if (params->pooling != ENGINE_POOLING_NONE) {
		r->params.max_tokens = 0;
		r->params.prompt_logprobs = false;
	}
	pooling_init(&r->pooling, params->pooling, (uint32_t)n_prompt);
	r->miss = SINK_MISS_NO_CACHE;
	err = copy_bias(r, &params->sampling);
	if (!err)
		err = copy_namespaces(r, params);
	if (err) {
		engine_request_free(r);
		return err;
	}
	err = output_init(&r->output, &(struct output_options){
		.stop = params->stop, .n_stop = params->n_stop,
		.n_logprobs = params->sampling.logprobs ? params->sampling.n_logprobs : 0,
		.prompts = r->params.prompt_logprobs, .n_prompt_tops = r->params.prompt_alternatives,
	});
	if (err) {
		engine_request_free(r);
		return err;
	}
	sampler_rng_init(&r->rng, params->sampling.seed);
	r->tokens = prompt;
	r->tokens_capacity = r->n_prompt = r->seq.n_tokens = (uint32_t)n_prompt;
	r->next_prompt = r->n_prompt;
	if (r->params.prompt_logprobs)
		set_next_prompt(r, MIN(params->prompt_logprobs_from, r->n_prompt));
	*out = r;
	return 0;
}

void engine_request_free(struct engine_request *r)
{
	if (!r)
		return;
	charge_deinit(&r->charge_request);
	charge_deinit(&r->charge_memory);
	output_deinit(&r->output);
	pooling_deinit(&r->pooling);
	free((void *)r->params.sampling.bias);
	free(r->ns);
	free(r->own);
	for (size_t i = 0; i < ENGINE_ALSO_MAX; i++)
		free(r->also[i]);
	free(r->blocks);
	free(r->mass);
	free(r->tokens);
	free(r);
}

void request_note_prompt(struct engine_request *r, const struct sampler_result *token)
{
	output_prompt(&r->output, r->next_prompt ? r->tokens[r->next_prompt - 1] : -1, r->next_prompt, token);
	set_next_prompt(r, r->next_prompt + 1);
}

uint64_t request_bound(struct engine_request *r)
{
	const struct engine_model *em = r->model;
	uint64_t n_tokens = MIN((uint64_t)r->n_prompt + r->params.max_tokens, (uint64_t)em->n_ctx);

	r->max_n_tokens = (uint32_t)MAX(n_tokens, (uint64_t)r->n_prompt);
	/* Room for one more is kept: see admission.c. */
	r->max_n_blocks = r->max_n_tokens / em->block_tokens + 1;
	return sizeof(*r) + names_bytes(r) + (uint64_t)r->max_n_tokens * sizeof(*r->tokens) +
	       (uint64_t)r->max_n_blocks * (sizeof(*r->blocks) + sizeof(*r->mass)) +
	       r->params.sampling.n_bias * sizeof(*r->params.sampling.bias) +
	       output_bound(&r->output, em->max_piece) + pooling_bound(&r->pooling, em->n_embd);
}

/* Grows an array of 32-bit elements geometrically, up to max, to hold at least n. */
static int reserve_u32(void **array, uint32_t *capacity, uint32_t n, uint32_t max)
{
	uint64_t larger = MIN((uint64_t)*capacity + *capacity / 2 + 16, (uint64_t)max);
	void *p;

	if (n <= *capacity)
		return 0;
	if (n > max)
		return -ENOMEM;
	larger = MAX(larger, (uint64_t)n);
	p = realloc(*array, larger * sizeof(uint32_t));
	if (!p)
		return -ENOMEM;
	*array = p;
	*capacity = (uint32_t)larger;
	return 0;
}

int request_append_token(struct engine_request *r, int32_t id)
{
	void *tokens = r->tokens;
	int err = reserve_u32(&tokens, &r->tokens_capacity, r->seq.n_tokens + 1, r->max_n_tokens);

	if (err)
		return err;
	r->tokens = tokens;
	r->tokens[r->seq.n_tokens++] = id;
	r->n_generated++;
	return 0;
}

int request_reserve_blocks(struct engine_request *r, uint32_t n)
{
	void *blocks = r->blocks;
	int err = reserve_u32(&blocks, &r->blocks_capacity, n, r->max_n_blocks);

	if (!err)
		r->blocks = blocks;
	return err;
}

int request_reserve_mass(struct engine_request *r, uint32_t n_blocks)
{
	void *mass = r->mass;
	int err = reserve_u32(&mass, &r->mass_capacity, n_blocks, r->max_n_blocks);

	if (!err)
		r->mass = mass;
	return err;
}

void request_usage(const struct engine_request *r, uint64_t now_ns, struct output_usage *out)
{
	uint64_t admit = r->admit_ns ? r->admit_ns : now_ns;
	uint64_t first = r->first_token_ns ? r->first_token_ns : now_ns;
	uint32_t missed = r->n_cached + r->n_same;

	*out = (struct output_usage){
		.prompt_tokens = r->n_prompt,
		.cached_tokens = r->n_cached,
		.miss = r->miss,
		.miss_token = missed < r->n_prompt ? r->tokens[missed] : -1,
		.generated_tokens = r->n_generated,
		.queue_ns = admit - r->submit_ns,
		.prefill_ns = first - admit,
		.decode_ns = now_ns - first,
	};
	if (out->miss_token >= 0) {
		int32_t previous = missed ? r->tokens[missed - 1] : -1;

		out->miss_bytes = tokenizer_bytes_after(r->model->tokenizer, previous, out->miss_token,
							&out->n_miss_bytes);
	}
}
