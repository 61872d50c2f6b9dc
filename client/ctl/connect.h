/* SPDX-License-Identifier: Apache-2.0 */
/* connect.h - finding, starting and waiting for the daemon, and choosing a model. */
#ifndef KVD_CTL_CONNECT_H
#define KVD_CTL_CONNECT_H

#include "client/ctl/ctl.h"

/* Connects to a running daemon.  0 and *out, or an exit status after a message. */
int connect_running(const struct ctl *ctl, struct kvd_client **out);

/*
 * The same for work with a model: where no daemon is there and model is the
 * path of a readable file, starts a private one.  Checks that the daemon has
 * the model (NULL: its default one) and waits until it is loaded; *chosen is
 * its description.  n_text: bytes that are to be sent.
 */
int connect_for_model(const struct ctl *ctl, const char *model, bool quiet, size_t n_text,
		      struct kvd_client **out, struct kvd_model *chosen);

enum template_state {
	TEMPLATE_KNOWN,
	TEMPLATE_NONE,		/* the model has none */
	TEMPLATE_UNKNOWN,	/* kvd does not understand it */
};
enum template_state connect_template(const struct kvd_model *model);

#endif
