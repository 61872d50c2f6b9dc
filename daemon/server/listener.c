/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/listener.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "ipc/base/fd.h"

struct listener {
	int fd, lock_fd;
	dev_t dev;	/* of the socket's inode in the file system */
	ino_t ino;
	bool bound;	/* dev and ino are set: ours to unlink */
	char *path, *lock_path;
};

/* Makes the directory that path is in, if it is missing. */
static int make_parent(const char *path, struct diag *diag)
{
	_cleanup_(freep) char *dir = strdup(path);
	char *slash;

	if (!dir)
		return -ENOMEM;
	slash = strrchr(dir, '/');
	if (!slash || slash == dir)
		return 0;
	*slash = '\0';
	if (mkdir(dir, 0700) < 0) {
		if (errno == EEXIST)
			return 0;
		return diag_set(diag, -errno, "socket: cannot make the directory %s: %s", dir,
				strerror(errno));
	}
	/* Opened up for others only now, so that the umask has no say. */
	if (geteuid() == 0 && chmod(dir, 0755) < 0)
		return diag_set(diag, -errno, "socket: cannot set the mode of %s: %s", dir, strerror(errno));
	return 0;
}

/*
 * Locks PATH.lock.  The file is removed at the end by its holder, so a lock
 * counts only if the name still leads to the file that was locked.
 */
static int take_lock(struct listener *l, struct diag *diag)
{
	struct stat by_fd, by_name;

	for (;;) {
		_cleanup_(fd_closep) int fd =
			open(l->lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

		if (fd < 0)
			return diag_set(diag, -errno, "socket: cannot open the lock file %s: %s",
					l->lock_path, strerror(errno));
		/* Not what the umask makes of it: a mode of 0 would lock our successors out. */
		fchmod(fd, 0600);
		if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
			if (errno == EWOULDBLOCK)
				return diag_set(diag, LISTENER_E_BUSY,
						"socket: another daemon already serves %s", l->path);
			return diag_set(diag, -errno, "socket: cannot lock %s: %s", l->lock_path,
					strerror(errno));
		}
		if (fstat(fd, &by_fd) < 0)
			return -errno;
		if (stat(l->lock_path, &by_name) == 0 && by_fd.st_dev == by_name.st_dev &&
		    by_fd.st_ino == by_name.st_ino) {
			l->lock_fd = fd_steal(&fd);
			return 0;
		}
	}
}

/* Removes a socket that nobody listens on any more. */
static int remove_stale(const struct sockaddr_un *address, int type, struct diag *diag)
{
	_cleanup_(fd_closep) int probe = -1;
	struct stat st;

	if (lstat(address->sun_path, &st) < 0) {
		if (errno == ENOENT)
			return 0;
		return diag_set(diag, -errno, "socket: %s: %s", address->sun_path, strerror(errno));
	}
	if (!S_ISSOCK(st.st_mode))
		return diag_set(diag, -EEXIST, "socket: %s exists and is not a socket; it was left alone",
				address->sun_path);
	probe = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (probe < 0)
		return -errno;
	/* Anything but "refused" (success, wrong type, full queue) means that somebody is there. */
	if (connect(probe, (const struct sockaddr *)address, sizeof(*address)) == 0 ||
	    errno != ECONNREFUSED) {
		if (errno == ENOENT)
			return 0;
		return diag_set(diag, LISTENER_E_BUSY, "socket: another program listens on %s",
				address->sun_path);
	}
	if (unlink(address->sun_path) < 0 && errno != ENOENT)
		return diag_set(diag, -errno, "socket: cannot remove the stale socket %s: %s",
				address->sun_path, strerror(errno));
	return 0;
}

static int bind_path(struct listener *l, const struct sockaddr_un *address, int type, mode_t mode,
		     struct diag *diag)
{
	struct stat st;
	mode_t mask;
	int r;

