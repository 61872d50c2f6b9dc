/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/table.h"
#include "client/ctl/text.h"

void table_init(struct table *t, const struct table_column *columns, size_t n_columns)
{
	*t = (struct table){ .columns = columns,
			     .n_columns = n_columns < TABLE_COLUMNS_MAX ? n_columns : TABLE_COLUMNS_MAX };
}

void table_deinit(struct table *t)
{
	for (size_t i = 0; i < t->n_cells; i++)
		free(t->cells[i]);
	free(t->cells);
}

void table_cell(struct table *t, const char *fmt, ...)
{
	char *text = NULL;
	va_list ap;

	if (t->n_cells == t->capacity) {
		size_t capacity = t->capacity ? 2 * t->capacity : 64;
		char **cells = reallocarray(t->cells, capacity, sizeof(*cells));
		if (!cells) {
			t->failed = true;
			return;
		}
		t->cells = cells;
		t->capacity = capacity;
	}
	va_start(ap, fmt);
	if (vasprintf(&text, fmt, ap) < 0)
		t->failed = true;
	else
		t->cells[t->n_cells++] = text;
	va_end(ap);
}

static void print_row(const struct table *t, const char *const *cells, const size_t *widths)
{
	for (size_t i = 0; i < t->n_columns; i++) {
		int pad = (int)(widths[i] - text_columns(cells[i]));
		if (t->columns[i].right)
			printf("%*s", pad, "");
		text_print_visible(stdout, cells[i], strlen(cells[i]));
		if (i + 1 == t->n_columns)
			putchar('\n');
		else
			printf("%*s  ", t->columns[i].right ? 0 : pad, "");
	}
}

static void print(const struct table *t)
{
	const char *titles[TABLE_COLUMNS_MAX];
	size_t widths[TABLE_COLUMNS_MAX];

	for (size_t i = 0; i < t->n_columns; i++) {
		titles[i] = t->columns[i].title;
		widths[i] = text_columns(titles[i]);
	}
	for (size_t i = 0; i < t->n_cells; i++) {
		size_t n = text_columns(t->cells[i]);
		size_t *width = &widths[i % t->n_columns];
		*width = n > *width ? n : *width;
	}
	print_row(t, titles, widths);
	for (size_t i = 0; i + t->n_columns <= t->n_cells; i += t->n_columns)
		print_row(t, (const char *const *)t->cells + i, widths);
}

int table_finish(const struct ctl *ctl, struct table *t)
{
	bool failed = t->failed;

	if (!failed && t->n_columns)
		print(t);
	table_deinit(t);
	if (failed)
		ctl_error(ctl, "out of memory");
	return failed ? CTL_FAILED : CTL_OK;
}

const char *format_bytes(char buf[FORMAT_MAX], uint64_t bytes)
{
	static const char *const units[] = { "KiB", "MiB", "GiB", "TiB", "PiB" };
	double v = (double)bytes / 1024;
	size_t unit = 0;

	if (bytes < 1024) {
		snprintf(buf, FORMAT_MAX, "%" PRIu64 " B", bytes);
		return buf;
	}
	while (v >= 1023.5 && unit + 1 < sizeof(units) / sizeof(units[0])) {
		v /= 1024;
		unit++;
	}
	snprintf(buf, FORMAT_MAX, v < 99.95 ? "%.1f %s" : "%.0f %s", v, units[unit]);
	return buf;
}

const char *format_duration(char buf[FORMAT_MAX], uint64_t ns)
{
	uint64_t s = ns / 1000000000u;

	if (s < 60)
		snprintf(buf, FORMAT_MAX, "%.1f s", (double)ns / 1e9);
	else if (s < 86400)
		snprintf(buf, FORMAT_MAX, "%" PRIu64 ":%02u:%02u", s / 3600, (unsigned)(s / 60 % 60),
			 (unsigned)(s % 60));
	else
		snprintf(buf, FORMAT_MAX, "%" PRIu64 " d %02u:%02u", s / 86400, (unsigned)(s / 3600 % 24),
			 (unsigned)(s / 60 % 60));
	return buf;
}

const char *format_count(char buf[FORMAT_MAX], uint64_t n)
{
	if (n >= 1000000000u)
		snprintf(buf, FORMAT_MAX, "%.1f G", (double)n / 1e9);
	else if (n >= 1000000u)
		snprintf(buf, FORMAT_MAX, "%.0f M", (double)n / 1e6);
	else
		snprintf(buf, FORMAT_MAX, "%" PRIu64, n);
	return buf;
}
