/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.h - the memory of all KV blocks.
 *
 * The budget (--kv-memory) is one memfd cut into chunks of equal size, a
 * multiple of 2 MiB.  A chunk belongs to one root (a geometry) while it holds
 * any block of it and returns to the free list when it is empty, so that models
 * of different geometry share the budget.  Blocks are reference-counted; each
 * is charged to the uid that had it computed until its last reference goes.
 * Nothing here allocates beyond the budget: a block that does not fit is
 * POOL_E_FULL, a decision for the caller.
 *
 * Thread: the engine thread, but for what says otherwise.
 */
#ifndef KVD_POOL_H
#define KVD_POOL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ipc/base/account.h"
#include "ipc/base/cleanup.h"
#include "kernels/backend.h"

struct pool;
struct pool_root;

#define POOL_E_FULL 1	/* no free block within the budget */
#define POOL_E_QUOTA 2	/* the uid's share of blocks is used up */

struct pool_stats {
	uint64_t bytes;		/* the budget, rounded down to whole chunks */
	uint64_t chunk_bytes;
	uint32_t n_chunks, n_chunks_free;
};

/*
 * bytes: the budget.  chunk_bytes: 0 to choose.  Creates the memfd and imports
 * it into the backend.  -EINVAL: fewer bytes than one chunk.
 */
int pool_new(struct pool **out, struct kb_backend *be, struct accounts *accounts, uint64_t bytes, uint64_t chunk_bytes);
void pool_free(struct pool *p);		/* every root is gone */
CLEANUP_DEFINE(struct pool, pool_free)
struct kb_pool *pool_device(const struct pool *p);
void pool_stats(const struct pool *p, struct pool_stats *out);
/* Never changes: any thread. */
uint64_t pool_chunk_bytes(const struct pool *p);

/*
 * Chooses chunk_bytes for a budget that models of several geometries may share:
 * a sixteenth of it, 2 to 32 MiB, so that there are chunks enough to go
 * round and blocks of common sizes fit; more where block_bytes, the largest block known
 * to come (0: none), asks for it: then the smallest multiple of 2 MiB, at most
 * 64 MiB and at most bytes/8 if possible, whose tail is under 3 %.
 */
uint64_t pool_chunk_bytes_for(uint64_t block_bytes, uint64_t bytes);

/*
 * A root: blocks of one geometry.  Fills the chunk fields.  Any thread.
 * -EINVAL: a block is larger than a chunk.
 */
int pool_root_new(struct pool_root **out, struct pool *p, const struct kb_geometry *geometry);
void pool_root_free(struct pool_root *r);	/* every block is gone */
CLEANUP_DEFINE(struct pool_root, pool_root_free)
const struct kb_geometry *pool_root_geometry(const struct pool_root *r);
/* Blocks that could still be had, counting free chunks; and those in use. */
uint32_t pool_root_n_free(const struct pool_root *r);
uint32_t pool_root_n_used(const struct pool_root *r);
/* Used ones that lie in a chunk of the pool. */
uint32_t pool_root_n_used_in(const struct pool_root *r, uint32_t chunk);
/* The most blocks the root could ever hold if it had the pool for itself. */
uint32_t pool_root_capacity(const struct pool_root *r);

/* A block with one reference, charged to uid.  0, POOL_E_FULL, POOL_E_QUOTA, -ENOMEM. */
int pool_block_get(struct pool_root *r, uid_t uid, uint32_t *block);
void pool_block_ref(struct pool_root *r, uint32_t block);
void pool_block_unref(struct pool_root *r, uint32_t block);
uint32_t pool_block_n_refs(const struct pool_root *r, uint32_t block);	/* 0: a free one */

/*
 * The first n_tokens of a block to dst, or from src: kb_tokens_bytes(), see kb_ops.block_read().
 * -ENOTSUP: the backend can't, and pool_can_copy() says so.
 */
bool pool_can_copy(const struct pool_root *r);
int pool_block_read(struct pool_root *r, uint32_t block, uint32_t n_tokens, void *dst);
int pool_block_write(struct pool_root *r, uint32_t block, uint32_t n_tokens, const void *src);

/* The chunk of the pool that a block lies in. */
static inline uint32_t pool_block_chunk(const struct pool_root *r, uint32_t block)
{
	return block / pool_root_geometry(r)->blocks_per_chunk;
}

#endif
