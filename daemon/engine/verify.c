/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries are computed again, and compared with what is stored, to the bit.
 *
 * An entry is chosen at random, and all from the beginning of its prompt to it is computed, in order, outside of any
 * request, but for what was compared on another path just before.  Each block is computed into one that is free, and
 * compared; only then do those after it see the stored one in its place, which has the same bits: so nothing is taken
 * from the cache that was not computed, and a path in the pool takes a few blocks, however long it is.  What is stored
 * in the host tier is decoded and compared, and its computed block stays until the path is done.
 */
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "daemon/engine/share-private.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"

#define TOKENS_IDLE 64u		/* in one visit while nothing else runs; beside others it is one block */
#define SHARE_OF_BUSY 4u	/* beside others a visit is followed by a pause, so that it has a quarter of the time */
#define NO_BLOCK UINT32_MAX

/* One block of the path. */
struct path_block {
	struct tree_ref ref;
	uint32_t item;
	uint32_t fresh;		/* the computed one; NO_BLOCK: the stored one is used */
};

struct verify {
	struct engine_model *em;
	struct cache_scope scope;
	struct share_list list;
	struct share_figures *figures;
	struct diag *diag;
	uint64_t random, total;
	int result;
	bool busy;			/* others run */
	/* The path to the item. */
	struct path_block *path;	/* [n_max] */
	uint32_t *table;		/* [n_max] */
	int32_t *tokens;		/* [n_max * block_tokens] */
	uint32_t n_max, n_path, next;
	uint32_t n_fresh;		/* blocks that it has */
	struct kb_geometry geometry;
	struct kb_open *open;		/* of the path, where the KV type has such; or NULL */
	uint8_t *stored, *computed;	/* [block_bytes] */
	struct charge charge;
};

/* --- on the engine's thread --- */

static void begin(struct engine *e, void *arg)
{
	struct verify *v = arg;

	v->result = share_list_init(&v->list, e, v->em, cache_sees, &v->scope);
	if (!v->result && !pool_can_copy(v->em->root))
		v->result = SHARE_E_UNABLE;
	if (!v->result)
		v->geometry = *pool_root_geometry(v->em->root);
}

static void give_back(struct engine *e, struct verify *v, uint32_t i)
{
	if (v->path[i].fresh == NO_BLOCK)
		return;
	pool_block_unref(v->em->root, v->path[i].fresh);
	v->path[i].fresh = NO_BLOCK;
	v->n_fresh--;
	e->n_lent--;
}

/* They are the daemon's own while it computes: who asks may have no more of his share left. */
static int get_blocks(struct engine *e, struct verify *v, uint32_t end)
{
	for (uint32_t i = v->next; i < end; i++) {
		int err;

		do
			err = pool_block_get(v->em->root, geteuid(), &v->path[i].fresh);
		while (err == POOL_E_FULL && engine_evict(e, v->em));
		if (err) {
			v->path[i].fresh = NO_BLOCK;
			return err;
		}
		v->n_fresh++;
		e->n_lent++;
	}
	return 0;
}

/*
 * Tokens and block table of the path up to `end`; returns how many tokens, 0: something of it has gone, or what it
 * follows is not shown.
 */
static uint32_t set_table(struct verify *v, uint32_t end)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < end; i++) {
		struct path_block *b = &v->path[i];
		struct tree_view view;

		if (!tree_ref_view(v->em->tree, b->ref, &view) || view.parent != (i ? v->path[i - 1].ref.id : 0) ||
		    (b->fresh == NO_BLOCK && view.tier != TREE_TIER_POOL))
			return 0;
		v->table[i] = b->fresh == NO_BLOCK ? view.block : b->fresh;
		memcpy(v->tokens + n, view.tokens, view.n_tokens * sizeof(*v->tokens));
		n += view.n_tokens;
	}
	return n;
}

static int compute(struct engine *e, struct verify *v, uint32_t first, uint32_t n_tokens)
{
	uint32_t block_tokens = v->em->block_tokens;

	while (first < n_tokens) {
		uint32_t n = MIN(n_tokens - first, e->sched.quantum), end = first + n;
		struct kb_seq seq = {
			.n_rows = n,
			.first_pos = first,
			.n_blocks = (end + block_tokens - 1) / block_tokens,
			.block_table = v->table,
			.open = v->open,
		};
		struct kb_batch batch = {
			.n_rows = n,
			.tokens = v->tokens + first,
			.n_seqs = 1,
			.seqs = &seq,
			.logit_rows = e->logit_rows,
			.pool = pool_device(e->pool),
			.geometry = pool_root_geometry(v->em->root),
		};
		int err = model_step(v->em->model, v->em->ws, &batch);

		if (!err)
			err = e->be->ops->step_wait(v->em->ws);
		if (err)
			return err;
		first = end;
	}
	return 0;
}

