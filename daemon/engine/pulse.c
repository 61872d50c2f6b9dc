/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/engine-private.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"

#define SECOND UINT64_C(1000000000)
#define INTERVAL_WEIGHT 8u	/* of the average that is behind us, to one new interval */

/* --- what it does now --- */

void engine_pulse(struct engine *e)
{
	atomic_store_explicit(&e->pulse_ns, clock_ns(), memory_order_relaxed);
}

void engine_rest(struct engine *e)
{
	atomic_store_explicit(&e->pulse_ns, 0, memory_order_relaxed);
}

uint64_t engine_stuck_ns(const struct engine *e)
{
	uint64_t begin = atomic_load_explicit(&e->pulse_ns, memory_order_relaxed), now = clock_ns();

	return begin && begin < now ? now - begin : 0;
}

/* --- deadlines --- */

void engine_deadline_set(struct engine *e, struct engine_request *r)
{
	if (r->params.deadline_ns)
		heap_push(&e->deadlines, &r->deadline, r->params.deadline_ns, r->seq.arrival);
}

uint64_t engine_next_deadline(const struct engine *e)
{
	return e->deadlines.top ? e->deadlines.top->key : UINT64_MAX;
}

void engine_deadlines(struct engine *e)
{
	uint64_t now = e->deadlines.top ? clock_ns() : 0;

	while (e->deadlines.top && e->deadlines.top->key <= now) {
		struct engine_request *r = heap_entry(e->deadlines.top, struct engine_request, deadline);

		engine_fail(e, r, SINK_ERROR_DEADLINE, "the request's time is up");
	}
}

/* --- how fast requests end --- */

void engine_note_end(struct engine *e, const struct engine_request *r)
{
	uint64_t now, interval;

	if (!r->admit_ns)
		return;
	now = clock_ns();
	/* Time in which there was nothing to do does not count. */
	interval = now - MAX(e->last_end_ns, r->submit_ns);
	e->last_end_ns = now;
	if (e->end_interval_ns)
		interval = (e->end_interval_ns * (INTERVAL_WEIGHT - 1) + interval) / INTERVAL_WEIGHT;
	e->end_interval_ns = MAX(interval, (uint64_t)1);
}

uint32_t engine_wait_hint(struct engine *e, uid_t account)
{
	uint64_t own = account_used(e->accounts, account, ACCOUNT_REQUESTS), all, queued, interval, n, seconds;

	pthread_mutex_lock(&e->lock);
	queued = (uint64_t)e->published.n_queued + e->n_incoming;
	all = queued + e->published.n_running + e->published.n_parked;
	interval = e->end_interval_ns;
	pthread_mutex_unlock(&e->lock);
	/* Until one of its own has ended, if it has some, and a quarter of those that wait. */
	n = MAX(own ? all / own : 0, queued / 4);
	if (!checked_mul_u64(MAX(n, (uint64_t)1), interval, &seconds))
		return ENGINE_WAIT_MAX;
	seconds = (seconds + SECOND - 1) / SECOND;
	return (uint32_t)MIN(MAX(seconds, (uint64_t)ENGINE_WAIT_MIN), (uint64_t)ENGINE_WAIT_MAX);
}
