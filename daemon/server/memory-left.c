/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/memory-left.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/server/kernel-text.h"
#include "ipc/base/checked.h"
#include "ipc/base/cleanup.h"

/* 0 if it does not stand there. */
static uint64_t number_after(const char *text, const char *word)
{
	uint64_t n = 0;

	kernel_text_number(text, word, &n);
	return n;
}

/* What one group still allows; UINT64_MAX: it has no limit. */
static uint64_t left_in_group(const char *folder, char buf[KERNEL_TEXT_MAX])
{
	uint64_t max, used, cache;

	if (kernel_text_read(folder, "memory.max", buf) || buf[0] < '0' || buf[0] > '9')
		return UINT64_MAX;
	max = strtoull(buf, NULL, 10);
	if (kernel_text_read(folder, "memory.current", buf))
		return UINT64_MAX;
	used = strtoull(buf, NULL, 10);
	cache = kernel_text_read(folder, "memory.stat", buf) ? 0 :
		number_after(buf, "inactive_file ") + number_after(buf, "active_file ");
	used -= MIN(used, cache);
	return max > used ? max - used : 0;
}

/* The least that the process's own group and those above it allow. */
static uint64_t left_in_groups(const char *proc, const char *cgroup, char buf[KERNEL_TEXT_MAX])
{
	char folder[PATH_MAX], *slash;
	uint64_t left = UINT64_MAX;
	size_t root = strlen(cgroup);

	if (kernel_text_own_group(proc, cgroup, buf, folder, sizeof(folder)))
		return left;
	for (;;) {
		left = MIN(left, left_in_group(folder, buf));
		slash = strrchr(folder, '/');
		if (!slash || (size_t)(slash - folder) < root)
			return left;
		*slash = '\0';
	}
}

int memory_left_in(const char *proc, const char *cgroup, uint64_t *out)
{
	_cleanup_(freep) char *buf = calloc(1, KERNEL_TEXT_MAX);
	uint64_t machine;
	int r;

	if (!buf)
		return -ENOMEM;
	r = kernel_text_read(proc, "meminfo", buf);
	if (r)
		return r;
	machine = number_after(buf, "MemAvailable:");
	if (!checked_mul_u64(machine, 1024, &machine) || !machine)
		return -ENODATA;
	*out = MIN(machine, left_in_groups(proc, cgroup, buf));
	return 0;
}

int memory_left(uint64_t *out)
{
	return memory_left_in("/proc", "/sys/fs/cgroup", out);
}
