/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http-peer.h - whose a TCP connection from this machine is, asked of the kernel (NETLINK_SOCK_DIAG, sock_diag(7)).
 *
 * The kernel is asked for the client's socket by the exact four addresses and ports of the connection.  Its
 * answer is believed if that socket is ESTABLISHED and has an inode (a closed one says uid 0), and if our own
 * end is ESTABLISHED after the answer: then it was so all the while, and no other socket can have been
 * at the other end.
 *
 * The kernel answers inside of sendto(2), so that nothing waits.  Thread: one at a time.
 */
#ifndef KVD_SERVER_HTTP_PEER_H
#define KVD_SERVER_HTTP_PEER_H

#include <stdint.h>
#include <sys/types.h>

struct http_peer_finder {
	int fd;			/* the netlink socket; -1: there is none */
	uint32_t sequence;
};

#define HTTP_PEER_E_UNKNOWN 1	/* the kernel does not say, or can't be believed */

/* 0; -errno: this kernel can't be asked. */
int http_peer_finder_init(struct http_peer_finder *f);
void http_peer_finder_deinit(struct http_peer_finder *f);
/* The uid at the other end of a connected TCP socket.  0; HTTP_PEER_E_UNKNOWN. */
int http_peer_find(struct http_peer_finder *f, int fd, uid_t *out);

#endif
