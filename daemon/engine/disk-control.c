/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What people ask of the cache, as far as it is on disk (see cache-control.h).
 *
 * What is in memory is dealt with first, then the store is asked; the command is answered when that is done, on
 * the engine's thread where the answer says what entries there are, on the store's where it only counts them.
 * Entries that are on disk alone have numbers beyond those of the tree's.
 */
#include <stdlib.h>

#include "daemon/cache/store.h"
#include "daemon/engine/cache-control.h"
#include "daemon/engine/engine-private.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"

struct pair {
	uint64_t id;			/* on disk */
	struct tree_ref ref;
};

/* What the tree has of what is on disk, by disk id. */
struct known {
	uint32_t n;
	uint64_t *ids;			/* [n] */
	struct tree_ref *refs;		/* [n] */
};

struct control {
	union {
		struct store_request request;	/* the first member of all */
		struct store_wipe wipe;
		struct store_drop drop;
		struct store_list list;
		struct store_show show;
		struct store_pin pin;
	};
	struct engine_model *model;
	struct cache_command *command;	/* NULL: nobody waits */
	struct known known;
	int32_t *tokens;
	uint64_t check[CACHE_PAGE_MAX];
	bool there[CACHE_PAGE_MAX];
	uint32_t check_of[CACHE_PAGE_MAX];	/* the entry of the page */
	struct store_view *views;
	struct pair met[CACHE_PAGE_MAX];	/* the last ones that the tree turned out to have */
	uint32_t n_met;
	char name[STORE_NAME_MAX];
};

static void known_deinit(struct known *k)
{
	free(k->ids);
	free(k->refs);
}

static void control_free(struct control *k)
{
	if (!k)
		return;
	known_deinit(&k->known);
	free(k->tokens);
	free(k->views);
	free(k);
}
CLEANUP_DEFINE(struct control, control_free)

static struct control *control_new(struct engine_model *em, struct cache_command *c)
{
	struct control *k = calloc(1, sizeof(*k));

	if (k) {
		k->model = em;
		k->command = c;
	}
	return k;
}

/* --- the tree's own --- */

struct gather {
	struct pair *pairs;
	uint32_t n, max;
};

static bool gather(void *arg, const struct tree_view *v)
{
	struct gather *g = arg;
	struct tree_ref ref = { v->entry, v->id };

	if (tree_disk_id(ref) && g->n < g->max)
		g->pairs[g->n++] = (struct pair){ tree_disk_id(ref), ref };
	return true;
}

static int by_id(const void *a, const void *b)
{
	const struct pair *x = a, *y = b;

	return x->id < y->id ? -1 : x->id > y->id;
}

static int known_init(struct known *k, const struct tree *t)
{
	_cleanup_(freep) struct pair *pairs = NULL;
	struct gather g = { 0 };
	struct tree_stats stats;

	tree_stats(t, &stats);
	g.max = stats.n_entries + stats.n_stored;
	pairs = g.pairs = calloc(MAX(g.max, 1u), sizeof(*pairs));
	k->ids = calloc(MAX(g.max, 1u), sizeof(*k->ids));
	k->refs = calloc(MAX(g.max, 1u), sizeof(*k->refs));
	if (!pairs || !k->ids || !k->refs)
		return -ENOMEM;
	tree_walk(t, gather, &g);
	qsort(pairs, g.n, sizeof(*pairs), by_id);
	for (uint32_t i = 0; i < g.n; i++) {
		k->ids[i] = pairs[i].id;
		k->refs[i] = pairs[i].ref;
	}
	k->n = g.n;
	return 0;
}

/* Nothing: the tree has it not. */
static struct tree_ref known_find(const struct known *k, uint64_t id)
{
	uint32_t low = 0, high = k->n;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (k->ids[middle] < id)
			low = middle + 1;
		else
			high = middle;
	}
	return low < k->n && k->ids[low] == id ? k->refs[low] : (struct tree_ref){ 0 };
}

/* --- removal --- */

/* On the store's thread, the last. */
static void removed(struct control *k, const struct store_removed *removed)
{
	struct cache_command *c = k->command;

	if (!c) {
		control_free(k);
		return;
	}
	c->disk_entries = removed->entries;
	c->disk_bytes = removed->bytes;
	if (k->request.result == STORE_FAILED)
		c->result = CACHE_E_DISK;
	control_free(k);
	c->done(c);
}

