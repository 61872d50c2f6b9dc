/* SPDX-License-Identifier: Apache-2.0 */
/* What a service manager passes, told apart; and what it is told to keep.  The manager is this test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/server/fdstore.h"

#define FIRST 3			/* SD_LISTEN_FDS_START */
#define SEALS F_SEAL_SHRINK

static int notify = -1, null_fd = -1, stderr_fd = -1;
static int n_passed;
static char passed_names[1024];

static int set_up(void **state)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	socklen_t n = sizeof(a);
	char name[sizeof(a.sun_path)];

	notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	/* An abstract name that the kernel chooses. */
	assert_int_equal(bind(notify, (struct sockaddr *)&a, sizeof(sa_family_t)), 0);
	assert_int_equal(getsockname(notify, (struct sockaddr *)&a, &n), 0);
	/* Out of the way of what is passed. */
	notify = fcntl(notify, F_DUPFD_CLOEXEC, 100);
	stderr_fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 100);
	null_fd = fcntl(open("/dev/null", O_WRONLY | O_CLOEXEC), F_DUPFD_CLOEXEC, 100);
	for (int fd = FIRST; fd < 20; fd++)
		close(fd);
	dup2(null_fd, STDERR_FILENO);
	snprintf(name, sizeof(name), "@%.*s", (int)(n - sizeof(sa_family_t) - 1), a.sun_path + 1);
	setenv("NOTIFY_SOCKET", name, 1);
	n_passed = 0;
	passed_names[0] = '\0';
	return 0;
}

static int tear_down(void **state)
{
	int left = 0;

	for (int fd = FIRST; fd < 20; fd++)
		left += fcntl(fd, F_GETFD) >= 0;
	dup2(stderr_fd, STDERR_FILENO);
	close(stderr_fd);
	close(null_fd);
	close(notify);
	unsetenv("NOTIFY_SOCKET");
	return left;
}

/* One more descriptor for the daemon, which gets the next number. */
static void pass(const char *name, int fd)
{
	assert_int_equal(fd, FIRST + n_passed);
	if (n_passed++)
		strcat(passed_names, ":");
	strcat(passed_names, name);
}

static int memory(off_t size, int seals)
{
	int fd = memfd_create("kept", MFD_ALLOW_SEALING);

	assert_int_equal(ftruncate(fd, size), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static int start(struct fdstore **s, int *sock, struct diag *diag)
{
	char text[32];

	snprintf(text, sizeof(text), "%d", (int)getpid());
	setenv("LISTEN_PID", text, 1);
	snprintf(text, sizeof(text), "%d", n_passed);
	setenv("LISTEN_FDS", text, 1);
	setenv("LISTEN_FDNAMES", passed_names, 1);
	*sock = -1;
	return fdstore_new(s, sock, diag);
}

/* The next message to the manager and the inode of the file that came with it (0: none); "": there is none. */
static const char *told(ino_t *ino)
{
	static char text[512];
	union {
		struct cmsghdr head;
		char space[CMSG_SPACE(sizeof(int) * 4)];
	} control;
	struct iovec iov = { .iov_base = text, .iov_len = sizeof(text) - 1 };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
			    .msg_controllen = sizeof(control) };
	ssize_t n = recvmsg(notify, &m, MSG_CMSG_CLOEXEC);
	struct cmsghdr *c;
	struct stat st;
	int fd;

	*ino = 0;
	text[n > 0 ? n : 0] = '\0';
	c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;
	if (c && c->cmsg_type == SCM_RIGHTS) {
		assert_int_equal(c->cmsg_len, CMSG_LEN(sizeof(int)));
		memcpy(&fd, CMSG_DATA(c), sizeof(fd));
		assert_int_equal(fstat(fd, &st), 0);
		*ino = st.st_ino;
		close(fd);
	}
	return text;
}

static void assert_told(const char *want)
{
	ino_t ino;

	assert_string_equal(told(&ino), want);
	assert_int_equal(ino, 0);
}

static void assert_stored(const char *want, int fd)
{
	struct stat st;
	ino_t ino;

	assert_string_equal(told(&ino), want);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(ino, st.st_ino);
}

static int listening(int type)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, type, 0);

	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(sa_family_t)), 0);
	if (type != SOCK_DGRAM)
		assert_int_equal(listen(fd, 1), 0);
	return fd;
}

