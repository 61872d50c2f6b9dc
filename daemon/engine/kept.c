/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool's memory, and what an earlier process has left in it.
 *
 * Descriptors that are no good, or of a pool that does not suit, are closed and the pool is made anew: a
 * cold start.  The kept chunk size stays where it suits, and so does the size where none was asked for, so that as
 * much as possible is found again.
 */
#include <stdarg.h>
#include <stdio.h>

#include "daemon/engine/engine-private.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"

#define CHUNKS_MIN 16u
/* Verified in one round beside running sequences: at some 10 GB/s they lose 10 ms. */
#define VERIFY_BYTES (UINT64_C(96) << 20)
#define VERIFY_PART_BYTES (UINT64_C(8) << 20)	/* of it, between two looks at the time */

static int no_pool(struct diag *diag, int err, uint64_t bytes)
{
	return diag_set(diag, err, "the KV pool of %llu bytes can't be made: %s", (unsigned long long)bytes,
			strerror(-err));
}

/* Whether the pool can outlive the process at all. */
static bool can_keep(const struct engine *e)
{
	return !e->no_cache && e->be->ops->block_memory;
}

static int create(struct engine *e, const struct engine_config *config, struct diag *diag)
{
	uint64_t bytes = config->kv_memory, chunk_bytes = pool_chunk_bytes_for(config->block_bytes, bytes);
	_cleanup_(kept_freep) struct kept *kept = NULL;
	_cleanup_(fd_closep) int fd = -1;
	int err;

	if (!chunk_bytes || bytes < chunk_bytes)
		return diag_set(diag, -EINVAL,
				"the KV memory of %llu bytes is smaller than one chunk of %llu",
				(unsigned long long)bytes, (unsigned long long)chunk_bytes);
	if (bytes / chunk_bytes >= UINT32_MAX || bytes > INT64_MAX)
		return no_pool(diag, -EINVAL, bytes);
	err = pool_memory_new(&fd, bytes / chunk_bytes * chunk_bytes);
	/* Without an index it works all the same. */
	if (!err && can_keep(e))
		(void)kept_new(&kept, fd, chunk_bytes, (uint32_t)(bytes / chunk_bytes));
	if (!err)
		err = pool_new_on(&e->pool, e->be, e->accounts, chunk_bytes, (uint32_t)(bytes / chunk_bytes), &fd,
				  &kept);
	return err ? no_pool(diag, err, bytes) : 0;
}

/* How many chunks of the kept size there are to be.  0: another size suits better. */
static uint32_t n_chunks_of(const struct engine_config *config, uint64_t chunk_bytes, uint64_t kept_bytes)
{
	uint64_t bytes = config->kv_memory, best, n;

	if (config->kv_memory_auto)
		bytes = MAX(bytes, kept_bytes);
	best = pool_chunk_bytes_for(config->block_bytes, bytes);
	n = bytes / chunk_bytes;
	if (!n || n >= UINT32_MAX || bytes > INT64_MAX || config->block_bytes > chunk_bytes)
		return 0;
	return chunk_bytes <= best || n >= CHUNKS_MIN ? (uint32_t)n : 0;
}

/* Takes the descriptors if they are good.  0, or why not in e->kept.why. */
static int adopt(struct engine *e, const struct engine_config *config, int *pool_fd, int *index_fd,
		 struct diag *diag)
{
	_cleanup_(kept_freep) struct kept *kept = NULL;
	struct kept_found found;
	uint64_t chunk_bytes, pool_bytes;
	uint32_t n_chunks;
	int err;

	err = kept_open(&kept, index_fd, *pool_fd, &pool_bytes, diag);
	if (err)
		return err;
	chunk_bytes = kept_chunk_bytes(kept);
	n_chunks = n_chunks_of(config, chunk_bytes, pool_bytes);
	if (!n_chunks)
		return diag_set(diag, -EINVAL, "chunks of %llu bytes do not suit any more",
				(unsigned long long)chunk_bytes);
	err = kept_resize(kept, *pool_fd, n_chunks, &found);
	if (!err)
		err = pool_new_on(&e->pool, e->be, e->accounts, chunk_bytes, n_chunks, pool_fd, &kept);
	if (err)
		return diag_set(diag, err, "its memory can't be used: %s", strerror(-err));
	e->kept.taken = true;
	e->kept.n_blocks = found.n_blocks;
	e->kept.n_dropped = found.n_damaged;
	if (found.n_damaged || found.n_chunks_dropped)
		snprintf(e->kept.why, sizeof(e->kept.why), "the index is damaged in places");
	else if (n_chunks < pool_bytes / chunk_bytes)
		snprintf(e->kept.why, sizeof(e->kept.why), "the KV memory is smaller than it was");
	return 0;
}

