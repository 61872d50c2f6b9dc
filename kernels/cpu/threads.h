/* SPDX-License-Identifier: Apache-2.0 */
/*
 * threads.h - runs a list of phases on a few threads, without barriers.
 *
 * A phase is a function and a number of tasks.  Each thread has a share of
 * them, the same part of every phase, which it takes one by one from the front;
 * then it takes from the ends of the others' shares.  So what a thread reads
 * is in one piece, and known beforehand.  Whoever finishes the last task of a
 * phase publishes the next one: a thread that was descheduled, or sleeps, holds
 * up nothing but the task it has.  A share is one 64-bit word with the phase's
 * sequence number: who is late fails its compare-and-swap by that.
 * A phase with one task is run by the thread that would publish it.
 *
 * Waiting threads pause a bounded number of times, then sleep on a futex.
 *
 * Thread: one thread owns the object and calls everything here.
 */
#ifndef KC_THREADS_H
#define KC_THREADS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/backend.h"

struct kb_workspace;
struct kc_phase;
struct kc_threads;

/* thread: 0 .. n_threads - 1, the one that runs the task. */
typedef void (*kc_phase_fn)(const struct kc_phase *phase, uint32_t task, uint32_t thread);

struct kc_phase {
	kc_phase_fn run;
	uint32_t n_tasks;
	struct kb_workspace *ws;
	uint32_t layer;
	/* How it is cut: rows of the batch x units of output. */
	uint32_t n_rows, rows_per_task, n_units, units_per_task;
	uint32_t n_parts, units_per_part;	/* n_parts > 1: each task has units_per_task of every part */
	unsigned forms;		/* quantised forms (cpu.h) of what it puts out */
	union {
		struct {
			const struct kb_tensor *table;
			float scale;
		} embed;
		struct kb_attn_in attn_in;
		struct kb_attention attention;
		struct kb_attn_out attn_out;
		struct kb_ffn ffn;
		struct kb_logits logits;
		struct {
			const struct kb_tensor *norm;
			float eps;
			const uint32_t *rows;	/* NULL: all */
		} norm;
		void *arg;
	} op;
};

/* n_threads >= 1 counts the owner; starts n_threads - 1.  -ENOMEM, -EAGAIN. */
int kc_threads_new(struct kc_threads **out, uint32_t n_threads);
void kc_threads_free(struct kc_threads *t);	/* nothing runs */
uint32_t kc_threads_n(const struct kc_threads *t);
/* How many take part, from the next start on; 1 .. n_threads. */
uint32_t kc_threads_active(const struct kc_threads *t);
int kc_threads_set_active(struct kc_threads *t, uint32_t n);

/* Starts a list; it stays alive and unchanged until kc_threads_wait().  -EBUSY: one runs. */
int kc_threads_start(struct kc_threads *t, const struct kc_phase *phases, uint32_t n_phases);
/* Takes part until all is done. */
void kc_threads_wait(struct kc_threads *t);

/* CPUs that this process may use: its affinity, cut by its cgroup's quota. */
uint32_t kc_allowed_cpus(void);

#endif
