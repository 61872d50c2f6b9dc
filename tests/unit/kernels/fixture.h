/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fixture.h - random weights, and a small transformer composed of the backend's
 * operations, for the kernel tests.
 */
#ifndef KERNELS_FIXTURE_H
#define KERNELS_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/backend.h"
#include "kernels/cpu/half.h"

/* SplitMix64 (Steele, Lea, Flood 2014). */
static inline uint64_t rng_next(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

/* Uniform in [-scale, scale). */
static inline float rng_float(uint64_t *state, float scale)
{
	return ((float)(rng_next(state) >> 40) * 0x1p-23f - 1.0f) * scale;
}

static inline void *must(void *p)
{
	assert_non_null(p);
	return p;
}

static inline float *random_floats(uint64_t *rng, size_t n, float scale)
{
	float *x = must(malloc(n * sizeof(*x)));

	for (size_t i = 0; i < n; i++)
		x[i] = rng_float(rng, scale);
	return x;
}

/* Equal bits, or both NaN. */
static inline void assert_same_floats(const float *a, const float *b, size_t n, const char *what)
{
	for (size_t i = 0; i < n; i++) {
		if (kc_float_bits(a[i]) == kc_float_bits(b[i]) || (a[i] != a[i] && b[i] != b[i]))
			continue;
		fail_msg("%s: element %zu of %zu is %a, not %a", what, i, n, (double)b[i], (double)a[i]);
	}
}

/*
 * Blocks as GGUF has them, written down apart from the backend's own table: where
 * d and m lie, and the largest factors of theirs in a weight.
 */
struct test_type {
	enum kb_type type;
	const char *name;
	uint32_t weights, bytes;
	int d, m;		/* offsets; -1: none */
	float d_factor, m_factor;
};

static const struct test_type test_types[] = {
	{ KB_F32, "F32", 1, 4, -1, -1, 0, 0 },
	{ KB_F16, "F16", 1, 2, -1, -1, 0, 0 },
	{ KB_BF16, "BF16", 1, 2, -1, -1, 0, 0 },
	{ KB_Q4_0, "Q4_0", 32, 18, 0, -1, 15 + 8, 0 },
	{ KB_Q4_1, "Q4_1", 32, 20, 0, 2, 15, 1 },
	{ KB_Q5_0, "Q5_0", 32, 22, 0, -1, 31 + 16, 0 },
	{ KB_Q5_1, "Q5_1", 32, 24, 0, 2, 31, 1 },
	{ KB_Q8_0, "Q8_0", 32, 34, 0, -1, 128, 0 },
	{ KB_Q2_K, "Q2_K", 256, 84, 80, 82, 15 * 3, 15 },
	{ KB_Q3_K, "Q3_K", 256, 110, 108, -1, 32 * (7 + 4), 0 },
	{ KB_Q4_K, "Q4_K", 256, 144, 0, 2, 63 * 15, 63 },
	{ KB_Q5_K, "Q5_K", 256, 176, 0, 2, 63 * 31, 63 },
	{ KB_Q6_K, "Q6_K", 256, 210, 208, -1, 128 * 32, 0 },
	{ KB_IQ4_NL, "IQ4_NL", 32, 18, 0, -1, 127, 0 },
	{ KB_IQ4_XS, "IQ4_XS", 256, 136, 0, -1, 32 * 127, 0 },
};
#define N_TEST_TYPES (sizeof(test_types) / sizeof(test_types[0]))
#define FIRST_BLOCK_TYPE 3

static inline const struct test_type *test_type(enum kb_type type)
{
	for (size_t i = 0; i < N_TEST_TYPES; i++) {
		if (test_types[i].type == type)
			return &test_types[i];
	}
	fail_msg("type %d", (int)type);
	return NULL;
}

static inline size_t row_bytes(enum kb_type type, uint32_t cols)
{
	const struct test_type *t = test_type(type);

	assert_int_equal(cols % t->weights, 0);
	return (size_t)cols / t->weights * t->bytes;
}

static inline uint8_t *put_f16(uint8_t *p, float f)
{
	uint16_t h = kc_f32_to_f16(f);

	memcpy(p, &h, sizeof(h));
	return p + sizeof(h);
}

/* Rows in GGUF's layout, weights of about the given size. */
static inline uint8_t *random_rows(uint64_t *rng, enum kb_type type, uint32_t rows, uint32_t cols, float scale)
{
	const struct test_type *t = test_type(type);
	size_t n = (size_t)rows * cols;
	uint8_t *data = must(malloc(rows * row_bytes(type, cols))), *p = data;

	if (type == KB_F32 || type == KB_F16 || type == KB_BF16) {
		for (size_t i = 0; i < n; i++) {
			float f = rng_float(rng, scale);
			uint32_t bits = kc_float_bits(f);

			if (type == KB_F32)
				memcpy(p + 4 * i, &f, 4);
			else if (type == KB_F16)
				put_f16(p + 2 * i, f);
			else
				memcpy(p + 2 * i, (uint16_t[]){ (uint16_t)(bits >> 16) }, 2);
		}
		return data;
	}
	for (size_t b = 0; b < n / t->weights; b++, p += t->bytes) {
		float d = rng_float(rng, scale) / t->d_factor;

		for (uint32_t i = 0; i < t->bytes; i++)
			p[i] = (uint8_t)rng_next(rng);
		put_f16(p + t->d, d);
		/* Weights of both signs. */
		if (t->m >= 0)
			put_f16(p + t->m, (t->weights == 32 ? -0.5f : 0.5f) * d * t->d_factor / t->m_factor);
	}
	return data;
}

static inline struct kb_tensor *make_matrix(struct kb_backend *be, enum kb_type type, uint32_t rows, uint32_t cols,
					    const void *data)
{
	struct kb_tensor_desc desc = { type, KB_USE_MATRIX, rows, cols };
	struct kb_tensor *t = NULL;

	assert_int_equal(be->ops->tensor_new(be, &desc, &t), 0);
	assert_int_equal(be->ops->tensor_fill(be, t, 0, rows, data), 0);
	return t;
}

static inline struct kb_tensor *random_matrix(struct kb_backend *be, uint64_t *rng, enum kb_type type, uint32_t rows,
					      uint32_t cols, float scale)
{
	uint8_t *data = random_rows(rng, type, rows, cols, scale);
	struct kb_tensor *t = make_matrix(be, type, rows, cols, data);

	free(data);
	return t;
}

/* 1 +- spread */
static inline struct kb_tensor *random_vector(struct kb_backend *be, uint64_t *rng, uint32_t n, float middle,
					      float spread)
{
	struct kb_tensor_desc desc = { KB_F32, KB_USE_VECTOR, 1, n };
	float *data = random_floats(rng, n, spread);
	struct kb_tensor *t = NULL;

	for (uint32_t i = 0; i < n; i++)
		data[i] += middle;
	assert_int_equal(be->ops->tensor_new(be, &desc, &t), 0);
	assert_int_equal(be->ops->tensor_fill(be, t, 0, 1, data), 0);
	free(data);
	return t;
}

static inline struct kb_backend *open_level(const char *level, uint32_t n_threads)
{
	struct kb_cpu_options options = { n_threads, level };
	struct kb_backend *be = NULL;

	assert_int_equal(kb_cpu_open(&options, &be), 0);
	return be;
}

/* --- a small transformer ---------------------------------------------------- */

struct toy_shape {
	uint32_t n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_vocab, max_positions;
	enum kb_type type, head_type;
	enum kb_rope_style rope;
	enum kb_activation activation;
	uint32_t window;	/* of odd layers */
	bool extras;		/* biases, head norms, post-norms, soft caps */
	enum kb_kv_type kv_type;/* Q4: blocks have 32 tokens, whatever is asked for */
};

struct toy_layer {
	struct kb_attn_in in;
	struct kb_attention attention;
	struct kb_attn_out out;
	struct kb_ffn ffn;
};

#define TOY_MAX_LAYERS 4
#define TOY_MAX_TENSORS 128

struct toy {
	struct kb_backend *be;
	struct toy_shape shape;
	struct kb_geometry geometry;
	struct kb_tensor *tensors[TOY_MAX_TENSORS];
	size_t n_tensors;
	struct kb_tensor *embedding;
	struct kb_rope *rope;
	struct toy_layer layers[TOY_MAX_LAYERS];
	struct kb_logits logits;
	int pool_fd;
	uint64_t pool_bytes;
	uint8_t *pool_memory;	/* our own view */
	struct kb_pool *pool;
	struct kb_workspace *ws;
	uint32_t n_blocks;	/* in the pool */
};

static inline struct kb_tensor *toy_keep(struct toy *toy, struct kb_tensor *t)
{
	assert_true(toy->n_tensors < TOY_MAX_TENSORS);
	return toy->tensors[toy->n_tensors++] = t;
}

static inline void toy_layer_init(struct toy *toy, uint64_t *rng, uint32_t i)
{
	const struct toy_shape *s = &toy->shape;
	struct kb_backend *be = toy->be;
	struct toy_layer *l = &toy->layers[i];
	uint32_t q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim;

#define MATRIX(rows, cols, scale) toy_keep(toy, random_matrix(be, rng, s->type, rows, cols, scale))
#define VECTOR(n, middle, spread) toy_keep(toy, random_vector(be, rng, n, middle, spread))
	l->in = (struct kb_attn_in){ .norm = VECTOR(s->n_embd, 1, 0.5f), .wq = MATRIX(q, s->n_embd, 0.4f),
				     .wk = MATRIX(kv, s->n_embd, 0.4f), .wv = MATRIX(kv, s->n_embd, 0.2f),
				     .rope = toy->rope, .norm_eps = 1e-5f };
	l->attention = (struct kb_attention){ .scale = 0.3f, .window = i % 2 ? s->window : 0 };
	l->out = (struct kb_attn_out){ .wo = MATRIX(s->n_embd, q, 0.3f), .norm_eps = 1e-5f };
	l->ffn = (struct kb_ffn){ .norm = VECTOR(s->n_embd, 1, 0.5f), .gate = MATRIX(s->n_ff, s->n_embd, 0.3f),
				  .up = MATRIX(s->n_ff, s->n_embd, 0.3f), .down = MATRIX(s->n_embd, s->n_ff, 0.3f),
				  .activation = s->activation, .norm_eps = 1e-5f };
	if (s->extras) {
		l->in.bq = VECTOR(q, 0, 0.3f);
		l->in.bk = VECTOR(kv, 0, 0.3f);
		l->in.bv = VECTOR(kv, 0, 0.3f);
		l->in.q_norm = VECTOR(s->head_dim, 1, 0.5f);
		l->in.k_norm = VECTOR(s->head_dim, 1, 0.5f);
		l->attention.softcap = 5;
		l->out.bo = VECTOR(s->n_embd, 0, 0.3f);
		l->out.post_norm = VECTOR(s->n_embd, 1, 0.5f);
		l->ffn.post_norm = VECTOR(s->n_embd, 1, 0.5f);
	}
}

static inline void toy_pool_init(struct toy *toy, uint32_t block_tokens, uint32_t n_blocks)
{
	const struct toy_shape *s = &toy->shape;
	struct kb_geometry *g = &toy->geometry;
	uint32_t n_chunks;

	*g = (struct kb_geometry){ .n_layers = s->n_layers, .n_kv_heads = s->n_kv_heads, .head_dim = s->head_dim,
				   .block_tokens = block_tokens, .kv_type = s->kv_type, .chunk_bytes = 2 << 20 };
	if (s->kv_type == KB_KV_Q4)
		g->block_tokens = KB_Q4_BLOCK_TOKENS;
	g->block_bytes = kb_block_bytes(g);
	assert_true(g->block_bytes > 0 && g->block_bytes <= g->chunk_bytes);
	g->blocks_per_chunk = (uint32_t)(g->chunk_bytes / g->block_bytes);
	n_chunks = (n_blocks + g->blocks_per_chunk - 1) / g->blocks_per_chunk;
	toy->n_blocks = n_chunks * g->blocks_per_chunk;
	toy->pool_bytes = n_chunks * g->chunk_bytes;
	toy->pool_fd = memfd_create("test-pool", MFD_CLOEXEC);
	assert_true(toy->pool_fd >= 0);
	assert_int_equal(ftruncate(toy->pool_fd, (off_t)toy->pool_bytes), 0);
	toy->pool_memory = mmap(NULL, toy->pool_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, toy->pool_fd, 0);
	assert_ptr_not_equal(toy->pool_memory, MAP_FAILED);
	/* Every place that nobody wrote holds a NaN: reading one would show. */
	memset(toy->pool_memory, 0xff, toy->pool_bytes);
	assert_int_equal(toy->be->ops->pool_import(toy->be, toy->pool_fd, toy->pool_bytes, &toy->pool), 0);
}

static inline void toy_pool_deinit(struct toy *toy)
{
	toy->be->ops->pool_free(toy->be, toy->pool);
	munmap(toy->pool_memory, toy->pool_bytes);
	close(toy->pool_fd);
}

/* The same shape and seed give the same model at every level. */
static inline void toy_init(struct toy *toy, const char *level, uint32_t n_threads, const struct toy_shape *s,
			    uint32_t block_tokens, uint32_t n_blocks, uint32_t max_rows)
{
	struct kb_workspace_desc desc = {
		.max_rows = max_rows, .max_logits = max_rows, .n_embd = s->n_embd, .n_heads = s->n_heads,
		.n_kv_heads = s->n_kv_heads, .head_dim = s->head_dim, .n_ff = s->n_ff, .n_vocab = s->n_vocab,
		.max_positions = s->max_positions,
	};
	float inv_freq[256];
	struct kb_rope_desc rope = { s->rope, s->head_dim, s->max_positions, 1, inv_freq };
	uint64_t rng = 7;

	memset(toy, 0, sizeof(*toy));
	toy->be = open_level(level, n_threads);
	toy->shape = *s;
	for (uint32_t i = 0; i < s->head_dim / 2; i++)
		inv_freq[i] = 1.0f / (float)(1 + i * i);
	assert_int_equal(toy->be->ops->rope_new(toy->be, &rope, &toy->rope), 0);
	toy->embedding = toy_keep(toy, random_matrix(toy->be, &rng, s->head_type, s->n_vocab, s->n_embd, 1));
	for (uint32_t i = 0; i < s->n_layers; i++)
		toy_layer_init(toy, &rng, i);
	toy->logits = (struct kb_logits){ .norm = toy_keep(toy, random_vector(toy->be, &rng, s->n_embd, 1, 0.5f)),
					  .head = toy->embedding, .norm_eps = 1e-5f, .softcap = s->extras ? 3 : 0 };
	toy_pool_init(toy, block_tokens, n_blocks);
	assert_int_equal(toy->be->ops->workspace_new(toy->be, &desc, &toy->ws), 0);
}

static inline void toy_deinit(struct toy *toy)
{
	const struct kb_ops *ops = toy->be->ops;

	ops->workspace_free(toy->be, toy->ws);
	toy_pool_deinit(toy);
	ops->rope_free(toy->be, toy->rope);
	for (size_t i = 0; i < toy->n_tensors; i++)
		ops->tensor_free(toy->be, toy->tensors[i]);
	ops->close(toy->be);
}

/* One step over a batch; the logits are step_logits(). */
static inline const float *toy_step(struct toy *toy, const struct kb_batch *batch)
{
	const struct kb_ops *ops = toy->be->ops;
	struct kb_workspace *ws = toy->ws;

	assert_int_equal(ops->step_begin(ws, batch), 0);
	assert_int_equal(ops->embed(ws, toy->embedding, 1.5f), 0);
	for (uint32_t i = 0; i < toy->shape.n_layers; i++) {
		assert_int_equal(ops->attn_in(ws, i, &toy->layers[i].in), 0);
		assert_int_equal(ops->attention(ws, i, &toy->layers[i].attention), 0);
		assert_int_equal(ops->attn_out(ws, &toy->layers[i].out), 0);
		assert_int_equal(ops->ffn(ws, &toy->layers[i].ffn), 0);
	}
	assert_int_equal(ops->logits(ws, &toy->logits), 0);
	assert_int_equal(ops->hidden(ws, &(struct kb_hidden){ toy->logits.norm, toy->logits.norm_eps }), 0);
	assert_int_equal(ops->step_submit(ws), 0);
	assert_int_equal(ops->step_wait(ws), 0);
	return ops->step_logits(ws);
}

/* A sequence of a toy: its tokens, its blocks, and the logits of every position so far. */
struct toy_seq {
	uint32_t n_tokens, n_done;
	int32_t *tokens;
	uint32_t *blocks;
	float *logits;		/* [n_tokens][n_vocab] */
	float *hidden;		/* [n_tokens][n_embd], zeros where toy_wants_hidden() says no */
	struct kb_open *open;	/* where the type has such */
};

/* Not all: rows are picked. */
static inline bool toy_wants_hidden(uint32_t position)
{
	return position % 5 != 1 && position % 7 != 3;
}

/* block0, block_step: which blocks of the pool it uses. */
static inline void toy_seq_init(struct toy_seq *s, const struct toy *toy, uint64_t seed, uint32_t n_tokens,
				uint32_t block0, uint32_t block_step)
{
	uint32_t n_blocks = (n_tokens - 1) / toy->geometry.block_tokens + 1;

	s->n_tokens = n_tokens;
	s->n_done = 0;
	s->open = NULL;
	if (kb_open_bytes(&toy->geometry))
		assert_int_equal(toy->be->ops->open_new(toy->be, &toy->geometry, &s->open), 0);
	s->tokens = must(malloc(n_tokens * sizeof(*s->tokens)));
	s->blocks = must(malloc(n_blocks * sizeof(*s->blocks)));
	s->logits = must(calloc((size_t)n_tokens * toy->shape.n_vocab, sizeof(float)));
	s->hidden = must(calloc((size_t)n_tokens * toy->shape.n_embd, sizeof(float)));
	for (uint32_t i = 0; i < n_tokens; i++)
		s->tokens[i] = (int32_t)(rng_next(&seed) % toy->shape.n_vocab);
	for (uint32_t i = 0; i < n_blocks; i++) {
		/* Spread and not ascending. */
		s->blocks[i] = (block0 + (n_blocks - 1 - i) * block_step) % toy->n_blocks;
	}
}

static inline void toy_seq_deinit(struct toy_seq *s, const struct toy *toy)
{
	toy->be->ops->open_free(toy->be, s->open);
	free(s->tokens);
	free(s->blocks);
	free(s->logits);
	free(s->hidden);
}

/* Advances n sequences by up to rows[i] tokens each in one step, keeping all logits, and hidden states. */
static inline void toy_advance(struct toy *toy, struct toy_seq *const *seqs, const uint32_t *rows, uint32_t n)
{
	int32_t tokens[2048];
	uint32_t logit_rows[2048], hidden_rows[2048], n_vocab = toy->shape.n_vocab, n_embd = toy->shape.n_embd;
	struct kb_seq parts[32];
	struct kb_batch batch = { .tokens = tokens, .seqs = parts, .logit_rows = logit_rows, .pool = toy->pool,
				  .geometry = &toy->geometry, .hidden_rows = hidden_rows };
	const float *logits, *hidden;

	for (uint32_t i = 0; i < n; i++) {
		struct toy_seq *s = seqs[i];
		uint32_t take = s->n_tokens - s->n_done < rows[i] ? s->n_tokens - s->n_done : rows[i];

		if (!take)
			continue;
		parts[batch.n_seqs++] = (struct kb_seq){
			batch.n_rows, take, s->n_done, (s->n_tokens - 1) / toy->geometry.block_tokens + 1, s->blocks,
			.open = s->open };
		memcpy(tokens + batch.n_rows, s->tokens + s->n_done, take * sizeof(*tokens));
		for (uint32_t j = 0; j < take; j++) {
			logit_rows[batch.n_rows + j] = batch.n_rows + j;
			if (toy_wants_hidden(s->n_done + j))
				hidden_rows[batch.n_hidden++] = batch.n_rows + j;
		}
		batch.n_rows += take;
	}
	batch.n_logits = batch.n_rows;
	if (!batch.n_rows)
		return;
	logits = toy_step(toy, &batch);
	hidden = toy->be->ops->step_hidden(toy->ws);
	for (uint32_t i = 0; i < n; i++) {
		struct toy_seq *s = seqs[i];
		uint32_t take = s->n_tokens - s->n_done < rows[i] ? s->n_tokens - s->n_done : rows[i];

		memcpy(s->logits + (size_t)s->n_done * n_vocab, logits, sizeof(float) * take * n_vocab);
		logits += (size_t)take * n_vocab;
		for (uint32_t j = s->n_done; j < s->n_done + take; j++) {
			if (!toy_wants_hidden(j))
				continue;
			memcpy(s->hidden + (size_t)j * n_embd, hidden, sizeof(float) * n_embd);
			hidden += n_embd;
		}
		s->n_done += take;
	}
}

/* Runs one sequence alone, in pieces. */
static inline void toy_run(struct toy *toy, struct toy_seq *s, uint32_t piece)
{
	while (s->n_done < s->n_tokens)
		toy_advance(toy, &s, &piece, 1);
}

#endif
