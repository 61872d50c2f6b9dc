/* SPDX-License-Identifier: Apache-2.0 */
/*
 * private.h - a daemon of the user's own, started on demand.
 *
 * `kvd --model FILE --socket PATH --idle-exit 300`, detached from the terminal,
 * with its output in PATH.log.  A lock on PATH.starting makes two kvctl that come
 * at the same time start one daemon: the second waits and connects.
 */
#ifndef KVD_CTL_PRIVATE_H
#define KVD_CTL_PRIVATE_H

#include "client/ctl/ctl.h"

/*
 * Where a private daemon listens: ctl->socket, $KVD_SOCKET, the runtime directory,
 * /run/kvd for root, or /tmp/kvd-UID (0700, ours).  Makes the directory.  0, or
 * an exit status after a message.
 */
int private_socket(const struct ctl *ctl, char *buf, size_t n);

/*
 * Starts one unless somebody else just did, and connects; options->socket is not
 * looked at.  0 and *out, or an exit status after a message that has the daemon's own
 * reason.
 */
int private_start(const struct ctl *ctl, const char *model_file, bool quiet,
		  const struct kvd_connect_options *options, struct kvd_client **out);

/* The last lines of the private daemon's log, to stderr: it ended while it loaded. */
void private_show_log(const struct ctl *ctl);

#endif
