/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.h - requests, the scheduler and the one thread that drives the device.
 *
 * The engine thread alone owns pool, sequences and workspaces.  Other threads
 * post commands; results come through a request's sink, or a callback on the
 * engine thread that must not block.
 *
 * Several models share the thread, the backend, the KV pool and the places of
 * running sequences.  In turn each model that has running sequences makes a
 * step: one token of running sequences plus a bounded quantum of
 * prompt tokens, one ragged batch, one pass over the weights; then sampling,
 * detokenising and emitting.  Accounts (uids, or what stands for a key) share
 * places, tokens and prompt tokens by weight, see scheduler.h: one alone has a
 * token of every running sequence in each step.  Order among waiting requests
 * is round robin over accounts, first come first served inside one, whatever
 * models they ask for.
 *
 * A request whose sink is full is parked: it keeps its blocks but takes no part in
 * steps, until engine_room().  When blocks run out, parked sequences are
 * preempted first, then younger running ones of the same model, then younger ones of other
 * models that can empty a chunk of the pool together; a preempted sequence gives
 * back its blocks, waits, prefills its tokens again and goes on bit-identically.
 * The oldest sequence always gets on.
 */
#ifndef KVD_ENGINE_H
#define KVD_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/engine/sampler.h"
#include "daemon/engine/sink.h"
#include "daemon/model/model.h"
#include "ipc/base/account.h"
#include "ipc/base/error.h"

struct engine;
struct engine_model;	/* a model in the engine */
struct store;

struct engine_config {
	struct kb_backend *backend;
	struct accounts *accounts;
	uint64_t kv_memory;		/* bytes */
	uint64_t host_memory;		/* bytes of the compressed tier behind it, see host.h; 0: none */
	uint64_t block_bytes;		/* of the largest block known to come (see model_geometry()); 0: none */
	enum kb_kv_type kv_type;	/* of all models */
	uint32_t block_tokens;		/* 16, 32, 64, Q4: 32; 0: what suits the type */
	uint32_t max_seqs;		/* running at once; 0: 16 */
	uint32_t prefill_quantum;	/* prompt tokens per step beside decoding; 0: 256 */
	uint32_t max_queue;		/* waiting requests; 0: 1024 */
	/*
	 * A step that has prompt tokens beside decoding takes at most about so many percent of the time of one without,
	 * 100 at least, as far as measured times tell, if its quantum allows more; 0: it has the whole quantum.
	 */
	uint32_t gap_percent;
	bool attention_mass;		/* measure what blocks draw, for eviction, where the backend can */
	/* Where blocks are kept for good, the engine's alone until it is freed, and outlives it; NULL: nowhere. */
	struct store *store;
	/*
	 * The memory of an earlier engine, as engine_kept_fds() gave it: its blocks are found again.  Both are taken
	 * over, also on failure; at most 2 (the standard descriptors), -1: none.  Whatever is wrong with them means
	 * that nothing is kept.
	 */
	int kept_pool, kept_index;
	/* On the engine's thread: a line for the log on what was kept and can't be used; NULL: nobody asks. */
	void (*kept_event)(void *arg, const char *text);
	void *kept_event_arg;
	bool kv_memory_auto;		/* kv_memory is a suggestion: the kept pool's size, if that is more, wins */
	bool no_fairness;		/* all that decode are in every step, whoever has how many of them */
	bool no_cache;			/* recompute the whole sequence for every token: a baseline */
	uint64_t step_delay_ns;		/* tests: sleep before each step */
};

/* One vector for a whole prompt, of its tokens' final hidden states. */
enum engine_pooling { ENGINE_POOLING_NONE, ENGINE_POOLING_MEAN, ENGINE_POOLING_LAST };

struct engine_request_params {
	struct sampler_params sampling;
	uint32_t max_tokens;		/* UINT32_MAX: until the context is full; 0: none, the prompt is computed */
	const char *const *stop;	/* [n_stop] NUL-terminated, not empty */
	size_t n_stop;
	bool ignore_eos;
	bool progress;			/* emit SINK_PROGRESS during prefill */
	bool prompt_logprobs;		/* emit SINK_PROMPT for the prompt's tokens ... */
	uint32_t prompt_logprobs_from;	/* ... from this position on */
	uint32_t prompt_alternatives;	/* each followed by the most likely tokens there, at most
					 * ENGINE_PROMPT_ALTERNATIVES_MAX; 0: by none */
	/*
	 * Not NONE: the prompt is computed, and SINK_EMBEDDING emitted before the end; max_tokens and prompt_logprobs
	 * count as 0 and false.  MEAN needs every token's state, so that nothing is taken from the cache.
	 */
	enum engine_pooling pooling;
	/* The namespace of the cache that it reads and fills, at most TREE_NAME_MAX bytes; NULL, "": none. */
	const char *ns;
	uint64_t ttl_ns;		/* what it leaves there expires so long after its last use; 0: never */
	int priority;			/* of what it leaves there: -1 low, 0 normal, 1 high */
	bool pin;			/* the whole blocks of its prompt are pinned for its uid, or it fails */
	/*
	 * Other namespaces that the uid may know of, to explain what is missing: own, with those below
	 * it (NULL: none), and n_also more, at most ENGINE_ALSO_MAX.  At most TREE_NAME_MAX bytes each.
	 */
	const char *own;
	const char *const *also;
	size_t n_also;
	uint32_t weight;		/* its account's, as of its latest request; 0: ENGINE_WEIGHT */
	uint64_t deadline_ns;		/* of clock_ns(): then it ends with SINK_ERROR_DEADLINE; 0: never */
};

