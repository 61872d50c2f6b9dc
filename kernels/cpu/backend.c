/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU backend's table, rotations and the mapped pool. */
#include "cpu.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "levels.h"

#define NUMERICS_VERSION 3
#define HUGE_PAGE (2ull << 20)

static void cpu_close(struct kb_backend *be)
{
	struct kc_backend *cpu = (struct kc_backend *)be;

	if (!cpu)
		return;
	kc_threads_free(cpu->threads);
	kc_arena_free(cpu->arena);
	free(cpu);
}

static const char *cpu_level(const struct kb_backend *be)
{
	return ((const struct kc_backend *)be)->level->name;
}

static uint32_t cpu_n_threads(const struct kb_backend *be)
{
	return kc_threads_active(((const struct kc_backend *)be)->threads);
}

static int cpu_set_threads(struct kb_backend *be, uint32_t n)
{
	return kc_threads_set_active(((struct kc_backend *)be)->threads, n);
}

static void cpu_rope_free(struct kb_backend *be, struct kb_rope *rope)
{
	if (!rope)
		return;
	free(rope->table);
	free(rope->source);
	free(rope);
}

static int cpu_rope_new(struct kb_backend *be, const struct kb_rope_desc *d, struct kb_rope **out)
{
	uint32_t half = d->n_dims / 2;
	struct kb_rope *rope;

	if (!d->n_dims || d->n_dims % 2 || d->n_dims > KC_MAX_HEAD_DIM || !d->n_positions || !d->inv_freq ||
	    (d->style != KB_ROPE_INTERLEAVED && d->style != KB_ROPE_HALVES))
		return -EINVAL;
	rope = calloc(1, sizeof(*rope));
	if (!rope)
		return -ENOMEM;
	rope->style = d->style;
	rope->n_dims = d->n_dims;
	rope->n_positions = d->n_positions;
	rope->table = calloc(d->n_positions, d->n_dims * sizeof(float));
	rope->source = calloc(1, sizeof(*rope->source) + half * sizeof(float));
	if (!rope->table || !rope->source) {
		cpu_rope_free(be, rope);
		return -ENOMEM;
	}
	rope->source->scale = d->scale;
	memcpy(rope->source->inv_freq, d->inv_freq, half * sizeof(float));
	*out = rope;
	return 0;
}

void kc_rope_reach(const struct kb_rope *rope, uint32_t n)
{
	struct kc_rope_source *s = rope->source;
	uint32_t half = rope->n_dims / 2;

	for (; s->n_made < n; s->n_made++) {
		float *row = rope->table + (size_t)s->n_made * rope->n_dims;

		for (uint32_t i = 0; i < half; i++) {
			double angle = (double)s->n_made * (double)s->inv_freq[i];

			row[i] = (float)(cos(angle) * (double)s->scale);
			row[half + i] = (float)(sin(angle) * (double)s->scale);
		}
	}
}

static int cpu_pool_import(struct kb_backend *be, int fd, uint64_t bytes, struct kb_pool **out)
{
	struct kb_pool *pool;
	struct stat st;

	if (!bytes || bytes % HUGE_PAGE)
		return -EINVAL;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (st.st_size < 0 || (uint64_t)st.st_size < bytes)
		return -EINVAL;
	pool = calloc(1, sizeof(*pool));
	if (!pool)
		return -ENOMEM;
	pool->bytes = bytes;
	pool->base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (pool->base == MAP_FAILED) {
		int r = -errno;

		free(pool);
		return r;
	}
	madvise(pool->base, bytes, MADV_HUGEPAGE);
	*out = pool;
	return 0;
}

static void cpu_pool_free(struct kb_backend *be, struct kb_pool *pool)
{
	if (!pool)
		return;
	munmap(pool->base, pool->bytes);
	free(pool);
}

static bool block_in_pool(const struct kb_pool *pool, const struct kb_geometry *g, uint32_t block)
{
	return block / g->blocks_per_chunk < pool->bytes / g->chunk_bytes;
}

/* The geometry fits the pool, and the block and its tokens fit the geometry. */
static bool block_is_valid(const struct kb_pool *pool, const struct kb_geometry *g, uint32_t block, uint32_t n_tokens)
{
	uint64_t least = kb_block_bytes(g), in_chunk;

	if (!least || g->head_dim % KC_LANES || !kc_block_tokens_valid(g))
		return false;
	if (g->block_bytes < least || !g->blocks_per_chunk || !g->chunk_bytes ||
	    __builtin_mul_overflow(g->block_bytes, (uint64_t)g->blocks_per_chunk, &in_chunk) ||
	    in_chunk > g->chunk_bytes)
		return false;
	if (n_tokens > g->block_tokens || (n_tokens != g->block_tokens && !kb_has_partial_blocks(g)))
		return false;
	return block_in_pool(pool, g, block);
}

