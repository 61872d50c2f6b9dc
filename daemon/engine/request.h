/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.h - a request inside the engine.
 *
 * Made by any thread; from submission on the engine thread's, but for the two
 * flags.  What makes a preempted sequence go on bit-identically is here and
 * stays: tokens, random numbers, text filter, pending events.
 */
#ifndef KVD_REQUEST_H
#define KVD_REQUEST_H

#include <stdatomic.h>
#include <stdbool.h>

#include "daemon/cache/heap.h"
#include "daemon/cache/tree.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/output.h"
#include "daemon/engine/pooling.h"
#include "daemon/engine/scheduler.h"
#include "ipc/base/account.h"
#include "ipc/base/list.h"

struct engine_request {
	struct list link;		/* in engine.incoming, .requests or .finished */
	struct engine_model *model;
	struct sched_seq seq;		/* seq.n_tokens counts tokens, seq.n_blocks blocks */
	uint64_t client, id;
	uid_t uid;
	struct sink *sink;
	struct engine_request_params params;	/* stop is not kept: it is compiled in output */
	int32_t *tokens;		/* [tokens_capacity], prompt first */
	uint32_t tokens_capacity, max_n_tokens;	/* the most that it can get to */
	uint32_t *blocks;		/* [blocks_capacity], by position */
	uint32_t blocks_capacity, max_n_blocks;
	float *mass;			/* [mass_capacity] attention that blocks draw, of the step in flight */
	uint32_t mass_capacity;
	uint32_t n_prompt, n_generated, n_preempted;
	char *ns;			/* of the cache; NULL: it has no part in it */
	char *own, *also[ENGINE_ALSO_MAX];	/* of params, where it has: see prefix-miss.c */
	bool pinned;			/* what it was to pin */
	bool yields;			/* it gives up its place, in this round of admission */
	struct tree_path path;		/* in the model's tree, where it has one */
	struct disk_job *disk_job;	/* what the disk is asked for it; NULL: nothing */
	bool disk_asked, disk_touched;
	uint32_t n_on_disk;		/* blocks of its path that are there, or on their way */
	uint32_t n_cached;		/* tokens of the prompt that it did not compute at first, nor others for it */
	enum sink_miss miss;		/* at position n_cached */
	uint32_t n_same;		/* of the tokens from there on do not differ, where that is why */
	uint32_t next_prompt;		/* position whose log-probability is due; n_prompt: none */
	struct pooling pooling;
	struct sampler_rng rng;
	struct output output;
	enum sink_finish ending;	/* not 0: ends when its pending events are taken */
	struct charge charge_request, charge_memory;
	struct kb_open *open;		/* see open.c; NULL: none */
	struct charge charge_open;	/* for that */
	struct heap_node deadline;	/* in engine.deadlines, where it has one */
	uint64_t submit_ns, admit_ns, first_token_ns, last_token_ns;	/* 0: not yet */
	atomic_bool cancel;		/* wanted; set by any thread */
	atomic_bool room;		/* its sink may have room; set by any thread */
};

static inline struct engine_request *request_of(struct sched_seq *seq)
{
	return list_entry(seq, struct engine_request, seq);
}

/*
 * Sets the most tokens and blocks that it can get to with its model.  Returns
 * the bytes that it may hold until its end, all of its arrays and buffers at
 * their largest: what it is charged for, so that it can't outgrow it.
 */
uint64_t request_bound(struct engine_request *r);

/* The next prompt token's log-probability is known: puts it into the output. */
void request_note_prompt(struct engine_request *r, const struct sampler_result *token);

/* 0 or -ENOMEM. */
int request_append_token(struct engine_request *r, int32_t id);
int request_reserve_blocks(struct engine_request *r, uint32_t n);
int request_reserve_mass(struct engine_request *r, uint32_t n_blocks);

/* As the sink's last figures; now_ns is the end. */
void request_usage(const struct engine_request *r, uint64_t now_ns, struct output_usage *out);

#endif
