/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tables.h - what kvd-bench measures, table by table, and what they share.
 *
 * A table adds itself to the results, its rows, and then round by round a value to each cell.  What can't be
 * measured here (a type that the backend lacks, a context longer than the model's, memory that is not there)
 * is a row that says why.  Functions return 0, or -errno for what ends the whole run, which they have said.
 *
 * Thread: main.
 */
#ifndef KVD_BENCH_TABLES_H
#define KVD_BENCH_TABLES_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "tests/bench/lane.h"
#include "tests/bench/results.h"
#include "tests/bench/subject.h"

#define KV_TYPES 3u	/* F16, Q8, Q4 in the order of enum kb_kv_type */

struct bench_options {
	const char *model;	/* a GGUF file, NULL: synthetic */
	const char *synthetic;	/* NAME:TYPE */
	const char *level;	/* NULL: best */
	const char *text;	/* a file for perplexity, NULL: none */
	const char *directory;	/* where daemons have their files; NULL: $TMPDIR or /tmp */
	uint32_t n_threads;	/* 0: all that may be used */
	uint32_t rounds;
	uint32_t tokens;	/* decoded for a sequence and measurement */
	uint32_t input, output;	/* of the comparison: tokens of the prompt, and of the answer */
	uint32_t max_context;	/* 0: 8,000 */
	uint32_t chunk;		/* prompt tokens in a step */
	uint32_t block_tokens;
	uint32_t probe_mb;	/* that the probe reads, beyond all caches */
	uint32_t seconds;	/* no round begins that would last beyond that */
	uint32_t kv_types;	/* bits, 1 << enum kb_kv_type */
	bool quiet;
};

struct run {
	struct bench_options o;
	struct results *results;
	struct subject *subject;	/* NULL while a daemon is measured */
	uint64_t deadline;		/* clock_ns() */
	uint64_t round_start;		/* of the round at hand, clock_ns() */
	double prefill_rate, decode_rate;	/* roughly, tokens a second */
	uint32_t n_ctx;			/* longest sequence that is measured */
};

struct table_def {
	const char *name;
	const char *what;	/* for --help */
	bool by_daemon;		/* through a daemon of our own: run->subject is NULL */
	int (*run)(struct run *run);
	double (*seconds)(const struct run *run);	/* about how long it takes */
};

extern const struct table_def table_defs[];
extern const uint32_t n_table_defs;

int compare_run(struct run *run);
double compare_seconds(const struct run *run);
int batch_run(struct run *run);
double batch_seconds(const struct run *run);
int context_run(struct run *run);
double context_seconds(const struct run *run);
int arrangement_run(struct run *run);
double arrangement_seconds(const struct run *run);
int clients_run(struct run *run);
double clients_seconds(const struct run *run);
int first_run(struct run *run);
double first_seconds(const struct run *run);
int layout_run(struct run *run);
double layout_seconds(const struct run *run);
int http_run(struct run *run);
double http_seconds(const struct run *run);
int limits_run(struct run *run);
double limits_seconds(const struct run *run);

/* ratios.c: those of the tables that are there, beside what is asked. */
void ratios_fill(struct results *r);

/* --- run.c: what tables share ------------------------------------------------- */

const char *kv_type_name(enum kb_kv_type type);		/* "F16" */
bool kv_type_wanted(const struct run *run, enum kb_kv_type type);

/*
 * Whether round i of n begins: one as long as that before it would end in time. Notes it in the table where not.
 * Calls with i from 0 on follow each other.
 */
bool round_begins(struct run *run, struct table *t, uint32_t i, uint32_t n);
/* "kvd-bench: TABLE: ..." to standard error, unless quiet. */
__attribute__((format(printf, 2, 3)))
void progress(const struct run *run, const char *fmt, ...);
/* The same as an error, always. */
__attribute__((format(printf, 1, 2)))
void complain(const char *fmt, ...);

/*
 * A lane for a row, NULL and 0 with the row's reason where this machine can't: not supported, or too little
 * memory. -errno: anything else.
 */
int open_lane_for(struct run *run, struct subject *s, const struct lane_options *options, struct row *row,
		  struct lane **out);
struct lane_options lane_options_of(const struct run *run, enum kb_kv_type type, uint32_t n_ctx,
				    uint32_t n_seqs);
/* Opens a model as the options say.  synthetic: NAME:TYPE in place of theirs, or NULL. */
int open_subject(const struct run *run, const char *synthetic, struct subject **out, struct diag *diag);
/* Seconds of `n` tokens of prompt, and of decoding, by the rough rates. */
double prefill_seconds(const struct run *run, double n);
double decode_seconds(const struct run *run, double n);

#endif
