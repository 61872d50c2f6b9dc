/* SPDX-License-Identifier: Apache-2.0 */
/*
 * level-check.h - every kernel of one CPU level against plain C: equal bits.
 */
#ifndef KERNELS_LEVEL_CHECK_H
#define KERNELS_LEVEL_CHECK_H

#include <math.h>

#include "fixture.h"
#include "kernels/cpu/cpu.h"

/* Floats of many magnitudes, with zeros, subnormals, infinities and NaNs among them if `odd`. */
static inline float *wild_floats(uint64_t *rng, size_t n, bool odd)
{
	static const uint32_t special[] = { 0, 0x80000000, 1, 0x807fffff, 0x7f7fffff, 0xff7fffff, 0x7f800000,
					    0xff800000, 0x7fc00000, 0xffc00001, 0x477fefff, 0x477ff000, 0x33000000,
					    0x33000001, 0x387fe000, 0x42b00000, 0xc2ae0000 };
	float *x = must(malloc(n * sizeof(*x)));

	for (size_t i = 0; i < n; i++) {
		uint64_t r = rng_next(rng);

		x[i] = rng_float(rng, 1) * ldexpf(1, (int)(r % 24) - 16);
		if (odd && r >> 60 == 0)
			x[i] = kc_bits_float(special[(r >> 32) % (sizeof(special) / sizeof(special[0]))]);
	}
	return x;
}

static inline float *copy_floats(const float *x, size_t n)
{
	return memcpy(must(malloc(n * sizeof(*x))), x, n * sizeof(*x));
}

/* --- rows --------------------------------------------------------------------- */

struct quantized {
	int8_t q[2048];
	int16_t q16[2048];
	float d[128], h[128], s[64], d16[64];
};

static inline void check_quantize_row(const struct kc_level *level, const float *x, uint32_t n)
{
	static struct quantized a, b;

	memset(&a, 1, sizeof(a));
	memset(&b, 1, sizeof(b));
	kc_level_c.quantize(x, n, a.q, a.d, a.h, a.s);
	level->quantize(x, n, b.q, b.d, b.h, b.s);
	kc_level_c.quantize16(x, n, a.q16, a.d16);
	level->quantize16(x, n, b.q16, b.d16);
	assert_memory_equal(a.q, b.q, sizeof(a.q));
	assert_memory_equal(a.q16, b.q16, sizeof(a.q16));
	assert_same_floats(a.d16, b.d16, 64, "quantize16 d");
	assert_same_floats(a.d, b.d, 128, "quantize d");
	assert_same_floats(a.h, b.h, 128, "quantize h");
	assert_same_floats(a.s, b.s, 64, "quantize s");
}

static inline void check_quantize(const struct kc_level *level)
{
	uint64_t rng = 1;

	for (int odd = 0; odd < 2; odd++) {
		for (int i = 0; i < 200; i++) {
			uint32_t n = 32 * (1 + (uint32_t)i % 64);
			float *x = wild_floats(&rng, n, odd);

			check_quantize_row(level, x, n);
			free(x);
		}
	}
	/* Halfway cases, at both signs, and blocks that are zero or too small to have a scale. */
	for (int shift = -149; shift < 128; shift++) {
		float x[32];

		for (int k = 0; k < 32; k++)
			x[k] = ldexpf((float)(k % 2 ? k : -k) + 0.5f, shift - 7);
		x[7] = ldexpf(127, shift - 7);
		check_quantize_row(level, x, 32);
	}
	check_quantize_row(level, (float[32]){ 0 }, 32);
}

static inline void check_rmsnorm(const struct kc_level *level)
{
	static const uint32_t sizes[] = { 16, 32, 48, 64, 96, 128, 576, 1536, 2048 };
	uint64_t rng = 2;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint32_t n = sizes[i];
		float *x = wild_floats(&rng, n, false), *w = wild_floats(&rng, n, false), a[2048], b[2048];

		kc_level_c.rmsnorm(a, x, w, n, 1e-5f);
		level->rmsnorm(b, x, w, n, 1e-5f);
		assert_same_floats(a, b, n, "rmsnorm");
		level->rmsnorm(x, x, w, n, 1e-5f);
		assert_same_floats(a, x, n, "rmsnorm in place");
		free(x);
		free(w);
	}
}

