/* SPDX-License-Identifier: Apache-2.0 */
/* Tables in at most 100 columns: a line of medians, and below it one of ranges. */
#include <inttypes.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "tests/bench/report.h"

#define WIDTH 100
#define NAME_MAX_WIDTH 44

int report_decimals(double value, int decimals)
{
	if (value >= 10000)
		return 0;
	return value >= 1000 ? MIN(decimals, 1) : decimals;
}

static int name_width(const struct table *t)
{
	size_t n = 4;

	for (uint32_t i = 0; i < t->n_rows; i++)
		n = MAX(n, strlen(t->rows[i].name));
	return (int)MIN(n, (size_t)NAME_MAX_WIDTH);
}

static void range_text(const struct series *s, int decimals, char *buf, size_t n)
{
	double least, most;

	buf[0] = '\0';
	series_range(s, &least, &most);
	decimals = report_decimals(most, decimals);
	if (s->n > 1 && least != most)
		snprintf(buf, n, "%.*f%s%.*f", decimals, least, least < 0 ? " to " : "-", decimals, most);
}

static void median_text(const struct series *s, int decimals, char *buf, size_t n)
{
	double median = series_median(s);

	snprintf(buf, n, "%.*f", report_decimals(median, decimals), median);
}

bool report_has_column(const struct table *t, uint32_t c)
{
	for (uint32_t i = 0; i < t->n_rows; i++)
		if (t->rows[i].cells[c].n)
			return true;
	return false;
}

/* How a table is set: widths of the first column and the others (-1: not shown), digits behind the point. */
struct layout {
	int first, widths[COLUMNS_MAX], decimals[COLUMNS_MAX];
};

static int column_width(const struct table *t, uint32_t c, int decimals)
{
	size_t n = strlen(t->columns[c].head);
	char buf[64];

	if (!report_has_column(t, c))
		return -1;
	for (uint32_t i = 0; i < t->n_rows; i++) {
		const struct series *s = &t->rows[i].cells[c];

		if (!s->n)
			continue;
		median_text(s, decimals, buf, sizeof(buf));
		n = MAX(n, strlen(buf));
		range_text(s, decimals, buf, sizeof(buf));
		n = MAX(n, strlen(buf));
	}
	return (int)n;
}

/* With fewer digits where it would be too wide. */
static void lay_out(const struct table *t, struct layout *l)
{
	int sum = WIDTH + 1;

	l->first = name_width(t);
	for (int cut = 0; cut < 3 && sum > WIDTH; cut++) {
		sum = l->first;
		for (uint32_t c = 0; c < t->n_columns; c++) {
			l->decimals[c] = MAX(0, t->columns[c].decimals - cut);
			l->widths[c] = column_width(t, c, l->decimals[c]);
			sum += l->widths[c] < 0 ? 0 : l->widths[c] + 2;
		}
	}
}

/* A paragraph, its lines indented. */
static void wrap(FILE *out, const char *text, int indent)
{
	int at = 0;

	while (*text) {
		int n = (int)strcspn(text, " ");

		if (at && at + 1 + n > WIDTH - indent) {
			fputc('\n', out);
			at = 0;
		}
		fprintf(out, at ? " %*s%.*s" : "%*s%.*s", at ? 0 : indent, "", n, text);
		at += n + !!at;
		text += n;
		text += strspn(text, " ");
	}
	fputc('\n', out);
}

