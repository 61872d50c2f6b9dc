/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/cache/tree.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/cache/tree-private.h"
#include "ipc/base/checked.h"

#define GHOSTS_MIN 256u

/* --- life --- */

static int create_memory(struct tree *t)
{
	uint64_t n_stored = t->config.host ? host_max_blocks(t->config.host) : 0;
	uint64_t n = 2 * (uint64_t)t->config.max_entries + n_stored;

	if (n > UINT32_MAX)
		return -EINVAL;
	t->max_slab = (uint32_t)n;
	t->n_buckets = GHOSTS_MIN;
	while (t->n_buckets < n / 2 + n_stored / 2 && t->n_buckets < UINT32_C(1) << 31)
		t->n_buckets *= 2;
	/* As many again for those that are pending, so that claims take no place from blocks.  Touched as used. */
	t->slab = calloc(n, sizeof(*t->slab));
	t->tokens = calloc(n * t->block_tokens, sizeof(*t->tokens));
	t->buckets = calloc(t->n_buckets, sizeof(struct tree_entry *));
	t->ghosts = calloc(t->n_buckets, sizeof(*t->ghosts));
	return t->slab && t->tokens && t->buckets && t->ghosts ? 0 : -ENOMEM;
}

int tree_new(struct tree **out, const struct tree_config *config)
{
	_cleanup_(tree_freep) struct tree *t = NULL;
	int err;

	if (config->hash_bits > 64)
		return -EINVAL;
	t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	t->config = *config;
	if (!pool_can_copy(config->root))
		t->config.host = NULL;
	if (!t->config.max_entries)
		t->config.max_entries = pool_root_capacity(config->root);
	if (!t->config.max_pinned)
		t->config.max_pinned = t->config.max_entries / 4;
	if (!t->config.idle_ns)
		t->config.idle_ns = EVICT_IDLE_NS;
	t->block_tokens = pool_root_geometry(config->root)->block_tokens;
	t->hash_mask = config->hash_bits ? UINT64_MAX >> (64 - config->hash_bits) : UINT64_MAX;
	t->next_id = 1;
	for (uint32_t i = 0; i < TREE_NS_BUCKETS; i++)
		list_init(&t->namespaces[i]);
	list_init(&t->pending);
	list_init(&t->woken);
	list_init(&t->pins);
	evict_init(&t->evict, config->policy, t->config.max_entries, t->config.idle_ns);
	if (!t->config.max_entries || t->config.max_entries > INT32_MAX || !t->block_tokens)
		return -EINVAL;
	err = create_memory(t);
	if (err)
		return err;
	*out = steal_ptr(t);
	return 0;
}

void tree_free(struct tree *t)
{
	if (!t)
		return;
	t->closing = true;
	tree_wipe(t, NULL);
	free(t->slab);
	free(t->tokens);
	free(t->buckets);
	free(t->ghosts);
	free(t);
}

/* --- moving along --- */

int tree_path_init(struct tree_path *p, struct tree *t, struct tree_name name, uid_t uid,
		   const struct evict_terms *terms, uint64_t now)
{
	struct evict_uid *u, *host_uid = NULL;
	struct tree_ns *ns;
	int err;

	if (name.n > TREE_NAME_MAX)
		return -EINVAL;
	u = evict_uid_get(&t->evict, uid);
	if (!u)
		return -ENOMEM;
	if (t->config.host) {
		host_uid = evict_uid_get(host_evict(t->config.host), uid);
		err = host_uid ? tree_ns_get(t, name, &ns) : -ENOMEM;
	} else {
		err = tree_ns_get(t, name, &ns);
	}
	if (err) {
		evict_uid_unref(&t->evict, u);
		if (host_uid)
			evict_uid_unref(host_evict(t->config.host), host_uid);
		return err;
	}
	*p = (struct tree_path){
		.tree = t, .ns = ns, .uid = u, .host_uid = host_uid, .at = &ns->root, .terms = *terms,
	};
	list_init(&p->wait_link);
	tree_lock(t, p->at);
	evict_uid_activity(&t->evict, u, 1, now);
	if (host_uid)
		evict_uid_activity(host_evict(t->config.host), host_uid, 1, now);
	return 0;
}

