/* SPDX-License-Identifier: Apache-2.0 */
/* share.h - what cache export, import and verify have in common. */
#ifndef KVD_CTL_SHARE_H
#define KVD_CTL_SHARE_H

#include "client/ctl/ctl.h"
#include "client/ctl/progress.h"

struct share {
	struct kvd_share_options options;
	struct progress progress;
	const char *doing;	/* "exporting" */
	const char *file;	/* export, import */
	bool quiet;
};

#define SHARE_LONGS \
	{ "model", required_argument, NULL, 'm' }, \
	{ "quiet", no_argument, NULL, 'q' }

void share_init(struct share *s, const char *doing);
/* The one argument is s->file if takes_file, else there is none.  0, or CTL_OPTIONS_EXIT after a message. */
int share_parse(struct share *s, struct ctl_options *o, bool takes_file);
/* Connects, and watches for Ctrl-C.  0 or an exit status after a message. */
int share_connect(struct ctl *ctl, struct kvd_client **c);
/* After a call that returned r: the exit status, with a message unless it is CTL_OK. */
int share_failed(const struct ctl *ctl, struct share *s, const struct kvd_client *c, int r, const char *what);

#endif
