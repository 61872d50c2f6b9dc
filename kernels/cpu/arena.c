/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for weights: chunks of whole huge pages, cut from the front.  A chunk
 * goes back to the system when its last tensor is freed, so a model that is
 * unloaded leaves nothing behind.  Models come and go on several threads.
 *
 * Memory is used when it is first written to, a huge page at a time, so that of each chunk at most one is in part
 * wasted: large chunks waste little, and who fills several tensors on several threads has their pages cleared there.
 */
#include "cpu.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#define HUGE_PAGE (2ull << 20)
#define CHUNK_BYTES (64ull << 20)
#define ALIGN 64u
/* Kernels may read (prefetch, whole vectors) a little past the last tensor. */
#define SLACK 256u

struct kc_chunk {
	struct kc_chunk *next;
	uint8_t *base;
	uint64_t size, used;
	uint32_t n_live;
};

struct kc_arena {
	pthread_mutex_t lock;
	struct kc_chunk *chunks;
};

int kc_arena_new(struct kc_arena **out)
{
	struct kc_arena *arena = calloc(1, sizeof(*arena));

	if (!arena)
		return -ENOMEM;
	if (pthread_mutex_init(&arena->lock, NULL)) {
		free(arena);
		return -ENOMEM;
	}
	*out = arena;
	return 0;
}

/* Maps size bytes (a multiple of HUGE_PAGE) at a multiple of HUGE_PAGE. */
static uint8_t *map_aligned(uint64_t size)
{
	uint8_t *p = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t head;

	if (p == MAP_FAILED)
		return NULL;
	head = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
	if (head)
		munmap(p, head);
	munmap(p + head + size, HUGE_PAGE - head);
	madvise(p + head, size, MADV_HUGEPAGE);
	return p + head;
}

static struct kc_chunk *chunk_new(struct kc_arena *arena, uint64_t bytes)
{
	struct kc_chunk *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->size = (KC_MAX(bytes, CHUNK_BYTES) + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
	c->base = map_aligned(c->size);
	if (!c->base) {
		free(c);
		return NULL;
	}
	c->next = arena->chunks;
	arena->chunks = c;
	return c;
}

static void chunk_free(struct kc_arena *arena, struct kc_chunk *chunk)
{
	struct kc_chunk **link = &arena->chunks;

	while (*link != chunk)
		link = &(*link)->next;
	*link = chunk->next;
	munmap(chunk->base, chunk->size);
	free(chunk);
}

void kc_arena_free(struct kc_arena *arena)
{
	if (!arena)
		return;
	while (arena->chunks)
		chunk_free(arena, arena->chunks);
	pthread_mutex_destroy(&arena->lock);
	free(arena);
}

static int get_locked(struct kc_arena *arena, uint64_t bytes, uint8_t **out, struct kc_chunk **chunk)
{
	struct kc_chunk *c;

	for (c = arena->chunks; c; c = c->next) {
		if (c->size - c->used >= bytes + SLACK)
			break;
	}
	if (!c)
		c = chunk_new(arena, bytes + SLACK);
	if (!c)
		return -ENOMEM;
	*out = c->base + c->used;
	*chunk = c;
	c->used += bytes;
	c->n_live++;
	return 0;
}

int kc_arena_get(struct kc_arena *arena, uint64_t bytes, uint8_t **out, struct kc_chunk **chunk)
{
	int r;

	if (bytes > UINT64_MAX / 2)
		return -ENOMEM;
	bytes = (bytes + ALIGN - 1) & ~(uint64_t)(ALIGN - 1);
	pthread_mutex_lock(&arena->lock);
	r = get_locked(arena, bytes, out, chunk);
	pthread_mutex_unlock(&arena->lock);
	return r;
}

void kc_arena_put(struct kc_arena *arena, struct kc_chunk *chunk)
{
	pthread_mutex_lock(&arena->lock);
	if (--chunk->n_live == 0)
		chunk_free(arena, chunk);
	pthread_mutex_unlock(&arena->lock);
}
