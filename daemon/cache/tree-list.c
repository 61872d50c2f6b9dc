/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "daemon/cache/tree-private.h"
#include "ipc/base/checked.h"

/* --- chains --- */

static bool is_joined(const struct tree_entry *e)
{
	const struct tree_entry *p = e->parent;

	return p->parent && p->children == e && !e->left && !e->right && p->item.uid == e->item.uid && !p->n_pins;
}

struct tree_entry *tree_chain_first(struct tree_entry *e)
{
	while (is_joined(e))
		e = e->parent;
	return e;
}

/* --- one entry --- */

struct tree_entry *tree_find(struct tree *t, uint64_t id)
{
	for (uint32_t i = 0; id && i < t->n_slab; i++)
		if (t->slab[i].id == id && !t->slab[i].pending && !t->slab[i].doomed)
			return &t->slab[i];
	return NULL;
}

struct tree_ref tree_find_child(const struct tree *t, struct tree_name name, struct tree_ref parent,
				const int32_t *tokens, uint32_t n_tokens)
{
	const struct tree_ns *ns = tree_ns_find((struct tree *)t, name);
	struct tree_entry *e = NULL;

	if (ns && !parent.entry)
		e = tree_child(t, &ns->root, tokens, n_tokens);
	else if (ns && parent.entry->id == parent.id && parent.entry->ns == ns && !parent.entry->doomed)
		e = tree_child(t, parent.entry, tokens, n_tokens);
	return e && !e->pending && !e->doomed ? (struct tree_ref){ e, e->id } : (struct tree_ref){ 0 };
}

void tree_view(const struct tree *t, struct tree_entry *e, struct tree_view *v)
{
	*v = (struct tree_view){
		.entry = e,
		.id = e->id,
		.parent = e->parent->parent ? e->parent->id : 0,
		.name = { .bytes = e->ns->name, .n = e->ns->n_name },
		.tokens = e->tokens,
		.n_tokens = e->n_tokens,
		.first = e->first,
		.tier = e->stored ? TREE_TIER_HOST : TREE_TIER_POOL,
		.block = e->block,
		.bytes = e->stored ? host_block_bytes(&e->host) : pool_root_geometry(t->config.root)->block_bytes,
		.uid = e->item.uid->uid,
		.hits = e->item.hits,
		.n_users = e->n_users,
		.n_pins = e->n_pins,
		.created = e->created,
		.last_use = e->item.last_use,
		.expires = e->item.expires,
		.score = evict_score(e->stored ? host_evict(t->config.host) : &t->evict, &e->item),
		.priority = e->item.priority,
		.mass = e->item.mass,
		.evictable = e->item.by_score.linked,
		.joined = is_joined(e),
	};
}

bool tree_ref_view(const struct tree *t, struct tree_ref ref, struct tree_view *out)
{
	if (!ref.entry || ref.entry->id != ref.id || ref.entry->doomed || ref.entry->pending)
		return false;
	tree_view(t, ref.entry, out);
	return true;
}

/* After e, of what is below top, where parents come before their children. */
static struct tree_entry *next_downwards(struct tree_entry *e, const struct tree_entry *top)
{
	if (e->children)
		return tree_order_first(e);
	while (e != top) {
		struct tree_entry *next = tree_order_next(e);

		if (next)
			return next;
		e = e->parent;
	}
	return NULL;
}

static bool walk_ns(const struct tree *t, struct tree_ns *ns, tree_walk_fn fn, void *arg)
{
	for (struct tree_entry *e = tree_order_first(&ns->root); e; e = next_downwards(e, &ns->root)) {
		struct tree_view v;

		tree_view(t, e, &v);
		if (!fn(arg, &v))
			return false;
	}
	return true;
}

void tree_walk(const struct tree *t, tree_walk_fn fn, void *arg)
{
	for (uint32_t i = 0; i < TREE_NS_BUCKETS; i++)
		list_for_each(l, &t->namespaces[i])
			if (!walk_ns(t, list_entry(l, struct tree_ns, link), fn, arg))
				return;
}

/* --- pages --- */

/* Until the page is known, of each view only entry and id are. */
static void swap(struct tree_view *a, struct tree_view *b)
{
	struct tree_entry *entry = a->entry;
	uint64_t id = a->id;

	a->entry = b->entry;
	a->id = b->id;
	b->entry = entry;
	b->id = id;
}

