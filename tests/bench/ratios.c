/* SPDX-License-Identifier: Apache-2.0 */
/* The figures that the project asks for, out of the tables that were measured. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "tests/bench/tables.h"

/* A row's column by another's. */
static const struct {
	const char *table, *column, *over, *under;
	struct ratio_spec spec;
} wanted[] = {
	{ "compare", "tokens_per_s", "F16 KV", "no cache",
	  { "F16 KV against no cache, tokens/s", .asked = 4.8, .decimals = 2 } },
	{ "compare", "tokens_per_s", "F16 weights + F16 KV", "F16 weights, no cache",
	  { "F16 weights + F16 KV against no cache, tokens/s", .asked = 4.8, .decimals = 2 } },
	{ "compare", "tokens_per_s", "Q8_0 weights + Q8 KV", "F16 weights + F16 KV",
	  { "Q8_0 weights + Q8 KV against F16 + F16, tokens/s", .decimals = 2 } },
	{ "compare", "tokens_per_s", "Q4_0 weights + Q4 KV", "F16 weights + F16 KV",
	  { "Q4_0 weights + Q4 KV against F16 + F16, tokens/s", .decimals = 2 } },
	{ "context", "tokens_per_s", "Q8, 8000", "F16, 8000",
	  { "Q8 KV against F16 KV, tokens/s at context 8,000", .asked = 1.1, .decimals = 2 } },
	{ "context", "tokens_per_s", "Q4, 8000", "F16, 8000",
	  { "Q4 KV against F16 KV, tokens/s at context 8,000", .asked = 1.2, .decimals = 2 } },
	{ "batch", "tokens_per_s", "8", "1",
	  { "batch 8 against batch 1, tokens/s", .asked = 5.3, .decimals = 2 } },
	{ "context", "kv_mb", "Q8, 8000", "F16, 8000",
	  { "KV memory saved by Q8 at 8,000 tokens", .asked = 45, .is_saved = true, .decimals = 1 } },
	{ "context", "kv_mb", "Q4, 8000", "F16, 8000",
	  { "KV memory saved by Q4 at 8,000 tokens", .asked = 67, .is_saved = true, .decimals = 1 } },
	{ "compare", "perplexity", "Q8 KV", "F16 KV",
	  { "perplexity of Q8 KV against F16 KV", .asked = 1.005, .at_most = true, .decimals = 4 } },
	{ "compare", "perplexity", "Q4 KV", "F16 KV",
	  { "perplexity of Q4 KV against F16 KV", .asked = 1.02, .at_most = true, .decimals = 4 } },
	{ "http", "tokens_per_s", "HTTP, 8 streams", "shared memory, 8 streams",
	  { "HTTP against shared memory, 8 streams, tokens/s", .decimals = 2 } },
	{ "first-token", "ms", "cold", "cached",
	  { "first token of a prompt, cold against cached, ms", .decimals = 1 } },
};

static const struct series *find(const struct results *r, const char *table, const char *row, const char *column)
{
	const struct row *found = results_row(r, table, row);

	for (uint32_t i = 0; found && i < r->n_tables; i++) {
		const struct table *t = r->tables[i];

		for (uint32_t c = 0; !strcmp(t->name, table) && c < t->n_columns; c++)
			if (!strcmp(t->columns[c].name, column))
				return &found->cells[c];
	}
	return NULL;
}

/* Those that are percents already. */
static const struct {
	const char *table, *column, *row;
	struct ratio_spec spec;
} shares[] = {
	{ "limits", "of_probe_read_percent", "decode 1 at context 0",
	  { "decoding of one sequence against the read probe", .asked = 0.85, .decimals = 2 } },
	{ "compare", "same_likeliest_percent", "Q8 KV",
	  { "most likely token of Q8 KV that of F16 KV", .asked = 0.99, .decimals = 4 } },
	{ "compare", "same_likeliest_percent", "Q4 KV",
	  { "most likely token of Q4 KV that of F16 KV", .asked = 0.97, .decimals = 4 } },
};

static void add_share(struct results *r, const struct ratio_spec *spec, const struct series *s)
{
	_cleanup_(freep) struct series *whole = calloc(1, sizeof(*whole));

	if (!s || !whole)
		return;
	for (uint32_t i = 0; i < s->n; i++)
		series_add(whole, 100);
	results_ratio(r, spec, s, whole);
}

void ratios_fill(struct results *r)
{
	for (size_t i = 0; i < ARRAY_SIZE(shares); i++)
		add_share(r, &shares[i].spec, find(r, shares[i].table, shares[i].row, shares[i].column));
	for (size_t i = 0; i < ARRAY_SIZE(wanted); i++)
		results_ratio(r, &wanted[i].spec, find(r, wanted[i].table, wanted[i].over, wanted[i].column),
			      find(r, wanted[i].table, wanted[i].under, wanted[i].column));
}
