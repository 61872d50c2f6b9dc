/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host.h - the second tier: coded blocks in host memory.
 *
 * What the pool has no room for goes on here, in fewer bytes (coding.h), and comes back exact.
 * The budget (--host-memory) is one memfd, cut into pages of 4 KiB; a block is a chain of them, so that
 * blocks of any size and of several models share the memory and nothing fragments. The
 * links are beside it. All memory counts: the pages, their links, the coder's buffers and
 * an entry of the tree for each block. None is taken beyond the budget: what does
 * not fit is HOST_E_FULL, a decision for the caller. Pages are touched as they are used, and
 * given back to the system when the last block goes.
 *
 * A block's pages are charged to a uid as ACCOUNT_KV. Its hash is verified before its bytes
 * are decoded: damage is a miss.
 *
 * One host serves the trees of all models, whose stored entries are items of its `evict`.
 *
 * Thread: the engine thread, but for host_new(), host_free() and host_max_blocks().
 */
#ifndef KVD_HOST_H
#define KVD_HOST_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/cache/evict.h"
#include "ipc/base/account.h"
#include "ipc/base/cleanup.h"

struct host;

#define HOST_PAGE 4096u
#define HOST_ENTRY_BYTES 576u	/* what a block's entry in a tree counts for */
#define HOST_PAGES_PER_BLOCK 4u	/* at least, at the mean: bounds the number of blocks */
#define HOST_BYTES_MIN (UINT64_C(2) << 20)

#define HOST_E_FULL 1		/* not within the budget */
#define HOST_E_QUOTA 2		/* the uid's share is used up */
#define HOST_E_DAMAGED 3	/* the bytes are not those that were put there */

/* Embedded beside what the block belongs to; zeroed: there is none. */
struct host_block {
	uint32_t first_page;
	uint32_t n_bytes;	/* coded */
	uint64_t hash;		/* of the coded bytes */
	struct charge charge;
};

struct host_stats {
	uint64_t bytes;		/* the budget */
	uint64_t used;		/* of it, bookkeeping too */
	uint64_t coded;		/* bytes of blocks, in whole pages */
	uint64_t plain;		/* the same blocks as the pool would have them */
	uint32_t n_blocks;
};

/* 0, -EINVAL: fewer than HOST_BYTES_MIN or more than 2^32 pages, -ENOMEM and what memfd_create() says. */
int host_new(struct host **out, struct accounts *accounts, uint64_t bytes, enum evict_policy policy,
	     uint64_t idle_ns);
void host_free(struct host *h);		/* every block is gone */
CLEANUP_DEFINE(struct host, host_free)

/* The order in which stored entries go. */
struct evict *host_evict(struct host *h);
/* The most blocks it could ever hold. */
uint32_t host_max_blocks(const struct host *h);
/* The memfd, for tests that damage it. */
int host_fd(const struct host *h);

/* Room to work on blocks of n_plain bytes, once for each size.  0, HOST_E_FULL, -EINVAL, -ENOMEM. */
int host_reserve(struct host *h, size_t n_plain);
/* Where a block's plain bytes are put before host_encode() and are after host_get(). */
void *host_plain(struct host *h);
/* Codes n_plain bytes there.  0, -EINVAL, -ENOMEM. */
int host_encode(struct host *h, size_t n_plain);
/* Keeps what was coded last; *block is zeroed before.  0, HOST_E_FULL, HOST_E_QUOTA, -ENOMEM: may be tried again. */
int host_put(struct host *h, uid_t uid, struct host_block *block);
/* Decodes it; it stays.  n_plain as it was put.  0, HOST_E_DAMAGED; HOST_E_FULL, -ENOMEM: not now. */
int host_get(struct host *h, const struct host_block *block, size_t n_plain);
/* Forgets it; n_plain as it was put.  *block is zeroed; twice is harmless. */
void host_drop(struct host *h, struct host_block *block, size_t n_plain);

/* Bytes that the block takes, in whole pages. */
uint64_t host_block_bytes(const struct host_block *block);
void host_stats(const struct host *h, struct host_stats *out);

#endif