static inline void check_hadamard(const struct kc_level *level)
{
	uint64_t rng = 4;

	for (uint32_t n = 16; n <= KC_MAX_HEAD_DIM; n += 16) {
		float *a = wild_floats(&rng, n + 1, false), *b = copy_floats(a, n + 1);

		kc_level_c.hadamard(a, n);
		level->hadamard(b, n);
		assert_same_floats(a, b, n + 1, "hadamard");
		free(a);
		free(b);
	}
}

static inline void check_rotate(const struct kc_level *level)
{
	static const enum kb_rope_style styles[] = { KB_ROPE_INTERLEAVED, KB_ROPE_HALVES };
	uint64_t rng = 3;

	for (int i = 0; i < 2; i++) {
		for (uint32_t n = 2; n <= 130; n += 2) {
			float *a = wild_floats(&rng, n + 1, false), *b = copy_floats(a, n + 1);
			float *angles = random_floats(&rng, n, 1);

			kc_level_c.rotate(a, angles, n, styles[i]);
			level->rotate(b, angles, n, styles[i]);
			assert_same_floats(a, b, n + 1, "rotate");
			free(a);
			free(b);
			free(angles);
		}
	}
}

static inline void check_activations(const struct kc_level *level)
{
	enum { N = 1 << 14 };
	uint64_t rng = 4;
	float *x = wild_floats(&rng, N, true), *up = wild_floats(&rng, N, true);

	for (int i = 0; i < N; i += 3)
		x[i] *= 1000;
	for (int act = KB_SILU; act <= KB_GELU_TANH; act++) {
		float *a = copy_floats(x, N), *b = copy_floats(x, N);

		kc_level_c.gated(a, up, N, (enum kb_activation)act);
		level->gated(b, up, N, (enum kb_activation)act);
		assert_same_floats(a, b, N, act == KB_SILU ? "silu" : "gelu");
		free(a);
		free(b);
	}
	kc_level_c.softcap(up, N, 30);
	free(x);
	x = wild_floats(&rng, N, true);
	memcpy(up, x, N * sizeof(*x));
	kc_level_c.softcap(up, N, 30);
	level->softcap(x, N, 30);
	assert_same_floats(up, x, N, "softcap");
	free(x);
	free(up);
}

static inline void check_store_f16(const struct kc_level *level)
{
	enum { N = 1 << 15 };
	uint64_t rng = 5;
	float *x = wild_floats(&rng, N, true);
	uint16_t *a = must(malloc(N * 2)), *b = must(malloc(N * 2));

	for (int i = 0; i < N; i += 2)
		x[i] = kc_bits_float((uint32_t)rng_next(&rng));
	kc_level_c.store_f16(a, x, N);
	level->store_f16(b, x, N);
	assert_memory_equal(a, b, N * 2);
	free(x);
	free(a);
	free(b);
}

/* --- products ------------------------------------------------------------------- */

static inline void rows_init(struct kc_rows *r, const float *x, uint32_t n_rows, uint32_t cols)
{
	size_t n = (size_t)n_rows * cols;

	r->cols = cols;
	r->f = copy_floats(x, n);
	r->q = must(malloc(n));
	r->d = must(malloc(n / 16 * sizeof(float)));
	r->h = must(malloc(n / 16 * sizeof(float)));
	r->s = must(malloc(n / 32 * sizeof(float)));
	r->q16 = must(malloc(n * sizeof(*r->q16)));
	r->d16 = must(malloc(n / 32 * sizeof(float)));
	kc_level_c.quantize(x, (uint32_t)n, r->q, r->d, r->h, r->s);
	kc_level_c.quantize16(x, (uint32_t)n, r->q16, r->d16);
}

static inline void rows_deinit(struct kc_rows *r)
{
	free(r->f);
	free(r->q);
	free(r->d);
	free(r->h);
	free(r->s);
	free(r->q16);
	free(r->d16);
}

