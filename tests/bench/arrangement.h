/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arrangement.h - ways in which keys and values could lie beside each other in memory, and how fast attention would
 * read them.
 *
 * What is measured is not the kernels' attention but its reading: for one token, of every layer and head, segment
 * of 512 positions by segment, the keys and then the values, F16, each multiplied and summed up; in blocks of 32
 * tokens that hold [layer][head] and lie in no order.  All ways read as many bytes and compute the same; only the
 * addresses differ:
 *
 *     per token     key, value, key, value, ...
 *     per tile      the keys of 16 positions, then their values
 *     per block     the keys of a block, then its values: the one that is used (kernels/backend.h)
 *     planes        all keys in one region of memory, all values in another
 *
 * One thread, which the caller's is.
 */
#ifndef KVD_BENCH_ARRANGEMENT_H
#define KVD_BENCH_ARRANGEMENT_H

#include <stdint.h>

#include "ipc/base/cleanup.h"

enum arrangement { ARRANGE_TOKEN, ARRANGE_TILE, ARRANGE_BLOCK, ARRANGE_PLANES, N_ARRANGEMENTS };

struct arrangement_shape {
	uint32_t n_layers, n_kv_heads, head_dim;
	uint32_t n_tokens;	/* most that will be read */
};

struct arrangements;

/* The memory of all of them, which is the same; fewer layers where it would be more than 512 MB.  -ENOMEM. */
int arrangements_new(struct arrangements **out, const struct arrangement_shape *shape);
void arrangements_free(struct arrangements *a);
CLEANUP_DEFINE(struct arrangements, arrangements_free)

const char *arrangement_name(enum arrangement which);
/* Reads all that one token at this context sees; *seconds of this thread's processor time. */
void arrangement_read(struct arrangements *a, enum arrangement which, uint32_t n_tokens, double *seconds);
/* What that reads. */
uint64_t arrangement_bytes(const struct arrangements *a, uint32_t n_tokens);
uint32_t arrangements_n_layers(const struct arrangements *a);

#endif
