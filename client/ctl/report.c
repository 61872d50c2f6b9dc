/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to the person at the terminal, and the exit status that goes with them. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "client/ctl/text.h"

/* One write() for the whole line, so that two processes' lines do not mix; the
 * text may quote a daemon or an argument, so controls are made visible. */
static void report(const struct ctl *ctl, const char *hint, const char *fmt, va_list ap)
{
	char text[4096], line[4096 + 256];

	vsnprintf(text, sizeof(text), fmt, ap);
	int n = snprintf(line, sizeof(line), "kvctl: %s%s%s%s", ctl->command ? ctl->command->name : "",
			 ctl->command ? ": " : "", text, hint);
	if (n < 0)
		return;
	text_print_visible(stderr, line, strlen(line));
	fputc('\n', stderr);
	fflush(stderr);
}

void ctl_error(const struct ctl *ctl, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	report(ctl, "", fmt, ap);
	va_end(ap);
}

int ctl_usage(const struct ctl *ctl, const char *fmt, ...)
{
	char hint[64];
	va_list ap;

	snprintf(hint, sizeof(hint), " (see \"kvctl %s%s--help\")", ctl->command ? ctl->command->name : "",
		 ctl->command ? " " : "");
	va_start(ap, fmt);
	report(ctl, hint, fmt, ap);
	va_end(ap);
	return CTL_USAGE;
}

int ctl_refused_status(int code)
{
	switch (code) {
	case KVD_REFUSED_QUOTA:
	case KVD_REFUSED_PERMISSION:
	case KVD_REFUSED_BUSY:
		return CTL_REFUSED;
	default:
		return CTL_FAILED;
	}
}

int ctl_client_failed(const struct ctl *ctl, const struct kvd_client *c, int r, const char *what)
{
	const char *why = kvd_client_error(c);

	if (!*why)
		why = r < 0 ? strerror(-r) : r == KVD_E_CLOSED ? "the daemon is gone" :
			r == KVD_E_TIMEOUT ? "the daemon did not answer" : "unknown error";
	ctl_error(ctl, "%s: %s", what, why);
	return r == KVD_E_REFUSED ? ctl_refused_status(kvd_client_code(c)) : CTL_FAILED;
}
