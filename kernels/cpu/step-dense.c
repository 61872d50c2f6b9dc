/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a step that treat each row alone: embedding, norms, projections, FFN, logits, hidden states. */
#include "workspace.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static void run_embed(const struct kc_phase *p, uint32_t task, uint32_t thread)
{
	const struct kb_workspace *ws = p->ws;
	struct kc_part part = kc_phase_part(p, task);
	uint32_t n_embd = ws->desc.n_embd;

	for (uint32_t i = part.row0; i < part.row0 + part.n_rows; i++) {
		float *x = ws->x + (size_t)i * n_embd;

		kc_tensor_row(p->op.embed.table, (uint32_t)ws->batch.tokens[i], x);
		for (uint32_t k = 0; k < n_embd; k++)
			x[k] *= p->op.embed.scale;
	}
}

int kc_embed(struct kb_workspace *ws, const struct kb_tensor *table, float scale)
{
	struct kc_phase *p;

	if (ws->state != KC_RECORDING || !kc_is_matrix(table, ws->desc.n_vocab, ws->desc.n_embd))
		return -EINVAL;
	p = kc_phase_add(ws, run_embed);
	if (!p)
		return -ENOMEM;
	p->op.embed.table = table;
	p->op.embed.scale = scale;
	kc_phase_cut_rows(p, ws->batch.n_rows);
	return 0;
}

static void run_norm(const struct kc_phase *p, uint32_t task, uint32_t thread)
{
	const struct kb_workspace *ws = p->ws;
	const struct kc_level *level = ws->be->level;
	struct kc_part part = kc_phase_part(p, task);
	uint32_t n_embd = ws->desc.n_embd;

	for (uint32_t i = part.row0; i < part.row0 + part.n_rows; i++) {
		uint32_t row = p->op.norm.rows ? p->op.norm.rows[i] : i;

		level->rmsnorm(ws->normed.f + (size_t)i * n_embd, ws->x + (size_t)row * n_embd,
			       kc_vector(p->op.norm.norm), n_embd, p->op.norm.eps);
		kc_quantize_row(level, p->forms, &ws->normed, i);
	}
}

int kc_add_norm(struct kb_workspace *ws, const struct kb_tensor *norm, float eps, const uint32_t *rows,
		uint32_t n_rows, unsigned forms)
{
	struct kc_phase *p = kc_phase_add(ws, run_norm);

	if (!p)
		return -ENOMEM;
	p->op.norm.norm = norm;
	p->op.norm.eps = eps;
	p->op.norm.rows = rows;
	p->forms = forms;
	kc_phase_cut_rows(p, n_rows);
	return 0;
}

static void run_post_norm(const struct kc_phase *p, uint32_t task, uint32_t thread)
{
	const struct kb_workspace *ws = p->ws;
	struct kc_part part = kc_phase_part(p, task);
	uint32_t n_embd = ws->desc.n_embd;

	for (uint32_t i = part.row0; i < part.row0 + part.n_rows; i++) {
		float *y = ws->branch + (size_t)i * n_embd, *x = ws->x + (size_t)i * n_embd;

		ws->be->level->rmsnorm(y, y, kc_vector(p->op.norm.norm), n_embd, p->op.norm.eps);
		for (uint32_t k = 0; k < n_embd; k++)
			x[k] += y[k];
	}
}

int kc_add_post_norm(struct kb_workspace *ws, const struct kb_tensor *norm, float eps)
{
	struct kc_phase *p = kc_phase_add(ws, run_post_norm);

	if (!p)
		return -ENOMEM;
	p->op.norm.norm = norm;
	p->op.norm.eps = eps;
	kc_phase_cut_rows(p, ws->batch.n_rows);
	return 0;
}

/* Outputs of a part of a projection, [n_rows][stride], go to x or to branch. */
static void add_projected(const struct kb_workspace *ws, const struct kc_part *part, const struct kb_tensor *w,
			  const struct kb_tensor *bias, bool post_norm, float *y, size_t stride)
{
	uint32_t col = part->unit0 * KC_LANES, n_cols = KC_MIN(part->n_units * KC_LANES, w->rows - col);
	size_t n_embd = ws->desc.n_embd;

	for (uint32_t i = 0; i < part->n_rows; i++, y += stride) {
		float *x = (post_norm ? ws->branch : ws->x) + (part->row0 + i) * n_embd + col;

		if (bias) {
			const float *b = kc_vector(bias) + col;

			for (uint32_t k = 0; k < n_cols; k++)
				y[k] += b[k];
		}
		if (post_norm) {
			memcpy(x, y, n_cols * sizeof(*x));
			continue;
		}
		for (uint32_t k = 0; k < n_cols; k++)
			x[k] += y[k];
	}
}

