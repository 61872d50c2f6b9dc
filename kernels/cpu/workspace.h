/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workspace.h - the buffers of one step, and its list of phases.
 *
 * begin checks the batch, the operations append phases, submit hands the list
 * to the threads.
 */
#ifndef KC_WORKSPACE_H
#define KC_WORKSPACE_H

#include "cpu.h"

#define KC_ALL_SEGMENTS UINT32_MAX
#define KC_NO_SLOT UINT32_MAX

/*
 * One attention task per item and kv head: some rows of one sequence, over all
 * segments in order, or (decode of a long sequence) one row over one segment,
 * whose partial result goes to a slot.
 */
struct kc_item {
	uint32_t seq, row, n_rows;
	uint32_t segment, slot;
};

/* Where a row of the batch stands. */
struct kc_row {
	uint32_t seq, pos;
	uint32_t slot, n_slots;		/* partial results to merge; KC_NO_SLOT: none */
	uint32_t fresh;			/* the sequence's first block in ws->fresh, if it has any */
};

enum kc_state { KC_IDLE, KC_RECORDING, KC_SUBMITTED };

struct kb_workspace {
	struct kc_backend *be;
	struct kb_workspace_desc desc;
	enum kc_state state;
	struct kb_batch batch;
	uint32_t n_positions;		/* highest position of the batch, plus one */

	struct kc_row *rows;		/* [max_rows] */
	struct kc_item *items;		/* [max_rows + n_slots] */
	uint32_t n_items;

	uint8_t *memory;		/* one mapping holds all buffers below */
	uint64_t bytes;
	float *x;			/* [max_rows][n_embd]: the residual stream */
	float *q;			/* [max_rows][n_heads * head_dim] */
	float *branch;			/* [max_rows][n_embd]: before a post-norm; at the end, hidden states */
	struct kc_rows normed;		/* [max_rows][n_embd] */
	struct kc_rows attended;	/* [max_rows][n_heads * head_dim] */
	struct kc_rows hidden;		/* [max_rows][n_ff] */
	float *logits;			/* [max_logits][n_vocab] */
	uint32_t n_slots;
	struct kc_partial slots;	/* [n_slots][n_heads] */
	float *scratch;			/* [n_threads][scratch_floats] */
	size_t scratch_floats;

	/* Open blocks that the step itself begins, one layer's: [n_fresh][n_kv_heads]; grows when it must. */
	uint8_t *fresh;
	uint64_t fresh_bytes;
	uint32_t n_fresh, n_sealed;	/* n_sealed: blocks that the step fills */

	struct kc_phase *phases;
	uint32_t n_phases, max_phases;
};

/* A head's part of an open block, bytes. */
static inline size_t kc_open_head_bytes(const struct kb_workspace *ws)
{
	return (size_t)4 * KB_Q4_BLOCK_TOKENS * ws->desc.head_dim;
}

/* Q4: blocks that a sequence's rows begin, beside the one that the first row is in. */
static inline uint32_t kc_n_fresh(const struct kb_seq *s)
{
	return (s->first_pos + s->n_rows - 1) / KB_Q4_BLOCK_TOKENS - s->first_pos / KB_Q4_BLOCK_TOKENS;
}

/* Q4: blocks that get full by a sequence's rows. */
static inline uint32_t kc_n_sealed(const struct kb_seq *s)
{
	return (s->first_pos + s->n_rows) / KB_Q4_BLOCK_TOKENS - s->first_pos / KB_Q4_BLOCK_TOKENS;
}

static inline float *kc_scratch(const struct kb_workspace *ws, uint32_t thread)
{
	return ws->scratch + ws->scratch_floats * thread;
}

/* Appends a phase; NULL: out of memory.  Valid until the next call. */
struct kc_phase *kc_phase_add(struct kb_workspace *ws, kc_phase_fn run);

/*
 * Cuts n_rows x n_units into tasks whose outputs (unit_floats per unit and row) fit a tile;
 * unit_floats <= KC_TILE_FLOATS / KC_TILE_ROWS.  With one row the units are cut into parts first, of
 * which each task has a piece, so that what a thread reads is some long streams.
 */