static uint8_t *head_at(const struct kb_pool *pool, const struct kb_geometry *g, uint32_t block, size_t i)
{
	return pool->base + kb_block_offset(g, block) + i * kb_head_bytes(g);
}

static int cpu_copy_tokens(struct kb_pool *pool, const struct kb_geometry *g, uint32_t dst, uint32_t src,
			   uint32_t n_tokens)
{
	if (!block_is_valid(pool, g, dst, n_tokens) || !block_is_valid(pool, g, src, n_tokens))
		return -EINVAL;
	for (size_t i = 0; dst != src && i < (size_t)g->n_layers * g->n_kv_heads; i++)
		kc_kv_copy(g, head_at(pool, g, dst, i), head_at(pool, g, src, i), n_tokens);
	return 0;
}

static void *cpu_block_memory(struct kb_pool *pool, const struct kb_geometry *g, uint32_t block)
{
	return pool->base + kb_block_offset(g, block);
}

static int cpu_block_read(struct kb_pool *pool, const struct kb_geometry *g, uint32_t block, uint32_t n_tokens,
			  void *dst)
{
	size_t n_heads = (size_t)g->n_layers * g->n_kv_heads, n_bytes;

	if (!block_is_valid(pool, g, block, n_tokens))
		return -EINVAL;
	n_bytes = kb_tokens_bytes(g, n_tokens) / n_heads;
	for (size_t i = 0; i < n_heads; i++)
		kc_kv_pack(g, head_at(pool, g, block, i), n_tokens, (uint8_t *)dst + i * n_bytes);
	return 0;
}

static int cpu_block_write(struct kb_pool *pool, const struct kb_geometry *g, uint32_t block, uint32_t n_tokens,
			   const void *src)
{
	size_t n_heads = (size_t)g->n_layers * g->n_kv_heads, n_bytes;

	if (!block_is_valid(pool, g, block, n_tokens))
		return -EINVAL;
	n_bytes = kb_tokens_bytes(g, n_tokens) / n_heads;
	for (size_t i = 0; i < n_heads; i++)
		kc_kv_unpack(g, head_at(pool, g, block, i), n_tokens, (const uint8_t *)src + i * n_bytes);
	return 0;
}

static const struct kb_ops ops = {
	.abi_version = KB_ABI_VERSION,
	.numerics_version = NUMERICS_VERSION,
	.name = "cpu",
	.close = cpu_close,
	.level = cpu_level,
	.n_threads = cpu_n_threads,
	.set_threads = cpu_set_threads,
	.tensor_new = kc_tensor_new,
	.tensor_fill = kc_tensor_fill,
	.tensor_free = kc_tensor_free,
	.tensor_bytes = kc_tensor_bytes,
	.rope_new = cpu_rope_new,
	.rope_free = cpu_rope_free,
	.pool_import = cpu_pool_import,
	.pool_free = cpu_pool_free,
	.workspace_new = kc_workspace_new,
	.workspace_free = kc_workspace_free,
	.workspace_bytes = kc_workspace_bytes,
	.step_begin = kc_step_begin,
	.embed = kc_embed,
	.attn_in = kc_attn_in,
	.attention = kc_attention,
	.attn_out = kc_attn_out,
	.ffn = kc_ffn,
	.logits = kc_logits,
	.step_submit = kc_step_submit,
	.step_wait = kc_step_wait,
	.step_logits = kc_step_logits,
	.copy_tokens = cpu_copy_tokens,
	.measures_mass = true,
	.block_read = cpu_block_read,
	.block_memory = cpu_block_memory,
	.block_write = cpu_block_write,
	.open_new = kc_open_new,
	.open_free = kc_open_free,
	.hidden = kc_hidden,
	.step_hidden = kc_step_hidden,
};

int kb_cpu_open(const struct kb_cpu_options *options, struct kb_backend **out)
{
	struct kc_backend *cpu;
	uint32_t n_threads = kc_allowed_cpus();
	int r;

	cpu = calloc(1, sizeof(*cpu));
	if (!cpu)
		return -ENOMEM;
	cpu->base.ops = &ops;
	r = kc_levels_find(options ? options->level : NULL, &cpu->level);
	if (!r)
		r = kc_arena_new(&cpu->arena);
	if (options && options->n_threads)
		n_threads = KC_MIN(n_threads, options->n_threads);
	if (!r)
		r = kc_threads_new(&cpu->threads, n_threads);
	if (r) {
		cpu_close(&cpu->base);
		return r;
	}
	*out = &cpu->base;
	return 0;
}