#define ENGINE_ALSO_MAX 16
#define ENGINE_PROMPT_ALTERNATIVES_MAX 20u
#define ENGINE_WEIGHT 100u		/* one user's */
#define ENGINE_WEIGHT_MAX 10000u	/* more counts as that */

/*
 * A request, made by any thread, then owned by the engine once submitted.
 * All strings and arrays are copied by engine_request_new().
 */
struct engine_request;

/*
 * model: see engine_submit(); not looked at before.
 * client: a key unique to the session for the daemon's life; id: chosen by the client, unique in it.
 * prompt: taken over (malloc'd) on success; n_prompt > 0, ids < n_vocab.
 */
int engine_request_new(struct engine_request **out, struct engine_model *model, uint64_t client, uint64_t id,
		       uid_t uid, int32_t *prompt, size_t n_prompt,
		       const struct engine_request_params *params, struct sink *sink);
void engine_request_free(struct engine_request *r);	/* one that was never submitted */

#define ENGINE_E_CONTEXT 1	/* prompt longer than the context less one: diag says both numbers */
#define ENGINE_E_BUSY 2		/* the queue is full */
#define ENGINE_E_QUOTA 3	/* the uid's requests are used up */
#define ENGINE_E_TOO_BIG 4	/* can never fit the pool */

#define ENGINE_E_UNLOADED 5	/* the model is being removed */

/* Makes the pool and starts the thread; there is no model yet. */
int engine_new(struct engine **out, const struct engine_config *config, struct diag *diag);
/*
 * Ends every request with SINK_ERROR_SHUTDOWN, releases every sink, joins, and
 * lets go of all models.
 */
void engine_free(struct engine *e);
CLEANUP_DEFINE(struct engine, engine_free)

/*
 * The memfds that hold pool and index, for somebody who keeps them (duplicates of them) beyond this process, however
 * it ends.  Valid until engine_free(); -1 both where nothing can be kept: no_cache, a device whose memory the host
 * does not reach.  Any thread.
 */
void engine_kept_fds(const struct engine *e, int *pool, int *index);

/* What was found in the descriptors that engine_new() was given.  Never changes: any thread. */
struct engine_kept {
	bool given, taken;		/* there were descriptors; they are in use */
	uint64_t n_blocks;		/* good ones: their models' to find, once they are loaded */
	uint64_t n_dropped;		/* others */
	char why[128];			/* not taken, or blocks dropped: a sentence; else "" */
};
void engine_kept(const struct engine *e, struct engine_kept *out);

/*
 * Any thread; requests of other models go on meanwhile.  model outlives what
 * engine_remove_model() says, or the engine.  Requests may be submitted at once.
 * -EINVAL: its blocks do not fit the pool's chunks, or the pool holds less than
 * two tokens; -ENOMEM; -ESHUTDOWN; diag says why.
 */
int engine_add_model(struct engine *e, struct model *model, struct engine_model **out, struct diag *diag);
/* The same with blocks of its own size; 0: the engine's. */
int engine_add_model_blocks(struct engine *e, struct model *model, uint32_t block_tokens, struct engine_model **out,
			    struct diag *diag);
/*
 * Any thread, once for each model.  New requests of it are refused from now on,
 * those that it has end with SINK_ERROR_UNLOADED; then the engine lets go of the
 * model and calls fn on its thread: now the caller may model_free().  Others go on.
 * 0, or -ESHUTDOWN: fn is not called, engine_free() lets go of the model.
 */
typedef void (*engine_removed_fn)(void *arg);
int engine_remove_model(struct engine *e, struct engine_model *em, engine_removed_fn fn, void *arg);
/*
 * Once it is removed or the engine freed, and nobody submits any more.  Until
 * then a submit is refused in order.  NULL is fine.
 */
void engine_model_free(struct engine_model *em);
CLEANUP_DEFINE(struct engine_model, engine_model_free)

/* Valid until engine_model_free(), any thread. */
const char *engine_model_name(const struct engine_model *em);
/* Tokens of one sequence, prompt included: the model's context, or less where the pool is small. */
uint32_t engine_model_n_ctx(const struct engine_model *em);
uint64_t engine_model_block_bytes(const struct engine_model *em);
uint32_t engine_model_block_tokens(const struct engine_model *em);
uint32_t engine_model_max_piece(const struct engine_model *em);	/* bytes of the longest token */

