/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/block-size.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

#define MAX_CONTEXT 2048u
#define POOL_BYTES (UINT64_C(32) << 20)	/* about: beyond most caches, as all layers together are */
#define PAGE_BYTES (UINT64_C(2) << 20)
#define DEFAULT 1u			/* of `sizes` */

static const uint32_t sizes[BLOCK_SIZE_N] = { 16, BLOCK_SIZE_DEFAULT, 64 };
static const uint32_t contexts[] = { 500, 1000, MAX_CONTEXT };
static const uint8_t orders[BLOCK_SIZE_ROUNDS_MIN][BLOCK_SIZE_N] = {
	{ 0, 1, 2 }, { 2, 1, 0 }, { 1, 0, 2 }, { 2, 0, 1 }, { 0, 2, 1 }, { 1, 2, 0 },
};

const char *block_size_origin_name(enum block_size_origin origin)
{
	static const char *const names[] = { "given", "default", "kept", "measured" };

	return names[origin];
}

static int compare_u32(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

uint32_t block_size_percent(const struct block_size_times *t, uint32_t i)
{
	uint32_t percents[BLOCK_SIZE_ROUNDS] = { 0 };

	for (uint32_t r = 0; r < t->n_rounds; r++) {
		double percent = 100.0 * (double)t->ns[r][i] / (double)t->ns[r][DEFAULT];

		percents[r] = (uint32_t)MIN(percent + 0.5, (double)UINT32_MAX);
	}
	qsort(percents, t->n_rounds, sizeof(*percents), compare_u32);
	return percents[t->n_rounds / 2];
}

static bool is_faster(const struct block_size_times *t, uint32_t i)
{
	uint32_t n = 0;

	for (uint32_t r = 0; r < t->n_rounds; r++)
		n += (double)t->ns[r][i] * 100 < (double)t->ns[r][DEFAULT] * (100 - BLOCK_SIZE_GAIN);
	return t->n_rounds && n * 4 >= t->n_rounds * 3;
}

uint32_t block_size_pick(const struct block_size_times *t)
{
	uint32_t best = DEFAULT, least = 100;

	for (uint32_t i = 0; i < BLOCK_SIZE_N; i++) {
		if (i == DEFAULT || !is_faster(t, i) || block_size_percent(t, i) >= least)
			continue;
		best = i;
		least = block_size_percent(t, i);
	}
	return sizes[best];
}

int block_size_run(block_size_step_fn step, void *arg, struct block_size_times *out)
{
	struct block_size_times t = { 0 };
	uint64_t ns = 0, sum = 0;
	/* All memory is touched once. */
	int r = step(arg, DEFAULT, MAX_CONTEXT, &ns);

	for (; !r && t.n_rounds < BLOCK_SIZE_ROUNDS; t.n_rounds++) {
		if (t.n_rounds >= BLOCK_SIZE_ROUNDS_MIN && sum / t.n_rounds * (t.n_rounds + 1) > BLOCK_SIZE_BUDGET_NS)
			break;
		for (uint32_t k = 0; k < ARRAY_SIZE(contexts) * BLOCK_SIZE_N && !r; k++) {
			uint32_t c = k / BLOCK_SIZE_N;
			uint32_t i = orders[(t.n_rounds + c) % ARRAY_SIZE(orders)][k % BLOCK_SIZE_N];

			r = step(arg, i, contexts[c], &ns);
			t.ns[t.n_rounds][i] += ns;
			sum += ns;
		}
	}
	if (!r)
		*out = t;
	return r;
}

struct measurement {
	struct kb_backend *be;
	uint32_t n_layers, n_heads;
	struct kb_geometry geometry[BLOCK_SIZE_N];
	int fd;
	struct kb_pool *pool;
	struct kb_workspace *ws;
	uint32_t table[MAX_CONTEXT / 16];
};

static void measurement_deinit(struct measurement *m)
{
	if (m->ws)
		m->be->ops->workspace_free(m->be, m->ws);
	if (m->pool)
		m->be->ops->pool_free(m->be, m->pool);
	fd_closep(&m->fd);
}

/* As many layers as the pool has room for, at least one; one chunk, in which each size has all the same bytes. */
static int open_pool(struct measurement *m, const struct model_info *info, enum kb_kv_type type)
{
	struct kb_geometry g = { .n_layers = 1, .n_kv_heads = info->n_kv_heads, .head_dim = info->head_dim,
				 .block_tokens = MAX_CONTEXT, .kv_type = type };
	uint64_t layer = kb_block_bytes(&g), bytes;

	if (!layer || !checked_align_u64(layer, PAGE_BYTES, &bytes))
		return -EINVAL;
	m->n_layers = (uint32_t)MIN(MAX(POOL_BYTES / layer, UINT64_C(1)), (uint64_t)info->n_layers);
	if (!checked_mul_u64(layer, m->n_layers, &bytes) || !checked_align_u64(bytes, PAGE_BYTES, &bytes))
		return -EINVAL;
	for (uint32_t i = 0; i < BLOCK_SIZE_N; i++) {
		g.n_layers = m->n_layers;
		g.block_tokens = sizes[i];
		g.block_bytes = kb_block_bytes(&g);
		g.blocks_per_chunk = MAX_CONTEXT / sizes[i];
		g.chunk_bytes = bytes;
		m->geometry[i] = g;
	}
	m->fd = memfd_create("kvd-block-size", MFD_CLOEXEC);
	if (m->fd < 0)
		return -errno;
	/* Pages of its own, not the one page of zeros. */
	if (ftruncate(m->fd, (off_t)bytes) || fallocate(m->fd, 0, 0, (off_t)bytes))
		return -errno;
	return m->be->ops->pool_import(m->be, m->fd, bytes, &m->pool);
}

static int open_workspace(struct measurement *m, const struct model_info *info)
{
	const struct kb_workspace_desc d = {
		.max_rows = 1, .max_logits = 1, .n_embd = 32, .n_heads = info->n_heads,
		.n_kv_heads = info->n_kv_heads, .head_dim = info->head_dim, .n_ff = 32, .n_vocab = 1,
		.max_positions = MAX_CONTEXT,
	};

	m->n_heads = info->n_heads;
	return m->be->ops->workspace_new(m->be, &d, &m->ws);
}

static uint64_t thread_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

/* The attention of one token of a sequence, whose blocks lie in no order. */
static int step(void *arg, uint32_t size, uint32_t context, uint64_t *ns)
{
	struct measurement *m = arg;
	const struct kb_ops *ops = m->be->ops;
	const struct kb_geometry *g = &m->geometry[size];
	const int32_t token = 0;
	const struct kb_seq seq = {
		.n_rows = 1, .first_pos = context - 1, .block_table = m->table,
		.n_blocks = (context - 1) / g->block_tokens + 1,
	};
	const struct kb_batch batch = {
		.n_rows = 1, .tokens = &token, .n_seqs = 1, .seqs = &seq, .pool = m->pool, .geometry = g,
	};
	const struct kb_attention op = { .scale = 1.0f / sqrtf((float)g->head_dim) };
	uint32_t n = g->blocks_per_chunk;
	uint64_t begin;
	int r;

	for (uint32_t i = 0; i < n; i++)
		m->table[i] = (i * 5 + 3) % n;
	r = ops->step_begin(m->ws, &batch);
	for (uint32_t i = 0; i < m->n_layers && !r; i++)
		r = ops->attention(m->ws, i, &op);
	if (r)
		return r;
	begin = thread_ns();
	r = ops->step_submit(m->ws);
	if (!r)
		r = ops->step_wait(m->ws);
	*ns = MAX(thread_ns() - begin, UINT64_C(1));
	return r;
}

int block_size_measure(struct kb_backend *be, const struct model *model, enum kb_kv_type type,
		       struct block_size_times *out)
{
	_cleanup_(measurement_deinit) struct measurement m = { .be = be, .fd = -1 };
	int r = open_pool(&m, model_info(model), type);

	if (!r)
		r = open_workspace(&m, model_info(model));
	return r ? r : block_size_run(step, &m, out);
}
