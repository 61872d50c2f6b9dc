/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel-text.h - small files in which the kernel tells figures: proc(5), and those of
 * control groups (Documentation/admin-guide/cgroup-v2.rst).
 *
 * Thread: any.
 */
#ifndef KVD_SERVER_KERNEL_TEXT_H
#define KVD_SERVER_KERNEL_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KERNEL_TEXT_MAX 16384	/* what is looked at stands near the beginning of each file */

/* The beginning of folder/name, NUL-terminated.  0 or -errno. */
int kernel_text_read(const char *folder, const char *name, char buf[KERNEL_TEXT_MAX]);

/* The number behind a word (with its space) that begins a line; false: there is none. */
bool kernel_text_number(const char *text, const char *word, uint64_t *out);

/*
 * The folder below cgroup (as /sys/fs/cgroup) of the process's own control group of version 2; proc as
 * /proc.  buf is scratch.  0; -ENOENT: it is in none; -errno.
 */
int kernel_text_own_group(const char *proc, const char *cgroup, char buf[KERNEL_TEXT_MAX], char *out, size_t n);

#endif
