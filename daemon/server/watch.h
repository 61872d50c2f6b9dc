/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch.h - notices an engine that does not get on, and tells the service manager's watchdog while it does.
 *
 * A line in the log when it has been at one step or command for too long, and one when it goes on.  Where the manager
 * has a watchdog (WATCHDOG_USEC, see sd_watchdog_enabled(3)), it hears from us in half of its time as long as the
 * loop runs and the engine is not stuck.
 *
 * Thread: the loop thread.
 */
#ifndef KVD_SERVER_WATCH_H
#define KVD_SERVER_WATCH_H

#include <stdbool.h>
#include <stdint.h>

struct event_base;
struct watch;

/* How long the engine has been at what it does, in ns; 0: it waits, or there is none. */
typedef uint64_t (*watch_probe_fn)(void *arg);

/* limit_s: longer is too long.  0 or -ENOMEM. */
int watch_new(struct watch **out, struct event_base *base, uint32_t limit_s, watch_probe_fn probe, void *arg);
void watch_free(struct watch *w);

/* It has been at it for too long, now. */
bool watch_is_stuck(const struct watch *w);

#endif
