/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/fdpass.h"

static int a, b;	/* a pair of sockets */
static int null_fd;

static size_t count_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	size_t n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static int setup(void **state)
{
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0)
		return -1;
	a = fds[0];
	b = fds[1];
	null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	*state = (void *)(uintptr_t)count_fds();
	return null_fd < 0;
}

/* Whatever came through, no descriptor stays behind. */
static int teardown(void **state)
{
	size_t n = count_fds();

	close(a);
	close(b);
	close(null_fd);
	return n == (uintptr_t)*state ? 0 : -1;
}

/*
 * A connected TCP socket that has more to send than its peer takes, and whose close() would wait for
 * an hour; *peer is the other end.
 */
static int lingering_socket(int *peer)
{
	const struct linger hour = { .l_onoff = 1, .l_linger = 3600 };
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(addr);
	static char junk[1 << 16];
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(bind(listener, (struct sockaddr *)&addr, n), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&addr, &n), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&addr, n), 0);
	*peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	close(listener);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &hour, sizeof(hour)), 0);
	while (send(fd, junk, sizeof(junk), MSG_DONTWAIT) > 0)
		;
	return fd;
}

/* However a descriptor is thrown away, the peer does not decide when we go on; else this never ends. */
static void test_lingering_sockets(void **state)
{
	for (int how = 0; how < 4; how++) {
		int peer, fd = lingering_socket(&peer), fds[2] = { fd, null_fd }, one, pair[2];
		size_t n, n_fds = 0;
		char buf[8];

		assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
		assert_int_equal(send(pair[0], "", 0, 0), 0);
		assert_int_equal(fdpass_send(pair[0], "x", 1, fds, how == 1 ? 2 : 1, 0), 0);
		close(fd);
		if (how < 3)
			assert_int_equal(fdpass_recv(pair[1], buf, 8, &n, NULL, 0, NULL, 0), FDPASS_E_EOF);
		if (how == 0)
			assert_int_equal(fdpass_recv(pair[1], buf, 8, &n, NULL, 0, NULL, 0), FDPASS_E_FDS);
		if (how == 1)
			assert_int_equal(fdpass_recv(pair[1], buf, 8, &n, &one, 1, &n_fds, 0), FDPASS_E_FDS);
		if (how == 2) {
			assert_int_equal(fdpass_recv(pair[1], buf, 8, &n, &one, 1, &n_fds, 0), 0);
			fdpass_close_received(one);
		}
		fdpass_close(pair[1]);
		close(pair[0]);
		close(peer);
	}
}

static void test_data(void **state)
{
	uint8_t buf[8];
	size_t n = 99;

	assert_int_equal(fdpass_send(a, "hello", 5, NULL, 0, 0), 0);
	assert_int_equal(fdpass_send(a, "you", 3, NULL, 0, 0), 0);
	assert_int_equal(fdpass_recv(b, buf, sizeof(buf), &n, NULL, 0, NULL, 0), 0);
	assert_int_equal(n, 5);
	assert_memory_equal(buf, "hello", 5);
	assert_int_equal(fdpass_recv(b, buf, sizeof(buf), &n, NULL, 0, NULL, 0), 0);
	assert_int_equal(n, 3);
	n = 99;
	assert_int_equal(fdpass_recv(b, buf, sizeof(buf), &n, NULL, 0, NULL, FDPASS_DONTWAIT), -EAGAIN);
	assert_int_equal(n, 99);
	assert_int_equal(fdpass_send(a, "", 0, NULL, 0, 0), -EINVAL);
}

static void test_descriptors(void **state)
{
	struct stat sent, came;
	int fds[FDPASS_MAX + 1] = { null_fd, a, b, null_fd, null_fd }, got[FDPASS_MAX];
	uint8_t buf[4];
	size_t n, n_fds;

	assert_int_equal(fdpass_send(a, "x", 1, fds, 3, 0), 0);
	assert_int_equal(fdpass_recv(b, buf, sizeof(buf), &n, got, FDPASS_MAX, &n_fds, 0), 0);
	assert_int_equal(n_fds, 3);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(fstat(fds[i], &sent), 0);
		assert_int_equal(fstat(got[i], &came), 0);
		assert_true(sent.st_ino == came.st_ino && sent.st_dev == came.st_dev);
		assert_int_equal(fcntl(got[i], F_GETFD), FD_CLOEXEC);
		close(got[i]);
	}
	assert_int_equal(fdpass_send(a, "x", 1, fds, FDPASS_MAX + 1, 0), -EINVAL);
	assert_int_equal(fdpass_recv(b, buf, sizeof(buf), &n, got, FDPASS_MAX + 1, &n_fds, 0), -EINVAL);
	/* None where some were possible. */
	assert_int_equal(fdpass_send(a, "x", 1, NULL, 0, 0), 0);
	assert_int_equal(fdpass_recv(b, buf, sizeof(buf), &n, got, FDPASS_MAX, &n_fds, 0), 0);
	assert_int_equal(n_fds, 0);
}

