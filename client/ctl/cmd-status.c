/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl status: one page about the daemon. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/connect.h"
#include "client/ctl/json.h"
#include "client/ctl/simple.h"
#include "client/ctl/table.h"

static json_t *models_json(const struct kvd_model *models, size_t n)
{
	json_t *list = json_array();

	for (const struct kvd_model *m = models; list && m < models + n; m++)
		json_array_append_new(list, json_pack("{s:s,s:s,s:o}", "name", m->name, "state", m->state,
						      "percent", json_u64(m->percent)));
	return list;
}

static int print_json(const struct ctl *ctl, const struct kvd_status *s, const struct kvd_model *models, size_t n)
{
	return json_print(ctl, json_pack(
		"{s:s,s:s,s:s,s:s,s:i,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:b,"
		"s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,"
		"s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:s,s:s,s:o}",
		"version", s->version, "device", s->device, "level", s->level, "state", s->state,
		"pid", (int)s->pid,
		"n_threads", json_u64(s->n_threads), "n_models", json_u64(s->n_models),
		"n_sessions", json_u64(s->n_sessions), "n_running", json_u64(s->n_running),
		"n_queued", json_u64(s->n_queued), "n_parked", json_u64(s->n_parked),
		"uptime_ns", json_u64(s->uptime_ns), "kv_bytes", json_u64(s->kv_bytes),
		"kv_bytes_used", json_u64(s->kv_bytes_used), "weight_bytes", json_u64(s->weight_bytes),
		"prompt_tokens", json_u64(s->prompt_tokens),
		"generated_tokens", json_u64(s->generated_tokens),
		"requests_done", json_u64(s->requests_done),
		"requests_cancelled", json_u64(s->requests_cancelled),
		"preemptions", json_u64(s->preemptions), "loading_percent", json_u64(s->loading_percent),
		"no_cache", s->no_cache,
		"blocks_used", json_u64(s->blocks_used), "blocks_cached", json_u64(s->blocks_cached),
		"blocks_free", json_u64(s->blocks_free), "cache_lookups", json_u64(s->cache_lookups),
		"cache_hits", json_u64(s->cache_hits), "cached_tokens", json_u64(s->cached_tokens),
		"cache_evicted", json_u64(s->cache_evicted),
		"host_bytes", json_u64(s->host_bytes), "host_bytes_used", json_u64(s->host_bytes_used),
		"host_blocks", json_u64(s->host_blocks), "host_stored", json_u64(s->host_stored),
		"host_restored", json_u64(s->host_restored), "models", models_json(models, n),
		"disk_bytes", json_u64(s->disk_bytes), "disk_bytes_used", json_u64(s->disk_bytes_used),
		"disk_blocks", json_u64(s->disk_blocks), "disk_lookups", json_u64(s->disk_lookups),
		"disk_hits", json_u64(s->disk_hits), "disk_written", json_u64(s->disk_written),
		"disk_read", json_u64(s->disk_read), "disk_evicted", json_u64(s->disk_evicted),
		"disk_damaged", json_u64(s->disk_damaged), "disk_errors", json_u64(s->disk_errors),
		"disk_trouble", s->disk_trouble,
		"kv_type", s->kv_type, "open_bytes", json_u64(s->open_bytes)));
}

static void print_model(const struct kvd_model *m)
{
	char file[FORMAT_MAX], token[FORMAT_MAX];

	if (!strcmp(m->state, "loading")) {
		printf("%s (loading, %" PRIu32 " %%)\n", m->name, m->percent);
		return;
	}
	printf("%s (%s, context %" PRIu32 ", file %s", m->name, *m->arch ? m->arch : "-", m->n_ctx,
	       format_bytes(file, m->file_bytes));
	if (m->block_tokens)
		printf(", KV %s a token, in blocks of %" PRIu32 " (%s)",
		       format_bytes(token, m->block_bytes / m->block_tokens), m->block_tokens,
		       *m->block_tokens_by ? m->block_tokens_by : "?");
	printf("%s%s)\n", strcmp(m->state, "ready") ? ", " : "", strcmp(m->state, "ready") ? m->state : "");
}

static void print_models(const struct kvd_model *models, size_t n)
{
	for (const struct kvd_model *m = models; m < models + n; m++) {
		printf("%-12s", m == models ? "models" : "");
		print_model(m);
	}
	if (!n)
		printf("%-12snone\n", "models");
}

