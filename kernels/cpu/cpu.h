/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu.h - the inside of the CPU backend: its objects and the table of kernels
 * that each CPU level provides.
 *
 * Every level gives the same bits (NUMERICS.md); "c" is the oracle of the rest.
 */
#ifndef KC_CPU_H
#define KC_CPU_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "kv.h"
#include "layout.h"
#include "threads.h"

#define KC_SEGMENT 512u		/* positions of one attention segment */
#define KC_GRANULE 16u		/* positions whose weights are added for the attention mass: in one block */
#define KC_GRANULES (KC_SEGMENT / KC_GRANULE)
#define KC_MAX_HEAD_DIM 512u
#define KC_MAX_QUERIES 64u	/* queries that share one pass over K and V */
#define KC_TILE_ROWS 64u	/* most batch rows of one product task */
#define KC_TILE_FLOATS 32768u	/* most outputs of one product task */
#define KC_MAX_STREAMS 4u	/* parts of matrices that one product walks side by side */

#define KC_MIN(a, b) ((a) < (b) ? (a) : (b))
#define KC_MAX(a, b) ((a) > (b) ? (a) : (b))

struct kc_arena;
struct kc_place;
struct kc_level;

struct kc_backend {
	struct kb_backend base;
	const struct kc_level *level;
	struct kc_threads *threads;
	struct kc_arena *arena;
};

/*
 * Weights, 64-byte aligned.  KB_USE_VECTOR: float [cols].  KB_USE_MATRIX: groups
 * of 16 rows as layout.h describes, rows padded with zeros.
 */
struct kb_tensor {
	enum kb_type type;
	enum kb_use use;
	uint32_t rows, cols;
	uint32_t n_groups;
	size_t group_bytes;
	uint64_t bytes;
	uint8_t *data;
	struct kc_place *place;
};

/*
 * Rows of the table are made when a step first reaches their position: files announce contexts of
 * millions, and most of that is never used.
 */
struct kc_rope_source {
	uint32_t n_made;	/* rows of the table; by the thread that records steps */
	float scale;
	float inv_freq[];	/* [n_dims / 2] */
};

struct kb_rope {
	enum kb_rope_style style;
	uint32_t n_dims, n_positions;
	float *table;		/* [n_positions] { cos [n_dims/2], sin [n_dims/2] } */
	struct kc_rope_source *source;
};

/* Makes the rows of positions 0 .. n - 1; n <= n_positions. */
void kc_rope_reach(const struct kb_rope *rope, uint32_t n);

struct kb_pool {
	uint8_t *base;
	uint64_t bytes;
};

/*
 * Rows that enter a product, in the form that its weights need (NUMERICS.md):
 * floats, 8 bits with a scale per 16 (for weights of up to 5 bits), or 16 bits with
 * one per 32 (for finer weights); layout.h says which.
 */

struct kc_rows {
	uint32_t cols;
	float *f;	/* [rows][cols] */
	int8_t *q;	/* [rows][cols] */
	float *d;	/* [rows][cols / 16]: scale */
	float *h;	/* [rows][cols / 16]: scale times sum of q */
	float *s;	/* [rows][cols / 32]: h of the one half plus h of the other */
	int16_t *q16;	/* [rows][cols], of each four in the order 0, 2, 1, 3 */
	float *d16;	/* [rows][cols / 32] */
};

/*
 * Queries of one sequence and kv head, and where their keys and values are.  All of them see the same form of a
 * position: where there are open blocks they belong to one block.
 */
struct kc_queries {
	uint8_t *pool;
	const struct kb_geometry *geometry;
	const uint32_t *block_table;
	size_t head_offset;		/* of this layer and head inside a block, bytes */
	uint8_t *open;			/* Q4: this head of the open block, else NULL */
	uint32_t open_pos;		/* its first position; UINT32_MAX: none */
	uint32_t head_dim;
	uint32_t first_pos, n_rows;	/* row i is at position first_pos + i */
	uint32_t n_heads;		/* query heads per row: the GQA ratio */
	const float *q;			/* row i, head h at q + i * q_stride + h * head_dim */
	size_t q_stride;
	float scale, softcap;
	uint32_t window;
};

