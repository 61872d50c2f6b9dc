/* SPDX-License-Identifier: Apache-2.0 */
/*
 * private-manager.h - as much of a service manager as keeps a service's descriptors over a restart:
 * sd_notify(3) with FDSTORE=1, FDSTOREREMOVE=1 and FDNAME, sd_listen_fds_with_names(3).
 *
 * Thread: the daemon's owner; manager_pass() between fork and exec.
 */
#ifndef KVD_BENCH_PRIVATE_MANAGER_H
#define KVD_BENCH_PRIVATE_MANAGER_H

#include "tests/bench/private.h"

/* Makes the socket in p's directory that the daemon tells things to.  0 or -errno. */
int manager_open(struct private *p);
/* Takes what was told since the last time. */
void manager_take(struct private *p);
/* Puts what is kept where the next process finds it, and says so in the environment. */
void manager_pass(const struct private *p, int first_free);

#endif
