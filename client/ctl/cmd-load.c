/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl load, kvctl unload: which models the daemon has. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "client/ctl/connect.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/json.h"
#include "client/ctl/progress.h"

/* The one argument; NULL after a message. */
static const char *only_argument(struct ctl_options *o, const char *what)
{
	if (optind + 1 == o->argc && *o->argv[optind])
		return o->argv[optind];
	o->status = optind + 1 < o->argc ? ctl_usage(o->ctl, "one %s only: %s", what, o->argv[optind + 1]) :
		    ctl_usage(o->ctl, "no %s given", what);
	return NULL;
}

/* --- load --- */

struct load {
	struct kvd_load_options options;
	struct progress progress;
	const char *file;
	bool quiet;
};

static int on_progress(void *arg, unsigned percent)
{
	struct load *l = arg;

	progress_show(&l->progress, "loading %s: %u %%", l->file, percent);
	return interrupt_pending();
}

static int load(const struct ctl *ctl, struct load *l, struct kvd_client *c)
{
	int r;

	progress_init(&l->progress, l->quiet);
	l->options.progress = on_progress;
	l->options.progress_arg = l;
	r = kvd_load(c, l->file, &l->options);
	progress_clear(&l->progress);
	if (r == -ECANCELED)
		return CTL_INTERRUPTED;
	return r ? ctl_client_failed(ctl, c, r, "cannot load the model") : CTL_OK;
}

static int parse_load(struct load *l, struct ctl_options *o)
{
	uint64_t n;

	for (;;) {
		switch (ctl_options_next(o)) {
		case CTL_OPTIONS_END:
			l->file = only_argument(o, "file");
			return l->file ? 0 : CTL_OPTIONS_EXIT;
		case CTL_OPTIONS_EXIT:
			return CTL_OPTIONS_EXIT;
		case CTL_OPT_NAME:
			l->options.name = optarg;
			break;
		case CTL_OPT_CTX:
			if (ctl_options_u64(o, 1, UINT32_MAX, &n))
				return CTL_OPTIONS_EXIT;
			l->options.n_ctx = (uint32_t)n;
			break;
		default:
			l->quiet = true;
		}
	}
}

int cmd_load(struct ctl *ctl, int argc, char **argv)
{
	static const struct option longs[] = {
		{ "name", required_argument, NULL, CTL_OPT_NAME },
		{ "ctx", required_argument, NULL, CTL_OPT_CTX },
		{ "quiet", no_argument, NULL, 'q' },
		CTL_GLOBAL_OPTIONS,
		{ 0 },
	};
	struct ctl_options o = { .ctl = ctl, .argc = argc, .argv = argv, .shorts = ":hq", .longs = longs };
	struct kvd_client *c = NULL;
	struct load l = { .quiet = false };
	int status;

	kvd_load_options_init(&l.options);
	if (parse_load(&l, &o))
		return o.status;
	status = connect_running(ctl, &c);
	if (!status && interrupt_init()) {
		ctl_error(ctl, "cannot watch for Ctrl-C");
		status = CTL_FAILED;
	}
	if (!status)
		status = load(ctl, &l, c);
	kvd_close(c);
	return status;
}

/* --- unload --- */

/* The daemon goes on unloading, whoever waits for it. */
static void on_interrupt(int signo)
{
	_exit(CTL_INTERRUPTED);
}

int cmd_unload(struct ctl *ctl, int argc, char **argv)
{
	static const struct option longs[] = {
		{ "now", no_argument, NULL, CTL_OPT_NOW },
		CTL_GLOBAL_OPTIONS,
		{ 0 },
	};
	struct ctl_options o = { .ctl = ctl, .argc = argc, .argv = argv, .shorts = ":h", .longs = longs };
	struct sigaction action = { .sa_handler = on_interrupt };
	struct kvd_client *c = NULL;
	const char *model;
	unsigned flags = 0;
	int status, r;

	while ((r = ctl_options_next(&o)) != CTL_OPTIONS_END) {
		if (r == CTL_OPTIONS_EXIT)
			return o.status;
		flags |= KVD_UNLOAD_NOW;
	}
	model = only_argument(&o, "model");
	if (!model)
		return o.status;
	status = connect_running(ctl, &c);
	if (status)
		return status;
	sigemptyset(&action.sa_mask);
	sigaction(SIGINT, &action, NULL);
	r = kvd_unload(c, model, flags);
	if (r)
		status = ctl_client_failed(ctl, c, r, "cannot unload the model");
	kvd_close(c);
	return status;
}
