/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two levels: the pool hands chunks to roots, a root hands out blocks of its
 * chunks.  The pool gives the lowest chunk that is free.  A root takes a block of the
 * chunk that has the fewest free ones, so that what lives on gathers in few
 * chunks and the others empty out and go back to the pool: its partly used chunks are in
 * lists by the number of free blocks.  Which chunks are free, and which lists
 * are not empty, is a bitmap.  All bookkeeping of a root is allocated with the
 * root; getting a block allocates nothing.
 */
#include "daemon/cache/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/base/fd.h"

#define CHUNK_UNIT (UINT64_C(2) << 20)
#define CHUNK_MAX (UINT64_C(64) << 20)
#define CHUNK_DEFAULT (UINT64_C(32) << 20)
#define NO_BLOCK UINT32_MAX
#define NO_CHUNK UINT32_MAX

struct bitmap {
	uint64_t *words;
	uint32_t n_words;
	uint32_t first;		/* no bit is set in the words before this one */
};

struct block {
	struct charge charge;
	uint32_t n_refs;
	uint32_t next_free;	/* in its chunk, by index; NO_BLOCK ends */
};

/* A chunk as its root sees it. */
struct chunk {
	uint32_t n_used;
	uint32_t n_fresh;	/* blocks n_fresh.. were not handed out since the chunk came */
	uint32_t free_list;
	uint32_t prev, next;	/* in the list of those with as many free blocks; NO_CHUNK ends */
	bool waking;		/* in no list yet */
};

struct pool {
	struct kb_backend *be;
	struct accounts *accounts;
	struct kb_pool *device;
	int fd;
	uint64_t chunk_bytes;
	uint32_t n_chunks, n_chunks_free;
	struct bitmap free_chunks;	/* but those that are dormant */
	struct kept *kept;	/* NULL: nothing is kept */
	bool *dormant;		/* [n_chunks] */
	uint32_t n_dormant;
};

struct pool_root {
	struct pool *pool;
	struct kb_geometry geometry;
	struct block *blocks;	/* [n_chunks * blocks_per_chunk] */
	struct chunk *chunks;	/* [n_chunks] */
	uint32_t *partial;	/* [blocks_per_chunk + 1] own chunks by free blocks; none of 0 */
	struct bitmap partials;	/* which of the lists are not empty */
	uint32_t n_chunks;	/* own */
	uint32_t n_used;
	uint32_t kept_root;	/* KEPT_NONE: its blocks are not kept */
};

static int bitmap_init(struct bitmap *b, uint32_t n_bits)
{
	uint32_t n_words = n_bits / 64 + 1;
	uint64_t *words = calloc(n_words, sizeof(*words));

	if (!words)
		return -ENOMEM;
	*b = (struct bitmap){ .words = words, .n_words = n_words, .first = n_words };
	return 0;
}

static void bitmap_deinit(struct bitmap *b)
{
	free(b->words);
	*b = (struct bitmap){ 0 };
}

static void bitmap_set(struct bitmap *b, uint32_t i)
{
	b->words[i / 64] |= UINT64_C(1) << (i % 64);
	b->first = MIN(b->first, i / 64);
}

static void bitmap_clear(struct bitmap *b, uint32_t i)
{
	b->words[i / 64] &= ~(UINT64_C(1) << (i % 64));
}

static bool bitmap_lowest(struct bitmap *b, uint32_t *i)
{
	while (b->first < b->n_words && !b->words[b->first])
		b->first++;
	if (b->first == b->n_words)
		return false;
	*i = b->first * 64 + (uint32_t)__builtin_ctzll(b->words[b->first]);
	return true;
}

static uint64_t chunk_bytes_default(uint64_t bytes)
{
	return MAX(MIN(CHUNK_DEFAULT, bytes / 16) / CHUNK_UNIT * CHUNK_UNIT, CHUNK_UNIT);
}

uint64_t pool_chunk_bytes_for(uint64_t block_bytes, uint64_t bytes)
{
	uint64_t best, max = MIN(CHUNK_MAX, bytes / 8) / CHUNK_UNIT * CHUNK_UNIT;
	double best_waste = 2;

	if (!block_bytes)
		return chunk_bytes_default(bytes);
	if (!checked_align_u64(block_bytes, CHUNK_UNIT, &best))
		return 0;
	best = MAX(best, chunk_bytes_default(bytes));
	for (uint64_t c = best; c <= max; c += CHUNK_UNIT) {
		double waste = (double)(c % block_bytes) / (double)c;

		if (waste < best_waste) {
			best_waste = waste;
			best = c;
		}
		if (waste < 0.03)
			break;
	}
	return best;
}

