/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a sequence takes from the prefix tree, and what it leaves there.
 *
 * A request that takes part in the cache has a path in its model's tree from the queue on.  While it holds
 * blocks, the first tree_path_n_blocks() of its table are the path's.
 */
#include "daemon/engine/engine-private.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"

/* In one round beside running sequences, at most: at some 500 MB/s, with what must make room, some 15 ms. */
#define RESTORE_BYTES (UINT64_C(8) << 20)

static struct engine_request *request_of_path(struct tree_path *path)
{
	return list_entry(path, struct engine_request, path);
}

int engine_prefix_init(struct engine *e, struct engine_request *r)
{
	struct tree_name name = { .bytes = r->ns, .n = r->ns ? strlen(r->ns) : 0 };
	struct evict_terms terms = {
		.ttl = r->params.ttl_ns, .priority = (enum evict_priority)r->params.priority,
	};

	if (!r->ns || e->no_cache)
		return 0;
	r->miss = SINK_MISS_EMPTY;
	return tree_path_init(&r->path, r->model->tree, name, r->uid, &terms, clock_ns());
}

uint32_t engine_prefix_n_lookup(const struct engine_request *r)
{
	uint32_t n = r->seq.n_tokens;

	if (r->seq.logits_from < r->seq.logits_to)
		n = MIN(n, r->seq.logits_from + 1);
	if (r->pooling.next < r->pooling.end)
		n = MIN(n, r->pooling.next + 1);
	return n;
}

void engine_prefix_peek(struct engine_request *r, uint64_t now, struct tree_peek *out)
{
	*out = (struct tree_peek){ 0 };
	if (r->path.tree)
		tree_peek(&r->path, r->tokens, engine_prefix_n_lookup(r), now, out);
}

uint32_t engine_prefix_n_cached(struct sched_seq *seq)
{
	struct tree_peek peek;

	engine_prefix_peek(request_of(seq), clock_ns(), &peek);
	return peek.n_tokens + peek.n_stored * request_of(seq)->model->block_tokens + peek.n_pending;
}

bool engine_prefix_wait(struct engine *e, struct engine_request *r, uint64_t now)
{
	struct tree_match match;

	tree_lookup(&r->path, r->tokens, engine_prefix_n_lookup(r), true, NULL, 0, now, &match);
	if (match.waits)
		scheduler_hold(&e->sched, &r->seq);
	else
		tree_path_reset(&r->path, clock_ns());
	return match.waits;
}

void engine_prefix_woken(struct engine *e)
{
	struct tree_path *path;

	list_for_each(l, &e->models) {
		struct engine_model *em = list_entry(l, struct engine_model, link);

		while ((path = tree_next_woken(em->tree)))
			scheduler_push(&e->sched, &request_of_path(path)->seq);
	}
}

static enum sink_miss miss_of(const struct engine_request *r, const struct tree_match *match,
			      const struct tree_name *also)
{
	/* Without that wish there might have been more. */
	if ((match->miss == TREE_MISS_NONE || match->miss == TREE_MISS_BLOCK) &&
	    engine_prefix_n_lookup(r) < r->n_prompt)
		return SINK_MISS_LOGPROBS;
	return engine_prefix_miss(r, match, also);
}

/* The path's blocks, with references of its own. */
static void ref_blocks(struct engine_request *r)
{
	r->seq.n_blocks = tree_path_n_blocks(&r->path);
	tree_path_blocks(&r->path, 0, r->blocks);
	for (uint32_t i = 0; i < r->seq.n_blocks; i++)
		pool_block_ref(r->model->root, r->blocks[i]);
}

int engine_prefix_take(struct engine_request *r, bool tail, uint64_t now, uint32_t *n_tail, uint32_t *tail_block)
{
	uint32_t n = engine_prefix_n_lookup(r), block_tokens = r->model->block_tokens;
	struct tree_name also[ENGINE_PREFIX_ALSO_MAX];
	struct tree_match match;
	size_t n_also;
	int err;

	*n_tail = 0;
	if (!r->path.tree)
		return 0;
	/* The explanation is of the first time. */
	n_also = r->admit_ns ? 0 : engine_prefix_also(r, also);
	tree_lookup(&r->path, r->tokens, n, false, also, n_also, now, &match);
	if (!tail && match.n_tail) {
		tree_tail_done(&r->path);
		match.n_tokens -= match.n_tail;
		match.n_tail = 0;
	}
	err = request_reserve_blocks(r, match.n_tokens / block_tokens);
	if (err)
		return err;
	ref_blocks(r);
	r->seq.n_computed = r->seq.n_blocks * block_tokens;
	*n_tail = match.n_tail;
	*tail_block = match.tail_stored ? ENGINE_TAIL_STORED : match.tail_block;
	if (!r->admit_ns) {
		r->n_cached = match.n_tokens;
		r->miss = miss_of(r, &match, also);
		r->n_same = r->miss == SINK_MISS_DIFFERS ? match.n_same : 0;
	}
	return 0;
}