static void test_first_start(void **state)
{
	struct fdstore *s;
	int sock, fd;

	unsetenv("LISTEN_FDS");
	assert_int_equal(fdstore_new(&s, &sock, NULL), 0);
	assert_int_equal(sock, -1);
	assert_true(fdstore_offered(s));
	for (unsigned i = 0; i < FDSTORE_N_SLOTS; i++)
		assert_int_equal(fdstore_take(s, i), -1);
	fd = memory(4096, SEALS);
	fdstore_put(s, FDSTORE_INDEX, fd);
	assert_stored("FDSTORE=1\nFDNAME=kvd-index", fd);
	/* The same again is nothing new; nothing instead is. */
	fdstore_put(s, FDSTORE_INDEX, fd);
	assert_told("");
	fdstore_put(s, FDSTORE_INDEX, -1);
	assert_told("FDSTOREREMOVE=1\nFDNAME=kvd-index");
	fdstore_put(s, FDSTORE_INDEX, -1);
	assert_told("");
	close(fd);
	fdstore_free(s);
}

static void test_all_come(void **state)
{
	struct fdstore *s;
	int sock, pool, other;

	pass("kvd-index", memory(4096, SEALS));
	pass("kvd.socket", listening(SOCK_SEQPACKET));
	pass("kvd-pool", memory(8192, SEALS));
	pass("kvd-life", memory(4096, SEALS | F_SEAL_SEAL));
	assert_int_equal(start(&s, &sock, NULL), 0);
	assert_int_equal(sock, 4);
	/* Nothing of it reaches a child, and nobody takes it again. */
	for (int fd = FIRST; fd < FIRST + 4; fd++)
		assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
	assert_null(getenv("LISTEN_FDS"));
	assert_null(getenv("LISTEN_FDNAMES"));
	assert_int_equal(fdstore_take(s, FDSTORE_INDEX), 3);
	pool = fdstore_take(s, FDSTORE_POOL);
	assert_int_equal(pool, 5);
	assert_int_equal(fdstore_take(s, FDSTORE_POOL), -1);
	assert_told("");

	/* It stays, or another takes its place, and the old one goes first. */
	fdstore_put(s, FDSTORE_POOL, pool);
	assert_told("");
	other = memory(4096, SEALS);
	fdstore_put(s, FDSTORE_POOL, other);
	assert_told("FDSTOREREMOVE=1\nFDNAME=kvd-pool");
	assert_stored("FDSTORE=1\nFDNAME=kvd-pool", other);
	fdstore_drop(s, FDSTORE_INDEX);
	assert_told("FDSTOREREMOVE=1\nFDNAME=kvd-index");
	fdstore_drop(s, FDSTORE_LIFE);
	assert_told("FDSTOREREMOVE=1\nFDNAME=kvd-life");
	assert_int_equal(fdstore_take(s, FDSTORE_LIFE), -1);
	assert_told("");
	fdstore_free(s);
	close(3);
	close(sock);
	close(pool);
	close(other);
}

/* Each in place of the pool: gone, and the index with it, which is nothing without. */
static void test_wrong_kinds(void **state)
{
	for (int kind = 0; kind < 9; kind++) {
		struct fdstore *s;
		int sock, fds[2] = { -1, -1 };

		n_passed = 0;
		passed_names[0] = '\0';
		pass("kvd-index", memory(4096, SEALS));
		switch (kind) {
		case 0:
			assert_int_equal(pipe(fds), 0);
			pass("kvd-pool", fds[0]);
			break;
		case 1:
			pass("kvd-pool", memory(4096, 0));
			break;
		case 2:
			pass("kvd-pool", memory(4096, F_SEAL_GROW));
			break;
		case 3:
			pass("kvd-pool", listening(SOCK_SEQPACKET));
			break;
		case 4:
			pass("kvd-pool", open("/", O_RDONLY));
			break;
		case 5:
			pass("kvd-pool", open("/dev/zero", O_RDWR));
			break;
		case 6:
			pass("kvd-pool", open("/proc/self/maps", O_RDONLY));
			break;
		case 7:
			pass("kvd-pool", open("/", O_PATH));
			break;
		case 8: {
			char path[64];
			int fd = memory(4096, SEALS), again;

			/* One of ours, but open for reading only. */
			snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
			again = open(path, O_RDONLY);
			dup2(again, fd);
			close(again);
			pass("kvd-pool", fd);
			break;
		}
		}
		assert_int_equal(start(&s, &sock, NULL), 0);
		assert_int_equal(sock, -1);
		assert_int_equal(fdstore_take(s, FDSTORE_POOL), -1);
		assert_int_equal(fdstore_take(s, FDSTORE_INDEX), -1);
		assert_told("FDSTOREREMOVE=1\nFDNAME=kvd-pool");
		assert_told("FDSTOREREMOVE=1\nFDNAME=kvd-index");
		assert_told("");
		fdstore_free(s);
		if (fds[1] >= 0)
			close(fds[1]);
	}
}