static void note_difference(struct verify *v, const struct tree_view *view)
{
	v->figures->n_differ++;
	diag_write(v->diag, "the first is in namespace %.*s, tokens %u to %u of a prompt, in %s", (int)view->name.n,
		   (const char *)view->name.bytes, view->first, view->first + view->n_tokens - 1,
		   view->tier == TREE_TIER_HOST ? "host memory" : "memory");
}

/* The ith block of the path.  False: it differed, and went with all after it. */
static bool compare(struct verify *v, uint32_t i)
{
	struct tree *t = v->em->tree;
	struct path_block *b = &v->path[i];
	struct tree_view view;
	uint64_t n;
	int err;

	if (!tree_ref_view(t, b->ref, &view))
		return false;
	/* It was damaged before, and says nothing. */
	if (!view.bytes)
		return true;
	n = kb_tokens_bytes(pool_root_geometry(v->em->root), view.n_tokens);
	err = pool_block_read(v->em->root, b->fresh, view.n_tokens, v->computed);
	if (!err)
		err = tree_read(t, b->ref, v->stored);
	if (err < 0)
		return false;
	if (err || memcmp(v->computed, v->stored, n)) {
		note_difference(v, &view);
		/* What is on disk was computed once, too: it goes along, and what is being read of it. */
		engine_disk_wiped(v->em->engine, v->em, NULL, NULL);
		if (tree_ref_view(t, b->ref, &view) &&
		    (!v->em->disk || engine_disk_drop(v->em, &view, NULL) < 0))
			tree_drop(t, b->ref.entry);
		return false;
	}
	if (!v->list.items[b->item].compared) {
		v->list.items[b->item].compared = true;
		v->figures->n_entries++;
		v->figures->n_tokens += view.n_tokens;
		v->figures->bytes += n;
	}
	return true;
}

/* What the blocks after this one see in its place. */
static void settle(struct engine *e, struct verify *v, uint32_t i)
{
	struct tree_view view;

	if (tree_ref_view(v->em->tree, v->path[i].ref, &view) && view.tier == TREE_TIER_POOL)
		give_back(e, v, i);
}

/* What was compared before, on another path, and is in the pool, stands as it is. */
static void skip_compared(struct verify *v)
{
	struct tree_view view;

	while (v->next < v->n_path && v->list.items[v->path[v->next].item].compared &&
	       tree_ref_view(v->em->tree, v->path[v->next].ref, &view) && view.tier == TREE_TIER_POOL)
		v->next++;
}

/* The next blocks up to `end`.  False: the path ends here. */
static bool verify_blocks(struct engine *e, struct verify *v, uint32_t end)
{
	uint32_t n_tokens;

	if (get_blocks(e, v, end))
		return false;
	n_tokens = set_table(v, end);
	if (!n_tokens)
		return false;
	v->result = compute(e, v, v->next * v->em->block_tokens, n_tokens);
	if (v->result)
		return false;
	for (; v->next < end; v->next++)
		if (!compare(v, v->next))
			return false;
	return true;
}

/* On the engine's thread: some blocks more. */
static void verify_some(struct engine *e, void *arg)
{
	struct verify *v = arg;
	uint32_t begin_at, end, n;

	v->result = 0;
	if (!engine_has_model(e, v->em)) {
		v->result = SHARE_E_NO_MODEL;
		return;
	}
	v->busy = e->sched.n_active || e->sched.n_waiting;
	if (!v->next)
		skip_compared(v);
	begin_at = v->next;
	/* Somebody may wait for the blocks that this has. */
	if (v->n_fresh && e->sched.n_waiting) {
		v->n_path = v->next;
	} else {
		n = v->busy ? 1 : MAX(TOKENS_IDLE / v->em->block_tokens, 1u);
		end = MIN(v->next + n, v->n_path);
		if (!verify_blocks(e, v, end))
			v->n_path = v->next;
		for (uint32_t i = begin_at; i < end; i++)
			settle(e, v, i);
	}
	for (uint32_t i = 0; v->next == v->n_path && i < v->n_max; i++)
		give_back(e, v, i);
	engine_publish(e);
}

/* --- on the caller's --- */

static uint64_t draw(struct verify *v)
{
	v->random ^= v->random << 13;
	v->random ^= v->random >> 7;
	v->random ^= v->random << 17;
	return v->random;
}

/* One at random of those that were not tried yet; false: all were. */
static bool choose(struct verify *v, uint32_t *item)
{
	uint32_t i = v->list.n ? (uint32_t)(draw(v) % v->list.n) : 0;

	for (uint32_t k = 0; k < v->list.n; k++, i = i + 1 < v->list.n ? i + 1 : 0)
		if (!v->list.items[i].tried) {
			*item = i;
			return true;
		}
	return false;
}

