/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/stats.h"

#include <stddef.h>
#include <string.h>

#define READ_TRIES 4096

_Static_assert(sizeof(struct kvd_stats) % sizeof(uint64_t) == 0, "figures are words");
_Static_assert(sizeof(struct kvd_stats_page) <= KVD_SEGMENT_DATA, "one page");
_Static_assert(offsetof(struct kvd_stats_page, sequence) == 64, "PROTOCOL.md, Statistics");
_Static_assert(offsetof(struct kvd_stats_page, words) == 72, "PROTOCOL.md, Statistics");

int stats_new(struct segment *out, enum kvd_stats_scope scope, uint32_t uid)
{
	struct kvd_stats_page page = {
		.magic = KVD_STATS_MAGIC, .version = KVD_STATS_VERSION, .scope = scope,
		.uid = scope == KVD_STATS_UID ? uid : 0, .n_words = KVD_STATS_WORDS,
	};

	return segment_new_page(out, "kvd-stats", &page, sizeof(page));
}

int stats_map(struct segment *out, int fd, struct diag *diag)
{
	struct segment s;
	const struct kvd_stats_page *page;
	int r = segment_map_page(&s, fd, "statistics page", KVD_STATS_MAGIC, KVD_STATS_VERSION, diag);

	if (r)
		return r;
	page = s.map;
	if (page->n_words < KVD_STATS_WORDS) {
		s.fd = -1;	/* stays the caller's */
		segment_deinit(&s);
		return diag_set(diag, -EPROTO, "statistics page: has too few words");
	}
	*out = s;
	return 0;
}

void stats_write(const struct segment *s, const struct kvd_stats *stats)
{
	struct kvd_stats_page *page = s->map;
	uint64_t words[KVD_STATS_WORDS];
	uint64_t sequence = atomic_load_explicit(&page->sequence, memory_order_relaxed);

	memcpy(words, stats, sizeof(words));
	atomic_store_explicit(&page->sequence, sequence + 1, memory_order_relaxed);
	/* Whoever sees one of these words also sees the odd number. */
	for (size_t i = 0; i < KVD_STATS_WORDS; i++)
		atomic_store_explicit(&page->words[i], words[i], memory_order_release);
	atomic_store_explicit(&page->sequence, sequence + 2, memory_order_release);
}

int stats_read(const struct segment *s, struct kvd_stats *out)
{
	struct kvd_stats_page *page = s->map;
	uint64_t words[KVD_STATS_WORDS];

	for (int t = 0; t < READ_TRIES; t++) {
		uint64_t before = atomic_load_explicit(&page->sequence, memory_order_acquire);

		if (before & 1)
			continue;
		for (size_t i = 0; i < KVD_STATS_WORDS; i++)
			words[i] = atomic_load_explicit(&page->words[i], memory_order_acquire);
		if (atomic_load_explicit(&page->sequence, memory_order_relaxed) == before) {
			memcpy(out, words, sizeof(*out));
			return 0;
		}
	}
	return STATS_E_BUSY;
}