/* A softmax over part of the positions: query j of n. */
struct kc_partial {
	float *m, *l;	/* [n] maximum; sum of exp(s - m), 0 where no position is visible */
	float *o;	/* [n][head_dim] sum of exp(s - m) v */
	float *mass;	/* NULL: not wanted; [n][KC_GRANULES] sums of exp(s - m), where l is not 0 */
};

/* Some groups of a matrix, one after the other, and where their outputs go. */
struct kc_stream {
	const uint8_t *w;
	float *out;		/* [n_groups * 16] */
};

/*
 * Kernels of one CPU level.  n_* counts of floats are multiples of 16 unless
 * said otherwise, and pointers need no alignment but their type's.
 */
struct kc_level {
	const char *name;
	bool (*supported)(void);

	/* n a multiple of 32; outputs as in struct kc_rows */
	void (*quantize)(const float *x, uint32_t n, int8_t *q, float *d, float *h, float *s);
	void (*quantize16)(const float *x, uint32_t n, int16_t *q, float *d);
	void (*rmsnorm)(float *y, const float *x, const float *w, uint32_t n, float eps);
	/* Turns the first n_dims of x; angles: cos [n_dims/2], sin [n_dims/2]; any even n_dims. */
	void (*rotate)(float *x, const float *angles, uint32_t n_dims, enum kb_rope_style style);
	/* x times the Walsh-Hadamard matrix of kc_hadamard_width(n) channels, run by run: its own inverse */
	void (*hadamard)(float *x, uint32_t n);
	/* gate = act(gate) * up */
	void (*gated)(float *gate, const float *up, uint32_t n, enum kb_activation activation);
	void (*softcap)(float *x, uint32_t n, float cap);
	void (*store_f16)(uint16_t *y, const float *x, uint32_t n);

	/* out[i * out_stride + (g - group0) * 16 + lane] = W[16 g + lane] . in[row0 + i], for
	 * n_groups groups and n_rows rows. */
	void (*product)(const struct kb_tensor *w, uint32_t group0, uint32_t n_groups,
			const struct kc_rows *in, uint32_t row0, uint32_t n_rows, float *out,
			size_t out_stride);

	/*
	 * The same for one row and quantised weights: n_groups of each of 1 .. KC_MAX_STREAMS streams, side by side,
	 * since memory gives more to a core that reads in several places.  They are w's groups or of a matrix
	 * that is like it.  NULL: product() is as fast.
	 */
	void (*product_streams)(const struct kb_tensor *w, const struct kc_stream *streams, uint32_t n_streams,
				uint32_t n_groups, const struct kc_rows *in, uint32_t row);

	/* One segment for all queries (row-major: row, head); at most KC_MAX_QUERIES.
	 * scratch: kc_attend_scratch(head_dim) floats, 64-byte aligned. */
	void (*attend)(const struct kc_queries *queries, uint32_t segment, const struct kc_partial *out,
		       float *scratch);
	/* Adds query j of a later segment to (m, l, o). */
	void (*merge)(float *m, float *l, float *o, const struct kc_partial *part, uint32_t j,
		      uint32_t head_dim);
};

extern const struct kc_level kc_level_c;
extern const struct kc_level kc_level_avx2;
extern const struct kc_level kc_level_avx512;
extern const struct kc_level kc_level_avx512vnni;
extern const struct kc_level kc_level_amx;

/*
 * What attention over a segment keeps beside its result, floats: scores; the keys or values of KC_ATTEND_TILE
 * positions; queries times the scales of a block's keys, those scales, and what the offsets add to a score; scales
 * and offsets of the segment's values.
 */
#define KC_ATTEND_TILE 64u
static inline size_t kc_attend_scratch(uint32_t head_dim)
{
	size_t n = KC_MAX_QUERIES;

	return n * KC_SEGMENT + (size_t)KC_ATTEND_TILE * head_dim + (n + 2) * head_dim + n +
	       (size_t)2 * kb_kv_groups(head_dim) * KC_SEGMENT;
}

