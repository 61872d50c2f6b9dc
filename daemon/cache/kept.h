/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kept.h - the index of a pool whose memory outlives the process: which blocks of it hold what.
 *
 * Pool and index are two memfds.  Who holds their descriptors (a service manager) gives them to the next process,
 * which finds all blocks that were committed, also after a crash.  Nothing here reads keys and values.
 *
 * Layout, in the machine's own byte order, since it does not leave the machine; zeros where nothing was written:
 *
 *	0          header: struct kept_header
 *	4096       KEPT_ROOTS slots of 8192 bytes: struct kept_root, the identity of blocks
 *	266240     an area for each chunk of the pool, in their order, of
 *	           align(KEPT_AREA_HEAD + n * sizeof(struct kept_record), 4096) bytes, n = chunk_bytes / KEPT_BLOCK_MIN:
 *	             0   number of its root + 1, u64; 0: none
 *	             64  n records; the ith is of the chunk's ith block
 *
 * A record is good if its commit word is KEPT_COMMITTED and its sum, which depends on index, root and place, is right.
 * So no two can claim one block, and none counts at another place or for another identity.  It names the entry before
 * it by that one's block and serial; serials are never used twice.  `kv_sum` is XXH3-64 of the block's bytes,
 * compared by whoever uses the block first (tree.h).
 *
 * Order: root, then the chunk's word, then the record, then its commit word.  The commit word is cleared before
 * anything else of the record changes and before the block's first byte is written.  It is one process that dies, not
 * the machine: what it has stored, up to some instruction, is there, so that only the compiler must keep the order.
 *
 * Words outside of the sum may change at any time and do no harm if they are wrong: an entry lives longer or
 * shorter; a pin carries a check of its own.
 *
 * The memory is bounded by the pool's: 640 bytes for each block, pages of 4 KiB; the rest of the file is never touched.
 *
 * Seals: F_SEAL_SHRINK on both, so that nobody makes us fault; they may grow with the pool.
 *
 * Thread: the engine thread, once it runs.
 */
#ifndef KVD_KEPT_H
#define KVD_KEPT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/cache/store-identity.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/error.h"

struct kept;

#define KEPT_VERSION 1u
#define KEPT_COMMITTED UINT64_C(0x6b65707420626c6b)
#define KEPT_ROOTS 32u
#define KEPT_ROOT_BYTES 8192u
#define KEPT_AREA_HEAD 64u
#define KEPT_BLOCK_MIN 4096u	/* of smaller blocks only so many in a chunk are kept */
#define KEPT_TOKENS_MAX 64u
#define KEPT_NAME_MAX 255u
#define KEPT_PINS 4u
#define KEPT_NONE UINT32_MAX

struct kept_header {
	char magic[8];			/* "KVDKEPT\n" */
	uint32_t version, record_bytes;
	uint64_t chunk_bytes;
	uint64_t pool_device, pool_inode;	/* the memfd that it is the index of */
	uint64_t seed;			/* random, of all sums that follow */
	uint64_t sum;			/* of what is before it */
};

struct kept_root {
	uint64_t sum;			/* of the rest, without unused bytes; 0: none */
	uint64_t block_bytes;
	uint32_t block_tokens, n;
	uint8_t bytes[STORE_IDENTITY_MAX];
};

struct kept_record {
	_Atomic uint64_t commit;
	uint64_t sum;			/* of what begins with `serial` */
	_Atomic uint64_t expires, last_use;	/* as in evict.h: the monotonic clock goes on until reboot */
	_Atomic uint32_t hits;
	_Atomic int32_t priority;
	_Atomic uint64_t pins[KEPT_PINS];	/* uid, and a check in the upper half; 0: none */
	uint64_t serial;
	uint64_t parent_serial;		/* 0: it begins a sequence */
	uint64_t kv_sum;
	uint64_t created;
	uint32_t parent_block, uid;
	uint32_t first, n_tokens;
	uint32_t n_name, unused;
	int32_t tokens[KEPT_TOKENS_MAX];	/* zeros after n_tokens */
	uint8_t name[KEPT_NAME_MAX + 1];	/* of its namespace; zeros after n_name */
};
_Static_assert(sizeof(struct kept_record) == 640, "the layout is fixed");

