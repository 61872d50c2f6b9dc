/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl generate: one prompt, its continuation or answer to stdout as it comes. */
#include <stdlib.h>

#include "client/ctl/connect.h"
#include "client/ctl/input.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/prompt.h"
#include "client/ctl/stream.h"

struct generate {
	struct sampling sampling;
	struct prompt prompt;
};

static int parse_logprobs(struct generate *g, struct ctl_options *o)
{
	uint64_t n;
	int r = ctl_options_u64(o, 0, SAMPLING_LOGPROBS_MAX, &n);

	if (!r)
		g->sampling.params.logprobs = (int)n;
	return r;
}

static int parse_option(struct generate *g, struct ctl_options *o, int c)
{
	int r;

	switch (c) {
	case CTL_OPT_LOGPROBS:
		return parse_logprobs(g, o);
	case CTL_OPT_IGNORE_EOS:
		g->sampling.params.ignore_eos = 1;
		return 0;
	default:
		r = prompt_option(&g->prompt, o, c);
		return r == 1 ? sampling_option(&g->sampling, o, c) : r;
	}
}

static int parse(struct generate *g, struct ctl_options *o)
{
	for (;;) {
		int c = ctl_options_next(o);
		if (c == CTL_OPTIONS_END)
			break;
		if (c == CTL_OPTIONS_EXIT || parse_option(g, o, c) == CTL_OPTIONS_EXIT)
			return CTL_OPTIONS_EXIT;
	}
	return prompt_check(&g->prompt, o, &g->sampling);
}

static int run(struct ctl *ctl, struct generate *g, struct kvd_client *c, const struct kvd_model *model,
	       const struct text_buffer *prompt)
{
	struct kvd_params *p = &g->sampling.params;
	struct stream_options options = {
		.mode = ctl->json ? STREAM_JSON : p->logprobs >= 0 ? STREAM_TABLE : STREAM_TEXT,
		.quiet = g->sampling.quiet,
	};
	struct reply reply = { 0 };
	int status = prompt_parts(ctl, &g->prompt, &g->sampling, model, prompt);

	if (status)
		return status;
	status = stream_run(ctl, c, p, &options, &reply);
	reply_deinit(&reply);
	return status;
}

int cmd_generate(struct ctl *ctl, int argc, char **argv)
{
	static const struct option longs[] = {
		SAMPLING_LONGS,
		PROMPT_LONGS,
		{ "logprobs", required_argument, NULL, CTL_OPT_LOGPROBS },
		{ "ignore-eos", no_argument, NULL, CTL_OPT_IGNORE_EOS },
		CTL_GLOBAL_OPTIONS,
		{ 0 },
	};
	struct ctl_options o = { .ctl = ctl, .argc = argc, .argv = argv, .shorts = ":h" SAMPLING_SHORTS PROMPT_SHORTS,
				 .longs = longs };
	struct generate g = { 0 };
	struct text_buffer prompt = { 0 };
	struct kvd_client *c = NULL;
	struct kvd_model model;

	sampling_init(&g.sampling);
	if (parse(&g, &o))
		return o.status;
	int status = input_text(&o, g.prompt.file, "prompt", &prompt);
	if (!status && !prompt.n) {
		ctl_error(ctl, "the prompt is empty");
		status = CTL_USAGE;
	}
	if (!status)
		status = connect_for_model(ctl, g.sampling.params.model, g.sampling.quiet, prompt.n, &c,
					   &model);
	if (!status && interrupt_init()) {
		ctl_error(ctl, "cannot watch for Ctrl-C");
		status = CTL_FAILED;
	}
	if (!status)
		status = run(ctl, &g, c, &model, &prompt);
	kvd_close(c);
	free(prompt.data);
	return status;
}
