/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"

void series_add(struct series *s, double value)
{
	if (s->n < SERIES_MAX)
		s->rate[s->n++] = value;
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

double percentile(double *values, uint32_t n, double share)
{
	double at = share * (n ? n - 1 : 0);
	uint32_t low = (uint32_t)at;

	if (!n)
		return 0;
	qsort(values, n, sizeof(*values), by_value);
	if (low + 1 >= n)
		return values[n - 1];
	return values[low] + (at - low) * (values[low + 1] - values[low]);
}
