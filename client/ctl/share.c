/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/share.h"

#include <errno.h>
#include <inttypes.h>

#include "client/ctl/connect.h"
#include "client/ctl/interrupt.h"

static int on_progress(void *arg, uint64_t done, uint64_t total)
{
	struct share *s = arg;

	if (total)
		progress_show(&s->progress, "%s: %" PRIu64 " of %" PRIu64 " entries", s->doing, done, total);
	else
		progress_show(&s->progress, "%s: %" PRIu64 " entries", s->doing, done);
	return interrupt_pending();
}

void share_init(struct share *s, const char *doing)
{
	*s = (struct share){ .doing = doing };
	kvd_share_options_init(&s->options);
	s->options.progress = on_progress;
	s->options.progress_arg = s;
}

static int parse_option(struct share *s, struct ctl_options *o, int option)
{
	uint64_t n;

	switch (option) {
	case 'm':
		s->options.model = optarg;
		return 0;
	case 'n':
		if (ctl_options_u64(o, 1, UINT32_MAX - 1, &n))
			return CTL_OPTIONS_EXIT;
		s->options.count = (uint32_t)n;
		return 0;
	case CTL_OPT_ALL:
		s->options.count = UINT32_MAX;
		return 0;
	case CTL_OPT_NAMESPACE:
	case CTL_OPT_CACHE_KEY:
		if (!*optarg)
			return ctl_options_bad(o, "must not be empty");
		*(option == CTL_OPT_NAMESPACE ? &s->options.ns : &s->options.cache_key) = optarg;
		return 0;
	default:
		s->quiet = true;
		return 0;
	}
}

static int take_file(struct share *s, struct ctl_options *o)
{
	if (optind + 1 == o->argc && *o->argv[optind]) {
		s->file = o->argv[optind];
		return 0;
	}
	o->status = optind + 1 < o->argc ? ctl_usage(o->ctl, "one file only: %s", o->argv[optind + 1]) :
		    ctl_usage(o->ctl, "no file given");
	return CTL_OPTIONS_EXIT;
}

int share_parse(struct share *s, struct ctl_options *o, bool takes_file)
{
	int r = 0;

	while (!r) {
		int option = ctl_options_next(o);

		if (option == CTL_OPTIONS_EXIT)
			return option;
		if (option == CTL_OPTIONS_END)
			break;
		r = parse_option(s, o, option);
	}
	if (!r)
		r = takes_file ? take_file(s, o) : ctl_options_no_arguments(o);
	progress_init(&s->progress, s->quiet);
	return r;
}

int share_connect(struct ctl *ctl, struct kvd_client **c)
{
	int status = connect_running(ctl, c);

	if (!status && interrupt_init()) {
		ctl_error(ctl, "cannot watch for Ctrl-C");
		status = CTL_FAILED;
	}
	return status;
}

int share_failed(const struct ctl *ctl, struct share *s, const struct kvd_client *c, int r, const char *what)
{
	progress_clear(&s->progress);
	if (r == -ECANCELED)
		return CTL_INTERRUPTED;
	return r ? ctl_client_failed(ctl, c, r, what) : CTL_OK;
}
