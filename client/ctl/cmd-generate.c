/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl generate: one prompt, its continuation or answer to stdout as it comes. */
#include <stdlib.h>
#include <string.h>

#include "client/ctl/connect.h"
#include "client/ctl/input.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/sampling.h"
#include "client/ctl/stream.h"

enum template_use { USE_AUTO, USE_RAW, USE_CHAT };

struct generate {
	struct sampling sampling;
	enum template_use use;
	const char *file;
	struct kvd_part parts[2];	/* the system message, if any, and the prompt */
};

static int parse_logprobs(struct generate *g, struct ctl_options *o)
{
	uint64_t n;
	int r = ctl_options_u64(o, 0, SAMPLING_LOGPROBS_MAX, &n);

	if (!r)
		g->sampling.params.logprobs = (int)n;
	return r;
}

static int parse_template(struct generate *g, struct ctl_options *o, enum template_use use)
{
	if (g->use != USE_AUTO && g->use != use) {
		o->status = ctl_usage(o->ctl, "%s: --raw and --chat exclude each other", o->name);
		return CTL_OPTIONS_EXIT;
	}
	g->use = use;
	return 0;
}

static int parse_option(struct generate *g, struct ctl_options *o, int c)
{
	switch (c) {
	case 'f':
		g->file = optarg;
		return 0;
	case CTL_OPT_RAW:
		return parse_template(g, o, USE_RAW);
	case CTL_OPT_CHAT:
		return parse_template(g, o, USE_CHAT);
	case CTL_OPT_LOGPROBS:
		return parse_logprobs(g, o);
	case CTL_OPT_IGNORE_EOS:
		g->sampling.params.ignore_eos = 1;
		return 0;
	default:
		return sampling_option(&g->sampling, o, c);
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
	if (g->use == USE_RAW && g->sampling.system) {
		o->status = ctl_usage(o->ctl, "--system: a raw prompt has no messages");
		return CTL_OPTIONS_EXIT;
	}
	return 0;
}

/* *chat: whether the prompt goes through the template.  0, or an exit status after a message. */
static int decide_template(const struct ctl *ctl, const struct generate *g, const struct kvd_model *model,
			   bool *chat)
{
	enum template_state state = connect_template(model);

	*chat = g->use == USE_CHAT || (g->use == USE_AUTO && state != TEMPLATE_NONE);
	if (!*chat && g->sampling.system) {
		ctl_error(ctl, "--system: the model %s has no chat template", model->name);
		return CTL_FAILED;
	}
	if (!*chat || state == TEMPLATE_KNOWN)
		return 0;
	ctl_error(ctl, "the model %s has %s; --raw sends the prompt without one", model->name,
		  state == TEMPLATE_NONE ? "no chat template" : "a chat template that is not known");
	return CTL_FAILED;
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
	bool chat = false;
	int status = decide_template(ctl, g, model, &chat);

	if (status)
		return status;
	if (chat && g->sampling.system)
		g->parts[p->n_parts++] = (struct kvd_part){ .role = "system", .text = g->sampling.system,
							    .n = strlen(g->sampling.system) };
	g->parts[p->n_parts++] = (struct kvd_part){ .role = chat ? "user" : NULL, .text = prompt->data,
						    .n = prompt->n };
	p->parts = g->parts;
	p->model = model->name;
	status = stream_run(ctl, c, p, &options, &reply);
	reply_deinit(&reply);
	return status;
}

int cmd_generate(struct ctl *ctl, int argc, char **argv)
{
	static const struct option longs[] = {
		SAMPLING_LONGS,
		{ "file", required_argument, NULL, 'f' },
		{ "raw", no_argument, NULL, CTL_OPT_RAW },
		{ "chat", no_argument, NULL, CTL_OPT_CHAT },
		{ "logprobs", required_argument, NULL, CTL_OPT_LOGPROBS },
		{ "ignore-eos", no_argument, NULL, CTL_OPT_IGNORE_EOS },
		CTL_GLOBAL_OPTIONS,
		{ 0 },
	};
	struct ctl_options o = { .ctl = ctl, .argc = argc, .argv = argv, .shorts = ":h" SAMPLING_SHORTS "f:",
				 .longs = longs };
	struct generate g = { 0 };
	struct text_buffer prompt = { 0 };
	struct kvd_client *c = NULL;
	struct kvd_model model;

	sampling_init(&g.sampling);
	if (parse(&g, &o))
		return o.status;
	int status = input_text(&o, g.file, "prompt", &prompt);
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
