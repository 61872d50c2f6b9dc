/* SPDX-License-Identifier: Apache-2.0 */
/* How a life ended, as the next one sees it: lives that end in every way, with counts of the kernel made up. */
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/server/life.h"
#include "kernel-files.h"

static void kills(unsigned machine, unsigned group)
{
	char text[128];

	snprintf(text, sizeof(text), "nr_free_pages 5\noom_kill %u\npgfault 7\n", machine);
	put("proc/vmstat", text);
	snprintf(text, sizeof(text), "low 0\nhigh 0\nmax 9\noom 9\noom_kill %u\noom_group_kill 9\n", group);
	put("cgroup/a.slice/b.service/memory.events", text);
}

static int set_up(void **state)
{
	make_folders();
	put("proc/self/cgroup", "1:name=systemd:/\n0::/a.slice/b.service\n");
	kills(7, 2);
	return 0;
}

/* The page of a first life that was killed; every descriptor that a life gets is a duplicate, as from a store. */
static int first_life(void)
{
	struct life *l;
	int fd;

	assert_int_equal(life_new(&l, -1, proc, cgroup), 0);
	assert_int_equal(life_last(l), LIFE_NONE);
	fd = dup(life_fd(l));
	assert_true(fd >= 0);
	life_free(l);
	return fd;
}

static enum life_end next_life(int fd, bool ends)
{
	struct life *l;
	enum life_end last;
	struct stat a, b;

	assert_int_equal(life_new(&l, dup(fd), proc, cgroup), 0);
	last = life_last(l);
	assert_int_equal(fstat(fd, &a), 0);
	assert_int_equal(fstat(life_fd(l), &b), 0);
	assert_int_equal(a.st_ino, b.st_ino);
	if (ends)
		life_end(l);
	life_free(l);
	return last;
}

static void test_ended_or_killed(void **state)
{
	int fd = first_life();

	assert_int_equal(next_life(fd, false), LIFE_BROKEN);
	assert_int_equal(next_life(fd, true), LIFE_BROKEN);
	assert_int_equal(next_life(fd, true), LIFE_ENDED);
	assert_int_equal(next_life(fd, false), LIFE_ENDED);
	/* As often as one likes: kill -9 is no crash. */
	for (int i = 0; i < 10; i++)
		assert_int_equal(next_life(fd, false), LIFE_BROKEN);
	close(fd);
}

static void test_out_of_memory(void **state)
{
	int fd = first_life();

	kills(8, 3);
	assert_int_equal(next_life(fd, false), LIFE_OUT_OF_MEMORY);
	/* Counted once. */
	assert_int_equal(next_life(fd, false), LIFE_BROKEN);
	/* One that ended in order was not killed. */
	next_life(fd, true);
	kills(9, 4);
	assert_int_equal(next_life(fd, false), LIFE_ENDED);
	assert_int_equal(next_life(fd, false), LIFE_BROKEN);
	/* Somebody else's kill, as the group's own count says. */
	kills(10, 4);
	assert_int_equal(next_life(fd, false), LIFE_BROKEN);
	close(fd);
}

static void test_another_group(void **state)
{
	char path[256];
	int fd = first_life();

	/* Made again after the kill, so that its count begins again: the machine's decides. */
	make_folder("cgroup/a.slice/new");
	kills(8, 0);
	snprintf(path, sizeof(path), "%s/a.slice/b.service/memory.events", cgroup);
	assert_int_equal(remove(path), 0);
	put("cgroup/a.slice/new/memory.events", "oom_kill 0\n");
	put("proc/self/cgroup", "0::/a.slice/new\n");
	assert_int_equal(next_life(fd, false), LIFE_OUT_OF_MEMORY);
	assert_int_equal(next_life(fd, false), LIFE_BROKEN);
	/* The same group with a smaller count cannot be: the machine's decides again. */
	put("cgroup/a.slice/new/memory.events", "oom_kill 5\n");
	assert_int_equal(next_life(fd, false), LIFE_OUT_OF_MEMORY);
	put("cgroup/a.slice/new/memory.events", "oom_kill 1\n");
	assert_int_equal(next_life(fd, false), LIFE_BROKEN);
	put("cgroup/a.slice/new/memory.events", "oom_kill 0\n");
	put("proc/vmstat", "oom_kill 9\n");
	assert_int_equal(next_life(fd, false), LIFE_OUT_OF_MEMORY);
	close(fd);
}

static void test_nothing_is_told(void **state)
{
	int fd;

	put("proc/vmstat", "nr_free_pages 1\n");
	put("proc/self/cgroup", "1:memory:/x\n");
	fd = first_life();
	assert_int_equal(next_life(fd, false), LIFE_BROKEN);
	/* From now on it is known, but nobody knows since when. */
	put("proc/vmstat", "oom_kill 50\n");
	assert_int_equal(next_life(fd, false), LIFE_BROKEN);
	put("proc/vmstat", "oom_kill 51\n");
	assert_int_equal(next_life(fd, false), LIFE_OUT_OF_MEMORY);
	/* Less than before: another boot's, or another machine's. */
	put("proc/vmstat", "oom_kill 3\n");
	assert_int_equal(next_life(fd, false), LIFE_BROKEN);
	put("proc/vmstat", "");
	assert_int_equal(next_life(fd, false), LIFE_BROKEN);
	close(fd);
}