	l->fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (l->fd < 0)
		return diag_set(diag, -errno, "socket: %s", strerror(errno));
	/* The kernel takes the new inode's mode from the socket's own, less the umask. */
	if (fchmod(l->fd, mode) < 0)
		return diag_set(diag, -errno, "socket: cannot set the mode: %s", strerror(errno));
	mask = umask(~mode & 0777);
	r = bind(l->fd, (const struct sockaddr *)address, sizeof(*address)) < 0 ? -errno : 0;
	umask(mask);
	if (r < 0)
		return diag_set(diag, r, "socket: cannot bind %s: %s", l->path, strerror(-r));
	if (lstat(l->path, &st) == 0) {
		l->dev = st.st_dev;
		l->ino = st.st_ino;
		l->bound = true;
	}
	if (listen(l->fd, SOMAXCONN) < 0)
		return diag_set(diag, -errno, "socket: cannot listen on %s: %s", l->path, strerror(errno));
	return 0;
}

int listener_new(struct listener **out, const char *path, int type, mode_t mode, struct diag *diag)
{
	_cleanup_(listener_freep) struct listener *l = NULL;
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int r;

	if (!path[0])
		return diag_set(diag, -EINVAL, "socket: the path is empty");
	if (strlen(path) >= sizeof(address.sun_path))
		return diag_set(diag, -ENAMETOOLONG,
				"socket: the path has %zu bytes, a Unix socket's may have %zu", strlen(path),
				sizeof(address.sun_path) - 1);
	l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	l->fd = l->lock_fd = -1;
	l->path = strdup(path);
	if (!l->path)
		return -ENOMEM;
	if (asprintf(&l->lock_path, "%s.lock", path) < 0) {
		l->lock_path = NULL;
		return -ENOMEM;
	}
	memcpy(address.sun_path, path, strlen(path) + 1);

	r = make_parent(path, diag);
	if (r)
		return r;
	r = take_lock(l, diag);
	if (r)
		return r;
	r = remove_stale(&address, type, diag);
	if (r)
		return r;
	r = bind_path(l, &address, type, mode, diag);
	if (r)
		return r;
	*out = steal_ptr(l);
	return 0;
}

static int socket_option(int fd, int option)
{
	socklen_t n = sizeof(int);
	int v;

	return getsockopt(fd, SOL_SOCKET, option, &v, &n) < 0 ? -1 : v;
}

int listener_adopt(struct listener **out, int fd, struct diag *diag)
{
	_cleanup_(listener_freep) struct listener *l = NULL;
	struct sockaddr_un address = { 0 };
	socklen_t n = sizeof(address);
	int flags;

	if (socket_option(fd, SO_DOMAIN) != AF_UNIX || socket_option(fd, SO_TYPE) != SOCK_SEQPACKET ||
	    socket_option(fd, SO_ACCEPTCONN) != 1)
		return diag_set(diag, -EINVAL,
				"the socket passed by the service manager is not a listening SOCK_SEQPACKET "
				"Unix socket");
	if (getsockname(fd, (struct sockaddr *)&address, &n) < 0)
		return -errno;
	flags = fcntl(fd, F_GETFL);
	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return -errno;
	l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	l->fd = l->lock_fd = -1;
	l->path = strndup(address.sun_path, sizeof(address.sun_path));
	if (!l->path)
		return -ENOMEM;
	l->fd = fd;
	*out = steal_ptr(l);
	return 0;
}

void listener_free(struct listener *l)
{
	struct stat st;

	if (!l)
		return;
	if (l->bound && lstat(l->path, &st) == 0 && S_ISSOCK(st.st_mode) &&
	    st.st_dev == l->dev && st.st_ino == l->ino)
		unlink(l->path);
	fd_closep(&l->fd);
	if (l->lock_fd >= 0)
		unlink(l->lock_path);
	fd_closep(&l->lock_fd);
	free(l->lock_path);
	free(l->path);
	free(l);
}

int listener_fd(const struct listener *l)
{
	return l->fd;
}

const char *listener_path(const struct listener *l)
{
	return l->path;
}
