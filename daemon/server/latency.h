/* SPDX-License-Identifier: Apache-2.0 */
/*
 * latency.h - how often a time was how long: counts between fixed bounds, from one millisecond
 * to two minutes, two or three for each factor of ten.
 *
 * Adding is two relaxed atomic additions, on any thread.
 */
#ifndef KVD_SERVER_LATENCY_H
#define KVD_SERVER_LATENCY_H

#include <stdatomic.h>
#include <stdint.h>

#define LATENCY_N_BOUNDS 17

/* Ascending, nanoseconds; each belongs to what is below it. */
extern const uint64_t latency_bounds[LATENCY_N_BOUNDS];

struct latency {
	/* Of times up to the bound and above the one before; the last: longer. */
	_Atomic uint64_t counts[LATENCY_N_BOUNDS + 1];
	_Atomic uint64_t sum_ns;
};

/* A plain copy. */
struct latency_figures {
	uint64_t counts[LATENCY_N_BOUNDS + 1];
	uint64_t sum_ns;
};

void latency_add(struct latency *l, uint64_t ns);
/* Adds what l has to sum. */
void latency_sum(const struct latency *l, struct latency_figures *sum);

#endif
