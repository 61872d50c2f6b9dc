/* SPDX-License-Identifier: Apache-2.0 */
/* Several sequences at once: one step reads the weights once for all of them. */
#include <errno.h>
#include <stdlib.h>

#include "ipc/base/checked.h"
#include "tests/bench/tables.h"

#define BATCH_MAX 32u

static const uint32_t sizes[] = { 1, 2, 4, 8, 16, BATCH_MAX };

enum { TOKENS, EACH, P50, P99, OF_ONE };

static const struct column columns[] = {
	{ "tokens_per_s", "tokens/s", 1 },   { "tokens_per_s_each", "each", 1 },
	{ "ms_per_step_p50", "ms, p50", 2 }, { "ms_per_step_p99", "ms, p99", 2 },
	{ "of_one", "of one", 2 },
};

static int measure(struct run *run, struct lane *lane, uint32_t n_seqs, struct row *row, double *ns)
{
	uint32_t n = run->o.tokens;
	double sum = 0;
	int r;

	lane_reset(lane);
	r = lane_decode(lane, 0, n_seqs, n, ns);
	if (r)
		return r;
	for (uint32_t i = 0; i < n; i++)
		sum += ns[i];
	cell_add(row, TOKENS, n_seqs * (double)n * 1e9 / sum);
	cell_add(row, EACH, (double)n * 1e9 / sum);
	cell_add(row, P50, percentile(ns, n, 0.5) / 1e6);
	cell_add(row, P99, percentile(ns, n, 0.99) / 1e6);
	return 0;
}

int batch_run(struct run *run)
{
	uint32_t n_ctx = MIN(run->n_ctx, run->o.tokens);
	struct lane_options options = lane_options_of(run, KB_KV_F16, n_ctx, BATCH_MAX);
	_cleanup_(lane_closep) struct lane *lane = NULL;
	_cleanup_(freep) double *ns = calloc(run->o.tokens, sizeof(*ns));
	struct row *rows[ARRAY_SIZE(sizes)];
	struct table *t;
	int r = ns ? results_table(run->results, "batch",
				   "sequences that are decoded at once, from context 0, F16 KV", columns,
				   ARRAY_SIZE(columns), &t)
		   : -ENOMEM;

	if (r)
		return r;
	table_plot(t, PLOT_LINES, TOKENS, "sequences", true);
	for (uint32_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		rows[i] = table_row(t, sizes[i], "%u", sizes[i]);
		row_group(rows[i], "all sequences");
	}
	r = open_lane_for(run, run->subject, &options, rows[0], &lane);
	if (!lane) {
		for (uint32_t i = 1; i < ARRAY_SIZE(sizes); i++)
			row_missing(rows[i], "%.100s", rows[0]->missing);
		return r;
	}
	r = lane_decode(lane, 0, 1, 1, NULL);
	for (uint32_t k = 0; !r && round_begins(run, t, k, run->o.rounds); k++) {
		for (uint32_t i = 0; !r && i < ARRAY_SIZE(sizes); i++)
			r = measure(run, lane, sizes[i], rows[i], ns);
		for (uint32_t i = 0; !r && i < ARRAY_SIZE(sizes); i++)
			cell_add(rows[i], OF_ONE,
				 rows[i]->cells[TOKENS].rate[k] / rows[0]->cells[TOKENS].rate[k]);
	}
	table_note(t, "%u tokens of each sequence in a round.", run->o.tokens);
	if (!r)
		table_whole(t);
	return r;
}

double batch_seconds(const struct run *run)
{
	/* A step of 32 takes about as long as 8 of one; all sizes together as 20. */
	return run->o.rounds * decode_seconds(run, 20.0 * run->o.tokens);
}
