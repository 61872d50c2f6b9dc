/* SPDX-License-Identifier: Apache-2.0 */
/* Whose a TCP connection is: by the kernel's word, and only while the connection is there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/server/http-peer.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

union address {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

struct pair {
	int client, server;
};

static int listen_on(int family, union address *a)
{
	socklen_t n = family == AF_INET ? sizeof(a->in) : sizeof(a->in6);
	int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	*a = (union address){ .sa.sa_family = (sa_family_t)family };
	if (family == AF_INET)
		a->in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	else
		a->in6.sin6_addr = in6addr_loopback;
	if (fd < 0 || bind(fd, &a->sa, n) < 0 || listen(fd, 8) < 0 || getsockname(fd, &a->sa, &n) < 0) {
		fd_closep(&fd);
		return -1;
	}
	return fd;
}

/* family: of the listener; v4-mapped: the client is a socket of IPv6 that is connected over IPv4. */
static struct pair connected(int family, bool mapped)
{
	union address a, to;
	_cleanup_(fd_closep) int listener = listen_on(family, &a);
	struct pair p;

	if (listener < 0)
		skip();
	to = a;
	if (mapped) {
		to = (union address){ .in6 = { .sin6_family = AF_INET6, .sin6_port = a.in.sin_port } };
		assert_int_equal(inet_pton(AF_INET6, "::ffff:127.0.0.1", &to.in6.sin6_addr), 1);
	}
	p.client = socket(to.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(p.client >= 0);
	assert_int_equal(connect(p.client, &to.sa, to.sa.sa_family == AF_INET ? sizeof(to.in) : sizeof(to.in6)), 0);
	p.server = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	assert_true(p.server >= 0);
	return p;
}

static struct http_peer_finder finder;

static int set_up(void **state)
{
	return http_peer_finder_init(&finder);
}

static int tear_down(void **state)
{
	http_peer_finder_deinit(&finder);
	return 0;
}

static void test_who(void **state)
{
	static const struct { int family; bool mapped; } cases[] = {
		{ AF_INET, false }, { AF_INET, true }, { AF_INET6, false },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct pair p = connected(cases[i].family, cases[i].mapped);
		uid_t uid = 77;

		assert_int_equal(http_peer_find(&finder, p.server, &uid), 0);
		assert_int_equal(uid, getuid());
		/* The other way round it is the same question, where both ends are of one family. */
		if (!cases[i].mapped)
			assert_int_equal(http_peer_find(&finder, p.client, &uid), 0);
		close(p.client);
		close(p.server);
	}
}

/* In order, or with a reset; before the daemon looks, or half of it only. */
static void test_gone(void **state)
{
	for (int how = 0; how < 3; how++) {
		struct pair p = connected(AF_INET, false);
		struct linger now = { .l_onoff = 1 };
		struct pollfd end = { .fd = p.server, .events = POLLRDHUP };
		uid_t uid = 77;

		if (how == 0)
			setsockopt(p.client, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
		if (how == 2)
			shutdown(p.client, SHUT_WR);
		else
			close(p.client);
		assert_int_equal(poll(&end, 1, 10000), 1);
		assert_int_equal(http_peer_find(&finder, p.server, &uid), HTTP_PEER_E_UNKNOWN);
		assert_int_equal(uid, 77);
		if (how == 2)
			close(p.client);
		close(p.server);
	}
}

static void test_none(void **state)
{
	struct http_peer_finder without = { .fd = -1 };
	union address a;
	_cleanup_(fd_closep) int listener = listen_on(AF_INET, &a);
	struct pair p = connected(AF_INET, false);
	uid_t uid = 77;

	assert_int_equal(http_peer_find(&without, p.server, &uid), HTTP_PEER_E_UNKNOWN);
	assert_int_equal(http_peer_find(&finder, listener, &uid), HTTP_PEER_E_UNKNOWN);
	assert_int_equal(http_peer_find(&finder, finder.fd, &uid), HTTP_PEER_E_UNKNOWN);
	assert_int_equal(http_peer_find(&finder, -1, &uid), HTTP_PEER_E_UNKNOWN);
	assert_int_equal(uid, 77);
	close(p.client);
	close(p.server);
}

/* Each of many is told apart. */
static void test_another_user(void **state)
{
	union address a;
	_cleanup_(fd_closep) int listener = listen_on(AF_INET, &a);

	if (geteuid() != 0)
		skip();
	for (uid_t other = 1000; other < 1020; other++) {
		pid_t child = fork();
		uid_t uid = 77;
		int server;

		assert_true(child >= 0);
		if (!child) {
			int fd;
			char byte;

			if (setuid(other) < 0)
				_exit(1);
			fd = socket(AF_INET, SOCK_STREAM, 0);
			if (connect(fd, &a.sa, sizeof(a.in)) < 0)
				_exit(1);
			(void)!read(fd, &byte, 1);
			_exit(0);
		}
		server = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		assert_true(server >= 0);
		assert_int_equal(http_peer_find(&finder, server, &uid), 0);
		assert_int_equal(uid, other);
		close(server);
		waitpid(child, NULL, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_who),
		cmocka_unit_test(test_gone),
		cmocka_unit_test(test_none),
		cmocka_unit_test(test_another_user),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
