/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include "client/ctl/interrupt.h"
#include "client/ctl/output.h"
#include "client/ctl/text.h"

void output_init(struct output *o)
{
	*o = (struct output){ .terminal = isatty(STDOUT_FILENO) };
}

/* A pipe that was made non-blocking by somebody else is waited for. */
static void wait_writable(void)
{
	struct pollfd p[2] = { { .fd = STDOUT_FILENO, .events = POLLOUT },
			       { .fd = interrupt_fd(), .events = POLLIN } };

	poll(p, 2, -1);
}

int output_raw(struct output *o, const void *p, size_t n)
{
	const char *s = p;

	if (n)
		o->last = s[n - 1];
	while (n) {
		ssize_t k = write(STDOUT_FILENO, s, n);
		if (k < 0 && (errno == EAGAIN || errno == EINTR)) {
			if (interrupt_pending())
				return -EINTR;
			wait_writable();
			continue;
		}
		if (k < 0)
			return -errno;
		s += k;
		n -= (size_t)k;
	}
	return 0;
}

int output_text(struct output *o, const void *p, size_t n)
{
	const char *s = p;
	char visible[1024 * TEXT_VISIBLE_MAX];

	if (!o->terminal)
		return output_raw(o, p, n);
	while (n) {
		size_t k = n < 1024 ? n : 1024;
		while (k < n && k > 1020 && (s[k] & 0xc0) == 0x80)
			k--;
		int r = output_raw(o, visible, text_visible(s, k, visible));
		if (r)
			return r;
		s += k;
		n -= k;
	}
	return 0;
}

int output_end_line(struct output *o)
{
	return (o->terminal || o->end_line) && o->last && o->last != '\n' ? output_raw(o, "\n", 1) : 0;
}
