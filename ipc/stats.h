/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats.h - the statistics page: figures that monitors read without asking the
 * daemon.
 *
 * There is one page per uid, handed out in `welcome` (descriptor 2), since
 * counters must not tell one user about another: the health part is the same
 * for all and says nothing about who does what; the figures are those of the
 * page's uid.  Peers that are root or the daemon's own uid get the one page
 * whose figures are totals over all uids.
 *
 * A seqlock: `sequence` is odd while the daemon writes; a reader copies the
 * words and takes them if the sequence was even and the same before and after
 * (Boehm, "Can seqlocks get along with programming language memory models?",
 * MSPC 2012; here words are atomic, stored with release and loaded with
 * acquire, so that no fence is needed).  All words are uint64_t.
 *
 * Thread: stats_write() of one page from one thread at a time.
 */
#ifndef KVD_STATS_H
#define KVD_STATS_H

#include <stdint.h>

#include "ipc/segment.h"

#define KVD_STATS_MAGIC 0x54415453u	/* "STAT" */
#define KVD_STATS_VERSION 1u

enum kvd_stats_scope {
	KVD_STATS_UID = 0,	/* the figures are uid's */
	KVD_STATS_ALL = 1,	/* totals over all uids; uid is 0 */
};

enum kvd_stats_state {
	KVD_STATS_LOADING = 0,
	KVD_STATS_READY = 1,
	KVD_STATS_STOPPING = 2,
};

/* A plain copy.  Counters count since the start. */
struct kvd_stats {
	/* Health: the same on every page. */
	uint64_t started_ns;		/* CLOCK_MONOTONIC */
	uint64_t updated_ns;		/* of this page */
	uint64_t pid;
	uint64_t state;			/* enum kvd_stats_state */
	uint64_t loading_percent;
	uint64_t n_models;
	/* Figures of the page's scope. */
	uint64_t n_sessions, n_running, n_queued, n_parked;
	uint64_t prompt_tokens, generated_tokens;
	uint64_t requests_done, requests_cancelled, requests_failed, preemptions;
	uint64_t kv_bytes_used;		/* of KV blocks charged */
	uint64_t memory_bytes;		/* buffers, segments and prompts charged */
	/* Of the whole daemon; 0 on a page of scope KVD_STATS_UID. */
	uint64_t steps, busy_ns;
	uint64_t blocks_used, blocks_free, blocks_capacity;
	uint64_t kv_bytes, weight_bytes;
	/* Of the page's scope: requests that looked into the cache, those that found something, tokens found. */
	uint64_t cache_lookups, cache_hits, cached_tokens;
	/* Of the whole daemon; 0 on a page of scope KVD_STATS_UID.  blocks_used are without the cached ones. */
	uint64_t blocks_cached, cache_evicted;
	/* The cache on disk, of the whole daemon; 0 on a page of scope KVD_STATS_UID.  See struct kvd_status. */
	uint64_t disk_bytes, disk_bytes_used, disk_blocks, disk_lookups, disk_hits;
	uint64_t disk_written, disk_read, disk_evicted, disk_damaged, disk_errors;
};

#define KVD_STATS_WORDS (sizeof(struct kvd_stats) / sizeof(uint64_t))

/* At the start of the page. */
struct kvd_stats_page {
	uint32_t magic, version;
	uint32_t scope;			/* enum kvd_stats_scope */
	uint32_t uid;
	uint32_t n_words;		/* KVD_STATS_WORDS; more may follow in a later version */
	uint32_t reserved;
	_Alignas(64) _Atomic uint64_t sequence;
	_Atomic uint64_t words[KVD_STATS_WORDS];
};

/* The daemon's side: a sealed page with zero figures.  0 or -errno. */
int stats_new(struct segment *out, enum kvd_stats_scope scope, uint32_t uid);
/* Of a page made by stats_new(). */
void stats_write(const struct segment *s, const struct kvd_stats *stats);

/* The client's side: as segment_map_ring(). */
int stats_map(struct segment *out, int fd, struct diag *diag);

/*
 * Of a page mapped by stats_map() or made by stats_new().  0; STATS_E_BUSY: the writer was in
 * the way each of some thousand times (or died while writing).
 */
#define STATS_E_BUSY 1
int stats_read(const struct segment *s, struct kvd_stats *out);

#endif
