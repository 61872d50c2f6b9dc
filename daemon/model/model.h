/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.h - a loaded model: hyper-parameters, weights in a backend, tokenizer,
 * chat template, and the transformer step.
 *
 * Lifetime: a model outlives every workspace user; the backend outlives it.
 * Thread: model_load() on any one thread (a worker); afterwards the tokenizer,
 * template and info are immutable and usable from any thread, model_step() from
 * the engine thread only.
 */
#ifndef KVD_MODEL_H
#define KVD_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/error.h"
#include "kernels/backend.h"

struct chat_template;
struct model;
struct tokenizer;

struct model_info {
	const char *name;	/* the name clients use: file name less ".gguf", or given */
	const char *arch;	/* "llama" */
	const char *title;	/* general.name, "" if absent */
	uint32_t n_vocab, n_ctx_train, n_embd, n_layers, n_heads, n_kv_heads, head_dim, n_ff;
	uint64_t n_params;
	uint64_t file_bytes;
	uint64_t weight_bytes;		/* held by the backend */
	uint8_t content_hash[16];	/* XXH3-128 of the file's bytes, canonical (big-endian) */
	bool synthetic;			/* made up: see synthetic.h */
};

/*
 * Called now and then while loading, 0..total bytes; return false to give up (-ECANCELED).  On several threads, one
 * call after the other; done never falls.
 */
typedef bool (*model_progress_fn)(void *arg, uint64_t done, uint64_t total);

struct model_options {
	const char *name;	/* NULL: from the file's name */
	uint32_t n_ctx;		/* positions that will be used; 0: the model's own; more than that is cut to it */
	uint32_t n_threads;	/* that read, the caller's included; 0: as many as the backend computes with */
	model_progress_fn progress;
	void *progress_arg;
};

/*
 * Loads a GGUF file.  The file is read by pread() into memory of our own and
 * never mapped; it may be cut or removed afterwards.  Validated whole before
 * anything large is allocated.
 * -EINVAL: the file is malformed or unsupported, diag names the field;
 * -EIO, -ENOMEM, -ECANCELED.
 */
int model_load(struct model **out, struct kb_backend *be, int fd, const char *path,
	       const struct model_options *options, struct diag *diag);
/*
 * The same of a model that is made up: what is "NAME:TYPE" (synthetic.h), and its name by default.  -EINVAL, -ENOMEM,
 * -ECANCELED.
 */
int model_load_synthetic(struct model **out, struct kb_backend *be, const char *what,
			 const struct model_options *options, struct diag *diag);
void model_free(struct model *m);
CLEANUP_DEFINE(struct model, model_free)

const struct model_info *model_info(const struct model *m);
const struct tokenizer *model_tokenizer(const struct model *m);
/* NULL where the model has none; one that is not recognised is not NULL, see chat-template.h. */
const struct chat_template *model_chat_template(const struct model *m);
uint32_t model_n_ctx(const struct model *m);

/* Fills n_layers .. kv_type and block_bytes; the pool fills the chunk fields. */
void model_geometry(const struct model *m, enum kb_kv_type kv_type, uint32_t block_tokens, struct kb_geometry *out);
/* Fills the dimensions; the caller sets max_rows, max_logits. */
void model_workspace_desc(const struct model *m, struct kb_workspace_desc *out);

/*
 * Records and submits one step over the batch; the caller waits with
 * step_wait() and reads step_logits(), step_hidden().  -ENOTSUP: hidden states
 * that the backend does not give.
 */
int model_step(struct model *m, struct kb_workspace *ws, const struct kb_batch *batch);

#endif
