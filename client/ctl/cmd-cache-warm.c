/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl cache warm: a request for no tokens, whose prompt stays in the cache. */
#include <stdio.h>
#include <stdlib.h>

#include "client/ctl/cmd-cache.h"
#include "client/ctl/connect.h"
#include "client/ctl/input.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/prompt.h"
#include "client/ctl/stream-show.h"
#include "client/ctl/stream.h"

struct warm {
	struct sampling sampling;
	struct prompt prompt;
};

static int parse(struct warm *w, struct ctl_options *o)
{
	for (;;) {
		int c = ctl_options_next(o), r;

		if (c == CTL_OPTIONS_END)
			return prompt_check(&w->prompt, o, &w->sampling);
		if (c == CTL_OPTIONS_EXIT)
			return c;
		r = prompt_option(&w->prompt, o, c);
		if (r == 1)
			r = sampling_option(&w->sampling, o, c);
		if (r)
			return r;
	}
}

static int print_result(const struct ctl *ctl, const struct reply *reply)
{
	uint32_t computed = reply->prompt_tokens - reply->cached_tokens;

	if (ctl->json) {
		json_t *v = json_pack("{s:o,s:o,s:o,s:o}", "prompt_tokens", json_u64(reply->prompt_tokens),
				      "cached_tokens", json_u64(reply->cached_tokens),
				      "computed_tokens", json_u64(computed), "prefill_ns", json_u64(reply->prefill_ns));

		if (v)
			show_miss(v, reply);
		return json_print_line(ctl, v);
	}
	printf("%u tokens: %u were there, %u computed in %.2f s\n", reply->prompt_tokens,
	       reply->cached_tokens, computed, (double)reply->prefill_ns / 1e9);
	return CTL_OK;
}

static int run(struct ctl *ctl, struct warm *w, struct kvd_client *c, const struct kvd_model *model,
	       const struct text_buffer *text)
{
	const struct stream_options options = { .mode = STREAM_TEXT, .quiet = w->sampling.quiet, .no_figures = true };
	struct reply reply = { 0 };
	int status = prompt_parts(ctl, &w->prompt, &w->sampling, model, text);

	if (status)
		return status;
	w->sampling.params.max_tokens = 0;
	status = stream_run(ctl, c, &w->sampling.params, &options, &reply);
	if (!status && reply.has_usage)
		status = print_result(ctl, &reply);
	reply_deinit(&reply);
	return status;
}

int cmd_cache_warm(struct ctl *ctl, int argc, char **argv)
{
	static const struct option longs[] = {
		PROMPT_LONGS,
		CACHE_LONGS,
		{ "model", required_argument, NULL, 'm' },
		{ "system", required_argument, NULL, CTL_OPT_SYSTEM },
		{ "quiet", no_argument, NULL, 'q' },
		CTL_GLOBAL_OPTIONS,
		{ 0 },
	};
	struct ctl_options o = { .ctl = ctl, .argc = argc, .argv = argv, .shorts = ":hm:q" PROMPT_SHORTS,
				 .longs = longs };
	struct text_buffer text = { 0 };
	struct kvd_client *c = NULL;
	struct warm w = { 0 };
	struct kvd_model model;

	sampling_init(&w.sampling);
	if (parse(&w, &o))
		return o.status;
	int status = input_text(&o, w.prompt.file, "prompt", &text);
	if (!status && !text.n) {
		ctl_error(ctl, "the prompt is empty");
		status = CTL_USAGE;
	}
	if (!status)
		status = connect_for_model(ctl, w.sampling.params.model, w.sampling.quiet, text.n, &c, &model);
	if (!status && interrupt_init()) {
		ctl_error(ctl, "cannot watch for Ctrl-C");
		status = CTL_FAILED;
	}
	if (!status)
		status = run(ctl, &w, c, &model, &text);
	kvd_close(c);
	free(text.data);
	return status;
}
