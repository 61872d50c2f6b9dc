/* SPDX-License-Identifier: Apache-2.0 */
/* The attention half of a layer: projections and KV write, attention, output projection. */
#include "workspace.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "elementary.h"

/*
 * The head in which the F16 of a position lies while its block is open: the sequence's own block where the step begins,
 * the step's own ones where it gets further.
 */
static uint8_t *open_head(const struct kb_workspace *ws, uint32_t layer, uint32_t head, const struct kc_row *row)
{
	const struct kb_seq *s = &ws->batch.seqs[row->seq];
	uint32_t ahead = row->pos / KB_Q4_BLOCK_TOKENS - s->first_pos / KB_Q4_BLOCK_TOKENS;
	size_t bytes = kc_open_head_bytes(ws);

	if (!ahead)
		return s->open->data + bytes * ((size_t)layer * ws->desc.n_kv_heads + head);
	return ws->fresh + bytes * ((size_t)(row->fresh + ahead - 1) * ws->desc.n_kv_heads + head);
}

static struct kc_kv kv_tile(const struct kb_workspace *ws, uint32_t layer, uint32_t head, const struct kc_row *row)
{
	const struct kb_geometry *g = ws->batch.geometry;
	uint32_t block = ws->batch.seqs[row->seq].block_table[row->pos / g->block_tokens];
	uint8_t *at;

	if (!kb_has_partial_blocks(g))
		return kc_kv_tile(KB_KV_F16, g->head_dim, KB_Q4_BLOCK_TOKENS, open_head(ws, layer, head, row),
				  row->pos % KB_Q4_BLOCK_TOKENS);
	at = ws->batch.pool->base + kb_block_offset(g, block) + kc_head_offset(g, layer, head);
	return kc_kv_tile(g->kv_type, g->head_dim, g->block_tokens, at, row->pos % g->block_tokens);
}

/* One head's worth of the joint q, k, v projection. */
struct head {
	enum { HEAD_Q, HEAD_K, HEAD_V } kind;
	uint32_t index;
	const struct kb_tensor *w, *bias, *norm;
};

static struct head head_of(const struct kc_phase *p, uint32_t unit)
{
	const struct kb_attn_in *op = &p->op.attn_in;
	uint32_t n_heads = p->ws->desc.n_heads, n_kv = p->ws->desc.n_kv_heads;

	if (unit < n_heads)
		return (struct head){ HEAD_Q, unit, op->wq, op->bq, op->q_norm };
	if (unit < n_heads + n_kv)
		return (struct head){ HEAD_K, unit - n_heads, op->wk, op->bk, op->k_norm };
	return (struct head){ HEAD_V, unit - n_heads - n_kv, op->wv, op->bv, NULL };
}

/*
 * Whether channels of a head are mixed before they are stored; queries as keys are, which leaves scores as they were,
 * and what was attended to is mixed back.  A few channels of a key are many times as large as the others, so one of
 * them would set the scale of its group; mixed, all are of one size.
 */
static bool mixes_channels(const struct kb_workspace *ws)
{
	return ws->batch.geometry->kv_type == KB_KV_Q8;
}

/* Bias, norm, rotation, mixture; then k and v go to the pool. */
static void finish_head(const struct kc_phase *p, const struct head *h, uint32_t row_index, float *y)
{
	const struct kb_workspace *ws = p->ws;
	const struct kc_level *level = ws->be->level;
	const struct kb_rope *rope = p->op.attn_in.rope;
	const struct kc_row *row = &ws->rows[row_index];
	uint32_t head_dim = ws->desc.head_dim;

	if (h->bias) {
		const float *b = kc_vector(h->bias) + (size_t)h->index * head_dim;

		for (uint32_t i = 0; i < head_dim; i++)
			y[i] += b[i];
	}
	if (h->norm)
		level->rmsnorm(y, y, kc_vector(h->norm), head_dim, p->op.attn_in.norm_eps);
	if (h->kind != HEAD_V)
		level->rotate(y, rope->table + (size_t)row->pos * rope->n_dims, rope->n_dims, rope->style);
	if (mixes_channels(ws))
		level->hadamard(y, head_dim);
	if (h->kind != HEAD_Q) {
		struct kc_kv tile = kv_tile(ws, p->layer, h->index, row);

		kc_kv_store(level, &tile, row->pos % KC_KV_TILE, h->kind == HEAD_V, y);
	}
}

