/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.h - results in a form: text for people, JSON for programs (its members are in kvctl(1)), and one
 * page of HTML that needs nothing else, with the JSON in it.
 *
 * The caller holds results_lock(), or is alone.
 */
#ifndef KVD_BENCH_REPORT_H
#define KVD_BENCH_REPORT_H

#include <stdio.h>

#include "tests/bench/results.h"

#define REPORT_SCHEMA 1		/* of the JSON; members are added without a change of it */

void report_head(FILE *out, const struct results *r);
void report_table(FILE *out, const struct table *t);
void report_ratios(FILE *out, const struct results *r);
/* All of that. */
void report_text(FILE *out, const struct results *r);

/* malloc'd, one document with a newline at its end; NULL: out of memory. */
char *report_json(const struct results *r);

/* 0, or -ENOMEM; whether it was written the stream knows. */
int report_html(FILE *out, const struct results *r);
/* Digits behind the point of a value of a column that has so many for small ones. */
int report_decimals(double value, int decimals);
/* "at least 5.3", or "-". */
void report_asked(const struct ratio_spec *spec, char *buf, size_t n);
/* Whether a row has values in a column: one without is not shown. */
bool report_has_column(const struct table *t, uint32_t c);
/* plot.c: the SVG of a table that has one. */
void report_plot(FILE *out, const struct table *t);
/* Text with what is markup in it escaped. */
void report_escaped(FILE *out, const char *text);

#endif
