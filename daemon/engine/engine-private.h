/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine-private.h - the engine's state and what its files offer each other.
 *
 *   engine.c     commands from other threads; the thread's loop
 *   admission.c  who gets in, who gets blocks, who is preempted
 *   step.c       one ragged batch through the model, and its tokens
 *   delivery.c   events to sinks; parking; how requests end
 *
 * All functions here: the engine thread.
 */
#ifndef KVD_ENGINE_PRIVATE_H
#define KVD_ENGINE_PRIVATE_H

#include <pthread.h>

#include "daemon/cache/pool.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/request.h"
#include "daemon/engine/scheduler.h"
#include "daemon/model/tokenizer.h"

#define ENGINE_PS_MAX 64	/* listings asked for and not answered */

/* A sequence's part of the step in flight. */
struct step_entry {
	struct engine_request *request;
	uint32_t logits;		/* index of its row of logits, or NO_LOGITS */
};
#define NO_LOGITS UINT32_MAX

struct engine {
	/* fixed */
	struct kb_backend *be;
	struct model *model;
	const struct tokenizer *tokenizer;
	struct accounts *accounts;
	uint32_t n_ctx;			/* tokens of one sequence, prompt included */
	uint32_t n_ctx_model;		/* the model's own; n_ctx is less if the pool is small */
	uint32_t n_vocab, block_tokens, max_queue;
	bool no_cache;
	uint64_t step_delay_ns;
	pthread_t thread;
	bool thread_started;

	/* the engine thread's */
	struct pool *pool;
	struct pool_root *root;
	struct kb_workspace *ws;
	struct sampler *sampler;
	struct scheduler sched;
	struct list finished;		/* to be released at the end of the round */
	struct sink *dirty;		/* to be flushed */
	struct engine_stats stats;
	int32_t *row_tokens;		/* [max_seqs + quantum] */
	struct kb_seq *seqs;		/* [max_seqs] */
	struct step_entry *entries;	/* [max_seqs] */
	uint32_t *logit_rows;		/* [max_seqs] */

	pthread_mutex_t lock;
	pthread_cond_t wake;
	/* under the lock */
	struct list incoming;
	struct list requests;		/* live; changed by the engine thread only */
	uint32_t n_incoming;
	bool stop;
	bool attention;			/* some request's flag was set */
	struct engine_ps_command { engine_ps_fn fn; void *arg; } ps[ENGINE_PS_MAX];
	size_t n_ps;
	struct engine_stats published;
};

/* admission.c */
void engine_admit(struct engine *e);
/* Every active sequence gets the blocks for its tokens, or is preempted or ended. */
void engine_provide_blocks(struct engine *e);
void engine_release_blocks(struct engine *e, struct engine_request *r);

/* step.c: one step over the active sequences. */
void engine_step(struct engine *e);

/* delivery.c */
/* Offers the request's pending events; it is then going on, parked or ended. */
void engine_deliver(struct engine *e, struct engine_request *r);
void engine_progress(struct engine *e, struct engine_request *r);
void engine_finish(struct engine *e, struct engine_request *r, enum sink_finish reason);
void engine_fail(struct engine *e, struct engine_request *r, enum sink_error code, const char *text);
/* Flushes sinks, then lets go of requests that ended. */
void engine_settle(struct engine *e);

#endif