/* The product of all groups, with guards around the output. */
static inline void check_product(const struct kc_level *level, const struct kb_tensor *w, const struct kc_rows *in,
				 uint32_t row0, uint32_t n_rows)
{
	size_t stride = (size_t)w->n_groups * 16 + 3, n = stride * n_rows;
	float *a = must(malloc((n + 1) * sizeof(*a))), *b = must(malloc((n + 1) * sizeof(*b)));
	char what[96];

	for (size_t i = 0; i <= n; i++)
		a[i] = b[i] = -12345;
	kc_level_c.product(w, 0, w->n_groups, in, row0, n_rows, a, stride);
	level->product(w, 0, w->n_groups, in, row0, n_rows, b, stride);
	snprintf(what, sizeof(what), "product, %s, %u x %u, %u rows", test_type(w->type)->name, w->rows,
		 w->cols, n_rows);
	assert_same_floats(a, b, n + 1, what);
	/* A part of the groups gives that part of the output. */
	if (w->n_groups > 1) {
		level->product(w, 1, w->n_groups - 1, in, row0, n_rows, b, stride);
		for (uint32_t i = 0; i < n_rows; i++)
			assert_same_floats(a + i * stride + 16, b + i * stride, (w->n_groups - 1) * 16, what);
	}
	free(a);
	free(b);
}

/* n_rows: 1 .. max_rows */
static inline void check_shape(const struct kc_level *level, struct kb_backend *be, uint64_t *rng,
			       enum kb_type type, uint32_t rows, uint32_t cols, uint32_t max_rows)
{
	struct kb_tensor *w = random_matrix(be, rng, type, rows, cols, 1);
	float *x = wild_floats(rng, (size_t)(max_rows + 1) * cols, false);
	struct kc_rows in;

	rows_init(&in, x, max_rows + 1, cols);
	for (uint32_t n = 1; n <= max_rows; n++)
		check_product(level, w, &in, max_rows + 1 - n, n);
	rows_deinit(&in);
	free(x);
	be->ops->tensor_free(be, w);
}

#define MANY_ROWS 83u

static inline void check_counts(const struct kc_level *level, struct kb_backend *be, uint64_t *rng,
				enum kb_type type, uint32_t cols, const uint32_t *counts, size_t n_counts)
{
	struct kb_tensor *w = random_matrix(be, rng, type, 33, cols, 1);
	float *x = wild_floats(rng, (size_t)(MANY_ROWS + 1) * cols, false);
	struct kc_rows in;

	rows_init(&in, x, MANY_ROWS + 1, cols);
	for (size_t i = 0; i < n_counts; i++)
		check_product(level, w, &in, 1, counts[i]);
	rows_deinit(&in);
	free(x);
	be->ops->tensor_free(be, w);
}

/* More rows than are multiplied together, or share anything. */
static inline void check_many_rows(const struct kc_level *level, struct kb_backend *be, uint64_t *rng,
				   enum kb_type type, uint32_t block)
{
	static const uint32_t counts[] = { MANY_ROWS, 76, 64, 48, 31 };
	/* So many share quants that were taken apart once, and the columns are more than are prepared at a time. */
	static const uint32_t wide[] = { 22 };

	check_counts(level, be, rng, type, 2 * block, counts, sizeof(counts) / sizeof(counts[0]));
	check_counts(level, be, rng, type, block > 32 ? 5 * block : 35 * block, wide, 1);
}

/* Some groups of one matrix side by side, in no order, with guards around the outputs. */
static inline void check_streams(const struct kc_level *level, struct kb_backend *be, uint64_t *rng,
				 enum kb_type type, uint32_t cols)
{
	enum { GROUPS = 19, EACH = 3, SPACE = EACH * 16 + 1 };
	static const uint32_t first[KC_MAX_STREAMS] = { 7, 16, 0, 11 };
	struct kb_tensor *w = random_matrix(be, rng, type, 16 * GROUPS, cols, 1);
	float *x = wild_floats(rng, (size_t)2 * cols, false), want[16 * GROUPS], got[KC_MAX_STREAMS][SPACE];
	struct kc_rows in;

	rows_init(&in, x, 2, cols);
	kc_level_c.product(w, 0, GROUPS, &in, 1, 1, want, 0);
	for (uint32_t n = 1; n <= KC_MAX_STREAMS; n++) {
		struct kc_stream streams[KC_MAX_STREAMS];

		for (uint32_t i = 0; i < n; i++) {
			streams[i] = (struct kc_stream){ w->data + w->group_bytes * first[i], got[i] };
			got[i][SPACE - 1] = -12345;
		}
		level->product_streams(w, streams, n, EACH, &in, 1);
		for (uint32_t i = 0; i < n; i++) {
			assert_same_floats(want + (size_t)16 * first[i], got[i], SPACE - 1, test_type(type)->name);
			assert_true(got[i][SPACE - 1] == -12345);
		}
	}
	rows_deinit(&in);
	free(x);
	be->ops->tensor_free(be, w);
}

