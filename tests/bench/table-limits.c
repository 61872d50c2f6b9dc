/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefill and decoding beside what the machine can do: the bytes that decoding reads in a second by those
 * that a probe reads (probe.h), out of a buffer as large as what a step reads, since some of it may be in the
 * caches; the multiplications of prefill by those of a probe out of registers.  Probe and work follow each
 * other in every round.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "tests/bench/probe.h"
#include "tests/bench/tables.h"

#define PROBE_TRIES 3u
#define BATCH 8u

enum { TOKENS, READ, OF_READ, MACS, OF_MACS };

static const struct column columns[] = {
	[TOKENS] = { "tokens_per_s", "tokens/s", 1 },
	[READ] = { "read_gb_per_s", "GB/s read", 2 },
	[OF_READ] = { "of_probe_read_percent", "% of reads", 1 },
	[MACS] = { "gmac_per_s", "GMAC/s", 1 },
	[OF_MACS] = { "of_probe_arithmetic_percent", "% of MACs", 1 },
};

static const struct work {
	const char *name;
	uint32_t context, n_seqs;
	uint32_t prompt;	/* 0: decoding */
} works[] = {
	{ "prefill 256", 0, 1, 256 },
	{ "prefill 2048", 0, 1, 2048 },
	{ "decode 1 at context 2048", 2048, 1, 0 },	/* of the prompt before it */
	{ "decode 1 at context 0", 0, 1, 0 },
	{ "decode 8 at context 0", 0, BATCH, 0 },
};

enum { MEMORY, WEIGHTS, INT8, FMA, N_PROBES };

struct limits {
	struct run *run;
	struct table *table;
	struct lane *lane;
	struct probe *probes[2];	/* of reading */
	struct row *probe_rows[N_PROBES];
	struct row *rows[ARRAY_SIZE(works)];
	uint32_t wins[2][32];		/* rounds in which a way was the best */
	const char *instruction;
	double read_rate, int8_rate;	/* of this round */
};

static double attention_products(const struct run *run, double context)
{
	const struct model_info *m = model_info(run->subject->model);

	return 2.0 * m->n_layers * m->n_heads * m->head_dim * context;
}

/* Beyond any last-level cache that this is meant for; a quarter of it is read in one try. */
static uint64_t probe_bytes(const struct run *run)
{
	return (uint64_t)run->o.probe_mb << 20;
}

static int probe_round(struct limits *l)
{
	int r = 0;

	for (uint32_t i = 0; i < 2 && !r; i++) {
		uint32_t way;
		double rate;

		r = probe_read_best(l->probes[i], probe_bytes(l->run) / 4, PROBE_TRIES, &rate, &way);
		if (r)
			break;
		cell_add(l->probe_rows[i], READ, rate / 1e9);
		l->wins[i][way]++;
		if (i == WEIGHTS)
			l->read_rate = rate;
	}
	for (uint32_t i = INT8; i <= FMA && !r; i++) {
		const char *what;
		double best = 0, rate;

		for (uint32_t k = 0; k < PROBE_TRIES && !r; k++) {
			r = probe_arithmetic(l->run->subject->n_threads, i == INT8 ? PROBE_INT8 : PROBE_FMA,
					     l->run->results->level, &rate, &what);
			best = r ? best : MAX(best, rate);
		}
		if (r == -ENOTSUP) {
			row_missing(l->probe_rows[i], "no such instructions here");
			r = 0;
			continue;
		}
		if (r)
			break;
		cell_add(l->probe_rows[i], MACS, best / 1e9);
		if (i == INT8) {
			l->int8_rate = best;
			l->instruction = what;
		}
	}
	return r;
}

/* `n` tokens took so long; the step in their middle has `context` positions behind it. */
static void add_values(struct limits *l, const struct work *w, struct row *row, double n, double seconds)
{
	double context = w->prompt ? w->prompt / 2.0 : w->context + l->run->o.tokens / 2.0;
	double macs = (double)subject_products(l->run->subject) + attention_products(l->run, context);

	if (!w->prompt)
		macs += (double)subject_head_products(l->run->subject);
	cell_add(row, TOKENS, n / seconds);
	cell_add(row, MACS, n * macs / seconds / 1e9);
	if (l->int8_rate > 0)
		cell_add(row, OF_MACS, 100 * n * macs / seconds / l->int8_rate);
	if (w->prompt)
		return;
	double bytes = (double)lane_step_bytes(l->lane, w->n_seqs, (uint32_t)context) * n / w->n_seqs;

	cell_add(row, READ, bytes / seconds / 1e9);
	cell_add(row, OF_READ, 100 * bytes / seconds / l->read_rate);
}