/*
 * A new index for the pool's memfd.  0, -ENOMEM and what the system says.
 */
int kept_new(struct kept **out, int pool_fd, uint64_t chunk_bytes, uint32_t n_chunks);
/*
 * Looks whether they are what another process made of these functions, and belong together.  *index_fd becomes the
 * kept's, -1.  It has no chunks before kept_resize().  *pool_bytes: whole chunks that there were.
 * 0, -EINVAL with a sentence, -ENOMEM ...
 */
int kept_open(struct kept **out, int *index_fd, int pool_fd, uint64_t *pool_bytes, struct diag *diag);
void kept_free(struct kept *k);
CLEANUP_DEFINE(struct kept, kept_free)

struct kept_found {
	uint64_t n_blocks, n_damaged;	/* records: good ones; others */
	uint32_t n_chunks_dropped;	/* of no known root */
};
/*
 * After kept_open(): the pool has so many chunks from now on. Both memfds grow, if need be; what is beyond is given
 * back.  Looks at all records; what is no good is gone.
 */
int kept_resize(struct kept *k, int pool_fd, uint32_t n_chunks, struct kept_found *found);

int kept_fd(const struct kept *k);
uint64_t kept_chunk_bytes(const struct kept *k);

/*
 * The number of the root with this identity, a new one if need be, which stays until kept_root_put(), and as long as
 * there are records of it; KEPT_NONE: there are too many, or it is no good.
 */
uint32_t kept_root_get(struct kept *k, const struct store_identity *id, uint32_t block_tokens, uint64_t block_bytes);
void kept_root_put(struct kept *k, uint32_t root);
/* Of which root the chunk has records; KEPT_NONE: it has none. */
uint32_t kept_chunk_root(const struct kept *k, uint32_t chunk);
uint32_t kept_chunk_n(const struct kept *k, uint32_t chunk);
/* Nothing in it is kept any more. */
void kept_chunk_clear(struct kept *k, uint32_t chunk);

/* The same for those that fn wants; returns how many. */
typedef bool (*kept_record_fn)(void *arg, const struct kept_record *record, uint64_t block_bytes);
uint32_t kept_chunk_forget(struct kept *k, uint32_t chunk, kept_record_fn fn, void *arg);

/* Where a block's record is, good or not; NULL: none is kept of it. */
struct kept_record *kept_at(const struct kept *k, uint32_t chunk, uint32_t i);
/*
 * Commits a record in a chunk that has none of another root.  commit, sum and serial of `record` are
 * ignored.  Its place, which has none; NULL: it can't be kept.
 */
struct kept_record *kept_put(struct kept *k, uint32_t root, uint32_t chunk, uint32_t i,
			     const struct kept_record *record);
/* The record there, if it is good. */
bool kept_get(const struct kept *k, uint32_t root, uint32_t chunk, uint32_t i, struct kept_record *out);
/* From now on the block's bytes may change. */
void kept_clear(struct kept *k, uint32_t chunk, struct kept_record *record);

/* The uid pins what the record is of, or no longer.  What does not fit is not kept. */
void kept_pin(struct kept_record *record, uid_t uid);
void kept_unpin(struct kept_record *record, uid_t uid);
/* The ith of KEPT_PINS.  False: none there. */
bool kept_pinned_by(const struct kept_record *record, uint32_t i, uid_t *uid);

/* It was used. */
static inline void kept_touch(struct kept_record *r, uint64_t last_use, uint64_t expires, uint32_t hits,
			      int32_t priority)
{
	atomic_store_explicit(&r->last_use, last_use, memory_order_relaxed);
	atomic_store_explicit(&r->expires, expires, memory_order_relaxed);
	atomic_store_explicit(&r->hits, hits, memory_order_relaxed);
	atomic_store_explicit(&r->priority, priority, memory_order_relaxed);
}

#endif
