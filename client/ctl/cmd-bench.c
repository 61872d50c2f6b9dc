/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvctl bench: what this machine makes of a model.  Another program measures, kvd-bench, since that needs the daemon's
 * own code; it gets the arguments as they are and takes this process's place.
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/ctl.h"

#define PROGRAM "kvd-bench"

/* Beside this program, or where programs are that people don't call themselves; else PATH decides. */
static void find_program(char *buf, size_t n)
{
	static const char *const places[] = { PROGRAM, "../libexec/kvd/" PROGRAM };
	char self[PATH_MAX];
	ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash;

	self[len > 0 ? len : 0] = '\0';
	slash = strrchr(self, '/');
	for (size_t i = 0; slash && i < sizeof(places) / sizeof(places[0]); i++) {
		slash[1] = '\0';
		if ((size_t)snprintf(buf, n, "%s%s", self, places[i]) < n && !access(buf, X_OK))
			return;
	}
	snprintf(buf, n, "%s", PROGRAM);
}

int cmd_bench(struct ctl *ctl, int argc, char **argv)
{
	char program[PATH_MAX];
	const char **args;
	int n = 0;

	if (ctl->socket)
		return ctl_usage(ctl, "it starts daemons of its own: --socket has no meaning");
	args = calloc((size_t)argc + 2, sizeof(*args));
	if (!args) {
		ctl_error(ctl, "out of memory");
		return CTL_FAILED;
	}
	args[n++] = PROGRAM;
	if (ctl->json)
		args[n++] = "--json";
	for (int i = 1; i < argc; i++)
		args[n++] = argv[i];
	find_program(program, sizeof(program));
	signal(SIGPIPE, SIG_DFL);
	execvp(program, (char *const *)args);
	if (errno == ENOENT)
		ctl_error(ctl, "%s is not installed: it is not beside kvctl, in ../libexec/kvd, or in PATH",
			  PROGRAM);
	else
		ctl_error(ctl, "cannot run %s: %s", program, strerror(errno));
	free(args);
	return CTL_FAILED;
}
