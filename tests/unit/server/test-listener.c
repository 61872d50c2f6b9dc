/* SPDX-License-Identifier: Apache-2.0 */
/* The listener: modes, lock, stale sockets, files that are not ours. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/server/listener.h"
#include "ipc/base/fd.h"

static char dir[64];

static const char *in_dir(const char *name)
{
	static char path[2][128];
	static unsigned turn;

	turn ^= 1;
	snprintf(path[turn], sizeof(path[turn]), "%s/%s", dir, name);
	return path[turn];
}

static int connect_to(const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	if (connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0) {
		close(fd);
		return -errno;
	}
	return fd;
}

static int set_up(void **state)
{
	strcpy(dir, "/tmp/kvd-listener-XXXXXX");
	return mkdtemp(dir) ? 0 : -1;
}

static int tear_down(void **state)
{
	/* Nothing may be left: rmdir() fails otherwise. */
	return rmdir(dir);
}

static void test_mode_whatever_the_umask(void **state)
{
	static const mode_t umasks[] = { 0, 022, 077, 0777 }, modes[] = { 0600, 0660, 0666, 0777 };

	for (size_t u = 0; u < 4; u++) {
		for (size_t m = 0; m < 4; m++) {
			mode_t old = umask(umasks[u]);
			struct listener *l;
			struct stat st;

			assert_int_equal(listener_new(&l, in_dir("s"), SOCK_SEQPACKET, modes[m], NULL), 0);
			assert_int_equal(umask(old), umasks[u]);
			assert_int_equal(stat(in_dir("s"), &st), 0);
			assert_true(S_ISSOCK(st.st_mode));
			assert_int_equal(st.st_mode & 07777, modes[m]);
			listener_free(l);
			assert_int_equal(access(in_dir("s"), F_OK), -1);
			assert_int_equal(access(in_dir("s.lock"), F_OK), -1);
		}
	}
}

static void test_second_is_refused(void **state)
{
	struct diag diag = DIAG_NULL;
	struct listener *a, *b = NULL;
	int fd;

	assert_int_equal(listener_new(&a, in_dir("s"), SOCK_SEQPACKET, 0600, NULL), 0);
	assert_int_equal(listener_new(&b, in_dir("s"), SOCK_SEQPACKET, 0600, &diag), LISTENER_E_BUSY);
	assert_null(b);
	assert_non_null(strstr(diag.text, "already"));
	fd = connect_to(in_dir("s"));
	assert_true(fd >= 0);
	close(fd);
	listener_free(a);
	assert_int_equal(listener_new(&a, in_dir("s"), SOCK_SEQPACKET, 0600, NULL), 0);
	listener_free(a);
}

static void test_stale_is_replaced(void **state)
{
	struct listener *l;
	pid_t pid = fork();
	int status, fd;

	if (pid == 0) {
		if (listener_new(&l, in_dir("s"), SOCK_SEQPACKET, 0600, NULL))
			_exit(1);
		raise(SIGKILL);
	}
	waitpid(pid, &status, 0);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(access(in_dir("s"), F_OK), 0);
	assert_int_equal(connect_to(in_dir("s")), -ECONNREFUSED);
	assert_int_equal(listener_new(&l, in_dir("s"), SOCK_SEQPACKET, 0600, NULL), 0);
	fd = connect_to(in_dir("s"));
	assert_true(fd >= 0);
	close(fd);
	listener_free(l);
}

static void test_not_a_socket_is_untouched(void **state)
{
	struct diag diag = DIAG_NULL;
	struct listener *l;
	char text[8] = "";
	int fd = open(in_dir("s"), O_WRONLY | O_CREAT | O_EXCL, 0600);

	assert_int_equal(write(fd, "data", 4), 4);
	close(fd);
	assert_int_equal(listener_new(&l, in_dir("s"), SOCK_SEQPACKET, 0600, &diag), -EEXIST);
	assert_non_null(strstr(diag.text, "not a socket"));
	fd = open(in_dir("s"), O_RDONLY);
	assert_int_equal(read(fd, text, sizeof(text)), 4);
	assert_string_equal(text, "data");
	close(fd);
	unlink(in_dir("s"));

	/* A symbolic link is no socket either, wherever it leads. */
	assert_int_equal(symlink("/nowhere", in_dir("s")), 0);
	assert_int_equal(listener_new(&l, in_dir("s"), SOCK_SEQPACKET, 0600, NULL), -EEXIST);
	unlink(in_dir("s"));
}

