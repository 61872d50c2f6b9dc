/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/lane.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/cache/pool.h"
#include "ipc/base/account.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"

struct sequence {
	uint32_t n_tokens;
	uint32_t n_blocks;
	uint32_t *blocks;	/* [blocks_per_seq] */
	struct kb_open *open;	/* NULL: the type has none */
};

struct lane {
	struct subject *subject;
	struct lane_options options;
	struct accounts *accounts;
	struct pool *pool;
	struct pool_root *root;
	struct kb_workspace *ws;
	uint32_t blocks_per_seq;
	uint32_t max_rows, max_logits;
	uint32_t random;
	struct sequence *seqs;	/* [options.n_seqs] */
	/* A step's arrays. */
	int32_t *tokens;
	struct kb_seq *parts;
	uint32_t *logit_rows;
};

static void round_options(const struct subject *s, struct lane_options *o)
{
	if (o->kv_type == KB_KV_Q4)
		o->block_tokens = KB_Q4_BLOCK_TOKENS;
	o->n_ctx = MIN(o->n_ctx, model_n_ctx(s->model));
	if (!o->n_blocks)
		o->n_blocks = o->n_seqs * ((o->n_ctx + o->block_tokens - 1) / o->block_tokens);
	if (!o->n_logits)
		o->n_logits = o->n_seqs;
}

/* Room to spare, since a chunk's tail may not hold a block. */
static uint64_t pool_bytes(const struct kb_geometry *g, uint32_t n_blocks)
{
	uint64_t bytes;

	if (!checked_mul_u64(g->block_bytes, n_blocks, &bytes) ||
	    !checked_add_u64(bytes, bytes / 8 + (64u << 20), &bytes))
		return 0;
	return bytes;
}

uint64_t lane_bytes_for(const struct subject *s, const struct lane_options *options)
{
	struct lane_options o = *options;
	struct kb_geometry g;

	round_options(s, &o);
	model_geometry(s->model, o.kv_type, o.block_tokens, &g);
	return pool_bytes(&g, o.n_blocks) + o.n_seqs * kb_open_bytes(&g);
}

static int open_pool(struct lane *l)
{
	struct account_limits limits;
	struct kb_geometry g;
	uint64_t bytes;
	int r;

	for (int i = 0; i < ACCOUNT_N_KINDS; i++)
		limits.max[i] = UINT64_MAX;
	r = accounts_new(&l->accounts, &limits);
	if (r < 0)
		return r;
	model_geometry(l->subject->model, l->options.kv_type, l->options.block_tokens, &g);
	bytes = pool_bytes(&g, l->options.n_blocks);
	if (!bytes)
		return -EINVAL;
	r = pool_new(&l->pool, l->subject->be, l->accounts, bytes, pool_chunk_bytes_for(g.block_bytes, bytes));
	if (r)
		return r < 0 ? r : -ENOMEM;
	return pool_root_new(&l->root, l->pool, &g);
}

static int open_workspace(struct lane *l)
{
	struct kb_workspace_desc d;

	l->max_rows = MAX(l->options.chunk, l->options.n_seqs);
	l->max_logits = l->options.n_logits;
	model_workspace_desc(l->subject->model, &d);
	d.max_rows = l->max_rows;
	d.max_logits = l->max_logits;
	return l->subject->be->ops->workspace_new(l->subject->be, &d, &l->ws);
}

static int open_sequences(struct lane *l)
{
	const struct kb_ops *ops = l->subject->be->ops;
	const struct kb_geometry *g = pool_root_geometry(l->root);
	uint32_t n = l->options.n_seqs;
	int r = 0;

	l->blocks_per_seq = (l->options.n_ctx + g->block_tokens - 1) / g->block_tokens;
	l->seqs = calloc(n, sizeof(*l->seqs));
	l->tokens = calloc(l->max_rows, sizeof(*l->tokens));
	l->parts = calloc(n, sizeof(*l->parts));
	l->logit_rows = calloc(l->max_logits, sizeof(*l->logit_rows));
	if (!l->seqs || !l->tokens || !l->parts || !l->logit_rows)
		return -ENOMEM;
	if (kb_open_bytes(g) && !ops->open_new)
		return -ENOTSUP;
	for (uint32_t i = 0; i < n && !r; i++) {
		l->seqs[i].blocks = calloc(l->blocks_per_seq, sizeof(uint32_t));
		if (!l->seqs[i].blocks)
			return -ENOMEM;
		if (kb_open_bytes(g))
			r = ops->open_new(l->subject->be, g, &l->seqs[i].open);
	}
	return r;
}

