/* SPDX-License-Identifier: Apache-2.0 */
/* File descriptors: scope cleanup and reads that finish. */
#ifndef KVD_BASE_FD_H
#define KVD_BASE_FD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Closes *fd unless it is negative, keeps errno, sets *fd to -1. */
void fd_closep(int *fd);

/* Moves a descriptor out of a cleanup variable. */
static inline int fd_steal(int *fd)
{
	int r = *fd;
	*fd = -1;
	return r;
}

/* Reads exactly n bytes at offset; -EIO at an early end of file. */
int fd_pread_full(int fd, void *buf, size_t n, uint64_t offset);

/* Writes exactly n bytes; -errno. */
int fd_write_full(int fd, const void *buf, size_t n);

#endif
