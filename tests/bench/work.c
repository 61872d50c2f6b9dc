/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/cache/pool.h"
#include "ipc/base/account.h"
#include "ipc/base/checked.h"
#include "ipc/base/fd.h"
#include "tests/bench/bench.h"

struct sequence {
	uint32_t n_tokens;
	uint32_t n_blocks;
	uint32_t *blocks;	/* [blocks_per_seq] */
};

struct bench {
	struct bench_options options;
	struct accounts *accounts;
	struct kb_backend *be;
	struct model *model;
	struct pool *pool;
	struct pool_root *root;
	struct kb_workspace *ws;
	uint32_t blocks_per_seq;
	uint32_t max_rows;
	uint32_t random;
	struct sequence *seqs;	/* [options.n_seqs] */
	/* A step's arrays. */
	int32_t *tokens;
	struct kb_seq *parts;
	uint32_t *logit_rows;
};

static int open_model(struct bench *b, struct diag *diag)
{
	const struct model_options mo = { .n_ctx = b->options.n_ctx };
	_cleanup_(fd_closep) int fd = open(b->options.model_path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return diag_set(diag, -errno, "%s: %s", b->options.model_path, strerror(errno));
	return model_load(&b->model, b->be, fd, b->options.model_path, &mo, diag);
}

static int open_pool(struct bench *b)
{
	struct account_limits limits;
	struct kb_geometry g;
	uint64_t bytes, chunk;
	int r;

	for (int i = 0; i < ACCOUNT_N_KINDS; i++)
		limits.max[i] = UINT64_MAX;
	r = accounts_new(&b->accounts, &limits);
	if (r < 0)
		return r;
	model_geometry(b->model, KB_KV_F16, b->options.block_tokens, &g);
	b->blocks_per_seq = (b->options.n_ctx + b->options.block_tokens - 1) / b->options.block_tokens;
	/* Room to spare, since a chunk's tail may not hold a block. */
	if (!checked_mul_u64(g.block_bytes, b->blocks_per_seq, &bytes) ||
	    !checked_mul_u64(bytes, b->options.n_seqs, &bytes) ||
	    !checked_add_u64(bytes, bytes / 8 + (64u << 20), &bytes))
		return -EINVAL;
	chunk = pool_chunk_bytes_for(g.block_bytes, bytes);
	r = pool_new(&b->pool, b->be, b->accounts, bytes, chunk);
	if (r < 0)
		return r;
	return pool_root_new(&b->root, b->pool, &g);
}

static int open_workspace(struct bench *b)
{
	struct kb_workspace_desc d;

	b->max_rows = MAX(b->options.chunk, b->options.n_seqs);
	model_workspace_desc(b->model, &d);
	d.max_rows = b->max_rows;
	d.max_logits = b->options.n_seqs;
	return b->be->ops->workspace_new(b->be, &d, &b->ws);
}

static int open_sequences(struct bench *b)
{
	b->seqs = calloc(b->options.n_seqs, sizeof(*b->seqs));
	b->tokens = calloc(b->max_rows, sizeof(*b->tokens));
	b->parts = calloc(b->options.n_seqs, sizeof(*b->parts));
	b->logit_rows = calloc(b->options.n_seqs, sizeof(*b->logit_rows));
	if (!b->seqs || !b->tokens || !b->parts || !b->logit_rows)
		return -ENOMEM;
	for (uint32_t i = 0; i < b->options.n_seqs; i++) {
		b->seqs[i].blocks = calloc(b->blocks_per_seq, sizeof(uint32_t));
		if (!b->seqs[i].blocks)
			return -ENOMEM;
	}
	return 0;
}

CLEANUP_DEFINE(struct bench, bench_close)

int bench_open(struct bench **out, const struct bench_options *options, struct diag *diag)
{
	const struct kb_cpu_options co = { .n_threads = options->n_threads, .level = options->level };
	_cleanup_(bench_closep) struct bench *b = calloc(1, sizeof(*b));
	int r;

	if (!b)
		return -ENOMEM;
	b->options = *options;
	r = kb_cpu_open(&co, &b->be);
	if (r < 0)
		return diag_set(diag, r, "the CPU backend at level %s: %s",
				options->level ? options->level : "best", strerror(-r));
	r = open_model(b, diag);
	if (r < 0)
		return r;
	b->options.n_ctx = model_n_ctx(b->model);
	r = open_pool(b);
	if (r)
		return diag_set(diag, r < 0 ? r : -ENOMEM, "the pool: %s", strerror(r < 0 ? -r : ENOMEM));
	r = open_workspace(b);
	if (r < 0)
		return diag_set(diag, r, "the workspace: %s", strerror(-r));
	r = open_sequences(b);
	if (r < 0)
		return r;
	*out = steal_ptr(b);
	return 0;
}

void bench_close(struct bench *b)
{
	if (!b)
		return;
	if (b->seqs) {
		bench_reset(b);
		for (uint32_t i = 0; i < b->options.n_seqs; i++)
			free(b->seqs[i].blocks);
	}
	free(b->seqs);
	free(b->tokens);
	free(b->parts);
	free(b->logit_rows);
	if (b->ws)
		b->be->ops->workspace_free(b->be, b->ws);
	pool_root_freep(&b->root);
	pool_freep(&b->pool);
	model_freep(&b->model);
	if (b->be)
		b->be->ops->close(b->be);
	if (b->accounts)
		accounts_free(b->accounts);
	free(b);
}

const struct model_info *bench_model_info(const struct bench *b)
{
	return model_info(b->model);
}

uint32_t bench_n_ctx(const struct bench *b)
{
	return b->options.n_ctx;
}

struct kb_backend *bench_backend(const struct bench *b)
{
	return b->be;
}

void bench_reset(struct bench *b)
{
	for (uint32_t i = 0; i < b->options.n_seqs; i++) {
		struct sequence *s = &b->seqs[i];

		while (s->n_blocks)
			pool_block_unref(b->root, s->blocks[--s->n_blocks]);
		s->n_tokens = 0;
	}
	b->random = 1;
}

/* The work does not depend on which tokens they are; the same ones in every round. */
static int32_t next_token(struct bench *b)
{
	b->random = b->random * 1664525u + 1013904223u;	/* Numerical Recipes, section 7.1 */
	return (int32_t)((b->random >> 8) % model_info(b->model)->n_vocab);
}

/* Gives sequence i room for n more tokens and makes it part `part` of the step. */
static int add_part(struct bench *b, struct kb_batch *batch, uint32_t i, uint32_t n)
{
	struct sequence *s = &b->seqs[i];
	uint32_t end = s->n_tokens + n;

	if (end > b->options.n_ctx)
		return -ENOSPC;
	while ((uint64_t)s->n_blocks * b->options.block_tokens < end) {
		if (pool_block_get(b->root, getuid(), &s->blocks[s->n_blocks]))
			return -ENOSPC;
		s->n_blocks++;
	}
	b->parts[batch->n_seqs++] = (struct kb_seq){
		.first_row = batch->n_rows,
		.n_rows = n,
		.first_pos = s->n_tokens,
		.n_blocks = s->n_blocks,
		.block_table = s->blocks,
	};
	for (uint32_t k = 0; k < n; k++)
		b->tokens[batch->n_rows++] = next_token(b);
	b->logit_rows[batch->n_logits++] = batch->n_rows - 1;
	s->n_tokens = end;
	return 0;
}

static struct kb_batch empty_batch(struct bench *b)
{
	return (struct kb_batch){
		.tokens = b->tokens,
		.seqs = b->parts,
		.logit_rows = b->logit_rows,
		.pool = pool_device(b->pool),
		.geometry = pool_root_geometry(b->root),
	};
}

static int run_step(struct bench *b, const struct kb_batch *batch)
{
	int r = model_step(b->model, b->ws, batch);

	return r < 0 ? r : b->be->ops->step_wait(b->ws);
}

int bench_prefill(struct bench *b, uint32_t n)
{
	while (n) {
		uint32_t now = MIN(n, b->options.chunk);
		struct kb_batch batch = empty_batch(b);
		int r = add_part(b, &batch, 0, now);

		n -= now;
		if (n)
			batch.n_logits = 0;
		if (!r)
			r = run_step(b, &batch);
		if (r < 0)
			return r;
	}
	return 0;
}

int bench_decode(struct bench *b, uint32_t n_seqs, uint32_t n)
{
	for (uint32_t k = 0; k < n; k++) {
		struct kb_batch batch = empty_batch(b);
		int r = 0;

		for (uint32_t i = 0; i < n_seqs && !r; i++)
			r = add_part(b, &batch, i, 1);
		if (!r)
			r = run_step(b, &batch);
		if (r < 0)
			return r;
	}
	return 0;
}

uint64_t bench_step_bytes(const struct bench *b, uint32_t n_seqs, uint32_t context)
{
	const struct kb_geometry *g = pool_root_geometry(b->root);

	return model_info(b->model)->weight_bytes + (uint64_t)n_seqs * context * (g->block_bytes / g->block_tokens);
}
