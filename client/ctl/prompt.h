/* SPDX-License-Identifier: Apache-2.0 */
/* prompt.h - a prompt and whether it goes through the chat template, for generate and cache warm. */
#ifndef KVD_CTL_PROMPT_H
#define KVD_CTL_PROMPT_H

#include "client/ctl/sampling.h"
#include "client/ctl/text.h"

enum template_use { USE_AUTO, USE_RAW, USE_CHAT };

struct prompt {
	enum template_use use;
	const char *file;		/* NULL: an argument, or standard input */
	struct kvd_part parts[2];	/* the system message, if any, and the prompt */
};

#define PROMPT_SHORTS "f:"
#define PROMPT_LONGS \
	{ "file", required_argument, NULL, 'f' }, \
	{ "raw", no_argument, NULL, CTL_OPT_RAW }, \
	{ "chat", no_argument, NULL, CTL_OPT_CHAT }

/* c from ctl_options_next(): 0 if it was taken; 1 if it is another's; CTL_OPTIONS_EXIT. */
int prompt_option(struct prompt *p, struct ctl_options *o, int c);
/* After the options: 0, or CTL_OPTIONS_EXIT after a message. */
int prompt_check(const struct prompt *p, struct ctl_options *o, const struct sampling *s);

/*
 * The parts of the request: s->params.parts.  model is whose template counts; text and p outlive the
 * submission.  0, or an exit status after a message.
 */
int prompt_parts(const struct ctl *ctl, struct prompt *p, struct sampling *s, const struct kvd_model *model,
		 const struct text_buffer *text);

#endif
