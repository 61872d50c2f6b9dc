/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine-private.h - the engine's state and what its files offer each other.
 *
 *   engine.c     commands from other threads; the thread's loop
 *   engine-model.c  models come and go
 *   admission.c  who gets in, who gets blocks
 *   reclaim.c    who is preempted for it
 *   open.c       blocks that are not sealed yet
 *   prefix.c     what a sequence takes from the prefix tree, and leaves there
 *   mass.c       how much attention its blocks draw
 *   prefix-miss.c  where else it could have had what it did not find
 *   disk.c       what the disk has of it; disk-store.c opens it
 *   identity.c   what its numbers depend on
 *   kept.c       what an earlier process has left of it in memory
 *   step.c       one ragged batch through the model, and its tokens
 *   delivery.c   events to sinks; parking; how requests end
 *   pulse.c      deadlines; what others may know of how it gets on
 *   gap.c        how much is done beside sequences that decode; see pace.h
 *   cache-control.c  what people ask of the cache; disk-control.c  of what is on disk
 *   share.c, export.c, import.c, verify.c    its bytes go out, come in, and are computed again; see share.h
 *
 * All functions here: the engine thread, unless said.
 */
#ifndef KVD_ENGINE_PRIVATE_H
#define KVD_ENGINE_PRIVATE_H

#include <pthread.h>
#include <string.h>

#include "daemon/cache/host.h"
#include "daemon/cache/pool.h"
#include "daemon/cache/store-identity.h"
#include "daemon/cache/tree.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/pace.h"
#include "daemon/engine/request.h"
#include "daemon/engine/scheduler.h"
#include "daemon/model/tokenizer.h"

#define ENGINE_CALLS_MAX 64	/* asked for and not answered, */
#define ENGINE_CALLS_ROUND 4	/* and answered between two steps, so that whoever asks much holds up none */

/* Something that others want done on the thread, between steps: a listing, or anything. */
struct engine_call {
	engine_ps_fn ps;
	void (*fn)(struct engine *e, void *arg);	/* NULL: ps */
	void *arg;
};

/* A sequence's part of the step in flight. */
struct step_entry {
	struct engine_request *request;
	uint32_t first_logits;		/* of its rows with logits ... */
	uint32_t n_prompt_logits;	/* ... those of the prompt; then, if it has one, the last's */
	uint32_t first_hidden, n_hidden;	/* of its rows with hidden states */
	bool generates;
	bool decodes;			/* one token, and no more */
};

/* What models have in a chunk of the pool, see reclaim.c. */
struct engine_chunk {
	uint32_t n_blocks;
	uint64_t age;		/* of the oldest holder */
};

struct engine_model {
	/* fixed */
	struct engine *engine;
	struct model *model;
	const struct tokenizer *tokenizer;
	char *name;
	uint32_t n_ctx;			/* tokens of one sequence, prompt included */
	uint32_t n_ctx_model;		/* the model's own; n_ctx is less if the pool is small */
	uint32_t n_vocab, n_embd, block_tokens;
	uint32_t max_piece;		/* bytes of the longest token */
	uint64_t block_bytes;
	uint64_t open_bytes;		/* of a sequence's open block; 0: the KV type has none */

	/* the engine thread's */
	struct list link;		/* in engine.added, .models */
	struct pool_root *root;
	struct tree *tree;		/* of the blocks that are kept */
	struct store_root *disk;	/* NULL: none */
	bool disk_tried, kept_tried;
	bool kept_damage_told;
	uint32_t n_disk_jobs;		/* in the store's hands */
	struct disk_backlog *backlog;	/* what is still to be written; NULL: nothing yet */
	struct kb_workspace *ws;
	struct sampler *sampler;
	struct sched_model sched;
	struct engine_model_stats stats;
	uint64_t last_step_ns;
	struct pace pace;
	uint32_t n_decode;		/* rows of decoding in its last plan */

	/* under the engine's lock */
	struct list removal_link;	/* in engine.removals */
	bool removing;
	uint32_t n_requests;		/* submitted and not ended */
	uint32_t n_incoming;		/* of them in engine.incoming */
	engine_removed_fn removed;
	void *removed_arg;
	struct engine_model_stats published;
};

struct engine {
	/* fixed */
	struct kb_backend *be;
	struct accounts *accounts;
	enum kb_kv_type kv_type;
	uint32_t block_tokens, max_queue, gap_percent;
	bool no_cache, measures_mass;
	uint64_t step_delay_ns;
	uint64_t number_key;		/* see cache-control.c */
	struct engine_kept kept;
	void (*kept_event)(void *arg, const char *text);
	void *kept_event_arg;
	pthread_t thread;
	bool thread_started;

