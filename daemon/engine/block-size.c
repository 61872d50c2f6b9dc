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
#define ROUNDS 16

static const uint32_t sizes[BLOCK_SIZE_N] = { 16, 32, 64 };
static const uint32_t contexts[] = { 500, 1000, MAX_CONTEXT };

const char *block_size_origin_name(enum block_size_origin origin)
{
	static const char *const names[] = { "given", "default", "kept", "measured" };

	return names[origin];
}

uint32_t block_size_pick(const uint64_t times[BLOCK_SIZE_N])
{
	uint32_t best = 0;

	for (uint32_t i = 0; i < BLOCK_SIZE_N; i++)
		if (times[i] < times[best])
			best = i;
	/* times[1] is 32's. */
	return (double)times[1] * (100 - BLOCK_SIZE_NOISE) <= (double)times[best] * 100 ? sizes[1] : sizes[best];
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
static int step(struct measurement *m, uint32_t size, uint32_t context, uint64_t *ns)
{
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

/* The least of the rounds, added up over the contexts. */
static int measure(struct measurement *m, uint64_t times[BLOCK_SIZE_N])
{
	for (size_t c = 0; c < ARRAY_SIZE(contexts); c++) {
		uint64_t least[BLOCK_SIZE_N] = { UINT64_MAX, UINT64_MAX, UINT64_MAX }, ns = 0;

		for (uint32_t i = 0; i < ROUNDS * BLOCK_SIZE_N; i++) {
			int r = step(m, i % BLOCK_SIZE_N, contexts[c], &ns);

			if (r)
				return r;
			least[i % BLOCK_SIZE_N] = MIN(least[i % BLOCK_SIZE_N], ns);
		}
		for (uint32_t i = 0; i < BLOCK_SIZE_N; i++)
			times[i] += least[i];
	}
	return 0;
}

int block_size_measure(struct kb_backend *be, const struct model *model, enum kb_kv_type type,
		       uint64_t times[BLOCK_SIZE_N])
{
	_cleanup_(measurement_deinit) struct measurement m = { .be = be, .fd = -1 };
	uint64_t sums[BLOCK_SIZE_N] = { 0 };
	int r = open_pool(&m, model_info(model), type);

	if (!r)
		r = open_workspace(&m, model_info(model));
	if (!r)
		r = measure(&m, sums);
	if (r)
		return r;
	for (uint32_t i = 0; i < BLOCK_SIZE_N; i++)
		times[i] = sums[i];
	return 0;
}