/* v[0 .. n - 1] are a heap, the highest id first, but for v[0]. */
static void sift_down(struct tree_view *v, uint32_t n)
{
	for (uint32_t i = 0, child; (child = 2 * i + 1) < n; i = child) {
		if (child + 1 < n && v[child + 1].id > v[child].id)
			child++;
		if (v[i].id >= v[child].id)
			return;
		swap(&v[i], &v[child]);
	}
}

/* The same but for the last. */
static void sift_up(struct tree_view *v, uint32_t n)
{
	for (uint32_t i = n - 1; i && v[(i - 1) / 2].id < v[i].id; i = (i - 1) / 2)
		swap(&v[i], &v[(i - 1) / 2]);
}

uint32_t tree_list(struct tree *t, uint64_t after, tree_want_fn fn, void *arg, struct tree_view *out, uint32_t n)
{
	uint32_t found = 0;

	for (uint32_t i = 0; n && i < t->n_slab; i++) {
		struct tree_entry *e = &t->slab[i];
		struct tree_name name;

		if (e->id <= after || e->pending || e->doomed || (found == n && e->id > out[0].id))
			continue;
		name = (struct tree_name){ e->ns->name, e->ns->n_name };
		if (fn && !fn(arg, name, e->item.uid->uid))
			continue;
		if (found < n) {
			out[found].entry = e;
			out[found].id = e->id;
			sift_up(out, ++found);
		} else {
			out[0].entry = e;
			out[0].id = e->id;
			sift_down(out, n);
		}
	}
	for (uint32_t left = found; left > 1;) {
		swap(&out[0], &out[--left]);
		sift_down(out, left);
	}
	for (uint32_t i = 0; i < found; i++)
		tree_view(t, out[i].entry, &out[i]);
	return found;
}

/* --- sums --- */

uint32_t tree_depth(const struct tree_entry *e)
{
	uint32_t n = 0;

	for (; e->parent; e = e->parent)
		n++;
	return n;
}

uint32_t tree_n_below(struct tree_entry *top, uint64_t *n_tokens)
{
	struct tree_entry *e = top;
	uint32_t n = 0;

	*n_tokens = 0;
	while ((e = next_downwards(e, top))) {
		n++;
		*n_tokens += e->n_tokens;
	}
	return n;
}

uint32_t tree_path_tokens(const struct tree_entry *e, int32_t *tokens, uint32_t n)
{
	uint32_t total = MIN(e->first + e->n_tokens, n);

	for (; e->parent; e = e->parent)
		if (e->first < n)
			memcpy(tokens + e->first, e->tokens, MIN(e->n_tokens, n - e->first) * sizeof(*tokens));
	return total;
}

uint32_t tree_wipe_if(struct tree *t, tree_want_fn fn, void *arg)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < TREE_NS_BUCKETS; i++) {
		list_for_each_safe(l, next, &t->namespaces[i]) {
			struct tree_ns *ns = list_entry(l, struct tree_ns, link);

			if (!fn(arg, (struct tree_name){ ns->name, ns->n_name }, 0))
				continue;
			n += ns->n_entries;
			tree_wipe_ns(t, ns);
		}
	}
	return n;
}

uint32_t tree_names(const struct tree *t, tree_want_fn fn, void *arg, struct tree_name *out, uint32_t n)
{
	uint32_t found = 0;

	for (uint32_t i = 0; i < TREE_NS_BUCKETS && found < n; i++) {
		list_for_each(l, &t->namespaces[i]) {
			const struct tree_ns *ns = list_entry(l, struct tree_ns, link);
			struct tree_name name = { ns->name, ns->n_name };

			if (found < n && fn(arg, name, 0))
				out[found++] = name;
		}
	}
	return found;
}

struct tree_entry *tree_path_entry(const struct tree_path *p, uint32_t n)
{
	struct tree_entry *e = p->at;

	while (e->parent && e->first + e->n_tokens > n)
		e = e->parent;
	return e->parent ? e : NULL;
}

uint32_t tree_n_blocks_of(const struct tree *t, uid_t uid)
{
	const struct list *heads[] = { &t->evict.active, &t->evict.idle };

	for (size_t i = 0; i < ARRAY_SIZE(heads); i++) {
		list_for_each(l, heads[i]) {
			const struct evict_uid *u = list_entry(l, struct evict_uid, link);

			if (u->uid == uid)
				return u->n_blocks;
		}
	}
	return 0;
}
