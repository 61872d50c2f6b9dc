/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pooling.h - from the final hidden states of a prompt's tokens to one vector.
 *
 *     mean   the sum over positions in ascending order, in double precision, divided by their number
 *     last   the last token's
 *
 * States come in the order of positions, each once, whatever pieces the prompt was cut into and however often it was
 * computed again: so the vector's bits depend on the states' alone.
 *
 * Thread: the engine thread; but for init and deinit, any.
 */
#ifndef KVD_POOLING_H
#define KVD_POOLING_H

#include <stdint.h>

#include "daemon/engine/engine.h"

struct pooling {
	enum engine_pooling kind;
	uint32_t n_embd;
	uint32_t next, end;	/* positions whose states are still wanted */
	double *sums;		/* [n_embd] MEAN */
	float *values;		/* [n_embd] the result */
};

/* Which positions of n will be wanted is known at once; the arrays come with pooling_reserve(). */
void pooling_init(struct pooling *p, enum engine_pooling kind, uint32_t n_tokens);
void pooling_deinit(struct pooling *p);
/* Bytes of its arrays. */
uint64_t pooling_bound(const struct pooling *p, uint32_t n_embd);
/* 0 or -ENOMEM. */
int pooling_reserve(struct pooling *p, uint32_t n_embd);

/* The state [n_embd] of position next; there is one more to come. */
void pooling_add(struct pooling *p, const float *state);
/* All have come: [n_embd], until deinit. */
const float *pooling_result(struct pooling *p);

#endif
