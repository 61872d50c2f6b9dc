/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvd-bench: what a model's step costs on this machine, without the daemon.
 *
 * A run opens the backend, one model and a pool, and repeats the same round of
 * work; each round measures everything once, so that a slow minute of the
 * machine falls on all figures alike.  Reported are the median and the range
 * over the rounds, beside the rate at which plain loads read memory: decoding
 * one sequence reads every weight once per token, so that rate is its limit.
 */
#ifndef KVD_BENCH_H
#define KVD_BENCH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "daemon/model/model.h"
#include "ipc/base/error.h"
#include "kernels/backend.h"

/* --- work.c: a model with room for sequences ------------------------------ */

struct bench_options {
	const char *model_path;
	const char *level;	/* NULL: best */
	uint32_t n_threads;	/* 0: all that may be used */
	uint32_t n_decode;	/* tokens per sequence and measurement */
	uint32_t chunk;		/* prompt tokens per step */
	uint32_t block_tokens;
	uint32_t n_ctx;		/* longest sequence */
	uint32_t n_seqs;	/* most sequences at once */
};

struct bench;

int bench_open(struct bench **out, const struct bench_options *options, struct diag *diag);
void bench_close(struct bench *b);
const struct model_info *bench_model_info(const struct bench *b);
uint32_t bench_n_ctx(const struct bench *b);	/* as asked for, or the model's where that is less */
struct kb_backend *bench_backend(const struct bench *b);

/* Forgets every sequence. */
void bench_reset(struct bench *b);
/* Appends n tokens to sequence 0, in chunks; logits of the last one. */
int bench_prefill(struct bench *b, uint32_t n);
/* Appends n tokens, one per step, to each of the first n_seqs sequences. */
int bench_decode(struct bench *b, uint32_t n_seqs, uint32_t n);
/* Bytes that a decode step reads: the weights, and KV of `context` positions per sequence. */
uint64_t bench_step_bytes(const struct bench *b, uint32_t n_seqs, uint32_t context);

/* --- probe.c: how fast memory can be read --------------------------------- */

struct probe;

/* Buffers of `bytes` in all, one per thread. */
int probe_new(struct probe **out, uint32_t n_threads, uint64_t bytes);
void probe_free(struct probe *p);
/* Reads all buffers `passes` times, all threads at once; *rate in bytes per second. */
int probe_read(struct probe *p, uint32_t passes, double *rate);

/* --- products.c: the arithmetic alone -------------------------------------- */

/* Measures and prints; level NULL: the best. */
int products_run(FILE *out, const char *level, uint32_t reps);

/* --- mass.c: what measuring attention mass costs ---------------------------- */

/* As products_run(). */
int mass_run(FILE *out, const char *level, uint32_t block_tokens, uint32_t reps);

/* --- report.c: samples and how they are shown ----------------------------- */

#define SERIES_MAX 64

/* Rates of one kind of work over the rounds, in tokens per second (or bytes for a probe). */
struct series {
	const char *name;
	uint64_t bytes_per_token;	/* 0: not bound by reading */
	uint32_t n;
	double rate[SERIES_MAX];
};

void series_add(struct series *s, double rate);
double series_median(const struct series *s);
void series_range(const struct series *s, double *least, double *most);

struct report {
	const struct bench_options *options;
	const struct model_info *model;
	const char *backend, *level;
	uint32_t n_threads;
	const struct series *read_memory;	/* beyond every cache */
	const struct series *read_weights;	/* a buffer as large as the weights */
	const struct series *work;
	uint32_t n_work;
};

void report_text(FILE *out, const struct report *r);
void report_json(FILE *out, const struct report *r);

#endif
