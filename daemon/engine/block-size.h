/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block-size.h - how many tokens a model's blocks have, by a short measurement at its first start.
 *
 * Larger blocks are fewer pieces to attend to; smaller ones share more of a prompt. What the first is worth
 * hangs on the model's heads, the type of keys and values and the machine, so the attention of one token is
 * measured at some contexts with blocks of 16, 32 and 64 tokens: the processor's time of one thread, the least
 * of several rounds in which they take turns. 32 is taken unless another is faster by more than BLOCK_SIZE_NOISE
 * percent, so that noise does not decide. The result is kept in the state directory, since blocks of another size
 * are another root's:
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
#define BLOCK_SIZE_NOISE 5u

enum block_size_origin { BLOCK_SIZE_GIVEN, BLOCK_SIZE_PRESUMED, BLOCK_SIZE_KEPT, BLOCK_SIZE_MEASURED };

/* "given", "default", "kept", "measured" */
const char *block_size_origin_name(enum block_size_origin origin);

/* Times of the sizes, in any unit; all above 0. */
uint32_t block_size_pick(const uint64_t times[BLOCK_SIZE_N]);

/* F16 and Q8.  0, -ENOMEM, or the backend's error. */
int block_size_measure(struct kb_backend *be, const struct model *m, enum kb_kv_type type,
		       uint64_t times[BLOCK_SIZE_N]);

#define BLOCK_SIZE_E_ABSENT 1	/* nothing is kept */
#define BLOCK_SIZE_E_DAMAGED 2	/* what is kept says nothing */
/* 0, BLOCK_SIZE_E_*, -ENOMEM. */
int block_size_read(const char *state_dir, const struct kb_backend *be, const struct model *m, enum kb_kv_type type,
		    uint32_t *out);
/* Makes the directories, but no parents.  0 or -errno. */
int block_size_write(const char *state_dir, const struct kb_backend *be, const struct model *m, enum kb_kv_type type,
		     uint32_t block_tokens);

#endif
