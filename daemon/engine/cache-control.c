/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/cache-control.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/engine/engine-private.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "ipc/base/hash.h"
#include "ipc/base/utf8.h"

/* --- numbers --- */

#define HALF_BITS 18u
#define HALF_MASK ((1u << HALF_BITS) - 1)
#define ROUNDS 6u

static uint32_t mix(const struct engine *e, uint32_t half, uint32_t round)
{
	const uint32_t input[2] = { half, round };

	return (uint32_t)hash_u64(input, sizeof(input), e->number_key) & HALF_MASK;
}

/*
 * A permutation of the ids with a secret key (Luby, Rackoff 1988): numbers of eleven digits that tell nothing of
 * each other.  Ids of more than twice HALF_BITS, which are years away, keep what is above that.
 */
uint64_t cache_number(const struct engine *e, uint64_t id)
{
	uint32_t a = (uint32_t)(id >> HALF_BITS) & HALF_MASK, b = (uint32_t)id & HALF_MASK;

	if (!id)
		return 0;
	for (uint32_t round = 0; round < ROUNDS; round++) {
		uint32_t t = a ^ mix(e, b, round);

		a = b;
		b = t;
	}
	/* 0 is no entry's number. */
	return (id >> 2 * HALF_BITS << 2 * HALF_BITS | (uint64_t)a << HALF_BITS | b) + 1;
}

uint64_t cache_id(const struct engine *e, uint64_t number)
{
	uint64_t v = number - 1;
	uint32_t a = (uint32_t)(v >> HALF_BITS) & HALF_MASK, b = (uint32_t)v & HALF_MASK;

	if (!number)
		return 0;
	for (uint32_t round = ROUNDS; round--;) {
		uint32_t t = b ^ mix(e, a, round);

		b = a;
		a = t;
	}
	return v >> 2 * HALF_BITS << 2 * HALF_BITS | (uint64_t)a << HALF_BITS | b;
}

/* Ids of the disk's begin at 2^40, see FORMAT.md. */
bool cache_is_on_disk(uint64_t number)
{
	return number && (number - 1) >> 2 * HALF_BITS;
}

/* --- who may what --- */

bool cache_is_within(struct tree_name name, const char *top)
{
	size_t n = strlen(top);

	return name.n >= n && !memcmp(name.bytes, top, n) &&
	       (name.n == n || ((const char *)name.bytes)[n] == '/');
}

bool cache_owns(const struct cache_scope *s, struct tree_name name)
{
	return s->admin || cache_is_within(name, s->own);
}

bool cache_sees(void *arg, struct tree_name name, uid_t uid)
{
	const struct cache_scope *s = arg;

	if (s->filter[0] && !cache_is_within(name, s->filter))
		return false;
	return uid == s->uid || cache_owns(s, name);
}

/* tree_want_fn: what the command wipes. */
static bool wipes(void *arg, struct tree_name name, uid_t uid)
{
	const struct cache_command *c = arg;

	return cache_owns(&c->scope, name) && (c->all || cache_is_within(name, c->scope.filter));
}

/* The entry of the command, as the one who asks sees it. */
static struct tree_entry *find(const struct engine *engine, const struct cache_command *c, struct tree_view *v)
{
	struct tree *t = c->model->tree;
	uint64_t id = cache_id(engine, c->entry);
	struct tree_entry *e;

	/* It may have come into memory since it was listed. */
	if (cache_is_on_disk(c->entry))
		id = engine_disk_tree_id(c->model, id);
	e = tree_find(t, id);
	if (!e)
		return NULL;
	tree_view(t, e, v);
	return v->uid == c->scope.uid || cache_owns(&c->scope, v->name) ? e : NULL;
}

/* --- plain data --- */

void cache_copy_text(const struct engine_model *em, const int32_t *tokens, uint32_t n, char *out, size_t size)
{
	size_t at = 0;

	for (uint32_t i = 0; i < n; i++) {
		size_t n_bytes;
		int32_t previous = i ? tokens[i - 1] : -1;
		const uint8_t *bytes = tokenizer_bytes_after(em->tokenizer, previous, tokens[i], &n_bytes);

		if (!bytes)
			continue;
		n_bytes = MIN(n_bytes, size - 1 - at);
		memcpy(out + at, bytes, n_bytes);
		at += n_bytes;
		if (at == size - 1)
			break;
	}
	at = utf8_complete((const uint8_t *)out, at);
	for (size_t i = 0; i < at; i++)
		if ((unsigned char)out[i] < 0x20 || out[i] == 0x7f)
			out[i] = ' ';
	out[at] = '\0';
}

/* Whether the uid is among those who pinned it. */
static bool pinned_by(const struct tree *t, const struct tree_entry *e, uid_t uid)
{
	uid_t other;

	for (uint32_t i = 0; tree_pinned_by(t, e, i, &other); i++)
		if (other == uid)
			return true;
	return false;
}

