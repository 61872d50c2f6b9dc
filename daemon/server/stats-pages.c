/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/stats-pages.h"

#include <errno.h>
#include <stdatomic.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "ipc/base/list.h"

struct stats_page {
	struct list link;
	uid_t uid;
	struct segment segment;
	_Atomic unsigned refs;
	_Atomic uint64_t prompt_tokens, generated_tokens;
	_Atomic uint64_t requests_done, requests_cancelled, requests_failed;
	_Atomic uint64_t cache_lookups, cache_hits, cached_tokens;
	struct latency queue, first_token, gap;
};

struct stats_pages {
	struct accounts *accounts;
	uint64_t started_ns;
	struct segment totals;
	struct list pages;
	struct stats_figures gone;	/* what freed pages had */
};

static uint64_t get(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

/* Adds the page's figures to sum. */
static void sum_figures(const struct stats_page *page, struct stats_figures *sum)
{
	sum->prompt_tokens += get(&page->prompt_tokens);
	sum->generated_tokens += get(&page->generated_tokens);
	sum->requests_done += get(&page->requests_done);
	sum->requests_cancelled += get(&page->requests_cancelled);
	sum->requests_failed += get(&page->requests_failed);
	sum->cache_lookups += get(&page->cache_lookups);
	sum->cache_hits += get(&page->cache_hits);
	sum->cached_tokens += get(&page->cached_tokens);
	latency_sum(&page->queue, &sum->queue);
	latency_sum(&page->first_token, &sum->first_token);
	latency_sum(&page->gap, &sum->gap);
}

static void page_free(struct stats_page *page)
{
	list_unlink(&page->link);
	segment_deinit(&page->segment);
	free(page);
}

int stats_pages_new(struct stats_pages **out, struct accounts *accounts, uint64_t started_ns)
{
	struct stats_pages *p = calloc(1, sizeof(*p));
	int r;

	if (!p)
		return -ENOMEM;
	p->accounts = accounts;
	p->started_ns = started_ns;
	list_init(&p->pages);
	r = stats_new(&p->totals, KVD_STATS_ALL, 0);
	if (r) {
		free(p);
		return r;
	}
	*out = p;
	return 0;
}

void stats_pages_free(struct stats_pages *p)
{
	if (!p)
		return;
	list_for_each_safe(e, next, &p->pages)
		page_free(list_entry(e, struct stats_page, link));
	segment_deinit(&p->totals);
	free(p);
}

/* Frees the page that has been idle longest, if too many are. */
static void trim(struct stats_pages *p)
{
	struct stats_page *oldest = NULL;
	unsigned n = 0;

	list_for_each(e, &p->pages) {
		struct stats_page *page = list_entry(e, struct stats_page, link);

		if (atomic_load(&page->refs) == 0) {
			n++;
			oldest = oldest ? oldest : page;
		}
	}
	if (n > STATS_PAGES_IDLE_MAX) {
		sum_figures(oldest, &p->gone);
		page_free(oldest);
	}
}

int stats_pages_get(struct stats_pages *p, uid_t uid, struct stats_page **out)
{
	struct stats_page *page = NULL;
	int r;

	list_for_each(e, &p->pages) {
		page = list_entry(e, struct stats_page, link);
		if (page->uid == uid)
			break;
		page = NULL;
	}
	if (!page) {
		trim(p);
		page = calloc(1, sizeof(*page));
		if (!page)
			return -ENOMEM;
		page->uid = uid;
		list_init(&page->link);
		r = stats_new(&page->segment, KVD_STATS_UID, uid);
		if (r) {
			free(page);
			return r;
		}
	}
	/* Last used, last in the list. */
	list_unlink(&page->link);
	list_push_back(&p->pages, &page->link);
	*out = stats_page_ref(page);
	return 0;
}

int stats_pages_fd(const struct stats_pages *p, const struct stats_page *page, bool totals)
{
	return totals ? p->totals.fd : page->segment.fd;
}

struct stats_page *stats_page_ref(struct stats_page *page)
{
	atomic_fetch_add(&page->refs, 1);
	return page;
}

void stats_page_unref(struct stats_page *page)
{
	if (page)
		atomic_fetch_sub(&page->refs, 1);
}

static void add(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

void stats_page_count(struct stats_page *page, const struct sink_event *event)
{
	switch (event->type) {
	case SINK_TOKEN:
		add(&page->generated_tokens, 1);
		if (event->token.gap_ns)
			latency_add(&page->gap, event->token.gap_ns);
		break;
	case SINK_USAGE:
		add(&page->prompt_tokens, event->usage.prompt_tokens);
		latency_add(&page->queue, event->usage.queue_ns);
		if (event->usage.generated_tokens)
			latency_add(&page->first_token, event->usage.queue_ns + event->usage.prefill_ns);
		if (event->usage.miss == SINK_MISS_NO_CACHE)
			break;
		add(&page->cache_lookups, 1);
		add(&page->cache_hits, event->usage.cached_tokens > 0);
		add(&page->cached_tokens, event->usage.cached_tokens);
		break;
	case SINK_DONE:
		add(event->done.reason == SINK_FINISH_CANCELLED ? &page->requests_cancelled
								: &page->requests_done,
		    1);
		break;
	case SINK_ERROR:
		add(&page->requests_failed, 1);
		break;
	default:
		break;
	}
}

void stats_page_count_gone(struct stats_page *page)
{
	add(&page->requests_cancelled, 1);
}

void stats_pages_figures_of(const struct stats_pages *p, uid_t uid, struct stats_figures *out)
{
	*out = (struct stats_figures){ 0 };
	list_for_each(e, &p->pages) {
		struct stats_page *page = list_entry(e, struct stats_page, link);

		if (page->uid == uid)
			sum_figures(page, out);
	}
}

void stats_pages_figures(const struct stats_pages *p, struct stats_figures *out)
{
	*out = p->gone;
	list_for_each(e, &p->pages)
		sum_figures(list_entry(e, struct stats_page, link), out);
}

size_t stats_pages_uids(const struct stats_pages *p, uid_t *uids, size_t max)
{
	size_t n = 0;

	list_for_each(e, &p->pages) {
		if (n < max)
			uids[n++] = list_entry(e, struct stats_page, link)->uid;
	}
	return n;
}

void stats_page_read(const struct stats_page *page, struct accounts *accounts,
		     const struct engine_request_view *views, size_t n_views, struct kvd_stats *out)
{
	*out = (struct kvd_stats){
		.n_sessions = account_used(accounts, page->uid, ACCOUNT_SESSIONS),
		.kv_bytes_used = account_used(accounts, page->uid, ACCOUNT_KV),
		.memory_bytes = account_used(accounts, page->uid, ACCOUNT_MEMORY),
		.prompt_tokens = get(&page->prompt_tokens),
		.generated_tokens = get(&page->generated_tokens),
		.requests_done = get(&page->requests_done),
		.requests_cancelled = get(&page->requests_cancelled),
		.requests_failed = get(&page->requests_failed),
		.cache_lookups = get(&page->cache_lookups),
		.cache_hits = get(&page->cache_hits),
		.cached_tokens = get(&page->cached_tokens),
	};
	for (size_t i = 0; i < n_views; i++) {
		if (views[i].uid != page->uid)
			continue;
		out->preemptions += views[i].n_preempted;
		if (views[i].phase == ENGINE_QUEUED)
			out->n_queued++;
		else if (views[i].phase == ENGINE_PARKED)
			out->n_parked++;
		else
			out->n_running++;
	}
}

static void add_health(const struct stats_pages *p, const struct stats_health *health, struct kvd_stats *s)
{
	s->started_ns = p->started_ns;
	s->updated_ns = clock_ns();
	s->pid = (uint64_t)getpid();
	s->state = health->state;
	s->loading_percent = health->loading_percent;
	s->n_models = health->n_models;
}

static void write_disk(const struct disk_store_stats *disk, struct kvd_stats *s)
{
	s->disk_bytes = disk->max_bytes;
	s->disk_bytes_used = disk->bytes;
	s->disk_blocks = disk->n_blocks;
	s->disk_lookups = disk->lookups;
	s->disk_hits = disk->hits;
	s->disk_written = disk->written;
	s->disk_read = disk->read;
	s->disk_evicted = disk->evicted;
	s->disk_damaged = disk->damaged;
	s->disk_errors = disk->errors;
}

static void write_totals(const struct stats_pages *p, const struct stats_health *health,
			 uint64_t memory_bytes)
{
	const struct engine_stats *e = health->engine;
	struct kvd_stats s = { .n_sessions = health->n_sessions, .memory_bytes = memory_bytes };

	if (e) {
		s.n_running = e->n_running;
		s.n_queued = e->n_queued + health->n_waiting;
		s.n_parked = e->n_parked;
		s.prompt_tokens = e->prompt_tokens;
		s.generated_tokens = e->generated_tokens;
		s.requests_done = e->requests_done;
		s.requests_cancelled = e->requests_cancelled;
		s.requests_failed = e->requests_failed;
		s.preemptions = e->preemptions;
		s.blocks_used = e->blocks_used;
		s.steps = e->steps;
		s.busy_ns = e->busy_ns;
		s.blocks_free = e->blocks_free;
		s.blocks_cached = e->blocks_cached;
		s.cache_lookups = e->cache_lookups;
		s.cache_hits = e->cache_hits;
		s.cached_tokens = e->cached_tokens;
		s.cache_evicted = e->cache_evicted;
		s.blocks_capacity = e->blocks_capacity;
		s.kv_bytes = e->kv_bytes;
		s.kv_bytes_used = e->kv_bytes_used;
	}
	write_disk(health->disk, &s);
	s.weight_bytes = health->weight_bytes;
	add_health(p, health, &s);
	stats_write(&p->totals, &s);
}

void stats_pages_write(struct stats_pages *p, const struct stats_health *health)
{
	uint64_t memory = 0;

	list_for_each(e, &p->pages) {
		struct stats_page *page = list_entry(e, struct stats_page, link);
		struct kvd_stats s;

		stats_page_read(page, p->accounts, health->views, health->n_views, &s);
		s.n_queued += health->n_waiting_of(health->arg, page->uid);
		memory += s.memory_bytes;
		add_health(p, health, &s);
		stats_write(&page->segment, &s);
	}
	write_totals(p, health, memory);
}
