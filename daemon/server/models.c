/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/models.h"

#include <errno.h>
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ipc/base/checked.h"
#include "ipc/base/fd.h"
#include "ipc/fdpass.h"

#define JOBS_MAX 1024		/* that wait for one model */
#define DRAIN_US 20000		/* between two looks at requests that have to end */

struct models {
	struct models_config config;
	struct model_host *host;
	struct workers *loader;		/* one thread: loads come one after another */
	struct list list;		/* struct served_model, oldest first */
	size_t n;
	struct event *drain_timer;
	bool closing;			/* what does not run yet never will */
	bool stopping;			/* there is no engine any more */
};

/* Someone who waits for a model's end. */
struct unload {
	struct list link;
	struct models_asker asker;
};

/* --- lookups ------------------------------------------------------------------------ */

#define for_each_model(m, t) \
	for (struct served_model *m = models_next((t), NULL); m; m = models_next((t), m))

struct served_model *models_next(const struct models *t, const struct served_model *prev)
{
	const struct list *next = prev ? prev->link.next : t->list.next;

	return next == &t->list ? NULL : list_entry(next, struct served_model, link);
}

struct served_model *models_find(const struct models *t, const char *name)
{
	for_each_model(m, t)
		if (strcmp(m->name, name) == 0)
			return m;
	return NULL;
}

static bool takes_requests(const struct served_model *m)
{
	return m->state == SERVED_LOADING || m->state == SERVED_READY;
}

struct served_model *models_default(const struct models *t)
{
	for_each_model(m, t)
		if (takes_requests(m))
			return m;
	return NULL;
}

static void list_names(const struct models *t, char *out, size_t size)
{
	size_t n = 0;

	out[0] = '\0';
	for_each_model(m, t) {
		if (takes_requests(m) && n < size)
			n += (size_t)snprintf(out + n, size - n, "%s\"%s\"", n ? ", " : "", m->name);
	}
}

struct served_model *models_choose(const struct models *t, const char *name, struct diag *diag)
{
	struct served_model *m = name ? models_find(t, name) : models_default(t);
	char names[160];

	if (m && takes_requests(m))
		return m;
	if (!models_default(t)) {
		diag_write(diag, "no model is loaded");
		return NULL;
	}
	list_names(t, names, sizeof(names));
	if (m)
		diag_write(diag, "the model \"%s\" is being unloaded; there is %s", name, names);
	else
		diag_write(diag, "there is no model \"%.60s\"; there is %s", name, names);
	return NULL;
}

const struct served_model *models_of_engine(const struct models *t, const struct engine_model *em)
{
	for_each_model(m, t)
		if (m->hosted.engine_model == em)
			return m;
	return NULL;
}

unsigned models_count(const struct models *t)
{
	unsigned n = 0;

	for_each_model(m, t)
		n += m->state == SERVED_READY;
	return n;
}

bool models_starting(const struct models *t)
{
	for_each_model(m, t)
		if (m->at_start && m->state == SERVED_LOADING)
			return true;
	return false;
}

bool models_loading(const struct models *t)
{
	for_each_model(m, t)
		if (m->state == SERVED_LOADING)
			return true;
	return false;
}

unsigned models_percent(const struct models *t)
{
	for_each_model(m, t)
		if (m->state == SERVED_LOADING)
			return atomic_load(&m->percent);
	return 100;
}

uint64_t models_weight_bytes(const struct models *t)
{
	uint64_t sum = 0;

	for_each_model(m, t)
		sum += m->hosted.model ? model_info(m->hosted.model)->weight_bytes : 0;
	return sum;
}

const struct model_host *models_host(const struct models *t)
{
	return t->host;
}

struct engine *models_engine(const struct models *t)
{
	return model_host_engine(t->host);
}

/* --- jobs that need a model ----------------------------------------------------------- */