static void describe(const struct engine *e, const struct cache_command *c, const struct tree_view *v, uint64_t now,
		     struct cache_entry *out)
{
	const struct engine_model *em = c->model;
	bool told = cache_owns(&c->scope, v->name);
	bool pinned = v->n_pins && pinned_by(em->tree, v->entry, c->scope.uid);

	*out = (struct cache_entry){
		.number = cache_number(e, v->id),
		.parent = cache_number(e, v->parent),
		.uid = v->uid,
		.n_tokens = v->n_tokens,
		.first = v->first,
		.joined = v->joined,
		.bytes = v->bytes,
		.tier = v->tier == TREE_TIER_HOST ? "host" : "memory",
		.n_pins = told ? v->n_pins : pinned,
		.priority = (uint32_t)(v->priority - EVICT_PRIORITY_LOW),
		.pinned = pinned,
	};
	out->age_ns = now - MIN(v->created, now);
	/* Others' use of what is shared is theirs. */
	out->idle_ns = told ? now - MIN(v->last_use, now) : out->age_ns;
	if (told) {
		out->hits = v->hits;
		out->n_users = v->n_users;
		if (v->expires != EVICT_NEVER)
			out->ttl_ns = MAX(v->expires, now + 1) - now;
	}
	snprintf(out->ns, sizeof(out->ns), "%.*s", (int)v->name.n, (const char *)v->name.bytes);
	cache_copy_text(em, v->tokens, v->n_tokens, out->words, sizeof(out->words));
}

/* --- the commands, on the engine's thread --- */

static int list(const struct engine *e, struct cache_command *c)
{
	struct tree_view views[CACHE_PAGE_MAX];
	uint64_t now = clock_ns();

	c->block_tokens = c->model->block_tokens;
	c->n = 0;
	if (!cache_is_on_disk(c->after))
		c->n = tree_list(c->model->tree, cache_id(e, c->after), cache_sees, &c->scope, views, CACHE_PAGE_MAX);
	for (uint32_t i = 0; i < c->n; i++)
		describe(e, c, &views[i], now, &c->entries[i]);
	if (c->n == CACHE_PAGE_MAX)
		c->next = c->entries[c->n - 1].number;
	return c->model->disk ? engine_disk_list(c->model, c, views) : 0;
}

static void show(const struct engine *engine, struct cache_command *c, struct tree_entry *e,
		 const struct tree_view *v)
{
	const struct tree *t = c->model->tree;
	bool told = cache_owns(&c->scope, v->name);
	int32_t tokens[CACHE_TEXT_MAX];
	uint64_t n_tokens;
	struct tree_view first;
	uid_t uid;

	describe(engine, c, v, clock_ns(), &c->entries[0]);
	c->n = 1;
	tree_view(t, tree_chain_first(e), &first);
	c->chain_first = cache_number(engine, first.id);
	c->n_path = tree_depth(e);
	/* What others have stored below it is theirs. */
	c->n_below = told ? tree_n_below(e, &n_tokens) : 0;
	for (uint32_t i = 0; c->n_pinned_by < CACHE_PINS_MAX && tree_pinned_by(t, e, i, &uid); i++)
		if (told || uid == c->scope.uid)
			c->pinned_by[c->n_pinned_by++] = uid;
	cache_copy_text(c->model, tokens, tree_path_tokens(e, tokens, CACHE_TEXT_MAX), c->text, sizeof(c->text));
	cache_copy_text(c->model, v->tokens, v->n_tokens, c->own_text, sizeof(c->own_text));
}

/* The path to an entry. */
static void count_path(struct cache_command *c, const struct tree_entry *e, const struct tree_view *v)
{
	c->n_entries = tree_depth(e);
	c->n_tokens = v->first + v->n_tokens;
	c->bytes = c->n_entries * c->model->block_bytes;
}

static int pin(struct cache_command *c, struct tree_entry *e, const struct tree_view *v)
{
	int r = tree_pin(c->model->tree, e, c->scope.uid);

	if (r == TREE_E_FULL)
		return CACHE_E_FULL;
	if (r == TREE_E_QUOTA)
		return CACHE_E_QUOTA;
	if (!r) {
		count_path(c, e, v);
		engine_disk_pin(c->model, (struct tree_ref){ e, v->id }, c->scope.uid, true, false);
	}
	return r;
}

static int unpin(struct cache_command *c, struct tree_entry *e, const struct tree_view *v)
{
	struct tree *t = c->model->tree;
	bool every = c->scope.admin && c->all;
	uid_t uid = c->scope.uid;

	if (every ? !tree_pinned_by(t, e, 0, &uid) : !pinned_by(t, e, uid))
		return CACHE_E_NOT_PINNED;
	count_path(c, e, v);
	engine_disk_pin(c->model, (struct tree_ref){ e, v->id }, uid, false, every);
	/* With its last pin an entry that has expired may go. */
	for (uint32_t left = every ? v->n_pins : 1; left; left--) {
		if (every)
			(void)tree_pinned_by(t, e, 0, &uid);
		(void)tree_unpin(t, e, uid);
	}
	return 0;
}

