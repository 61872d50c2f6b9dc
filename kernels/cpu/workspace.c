/* SPDX-License-Identifier: Apache-2.0 */
#include "workspace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ALIGN 64u
#define MAX_DIM (1u << 24)
/* Slots beyond those of one longest sequence: so that several can be spread. */
#define EXTRA_SLOTS 64u
/* Tasks per thread of one phase: enough that the last one is short. */
#define TASKS_PER_THREAD 8u

static bool desc_valid(const struct kb_workspace_desc *d)
{
	if (!d->max_rows || d->max_rows > MAX_DIM || !d->max_logits || d->max_logits > d->max_rows)
		return false;
	if (!d->n_embd || d->n_embd > MAX_DIM || d->n_embd % KC_BLOCK)
		return false;
	if (!d->n_kv_heads || !d->n_heads || d->n_heads > 65536 || d->n_heads % d->n_kv_heads ||
	    d->n_heads / d->n_kv_heads > KC_MAX_QUERIES)
		return false;
	if (!d->head_dim || d->head_dim > KC_MAX_HEAD_DIM || d->head_dim % KC_LANES ||
	    d->n_heads * d->head_dim % KC_BLOCK)
		return false;
	if (!d->n_ff || d->n_ff > MAX_DIM || d->n_ff % KC_BLOCK)
		return false;
	return d->n_vocab && d->n_vocab < 1u << 28 && d->max_positions && d->max_positions <= 1u << 28;
}

/* Hands out parts of one mapping; with base NULL it only adds up. */
struct carve {
	uint8_t *base;
	uint64_t used;
	bool overflow;
};

static void *carve(struct carve *c, uint64_t n, uint64_t size)
{
	uint64_t bytes, at = c->used;

	if (__builtin_mul_overflow(n, size, &bytes) || bytes > UINT64_MAX - ALIGN ||
	    __builtin_add_overflow(at, (bytes + ALIGN - 1) & ~(uint64_t)(ALIGN - 1), &c->used))
		c->overflow = true;
	return c->base && !c->overflow ? c->base + at : NULL;
}

static void carve_rows(struct carve *c, struct kc_rows *r, uint64_t n, uint32_t cols)
{
	r->cols = cols;
	r->f = carve(c, n * cols, sizeof(float));
	r->q = carve(c, n * cols, 1);
	r->d = carve(c, n * (cols / KC_HALF), sizeof(float));
	r->h = carve(c, n * (cols / KC_HALF), sizeof(float));
	r->s = carve(c, n * (cols / KC_BLOCK), sizeof(float));
	r->q16 = carve(c, n * cols, sizeof(int16_t));
	r->d16 = carve(c, n * (cols / KC_BLOCK), sizeof(float));
}

static void carve_all(struct kb_workspace *ws, struct carve *c)
{
	const struct kb_workspace_desc *d = &ws->desc;
	uint64_t n = d->max_rows;
	uint32_t q_dim = d->n_heads * d->head_dim;

	ws->rows = carve(c, n, sizeof(*ws->rows));
	ws->items = carve(c, n + ws->n_slots, sizeof(*ws->items));
	ws->x = carve(c, n * d->n_embd, sizeof(float));
	ws->q = carve(c, n * q_dim, sizeof(float));
	ws->branch = carve(c, n * d->n_embd, sizeof(float));
	carve_rows(c, &ws->normed, n, d->n_embd);
	carve_rows(c, &ws->attended, n, q_dim);
	carve_rows(c, &ws->hidden, n, d->n_ff);
	ws->logits = carve(c, (uint64_t)d->max_logits * d->n_vocab, sizeof(float));
	ws->slots.m = carve(c, (uint64_t)ws->n_slots * d->n_heads, sizeof(float));
	ws->slots.l = carve(c, (uint64_t)ws->n_slots * d->n_heads, sizeof(float));
	ws->slots.o = carve(c, (uint64_t)ws->n_slots * q_dim, sizeof(float));
	ws->slots.mass = carve(c, (uint64_t)ws->n_slots * d->n_heads, KC_GRANULES * sizeof(float));
	ws->scratch = carve(c, ws->scratch_floats * kc_threads_n(ws->be->threads), sizeof(float));
}

