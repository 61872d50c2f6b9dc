/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics-text.h - figures as the text that Prometheus reads, version 0.0.4 of its
 * exposition format (prometheus.io, "Exposition formats").
 *
 * Names begin with kvd_, counters end with _total, units are seconds and bytes. Counters
 * count since the daemon's start.
 *
 * What is told depends on who asks, see struct metrics: no figure tells one user about another.
 *
 * Thread: any.
 */
#ifndef KVD_SERVER_METRICS_TEXT_H
#define KVD_SERVER_METRICS_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "daemon/engine/disk-store.h"
#include "daemon/engine/engine.h"
#include "daemon/server/http-counts.h"
#include "daemon/server/stats-pages.h"

#define METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* What an account holds now. */
struct metrics_holdings {
	uint64_t requests;		/* queued or running */
	uint64_t sessions;
	uint64_t kv_bytes, memory_bytes;
};

struct metrics_model {
	const char *name;
	uint32_t n_ctx;
	uint64_t weight_bytes, block_bytes;
	uint32_t block_tokens;
	const struct engine_model_stats *stats;		/* NULL: not to be told */
};

struct metrics_account {
	char name[80];			/* "uid:1000" */
	struct stats_figures figures;
	struct metrics_holdings holdings;
};

struct metrics {
	/* For everyone: what others do doesn't change it. */
	const char *version, *device, *level, *kv_type;
	bool ready;
	uint64_t uptime_ns;
	uint32_t n_threads;
	uint64_t kv_bytes, weight_bytes;	/* what there is */
	const struct metrics_model *models;	/* [n_models] ready ones */
	size_t n_models;
	/* Of the one who asks, or of all together; NULL: it is nobody in particular. */
	const struct stats_figures *figures;
	const struct metrics_holdings *holdings;
	/* For administrators; NULL: not to be told, or there is none. */
	const struct engine_stats *engine;
	const struct disk_store_stats *disk;
	const struct http_counts *http;
	uint64_t http_connections;	/* open ones */
	const struct metrics_account *accounts;	/* [n_accounts] */
	size_t n_accounts;
};

/* Errors are out's: see ferror(). */
void metrics_write(FILE *out, const struct metrics *m);

#endif
