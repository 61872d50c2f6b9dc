/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "client/ctl/connect.h"
#include "client/ctl/prompt.h"

static int parse_template(struct prompt *p, struct ctl_options *o, enum template_use use)
{
	if (p->use != USE_AUTO && p->use != use) {
		o->status = ctl_usage(o->ctl, "%s: --raw and --chat exclude each other", o->name);
		return CTL_OPTIONS_EXIT;
	}
	p->use = use;
	return 0;
}

int prompt_option(struct prompt *p, struct ctl_options *o, int c)
{
	switch (c) {
	case 'f':
		p->file = optarg;
		return 0;
	case CTL_OPT_RAW:
		return parse_template(p, o, USE_RAW);
	case CTL_OPT_CHAT:
		return parse_template(p, o, USE_CHAT);
	default:
		return 1;
	}
}

int prompt_check(const struct prompt *p, struct ctl_options *o, const struct sampling *s)
{
	if (p->use != USE_RAW || !s->system)
		return 0;
	o->status = ctl_usage(o->ctl, "--system: a raw prompt has no messages");
	return CTL_OPTIONS_EXIT;
}

/* *chat: whether the prompt goes through the template.  0, or an exit status after a message. */
static int decide_template(const struct ctl *ctl, const struct prompt *p, const struct sampling *s,
			   const struct kvd_model *model, bool *chat)
{
	enum template_state state = connect_template(model);

	*chat = p->use == USE_CHAT || (p->use == USE_AUTO && state != TEMPLATE_NONE);
	if (!*chat && s->system) {
		ctl_error(ctl, "--system: the model %s has no chat template", model->name);
		return CTL_FAILED;
	}
	if (!*chat || state == TEMPLATE_KNOWN)
		return 0;
	ctl_error(ctl, "the model %s has %s; --raw sends the prompt without one", model->name,
		  state == TEMPLATE_NONE ? "no chat template" : "a chat template that is not known");
	return CTL_FAILED;
}

int prompt_parts(const struct ctl *ctl, struct prompt *p, struct sampling *s, const struct kvd_model *model,
		 const struct text_buffer *text)
{
	struct kvd_params *params = &s->params;
	bool chat = false;
	int status = decide_template(ctl, p, s, model, &chat);

	if (status)
		return status;
	if (chat && s->system)
		p->parts[params->n_parts++] = (struct kvd_part){ .role = "system", .text = s->system,
								 .n = strlen(s->system) };
	p->parts[params->n_parts++] = (struct kvd_part){ .role = chat ? "user" : NULL, .text = text->data,
							 .n = text->n };
	params->parts = p->parts;
	params->model = model->name;
	return 0;
}