void tree_path_deinit(struct tree_path *p, uint64_t now)
{
	struct tree *t = p->tree;

	if (!t)
		return;
	tree_path_reset(p, now);
	tree_unlock(t, p->at);
	tree_ns_put(t, p->ns);
	evict_uid_activity(&t->evict, p->uid, -1, now);
	evict_uid_unref(&t->evict, p->uid);
	if (p->host_uid) {
		evict_uid_activity(host_evict(t->config.host), p->host_uid, -1, now);
		evict_uid_unref(host_evict(t->config.host), p->host_uid);
	}
	*p = (struct tree_path){ 0 };
}

static void move_to(struct tree_path *p, struct tree_entry *e)
{
	struct tree_entry *from = p->at;

	tree_lock(p->tree, e);
	e->n_users++;
	p->at = e;
	from->n_users--;
	tree_unlock(p->tree, from);
}

/* Everything from `at` up to `before` is used now. */
static void touch_path(struct tree_path *p, const struct tree_entry *before, uint64_t now, bool hit)
{
	for (struct tree_entry *e = p->at; e->parent && e != before; e = e->parent)
		tree_touch(p->tree, e, now, &p->terms, hit);
}

static void stop_waiting(struct tree_path *p)
{
	list_unlink(&p->wait_link);
	p->waits = false;
}

void tree_path_reset(struct tree_path *p, uint64_t now)
{
	stop_waiting(p);
	tree_tail_done(p);
	tree_abandon(p);
	touch_path(p, NULL, now, false);
	move_to(p, &p->ns->root);
	p->depth = 0;
	p->restores = false;
}

uint32_t tree_path_n_blocks(const struct tree_path *p)
{
	return p->depth;
}

void tree_path_blocks(const struct tree_path *p, uint32_t n, uint32_t *blocks)
{
	const struct tree_entry *e = p->at;

	for (uint32_t i = p->depth; i-- > n; e = e->parent)
		blocks[i - n] = e->block;
}

struct tree_ref tree_path_ref(const struct tree_path *p, uint32_t i)
{
	struct tree_entry *e = p->at;

	for (uint32_t depth = p->depth; depth > i + 1; depth--)
		e = e->parent;
	return (struct tree_ref){ e, e->id };
}

void tree_hold(struct tree *t, struct tree_ref ref)
{
	tree_lock(t, ref.entry);
	ref.entry->n_users++;
	ref.entry->n_held++;
	t->n_held++;
}

void tree_let_go(struct tree *t, struct tree_ref ref)
{
	struct tree_ns *ns = ref.entry->ns;

	ref.entry->n_users--;
	ref.entry->n_held--;
	t->n_held--;
	ns->n_paths++;	/* where it was dropped, unlocking may take away all that keeps it */
	tree_unlock(t, ref.entry);
	tree_ns_put(t, ns);
}

uint64_t tree_disk_id(struct tree_ref ref)
{
	return ref.entry && ref.entry->id == ref.id ? ref.entry->disk_id : 0;
}

void tree_set_disk_id(struct tree_ref ref, uint64_t id)
{
	if (ref.entry && ref.entry->id == ref.id)
		ref.entry->disk_id = id;
}

struct tree_ref tree_ref_parent(struct tree_ref ref)
{
	struct tree_entry *parent;

	if (!ref.entry || ref.entry->id != ref.id || !ref.entry->parent->parent)
		return (struct tree_ref){ 0 };
	parent = ref.entry->parent;
	return (struct tree_ref){ parent, parent->id };
}

void tree_path_mass(struct tree_path *p, const float *mass, uint32_t n)
{
	struct tree_entry *e = p->at;

	for (uint32_t i = p->depth; i-- > 0; e = e->parent) {
		float m = i < n ? mass[i] : 0;

		if (i < n && m >= 0)	/* no NaN either */
			e->item.mass = (e->item.mass + MIN(m, 1.0f)) / 2;
	}
}

/* --- lookup --- */

struct tree_entry *tree_full_child(const struct tree *t, const struct tree_entry *e, const int32_t *tokens,
				   uint64_t now)
{
	struct tree_entry *child = tree_child(t, e, tokens, t->block_tokens);

	return child && !child->pending && !tree_is_void(child) && !tree_expired(child, now) ? child : NULL;
}

static struct tree_entry *ready_child(const struct tree *t, const struct tree_entry *e, const int32_t *tokens,
				      uint64_t now)
{
	struct tree_entry *child = tree_full_child(t, e, tokens, now);

	return child && !child->stored ? child : NULL;
}

