/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/private-manager.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/base/fd.h"

#define LISTEN_FIRST 3		/* SD_LISTEN_FDS_START */
#define FDS_MAX 8u

int manager_open(struct private *p)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	_cleanup_(fd_closep) int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (snprintf(address.sun_path, sizeof(address.sun_path), "%s/notify", p->directory) >=
	    (int)sizeof(address.sun_path))
		return -ENAMETOOLONG;
	if (fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof(address)))
		return -errno;
	p->notify = fd_steal(&fd);
	return 0;
}

static void forget_name(struct private *p, const char *name)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < p->n_kept; i++) {
		if (!name || !strcmp(p->kept_names[i], name)) {
			close(p->kept[i]);
			continue;
		}
		p->kept[n] = p->kept[i];
		if (n != i)
			memcpy(p->kept_names[n], p->kept_names[i], sizeof(p->kept_names[n]));
		n++;
	}
	p->n_kept = n;
}

void private_forget(struct private *p)
{
	forget_name(p, NULL);
}

/* The value of a variable in a message of lines NAME=VALUE. */
static bool variable(const char *message, const char *name, char *out, size_t size)
{
	size_t n = strlen(name);

	for (const char *at = message; at && *at; at = strchr(at, '\n'), at += at != NULL) {
		if (strncmp(at, name, n) || at[n] != '=')
			continue;
		snprintf(out, size, "%.*s", (int)strcspn(at + n + 1, "\n"), at + n + 1);
		return true;
	}
	return false;
}

static void keep(struct private *p, const char *name, const int *fds, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		if (p->n_kept == ARRAY_SIZE(p->kept)) {
			close(fds[i]);
			continue;
		}
		p->kept[p->n_kept] = fds[i];
		snprintf(p->kept_names[p->n_kept++], sizeof(p->kept_names[0]), "%s", name);
	}
}

static bool take_one(struct private *p)
{
	char message[4096], name[64] = "", value[8];
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
	} control;
	struct iovec iov = { message, sizeof(message) - 1 };
	struct msghdr m = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes),
	};
	ssize_t n = recvmsg(p->notify, &m, MSG_CMSG_CLOEXEC);
	int fds[FDS_MAX];
	uint32_t n_fds = 0;

	if (n < 0)
		return false;
	message[n] = '\0';
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		n_fds = (uint32_t)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(fds, CMSG_DATA(c), n_fds * sizeof(int));
	}
	variable(message, "FDNAME", name, sizeof(name));
	if (variable(message, "FDSTOREREMOVE", value, sizeof(value)))
		forget_name(p, name);
	keep(p, name, fds, n_fds);
	return true;
}

void manager_take(struct private *p)
{
	while (take_one(p))
		;
}

void manager_pass(const struct private *p, int first_free)
{
	char names[ARRAY_SIZE(p->kept) * (sizeof(p->kept_names[0]) + 1)] = "", number[16], notify[PATH_MAX];
	int moved[ARRAY_SIZE(p->kept)];
	size_t n = 0;

	for (uint32_t i = 0; i < p->n_kept; i++)
		moved[i] = fcntl(p->kept[i], F_DUPFD_CLOEXEC, first_free);
	/* Ours have close-on-exec; what dup2() makes has not. */
	for (uint32_t i = 0; i < p->n_kept; i++) {
		dup2(moved[i], LISTEN_FIRST + (int)i);
		n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s", i ? ":" : "", p->kept_names[i]);
	}
	unsetenv("WATCHDOG_USEC");
	unsetenv("WATCHDOG_PID");
	snprintf(notify, sizeof(notify), "%s/notify", p->directory);
	setenv("NOTIFY_SOCKET", notify, 1);
	unsetenv("LISTEN_FDS");
	unsetenv("LISTEN_PID");
	unsetenv("LISTEN_FDNAMES");
	if (!p->n_kept)
		return;
	snprintf(number, sizeof(number), "%u", p->n_kept);
	setenv("LISTEN_FDS", number, 1);
	snprintf(number, sizeof(number), "%d", (int)getpid());
	setenv("LISTEN_PID", number, 1);
	setenv("LISTEN_FDNAMES", names, 1);
}
