/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The comparison: one request of `input` prompt tokens and `output` tokens of answer, without a cache of keys
 * and values (each token computes all that is before it again) and with one, of each type.
 *
 * Rows of one model take turns; a synthetic model comes in several types of weights, which take turns too
 * where memory has room for all of them.  What would take too long is sampled at positions spread evenly over
 * the answer (compare-measure.c), which a note says.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/synthetic.h"
#include "daemon/server/memory-left.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "tests/bench/compare.h"
#include "tests/bench/tables.h"

static const struct column columns[] = {
	[COMPARE_TOKENS] = { "tokens_per_s", "tokens/s", 2 },
	[COMPARE_KV] = { "kv_mb", "KV, MB", 2 },
	[COMPARE_TOTAL] = { "total_mb", "in all, MB", 1 },
	[COMPARE_P50] = { "ms_per_token_p50", "ms, p50", 2 },
	[COMPARE_P99] = { "ms_per_token_p99", "ms, p99", 2 },
	[COMPARE_PERPLEXITY] = { "perplexity", "perplexity", 3 },
	[COMPARE_SAME] = { "same_likeliest_percent", "same, %", 2 },
};

struct kind {
	const char *name;
	const char *weights;	/* of a synthetic model; NULL: as it is */
	enum kb_kv_type kv_type;
	bool cached;
};

static const struct kind of_a_file[] = {
	{ "no cache", NULL, KB_KV_F16, false },
	{ "F16 KV", NULL, KB_KV_F16, true },
	{ "Q8 KV", NULL, KB_KV_Q8, true },
	{ "Q4 KV", NULL, KB_KV_Q4, true },
};

static const struct kind of_a_synthetic[] = {
	{ "F16 weights, no cache", "f16", KB_KV_F16, false },
	{ "F16 weights + F16 KV", "f16", KB_KV_F16, true },
	{ "Q8_0 weights + Q8 KV", "q8_0", KB_KV_Q8, true },
	{ "Q4_0 weights + Q4 KV", "q4_0", KB_KV_Q4, true },
};

#define N_KINDS ARRAY_SIZE(of_a_file)

struct compare {
	struct run *run;
	struct table *table;
	const struct kind *kinds;
	uint32_t n_windows;	/* of the text */
	struct row *rows[N_KINDS];
	struct variant variants[N_KINDS];
	struct subject *subjects[N_KINDS];	/* opened here; NULL: none, or another row's */
};

/* "llama-2-7b:q4_0" with other weights. */
static void synthetic_with(const char *what, const char *weights, char *buf, size_t n)
{
	snprintf(buf, n, "%.*s:%s", (int)strcspn(what, ":"), what, weights);
}

static void close_all(struct compare *c)
{
	for (uint32_t i = 0; i < N_KINDS; i++)
		variant_deinit(&c->variants[i]);
	for (uint32_t i = 0; i < N_KINDS; i++) {
		subject_close(c->subjects[i]);
		c->subjects[i] = NULL;
	}
}

static int find_subject(struct compare *c, uint32_t i, struct subject **out)
{
	const char *weights = c->kinds[i].weights;
	struct diag diag = DIAG_NULL;
	char what[128];
	int r;

	*out = c->run->subject;
	if (!weights)
		return 0;
	for (uint32_t k = 0; k < i; k++)
		if (c->subjects[k] && !strcmp(c->kinds[k].weights, weights)) {
			*out = c->subjects[k];
			return 0;
		}
	synthetic_with(c->run->o.synthetic, weights, what, sizeof(what));
	progress(c->run, "compare: making %s", what);
	*out = NULL;
	r = open_subject(c->run, what, &c->subjects[i], &diag);
	if (r < 0) {
		row_missing(c->rows[i], "%.120s", diag.text[0] ? diag.text : strerror(-r));
		return 0;
	}
	*out = c->subjects[i];
	return 0;
}

static int open_row(struct compare *c, uint32_t i)
{
	const struct kind *kind = &c->kinds[i];
	struct subject *s;
	int r = find_subject(c, i, &s);

	if (r || !s)
		return r;
	return variant_init(&c->variants[i], c->run, s, kind->kv_type, kind->cached, c->rows[i]);
}

static int run_text(struct compare *c, uint32_t from, uint32_t to)
{
	const struct variant *f16 = NULL;
	int r = 0;

	for (uint32_t i = from; !r && i < to; i++) {
		if (!c->variants[i].lane || !c->variants[i].cached)
			continue;
		r = variant_perplexity(&c->variants[i], f16);
		c->n_windows = c->variants[i].n_windows;
		if (c->kinds[i].kv_type == KB_KV_F16)
			f16 = &c->variants[i];
	}
	return r;
}