/* The deepest entry below e on the way of tokens, up to position n. */
static struct tree_entry *descend(const struct tree *t, struct tree_entry *e, const int32_t *tokens, uint32_t n,
				  uint64_t now)
{
	struct tree_entry *child = e;

	for (uint32_t end = e->first + e->n_tokens; child && n - end >= t->block_tokens; end += t->block_tokens) {
		child = ready_child(t, e, tokens + end, now);
		e = child ? child : e;
	}
	return e;
}

/* The same, beginning with what is stored below e. */
static struct tree_entry *descend_stored(const struct tree *t, struct tree_entry *e, const int32_t *tokens,
					 uint32_t n, uint64_t now)
{
	struct tree_entry *child = e;

	for (uint32_t end = e->first + e->n_tokens; child && n - end >= t->block_tokens; end += t->block_tokens) {
		child = tree_full_child(t, e, tokens + end, now);
		e = child ? child : e;
	}
	return e;
}

/* The same among what others are computing below e; NULL if nothing. */
static struct tree_entry *descend_pending(const struct tree_path *p, struct tree_entry *e, const int32_t *tokens,
					  uint32_t n)
{
	const struct tree *t = p->tree;
	struct tree_entry *last = NULL;

	for (uint32_t end = e->first + e->n_tokens; n - end >= t->block_tokens; end += t->block_tokens) {
		e = tree_child(t, e, tokens + end, t->block_tokens);
		if (!e || !e->pending || e->owner == p)
			break;
		last = e;
	}
	return last;
}

/* What the children of an entry offer to a prompt whose next tokens they don't have in full. */
struct partial {
	struct tree_entry *best;	/* NULL: none has the first */
	uint32_t n;			/* tokens in common with it */
	uint32_t n_expired;		/* with one that has expired */
	bool differs;			/* one goes on otherwise after the n */
};

/*
 * Going away from the place where the tokens would be, what is in common only shrinks: so
 * the first that has not expired is the best on its side.
 */
static void look_aside(struct partial *out, struct tree_entry *e, struct tree_entry *(*step)(struct tree_entry *),
		       const int32_t *tokens, uint32_t n, uint64_t now)
{
	for (; e; e = step(e)) {
		uint32_t common = tree_common(e, tokens, n);

		if (tree_is_void(e))
			continue;
		if (!tree_expired(e, now)) {
			out->best = common ? e : NULL;
			out->n = common;
			out->differs = e->n_tokens > common;
			return;
		}
		if (!common)
			return;
		out->n_expired = MAX(out->n_expired, common);
	}
}

static void find_partial(const struct tree_entry *e, const int32_t *tokens, uint32_t n, uint64_t now,
			 struct partial *out)
{
	struct partial left = { 0 }, right = { 0 };
	struct tree_entry *before, *after;

	tree_order_find(e, tokens, n, &before, &after);
	look_aside(&left, before, tree_order_prev, tokens, n, now);
	look_aside(&right, after, tree_order_next, tokens, n, now);
	*out = left.n > right.n ? left : right;
	if (left.n == right.n)
		out->differs = left.differs || right.differs;
	out->n_expired = MAX(left.n_expired, right.n_expired);
}

/* What went lately and would have had more than n_have tokens of these. */
static enum tree_miss missing_child(const struct tree *t, const struct tree_entry *e, const int32_t *tokens,
				    uint32_t n, uint32_t n_have)
{
	enum tree_miss miss = TREE_MISS_NONE;

	if (t->config.whole_blocks)
		n_have = t->block_tokens - 1;
	for (n = MIN(n, t->block_tokens); n > n_have && miss == TREE_MISS_NONE; n--)
		miss = tree_ghost(t, e, tokens, n);
	return miss;
}

/* Tokens that a namespace has of a prompt. */
static uint32_t probe(struct tree *t, struct tree_name name, const int32_t *tokens, uint32_t n, uint64_t now)
{
	struct tree_ns *ns = tree_ns_find(t, name);
	struct partial partial = { 0 };
	struct tree_entry *e;
	uint32_t end;

	if (!ns)
		return 0;
	e = descend_stored(t, &ns->root, tokens, n, now);
	end = e->first + e->n_tokens;
	if (!t->config.whole_blocks)
		find_partial(e, tokens + end, n - end, now, &partial);
	return end + partial.n;
}