static int open_pool(struct engine *e, const struct engine_config *config, int *pool_fd, int *index_fd,
		     struct diag *diag)
{
	struct diag why = DIAG_NULL;

	e->kept.given = *pool_fd >= 0 || *index_fd >= 0;
	if (!e->kept.given)
		return create(e, config, diag);
	if (!can_keep(e))
		diag_write(&why, "nothing can be kept");
	else if (*pool_fd < 0 || *index_fd < 0)
		diag_write(&why, "the %s is missing", *pool_fd < 0 ? "pool" : "index");
	else if (!adopt(e, config, pool_fd, index_fd, &why))
		return 0;
	snprintf(e->kept.why, sizeof(e->kept.why), "%s", why.text[0] ? why.text : "out of memory");
	fd_closep(pool_fd);
	fd_closep(index_fd);
	return create(e, config, diag);
}

int engine_kept_open(struct engine *e, const struct engine_config *config, int *pool_fd, int *index_fd,
		     struct diag *diag)
{
	struct pool_stats stats;
	int err = open_pool(e, config, pool_fd, index_fd, diag);

	if (err)
		return err;
	pool_stats(e->pool, &stats);
	e->stats.kv_bytes = stats.bytes;
	e->chunks = calloc(stats.n_chunks, sizeof(*e->chunks));
	return e->chunks ? 0 : -ENOMEM;
}

void engine_kept_fds(const struct engine *e, int *pool, int *index)
{
	const struct kept *kept = pool_kept(e->pool);

	*pool = kept ? pool_fd(e->pool) : -1;
	*index = kept ? kept_fd(kept) : -1;
}

void engine_kept(const struct engine *e, struct engine_kept *out)
{
	*out = e->kept;
}

/* --- models --- */

__attribute__((format(printf, 2, 3)))
static void tell(const struct engine *e, const char *fmt, ...)
{
	char text[256];
	va_list ap;

	if (!e->kept_event)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	e->kept_event(e->kept_event_arg, text);
}

static void adopt_model(struct engine *e, struct engine_model *em)
{
	struct store_identity *id = calloc(1, sizeof(*id));
	struct tree_adopted a = { 0 };

	if (!id)
		return;		/* nothing of it is kept, then */
	engine_identify(e, em, id);
	pool_root_keep(em->root, id);
	free(id);
	if (tree_adopt(em->tree, em->n_vocab, clock_ns(), &a))
		tell(e, "%s: its cache in memory can't be taken over: out of memory", em->name);
	else if (a.n_orphans || a.n_quota || a.n_bad)
		tell(e, "%s: of its cache in memory %u blocks are taken over; dropped: "
		     "%u after others that are not there, %u beyond their user's share, %u that contradict others",
		     em->name, a.n_entries, a.n_orphans, a.n_quota, a.n_bad);
}

void engine_kept_adopt(struct engine *e)
{
	list_for_each(l, &e->models) {
		struct engine_model *em = list_entry(l, struct engine_model, link);

		if (em->kept_tried)
			continue;
		em->kept_tried = true;
		if (pool_kept(e->pool))
			adopt_model(e, em);
	}
}

bool engine_kept_verify(struct engine *e, struct engine_request *r, uint64_t now)
{
	uint32_t max = e->sched.n_active ? (uint32_t)MAX(VERIFY_BYTES / r->model->block_bytes, 1u) : UINT32_MAX;
	uint32_t part = MIN(max, (uint32_t)MAX(VERIFY_PART_BYTES / r->model->block_bytes, 1u));
	struct tree_stats stats;
	uint64_t n = 0;
	bool more;

	do {
		more = tree_verify(&r->path, r->tokens, engine_prefix_n_lookup(r), now, part) == part;
		n += part;
	} while (more && n < max && !engine_gap_used(e));
	tree_stats(r->model->tree, &stats);
	if (stats.kept_damaged && !r->model->kept_damage_told) {
		r->model->kept_damage_told = true;
		tell(e, "%s: blocks of its cache in memory are damaged, and computed again", r->model->name);
	}
	return more;
}
