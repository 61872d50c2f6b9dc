/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/base/fd.h"

#include <errno.h>
#include <unistd.h>

void fd_closep(int *fd)
{
	if (*fd >= 0) {
		int saved = errno;
		close(*fd);
		errno = saved;
	}
	*fd = -1;
}

int fd_pread_full(int fd, void *buf, size_t n, uint64_t offset)
{
	uint8_t *p = buf;

	while (n > 0) {
		ssize_t r = pread(fd, p, n, (off_t)offset);
		if (r < 0) {
			if (errno == EINTR)
				continue;
			return -errno;
		}
		if (r == 0)
			return -EIO;
		p += r;
		offset += (uint64_t)r;
		n -= (size_t)r;
	}
	return 0;
}

int fd_write_full(int fd, const void *buf, size_t n)
{
	const uint8_t *p = buf;

	while (n > 0) {
		ssize_t r = write(fd, p, n);
		if (r < 0) {
			if (errno == EINTR)
				continue;
			return -errno;
		}
		p += r;
		n -= (size_t)r;
	}
	return 0;
}