static inline void check_products(const struct kc_level *level)
{
	/* Columns are counted in blocks of 32, or of 256 where the type has such. */
	static const uint32_t shapes[][3] = {
		{ 1, 1, 19 }, { 16, 2, 9 }, { 17, 3, 19 }, { 31, 1, 9 }, { 64, 18, 9 }, { 49, 5, 9 }, { 33, 69, 17 },
		{ 297, 1, 2 },
	};
	struct kb_backend *be = open_level("c", 1);
	uint64_t rng = 6;

	for (size_t t = 0; t < N_TEST_TYPES; t++) {
		uint32_t block = test_types[t].weights > 32 ? test_types[t].weights : 32;

		for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
			const uint32_t *s = shapes[i];

			if (block == 256 && s[1] > 5)
				continue;
			check_shape(level, be, &rng, test_types[t].type, s[0], s[1] * block, s[2]);
		}
		check_many_rows(level, be, &rng, test_types[t].type, block);
		if (level->product_streams && kc_type_quantized(test_types[t].type))
			check_streams(level, be, &rng, test_types[t].type, 3 * block);
	}
	be->ops->close(be);
}

#define EXTREMES 16

/* Activations whose quants are all the largest, all the smallest, alternating, and of mixed signs. */
static inline void extreme_rows(struct kc_rows *in, uint32_t cols)
{
	float *x = must(malloc((size_t)EXTREMES * cols * sizeof(*x)));

	for (uint32_t k = 0; k < cols; k++) {
		x[k] = 1;
		x[cols + k] = -1;
		x[2 * cols + k] = k % 2 ? 1 : -1;
		x[3 * cols + k] = k * 7 % 5 > 2 ? 1 : -1;
	}
	for (uint32_t i = 4; i < EXTREMES; i++)
		memcpy(x + (size_t)i * cols, x + (size_t)(i % 4) * cols, cols * sizeof(*x));
	rows_init(in, x, EXTREMES, cols);
	assert_int_equal(in->q[0], 127);
	assert_int_equal(in->q[cols], -127);
	assert_int_equal(in->q16[0], 32767);
	assert_int_equal(in->q16[cols], -32767);
	free(x);
}

/* Every byte of a block at its extremes, which is where narrow accumulators would saturate. */
static inline void check_saturation(const struct kc_level *level)
{
	static const uint8_t bytes[] = { 0xff, 0x00, 0x80, 0x7f, 0x81, 0x0f, 0xf0, 0xaa, 0x55 };
	enum { ROWS = 16, COLS = 512 };
	struct kb_backend *be = open_level("c", 1);
	struct kc_rows in;

	extreme_rows(&in, COLS);
	for (size_t i = FIRST_BLOCK_TYPE; i < N_TEST_TYPES; i++) {
		const struct test_type *t = &test_types[i];
		size_t n = ROWS * row_bytes(t->type, COLS);
		uint8_t *data = must(malloc(n));

		for (size_t j = 0; j < sizeof(bytes); j++) {
			struct kb_tensor *w;

			memset(data, bytes[j], n);
			for (size_t at = 0; at < n; at += t->bytes) {
				put_f16(data + at + t->d, 1);
				if (t->m >= 0)
					put_f16(data + at + t->m, -3);
			}
			w = make_matrix(be, t->type, ROWS, COLS, data);
			check_product(level, w, &in, 0, 4);
			check_product(level, w, &in, 0, EXTREMES);
			check_product(level, w, &in, 0, 1);
			check_product(level, w, &in, 2, 2);
			be->ops->tensor_free(be, w);
		}
		free(data);
	}
	rows_deinit(&in);
	be->ops->close(be);
}

/* --- attention ------------------------------------------------------------------- */

/* A pool with one sequence of n positions; everything else in it is NaN. */
struct kv {
	struct kb_geometry geometry;
	uint8_t *pool;
	uint8_t *open;		/* one head of an F16 block */
	uint32_t *table;
	struct kc_queries queries;
};

