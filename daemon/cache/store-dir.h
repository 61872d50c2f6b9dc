/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store-dir.h - files below the store's directory, without trust in what is there.
 *
 * Names are the store's own and have no slash.  Nothing is reached through a
 * symbolic link; what is not a plain file (directory) of the daemon's user is
 * removed and made anew, or refused.  Errors: -errno.  Thread: any.
 */
#ifndef KVD_STORE_DIR_H
#define KVD_STORE_DIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Opens the directory, made with mode 0700 if it is missing; the folder that it is in must exist.
 * -EPERM: of another user; -ELOOP, -ENOTDIR: not a directory itself.
 */
int dir_open(const char *path, int *fd);
/* A directory in it. -ENOENT where it is missing and create is not set. */
int dir_open_sub(int dir, const char *name, bool create, int *fd);
/* The lock file, held until its descriptor is closed.  -EBUSY: another process holds it. */
int dir_lock(int dir, const char *name, int *fd);

/* A file for reading and writing, made if it is missing.  What is of the wrong kind is removed first. */
int dir_open_file(int dir, const char *name, int *fd);
/* Removes what has this name unless it is a plain file of the daemon's user.  True: it has removed it. */
bool dir_refuse_strange(int dir, const char *name);
/* Reads at most max bytes of a file.  -EFBIG: it has more. */
int dir_read_file(int dir, const char *name, void *buf, size_t max, size_t *n);
/* Whole or not at all, synced; by way of `name`.new. */
int dir_write_file(int dir, const char *name, const void *data, size_t n);
uint64_t dir_file_bytes(int dir, const char *name);	/* 0: none */
/* Bytes of all files in it (not those of directories below). */
uint64_t dir_bytes(int dir);
/* Removes the files of a directory, and it. */
int dir_remove(int parent, const char *name);

/* Calls fn with the name of each directory in dir that is not hidden, until it fails; returns what fn did. */
int dir_each_sub(int dir, int (*fn)(void *arg, const char *name), void *arg);

#endif