static void test_foreign_socket_is_untouched(void **state)
{
	static const int types[] = { SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET };

	for (size_t i = 0; i < 3; i++) {
		struct sockaddr_un a = { .sun_family = AF_UNIX };
		int fd = socket(AF_UNIX, types[i] | SOCK_CLOEXEC, 0);
		struct listener *l;

		snprintf(a.sun_path, sizeof(a.sun_path), "%s", in_dir("s"));
		assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
		if (types[i] != SOCK_DGRAM)
			assert_int_equal(listen(fd, 1), 0);
		assert_int_equal(listener_new(&l, in_dir("s"), SOCK_SEQPACKET, 0600, NULL), LISTENER_E_BUSY);
		assert_int_equal(access(in_dir("s"), F_OK), 0);
		close(fd);
		unlink(in_dir("s"));
	}
}

static void test_ours_alone_is_unlinked(void **state)
{
	struct listener *l;
	int fd;

	assert_int_equal(listener_new(&l, in_dir("s"), SOCK_SEQPACKET, 0600, NULL), 0);
	unlink(in_dir("s"));
	fd = open(in_dir("s"), O_WRONLY | O_CREAT | O_EXCL, 0600);
	close(fd);
	listener_free(l);
	assert_int_equal(access(in_dir("s"), F_OK), 0);
	unlink(in_dir("s"));
}

static void test_long_path(void **state)
{
	for (size_t n = 107; n <= 300; n += n == 108 ? 192 : 1) {
		char path[301];
		struct diag diag = DIAG_NULL;
		struct listener *l;
		int r;

		memset(path, 'x', n);
		path[n] = '\0';
		memcpy(path, dir, strlen(dir));
		path[strlen(dir)] = '/';
		r = listener_new(&l, path, SOCK_SEQPACKET, 0600, &diag);
		if (n == 107) {
			assert_int_equal(r, 0);
			listener_free(l);
		} else {
			assert_int_equal(r, -ENAMETOOLONG);
			assert_non_null(strstr(diag.text, "107"));
		}
	}
}

static void test_directory_is_made(void **state)
{
	struct listener *l;
	struct stat st;
	mode_t old = umask(0777);
	int r = listener_new(&l, in_dir("sub/s"), SOCK_SEQPACKET, 0600, NULL);

	umask(old);
	/* Under such a umask only root can use what mkdir() makes. */
	if (r == 0) {
		assert_int_equal(stat(in_dir("sub"), &st), 0);
		assert_int_equal(st.st_mode & 07777, geteuid() == 0 ? 0755 : 0);
		listener_free(l);
	} else {
		assert_int_not_equal(geteuid(), 0);
	}
	rmdir(in_dir("sub"));

	umask(0);
	assert_int_equal(listener_new(&l, in_dir("sub/s"), SOCK_SEQPACKET, 0600, NULL), 0);
	umask(old);
	assert_int_equal(stat(in_dir("sub"), &st), 0);
	assert_int_equal(st.st_mode & 07777, geteuid() == 0 ? 0755 : 0700);
	listener_free(l);
	rmdir(in_dir("sub"));

	struct diag diag = DIAG_NULL;
	assert_int_equal(listener_new(&l, in_dir("no/such/s"), SOCK_SEQPACKET, 0600, &diag), -ENOENT);
	assert_non_null(strstr(diag.text, "directory"));
}

static void test_adopt(void **state)
{
	struct listener *l;
	int fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds), 0);
	assert_int_equal(listener_adopt(&l, fds[0], NULL), -EINVAL);
	close(fds[0]);
	close(fds[1]);

	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", in_dir("s"));
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(listen(fd, 1), 0);
	assert_int_equal(listener_adopt(&l, fd, NULL), 0);
	assert_string_equal(listener_path(l), in_dir("s"));
	assert_true(fcntl(listener_fd(l), F_GETFL) & O_NONBLOCK);
	listener_free(l);
	assert_int_equal(access(in_dir("s"), F_OK), 0);
	unlink(in_dir("s"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_mode_whatever_the_umask, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_second_is_refused, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_stale_is_replaced, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_not_a_socket_is_untouched, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_foreign_socket_is_untouched, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_ours_alone_is_unlinked, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_long_path, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_directory_is_made, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_adopt, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
