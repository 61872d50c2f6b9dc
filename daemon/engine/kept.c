/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool, and what an earlier process has left in it.
 */
#include "daemon/engine/engine-private.h"

static int create(struct engine *e, const struct engine_config *config, struct diag *diag)
{
	uint64_t bytes = config->kv_memory, chunk_bytes = pool_chunk_bytes_for(config->block_bytes, bytes);
	int err;

	if (!chunk_bytes || bytes < chunk_bytes)
		return diag_set(diag, -EINVAL,
				"the KV memory of %llu bytes is smaller than one chunk of %llu",
				(unsigned long long)bytes, (unsigned long long)chunk_bytes);
	err = pool_new(&e->pool, e->be, e->accounts, bytes, chunk_bytes);
	if (err)
		return diag_set(diag, err, "the KV pool of %llu bytes can't be made: %s",
				(unsigned long long)bytes, strerror(-err));
	return 0;
}

int engine_kept_open(struct engine *e, const struct engine_config *config, int *pool_fd, int *index_fd,
		     struct diag *diag)
{
	struct pool_stats stats;
	int err;

	e->kept.given = *pool_fd >= 0 || *index_fd >= 0;
	err = create(e, config, diag);
	if (err)
		return err;
	pool_stats(e->pool, &stats);
	e->stats.kv_bytes = stats.bytes;
	e->chunks = calloc(stats.n_chunks, sizeof(*e->chunks));
	return e->chunks ? 0 : -ENOMEM;
}

void engine_kept_fds(const struct engine *e, int *pool, int *index)
{
	*pool = *index = -1;
}

void engine_kept(const struct engine *e, struct engine_kept *out)
{
	*out = e->kept;
}
