/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much attention the blocks of a decoding sequence draw; the prefix tree keeps it for evict.h.
 *
 * A step that measures takes up to 4 % more time for attention (kvd-bench --mass), which is
 * too much for what it is worth; attention drifts slowly, so one token in ENGINE_MASS_EVERY is measured.
 */
#include "daemon/engine/engine-private.h"

void engine_mass_ask(const struct engine *e, struct engine_request *r, struct kb_seq *seq)
{
	bool decodes = seq->n_rows == 1 && seq->first_pos + 1 == r->seq.n_tokens;

	if (!e->measures_mass || !r->path.tree || !decodes || r->n_generated % ENGINE_MASS_EVERY != 1)
		return;
	if (request_reserve_mass(r, seq->n_blocks))
		return;
	r->mass[0] = -1;	/* stays where the backend has no room to measure */
	seq->mass = r->mass;
}

void engine_mass_take(struct engine_request *r, const struct kb_seq *seq)
{
	if (seq->mass && seq->mass[0] >= 0 && r->path.tree)
		tree_path_mass(&r->path, seq->mass, seq->n_blocks);
}
