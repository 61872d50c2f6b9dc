/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/cache/host.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/cache/coding.h"
#include "ipc/base/checked.h"
#include "ipc/base/fd.h"
#include "ipc/base/hash.h"

#define NO_PAGE UINT32_MAX

struct host {
	struct accounts *accounts;
	struct coder *coder;
	uint64_t bytes;
	int fd;
	uint8_t *base;
	uint32_t *next;		/* [n_pages] of a block's pages, and of the free ones; NO_PAGE ends */
	uint32_t n_pages;	/* that the budget could ever have */
	uint32_t n_fresh;	/* pages n_fresh.. were not touched yet */
	uint32_t free_list, n_free;
	uint32_t n_blocks;
	uint64_t plain;
	size_t n_plain, n_coded;	/* of what was coded last; 0: nothing */
	struct evict evict;
};

static uint32_t pages_of(uint64_t n_bytes)
{
	return (uint32_t)((n_bytes + HOST_PAGE - 1) / HOST_PAGE);
}

static uint32_t n_used_pages(const struct host *h)
{
	return h->n_fresh - h->n_free;
}

/* All but blocks and the coder's buffers: links, and entries of as many blocks as there may be. */
static uint64_t fixed_bytes(const struct host *h)
{
	return sizeof(*h) + h->n_pages * sizeof(*h->next) + (uint64_t)host_max_blocks(h) * HOST_ENTRY_BYTES;
}

static uint64_t used_bytes(const struct host *h)
{
	return fixed_bytes(h) + coder_bytes(h->coder) + (uint64_t)n_used_pages(h) * HOST_PAGE;
}

static int create_memory(struct host *h)
{
	uint64_t bytes = (uint64_t)h->n_pages * HOST_PAGE;

	h->next = calloc(h->n_pages, sizeof(*h->next));
	if (!h->next)
		return -ENOMEM;
	h->fd = memfd_create("kvd-host", MFD_CLOEXEC);
	if (h->fd < 0)
		return -errno;
	if (ftruncate(h->fd, (off_t)bytes) < 0)
		return -errno;
	h->base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, h->fd, 0);
	return h->base == MAP_FAILED ? -errno : 0;
}

int host_new(struct host **out, struct accounts *accounts, uint64_t bytes, enum evict_policy policy,
	     uint64_t idle_ns)
{
	_cleanup_(host_freep) struct host *h = NULL;
	int err;

	if (bytes < HOST_BYTES_MIN || bytes / HOST_PAGE >= NO_PAGE)
		return -EINVAL;
	h = calloc(1, sizeof(*h));
	if (!h)
		return -ENOMEM;
	h->fd = -1;
	h->base = MAP_FAILED;
	h->accounts = accounts;
	h->bytes = bytes;
	h->n_pages = (uint32_t)(bytes / HOST_PAGE);
	h->free_list = NO_PAGE;
	evict_init(&h->evict, policy, host_max_blocks(h), idle_ns);
	err = coder_new(&h->coder);
	if (!err)
		err = create_memory(h);
	if (err)
		return err;
	*out = steal_ptr(h);
	return 0;
}

void host_free(struct host *h)
{
	if (!h)
		return;
	if (h->base != MAP_FAILED)
		munmap(h->base, (uint64_t)h->n_pages * HOST_PAGE);
	fd_closep(&h->fd);
	free(h->next);
	coder_free(h->coder);
	free(h);
}

struct evict *host_evict(struct host *h)
{
	return &h->evict;
}

uint32_t host_max_blocks(const struct host *h)
{
	return h->n_pages / HOST_PAGES_PER_BLOCK;
}

int host_fd(const struct host *h)
{
	return h->fd;
}

/* --- pages --- */

/* Gives what is free back to the system.  It stays free: whoever takes it touches it anew. */
static void release_free_pages(struct host *h)
{
	for (uint32_t i = h->free_list; i != NO_PAGE; i = h->next[i])
		(void)fallocate(h->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)i * HOST_PAGE, HOST_PAGE);
}

static void release_all_pages(struct host *h)
{
	(void)fallocate(h->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)h->n_fresh * HOST_PAGE);
	h->n_fresh = h->n_free = 0;
	h->free_list = NO_PAGE;
}