int pool_memory_new(int *fd, uint64_t bytes)
{
	_cleanup_(fd_closep) int memfd = memfd_create("kvd-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (memfd < 0 || ftruncate(memfd, (off_t)bytes) < 0 ||
	    fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) < 0)
		return -errno;
	*fd = fd_steal(&memfd);
	return 0;
}

static void give_chunk(struct pool *p, uint32_t c)
{
	p->n_chunks_free++;
	p->dormant[c] = p->kept && kept_chunk_n(p->kept, c);
	if (p->dormant[c])
		p->n_dormant++;
	else
		bitmap_set(&p->free_chunks, c);
}

int pool_new_on(struct pool **out, struct kb_backend *be, struct accounts *accounts, uint64_t chunk_bytes,
		uint32_t n_chunks, int *fd, struct kept **kept)
{
	_cleanup_(pool_freep) struct pool *p = calloc(1, sizeof(*p));
	int r;

	if (!p)
		return -ENOMEM;
	p->fd = -1;
	p->be = be;
	p->accounts = accounts;
	p->chunk_bytes = chunk_bytes;
	p->n_chunks = n_chunks;
	p->dormant = calloc(n_chunks, sizeof(*p->dormant));
	r = bitmap_init(&p->free_chunks, p->n_chunks);
	if (r || !p->dormant)
		return -ENOMEM;
	r = be->ops->pool_import(be, *fd, n_chunks * chunk_bytes, &p->device);
	if (r)
		return r;
	p->fd = fd_steal(fd);
	p->kept = *kept;
	*kept = NULL;
	for (uint32_t i = 0; i < p->n_chunks; i++)
		give_chunk(p, i);
	*out = steal_ptr(p);
	return 0;
}

int pool_new(struct pool **out, struct kb_backend *be, struct accounts *accounts, uint64_t bytes,
	     uint64_t chunk_bytes)
{
	_cleanup_(fd_closep) int fd = -1;
	struct kept *none = NULL;
	int r;

	if (!chunk_bytes)
		chunk_bytes = chunk_bytes_default(bytes);
	if (chunk_bytes % CHUNK_UNIT || bytes < chunk_bytes || bytes > INT64_MAX || bytes / chunk_bytes >= NO_BLOCK)
		return -EINVAL;
	bytes = bytes / chunk_bytes * chunk_bytes;
	r = pool_memory_new(&fd, bytes);
	return r ? r : pool_new_on(out, be, accounts, chunk_bytes, (uint32_t)(bytes / chunk_bytes), &fd, &none);
}

void pool_free(struct pool *p)
{
	if (!p)
		return;
	if (p->device)
		p->be->ops->pool_free(p->be, p->device);
	kept_free(p->kept);
	bitmap_deinit(&p->free_chunks);
	free(p->dormant);
	fd_closep(&p->fd);
	free(p);
}

struct kb_pool *pool_device(const struct pool *p)
{
	return p->device;
}

void pool_stats(const struct pool *p, struct pool_stats *out)
{
	*out = (struct pool_stats){
		.bytes = p->n_chunks * p->chunk_bytes,
		.chunk_bytes = p->chunk_bytes,
		.n_chunks = p->n_chunks,
		.n_chunks_free = p->n_chunks_free,
		.n_chunks_dormant = p->n_dormant,
	};
}

uint64_t pool_chunk_bytes(const struct pool *p)
{
	return p->chunk_bytes;
}

