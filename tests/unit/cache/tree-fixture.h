/* SPDX-License-Identifier: Apache-2.0 */
/* A pool of memory that nobody touches, accounts, and numbers that are the same on every run. */
#ifndef KVD_TESTS_TREE_FIXTURE_H
#define KVD_TESTS_TREE_FIXTURE_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/cache/tree.h"
#include "ipc/base/checked.h"

#define FIXTURE_CHUNK (UINT64_C(2) << 20)
#define FIXTURE_PER_CHUNK 8u
#define FIXTURE_BLOCK (FIXTURE_CHUNK / FIXTURE_PER_CHUNK)

/* What a block holds: K and V of one head of 16 elements, at most 64 tokens.  The rest of it is not there. */
#define FIXTURE_TOKEN (2 * 16 * sizeof(uint16_t))
#define FIXTURE_PLAIN (64 * FIXTURE_TOKEN)

static int fixture_import(struct kb_backend *be, int fd, uint64_t bytes, struct kb_pool **out)
{
	*out = calloc(bytes / FIXTURE_BLOCK, FIXTURE_PLAIN);
	return *out ? 0 : -ENOMEM;
}

static void fixture_pool_free(struct kb_backend *be, struct kb_pool *pool)
{
	free(pool);
}

/* The n_tokens first tokens of the block's K or V. */
static inline void *fixture_plane(struct kb_pool *pool, const struct kb_geometry *g, uint32_t block, int plane)
{
	return (uint8_t *)pool + block * FIXTURE_PLAIN + plane * g->block_tokens * (FIXTURE_TOKEN / 2);
}

static int fixture_block_read(struct kb_pool *pool, const struct kb_geometry *g, uint32_t block, uint32_t n_tokens,
			      void *dst)
{
	size_t n = n_tokens * FIXTURE_TOKEN / 2;

	memcpy(dst, fixture_plane(pool, g, block, 0), n);
	memcpy((uint8_t *)dst + n, fixture_plane(pool, g, block, 1), n);
	return 0;
}

static int fixture_block_write(struct kb_pool *pool, const struct kb_geometry *g, uint32_t block, uint32_t n_tokens,
			       const void *src)
{
	size_t n = n_tokens * FIXTURE_TOKEN / 2;

	memcpy(fixture_plane(pool, g, block, 0), src, n);
	memcpy(fixture_plane(pool, g, block, 1), (const uint8_t *)src + n, n);
	return 0;
}

static const struct kb_ops fixture_ops = {
	.pool_import = fixture_import, .pool_free = fixture_pool_free,
	.block_read = fixture_block_read, .block_write = fixture_block_write,
};
static struct kb_backend fixture_backend = { .ops = &fixture_ops };

struct fixture {
	struct accounts *accounts;
	struct pool *pool;
	struct pool_root *root;
	struct host *host;
	struct tree *tree;
};

/*
 * max_kv: bytes that a uid may have; host_bytes: 0: no host tier; config: all but accounts, root and host.
 */
static inline void fixture_init_host(struct fixture *f, uint32_t n_chunks, uint32_t block_tokens, uint64_t max_kv,
				     uint64_t host_bytes, struct tree_config config)
{
	struct kb_geometry g = {
		.n_layers = 1, .n_kv_heads = 1, .head_dim = 16,
		.block_bytes = FIXTURE_BLOCK, .block_tokens = block_tokens,
	};
	struct account_limits limits;

	for (int i = 0; i < ACCOUNT_N_KINDS; i++)
		limits.max[i] = UINT64_MAX;
	limits.max[ACCOUNT_KV] = max_kv;
	assert_int_equal(accounts_new(&f->accounts, &limits), 0);
	assert_int_equal(pool_new(&f->pool, &fixture_backend, f->accounts, n_chunks * FIXTURE_CHUNK, FIXTURE_CHUNK), 0);
	assert_int_equal(pool_root_new(&f->root, f->pool, &g), 0);
	config.accounts = f->accounts;
	config.root = f->root;
	f->host = NULL;
	if (host_bytes)
		assert_int_equal(host_new(&f->host, f->accounts, host_bytes, config.policy, config.idle_ns), 0);
	config.host = f->host;
	assert_int_equal(tree_new(&f->tree, &config), 0);
}

static inline void fixture_init(struct fixture *f, uint32_t n_chunks, uint32_t block_tokens, uint64_t max_kv,
				struct tree_config config)
{
	fixture_init_host(f, n_chunks, block_tokens, max_kv, 0, config);
}

/* Nothing may be left that was charged, or held. */
static inline void fixture_deinit(struct fixture *f)
{
	tree_free(f->tree);
	assert_int_equal(pool_root_n_used(f->root), 0);
	for (uid_t uid = 0; uid < 8; uid++)
		assert_int_equal(account_used(f->accounts, uid, ACCOUNT_KV), 0);
	pool_root_free(f->root);
	host_free(f->host);
	pool_free(f->pool);
	accounts_free(f->accounts);
}

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t fixture_seed;

static inline uint32_t below(uint32_t n)
{
	uint64_t z = fixture_seed += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	z ^= z >> 31;
	return (uint32_t)((z >> 32) * n >> 32);
}

#endif
