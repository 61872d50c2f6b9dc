/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rate at which loads read memory, by as many threads as the backend has.
 * The threads start each measurement together.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/clock.h"
#include "tests/bench/bench.h"

#define HUGE_PAGE (2u << 20)

/* 32 bytes: two SSE2 or one AVX2 register; only sums, so that loads bound it. */
typedef uint64_t lanes __attribute__((vector_size(32), may_alias));

struct probe {
	uint32_t n_threads;
	uint64_t bytes_each;
	char **buffers;		/* [n_threads] */
};

enum { PROBE_WAIT, PROBE_GO, PROBE_GIVE_UP };

struct reader {
	pthread_t thread;
	const atomic_int *start;
	const char *buffer;
	uint64_t bytes;
	uint32_t passes;
	uint64_t begun, ended;	/* ns */
	volatile uint64_t sum;	/* so that the reads are needed */
};

int probe_new(struct probe **out, uint32_t n_threads, uint64_t bytes)
{
	struct probe *p = calloc(1, sizeof(*p));

	if (!p)
		return -ENOMEM;
	p->n_threads = n_threads;
	p->bytes_each = (bytes / n_threads + HUGE_PAGE - 1) & ~(uint64_t)(HUGE_PAGE - 1);
	p->buffers = calloc(n_threads, sizeof(*p->buffers));
	for (uint32_t i = 0; p->buffers && i < n_threads; i++) {
		p->buffers[i] = aligned_alloc(HUGE_PAGE, p->bytes_each);
		if (!p->buffers[i])
			break;
		madvise(p->buffers[i], p->bytes_each, MADV_HUGEPAGE);
		memset(p->buffers[i], (int)i + 1, p->bytes_each);
	}
	if (!p->buffers || !p->buffers[n_threads - 1]) {
		probe_free(p);
		return -ENOMEM;
	}
	*out = p;
	return 0;
}

void probe_free(struct probe *p)
{
	if (!p)
		return;
	for (uint32_t i = 0; p->buffers && i < p->n_threads; i++)
		free(p->buffers[i]);
	free(p->buffers);
	free(p);
}

static uint64_t sum_of(const char *buffer, uint64_t bytes)
{
	const lanes *at = (const lanes *)buffer;
	lanes s[8] = { 0 };

	for (uint64_t i = 0; i < bytes / sizeof(lanes); i += 8)
		for (int k = 0; k < 8; k++)
			s[k] += at[i + k];
	s[0] += s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
	return s[0][0] + s[0][1] + s[0][2] + s[0][3];
}

static void *reader_main(void *arg)
{
	struct reader *r = arg;
	int start;

	while ((start = atomic_load(r->start)) == PROBE_WAIT)
		sched_yield();
	if (start == PROBE_GIVE_UP)
		return NULL;
	r->begun = clock_ns();
	for (uint32_t i = 0; i < r->passes; i++)
		r->sum += sum_of(r->buffer, r->bytes);
	r->ended = clock_ns();
	return NULL;
}

static double rate_of(const struct reader *readers, uint32_t n)
{
	uint64_t begun = UINT64_MAX, ended = 0;

	for (uint32_t i = 0; i < n; i++) {
		begun = readers[i].begun < begun ? readers[i].begun : begun;
		ended = readers[i].ended > ended ? readers[i].ended : ended;
	}
	return 1e9 * (double)n * (double)readers[0].bytes * readers[0].passes / (double)(ended - begun);
}

int probe_read(struct probe *p, uint32_t passes, double *rate)
{
	_cleanup_(freep) struct reader *readers = calloc(p->n_threads, sizeof(*readers));
	atomic_int start = PROBE_WAIT;
	uint32_t n = 0;
	int r = 0;

	if (!readers)
		return -ENOMEM;
	/* The last reader is this thread. */
	for (uint32_t i = 0; i < p->n_threads; i++)
		readers[i] = (struct reader){
			.start = &start, .buffer = p->buffers[i], .bytes = p->bytes_each, .passes = passes,
		};
	while (!r && n + 1 < p->n_threads) {
		r = -pthread_create(&readers[n].thread, NULL, reader_main, &readers[n]);
		if (!r)
			n++;
	}
	atomic_store(&start, r ? PROBE_GIVE_UP : PROBE_GO);
	if (!r)
		reader_main(&readers[n]);
	for (uint32_t i = 0; i < n; i++)
		pthread_join(readers[i].thread, NULL);
	if (r)
		return r;
	*rate = rate_of(readers, p->n_threads);
	return 0;
}