static inline void kv_store(const struct kv *kv, uint64_t *rng, uint32_t t)
{
	struct kc_kv tile = kc_kv_at(&kv->queries, t);
	float x[KC_MAX_HEAD_DIM];

	for (int value = 0; value < 2; value++) {
		for (uint32_t d = 0; d < kv->geometry.head_dim; d++)
			x[d] = rng_float(rng, 2) + (float)value;
		kc_kv_store(&kc_level_c, &tile, t % KC_KV_TILE, value, x);
	}
}

/* Q4: every block is open at first, in turn, and sealed but for the last one. */
static inline void kv_fill(struct kv *kv, uint64_t *rng, uint32_t n)
{
	for (uint32_t t = 0; t < n; t++) {
		if (kv->geometry.kv_type == KB_KV_Q4)
			kv->queries.open_pos = t & ~31u;
		kv_store(kv, rng, t);
		if (kv->geometry.kv_type == KB_KV_Q4 && t % 32 == 31 && t + 1 < n)
			kc_kv_seal(kv->pool + kb_block_offset(&kv->geometry, kv->table[t / 32]) +
				   kv->queries.head_offset, kv->open, kv->geometry.head_dim);
	}
}

/* The queries' head is the last one. */
static inline void kv_init(struct kv *kv, uint64_t *rng, enum kb_kv_type type, uint32_t n_kv_heads, uint32_t head_dim,
			   uint32_t block_tokens, uint32_t n)
{
	uint32_t n_blocks = (n + block_tokens - 1) / block_tokens;
	struct kb_geometry *g = &kv->geometry;

	*g = (struct kb_geometry){ .n_layers = 2, .n_kv_heads = n_kv_heads, .head_dim = head_dim,
				   .block_tokens = block_tokens, .kv_type = type, .blocks_per_chunk = 3 };
	g->block_bytes = kb_block_bytes(g);
	g->chunk_bytes = g->block_bytes * 3 + 64;
	kv->pool = must(malloc(g->chunk_bytes * (n_blocks / 3 + 1)));
	memset(kv->pool, 0xff, g->chunk_bytes * (n_blocks / 3 + 1));
	kv->open = must(malloc((size_t)4 * 32 * head_dim));
	memset(kv->open, 0xff, (size_t)4 * 32 * head_dim);
	kv->table = must(malloc(n_blocks * sizeof(*kv->table)));
	for (uint32_t i = 0; i < n_blocks; i++)
		kv->table[i] = n_blocks - 1 - i;
	kv->queries = (struct kc_queries){ .pool = kv->pool, .geometry = g, .block_table = kv->table,
					   .head_offset = kc_head_offset(g, 0, n_kv_heads - 1), .open = kv->open,
					   .open_pos = UINT32_MAX, .head_dim = head_dim };
	kv_fill(kv, rng, n);
}

static inline void kv_deinit(struct kv *kv)
{
	free(kv->pool);
	free(kv->open);
	free(kv->table);
}

struct attention_case {
	uint32_t head_dim, n_heads, block_tokens, length, n_rows, window;
	float softcap;
	enum kb_kv_type type;
	uint32_t n_kv_heads;	/* 0: two */
};

static inline void partial_init(struct kc_partial *p, uint32_t n, uint32_t head_dim)
{
	p->m = must(calloc(n, sizeof(float)));
	p->l = must(calloc(n, sizeof(float)));
	p->o = must(calloc((size_t)n * head_dim, sizeof(float)));
	p->mass = must(calloc((size_t)n * KC_GRANULES, sizeof(float)));
}

static inline void partial_deinit(struct kc_partial *p)
{
	free(p->m);
	free(p->l);
	free(p->o);
	free(p->mass);
}

