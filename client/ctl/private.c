/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/private.h"
#include "client/ctl/progress.h"

#define IDLE_EXIT "300"		/* seconds */
#define POLL_NS 20000000	/* between two attempts to connect */
#define LISTEN_TRIES 3000	/* a minute until the socket is there; loading comes after that */
#define LOSER_TRIES 25		/* half a second, when another daemon has the socket's lock */

#define LOG_LINES 8

struct launch {
	char daemon[PATH_MAX];	/* the program, "kvd" = look in PATH */
	char model[PATH_MAX];	/* absolute */
	char socket[PATH_MAX - 16];	/* absolute; there is room for what is beside it */
	char log[PATH_MAX];
	struct kvd_connect_options options;
	bool quiet;
};

static int make_absolute(const char *path, char *buf, size_t n)
{
	char cwd[PATH_MAX] = "";

	if (*path != '/' && !getcwd(cwd, sizeof(cwd)))
		return -errno;
	/* not realpath(): the model's name is that of the link, not of its target */
	if ((size_t)snprintf(buf, n, "%s%s%s", cwd, *path == '/' ? "" : "/", path) >= n)
		return -ENAMETOOLONG;
	return 0;
}

/* A directory for sockets in a place where others can write must be ours alone. */
static int make_own_directory(const struct ctl *ctl, const char *path)
{
	struct stat st;

	if (mkdir(path, 0700) && errno != EEXIST) {
		ctl_error(ctl, "cannot create %s: %s", path, strerror(errno));
		return CTL_FAILED;
	}
	if (lstat(path, &st) || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077)) {
		ctl_error(ctl, "%s is not a directory of mode 0700 that belongs to you", path);
		return CTL_FAILED;
	}
	return 0;
}

static bool is_directory(const char *path)
{
	struct stat st;

	return !stat(path, &st) && S_ISDIR(st.st_mode);
}

/* The directory that holds path, made if only it is missing. */
static void make_parent(const char *path)
{
	char dir[PATH_MAX];

	snprintf(dir, sizeof(dir), "%s", path);
	char *slash = strrchr(dir, '/');
	if (!slash || slash == dir)
		return;
	*slash = '\0';
	mkdir(dir, 0700);
}

int private_socket(const struct ctl *ctl, char *buf, size_t n)
{
	const char *named = ctl->socket ? ctl->socket : getenv("KVD_SOCKET");
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	char dir[PATH_MAX];

	if (named && *named) {
		if (make_absolute(named, buf, n)) {
			ctl_error(ctl, "socket path too long: %s", named);
			return CTL_FAILED;
		}
		make_parent(buf);
		return 0;
	}
	if (runtime && *runtime == '/' && is_directory(runtime)) {
		snprintf(dir, sizeof(dir), "%s/kvd", runtime);
		if (mkdir(dir, 0700) && errno != EEXIST) {
			ctl_error(ctl, "cannot create %s: %s", dir, strerror(errno));
			return CTL_FAILED;
		}
	} else if (!geteuid() && (!mkdir("/run/kvd", 0755) || errno == EEXIST)) {
		snprintf(dir, sizeof(dir), "/run/kvd");
	} else {
		snprintf(dir, sizeof(dir), "/tmp/kvd-%u", (unsigned)geteuid());
		int r = make_own_directory(ctl, dir);
		if (r)
			return r;
	}
	if ((size_t)snprintf(buf, n, "%s/kvd.sock", dir) >= n) {
		ctl_error(ctl, "socket path too long: %s", dir);
		return CTL_FAILED;
	}
	return 0;
}

/* $KVD_DAEMON, beside this program, ../sbin of it, PATH. */
static void find_daemon(char *buf, size_t n)
{
	const char *named = getenv("KVD_DAEMON");
	static const char *const places[] = { "kvd", "../sbin/kvd" };
	char self[PATH_MAX];

	if (named && *named) {
		/* relative to where we are, not to where the daemon goes */
		if (strchr(named, '/') ? make_absolute(named, buf, n) :
		    snprintf(buf, n, "%s", named) >= (int)n)
			buf[0] = '\0';
		return;
	}
	ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);
	self[len > 0 ? len : 0] = '\0';
	char *slash = strrchr(self, '/');
	for (size_t i = 0; slash && i < sizeof(places) / sizeof(places[0]); i++) {
		slash[1] = '\0';
		if ((size_t)snprintf(buf, n, "%s%s", self, places[i]) < n && !access(buf, X_OK))
			return;
	}
	snprintf(buf, n, "kvd");
}

