/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "tests/bench/private-manager.h"

#define START_SECONDS 600u	/* a large model takes its time */
#define STOP_SECONDS 60u
#define SETTLE_SECONDS 60u
#define TICK_NS 20000000
#define FIRST_FD 200		/* what is passed moves out of the way of the numbers that it gets */

/* What private_abort() needs. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t running = -1;
static char to_remove[PATH_MAX];
static bool aborted;

static void tick(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = TICK_NS }, NULL);
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	(void)st;
	(void)flag;
	(void)ftw;
	return remove(path);
}

static void remove_tree(const char *path)
{
	nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

int private_init(struct private *p, const struct run *run, const char *const *options, struct diag *diag)
{
	const char *base = run->o.directory ? run->o.directory : getenv("TMPDIR");
	uint32_t n = 0;

	*p = (struct private){
		.model = run->o.model,
		.synthetic = run->o.synthetic,
		.level = run->o.level,
		.pid = -1,
		.notify = -1,
	};
	for (; options[n] && n < PRIVATE_OPTIONS_MAX; n++)
		p->options[n] = options[n];
	/* Those of the other tables, instead of a measurement at every start. */
	snprintf(p->block_tokens, sizeof(p->block_tokens), "%u", run->o.block_tokens);
	if (run->o.n_threads)
		snprintf(p->threads, sizeof(p->threads), "%u", run->o.n_threads);
	/* The path of a socket has 108 bytes at most. */
	if (snprintf(p->directory, sizeof(p->directory), "%s/kvd-bench-XXXXXX",
		     base && *base ? base : "/tmp") > 90) {
		p->directory[0] = '\0';
		return diag_set(diag, -ENAMETOOLONG, "the name of the folder for temporary files is too long");
	}
	pthread_mutex_lock(&lock);
	if (aborted || !mkdtemp(p->directory)) {
		p->directory[0] = '\0';
		pthread_mutex_unlock(&lock);
		return diag_set(diag, -errno, "%s: %s", base && *base ? base : "/tmp", strerror(errno));
	}
	snprintf(to_remove, sizeof(to_remove), "%s", p->directory);
	pthread_mutex_unlock(&lock);
	snprintf(p->socket, sizeof(p->socket), "%s/kvd.sock", p->directory);
	snprintf(p->http, sizeof(p->http), "%s/http.sock", p->directory);
	return manager_open(p);
}

void private_deinit(struct private *p)
{
	if (!p->directory[0])
		return;
	private_stop(p);
	private_forget(p);
	fd_closep(&p->notify);
	pthread_mutex_lock(&lock);
	to_remove[0] = '\0';
	pthread_mutex_unlock(&lock);
	remove_tree(p->directory);
	p->directory[0] = '\0';
}

static void find_program(char *buf, size_t n)
{
	static const char *const places[] = { "kvd", "../sbin/kvd" };
	const char *named = getenv("KVD_DAEMON");
	char self[PATH_MAX - 16];
	ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash;

	self[len > 0 ? len : 0] = '\0';
	slash = strrchr(self, '/');
	for (size_t i = 0; !(named && *named) && slash && i < ARRAY_SIZE(places); i++) {
		slash[1] = '\0';
		if ((size_t)snprintf(buf, n, "%s%s", self, places[i]) < n && !access(buf, X_OK))
			return;
	}
	snprintf(buf, n, "%s", named && *named ? named : "kvd");
}

/* Arguments for exec; the strings live as long as p. */
static void make_arguments(const struct private *p, const char *http, const char *state, const char *argv[])
{
	uint32_t n = 0;

	argv[n++] = "kvd";
	argv[n++] = p->synthetic ? "--synthetic" : "--model";
	argv[n++] = p->synthetic ? p->synthetic : p->model;
	argv[n++] = "--socket";
	argv[n++] = p->socket;
	argv[n++] = "--http";
	argv[n++] = http;
	argv[n++] = "--state-dir";
	argv[n++] = state;
	argv[n++] = "--block-tokens";
	argv[n++] = p->block_tokens;
	if (p->threads[0]) {
		argv[n++] = "--threads";
		argv[n++] = p->threads;
	}
	if (p->level) {
		argv[n++] = "--cpu-level";
		argv[n++] = p->level;
	}
	for (uint32_t i = 0; p->options[i]; i++)
		argv[n++] = p->options[i];
	argv[n] = NULL;
}

/* In the child. */
__attribute__((noreturn))
static void become_daemon(const struct private *p, const char *program, pid_t parent)
{
	char log[PATH_MAX], http[PATH_MAX + 8], state[PATH_MAX];
	const char *argv[PRIVATE_OPTIONS_MAX + 16];
	sigset_t none;
	int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC), log_fd;

	snprintf(log, sizeof(log), "%s/log", p->directory);
	snprintf(http, sizeof(http), "unix:%s", p->http);
	snprintf(state, sizeof(state), "%s/state", p->directory);
	log_fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	/* A terminal's Ctrl-C is ours alone, and we end it, or our own end does. */
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (null_fd < 0 || log_fd < 0 || dup2(null_fd, 0) < 0 || dup2(null_fd, 1) < 0 || dup2(log_fd, 2) < 0 ||
	    getppid() != parent)
		_exit(127);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	make_arguments(p, http, state, argv);
	manager_pass(p, FIRST_FD);
	execvp(program, (char *const *)argv);
	_exit(127);
}