/* The granules' sums are what l is the sum of; without them all else is the same. */
static inline void check_mass(const struct kc_level *level, const struct kc_queries *queries, uint32_t segment,
			      const struct kc_partial *with, uint32_t n, float *scratch)
{
	struct kc_partial without;

	partial_init(&without, n, queries->head_dim);
	free(without.mass);
	without.mass = NULL;
	level->attend(queries, segment, &without, scratch);
	assert_same_floats(with->m, without.m, n, "m without mass");
	assert_same_floats(with->l, without.l, n, "l without mass");
	for (uint32_t j = 0; j < n; j++) {
		double sum = 0;

		if (with->l[j] == 0)
			continue;
		assert_same_floats(with->o + (size_t)j * queries->head_dim, without.o + (size_t)j * queries->head_dim,
				   queries->head_dim, "o without mass");
		for (uint32_t g = 0; g < KC_GRANULES; g++)
			sum += (double)with->mass[j * KC_GRANULES + g];
		assert_true(fabs(sum - (double)with->l[j]) <= 1e-5 * sum);
	}
	partial_deinit(&without);
}

static inline void check_merge(const struct kc_level *level, const struct kc_partial *sum,
			       const struct kc_partial *part,
			       uint32_t j, uint32_t head_dim)
{
	float m[2] = { sum->m[j], sum->m[j] }, l[2] = { sum->l[j], sum->l[j] };
	float *a = copy_floats(sum->o + (size_t)j * head_dim, head_dim), *b = copy_floats(a, head_dim);

	kc_level_c.merge(&m[0], &l[0], a, part, j, head_dim);
	level->merge(&m[1], &l[1], b, part, j, head_dim);
	assert_same_floats(&m[0], &m[1], 1, "merged m");
	assert_same_floats(&l[0], &l[1], 1, "merged l");
	assert_same_floats(a, b, head_dim, "merged o");
	sum->m[j] = m[0];
	sum->l[j] = l[0];
	memcpy(sum->o + (size_t)j * head_dim, a, head_dim * sizeof(*a));
	free(a);
	free(b);
}

/* The last n_rows positions of a sequence, segment by segment. */
static inline void check_attention_case(const struct kc_level *level, uint64_t *rng, const struct attention_case *c)
{
	uint32_t n = c->n_rows * c->n_heads, n_segments = (c->length - 1) / KC_SEGMENT + 1;
	float *q = random_floats(rng, (size_t)n * c->head_dim, 1);
	float *scratch = must(aligned_alloc(64, kc_attend_scratch(c->head_dim) * sizeof(float)));
	struct kc_partial a, b, sum;
	struct kv kv;
	char what[128];

	kv_init(&kv, rng, c->type, c->n_kv_heads ? c->n_kv_heads : 2, c->head_dim, c->block_tokens, c->length);
	kv.queries.first_pos = c->length - c->n_rows;
	kv.queries.n_rows = c->n_rows;
	kv.queries.n_heads = c->n_heads;
	kv.queries.q = q;
	kv.queries.q_stride = (size_t)c->n_heads * c->head_dim;
	kv.queries.scale = 0.4f;
	kv.queries.softcap = c->softcap;
	kv.queries.window = c->window;
	partial_init(&a, n, c->head_dim);
	partial_init(&b, n, c->head_dim);
	partial_init(&sum, n, c->head_dim);
	for (uint32_t s = 0; s < n_segments; s++) {
		memset(scratch, 0xff, kc_attend_scratch(c->head_dim) * sizeof(float));
		kc_level_c.attend(&kv.queries, s, &a, scratch);
		memset(scratch, 0xff, kc_attend_scratch(c->head_dim) * sizeof(float));
		level->attend(&kv.queries, s, &b, scratch);
		snprintf(what, sizeof(what),
			 "attention: type %d, head_dim %u, %u heads, blocks of %u, %u rows to %u, window %u",
			 (int)c->type, c->head_dim, c->n_heads, c->block_tokens, c->n_rows, c->length, c->window);
		assert_same_floats(a.m, b.m, n, what);
		assert_same_floats(a.l, b.l, n, what);
		for (uint32_t j = 0; j < n; j++) {
			if (a.l[j] == 0)
				continue;
			assert_true(a.l[j] >= 1);
			assert_same_floats(a.o + (size_t)j * c->head_dim, b.o + (size_t)j * c->head_dim, c->head_dim,
					   what);
			assert_same_floats(a.mass + j * KC_GRANULES, b.mass + j * KC_GRANULES, KC_GRANULES, what);
			check_merge(level, &sum, &a, j, c->head_dim);
		}
		check_mass(level, &kv.queries, s, &b, n, scratch);
	}
	for (uint32_t j = 0; j < n; j++)
		assert_true(sum.l[j] >= 1);
	partial_deinit(&a);
	partial_deinit(&b);
	partial_deinit(&sum);
	kv_deinit(&kv);
	free(q);
	free(scratch);
}

