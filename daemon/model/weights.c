/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/weights.h"

#include <stdlib.h>

#include "daemon/model/gguf-private.h"
#include "daemon/model/weights-plan.h"
#include "daemon/model/weights-read.h"

/* The tensors, without their numbers: address space that is filled later. */
static int make_tensors(struct weights *w, const struct gguf *header, const struct weights_plan *plan,
			struct diag *diag)
{
	for (size_t i = 0; i < plan->n; i++) {
		const struct weights_item *item = &plan->items[i];
		struct gguf_tensor t;

		gguf_tensor_at(header, i, &t);
		w->n_params += t.n_elements;
		for (size_t k = 0; k < item->n_parts; k++) {
			struct kb_tensor *tensor = NULL;
			int r;

			if (item->parts[k].host)
				continue;
			r = w->be->ops->tensor_new(w->be, &item->parts[k].desc, &tensor);
			if (r)
				return diag_set(diag, r, "tensor \"%s\": %s", gguf_quote(t.name).text,
						r == -ENOMEM ? "no memory for it" : "the backend refused it");
			w->tensors[w->n_tensors++] = tensor;
			w->n_bytes += w->be->ops->tensor_bytes(tensor);
			*item->parts[k].operand = tensor;
		}
	}
	return 0;
}

static int load(struct weights *w, const struct arch *arch, const struct hparams *hp,
		const struct gguf *header, const struct weights_source *source, const struct model_options *options,
		struct diag *diag)
{
	_cleanup_(weights_plan_deinit) struct weights_plan plan = { 0 };
	struct weights_places places = { .ends = &w->ends, .divisors = &w->divisors };
	int r;

	w->layers = calloc(hp->n_layers, sizeof(*w->layers));
	w->tensors = calloc(ARCH_MAX_PARTS * (size_t)gguf_n_tensors(header) + 1, sizeof(*w->tensors));
	if (!w->layers || !w->tensors)
		return -ENOMEM;
	places.layers = w->layers;
	r = weights_plan_init(&plan, arch, hp, header, &places, diag);
	if (r)
		return r;
	r = make_tensors(w, header, &plan, diag);
	if (!r)
		r = weights_read(&(struct weights_read){
			.be = w->be, .header = header, .plan = &plan, .source = source, .options = options,
		}, w->hash, diag);
	if (r)
		return r;
	if (!w->ends.logits.head) {
		if (!arch->tied_output)
			return diag_set(diag, -EINVAL, "tensor \"output.weight\": missing");
		w->ends.logits.head = w->ends.embed;
	}
	return 0;
}

int weights_init(struct weights *w, struct kb_backend *be, const struct arch *arch, const struct hparams *hp,
		 const struct gguf *header, const struct weights_source *source, const struct model_options *options,
		 struct diag *diag)
{
	int r;

	*w = (struct weights){ .be = be };
	r = load(w, arch, hp, header, source, options, diag);
	if (r)
		weights_deinit(w);
	return r;
}

void weights_deinit(struct weights *w)
{
	for (size_t i = 0; i < w->n_tensors; i++)
		w->be->ops->tensor_free(w->be, w->tensors[i]);
	free(w->tensors);
	free(w->layers);
	free(w->divisors.freqs);
	free(w->divisors.longs);
	free(w->divisors.shorts);
	*w = WEIGHTS_NULL;
}
