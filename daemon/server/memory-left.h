/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory-left.h - how much memory could be allocated before the kernel kills
 * somebody: what the machine has available, and what is left of the limits
 * of the control groups that the process is in, page cache not counted.
 *
 * Sources: proc_meminfo(5) (MemAvailable), proc_pid_cgroup(5) and the kernel's
 * Documentation/admin-guide/cgroup-v2.rst (memory.max, memory.current, memory.stat).
 * A group of version 1 is not looked at.
 *
 * Thread: any.
 */
#ifndef KVD_SERVER_MEMORY_LEFT_H
#define KVD_SERVER_MEMORY_LEFT_H

#include <stdint.h>

/* Bytes.  0, or -errno where the kernel does not tell. */
int memory_left(uint64_t *out);

/* The same with other folders in place of /proc and /sys/fs/cgroup, for tests. */
int memory_left_in(const char *proc, const char *cgroup, uint64_t *out);

#endif