void kc_phase_cut(struct kc_phase *p, uint32_t n_rows, uint32_t n_units, uint32_t unit_floats);

/* Cuts rows that are treated alone. */
static inline void kc_phase_cut_rows(struct kc_phase *p, uint32_t n_rows)
{
	p->n_rows = n_rows;
	p->n_units = p->units_per_task = 1;
	p->rows_per_task = 8;	/* some microseconds */
	p->n_tasks = (n_rows + p->rows_per_task - 1) / p->rows_per_task;
}

/* What one task of a cut phase has: rows x units; with one row, of up to KC_MAX_STREAMS parts of the units. */
struct kc_part {
	uint32_t row0, n_rows, unit0, n_units;
};

static inline struct kc_part kc_phase_part(const struct kc_phase *p, uint32_t task)
{
	uint32_t n_unit_parts = (p->n_units + p->units_per_task - 1) / p->units_per_task;
	struct kc_part part = {
		.row0 = task / n_unit_parts * p->rows_per_task,
		.unit0 = task % n_unit_parts * p->units_per_task,
	};

	part.n_rows = KC_MIN(p->rows_per_task, p->n_rows - part.row0);
	part.n_units = KC_MIN(p->units_per_task, p->n_units - part.unit0);
	return part;
}

/* How many; none is empty, and no later one is longer than the first. */
uint32_t kc_phase_parts(const struct kc_phase *p, uint32_t task, struct kc_part parts[KC_MAX_STREAMS]);

/* Some groups of a matrix, and where their outputs go. */
struct kc_piece {
	const struct kb_tensor *w;
	uint32_t group0, n_groups;
	float *out;
	size_t out_stride;
};

/* The pieces' products with n_rows rows of in; n <= KC_MAX_STREAMS, no later piece is longer than the first. */
void kc_products(const struct kc_level *level, const struct kc_piece *pieces, uint32_t n, const struct kc_rows *in,
		 uint32_t row0, uint32_t n_rows);

/* Appends "normed[i] = rmsnorm(x[rows[i]])", in the quantised forms asked for too. */
int kc_add_norm(struct kb_workspace *ws, const struct kb_tensor *norm, float eps, const uint32_t *rows,
		uint32_t n_rows, unsigned forms);
/* Appends "x += rmsnorm(branch)". */
int kc_add_post_norm(struct kb_workspace *ws, const struct kb_tensor *norm, float eps);
/* Adds W in (+ bias) to x, or stores it in branch if there is a post-norm. */
void kc_project(const struct kc_phase *p, uint32_t task, uint32_t thread, const struct kb_tensor *w,
		const struct kb_tensor *bias, bool post_norm, const struct kc_rows *in);

/* x [n] becomes the blocks of r from number `block` on, counted through all rows. */
static inline void kc_quantize(const struct kc_level *level, unsigned forms, const struct kc_rows *r,
			       size_t block, const float *x, uint32_t n)
{
	if (forms & KC_FORM_8)
		level->quantize(x, n, r->q + block * KC_BLOCK, r->d + 2 * block, r->h + 2 * block, r->s + block);
	if (forms & KC_FORM_16)
		level->quantize16(x, n, r->q16 + block * KC_BLOCK, r->d16 + block);
}

static inline void kc_quantize_row(const struct kc_level *level, unsigned forms, const struct kc_rows *r,
				   uint32_t row)
{
	kc_quantize(level, forms, r, (size_t)row * (r->cols / KC_BLOCK), r->f + (size_t)row * r->cols,
		    r->cols);
}

static inline const float *kc_vector(const struct kb_tensor *t)
{
	return (const float *)(const void *)t->data;
}

static inline bool kc_is_vector(const struct kb_tensor *t, uint32_t cols)
{
	return t && t->use == KB_USE_VECTOR && t->cols == cols;
}

static inline bool kc_is_matrix(const struct kb_tensor *t, uint32_t rows, uint32_t cols)
{
	return t && t->use == KB_USE_MATRIX && t->rows == rows && t->cols == cols;
}

static inline bool kc_is_optional(const struct kb_tensor *t, uint32_t cols)
{
	return !t || kc_is_vector(t, cols);
}

#endif
