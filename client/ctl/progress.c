/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/progress.h"
#include "client/ctl/text.h"

void progress_init(struct progress *p, bool quiet)
{
	*p = (struct progress){ .enabled = !quiet && isatty(STDERR_FILENO) };
}

void progress_show(struct progress *p, const char *fmt, ...)
{
	char text[160];
	va_list ap;

	if (!p->enabled)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	fputs("\r\033[K", stderr);
	text_print_visible(stderr, text, strlen(text));
	fflush(stderr);
	p->shown = true;
}

void progress_clear(struct progress *p)
{
	if (!p->shown)
		return;
	fputs("\r\033[K", stderr);
	fflush(stderr);
	p->shown = false;
}