/* A product's tile, or an attention task's partial results and scratch. */
static size_t scratch_floats(const struct kb_workspace_desc *d)
{
	size_t partial = KC_MAX_QUERIES * (2 + (size_t)d->head_dim);
	size_t attention = kc_attend_scratch(d->head_dim) + 2 * partial;

	return (KC_MAX(attention, (size_t)KC_TILE_FLOATS) + KC_LANES - 1) / KC_LANES * KC_LANES;
}

int kc_workspace_new(struct kb_backend *be, const struct kb_workspace_desc *desc, struct kb_workspace **out)
{
	struct kb_workspace *ws;
	struct carve c = { 0 };

	if (!desc_valid(desc))
		return -EINVAL;
	ws = calloc(1, sizeof(*ws));
	if (!ws)
		return -ENOMEM;
	ws->be = (struct kc_backend *)be;
	ws->desc = *desc;
	ws->n_slots = (desc->max_positions + KC_SEGMENT - 1) / KC_SEGMENT + EXTRA_SLOTS;
	ws->scratch_floats = scratch_floats(desc);
	carve_all(ws, &c);
	if (c.overflow || c.used > SIZE_MAX / 2)
		goto no_memory;
	ws->bytes = c.used;
	ws->memory = mmap(NULL, ws->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (ws->memory == MAP_FAILED)
		goto no_memory;
	madvise(ws->memory, ws->bytes, MADV_HUGEPAGE);
	c = (struct carve){ .base = ws->memory };
	carve_all(ws, &c);
	*out = ws;
	return 0;
no_memory:
	free(ws);
	return -ENOMEM;
}

void kc_workspace_free(struct kb_backend *be, struct kb_workspace *ws)
{
	if (!ws)
		return;
	kc_step_wait(ws);
	munmap(ws->memory, ws->bytes);
	free(ws->fresh);
	free(ws->phases);
	free(ws);
}

uint64_t kc_workspace_bytes(const struct kb_workspace *ws)
{
	return ws->bytes + ws->fresh_bytes + ws->max_phases * sizeof(*ws->phases);
}

static bool geometry_valid(const struct kb_workspace *ws, const struct kb_geometry *g)
{
	uint64_t least = kb_block_bytes(g), in_chunk;

	if (!least || g->head_dim != ws->desc.head_dim || g->n_kv_heads != ws->desc.n_kv_heads)
		return false;
	if (!kc_block_tokens_valid(g))
		return false;
	if (g->block_bytes < least || g->block_bytes % ALIGN || g->chunk_bytes % ALIGN ||
	    !g->blocks_per_chunk)
		return false;
	return !__builtin_mul_overflow(g->block_bytes, (uint64_t)g->blocks_per_chunk, &in_chunk) &&
	       in_chunk <= g->chunk_bytes;
}

/* Every block that positions 0 .. n_positions - 1 need lies inside the pool. */
static bool blocks_valid(const struct kb_batch *b, const struct kb_seq *s, uint32_t n_positions)
{
	const struct kb_geometry *g = b->geometry;
	uint32_t n = (n_positions - 1) / g->block_tokens + 1;

	if (s->n_blocks < n || !s->block_table)
		return false;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t chunk = s->block_table[i] / g->blocks_per_chunk;

		if (chunk >= b->pool->bytes / g->chunk_bytes)
			return false;
	}
	return true;
}

