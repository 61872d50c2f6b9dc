/* SPDX-License-Identifier: Apache-2.0 */
/* The thread pool: every task once, phases in order, whatever the threads do. */
#include <errno.h>
#include <dirent.h>
#include <sched.h>
#include <stdatomic.h>

#include "fixture.h"
#include "kernels/cpu/threads.h"

enum { MAX_TASKS = 200 };

/* What a phase's tasks leave behind. */
struct record {
	struct record *before;	/* the phase before */
	uint32_t n_tasks;
	_Atomic uint32_t n_ran[MAX_TASKS], n_done, n_early;
	_Atomic uint32_t threads;	/* bit set of those that took part */
	uint32_t plain;		/* written by one task, read by the next phase: a race would show under TSan */
};

static void run_record(const struct kc_phase *p, uint32_t task, uint32_t thread)
{
	struct record *r = p->op.arg;

	if (r->before && (atomic_load_explicit(&r->before->n_done, memory_order_relaxed) != r->before->n_tasks ||
			  r->before->plain != r->before->n_tasks))
		atomic_fetch_add(&r->n_early, 1);
	if (task == r->n_tasks / 2)
		r->plain = r->n_tasks;
	atomic_fetch_add_explicit(&r->n_ran[task], 1, memory_order_relaxed);
	atomic_fetch_or_explicit(&r->threads, 1u << thread, memory_order_relaxed);
	if (task % 16 == 3)
		sched_yield();
	atomic_fetch_add_explicit(&r->n_done, 1, memory_order_relaxed);
}

static void run_list(struct kc_threads *t, uint64_t *rng, uint32_t n_phases)
{
	struct record *records = must(calloc(n_phases, sizeof(*records)));
	struct kc_phase *phases = must(calloc(n_phases, sizeof(*phases)));
	uint32_t allowed = (1u << kc_threads_active(t)) - 1;

	for (uint32_t i = 0; i < n_phases; i++) {
		records[i].before = i ? &records[i - 1] : NULL;
		records[i].n_tasks = 1 + rng_next(rng) % (rng_next(rng) % 4 ? 8 : MAX_TASKS);
		phases[i] = (struct kc_phase){ .run = run_record, .n_tasks = records[i].n_tasks };
		phases[i].op.arg = &records[i];
	}
	assert_int_equal(kc_threads_start(t, phases, n_phases), 0);
	assert_int_equal(kc_threads_start(t, phases, n_phases), -EBUSY);
	assert_int_equal(kc_threads_set_active(t, 1), -EBUSY);
	if (rng_next(rng) % 8 == 0)
		usleep(300);
	kc_threads_wait(t);
	for (uint32_t i = 0; i < n_phases; i++) {
		assert_int_equal(records[i].n_early, 0);
		assert_int_equal(records[i].threads & ~allowed, 0);
		for (uint32_t j = 0; j < records[i].n_tasks; j++)
			assert_int_equal(records[i].n_ran[j], 1);
	}
	free(records);
	free(phases);
}

static void test_stress(void **state)
{
	uint64_t rng = 1;

	for (uint32_t n = 1; n <= 8; n = n * 2 + (n == 1)) {
		struct kc_threads *t;

		assert_int_equal(kc_threads_new(&t, n), 0);
		assert_int_equal(kc_threads_n(t), n);
		for (int i = 0; i < 150; i++) {
			if (i % 10 == 9)
				assert_int_equal(kc_threads_set_active(t, 1 + (uint32_t)(rng_next(&rng) % n)), 0);
			/* Long enough at times for all to fall asleep. */
			if (i % 50 == 49)
				usleep(2000);
			run_list(t, &rng, (uint32_t)(rng_next(&rng) % 30));
		}
		kc_threads_free(t);
	}
}

/* One task holds its thread until all the others of the phase are done by the rest. */
static void run_hostage(const struct kc_phase *p, uint32_t task, uint32_t thread)
{
	struct record *r = p->op.arg;

	while (task == 0 && atomic_load(&r->n_done) != r->n_tasks - 1)
		sched_yield();
	atomic_fetch_add(&r->n_done, 1);
}

static void test_one_thread_stuck(void **state)
{
	struct kc_threads *t;

	assert_int_equal(kc_threads_new(&t, 2), 0);
	for (int i = 0; i < 50; i++) {
		struct record r = { .n_tasks = 64 };
		struct kc_phase p = { .run = run_hostage, .n_tasks = 64 };

		p.op.arg = &r;
		assert_int_equal(kc_threads_start(t, &p, 1), 0);
		kc_threads_wait(t);
		assert_int_equal(r.n_done, 64);
	}
	kc_threads_free(t);
}

static void test_empty(void **state)
{
	struct kc_threads *t;
	struct kc_phase none[3] = { { .n_tasks = 0 }, { .n_tasks = 0 }, { .n_tasks = 0 } };

	assert_int_equal(kc_threads_new(&t, 2), 0);
	kc_threads_wait(t);
	assert_int_equal(kc_threads_start(t, NULL, 0), 0);
	kc_threads_wait(t);
	assert_int_equal(kc_threads_start(t, none, 3), 0);
	kc_threads_wait(t);
	assert_int_equal(kc_threads_set_active(t, 0), -EINVAL);
	assert_int_equal(kc_threads_set_active(t, 3), -EINVAL);
	kc_threads_free(t);
	kc_threads_free(NULL);
}

static uint32_t own_threads(void)
{
	DIR *dir = opendir("/proc/self/task");
	const struct dirent *e;
	uint32_t n = 0;

	assert_non_null(dir);
	while ((e = readdir(dir)))
		n += e->d_name[0] != '.';
	closedir(dir);
	return n;
}

/* Never more threads than CPUs that we may use, even when asked for them. */
static void test_affinity(void **state)
{
	uint32_t before = own_threads(), allowed = kc_allowed_cpus();
	cpu_set_t old, one;
	int cpu = 0;
	struct kb_backend *be;

	assert_true(allowed >= 1);
	be = open_level("c", 100000);
	assert_true(be->ops->n_threads(be) <= allowed);
	assert_int_equal(own_threads() - before, be->ops->n_threads(be) - 1);
	be->ops->close(be);
	assert_int_equal(sched_getaffinity(0, sizeof(old), &old), 0);
	while (!CPU_ISSET(cpu, &old))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	for (uint32_t n = 0; n < 9; n += 4) {
		be = open_level(NULL, n);
		assert_int_equal(be->ops->n_threads(be), 1);
		assert_int_equal(own_threads(), before);
		be->ops->close(be);
	}
	assert_int_equal(sched_setaffinity(0, sizeof(old), &old), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_stress),
		cmocka_unit_test(test_one_thread_stuck),
		cmocka_unit_test(test_empty),
		cmocka_unit_test(test_affinity),
	};

	alarm(120);	/* a hang is a failure */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
