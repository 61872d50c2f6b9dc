/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/engine-private.h"
#include "ipc/base/clock.h"

static void mark_dirty(struct engine *e, struct sink *sink)
{
	if (sink->dirty)
		return;
	sink->dirty = true;
	sink->next_dirty = e->dirty;
	e->dirty = sink;
}

/*
 * Everything that the request holds goes before its last event is seen, so that
 * a client that asks again at once finds its quota free.
 */
static void let_go(struct engine *e, struct engine_request *r)
{
	engine_disk_write(r);
	engine_disk_forget(r);
	engine_release_blocks(e, r);
	engine_prefix_deinit(r);
	heap_remove(&e->deadlines, &r->deadline);
	if (r->seq.share)
		scheduler_remove(&e->sched, &r->seq);
	pthread_mutex_lock(&e->lock);
	list_unlink(&r->link);
	r->model->n_requests--;
	engine_note_end(e, r);
	pthread_mutex_unlock(&e->lock);
	list_push_back(&e->finished, &r->link);
	charge_deinit(&r->charge_request);
	charge_deinit(&r->charge_memory);
}

static void emit_error(struct engine *e, struct engine_request *r, enum sink_error code, const char *text)
{
	struct sink_event event = { .type = SINK_ERROR, .error = { .code = code, .text = text } };

	if (!r->sink->ops->emit(r->sink, r->id, &event, 1))
		mark_dirty(e, r->sink);
	e->stats.requests_failed++;
}

void engine_fail(struct engine *e, struct engine_request *r, enum sink_error code, const char *text)
{
	let_go(e, r);
	emit_error(e, r, code, text);
}

void engine_finish(struct engine *e, struct engine_request *r, enum sink_finish reason)
{
	struct output_usage usage;
	int err;

	let_go(e, r);
	request_usage(r, clock_ns(), &usage);
	err = output_done(&r->output, r->sink, r->id, &usage, reason);
	if (err == -ENOMEM) {
		emit_error(e, r, SINK_ERROR_NO_MEMORY, "out of memory for the rest of the text");
		return;
	}
	/* A sink keeps room for the last events; one that is gone has nobody to tell. */
	if (!err)
		mark_dirty(e, r->sink);
	if (usage.miss != SINK_MISS_NO_CACHE) {
		e->stats.cache_lookups++;
		e->stats.cache_hits += usage.cached_tokens > 0;
		e->stats.cached_tokens += usage.cached_tokens;
	}
	if (reason == SINK_FINISH_CANCELLED)
		e->stats.requests_cancelled++;
	else
		e->stats.requests_done++;
}

/* The sink is full: the request waits for its reader, with its events. */
static void park(struct engine *e, struct engine_request *r)
{
	if (r->ending)
		engine_release_blocks(e, r);
	engine_prefix_abandon(r);
	if (r->seq.state != SCHED_PARKED)
		scheduler_park(&e->sched, &r->seq);
}

/* The sink took everything: the request ends or goes on where it was. */
static void resume(struct engine *e, struct engine_request *r)
{
	if (r->ending)
		engine_finish(e, r, r->ending);
	else if (r->seq.state == SCHED_PARKED && r->seq.n_blocks)
		scheduler_ready(&e->sched, &r->seq);
	else if (r->seq.state == SCHED_PARKED)
		scheduler_push(&e->sched, &r->seq);
}

void engine_deliver(struct engine *e, struct engine_request *r)
{
	int err;

	/* Cleared before the sink looks: room made from now on sets it again. */
	atomic_exchange(&r->room, false);
	err = output_emit(&r->output, r->model->tokenizer, r->sink, r->id);
	if (!err || err == SINK_E_FULL)
		mark_dirty(e, r->sink);
	if (!err) {
		resume(e, r);
	} else if (err == SINK_E_FULL) {
		park(e, r);
	} else {
		engine_finish(e, r, SINK_FINISH_CANCELLED);
	}
}

void engine_progress(struct engine *e, struct engine_request *r)
{
	struct sink_event event = {
		.type = SINK_PROGRESS,
		.progress = { .done = r->seq.n_computed, .total = r->n_prompt },
	};
	int err = r->sink->ops->emit(r->sink, r->id, &event, 1);

	if (!err)
		mark_dirty(e, r->sink);
	else if (err != SINK_E_FULL)
		engine_finish(e, r, SINK_FINISH_CANCELLED);
}

void engine_settle(struct engine *e)
{
	while (e->dirty) {
		struct sink *sink = e->dirty;

		e->dirty = sink->next_dirty;
		sink->next_dirty = NULL;
		sink->dirty = false;
		sink->ops->flush(sink);
	}
	list_for_each_safe(l, next, &e->finished) {
		struct engine_request *r = list_entry(l, struct engine_request, link);

		list_unlink(l);
		r->sink->ops->release(r->sink, r->id);
		engine_request_free(r);
	}
}
