/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/base/error.h"

#include <string.h>

#include "ipc/base/utf8.h"

void diag_write(struct diag *diag, const char *fmt, ...)
{
	va_list ap;

	if (!diag || diag->text[0])
		return;
	va_start(ap, fmt);
	vsnprintf(diag->text, sizeof(diag->text), fmt, ap);
	va_end(ap);
	/* Names and values of other people's files are quoted. */
	utf8_make_readable(diag->text, strlen(diag->text));
}