/* Entries come depth first: what is before one is the last of each depth above it.  False: that is not in the list. */
static bool set_path(struct verify *v, uint32_t item)
{
	uint32_t depth = v->list.items[item].depth;

	v->next = 0;
	v->n_path = depth + 1;
	for (uint32_t i = item + 1; i--;) {
		if (v->list.items[i].depth != depth)
			continue;
		v->path[depth] = (struct path_block){ v->list.items[i].ref, i, NO_BLOCK };
		if (!depth--)
			return true;
	}
	return false;
}

/* On from there along one branch, as long as that is not more than is wanted. */
static uint32_t extend(const struct verify *v, uint32_t item, uint64_t n_wanted)
{
	const struct share_item *items = v->list.items;
	uint64_t n = items[item].depth + 1;

	while (n++ < n_wanted && item + 1 < v->list.n && items[item + 1].depth == items[item].depth + 1)
		item++;
	return item;
}

/* Beside others: they have had their turns before it goes on. */
static void pause_after(uint64_t ns)
{
	ns *= SHARE_OF_BUSY - 1;
	nanosleep(&(struct timespec){ (time_t)(ns / 1000000000), (long)(ns % 1000000000) }, NULL);
}

static int verify_path(struct engine *e, struct verify *v, const struct share_ops *ops)
{
	int err = 0;

	/* What is not compared then has gone, or differed. */
	for (uint32_t i = 0; i < v->n_path; i++)
		v->list.items[v->path[i].item].tried = true;
	while (!err && v->next < v->n_path) {
		uint64_t before = clock_ns(), took;

		/* What it has goes back in any case. */
		if (ops->is_cancelled(ops->arg))
			v->n_path = v->next;
		err = share_visit(e, verify_some, v);
		took = clock_ns() - before;
		v->figures->ns += took;
		if (!err)
			err = v->result;
		ops->progress(ops->arg, MIN(v->figures->n_entries, v->total), v->total);
		if (v->busy && v->next < v->n_path)
			pause_after(took);
	}
	return err;
}

static int allocate(struct engine *e, struct verify *v)
{
	uint64_t block_bytes = v->em->block_bytes, bytes;
	int err;

	v->n_max = 1;
	for (uint32_t i = 0; i < v->list.n; i++)
		v->n_max = MAX(v->n_max, v->list.items[i].depth + 1);
	bytes = 2 * block_bytes + v->em->open_bytes + v->n_max * (sizeof(*v->path) + sizeof(*v->table) +
					      v->em->block_tokens * sizeof(*v->tokens));
	err = charge_init(&v->charge, e->accounts, v->scope.uid, ACCOUNT_MEMORY, bytes);
	if (err)
		return err == ACCOUNT_E_QUOTA ? SHARE_E_QUOTA : err;
	v->path = calloc(v->n_max, sizeof(*v->path));
	v->table = calloc(v->n_max, sizeof(*v->table));
	v->tokens = calloc((size_t)v->n_max * v->em->block_tokens, sizeof(*v->tokens));
	v->stored = malloc(block_bytes);
	v->computed = malloc(block_bytes);
	if (!v->path || !v->table || !v->tokens || !v->stored || !v->computed)
		return -ENOMEM;
	for (uint32_t i = 0; i < v->n_max; i++)
		v->path[i].fresh = NO_BLOCK;
	if (v->em->open_bytes)
		return e->be->ops->open_new(e->be, &v->geometry, &v->open);
	return 0;
}

static int verify(struct engine *e, struct verify *v, uint32_t n, const struct share_ops *ops)
{
	uint32_t item;
	int err = share_visit(e, begin, v);

	if (!err)
		err = v->result;
	if (!err)
		err = allocate(e, v);
	v->total = MIN(n, v->list.n);
	while (!err && v->figures->n_entries < v->total && choose(v, &item)) {
		if (ops->is_cancelled(ops->arg))
			return -ECANCELED;
		v->list.items[item].tried = true;
		if (set_path(v, extend(v, item, v->total - v->figures->n_entries)))
			err = verify_path(e, v, ops);
	}
	return err;
}

int engine_verify(struct engine *e, struct engine_model *em, const struct cache_scope *scope, uint32_t n,
		  const struct share_ops *ops, struct share_figures *figures, struct diag *diag)
{
	struct verify *v = calloc(1, sizeof(*v));
	int err;

	*figures = (struct share_figures){ 0 };
	if (!v)
		return -ENOMEM;
	v->em = em;
	v->scope = *scope;
	v->figures = figures;
	v->diag = diag;
	v->random = engine_random() | 1;
	err = verify(e, v, n, ops);
	share_list_deinit(&v->list);
	if (v->open)
		e->be->ops->open_free(e->be, v->open);
	free(v->path);
	free(v->table);
	free(v->tokens);
	free(v->stored);
	free(v->computed);
	charge_deinit(&v->charge);
	free(v);
	return err;
}