int model_job_start(struct model_job *j, struct served_model *m)
{
	int r = 0;

	j->model = m;	/* before a worker sees it */
	if (m->state == SERVED_READY) {
		r = workers_submit(m->models->config.workers, &j->job);
	} else if (m->n_jobs >= JOBS_MAX) {
		r = WORKERS_E_FULL;
	} else {
		list_push_back(&m->jobs, &j->link);
		m->n_jobs++;
		j->waiting = true;
	}
	if (r)
		j->model = NULL;
	else
		m->refs++;
	return r;
}

int model_job_start_on(struct model_job *j, struct served_model *m, struct workers *workers)
{
	int r;

	j->model = m;	/* before a worker sees it */
	r = workers_submit(workers, &j->job);
	if (r)
		j->model = NULL;
	else
		m->refs++;
	return r;
}

static void stop_waiting(struct model_job *j)
{
	list_unlink(&j->link);
	j->model->n_jobs--;
	j->waiting = false;
}

static void drop_waiting(struct model_job *j)
{
	stop_waiting(j);
	j->job.dropped = true;
	j->job.done(&j->job);
}

void model_job_drop(struct model_job *j)
{
	if (j->waiting)
		drop_waiting(j);
	else
		workers_drop(j->model->models->config.workers, &j->job);
}

enum kvd_code models_no_place(const struct models *t, struct diag *why)
{
	*why = DIAG_NULL;
	if (t->closing) {
		diag_write(why, "the daemon is stopping");
		return KVD_CODE_SHUTDOWN;
	}
	diag_write(why, "the queue is full; try again later");
	return KVD_CODE_BUSY;
}

enum kvd_code model_job_why(const struct model_job *j, struct diag *why)
{
	if (j->model->code != KVD_CODE_OK && !j->model->models->closing) {
		diag_write(why, "the model cannot be loaded: %s", j->model->why.text);
		return KVD_CODE_NO_MODEL;
	}
	return models_no_place(j->model->models, why);
}

static void go_on(struct served_model *m);

void model_job_end(struct model_job *j)
{
	struct served_model *m = j->model;

	if (!m)
		return;
	j->model = NULL;
	m->refs--;
	go_on(m);
}

/* It is there, or will not be: what waited goes to the workers, or learns so. */
static void release_jobs(struct served_model *m)
{
	while (!list_empty(&m->jobs)) {
		struct model_job *j = list_entry(m->jobs.next, struct model_job, link);

		if (m->state != SERVED_READY || workers_submit(m->models->config.workers, &j->job))
			drop_waiting(j);
		else
			stop_waiting(j);
	}
}

/* --- the end of a model ---------------------------------------------------------------- */

static void forget(struct served_model *m)
{
	struct models *t = m->models;

	list_unlink(&m->link);
	t->n--;
	t->config.unloaded(t->config.arg, m, NULL);
	while (!list_empty(&m->unloads)) {
		struct unload *u = list_entry(m->unloads.next, struct unload, link);

		list_unlink(&u->link);
		t->config.unloaded(t->config.arg, m, &u->asker);
		free(u);
	}
	fdpass_close_receivedp(&m->fd);
	free(m);
}

/* On a worker. */
static void run_release(struct job *job)
{
	struct served_model *m = list_entry(job, struct served_model, release);

	model_host_unload(m->models->host, &m->moving);
}

static void done_release(struct job *job)
{
	struct served_model *m = list_entry(job, struct served_model, release);

	if (job->dropped)
		run_release(job);
	forget(m);
}

/* The engine has let go of it. */
static void deliver_removed(struct mail *mail)
{
	struct served_model *m = list_entry(mail, struct served_model, removed);

	m->moving = m->hosted;
	m->hosted = HOSTED_MODEL_NULL;
	m->release = (struct job){ .uid = m->uid, .run = run_release, .done = done_release };
	/* The workers' queue is full, or they have stopped. */
	if (workers_submit(m->models->config.workers, &m->release)) {
		run_release(&m->release);
		forget(m);
	}
}

/* On the engine's thread. */
static void on_removed(void *arg)
{
	struct served_model *m = arg;

	mailbox_post(m->models->config.mailbox, &m->removed);
}

