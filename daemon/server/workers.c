/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/workers.h"

#include <errno.h>
#include <pthread.h>

#define MAX_THREADS 16

struct workers {
	struct mailbox *mailbox;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct list queue;		/* of struct job, oldest first */
	size_t n_queued, max_queue;
	bool stopping;
	unsigned n_threads;
	const char *name;
	struct worker {
		struct workers *pool;
		pthread_t thread;
		struct job *running;
	} threads[MAX_THREADS];
};

static void deliver_done(struct mail *mail)
{
	struct job *job = list_entry(mail, struct job, mail);

	job->done(job);
}

static void finish(struct workers *w, struct job *job)
{
	job->mail.deliver = deliver_done;
	mailbox_post(w->mailbox, &job->mail);
}

int workers_new(struct workers **out, struct mailbox *mailbox, size_t max_queue)
{
	struct workers *w = calloc(1, sizeof(*w));

	if (!w)
		return -ENOMEM;
	w->mailbox = mailbox;
	w->max_queue = max_queue;
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->wake, NULL);
	list_init(&w->queue);
	*out = w;
	return 0;
}

void workers_free(struct workers *w)
{
	if (!w)
		return;
	workers_stop(w);
	pthread_cond_destroy(&w->wake);
	pthread_mutex_destroy(&w->lock);
	free(w);
}

int workers_submit(struct workers *w, struct job *job)
{
	int r = 0;

	job->dropped = false;
	pthread_mutex_lock(&w->lock);
	if (w->stopping || w->n_queued >= w->max_queue) {
		r = WORKERS_E_FULL;
	} else {
		list_push_back(&w->queue, &job->link);
		job->queued = true;
		w->n_queued++;
		pthread_cond_signal(&w->wake);
	}
	pthread_mutex_unlock(&w->lock);
	return r;
}

static void unlink_job(struct workers *w, struct job *job)
{
	list_unlink(&job->link);
	job->queued = false;
	w->n_queued--;
}

void workers_drop(struct workers *w, struct job *job)
{
	pthread_mutex_lock(&w->lock);
	if (job->queued) {
		unlink_job(w, job);
		job->dropped = true;
		finish(w, job);
	}
	pthread_mutex_unlock(&w->lock);
}

static unsigned n_running_of(const struct workers *w, uid_t uid)
{
	unsigned n = 0;

	for (unsigned i = 0; i < w->n_threads; i++) {
		if (w->threads[i].running && w->threads[i].running->uid == uid)
			n++;
	}
	return n;
}

/* The oldest job of the uid with the fewest running, NULL if none is queued. */
static struct job *take(struct workers *w)
{
	struct job *best = NULL;
	unsigned best_n = 0;

	list_for_each(e, &w->queue) {
		struct job *job = list_entry(e, struct job, link);
		unsigned n = n_running_of(w, job->uid);

		if (!best || n < best_n) {
			best = job;
			best_n = n;
		}
		if (best_n == 0)
			break;
	}
	if (best)
		unlink_job(w, best);
	return best;
}

static void *worker_main(void *arg)
{
	struct worker *self = arg;
	struct workers *w = self->pool;

	pthread_setname_np(pthread_self(), w->name);
	pthread_mutex_lock(&w->lock);
	while (!w->stopping) {
		struct job *job;

		job = self->running = take(w);
		if (!job) {
			pthread_cond_wait(&w->wake, &w->lock);
			continue;
		}
		pthread_mutex_unlock(&w->lock);
		job->run(job);
		pthread_mutex_lock(&w->lock);
		self->running = NULL;
		finish(w, job);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

int workers_start(struct workers *w, unsigned n, const char *name)
{
	int r = 0;

	if (n > MAX_THREADS)
		n = MAX_THREADS;
	pthread_mutex_lock(&w->lock);
	/* Those that run read it. */
	if (!w->n_threads)
		w->name = name;
	while (w->n_threads < n) {
		struct worker *t = &w->threads[w->n_threads];

		t->pool = w;
		r = -pthread_create(&t->thread, NULL, worker_main, t);
		if (r)
			break;
		w->n_threads++;
	}
	pthread_mutex_unlock(&w->lock);
	return w->n_threads ? 0 : r;
}

void workers_stop(struct workers *w)
{
	pthread_mutex_lock(&w->lock);
	w->stopping = true;
	pthread_cond_broadcast(&w->wake);
	while (!list_empty(&w->queue)) {
		struct job *job = list_entry(w->queue.next, struct job, link);

		unlink_job(w, job);
		job->dropped = true;
		finish(w, job);
	}
	pthread_mutex_unlock(&w->lock);
	for (unsigned i = 0; i < w->n_threads; i++)
		pthread_join(w->threads[i].thread, NULL);
	w->n_threads = 0;
}
