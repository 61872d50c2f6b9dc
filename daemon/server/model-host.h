/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model-host.h - backend, model and engine of the one model that is served, and
 * the thread that brings them up.
 *
 * States: LOADING -> READY | FAILED.  The state changes on the loop thread,
 * inside the `settled` callback's delivery; engine and model are valid from then
 * on, for any thread that was started or told afterwards.
 */
#ifndef KVD_SERVER_MODEL_HOST_H
#define KVD_SERVER_MODEL_HOST_H

#include <stdint.h>

#include "daemon/engine/engine.h"
#include "daemon/model/model.h"
#include "daemon/server/mailbox.h"
#include "daemon/server/server.h"
#include "ipc/base/account.h"

struct model_host;

enum model_host_state { MODEL_HOST_LOADING, MODEL_HOST_READY, MODEL_HOST_FAILED };

/* Runs on the loop thread, once. */
typedef void (*model_host_settled_fn)(void *arg);

/* Starts the loading; config and accounts outlive the host.  0 or -errno. */
int model_host_new(struct model_host **out, const struct server_config *config, struct accounts *accounts,
		   struct mailbox *mailbox, model_host_settled_fn settled, void *arg);
/* Gives up a load that still runs and joins its thread; ends the engine (every
 * request gets its last record).  The host's mail is delivered or void afterwards. */
void model_host_stop(struct model_host *h);
/* After model_host_stop(). */
void model_host_free(struct model_host *h);
CLEANUP_DEFINE(struct model_host, model_host_free)

enum model_host_state model_host_state(const struct model_host *h);
unsigned model_host_percent(const struct model_host *h);	/* loaded, 0..100 */
/* FAILED: why. */
const char *model_host_error(const struct model_host *h);

/* READY only; NULL before. */
struct engine *model_host_engine(const struct model_host *h);
struct engine_model *model_host_engine_model(const struct model_host *h);
const struct model *model_host_model(const struct model_host *h);

struct model_host_info {
	const char *device, *level;	/* "cpu", "avx2" */
	uint32_t n_threads;
	uint64_t kv_memory;		/* as chosen */
	uint32_t block_tokens;
	uint64_t max_prompt;		/* bytes: no longer prompt fits the context, whatever it says */
};
/* READY only. */
const struct model_host_info *model_host_info(const struct model_host *h);

#endif
