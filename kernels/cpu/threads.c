/* SPDX-License-Identifier: Apache-2.0 */
#include "threads.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CACHE_LINE 64
/* Pauses before sleeping, 20 to 80 microseconds: above the gap between two
 * phases, below what a sleeping thread costs to wake. */
#define SPIN_PAUSES 1500

/* Tasks of a phase are dealt in at most so many pieces: places in a share have 16 bits. */
#define MAX_PIECES 65535u

struct worker {
	struct kc_threads *threads;
	uint32_t index;
	pthread_t thread;
	/* {sequence number of the phase : 32, first piece not yet taken : 16, the end of those : 16} */
	_Alignas(CACHE_LINE) _Atomic uint64_t share;
};

struct kc_threads {
	/* Tasks of the phase that are finished. */
	_Alignas(CACHE_LINE) _Atomic uint32_t n_done;
	/* Changes when a phase was published, or the list has ended; sleepers wait for that. */
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
	uint32_t tasks_per_piece;

	bool running;
	uint32_t n_threads, n_started, spin;
	struct worker *workers;	/* [n_threads], the owner's first */
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

/* Deals the phase's tasks: to each thread a part that is as long as the others' and in one piece. */
static void publish(struct kc_threads *t, uint32_t n_tasks)
{
	uint64_t n_active = kc_threads_active(t), n_pieces, begin = 0;

	t->tasks_per_piece = n_tasks / MAX_PIECES + 1;
	n_pieces = (n_tasks + t->tasks_per_piece - 1) / t->tasks_per_piece;
	atomic_store_explicit(&t->n_done, 0, memory_order_relaxed);
	t->sequence++;
	for (uint64_t i = 0; i < n_active; i++) {
		uint64_t end = n_pieces * (i + 1) / n_active;

		atomic_store_explicit(&t->workers[i].share, (uint64_t)t->sequence << 32 | begin << 16 | end,
				      memory_order_release);
		begin = end;
	}
	wake(t);
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
			publish(t, p->n_tasks);
			return;
		}
		if (p->n_tasks)
			p->run(p, 0, thread);
		t->current++;
	}
}

/* The first piece of one's own share, or the last one of another's; false: there is none. */
static bool take(struct kc_threads *t, uint32_t thread, uint32_t from, uint32_t *piece)
{
	_Atomic uint64_t *word = &t->workers[from].share;
	uint64_t share = atomic_load(word), rest;

	do {
		uint32_t first = share >> 16 & 0xffff, end = share & 0xffff;

		/* Read after the share: who takes part was settled before it was dealt. */
		if (first == end || thread >= kc_threads_active(t))
			return false;
		*piece = thread == from ? first : end - 1;
		rest = thread == from ? share + (1u << 16) : share - 1;
	} while (!atomic_compare_exchange_weak(word, &share, rest));
	return true;
}

static bool take_any(struct kc_threads *t, uint32_t thread, uint32_t *piece)
{
	for (uint32_t i = 0; i < t->n_threads; i++) {
		if (take(t, thread, (thread + i) % t->n_threads, piece))
			return true;
	}
	return false;
}

/* Takes and runs some tasks; false: none left now. */
static bool run_some(struct kc_threads *t, uint32_t thread)
{
	const struct kc_phase *p;
	uint32_t piece, task, end, n_tasks;

	if (!take_any(t, thread, &piece))
		return false;
	/* The phase can't end before these tasks do, so its description stands. */
	p = &t->phases[t->current];
	n_tasks = p->n_tasks;
	task = piece * t->tasks_per_piece;
	end = n_tasks - task < t->tasks_per_piece ? n_tasks : task + t->tasks_per_piece;
	for (uint32_t i = task; i < end; i++)
		p->run(p, i, thread);
	if (atomic_fetch_add(&t->n_done, end - task) + (end - task) == n_tasks) {
		t->current++;
		advance(t, thread);
	}
	return true;
}

/* Sleeps while this thread does not take part. */
static void wait_for_roster(struct kc_threads *t, uint32_t thread)
{
	uint32_t roster = atomic_load(&t->roster);

	if (thread >= atomic_load(&t->n_active) && !atomic_load(&t->stop))
		futex_wait(&t->roster, roster);
}

/* Returns when the epoch may have changed from what it was before this thread looked for work. */
static void wait_for_work(struct kc_threads *t, uint32_t epoch)
{
	for (uint32_t i = 0; i < t->spin; i++) {
		if (atomic_load(&t->epoch) != epoch)
			return;
		cpu_pause();
	}
	atomic_fetch_add(&t->n_sleeping, 1);
	if (atomic_load(&t->epoch) == epoch)
		futex_wait(&t->epoch, epoch);
	atomic_fetch_sub(&t->n_sleeping, 1);
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;
	struct kc_threads *t = w->threads;

	for (;;) {
		uint32_t epoch = atomic_load(&t->epoch);

		if (atomic_load(&t->stop))
			return NULL;
		if (w->index >= kc_threads_active(t))
			wait_for_roster(t, w->index);
		else if (!run_some(t, w->index))
			wait_for_work(t, epoch);
	}
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
	t->workers = aligned_alloc(CACHE_LINE, n_threads * sizeof(*t->workers));
	if (t->workers)
		memset(t->workers, 0, n_threads * sizeof(*t->workers));
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
	for (;;) {
		uint32_t epoch = atomic_load(&t->epoch);

		if (atomic_load(&t->finished))
			break;
		if (!run_some(t, 0))
			wait_for_work(t, epoch);
	}
	t->running = false;
}
