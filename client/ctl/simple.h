/* SPDX-License-Identifier: Apache-2.0 */
/* simple.h - the frame of a command without options of its own. */
#ifndef KVD_CTL_SIMPLE_H
#define KVD_CTL_SIMPLE_H

#include "client/ctl/ctl.h"

/* Takes the global options, refuses arguments.  0, or CTL_OPTIONS_EXIT with the status in *status. */
int simple_options(struct ctl *ctl, int argc, char **argv, int *status);

#endif
