/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of every type of weights, on one thread: a matrix beyond every cache
 * times one row, which reading should bound, and times eight, which arithmetic does.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ipc/base/cleanup.h"
#include "kernels/cpu/cpu.h"
#include "tests/bench/bench.h"

#define ROWS 16384u
#define COLS 4096u
#define MANY 8u		/* activation rows */
#define OUTPUTS 1024u	/* weight rows at a time, so that outputs stay in the cache */

static const struct {
	enum kb_type type;
	const char *name;
} types[] = {
	{ KB_F32, "F32" }, { KB_F16, "F16" }, { KB_BF16, "BF16" }, { KB_Q4_0, "Q4_0" }, { KB_Q4_1, "Q4_1" },
	{ KB_Q5_0, "Q5_0" }, { KB_Q5_1, "Q5_1" }, { KB_Q8_0, "Q8_0" }, { KB_Q2_K, "Q2_K" }, { KB_Q3_K, "Q3_K" },
	{ KB_Q4_K, "Q4_K" }, { KB_Q5_K, "Q5_K" }, { KB_Q6_K, "Q6_K" }, { KB_IQ4_NL, "IQ4_NL" },
	{ KB_IQ4_XS, "IQ4_XS" },
};
#define N_TYPES (sizeof(types) / sizeof(types[0]))

struct products {
	struct kb_backend *be;
	const struct kc_level *level;
	struct kb_tensor *w[N_TYPES];
	struct series one[N_TYPES], many[N_TYPES];	/* multiplications per second */
	struct kc_rows in;
	float *out;					/* [MANY][OUTPUTS] */
};

static int rows_init(struct products *p)
{
	struct kc_rows *r = &p->in;
	size_t n = (size_t)MANY * COLS;

	r->cols = COLS;
	r->f = calloc(n, sizeof(*r->f));
	r->q = calloc(n, sizeof(*r->q));
	r->d = calloc(n / KC_HALF, sizeof(*r->d));
	r->h = calloc(n / KC_HALF, sizeof(*r->h));
	r->s = calloc(n / KC_BLOCK, sizeof(*r->s));
	r->q16 = calloc(n, sizeof(*r->q16));
	r->d16 = calloc(n / KC_BLOCK, sizeof(*r->d16));
	p->out = calloc((size_t)MANY * OUTPUTS, sizeof(*p->out));
	if (!r->f || !r->q || !r->d || !r->h || !r->s || !r->q16 || !r->d16 || !p->out)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		r->f[i] = (float)(i * 7919 % 1009) / 504.0f - 1.0f;
	p->level->quantize(r->f, (uint32_t)n, r->q, r->d, r->h, r->s);
	p->level->quantize16(r->f, (uint32_t)n, r->q16, r->d16);
	return 0;
}

/* Any bytes will do: no instruction here takes longer for some numbers than for others. */
static int matrix_init(struct products *p, size_t i)
{
	struct kb_tensor_desc desc = { types[i].type, KB_USE_MATRIX, ROWS, COLS };
	int r = p->be->ops->tensor_new(p->be, &desc, &p->w[i]);

	for (uint64_t k = 0; !r && k < p->w[i]->bytes; k++)
		p->w[i]->data[k] = (uint8_t)(k * 2654435761u >> 13);
	return r;
}

static void products_deinit(struct products *p)
{
	for (size_t i = 0; i < N_TYPES; i++) {
		if (p->w[i])
			p->be->ops->tensor_free(p->be, p->w[i]);
	}
	free(p->in.f);
	free(p->in.q);
	free(p->in.d);
	free(p->in.h);
	free(p->in.s);
	free(p->in.q16);
	free(p->in.d16);
	free(p->out);
	if (p->be)
		p->be->ops->close(p->be);
}

/* Of this thread, so that others on the machine disturb less. */
static uint64_t cpu_time_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void run_once(struct products *p, size_t i, uint32_t n_rows, struct series *s)
{
	uint64_t start = cpu_time_ns();

	for (uint32_t row = 0; row < ROWS; row += OUTPUTS)
		p->level->product(p->w[i], row / KC_LANES, OUTPUTS / KC_LANES, &p->in, 0, n_rows, p->out, OUTPUTS);
	series_add(s, (double)n_rows * ROWS * COLS * 1e9 / (double)(cpu_time_ns() - start));
}

int products_run(FILE *out, const char *level, uint32_t reps)
{
	_cleanup_(products_deinit) struct products p = { 0 };
	struct kb_cpu_options options = { 1, level };
	int r = kb_cpu_open(&options, &p.be);

	if (r)
		return r;
	p.level = ((struct kc_backend *)p.be)->level;
	r = rows_init(&p);
	for (size_t i = 0; i < N_TYPES && !r; i++)
		r = matrix_init(&p, i);
	if (r)
		return r;
	for (uint32_t n = 0; n < reps; n++) {
		for (size_t i = 0; i < N_TYPES; i++) {
			run_once(&p, i, 1, &p.one[i]);
			run_once(&p, i, MANY, &p.many[i]);
		}
	}
	fprintf(out, "products of %u x %u, level %s, one thread, CPU time: median of %u\n", ROWS, COLS, p.level->name,
		reps);
	fprintf(out, "%-8s %10s %12s %12s %12s\n", "type", "bits", "GB/s, 1 row", "GMAC/s", "GMAC/s, 8");
	for (size_t i = 0; i < N_TYPES; i++) {
		double bytes = (double)p.w[i]->bytes / ROWS / COLS, one = series_median(&p.one[i]);

		fprintf(out, "%-8s %10.2f %12.1f %12.1f %12.1f\n", types[i].name, bytes * 8, one * bytes / 1e9,
			one / 1e9, series_median(&p.many[i]) / 1e9);
	}
	return 0;
}
