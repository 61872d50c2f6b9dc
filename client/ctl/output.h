/* SPDX-License-Identifier: Apache-2.0 */
/* output.h - stdout while tokens come: every piece is written at once, without a buffer. */
#ifndef KVD_CTL_OUTPUT_H
#define KVD_CTL_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

struct output {
	bool terminal;	/* controls are made visible, and the text ends with a newline */
	bool end_line;	/* it does so elsewhere too */
	char last;	/* last byte written, 0 if none */
};

void output_init(struct output *o);
/* Text of the model: 0; -EPIPE: nobody reads any more; -EINTR: Ctrl-C; -errno. */
int output_text(struct output *o, const void *p, size_t n);
/* Our own text, as it is. */
int output_raw(struct output *o, const void *p, size_t n);
/* On a terminal or if end_line, a newline unless the last byte was one. */
int output_end_line(struct output *o);

#endif
