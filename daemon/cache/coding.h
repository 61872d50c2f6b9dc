/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coding.h - F16 keys and values in fewer bytes, to the bit.
 *
 * The numbers are split into two planes.  The high bytes (sign, exponent, two bits of the mantissa) are
 * entropy-coded by libzstd at level 1, whose Huffman coder does all of the work: there is
 * nothing to match.  The low bytes are mantissa, 7.99 bits of entropy in 8, and stay as they are:
 *
 *     { high bytes, a zstd frame } { low bytes [n / 2] }
 *
 * tests/tools/kv-entropy measures that on real models, with what else was tried.
 *
 * Other keys and values are coded in the same way, exact as well, though it gains little: of F16 0.87 is left, of Q8
 * 0.97, of Q4 0.98.  All bytes in one plane would leave 0.94 of Q8 and 0.976 of Q4, at twice the time: too little for
 * a second format.
 *
 * Thread: any, one at a time.
 */
#ifndef KVD_CODING_H
#define KVD_CODING_H

#include <stddef.h>
#include <stdint.h>

#include "ipc/base/cleanup.h"

struct coder;

#define CODER_E_DAMAGED 1	/* not what encoding n bytes gives */

int coder_new(struct coder **out);	/* 0, -ENOMEM */
void coder_free(struct coder *c);
CLEANUP_DEFINE(struct coder, coder_free)

/* An upper bound of how much coder_bytes() grows by coder_reserve(); 0: not at all. */
uint64_t coder_needs(const struct coder *c, size_t n);
/* Makes room for inputs of n bytes, beforehand.  0, -EINVAL: n is odd or too large, -ENOMEM. */
int coder_reserve(struct coder *c, size_t n);
/* The memory that it holds, some hundred kB and three times the largest input; more only after coder_reserve(). */
uint64_t coder_bytes(const struct coder *c);
/* Where input is to be put before encoding and is after decoding: as many bytes as were reserved, aligned. */
void *coder_plain(struct coder *c);
/* The same for coded bytes: coder_bound(n) of them. */
void *coder_coded(struct coder *c);
size_t coder_bound(size_t n);

/* n bytes of coder_plain(), of the reserved ones, to *n_coded of coder_coded().  0, -EINVAL, -ENOMEM. */
int coder_encode(struct coder *c, size_t n, size_t *n_coded);
/* The other way.  The coded bytes may be any.  0, CODER_E_DAMAGED, -EINVAL. */
int coder_decode(struct coder *c, size_t n_coded, size_t n);

#endif
