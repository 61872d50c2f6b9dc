/* SPDX-License-Identifier: Apache-2.0 */
/* How many CPUs this process may use: sched_getaffinity(2), and cpu.max of cgroups v2. */
#include "threads.h"

#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_CPUS 65536

static uint32_t affinity_cpus(void)
{
	for (int n = 1024; n <= MAX_CPUS; n *= 2) {
		cpu_set_t *set = CPU_ALLOC(n);
		size_t size = CPU_ALLOC_SIZE(n);
		int count = 0;

		if (!set)
			return 1;
		if (!sched_getaffinity(0, size, set))
			count = CPU_COUNT_S(size, set);
		CPU_FREE(set);
		if (count > 0)
			return (uint32_t)count;
	}
	return 1;
}

/* Reads a small file as a string; false if it isn't there. */
static bool read_small(const char *path, char *buf, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return false;
	n = read(fd, buf, size - 1);
	close(fd);
	if (n < 0)
		return false;
	buf[n] = 0;
	return true;
}

/* CPUs that one cgroup's cpu.max ("QUOTA PERIOD" or "max PERIOD") allows, rounded up. */
static uint32_t group_quota(const char *group)
{
	char path[PATH_MAX + 32], text[64], *end;
	unsigned long long quota, period;

	snprintf(path, sizeof(path), "/sys/fs/cgroup%s/cpu.max", group);
	if (!read_small(path, text, sizeof(text)))
		return UINT32_MAX;
	quota = strtoull(text, &end, 10);
	if (end == text)
		return UINT32_MAX;
	period = strtoull(end, NULL, 10);
	if (!quota || !period || quota / period >= MAX_CPUS)
		return UINT32_MAX;
	return (uint32_t)((quota + period - 1) / period);
}

/* The least quota of our cgroup and those above it. */
static uint32_t quota_cpus(void)
{
	char text[PATH_MAX], *group, *end;
	uint32_t least = UINT32_MAX;

	if (!read_small("/proc/self/cgroup", text, sizeof(text)))
		return least;
	group = strstr(text, "0::/");
	if (!group || (group != text && group[-1] != '\n'))
		return least;
	group += strlen("0::");
	group[strcspn(group, "\n")] = 0;
	for (;;) {
		uint32_t n = group_quota(group);

		least = n < least ? n : least;
		end = strrchr(group, '/');
		if (!end)
			return least;
		*end = 0;
	}
}

uint32_t kc_allowed_cpus(void)
{
	uint32_t n = affinity_cpus(), quota = quota_cpus();

	return quota < n ? quota : n;
}
