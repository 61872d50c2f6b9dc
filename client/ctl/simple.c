/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/simple.h"

int simple_options(struct ctl *ctl, int argc, char **argv, int *status)
{
	static const struct option longs[] = { CTL_GLOBAL_OPTIONS, { 0 } };
	struct ctl_options o = { .ctl = ctl, .argc = argc, .argv = argv, .shorts = ":h", .longs = longs };
	int r = ctl_options_next(&o);

	if (r == CTL_OPTIONS_END)
		r = ctl_options_no_arguments(&o);
	*status = o.status;
	return r;
}