/* The last line of its log. */
static int say_why(const struct private *p, int r, const char *what, struct diag *diag)
{
	char path[PATH_MAX], line[256] = "", last[256] = "";
	FILE *f;

	snprintf(path, sizeof(path), "%s/log", p->directory);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = '\0';
		snprintf(last, sizeof(last), "%s", line);
	}
	if (f)
		fclose(f);
	return diag_set(diag, r, "kvd %s%s%.160s", what, last[0] ? ": " : "", last);
}

static int await(struct private *p, struct diag *diag)
{
	struct kvd_connect_options options = { .socket = p->socket, .name = "kvd-bench" };
	uint64_t end = clock_ns() + START_SECONDS * UINT64_C(1000000000);

	while (clock_ns() < end) {
		struct kvd_client *c = NULL;
		struct kvd_status status;
		int state;

		manager_take(p);
		if (waitpid(p->pid, &state, WNOHANG) == p->pid) {
			pthread_mutex_lock(&lock);
			running = p->pid = -1;
			pthread_mutex_unlock(&lock);
			return say_why(p, -ECHILD, "did not start", diag);
		}
		if (!kvd_connect(&c, &options, NULL, 0)) {
			bool ready = !kvd_status(c, &status) && !strcmp(status.state, "ready");

			kvd_close(c);
			if (ready)
				return 0;
		}
		tick();
	}
	return say_why(p, -ETIMEDOUT, "is not ready", diag);
}

int private_start(struct private *p, struct diag *diag)
{
	char program[PATH_MAX];
	pid_t self = getpid(), pid;

	find_program(program, sizeof(program));
	pthread_mutex_lock(&lock);
	pid = aborted ? -1 : fork();
	if (pid == 0)
		become_daemon(p, program, self);
	running = p->pid = pid;
	pthread_mutex_unlock(&lock);
	if (pid < 0)
		return diag_set(diag, -errno, "can't start %s: %s", program, strerror(errno));
	return await(p, diag);
}

static void kill_pid(pid_t pid, uint32_t seconds)
{
	uint64_t end = clock_ns() + seconds * UINT64_C(1000000000);

	kill(pid, SIGTERM);
	while (waitpid(pid, NULL, WNOHANG) == 0) {
		if (clock_ns() > end) {
			kill(pid, SIGKILL);
			waitpid(pid, NULL, 0);
			return;
		}
		tick();
	}
}

void private_stop(struct private *p)
{
	if (p->pid < 0)
		return;
	/* Who aborts meanwhile kills it, which ends our waiting. */
	kill_pid(p->pid, STOP_SECONDS);
	manager_take(p);
	pthread_mutex_lock(&lock);
	running = p->pid = -1;
	pthread_mutex_unlock(&lock);
}

void private_abort(void)
{
	pthread_mutex_lock(&lock);
	aborted = true;
	if (running > 0) {
		kill(running, SIGKILL);
		waitpid(running, NULL, 0);
	}
	running = -1;
	if (to_remove[0])
		remove_tree(to_remove);
	pthread_mutex_unlock(&lock);
}

/* nftw() has no argument for its function; one thread does this. */
static uint64_t walked_bytes;

static int count_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	(void)path;
	(void)ftw;
	if (flag == FTW_F)
		walked_bytes += (uint64_t)st->st_blocks * 512u;
	return 0;
}

static int drop_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	_cleanup_(fd_closep) int fd = flag == FTW_F ? open(path, O_RDONLY | O_CLOEXEC) : -1;

	(void)st;
	(void)ftw;
	if (fd >= 0) {
		fsync(fd);
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	}
	return 0;
}

static void walk_state(const struct private *p, int (*fn)(const char *, const struct stat *, int, struct FTW *))
{
	char state[PATH_MAX];

	snprintf(state, sizeof(state), "%s/state", p->directory);
	nftw(state, fn, 16, FTW_PHYS);
}

void private_settle(const struct private *p)
{
	uint64_t last = UINT64_MAX, since = clock_ns(), end = since + SETTLE_SECONDS * UINT64_C(1000000000);

	while (clock_ns() - since < 700000000u && clock_ns() < end) {
		nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
		walked_bytes = 0;
		walk_state(p, count_one);
		if (walked_bytes != last)
			since = clock_ns();
		last = walked_bytes;
	}
}

void private_drop_pages(const struct private *p)
{
	walk_state(p, drop_one);
}

double private_cpu_seconds(const struct private *p)
{
	char path[64];
	double sum = 0;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)p->pid);
	d = opendir(path);
	for (struct dirent *e; d && (e = readdir(d));) {
		char file[128];
		unsigned long long ns;
		FILE *f;

		snprintf(file, sizeof(file), "/proc/%d/task/%.20s/schedstat", (int)p->pid, e->d_name);
		f = fopen(file, "re");
		if (f && fscanf(f, "%llu", &ns) == 1)
			sum += (double)ns / 1e9;
		if (f)
			fclose(f);
	}
	if (d)
		closedir(d);
	return sum;
}