int lane_open(struct lane **out, struct subject *s, const struct lane_options *options)
{
	_cleanup_(lane_closep) struct lane *l = calloc(1, sizeof(*l));
	int r;

	if (!l)
		return -ENOMEM;
	l->subject = s;
	l->options = *options;
	round_options(s, &l->options);
	r = open_pool(l);
	if (!r)
		r = open_workspace(l);
	if (!r)
		r = open_sequences(l);
	lane_reset(l);
	/* A type that the backend lacks is refused by the first step at the latest. */
	if (!r)
		r = lane_prefill(l, 0, 1);
	if (r)
		return r;
	lane_reset(l);
	*out = steal_ptr(l);
	return 0;
}

static void free_sequences(struct lane *l)
{
	if (!l->seqs)
		return;
	lane_reset(l);
	for (uint32_t i = 0; i < l->options.n_seqs; i++) {
		free(l->seqs[i].blocks);
		if (l->seqs[i].open)
			l->subject->be->ops->open_free(l->subject->be, l->seqs[i].open);
	}
	free(l->seqs);
}

void lane_close(struct lane *l)
{
	if (!l)
		return;
	free_sequences(l);
	free(l->tokens);
	free(l->parts);
	free(l->logit_rows);
	if (l->ws)
		l->subject->be->ops->workspace_free(l->subject->be, l->ws);
	pool_root_freep(&l->root);
	pool_freep(&l->pool);
	if (l->accounts)
		accounts_free(l->accounts);
	free(l);
}

uint32_t lane_block_tokens(const struct lane *l)
{
	return l->options.block_tokens;
}

uint32_t lane_n_tokens(const struct lane *l, uint32_t seq)
{
	return l->seqs[seq].n_tokens;
}

uint64_t lane_kv_bytes(const struct lane *l, uint32_t seq)
{
	const struct kb_geometry *g = pool_root_geometry(l->root);
	const struct sequence *s = &l->seqs[seq];

	/* Of an open block both its place in the pool and its F16 are taken. */
	return s->n_blocks * g->block_bytes + kb_open_bytes(g);
}

uint64_t lane_workspace_bytes(const struct lane *l)
{
	return l->subject->be->ops->workspace_bytes(l->ws);
}

uint64_t lane_step_bytes(const struct lane *l, uint32_t n, uint32_t context)
{
	const struct kb_geometry *g = pool_root_geometry(l->root);

	return model_info(l->subject->model)->weight_bytes +
	       (uint64_t)((double)n * context * (double)g->block_bytes / g->block_tokens);
}

void lane_forget(struct lane *l, uint32_t seq)
{
	struct sequence *s = &l->seqs[seq];

	while (s->n_blocks)
		pool_block_unref(l->root, s->blocks[--s->n_blocks]);
	s->n_tokens = 0;
}

void lane_reset(struct lane *l)
{
	for (uint32_t i = 0; l->seqs && i < l->options.n_seqs; i++)
		lane_forget(l, i);
	l->random = 1;
}

int lane_fork(struct lane *l, uint32_t dst, uint32_t src, uint32_t n)
{
	const struct sequence *from = &l->seqs[src];
	struct sequence *to = &l->seqs[dst];

	if (dst == src || n > from->n_tokens || n % l->options.block_tokens)
		return -EINVAL;
	lane_forget(l, dst);
	for (; to->n_blocks < n / l->options.block_tokens; to->n_blocks++) {
		to->blocks[to->n_blocks] = from->blocks[to->n_blocks];
		pool_block_ref(l->root, to->blocks[to->n_blocks]);
	}
	to->n_tokens = n;
	return 0;
}

/* The same ones in every round. */
static int32_t next_token(struct lane *l)
{
	l->random = l->random * 1664525u + 1013904223u;	/* Numerical Recipes, section 7.1 */
	return (int32_t)((l->random >> 8) % model_info(l->subject->model)->n_vocab);
}