static void wipe_done(struct store_request *request)
{
	struct control *k = (struct control *)request;

	removed(k, &k->wipe.removed);
}

int engine_disk_wipe(struct store *store, struct store_root *root, struct cache_command *c)
{
	struct control *k = control_new(NULL, c);

	if (!k)
		return -ENOMEM;
	k->wipe = (struct store_wipe){
		.request = { .done = wipe_done, .at_once = true },
		.all = c->all,
		.name = { c->scope.filter, (uint32_t)strlen(c->scope.filter) },
		.below = true,
	};
	store_wipe(store, root, &k->wipe);
	return CACHE_PENDING;
}

static void drop_done(struct store_request *request)
{
	struct control *k = (struct control *)request;

	removed(k, &k->drop.removed);
}

int engine_disk_drop(struct engine_model *em, const struct tree_view *v, struct cache_command *c)
{
	uint32_t n_tokens = v->first + v->n_tokens;
	_cleanup_(control_freep) struct control *k = control_new(em, c);

	if (k)
		k->tokens = calloc(n_tokens, sizeof(*k->tokens));
	if (!k || !k->tokens)
		return -ENOMEM;
	if (v->name.n)
		memcpy(k->name, v->name.bytes, v->name.n);
	/* By its tokens, too: it may be there from an earlier time, which the tree does not know. */
	k->drop = (struct store_drop){
		.request = { .done = drop_done, .at_once = true },
		.id = tree_disk_id((struct tree_ref){ v->entry, v->id }),
		.name = { k->name, (uint32_t)v->name.n },
		.tokens = k->tokens,
		.n_tokens = tree_path_tokens(v->entry, k->tokens, n_tokens),
	};
	tree_drop(em->tree, v->entry);
	store_drop(em->disk, &steal_ptr(k)->drop);
	return CACHE_PENDING;
}

/* --- pins --- */

static void pin_done(struct store_request *request)
{
	control_free((struct control *)request);
}

static void ask_pin(struct engine_model *em, uint64_t id, uid_t uid, bool pin, bool every)
{
	struct control *k = control_new(em, NULL);

	/* It is not pinned on disk, then. */
	if (!k)
		return;
	k->pin = (struct store_pin){
		.request = { .done = pin_done, .at_once = true }, .id = id, .uid = uid, .pin = pin, .every = every,
	};
	store_pin(em->disk, &k->pin);
}

void engine_disk_pin(struct engine_model *em, struct tree_ref ref, uid_t uid, bool pin, bool every)
{
	uint64_t id = em->disk ? tree_disk_id(ref) : 0;

	if (id)
		ask_pin(em, id, uid, pin, every);
}

void engine_disk_pin_written(struct engine_model *em, struct tree_ref ref)
{
	struct tree_view v;
	uid_t uid;

	if (!tree_ref_view(em->tree, ref, &v) || !v.n_pins)
		return;
	for (uint32_t i = 0; tree_pinned_by(em->tree, v.entry, i, &uid); i++)
		engine_disk_pin(em, ref, uid, true, false);
}

/* --- listing --- */

static struct tree_name name_of(const struct store_view *v)
{
	return (struct tree_name){ v->name, v->n_name };
}

static uint64_t number_of(const struct control *k, uint64_t id)
{
	const struct engine *e = k->model->engine;
	struct tree_ref ref = known_find(&k->known, id);

	return cache_number(e, ref.entry ? ref.id : id);
}

static bool pinned_by(const struct store_view *v, uid_t uid)
{
	for (uint32_t i = 0; i < v->n_pins; i++)
		if (v->pinned_by[i] == uid)
			return true;
	return false;
}

static void describe(const struct control *k, const struct store_view *v, struct cache_entry *out)
{
	const struct cache_scope *scope = &k->command->scope;
	bool told = cache_owns(scope, name_of(v)), pinned = pinned_by(v, scope->uid);
	uint64_t now = clock_real_ns();

	*out = (struct cache_entry){
		.number = cache_number(k->model->engine, v->id),
		.parent = number_of(k, v->parent),
		.uid = v->uid,
		.n_tokens = v->n_tokens,
		.first = v->first,
		.joined = v->joined && !known_find(&k->known, v->parent).entry,
		.bytes = k->model->block_bytes,
		.tier = "disk",
		.n_pins = told ? v->n_pins : pinned,
		.priority = (uint32_t)(v->priority - EVICT_PRIORITY_LOW),
		.pinned = pinned,
	};
	out->idle_ns = out->age_ns = now - MIN(v->created, now);
	if (told && v->expires != STORE_NEVER)
		out->ttl_ns = MAX(v->expires, now + 1) - now;
	snprintf(out->ns, sizeof(out->ns), "%.*s", (int)v->n_name, (const char *)v->name);
	cache_copy_text(k->model, v->tokens, v->n_tokens, out->words, sizeof(out->words));
}

