/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "client/ctl/sampling.h"

void sampling_init(struct sampling *s)
{
	*s = (struct sampling){ 0 };
	kvd_params_init(&s->params);
	s->params.stop = s->stop;
}

static int option_stop(struct sampling *s, struct ctl_options *o)
{
	size_t n = strlen(optarg);
	char text[64];

	if (!n || n > SAMPLING_STOP_BYTES_MAX) {
		snprintf(text, sizeof(text), "not 1 to %d bytes long", SAMPLING_STOP_BYTES_MAX);
		return ctl_options_bad(o, text);
	}
	if (s->params.n_stop == SAMPLING_STOP_MAX) {
		snprintf(text, sizeof(text), "more than %d stop strings", SAMPLING_STOP_MAX);
		return ctl_options_bad(o, text);
	}
	s->stop[s->params.n_stop++] = optarg;
	return 0;
}

static int option_u32(struct ctl_options *o, uint64_t max, uint32_t *out)
{
	uint64_t v;
	int r = ctl_options_u64(o, 0, max, &v);

	if (!r)
		*out = (uint32_t)v;
	return r;
}

/* A name of at most max bytes. */
static int option_name(struct ctl_options *o, size_t max, const char **out)
{
	char text[64];

	if (!*optarg || strlen(optarg) > max) {
		snprintf(text, sizeof(text), "not 1 to %zu bytes long", max);
		return ctl_options_bad(o, text);
	}
	*out = optarg;
	return 0;
}

static int option_priority(struct sampling *s, struct ctl_options *o)
{
	static const char *const names[] = {
		[KVD_CACHE_LOW] = "low", [KVD_CACHE_NORMAL] = "normal", [KVD_CACHE_HIGH] = "high",
	};

	for (uint32_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (!strcmp(optarg, names[i])) {
			s->params.priority = i;
			return 0;
		}
	}
	return ctl_options_bad(o, "not low, normal or high");
}

static int option_namespace(struct sampling *s, struct ctl_options *o, const char *ns)
{
	if (s->params.ns && (!strcmp(ns, "none") || !strcmp(s->params.ns, "none"))) {
		o->status = ctl_usage(o->ctl, "--namespace and --no-cache exclude each other");
		return CTL_OPTIONS_EXIT;
	}
	s->params.ns = ns;
	return 0;
}

int sampling_option(struct sampling *s, struct ctl_options *o, int c)
{
	struct kvd_params *p = &s->params;

	switch (c) {
	case 'm':
		if (!*optarg)
			return ctl_options_bad(o, "must not be empty");
		p->model = optarg;
		return 0;
	case 'n':
		return option_u32(o, UINT32_MAX, &p->max_tokens);
	case 't':
		return ctl_options_float(o, 0, 100, &p->temperature);
	case CTL_OPT_TOP_K:
		return option_u32(o, INT32_MAX, &p->top_k);
	case CTL_OPT_TOP_P:
		return ctl_options_float(o, 0, 1, &p->top_p);
	case CTL_OPT_MIN_P:
		return ctl_options_float(o, 0, 1, &p->min_p);
	case CTL_OPT_REPEAT_PENALTY:
		return ctl_options_float(o, 0.01, 100, &p->repeat_penalty);
	case CTL_OPT_SEED:
		return ctl_options_u64(o, 0, UINT64_MAX, &p->seed);
	case CTL_OPT_STOP:
		return option_stop(s, o);
	case CTL_OPT_SYSTEM:
		s->system = optarg;
		return 0;
	case 'q':
		s->quiet = true;
		return 0;
	case CTL_OPT_NAMESPACE: {
		const char *ns = "";
		int r = option_name(o, SAMPLING_NAMESPACE_MAX, &ns);

		return r ? r : option_namespace(s, o, ns);
	}
	case CTL_OPT_NO_CACHE:
		return option_namespace(s, o, "none");
	case CTL_OPT_CACHE_KEY:
		if (strchr(optarg, '/'))
			return ctl_options_bad(o, "must have no '/'");
		return option_name(o, SAMPLING_CACHE_KEY_MAX, &p->cache_key);
	case CTL_OPT_TTL:
		return ctl_options_duration(o, &p->ttl_s);
	case CTL_OPT_PRIORITY:
		return option_priority(s, o);
	case CTL_OPT_PIN:
		p->pin = 1;
		return 0;
	default:
		return 1;
	}
}
