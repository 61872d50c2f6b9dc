/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fdpass.h - one datagram, with or without descriptors, over a Unix
 * SOCK_SEQPACKET socket.
 *
 * Every received descriptor is close-on-exec.  Nothing raises SIGPIPE.
 */
#ifndef KVD_FDPASS_H
#define KVD_FDPASS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define FDPASS_MAX 4	/* descriptors in one datagram */

/* Do not wait: -EAGAIN instead. */
#define FDPASS_DONTWAIT 1u

#define FDPASS_E_EOF 1		/* the peer has closed */
#define FDPASS_E_TRUNCATED 2	/* a datagram larger than the buffer; it is gone */
#define FDPASS_E_FDS 3		/* more descriptors than wanted; closed, the datagram is gone */

/*
 * Sends n bytes and n_fds descriptors (which stay the caller's) as one datagram.
 * 0; -EAGAIN; -EPIPE or -ECONNRESET: the peer has closed; -EMSGSIZE; -EINVAL:
 * n is 0 or n_fds > FDPASS_MAX; other -errno.
 */
int fdpass_send(int sock, const void *data, size_t n, const int *fds, size_t n_fds, unsigned flags);

/*
 * Receives one datagram of at most size bytes into buf, and at most max_fds
 * descriptors into fds; with max_fds 0, fds and n_fds may be NULL.  If more
 * came than wanted, or the kernel cut data or descriptors, then all that came are
 * closed.  An empty datagram, which no side sends, counts as the end.
 * 0; FDPASS_E_*; -EAGAIN; other -errno.
 */
int fdpass_recv(int sock, void *buf, size_t size, size_t *n, int *fds, size_t max_fds, size_t *n_fds,
		unsigned flags);

/*
 * Closes the socket so that what was sent before still arrives: the kernel
 * resets a Unix socket that is closed with unread messages, and its peer then
 * loses what waits for it.
 */
void fdpass_close(int sock);

/*
 * Closes a descriptor that came from a peer, which may be anything: a socket that is
 * told to linger would keep close() waiting for as long as the peer likes.
 */
void fdpass_close_received(int fd);
/* For scope cleanup: nothing if *fd is negative, and -1 afterwards. */
void fdpass_close_receivedp(int *fd);

struct fdpass_peer {
	uid_t uid;
	gid_t gid;
	pid_t pid;	/* 0: in another pid namespace */
};

/* Who connected, as the kernel recorded it at connect() (SO_PEERCRED).  0 or -errno. */
int fdpass_peer(int sock, struct fdpass_peer *out);

#endif
