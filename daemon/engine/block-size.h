/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block-size.h - how many tokens a model's blocks have, by a short measurement at its first start.
 *
 * Larger blocks are fewer pieces to attend to; smaller ones share more of a prompt. What the first is worth
 * hangs on the model's heads, the type of keys and values and the machine, so the attention of one token is
 * measured at some contexts with blocks of 16, 32 and 64 tokens: the processor's time of one thread. 32 is left
 * only for a clear gain: another size has to be faster by more than BLOCK_SIZE_GAIN percent in at least three of
 * four rounds, each of which compares what ran side by side. Sizes take turns in all their orders, since one finds in
 * the processor's caches what the one before it has left there. The result is kept in the state directory, since blocks
 * of another size are another root's:
 *
 *     STATE/block-tokens/HASH-TYPE-BACKEND-LEVEL-NUMERICS
 *     "kvd block-tokens 1\n" N "\n" XXH3-64 of name and all before it, 16 hexadecimal digits, "\n"
 *
 * It is written beside and renamed.  Whatever is not exactly that is measured anew.
 *
 * Thread: any one; the backend is the caller's alone.
 */
#ifndef KVD_BLOCK_SIZE_H
#define KVD_BLOCK_SIZE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/model/model.h"
#include "ipc/base/error.h"
#include "kernels/backend.h"

#define BLOCK_SIZE_N 3u		/* 16, 32, 64 */
#define BLOCK_SIZE_DEFAULT 32u
#define BLOCK_SIZE_GAIN 5u
#define BLOCK_SIZE_ROUNDS 18u
#define BLOCK_SIZE_ROUNDS_MIN 6u	/* each order once */
/* Of the processor: there are no more rounds than fit, but BLOCK_SIZE_ROUNDS_MIN. */
#define BLOCK_SIZE_BUDGET_NS UINT64_C(600000000)

enum block_size_origin { BLOCK_SIZE_GIVEN, BLOCK_SIZE_PRESUMED, BLOCK_SIZE_KEPT, BLOCK_SIZE_MEASURED };

/* "given", "default", "kept", "measured" */
const char *block_size_origin_name(enum block_size_origin origin);

/* Of each round and size, in any unit; all above 0; at least one round. */
struct block_size_times {
	uint32_t n_rounds;
	uint64_t ns[BLOCK_SIZE_ROUNDS][BLOCK_SIZE_N];
};

uint32_t block_size_pick(const struct block_size_times *t);
/* The median over the rounds of the time of the ith size, in percent of that of 32. */
uint32_t block_size_percent(const struct block_size_times *t, uint32_t i);

/* The processor's time of the attention of one token at a context, in blocks of the ith size.  0 or an error. */
typedef int (*block_size_step_fn)(void *arg, uint32_t i, uint32_t context, uint64_t *ns);
/* The rounds of block_size_measure().  0, or the first error of `step`. */
int block_size_run(block_size_step_fn step, void *arg, struct block_size_times *out);

/* F16 and Q8.  0, -ENOMEM, or the backend's error. */
int block_size_measure(struct kb_backend *be, const struct model *m, enum kb_kv_type type,
		       struct block_size_times *out);

#define BLOCK_SIZE_E_ABSENT 1	/* nothing is kept */
#define BLOCK_SIZE_E_DAMAGED 2	/* what is kept says nothing */
/* 0, BLOCK_SIZE_E_*, -ENOMEM. */
int block_size_read(const char *state_dir, const struct kb_backend *be, const struct model *m, enum kb_kv_type type,
		    uint32_t *out);
/* Makes the directories, but no parents.  0 or -errno. */
int block_size_write(const char *state_dir, const struct kb_backend *be, const struct model *m, enum kb_kv_type type,
		     uint32_t block_tokens);

#endif
