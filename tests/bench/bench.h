/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvd-bench: what this machine makes of a model, in tables.
 *
 *     subject.h   a model with its backend
 *     lane.h      sequences of it, with one type of keys and values
 *     probe.h     what the machine's memory and arithmetic can do
 *     private.h   a daemon of our own
 *     results.h   tables of measured values, without a form
 *     report.h    their forms: text, JSON, HTML
 *     tables.h    what is measured
 *
 * What is compared is measured in turn, round by round, so that a slow minute of the machine falls on all of it
 * alike; what is shown is the median over the rounds, and the range.
 */
#ifndef KVD_BENCH_H
#define KVD_BENCH_H

#include <stdint.h>
#include <stdio.h>

#include "ipc/base/error.h"
#include "kernels/backend.h"

/* --- series.c: values of one kind over the rounds ------------------------------ */

#define SERIES_MAX 64

struct series {
	uint32_t n;
	double rate[SERIES_MAX];	/* whatever is measured; often a rate */
};

void series_add(struct series *s, double value);	/* more than SERIES_MAX are left out */
double series_median(const struct series *s);		/* 0: there are none */
void series_range(const struct series *s, double *least, double *most);
/* The median is the first; for percentiles of many values, which this sorts.  share: 0 to 1. */
double percentile(double *values, uint32_t n, double share);

/* --- products.c: the arithmetic alone -------------------------------------- */

/* Measures and prints; level NULL: the best. */
int products_run(FILE *out, const char *level, uint32_t reps);

/* --- mass.c: what measuring attention mass costs ---------------------------- */

/* As products_run(). */
int mass_run(FILE *out, const char *level, uint32_t block_tokens, uint32_t reps);

#endif