/* Rows of Q4 are of one block: those before it that the case would have are left out. */
static inline void check_attention_type(const struct kc_level *level, uint64_t *rng, struct attention_case c,
					enum kb_kv_type type)
{
	c.type = type;
	if (type == KB_KV_Q4) {
		c.block_tokens = 32;
		c.n_rows = c.n_rows < (c.length - 1) % 32 + 1 ? c.n_rows : (c.length - 1) % 32 + 1;
	}
	check_attention_case(level, rng, &c);
}

/* What models have: Gemma's one head of 256 with a window, one KV head for all, heads that are no power of two. */
static inline void check_model_shapes(const struct kc_level *level)
{
	static const struct attention_case cases[] = {
		{ .head_dim = 256, .n_heads = 4, .length = 1, .n_rows = 1 },
		{ .head_dim = 256, .n_heads = 4, .length = 545, .n_rows = 1, .window = 512 },
		{ .head_dim = 256, .n_heads = 4, .length = 530, .n_rows = 16, .window = 512 },
		{ .head_dim = 256, .n_heads = 1, .length = 79, .n_rows = 11, .softcap = 2 },
		{ .head_dim = 80, .n_heads = 4, .length = 77, .n_rows = 1 },
		{ .head_dim = 80, .n_heads = 4, .length = 77, .n_rows = 5, .softcap = 2 },
		{ .head_dim = 96, .n_heads = 4, .length = 95, .n_rows = 1 },
		{ .head_dim = 96, .n_heads = 4, .length = 600, .n_rows = 7, .window = 70 },
		{ .head_dim = 112, .n_heads = 3, .length = 50, .n_rows = 4 },
		{ .head_dim = 128, .n_heads = 4, .length = 530, .n_rows = 1 },
		{ .head_dim = 128, .n_heads = 16, .length = 68, .n_rows = 4 },
		{ .head_dim = 512, .n_heads = 2, .length = 40, .n_rows = 5 },
	};
	uint64_t rng = 9;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct attention_case c = cases[i];

		c.n_kv_heads = 1 + (uint32_t)i % 4 / 3 * 2;
		c.block_tokens = 16u << i % 3;
		for (int type = KB_KV_F16; type <= KB_KV_Q4; type++)
			check_attention_type(level, &rng, c, (enum kb_kv_type)type);
	}
}

static inline void check_attention(const struct kc_level *level)
{
	static const uint32_t head_dims[] = { 16, 48, 64, 128 }, ratios[] = { 1, 2, 3, 4, 8, 5, 7 };
	static const uint32_t blocks[] = { 16, 32, 64 };
	static const uint32_t lengths[] = { 1, 15, 16, 17, 33, 63, 511, 512, 513, 1025 };
	uint64_t rng = 8;
	uint32_t i = 0;

	for (size_t d = 0; d < 4; d++) {
		for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++, i++) {
			struct attention_case c = { head_dims[d], ratios[i % 7], blocks[i % 3], lengths[l], 1, 0, 0,
						    KB_KV_F16 };

			for (int type = KB_KV_F16; type <= KB_KV_Q4; type++)
				check_attention_type(level, &rng, c, (enum kb_kv_type)type);
			c.n_rows = lengths[l] < 7 ? lengths[l] : 7;
			c.softcap = i % 2 ? 2 : 0;
			check_attention_type(level, &rng, c, (enum kb_kv_type)(i % 3));
			c.window = 1 + i * 5 % 40;
			check_attention_type(level, &rng, c, (enum kb_kv_type)((i + 1) % 3));
		}
	}
	/* As many queries as one pass takes, and windows that begin in another segment. */
	for (uint32_t window = 0; window < 1100; window += 260) {
		struct attention_case c = { 64, 4, 16, 1040, 16, window, 0, KB_KV_F16 };

		for (int type = KB_KV_F16; type <= KB_KV_Q4; type++)
			check_attention_type(level, &rng, c, (enum kb_kv_type)type);
	}
	check_model_shapes(level);
}

#endif
