/* SPDX-License-Identifier: Apache-2.0 */
/* What the cache holds, as bytes. */
#include <stdlib.h>

#include "daemon/engine/share-private.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"

/* Records that were copied in one visit, at most. */
#define RECORDS_MAX 64u

struct export {
	struct engine_model *em;
	struct cache_scope scope;
	struct export_shape shape;
	struct share_list list;
	int result;
	uint32_t next;			/* item */
	uint32_t skip_depth;		/* what is this deep follows one that is missing; UINT32_MAX: nothing is */
	/* Of one visit. */
	struct export_record records[RECORDS_MAX];
	uint32_t n_records, max_records;
	uint8_t *kv;			/* [max_records][block_bytes] */
	struct charge charge;		/* for kv */
};

/* tree_want_fn */
static bool is_below(void *arg, struct tree_name name, uid_t uid)
{
	const struct cache_scope *s = arg;

	return cache_is_within(name, s->filter);
}

/* On the engine's thread. */
static void begin(struct engine *e, void *arg)
{
	struct export *x = arg;

	x->result = share_list_init(&x->list, e, x->em, is_below, &x->scope);
	if (!x->result && !pool_can_copy(x->em->root))
		x->result = SHARE_E_UNABLE;
	if (!x->result)
		share_shape(e, x->em, &x->shape);
}

/* The part of a name below the filter; false: it is no key. */
static bool set_key(struct export_record *r, struct tree_name name, const char *filter)
{
	size_t n = strlen(filter);
	const char *key = (const char *)name.bytes + n + 1;

	if (name.n == n)
		return true;
	n = name.n - n - 1;
	if (!n || n > EXPORT_KEY_MAX || memchr(key, '/', n))
		return false;
	memcpy(r->key, key, n);
	r->n_key = (uint32_t)n;
	return true;
}

/* The item's record, and its keys and values.  False: it is left out. */
static bool copy_item(struct export *x, const struct share_item *item, uint64_t now)
{
	struct export_record *r = &x->records[x->n_records];
	struct tree *t = x->em->tree;
	struct tree_view v;

	*r = (struct export_record){ 0 };
	if (!tree_ref_view(t, item->ref, &v) || !set_key(r, v.name, x->scope.filter) || v.expires <= now)
		return false;
	if (tree_read(t, item->ref, x->kv + x->n_records * x->shape.block_bytes))
		return false;
	r->n_tokens = v.n_tokens;
	r->first = v.first;
	r->ttl_ns = v.expires == EVICT_NEVER ? 0 : v.expires - now;
	memcpy(r->tokens, v.tokens, v.n_tokens * sizeof(*r->tokens));
	x->n_records++;
	return true;
}

/* On the engine's thread: the next records. */
static void copy_some(struct engine *e, void *arg)
{
	struct export *x = arg;
	uint64_t now = clock_ns();

	x->n_records = 0;
	if (!engine_has_model(e, x->em)) {
		x->result = SHARE_E_NO_MODEL;
		return;
	}
	for (; x->next < x->list.n && x->n_records < x->max_records; x->next++) {
		const struct share_item *item = &x->list.items[x->next];

		if (item->depth > x->skip_depth)
			continue;
		x->skip_depth = copy_item(x, item, now) ? UINT32_MAX : item->depth;
	}
}

static int write_some(const struct export *x, struct export_stream *s, const struct share_ops *ops,
		      struct share_figures *figures)
{
	uint8_t head[EXPORT_RECORD_MAX];

	for (uint32_t i = 0; i < x->n_records; i++) {
		const struct export_record *r = &x->records[i];
		const uint8_t *kv = x->kv + i * x->shape.block_bytes;
		uint64_t n_kv = export_kv_bytes(&x->shape, r->n_tokens);
		int err;

		export_put_record(s, &x->shape, r, kv, head);
		err = ops->write(ops->arg, head, export_head_bytes(r));
		if (!err)
			err = ops->write(ops->arg, kv, n_kv);
		if (err)
			return err;
		figures->n_entries++;
		figures->n_tokens += r->n_tokens;
		figures->bytes += n_kv;
	}
	return 0;
}

static int write_all(struct engine *e, struct export *x, const struct share_ops *ops, struct share_figures *figures)
{
	uint8_t bytes[EXPORT_HEADER_MAX];
	struct export_stream s = { 0 };
	int err = ops->write(ops->arg, bytes, export_put_header(&s, &x->shape, bytes));

	while (!err && x->next < x->list.n) {
		if (ops->is_cancelled(ops->arg))
			return -ECANCELED;
		err = share_visit(e, copy_some, x);
		if (!err)
			err = x->result;
		if (!err)
			err = write_some(x, &s, ops, figures);
		ops->progress(ops->arg, x->next, x->list.n);
	}
	if (err)
		return err;
	export_put_end(&s, bytes);
	return ops->write(ops->arg, bytes, EXPORT_RECORD_HEAD);
}

static int export(struct engine *e, struct export *x, const struct share_ops *ops, struct share_figures *figures)
{
	int err = share_visit(e, begin, x);

	if (!err)
		err = x->result;
	if (err)
		return err;
	x->skip_depth = UINT32_MAX;
	x->max_records = (uint32_t)MIN(MAX(SHARE_BYTES / x->shape.block_bytes, UINT64_C(1)), (uint64_t)RECORDS_MAX);
	err = charge_init(&x->charge, e->accounts, x->scope.uid, ACCOUNT_MEMORY, x->max_records * x->shape.block_bytes);
	if (err)
		return err == ACCOUNT_E_QUOTA ? SHARE_E_QUOTA : err;
	x->kv = malloc(x->max_records * x->shape.block_bytes);
	if (!x->kv)
		return -ENOMEM;
	return write_all(e, x, ops, figures);
}

int engine_export(struct engine *e, struct engine_model *em, const struct cache_scope *scope,
		  const struct share_ops *ops, struct share_figures *figures, struct diag *diag)
{
	struct export *x = calloc(1, sizeof(*x));
	int err;

	*figures = (struct share_figures){ 0 };
	if (!x)
		return -ENOMEM;
	x->em = em;
	x->scope = *scope;
	err = export(e, x, ops, figures);
	share_list_deinit(&x->list);
	free(x->kv);
	charge_deinit(&x->charge);
	free(x);
	return err;
}
