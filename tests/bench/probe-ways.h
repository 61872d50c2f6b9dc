/* SPDX-License-Identifier: Apache-2.0 */
/*
 * probe-ways.h - the loops of probe.h.
 *
 * A loop that reads has eight sums at least, so that additions wait for loads and not for each other.  Streams
 * are equal parts of a piece that are read side by side: more pages of memory are open, and more of the hardware's
 * prefetchers at work.  On a Zen 3 (one thread, huge pages, the best of 400 short tries) one stream reads 16 GB/s,
 * two 20, four 22, eight 21; prefetching by software takes 10 to 20 % away, and wide loads add nothing.  On other
 * machines that is different, so several are tried.  An arithmetic loop keeps as many chains of additions as hide an
 * instruction's latency (4 or 5 cycles, two a cycle), all in registers.
 */
#ifndef KVD_BENCH_PROBE_WAYS_H
#define KVD_BENCH_PROBE_WAYS_H

#include <stdint.h>

#include "tests/bench/probe.h"

#define PROBE_PIECE (1u << 20)	/* bytes that a thread takes at once */

struct probe_read_way {
	const char *name;
	uint64_t (*read)(const char *piece);
};

/* Those that this machine can do; how many.  ways: may be NULL. */
uint32_t probe_read_ways(const struct probe_read_way **ways);

/* So many turns of the loop. */
typedef uint64_t (*probe_arithmetic_fn)(uint32_t turns);

struct probe_arithmetic_way {
	const char *name;
	const char *level;	/* that of the backend that computes so */
	enum probe_kind kind;
	uint32_t products;	/* multiplications in a turn */
	probe_arithmetic_fn run;
};

/* NULL: there is none. */
const struct probe_arithmetic_way *probe_arithmetic_way(enum probe_kind kind, const char *level);

#endif