static void run_qkv(const struct kc_phase *p, uint32_t task, uint32_t thread)
{
	const struct kb_workspace *ws = p->ws;
	struct kc_part parts[KC_MAX_STREAMS];
	struct head heads[KC_MAX_STREAMS];
	struct kc_piece pieces[KC_MAX_STREAMS];
	uint32_t n = kc_phase_parts(p, task, parts), head_dim = ws->desc.head_dim, groups = head_dim / KC_LANES;

	for (uint32_t u = 0; u < parts->n_units; u++) {
		uint32_t k = 0;

		for (; k < n && u < parts[k].n_units; k++) {
			struct head h = head_of(p, parts[k].unit0 + u);
			size_t stride = h.kind == HEAD_Q ? ws->attended.cols : head_dim;
			float *y = kc_scratch(ws, thread) + (size_t)k * head_dim;

			if (h.kind == HEAD_Q)
				y = ws->q + parts->row0 * stride + (size_t)h.index * head_dim;
			heads[k] = h;
			pieces[k] = (struct kc_piece){ h.w, h.index * groups, groups, y, stride };
		}
		kc_products(ws->be->level, pieces, k, &ws->normed, parts->row0, parts->n_rows);
		for (uint32_t i = 0; i < k * parts->n_rows; i++) {
			const struct kc_piece *piece = &pieces[i / parts->n_rows];
			uint32_t row = i % parts->n_rows;

			finish_head(p, &heads[i / parts->n_rows], parts->row0 + row,
				    piece->out + row * piece->out_stride);
		}
	}
}

/* The blocks that this step fills, one after the other by their sequences: task is block and head. */
static void run_seal(const struct kc_phase *p, uint32_t task, uint32_t thread)
{
	const struct kb_workspace *ws = p->ws;
	const struct kb_geometry *g = ws->batch.geometry;
	uint32_t head = task % g->n_kv_heads, i = task / g->n_kv_heads;
	const struct kb_seq *s = ws->batch.seqs;
	struct kc_row row;
	uint32_t block;

	for (; i >= kc_n_sealed(s); s++)
		i -= kc_n_sealed(s);
	block = s->first_pos / KB_Q4_BLOCK_TOKENS + i;
	row = ws->rows[s->first_row];
	row.pos = block * KB_Q4_BLOCK_TOKENS;
	kc_kv_seal(ws->batch.pool->base + kb_block_offset(g, s->block_table[block]) + kc_head_offset(g, p->layer, head),
		   open_head(ws, p->layer, head, &row), g->head_dim);
}

/* What a step that got into a new block leaves there for the next one; task is a sequence. */
static void run_keep_open(const struct kc_phase *p, uint32_t task, uint32_t thread)
{
	const struct kb_workspace *ws = p->ws;
	const struct kb_seq *s = &ws->batch.seqs[task];
	uint32_t end = s->first_pos + s->n_rows;
	size_t bytes = kc_open_head_bytes(ws) * ws->desc.n_kv_heads;
	struct kc_row row = ws->rows[s->first_row];

	row.pos = end - 1;
	if (kc_n_fresh(s) && end % KB_Q4_BLOCK_TOKENS)
		memcpy(s->open->data + bytes * p->layer, open_head(ws, p->layer, 0, &row), bytes);
}