static enum tree_miss explain(struct tree_path *p, const struct partial *partial, const int32_t *tokens,
			      uint32_t n, const struct tree_name *also, size_t n_also, uint64_t now, uint32_t found,
			      uint32_t *which)
{
	struct tree_entry *e = p->at;
	uint32_t end = e->first + e->n_tokens;
	enum tree_miss miss;

	if (found == n - 1)
		return TREE_MISS_NONE;
	if (p->tree->config.whole_blocks && n - 1 - found < p->tree->block_tokens)
		return TREE_MISS_BLOCK;
	if (partial->n_expired > partial->n &&
	    (!p->tree->config.whole_blocks || partial->n_expired == p->tree->block_tokens))
		return TREE_MISS_EXPIRED;
	miss = missing_child(p->tree, e, tokens + end, n - end, partial->n);
	if (miss != TREE_MISS_NONE)
		return miss;
	for (size_t i = 0; i < n_also; i++)
		if (probe(p->tree, also[i], tokens, n - 1, now) > found) {
			*which = (uint32_t)i;
			return TREE_MISS_NAMESPACE;
		}
	return partial->differs ? TREE_MISS_DIFFERS : TREE_MISS_EMPTY;
}

static void count_lookup(struct tree *t, uint32_t n_asked, uint32_t n_hit)
{
	t->stats.lookups++;
	t->stats.hits += n_hit > 0;
	t->stats.asked_tokens += n_asked;
	t->stats.hit_tokens += n_hit;
}

static void hold_tail(struct tree_path *p, struct tree_entry *e, uint64_t now)
{
	tree_lock(p->tree, e);
	e->n_users++;
	p->tail = e;
	tree_touch(p->tree, e, now, &p->terms, true);
}

/* Blocks stored below e on the way of tokens, up to position n. */
static uint32_t n_stored_below(const struct tree *t, struct tree_entry *e, const int32_t *tokens, uint32_t n,
			       uint64_t now)
{
	uint32_t end = e->first + e->n_tokens;

	if (!t->stats.n_stored)
		return 0;
	e = descend_stored(t, e, tokens, n, now);
	return (e->first + e->n_tokens - end) / t->block_tokens;
}

static void start_waiting(struct tree_path *p, struct tree_entry *e)
{
	list_unlink(&p->wait_link);
	list_push_back(&e->waiters, &p->wait_link);
	p->waits = true;
	p->tree->stats.waits++;
}

void tree_lookup(struct tree_path *p, const int32_t *tokens, uint32_t n, bool may_wait,
		 const struct tree_name *also, size_t n_also, uint64_t now, struct tree_match *out)
{
	struct tree *t = p->tree;
	struct tree_entry *from = p->at, *e, *pending;
	struct partial partial = { 0 };
	uint32_t begin = from->first + from->n_tokens, end, n_tail;

	tree_tail_done(p);
	stop_waiting(p);
	*out = (struct tree_match){ .n_tokens = begin };
	if (n <= begin + 1)
		return;
	if (from->doomed) {
		out->miss = TREE_MISS_EMPTY;
		return;
	}
	tree_verify_way(t, from, tokens, n - 1, now);
	e = descend(t, from, tokens, n - 1, now);
	end = e->first + e->n_tokens;
	pending = descend_pending(p, e, tokens, n - 1);
	if (pending)
		out->n_pending = pending->first + pending->n_tokens - end;
	if (pending && may_wait) {
		start_waiting(p, pending);
		out->n_tokens = end;
		out->waits = true;
		return;
	}
	move_to(p, e);
	p->depth = end / t->block_tokens;
	touch_path(p, from, now, true);
	out->n_tokens = end;
	if (!p->restores)
		p->lookup_from = begin;
	out->n_stored = n_stored_below(t, e, tokens, n - 1, now);
	p->restores = out->n_stored > 0;
	if (p->restores) {
		out->miss = TREE_MISS_EVICTED;	/* if it does not come back */
		return;
	}
	do {
		find_partial(e, tokens + end, n - 1 - end, now, &partial);
	} while (partial.n && !tree_verified(t, partial.best));
	n_tail = t->config.whole_blocks ? 0 : partial.n;
	if (n_tail) {
		hold_tail(p, partial.best, now);
		out->n_tail = n_tail;
		out->tail_block = partial.best->block;
		out->tail_stored = partial.best->stored;
	}
	out->n_tokens = end + n_tail;
	out->miss = explain(p, &partial, tokens, n, also, n_also, now, out->n_tokens,
			    &out->miss_also);
	if (out->miss == TREE_MISS_DIFFERS)
		out->n_same = partial.n - n_tail;
	count_lookup(t, n - 1 - p->lookup_from, out->n_tokens - p->lookup_from);
}

