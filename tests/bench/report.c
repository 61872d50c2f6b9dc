/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"

void series_add(struct series *s, double rate)
{
	if (s->n < SERIES_MAX)
		s->rate[s->n++] = rate;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* *sorted holds n values afterwards. */
static void sort_rates(const struct series *s, double sorted[SERIES_MAX])
{
	memcpy(sorted, s->rate, s->n * sizeof(double));
	qsort(sorted, s->n, sizeof(double), by_value);
}

double series_median(const struct series *s)
{
	double v[SERIES_MAX];

	if (!s->n)
		return 0;
	sort_rates(s, v);
	return (v[(s->n - 1) / 2] + v[s->n / 2]) / 2;
}

void series_range(const struct series *s, double *least, double *most)
{
	double v[SERIES_MAX];

	sort_rates(s, v);
	*least = s->n ? v[0] : 0;
	*most = s->n ? v[s->n - 1] : 0;
}

static void text_probe(FILE *out, const char *what, const struct series *s)
{
	double least, most;

	series_range(s, &least, &most);
	fprintf(out, "reads    %6.1f GB/s (%.1f-%.1f), %s\n", series_median(s) / 1e9, least / 1e9, most / 1e9, what);
}

/* Bytes read per second as a part of what plain loads reach over as many bytes. */
static double read_share(const struct report *r, const struct series *s)
{
	double limit = series_median(r->read_weights);

	return limit > 0 ? series_median(s) * (double)s->bytes_per_token / limit : 0;
}

void report_text(FILE *out, const struct report *r)
{
	fprintf(out, "model    %s: %s, %.0f M parameters, %.1f MB of weights in memory\n", r->model->name,
		r->model->arch, (double)r->model->n_params / 1e6, (double)r->model->weight_bytes / 1e6);
	fprintf(out, "backend  %s, level %s, %u threads; blocks of %u tokens, prompt chunks of %u\n", r->backend,
		r->level, r->n_threads, r->options->block_tokens, r->options->chunk);
	text_probe(out, "memory", r->read_memory);
	text_probe(out, "a buffer as large as the weights", r->read_weights);
	fprintf(out, "\n%-28s %10s %10s %10s %14s\n", "tokens per second", "median", "min", "max", "of reads");
	for (uint32_t i = 0; i < r->n_work; i++) {
		const struct series *s = &r->work[i];
		double least, most;

		if (!s->n) {
			fprintf(out, "%-28s %10s\n", s->name, "-");
			continue;
		}
		series_range(s, &least, &most);
		fprintf(out, "%-28s %10.1f %10.1f %10.1f", s->name, series_median(s), least, most);
		if (s->bytes_per_token)
			fprintf(out, " %12.0f %%", 100 * read_share(r, s));
		fputc('\n', out);
	}
}

static void json_string(FILE *out, const char *s)
{
	fputc('"', out);
	for (; *s; s++) {
		if (*s == '"' || *s == '\\')
			fprintf(out, "\\%c", *s);
		else if ((unsigned char)*s < 0x20)
			fprintf(out, "\\u%04x", *s);
		else
			fputc(*s, out);
	}
	fputc('"', out);
}

static void json_series(FILE *out, const struct series *s)
{
	double least, most;

	series_range(s, &least, &most);
	fprintf(out, "{\"name\": ");
	json_string(out, s->name);
	fprintf(out, ", \"median\": %.6g, \"min\": %.6g, \"max\": %.6g, \"samples\": [", series_median(s), least, most);
	for (uint32_t i = 0; i < s->n; i++)
		fprintf(out, "%s%.6g", i ? ", " : "", s->rate[i]);
	fputs("]", out);
}

void report_json(FILE *out, const struct report *r)
{
	fputs("{\"model\": ", out);
	json_string(out, r->model->name);
	fprintf(out, ", \"weight_bytes\": %llu, \"backend\": \"%s\", \"level\": \"%s\", \"threads\": %u,\n",
		(unsigned long long)r->model->weight_bytes, r->backend, r->level, r->n_threads);
	fputs(" \"reads_bytes_per_s\": [\n  ", out);
	json_series(out, r->read_memory);
	fputs("},\n  ", out);
	json_series(out, r->read_weights);
	fputs("}],\n \"tokens_per_s\": [", out);
	for (uint32_t i = 0; i < r->n_work; i++) {
		fputs(i ? ",\n  " : "\n  ", out);
		json_series(out, &r->work[i]);
		if (r->work[i].bytes_per_token)
			fprintf(out, ", \"of_reads\": %.4f", read_share(r, &r->work[i]));
		fputs("}", out);
	}
	fputs("]}\n", out);
}