static bool attn_in_valid(const struct kb_workspace *ws, uint32_t layer, const struct kb_attn_in *op)
{
	const struct kb_workspace_desc *d = &ws->desc;
	uint32_t q_dim = d->n_heads * d->head_dim, kv_dim = d->n_kv_heads * d->head_dim;

	return layer < ws->batch.geometry->n_layers && kc_is_vector(op->norm, d->n_embd) &&
	       kc_is_matrix(op->wq, q_dim, d->n_embd) && kc_is_matrix(op->wk, kv_dim, d->n_embd) &&
	       kc_is_matrix(op->wv, kv_dim, d->n_embd) && kc_is_optional(op->bq, q_dim) &&
	       kc_is_optional(op->bk, kv_dim) && kc_is_optional(op->bv, kv_dim) &&
	       kc_is_optional(op->q_norm, d->head_dim) && kc_is_optional(op->k_norm, d->head_dim) &&
	       op->rope && op->rope->n_dims <= d->head_dim && op->rope->n_positions >= ws->n_positions;
}

int kc_attn_in(struct kb_workspace *ws, uint32_t layer, const struct kb_attn_in *op)
{
	struct kc_phase *p;
	int r;

	if (ws->state != KC_RECORDING || !attn_in_valid(ws, layer, op))
		return -EINVAL;
	kc_rope_reach(op->rope, ws->n_positions);
	r = kc_add_norm(ws, op->norm, op->norm_eps, NULL, ws->batch.n_rows,
			kc_type_forms(op->wq->type) | kc_type_forms(op->wk->type) |
				kc_type_forms(op->wv->type));
	if (r)
		return r;
	p = kc_phase_add(ws, run_qkv);
	if (!p)
		return -ENOMEM;
	p->layer = layer;
	p->op.attn_in = *op;
	kc_phase_cut(p, ws->batch.n_rows, ws->desc.n_heads + 2 * ws->desc.n_kv_heads, ws->desc.head_dim);
	if (!ws->n_sealed)
		return 0;
	p = kc_phase_add(ws, run_seal);
	if (!p)
		return -ENOMEM;
	p->layer = layer;
	p->n_tasks = ws->n_sealed * ws->desc.n_kv_heads;
	return 0;
}

static struct kc_queries queries_of(const struct kc_phase *p, const struct kc_item *item, uint32_t kv_head)
{
	const struct kb_workspace *ws = p->ws;
	const struct kb_seq *s = &ws->batch.seqs[item->seq];
	uint32_t ratio = ws->desc.n_heads / ws->desc.n_kv_heads, head_dim = ws->desc.head_dim;
	const struct kc_row *row = &ws->rows[item->row];
	bool open = !kb_has_partial_blocks(ws->batch.geometry);

	return (struct kc_queries){
		.pool = ws->batch.pool->base,
		.geometry = ws->batch.geometry,
		.block_table = s->block_table,
		.head_offset = kc_head_offset(ws->batch.geometry, p->layer, kv_head),
		.open = open ? open_head(ws, p->layer, kv_head, row) : NULL,
		.open_pos = open ? row->pos / KB_Q4_BLOCK_TOKENS * KB_Q4_BLOCK_TOKENS : UINT32_MAX,
		.head_dim = head_dim,
		.first_pos = row->pos,
		.n_rows = item->n_rows,
		.n_heads = ratio,
		.q = ws->q + (size_t)item->row * ws->attended.cols + (size_t)kv_head * ratio * head_dim,
		.q_stride = ws->attended.cols,
		.scale = p->op.attention.scale,
		.softcap = p->op.attention.softcap,
		.window = p->op.attention.window,
	};
}

static struct kc_partial partial_at(const struct kc_partial *base, size_t j, uint32_t head_dim)
{
	return (struct kc_partial){ base->m + j, base->l + j, base->o + j * head_dim,
				    base->mass ? base->mass + j * KC_GRANULES : NULL };
}

static void store_normalized(float *y, const float *o, float l, uint32_t head_dim)
{
	for (uint32_t i = 0; i < head_dim; i++)
		y[i] = o[i] / l;
}

