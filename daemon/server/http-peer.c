/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/http-peer.h"

#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>

#include "ipc/base/fd.h"

#define ANSWERS_MAX 8	/* of earlier questions, that are passed over */

union address {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

struct question {
	struct nlmsghdr header;
	struct inet_diag_req_v2 request;
};

int http_peer_finder_init(struct http_peer_finder *f)
{
	f->sequence = 0;
	f->fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG);
	return f->fd < 0 ? -errno : 0;
}

void http_peer_finder_deinit(struct http_peer_finder *f)
{
	fd_closep(&f->fd);
}

/* The client's socket: its own address is our peer, its peer is us. */
static int fill_question(int fd, struct inet_diag_req_v2 *r)
{
	union address us = { 0 }, them = { 0 };
	socklen_t n_us = sizeof(us), n_them = sizeof(them);

	if (getsockname(fd, &us.sa, &n_us) < 0 || getpeername(fd, &them.sa, &n_them) < 0 ||
	    us.sa.sa_family != them.sa.sa_family)
		return -EINVAL;
	*r = (struct inet_diag_req_v2){
		.sdiag_family = (uint8_t)us.sa.sa_family, .sdiag_protocol = IPPROTO_TCP, .idiag_states = ~0u,
		.id.idiag_cookie = { INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE },
	};
	if (us.sa.sa_family == AF_INET) {
		r->id.idiag_sport = them.in.sin_port;
		r->id.idiag_dport = us.in.sin_port;
		memcpy(r->id.idiag_src, &them.in.sin_addr, sizeof(them.in.sin_addr));
		memcpy(r->id.idiag_dst, &us.in.sin_addr, sizeof(us.in.sin_addr));
	} else {
		r->id.idiag_sport = them.in6.sin6_port;
		r->id.idiag_dport = us.in6.sin6_port;
		memcpy(r->id.idiag_src, &them.in6.sin6_addr, sizeof(them.in6.sin6_addr));
		memcpy(r->id.idiag_dst, &us.in6.sin6_addr, sizeof(us.in6.sin6_addr));
	}
	return 0;
}

/* An IPv6 socket that is connected over IPv4 is told with addresses of IPv6. */
static void unmap(struct inet_diag_msg *m, unsigned family)
{
	struct in6_addr src, dst;

	if (family != AF_INET || m->idiag_family != AF_INET6)
		return;
	memcpy(&src, m->id.idiag_src, sizeof(src));
	memcpy(&dst, m->id.idiag_dst, sizeof(dst));
	if (!IN6_IS_ADDR_V4MAPPED(&src) || !IN6_IS_ADDR_V4MAPPED(&dst))
		return;
	m->id.idiag_src[0] = m->id.idiag_src[3];
	m->id.idiag_dst[0] = m->id.idiag_dst[3];
	m->idiag_family = AF_INET;
}

static bool same_socket(const struct inet_diag_sockid *a, const struct inet_diag_sockid *b, size_t n_address)
{
	return a->idiag_sport == b->idiag_sport && a->idiag_dport == b->idiag_dport &&
	       !memcmp(a->idiag_src, b->idiag_src, n_address) && !memcmp(a->idiag_dst, b->idiag_dst, n_address);
}

static int ask(struct http_peer_finder *f, const struct inet_diag_req_v2 *request, struct inet_diag_msg *out)
{
	static const struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };
	struct question q = {
		.header = { .nlmsg_len = sizeof(q), .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST,
			    .nlmsg_seq = ++f->sequence },
		.request = *request,
	};
	union {
		struct nlmsghdr header;
		char bytes[4096];
	} answer;

	if (sendto(f->fd, &q, sizeof(q), MSG_DONTWAIT, (const struct sockaddr *)&kernel, sizeof(kernel)) < 0)
		return -errno;
	for (int i = 0; i < ANSWERS_MAX; i++) {
		struct sockaddr_nl from = { 0 };
		socklen_t n_from = sizeof(from);
		ssize_t n = recvfrom(f->fd, &answer, sizeof(answer), MSG_DONTWAIT, (struct sockaddr *)&from, &n_from);

		if (n < 0)
			return -errno;
		if (from.nl_pid != 0 || n < (ssize_t)sizeof(answer.header) || answer.header.nlmsg_seq != f->sequence)
			continue;
		if (answer.header.nlmsg_type != SOCK_DIAG_BY_FAMILY ||
		    n < (ssize_t)(NLMSG_HDRLEN + sizeof(*out)) || answer.header.nlmsg_len < NLMSG_HDRLEN + sizeof(*out))
			return -ENOENT;
		memcpy(out, NLMSG_DATA(&answer.header), sizeof(*out));
		return 0;
	}
	return -ENOENT;
}

/* Whether our end is connected now. */
static bool is_established(int fd)
{
	struct tcp_info info = { 0 };
	socklen_t n = sizeof(info);

	return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n) == 0 && info.tcpi_state == TCP_ESTABLISHED;
}

int http_peer_find(struct http_peer_finder *f, int fd, uid_t *out)
{
	struct inet_diag_req_v2 request;
	struct inet_diag_msg found = { 0 };
	size_t n_address;

	if (f->fd < 0 || fill_question(fd, &request) || ask(f, &request, &found))
		return HTTP_PEER_E_UNKNOWN;
	unmap(&found, request.sdiag_family);
	n_address = request.sdiag_family == AF_INET ? sizeof(struct in_addr) : sizeof(struct in6_addr);
	if (found.idiag_family != request.sdiag_family || found.idiag_state != TCP_ESTABLISHED || !found.idiag_inode ||
	    !same_socket(&found.id, &request.id, n_address) || !is_established(fd))
		return HTTP_PEER_E_UNKNOWN;
	*out = found.idiag_uid;
	return 0;
}
