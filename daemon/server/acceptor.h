/* SPDX-License-Identifier: Apache-2.0 */
/*
 * acceptor.h - accepts connections on the listening socket.  When the process
 * is out of descriptors it pauses, since the socket stays readable all the while.
 * Loop thread.
 */
#ifndef KVD_SERVER_ACCEPTOR_H
#define KVD_SERVER_ACCEPTOR_H

#include <stdbool.h>

struct event;
struct event_base;

struct acceptor {
	struct event *readable, *pause;
	int fd;
	void (*accepted)(void *arg, int fd);	/* owns fd: non-blocking, close-on-exec */
	void *arg;
};

/* fd: a listening socket, which stays the caller's.  0 or -ENOMEM. */
int acceptor_init(struct acceptor *a, struct event_base *base, int fd,
		  void (*accepted)(void *arg, int fd), void *arg);
/* A zeroed one is fine. */
void acceptor_deinit(struct acceptor *a);
/* Whether somebody waits to be accepted. */
bool acceptor_pending(const struct acceptor *a);

#endif
