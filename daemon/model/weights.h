/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weights.h - from the file's tensors to the backend's.
 *
 * First a plan: every tensor of the file is matched with a row of the
 * architecture's tables, its shape and type checked; what is missing or not
 * known is named.  Then the file is read once, in small pieces, on several threads
 * (weights-read.h): each piece is hashed and handed to the backend, so that what was
 * validated, hashed and used are the same bytes.  The memory needed is the weights
 * and one piece for each thread.
 */
#ifndef KVD_WEIGHTS_H
#define KVD_WEIGHTS_H

#include <stdint.h>

#include "daemon/model/arch.h"
#include "daemon/model/gguf.h"
#include "daemon/model/hparams.h"
#include "daemon/model/model.h"
#include "ipc/base/error.h"
#include "kernels/backend.h"

/* Where a file's bytes come from.  read(): exactly n of them, or -errno; on several threads at once. */
struct weights_source {
	int (*read)(void *arg, void *buf, size_t n, uint64_t at);
	void *arg;
};

/* Divisors of the rotation's frequencies, [rope.n_dims / 2] each; NULL where the file has none. */
struct weights_divisors {
	float *freqs, *longs, *shorts;
};

struct weights {
	struct kb_backend *be;
	struct model_ends ends;
	struct model_layer *layers;	/* [n_layers] */
	struct kb_tensor **tensors;	/* [n_tensors] owned, in the file's order */
	size_t n_tensors;
	struct weights_divisors divisors;
	uint64_t n_params;
	uint64_t n_bytes;		/* held by the backend */
	uint8_t hash[16];		/* XXH3-128 of the whole file */
};

#define WEIGHTS_NULL ((struct weights){ 0 })

/*
 * Fills the tensors of w->ends and w->layers; everything else in them stays
 * 0.  header: of the source's file.  -EINVAL, -EIO, -ENOMEM, -ECANCELED, or the backend's
 * refusal, with diag.
 */
int weights_init(struct weights *w, struct kb_backend *be, const struct arch *arch, const struct hparams *hp,
		 const struct gguf *header, const struct weights_source *source, const struct model_options *options,
		 struct diag *diag);
void weights_deinit(struct weights *w);

#endif
