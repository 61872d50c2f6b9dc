/* SPDX-License-Identifier: Apache-2.0 */
/* The figures that the project asks for, out of the tables that were measured. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "tests/bench/tables.h"

/* A row's column by another's. */
static const struct {
	const char *name;
	const char *table, *column, *over, *under;
	bool saved;		/* in percent, of the second */
	double asked;
	int decimals;
} wanted[] = {
	{ "F16 KV against no cache, tokens/s", "compare", "tokens_per_s", "F16 KV", "no cache", false, 4.8, 2 },
	{ "F16 weights + F16 KV against no cache, tokens/s", "compare", "tokens_per_s",
	  "F16 weights + F16 KV", "F16 weights, no cache", false, 4.8, 2 },
	{ "Q8_0 weights + Q8 KV against F16 + F16, tokens/s", "compare", "tokens_per_s",
	  "Q8_0 weights + Q8 KV", "F16 weights + F16 KV", false, 0, 2 },
	{ "Q4_0 weights + Q4 KV against F16 + F16, tokens/s", "compare", "tokens_per_s",
	  "Q4_0 weights + Q4 KV", "F16 weights + F16 KV", false, 0, 2 },
	{ "Q8 KV against F16 KV, tokens/s at context 8,000", "context", "tokens_per_s", "Q8, 8000",
	  "F16, 8000", false, 1.1, 2 },
	{ "Q4 KV against F16 KV, tokens/s at context 8,000", "context", "tokens_per_s", "Q4, 8000",
	  "F16, 8000", false, 1.2, 2 },
	{ "batch 8 against batch 1, tokens/s", "batch", "tokens_per_s", "8", "1", false, 5.3, 2 },
	{ "KV memory saved by Q8 at 8,000 tokens", "context", "kv_mb", "Q8, 8000", "F16, 8000", true, 45, 1 },
	{ "KV memory saved by Q4 at 8,000 tokens", "context", "kv_mb", "Q4, 8000", "F16, 8000", true, 67, 1 },
	{ "perplexity of Q8 KV against F16 KV", "compare", "perplexity", "Q8 KV", "F16 KV", false, 0, 4 },
	{ "perplexity of Q4 KV against F16 KV", "compare", "perplexity", "Q4 KV", "F16 KV", false, 0, 4 },
	{ "HTTP against shared memory, 8 streams, tokens/s", "http", "tokens_per_s", "HTTP, 8 streams",
	  "shared memory, 8 streams", false, 0, 2 },
	{ "first token of a prompt, cold against cached, ms", "first-token", "ms", "cold", "cached", false,
	  0, 2 },
};

static const struct series *find(const struct results *r, const char *table, const char *row,
				 const char *column)
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

/* Decoding's reads by the probe's, which are percents already. */
static void add_of_probe(struct results *r)
{
	const struct series *s = find(r, "limits", "decode 1 at context 0", "of_probe_read_percent");
	_cleanup_(freep) struct series *whole = malloc(sizeof(*whole));

	if (!s || !whole)
		return;
	memset(whole, 0, sizeof(*whole));
	for (uint32_t i = 0; i < s->n; i++)
		series_add(whole, 100);
	results_ratio(r, "decoding of one sequence against the read probe", s, whole, false, 0.85, 2);
}

void ratios_fill(struct results *r)
{
	add_of_probe(r);
	for (size_t i = 0; i < ARRAY_SIZE(wanted); i++)
		results_ratio(r, wanted[i].name, find(r, wanted[i].table, wanted[i].over, wanted[i].column),
			      find(r, wanted[i].table, wanted[i].under, wanted[i].column), wanted[i].saved,
			      wanted[i].asked, wanted[i].decimals);
}
