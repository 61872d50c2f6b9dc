/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/fdpass.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/*
 * What a peer may attach at most (SCM_MAX_FD of Linux): with room for all of them,
 * unwanted ones arrive, and are closed here, rather than being cut silently.
 */
#define KERNEL_MAX_FDS 253

/* More datagrams than a peer's send buffer has room for, empty ones. */
#define UNREAD_MAX 1024

union control {
	struct cmsghdr head;
	char space[CMSG_SPACE(sizeof(int) * KERNEL_MAX_FDS)];
};

void fdpass_close_received(int fd)
{
	static const struct linger off = { 0 };

	(void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &off, sizeof(off));
	close(fd);
}

int fdpass_send(int sock, const void *data, size_t n, const int *fds, size_t n_fds, unsigned flags)
{
	union {
		struct cmsghdr head;
		char space[CMSG_SPACE(sizeof(int) * FDPASS_MAX)];
	} control = { 0 };
	struct iovec iov = { .iov_base = (void *)data, .iov_len = n };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t r;

	if (n == 0 || n_fds > FDPASS_MAX)
		return -EINVAL;
	if (n_fds > 0) {
		struct cmsghdr *c;

		m.msg_control = &control;
		m.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
		c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
		memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
	}
	do
		r = sendmsg(sock, &m, MSG_NOSIGNAL | (flags & FDPASS_DONTWAIT ? MSG_DONTWAIT : 0));
	while (r < 0 && errno == EINTR);
	if (r < 0)
		return -errno;
	/* A datagram is sent whole or not at all. */
	return (size_t)r == n ? 0 : -EIO;
}

void fdpass_close_receivedp(int *fd)
{
	if (*fd >= 0)
		fdpass_close_received(*fd);
	*fd = -1;
}

/* Takes the first max descriptors of m into fds and closes all others; returns how many came. */
static size_t take_fds(struct msghdr *m, int *fds, size_t max)
{
	size_t n = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		size_t k;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		k = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < k; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			if (n < max)
				fds[n] = fd;
			else
				fdpass_close_received(fd);
			n++;
		}
	}
	return n;
}

int fdpass_recv(int sock, void *buf, size_t size, size_t *n, int *fds, size_t max_fds, size_t *n_fds,
		unsigned flags)
{
	union control control;
	struct iovec iov = { .iov_base = buf, .iov_len = size };
	struct msghdr m = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control),
	};
	int taken[FDPASS_MAX];
	size_t came, kept;
	ssize_t r;
	int err = 0;

	if (max_fds > FDPASS_MAX)
		return -EINVAL;
	do
		r = recvmsg(sock, &m, MSG_CMSG_CLOEXEC | (flags & FDPASS_DONTWAIT ? MSG_DONTWAIT : 0));
	while (r < 0 && errno == EINTR);
	if (r < 0)
		return -errno;

	came = take_fds(&m, taken, max_fds);
	kept = came < max_fds ? came : max_fds;
	if (m.msg_flags & MSG_TRUNC)
		err = FDPASS_E_TRUNCATED;
	else if (came > max_fds || m.msg_flags & MSG_CTRUNC)
		err = FDPASS_E_FDS;
	else if (r == 0)
		err = FDPASS_E_EOF;
	if (err) {
		for (size_t i = 0; i < kept; i++)
			fdpass_close_received(taken[i]);
		return err;
	}

	*n = (size_t)r;
	if (max_fds > 0) {
		memcpy(fds, taken, sizeof(int) * kept);
		*n_fds = kept;
	}
	return 0;
}

void fdpass_close(int sock)
{
	union control control;
	char byte;

	/* No more comes in, so this ends; an empty datagram looks like the end. */
	shutdown(sock, SHUT_RD);
	for (unsigned i = 0; i < UNREAD_MAX; i++) {
		struct iovec iov = { .iov_base = &byte, .iov_len = sizeof(byte) };
		struct msghdr m = {
			.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
			.msg_controllen = sizeof(control),
		};

		if (recvmsg(sock, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) < 0)
			break;
		take_fds(&m, NULL, 0);
	}
	close(sock);
}

int fdpass_peer(int sock, struct fdpass_peer *out)
{
	struct ucred cred;
	socklen_t n = sizeof(cred);

	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &n) < 0)
		return -errno;
	*out = (struct fdpass_peer){ .uid = cred.uid, .gid = cred.gid, .pid = cred.pid };
	return 0;
}
