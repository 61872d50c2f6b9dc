/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/watch.h"

#include <errno.h>
#include <event2/event.h>
#include <stdlib.h>
#include <systemd/sd-daemon.h>

#include "daemon/server/log.h"
#include "ipc/base/checked.h"

#define SECOND_US UINT64_C(1000000)
#define SECOND_NS UINT64_C(1000000000)

struct watch {
	uint64_t limit_ns;
	watch_probe_fn probe;
	void *arg;
	struct event *timer;
	bool has_watchdog;
	bool told;			/* that it is stuck; */
	uint64_t seen_ns;		/* for so long when last looked at */
};

bool watch_is_stuck(const struct watch *w)
{
	return w->probe(w->arg) >= w->limit_ns;
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
	struct watch *w = arg;
	uint64_t ns = w->probe(w->arg);
	bool stuck = ns >= w->limit_ns;

	if (stuck && !w->told)
		log_error("the engine is stuck: it has been at one step or command for %llu s",
			  (unsigned long long)(ns / SECOND_NS));
	else if (!stuck && w->told)
		log_warning("the engine goes on; it was stuck for %llu s at least",
			    (unsigned long long)(w->seen_ns / SECOND_NS));
	w->told = stuck;
	w->seen_ns = ns;
	if (w->has_watchdog && !stuck)
		sd_notify(0, "WATCHDOG=1");
}

int watch_new(struct watch **out, struct event_base *base, uint32_t limit_s, watch_probe_fn probe, void *arg)
{
	struct watch *w = calloc(1, sizeof(*w));
	uint64_t watchdog_us = 0, period_us = (uint64_t)limit_s * SECOND_US / 4;
	struct timeval period;

	if (!w)
		return -ENOMEM;
	w->limit_ns = (uint64_t)limit_s * SECOND_NS;
	w->probe = probe;
	w->arg = arg;
	w->has_watchdog = sd_watchdog_enabled(0, &watchdog_us) > 0;
	if (w->has_watchdog)
		period_us = MAX(MIN(period_us, watchdog_us / 2), (uint64_t)1000);
	period = (struct timeval){ .tv_sec = (time_t)(period_us / SECOND_US),
				   .tv_usec = (suseconds_t)(period_us % SECOND_US) };
	w->timer = event_new(base, -1, EV_PERSIST, on_timer, w);
	if (!w->timer || event_add(w->timer, &period) < 0) {
		watch_free(w);
		return -ENOMEM;
	}
	*out = w;
	return 0;
}

void watch_free(struct watch *w)
{
	if (!w)
		return;
	if (w->timer)
		event_free(w->timer);
	free(w);
}
