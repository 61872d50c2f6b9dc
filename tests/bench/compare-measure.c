/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "tests/bench/compare.h"

#define BASE 0u		/* sequence that is as long as the answer will be */
#define WORK 1u		/* that of a round */

/* Where the k-th stretch begins: with its part of the answer, at a whole number of blocks. */
static uint32_t stretch_place(const struct variant *v, uint32_t k)
{
	uint32_t bt = lane_block_tokens(v->lane);

	return (v->input + (uint32_t)((uint64_t)v->output * k / v->n_places)) / bt * bt;
}

/* Without a cache: the middle of the part. */
static uint32_t place(const struct variant *v, uint32_t k)
{
	return v->input + (uint32_t)((uint64_t)v->output * (2 * k + 1) / (2 * v->n_places));
}

/* Finds out how long a token takes, and from that how much of the answer can be measured. */
static int plan_cached(struct variant *v)
{
	double ns[4], seconds;
	uint32_t n = MIN((uint32_t)ARRAY_SIZE(ns), v->output);
	int r = lane_prefill(v->lane, WORK, MIN(v->input, 16u));

	if (!r)
		r = lane_decode(v->lane, WORK, 1, n, ns);
	if (r)
		return r;
	/* A disturbed one is no reason. */
	seconds = percentile(ns, n, 0) / 1e9 * v->output;
	if (seconds <= COMPARE_SECONDS)
		return 0;
	v->n_places = COMPARE_SAMPLES;
	v->stretch = (uint32_t)MAX(1.0, v->output * COMPARE_SECONDS / seconds / v->n_places);
	progress(v->run, "compare: %s: %u tokens of context", v->row->name, v->input + v->output);
	return lane_prefill(v->lane, BASE, v->input + v->output - v->stretch);
}

static int plan_whole(struct variant *v)
{
	uint32_t n = MIN(v->input, 64u);
	uint64_t start = clock_ns();
	double seconds, places;
	int r = lane_prefill(v->lane, WORK, n);

	if (r)
		return r;
	seconds = (double)(clock_ns() - start) / 1e9 / n * (v->input + v->output / 2.0);
	places = MIN((double)COMPARE_SAMPLES, 2 * COMPARE_SECONDS / seconds);
	/* One, the middle, is as good as two where the answer is short against what is before it. */
	v->n_places = MIN((uint32_t)MAX(v->output > v->input / 4 ? 2.0 : 1.0, places), v->output);
	return 0;
}

int variant_init(struct variant *v, struct run *run, struct subject *s, enum kb_kv_type type, bool cached,
		 struct row *row)
{
	uint32_t n = run->o.input + run->o.output;
	struct lane_options options = lane_options_of(run, type, run->o.text ? MAX(n, COMPARE_WINDOW) : n, 2);
	int r;

	*v = (struct variant){
		.run = run,
		.subject = s,
		.row = row,
		.cached = cached,
		.input = run->o.input,
		.output = run->o.output,
	};
	if (n > model_n_ctx(s->model)) {
		row_missing(row, "longer than the model's context of %u tokens", model_n_ctx(s->model));
		return 0;
	}
	v->ns = calloc(v->output, sizeof(*v->ns));
	if (!v->ns)
		return -ENOMEM;
	if (run->o.text)
		options.n_logits = 32;
	r = open_lane_for(run, s, &options, row, &v->lane);
	if (r || !v->lane)
		return r;
	return cached ? plan_cached(v) : plan_whole(v);
}

void variant_deinit(struct variant *v)
{
	lane_close(v->lane);
	free(v->ns);
	free(v->scores.likeliest);
	*v = (struct variant){ 0 };
}

/* Times of all tokens of the answer from those at some places: straight lines between them, and on behind the
 * last. */