/*
 * Any thread.  The request's model is in this engine or was removed from it.
 * 0 (r is the engine's), or an ENGINE_E_* or -errno (r is still the
 * caller's): -EINVAL for a token id out of range, -ENOTSUP for pooling where the
 * device gives no hidden states, -ENOMEM, -ESHUTDOWN.
 */
int engine_submit(struct engine *e, struct engine_request *r, struct diag *diag);
/* Any thread.  An unknown id is harmless: it may just have ended. */
void engine_cancel(struct engine *e, uint64_t client, uint64_t id);
void engine_cancel_client(struct engine *e, uint64_t client);
/* Any thread.  The client's sink may have room again. */
void engine_room(struct engine *e, uint64_t client);

/*
 * Any thread.  How long the engine's thread has been at what it does now, a step, a command or a round of
 * admission; 0: it waits for work.
 */
uint64_t engine_stuck_ns(const struct engine *e);
/*
 * Any thread.  Seconds after which somebody who was refused with ENGINE_E_BUSY or ENGINE_E_QUOTA may have more luck, by
 * how fast requests have ended lately: ENGINE_WAIT_MIN .. ENGINE_WAIT_MAX.
 */
#define ENGINE_WAIT_MIN 1u
#define ENGINE_WAIT_MAX 60u
uint32_t engine_wait_hint(struct engine *e, uid_t account);

enum engine_phase { ENGINE_QUEUED, ENGINE_PREFILL, ENGINE_DECODE, ENGINE_PARKED };

struct engine_request_view {
	const struct engine_model *model;
	uint64_t client, id;
	uid_t uid;
	enum engine_phase phase;
	uint32_t n_prompt, n_computed, n_generated, n_blocks, n_preempted;
	uint64_t kv_bytes;		/* of its blocks, the open one included */
	uint64_t age_ns;
};

/*
 * The callback runs on the engine thread between steps, once; with none listed
 * where memory is short.  engine_ps(): 0, ENGINE_E_BUSY (too many are pending)
 * or -ESHUTDOWN; then it is not called.
 */
typedef void (*engine_ps_fn)(void *arg, const struct engine_request_view *views, size_t n);
int engine_ps(struct engine *e, engine_ps_fn fn, void *arg);

/*
 * Figures since the start; any thread, a consistent copy.  Blocks are of
 * different sizes where there are several models: used ones are added up, free
 * and capacity are those of the model that has room for the fewest.
 */
struct engine_stats {
	uint64_t steps, prompt_tokens, generated_tokens;
	uint64_t requests_done, requests_cancelled, requests_failed, preemptions;
	uint32_t n_running, n_queued, n_parked;
	/* Used by sequences or pinned; kept in the cache, and let go when room is needed; free. */
	uint32_t blocks_used, blocks_cached, blocks_free, blocks_capacity;
	uint64_t kv_bytes, kv_bytes_used;	/* all; of the used ones */
	uint64_t open_bytes;		/* beside it: of open blocks, where the KV type has such */
	/* The host tier: its budget, all that it takes of it, and what its blocks took in the pool; blocks. */
	uint64_t host_bytes, host_bytes_used, host_bytes_plain;
	uint32_t host_blocks;
	uint64_t host_stored, host_restored, host_damaged;	/* blocks that went there, came back, could not */
	/*
	 * Blocks that the next process would find; those found of an earlier one (or of an earlier load) by the models
	 * that are loaded, used of them, damaged; bytes of the pool with blocks of models that are not loaded, which
	 * count as free.
	 */
	uint32_t blocks_kept;
	uint64_t kept_adopted, kept_verified, kept_damaged, kv_bytes_dormant;
	uint64_t busy_ns;		/* time in steps */
	/* Requests that looked into the cache, those that found something; tokens found; entries evicted. */
	uint64_t cache_lookups, cache_hits, cached_tokens, cache_evicted;
};
void engine_stats(struct engine *e, struct engine_stats *out);

/* The same of one model, since it was added. */
struct engine_model_stats {
	uint64_t steps, prompt_tokens, generated_tokens, busy_ns;
	uint32_t n_requests;		/* submitted and not ended: 0 when it has drained */
	uint32_t n_running, n_queued, n_parked;
	uint32_t blocks_used, blocks_cached, blocks_free, blocks_capacity;
	uint32_t host_blocks;		/* of it in the host tier */
	uint64_t host_stored, host_restored, host_damaged;	/* as in engine_stats */
	uint32_t blocks_kept;
	uint64_t kept_adopted, kept_verified, kept_damaged;
	uint64_t kv_bytes_used;
};
void engine_model_stats(struct engine *e, const struct engine_model *em, struct engine_model_stats *out);

#endif
