/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/share-private.h"

#include <stdlib.h>
#include <time.h>

/* The engine has much to answer: it is asked again so much later. */
#define BUSY_NS 2000000

struct visit {
	void (*fn)(struct engine *e, void *arg);
	void *arg;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool done;
};

/* On the engine's thread. */
static void visit(struct engine *e, void *arg)
{
	struct visit *v = arg;

	v->fn(e, v->arg);
	pthread_mutex_lock(&v->lock);
	v->done = true;
	pthread_cond_signal(&v->changed);
	pthread_mutex_unlock(&v->lock);
}

int share_visit(struct engine *e, void (*fn)(struct engine *e, void *arg), void *arg)
{
	struct visit v = {
		.fn = fn, .arg = arg, .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER,
	};
	int r;

	while ((r = engine_call(e, visit, &v)) == ENGINE_E_BUSY)
		nanosleep(&(struct timespec){ .tv_nsec = BUSY_NS }, NULL);
	if (!r) {
		pthread_mutex_lock(&v.lock);
		while (!v.done)
			pthread_cond_wait(&v.changed, &v.lock);
		pthread_mutex_unlock(&v.lock);
	}
	pthread_cond_destroy(&v.changed);
	pthread_mutex_destroy(&v.lock);
	return r;
}

struct collect {
	struct share_list *list;
	uint32_t max, block_tokens;
	tree_want_fn fn;
	struct cache_scope *scope;
};

static bool collect(void *arg, const struct tree_view *v)
{
	struct collect *c = arg;

	if (c->list->n == c->max)
		return false;
	if (c->fn(c->scope, v->name, v->uid))
		c->list->items[c->list->n++] = (struct share_item){
			.ref = { v->entry, v->id }, .depth = v->first / c->block_tokens,
		};
	return true;
}

int share_list_init(struct share_list *l, struct engine *e, struct engine_model *em, tree_want_fn fn,
		    struct cache_scope *scope)
{
	struct share_list list = { 0 };
	struct tree_stats stats;
	int err;

	if (!engine_has_model(e, em))
		return SHARE_E_NO_MODEL;
	tree_stats(em->tree, &stats);
	if (stats.n_entries) {
		err = charge_init(&list.charge, e->accounts, scope->uid, ACCOUNT_MEMORY,
				  stats.n_entries * sizeof(*list.items));
		if (err)
			return err == ACCOUNT_E_QUOTA ? SHARE_E_QUOTA : err;
		list.items = calloc(stats.n_entries, sizeof(*list.items));
		if (!list.items) {
			charge_deinit(&list.charge);
			return -ENOMEM;
		}
	}
	tree_walk(em->tree, collect, &(struct collect){
		.list = &list, .max = stats.n_entries, .block_tokens = em->block_tokens, .fn = fn, .scope = scope,
	});
	*l = list;
	return 0;
}

void share_list_deinit(struct share_list *l)
{
	free(l->items);
	charge_deinit(&l->charge);
	*l = (struct share_list){ 0 };
}

void share_shape(const struct engine *e, const struct engine_model *em, struct export_shape *out)
{
	*out = (struct export_shape){
		.block_tokens = em->block_tokens,
		.block_bytes = pool_root_geometry(em->root)->block_bytes,
		.n_vocab = em->n_vocab,
		.whole_blocks = !kb_has_partial_blocks(pool_root_geometry(em->root)),
	};
	engine_identify(e, em, &out->identity);
}
