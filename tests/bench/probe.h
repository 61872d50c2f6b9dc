/* SPDX-License-Identifier: Apache-2.0 */
/*
 * probe.h - the most that this machine does: bytes read from memory in a second, and multiplications out of
 * registers.
 *
 * Nobody knows beforehand which way of reading is the fastest, so that several are tried: one stream or some,
 * with prefetching by software or without, in registers as wide as there are.  All threads take pieces of one
 * buffer (huge pages, where there are any) until nothing is left, so that a CPU that others use costs its
 * share and no more; as the backend's do.
 *
 * Errors: -errno.  Thread: one; it computes, too.
 */
#ifndef KVD_BENCH_PROBE_H
#define KVD_BENCH_PROBE_H

#include <stdint.h>

#include "ipc/base/cleanup.h"

struct probe;

/* A buffer of so many bytes, rounded up. */
int probe_new(struct probe **out, uint32_t n_threads, uint64_t bytes);
void probe_free(struct probe *p);
CLEANUP_DEFINE(struct probe, probe_free)

uint32_t probe_n_ways(void);
const char *probe_way(uint32_t way);	/* "32 bytes, 4 streams, prefetch" */
/* Reads the buffer as often as takes `bytes`, one way; *rate in bytes per second. */
int probe_read(struct probe *p, uint32_t way, uint64_t bytes, double *rate);
/* The best of several tries of every way; *way: which. */
int probe_read_best(struct probe *p, uint64_t bytes, uint32_t tries, double *rate, uint32_t *way);

/* Kinds of arithmetic that this machine has, as the backend's level of that name would use it (NULL: the
 * best). */
enum probe_kind {
	PROBE_INT8,	/* products of 8-bit integers, summed up in 32 bits */
	PROBE_FMA,	/* fused multiply-adds of 32-bit floats */
};
/* Multiplications per second of all threads; *what: the instruction.  -ENOTSUP: not on this machine. */
int probe_arithmetic(uint32_t n_threads, enum probe_kind kind, const char *level, double *rate,
		     const char **what);

#endif
