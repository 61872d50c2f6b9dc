/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What measuring attention mass costs: the attention of one decoded token (all layers; with the merge of
 * segments, and a projection so small that it does not count), on one thread, with and without in turn.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "tests/bench/bench.h"

#define N_EMBD 32u
#define CHUNK_BYTES (UINT64_C(2) << 20)
#define PAIRS 8u	/* steps with and without in each round */

struct shape {
	const char *name;
	uint32_t n_layers, n_heads, n_kv_heads, head_dim;
	uint32_t window, full_every;	/* every so manieth layer has no window; 0: none has one */
};

static const struct shape shapes[] = {
	{ "SmolLM2-135M", 30, 9, 3, 64, 0, 0 },
	{ "Gemma 3 270M", 18, 4, 1, 256, 512, 6 },
};
static const uint32_t contexts[] = { 512, 2048, 8000 };
#define MAX_CONTEXT 8192u

struct mass {
	const struct shape *shape;
	struct kb_backend *be;
	struct kb_geometry geometry;
	int fd;
	struct kb_pool *pool;
	struct kb_workspace *ws;
	struct kb_tensor *wo;
	uint32_t table[MAX_CONTEXT / 16];
	float shares[MAX_CONTEXT / 16];
	struct series with, without, ratio;	/* ns; % */
};

static void mass_deinit(struct mass *m)
{
	if (m->ws)
		m->be->ops->workspace_free(m->be, m->ws);
	if (m->wo)
		m->be->ops->tensor_free(m->be, m->wo);
	if (m->pool)
		m->be->ops->pool_free(m->be, m->pool);
	fd_closep(&m->fd);
	if (m->be)
		m->be->ops->close(m->be);
}

/* Memory of its own for every block. */
static int open_pool(struct mass *m, uint32_t block_tokens)
{
	struct kb_geometry *g = &m->geometry;
	uint32_t n_blocks = MAX_CONTEXT / block_tokens;
	uint64_t bytes;
	int r;

	*g = (struct kb_geometry){
		.n_layers = m->shape->n_layers, .n_kv_heads = m->shape->n_kv_heads, .head_dim = m->shape->head_dim,
		.block_tokens = block_tokens, .blocks_per_chunk = 1,
	};
	g->block_bytes = kb_block_bytes(g);
	g->chunk_bytes = (g->block_bytes + CHUNK_BYTES - 1) / CHUNK_BYTES * CHUNK_BYTES;
	bytes = n_blocks * g->chunk_bytes;
	m->fd = memfd_create("kvd-bench-mass", MFD_CLOEXEC);
	if (m->fd < 0 || ftruncate(m->fd, (off_t)bytes))
		return -errno;
	r = m->be->ops->pool_import(m->be, m->fd, bytes, &m->pool);
	for (uint32_t i = 0; i < n_blocks; i++) {
		m->table[i] = n_blocks - 1 - i;
		/* One byte in each page, so that no two blocks are the same zeros. */
		for (uint64_t at = 0; !r && at < g->block_bytes; at += 4096)
			if (pwrite(m->fd, "", 1, (off_t)(i * g->chunk_bytes + at)) != 1)
				r = -errno;
	}
	return r;
}

static int open_rest(struct mass *m)
{
	uint32_t cols = m->shape->n_heads * m->shape->head_dim;
	struct kb_tensor_desc wo = { KB_F32, KB_USE_MATRIX, N_EMBD, cols };
	struct kb_workspace_desc d = {
		.max_rows = 1, .max_logits = 1, .n_embd = N_EMBD, .n_heads = m->shape->n_heads,
		.n_kv_heads = m->shape->n_kv_heads, .head_dim = m->shape->head_dim, .n_ff = 32, .n_vocab = 1,
		.max_positions = MAX_CONTEXT,
	};
	_cleanup_(freep) float *zeros = calloc((size_t)N_EMBD * cols, sizeof(*zeros));
	int r = zeros ? m->be->ops->tensor_new(m->be, &wo, &m->wo) : -ENOMEM;

	if (!r)
		r = m->be->ops->tensor_fill(m->be, m->wo, 0, N_EMBD, zeros);
	if (!r)
		r = m->be->ops->workspace_new(m->be, &d, &m->ws);
	return r;
}

