/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool in memfds that outlive it, whose blocks hold what their path of tokens says, so that a block that is not the
 * one of its tokens is found.
 */
#ifndef KVD_TESTS_KEPT_FIXTURE_H
#define KVD_TESTS_KEPT_FIXTURE_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <sys/mman.h>
#include <unistd.h>

#include "daemon/cache/tree.h"
#include "ipc/base/checked.h"
#include "ipc/base/hash.h"

#define KF_CHUNK (UINT64_C(2) << 20)
#define KF_BLOCK 4096u
#define KF_BT 4u		/* tokens of a block */

static int kf_import(struct kb_backend *be, int fd, uint64_t bytes, struct kb_pool **out)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		return -errno;
	*out = p;
	return 0;
}

static uint64_t kf_bytes;	/* of the pool */
static uint32_t kf_block = KF_BLOCK;	/* bytes of a block */

static void kf_pool_free(struct kb_backend *be, struct kb_pool *pool)
{
	munmap(pool, kf_bytes);
}

static void *kf_memory(struct kb_pool *pool, const struct kb_geometry *g, uint32_t block)
{
	return (uint8_t *)pool + kb_block_offset(g, block);
}

static int kf_read(struct kb_pool *pool, const struct kb_geometry *g, uint32_t block, uint32_t n_tokens, void *dst)
{
	memcpy(dst, kf_memory(pool, g, block), kb_tokens_bytes(g, n_tokens));
	return 0;
}

static int kf_write(struct kb_pool *pool, const struct kb_geometry *g, uint32_t block, uint32_t n_tokens,
		    const void *src)
{
	memcpy(kf_memory(pool, g, block), src, kb_tokens_bytes(g, n_tokens));
	return 0;
}

static const struct kb_ops kf_ops = {
	.pool_import = kf_import, .pool_free = kf_pool_free, .block_memory = kf_memory,
	.block_read = kf_read, .block_write = kf_write,
};
static struct kb_backend kf_backend = { .ops = &kf_ops };

struct kept_fixture {
	int pool_fd, index_fd;		/* ours: they stay when the rest goes */
	struct kept_found found;
	struct accounts *accounts;
	struct pool *pool;
	struct pool_root *root;
	struct host *host;
	struct tree *tree;
};

#define KEPT_FIXTURE_NULL ((struct kept_fixture){ .pool_fd = -1, .index_fd = -1 })

static inline struct store_identity kf_identity(uint32_t model)
{
	struct store_identity id = { 0 };

	store_identity_add(&id, STORE_TAG_MODEL, &model, sizeof(model));
	return id;
}

/* Memory and index: those that are there, else new ones. */
static inline void kf_open(struct kept_fixture *f, uint32_t n_chunks)
{
	int pool_fd = f->pool_fd >= 0 ? dup(f->pool_fd) : -1, index_fd = f->index_fd >= 0 ? dup(f->index_fd) : -1;
	struct diag diag = DIAG_NULL;
	struct kept *kept = NULL;
	uint64_t bytes;

	kf_bytes = n_chunks * KF_CHUNK;
	f->found = (struct kept_found){ 0 };
	if (pool_fd < 0) {
		assert_int_equal(pool_memory_new(&pool_fd, kf_bytes), 0);
		assert_int_equal(kept_new(&kept, pool_fd, KF_CHUNK, n_chunks), 0);
		f->pool_fd = dup(pool_fd);
		f->index_fd = dup(kept_fd(kept));
	} else {
		assert_int_equal(kept_open(&kept, &index_fd, pool_fd, &bytes, &diag), 0);
		assert_int_equal(index_fd, -1);
		assert_int_equal(kept_resize(kept, pool_fd, n_chunks, &f->found), 0);
	}
	assert_int_equal(pool_new_on(&f->pool, &kf_backend, f->accounts, KF_CHUNK, n_chunks, &pool_fd, &kept), 0);
}

/* An engine of one model, so to speak, as far as the tree's adoption. */
static inline struct tree_adopted kf_init(struct kept_fixture *f, uint32_t n_chunks, uint64_t max_kv,
					  uint64_t host_bytes, uint64_t now)
{
	struct kb_geometry g = {
		.n_layers = 1, .n_kv_heads = 1, .head_dim = 16, .block_bytes = kf_block, .block_tokens = KF_BT,
	};
	struct store_identity id = kf_identity(1);
	struct account_limits limits;
	struct tree_adopted adopted;

	for (int i = 0; i < ACCOUNT_N_KINDS; i++)
		limits.max[i] = UINT64_MAX;
	limits.max[ACCOUNT_KV] = max_kv;
	assert_int_equal(accounts_new(&f->accounts, &limits), 0);
	kf_open(f, n_chunks);
	assert_int_equal(pool_root_new(&f->root, f->pool, &g), 0);
	f->host = NULL;
	if (host_bytes)
		assert_int_equal(host_new(&f->host, f->accounts, host_bytes, EVICT_SCORE, 0), 0);
	assert_int_equal(tree_new(&f->tree, &(struct tree_config){ .accounts = f->accounts, .root = f->root,
								   .host = f->host, .seed = 9 }), 0);
	pool_root_keep(f->root, &id);
	assert_int_equal(tree_adopt(f->tree, 1000, now, &adopted), 0);
	return adopted;
}

/* The process ends; what is kept stays. */
static inline void kf_deinit(struct kept_fixture *f)
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

static inline void kf_close(struct kept_fixture *f)
{
	close(f->pool_fd);
	close(f->index_fd);
}

/* The hash of a path whose end before was `before` (0: the namespace's root), with n tokens more. */
static inline uint64_t kf_path(uint64_t before, const char *name, const int32_t *tokens, uint32_t n)
{
	if (!before)
		before = hash_u64(name, strlen(name), 1);
	return hash_u64(tokens, n * sizeof(*tokens), before);
}

/* What a block of that path holds. */
static inline uint64_t kf_word(uint64_t path, uint32_t i)
{
	return (path + i) * UINT64_C(0x9e3779b97f4a7c15);
}

static inline void kf_compute(struct kept_fixture *f, uint32_t block, uint64_t path)
{
	uint64_t *p = pool_block_memory(f->root, block);

	for (uint32_t i = 0; i < kf_block / sizeof(*p); i++)
		p[i] = kf_word(path, i);
}

static inline bool kf_holds(const void *block, uint64_t path)
{
	const uint64_t *p = block;

	for (uint32_t i = 0; i < kf_block / sizeof(*p); i++)
		if (p[i] != kf_word(path, i))
			return false;
	return true;
}

#endif
