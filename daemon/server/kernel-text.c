/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/kernel-text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

int kernel_text_read(const char *folder, const char *name, char buf[KERNEL_TEXT_MAX])
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
	while (n < KERNEL_TEXT_MAX - 1 && (k = read(fd, buf + n, KERNEL_TEXT_MAX - 1 - n)) > 0)
		n += (size_t)k;
	if (k < 0)
		return -errno;
	buf[n] = '\0';
	return 0;
}

bool kernel_text_number(const char *text, const char *word, uint64_t *out)
{
	size_t n = strlen(word);

	for (const char *line = text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (strncmp(line, word, n) == 0) {
			*out = strtoull(line + n, NULL, 10);
			return true;
		}
	}
	return false;
}

int kernel_text_own_group(const char *proc, const char *cgroup, char buf[KERNEL_TEXT_MAX], char *out, size_t n)
{
	char *path;
	int r = kernel_text_read(proc, "self/cgroup", buf);

	if (r)
		return r;
	path = strncmp(buf, "0::/", 4) == 0 ? buf : strstr(buf, "\n0::/");
	if (!path)
		return -ENOENT;
	path = strchr(path, '/');
	path[strcspn(path, "\n")] = '\0';
	return (size_t)snprintf(out, n, "%s%s", cgroup, path) < n ? 0 : -ENAMETOOLONG;
}
