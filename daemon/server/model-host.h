/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model-host.h - backend and engine, and how a file becomes a model in them.
 *
 * The cache on disk is opened and locked at once.  The engine is made with the first model, whose
 * context tells how much memory for keys and values is worth having where none was asked for.
 *
 * Thread: model_host_load() and model_host_unload() on any thread but the loop's, the
 * first on one at a time; they do what takes long.
 */
#ifndef KVD_SERVER_MODEL_HOST_H
#define KVD_SERVER_MODEL_HOST_H

#include <stdint.h>
#include <sys/types.h>

#include "daemon/engine/block-size.h"
#include "daemon/engine/engine.h"
#include "daemon/model/model.h"
#include "daemon/server/server.h"
#include "ipc/base/account.h"
#include "ipc/protocol.h"

struct fdstore;
struct store;
struct model_host;

/*
 * Opens backend and disk; config, accounts and fdstore outlive the host.  The engine gets what an earlier one left in
 * fdstore, and leaves its own there.  0 or -errno; diag says what is wrong.
 */
int model_host_new(struct model_host **out, const struct server_config *config, struct accounts *accounts,
		   struct fdstore *fdstore, struct diag *diag);
/* Ends the engine: every request gets its last record; then the disk.  Nothing loads any more. */
void model_host_stop(struct model_host *h);
/* After model_host_stop(), when every model is unloaded. */
void model_host_free(struct model_host *h);
CLEANUP_DEFINE(struct model_host, model_host_free)

/* Where a model comes from. */
struct model_source {
	const char *name;	/* that clients use */
	const char *path;	/* opened by us; NULL: */
	bool synthetic;		/* (path is "NAME:TYPE" of model/synthetic.h) */
	int fd;			/* this, of a client, which may be anything; taken over */
	uint32_t n_ctx;		/* 0: as configured */
	bool charged;		/* to uid's share of weights */
	uid_t uid;
	model_progress_fn progress;
	void *progress_arg;
};

struct hosted_model {
	struct model *model;
	struct engine_model *engine_model;
	enum block_size_origin block_origin;
	uint64_t max_prompt;	/* bytes: no longer prompt fits the context, whatever it says */
	struct charge weights;
};

#define HOSTED_MODEL_NULL ((struct hosted_model){ 0 })

/*
 * Reads a file into a model that may have requests at once.  KVD_CODE_OK and *out; else why not, diag has the
 * sentence, and nothing is left behind.
 */
enum kvd_code model_host_load(struct model_host *h, struct hosted_model *out, const struct model_source *source,
			      struct diag *diag);
/* Frees it, once the engine has let go of it and nobody uses it. */
void model_host_unload(struct model_host *h, struct hosted_model *m);

/* NULL until a model was loaded; the loader's thread, or others that heard of that load. */
struct engine *model_host_engine(const struct model_host *h);

/* The cache on disk; NULL: there is none. */
struct store *model_host_store(const struct model_host *h);

const char *model_host_device(const struct model_host *h);	/* "cpu" */
const char *model_host_level(const struct model_host *h);	/* "avx2" */
uint32_t model_host_numerics(const struct model_host *h);	/* see kernels/backend.h */
uint32_t model_host_n_threads(const struct model_host *h);

#endif