int engine_prefix_copy_tail(struct engine *e, struct engine_request *r, uint32_t n_tail, uint32_t tail_block)
{
	uint32_t depth = tree_path_n_blocks(&r->path), n = n_tail;
	int err = 0;

	if (n_tail && tail_block == ENGINE_TAIL_STORED)
		n = tree_restore_tail(&r->path, r->blocks[depth]) ? 0 : n_tail;
	else if (n_tail)
		err = e->be->ops->copy_tokens(pool_device(e->pool), pool_root_geometry(r->model->root),
					      r->blocks[depth], tail_block, n_tail);
	if (r->path.tree)
		tree_tail_done(&r->path);
	if (err)
		return err;
	r->seq.n_computed += n;
	/* What does not come back is a miss. */
	if (n < n_tail && !r->admit_ns) {
		r->n_cached -= n_tail;
		r->miss = SINK_MISS_EVICTED;
	}
	return 0;
}

bool engine_prefix_restore(struct engine *e, struct engine_request *r, uint64_t now)
{
	uint32_t block_tokens = r->model->block_tokens, max = UINT32_MAX, n = 0;
	struct tree_match match;
	bool later = false;

	if (e->sched.n_active)
		max = (uint32_t)MAX(RESTORE_BYTES / r->model->block_bytes, 1u);
	tree_lookup(&r->path, r->tokens, engine_prefix_n_lookup(r), false, NULL, 0, now, &match);
	for (; n < match.n_stored && !later; n++) {
		const int32_t *tokens = r->tokens + (size_t)tree_path_n_blocks(&r->path) * block_tokens;
		uint32_t block;
		int err;

		if (engine_get_block(e, r, &block))
			break;
		err = tree_restore(&r->path, tokens, clock_ns(), &block);
		pool_block_unref(r->model->root, block);	/* the tree's own keeps it */
		if (err)
			break;
		later = n + 1 == max || engine_gap_used(e);
	}
	tree_path_reset(&r->path, clock_ns());
	return later && n < match.n_stored;
}

void engine_prefix_claim(struct engine_request *r)
{
	/* Where every token's logits are wanted it is slow: others had better not wait for that. */
	uint32_t n = r->seq.logits_from < r->seq.logits_to ? r->seq.logits_from : r->seq.n_tokens;

	if (r->path.tree)
		tree_claim(&r->path, r->tokens, n, clock_ns());
}

void engine_prefix_enter(struct engine_request *r)
{
	uint32_t block_tokens = r->model->block_tokens, i;

	if (!r->path.tree)
		return;
	while (i = tree_path_n_blocks(&r->path), (i + 1) * block_tokens <= r->seq.n_computed)
		/* What is refused is this sequence's alone; the next step tries again. */
		if (tree_enter(&r->path, r->tokens + (size_t)i * block_tokens, clock_ns(), &r->blocks[i]))
			return;
}

const char *engine_prefix_pin(struct engine_request *r)
{
	uint32_t n_blocks = r->n_prompt / r->model->block_tokens;
	struct tree_entry *entry;
	struct tree_view v;

	r->pinned = true;
	if (!n_blocks)
		return NULL;
	entry = r->path.tree ? tree_path_entry(&r->path, r->n_prompt) : NULL;
	if (!entry || tree_depth(entry) < n_blocks)
		return "the prompt can't be pinned: not all of it got into the cache";
	switch (tree_pin(r->model->tree, entry, r->uid)) {
	case 0:
		tree_view(r->model->tree, entry, &v);
		engine_disk_pin(r->model, (struct tree_ref){ entry, v.id }, r->uid, true, false);
		return NULL;
	case TREE_E_FULL:
		return "the prompt can't be pinned: as much as may be pinned is";
	case TREE_E_QUOTA:
		return "the prompt can't be pinned: this user's share of KV memory is used up";
	default:
		return "out of memory";
	}
}

void engine_prefix_abandon(struct engine_request *r)
{
	if (r->path.tree)
		tree_abandon(&r->path);
}

/* The sequence stops here: the block that is not full stays as well. */
static void keep_tail(struct engine_request *r)
{
	uint32_t i = tree_path_n_blocks(&r->path), block_tokens = r->model->block_tokens;

	if (i < r->seq.n_blocks && r->seq.n_computed > i * block_tokens && r->seq.n_computed < (i + 1) * block_tokens)
		(void)tree_keep_tail(&r->path, r->tokens + (size_t)i * block_tokens,
				     r->seq.n_computed - i * block_tokens, r->blocks[i], clock_ns());
}

void engine_prefix_leave(struct engine_request *r)
{
	if (!r->path.tree)
		return;
	keep_tail(r);
	tree_path_reset(&r->path, clock_ns());
}

void engine_prefix_deinit(struct engine_request *r)
{
	tree_path_deinit(&r->path, clock_ns());
}