/* On the store's thread: store_want_fn. */
static enum store_want wants(const void *arg, const struct store_name *name)
{
	const struct cache_command *c = arg;
	struct tree_name n = { name->bytes, name->n };

	if (c->scope.filter[0] && !cache_is_within(n, c->scope.filter))
		return STORE_WANT_NONE;
	if (cache_owns(&c->scope, n))
		return STORE_WANT_ALL;
	/* Others' own have nothing of his. */
	return n.n >= 4 && !memcmp(n.bytes, "uid:", 4) ? STORE_WANT_NONE : STORE_WANT_OWN;
}

/*
 * What an earlier process has left in memory is in the tree without its id on disk until it is used: the tree has got
 * it all the same.
 */
static struct tree_ref find_in_tree(const struct control *k, const struct store_view *v)
{
	struct tree_ref parent = { 0 }, ref;

	if (v->parent) {
		parent = known_find(&k->known, v->parent);
		for (uint32_t i = 0; !parent.entry && i < MIN(k->n_met, CACHE_PAGE_MAX); i++)
			if (k->met[i].id == v->parent)
				parent = k->met[i].ref;
		if (!parent.entry)
			return parent;
	}
	ref = tree_find_child(k->model->tree, name_of(v), parent, v->tokens, v->n_tokens);
	if (ref.entry && !tree_disk_id(ref))
		tree_set_disk_id(ref, v->id);
	return ref;
}

static void add_views(struct control *k)
{
	struct cache_command *c = k->command;

	for (uint32_t i = 0; i < k->list.n; i++) {
		struct tree_ref ref = find_in_tree(k, &k->views[i]);

		if (ref.entry)
			k->met[k->n_met++ % CACHE_PAGE_MAX] = (struct pair){ k->views[i].id, ref };
		else
			describe(k, &k->views[i], &c->entries[c->n++]);
	}
}

static void list_done(struct store_request *request)
{
	struct control *k = (struct control *)request;
	struct cache_command *c = k->command;
	bool more = k->list.n && k->list.n == k->list.max;

	for (uint32_t i = 0; i < k->list.n_check; i++) {
		struct cache_entry *entry = &c->entries[k->check_of[i]];

		if (k->there[i])
			entry->tier = entry->tier[0] == 'h' ? "host+disk" : "memory+disk";
	}
	add_views(k);
	/* Some of them were known after all. */
	if (more && c->n < CACHE_PAGE_MAX) {
		k->list.after = k->views[k->list.n - 1].id;
		k->list.max = CACHE_PAGE_MAX - c->n;
		k->list.n_check = 0;
		store_list(k->model->disk, &k->list);
		return;
	}
	c->next = c->n == CACHE_PAGE_MAX ? c->entries[c->n - 1].number : 0;
	k->model->n_disk_jobs--;
	control_free(k);
	c->done(c);
}

int engine_disk_list(struct engine_model *em, struct cache_command *c, const struct tree_view *views)
{
	_cleanup_(control_freep) struct control *k = control_new(em, c);
	const struct cache_scope *s = &c->scope;

	if (!k)
		return -ENOMEM;
	k->list = (struct store_list){
		.request.done = list_done, .now = clock_real_ns(), .uid = s->uid, .arg = c,
		.wants = s->admin && !s->filter[0] ? NULL : wants,
		.max = CACHE_PAGE_MAX - c->n, .check = k->check, .there = k->there,
	};
	if (cache_is_on_disk(c->after))
		k->list.after = cache_id(em->engine, c->after);
	for (uint32_t i = 0; i < c->n; i++) {
		uint64_t id = tree_disk_id((struct tree_ref){ views[i].entry, views[i].id });

		if (!id)
			continue;
		k->check_of[k->list.n_check] = i;
		k->check[k->list.n_check++] = id;
	}
	k->views = calloc(MAX(k->list.max, 1u), sizeof(*k->views));
	if (!k->views || known_init(&k->known, em->tree))
		return -ENOMEM;
	k->list.views = k->views;
	k->list.known = k->known.ids;
	k->list.n_known = k->known.n;
	em->n_disk_jobs++;
	store_list(em->disk, &steal_ptr(k)->list);
	return CACHE_PENDING;
}

