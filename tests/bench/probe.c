/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that begin together and take pieces of the work. */
#include "tests/bench/probe.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/clock.h"
#include "tests/bench/probe-ways.h"

#define HUGE_PAGE (2u << 20)
#define TURNS 1000000u	/* of an arithmetic loop: milliseconds */

struct probe {
	uint32_t n_threads;
	uint64_t n_pieces;
	char *buffer;
};

enum { PROBE_WAIT, PROBE_GO, PROBE_GIVE_UP };

/* What all threads of one measurement share. */
struct task {
	atomic_int start;
	_Atomic uint64_t next;		/* piece */
	uint64_t n;			/* pieces in all */
	const struct probe *probe;	/* reading */
	const struct probe_read_way *way;
	probe_arithmetic_fn arithmetic;
};

struct worker {
	pthread_t thread;
	struct task *task;
	uint64_t begun, ended;	/* ns */
	volatile uint64_t sum;	/* so that the work is needed */
};

int probe_new(struct probe **out, uint32_t n_threads, uint64_t bytes)
{
	_cleanup_(probe_freep) struct probe *p = calloc(1, sizeof(*p));
	uint64_t size;

	if (!p)
		return -ENOMEM;
	p->n_threads = n_threads;
	size = (bytes + HUGE_PAGE - 1) & ~(uint64_t)(HUGE_PAGE - 1);
	p->n_pieces = size / PROBE_PIECE;
	p->buffer = aligned_alloc(HUGE_PAGE, size);
	if (!p->buffer)
		return -ENOMEM;
	madvise(p->buffer, size, MADV_HUGEPAGE);
	memset(p->buffer, 1, size);
	*out = steal_ptr(p);
	return 0;
}

void probe_free(struct probe *p)
{
	if (!p)
		return;
	free(p->buffer);
	free(p);
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;
	struct task *t = w->task;
	uint64_t sum = 0, i;
	int start;

	while ((start = atomic_load(&t->start)) == PROBE_WAIT)
		sched_yield();
	if (start == PROBE_GIVE_UP)
		return NULL;
	w->begun = clock_ns();
	while ((i = atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed)) < t->n) {
		if (t->arithmetic)
			sum += t->arithmetic(TURNS);
		else
			sum += t->way->read(t->probe->buffer + i % t->probe->n_pieces * PROBE_PIECE);
	}
	w->ended = clock_ns();
	w->sum = sum;
	return NULL;
}

/* Runs the task by n threads; seconds from the first one's begin to the last one's end. */
static int run_task(struct task *t, uint32_t n, double *seconds)
{
	_cleanup_(freep) struct worker *workers = calloc(n, sizeof(*workers));
	uint64_t begun = UINT64_MAX, ended = 0;
	uint32_t made = 0;
	int r = 0;

	if (!workers)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		workers[i].task = t;
	/* The last one is this thread. */
	while (!r && made + 1 < n) {
		r = -pthread_create(&workers[made].thread, NULL, worker_main, &workers[made]);
		made += !r;
	}
	atomic_store(&t->start, r ? PROBE_GIVE_UP : PROBE_GO);
	if (!r)
		worker_main(&workers[made]);
	for (uint32_t i = 0; i < made; i++)
		pthread_join(workers[i].thread, NULL);
	if (r)
		return r;
	for (uint32_t i = 0; i < n; i++) {
		begun = workers[i].begun < begun ? workers[i].begun : begun;
		ended = workers[i].ended > ended ? workers[i].ended : ended;
	}
	*seconds = (double)(ended - begun) / 1e9;
	return 0;
}

uint32_t probe_n_ways(void)
{
	return probe_read_ways(NULL);
}

const char *probe_way(uint32_t way)
{
	const struct probe_read_way *ways;

	return way < probe_read_ways(&ways) ? ways[way].name : "";
}

int probe_read(struct probe *p, uint32_t way, uint64_t bytes, double *rate)
{
	const struct probe_read_way *ways;
	struct task t = { .probe = p, .n = (bytes / PROBE_PIECE / p->n_pieces + 1) * p->n_pieces };
	double seconds;
	int r;

	if (way >= probe_read_ways(&ways))
		return -EINVAL;
	t.way = &ways[way];
	r = run_task(&t, p->n_threads, &seconds);
	if (r)
		return r;
	*rate = (double)t.n * PROBE_PIECE / seconds;
	return 0;
}

int probe_read_best(struct probe *p, uint64_t bytes, uint32_t tries, double *rate, uint32_t *way)
{
	double best = 0, now;
	uint32_t found = 0;

	for (uint32_t i = 0; i < tries * probe_n_ways(); i++) {
		int r = probe_read(p, i % probe_n_ways(), bytes, &now);

		if (r)
			return r;
		if (now > best) {
			best = now;
			found = i % probe_n_ways();
		}
	}
	*rate = best;
	*way = found;
	return 0;
}

int probe_arithmetic(uint32_t n_threads, enum probe_kind kind, const char *level, double *rate,
		     const char **what)
{
	const struct probe_arithmetic_way *way = probe_arithmetic_way(kind, level);
	struct task t = { .n = 4 * n_threads };
	double seconds;
	int r;

	if (!way)
		return -ENOTSUP;
	t.arithmetic = way->run;
	r = run_task(&t, n_threads, &seconds);
	if (r)
		return r;
	*rate = (double)t.n * TURNS * way->products / seconds;
	*what = way->name;
	return 0;
}
