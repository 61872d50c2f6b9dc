/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/results.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <time.h>

#include "ipc/base/checked.h"

/* Who has it may call what takes it. */
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

void results_lock(void)
{
	pthread_mutex_lock(&lock);
}

void results_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

static void cpu_name(char *out, size_t n)
{
	char line[256];
	FILE *f = fopen("/proc/cpuinfo", "re");

	snprintf(out, n, "unknown");
	while (f && fgets(line, sizeof(line), f)) {
		char *colon = strchr(line, ':');

		if (strncmp(line, "model name", 10) || !colon)
			continue;
		colon[strcspn(colon, "\n")] = '\0';
		snprintf(out, n, "%s", colon + 1 + strspn(colon + 1, " \t"));
		break;
	}
	if (f)
		fclose(f);
}

static void fill_machine(struct machine *m)
{
	struct utsname u;
	struct sysinfo info;
	cpu_set_t set;

	cpu_name(m->cpu, sizeof(m->cpu));
	if (!uname(&u))
		snprintf(m->kernel, sizeof(m->kernel), "%.20s %.60s", u.sysname, u.release);
	if (!sysinfo(&info))
		m->memory = (uint64_t)info.totalram * info.mem_unit;
	if (!sched_getaffinity(0, sizeof(set), &set))
		m->n_cpus = (uint32_t)CPU_COUNT(&set);
}

int results_new(struct results **out)
{
	struct results *r = calloc(1, sizeof(*r));
	time_t now = time(NULL);
	struct tm tm;

	if (!r)
		return -ENOMEM;
	fill_machine(&r->machine);
	if (gmtime_r(&now, &tm))
		strftime(r->date, sizeof(r->date), "%Y-%m-%dT%H:%M:%SZ", &tm);
	snprintf(r->version, sizeof(r->version), "%s", KVD_VERSION);
	*out = r;
	return 0;
}

void results_free(struct results *r)
{
	if (!r)
		return;
	for (uint32_t i = 0; i < r->n_tables; i++) {
		free(r->tables[i]->rows);
		free(r->tables[i]);
	}
	free(r);
}

int results_table(struct results *r, const char *name, const char *title, const struct column *columns,
		  uint32_t n, struct table **out)
{
	struct table *t = calloc(1, sizeof(*t));

	if (!t || n > COLUMNS_MAX || r->n_tables == TABLES_MAX) {
		free(t);
		return -ENOMEM;
	}
	t->rows = calloc(ROWS_MAX, sizeof(*t->rows));
	if (!t->rows) {
		free(t);
		return -ENOMEM;
	}
	t->name = name;
	snprintf(t->title, sizeof(t->title), "%s", title);
	memcpy(t->columns, columns, n * sizeof(*columns));
	t->n_columns = n;
	results_lock();
	r->tables[r->n_tables++] = t;
	results_unlock();
	*out = t;
	return 0;
}

struct row *table_row(struct table *t, double x, const char *fmt, ...)
{
	struct row *row = t->n_rows < ROWS_MAX ? &t->rows[t->n_rows] : NULL;
	va_list args;

	if (!row)
		return NULL;
	row->x = x;
	va_start(args, fmt);
	vsnprintf(row->name, sizeof(row->name), fmt, args);
	va_end(args);
	results_lock();
	t->n_rows++;
	results_unlock();
	return row;
}

void row_group(struct row *row, const char *group)
{
	results_lock();
	snprintf(row->group, sizeof(row->group), "%s", group);
	results_unlock();
}

void row_missing(struct row *row, const char *fmt, ...)
{
	va_list args;

	results_lock();
	va_start(args, fmt);
	vsnprintf(row->missing, sizeof(row->missing), fmt, args);
	va_end(args);
	results_unlock();
}

void cell_add(struct row *row, uint32_t column, double value)
{
	results_lock();
	series_add(&row->cells[column], value);
	results_unlock();
}

void table_note(struct table *t, const char *fmt, ...)
{
	va_list args;

	if (t->n_notes == NOTES_MAX)
		return;
	results_lock();
	va_start(args, fmt);
	vsnprintf(t->notes[t->n_notes++], sizeof(t->notes[0]), fmt, args);
	va_end(args);
	results_unlock();
}

void table_plot(struct table *t, enum plot plot, uint32_t column, const char *x_head, bool x_is_log)
{
	results_lock();
	t->plot = plot;
	t->plot_column = column;
	t->x_head = x_head;
	t->x_is_log = x_is_log;
	results_unlock();
}

void table_whole(struct table *t)
{
	results_lock();
	t->is_whole = true;
	results_unlock();
}

const struct row *results_row(const struct results *r, const char *table, const char *row)
{
	for (uint32_t i = 0; i < r->n_tables; i++) {
		const struct table *t = r->tables[i];

		if (strcmp(t->name, table))
			continue;
		for (uint32_t k = 0; k < t->n_rows; k++)
			if (!strcmp(t->rows[k].name, row) && !t->rows[k].missing[0])
				return &t->rows[k];
	}
	return NULL;
}

void results_ratio(struct results *r, const struct ratio_spec *spec, const struct series *a,
		   const struct series *b)
{
	uint32_t n = a && b ? MIN(a->n, b->n) : 0;
	struct ratio *ratio;

	if (!n || r->n_ratios == RATIOS_MAX)
		return;
	ratio = &r->ratios[r->n_ratios];
	*ratio = (struct ratio){ .spec = *spec };
	for (uint32_t i = 0; i < n; i++) {
		double share = b->rate[i] > 0 ? a->rate[i] / b->rate[i] : 0;

		if (b->rate[i] > 0)
			series_add(&ratio->values, spec->is_saved ? 100 * (1 - share) : share);
	}
	if (!ratio->values.n)
		return;
	results_lock();
	r->n_ratios++;
	results_unlock();
}
