/* SPDX-License-Identifier: Apache-2.0 */
/* weights-plan.h - which tensor of a file goes where; checked before anything is read. */
#ifndef KVD_WEIGHTS_PLAN_H
#define KVD_WEIGHTS_PLAN_H

#include <stdint.h>

#include "daemon/model/arch.h"
#include "daemon/model/gguf.h"
#include "daemon/model/hparams.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/error.h"
#include "kernels/backend.h"

/* What becomes of one tensor of the file. */
struct weights_item {
	struct kb_tensor_desc desc;
	const struct kb_tensor **operand;	/* NULL: these are the rope factors, kept in host memory */
};

struct weights_plan {
	struct weights_item *items;		/* [n], in the file's order */
	size_t n;
};

/*
 * ends and layers: where the operands will be.  -EINVAL with diag: a tensor
 * is missing, not known, or not of the shape and type that it should have.
 */
int weights_plan_init(struct weights_plan *plan, const struct arch *arch, const struct hparams *hp,
		      const struct gguf *g, struct model_ends *ends, struct model_layer *layers,
		      struct diag *diag);
void weights_plan_deinit(struct weights_plan *plan);

#endif
