/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of 16, 32 and 64 tokens: what attention makes of them, in prefill and in decoding. */
#include <errno.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "tests/bench/tables.h"

static const uint32_t sizes[] = { 16, 32, 64 };
#define N_SIZES ARRAY_SIZE(sizes)
#define CONTEXT_MAX 2048u

enum { PREFILL, DECODE, P50 };

static const struct column columns[] = {
	{ "prefill_tokens_per_s", "prefill, tokens/s", 1 }, { "decode_tokens_per_s", "decoding, tokens/s", 1 },
	{ "ms_per_token_p50", "ms, p50", 2 },
};

struct kind {
	struct lane *lane;
	struct row *row;
};

static uint32_t context_of(const struct run *run)
{
	uint32_t room = run->n_ctx > run->o.tokens ? run->n_ctx - run->o.tokens : 0;

	return MIN(CONTEXT_MAX, room) / 64 * 64;
}

static int measure(struct run *run, struct kind *kind, uint32_t context, double *ns)
{
	uint64_t start = clock_ns();
	uint32_t n = run->o.tokens;
	double sum = 0;
	int r;

	lane_reset(kind->lane);
	r = lane_prefill(kind->lane, 0, context);
	if (!r && context)
		cell_add(kind->row, PREFILL, context * 1e9 / (double)(clock_ns() - start));
	if (!r)
		r = lane_decode(kind->lane, 0, 1, n, ns);
	if (r)
		return r;
	for (uint32_t i = 0; i < n; i++)
		sum += ns[i];
	cell_add(kind->row, DECODE, n * 1e9 / sum);
	cell_add(kind->row, P50, percentile(ns, n, 0.5) / 1e6);
	return 0;
}

int layout_run(struct run *run)
{
	struct kind kinds[2 * N_SIZES] = { 0 };
	_cleanup_(freep) double *ns = calloc(run->o.tokens, sizeof(*ns));
	struct table *t;
	char title[160];
	int r = ns ? 0 : -ENOMEM;

	snprintf(title, sizeof(title),
		 "tokens in a block of keys and values; a prompt of %u tokens, and decoding behind it",
		 context_of(run));
	if (!r)
		r = results_table(run->results, "layout", title, columns, ARRAY_SIZE(columns), &t);
	if (r)
		return r;
	table_plot(t, PLOT_BARS, DECODE, NULL, false);
	for (uint32_t i = 0; i < ARRAY_SIZE(kinds) && !r; i++) {
		enum kb_kv_type type = i < N_SIZES ? KB_KV_F16 : KB_KV_Q8;
		struct lane_options options = lane_options_of(run, type, context_of(run) + run->o.tokens, 1);

		if (!kv_type_wanted(run, type))
			continue;
		options.block_tokens = sizes[i % N_SIZES];
		kinds[i].row = table_row(t, i, "%s KV, blocks of %u", kv_type_name(type), options.block_tokens);
		r = open_lane_for(run, run->subject, &options, kinds[i].row, &kinds[i].lane);
	}
	for (uint32_t k = 0; !r && round_begins(run, t, k, run->o.rounds); k++)
		for (uint32_t i = 0; i < ARRAY_SIZE(kinds) && !r; i++)
			if (kinds[i].lane)
				r = measure(run, &kinds[i], context_of(run), ns);
	for (uint32_t i = 0; i < ARRAY_SIZE(kinds); i++)
		lane_close(kinds[i].lane);
	table_note(t, "Q4 keeps blocks of %u tokens always.", KB_Q4_BLOCK_TOKENS);
	if (!r)
		table_whole(t);
	return r;
}

double layout_seconds(const struct run *run)
{
	uint32_t n = 2 * N_SIZES;

	return run->o.rounds * n *
	       (prefill_seconds(run, 1.2 * context_of(run)) + decode_seconds(run, 1.5 * run->o.tokens));
}
