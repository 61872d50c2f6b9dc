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

/* A head's channels as they are stored, and back: times the matrix that NUMERICS.md defines, where the type has it. */
static inline void mix(const struct toy_shape *s, double *x)
{
	uint32_t width = s->head_dim & -s->head_dim;
	double y[512];

	if (s->kv_type != KB_KV_Q8)
		return;
	for (uint32_t i = 0; i < s->head_dim; i++) {
		y[i] = 0;
		for (uint32_t j = i / width * width; j < (i / width + 1) * width; j++)
			y[i] += (__builtin_parity(i & j & (width - 1)) ? -x[j] : x[j]) / sqrt(width);
	}
	memcpy(x, y, s->head_dim * sizeof(*x));
}

static inline double softcapped(double x, double cap)
{
	return cap > 0 ? cap * tanh(x / cap) : x;
}

/* Element c of a token's key or value, read by the layout that kv.h describes; n: tokens of the block. */
static inline double stored_element(enum kb_kv_type type, const uint8_t *head, uint32_t n, uint32_t dim, uint32_t token,
				    bool value, uint32_t c)
{
	uint32_t groups = (dim + 31) / 32, group = c / 32, size = group == dim / 32 ? dim % 32 : 32, in = c % 32, q;
	uint32_t at = value ? token * dim + c : token / 16 * 16 * dim + c * 16 + token % 16;
	const uint8_t *scales;

	switch (type) {
	case KB_KV_F16:
		return read_f16(head + 2 * (n * dim * value + at));
	case KB_KV_Q8:
		head += n * (dim + 2 * groups) * value;
		return (int8_t)head[at] * read_f16(head + n * dim + 2 * (group * n + token));
	case KB_KV_Q4:
		break;
	}
	if (!value) {
		scales = head + n * dim / 2 + 2 * c;
		/* A word of four bytes has eight channels. */
		q = head[token / 16 * 8 * dim + c / 8 * 64 + token % 16 * 4 + c % 8 / 2] >> c % 2 * 4 & 15;
		return q * read_f16(scales) + read_f16(scales + 2 * dim);
	}
	head += n * dim / 2 + 4 * dim;
	scales = head + n * dim / 2 + 2 * (group * n + token);
	q = head[token * dim / 2 + group * 16 + in % (size / 2)] >> (in < size / 2 ? 0 : 4) & 15;
	return q * read_f16(scales) + read_f16(scales + 2 * n * groups);
}

/* What the backend stored for one position; open: in its form as part of an open block, which is the sequence's. */
static inline void load_stored(const struct toy *toy, const struct toy_seq *seq, uint32_t layer, uint32_t pos,
			       bool value, bool open, double *to)
{
	const struct kb_geometry *g = &toy->geometry;
	const uint8_t *block = toy->pool_memory + kb_block_offset(g, seq->blocks[pos / g->block_tokens]);
	enum kb_kv_type type = open ? KB_KV_F16 : g->kv_type;
	uint64_t bytes = open ? 4 * (uint64_t)g->block_tokens * g->head_dim : kb_head_bytes(g);

	for (uint32_t h = 0; h < g->n_kv_heads; h++) {
		const uint8_t *head = (open ? seq->open->data : block) + bytes * (layer * g->n_kv_heads + h);

		for (uint32_t d = 0; d < g->head_dim; d++)
			*to++ = stored_element(type, head, g->block_tokens, g->head_dim, pos % g->block_tokens, value,
					       d);
	}
}

#endif