/* All segments in ascending order, merged as they come. */
static void attend_all(const struct kc_phase *p, const struct kc_item *item, uint32_t kv_head, float *scratch)
{
	const struct kb_workspace *ws = p->ws;
	const struct kc_level *level = ws->be->level;
	struct kc_queries a = queries_of(p, item, kv_head);
	uint32_t head_dim = a.head_dim, n = a.n_rows * a.n_heads, window = a.window;
	float *room = scratch + kc_attend_scratch(head_dim);
	struct kc_partial sum = { room, room + KC_MAX_QUERIES, room + 2 * KC_MAX_QUERIES };
	struct kc_partial part = partial_at(&sum, 0, head_dim);
	uint32_t first = window && a.first_pos >= window ? (a.first_pos - window + 1) / KC_SEGMENT : 0;
	uint32_t last = (a.first_pos + a.n_rows - 1) / KC_SEGMENT;

	part.m += (size_t)KC_MAX_QUERIES * (2 + head_dim);
	part.l += (size_t)KC_MAX_QUERIES * (2 + head_dim);
	part.o += (size_t)KC_MAX_QUERIES * (2 + head_dim);
	level->attend(&a, first, &sum, scratch);
	for (uint32_t segment = first + 1; segment <= last; segment++) {
		level->attend(&a, segment, &part, scratch);
		for (uint32_t j = 0; j < n; j++)
			level->merge(&sum.m[j], &sum.l[j], sum.o + (size_t)j * head_dim, &part, j, head_dim);
	}
	for (uint32_t j = 0; j < n; j++) {
		float *y = ws->attended.f + (size_t)(item->row + j / a.n_heads) * ws->attended.cols;

		store_normalized(y + (size_t)(kv_head * a.n_heads + j % a.n_heads) * head_dim,
				 sum.o + (size_t)j * head_dim, sum.l[j], head_dim);
	}
}

static void run_attention(const struct kc_phase *p, uint32_t task, uint32_t thread)
{
	const struct kb_workspace *ws = p->ws;
	uint32_t n_kv = ws->desc.n_kv_heads, kv_head = task % n_kv;
	const struct kc_item *item = &ws->items[task / n_kv];
	float *scratch = kc_scratch(ws, thread);
	struct kc_queries a;
	struct kc_partial out;

	if (item->segment == KC_ALL_SEGMENTS) {
		attend_all(p, item, kv_head, scratch);
		return;
	}
	a = queries_of(p, item, kv_head);
	out = partial_at(&ws->slots, (size_t)item->slot * ws->desc.n_heads + (size_t)kv_head * a.n_heads,
			 a.head_dim);
	if (!ws->batch.seqs[item->seq].mass)
		out.mass = NULL;
	ws->be->level->attend(&a, item->segment, &out, scratch);
}

int kc_attention(struct kb_workspace *ws, uint32_t layer, const struct kb_attention *op)
{
	struct kc_phase *p;

	if (ws->state != KC_RECORDING || layer >= ws->batch.geometry->n_layers || !isfinite(op->scale) ||
	    !isfinite(op->softcap) || op->softcap < 0)
		return -EINVAL;
	p = kc_phase_add(ws, run_attention);
	if (!p)
		return -ENOMEM;
	p->layer = layer;
	p->op.attention = *op;
	p->n_tasks = ws->n_items * ws->desc.n_kv_heads;
	if (!ws->n_fresh)
		return 0;
	p = kc_phase_add(ws, run_keep_open);
	if (!p)
		return -ENOMEM;
	p->layer = layer;
	p->n_tasks = ws->batch.n_seqs;
	return 0;
}

/* What a segment's blocks drew: the sums of their granules, times factor. */
static void add_segment_mass(const float *granules, uint32_t block_tokens, uint32_t n_blocks, float factor,
			     float *mass)
{
	uint32_t per_block = block_tokens / KC_GRANULE;

	for (uint32_t b = 0; b < n_blocks; b++, granules += per_block) {
		float sum = granules[0];

		for (uint32_t g = 1; g < per_block; g++)
			sum += granules[g];
		mass[b] += sum * factor;
	}
}

/*
 * One head's part of the sequence's attention mass.  Each segment's sums are brought to the scale of the
 * merged softmax (m, l).  first: the first segment's own m and l, since that slot has the merged ones.
 */
