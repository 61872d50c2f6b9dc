/* SPDX-License-Identifier: Apache-2.0 */
/*
 * results.h - what was measured: tables of series, and ratios between them, without a form.
 *
 * Rows and columns are added as they come to be known, so that at any time what is there can be shown: Ctrl-C
 * ends a run with that.  Whoever changes something holds the lock (results_lock()), and the functions here
 * that change something take it themselves.  A series is fed by cell_add(); the pointers to tables and rows
 * stay valid.
 *
 * Thread: any.
 */
#ifndef KVD_BENCH_RESULTS_H
#define KVD_BENCH_RESULTS_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/bench/bench.h"

#define TABLES_MAX 16u
#define COLUMNS_MAX 10u
#define ROWS_MAX 48u
#define NOTES_MAX 16u
#define RATIOS_MAX 32u

struct column {
	const char *name;	/* "tokens_per_s": what programs call it */
	const char *head;	/* "tokens/s" */
	int decimals;
};

struct row {
	char name[64];
	double x;		/* its place on the plot's axis */
	char group[32];		/* the line of a plot that it belongs to, "": none */
	char missing[160];	/* why there are no values, "": there may be */
	struct series cells[COLUMNS_MAX];
};

/* How a table is drawn, by one of its columns. */
enum plot {
	PLOT_NONE,
	PLOT_BARS,	/* a bar for each row */
	PLOT_LINES,	/* a line for each group, over x */
};

struct table {
	const char *name;	/* "batch": the one that it is asked for by */
	char title[160];
	struct column columns[COLUMNS_MAX];
	uint32_t n_columns;
	struct row *rows;	/* [ROWS_MAX] */
	uint32_t n_rows;
	char notes[NOTES_MAX][480];
	uint32_t n_notes;
	enum plot plot;
	uint32_t plot_column;
	const char *x_head;	/* of lines: what x is, with its unit */
	bool x_is_log;
	bool is_whole;		/* all that was to be measured is there */
};

/* What is made of two figures, and what the project wants of it. */
struct ratio_spec {
	const char *name;
	double asked;		/* 0: nothing */
	bool at_most;		/* no more than asked, else no less */
	bool is_saved;		/* percent of the second that the first saves, else the first by the second */
	int decimals;
};

/* One figure by another, measured in the same rounds. */
struct ratio {
	struct ratio_spec spec;
	struct series values;
};

struct machine {
	char cpu[96], kernel[96];
	uint32_t n_cpus;	/* that may be used */
	uint64_t memory;
};

struct results {
	struct machine machine;
	char date[32];		/* ISO 8601, UTC */
	char version[32];
	/* Of the model and its backend; "" and 0 until it is loaded. */
	char model[128], arch[32], backend[32], level[32];
	uint64_t n_params, weight_bytes;
	uint32_t n_threads, rounds, block_tokens, chunk;
	struct table *tables[TABLES_MAX];
	uint32_t n_tables;
	struct ratio ratios[RATIOS_MAX];
	uint32_t n_ratios;
	bool interrupted;
};

/* Fills in machine, date and version.  -ENOMEM. */
int results_new(struct results **out);
void results_free(struct results *r);

void results_lock(void);
void results_unlock(void);

/* -ENOMEM; name, head and the like live as long as the program. */
int results_table(struct results *r, const char *name, const char *title, const struct column *columns,
		  uint32_t n, struct table **out);
/* A further row; NULL: there are too many. */
__attribute__((format(printf, 3, 4)))
struct row *table_row(struct table *t, double x, const char *fmt, ...);
void row_group(struct row *row, const char *group);
__attribute__((format(printf, 2, 3)))
void row_missing(struct row *row, const char *fmt, ...);
void cell_add(struct row *row, uint32_t column, double value);
__attribute__((format(printf, 2, 3)))
void table_note(struct table *t, const char *fmt, ...);
void table_plot(struct table *t, enum plot plot, uint32_t column, const char *x_head, bool x_is_log);
void table_whole(struct table *t);

/* NULL: it is not there, or has no such value. */
const struct row *results_row(const struct results *r, const char *table, const char *row);
/* By rounds: the n-th of a and the n-th of b.  Nothing where one of them is missing. */
void results_ratio(struct results *r, const struct ratio_spec *spec, const struct series *a,
		   const struct series *b);

#endif
