/* SPDX-License-Identifier: Apache-2.0 */
/* table.h - aligned columns on stdout. */
#ifndef KVD_CTL_TABLE_H
#define KVD_CTL_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/ctl/ctl.h"

#define TABLE_COLUMNS_MAX 12

struct table_column {
	const char *title;
	bool right;	/* numbers */
};

struct table {
	const struct table_column *columns;
	size_t n_columns;
	char **cells;	/* [n_cells], row by row; the titles are not among them */
	size_t n_cells, capacity;
	bool failed;	/* a cell could not be kept */
};

void table_init(struct table *t, const struct table_column *columns, size_t n_columns);
void table_deinit(struct table *t);
/* The next cell, row by row; memory failures show in table_finish(). */
__attribute__((format(printf, 2, 3)))
void table_cell(struct table *t, const char *fmt, ...);
/* Prints titles and rows, and is deinitialised; an exit status, with what went wrong said. */
int table_finish(const struct ctl *ctl, struct table *t);

/* "1.5 GiB", "3 d 04:05", "135 M"; all at most FORMAT_MAX bytes with the NUL. */
#define FORMAT_MAX 32
const char *format_bytes(char buf[FORMAT_MAX], uint64_t bytes);
const char *format_duration(char buf[FORMAT_MAX], uint64_t ns);
const char *format_count(char buf[FORMAT_MAX], uint64_t n);

#endif