/* Rows from..to-1 in turn. */
static int run_rows(struct compare *c, uint32_t from, uint32_t to)
{
	uint64_t deadline = c->run->deadline;
	int r = 0;

	for (uint32_t i = from; !r && i < to; i++)
		if (!c->rows[i]->missing[0])
			r = open_row(c, i);
	c->run->deadline = MIN(deadline, clock_ns() + (uint64_t)(1e9 * COMPARE_ROW_SECONDS * (to - from)));
	for (uint32_t k = 0; !r && round_begins(c->run, c->table, k, c->run->o.rounds); k++)
		for (uint32_t i = from; !r && i < to; i++)
			if (c->variants[i].lane)
				r = variant_round(&c->variants[i]);
	c->run->deadline = deadline;
	if (!r && c->run->o.text)
		r = run_text(c, from, to);
	for (uint32_t i = from; i < to; i++)
		variant_note(&c->variants[i], c->table);
	close_all(c);
	return r;
}

/* Whether all weights of a synthetic model have room at once, and half of it is left. */
static bool all_fit(const struct compare *c)
{
	uint64_t sum = 0, bytes, left;
	char what[128];

	for (uint32_t i = 1; i < N_KINDS; i++) {
		synthetic_with(c->run->o.synthetic, c->kinds[i].weights, what, sizeof(what));
		if (!synthetic_file_bytes(what, &bytes, NULL))
			sum += bytes;
	}
	return memory_left(&left) || sum < left / 2;
}

/* Weights that do not fit at all are no reason to try. */
static void refuse_large(struct compare *c)
{
	uint64_t bytes, left;
	char what[128];

	for (uint32_t i = 0; i < N_KINDS; i++) {
		synthetic_with(c->run->o.synthetic, c->kinds[i].weights, what, sizeof(what));
		if (synthetic_file_bytes(what, &bytes, NULL) || memory_left(&left) || bytes < left / 10 * 9)
			continue;
		row_missing(c->rows[i], "the weights need %.1f GB of memory, %.1f GB are free",
			    (double)bytes / 1e9, (double)left / 1e9);
	}
}

static int run_synthetic(struct compare *c)
{
	int r = 0;

	/* The run's own would be one more of them. */
	subject_close(c->run->subject);
	c->run->subject = NULL;
	refuse_large(c);
	if (all_fit(c)) {
		r = run_rows(c, 0, N_KINDS);
	} else {
		table_note(c->table, "The weights have no room side by side: rows of other weights were "
				     "measured one after another, not in turn.");
		r = run_rows(c, 0, 2);
		for (uint32_t i = 2; !r && i < N_KINDS; i++)
			r = run_rows(c, i, i + 1);
	}
	if (!r) {
		struct diag diag = DIAG_NULL;

		r = open_subject(c->run, NULL, &c->run->subject, &diag);
		if (r < 0)
			complain("%s", diag.text[0] ? diag.text : strerror(-r));
	}
	return r;
}

int compare_run(struct run *run)
{
	struct compare c = { .run = run, .kinds = run->o.synthetic ? of_a_synthetic : of_a_file };
	char title[160];
	int r;

	snprintf(title, sizeof(title), "one request, %u tokens of prompt and %u of answer", run->o.input,
		 run->o.output);
	r = results_table(run->results, "compare", title, columns, ARRAY_SIZE(columns), &c.table);
	if (r)
		return r;
	table_plot(c.table, PLOT_BARS, COMPARE_TOKENS, NULL, true);
	for (uint32_t i = 0; i < N_KINDS; i++) {
		c.rows[i] = table_row(c.table, i, "%s", c.kinds[i].name);
		if (c.kinds[i].cached && !kv_type_wanted(run, c.kinds[i].kv_type))
			row_missing(c.rows[i], "left out (--kv-type)");
	}
	r = run->o.synthetic ? run_synthetic(&c) : run_rows(&c, 0, N_KINDS);
	table_note(c.table,
		   "tokens/s: of the answer, from the request's begin to its last token, the prompt's time "
		   "included.  ms: for a token of the answer.");
	table_note(c.table, "KV: kept between tokens for this one sequence at its end; whole blocks, scales "
			    "and the open block counted.  Without a cache nothing is kept; what a token needs "
			    "while it is computed is in the sum.  In all: weights, keys and values, and the "
			    "step's own memory.");
	if (run->o.text && !c.n_windows)
		table_note(c.table, "The text is shorter than a window of %u tokens.", COMPARE_WINDOW);
	if (c.n_windows)
		table_note(c.table, "Perplexity: of %u windows of %u tokens of the text the second half, as kvctl "
			   "perplexity; without a cache it is that of F16 KV, since it computes the same "
			   "bits.  Same: at how many of these positions the most likely token is that of F16 "
			   "KV.", c.n_windows, COMPARE_WINDOW);
	if (!r)
		table_whole(c.table);
	return r;
}

double compare_seconds(const struct run *run)
{
	double output = run->o.output, input = run->o.input;
	double cached = prefill_seconds(run, input) + MIN(decode_seconds(run, output), COMPARE_SECONDS);
	double whole = COMPARE_SAMPLES * prefill_seconds(run, input + output / 2);
	double text = run->o.text ? prefill_seconds(run, 16.0 * COMPARE_WINDOW) : 0;

	return __builtin_popcount(run->o.kv_types) * text +
	       run->o.rounds * (__builtin_popcount(run->o.kv_types) * cached + MIN(whole, 2 * COMPARE_SECONDS));
}
