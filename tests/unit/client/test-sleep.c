/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens between the last look and the sleep.  The library's system calls go
 * through this program (its symbols come first), so that the daemon can act in exactly
 * that moment.
 */
#include "tests/unit/client/fake-daemon.h"

#include <sys/syscall.h>
#include <time.h>

static pthread_t main_thread;
static _Atomic(struct fake *) at_receive;	/* the main thread's next recvmsg() */
static _Atomic(struct fake *) at_poll;		/* another thread's next poll() */

/* Lets the others do what they wait to do. */
static void meanwhile(_Atomic(struct fake *) *hook, int until)
{
	struct fake *f = atomic_exchange(hook, NULL);

	if (f) {
		fake_reached(f, 1);
		fake_wait(f, until);
	}
}

ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
	if (pthread_equal(pthread_self(), main_thread))
		meanwhile(&at_receive, 2);
	return syscall(SYS_recvmsg, fd, msg, flags);
}

int poll(struct pollfd *fds, nfds_t n, int timeout)
{
	struct timespec ts = { timeout / 1000, timeout % 1000 * 1000000L };

	if (fds && !pthread_equal(pthread_self(), main_thread))
		meanwhile(&at_poll, 3);
	return (int)syscall(SYS_ppoll, fds, n, timeout < 0 ? NULL : &ts, NULL, 0);
}

static void write_when_told(struct fake *f)
{
	FAKE_EXPECT(f, fake_greet(f));
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_GENERATE));
	FAKE_EXPECT(f, fake_wait(f, 1));
	ring_begin(&f->writer, false);
	ring_put_text(&f->writer, f->msg->generate.id, (const uint8_t *)"t", 1);
	FAKE_EXPECT(f, !ring_commit(&f->writer));
	/* the reader is awake: no wake will come */
	FAKE_EXPECT(f, !ring_needs_wake(&f->writer));
	fake_reached(f, 2);
	fake_receive(f);
}

/* The ring was empty when it was looked at, and is not any more when sleep is announced. */
static void record_before_the_sleep(void **state)
{
	const struct kvd_event *e;
	struct fake f;

	fake_start(&f, write_when_told, NULL);
	struct kvd_client *c = fake_connect(&f, 0, 0);
	fake_submit(c, "x");
	atomic_store(&at_receive, &f);
	assert_int_equal(kvd_next(c, 0, &e), 0);
	assert_int_equal(e->type, KVD_EVENT_TEXT);
	assert_null(atomic_load(&at_receive));
	kvd_close(c);
	fake_stop(&f);
}

static void answer_when_told(struct fake *f)
{
	FAKE_EXPECT(f, fake_greet(f));
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_STATUS));
	FAKE_EXPECT(f, fake_wait(f, 1));
	fake_send(f, KVD_MSG_STATUS_REPLY, &(struct msg_status_reply){
		.id = f->msg->status.id, .version = "v", .device = "d", .level = "l", .state = "ready" });
	fake_reached(f, 2);
	fake_receive(f);
}

static void *ask(void *arg)
{
	struct kvd_status s;

	return (void *)(intptr_t)kvd_status(arg, &s);
}

/*
 * An asker is about to sleep on the socket when its answer comes; a kvd_next() that
 * only looks must leave the answer there, or the asker sleeps on.
 */
static void answer_before_the_sleep(void **state)
{
	const struct kvd_event *e;
	pthread_t asker;
	struct fake f;
	void *result;

	fake_start(&f, answer_when_told, NULL);
	struct kvd_client *c = fake_connect(&f, 0, 0);
	atomic_store(&at_poll, &f);
	assert_int_equal(pthread_create(&asker, NULL, ask, c), 0);
	assert_true(fake_wait(&f, 2));
	assert_int_equal(kvd_next(c, 0, &e), KVD_E_TIMEOUT);
	fake_reached(&f, 3);
	alarm(10);	/* far less than the library's own patience */
	pthread_join(asker, &result);
	alarm(0);
	assert_int_equal((intptr_t)result, 0);
	kvd_close(c);
	fake_stop(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(record_before_the_sleep),
		cmocka_unit_test(answer_before_the_sleep),
	};

	main_thread = pthread_self();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