static void spread(const double *at, const double *ns, uint32_t n, double *out, uint32_t n_out)
{
	for (uint32_t i = 0, k = 0; i < n_out; i++) {
		while (k + 2 < n && i > at[k + 1])
			k++;
		out[i] = n < 2 ? ns[0] : ns[k] + (i - at[k]) * (ns[k + 1] - ns[k]) / (at[k + 1] - at[k]);
	}
}

/* *n values in v->ns, of tokens that stand for the whole answer. */
static int measure_whole(struct variant *v, uint32_t *n)
{
	double at[COMPARE_SAMPLES], ns[COMPARE_SAMPLES];
	int r = 0;

	for (uint32_t k = 0; k < v->n_places && !r; k++) {
		uint64_t start = clock_ns();

		lane_forget(v->lane, WORK);
		r = lane_prefill(v->lane, WORK, place(v, k));
		ns[k] = (double)(clock_ns() - start);
		at[k] = place(v, k) - v->input;
	}
	if (r)
		return r;
	spread(at, ns, v->n_places, v->ns, v->output);
	*n = v->output;
	return 0;
}

static int measure_stretches(struct variant *v, uint32_t *n)
{
	int r = 0;

	*n = 0;
	for (uint32_t k = 0; k < v->n_places && !r; k++) {
		r = lane_fork(v->lane, WORK, BASE, stretch_place(v, k));
		if (!r)
			r = lane_decode(v->lane, WORK, 1, v->stretch, v->ns + *n);
		*n += v->stretch;
	}
	return r;
}

/* The prompt's time, *prompt in ns, and times of tokens. */
static int measure_cached(struct variant *v, double *prompt, uint32_t *n)
{
	uint64_t start = clock_ns();
	int r;

	lane_forget(v->lane, WORK);
	r = lane_prefill(v->lane, WORK, v->input);
	*prompt = (double)(clock_ns() - start);
	if (r)
		return r;
	if (v->n_places)
		return measure_stretches(v, n);
	*n = v->output;
	return lane_decode(v->lane, WORK, 1, v->output, v->ns);
}

static void note_memory(struct variant *v)
{
	struct row *row = v->row;
	uint64_t kv;

	if (row->cells[COMPARE_KV].n)
		return;
	kv = lane_kv_bytes(v->lane, v->n_places && v->cached ? BASE : WORK);
	cell_add(row, COMPARE_KV, v->cached ? (double)kv / 1e6 : 0);
	cell_add(row, COMPARE_TOTAL, (double)(kv + model_info(v->subject->model)->weight_bytes +
					      lane_workspace_bytes(v->lane)) / 1e6);
}

int variant_round(struct variant *v)
{
	double prompt = 0, sum = 0;
	uint32_t n = 0;
	int r = v->cached ? measure_cached(v, &prompt, &n) : measure_whole(v, &n);

	if (r)
		return r;
	for (uint32_t i = 0; i < n; i++)
		sum += v->ns[i];
	cell_add(v->row, COMPARE_TOKENS, v->output * 1e9 / (prompt + sum / n * v->output));
	cell_add(v->row, COMPARE_P50, percentile(v->ns, n, 0.5) / 1e6);
	cell_add(v->row, COMPARE_P99, percentile(v->ns, n, 0.99) / 1e6);
	note_memory(v);
	return 0;
}

void variant_note(const struct variant *v, struct table *t)
{
	if (!v->lane || !v->n_places || (!v->cached && v->n_places == v->output))
		return;
	if (v->cached)
		table_note(t, "%s: sampled: %u times %u of the %u tokens, spread evenly over them.",
			   v->row->name, v->n_places, v->stretch, v->output);
	else if (v->n_places == 1)
		table_note(t, "%s: sampled: one of the %u tokens, that in the middle, for all.", v->row->name,
			   v->output);
	else
		table_note(t,
			   "%s: sampled: %u of the %u tokens, spread evenly over them, the others in between "
			   "by straight lines.",
			   v->row->name, v->n_places, v->output);
}