/* How much of what was asked for was there. */
static void print_cache(const struct kvd_status *s)
{
	double hits = s->cache_lookups ? 100.0 * (double)s->cache_hits / (double)s->cache_lookups : 0;

	printf("%-12s%" PRIu64 " of %" PRIu64 " requests found something (%.0f %%), %" PRIu64 " tokens; %"
	       PRIu64 " evicted\n", "cache", s->cache_hits, s->cache_lookups, hits, s->cached_tokens, s->cache_evicted);
}

/* The tier behind the KV memory, where there is one and who asks may know. */
static void print_host(const struct kvd_status *s)
{
	char a[FORMAT_MAX], b[FORMAT_MAX];

	if (s->host_bytes)
		printf("%-12s%s of %s, %" PRIu64 " blocks; %" PRIu64 " went there, %" PRIu64 " came back\n",
		       "host memory", format_bytes(a, s->host_bytes_used), format_bytes(b, s->host_bytes),
		       s->host_blocks, s->host_stored, s->host_restored);
}

/* The same of the cache on disk. */
static void print_disk(const struct kvd_status *s)
{
	char a[FORMAT_MAX], b[FORMAT_MAX];

	if (!s->disk_bytes)
		return;
	printf("%-12s%s of %s, %" PRIu64 " blocks; %" PRIu64 " written, %" PRIu64 " read, %" PRIu64 " evicted, %" PRIu64
	       " damaged\n", "disk", format_bytes(a, s->disk_bytes_used), format_bytes(b, s->disk_bytes),
	       s->disk_blocks, s->disk_written, s->disk_read, s->disk_evicted, s->disk_damaged);
	printf("%-12s%" PRIu64 " of %" PRIu64 " prompts found something there; %" PRIu64 " error%s\n", "", s->disk_hits,
	       s->disk_lookups, s->disk_errors, s->disk_errors == 1 ? "" : "s");
	if (s->disk_trouble[0])
		printf("%-12strouble: %s\n", "", s->disk_trouble);
}

static void print_page(const struct kvd_status *s, const struct kvd_model *models, size_t n)
{
	char a[FORMAT_MAX], b[FORMAT_MAX];

	printf("%-12skvd %s, process %" PRIu32 ", up %s\n", "daemon", s->version, s->pid,
	       format_duration(a, s->uptime_ns));
	if (!strcmp(s->state, "loading"))
		printf("%-12sloading, %" PRIu32 " %%\n", "state", s->loading_percent);
	else
		printf("%-12s%s\n", "state", s->state);
	printf("%-12s%s (%s), %" PRIu32 " thread%s\n", "device", s->device, s->level, s->n_threads,
	       s->n_threads == 1 ? "" : "s");
	print_models(models, n);
	printf("%-12s%s\n", "weights", format_bytes(a, s->weight_bytes));
	printf("%-12s%s of %s in use, type %s%s\n", "KV memory", format_bytes(a, s->kv_bytes_used),
	       format_bytes(b, s->kv_bytes), s->kv_type, s->no_cache ? " (--no-cache)" : "");
	if (s->open_bytes)
		printf("%-12s%s beside it, in blocks that are not full\n", "", format_bytes(a, s->open_bytes));
	printf("%-12s%" PRIu64 " in use, %" PRIu64 " cached, %" PRIu64 " free\n", "blocks", s->blocks_used,
	       s->blocks_cached, s->blocks_free);
	print_host(s);
	print_disk(s);
	print_cache(s);
	printf("%-12s%" PRIu32 "\n", "sessions", s->n_sessions);
	printf("%-12s%" PRIu32 " running, %" PRIu32 " queued, %" PRIu32 " parked; %" PRIu64 " done, %" PRIu64
	       " cancelled, %" PRIu64 " preemptions\n", "requests", s->n_running, s->n_queued, s->n_parked,
	       s->requests_done, s->requests_cancelled, s->preemptions);
	printf("%-12s%" PRIu64 " in prompts, %" PRIu64 " generated\n", "tokens", s->prompt_tokens,
	       s->generated_tokens);
}

int cmd_status(struct ctl *ctl, int argc, char **argv)
{
	struct kvd_client *c = NULL;
	struct kvd_model *models = NULL;
	struct kvd_status s;
	size_t n = 0;
	int status = CTL_OK;

	if (simple_options(ctl, argc, argv, &status))
		return status;
	status = connect_running(ctl, &c);
	if (status)
		return status;
	int r = kvd_status(c, &s);
	if (!r)
		r = kvd_models(c, &models, &n);
	if (r)
		status = ctl_client_failed(ctl, c, r, "cannot ask for the status");
	else if (ctl->json)
		status = print_json(ctl, &s, models, n);
	else
		print_page(&s, models, n);
	free(models);
	kvd_close(c);
	return status;
}
