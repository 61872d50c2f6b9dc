/* SPDX-License-Identifier: Apache-2.0 */
/* Mailbox and workers: everything posted arrives, in order; jobs run or are dropped, once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <event2/event.h>
#include <pthread.h>
#include <stdatomic.h>

#include "daemon/server/mailbox.h"
#include "daemon/server/workers.h"

#define N_POSTERS 4
#define N_MAILS 2000

struct numbered {
	struct mail mail;
	unsigned poster, number;
};

static struct numbered mails[N_POSTERS][N_MAILS];
static unsigned next_number[N_POSTERS], n_delivered;
static struct event_base *base;
static struct mailbox *box;

static void deliver_numbered(struct mail *mail)
{
	struct numbered *m = list_entry(mail, struct numbered, mail);

	/* In the order of each poster. */
	assert_int_equal(m->number, next_number[m->poster]++);
	if (++n_delivered == N_POSTERS * N_MAILS)
		event_base_loopbreak(base);
}

static void *post_all(void *arg)
{
	struct numbered *mine = arg;

	for (unsigned i = 0; i < N_MAILS; i++)
		mailbox_post(box, &mine[i].mail);
	return NULL;
}

static void test_mailbox(void **state)
{
	pthread_t threads[N_POSTERS];

	for (unsigned p = 0; p < N_POSTERS; p++) {
		for (unsigned i = 0; i < N_MAILS; i++)
			mails[p][i] = (struct numbered){ { .deliver = deliver_numbered }, p, i };
		pthread_create(&threads[p], NULL, post_all, mails[p]);
	}
	/* Ends only when the last one has come. */
	event_base_dispatch(base);
	assert_int_equal(n_delivered, N_POSTERS * N_MAILS);
	for (unsigned p = 0; p < N_POSTERS; p++)
		pthread_join(threads[p], NULL);
}

/* --- workers --- */

struct counted {
	struct job job;
	unsigned n_run, n_done;
	atomic_uint started_at;	/* place in the order of starting, 0: not yet */
};

static atomic_uint n_started, n_marked, n_run;
static unsigned n_done;
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static void run_counted(struct job *job)
{
	struct counted *c = list_entry(job, struct counted, job);

	c->started_at = ++n_started;
	n_marked++;
	/* Held by a test that wants jobs to pile up. */
	pthread_mutex_lock(&gate);
	pthread_mutex_unlock(&gate);
	c->n_run++;
	n_run++;
}

static void done_counted(struct job *job)
{
	struct counted *c = list_entry(job, struct counted, job);

	assert_int_equal(c->n_run, job->dropped ? 0 : 1);
	c->n_done++;
	n_done++;
}

static struct counted counted_of(uid_t uid)
{
	return (struct counted){ .job = { .uid = uid, .run = run_counted, .done = done_counted } };
}

static void until_done(unsigned n)
{
	while (n_done < n)
		event_base_loop(base, EVLOOP_ONCE);
}

static void test_jobs_wait_for_the_start(void **state)
{
	struct counted jobs[3] = { counted_of(1), counted_of(2), counted_of(3) }, extra = counted_of(4);
	struct workers *w;

	n_done = 0;
	n_run = 0;
	n_started = 0;
	n_marked = 0;
	assert_int_equal(workers_new(&w, box, 3), 0);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(workers_submit(w, &jobs[i].job), 0);
	assert_int_equal(workers_submit(w, &extra.job), WORKERS_E_FULL);
	mailbox_deliver(box);
	assert_int_equal(n_done, 0);
	assert_int_equal(workers_start(w, 2, "worker"), 0);
	until_done(3);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(jobs[i].n_run + jobs[i].n_done, 2);
	workers_stop(w);
	assert_int_equal(workers_submit(w, &extra.job), WORKERS_E_FULL);
	workers_free(w);
}

static void test_drop(void **state)
{
	struct counted a = counted_of(1), b = counted_of(1);
	struct workers *w;

	n_done = 0;
	n_run = 0;
	n_started = 0;
	n_marked = 0;
	assert_int_equal(workers_new(&w, box, 8), 0);
	assert_int_equal(workers_submit(w, &a.job), 0);
	assert_int_equal(workers_submit(w, &b.job), 0);
	workers_drop(w, &a.job);
	workers_drop(w, &a.job);
	mailbox_deliver(box);
	assert_int_equal(a.n_done, 1);
	assert_true(a.job.dropped);
	assert_int_equal(b.n_done, 0);
	assert_int_equal(workers_start(w, 1, "worker"), 0);
	until_done(2);
	workers_drop(w, &b.job);
	mailbox_deliver(box);
	assert_int_equal(b.n_run + b.n_done, 2);
	workers_free(w);
}

static void test_stop_drops_the_rest(void **state)
{
	struct counted jobs[20];
	struct workers *w;
	unsigned n_dropped = 0;

	n_done = 0;
	n_run = 0;
	n_started = 0;
	n_marked = 0;
	assert_int_equal(workers_new(&w, box, 64), 0);
	for (unsigned i = 0; i < 20; i++) {
		jobs[i] = counted_of(i);
		assert_int_equal(workers_submit(w, &jobs[i].job), 0);
	}
	assert_int_equal(workers_start(w, 2, "worker"), 0);
	workers_stop(w);
	mailbox_deliver(box);
	for (unsigned i = 0; i < 20; i++) {
		assert_int_equal(jobs[i].n_done, 1);
		n_dropped += jobs[i].job.dropped;
	}
	assert_int_equal(n_dropped + n_run, 20);
	workers_free(w);
}

/* One uid's heap does not hold up another: with two workers, uid 2's only job is among the first. */
static void test_fair_between_uids(void **state)
{
	struct counted heap[50], other = counted_of(2);
	struct workers *w;

	n_done = 0;
	n_run = 0;
	n_started = 0;
	n_marked = 0;
	assert_int_equal(workers_new(&w, box, 64), 0);
	for (unsigned i = 0; i < 50; i++) {
		heap[i] = counted_of(1);
		assert_int_equal(workers_submit(w, &heap[i].job), 0);
	}
	assert_int_equal(workers_submit(w, &other.job), 0);
	pthread_mutex_lock(&gate);
	assert_int_equal(workers_start(w, 2, "worker"), 0);
	while (n_marked < 2)
		sched_yield();
	assert_int_not_equal(other.started_at, 0);
	pthread_mutex_unlock(&gate);
	until_done(51);
	for (unsigned i = 1; i < 50; i++)
		assert_int_equal(heap[i].n_run, 1);
	workers_free(w);
}

static int set_up(void **state)
{
	base = event_base_new();
	return mailbox_new(&box, base);
}

static int tear_down(void **state)
{
	mailbox_free(box);
	event_base_free(base);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_mailbox),
		cmocka_unit_test(test_jobs_wait_for_the_start),
		cmocka_unit_test(test_drop),
		cmocka_unit_test(test_stop_drops_the_rest),
		cmocka_unit_test(test_fair_between_uids),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