	/* the engine thread's; other threads may make roots in the pool */
	struct pool *pool;
	struct host *host;		/* NULL: there is none */
	struct store *store;		/* NULL: no disk */
	uint64_t disk_expiry;		/* when it is next asked for what has expired; monotonic */
	bool disk_expiring;		/* it is being asked */
	struct list models;		/* the first has its turn */
	struct scheduler sched;
	bool lacks_blocks;		/* why what is being admitted has to wait */
	uint32_t n_lent;		/* blocks that verify.c has, and soon gives back */
	uint32_t n_open;		/* open blocks of requests, at most max_seqs */
	struct list finished;		/* to be released at the end of the round */
	struct heap deadlines;		/* of requests that have one, the next first */
	uint64_t step_end_ns;		/* when the last step ended */
	uint64_t last_end_ns;		/* when a request that had been admitted ended */
	struct sink *dirty;		/* to be flushed */
	struct engine_stats stats;
	uint64_t evicted_before;	/* from models that are gone */
	struct engine_chunk *chunks;	/* [number of the pool's chunks], see reclaim.c */
	int32_t *row_tokens;		/* [max_seqs + quantum] */
	struct kb_seq *seqs;		/* [max_seqs] */
	struct step_entry *entries;	/* [max_seqs] */
	uint32_t *logit_rows;		/* [max_seqs + logits_quantum] */
	uint32_t *hidden_rows;		/* [max_seqs + quantum] */

	_Atomic uint64_t pulse_ns;	/* when it began what it does now; 0: it waits */

	pthread_mutex_t lock;
	pthread_cond_t wake;
	/* under the lock */
	struct list added;		/* models that the thread has not seen yet */
	struct list removals;		/* models to be let go of */
	struct list incoming;
	struct list requests;		/* live; changed by the engine thread only */
	uint32_t n_incoming;
	bool stop;
	bool disk_done;			/* the store has done something */
	bool attention;			/* some request's flag was set */
	struct engine_call calls[ENGINE_CALLS_MAX];
	size_t n_calls;
	struct engine_stats published;
	uint64_t end_interval_ns;	/* between the ends of requests, a moving average; 0: none has ended */
};

/* engine.c */
void engine_publish(struct engine *e);
/* Any thread: fn is called on the engine's, between steps.  As engine_ps(). */
int engine_call(struct engine *e, void (*fn)(struct engine *e, void *arg), void *arg);

/* engine-model.c: ends its requests, lets go of it and tells who asked. */
void engine_let_go(struct engine *e, struct engine_model *em);
/* A random number that is secret: nobody can make what depends on it come out as he likes. */
uint64_t engine_random(void);
/* Of a model that has no requests. */
void engine_model_release(struct engine *e, struct engine_model *em);

/* admission.c */
void engine_admit(struct engine *e);
/* A block for the request, at the cost of what is kept for later.  What pool_block_get() says. */
int engine_get_block(struct engine *e, struct engine_request *r, uint32_t *block);
/* Every active sequence of the model gets the blocks for its tokens, or is preempted or ended. */
void engine_provide_blocks(struct engine *e, struct engine_model *em);

/* reclaim.c */
/* Makes a block free, or a chunk of the pool, that is only kept for later.  False: there is none. */
bool engine_evict(struct engine *e, struct engine_model *em);
/* A block that the uid is charged for, of any model. */
bool engine_evict_of(struct engine *e, struct engine_model *em, uid_t uid);
/* Blocks that the model can have without taking any from a sequence; not all are counted where that is enough. */
uint64_t engine_n_available(struct engine *e, struct engine_model *em, uint64_t enough);
void engine_release_blocks(struct engine *e, struct engine_request *r);
/* Takes the sequence's blocks away.  A parked one stays parked: its reader must make room first. */
void engine_preempt(struct engine *e, struct sched_seq *seq);
/*
 * Preempts what the model can get a block or a chunk from: idle sequences, then running
 * ones of a rank above `rank` (UINT64_MAX: none).  False: there are none.
 */
bool engine_reclaim(struct engine *e, struct engine_model *em, uint64_t rank);
/* Blocks of the model's that engine_reclaim(e, em, UINT64_MAX) can make free. */
uint64_t engine_reclaimable_idle(struct engine *e, struct engine_model *em);

/* open.c; of a model without open blocks both do nothing */
#define ENGINE_OPEN_E_QUOTA 16	/* the uid's memory is used up; no POOL_E_* */
/*
 * The request has its open block: before it becomes active.  0, ENGINE_OPEN_E_QUOTA, -ENOMEM.  Its content is that of
 * the steps before, or n_computed is at a block's beginning.
 */