int pool_root_new(struct pool_root **out, struct pool *p, const struct kb_geometry *geometry)
{
	_cleanup_(pool_root_freep) struct pool_root *r = NULL;
	uint64_t per_chunk, n_blocks;

	if (!geometry->block_bytes || geometry->block_bytes > p->chunk_bytes)
		return -EINVAL;
	per_chunk = p->chunk_bytes / geometry->block_bytes;
	n_blocks = per_chunk * p->n_chunks;	/* both factors are below 2^32 */
	if (per_chunk > UINT32_MAX || n_blocks >= NO_BLOCK)
		return -EINVAL;
	r = calloc(1, sizeof(*r));
	if (!r)
		return -ENOMEM;
	r->pool = p;
	r->kept_root = KEPT_NONE;
	r->geometry = *geometry;
	r->geometry.blocks_per_chunk = (uint32_t)per_chunk;
	r->geometry.chunk_bytes = p->chunk_bytes;
	r->blocks = calloc(n_blocks, sizeof(*r->blocks));
	r->chunks = calloc(p->n_chunks, sizeof(*r->chunks));
	r->partial = calloc(per_chunk + 1, sizeof(*r->partial));
	if (!r->blocks || !r->chunks || !r->partial || bitmap_init(&r->partials, (uint32_t)per_chunk + 1))
		return -ENOMEM;
	for (uint32_t i = 0; i <= per_chunk; i++)
		r->partial[i] = NO_CHUNK;
	*out = steal_ptr(r);
	return 0;
}

void pool_root_free(struct pool_root *r)
{
	if (!r)
		return;
	if (r->kept_root != KEPT_NONE)
		kept_root_put(r->pool->kept, r->kept_root);
	bitmap_deinit(&r->partials);
	free(r->partial);
	free(r->chunks);
	free(r->blocks);
	free(r);
}

const struct kb_geometry *pool_root_geometry(const struct pool_root *r)
{
	return &r->geometry;
}

uint32_t pool_root_n_free(const struct pool_root *r)
{
	return (r->n_chunks + r->pool->n_chunks_free) * r->geometry.blocks_per_chunk - r->n_used;
}

uint32_t pool_root_n_used(const struct pool_root *r)
{
	return r->n_used;
}

uint32_t pool_root_n_used_in(const struct pool_root *r, uint32_t chunk)
{
	return r->chunks[chunk].n_used;
}

uint32_t pool_root_capacity(const struct pool_root *r)
{
	return r->pool->n_chunks * r->geometry.blocks_per_chunk;
}

static uint32_t chunk_n_free(const struct pool_root *r, uint32_t c)
{
	return r->geometry.blocks_per_chunk - r->chunks[c].n_used;
}

/* Into the list of those with as many free blocks, if it has any. */
static void chunk_link(struct pool_root *r, uint32_t c)
{
	uint32_t n_free = chunk_n_free(r, c), *head = &r->partial[n_free];

	if (!n_free)
		return;
	r->chunks[c].prev = NO_CHUNK;
	r->chunks[c].next = *head;
	if (*head == NO_CHUNK)
		bitmap_set(&r->partials, n_free);
	else
		r->chunks[*head].prev = c;
	*head = c;
}

static void chunk_unlink(struct pool_root *r, uint32_t c)
{
	uint32_t n_free = chunk_n_free(r, c), next = r->chunks[c].next, prev = r->chunks[c].prev;

	if (!n_free)
		return;
	if (next != NO_CHUNK)
		r->chunks[next].prev = prev;
	if (prev != NO_CHUNK)
		r->chunks[prev].next = next;
	else
		r->partial[n_free] = next;
	if (r->partial[n_free] == NO_CHUNK)
		bitmap_clear(&r->partials, n_free);
}

/* A dormant chunk, the one in which least is kept: nothing is any more. */
static bool sacrifice_chunk(struct pool *p, uint32_t *c)
{
	uint32_t best = NO_CHUNK;

	for (uint32_t i = 0; p->n_dormant && i < p->n_chunks; i++)
		if (p->dormant[i] &&
		    (best == NO_CHUNK || kept_chunk_n(p->kept, i) < kept_chunk_n(p->kept, best)))
			best = i;
	if (best == NO_CHUNK)
		return false;
	kept_chunk_clear(p->kept, best);
	p->dormant[best] = false;
	p->n_dormant--;
	*c = best;
	return true;
}

static bool take_chunk(struct pool *p, uint32_t *c)
{
	if (bitmap_lowest(&p->free_chunks, c))
		bitmap_clear(&p->free_chunks, *c);
	else if (!sacrifice_chunk(p, c))
		return false;
	p->n_chunks_free--;
	return true;
}