/* Kills of others that were noted while it lived are not its end. */
static void test_noted(void **state)
{
	struct life *l;
	int fd = first_life();

	put("proc/self/cgroup", "0::/\n");
	assert_int_equal(life_new(&l, dup(fd), proc, cgroup), 0);
	kills(20, 2);
	life_note(l);
	life_free(l);
	assert_int_equal(next_life(fd, false), LIFE_BROKEN);
	close(fd);
}

/* A process of its own, ended by a signal that it gets from itself or from others. */
static enum life_end crash(int fd, int signal_number, bool others)
{
	enum life_end last;
	int status;
	int pipes[2];
	pid_t pid;

	assert_int_equal(pipe(pipes), 0);
	pid = fork();
	if (pid == 0) {
		const struct rlimit none = { 0, 0 };
		struct life *l;

		setrlimit(RLIMIT_CORE, &none);
		signal(signal_number, SIG_DFL);
		if (life_new(&l, dup(fd), proc, cgroup))
			_exit(1);
		last = life_last(l);
		life_watch_crashes(l);
		if (write(pipes[1], &last, sizeof(last)) != sizeof(last))
			_exit(1);
		if (others)
			pause();
		raise(signal_number);
		_exit(2);
	}
	assert_true(pid > 0);
	close(pipes[1]);
	assert_int_equal(read(pipes[0], &last, sizeof(last)), sizeof(last));
	close(pipes[0]);
	if (others)
		kill(pid, signal_number);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), signal_number);
	return last;
}

static void test_crashes(void **state)
{
	static const int signals[] = { SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL };
	int fd = first_life();

	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
		next_life(fd, true);
		assert_int_equal(crash(fd, signals[i], i % 2), LIFE_ENDED);
		assert_int_equal(crash(fd, signals[i], false), LIFE_BROKEN);
		/* A kill between them is neither one more nor the end of the row. */
		assert_int_equal(crash(fd, SIGKILL, true), LIFE_BROKEN);
		assert_int_equal(crash(fd, signals[i], false), LIFE_BROKEN);
		/* A new row. */
		assert_int_equal(crash(fd, signals[i], false), LIFE_CRASHES);
		assert_int_equal(next_life(fd, false), LIFE_BROKEN);
	}
	/* One that ends in order ends a row, too. */
	next_life(fd, true);
	for (int i = 0; i < 5; i++) {
		crash(fd, SIGSEGV, false);
		crash(fd, SIGSEGV, false);
		assert_int_equal(next_life(fd, true), LIFE_BROKEN);
	}
	close(fd);
}

static void test_no_page(void **state)
{
	static const struct { unsigned seals; off_t size; } wrong[] = {
		{ 0, 4096 }, { F_SEAL_SHRINK | F_SEAL_GROW, 4096 }, { F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, 0 },
		{ F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, 8192 },
		{ F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | F_SEAL_WRITE, 4096 },
	};
	struct life *l;
	int fds[2];

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		int fd = memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING);

		assert_int_equal(ftruncate(fd, wrong[i].size), 0);
		assert_int_equal(fcntl(fd, F_ADD_SEALS, wrong[i].seals), 0);
		assert_int_equal(life_new(&l, fd, proc, cgroup), 0);
		assert_int_equal(life_last(l), LIFE_NONE);
		/* It was taken over, and a new one is there. */
		life_end(l);
		life_free(l);
		assert_int_equal(fcntl(fd, F_GETFD), -1);
	}
	assert_int_equal(pipe(fds), 0);
	assert_int_equal(life_new(&l, fds[0], proc, cgroup), 0);
	life_free(l);
	close(fds[1]);
}

/* Whatever bytes are there: a verdict, and the life after that knows this one. */
static void test_random_pages(void **state)
{
	int fd = first_life();
	void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	assert_true(page != MAP_FAILED);
	srandom(1);
	for (int i = 0; i < 500; i++) {
		enum life_end last;

		for (int k = 0; k < 8; k++)
			((unsigned char *)page)[random() % (i % 2 ? 56 : 4096)] ^= (unsigned char)(1 << random() % 8);
		last = next_life(fd, i % 3);
		assert_true(last >= LIFE_NONE && last <= LIFE_CRASHES);
		if (i % 3)
			assert_int_equal(next_life(fd, false), LIFE_ENDED);
	}
	munmap(page, 4096);
	close(fd);
}

/* The files as they are here. */
static void test_this_machine(void **state)
{
	struct life *l;
	int fd;

	assert_int_equal(life_new(&l, -1, "/proc", "/sys/fs/cgroup"), 0);
	life_note(l);
	fd = dup(life_fd(l));
	life_free(l);
	assert_int_equal(life_new(&l, fd, "/proc", "/sys/fs/cgroup"), 0);
	assert_true(life_last(l) == LIFE_BROKEN || life_last(l) == LIFE_OUT_OF_MEMORY);
	life_free(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_ended_or_killed, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_out_of_memory, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_another_group, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_nothing_is_told, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_noted, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_crashes, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_no_page, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_random_pages, set_up, tear_down),
		cmocka_unit_test(test_this_machine),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