/* The products of a task's parts whose units are groups, one part's [n_rows][stride] after the other. */
static uint32_t product_parts(const struct kc_phase *p, uint32_t task, const struct kb_tensor *w,
			      const struct kc_rows *in, float *tile, struct kc_part parts[KC_MAX_STREAMS],
			      struct kc_piece pieces[KC_MAX_STREAMS])
{
	uint32_t n = kc_phase_parts(p, task, parts);

	for (uint32_t i = 0; i < n; i++) {
		size_t stride = (size_t)parts[i].n_units * KC_LANES;

		pieces[i] = (struct kc_piece){ w, parts[i].unit0, parts[i].n_units, tile, stride };
		tile += stride * parts[i].n_rows;
	}
	kc_products(p->ws->be->level, pieces, n, in, parts->row0, parts->n_rows);
	return n;
}

void kc_project(const struct kc_phase *p, uint32_t task, uint32_t thread, const struct kb_tensor *w,
		const struct kb_tensor *bias, bool post_norm, const struct kc_rows *in)
{
	struct kc_part parts[KC_MAX_STREAMS];
	struct kc_piece pieces[KC_MAX_STREAMS];
	uint32_t n = product_parts(p, task, w, in, kc_scratch(p->ws, thread), parts, pieces);

	for (uint32_t i = 0; i < n; i++)
		add_projected(p->ws, &parts[i], w, bias, post_norm, pieces[i].out, pieces[i].out_stride);
}

/* Activation of a part's outputs, which are [n_rows][width], and what the product with `down` takes of them. */
static void finish_gated(const struct kc_phase *p, const struct kc_part *part, float *gate, const float *up)
{
	const struct kb_workspace *ws = p->ws;
	const struct kc_rows *hidden = &ws->hidden;
	uint32_t width = part->n_units * KC_BLOCK;

	for (uint32_t i = 0; i < part->n_rows; i++, gate += width, up += width) {
		size_t block = (size_t)(part->row0 + i) * (hidden->cols / KC_BLOCK) + part->unit0;

		ws->be->level->gated(gate, up, width, p->op.ffn.activation);
		if (p->forms)
			kc_quantize(ws->be->level, p->forms, hidden, block, gate, width);
		else
			memcpy(hidden->f + block * KC_BLOCK, gate, width * sizeof(*gate));
	}
}

/* A unit is one quantised block of the hidden row: two groups of gate and of up. */
static void run_gated(const struct kc_phase *p, uint32_t task, uint32_t thread)
{
	const struct kb_ffn *op = &p->op.ffn;
	const uint32_t groups = KC_BLOCK / KC_LANES;
	struct kc_part parts[KC_MAX_STREAMS] = { 0 };
	struct kc_piece pieces[2 * KC_MAX_STREAMS];
	uint32_t n = kc_phase_parts(p, task, parts);
	float *tile = kc_scratch(p->ws, thread);

	for (uint32_t i = 0; i < n; i++) {
		uint32_t group0 = parts[i].unit0 * groups, n_groups = parts[i].n_units * groups;
		uint32_t width = parts[i].n_units * KC_BLOCK;
		size_t size = (size_t)parts[i].n_rows * width;

		pieces[2 * i] = (struct kc_piece){ op->gate, group0, n_groups, tile, width };
		pieces[2 * i + 1] = (struct kc_piece){ op->up, group0, n_groups, tile + size, width };
		tile += 2 * size;
	}
	for (uint32_t i = 0; i < 2 * n; i += KC_MAX_STREAMS)
		kc_products(p->ws->be->level, pieces + i, KC_MIN(2 * n - i, KC_MAX_STREAMS), &p->ws->normed,
			    parts->row0, parts->n_rows);
	for (uint32_t i = 0; i < n; i++)
		finish_gated(p, &parts[i], pieces[2 * i].out, pieces[2 * i + 1].out);
}

static void run_down(const struct kc_phase *p, uint32_t task, uint32_t thread)
{
	const struct kb_ffn *op = &p->op.ffn;

	kc_project(p, task, thread, op->down, NULL, op->post_norm, &p->ws->hidden);
}

