/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs at once whose prompts begin with the same text, through a daemon: the common part is computed
 * once.  As a comparison, as many programs of which each has a text of its own.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "tests/bench/private.h"
#include "tests/bench/tables.h"

#define CLIENTS_MAX 8u
#define TAIL 16u		/* tokens of a prompt that are its own */
#define ROUNDS_MAX 3u		/* these rounds are long */

static const struct load {
	uint32_t prefix, n_clients;
	bool shared;
} loads[] = {
	{ 256, 1, true }, { 256, 4, true }, { 256, 8, true }, { 256, 8, false },
	{ 1024, 1, true }, { 1024, 4, true }, { 1024, 8, true }, { 1024, 8, false },
};

enum { FIRST, FIRST_WORST, ALL, TOKENS, COMPUTED };

static const struct column columns[] = {
	[FIRST] = { "first_token_ms", "first token, ms", 1 },
	[FIRST_WORST] = { "first_token_ms_worst", "the last's, ms", 1 },
	[ALL] = { "all_s", "all done, s", 3 },
	[TOKENS] = { "tokens_per_s", "tokens/s", 1 },
	[COMPUTED] = { "computed_tokens", "computed", 0 },
};

struct clients {
	struct run *run;
	struct table *table;
	struct private daemon;
	struct row *rows[ARRAY_SIZE(loads)];
	struct request requests[CLIENTS_MAX];
	uint32_t n_vocab, n_ctx, seed;
	int32_t *ids;		/* [n_ctx] */
};

static int submit_all(struct clients *c, const struct load *load)
{
	uint32_t seed = c->seed;
	int r = 0;

	/* A prompt that nobody has had. */
	c->seed += 2 * CLIENTS_MAX;
	for (uint32_t i = 0; i < load->n_clients && !r; i++) {
		made_up_ids(seed + (load->shared ? 0 : i), c->n_vocab, c->ids, load->prefix);
		made_up_ids(seed + CLIENTS_MAX + i, c->n_vocab, c->ids + load->prefix, TAIL);
		r = request_submit(&c->requests[i], c->ids, load->prefix + TAIL, c->run->o.tokens);
	}
	return r ? r : requests_wait(c->requests, load->n_clients);
}

static int measure(struct clients *c, const struct load *load, struct row *row)
{
	double first[CLIENTS_MAX], tokens = 0, computed = 0;
	uint64_t begun = UINT64_MAX, ended = 0;
	int r = submit_all(c, load);

	if (r)
		return r;
	for (uint32_t i = 0; i < load->n_clients; i++) {
		const struct request *q = &c->requests[i];

		first[i] = (double)(q->first - q->submitted) / 1e6;
		begun = MIN(begun, q->submitted);
		ended = MAX(ended, q->last);
		tokens += q->n_tokens;
		computed += q->prompt_tokens - q->cached_tokens;
	}
	cell_add(row, FIRST, percentile(first, load->n_clients, 0.5));
	cell_add(row, FIRST_WORST, percentile(first, load->n_clients, 1));
	cell_add(row, ALL, (double)(ended - begun) / 1e9);
	cell_add(row, TOKENS, tokens * 1e9 / (double)(ended - begun));
	cell_add(row, COMPUTED, computed);
	return 0;
}

static void add_rows(struct clients *c)
{
	for (uint32_t i = 0; i < ARRAY_SIZE(loads); i++) {
		const struct load *l = &loads[i];

		c->rows[i] = table_row(c->table, l->n_clients, "%s prefix of %u, %u client%s",
				       l->shared ? "shared" : "own", l->prefix, l->n_clients,
				       l->n_clients > 1 ? "s" : "");
	}
}

static int start(struct clients *c)
{
	static const char *const options[] = { "--kv-memory", "1G", "--disk", "off", "--max-seqs", "8", NULL };
	struct diag diag = DIAG_NULL;
	int r = private_init(&c->daemon, c->run, options, &diag);

	if (!r)
		r = private_start(&c->daemon, &diag);
	if (r) {
		for (uint32_t i = 0; i < ARRAY_SIZE(loads); i++)
			row_missing(c->rows[i], "%.150s", diag.text[0] ? diag.text : strerror(-r));
		return 1;
	}
	r = private_model(&c->daemon, &c->n_vocab, &c->n_ctx);
	if (r)
		return r;
	c->ids = calloc(c->n_ctx, sizeof(*c->ids));
	for (uint32_t i = 0; i < CLIENTS_MAX && !r; i++)
		r = request_open(&c->requests[i], &c->daemon);
	for (uint32_t i = 0; i < ARRAY_SIZE(loads); i++)
		if (loads[i].prefix + TAIL + c->run->o.tokens > c->n_ctx)
			row_missing(c->rows[i], "longer than the model's context of %u tokens", c->n_ctx);
	return c->ids ? r : -ENOMEM;
}

int clients_run(struct run *run)
{
	struct clients c = { .run = run, .seed = 1, .daemon = { .pid = -1, .notify = -1 } };
	int r = results_table(run->results, "clients",
			      "programs at once, each with a prompt and its own last words", columns,
			      ARRAY_SIZE(columns), &c.table);

	if (r)
		return r;
	table_plot(c.table, PLOT_BARS, ALL, NULL, false);
	add_rows(&c);
	r = start(&c);
	for (uint32_t k = 0; !r && round_begins(run, c.table, k, MIN(run->o.rounds, ROUNDS_MAX)); k++)
		for (uint32_t i = 0; !r && i < ARRAY_SIZE(loads); i++)
			if (!c.rows[i]->missing[0])
				r = measure(&c, &loads[i], c.rows[i]);
	for (uint32_t i = 0; i < CLIENTS_MAX; i++)
		request_close(&c.requests[i]);
	private_deinit(&c.daemon);
	free(c.ids);
	table_note(c.table,
		   "A prompt is the prefix and %u tokens of its own; %u tokens of answer each; prefixes are "
		   "new in every round.  first token: of the client in the middle, and of the last one.  "
		   "computed: prompt tokens that no cache had.",
		   TAIL, run->o.tokens);
	if (r >= 0)
		table_whole(c.table);
	return MIN(r, 0);
}

double clients_seconds(const struct run *run)
{
	double prompts = 3 * 256 + 3 * 1024 + 8 * (256 + 1024);

	return 2 + MIN(run->o.rounds, ROUNDS_MAX) *
			   (prefill_seconds(run, prompts) + decode_seconds(run, 18.0 * run->o.tokens));
}
