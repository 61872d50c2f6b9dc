/* SPDX-License-Identifier: Apache-2.0 */
/* options.h - the command line of kvd-bench; a table is a bit, in the order of table_defs. */
#ifndef KVD_BENCH_OPTIONS_H
#define KVD_BENCH_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/bench/tables.h"

struct options {
	struct bench_options bench;
	uint32_t tables;
	bool model_given, json, products, mass;
	bool peer_worker;	/* work on request, for bench-peer: see peer.h */
	const char *html;
};

#define OPTIONS_HELP (-1)	/* it was asked for, and printed */

/* 0, OPTIONS_HELP, or the exit status after a message. */
int options_read(struct options *o, int argc, char **argv);

#endif