void tree_peek(const struct tree_path *p, const int32_t *tokens, uint32_t n, uint64_t now, struct tree_peek *out)
{
	const struct tree *t = p->tree;
	struct partial partial = { 0 };
	struct tree_entry *e, *last, *pending;
	uint32_t end = p->at->first + p->at->n_tokens;

	*out = (struct tree_peek){ .n_tokens = end };
	if (n <= end + 1 || p->at->doomed)
		return;
	e = descend(t, p->at, tokens, n - 1, now);
	end = e->first + e->n_tokens;
	pending = descend_pending(p, e, tokens, n - 1);
	if (pending)
		out->n_pending = pending->first + pending->n_tokens - end;
	last = t->stats.n_stored ? descend_stored(t, e, tokens, n - 1, now) : e;
	if (last->parent)
		out->last = (struct tree_ref){ last, last->id };
	out->n_stored = (last->first + last->n_tokens - end) / t->block_tokens;
	if (!t->config.whole_blocks && !out->n_stored)
		find_partial(e, tokens + end, n - 1 - end, now, &partial);
	out->n_tail = partial.n;
	out->tail_stored = partial.n && partial.best->stored;
	out->n_tokens = end + partial.n;
	if (partial.n)
		out->n_evictable += !partial.best->n_locks && !partial.best->stored;
	for (const struct tree_entry *f = e; t->n_unverified && f->parent && f != p->at; f = f->parent)
		out->n_unverified += f->unverified;
	for (; e->parent && !e->n_locks; e = e->parent)
		out->n_evictable++;
}

void tree_tail_done(struct tree_path *p)
{
	struct tree_entry *e = p->tail;

	if (!e)
		return;
	p->tail = NULL;
	e->n_users--;
	tree_unlock(p->tree, e);
}

/* --- claims --- */

static void wake(struct tree *t, struct tree_entry *e)
{
	while (!list_empty(&e->waiters)) {
		struct list *l = e->waiters.next;

		list_unlink(l);
		list_push_back(&t->woken, l);
	}
}

struct tree_path *tree_next_woken(struct tree *t)
{
	struct tree_path *p;

	if (list_empty(&t->woken))
		return NULL;
	p = list_entry(t->woken.next, struct tree_path, wait_link);
	stop_waiting(p);
	return p;
}

uint32_t tree_claim(struct tree_path *p, const int32_t *tokens, uint32_t n, uint64_t now)
{
	struct tree *t = p->tree;
	struct tree_entry *e = p->claim ? p->claim : p->at, *child;
	uint32_t n_claimed = 0;

	if (p->at->doomed)
		return 0;
	for (uint32_t end = e->first + e->n_tokens; n >= end && n - end >= t->block_tokens; end += t->block_tokens) {
		if (t->stats.n_pending >= t->config.max_entries ||
		    tree_child(t, e, tokens + end, t->block_tokens) ||
		    tree_entry_new(t, e, tokens + end, t->block_tokens, p->uid, now, &child))
			break;
		child->owner = p;
		tree_lock(t, child);
		p->claim = e = child;
		n_claimed++;
	}
	return n_claimed;
}

/* The claim above, if it has not been entered yet. */
static struct tree_entry *claim_above(const struct tree_path *p, const struct tree_entry *e)
{
	return e->parent->pending && e->parent->owner == p ? e->parent : NULL;
}

void tree_abandon_last(struct tree_path *p)
{
	struct tree_entry *e = p->claim;

	p->claim = claim_above(p, e);
	wake(p->tree, e);
	p->tree->stats.abandoned++;
	tree_unlock(p->tree, e);
}

void tree_abandon(struct tree_path *p)
{
	while (p->claim)
		tree_abandon_last(p);
}

/* --- what was computed --- */

/* A pending entry gets its block, whoever claimed it. */
static int fill_claimed(struct tree_path *p, struct tree_entry *e, uint32_t block)
{
	struct tree_path *owner = e->owner;
	int err = tree_entry_move(p->tree, e, p->uid);

	if (err)
		return err;
	if (owner->claim == e)
		owner->claim = NULL;
	tree_entry_fill(p->tree, e, block);
	wake(p->tree, e);
	return 0;
}

static int fill_new(struct tree_path *p, const int32_t *tokens, uint32_t n_tokens, uint64_t now, uint32_t block,
		    struct tree_entry **out)
{
	int err = tree_entry_new(p->tree, p->at, tokens, n_tokens, p->uid, now, out);