static void print_row(FILE *out, const struct table *t, const struct row *row, const struct layout *l)
{
	char buf[256];
	bool has_range = false;

	if (row->missing[0]) {
		snprintf(buf, sizeof(buf), "%s: not available: %s", row->name, row->missing);
		wrap(out, buf, 0);
		return;
	}
	fprintf(out, "%-*.*s", l->first, l->first, row->name);
	for (uint32_t c = 0; c < t->n_columns; c++) {
		const struct series *s = &row->cells[c];

		if (l->widths[c] < 0)
			continue;
		snprintf(buf, sizeof(buf), "-");
		if (s->n)
			median_text(s, l->decimals[c], buf, sizeof(buf));
		fprintf(out, "  %*s", l->widths[c], buf);
		range_text(s, l->decimals[c], buf, sizeof(buf));
		has_range |= buf[0] != '\0';
	}
	fputc('\n', out);
	if (!has_range)
		return;
	fprintf(out, "%*s", l->first, "");
	for (uint32_t c = 0; c < t->n_columns; c++) {
		if (l->widths[c] < 0)
			continue;
		range_text(&row->cells[c], l->decimals[c], buf, sizeof(buf));
		fprintf(out, "  %*s", l->widths[c], buf);
	}
	fputc('\n', out);
}

void report_table(FILE *out, const struct table *t)
{
	struct layout l;

	lay_out(t, &l);
	fprintf(out, "\n%s: %s\n\n%*s", t->name, t->title, l.first, "");
	for (uint32_t c = 0; c < t->n_columns; c++)
		if (l.widths[c] >= 0)
			fprintf(out, "  %*s", l.widths[c], t->columns[c].head);
	fputc('\n', out);
	for (uint32_t i = 0; i < t->n_rows; i++)
		print_row(out, t, &t->rows[i], &l);
	if (!t->is_whole)
		fputs("(not finished)\n", out);
	for (uint32_t i = 0; i < t->n_notes; i++)
		wrap(out, t->notes[i], 2);
}

void report_head(FILE *out, const struct results *r)
{
	fprintf(out, "kvd-bench %s, %s\n", r->version, r->date);
	fprintf(out, "machine  %s, %u CPUs, %.1f GB; %s\n", r->machine.cpu, r->machine.n_cpus,
		(double)r->machine.memory / 1e9, r->machine.kernel);
	if (!r->model[0])
		return;
	fprintf(out, "model    %s: %s, %.0f M parameters, %.1f MB of weights in memory\n", r->model, r->arch,
		(double)r->n_params / 1e6, (double)r->weight_bytes / 1e6);
	fprintf(out, "backend  %s, level %s, %u threads; blocks of %u tokens, prompt chunks of %u\n",
		r->backend, r->level, r->n_threads, r->block_tokens, r->chunk);
	fprintf(out, "medians of up to %u rounds, below them the least and the most\n", r->rounds);
}

void report_asked(const struct ratio_spec *spec, char *buf, size_t n)
{
	snprintf(buf, n, "-");
	if (spec->asked > 0)
		snprintf(buf, n, "at %s %.4g%s", spec->at_most ? "most" : "least", spec->asked,
			 spec->is_saved ? " %" : "");
}

void report_ratios(FILE *out, const struct results *r)
{
	if (!r->n_ratios)
		return;
	fprintf(out, "\nratios: within a round\n\n%-56s  %8s  %15s  %15s\n", "", "median", "min-max", "asked");
	for (uint32_t i = 0; i < r->n_ratios; i++) {
		const struct ratio *x = &r->ratios[i];
		char range[64], median[32], saved[40], asked[32];

		range_text(&x->values, x->spec.decimals, range, sizeof(range));
		median_text(&x->values, x->spec.decimals, median, sizeof(median));
		snprintf(saved, sizeof(saved), "%s%s", median, x->spec.is_saved ? " %" : "");
		report_asked(&x->spec, asked, sizeof(asked));
		fprintf(out, "%-56s  %8s  %15s  %15s\n", x->spec.name, saved, range, asked);
	}
}

void report_text(FILE *out, const struct results *r)
{
	report_head(out, r);
	for (uint32_t i = 0; i < r->n_tables; i++)
		report_table(out, r->tables[i]);
	report_ratios(out, r);
	if (r->interrupted)
		fputs("\ninterrupted: what was measured until then\n", out);
}
