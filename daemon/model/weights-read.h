/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weights-read.h - reads a file once, on several threads, into tensors that are there.
 *
 * The file is cut into units, in its order: some whole groups of rows of one tensor, or bytes between
 * tensors. A thread takes the next unit, reads it into a buffer of its own, waits until all bytes before it
 * are hashed, hashes it, and hands its rows to the backend. So reading and repacking, which take the time,
 * are done side by side, the hash is that of the bytes in their order, and what was hashed and what was used
 * are the same bytes: nothing is read twice. A unit is small enough to stay in a core's cache from one to the
 * other. Memory: one unit for each thread.
 */
#ifndef KVD_WEIGHTS_READ_H
#define KVD_WEIGHTS_READ_H

#include <stdint.h>

#include "daemon/model/gguf.h"
#include "daemon/model/model.h"
#include "daemon/model/weights-plan.h"
#include "daemon/model/weights.h"
#include "ipc/base/error.h"
#include "kernels/backend.h"

struct weights_read {
	struct kb_backend *be;
	const struct gguf *header;
	const struct weights_plan *plan;
	const struct weights_source *source;
	const struct model_options *options;
};

/*
 * Fills the tensors that the plan's operands point to, makes the lists of the host, and puts the hash of the
 * whole file out.  -EIO, -EINVAL, -ENOMEM, -ECANCELED, or the backend's refusal, with diag; lists that were made
 * are there then, too.
 */
int weights_read(const struct weights_read *what, uint8_t hash[16], struct diag *diag);

#endif