/* It is no service, even where kvctl is run by one: what its manager keeps, and passes, is not for it. */
static void leave_service_manager(void)
{
	static const char *const names[] = { "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID",
					     "LISTEN_FDS", "LISTEN_FDNAMES" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		unsetenv(names[i]);
}

/* In the child, between fork and exec; failure is written to report as an errno. */
__attribute__((noreturn))
static void become_daemon(const struct launch *l, int log_fd, int report)
{
	/* Two of them would be after the same directory. */
	const char *const argv[] = { "kvd", "--model", l->model, "--socket", l->socket, "--idle-exit",
				     IDLE_EXIT, "--disk", "off", NULL };
	sigset_t none;

	setsid();
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	int null_fd = open("/dev/null", O_RDWR);
	if (null_fd >= 0 && dup2(null_fd, 0) == 0 && dup2(null_fd, 1) == 1 && dup2(log_fd, 2) == 2 &&
	    !chdir("/")) {
		/* what our own parent left open must not live as long as the daemon */
		close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
		leave_service_manager();
		execvp(l->daemon, (char *const *)argv);
	}
	int err = errno;
	ssize_t written = write(report, &err, sizeof(err));
	_exit(written == sizeof(err) ? 126 : 127);
}

/* 0 and *pid, or -errno of what kept the daemon from running. */
static int launch_daemon(const struct launch *l, pid_t *pid)
{
	int pipe_fds[2], err = 0;

	int log_fd = open(l->log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (log_fd < 0)
		return -errno;
	if (pipe2(pipe_fds, O_CLOEXEC)) {
		err = errno;
		close(log_fd);
		return -err;
	}
	pid_t child = fork();
	if (child == 0)
		become_daemon(l, log_fd, pipe_fds[1]);
	err = child < 0 ? errno : 0;
	close(log_fd);
	close(pipe_fds[1]);
	ssize_t n = err ? 0 : read(pipe_fds[0], &err, sizeof(err));
	close(pipe_fds[0]);
	if (n == sizeof(err))
		waitpid(child, NULL, 0);
	if (err)
		return -err;
	*pid = child;
	return 0;
}

/* The daemon's last words: the end of its log, as lines of our own. */
static void show_log_tail(const struct ctl *ctl, const char *path)
{
	char buf[2048];
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

	if (fd < 0)
		return;
	off_t end = lseek(fd, 0, SEEK_END);
	off_t from = end > (off_t)sizeof(buf) - 1 ? end - ((off_t)sizeof(buf) - 1) : 0;
	ssize_t n = pread(fd, buf, sizeof(buf) - 1, from);
	close(fd);
	if (n <= 0)
		return;
	buf[n] = '\0';
	char *first = buf + n - 1, *save = NULL;
	for (size_t lines = 0; first > buf; first--)
		if (first[-1] == '\n' && ++lines == LOG_LINES)
			break;
	for (char *line = strtok_r(first, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		ctl_error(ctl, "%s", line);
}

void private_show_log(const struct ctl *ctl)
{
	char socket[PATH_MAX - 16], log[PATH_MAX];

	if (private_socket(ctl, socket, sizeof(socket)))
		return;
	snprintf(log, sizeof(log), "%s.log", socket);
	show_log_tail(ctl, log);
}

static int start_failed(const struct ctl *ctl, const struct launch *l, int wait_status)
{
	if (WIFSIGNALED(wait_status))
		ctl_error(ctl, "the private daemon was ended by signal %d (%s); its log, %s:",
			  WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)), l->log);
	else
		ctl_error(ctl, "the private daemon did not start (exit status %d); its log, %s:",
			  WEXITSTATUS(wait_status), l->log);
	show_log_tail(ctl, l->log);
	return CTL_FAILED;
}

/*
 * Connects as soon as the socket is there.  When our daemon ends first, another
 * one may have been faster to take the socket's lock: a while is left to it.
 */
static int await_daemon(const struct ctl *ctl, const struct launch *l, pid_t pid, struct kvd_client **out)
{
	struct progress progress;
	char diag[256] = "";
	int wait_status = 0, r = 0;
	int tries = LISTEN_TRIES;
	bool ended = false;

	progress_init(&progress, l->quiet);
	progress_show(&progress, "starting kvd for %s", l->model);
	for (; tries > 0; tries--) {
		diag[0] = '\0';
		r = kvd_connect(out, &l->options, diag, sizeof(diag));
		if (!r || (r != -ENOENT && r != -ECONNREFUSED && r != KVD_E_CLOSED))
			break;
		if (!ended && waitpid(pid, &wait_status, WNOHANG) == pid) {
			ended = true;
			tries = LOSER_TRIES < tries ? LOSER_TRIES : tries;
		}
		nanosleep(&(struct timespec){ .tv_nsec = POLL_NS }, NULL);
	}
	progress_clear(&progress);
	if (!r)
		return 0;
	if (ended)
		return start_failed(ctl, l, wait_status);
	ctl_error(ctl, "the private daemon (process %d, log %s) cannot be reached: %s", (int)pid, l->log,
		  diag);
	return CTL_FAILED;
}

/* With the lock held: whoever had it before may have started the daemon. */
static int start_locked(const struct ctl *ctl, const struct launch *l, struct kvd_client **out)
{
	pid_t pid = -1;

	if (!kvd_connect(out, &l->options, NULL, 0))
		return 0;
	int r = launch_daemon(l, &pid);
	if (r) {
		ctl_error(ctl, "cannot start %s: %s", l->daemon, strerror(-r));
		return r == -ENOENT ? CTL_NO_DAEMON : CTL_FAILED;
	}
	return await_daemon(ctl, l, pid, out);
}

int private_start(const struct ctl *ctl, const char *model_file, bool quiet,
		  const struct kvd_connect_options *options, struct kvd_client **out)
{
	struct launch l = { .options = *options, .quiet = quiet };
	char lock[PATH_MAX + 16];
	int r = private_socket(ctl, l.socket, sizeof(l.socket));

	if (r)
		return r;
	if (make_absolute(model_file, l.model, sizeof(l.model))) {
		ctl_error(ctl, "path too long: %s", model_file);
		return CTL_FAILED;
	}
	l.options.socket = l.socket;
	find_daemon(l.daemon, sizeof(l.daemon));
	snprintf(l.log, sizeof(l.log), "%s.log", l.socket);
	snprintf(lock, sizeof(lock), "%s.starting", l.socket);
	int fd = open(lock, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0) {
		ctl_error(ctl, "cannot create %s: %s", lock, strerror(errno));
		return CTL_FAILED;
	}
	while ((r = flock(fd, LOCK_EX)) && errno == EINTR)
		;
	if (r) {
		ctl_error(ctl, "cannot lock %s: %s", lock, strerror(errno));
		r = CTL_FAILED;
	} else {
		r = start_locked(ctl, &l, out);
	}
	close(fd);
	return r;
}