/* The fullest chunk of the root that has a free block, one from the pool if none has. */
static bool root_find_chunk(struct pool_root *r, uint32_t *c)
{
	uint32_t n_free;

	if (bitmap_lowest(&r->partials, &n_free)) {
		*c = r->partial[n_free];
		return true;
	}
	if (!take_chunk(r->pool, c))
		return false;
	r->n_chunks++;
	r->chunks[*c] = (struct chunk){ .free_list = NO_BLOCK };
	chunk_link(r, *c);
	return true;
}

static void root_return_chunk(struct pool_root *r, uint32_t c)
{
	r->n_chunks--;
	give_chunk(r->pool, c);
}

static uint32_t chunk_take(struct pool_root *r, uint32_t c)
{
	struct chunk *chunk = &r->chunks[c];
	uint32_t per_chunk = r->geometry.blocks_per_chunk, i = chunk->free_list;

	chunk_unlink(r, c);
	if (i != NO_BLOCK)
		chunk->free_list = r->blocks[c * per_chunk + i].next_free;
	else
		i = chunk->n_fresh++;
	chunk->n_used++;
	chunk_link(r, c);
	r->n_used++;
	return c * per_chunk + i;
}

static void chunk_put(struct pool_root *r, uint32_t block)
{
	uint32_t per_chunk = r->geometry.blocks_per_chunk, c = block / per_chunk;
	struct chunk *chunk = &r->chunks[c];

	r->n_used--;
	if (chunk->waking) {
		chunk->n_used--;
		return;
	}
	r->blocks[block].next_free = chunk->free_list;
	chunk->free_list = block % per_chunk;
	chunk_unlink(r, c);
	if (--chunk->n_used)
		chunk_link(r, c);
	else
		root_return_chunk(r, c);
}

int pool_block_get(struct pool_root *r, uid_t uid, uint32_t *block)
{
	struct charge charge = CHARGE_NULL;
	uint32_t c, b;
	int err;

	if (!pool_root_n_free(r))
		return POOL_E_FULL;
	err = charge_init(&charge, r->pool->accounts, uid, ACCOUNT_KV, r->geometry.block_bytes);
	if (err)
		return err == ACCOUNT_E_QUOTA ? POOL_E_QUOTA : err;
	if (!root_find_chunk(r, &c)) {
		charge_deinit(&charge);
		return POOL_E_FULL;
	}
	b = chunk_take(r, c);
	r->blocks[b].charge = charge;
	r->blocks[b].n_refs = 1;
	*block = b;
	return 0;
}

void pool_block_ref(struct pool_root *r, uint32_t block)
{
	r->blocks[block].n_refs++;
}

void pool_block_unref(struct pool_root *r, uint32_t block)
{
	if (--r->blocks[block].n_refs)
		return;
	charge_deinit(&r->blocks[block].charge);
	chunk_put(r, block);
}

uint32_t pool_block_n_refs(const struct pool_root *r, uint32_t block)
{
	return r->blocks[block].n_refs;
}

bool pool_can_copy(const struct pool_root *r)
{
	const struct kb_ops *ops = r->pool->be->ops;

	return ops->block_read && ops->block_write && kb_block_bytes(&r->geometry);
}

int pool_block_read(struct pool_root *r, uint32_t block, uint32_t n_tokens, void *dst)
{
	if (!pool_can_copy(r))
		return -ENOTSUP;
	return r->pool->be->ops->block_read(r->pool->device, &r->geometry, block, n_tokens, dst);
}

int pool_block_write(struct pool_root *r, uint32_t block, uint32_t n_tokens, const void *src)
{
	if (!pool_can_copy(r))
		return -ENOTSUP;
	return r->pool->be->ops->block_write(r->pool->device, &r->geometry, block, n_tokens, src);
}

void *pool_block_memory(const struct pool_root *r, uint32_t block)
{
	const struct kb_ops *ops = r->pool->be->ops;

	return ops->block_memory ? ops->block_memory(r->pool->device, &r->geometry, block) : NULL;
}

/* --- what is kept beyond the process --- */

struct kept *pool_kept(const struct pool *p)
{
	return p->kept;
}

int pool_fd(const struct pool *p)
{
	return p->fd;
}

void pool_root_keep(struct pool_root *r, const struct store_identity *id)
{
	const struct kb_geometry *g = &r->geometry;

	if (r->pool->kept && r->kept_root == KEPT_NONE && g->block_tokens <= KEPT_TOKENS_MAX)
		r->kept_root = kept_root_get(r->pool->kept, id, g->block_tokens, g->block_bytes);
}