/* --- one entry that is on disk alone --- */

static void show(struct control *k)
{
	struct cache_command *c = k->command;
	const struct store_view *v = &k->show.view;
	bool told = cache_owns(&c->scope, name_of(v));

	describe(k, v, &c->entries[0]);
	c->n = 1;
	c->chain_first = cache_number(k->model->engine, k->show.chain);
	c->n_path = k->show.n_path;
	c->n_below = told ? k->show.n_below : 0;
	for (uint32_t i = 0; i < v->n_pins && c->n_pinned_by < CACHE_PINS_MAX; i++)
		if (told || v->pinned_by[i] == c->scope.uid)
			c->pinned_by[c->n_pinned_by++] = v->pinned_by[i];
	cache_copy_text(k->model, k->tokens, k->show.n_tokens, c->text, sizeof(c->text));
	cache_copy_text(k->model, v->tokens, v->n_tokens, c->own_text, sizeof(c->own_text));
}

static int pin_shown(struct control *k)
{
	struct cache_command *c = k->command;
	bool every = c->scope.admin && c->all;

	if (c->op == CACHE_UNPIN && !(every ? k->show.view.n_pins > 0 : pinned_by(&k->show.view, c->scope.uid)))
		return CACHE_E_NOT_PINNED;
	ask_pin(k->model, k->show.view.id, c->scope.uid, c->op == CACHE_PIN, every);
	c->n_entries = k->show.n_path;
	c->n_tokens = k->show.view.first + k->show.view.n_tokens;
	c->bytes = c->n_entries * k->model->block_bytes;
	return 0;
}

/* The store takes k over. */
static int drop_shown(struct control *k)
{
	struct cache_command *c = k->command;
	uint64_t id = c->chain ? k->show.chain : k->show.view.id;

	if (!cache_owns(&c->scope, name_of(&k->show.view)))
		return CACHE_E_DENIED;
	k->drop = (struct store_drop){ .request = { .done = drop_done, .at_once = true }, .id = id };
	store_drop(k->model->disk, &k->drop);
	return CACHE_PENDING;
}

static int run_shown(struct control *k)
{
	const struct cache_scope *s = &k->command->scope;
	const struct store_view *v = &k->show.view;

	if (k->request.result != STORE_OK || (v->uid != s->uid && !cache_owns(s, name_of(v))))
		return CACHE_E_NO_ENTRY;
	switch (k->command->op) {
	case CACHE_SHOW:
		show(k);
		return 0;
	case CACHE_DROP:
		return drop_shown(k);
	default:
		return pin_shown(k);
	}
}

static void show_done(struct store_request *request)
{
	struct control *k = (struct control *)request;
	struct cache_command *c = k->command;
	int r;

	k->model->n_disk_jobs--;
	r = run_shown(k);
	if (r == CACHE_PENDING)
		return;
	c->result = r;
	control_free(k);
	c->done(c);
}

uint64_t engine_disk_tree_id(const struct engine_model *em, uint64_t id)
{
	struct known known = { 0 };
	struct tree_ref ref = { 0 };

	if (!known_init(&known, em->tree))
		ref = known_find(&known, id);
	known_deinit(&known);
	return ref.entry ? ref.id : 0;
}

int engine_disk_on_entry(struct engine_model *em, struct cache_command *c)
{
	_cleanup_(control_freep) struct control *k = control_new(em, c);

	if (k)
		k->tokens = calloc(CACHE_TEXT_MAX, sizeof(*k->tokens));
	if (!k || !k->tokens || known_init(&k->known, em->tree))
		return -ENOMEM;
	k->show = (struct store_show){
		.request.done = show_done, .id = cache_id(em->engine, c->entry), .tokens = k->tokens,
		.max_tokens = CACHE_TEXT_MAX, .known = k->known.ids, .n_known = k->known.n,
	};
	em->n_disk_jobs++;
	store_show(em->disk, &steal_ptr(k)->show);
	return CACHE_PENDING;
}