static int drop(struct cache_command *c, struct tree_entry *e, const struct tree_view *v)
{
	uint64_t n_tokens;
	struct tree_view first;

	if (!cache_owns(&c->scope, v->name))
		return CACHE_E_DENIED;
	if (c->chain)
		e = tree_chain_first(e);
	tree_view(c->model->tree, e, &first);
	c->n_entries = 1 + tree_n_below(e, &n_tokens);
	c->n_tokens = first.n_tokens + n_tokens;
	c->bytes = c->n_entries * c->model->block_bytes;
	engine_disk_wiped(c->model->engine, c->model, NULL, NULL);
	if (c->model->disk)
		return engine_disk_drop(c->model, &first, c);
	tree_drop(c->model->tree, e);
	return 0;
}

static void wipe(struct cache_command *c, struct engine_model *em)
{
	struct tree_stats before, after;
	uint32_t n;

	tree_stats(em->tree, &before);
	n = tree_wipe_if(em->tree, wipes, c);
	tree_stats(em->tree, &after);
	c->n_entries += n;
	c->n_tokens += before.tokens - after.tokens;
	c->bytes += n * em->block_bytes;
}

/* kept_record_fn: the same of blocks that are kept of models that are not loaded. */
static bool wipes_kept(void *arg, const struct kept_record *record, uint64_t block_bytes)
{
	struct cache_command *c = arg;

	if (!wipes(c, (struct tree_name){ record->name, record->n_name }, record->uid))
		return false;
	c->n_entries++;
	c->n_tokens += record->n_tokens;
	c->bytes += block_bytes;
	return true;
}

/* In memory, then on disk. */
static int wipe_all(struct engine *e, struct cache_command *c)
{
	if (!c->model)
		(void)pool_forget(e->pool, wipes_kept, c);
	list_for_each(l, &e->models) {
		struct engine_model *em = list_entry(l, struct engine_model, link);

		if (c->model && c->model != em)
			continue;
		wipe(c, em);
		engine_disk_wiped(e, em, wipes, c);
	}
	if (!e->store || (c->model && !c->model->disk))
		return 0;
	return engine_disk_wipe(e->store, c->model ? c->model->disk : NULL, c);
}

/* Those that concern one entry. */
static int run_on_entry(const struct engine *engine, struct cache_command *c)
{
	struct tree_view v;
	struct tree_entry *e = find(engine, c, &v);

	if (!e && cache_is_on_disk(c->entry) && c->model->disk)
		return engine_disk_on_entry(c->model, c);
	if (!e)
		return CACHE_E_NO_ENTRY;
	switch (c->op) {
	case CACHE_SHOW:
		show(engine, c, e, &v);
		return 0;
	case CACHE_PIN:
		return pin(c, e, &v);
	case CACHE_UNPIN:
		return unpin(c, e, &v);
	default:
		return drop(c, e, &v);
	}
}

bool engine_has_model(const struct engine *e, const struct engine_model *em)
{
	list_for_each(l, &e->models)
		if (list_entry(l, struct engine_model, link) == em)
			return true;
	return false;
}

static int run(struct engine *e, struct cache_command *c)
{
	bool of_all = !c->model && (c->op == CACHE_WIPE || c->op == CACHE_USAGE);

	if (!of_all && !(c->model && engine_has_model(e, c->model)))
		return CACHE_E_NO_MODEL;
	switch (c->op) {
	case CACHE_LS:
		return list(e, c);
	case CACHE_WIPE:
		return wipe_all(e, c);
	case CACHE_USAGE:
		list_for_each(l, &e->models) {
			struct engine_model *em = list_entry(l, struct engine_model, link);

			if (!c->model || c->model == em)
				c->n_entries += tree_n_blocks_of(em->tree, c->scope.uid);
		}
		return 0;
	default:
		return run_on_entry(e, c);
	}
}

static void call(struct engine *e, void *arg)
{
	struct cache_command *c = arg;
	int r = run(e, c);

	/* Who asks for figures next sees what it has changed. */
	engine_publish(e);
	/* One that waits for the disk may be over by now. */
	if (r == CACHE_PENDING)
		return;
	c->result = r;
	c->done(c);
}

bool cache_wipe_disk(struct store *store, struct cache_command *c)
{
	return engine_disk_wipe(store, NULL, c) == CACHE_PENDING;
}

int engine_cache(struct engine *e, struct cache_command *c)
{
	return engine_call(e, call, c);
}
