/* SPDX-License-Identifier: Apache-2.0 */
/* Options of the commands; numbers are taken whole or refused. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"

static void option_spelling(struct ctl_options *o, int value, int longindex)
{
	if (longindex >= 0)
		snprintf(o->name, sizeof(o->name), "--%s", o->longs[longindex].name);
	else
		snprintf(o->name, sizeof(o->name), "-%c", value);
}

static int options_exit(struct ctl_options *o, int status)
{
	o->status = status;
	return CTL_OPTIONS_EXIT;
}

/* getopt's '?': an unknown letter is in optopt, an unknown word is the argument just passed. */
static int options_unknown(struct ctl_options *o)
{
	const char *word = o->argv[optind - 1];

	if (optopt && !(word[0] == '-' && word[1] == '-'))
		return options_exit(o, ctl_usage(o->ctl, "unknown option: -%c", optopt));
	return options_exit(o, ctl_usage(o->ctl, "unknown, ambiguous or misused option: %s", word));
}

static int options_missing(struct ctl_options *o)
{
	const char *word = o->argv[optind - 1];

	if (word[0] == '-' && word[1] == '-')
		return options_exit(o, ctl_usage(o->ctl, "%s: a value is missing", word));
	return options_exit(o, ctl_usage(o->ctl, "-%c: a value is missing", optopt));
}

int ctl_options_next(struct ctl_options *o)
{
	for (;;) {
		int longindex = -1;
		opterr = 0;
		int c = getopt_long(o->argc, o->argv, o->shorts, o->longs, &longindex);
		if (c == -1)
			return CTL_OPTIONS_END;
		if (c == ':')
			return options_missing(o);
		if (c == '?')
			return options_unknown(o);
		option_spelling(o, c, longindex);
		switch (c) {
		case CTL_OPT_SOCKET:
			if (!*optarg)
				return ctl_options_bad(o, "must not be empty");
			o->ctl->socket = optarg;
			break;
		case CTL_OPT_JSON:
			o->ctl->json = true;
			break;
		case 'h':
			ctl_print_help(o->ctl->command);
			return options_exit(o, CTL_OK);
		default:
			return c;
		}
	}
}

int ctl_options_bad(struct ctl_options *o, const char *text)
{
	return options_exit(o, ctl_usage(o->ctl, "%s: %s: %s", o->name, text, optarg));
}

int ctl_options_u64(struct ctl_options *o, uint64_t min, uint64_t max, uint64_t *out)
{
	size_t n = strlen(optarg);

	if (!n || strspn(optarg, "0123456789") != n)
		return ctl_options_bad(o, "not a whole number");
	errno = 0;
	uint64_t v = strtoull(optarg, NULL, 10);
	if (errno || v < min || v > max) {
		char text[96];
		snprintf(text, sizeof(text), "not between %" PRIu64 " and %" PRIu64, min, max);
		return ctl_options_bad(o, text);
	}
	*out = v;
	return 0;
}

int ctl_options_float(struct ctl_options *o, double min, double max, float *out)
{
	char *end = NULL;
	size_t n = strlen(optarg);

	/* strtod() also takes white space, hexadecimal, "nan" and "inf" */
	if (!n || strspn(optarg, "0123456789+-.eE") != n)
		return ctl_options_bad(o, "not a number");
	double v = strtod(optarg, &end);
	if (*end)
		return ctl_options_bad(o, "not a number");
	if (!(v >= min && v <= max)) {
		char text[96];
		snprintf(text, sizeof(text), "not between %g and %g", min, max);
		return ctl_options_bad(o, text);
	}
	*out = (float)v;
	return 0;
}

int ctl_options_duration(struct ctl_options *o, uint32_t *out)
{
	static const struct { char unit; uint32_t seconds; } units[] = {
		{ 's', 1 }, { 'm', 60 }, { 'h', 3600 }, { 'd', 86400 },
	};
	size_t n = strspn(optarg, "0123456789");

	errno = 0;
	uint64_t v = strtoull(optarg, NULL, 10);
	for (size_t i = 0; n && optarg[n] && !optarg[n + 1] && i < sizeof(units) / sizeof(units[0]); i++) {
		if (units[i].unit != optarg[n])
			continue;
		if (errno || !v || v > UINT32_MAX / units[i].seconds)
			return ctl_options_bad(o, "not between 1s and 49710d");
		*out = (uint32_t)v * units[i].seconds;
		return 0;
	}
	return ctl_options_bad(o, "not a duration like 30s, 10m, 1h or 7d");
}

int ctl_options_no_arguments(struct ctl_options *o)
{
	if (optind == o->argc)
		return 0;
	return options_exit(o, ctl_usage(o->ctl, "takes no argument: %s", o->argv[optind]));
}
