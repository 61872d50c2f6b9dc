/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

#include "client/ctl/ctl.h"
#include "client/ctl/interrupt.h"

static volatile sig_atomic_t n_interrupts, second_is_final = 1;
static int interrupt_pipe[2] = { -1, -1 };

static void on_interrupt(int signo)
{
	int saved = errno;

	if (n_interrupts++ && second_is_final)
		_exit(CTL_INTERRUPTED);
	ssize_t n = write(interrupt_pipe[1], "", 1);
	(void)n;	/* full: it is readable already */
	errno = saved;
}

int interrupt_init(void)
{
	/* no SA_RESTART: a write() to a terminal that is stopped must end */
	struct sigaction action = { .sa_handler = on_interrupt };

	if (pipe2(interrupt_pipe, O_CLOEXEC | O_NONBLOCK))
		return -errno;
	sigemptyset(&action.sa_mask);
	return sigaction(SIGINT, &action, NULL) ? -errno : 0;
}

int interrupt_fd(void)
{
	return interrupt_pipe[0];
}

bool interrupt_pending(void)
{
	return n_interrupts > 0;
}

void interrupt_reset(void)
{
	char buf[64];

	while (read(interrupt_pipe[0], buf, sizeof(buf)) > 0)
		;
	n_interrupts = 0;
}

void interrupt_set_final(bool final)
{
	second_is_final = final;
}