static bool seqs_valid(const struct kb_workspace *ws, const struct kb_batch *b)
{
	uint32_t row = 0;

	for (uint32_t i = 0; i < b->n_seqs; i++) {
		const struct kb_seq *s = &b->seqs[i];

		if (s->first_row != row || !s->n_rows || s->n_rows > b->n_rows - row)
			return false;
		if (s->first_pos >= ws->desc.max_positions ||
		    s->n_rows > ws->desc.max_positions - s->first_pos)
			return false;
		if (!blocks_valid(b, s, s->first_pos + s->n_rows))
			return false;
		if (!kb_has_partial_blocks(b->geometry) && (!s->open || s->open->bytes < kb_open_bytes(b->geometry)))
			return false;
		row += s->n_rows;
	}
	return row == b->n_rows;
}

/* Some of the batch's rows, ascending. */
static bool rows_valid(const struct kb_batch *b, const uint32_t *rows, uint32_t n)
{
	if (n && !rows)
		return false;
	for (uint32_t i = 0; i < n; i++) {
		if (rows[i] >= b->n_rows || (i && rows[i] <= rows[i - 1]))
			return false;
	}
	return true;
}

static bool batch_valid(const struct kb_workspace *ws, const struct kb_batch *b)
{
	if (!b->n_rows || b->n_rows > ws->desc.max_rows || !b->tokens || !b->seqs || !b->pool || !b->geometry)
		return false;
	if (!geometry_valid(ws, b->geometry) || !seqs_valid(ws, b))
		return false;
	for (uint32_t i = 0; i < b->n_rows; i++) {
		if (b->tokens[i] < 0 || (uint32_t)b->tokens[i] >= ws->desc.n_vocab)
			return false;
	}
	return b->n_logits <= ws->desc.max_logits && rows_valid(b, b->logit_rows, b->n_logits) &&
	       rows_valid(b, b->hidden_rows, b->n_hidden);
}

/* Rows of one sequence that share a pass over K and V. */
static uint32_t rows_per_item(const struct kb_workspace *ws)
{
	uint32_t n = KC_MAX_QUERIES / (ws->desc.n_heads / ws->desc.n_kv_heads);

	return KC_MIN(n, 16);
}

static void add_item(struct kb_workspace *ws, struct kc_item item)
{
	ws->items[ws->n_items++] = item;
}

/* Spreads a sequence of one row over slots, one for each segment; false: too few are left after n_used. */
static bool spread(struct kb_workspace *ws, uint32_t i, uint32_t *n_used)
{
	const struct kb_seq *s = &ws->batch.seqs[i];
	uint32_t n_segments = s->first_pos / KC_SEGMENT + 1;

	if (s->n_rows != 1 || n_segments > ws->n_slots - *n_used)
		return false;
	ws->rows[s->first_row].slot = *n_used;
	ws->rows[s->first_row].n_slots = n_segments;
	for (uint32_t j = 0; j < n_segments; j++)
		add_item(ws, (struct kc_item){ i, s->first_row, 1, j, (*n_used)++ });
	return true;
}

/* Items of at most `tile` rows, none of which reaches over the end of an open block. */
static void add_items(struct kb_workspace *ws, uint32_t i, uint32_t tile)
{
	const struct kb_seq *s = &ws->batch.seqs[i];

	for (uint32_t end = s->first_pos + s->n_rows; end > s->first_pos;) {
		uint32_t in_block = (end - 1) % KB_Q4_BLOCK_TOKENS + 1;
		uint32_t n = KC_MIN(KC_MIN(tile, in_block), end - s->first_pos);

		end -= n;
		add_item(ws, (struct kc_item){ i, s->first_row + end - s->first_pos, n, KC_ALL_SEGMENTS, KC_NO_SLOT });
	}
}

/*
 * Cuts the batch into attention items, the late (long) ones of a sequence first.  Those whose attention
 * mass is wanted are spread, even over one segment: a slot is where it is kept.
 */
