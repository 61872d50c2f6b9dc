/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One sequence at several contexts.  The longest context is computed once for each type of keys and values; the
 * others begin as forks of it, whose blocks are the same.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "tests/bench/tables.h"

static const uint32_t contexts[] = { 0, 512, 1024, 2048, 4096, 8000 };
#define N_CONTEXTS ARRAY_SIZE(contexts)

enum { TOKENS, P50, P99, KV, READ };

static const struct column columns[] = {
	{ "tokens_per_s", "tokens/s", 1 },    { "ms_per_token_p50", "ms, p50", 2 },
	{ "ms_per_token_p99", "ms, p99", 2 }, { "kv_mb", "KV, MB", 1 },
	{ "read_gb_per_s", "GB/s read", 1 },
};

struct kind {
	struct lane *lane;	/* NULL: not here */
	struct row *rows[N_CONTEXTS];	/* NULL: not that long */
};

/* Contexts are whole blocks of every size. */
static uint32_t longest(const struct run *run)
{
	uint32_t most = run->o.max_context ? run->o.max_context : contexts[N_CONTEXTS - 1];
	uint32_t room = run->n_ctx > run->o.tokens ? run->n_ctx - run->o.tokens : 0;

	return MIN(most, room);
}

static void add_rows(struct run *run, struct table *t, struct kind *kind, enum kb_kv_type type)
{
	for (uint32_t i = 0; i < N_CONTEXTS; i++) {
		if (contexts[i] > longest(run))
			continue;
		kind->rows[i] = table_row(t, contexts[i], "%s, %u", kv_type_name(type), contexts[i]);
		row_group(kind->rows[i], kv_type_name(type));
	}
}

/* A lane with the longest context in sequence 0; the reason in every row where there is none. */
static int prepare(struct run *run, struct kind *kind, enum kb_kv_type type)
{
	struct lane_options options = lane_options_of(run, type, longest(run) + run->o.tokens, 2);
	uint32_t most = 0;
	int r;

	/* A fork has one block of its own or some. */
	options.n_blocks = (options.n_ctx + run->o.tokens) / 16 + 4;
	r = open_lane_for(run, run->subject, &options, kind->rows[0], &kind->lane);
	for (uint32_t i = 1; !kind->lane && i < N_CONTEXTS; i++)
		if (kind->rows[i])
			row_missing(kind->rows[i], "%.100s", kind->rows[0]->missing);
	if (!kind->lane)
		return r;
	for (uint32_t i = 0; i < N_CONTEXTS; i++)
		most = kind->rows[i] ? contexts[i] : most;
	progress(run, "context: %u tokens with %s KV", most, kv_type_name(type));
	return most ? lane_prefill(kind->lane, 0, most) : 0;
}

static int measure(struct run *run, struct lane *lane, uint32_t context, struct row *row, double *ns)
{
	uint32_t n = run->o.tokens;
	double sum = 0, bytes;
	int r;

	lane_forget(lane, 1);
	r = context ? lane_fork(lane, 1, 0, context) : 0;
	if (!r)
		r = lane_decode(lane, 1, 1, n, ns);
	if (r)
		return r;
	for (uint32_t i = 0; i < n; i++)
		sum += ns[i];
	bytes = (double)lane_step_bytes(lane, 1, context + n / 2);
	cell_add(row, TOKENS, (double)n * 1e9 / sum);
	cell_add(row, READ, bytes * n / sum);
	cell_add(row, P50, percentile(ns, n, 0.5) / 1e6);
	cell_add(row, P99, percentile(ns, n, 0.99) / 1e6);
	cell_add(row, KV, (double)lane_kv_bytes(lane, 1) / 1e6);
	return 0;
}

static int rounds(struct run *run, struct table *t, struct kind *kinds)
{
	_cleanup_(freep) double *ns = calloc(run->o.tokens, sizeof(*ns));
	int r = ns ? 0 : -ENOMEM;

	for (uint32_t k = 0; !r && round_begins(run, t, k, run->o.rounds); k++) {
		for (uint32_t i = 0; i < N_CONTEXTS; i++)
			for (uint32_t type = 0; !r && type < KV_TYPES; type++)
				if (kinds[type].lane && kinds[type].rows[i])
					r = measure(run, kinds[type].lane, contexts[i], kinds[type].rows[i],
						    ns);
	}
	return r;
}

int context_run(struct run *run)
{
	struct kind kinds[KV_TYPES] = { 0 };
	struct table *t;
	int r = results_table(run->results, "context", "decoding of one sequence, by what it has behind it",
			      columns, ARRAY_SIZE(columns), &t);

	if (r)
		return r;
	table_plot(t, PLOT_LINES, TOKENS, "context, tokens", false);
	for (uint32_t type = 0; type < KV_TYPES; type++)
		if (kv_type_wanted(run, (enum kb_kv_type)type))
			add_rows(run, t, &kinds[type], (enum kb_kv_type)type);
	for (uint32_t type = 0; !r && type < KV_TYPES; type++)
		if (kinds[type].rows[0])
			r = prepare(run, &kinds[type], (enum kb_kv_type)type);
	if (!r)
		r = rounds(run, t, kinds);
	for (uint32_t type = 0; type < KV_TYPES; type++)
		lane_close(kinds[type].lane);
	table_note(t,
		   "%u tokens decoded in a round; KV: of that sequence, whole blocks, scales and the open "
		   "block counted.",
		   run->o.tokens);
	if (longest(run) < contexts[N_CONTEXTS - 1])
		table_note(t, "Contexts up to %u: %s.", longest(run),
			   run->o.max_context ? "as asked for" : "the model has no longer ones");
	if (!r)
		table_whole(t);
	return r;
}

double context_seconds(const struct run *run)
{
	double types = __builtin_popcount(run->o.kv_types), n = longest(run);
	uint32_t n_contexts = N_CONTEXTS;

	/* Attention makes long prompts slower, and late tokens: half as fast at the end, here. */
	return types * (prefill_seconds(run, 1.6 * n) +
			run->o.rounds * decode_seconds(run, 2.0 * n_contexts * run->o.tokens));
}
