/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.h - one line per event that an administrator cares about, to stderr.
 *
 * Under systemd, where stderr is the journal, lines carry the "<N>" priority
 * prefix of sd-daemon(3); elsewhere the program's name.  A line is one write(2),
 * so that lines of several threads don't mix.  Control characters in it (they
 * may come from a client) are replaced.
 *
 * Thread: any, after log_init().  kvd.8 lists the lines.
 */
#ifndef KVD_SERVER_LOG_H
#define KVD_SERVER_LOG_H

#include <syslog.h>

/* Looks at $JOURNAL_STREAM; before other threads start. */
void log_init(void);

__attribute__((format(printf, 2, 3)))
void log_write(int priority, const char *fmt, ...);

#define log_error(...) log_write(LOG_ERR, __VA_ARGS__)
#define log_warning(...) log_write(LOG_WARNING, __VA_ARGS__)
#define log_info(...) log_write(LOG_INFO, __VA_ARGS__)

#endif
