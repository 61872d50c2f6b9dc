/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/utf8.h"

static bool to_journal;

void log_init(void)
{
	const char *stream = getenv("JOURNAL_STREAM");	/* "device:inode" in decimal */
	struct stat st;
	char ours[64];

	if (!stream || fstat(STDERR_FILENO, &st) < 0)
		return;
	snprintf(ours, sizeof(ours), "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
	to_journal = strcmp(stream, ours) == 0;
}

void log_write(int priority, const char *fmt, ...)
{
	int saved = errno, head, body;
	char line[1024];
	va_list ap;
	size_t n;

	head = to_journal ? snprintf(line, sizeof(line), "<%d>", LOG_PRI(priority))
			  : snprintf(line, sizeof(line), "kvd: ");
	va_start(ap, fmt);
	body = vsnprintf(line + head, sizeof(line) - head, fmt, ap);
	va_end(ap);
	if (body < 0)
		goto out;
	n = (size_t)head + (size_t)body;
	if (n > sizeof(line) - 1)
		n = sizeof(line) - 1;
	/* Paths, and what others call themselves, may hold anything; a line of the log is one line. */
	utf8_make_readable(line, n);
	line[n++] = '\n';
	/* A log that can't be written is nobody's error. */
	if (write(STDERR_FILENO, line, n) < 0)
		goto out;
out:
	errno = saved;
}
