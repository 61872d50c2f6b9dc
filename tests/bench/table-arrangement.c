/* SPDX-License-Identifier: Apache-2.0 */
/* How keys and values lie beside each other: see arrangement.h. */
#include <errno.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "tests/bench/arrangement.h"
#include "tests/bench/tables.h"

static const uint32_t contexts[] = { 512, 2048, 8000 };
#define N_CONTEXTS ARRAY_SIZE(contexts)

enum { US, RATE, GAIN };

static const struct column columns[] = {
	{ "us_per_token", "us for a token", 1 },
	{ "read_gb_per_s", "GB/s read", 2 },
	{ "faster_than_planes_percent", "% faster than planes", 1 },
};

/* Another one begins in every round. */
static void measure(struct arrangements *a, uint32_t context, uint32_t round, struct row **rows)
{
	double seconds[N_ARRANGEMENTS];

	for (uint32_t i = round; i < round + N_ARRANGEMENTS; i++)
		arrangement_read(a, (enum arrangement)(i % N_ARRANGEMENTS), context, &seconds[i % N_ARRANGEMENTS]);
	for (uint32_t i = 0; i < N_ARRANGEMENTS; i++) {
		cell_add(rows[i], US, seconds[i] * 1e6);
		cell_add(rows[i], RATE, (double)arrangement_bytes(a, context) / seconds[i] / 1e9);
		cell_add(rows[i], GAIN, 100 * (seconds[ARRANGE_PLANES] / seconds[i] - 1));
	}
}

int arrangement_run(struct run *run)
{
	const struct model_info *m = model_info(run->subject->model);
	struct arrangement_shape shape = { m->n_layers, m->n_kv_heads, m->head_dim, 0 };
	_cleanup_(arrangements_freep) struct arrangements *a = NULL;
	struct row *rows[N_CONTEXTS][N_ARRANGEMENTS];
	uint32_t n = 0;
	struct table *t;
	int r = results_table(run->results, "arrangement",
			      "reading of keys and values by one token, by how they lie in memory", columns,
			      ARRAY_SIZE(columns), &t);

	if (r)
		return r;
	table_plot(t, PLOT_BARS, RATE, NULL, false);
	for (; n < N_CONTEXTS && contexts[n] <= MAX(run->n_ctx, contexts[0]); n++) {
		shape.n_tokens = contexts[n];
		for (uint32_t i = 0; i < N_ARRANGEMENTS; i++)
			rows[n][i] = table_row(t, contexts[n], "%s, context %u", arrangement_name((enum arrangement)i),
					       contexts[n]);
	}
	r = arrangements_new(&a, &shape);
	if (r)
		return r;
	for (uint32_t k = 0; round_begins(run, t, k, run->o.rounds); k++)
		for (uint32_t i = 0; i < n; i++)
			measure(a, contexts[i], k, rows[i]);
	table_note(t, "Keys and values in F16 of %u of the model's %u layers, in blocks of 32 tokens, processor "
		      "time of one thread: a model of what attention reads, with as much arithmetic; \"per "
		      "block\" is what the kernels use.",
		   arrangements_n_layers(a), m->n_layers);
	table_whole(t);
	return 0;
}

double arrangement_seconds(const struct run *run)
{
	return 1 + run->o.rounds * 0.5;
}
