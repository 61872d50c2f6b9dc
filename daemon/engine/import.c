/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes from outside, into the cache.  A record is read and verified whole, in memory of the import's own; then the
 * engine's thread gives it a block and an entry, a few records in one visit.
 */
#include <stdlib.h>

#include "daemon/engine/share-private.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"

#define RECORDS_MAX 16u

struct import {
	struct engine_model *em;
	const struct import_place *place;
	const struct share_ops *ops;
	struct export_shape shape;
	uint64_t began;			/* nothing that was used since makes room */
	uint32_t n_ctx;
	int result;
	struct share_figures *figures;
	/* The engine thread's: tokens of the last record, and of what is before it. */
	int32_t *chain;			/* [n_ctx] */
	/* Of one visit. */
	struct export_record records[RECORDS_MAX];
	uint32_t n_records, max_records;
	uint8_t *kv;			/* [max_records][block_bytes] */
	struct charge charge;
};

/* --- on the engine's thread --- */

static void begin(struct engine *e, void *arg)
{
	struct import *m = arg;

	m->result = !engine_has_model(e, m->em) ? SHARE_E_NO_MODEL : !pool_can_copy(m->em->root) ? SHARE_E_UNABLE : 0;
	if (m->result)
		return;
	share_shape(e, m->em, &m->shape);
	m->n_ctx = m->em->n_ctx;
	m->began = clock_ns();
}

/* In the namespace of the record's key.  0, -ENOMEM. */
static int open_path(const struct import *m, const struct export_record *r, uint64_t now, struct tree_path *p)
{
	struct evict_terms terms = { .ttl = r->ttl_ns };
	char name[TREE_NAME_MAX + 1];
	int n;

	if (r->n_key && !m->place->one_place)
		n = snprintf(name, sizeof(name), "%s/%.*s", m->place->ns, (int)r->n_key, r->key);
	else
		n = snprintf(name, sizeof(name), "%s", m->place->ns);
	return tree_path_init(p, m->em->tree, (struct tree_name){ name, (size_t)n }, m->place->uid, &terms, now);
}

/* A block for the record; 0, SHARE_E_QUOTA, SHARE_E_FULL, -ENOMEM. */
static int get_block(const struct import *m, uint32_t *block)
{
	struct engine_model *em = m->em;
	int err;

	do
		err = pool_block_get(em->root, m->place->uid, block);
	while (err > 0 && tree_evict_unused(em->tree, m->place->uid, m->began, clock_ns()));
	if (err == POOL_E_QUOTA)
		return SHARE_E_QUOTA;
	return err == POOL_E_FULL ? SHARE_E_FULL : err;
}

static int result_of(int err)
{
	switch (err) {
	case TREE_E_QUOTA:
		return SHARE_E_QUOTA;
	case TREE_E_FULL:
	case TREE_E_PARENT:	/* somebody wipes the namespace: nothing of it is wanted */
		return SHARE_E_FULL;
	default:
		return err;
	}
}

/* The path ends where the record begins.  *block is the caller's; it may be exchanged. */
static int enter(const struct import *m, struct tree_path *p, const struct export_record *r, uint64_t now,
		 uint32_t *block)
{
	if (r->n_tokens == m->shape.block_tokens)
		return tree_enter(p, r->tokens, now, block);
	return tree_keep_tail(p, r->tokens, r->n_tokens, *block, now);
}

static int add(struct import *m, struct tree_path *p, const struct export_record *r, const void *kv, uint64_t now)
{
	struct pool_root *root = m->em->root;
	struct tree_stats before, after;
	uint32_t block;
	int err = get_block(m, &block);

	if (err)
		return err;
	tree_stats(m->em->tree, &before);
	err = pool_block_write(root, block, r->n_tokens, kv);
	if (!err)
		err = result_of(enter(m, p, r, now, &block));
	pool_block_unref(root, block);	/* the tree's own keeps it */
	if (err)
		return err;
	tree_stats(m->em->tree, &after);
	if (after.deduplicated > before.deduplicated) {
		m->figures->n_there++;
		return 0;
	}
	m->figures->n_entries++;
	m->figures->n_tokens += r->n_tokens;
	m->figures->bytes += export_kv_bytes(&m->shape, r->n_tokens);
	return 0;
}

/* As much as leads to the record.  False: that is not there. */
static bool follow(const struct import *m, struct tree_path *p, uint32_t n, uint64_t now)
{
	for (uint32_t at = 0; at < n; at += m->shape.block_tokens)
		if (!tree_step(p, m->chain + at, now))
			return false;
	return true;
}

