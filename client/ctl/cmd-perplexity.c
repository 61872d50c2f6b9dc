/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvctl perplexity: how well a model predicts a text.
 *
 * Definition (that of llama.cpp's perplexity tool, but for one token more in each window): the text is tokenised
 * once, with BOS where the model begins with it, and cut into windows of n tokens;
 * a last incomplete one is dropped.  In each window the first token is BOS where the model begins with it, and the
 * tokens of positions n / 2 .. n - 1 count: the result is exp of their mean negative log-probability.
 *
 * Each window is a request of its own with prompt log-probabilities and no
 * tokens to generate; several are in flight, so that the daemon can batch them.
 */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/connect.h"
#include "client/ctl/input.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/json.h"
#include "client/ctl/progress.h"

#define IN_FLIGHT_MAX 8
#define WINDOW_DEFAULT 512
#define WINDOW_MIN 2

struct window {
	uint64_t request;	/* 0: free */
	size_t index;
	double sum;		/* of log-probabilities */
	uint32_t n;
};

struct perplexity {
	struct ctl *ctl;
	struct kvd_client *c;
	const char *model;	/* as given; then the chosen one's name */
	struct kvd_model chosen;
	bool quiet;
	uint32_t n_ctx;

	int32_t *ids;
	size_t n_ids, n_windows;
	bool has_bos;
	int32_t bos;

	struct window windows[IN_FLIGHT_MAX];
	size_t next, n_done;
	double *sums;		/* [n_windows], added up in their order at the end */
	int32_t *draft;		/* [n_ctx] */
	struct progress progress;
};

/* --- the text's tokens --- */

/* What BOS is, if the model begins with one: the tokens of nothing. */
static int ask_bos(struct perplexity *p)
{
	int32_t *ids = NULL;
	size_t n = 0;
	int r = kvd_tokenize(p->c, p->model, "", 0, KVD_TOKENIZE_BOS, &ids, &n);

	if (r)
		return ctl_client_failed(p->ctl, p->c, r, "cannot tokenize");
	p->has_bos = n == 1;
	p->bos = p->has_bos ? ids[0] : 0;
	free(ids);
	return 0;
}

static int tokenise(struct perplexity *p, const struct text_buffer *text)
{
	int status = ask_bos(p);
	int r;

	if (status)
		return status;
	r = kvd_tokenize(p->c, p->model, text->data, text->n, KVD_TOKENIZE_BOS, &p->ids, &p->n_ids);
	if (r)
		return ctl_client_failed(p->ctl, p->c, r, "cannot tokenize");
	p->n_windows = p->n_ids / p->n_ctx;
	if (!p->n_windows) {
		ctl_error(p->ctl, "the text has %zu tokens, fewer than one window of %u", p->n_ids, p->n_ctx);
		return CTL_FAILED;
	}
	p->sums = calloc(p->n_windows, sizeof(*p->sums));
	p->draft = calloc(p->n_ctx, sizeof(*p->draft));
	if (!p->sums || !p->draft) {
		ctl_error(p->ctl, "out of memory");
		return CTL_FAILED;
	}
	return 0;
}

/* --- windows --- */

static struct window *find_window(struct perplexity *p, uint64_t request)
{
	for (size_t i = 0; i < IN_FLIGHT_MAX; i++)
		if (p->windows[i].request == request)
			return &p->windows[i];
	return NULL;
}

static int submit(struct perplexity *p, struct window *w)
{
	struct kvd_part part = { .ids = p->draft, .n = p->n_ctx };
	struct kvd_params params;
	int r;

	memcpy(p->draft, p->ids + p->next * p->n_ctx, p->n_ctx * sizeof(*p->draft));
	if (p->has_bos)
		p->draft[0] = p->bos;
	kvd_params_init(&params);
	params.model = p->model;
	params.parts = &part;
	params.n_parts = 1;
	params.no_bos = 1;
	params.max_tokens = 0;
	params.temperature = 0;
	params.prompt_logprobs = (int32_t)(p->n_ctx / 2);
	params.ns = "none";	/* a text is measured once: it should push nothing out */
	*w = (struct window){ .index = p->next };
	r = kvd_submit(p->c, &params, &w->request);
	if (!r)
		p->next++;
	return r;
}

/* Submits what can be under way.  0, or an exit status after a message. */
static int fill(struct perplexity *p)
{
	struct window *w;

	while (p->next < p->n_windows && (w = find_window(p, 0))) {
		int r = submit(p, w);
		/* the arena is full of prompts that the daemon has not copied yet */
		if (r == -ENOSPC && p->next > p->n_done)
			return 0;
		if (r)
			return ctl_client_failed(p->ctl, p->c, r, "cannot submit a window");
	}
	return 0;
}

static int finish_window(struct perplexity *p, struct window *w)
{
	if (w->n != p->n_ctx - p->n_ctx / 2 || !isfinite(w->sum)) {
		ctl_error(p->ctl, "window %zu has %u log-probabilities instead of %u, or one that is no number",
			  w->index, w->n, p->n_ctx - p->n_ctx / 2);
		return CTL_FAILED;
	}
	p->sums[w->index] = w->sum;
	p->n_done++;
	*w = (struct window){ 0 };
	progress_show(&p->progress, "%zu of %zu windows", p->n_done, p->n_windows);
	return 0;
}

static int refused(struct perplexity *p, const struct kvd_event *e)
{
	progress_clear(&p->progress);
	ctl_error(p->ctl, "%.*s", (int)(e->n_bytes < 500 ? e->n_bytes : 500), (const char *)e->bytes);
	return ctl_refused_status((int)e->code);
}

static int take_event(struct perplexity *p, const struct kvd_event *e)
{
	struct window *w = find_window(p, e->request);

	if (!w)
		return 0;
	switch (e->type) {
	case KVD_EVENT_PROMPT:
		w->sum += (double)e->logprob;
		w->n++;
		return 0;
	case KVD_EVENT_DONE:
		return finish_window(p, w);
	case KVD_EVENT_ERROR:
		return refused(p, e);
	default:
		return 0;
	}
}

static void wait_for_event(const struct perplexity *p)
{
	struct pollfd fds[2] = {
		{ .fd = kvd_fd(p->c), .events = POLLIN },
		{ .fd = interrupt_fd(), .events = POLLIN },
	};

	poll(fds, 2, -1);
}

static int run(struct perplexity *p)
{
	const struct kvd_event *event;
	int status = 0;

	while (p->n_done < p->n_windows && !status) {
		if (interrupt_pending())
			return CTL_INTERRUPTED;
		status = fill(p);
		if (status)
			break;
		int r = kvd_next(p->c, 0, &event);
		if (!r)
			status = take_event(p, event);
		else if (r == KVD_E_TIMEOUT)
			wait_for_event(p);
		else
			status = ctl_client_failed(p->ctl, p->c, r, "the answer ended early");
	}
	return status;
}

/* --- the result --- */

static int print_result(const struct perplexity *p)
{
	uint64_t n_scored = (uint64_t)p->n_windows * (p->n_ctx - p->n_ctx / 2);
	double sum = 0, scored = (double)n_scored, result;

	for (size_t i = 0; i < p->n_windows; i++)
		sum += p->sums[i];
	result = exp(-sum / scored);
	if (p->ctl->json)
		return json_print(p->ctl, json_pack("{s:s,s:o,s:o,s:o,s:o,s:o,s:o}", "model", p->model,
						    "perplexity", json_number(result),
						    "mean_nll", json_number(-sum / scored),
						    "n_ctx", json_u64(p->n_ctx),
						    "windows", json_u64(p->n_windows),
						    "tokens", json_u64(p->n_ids),
						    "scored", json_u64(n_scored)));
	printf("%.4f\n", result);
	return CTL_OK;
}

static int measure(struct perplexity *p, const struct text_buffer *text)
{
	int status = connect_for_model(p->ctl, p->model, p->quiet, text->n, &p->c, &p->chosen);

	if (status)
		return status;
	if (interrupt_init()) {
		ctl_error(p->ctl, "cannot watch for Ctrl-C");
		return CTL_FAILED;
	}
	p->model = p->chosen.name;
	if (p->n_ctx >= p->chosen.n_ctx) {
		ctl_error(p->ctl, "--ctx: a window must be shorter than the context of %s, %u tokens",
			  p->chosen.name, p->chosen.n_ctx);
		return CTL_FAILED;
	}
	progress_init(&p->progress, p->quiet);
	progress_show(&p->progress, "tokenizing");
	status = tokenise(p, text);
	if (!status)
		status = run(p);
	progress_clear(&p->progress);
	return status ? status : print_result(p);
}

static int parse(struct perplexity *p, struct ctl_options *o)
{
	uint64_t n;

	for (;;) {
		switch (ctl_options_next(o)) {
		case CTL_OPTIONS_END:
			return 0;
		case CTL_OPTIONS_EXIT:
			return CTL_OPTIONS_EXIT;
		case 'm':
			p->model = optarg;
			break;
		case CTL_OPT_CTX:
			if (ctl_options_u64(o, WINDOW_MIN, INT32_MAX, &n))
				return CTL_OPTIONS_EXIT;
			p->n_ctx = (uint32_t)n;
			break;
		default:
			p->quiet = true;
		}
	}
}

/* The file's contents: unlike a prompt, a text this long is never an argument. */
static int read_text(struct ctl_options *o, struct text_buffer *text)
{
	const char *file = optind < o->argc ? o->argv[optind] : NULL;

	if (!file)
		return ctl_usage(o->ctl, "no file given");
	if (optind + 1 < o->argc)
		return ctl_usage(o->ctl, "one file only: %s", o->argv[optind + 1]);
	optind = o->argc;
	return input_text(o, file, "text", text);
}

int cmd_perplexity(struct ctl *ctl, int argc, char **argv)
{
	static const struct option longs[] = {
		{ "model", required_argument, NULL, 'm' },
		{ "ctx", required_argument, NULL, CTL_OPT_CTX },
		{ "quiet", no_argument, NULL, 'q' },
		CTL_GLOBAL_OPTIONS,
		{ 0 },
	};
	struct ctl_options o = { .ctl = ctl, .argc = argc, .argv = argv, .shorts = ":hm:q", .longs = longs };
	struct perplexity p = { .ctl = ctl, .n_ctx = WINDOW_DEFAULT };
	struct text_buffer text = { 0 };
	int status;

	if (parse(&p, &o))
		return o.status;
	status = read_text(&o, &text);
	if (!status)
		status = measure(&p, &text);
	kvd_close(p.c);
	free(p.ids);
	free(p.sums);
	free(p.draft);
	free(text.data);
	return status;
}