static bool has_requests(const struct served_model *m)
{
	struct engine_model_stats stats;

	engine_model_stats(models_engine(m->models), m->hosted.engine_model, &stats);
	return stats.n_requests > 0;
}

/* One step further to its end, if nothing keeps it. */
static void go_on(struct served_model *m)
{
	struct models *t = m->models;
	struct timeval soon = { .tv_usec = DRAIN_US };

	if (t->stopping || m->removing || m->refs)
		return;
	if (m->state == SERVED_FAILED) {
		forget(m);
		return;
	}
	if (m->state != SERVED_UNLOADING)
		return;
	if (!m->now && has_requests(m)) {
		event_add(t->drain_timer, &soon);
		return;
	}
	m->removing = true;
	m->removed.deliver = deliver_removed;
	/* Fails only when the engine stops, which lets go of all models. */
	(void)engine_remove_model(models_engine(t), m->hosted.engine_model, on_removed, m);
}

static void on_drain(evutil_socket_t fd, short what, void *arg)
{
	struct models *t = arg;

	for (struct served_model *m = models_next(t, NULL), *next; m; m = next) {
		next = models_next(t, m);
		go_on(m);
	}
}

static void begin_unload(struct served_model *m, bool now)
{
	m->state = SERVED_UNLOADING;
	m->now |= now;
	if (now)
		atomic_store(&m->going, true);
	go_on(m);
}

int models_unload(struct served_model *m, bool now, const struct models_asker *asker)
{
	struct unload *u = calloc(1, sizeof(*u));

	if (!u)
		return -ENOMEM;
	u->asker = *asker;
	list_push_back(&m->unloads, &u->link);
	if (m->state == SERVED_LOADING)
		atomic_store(&m->giving_up, true);
	else if (m->state != SERVED_FAILED)
		begin_unload(m, now);
	return 0;
}

/* --- loading --------------------------------------------------------------------------- */

static bool on_progress(void *arg, uint64_t done, uint64_t total)
{
	struct served_model *m = arg;
	uint64_t delay = m->models->config.config->load_delay_ns;

	if (delay)
		nanosleep(&(struct timespec){ (time_t)(delay / 1000000000), (long)(delay % 1000000000) }, NULL);
	/* 100 is kept for "ready". */
	atomic_store(&m->percent, total ? (unsigned)MIN(done / (total / 100 + 1), (uint64_t)99) : 0);
	return !atomic_load(&m->giving_up);
}

/* On the loader's thread; m->moving, code and why are its own until the job is done. */
static void run_load(struct job *job)
{
	struct served_model *m = list_entry(job, struct served_model, load);
	struct model_source source = {
		.name = m->name, .path = m->path, .synthetic = m->synthetic, .n_ctx = m->n_ctx,
		.charged = m->charged, .uid = m->uid,
		.progress = on_progress, .progress_arg = m,
	};

	if (atomic_load(&m->giving_up)) {
		m->code = KVD_CODE_CANCELLED;
		fdpass_close_receivedp(&m->fd);
		return;
	}
	source.fd = fd_steal(&m->fd);
	m->code = model_host_load(m->models->host, &m->moving, &source, &m->why);
}

static void done_load(struct job *job)
{
	struct served_model *m = list_entry(job, struct served_model, load);
	struct models *t = m->models;

	if (m->code == KVD_CODE_OK && !job->dropped) {
		m->hosted = m->moving;
		m->moving = HOSTED_MODEL_NULL;
		m->state = SERVED_READY;
		atomic_store(&m->percent, 100);
	} else {
		if (job->dropped || t->closing)
			m->code = KVD_CODE_SHUTDOWN;
		if (m->code == KVD_CODE_CANCELLED || m->code == KVD_CODE_SHUTDOWN)
			m->why = DIAG_NULL;
		diag_write(&m->why, "%s", m->code == KVD_CODE_CANCELLED ? "the load was given up" :
			   "the daemon is stopping");
		m->state = SERVED_FAILED;
	}
	m->refs++;	/* it stays until all have been told */
	/* Given up in the last moment: it goes as it came. */
	if (m->state == SERVED_READY && atomic_load(&m->giving_up)) {
		m->code = KVD_CODE_CANCELLED;
		diag_write(&m->why, "the load was given up");
		begin_unload(m, true);
	}
	release_jobs(m);
	t->config.loaded(t->config.arg, m);
	m->refs--;
	go_on(m);
}