static void test_alone(void **state)
{
	struct fdstore *s;
	int sock;

	pass("kvd-pool", memory(4096, SEALS));
	assert_int_equal(start(&s, &sock, NULL), 0);
	assert_int_equal(fdstore_take(s, FDSTORE_POOL), -1);
	assert_told("FDSTOREREMOVE=1\nFDNAME=kvd-pool");
	assert_told("");
	fdstore_free(s);
}

static void test_twice(void **state)
{
	struct fdstore *s;
	int sock;

	for (int i = 0; i < 3; i++)
		pass("kvd-life", memory(4096, SEALS));
	assert_int_equal(start(&s, &sock, NULL), 0);
	assert_int_equal(fdstore_take(s, FDSTORE_LIFE), -1);
	assert_told("FDSTOREREMOVE=1\nFDNAME=kvd-life");
	assert_told("");
	fdstore_free(s);
}

static void test_unknown(void **state)
{
	struct fdstore *s;
	int sock;

	pass("stored", memory(4096, SEALS));
	pass("", memory(4096, SEALS));
	pass("kvd-pool2", memory(4096, SEALS));
	assert_int_equal(start(&s, &sock, NULL), 0);
	assert_told("FDSTOREREMOVE=1\nFDNAME=stored");
	assert_told("FDSTOREREMOVE=1\nFDNAME=");
	assert_told("FDSTOREREMOVE=1\nFDNAME=kvd-pool2");
	assert_told("");
	fdstore_free(s);
}

static void test_sockets(void **state)
{
	struct diag diag = DIAG_NULL;
	struct fdstore *s;
	int sock;

	pass("a", listening(SOCK_SEQPACKET));
	pass("b", listening(SOCK_STREAM));
	assert_int_equal(start(&s, &sock, &diag), -EINVAL);
	assert_non_null(strstr(diag.text, "2 sockets, one is wanted"));
	assert_int_equal(sock, -1);
}

static void test_senseless_environment(void **state)
{
	struct diag diag = DIAG_NULL;
	struct fdstore *s;
	int sock;

	n_passed = 2;
	strcpy(passed_names, "a");
	assert_true(start(&s, &sock, &diag) < 0);
	assert_non_null(strstr(diag.text, "service manager passed"));
	unsetenv("LISTEN_FDS");
}

static void test_no_manager(void **state)
{
	struct fdstore *s;
	int sock, fd;

	unsetenv("NOTIFY_SOCKET");
	pass("kvd-pool", memory(4096, SEALS));
	pass("kvd-index", memory(4096, SEALS));
	assert_int_equal(start(&s, &sock, NULL), 0);
	assert_false(fdstore_offered(s));
	fd = fdstore_take(s, FDSTORE_INDEX);
	assert_int_equal(fd, 4);
	fdstore_put(s, FDSTORE_POOL, fd);
	fdstore_put(s, FDSTORE_INDEX, fd);
	fdstore_drop(s, FDSTORE_LIFE);
	assert_told("");
	close(fd);
	fdstore_free(s);
}

/* A manager that is gone costs a line of the log, and nothing else. */
static void test_deaf_manager(void **state)
{
	struct fdstore *s;
	int sock, fd = memory(4096, SEALS);

	setenv("NOTIFY_SOCKET", "/nonexistent/notify", 1);
	unsetenv("LISTEN_FDS");
	assert_int_equal(fdstore_new(&s, &sock, NULL), 0);
	fdstore_put(s, FDSTORE_POOL, fd);
	fdstore_put(s, FDSTORE_POOL, -1);
	fdstore_free(s);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_first_start, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_all_come, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_wrong_kinds, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_alone, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_twice, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_unknown, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_sockets, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_senseless_environment, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_no_manager, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_deaf_manager, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