static int take(struct import *m, const struct export_record *r, const void *kv)
{
	struct tree_path p = { 0 };
	uint64_t now = clock_ns();
	int err;

	/* More than a sequence may have here is of no use. */
	if (r->first + r->n_tokens > m->n_ctx) {
		m->figures->n_left++;
		return 0;
	}
	err = open_path(m, r, now, &p);
	if (err)
		return err;
	if (!follow(m, &p, r->first, now))
		m->figures->n_left++;
	else if (r->n_tokens == m->shape.block_tokens && tree_step(&p, r->tokens, now))
		m->figures->n_there++;
	else
		err = add(m, &p, r, kv, now);
	memcpy(m->chain + r->first, r->tokens, r->n_tokens * sizeof(*r->tokens));
	tree_path_deinit(&p, now);
	return err;
}

static void take_some(struct engine *e, void *arg)
{
	struct import *m = arg;

	m->result = engine_has_model(e, m->em) ? 0 : SHARE_E_NO_MODEL;
	for (uint32_t i = 0; !m->result && i < m->n_records; i++)
		m->result = take(m, &m->records[i], m->kv + i * m->shape.block_bytes);
	/* Who asks for figures next sees them. */
	engine_publish(e);
}

/* --- on the caller's --- */

/* export_read_fn */
static int read_exactly(void *arg, void *data, size_t n)
{
	const struct share_ops *ops = arg;
	size_t got;
	int err = ops->read(ops->arg, data, n, &got);

	if (err)
		return err;
	return got < n ? EXPORT_E_CUT : 0;
}

static int file_result(int r, const struct export_stream *s, struct diag *diag)
{
	switch (r) {
	case EXPORT_E_BAD:
		return SHARE_E_FILE;
	case EXPORT_E_OTHER:
		return SHARE_E_OTHER;
	case EXPORT_E_CUT:
		return diag_set(diag, SHARE_E_FILE, "the file ends in the middle, after %llu records",
				(unsigned long long)s->n_records);
	default:
		return r;
	}
}

/* Reads records for one visit.  0; EXPORT_E_*, or what read() says: those before it are there. */
static int read_some(struct import *m, struct export_stream *s, struct diag *diag)
{
	for (m->n_records = 0; m->n_records < m->max_records; m->n_records++) {
		int r = export_read_record(s, &m->shape, read_exactly, (void *)m->ops, &m->records[m->n_records],
					   m->kv + m->n_records * m->shape.block_bytes, diag);

		if (r)
			return r;
	}
	return 0;
}

static int read_all(struct engine *e, struct import *m, struct diag *diag)
{
	struct export_stream s = { 0 };
	int r = export_read_header(&s, &m->shape, read_exactly, (void *)m->ops, diag), err;

	while (!r) {
		r = read_some(m, &s, diag);
		err = m->n_records ? share_visit(e, take_some, m) : 0;
		if (!err && m->n_records)
			err = m->result;
		if (err)
			return err;
		if (m->ops->is_cancelled(m->ops->arg))
			return -ECANCELED;
		m->ops->progress(m->ops->arg, s.n_records, 0);
	}
	return r == EXPORT_E_END ? 0 : file_result(r, &s, diag);
}

static int import(struct engine *e, struct import *m, struct diag *diag)
{
	uint64_t bytes;
	int err = share_visit(e, begin, m);

	if (!err)
		err = m->result;
	if (err)
		return err;
	m->max_records = (uint32_t)MIN(MAX(SHARE_BYTES / m->shape.block_bytes, UINT64_C(1)), (uint64_t)RECORDS_MAX);
	bytes = m->max_records * m->shape.block_bytes + m->n_ctx * sizeof(*m->chain);
	err = charge_init(&m->charge, e->accounts, m->place->uid, ACCOUNT_MEMORY, bytes);
	if (err)
		return err == ACCOUNT_E_QUOTA ? SHARE_E_QUOTA : err;
	m->kv = malloc(m->max_records * m->shape.block_bytes);
	m->chain = calloc(m->n_ctx, sizeof(*m->chain));
	return m->kv && m->chain ? read_all(e, m, diag) : -ENOMEM;
}

int engine_import(struct engine *e, struct engine_model *em, const struct import_place *place,
		  const struct share_ops *ops, struct share_figures *figures, struct diag *diag)
{
	struct import *m = calloc(1, sizeof(*m));
	int err;

	*figures = (struct share_figures){ 0 };
	if (!m)
		return -ENOMEM;
	m->em = em;
	m->place = place;
	m->ops = ops;
	m->figures = figures;
	err = import(e, m, diag);
	free(m->kv);
	free(m->chain);
	charge_deinit(&m->charge);
	free(m);
	return err;
}
