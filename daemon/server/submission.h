/* SPDX-License-Identifier: Apache-2.0 */
/*
 * submission.h - a prompt on its way to the engine: copied, waiting for a
 * worker that renders and tokenises it, then submitted.
 *
 * It knows no protocol and no kind of client: parts are memory of its own, results go
 * to a sink, and what is refused before the engine has it goes to a callback.
 */
#ifndef KVD_SERVER_SUBMISSION_H
#define KVD_SERVER_SUBMISSION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/engine/engine.h"
#include "daemon/server/models.h"
#include "ipc/base/account.h"
#include "ipc/protocol.h"

/* A stretch of the prompt: bytes of text, or ids. */
struct submission_part {
	const char *role;		/* in a chat */
	enum kvd_part_kind kind;
	const uint8_t *data;		/* ids: aligned for int32_t */
	size_t n_bytes;
};

/* Why the engine did not get it. */
struct submission_refusal {
	enum kvd_code code;	/* KVD_CODE_OK: it did */
	char field[KVD_FIELD_MAX + 1];
	struct diag message;
	uint64_t count;
};

/*
 * Made on the loop thread.  The worker sets `refusal` before `ended` runs; `submitted`
 * and `cancelled` are shared.
 */
struct submission {
	struct model_job job;
	struct list link;		/* the owner's */
	void *owner;			/* the owner's; loop thread */
	struct engine *engine;		/* once a worker has it */

	uint64_t client, id;
	uid_t uid;
	struct sink *sink;
	struct submission_part *parts;	/* [n_parts] */
	size_t n_parts;
	bool is_chat, special, bos;
	struct engine_request_params params;	/* what it points to lives in `strings` */

	uint8_t *data;			/* the parts' bytes */
	void *strings;			/* freed by free_strings */
	void (*free_strings)(void *strings);
	struct charge request;		/* until the engine has it, which charges it itself */
	struct charge memory;		/* of data */

	atomic_bool cancelled;		/* by submission_cancel() */
	atomic_bool submitted;		/* the engine has (or had) it */
	uint64_t created_ns;
	struct submission_refusal refusal;

	/* Loop thread, once: the worker is through with it.  Frees it. */
	void (*ended)(struct submission *s);
};

/* A zeroed one for so many parts.  NULL: no memory. */
struct submission *submission_new(size_t n_parts);
/*
 * Charges a request and n_bytes of prompt to the account (s->request, s->memory).  0; 1: why is filled in, and
 * nothing more is to be done with s than to free it.
 */
int submission_charge(struct submission *s, struct accounts *accounts, uid_t account, uint64_t n_bytes,
		      struct submission_refusal *why);
/* A seed that nobody knows beforehand. */
uint64_t submission_random_seed(void);
/* Makes room in data.  0 or -ENOMEM. */
int submission_reserve(struct submission *s, size_t n_bytes);
void submission_free(struct submission *s);
CLEANUP_DEFINE(struct submission, submission_free)

/*
 * Whether no prompt of so many bytes fits the model's context, whatever it says; then *why
 * is filled in.  False while the model is loading.  So no worker is kept busy for long.
 */
bool submission_too_long(const struct served_model *m, uint64_t n_bytes, struct submission_refusal *why);

/* Loop thread.  For this model, which may still be loading.  0 or WORKERS_E_FULL; then s is still the caller's. */
int submission_start(struct submission *s, struct served_model *m);

/*
 * Loop thread: the request is not wanted any more.  Works before, while and after
 * the engine gets it; `ended` may run inside.
 */
void submission_cancel(struct submission *s);

#endif
