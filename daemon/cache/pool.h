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
 * Where the pool is kept beyond the process (kept.h), a chunk is *dormant* while it holds kept blocks that are of no
 * loaded model: of an earlier process, or of a model that was unloaded. It counts as free and is taken when no other
 * is left; then its blocks are gone. A root that comes with their identity wakes its dormant chunks.
 *
 * Thread: the engine thread, but for what says otherwise.
 */
#ifndef KVD_POOL_H
#define KVD_POOL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/cache/kept.h"
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
	uint32_t n_chunks_dormant;	/* of those free */
};

/*
 * bytes: the budget.  chunk_bytes: 0 to choose.  Creates the memfd and imports
 * it into the backend.  -EINVAL: fewer bytes than one chunk.
 */
int pool_new(struct pool **out, struct kb_backend *be, struct accounts *accounts, uint64_t bytes, uint64_t chunk_bytes);
/* The memory of a pool: a memfd that can't be made shorter.  0, -errno. */
int pool_memory_new(int *fd, uint64_t bytes);
/*
 * The same, of memory that is there: n_chunks of chunk_bytes, with its index (NULL: none is kept).  *fd and
 * *kept are the pool's on success, -1 and NULL.
 */
int pool_new_on(struct pool **out, struct kb_backend *be, struct accounts *accounts, uint64_t chunk_bytes,
		uint32_t n_chunks, int *fd, struct kept **kept);
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

/* Where the block's block_bytes are; NULL: the backend can't say. */
void *pool_block_memory(const struct pool_root *r, uint32_t block);

/* --- what is kept beyond the process --- */

/* NULL: nothing is. */
struct kept *pool_kept(const struct pool *p);
int pool_fd(const struct pool *p);

/* The root's blocks are kept under this identity from now on, if they can be.  Once. */
void pool_root_keep(struct pool_root *r, const struct store_identity *id);
struct kept *pool_root_index(const struct pool_root *r);
/* Blocks in dormant chunks of its identity. */
uint32_t pool_root_n_dormant(const struct pool_root *r);
/* The root's number in the pool's kept; KEPT_NONE: its blocks are not kept. */
uint32_t pool_root_kept(const struct pool_root *r);
/* Where the block's record is; NULL: it has no place for one. */
struct kept_record *pool_block_record(const struct pool_root *r, uint32_t block);
/* kept_put() and kept_clear() of a block that is the root's. */
struct kept_record *pool_block_keep(struct pool_root *r, uint32_t block, const struct kept_record *record);
void pool_block_unkeep(struct pool_root *r, uint32_t block);

/*
 * Wakes the dormant chunks of the root's identity: calls fn for every block that is kept there.  None of them is in
 * use; those for which pool_block_adopt() is not called before pool_root_settle() are free afterwards.  Between the
 * two, no block can be had of these chunks.
 */
void pool_root_wake(struct pool_root *r, void (*fn)(void *arg, uint32_t block), void *arg);
/* A block with one reference, charged to uid.  0, POOL_E_QUOTA, -ENOMEM. */
int pool_block_adopt(struct pool_root *r, uid_t uid, uint32_t block);
void pool_root_settle(struct pool_root *r);

/* Dormant blocks that fn wants are not kept any more; returns how many.  Looks at all of them. */
uint32_t pool_forget(struct pool *p, kept_record_fn fn, void *arg);

/* The chunk of the pool that a block lies in. */
static inline uint32_t pool_block_chunk(const struct pool_root *r, uint32_t block)
{
	return block / pool_root_geometry(r)->blocks_per_chunk;
}

#endif