static void add_mass(const struct kb_workspace *ws, const struct kc_row *row, uint32_t head, const float first[2])
{
	const struct kb_geometry *g = ws->batch.geometry;
	uint32_t n_heads = ws->desc.n_heads, per_segment = KC_SEGMENT / g->block_tokens;
	uint32_t n_blocks = row->pos / g->block_tokens + 1;
	size_t slot = (size_t)row->slot * n_heads + head;
	float m = ws->slots.m[slot], share = 1.0f / (ws->slots.l[slot] * (float)(g->n_layers * n_heads));
	float *mass = ws->batch.seqs[row->seq].mass;

	for (uint32_t i = 0; i < row->n_slots; i++, slot += n_heads, n_blocks -= KC_MIN(n_blocks, per_segment)) {
		float segment_m = i ? ws->slots.m[slot] : first[0], l = i ? ws->slots.l[slot] : first[1];

		if (l != 0)
			add_segment_mass(ws->slots.mass + slot * KC_GRANULES, g->block_tokens,
					 KC_MIN(n_blocks, per_segment), kc_exp(segment_m - m) * share,
					 mass + i * per_segment);
	}
}

/* The partial results of a row that was spread over segments, merged in order. */
static void merge_slots(const struct kb_workspace *ws, uint32_t row_index)
{
	const struct kc_row *row = &ws->rows[row_index];
	uint32_t head_dim = ws->desc.head_dim, n_heads = ws->desc.n_heads;
	float *y = ws->attended.f + (size_t)row_index * ws->attended.cols;

	for (uint32_t h = 0; h < n_heads; h++, y += head_dim) {
		struct kc_partial sum = partial_at(&ws->slots, (size_t)row->slot * n_heads + h, head_dim);
		float first[2] = { *sum.m, *sum.l };

		for (uint32_t i = 1; i < row->n_slots; i++)
			ws->be->level->merge(sum.m, sum.l, sum.o, &sum, i * n_heads, head_dim);
		store_normalized(y, sum.o, *sum.l, head_dim);
		if (ws->batch.seqs[row->seq].mass)
			add_mass(ws, row, h, first);
	}
}

static void mix_back(const struct kb_workspace *ws, uint32_t row)
{
	float *y = ws->attended.f + (size_t)row * ws->attended.cols;

	for (uint32_t h = 0; h < ws->desc.n_heads; h++)
		ws->be->level->hadamard(y + (size_t)h * ws->desc.head_dim, ws->desc.head_dim);
}

static void run_attended(const struct kc_phase *p, uint32_t task, uint32_t thread)
{
	const struct kb_workspace *ws = p->ws;
	struct kc_part part = kc_phase_part(p, task);

	for (uint32_t i = part.row0; i < part.row0 + part.n_rows; i++) {
		if (ws->rows[i].slot != KC_NO_SLOT)
			merge_slots(ws, i);
		if (mixes_channels(ws))
			mix_back(ws, i);
		kc_quantize_row(ws->be->level, p->forms, &ws->attended, i);
	}
}

static void run_attn_out(const struct kc_phase *p, uint32_t task, uint32_t thread)
{
	const struct kb_attn_out *op = &p->op.attn_out;

	kc_project(p, task, thread, op->wo, op->bo, op->post_norm, &p->ws->attended);
}

int kc_attn_out(struct kb_workspace *ws, const struct kb_attn_out *op)
{
	uint32_t n_embd = ws->desc.n_embd;
	struct kc_phase *p;

	if (ws->state != KC_RECORDING || !kc_is_matrix(op->wo, n_embd, ws->attended.cols) ||
	    !kc_is_optional(op->bo, n_embd) || !kc_is_optional(op->post_norm, n_embd))
		return -EINVAL;
	p = kc_phase_add(ws, run_attended);
	if (!p)
		return -ENOMEM;
	p->forms = kc_type_forms(op->wo->type);
	kc_phase_cut_rows(p, ws->batch.n_rows);
	p = kc_phase_add(ws, run_attn_out);
	if (!p)
		return -ENOMEM;
	p->op.attn_out = *op;
	kc_phase_cut(p, ws->batch.n_rows, op->wo->n_groups, KC_LANES);
	return op->post_norm ? kc_add_post_norm(ws, op->post_norm, op->norm_eps) : 0;
}
