/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/share-file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/base/fd.h"
#include "ipc/fdpass.h"

#define WAIT_MS 100		/* until it looks again whether it has been given up */
#define PIECE (1u << 20)	/* of a regular file at once, for the same reason */
#define THROUGH 65536u		/* as much as a pipe takes without being asked */

/*
 * In user space somebody would keep us waiting; and what the kernel does with a write to one of its own files may
 * depend on who writes, not on who opened it.
 */
static bool is_place_for_files(long type)
{
	static const long others[] = {
		FUSE_SUPER_MAGIC, PROC_SUPER_MAGIC, SYSFS_MAGIC, CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC,
		DEBUGFS_MAGIC, TRACEFS_MAGIC, SECURITYFS_MAGIC, BPF_FS_MAGIC, EFIVARFS_MAGIC,
		SELINUX_MAGIC, SMACK_MAGIC,
	};

	for (size_t i = 0; i < ARRAY_SIZE(others); i++)
		if (type == others[i])
			return false;
	return true;
}

static int check(int fd, bool writes, bool *is_pipe, struct diag *diag)
{
	int flags = fcntl(fd, F_GETFL), mode = flags & O_ACCMODE;
	struct statfs fs;
	struct stat st;

	if (flags < 0 || fstat(fd, &st) || fstatfs(fd, &fs))
		return diag_set(diag, -errno, "the descriptor: %s", strerror(errno));
	if (!S_ISREG(st.st_mode) && !S_ISFIFO(st.st_mode))
		return diag_set(diag, -EINVAL, "the descriptor is none of a regular file or a pipe");
	if (flags & O_PATH || mode == (writes ? O_RDONLY : O_WRONLY))
		return diag_set(diag, -EINVAL, "the file is not open for %s", writes ? "writing" : "reading");
	if (S_ISREG(st.st_mode) && !is_place_for_files(fs.f_type))
		return diag_set(diag, -EINVAL, "the file is on a file system in user space, or the kernel's own: only "
				"through a pipe");
	*is_pipe = S_ISFIFO(st.st_mode);
	return 0;
}

int share_file_init(struct share_file *f, int *fd, bool writes, struct diag *diag)
{
	struct share_file file = SHARE_FILE_NULL;
	int r = check(*fd, writes, &file.is_pipe, diag);

	if (r)
		return r;
	if (file.is_pipe && pipe2(file.through, O_CLOEXEC))
		return diag_set(diag, -errno, "a pipe: %s", strerror(errno));
	file.fd = fd_steal(fd);
	file.is_cancelled = f->is_cancelled;
	file.arg = f->arg;
	*f = file;
	return 0;
}

void share_file_deinit(struct share_file *f)
{
	fdpass_close_receivedp(&f->fd);
	fd_closep(&f->through[0]);
	fd_closep(&f->through[1]);
}

/* Until the pipe may have changed, or a moment later. */
static int wait_for(struct share_file *f, short events)
{
	struct pollfd p = { .fd = f->fd, .events = events };

	if (f->is_cancelled(f->arg))
		return -ECANCELED;
	return poll(&p, 1, WAIT_MS) < 0 && errno != EINTR ? -errno : 0;
}

/* Moves at most n bytes from one pipe to the other: how many, 0 at the end; -errno. */
static ssize_t move(struct share_file *f, int from, int to, size_t n, short events)
{
	for (;;) {
		ssize_t k = splice(from, NULL, to, NULL, n, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
		int r;

		if (k >= 0)
			return k;
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
		r = wait_for(f, events);
		if (r)
			return r;
	}
}

static int write_pipe(struct share_file *f, const uint8_t *p, size_t n)
{
	while (n) {
		/* The pipe of our own is empty. */
		ssize_t put = write(f->through[1], p, MIN(n, (size_t)THROUGH));

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return -errno;
		p += put;
		n -= (size_t)put;
		while (put) {
			ssize_t k = move(f, f->through[0], f->fd, (size_t)put, POLLOUT);

			if (k < 0)
				return (int)k;
			put -= k;
		}
	}
	return 0;
}

static int write_file(struct share_file *f, const uint8_t *p, size_t n)
{
	while (n) {
		ssize_t k;

		if (f->is_cancelled(f->arg))
			return -ECANCELED;
		k = write(f->fd, p, MIN(n, (size_t)PIECE));
		if (k < 0 && errno != EINTR)
			return -errno;
		if (k > 0) {
			p += k;
			n -= (size_t)k;
		}
	}
	return 0;
}

int share_file_write(struct share_file *f, const void *data, size_t n)
{
	return f->is_pipe ? write_pipe(f, data, n) : write_file(f, data, n);
}

/* From the pipe of our own, which has n bytes. */
static int take(struct share_file *f, uint8_t *p, size_t n)
{
	while (n) {
		ssize_t k = read(f->through[0], p, n);

		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0)
			return k ? -errno : -EIO;
		p += k;
		n -= (size_t)k;
	}
	return 0;
}

/* Some bytes of at most n: 0 at the end; -errno. */
static ssize_t read_some(struct share_file *f, uint8_t *p, size_t n)
{
	ssize_t k;
	int r;

	if (f->is_cancelled(f->arg))
		return -ECANCELED;
	if (f->is_pipe) {
		k = move(f, f->fd, f->through[1], MIN(n, (size_t)THROUGH), POLLIN);
		r = k > 0 ? take(f, p, (size_t)k) : 0;
		return r ? r : k;
	}
	do
		k = read(f->fd, p, MIN(n, (size_t)PIECE));
	while (k < 0 && errno == EINTR);
	return k < 0 ? -errno : k;
}

int share_file_read(struct share_file *f, void *data, size_t n, size_t *got)
{
	size_t have = 0;

	while (have < n) {
		ssize_t k = read_some(f, (uint8_t *)data + have, n - have);

		if (k < 0)
			return (int)k;
		if (!k)
			break;
		have += (size_t)k;
	}
	*got = have;
	return 0;
}