struct kept *pool_root_index(const struct pool_root *r)
{
	return r->pool->kept;
}

static bool sleeps(const struct pool_root *r, uint32_t c)
{
	const struct pool *p = r->pool;

	return r->kept_root != KEPT_NONE && p->dormant[c] && kept_chunk_root(p->kept, c) == r->kept_root;
}

uint32_t pool_root_n_dormant(const struct pool_root *r)
{
	uint32_t n = 0;

	for (uint32_t c = 0; c < r->pool->n_chunks; c++)
		n += sleeps(r, c) ? kept_chunk_n(r->pool->kept, c) : 0;
	return n;
}

uint32_t pool_root_kept(const struct pool_root *r)
{
	return r->kept_root;
}

struct kept_record *pool_block_record(const struct pool_root *r, uint32_t block)
{
	uint32_t per_chunk = r->geometry.blocks_per_chunk;

	return kept_at(r->pool->kept, block / per_chunk, block % per_chunk);
}

struct kept_record *pool_block_keep(struct pool_root *r, uint32_t block, const struct kept_record *record)
{
	uint32_t per_chunk = r->geometry.blocks_per_chunk;

	return kept_put(r->pool->kept, r->kept_root, block / per_chunk, block % per_chunk, record);
}

void pool_block_unkeep(struct pool_root *r, uint32_t block)
{
	kept_clear(r->pool->kept, block / r->geometry.blocks_per_chunk, pool_block_record(r, block));
}

static void wake_chunk(struct pool_root *r, uint32_t c, void (*fn)(void *arg, uint32_t block), void *arg)
{
	uint32_t per_chunk = r->geometry.blocks_per_chunk;
	struct pool *p = r->pool;
	struct kept_record *record;

	p->dormant[c] = false;
	p->n_dormant--;
	p->n_chunks_free--;
	r->n_chunks++;
	r->chunks[c] = (struct chunk){ .free_list = NO_BLOCK, .waking = true };
	for (uint32_t i = 0; i < per_chunk && (record = kept_at(p->kept, c, i)); i++)
		if (record->commit)
			fn(arg, c * per_chunk + i);
}

void pool_root_wake(struct pool_root *r, void (*fn)(void *arg, uint32_t block), void *arg)
{
	for (uint32_t c = 0; c < r->pool->n_chunks; c++)
		if (sleeps(r, c))
			wake_chunk(r, c, fn, arg);
}

int pool_block_adopt(struct pool_root *r, uid_t uid, uint32_t block)
{
	struct block *b = &r->blocks[block];
	int err = charge_init(&b->charge, r->pool->accounts, uid, ACCOUNT_KV, r->geometry.block_bytes);

	if (err)
		return err == ACCOUNT_E_QUOTA ? POOL_E_QUOTA : err;
	b->n_refs = 1;
	r->chunks[block / r->geometry.blocks_per_chunk].n_used++;
	r->n_used++;
	return 0;
}

static void settle_chunk(struct pool_root *r, uint32_t c)
{
	uint32_t per_chunk = r->geometry.blocks_per_chunk;
	struct chunk *chunk = &r->chunks[c];

	chunk->waking = false;
	if (!chunk->n_used) {
		root_return_chunk(r, c);
		return;
	}
	chunk->n_fresh = per_chunk;
	for (uint32_t i = per_chunk; i--;) {
		struct block *b = &r->blocks[c * per_chunk + i];

		if (b->n_refs)
			continue;
		b->next_free = chunk->free_list;
		chunk->free_list = i;
	}
	chunk_link(r, c);
}

void pool_root_settle(struct pool_root *r)
{
	for (uint32_t c = 0; c < r->pool->n_chunks; c++)
		if (r->chunks[c].waking)
			settle_chunk(r, c);
}

uint32_t pool_forget(struct pool *p, kept_record_fn fn, void *arg)
{
	uint32_t n = 0;

	for (uint32_t c = 0; p->n_dormant && c < p->n_chunks; c++) {
		if (!p->dormant[c])
			continue;
		n += kept_chunk_forget(p->kept, c, fn, arg);
		if (kept_chunk_n(p->kept, c))
			continue;
		p->dormant[c] = false;
		p->n_dormant--;
		bitmap_set(&p->free_chunks, c);
	}
	return n;
}
