/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/memory-left.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

#define FILE_MAX_BYTES 16384	/* what is looked at stands near the beginning of each file */

/* The beginning of a small file, NUL-terminated. */
static int read_file(const char *folder, const char *name, char buf[FILE_MAX_BYTES])
{
	_cleanup_(fd_closep) int fd = -1;
	char path[PATH_MAX];
	size_t n = 0;
	ssize_t k = 0;

	if ((size_t)snprintf(path, sizeof(path), "%s/%s", folder, name) >= sizeof(path))
		return -ENAMETOOLONG;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	while (n < FILE_MAX_BYTES - 1 && (k = read(fd, buf + n, FILE_MAX_BYTES - 1 - n)) > 0)
		n += (size_t)k;
	if (k < 0)
		return -errno;
	buf[n] = '\0';
	return 0;
}

/* The number behind a word that begins a line; 0 if there is none. */
static uint64_t number_after(const char *text, const char *word)
{
	size_t n = strlen(word);

	for (const char *line = text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (strncmp(line, word, n) == 0)
			return strtoull(line + n, NULL, 10);
	}
	return 0;
}

/* What one group still allows; UINT64_MAX: it has no limit. */
static uint64_t left_in_group(const char *folder, char buf[FILE_MAX_BYTES])
{
	uint64_t max, used, cache;

	if (read_file(folder, "memory.max", buf) || buf[0] < '0' || buf[0] > '9')
		return UINT64_MAX;
	max = strtoull(buf, NULL, 10);
	if (read_file(folder, "memory.current", buf))
		return UINT64_MAX;
	used = strtoull(buf, NULL, 10);
	cache = read_file(folder, "memory.stat", buf) ? 0 :
		number_after(buf, "inactive_file ") + number_after(buf, "active_file ");
	used -= MIN(used, cache);
	return max > used ? max - used : 0;
}

/* The least that the process's own group and those above it allow. */
static uint64_t left_in_groups(const char *proc, const char *cgroup, char buf[FILE_MAX_BYTES])
{
	char folder[PATH_MAX], *path, *slash;
	uint64_t left = UINT64_MAX;
	size_t root = strlen(cgroup);

	if (read_file(proc, "self/cgroup", buf))
		return left;
	path = strncmp(buf, "0::/", 4) == 0 ? buf : strstr(buf, "\n0::/");
	if (!path)
		return left;
	path = strchr(path, '/');
	path[strcspn(path, "\n")] = '\0';
	if ((size_t)snprintf(folder, sizeof(folder), "%s%s", cgroup, path) >= sizeof(folder))
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
	_cleanup_(freep) char *buf = calloc(1, FILE_MAX_BYTES);
	uint64_t machine;
	int r;

	if (!buf)
		return -ENOMEM;
	r = read_file(proc, "meminfo", buf);
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
