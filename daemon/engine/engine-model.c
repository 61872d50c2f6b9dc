/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "daemon/engine/engine-private.h"
#include "daemon/model/kv-type.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"

/* Of the hash by which prefixes are found: a build with few shows that colliding ones do no harm. */
#ifdef KVD_TEST_HASH_BITS
#define HASH_BITS KVD_TEST_HASH_BITS
#else
#define HASH_BITS 64
#endif

/* --- coming, any thread --- */

uint64_t engine_random(void)
{
	uint64_t v;

	/* Early in the boot the clock has to do. */
	return getrandom(&v, sizeof(v), GRND_NONBLOCK) < 0 ? clock_ns() : v;
}

static int create_tree(struct engine *e, struct engine_model *em)
{
	struct tree_config config = {
		.accounts = e->accounts, .root = em->root, .host = e->host, .hash_bits = HASH_BITS,
		.whole_blocks = !kb_has_partial_blocks(pool_root_geometry(em->root)),
	};

	config.seed = engine_random();
	return tree_new(&em->tree, &config);
}

static int create_root(struct engine *e, struct engine_model *em, struct diag *diag)
{
	struct kb_geometry geometry;
	uint64_t capacity;
	int err;

	model_geometry(em->model, e->kv_type, em->block_tokens, &geometry);
	em->open_bytes = kb_open_bytes(&geometry);
	if (em->open_bytes && (!e->be->ops->open_new || !e->be->ops->open_free))
		return diag_set(diag, -ENOTSUP, "the device has no keys and values of type %s",
				kv_type_name(e->kv_type));
	if (!geometry.block_bytes)
		return diag_set(diag, -EINVAL, "the model's KV blocks are too large");
	if (geometry.block_bytes > pool_chunk_bytes(e->pool))
		return diag_set(diag, -EINVAL,
				"a KV block of the model has %llu bytes, a chunk of the KV memory only %llu",
				(unsigned long long)geometry.block_bytes,
				(unsigned long long)pool_chunk_bytes(e->pool));
	err = pool_root_new(&em->root, e->pool, &geometry);
	if (err)
		return diag_set(diag, err, "no KV blocks can be made for the model: %s", strerror(-err));
	err = create_tree(e, em);
	if (err)
		return diag_set(diag, err, "no prefix tree can be made for the model: %s", strerror(-err));
	em->block_bytes = geometry.block_bytes;
	capacity = (uint64_t)pool_root_capacity(em->root) * em->block_tokens;
	em->n_ctx_model = model_n_ctx(em->model);
	em->n_ctx = (uint32_t)MIN((uint64_t)em->n_ctx_model, capacity);
	if (em->n_ctx < 2)
		return diag_set(diag, -EINVAL, "the context is %u tokens: too short", em->n_ctx);
	em->published.blocks_free = em->published.blocks_capacity = pool_root_capacity(em->root);
	return 0;
}

static int create_step(struct engine *e, struct engine_model *em, struct diag *diag)
{
	struct kb_workspace_desc desc = { 0 };
	int err;

	model_workspace_desc(em->model, &desc);
	desc.max_rows = e->sched.max_seqs + e->sched.quantum;
	desc.max_logits = e->sched.max_seqs + e->sched.logits_quantum;
	err = e->be->ops->workspace_new(e->be, &desc, &em->ws);
	if (!err)
		err = sampler_new(&em->sampler, em->n_vocab);
	if (err)
		return diag_set(diag, err, "no workspace for steps of %u tokens: %s", desc.max_rows,
				strerror(-err));
	return 0;
}

static uint32_t longest_piece(const struct engine_model *em)
{
	size_t longest = 0, n;

	for (uint32_t id = 0; id < em->n_vocab; id++)
		if (tokenizer_bytes(em->tokenizer, (int32_t)id, &n))
			longest = MAX(longest, n);
	return (uint32_t)MIN(longest, (size_t)UINT32_MAX);
}

