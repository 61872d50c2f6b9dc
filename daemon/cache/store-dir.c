/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/cache/store-dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

static void closedirp(DIR **d)
{
	if (*d)
		closedir(*d);
}

/* A second descriptor with a position of its own, for reading entries. */
static DIR *entries_of(int dir)
{
	_cleanup_(fd_closep) int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d;

	if (fd < 0)
		return NULL;
	d = fdopendir(fd);
	if (d)
		fd_steal(&fd);
	return d;
}

static int open_directory(int at, const char *path, bool create, int *out)
{
	_cleanup_(fd_closep) int fd = -1;
	struct stat st;

	if (create && mkdirat(at, path, 0700) && errno != EEXIST)
		return -errno;
	fd = openat(at, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st))
		return -errno;
	if (st.st_uid != geteuid())
		return -EPERM;
	/* Never more open; one that somebody made read-only stays so. */
	if (st.st_mode & 07077 && fchmod(fd, st.st_mode & 0700))
		return -errno;
	*out = fd_steal(&fd);
	return 0;
}

int dir_open(const char *path, int *fd)
{
	return open_directory(AT_FDCWD, path, true, fd);
}

int dir_open_sub(int dir, const char *name, bool create, int *fd)
{
	int r = open_directory(dir, name, create, fd);

	if ((r == -ELOOP || r == -ENOTDIR) && create && !unlinkat(dir, name, 0))
		r = open_directory(dir, name, create, fd);
	return r;
}

static bool is_ours(const struct stat *st)
{
	return S_ISREG(st->st_mode) && st->st_uid == geteuid() && st->st_nlink == 1;
}

bool dir_refuse_strange(int dir, const char *name)
{
	struct stat st;

	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) || is_ours(&st))
		return false;
	return !unlinkat(dir, name, S_ISDIR(st.st_mode) ? AT_REMOVEDIR : 0);
}

int dir_open_file(int dir, const char *name, int *out)
{
	_cleanup_(fd_closep) int fd = -1;
	struct stat st;

	dir_refuse_strange(dir, name);
	/* Non-blocking: a fifo must not hold it up. */
	fd = openat(dir, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st))
		return -errno;
	if (!is_ours(&st))
		return -EPERM;
	if (st.st_mode & 07177 && fchmod(fd, st.st_mode & 0600))
		return -errno;
	*out = fd_steal(&fd);
	return 0;
}

int dir_lock(int dir, const char *name, int *out)
{
	_cleanup_(fd_closep) int fd = -1;
	int r = dir_open_file(dir, name, &fd);

	if (r)
		return r;
	if (flock(fd, LOCK_EX | LOCK_NB))
		return errno == EWOULDBLOCK ? -EBUSY : -errno;
	*out = fd_steal(&fd);
	return 0;
}

int dir_read_file(int dir, const char *name, void *buf, size_t max, size_t *n)
{
	_cleanup_(fd_closep) int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	struct stat st;
	int r;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &st))
		return -errno;
	if (!is_ours(&st))
		return -EPERM;
	if (st.st_mode & 07177 && fchmod(fd, st.st_mode & 0600))
		return -errno;
	if (st.st_size > (off_t)max)
		return -EFBIG;
	r = fd_pread_full(fd, buf, (size_t)st.st_size, 0);
	if (!r)
		*n = (size_t)st.st_size;
	return r;
}

int dir_write_file(int dir, const char *name, const void *data, size_t n)
{
	_cleanup_(fd_closep) int fd = -1;
	char fresh[NAME_MAX + 1];
	int r;

	if ((size_t)snprintf(fresh, sizeof(fresh), "%s.new", name) >= sizeof(fresh))
		return -ENAMETOOLONG;
	r = dir_open_file(dir, fresh, &fd);
	if (r)
		return r;
	if (ftruncate(fd, 0))
		return -errno;
	r = fd_write_full(fd, data, n);
	if (r)
		return r;
	dir_refuse_strange(dir, name);
	if (fsync(fd) || renameat(dir, fresh, dir, name) || fsync(dir))
		return -errno;
	return 0;
}

uint64_t dir_file_bytes(int dir, const char *name)
{
	struct stat st;

	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode))
		return 0;
	return (uint64_t)st.st_size;
}

uint64_t dir_bytes(int dir)
{
	_cleanup_(closedirp) DIR *d = entries_of(dir);
	uint64_t bytes = 0;
	struct dirent *e;

	while (d && (e = readdir(d)))
		bytes += dir_file_bytes(dir, e->d_name);
	return bytes;
}

static int remove_files(int fd)
{
	_cleanup_(closedirp) DIR *d = entries_of(fd);
	struct dirent *e;

	if (!d)
		return -errno;
	while ((e = readdir(d)))
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && unlinkat(fd, e->d_name, 0))
			unlinkat(fd, e->d_name, AT_REMOVEDIR);
	return 0;
}

int dir_remove(int parent, const char *name)
{
	_cleanup_(fd_closep) int fd = -1;
	int r = dir_open_sub(parent, name, false, &fd);

	if (r == -ENOENT)
		return 0;
	if (!r)
		r = remove_files(fd);
	if (!r && unlinkat(parent, name, AT_REMOVEDIR))
		r = -errno;
	return r;
}

int dir_each_sub(int dir, int (*fn)(void *arg, const char *name), void *arg)
{
	_cleanup_(closedirp) DIR *d = entries_of(dir);
	struct dirent *e;
	struct stat st;
	int r = 0;

	if (!d)
		return -errno;
	while (!r && (e = readdir(d)))
		if (e->d_name[0] != '.' && !fstatat(dir, e->d_name, &st, AT_SYMLINK_NOFOLLOW) && S_ISDIR(st.st_mode))
			r = fn(arg, e->d_name);
	return r;
}