static void make_items(struct kb_workspace *ws)
{
	uint32_t tile = rows_per_item(ws), n_used = 0;

	ws->n_items = 0;
	for (uint32_t i = 0; i < ws->batch.n_seqs; i++) {
		const struct kb_seq *s = &ws->batch.seqs[i];

		if (s->mass && spread(ws, i, &n_used))
			memset(s->mass, 0, s->n_blocks * sizeof(*s->mass));
	}
	for (uint32_t i = 0; i < ws->batch.n_seqs; i++) {
		const struct kb_seq *s = &ws->batch.seqs[i];

		if (ws->rows[s->first_row].slot != KC_NO_SLOT ||
		    (s->first_pos >= KC_SEGMENT && spread(ws, i, &n_used)))
			continue;
		add_items(ws, i, tile);
	}
}

/* Counts what the step begins and fills of a type with open blocks, and makes room for it. */
static int prepare_open(struct kb_workspace *ws, const struct kb_batch *batch)
{
	uint64_t n_fresh = 0, n_sealed = 0, bytes;
	uint8_t *fresh;

	for (uint32_t i = 0; i < batch->n_seqs && !kb_has_partial_blocks(batch->geometry); i++) {
		const struct kb_seq *s = &batch->seqs[i];

		n_fresh += kc_n_fresh(s);
		n_sealed += kc_n_sealed(s);
	}
	bytes = n_fresh * ws->desc.n_kv_heads * kc_open_head_bytes(ws);
	if (bytes > ws->fresh_bytes) {
		/* What an earlier step had there is of no use any more. */
		fresh = aligned_alloc(ALIGN, bytes);
		if (!fresh)
			return -ENOMEM;
		free(ws->fresh);
		ws->fresh = fresh;
		ws->fresh_bytes = bytes;
	}
	ws->n_fresh = (uint32_t)n_fresh;
	ws->n_sealed = (uint32_t)n_sealed;
	return 0;
}

int kc_step_begin(struct kb_workspace *ws, const struct kb_batch *batch)
{
	uint32_t fresh = 0;

	if (ws->state == KC_SUBMITTED)
		return -EBUSY;
	if (!batch_valid(ws, batch))
		return -EINVAL;
	if (prepare_open(ws, batch))
		return -ENOMEM;
	ws->batch = *batch;
	ws->n_phases = 0;
	ws->n_positions = 0;
	for (uint32_t i = 0; i < batch->n_seqs; i++) {
		const struct kb_seq *s = &batch->seqs[i];

		for (uint32_t j = 0; j < s->n_rows; j++)
			ws->rows[s->first_row + j] = (struct kc_row){ i, s->first_pos + j, KC_NO_SLOT, 0, fresh };
		if (ws->n_fresh)
			fresh += kc_n_fresh(s);
		ws->n_positions = KC_MAX(ws->n_positions, s->first_pos + s->n_rows);
	}
	make_items(ws);
	ws->state = KC_RECORDING;
	return 0;
}

struct kc_phase *kc_phase_add(struct kb_workspace *ws, kc_phase_fn run)
{
	struct kc_phase *p;

	if (ws->n_phases == ws->max_phases) {
		uint32_t max = ws->max_phases ? ws->max_phases * 2 : 64;

		p = realloc(ws->phases, max * sizeof(*p));
		if (!p)
			return NULL;
		ws->phases = p;
		ws->max_phases = max;
	}
	p = &ws->phases[ws->n_phases++];
	*p = (struct kc_phase){ .run = run, .ws = ws };
	return p;
}

/* One row: parts of the same length, but the last.  Where a unit is several groups two parts are enough streams. */
static void cut_parts(struct kc_phase *p, uint32_t n_units, uint32_t unit_floats, uint32_t n_tasks)
{
	uint32_t most = unit_floats == KC_LANES && n_units >= KC_MAX_STREAMS * n_tasks ? KC_MAX_STREAMS : 2;

	p->n_parts = KC_MIN(n_units, most);
	p->units_per_part = (n_units + p->n_parts - 1) / p->n_parts;
	p->units_per_task = KC_MIN((p->units_per_part + n_tasks - 1) / n_tasks,
				   KC_TILE_FLOATS / (p->n_parts * unit_floats));
	p->n_tasks = (p->units_per_part + p->units_per_task - 1) / p->units_per_task;
}