static int work_round(struct limits *l, const struct work *w, struct row *row)
{
	uint32_t n = w->prompt ? w->prompt : l->run->o.tokens;
	uint64_t start;
	int r = 0;

	if (!w->context || lane_n_tokens(l->lane, 0) != w->context)
		lane_reset(l->lane);
	if (w->context > lane_n_tokens(l->lane, 0))
		r = lane_prefill(l->lane, 0, w->context);
	start = clock_ns();
	if (!r)
		r = w->prompt ? lane_prefill(l->lane, 0, n) : lane_decode(l->lane, 0, w->n_seqs, n, NULL);
	if (!r)
		add_values(l, w, row, (double)n * w->n_seqs, (double)(clock_ns() - start) / 1e9);
	return r;
}

/* Tokens of a sequence. */
static uint32_t needed(const struct run *run, const struct work *w)
{
	return w->prompt ? w->prompt : w->context + run->o.tokens;
}

static void add_rows(struct limits *l)
{
	static const char *const names[N_PROBES] = {
		"probe: reading far more than caches", "probe: reading as much as the weights",
		"probe: products of 8-bit integers", "probe: fused multiply-adds of floats",
	};

	for (uint32_t i = 0; i < N_PROBES; i++)
		l->probe_rows[i] = table_row(l->table, i, "%s", names[i]);
	for (uint32_t i = 0; i < ARRAY_SIZE(works); i++) {
		const struct work *w = &works[i];

		l->rows[i] = table_row(l->table, i, "%s", w->name);
		row_group(l->rows[i], "work");
		if (needed(l->run, w) > l->run->n_ctx)
			row_missing(l->rows[i], "longer than the longest context here, %u tokens", l->run->n_ctx);
	}
}

static int open_all(struct limits *l)
{
	uint32_t most = 0;
	struct lane_options options;
	int r;

	for (uint32_t i = 0; i < ARRAY_SIZE(works); i++)
		if (!l->rows[i]->missing[0])
			most = MAX(most, needed(l->run, &works[i]));
	most = MAX(most, l->run->o.tokens);
	options = lane_options_of(l->run, KB_KV_F16, most, BATCH);
	options.n_blocks = (most + BATCH * l->run->o.tokens) / 16 + 2 * BATCH;
	r = lane_open(&l->lane, l->run->subject, &options);
	if (!r)
		r = probe_new(&l->probes[MEMORY], l->run->subject->n_threads, probe_bytes(l->run));
	if (!r)
		r = probe_new(&l->probes[WEIGHTS], l->run->subject->n_threads,
			      MIN(model_info(l->run->subject->model)->weight_bytes, 2 * probe_bytes(l->run)));
	return r;
}

static void note_ways(struct limits *l)
{
	for (uint32_t i = 0; i < 2; i++) {
		uint32_t best = 0;

		for (uint32_t k = 1; k < probe_n_ways(); k++)
			best = l->wins[i][k] > l->wins[i][best] ? k : best;
		if (l->probe_rows[i]->cells[READ].n)
			table_note(l->table, "Probe, %s: the best of %u ways, most often: %s.",
				   l->probe_rows[i]->name + 7, probe_n_ways(), probe_way(best));
	}
	if (l->instruction)
		table_note(l->table, "8-bit integers: %s.", l->instruction);
	if (!strcmp(l->run->results->level, "amx"))
		table_note(l->table, "The probe has no tiles: at this level, shares of products may be more than all.");
	table_note(l->table, "Read by decoding: all weights in each step, and keys and values; beside the "
			     "probe that reads as much as the weights.  GMAC: of products with weights and of "
			     "attention, beside 8-bit integers.");
}

int limits_run(struct run *run)
{
	struct limits l = { .run = run };
	int r = results_table(run->results, "limits", "prefill and decoding beside what the machine can do",
			      columns, ARRAY_SIZE(columns), &l.table);

	if (r)
		return r;
	table_plot(l.table, PLOT_BARS, TOKENS, NULL, false);
	add_rows(&l);
	r = open_all(&l);
	if (!r)
		r = lane_decode(l.lane, 0, 1, MIN(4u, run->o.tokens), NULL);
	for (uint32_t k = 0; !r && round_begins(run, l.table, k, run->o.rounds); k++) {
		r = probe_round(&l);
		for (uint32_t i = 0; !r && i < ARRAY_SIZE(works); i++)
			if (!l.rows[i]->missing[0])
				r = work_round(&l, &works[i], l.rows[i]);
	}
	note_ways(&l);
	if (!r)
		table_whole(l.table);
	else
		complain("limits: %s", strerror(-r));
	probe_free(l.probes[MEMORY]);
	probe_free(l.probes[WEIGHTS]);
	lane_close(l.lane);
	return r;
}

double limits_seconds(const struct run *run)
{
	double prompts = run->n_ctx > 2048 + run->o.tokens ? 256 + 1.2 * 2048 : 256;

	return run->o.rounds * (2 + prefill_seconds(run, prompts) + decode_seconds(run, 5.0 * run->o.tokens));
}