static int step(struct mass *m, uint32_t context, float *shares, double *ns)
{
	const struct kb_ops *ops = m->be->ops;
	const int32_t token = 0;
	const struct kb_seq seq = {
		.n_rows = 1, .first_pos = context - 1, .block_table = m->table, .mass = shares,
		.n_blocks = (context - 1) / m->geometry.block_tokens + 1,
	};
	const struct kb_batch batch = {
		.n_rows = 1, .tokens = &token, .n_seqs = 1, .seqs = &seq, .pool = m->pool, .geometry = &m->geometry,
	};
	const struct kb_attn_out out = { .wo = m->wo };
	int r = ops->step_begin(m->ws, &batch);
	struct timespec a, b;

	for (uint32_t i = 0; i < m->shape->n_layers && !r; i++) {
		bool full = !m->shape->full_every || (i + 1) % m->shape->full_every == 0;
		const struct kb_attention op = { .scale = 0.125f, .window = full ? 0 : m->shape->window };

		r = ops->attention(m->ws, i, &op);
		if (!r)
			r = ops->attn_out(m->ws, &out);
	}
	if (r)
		return r;
	/* Of this thread, so that others on the machine disturb less. */
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
	r = ops->step_submit(m->ws);
	if (!r)
		r = ops->step_wait(m->ws);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
	*ns = (double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec);
	return r;
}

/* Each neighbour of the other kind goes first as often as it goes second. */
static int measure(struct mass *m, uint32_t context, uint32_t reps)
{
	double ns[2] = { 0 };
	int r = step(m, context, m->shares, &ns[0]);

	m->with.n = m->without.n = m->ratio.n = 0;
	for (uint32_t i = 0; i < reps && !r; i++) {
		double sum[2] = { 0 };

		for (uint32_t k = 0; k < 2 * PAIRS && !r; k++) {
			bool with = (k + k / 2) % 2;

			r = step(m, context, with ? m->shares : NULL, &ns[with]);
			sum[with] += ns[with];
		}
		series_add(&m->without, sum[0] / PAIRS);
		series_add(&m->with, sum[1] / PAIRS);
		series_add(&m->ratio, 100 * (sum[1] / sum[0] - 1));
	}
	return r;
}

static int run_shape(FILE *out, const char *level, uint32_t block_tokens, uint32_t reps, const struct shape *shape)
{
	_cleanup_(mass_deinit) struct mass m = { .shape = shape, .fd = -1 };
	struct kb_cpu_options options = { 1, level };
	int r = kb_cpu_open(&options, &m.be);

	if (!r)
		r = open_pool(&m, block_tokens);
	if (!r)
		r = open_rest(&m);
	for (size_t i = 0; i < ARRAY_SIZE(contexts) && !r; i++) {
		double least, most;

		r = measure(&m, contexts[i], reps);
		series_range(&m.ratio, &least, &most);
		fprintf(out, "%-14s %8u %12.1f %12.1f %9.2f (%.2f to %.2f)\n", shape->name, contexts[i],
			series_median(&m.without) / 1e3, series_median(&m.with) / 1e3, series_median(&m.ratio),
			least, most);
	}
	return r;
}

int mass_run(FILE *out, const char *level, uint32_t block_tokens, uint32_t reps)
{
	int r = 0;

	fprintf(out, "attention of one token, one thread, CPU time, blocks of %u: median of %u\n", block_tokens, reps);
	fprintf(out, "%-14s %8s %12s %12s %9s\n", "shape", "context", "without, us", "with, us", "more, %");
	for (size_t i = 0; i < ARRAY_SIZE(shapes) && !r; i++)
		r = run_shape(out, level, block_tokens, reps, &shapes[i]);
	return r;
}