void kc_phase_cut(struct kc_phase *p, uint32_t n_rows, uint32_t n_units, uint32_t unit_floats)
{
	uint32_t n_tasks = TASKS_PER_THREAD * kc_threads_active(p->ws->be->threads);
	uint32_t row_parts, unit_parts, most;

	p->n_rows = n_rows;
	p->n_units = n_units;
	p->rows_per_task = KC_MIN(n_rows, KC_TILE_ROWS);
	if (n_rows == 1 && p->ws->be->level->product_streams) {
		cut_parts(p, n_units, unit_floats, n_tasks);
		return;
	}
	row_parts = (n_rows + p->rows_per_task - 1) / p->rows_per_task;
	unit_parts = KC_MAX(n_tasks / row_parts, 1);
	most = KC_TILE_FLOATS / (p->rows_per_task * unit_floats);
	p->units_per_task = KC_MIN((n_units + unit_parts - 1) / unit_parts, most);
	p->n_tasks = row_parts * ((n_units + p->units_per_task - 1) / p->units_per_task);
}

uint32_t kc_phase_parts(const struct kc_phase *p, uint32_t task, struct kc_part parts[KC_MAX_STREAMS])
{
	uint32_t from = task * p->units_per_task, end = KC_MIN(from + p->units_per_task, p->units_per_part), n = 0;

	if (p->n_parts <= 1) {
		parts[0] = kc_phase_part(p, task);
		return 1;
	}
	for (uint32_t unit = from; n < p->n_parts && unit < p->n_units; unit += p->units_per_part, n++)
		parts[n] = (struct kc_part){ 0, 1, unit, KC_MIN(end - from, p->n_units - unit) };
	return n;
}

/* Those of one row that can be walked side by side; how many groups of each that was. */
static uint32_t product_side_by_side(const struct kc_level *level, const struct kc_piece *pieces, uint32_t n,
				     const struct kc_rows *in, uint32_t row)
{
	struct kc_stream streams[KC_MAX_STREAMS];

	if (!level->product_streams || !kc_type_quantized(pieces->w->type))
		return 0;
	for (uint32_t i = 0; i < n; i++) {
		const struct kb_tensor *w = pieces[i].w;

		if (w->type != pieces->w->type)
			return 0;
		streams[i] = (struct kc_stream){ w->data + w->group_bytes * pieces[i].group0, pieces[i].out };
	}
	level->product_streams(pieces->w, streams, n, pieces[n - 1].n_groups, in, row);
	return pieces[n - 1].n_groups;
}

void kc_products(const struct kc_level *level, const struct kc_piece *pieces, uint32_t n, const struct kc_rows *in,
		 uint32_t row0, uint32_t n_rows)
{
	uint32_t done = n_rows == 1 && n > 1 ? product_side_by_side(level, pieces, n, in, row0) : 0;

	for (uint32_t i = 0; i < n; i++) {
		const struct kc_piece *p = &pieces[i];

		if (p->n_groups > done)
			level->product(p->w, p->group0 + done, p->n_groups - done, in, row0, n_rows,
				       p->out + (size_t)done * KC_LANES, p->out_stride);
	}
}

int kc_step_submit(struct kb_workspace *ws)
{
	int r;

	if (ws->state != KC_RECORDING)
		return -EINVAL;
	r = kc_threads_start(ws->be->threads, ws->phases, ws->n_phases);
	if (!r)
		ws->state = KC_SUBMITTED;
	return r;
}

int kc_step_wait(struct kb_workspace *ws)
{
	if (ws->state != KC_SUBMITTED)
		return -EINVAL;
	kc_threads_wait(ws->be->threads);
	ws->state = KC_IDLE;
	return 0;
}

const float *kc_step_logits(const struct kb_workspace *ws)
{
	return ws->logits;
}

const float *kc_step_hidden(const struct kb_workspace *ws)
{
	return ws->branch;
}