/* Channels that one such matrix mixes: the largest power of two that divides n, so at least 16. */
static inline uint32_t kc_hadamard_width(uint32_t n)
{
	return n & -n;
}

/* The positions of a segment that a query at pos sees: *t0 .. *t1 - 1; false: none. */
static inline bool kc_visible(uint32_t pos, uint32_t window, uint32_t segment, uint32_t *t0, uint32_t *t1)
{
	uint32_t first = window && pos >= window ? pos - window + 1 : 0;

	*t0 = KC_MAX(first, segment * KC_SEGMENT);
	*t1 = KC_MIN(pos + 1, (segment + 1) * KC_SEGMENT);
	return *t0 < *t1;
}

/* Bytes from a block's beginning to a layer's head; g is valid. */
static inline size_t kc_head_offset(const struct kb_geometry *g, uint32_t layer, uint32_t head)
{
	return (size_t)kb_head_bytes(g) * ((size_t)layer * g->n_kv_heads + head);
}

/* The tile of position t. */
static inline struct kc_kv kc_kv_at(const struct kc_queries *a, uint32_t t)
{
	const struct kb_geometry *g = a->geometry;

	if (t >= a->open_pos)
		return kc_kv_tile(KB_KV_F16, a->head_dim, KB_Q4_BLOCK_TOKENS, a->open, t - a->open_pos);
	return kc_kv_tile(g->kv_type, a->head_dim, g->block_tokens,
			  a->pool + kb_block_offset(g, a->block_table[t / g->block_tokens]) + a->head_offset,
			  t % g->block_tokens);
}

/* arena.c: memory for weights, in huge pages. */
int kc_arena_new(struct kc_arena **out);
void kc_arena_free(struct kc_arena *arena);
/* Not cleared: it may have been somebody else's. */
int kc_arena_get(struct kc_arena *arena, uint64_t bytes, uint8_t **out, struct kc_place **place);
void kc_arena_put(struct kc_arena *arena, struct kc_place *place);

/* tensor.c */
int kc_tensor_new(struct kb_backend *be, const struct kb_tensor_desc *desc, struct kb_tensor **out);
int kc_tensor_fill(struct kb_backend *be, struct kb_tensor *t, uint32_t row0, uint32_t n_rows,
		   const void *src);
void kc_tensor_free(struct kb_backend *be, struct kb_tensor *t);
uint64_t kc_tensor_bytes(const struct kb_tensor *t);
/* y[cols] = row of a matrix, dequantised */
void kc_tensor_row(const struct kb_tensor *t, uint32_t row, float *y);

/* workspace.c: a step's buffers, its start and end. */
int kc_workspace_new(struct kb_backend *be, const struct kb_workspace_desc *desc, struct kb_workspace **out);
void kc_workspace_free(struct kb_backend *be, struct kb_workspace *ws);
uint64_t kc_workspace_bytes(const struct kb_workspace *ws);
int kc_step_begin(struct kb_workspace *ws, const struct kb_batch *batch);
int kc_step_submit(struct kb_workspace *ws);
int kc_step_wait(struct kb_workspace *ws);
const float *kc_step_logits(const struct kb_workspace *ws);
const float *kc_step_hidden(const struct kb_workspace *ws);

/* step-attention.c, step-dense.c: operations of a step. */
int kc_embed(struct kb_workspace *ws, const struct kb_tensor *table, float scale);
int kc_attn_in(struct kb_workspace *ws, uint32_t layer, const struct kb_attn_in *op);
int kc_attention(struct kb_workspace *ws, uint32_t layer, const struct kb_attention *op);
int kc_attn_out(struct kb_workspace *ws, const struct kb_attn_out *op);
int kc_ffn(struct kb_workspace *ws, const struct kb_ffn *op);
int kc_logits(struct kb_workspace *ws, const struct kb_logits *op);
int kc_hidden(struct kb_workspace *ws, const struct kb_hidden *op);

#endif
