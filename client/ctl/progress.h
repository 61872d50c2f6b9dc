/* SPDX-License-Identifier: Apache-2.0 */
/* progress.h - one changing line on stderr, where stderr is a terminal. */
#ifndef KVD_CTL_PROGRESS_H
#define KVD_CTL_PROGRESS_H

#include <stdbool.h>

struct progress {
	bool enabled;
	bool shown;	/* the line has text that must be cleared before other output */
};

void progress_init(struct progress *p, bool quiet);
__attribute__((format(printf, 2, 3)))
void progress_show(struct progress *p, const char *fmt, ...);
void progress_clear(struct progress *p);

#endif