int models_load(struct models *t, const struct models_load *load)
{
	struct served_model *m;
	int r;

	if (models_find(t, load->name))
		return MODELS_E_EXISTS;
	if (t->n >= KVD_MODELS_MAX)
		return MODELS_E_FULL;
	m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	snprintf(m->name, sizeof(m->name), "%s", load->name);
	m->models = t;
	m->uid = load->uid;
	m->at_start = load->path != NULL;
	m->asker = load->asker;
	m->tell_progress = load->tell_progress;
	m->path = load->path;
	m->synthetic = load->synthetic;
	m->fd = load->path ? -1 : load->fd;
	m->n_ctx = load->n_ctx;
	m->charged = load->charged;
	m->load = (struct job){ .uid = load->uid, .run = run_load, .done = done_load };
	list_init(&m->jobs);
	list_init(&m->unloads);
	r = workers_submit(t->loader, &m->load);
	if (r) {
		free(m);
		return MODELS_E_FULL;
	}
	list_push_back(&t->list, &m->link);
	t->n++;
	return 0;
}

void models_give_up(struct models *t, const struct models_asker *asker)
{
	for_each_model(m, t) {
		if (m->state == SERVED_LOADING && m->asker.session == asker->session &&
		    (!asker->message || m->asker.message == asker->message))
			atomic_store(&m->giving_up, true);
	}
}

/* --- life -------------------------------------------------------------------------------- */

int models_new(struct models **out, const struct models_config *config, struct diag *diag)
{
	_cleanup_(models_freep) struct models *t = calloc(1, sizeof(*t));
	int r;

	if (!t)
		return -ENOMEM;
	t->config = *config;
	list_init(&t->list);
	t->drain_timer = event_new(config->base, -1, 0, on_drain, t);
	if (!t->drain_timer)
		return -ENOMEM;
	r = model_host_new(&t->host, config->config, config->accounts, config->fdstore, diag);
	if (!r)
		r = workers_new(&t->loader, config->mailbox, KVD_MODELS_MAX);
	if (!r)
		r = workers_start(t->loader, 1, "kvd-loader");
	if (r)
		return r;
	*out = steal_ptr(t);
	return 0;
}

void models_close(struct models *t)
{
	t->closing = true;
}

void models_stop(struct models *t)
{
	if (!t || t->stopping)
		return;
	models_close(t);
	for_each_model(m, t)
		atomic_store(&m->giving_up, true);
	workers_stop(t->loader);
	/* Loads that have ended are told so. */
	mailbox_deliver(t->config.mailbox);
	t->stopping = true;
	model_host_stop(t->host);
	/* Models that the engine let go of are freed. */
	mailbox_deliver(t->config.mailbox);
}

void models_free(struct models *t)
{
	if (!t)
		return;
	if (t->loader)
		models_stop(t);
	while (!list_empty(&t->list)) {
		struct served_model *m = list_entry(t->list.next, struct served_model, link);

		list_unlink(&m->link);
		while (!list_empty(&m->unloads)) {
			struct unload *u = list_entry(m->unloads.next, struct unload, link);

			list_unlink(&u->link);
			free(u);
		}
		if (t->host) {
			model_host_unload(t->host, &m->hosted);
			model_host_unload(t->host, &m->moving);
		}
		fdpass_close_receivedp(&m->fd);
		free(m);
	}
	workers_free(t->loader);
	model_host_free(t->host);
	if (t->drain_timer)
		event_free(t->drain_timer);
	free(t);
}
