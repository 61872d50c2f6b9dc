/* SPDX-License-Identifier: Apache-2.0 */
/* weights-plan.h - which tensor of a file goes where; checked before anything is read. */
#ifndef KVD_WEIGHTS_PLAN_H
#define KVD_WEIGHTS_PLAN_H

#include <stdint.h>

#include "daemon/model/arch.h"
#include "daemon/model/gguf.h"
#include "daemon/model/hparams.h"
#include "daemon/model/weights.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/error.h"
#include "kernels/backend.h"

/* Consecutive rows of a tensor of the file, and what becomes of them. */
struct weights_part {
	struct kb_tensor_desc desc;
	const struct kb_tensor **operand;	/* for the backend; or */
	float **host;				/* a vector that stays in host memory */
};

struct weights_item {
	size_t n_parts;		/* together all rows of the tensor */
	struct weights_part parts[ARCH_MAX_PARTS];
};

struct weights_plan {
	struct weights_item *items;		/* [n], in the file's order */
	size_t n;
};

/* Where the operands and lists will be. */
struct weights_places {
	struct model_ends *ends;
	struct model_layer *layers;	/* [n_layers] */
	struct weights_divisors *divisors;
};

/*
 * -EINVAL with diag: a tensor is missing, not known, or not of the shape and type
 * that it should have.
 */
int weights_plan_init(struct weights_plan *plan, const struct arch *arch, const struct hparams *hp,
		      const struct gguf *g, const struct weights_places *places, struct diag *diag);
void weights_plan_deinit(struct weights_plan *plan);

#endif