/* Gives sequence i room for n more tokens and makes it part of the step; logits of its last row. */
static int add_part(struct lane *l, struct kb_batch *batch, uint32_t i, uint32_t n)
{
	struct sequence *s = &l->seqs[i];
	uint32_t end = s->n_tokens + n;

	if (end > l->options.n_ctx)
		return -ENOSPC;
	while ((uint64_t)s->n_blocks * l->options.block_tokens < end) {
		if (pool_block_get(l->root, getuid(), &s->blocks[s->n_blocks]))
			return -ENOSPC;
		s->n_blocks++;
	}
	l->parts[batch->n_seqs++] = (struct kb_seq){
		.first_row = batch->n_rows,
		.n_rows = n,
		.first_pos = s->n_tokens,
		.n_blocks = s->n_blocks,
		.block_table = s->blocks,
		.open = s->open,
	};
	for (uint32_t k = 0; k < n; k++)
		l->tokens[batch->n_rows++] = next_token(l);
	l->logit_rows[batch->n_logits++] = batch->n_rows - 1;
	s->n_tokens = end;
	return 0;
}

static struct kb_batch empty_batch(struct lane *l)
{
	return (struct kb_batch){
		.tokens = l->tokens,
		.seqs = l->parts,
		.logit_rows = l->logit_rows,
		.pool = pool_device(l->pool),
		.geometry = pool_root_geometry(l->root),
	};
}

static int run_step(struct lane *l, const struct kb_batch *batch)
{
	int r = model_step(l->subject->model, l->ws, batch);

	return r < 0 ? r : l->subject->be->ops->step_wait(l->ws);
}

int lane_prefill(struct lane *l, uint32_t seq, uint32_t n)
{
	while (n) {
		uint32_t now = MIN(n, l->options.chunk);
		struct kb_batch batch = empty_batch(l);
		int r = add_part(l, &batch, seq, now);

		n -= now;
		if (n)
			batch.n_logits = 0;
		if (!r)
			r = run_step(l, &batch);
		if (r < 0)
			return r;
	}
	return 0;
}

int lane_decode(struct lane *l, uint32_t first, uint32_t n_seqs, uint32_t n, double *ns)
{
	for (uint32_t k = 0; k < n; k++) {
		struct kb_batch batch = empty_batch(l);
		uint64_t start = clock_ns();
		int r = 0;

		for (uint32_t i = 0; i < n_seqs && !r; i++)
			r = add_part(l, &batch, first + i, 1);
		if (!r)
			r = run_step(l, &batch);
		if (r < 0)
			return r;
		if (ns)
			ns[k] = (double)(clock_ns() - start);
	}
	return 0;
}

static void add_score(struct lane_scores *s, const float *logits, uint32_t n, int32_t token)
{
	uint32_t best = 0;
	double sum = 0;

	for (uint32_t i = 1; i < n; i++)
		best = logits[i] > logits[best] ? i : best;
	for (uint32_t i = 0; i < n; i++)
		sum += exp((double)logits[i] - (double)logits[best]);
	s->sum += (double)logits[token] - (double)logits[best] - log(sum);
	s->likeliest[s->n++] = (int32_t)best;
}

/* One step of ids[at..at + n), with logits of the rows whose next token counts. */
static int score_step(struct lane *l, const int32_t *ids, uint32_t at, uint32_t n, uint32_t from, uint32_t end,
		      struct lane_scores *scores)
{
	uint32_t n_vocab = model_info(l->subject->model)->n_vocab;
	struct kb_batch batch = empty_batch(l);
	const float *logits;
	int r = add_part(l, &batch, 0, n);

	if (r)
		return r;
	memcpy(l->tokens, ids + at, n * sizeof(*ids));
	batch.n_logits = 0;
	for (uint32_t i = 0; i < n; i++)
		if (at + i + 1 >= from && at + i + 1 < end)
			l->logit_rows[batch.n_logits++] = i;
	r = run_step(l, &batch);
	if (r < 0)
		return r;
	logits = l->subject->be->ops->step_logits(l->ws);
	if (batch.n_logits > scores->room - scores->n)
		return -ENOSPC;
	for (uint32_t i = 0; i < batch.n_logits; i++)
		add_score(scores, logits + (size_t)i * n_vocab, n_vocab, ids[at + l->logit_rows[i] + 1]);
	return 0;
}

int lane_score(struct lane *l, const int32_t *ids, uint32_t n, uint32_t from, struct lane_scores *scores)
{
	uint32_t step = MIN(l->options.chunk, l->max_logits);
	int r = 0;

	lane_forget(l, 0);
	for (uint32_t at = 0; at < n && !r;) {
		uint32_t now = at + 1 < from ? MIN(l->options.chunk, from - 1 - at) : step;

		now = MIN(now, n - at);
		r = score_step(l, ids, at, now, from, n, scores);
		at += now;
	}
	return r;
}
