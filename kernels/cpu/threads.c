/* SPDX-License-Identifier: Apache-2.0 */
#include "threads.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CACHE_LINE 64
/* Pauses before sleeping, 20 to 80 microseconds: above the gap between two
 * phases, below what a sleeping thread costs to wake. */
#define SPIN_PAUSES 1500

struct worker {
	struct kc_threads *threads;
	uint32_t index;
	pthread_t thread;
};

struct kc_threads {
	/* {sequence number of the phase : 32, tasks not yet taken : 32} */
	_Alignas(CACHE_LINE) _Atomic uint64_t work;
	/* Tasks of the phase that are finished. */
	_Alignas(CACHE_LINE) _Atomic uint32_t n_done;
	/* Sleepers wait for it to change: a phase was published or the list has ended. */
	_Alignas(CACHE_LINE) _Atomic uint32_t epoch;
	_Atomic uint32_t n_sleeping;
	/* Those that don't take part wait for this: n_active has changed. */
	_Atomic uint32_t roster;
	_Atomic uint32_t n_active;
	_Atomic bool finished, stop;

	/* Written by the publisher alone, read after a task was taken. */
	_Alignas(CACHE_LINE) const struct kc_phase *phases;
	uint32_t n_phases, current;
	uint32_t sequence;

	bool running;
	uint32_t n_threads, n_started, spin;
	struct worker *workers;
};

static inline void cpu_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/*
 * Sleep and wake: a sleeper counts itself, then looks again; a waker changes
 * what is looked at, then reads the count.  All are seq_cst, so one of them
 * sees the other.
 */
static void wake(struct kc_threads *t)
{
	atomic_fetch_add(&t->epoch, 1);
	if (atomic_load(&t->n_sleeping))
		futex_wake_all(&t->epoch);
}

/* Runs phases of one task, then publishes the next with several, or the end. */
static void advance(struct kc_threads *t, uint32_t thread)
{
	for (;;) {
		const struct kc_phase *p;

		if (t->current == t->n_phases) {
			atomic_store(&t->finished, true);
			wake(t);
			return;
		}
		p = &t->phases[t->current];
		if (p->n_tasks > 1) {
			atomic_store_explicit(&t->n_done, 0, memory_order_relaxed);
			atomic_store(&t->work, (uint64_t)++t->sequence << 32 | p->n_tasks);
			wake(t);
			return;
		}
		if (p->n_tasks)
			p->run(p, 0, thread);
		t->current++;
	}
}

/* Takes and runs one task; false: none left now. */
static bool run_one(struct kc_threads *t, uint32_t thread)
{
	uint64_t work = atomic_load(&t->work);
	const struct kc_phase *p;
	uint32_t n_tasks;

	do {
		/* Read after the work: who takes part was settled before it was published. */
		if (!(uint32_t)work || thread >= atomic_load_explicit(&t->n_active, memory_order_relaxed))
			return false;
	} while (!atomic_compare_exchange_weak(&t->work, &work, work - 1));

	/* The phase can't end before this task does, so its description stands. */
	p = &t->phases[t->current];
	n_tasks = p->n_tasks;
	p->run(p, n_tasks - (uint32_t)work, thread);
	if (atomic_fetch_add(&t->n_done, 1) + 1 == n_tasks) {
		t->current++;
		advance(t, thread);
	}
	return true;
}

static bool idle(struct kc_threads *t, uint32_t thread)
{
	if (atomic_load(&t->stop) || (!thread && atomic_load(&t->finished)))
		return false;
	return !(uint32_t)atomic_load(&t->work);
}

/* Sleeps while this thread does not take part. */
static void wait_for_roster(struct kc_threads *t, uint32_t thread)
{
	uint32_t roster = atomic_load(&t->roster);

	if (thread >= atomic_load(&t->n_active) && !atomic_load(&t->stop))
		futex_wait(&t->roster, roster);
}

/* Returns when there may be something to do. */
static void wait_for_work(struct kc_threads *t, uint32_t thread)
{
	uint32_t epoch;

	for (uint32_t i = 0; i < t->spin; i++) {
		if (!idle(t, thread))
			return;
		cpu_pause();
	}
	epoch = atomic_load(&t->epoch);
	atomic_fetch_add(&t->n_sleeping, 1);
	if (idle(t, thread))
		futex_wait(&t->epoch, epoch);
	atomic_fetch_sub(&t->n_sleeping, 1);
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;

	while (!atomic_load(&w->threads->stop)) {
		if (w->index >= kc_threads_active(w->threads))
			wait_for_roster(w->threads, w->index);
		else if (!run_one(w->threads, w->index))
			wait_for_work(w->threads, w->index);
	}
	return NULL;
}

static int start_workers(struct kc_threads *t)
{
	sigset_t all, old;
	int r = 0;

	/* Signals are for the program's own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	for (uint32_t i = 1; i < t->n_threads; i++) {
		struct worker *w = &t->workers[i];

		w->threads = t;
		w->index = i;
		r = -pthread_create(&w->thread, NULL, worker_main, w);
		if (r)
			break;
		t->n_started++;
		pthread_setname_np(w->thread, "kb-cpu");
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return r;
}

int kc_threads_new(struct kc_threads **out, uint32_t n_threads)
{
	struct kc_threads *t = aligned_alloc(CACHE_LINE, sizeof(*t));
	int r;

	if (!t)
		return -ENOMEM;
	*t = (struct kc_threads){ .n_threads = n_threads, .finished = true };
	atomic_init(&t->n_active, n_threads);
	/* With one CPU the other side can't go on while we spin. */
	t->spin = n_threads > 1 && kc_allowed_cpus() > 1 ? SPIN_PAUSES : 0;
	t->workers = calloc(n_threads, sizeof(*t->workers));
	r = t->workers ? start_workers(t) : -ENOMEM;
	if (r) {
		kc_threads_free(t);
		return r;
	}
	*out = t;
	return 0;
}

void kc_threads_free(struct kc_threads *t)
{
	if (!t)
		return;
	atomic_store(&t->stop, true);
	wake(t);
	atomic_fetch_add(&t->roster, 1);
	futex_wake_all(&t->roster);
	for (uint32_t i = 1; i <= t->n_started; i++)
		pthread_join(t->workers[i].thread, NULL);
	free(t->workers);
	free(t);
}

uint32_t kc_threads_n(const struct kc_threads *t)
{
	return t->n_threads;
}

uint32_t kc_threads_active(const struct kc_threads *t)
{
	return atomic_load_explicit(&t->n_active, memory_order_relaxed);
}

int kc_threads_set_active(struct kc_threads *t, uint32_t n)
{
	if (!n || n > t->n_threads)
		return -EINVAL;
	if (t->running)
		return -EBUSY;
	atomic_store(&t->n_active, n);
	atomic_fetch_add(&t->roster, 1);
	futex_wake_all(&t->roster);
	return 0;
}

int kc_threads_start(struct kc_threads *t, const struct kc_phase *phases, uint32_t n_phases)
{
	if (t->running)
		return -EBUSY;
	t->running = true;
	t->phases = phases;
	t->n_phases = n_phases;
	t->current = 0;
	atomic_store(&t->finished, false);
	advance(t, 0);
	return 0;
}

void kc_threads_wait(struct kc_threads *t)
{
	if (!t->running)
		return;
	while (!atomic_load(&t->finished)) {
		if (!run_one(t, 0))
			wait_for_work(t, 0);
	}
	t->running = false;
}
