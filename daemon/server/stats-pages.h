/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats-pages.h - the statistics pages that are handed out: one for each uid
 * that has attached, and one with totals for root and the daemon's own user.
 *
 * What a request produced is counted by its sink, on whatever thread; figures of
 * the moment are gathered from the engine four times a second while anybody is
 * attached.  A uid's page outlives its sessions, so that counters go on where they
 * were, until too many pages are idle.
 *
 * Thread: the loop thread, but for the functions marked.
 */
#ifndef KVD_SERVER_STATS_PAGES_H
#define KVD_SERVER_STATS_PAGES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/engine/disk-store.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/sink.h"
#include "daemon/server/latency.h"
#include "ipc/base/account.h"
#include "ipc/base/cleanup.h"
#include "ipc/stats.h"

#define STATS_PAGES_IDLE_MAX 64

struct stats_page;
struct stats_pages;

int stats_pages_new(struct stats_pages **out, struct accounts *accounts, uint64_t started_ns);
void stats_pages_free(struct stats_pages *p);	/* every reference is gone */
CLEANUP_DEFINE(struct stats_pages, stats_pages_free)

/* The uid's page, made if need be, with a new reference.  0 or -errno. */
int stats_pages_get(struct stats_pages *p, uid_t uid, struct stats_page **out);
/* The descriptor to hand out: the page's, or the one with totals. */
int stats_pages_fd(const struct stats_pages *p, const struct stats_page *page, bool totals);

/* Any thread. */
struct stats_page *stats_page_ref(struct stats_page *page);
void stats_page_unref(struct stats_page *page);	/* NULL is fine; never frees */
/* Any thread: an event was emitted. */
void stats_page_count(struct stats_page *page, const struct sink_event *event);
/* Any thread: a request ended without a last record, its reader being gone. */
void stats_page_count_gone(struct stats_page *page);

/* Figures of one uid: counters as of now, the rest from views.  For `status` too. */
void stats_page_read(const struct stats_page *page, struct accounts *accounts,
		     const struct engine_request_view *views, size_t n_views, struct kvd_stats *out);

/* What requests have come to since the start. */
struct stats_figures {
	uint64_t prompt_tokens;		/* cached ones, too; of requests that ended in order */
	uint64_t generated_tokens;
	uint64_t requests_done, requests_cancelled, requests_failed;
	uint64_t cache_lookups, cache_hits, cached_tokens;
	struct latency_figures queue, first_token;	/* since the request came; of those that ended in order */
	struct latency_figures gap;			/* between two tokens */
};
/* The uid's; zeros where it has no page. */
void stats_pages_figures_of(const struct stats_pages *p, uid_t uid, struct stats_figures *out);
/* Of all uids together, those whose pages are gone included. */
void stats_pages_figures(const struct stats_pages *p, struct stats_figures *out);
/* The uids that have pages, at most max: how many. */
size_t stats_pages_uids(const struct stats_pages *p, uid_t *uids, size_t max);

struct stats_health {
	enum kvd_stats_state state;
	unsigned loading_percent, n_models, n_sessions;
	uint64_t weight_bytes;
	uint32_t n_waiting;			/* requests that the engine has not seen yet, */
	uint32_t (*n_waiting_of)(void *arg, uid_t uid);	/* and how many of them are a uid's */
	void *arg;
	const struct engine_stats *engine;	/* NULL while loading */
	const struct disk_store_stats *disk;
	const struct engine_request_view *views;
	size_t n_views;
};
/* Writes every page. */
void stats_pages_write(struct stats_pages *p, const struct stats_health *health);

#endif