int kc_ffn(struct kb_workspace *ws, const struct kb_ffn *op)
{
	uint32_t n_embd = ws->desc.n_embd, n_ff = ws->desc.n_ff;
	struct kc_phase *p;
	int r;

	if (ws->state != KC_RECORDING || !kc_is_vector(op->norm, n_embd) ||
	    !kc_is_matrix(op->gate, n_ff, n_embd) || !kc_is_matrix(op->up, n_ff, n_embd) ||
	    !kc_is_matrix(op->down, n_embd, n_ff) || !kc_is_optional(op->post_norm, n_embd))
		return -EINVAL;
	if (op->activation != KB_SILU && op->activation != KB_GELU_TANH)
		return -ENOTSUP;
	r = kc_add_norm(ws, op->norm, op->norm_eps, NULL, ws->batch.n_rows,
			kc_type_forms(op->gate->type) | kc_type_forms(op->up->type));
	if (r)
		return r;
	p = kc_phase_add(ws, run_gated);
	if (!p)
		return -ENOMEM;
	p->op.ffn = *op;
	p->forms = kc_type_forms(op->down->type);
	kc_phase_cut(p, ws->batch.n_rows, n_ff / KC_BLOCK, 2 * KC_BLOCK);
	p = kc_phase_add(ws, run_down);
	if (!p)
		return -ENOMEM;
	p->op.ffn = *op;
	kc_phase_cut(p, ws->batch.n_rows, op->down->n_groups, KC_LANES);
	return op->post_norm ? kc_add_post_norm(ws, op->post_norm, op->norm_eps) : 0;
}

static void run_logits(const struct kc_phase *p, uint32_t task, uint32_t thread)
{
	const struct kb_workspace *ws = p->ws;
	const struct kb_logits *op = &p->op.logits;
	struct kc_part parts[KC_MAX_STREAMS];
	struct kc_piece pieces[KC_MAX_STREAMS];
	uint32_t n = product_parts(p, task, op->head, &ws->normed, kc_scratch(ws, thread), parts, pieces);
	size_t n_vocab = ws->desc.n_vocab;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t col = parts[i].unit0 * KC_LANES;
		uint32_t n_cols = KC_MIN(parts[i].n_units * KC_LANES, op->head->rows - col);
		size_t stride = pieces[i].out_stride;
		float *y = pieces[i].out;

		for (uint32_t k = 0; k < parts[i].n_rows; k++, y += stride) {
			if (op->softcap > 0)
				ws->be->level->softcap(y, (uint32_t)stride, op->softcap);
			memcpy(ws->logits + (parts[i].row0 + k) * n_vocab + col, y, n_cols * sizeof(*y));
		}
	}
}

int kc_logits(struct kb_workspace *ws, const struct kb_logits *op)
{
	struct kc_phase *p;
	int r;

	if (ws->state != KC_RECORDING || !kc_is_vector(op->norm, ws->desc.n_embd) ||
	    !kc_is_matrix(op->head, ws->desc.n_vocab, ws->desc.n_embd) || !isfinite(op->softcap) ||
	    op->softcap < 0)
		return -EINVAL;
	if (!ws->batch.n_logits)
		return 0;
	r = kc_add_norm(ws, op->norm, op->norm_eps, ws->batch.logit_rows, ws->batch.n_logits,
			kc_type_forms(op->head->type));
	if (r)
		return r;
	p = kc_phase_add(ws, run_logits);
	if (!p)
		return -ENOMEM;
	p->op.logits = *op;
	kc_phase_cut(p, ws->batch.n_logits, op->head->n_groups, KC_LANES);
	return 0;
}

static void run_hidden(const struct kc_phase *p, uint32_t task, uint32_t thread)
{
	const struct kb_workspace *ws = p->ws;
	struct kc_part part = kc_phase_part(p, task);
	size_t n_embd = ws->desc.n_embd;

	for (uint32_t i = part.row0; i < part.row0 + part.n_rows; i++)
		ws->be->level->rmsnorm(ws->branch + i * n_embd, ws->x + p->op.norm.rows[i] * n_embd,
				       kc_vector(p->op.norm.norm), ws->desc.n_embd, p->op.norm.eps);
}

int kc_hidden(struct kb_workspace *ws, const struct kb_hidden *op)
{
	struct kc_phase *p;

	if (ws->state != KC_RECORDING || !kc_is_vector(op->norm, ws->desc.n_embd))
		return -EINVAL;
	if (!ws->batch.n_hidden)
		return 0;
	p = kc_phase_add(ws, run_hidden);
	if (!p)
		return -ENOMEM;
	p->op.norm.norm = op->norm;
	p->op.norm.eps = op->norm_eps;
	p->op.norm.rows = ws->batch.hidden_rows;
	kc_phase_cut_rows(p, ws->batch.n_hidden);
	return 0;
}