static int create(struct engine *e, struct engine_model *em, struct diag *diag)
{
	int err;

	em->name = strdup(model_info(em->model)->name);
	if (!em->name)
		return -ENOMEM;
	em->tokenizer = model_tokenizer(em->model);
	em->n_vocab = model_info(em->model)->n_vocab;
	em->n_embd = model_info(em->model)->n_embd;
	em->max_piece = longest_piece(em);
	scheduler_init_model(&em->sched, em->block_tokens);
	err = create_root(e, em, diag);
	return err ? err : create_step(e, em, diag);
}

/* Hands it to the thread; before any request of it, since those come the same way. */
static int post(struct engine *e, struct engine_model *em)
{
	int err = 0;

	pthread_mutex_lock(&e->lock);
	if (e->stop)
		err = -ESHUTDOWN;
	else
		list_push_back(&e->added, &em->link);
	pthread_mutex_unlock(&e->lock);
	return err;
}

int engine_add_model(struct engine *e, struct model *model, struct engine_model **out, struct diag *diag)
{
	return engine_add_model_blocks(e, model, 0, out, diag);
}

int engine_add_model_blocks(struct engine *e, struct model *model, uint32_t block_tokens, struct engine_model **out,
			    struct diag *diag)
{
	struct engine_model *em = calloc(1, sizeof(*em));
	int err;

	if (!em)
		return -ENOMEM;
	list_init(&em->link);
	list_init(&em->removal_link);
	em->engine = e;
	em->model = model;
	em->block_tokens = block_tokens ? block_tokens : e->block_tokens;
	err = create(e, em, diag);
	if (!err)
		err = post(e, em);
	if (err) {
		engine_model_release(e, em);
		engine_model_free(em);
		return diag_set(diag, err, "the model can't be added: %s", strerror(-err));
	}
	*out = em;
	return 0;
}

const char *engine_model_name(const struct engine_model *em)
{
	return em->name;
}

uint32_t engine_model_n_ctx(const struct engine_model *em)
{
	return em->n_ctx;
}

uint64_t engine_model_block_bytes(const struct engine_model *em)
{
	return em->block_bytes;
}

uint32_t engine_model_block_tokens(const struct engine_model *em)
{
	return em->block_tokens;
}

uint32_t engine_model_max_piece(const struct engine_model *em)
{
	return em->max_piece;
}

void engine_model_stats(struct engine *e, const struct engine_model *em, struct engine_model_stats *out)
{
	pthread_mutex_lock(&e->lock);
	*out = em->published;
	out->n_queued += em->n_incoming;
	out->n_requests = em->n_requests;
	pthread_mutex_unlock(&e->lock);
}

/* --- going --- */

int engine_remove_model(struct engine *e, struct engine_model *em, engine_removed_fn fn, void *arg)
{
	int err = 0;

	pthread_mutex_lock(&e->lock);
	em->removing = true;
	if (e->stop) {
		err = -ESHUTDOWN;
	} else {
		em->removed = fn;
		em->removed_arg = arg;
		list_push_back(&e->removals, &em->removal_link);
		pthread_cond_signal(&e->wake);
	}
	pthread_mutex_unlock(&e->lock);
	return err;
}

void engine_model_release(struct engine *e, struct engine_model *em)
{
	if (em->ws)
		e->be->ops->workspace_free(e->be, em->ws);
	em->ws = NULL;
	sampler_free(em->sampler);
	em->sampler = NULL;
	engine_disk_remove(e, em);
	tree_free(em->tree);
	em->tree = NULL;
	pool_root_free(em->root);
	em->root = NULL;
	list_unlink(&em->link);
}

void engine_let_go(struct engine *e, struct engine_model *em)
{
	struct tree_stats tree;

	list_for_each_safe(l, next, &e->requests) {
		struct engine_request *r = list_entry(l, struct engine_request, link);

		if (r->model == em)
			engine_fail(e, r, SINK_ERROR_UNLOADED, "the model was unloaded");
	}
	engine_settle(e);
	tree_stats(em->tree, &tree);
	e->evicted_before += tree.evicted;
	engine_model_release(e, em);
	/* What was published counts it still. */
	engine_publish(e);
	em->removed(em->removed_arg);
}

void engine_model_free(struct engine_model *em)
{
	if (!em)
		return;
	free(em->name);
	free(em);
}
