/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "daemon/cache/tree-private.h"
#include "ipc/base/checked.h"

#define pin_of(l) list_entry((l), struct tree_pin, link)

/* --- pins --- */

static struct tree_pin *find_pin(struct tree *t, const struct tree_entry *e, uid_t uid)
{
	list_for_each(l, &t->pins)
		if (pin_of(l)->entry == e && pin_of(l)->uid == uid)
			return pin_of(l);
	return NULL;
}

int tree_pin(struct tree *t, struct tree_entry *e, uid_t uid)
{
	uint64_t per_block = pool_root_geometry(t->config.root)->block_bytes + tree_entry_bytes(t);
	uint32_t n = tree_depth(e);
	struct tree_pin *pin;
	int err;

	if (find_pin(t, e, uid))
		return 0;
	if (n > t->config.max_pinned - t->stats.n_pinned)
		return TREE_E_FULL;
	pin = calloc(1, sizeof(*pin));
	if (!pin)
		return -ENOMEM;
	err = charge_init(&pin->charge, t->config.accounts, uid, ACCOUNT_KV, n * per_block);
	if (err) {
		free(pin);
		return err == ACCOUNT_E_QUOTA ? TREE_E_QUOTA : err;
	}
	pin->entry = e;
	pin->uid = uid;
	pin->n_blocks = n;
	list_push_back(&t->pins, &pin->link);
	t->stats.n_pinned += n;
	e->n_pins++;
	if (e->kept)
		kept_pin(e->kept, uid);
	tree_lock(t, e);
	return 0;
}

static void pin_free(struct tree *t, struct tree_pin *pin)
{
	struct tree_ns *ns = pin->entry->ns;

	t->stats.n_pinned -= pin->n_blocks;
	charge_deinit(&pin->charge);
	list_unlink(&pin->link);
	pin->entry->n_pins--;
	if (pin->entry->kept && !t->closing)
		kept_unpin(pin->entry->kept, pin->uid);
	ns->n_paths++;	/* unlocking may take away all that keeps it */
	tree_unlock(t, pin->entry);
	tree_ns_put(t, ns);
	free(pin);
}

bool tree_unpin(struct tree *t, struct tree_entry *e, uid_t uid)
{
	struct tree_pin *pin = find_pin(t, e, uid);

	if (!pin)
		return false;
	pin_free(t, pin);
	return true;
}

bool tree_pinned_by(const struct tree *t, const struct tree_entry *e, uint32_t i, uid_t *uid)
{
	list_for_each(l, &t->pins) {
		if (pin_of(l)->entry != e || i--)
			continue;
		*uid = pin_of(l)->uid;
		return true;
	}
	return false;
}

/* --- removal --- */

static bool is_below(const struct tree_entry *e, const struct tree_entry *top)
{
	while (e && e != top)
		e = e->parent;
	return e != NULL;
}

static void unpin_below(struct tree *t, const struct tree_entry *top)
{
	list_for_each_safe(l, next, &t->pins)
		if (is_below(pin_of(l)->entry, top))
			pin_free(t, pin_of(l));
}

static struct tree_path *claimer_below(const struct tree *t, const struct tree_entry *top)
{
	list_for_each(l, &t->pending) {
		const struct tree_entry *e = list_entry(l, struct tree_entry, pending_link);

		if (is_below(e, top))
			return e->owner;
	}
	return NULL;
}

static struct tree_entry *deepest_first(struct tree_entry *e)
{
	while (e->children)
		e = tree_order_first(e);
	return e;
}

/* After e and all below it, where children come before their parents; top is the last. */
static struct tree_entry *next_upwards(struct tree_entry *e, const struct tree_entry *top)
{
	struct tree_entry *next = e == top ? NULL : tree_order_next(e);

	if (e == top)
		return NULL;
	return next ? deepest_first(next) : e->parent;
}

void tree_drop(struct tree *t, struct tree_entry *top)
{
	struct tree_entry *next;
	struct tree_path *p;

	if (top->doomed)
		return;
	unpin_below(t, top);
	while ((p = claimer_below(t, top)))
		tree_abandon_last(p);
	for (struct tree_entry *e = deepest_first(top); e; e = next_upwards(e, top)) {
		e->doomed = true;
		tree_unkeep(t, e);
	}
	for (struct tree_entry *e = deepest_first(top); e; e = next) {
		next = next_upwards(e, top);
		if (!e->n_locks) {
			tree_entry_remove(t, e);
		} else if (e == top) {
			tree_unlink_child(t, e);
			e->detached = true;
		}
	}
}

void tree_wipe_ns(struct tree *t, struct tree_ns *ns)
{
	ns->n_paths++;
	while (ns->root.children)
		tree_drop(t, ns->root.children);
	tree_ns_put(t, ns);
}

void tree_wipe(struct tree *t, const struct tree_name *name)
{
	struct tree_ns *ns = name ? tree_ns_find(t, *name) : NULL;

	if (ns)
		tree_wipe_ns(t, ns);
	if (name)
		return;
	for (uint32_t i = 0; i < TREE_NS_BUCKETS; i++)
		list_for_each_safe(l, next, &t->namespaces[i])
			tree_wipe_ns(t, list_entry(l, struct tree_ns, link));
}

void tree_stats(const struct tree *t, struct tree_stats *out)
{
	*out = t->stats;
	out->bytes = t->stats.n_entries * tree_entry_bytes(t);
}
