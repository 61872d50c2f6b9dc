/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share-file.h - a descriptor of a client's that the daemon writes to, or reads from, as long as the client likes.
 *
 * It may be a pipe that nobody reads, and its flags are the client's to change: so bytes go through a pipe of our own,
 * from which the kernel moves them without waiting, whatever the flags say; where it must wait, it looks whether it
 * has been given up.  SIGPIPE is ignored by the process.
 *
 * Thread: one at a time.
 */
#ifndef KVD_SERVER_SHARE_FILE_H
#define KVD_SERVER_SHARE_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "ipc/base/error.h"

struct share_file {
	int fd;			/* -1: none */
	int through[2];		/* the pipe of our own, where fd is one */
	bool is_pipe;
	/* Whether to give up. */
	bool (*is_cancelled)(void *arg);
	void *arg;
};

#define SHARE_FILE_NULL ((struct share_file){ .fd = -1, .through = { -1, -1 } })

/*
 * Takes *fd over on success.  -EINVAL: it is none that is open for writing (reading) of a regular file or a pipe; other
 * -errno; diag says what is wrong.
 */
int share_file_init(struct share_file *f, int *fd, bool writes, struct diag *diag);
/* Twice is harmless. */
void share_file_deinit(struct share_file *f);

/* All n bytes.  0; -ECANCELED; -EPIPE, -ENOSPC, other -errno. */
int share_file_write(struct share_file *f, const void *data, size_t n);
/* n bytes, or fewer where it ends.  The same. */
int share_file_read(struct share_file *f, void *data, size_t n, size_t *got);

#endif
