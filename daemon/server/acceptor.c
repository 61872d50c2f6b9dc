/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/acceptor.h"

#include <errno.h>
#include <event2/event.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/server/log.h"

#define ACCEPT_BATCH 16
#define PAUSE_US 200000

static void on_readable(evutil_socket_t listener, short what, void *arg)
{
	struct acceptor *a = arg;

	for (unsigned i = 0; i < ACCEPT_BATCH; i++) {
		int fd = accept4(a->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd >= 0) {
			a->accepted(a->arg, fd);
		} else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
			struct timeval pause = { .tv_usec = PAUSE_US };

			log_warning("cannot accept a connection: %s", strerror(errno));
			event_del(a->readable);
			if (event_add(a->pause, &pause) < 0)
				event_add(a->readable, NULL);
			return;
		} else if (errno != EINTR && errno != ECONNABORTED) {
			return;
		}
	}
}

static void on_pause_over(evutil_socket_t fd, short what, void *arg)
{
	struct acceptor *a = arg;

	event_add(a->readable, NULL);
}

int acceptor_init(struct acceptor *a, struct event_base *base, int fd,
		  void (*accepted)(void *arg, int fd), void *arg)
{
	*a = (struct acceptor){ .fd = fd, .accepted = accepted, .arg = arg };
	a->readable = event_new(base, fd, EV_READ | EV_PERSIST, on_readable, a);
	a->pause = event_new(base, -1, 0, on_pause_over, a);
	if (!a->readable || !a->pause || event_add(a->readable, NULL) < 0) {
		acceptor_deinit(a);
		return -ENOMEM;
	}
	return 0;
}

void acceptor_deinit(struct acceptor *a)
{
	if (a->readable)
		event_free(a->readable);
	if (a->pause)
		event_free(a->pause);
	*a = (struct acceptor){ 0 };
}

bool acceptor_pending(const struct acceptor *a)
{
	struct pollfd p = { .fd = a->fd, .events = POLLIN };

	return a->readable && poll(&p, 1, 0) > 0;
}
