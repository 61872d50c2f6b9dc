/* SPDX-License-Identifier: Apache-2.0 */
/* double.h - a toy's arithmetic in double, as oracle. */
#ifndef KERNELS_DOUBLE_H
#define KERNELS_DOUBLE_H

#include <math.h>

#include "fixture.h"
#include "kernels/cpu/cpu.h"

static inline double f16_value(uint32_t h)
{
	uint32_t exponent = h >> 10 & 31, mantissa = h & 1023;
	double v;

	if (exponent == 31)
		v = mantissa ? NAN : INFINITY;
	else
		v = exponent ? ldexp(1024 + mantissa, (int)exponent - 25) : ldexp(mantissa, -24);
	return h & 0x8000 ? -v : v;
}

static inline double read_f16(const uint8_t *p)
{
	return f16_value((uint32_t)(p[0] | p[1] << 8));
}

static inline void matrix_times(const struct kb_tensor *w, const double *x, double *y)
{
	float *row = must(malloc(w->cols * sizeof(*row)));

	for (uint32_t r = 0; r < w->rows; r++) {
		kc_tensor_row(w, r, row);
		y[r] = 0;
		for (uint32_t k = 0; k < w->cols; k++)
			y[r] += (double)row[k] * x[k];
	}
	free(row);
}

static inline double vector_at(const struct kb_tensor *t, uint32_t i)
{
	return (double)((const float *)(const void *)t->data)[i];
}

static inline void add_bias(const struct kb_tensor *bias, double *y, uint32_t n)
{
	for (uint32_t i = 0; bias && i < n; i++)
		y[i] += vector_at(bias, i);
}

static inline void norm(const struct kb_tensor *w, const double *x, double *y, uint32_t n)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += x[i] * x[i];
	for (uint32_t i = 0; i < n; i++)
		y[i] = x[i] / sqrt(sum / n + (double)1e-5f) * vector_at(w, i);
}

static inline void rotate(const struct toy_shape *s, double *x, uint32_t pos)
{
	uint32_t half = s->head_dim / 2;

	for (uint32_t i = 0; i < half; i++) {
		double angle = pos * (double)(1.0f / (float)(1 + i * i));
		uint32_t i0 = s->rope == KB_ROPE_HALVES ? i : 2 * i;
		uint32_t i1 = s->rope == KB_ROPE_HALVES ? i + half : 2 * i + 1;
		double a = x[i0], b = x[i1];

		x[i0] = a * cos(angle) - b * sin(angle);
		x[i1] = a * sin(angle) + b * cos(angle);
	}
}

static inline double softcapped(double x, double cap)
{
	return cap > 0 ? cap * tanh(x / cap) : x;
}

/* What the backend stored for one position, by the layout that backend.h describes. */
static inline void load_stored(const struct toy *toy, const struct toy_seq *seq, uint32_t layer, uint32_t pos,
			       bool value, double *to)
{
	const struct kb_geometry *g = &toy->geometry;
	uint64_t at = kb_block_offset(g, seq->blocks[pos / g->block_tokens]);

	for (uint32_t h = 0; h < g->n_kv_heads; h++) {
		uint64_t plane = ((uint64_t)layer * g->n_kv_heads + h) * 2 + value;
		uint64_t element = (plane * g->block_tokens + pos % g->block_tokens) * g->head_dim;

		for (uint32_t d = 0; d < g->head_dim; d++)
			*to++ = read_f16(toy->pool_memory + at + 2 * (element + d));
	}
}

#endif