int engine_open_get(struct engine *e, struct engine_request *r);
/* It has none any more; what it had of its last block is not computed. */
void engine_open_drop(struct engine *e, struct engine_request *r);

/* prefix.c; of a request that has no part in the cache all do nothing */
/* When it gets into the queue.  0, -ENOMEM. */
int engine_prefix_init(struct engine *e, struct engine_request *r);
/* Tokens for a lookup, which takes all but the last at most: where a token's logits or state are wanted it ends. */
uint32_t engine_prefix_n_lookup(const struct engine_request *r);
/* What it would find now. */
void engine_prefix_peek(struct engine_request *r, uint64_t now, struct tree_peek *out);
/* Tokens of it that are there or that others are computing: for the scheduler. */
uint32_t engine_prefix_n_cached(struct sched_seq *seq);
/* Others compute more of its prefix: it leaves the queue until that is there or given up.  False: they don't. */
bool engine_prefix_wait(struct engine *e, struct engine_request *r, uint64_t now);
/* Back into the queue with those who need not wait any more. */
void engine_prefix_woken(struct engine *e);
/*
 * What is in the host tier of its prefix comes back into the pool, as far as there is room.  True: there is
 * more, to be asked for again when those that run have had their turn.
 */
bool engine_prefix_restore(struct engine *e, struct engine_request *r, uint64_t now);
/*
 * Its table, which is empty, gets the blocks that are there; then, once it has a block more, the n_tail first tokens of
 * tail_block, or of a tail in the host tier, are copied into that one.  tail false: whole blocks alone.
 * 0, -ENOMEM; what copy_tokens() says.
 */
#define ENGINE_TAIL_STORED UINT32_MAX
int engine_prefix_take(struct engine_request *r, bool tail, uint64_t now, uint32_t *n_tail,
		       uint32_t *tail_block);
int engine_prefix_copy_tail(struct engine *e, struct engine_request *r, uint32_t n_tail, uint32_t tail_block);
/* It runs from now on: others with the same tokens wait for it. */
void engine_prefix_claim(struct engine_request *r);
/* After a step: blocks that are full now are of use to others. */
void engine_prefix_enter(struct engine_request *r);
/* The prompt is computed: pins its whole blocks.  NULL, or why that can't be. */
const char *engine_prefix_pin(struct engine_request *r);
/* It can't go on for now: nobody waits for it. */
void engine_prefix_abandon(struct engine_request *r);
/* Its blocks are about to go from it: what it computed stays in the tree. */
void engine_prefix_leave(struct engine_request *r);
void engine_prefix_deinit(struct engine_request *r);

/* mass.c */
#define ENGINE_MASS_EVERY 8u	/* tokens of a sequence, of which the first is measured */
/* Before a step, of the request's part in it: asks for attention mass where that is due. */
void engine_mass_ask(const struct engine *e, struct engine_request *r, struct kb_seq *seq);
/* After the step. */
void engine_mass_take(struct engine_request *r, const struct kb_seq *seq);

/* prefix-miss.c */
#define ENGINE_PREFIX_ALSO_MAX 32u
/* Other namespaces in which its prompt is looked for to explain a miss: [ENGINE_PREFIX_ALSO_MAX]; returns how many. */
size_t engine_prefix_also(const struct engine_request *r, struct tree_name *out);
enum sink_miss engine_prefix_miss(const struct engine_request *r, const struct tree_match *match,
				  const struct tree_name *also);

/* disk.c; without a disk all do nothing */
/* Before the thread starts.  store: NULL, or the engine's from now on. */
void engine_disk_open(struct engine *e, struct store *store);
/* After all models were removed. */
void engine_disk_close(struct engine *e);
/* Of a model that has no requests; as long as the disk needs for what it has begun. */
void engine_disk_remove(struct engine *e, struct engine_model *em);
/* Takes up what the disk has done, and asks it for what it has of models that are new. */
void engine_disk_poll(struct engine *e);
/* Blocks of the request's path that the disk has not got yet go there, as many as are taken. */
void engine_disk_write(struct engine_request *r);
/* It is asked, once, for what the tree has not: the request leaves the queue until there is an answer. */
bool engine_disk_ask(struct engine *e, struct engine_request *r, const struct tree_peek *peek);
/* The request has its blocks: those that the disk has are read, and then it is ready.  False: there are none. */
bool engine_disk_read(struct engine *e, struct engine_request *r);
/* The request ends. */
void engine_disk_forget(struct engine_request *r);

/* kept.c */
/* Makes the pool, of the descriptors if they are any good: then they are its own and -1.  0, -errno with a sentence. */
int engine_kept_open(struct engine *e, const struct engine_config *config, int *pool_fd, int *index_fd,
		     struct diag *diag);

