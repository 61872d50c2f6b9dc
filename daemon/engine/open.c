/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The open blocks of sequences whose keys and values are sealed block by block (Q4).
 *
 * A sequence that takes part in steps has one. One that does not (parked, ready, reading from the disk) may lose it
 * to another: what it had of its last block is computed again, to the same bits, from that block's beginning. So
 * there are never more than sequences can run.
 */
#include "daemon/engine/engine-private.h"
#include "ipc/base/checked.h"

void engine_open_drop(struct engine *e, struct engine_request *r)
{
	uint32_t block_tokens = r->model->block_tokens;

	if (!r->open)
		return;
	e->be->ops->open_free(e->be, r->open);
	r->open = NULL;
	charge_deinit(&r->charge_open);
	r->seq.n_computed = r->seq.n_computed / block_tokens * block_tokens;
	e->n_open--;
	e->stats.open_bytes -= r->model->open_bytes;
}

/* Who waits for its reader loses least. */
static struct engine_request *idle_one(struct engine *e)
{
	struct engine_request *idle = NULL;

	list_for_each(l, &e->requests) {
		struct engine_request *r = list_entry(l, struct engine_request, link);

		if (!r->open || r->seq.state == SCHED_ACTIVE)
			continue;
		if (r->seq.state == SCHED_PARKED)
			return r;
		idle = r;
	}
	return idle;
}

int engine_open_get(struct engine *e, struct engine_request *r)
{
	struct engine_model *em = r->model;
	struct engine_request *idle;
	int err;

	if (!em->open_bytes || r->open)
		return 0;
	err = charge_init(&r->charge_open, e->accounts, r->uid, ACCOUNT_MEMORY, em->open_bytes);
	if (err)
		return err == ACCOUNT_E_QUOTA ? ENGINE_OPEN_E_QUOTA : err;
	while (e->n_open >= e->sched.max_seqs && (idle = idle_one(e)))
		engine_open_drop(e, idle);
	err = e->be->ops->open_new(e->be, pool_root_geometry(em->root), &r->open);
	if (err) {
		charge_deinit(&r->charge_open);
		return err;
	}
	e->n_open++;
	e->stats.open_bytes += em->open_bytes;
	return 0;
}