	if (!err)
		tree_entry_fill(p->tree, *out, block);
	return err;
}

static void exchange(struct tree_path *p, const struct tree_entry *e, uint32_t *block)
{
	struct pool_root *root = p->tree->config.root;

	p->tree->stats.deduplicated++;
	if (*block == e->block)
		return;
	pool_block_ref(root, e->block);
	pool_block_unref(root, *block);
	*block = e->block;
}

static void enter_child(struct tree_path *p, struct tree_entry *e, uint64_t now, bool hit)
{
	move_to(p, e);
	p->depth++;
	tree_touch(p->tree, e, now, &p->terms, hit);
	tree_keep(p->tree, e);
}

static int refuse(struct tree_path *p, int err)
{
	p->tree->stats.refused += err != 0;
	return err;
}

int tree_enter(struct tree_path *p, const int32_t *tokens, uint64_t now, uint32_t *block)
{
	struct tree_entry *e;
	int err = 0;

	if (p->at->doomed)
		return refuse(p, TREE_E_PARENT);
	e = tree_child(p->tree, p->at, tokens, p->tree->block_tokens);
	if (e && !tree_verified(p->tree, e))
		e = NULL;
	if (!e) {
		err = fill_new(p, tokens, p->tree->block_tokens, now, *block, &e);
		if (!err)
			enter_child(p, e, now, false);
	} else if (e->pending) {
		err = fill_claimed(p, e, *block);
		if (!err) {
			enter_child(p, e, now, false);
			tree_unlock(p->tree, e);	/* it was locked as a pending one */
		}
	} else if (e->stored) {
		err = tree_entry_promote(p->tree, e, p->uid, *block);
		if (!err)
			enter_child(p, e, now, false);
	} else {
		exchange(p, e, block);
		enter_child(p, e, now, false);
	}
	return refuse(p, err);
}

bool tree_step(struct tree_path *p, const int32_t *tokens, uint64_t now)
{
	struct tree_entry *e = p->at->doomed ? NULL : ready_child(p->tree, p->at, tokens, now);

	if (e && !tree_verified(p->tree, e))
		e = NULL;
	if (e)
		enter_child(p, e, now, false);
	return e != NULL;
}

int tree_keep_tail(struct tree_path *p, const int32_t *tokens, uint32_t n, uint32_t block, uint64_t now)
{
	struct partial partial;
	struct tree_entry *e;
	int err;

	if (p->at->doomed)
		return refuse(p, TREE_E_PARENT);
	if (!n || n >= p->tree->block_tokens || p->tree->config.whole_blocks)
		return 0;
	find_partial(p->at, tokens, n, now, &partial);
	e = partial.n == n ? partial.best : tree_child(p->tree, p->at, tokens, n);
	if (e && !tree_verified(p->tree, e))
		e = NULL;
	/* With exactly these tokens, and here already. */
	if (e && e->stored && e->n_tokens == n) {
		err = tree_entry_promote(p->tree, e, p->uid, block);
		if (err)
			return refuse(p, err);
	}
	if (e) {
		p->tree->stats.deduplicated++;
		tree_touch(p->tree, e, now, &p->terms, false);
		tree_keep(p->tree, e);
		return 0;
	}
	err = fill_new(p, tokens, n, now, block, &e);
	if (err)
		return refuse(p, err);
	tree_touch(p->tree, e, now, &p->terms, false);
	tree_keep(p->tree, e);
	tree_offer(p->tree, e);
	return 0;
}

/* --- what comes back --- */

int tree_restore(struct tree_path *p, const int32_t *tokens, uint64_t now, uint32_t *block)
{
	struct tree *t = p->tree;
	struct tree_entry *e;
	int err = 0;

	if (p->at->doomed)
		return TREE_E_PARENT;
	e = tree_full_child(t, p->at, tokens, now);
	if (!e || !tree_verified(t, e))
		return TREE_E_GONE;
	if (e->stored) {
		err = tree_load(t, e, *block);
		if (!err)
			err = tree_entry_promote(t, e, p->uid, *block);
	} else {
		exchange(p, e, block);
	}
	if (!err)
		enter_child(p, e, now, true);
	return err;
}

int tree_restore_tail(struct tree_path *p, uint32_t block)
{
	return p->tail && p->tail->stored && !tree_is_void(p->tail) ? tree_load(p->tree, p->tail, block) : TREE_E_GONE;
}
