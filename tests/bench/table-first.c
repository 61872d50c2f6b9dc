/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long until the first token of a prompt that was computed before: by this process, or by an earlier one
 * that left it in memory (which the service manager, here ourselves, has kept) or on disk.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "tests/bench/private.h"
#include "tests/bench/tables.h"

#define PROMPT_MAX 2048u
#define ROUNDS_MAX 3u

enum way { COLD, CACHED, KEPT, KEPT_AGAIN, DISK, MEDIUM, N_WAYS };

static const char *const names[N_WAYS] = {
	[COLD] = "cold", [CACHED] = "cached", [KEPT] = "after a restart, from kept memory",
	[KEPT_AGAIN] = "after a restart, again", [DISK] = "after a restart, from disk (page cache)",
	[MEDIUM] = "after a restart, from disk (medium)",
};

enum { MS, OF_COLD, CACHED_TOKENS };

static const struct column columns[] = {
	[MS] = { "ms", "ms", 1 }, [OF_COLD] = { "of_cold_percent", "% of cold", 2 },
	[CACHED_TOKENS] = { "cached_tokens", "cached tokens", 0 },
};

struct first {
	struct run *run;
	struct table *table;
	struct private daemon;
	struct row *rows[N_WAYS];
	uint32_t n_vocab, n;
	int32_t *ids;		/* [n] */
	double cold;		/* ms, of this round */
};

static int ask(struct first *f, enum way way)
{
	struct request q;
	int r = request_open(&q, &f->daemon);

	if (!r)
		r = request_submit(&q, f->ids, f->n, 1);
	if (!r)
		r = requests_wait(&q, 1);
	request_close(&q);
	if (r)
		return r;
	double ms = (double)(q.first - q.submitted) / 1e6;

	f->cold = way == COLD ? ms : f->cold;
	cell_add(f->rows[way], MS, ms);
	cell_add(f->rows[way], OF_COLD, 100 * ms / f->cold);
	cell_add(f->rows[way], CACHED_TOKENS, q.cached_tokens);
	return 0;
}

static int restart(struct first *f, bool kept, bool pages)
{
	struct diag diag = DIAG_NULL;
	int r;

	private_stop(&f->daemon);
	if (!kept)
		private_forget(&f->daemon);
	if (!pages)
		private_drop_pages(&f->daemon);
	r = private_start(&f->daemon, &diag);
	if (r)
		complain("%s", diag.text);
	return r;
}

static int round_once(struct first *f, uint32_t k)
{
	int r;

	made_up_ids(1000 + k, f->n_vocab, f->ids, f->n);
	r = ask(f, COLD);
	if (!r)
		r = ask(f, CACHED);
	private_settle(&f->daemon);
	if (!r)
		r = restart(f, true, true);
	if (!r)
		r = ask(f, KEPT);
	if (!r)
		r = ask(f, KEPT_AGAIN);
	if (!r)
		r = restart(f, false, true);
	if (!r)
		r = ask(f, DISK);
	if (!r)
		r = restart(f, false, false);
	return r ? r : ask(f, MEDIUM);
}

static int start(struct first *f)
{
	static const char *const options[] = { "--kv-memory", "512M", "--disk", "4G", NULL };
	struct diag diag = DIAG_NULL;
	uint32_t n_ctx;
	int r = private_init(&f->daemon, f->run, options, &diag);

	if (!r)
		r = private_start(&f->daemon, &diag);
	if (r) {
		for (uint32_t i = 0; i < N_WAYS; i++)
			row_missing(f->rows[i], "%.150s", diag.text[0] ? diag.text : strerror(-r));
		return 1;
	}
	r = private_model(&f->daemon, &f->n_vocab, &n_ctx);
	if (r)
		return r;
	f->n = MIN(PROMPT_MAX, n_ctx - 1);
	f->ids = calloc(f->n, sizeof(*f->ids));
	return f->ids ? 0 : -ENOMEM;
}

int first_run(struct run *run)
{
	struct first f = { .run = run, .daemon = { .pid = -1, .notify = -1 } };
	int r = results_table(run->results, "first-token", "from the request to the first token of a prompt",
			      columns, ARRAY_SIZE(columns), &f.table);

	if (r)
		return r;
	table_plot(f.table, PLOT_BARS, MS, NULL, true);
	for (uint32_t i = 0; i < N_WAYS; i++)
		f.rows[i] = table_row(f.table, i, "%s", names[i]);
	r = start(&f);
	for (uint32_t k = 0; !r && round_begins(run, f.table, k, MIN(run->o.rounds, ROUNDS_MAX)); k++)
		r = round_once(&f, k);
	private_deinit(&f.daemon);
	if (f.n)
		table_note(f.table,
			   "A prompt of %u tokens, another one in every round.  After a restart: from "
			   "readiness on, without the time of loading the model.",
			   f.n);
	free(f.ids);
	if (r >= 0)
		table_whole(f.table);
	return MIN(r, 0);
}

double first_seconds(const struct run *run)
{
	return MIN(run->o.rounds, ROUNDS_MAX) * (6 + prefill_seconds(run, 1.2 * MIN(PROMPT_MAX, run->n_ctx)));
}