/* As many as the kernel passes at once, to one that wants none or few. */
static void test_unwanted_descriptors(void **state)
{
	enum { MANY = 253 };
	union {
		struct cmsghdr head;
		char space[CMSG_SPACE(sizeof(int) * MANY)];
	} control = { 0 };
	char x = 'x';
	struct iovec iov = { .iov_base = &x, .iov_len = 1 };
	struct msghdr m = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control),
	};
	size_t before = count_fds(), n = 99, n_fds = 99;
	int fds[MANY], got[FDPASS_MAX] = { -5 };
	uint8_t buf[4];

	for (int i = 0; i < MANY; i++)
		fds[i] = null_fd;
	control.head.cmsg_level = SOL_SOCKET;
	control.head.cmsg_type = SCM_RIGHTS;
	control.head.cmsg_len = CMSG_LEN(sizeof(fds));
	memcpy(CMSG_DATA(&control.head), fds, sizeof(fds));
	for (size_t wanted = 0; wanted <= FDPASS_MAX; wanted++) {
		assert_int_equal(sendmsg(a, &m, 0), 1);
		assert_int_equal(fdpass_recv(b, buf, sizeof(buf), &n, got, wanted, &n_fds, 0), FDPASS_E_FDS);
		assert_int_equal(count_fds(), before);
	}
	assert_true(n == 99 && n_fds == 99 && got[0] == -5);
	/* The socket goes on. */
	assert_int_equal(fdpass_send(a, "y", 1, NULL, 0, 0), 0);
	assert_int_equal(fdpass_recv(b, buf, sizeof(buf), &n, NULL, 0, NULL, 0), 0);
	assert_int_equal(buf[0], 'y');
}

/* The kernel delivers fewer when the table of descriptors is full, and says so. */
static void test_truncated_control(void **state)
{
	int fds[3] = { null_fd, null_fd, null_fd }, got[FDPASS_MAX];
	struct rlimit old, few;
	size_t before = count_fds(), n, n_fds;
	uint8_t buf[4];
	int r, highest = dup(null_fd);

	close(highest);		/* the next free number: room for one more only */
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	few = old;
	few.rlim_cur = (rlim_t)highest + 1;
	assert_int_equal(fdpass_send(a, "x", 1, fds, 3, 0), 0);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	r = fdpass_recv(b, buf, sizeof(buf), &n, got, 3, &n_fds, 0);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
	assert_int_equal(r, FDPASS_E_FDS);
	assert_int_equal(count_fds(), before);
}

static void test_truncated_data(void **state)
{
	int fds[2] = { null_fd, null_fd }, got[2];
	size_t before = count_fds(), n, n_fds;
	uint8_t buf[4];

	assert_int_equal(fdpass_send(a, "12345", 5, fds, 2, 0), 0);
	assert_int_equal(fdpass_recv(b, buf, sizeof(buf), &n, got, 2, &n_fds, 0), FDPASS_E_TRUNCATED);
	assert_int_equal(count_fds(), before);
	assert_int_equal(fdpass_send(a, "1234", 4, NULL, 0, 0), 0);
	assert_int_equal(fdpass_recv(b, buf, sizeof(buf), &n, got, 2, &n_fds, 0), 0);
	assert_int_equal(n, 4);
}

static void test_end(void **state)
{
	int fds[1] = { null_fd };
	uint8_t buf[4];
	size_t n;

	/* An empty datagram can't be told from the end; its descriptors don't stay. */
	struct iovec iov = { .iov_base = buf, .iov_len = 0 };
	union {
		struct cmsghdr head;
		char space[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
			    .msg_controllen = sizeof(control) };
	size_t before = count_fds();

	control.head.cmsg_level = SOL_SOCKET;
	control.head.cmsg_type = SCM_RIGHTS;
	control.head.cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(&control.head), fds, sizeof(fds));
	assert_int_equal(sendmsg(a, &m, 0), 0);
	assert_int_equal(fdpass_recv(b, buf, sizeof(buf), &n, NULL, 0, NULL, 0), FDPASS_E_FDS);
	assert_int_equal(count_fds(), before);

	shutdown(a, SHUT_RDWR);
	assert_int_equal(fdpass_recv(b, buf, sizeof(buf), &n, NULL, 0, NULL, 0), FDPASS_E_EOF);
	assert_int_equal(fdpass_send(b, "x", 1, NULL, 0, 0), -EPIPE);	/* and no signal */
}

static void test_full_socket(void **state)
{
	static uint8_t large[60000];
	int r;

	while ((r = fdpass_send(a, large, sizeof(large), NULL, 0, FDPASS_DONTWAIT)) == 0)
		continue;
	assert_int_equal(r, -EAGAIN);
}

static void test_peer(void **state)
{
	struct fdpass_peer peer;

	assert_int_equal(fdpass_peer(a, &peer), 0);
	assert_int_equal(peer.uid, geteuid());
	assert_int_equal(peer.gid, getegid());
	assert_int_equal(peer.pid, getpid());
	assert_int_equal(fdpass_peer(null_fd, &peer), -ENOTSOCK);
}

/* The last word arrives although the peer was still talking; after it comes the end, no reset. */
static void test_close_lets_arrive(void **state)
{
	char buf[16];
	size_t n;

	for (int i = 0; i < 5; i++)
		assert_int_equal(fdpass_send(b, "question", 8, &null_fd, 1, 0), 0);
	assert_int_equal(fdpass_send(a, "no", 2, NULL, 0, 0), 0);
	fdpass_close(a);
	assert_int_equal(fdpass_recv(b, buf, sizeof(buf), &n, NULL, 0, NULL, 0), 0);
	assert_int_equal(n, 2);
	assert_memory_equal(buf, "no", 2);
	assert_int_equal(fdpass_recv(b, buf, sizeof(buf), &n, NULL, 0, NULL, 0), FDPASS_E_EOF);
	assert_int_equal(fdpass_send(b, "question", 8, NULL, 0, 0), -EPIPE);
	a = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

#define TEST(F) cmocka_unit_test_setup_teardown(F, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_close_lets_arrive),
		TEST(test_data),
		TEST(test_descriptors),
		TEST(test_unwanted_descriptors),
		TEST(test_truncated_control),
		TEST(test_truncated_data),
		TEST(test_end),
		TEST(test_lingering_sockets),
		TEST(test_full_socket),
		TEST(test_peer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
