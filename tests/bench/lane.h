/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lane.h - sequences of a model with one type of keys and values: a pool of blocks, a workspace, and the steps
 * that the engine would make.
 *
 * Several lanes of one subject take turns.  Tokens are made up: the work does not depend on which they are.
 *
 * Errors: -errno; -ENOTSUP from lane_open() where the backend lacks the type.
 * Thread: the subject's.
 */
#ifndef KVD_BENCH_LANE_H
#define KVD_BENCH_LANE_H

#include <stdint.h>

#include "ipc/base/cleanup.h"
#include "kernels/backend.h"
#include "tests/bench/subject.h"

struct lane_options {
	enum kb_kv_type kv_type;
	uint32_t block_tokens;	/* Q4 has its own */
	uint32_t n_ctx;		/* longest sequence; at most model_n_ctx() */
	uint32_t n_seqs;
	uint32_t n_blocks;	/* in all; 0: as many as n_seqs of n_ctx need */
	uint32_t chunk;		/* prompt tokens in one step */
	uint32_t n_logits;	/* rows of a step that have some; 0: one for each sequence */
};

struct lane;

int lane_open(struct lane **out, struct subject *s, const struct lane_options *options);
void lane_close(struct lane *l);
CLEANUP_DEFINE(struct lane, lane_close)
/* What a lane takes: blocks, without the workspace; before it is there. */
uint64_t lane_bytes_for(const struct subject *s, const struct lane_options *options);

uint32_t lane_block_tokens(const struct lane *l);
uint32_t lane_n_tokens(const struct lane *l, uint32_t seq);
/* Memory of a sequence's keys and values: whole blocks with their scales, and the open one. */
uint64_t lane_kv_bytes(const struct lane *l, uint32_t seq);
uint64_t lane_workspace_bytes(const struct lane *l);
/* Bytes that a step of one token of each of n sequences reads: the weights, and keys and values of `context`
 * positions. */
uint64_t lane_step_bytes(const struct lane *l, uint32_t n, uint32_t context);

void lane_reset(struct lane *l);		/* forgets every sequence */
void lane_forget(struct lane *l, uint32_t seq);
/* Sequence dst begins anew with the first n tokens of src, in the same blocks; n whole blocks. */
int lane_fork(struct lane *l, uint32_t dst, uint32_t src, uint32_t n);
/* Appends n tokens to a sequence, in chunks; logits of the last one. */
int lane_prefill(struct lane *l, uint32_t seq, uint32_t n);
/* Appends n tokens, one per step, to each of n_seqs sequences from first on; ns: [n] of each step, or NULL. */
int lane_decode(struct lane *l, uint32_t first, uint32_t n_seqs, uint32_t n, double *ns);
/* Of tokens that the model was asked to predict. */
struct lane_scores {
	double sum;		/* of the natural logarithms of what it gave to each */
	uint32_t n;
	uint32_t room;
	int32_t *likeliest;	/* [room] the token that it gave the most to, at each */
};
/* Sequence 0 becomes ids[0..n); its tokens of positions from and following are added to scores. -ENOSPC: no room. */
int lane_score(struct lane *l, const int32_t *ids, uint32_t n, uint32_t from, struct lane_scores *scores);

#endif