/* There is one; the last that was given back first, so that few are touched. */
static uint32_t take_page(struct host *h)
{
	uint32_t i = h->free_list;

	if (i == NO_PAGE)
		return h->n_fresh++;
	h->free_list = h->next[i];
	h->n_free--;
	return i;
}

/* --- blocks --- */

int host_reserve(struct host *h, size_t n_plain)
{
	uint64_t more = coder_needs(h->coder, n_plain);

	if (!more)
		return 0;
	if (used_bytes(h) + more > h->bytes)
		return HOST_E_FULL;
	/* Pages that were touched and are not used must not count besides. */
	release_free_pages(h);
	h->n_coded = 0;
	return coder_reserve(h->coder, n_plain);
}

void *host_plain(struct host *h)
{
	return coder_plain(h->coder);
}

int host_encode(struct host *h, size_t n_plain)
{
	int err;

	h->n_coded = 0;
	err = coder_encode(h->coder, n_plain, &h->n_coded);
	if (!err)
		h->n_plain = n_plain;
	return err;
}

int host_put(struct host *h, uid_t uid, struct host_block *block)
{
	const uint8_t *coded = coder_coded(h->coder);
	uint32_t n = pages_of(h->n_coded), first = NO_PAGE, last = NO_PAGE;
	struct charge charge = CHARGE_NULL;
	int err;

	if (!n)
		return -EINVAL;
	if (h->n_blocks == host_max_blocks(h) || used_bytes(h) + (uint64_t)n * HOST_PAGE > h->bytes) {
		h->evict.capacity = h->n_blocks;	/* so many of their size: shares are counted in blocks */
		return HOST_E_FULL;
	}
	err = charge_init(&charge, h->accounts, uid, ACCOUNT_KV, (uint64_t)n * HOST_PAGE);
	if (err)
		return err == ACCOUNT_E_QUOTA ? HOST_E_QUOTA : err;
	for (uint32_t i = 0; i < n; i++) {
		size_t at = (size_t)i * HOST_PAGE;
		uint32_t page = take_page(h);

		memcpy(h->base + (size_t)page * HOST_PAGE, coded + at, MIN(h->n_coded - at, (size_t)HOST_PAGE));
		if (i)
			h->next[last] = page;
		else
			first = page;
		last = page;
	}
	h->next[last] = NO_PAGE;
	*block = (struct host_block){
		.first_page = first,
		.n_bytes = (uint32_t)h->n_coded,
		.hash = hash_u64(coded, h->n_coded, 0),
		.charge = charge,
	};
	h->n_blocks++;
	h->plain += h->n_plain;
	return 0;
}

int host_get(struct host *h, const struct host_block *block, size_t n_plain)
{
	uint32_t page = block->first_page;
	uint8_t *coded;
	int err;

	/* There is room, unless the last reservation failed. */
	err = host_reserve(h, n_plain);
	if (err)
		return err;
	h->n_coded = 0;
	coded = coder_coded(h->coder);
	for (size_t at = 0; at < block->n_bytes; at += HOST_PAGE, page = h->next[page])
		memcpy(coded + at, h->base + (size_t)page * HOST_PAGE,
		       MIN(block->n_bytes - at, (size_t)HOST_PAGE));
	if (hash_u64(coded, block->n_bytes, 0) != block->hash)
		return HOST_E_DAMAGED;
	return coder_decode(h->coder, block->n_bytes, n_plain) ? HOST_E_DAMAGED : 0;
}

void host_drop(struct host *h, struct host_block *block, size_t n_plain)
{
	uint32_t n = pages_of(block->n_bytes), last = block->first_page;

	if (!n)
		return;
	for (uint32_t i = 1; i < n; i++)
		last = h->next[last];
	h->next[last] = h->free_list;
	h->free_list = block->first_page;
	h->n_free += n;
	h->n_blocks--;
	h->plain -= n_plain;
	charge_deinit(&block->charge);
	*block = (struct host_block){ 0 };
	if (!h->n_blocks)
		release_all_pages(h);
}

uint64_t host_block_bytes(const struct host_block *block)
{
	return (uint64_t)pages_of(block->n_bytes) * HOST_PAGE;
}

void host_stats(const struct host *h, struct host_stats *out)
{
	*out = (struct host_stats){
		.bytes = h->bytes,
		.used = used_bytes(h),
		.coded = (uint64_t)n_used_pages(h) * HOST_PAGE,
		.plain = h->plain,
		.n_blocks = h->n_blocks,
	};
}