/* Of models that are new: what is kept of them is in their trees. */
void engine_kept_adopt(struct engine *e);
/*
 * What a lookup would find of the request's prompt is verified, as far as that is due.  True: there is more, to be
 * asked for again when those that run have had their turn.
 */
bool engine_kept_verify(struct engine *e, struct engine_request *r, uint64_t now);

/* identity.c; id is zeroed */
void engine_identify(const struct engine *e, const struct engine_model *em, struct store_identity *id);
/* Fields of it for people; see `describe` in store.h. */
void engine_describe_identity(const struct store_field *f, char *out, size_t size);

/* disk-control.c; of models that have a disk */
struct cache_command;
#define CACHE_PENDING 1000	/* the command is answered later */
/* What the command wipes on disk, of one root or of all.  CACHE_PENDING, -ENOMEM.  Also without an engine. */
int engine_disk_wipe(struct store *store, struct store_root *root, struct cache_command *c);
/* Drops an entry of the tree's, there and on disk. */
int engine_disk_drop(struct engine_model *em, const struct tree_view *v, struct cache_command *c);
/* Pinned in the tree, or no longer (every: by nobody any more): so it is on disk. */
void engine_disk_pin(struct engine_model *em, struct tree_ref ref, uid_t uid, bool pin, bool every);
/* It got to the disk: so do its pins. */
void engine_disk_pin_written(struct engine_model *em, struct tree_ref ref);
/* views: of the command's entries so far; then come those that are on disk alone.  CACHE_PENDING, -ENOMEM. */
int engine_disk_list(struct engine_model *em, struct cache_command *c, const struct tree_view *views);
/* An entry that is on disk alone.  CACHE_PENDING, -ENOMEM. */
int engine_disk_on_entry(struct engine_model *em, struct cache_command *c);
/* The tree's entry of what has this id on disk; 0: none.  Looks at all entries. */
uint64_t engine_disk_tree_id(const struct engine_model *em, uint64_t id);
/*
 * What the disk is doing for requests of a namespace that fn wants (uid is not told; NULL: of the model) is of no
 * use.
 */
void engine_disk_wiped(struct engine *e, const struct engine_model *em, tree_want_fn fn, void *arg);

/* cache-control.c */
struct cache_scope;
uint64_t cache_number(const struct engine *e, uint64_t id);
uint64_t cache_id(const struct engine *e, uint64_t number);
/* Of what is on disk alone. */
bool cache_is_on_disk(uint64_t number);
bool cache_owns(const struct cache_scope *s, struct tree_name name);
/* The text of n tokens, as much as fits; a token that cuts off a code point is left out. */
void cache_copy_text(const struct engine_model *em, const int32_t *tokens, uint32_t n, char *out, size_t size);
bool engine_has_model(const struct engine *e, const struct engine_model *em);
/* The namespace `top` itself, or one below it. */
bool cache_is_within(struct tree_name name, const char *top);
/* tree_want_fn, arg: a cache_scope, and what it shows. */
bool cache_sees(void *arg, struct tree_name name, uid_t uid);

/* step.c: one step of the model over its active sequences. */
void engine_step(struct engine *e, struct engine_model *em);

/* delivery.c */
/* Offers the request's pending events; it is then going on, parked or ended. */
void engine_deliver(struct engine *e, struct engine_request *r);
void engine_progress(struct engine *e, struct engine_request *r);
void engine_finish(struct engine *e, struct engine_request *r, enum sink_finish reason);
void engine_fail(struct engine *e, struct engine_request *r, enum sink_error code, const char *text);
/* Flushes sinks, then lets go of requests that ended. */
void engine_settle(struct engine *e);

/* gap.c */
/* As much as may be has been done since the last step, if anybody waits for the next. */
bool engine_gap_used(const struct engine *e);
/* Prompt tokens that the model's step may have; its furthest prompt is at that position, its decoding is planned. */
uint32_t engine_gap_tokens(const struct engine *e, const struct engine_model *em, uint32_t position);
/* The model's step took so long. */
void engine_gap_note(struct engine *e, struct engine_model *em, const struct kb_batch *b, uint64_t ns);

/* pulse.c */
/* The thread begins something that may take long. */
void engine_pulse(struct engine *e);
/* It is about to wait. */
void engine_rest(struct engine *e);
/* New requests. */
void engine_deadline_set(struct engine *e, struct engine_request *r);
/* Ends those whose time is up. */
void engine_deadlines(struct engine *e);
/* When the next one's is; UINT64_MAX: nobody has a deadline. */
uint64_t engine_next_deadline(const struct engine *e);
/* Under the lock: the request, which had been admitted, ends. */
void engine_note_end(struct engine *e, const struct engine_request *r);

#endif
