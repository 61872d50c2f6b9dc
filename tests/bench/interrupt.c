/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/interrupt.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/bench/private.h"

#define STATUS_INTERRUPTED 130
#define GRACE_SECONDS 2		/* for who writes already, and is about to end */

static struct {
	sigset_t signals;
	void (*finish)(void *arg);
	void *arg;
	atomic_flag claimed;
} interrupt = { .claimed = ATOMIC_FLAG_INIT };

bool interrupt_claim(void)
{
	return !atomic_flag_test_and_set(&interrupt.claimed);
}

static void *wait_for_signal(void *arg)
{
	int number;

	(void)arg;
	if (sigwait(&interrupt.signals, &number))
		return NULL;
	private_abort();
	if (interrupt_claim())
		interrupt.finish(interrupt.arg);
	else
		sleep(GRACE_SECONDS);
	_exit(STATUS_INTERRUPTED);
}

int interrupt_init(void (*finish)(void *arg), void *arg)
{
	pthread_t thread;
	int r;

	interrupt.finish = finish;
	interrupt.arg = arg;
	sigemptyset(&interrupt.signals);
	sigaddset(&interrupt.signals, SIGINT);
	sigaddset(&interrupt.signals, SIGTERM);
	sigaddset(&interrupt.signals, SIGHUP);
	r = -pthread_sigmask(SIG_BLOCK, &interrupt.signals, NULL);
	if (!r)
		r = -pthread_create(&thread, NULL, wait_for_signal, NULL);
	if (!r)
		pthread_detach(thread);
	return r;
}
