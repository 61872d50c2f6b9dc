/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/weights-plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/gguf-private.h"

struct planner {
	const struct hparams *hp;
	const struct gguf *g;
	struct diag *diag;
	struct weights_item *items;	/* [n] by tensor; without parts: not planned yet */
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
	case KB_Q5_0:
	case KB_Q5_1:
	case KB_Q8_0:
	case KB_Q2_K:
	case KB_Q3_K:
	case KB_Q4_K:
	case KB_Q5_K:
	case KB_Q6_K:
	case KB_IQ4_NL:
	case KB_IQ4_XS:
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
				want->use == KB_USE_MATRIX ? "F32, F16, BF16, Q8_0, Q4_0 to Q5_1, Q2_K to Q6_K, "
							     "IQ4_NL, IQ4_XS"
							   : "F32, F16, BF16");
	return 0;
}

/* Finds the tensor, checks it and plans its parts; an absent optional one is 0. */
static int plan_tensor(struct planner *p, const char *name, const struct weights_item *item, bool optional)
{
	struct kb_tensor_desc whole = item->parts[0].desc;
	struct gguf_tensor t;
	uint64_t i;
	int r;

	if (gguf_tensor_find(p->g, name, &i))
		return optional ? 0 : diag_set(p->diag, -EINVAL, "tensor \"%s\": missing", name);
	gguf_tensor_at(p->g, i, &t);
	for (size_t k = 1; k < item->n_parts; k++)
		whole.rows += item->parts[k].desc.rows;
	r = check(p, &t, name, &whole);
	if (r)
		return r;
	p->items[i] = *item;
	for (size_t k = 0; k < item->n_parts; k++)
		p->items[i].parts[k].desc.type = (enum kb_type)t.type;
	return 0;
}

/* The parts of the tensor that the first row of a table names. */
static void collect_parts(const struct planner *p, const struct arch_tensor *rows, size_t n, void *base,
			  struct weights_item *item)
{
	for (size_t i = 0; i < n && i < ARCH_MAX_PARTS && !strcmp(rows[i].name, rows[0].name); i++)
		item->parts[item->n_parts++] = (struct weights_part){
			.desc = { .use = rows[i].use,
				  .rows = hparams_dim(p->hp, rows[i].rows),
				  .cols = hparams_dim(p->hp, rows[i].cols) },
			.operand = (const struct kb_tensor **)(void *)((char *)base + rows[i].slot),
		};
}

static int plan_rows(struct planner *p, const struct arch_tensor *rows, size_t n, const char *prefix,
		     void *base)
{
	char name[GGUF_MAX_TENSOR_NAME + 1];
	size_t i = 0;

	while (i < n) {
		struct weights_item item = { 0 };
		int r;

		snprintf(name, sizeof(name), "%s%s", prefix, rows[i].name);
		collect_parts(p, &rows[i], n - i, base, &item);
		r = plan_tensor(p, name, &item, rows[i].optional);
		if (r)
			return r;
		i += item.n_parts;
	}
	return 0;
}

/* A list of divisors: F32, for the host. */
static int plan_divisors(struct planner *p, const char *name, bool optional, float **host)
{
	struct weights_item item = {
		.n_parts = 1,
		.parts[0] = { .desc = { .use = KB_USE_VECTOR, .rows = 1, .cols = p->hp->rope.n_dims / 2 },
			      .host = host },
	};
	struct gguf_tensor t;
	uint64_t i;

	if (!gguf_tensor_find(p->g, name, &i)) {
		gguf_tensor_at(p->g, i, &t);
		if (t.type != KB_F32)
			return diag_set(p->diag, -EINVAL, "tensor \"%s\": type %s is not supported (F32 is)",
					name, gguf_tensor_type_name(t.type));
	}
	return plan_tensor(p, name, &item, optional);
}

/* LongRoPE has two lists and no other kind of scaling has them. */
static int plan_all_divisors(struct planner *p, const struct arch *arch, struct weights_divisors *d)
{
	int r;

	if (p->hp->rope.scaling == ROPE_LONG) {
		r = plan_divisors(p, ARCH_ROPE_LONG_NAME, false, &d->longs);
		return r ? r : plan_divisors(p, ARCH_ROPE_SHORT_NAME, false, &d->shorts);
	}
	if (arch->rope_divisors & ARCH_ROPE_FREQS)
		return plan_divisors(p, ARCH_ROPE_FREQS_NAME, true, &d->freqs);
	return 0;
}

/* A tensor that no table names could change the model's results: it is not ignored. */
static int check_all_planned(const struct planner *p, const struct arch *arch, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct gguf_tensor t;

		if (p->items[i].n_parts)
			continue;
		gguf_tensor_at(p->g, i, &t);
		return diag_set(p->diag, -EINVAL,
				"tensor \"%s\": not known to the architecture \"%s\" with %u layers",
				gguf_quote(t.name).text, arch->name, p->hp->n_layers);
	}
	return 0;
}

static int plan_all(struct planner *p, const struct arch *arch, size_t n, const struct weights_places *places)
{
	char prefix[24];
	int r;

	r = plan_rows(p, arch->ends, arch->n_ends, "", places->ends);
	if (r)
		return r;
	for (uint32_t i = 0; i < p->hp->n_layers; i++) {
		snprintf(prefix, sizeof(prefix), "blk.%u.", i);
		r = plan_rows(p, arch->layer, arch->n_layer, prefix, &places->layers[i]);
		if (r)
			return r;
	}
	r = plan_all_divisors(p, arch, places->divisors);
	if (r)
		return r;
	return check_all_planned(p, arch, n);
}

int weights_plan_init(struct weights_plan *plan, const struct arch *arch, const struct hparams *hp,
		      const struct gguf *g, const struct weights_places *places, struct diag *diag)
{
	_cleanup_(freep) struct weights_item *items = NULL;
	size_t n = (size_t)gguf_n_tensors(g);
	struct planner p = { .hp = hp, .g = g, .diag = diag };
	int r;

	items = calloc(n + 1, sizeof(*items));
	if (!items)
		return -ENOMEM;
	p.items = items;
	r = plan_all(&p, arch, n, places);
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
