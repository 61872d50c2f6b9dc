/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/weights-plan.h"

#include <stdio.h>
#include <stdlib.h>

#include "daemon/model/gguf-private.h"

#define ROPE_FACTORS "rope_freqs.weight"

struct planner {
	const struct hparams *hp;
	const struct gguf *g;
	struct diag *diag;
	struct weights_item *items;
	bool *planned;			/* [n] */
};

static bool type_supported(uint32_t type, enum kb_use use)
{
	switch (type) {
	case KB_F32:
	case KB_F16:
	case KB_BF16:
		return true;
	case KB_Q4_0:
	case KB_Q4_1:
	case KB_Q8_0:
		return use == KB_USE_MATRIX;
	default:
		return false;
	}
}

static int check(const struct planner *p, const struct gguf_tensor *t, const char *name,
		 const struct kb_tensor_desc *want)
{
	if (t->dims[0] != want->cols || t->dims[1] != want->rows || t->dims[2] != 1 || t->dims[3] != 1)
		return diag_set(
			p->diag, -EINVAL,
			"tensor \"%s\": is %llu x %llu x %llu x %llu; the hyper-parameters ask for %u x %u",
			name, (unsigned long long)t->dims[0], (unsigned long long)t->dims[1],
			(unsigned long long)t->dims[2], (unsigned long long)t->dims[3], want->cols,
			want->rows);
	if (!type_supported(t->type, want->use))
		return diag_set(p->diag, -EINVAL, "tensor \"%s\": type %s is not supported (%s are)", name,
				gguf_tensor_type_name(t->type),
				want->use == KB_USE_MATRIX ? "F32, F16, BF16, Q8_0, Q4_0, Q4_1"
							   : "F32, F16, BF16");
	return 0;
}

/* Finds the tensor, checks it and plans it; an absent optional one is 0. */
static int plan_tensor(struct planner *p, const char *name, struct kb_tensor_desc want, bool optional,
		       const struct kb_tensor **operand)
{
	struct gguf_tensor t;
	uint64_t i;
	int r;

	if (gguf_tensor_find(p->g, name, &i))
		return optional ? 0 : diag_set(p->diag, -EINVAL, "tensor \"%s\": missing", name);
	gguf_tensor_at(p->g, i, &t);
	r = check(p, &t, name, &want);
	if (r)
		return r;
	want.type = (enum kb_type)t.type;
	p->items[i] = (struct weights_item){ .desc = want, .operand = operand };
	p->planned[i] = true;
	return 0;
}

static int plan_rows(struct planner *p, const struct arch_tensor *rows, size_t n, const char *prefix,
		     void *base)
{
	char name[GGUF_MAX_TENSOR_NAME + 1];
	int r;

	for (size_t i = 0; i < n; i++) {
		const struct arch_tensor *row = &rows[i];
		struct kb_tensor_desc want = {
			.use = row->use,
			.rows = hparams_dim(p->hp, row->rows),
			.cols = hparams_dim(p->hp, row->cols),
		};

		snprintf(name, sizeof(name), "%s%s", prefix, row->name);
		r = plan_tensor(p, name, want, row->optional,
				(const struct kb_tensor **)(void *)((char *)base + row->slot));
		if (r)
			return r;
	}
	return 0;
}

/* Divisors of the rotation's frequencies: F32, for the host. */
static int plan_rope_factors(struct planner *p)
{
	struct kb_tensor_desc want = { .use = KB_USE_VECTOR, .rows = 1, .cols = p->hp->rope_dims / 2 };
	struct gguf_tensor t;
	uint64_t i;

	if (gguf_tensor_find(p->g, ROPE_FACTORS, &i))
		return 0;
	gguf_tensor_at(p->g, i, &t);
	if (t.type != KB_F32)
		return diag_set(p->diag, -EINVAL,
				"tensor \"" ROPE_FACTORS "\": type %s is not supported (F32 is)",
				gguf_tensor_type_name(t.type));
	return plan_tensor(p, ROPE_FACTORS, want, false, NULL);
}

/* A tensor that no table names could change the model's results: it is not ignored. */
static int check_all_planned(const struct planner *p, const struct arch *arch, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct gguf_tensor t;

		if (p->planned[i])
			continue;
		gguf_tensor_at(p->g, i, &t);
		return diag_set(p->diag, -EINVAL,
				"tensor \"%s\": not known to the architecture \"%s\" with %u layers",
				gguf_quote(t.name).text, arch->name, p->hp->n_layers);
	}
	return 0;
}

static int plan_all(struct planner *p, const struct arch *arch, size_t n, struct model_ends *ends,
		    struct model_layer *layers)
{
	char prefix[24];
	int r;

	r = plan_rows(p, arch->ends, arch->n_ends, "", ends);
	if (r)
		return r;
	for (uint32_t i = 0; i < p->hp->n_layers; i++) {
		snprintf(prefix, sizeof(prefix), "blk.%u.", i);
		r = plan_rows(p, arch->layer, arch->n_layer, prefix, &layers[i]);
		if (r)
			return r;
	}
	if (arch->rope_factors) {
		r = plan_rope_factors(p);
		if (r)
			return r;
	}
	return check_all_planned(p, arch, n);
}

int weights_plan_init(struct weights_plan *plan, const struct arch *arch, const struct hparams *hp,
		      const struct gguf *g, struct model_ends *ends, struct model_layer *layers,
		      struct diag *diag)
{
	_cleanup_(freep) struct weights_item *items = NULL;
	_cleanup_(freep) bool *planned = NULL;
	size_t n = (size_t)gguf_n_tensors(g);
	struct planner p = { .hp = hp, .g = g, .diag = diag };
	int r;

	items = calloc(n + 1, sizeof(*items));
	planned = calloc(n + 1, sizeof(*planned));
	if (!items || !planned)
		return -ENOMEM;
	p.items = items;
	p.planned = planned;
	r = plan_all(&p, arch, n, ends, layers);
	if (r)
		return r;
	*plan = (struct weights_plan){ .items = steal_ptr(items), .n = n };
	return 0;
}

void weights_plan_deinit(struct weights_plan *plan)
{
	free(plan->items);
	*plan = (struct weights_plan){ 0 };
}
