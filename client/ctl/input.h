/* SPDX-License-Identifier: Apache-2.0 */
/* input.h - the text a command works on: an argument, a file or standard input. */
#ifndef KVD_CTL_INPUT_H
#define KVD_CTL_INPUT_H

#include "client/ctl/ctl.h"
#include "client/ctl/text.h"

#define INPUT_MAX (64u << 20)	/* bytes */

/*
 * The argument after the options ('-': stdin), or file ('-' too), or stdin if it is
 * no terminal.  what: "prompt".  0, or an exit status after a message.
 */
int input_text(const struct ctl_options *o, const char *file, const char *what, struct text_buffer *out);

#endif
