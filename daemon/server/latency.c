/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/latency.h"

#include <stddef.h>

#define MS UINT64_C(1000000)

const uint64_t latency_bounds[LATENCY_N_BOUNDS] = {
	1 * MS,	   2 * MS,    5 * MS,	 10 * MS,   20 * MS,	50 * MS,    100 * MS,	 200 * MS,   500 * MS,
	1000 * MS, 2000 * MS, 5000 * MS, 10000 * MS, 20000 * MS, 30000 * MS, 60000 * MS, 120000 * MS,
};

void latency_add(struct latency *l, uint64_t ns)
{
	size_t i = 0;

	while (i < LATENCY_N_BOUNDS && ns > latency_bounds[i])
		i++;
	atomic_fetch_add_explicit(&l->counts[i], 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&l->sum_ns, ns, memory_order_relaxed);
}

void latency_sum(const struct latency *l, struct latency_figures *sum)
{
	for (size_t i = 0; i <= LATENCY_N_BOUNDS; i++)
		sum->counts[i] += atomic_load_explicit(&l->counts[i], memory_order_relaxed);
	sum->sum_ns += atomic_load_explicit(&l->sum_ns, memory_order_relaxed);
}
