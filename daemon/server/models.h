/* SPDX-License-Identifier: Apache-2.0 */
/*
 * models.h - the table of models that are served: which there are, by what name, and
 * what waits for them.
 *
 *	            +--> READY --unload--> UNLOADING --> gone
 *	LOADING ----+
 *	            +--> FAILED: what waited is told why --> gone
 *
 * Models load one after another on a thread of their own.  A model that is
 * unloaded gets no more requests; when the jobs that refer to it have ended and, unless it
 * is to go at once, its requests too, the engine lets go of it, and a worker frees it.
 *
 * The default model is the oldest in the table that is not going.
 *
 * Thread: the loop thread, but for what is marked.
 */
#ifndef KVD_SERVER_MODELS_H
#define KVD_SERVER_MODELS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/server/mailbox.h"
#include "daemon/server/model-host.h"
#include "daemon/server/workers.h"
#include "ipc/base/account.h"
#include "ipc/base/list.h"
#include "ipc/protocol.h"

struct event_base;
struct models;

enum served_state { SERVED_LOADING, SERVED_READY, SERVED_UNLOADING, SERVED_FAILED };

/* Whoever asked for something and gets an answer: a session's key and the message's id.  0: nobody. */
struct models_asker {
	uint64_t session, message;
};

/*
 * A model in the table.  Workers may read name, hosted and info of one that they have
 * a reference to, once it is READY.
 */
struct served_model {
	struct list link;
	struct models *models;
	char name[KVD_MODEL_NAME_MAX + 1];
	enum served_state state;
	uid_t uid;			/* who had it loaded, */
	bool charged;			/* out of its share of weights */
	bool at_start;			/* named by the configuration */
	struct models_asker asker;	/* of the load */
	bool tell_progress;
	struct hosted_model hosted;	/* READY and UNLOADING */
	enum kvd_code code;		/* FAILED: why, */
	struct diag why;		/* in a sentence */

	atomic_bool going;		/* any thread: to go at once; what has not begun is refused */
	atomic_bool giving_up;		/* any thread: the load is not wanted any more */
	_Atomic unsigned percent;	/* any thread: loaded, 0..100 */

	/* models.c's. */
	unsigned refs;
	bool now, removing;
	struct list jobs;		/* struct model_job: wait until it is READY or FAILED */
	size_t n_jobs;
	struct list unloads;		/* of those that wait for its end */
	const char *path;
	bool synthetic;			/* path is no file's, but what is made up */
	int fd;
	uint32_t n_ctx;
	struct job load, release;
	struct mail removed;
	struct hosted_model moving;	/* the loader's, then a worker's that frees it */
};

struct models_config {
	const struct server_config *config;
	struct event_base *base;
	struct mailbox *mailbox;
	struct accounts *accounts;
	struct fdstore *fdstore;
	struct workers *workers;
	/* A load has ended: m is READY, or FAILED and about to go.  m->asker is who waits. */
	void (*loaded)(void *arg, struct served_model *m);
	/* m is gone, for each who waits for that; and once for nobody. */
	void (*unloaded)(void *arg, const struct served_model *m, const struct models_asker *asker);
	void *arg;
};

/* Opens the backend.  0 or -errno; diag. */
int models_new(struct models **out, const struct models_config *config, struct diag *diag);
/* From now on who finds no place, or is dropped, is told that the daemon stops. */
void models_close(struct models *t);
/*
 * Gives up what still loads, ends the engine (every request gets its last record), joins the
 * loader.  The workers have stopped; mail is delivered inside.
 */
void models_stop(struct models *t);
/* Stops it first, if need be; no job refers to a model any more. */
void models_free(struct models *t);
CLEANUP_DEFINE(struct models, models_free)

#define MODELS_E_EXISTS 1	/* the name is taken */
#define MODELS_E_FULL 2		/* KVD_MODELS_MAX are there */

struct models_load {
	const char *name;	/* valid; copied */
	const char *path;	/* of the configuration; outlives the table; NULL: */
	bool synthetic;		/* (path is "NAME:TYPE" of model/synthetic.h) */
	int fd;			/* this one, taken over on success */
	uint32_t n_ctx;		/* 0: as configured */
	uid_t uid;
	bool charged;		/* to the uid's share of weights */
	struct models_asker asker;
	bool tell_progress;	/* to the asker */
};
/* Queues a load.  0; MODELS_E_*; -ENOMEM. */
int models_load(struct models *t, const struct models_load *load);
/* The session is gone, or cancels the load with this message (0: all of its loads). */
void models_give_up(struct models *t, const struct models_asker *asker);
/*
 * asker is told when it is gone.  now: requests are not waited for.  A load that has not
 * ended is given up.  0 or -ENOMEM.
 */
int models_unload(struct served_model *m, bool now, const struct models_asker *asker);

/* By name, whatever its state; NULL: there is none. */
struct served_model *models_find(const struct models *t, const char *name);
/*
 * For a request: the model of this name, or the default one (NULL), LOADING or READY.
 * NULL: there is none; diag says so, and which there are.
 */
struct served_model *models_choose(const struct models *t, const char *name, struct diag *diag);
struct served_model *models_default(const struct models *t);	/* NULL: none */
/* The one that the engine knows as this, NULL if it is gone. */
const struct served_model *models_of_engine(const struct models *t, const struct engine_model *em);
/* In the order of the table; prev NULL: the first. */
struct served_model *models_next(const struct models *t, const struct served_model *prev);

unsigned models_count(const struct models *t);		/* READY ones */
bool models_starting(const struct models *t);		/* one of the configuration has not loaded yet */
bool models_loading(const struct models *t);		/* any */
unsigned models_percent(const struct models *t);	/* of what loads; 100: nothing does */
uint64_t models_weight_bytes(const struct models *t);
const struct model_host *models_host(const struct models *t);
/* NULL while no model has been loaded. */
struct engine *models_engine(const struct models *t);

/*
 * A job (workers.h) that needs a model: it refers to it, and waits until it is there.
 * job.uid, run and done are set by the caller; done() is called with job.dropped where run() was not,
 * be it that the model could not be loaded (model->state is FAILED then).
 */
struct model_job {
	struct job job;
	struct served_model *model;	/* until model_job_end() */
	struct list link;
	bool waiting;
};
/* 0; WORKERS_E_FULL. */
int model_job_start(struct model_job *j, struct served_model *m);
/* The same, where m is READY, on other workers than those that tokenise; model_job_drop() is not for it. */
int model_job_start_on(struct model_job *j, struct served_model *m, struct workers *workers);
/* done() comes soon without run(), or inside, if no worker has taken the job yet. */
void model_job_drop(struct model_job *j);
/* Why the workers did not take a job, with a sentence: there are too many, or the daemon stops. */
enum kvd_code models_no_place(const struct models *t, struct diag *why);
/* In done(), where run() was not called and nobody dropped the job: why, with a sentence. */
enum kvd_code model_job_why(const struct model_job *j, struct diag *why);
/* In done(), or where it was never started: the reference goes. */
void model_job_end(struct model_job *j);

#endif
