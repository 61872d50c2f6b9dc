/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for weights: chunks of whole huge pages, cut into places in the order of their addresses.  What is freed
 * joins its free neighbours, is given out again first, and its whole pages go back to the system; so does a chunk
 * that is free altogether: a model that is unloaded leaves nothing behind.  Models come and go on several threads.
 *
 * Memory is used when it is first written to, a huge page at a time, so that of each chunk at most one is in part
 * wasted: large chunks waste little, and who fills several tensors on several threads has their pages cleared there.
 */
#include "cpu.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
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
	uint64_t size;
	struct kc_place *first;		/* no two free ones beside each other */
};

struct kc_place {
	struct kc_chunk *chunk;
	struct kc_place *prev, *next;	/* by address, without gaps */
	uint64_t offset, bytes;
	bool live;
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

/* A chunk with one free place of at least so many bytes. */
static struct kc_chunk *chunk_new(struct kc_arena *arena, uint64_t bytes)
{
	struct kc_chunk *c = calloc(1, sizeof(*c));
	struct kc_place *place = calloc(1, sizeof(*place));

	if (!c || !place)
		goto fail;
	c->size = (KC_MAX(bytes + SLACK, CHUNK_BYTES) + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
	c->base = map_aligned(c->size);
	if (!c->base)
		goto fail;
	*place = (struct kc_place){ .chunk = c, .bytes = c->size - SLACK };
	c->first = place;
	c->next = arena->chunks;
	arena->chunks = c;
	return c;
fail:
	free(place);
	free(c);
	return NULL;
}

static void chunk_free(struct kc_arena *arena, struct kc_chunk *chunk)
{
	struct kc_chunk **link = &arena->chunks;

	while (*link != chunk)
		link = &(*link)->next;
	*link = chunk->next;
	munmap(chunk->base, chunk->size);
	for (struct kc_place *p = chunk->first, *next; p; p = next) {
		next = p->next;
		free(p);
	}
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

static struct kc_place *find_free(const struct kc_chunk *chunk, uint64_t bytes)
{
	struct kc_place *p = chunk->first;

	while (p && (p->live || p->bytes < bytes))
		p = p->next;
	return p;
}

/* The place is cut to so many bytes, what is behind them becomes one of its own; it may have no more. */
static int cut(struct kc_place *place, uint64_t bytes)
{
	struct kc_place *rest;

	if (place->bytes == bytes)
		return 0;
	rest = malloc(sizeof(*rest));
	if (!rest)
		return -ENOMEM;
	*rest = (struct kc_place){ place->chunk, place, place->next, place->offset + bytes, place->bytes - bytes,
				   false };
	if (rest->next)
		rest->next->prev = rest;
	place->next = rest;
	place->bytes = bytes;
	return 0;
}

static int get_locked(struct kc_arena *arena, uint64_t bytes, struct kc_place **out)
{
	struct kc_place *place = NULL;
	int r;

	for (struct kc_chunk *c = arena->chunks; c && !place; c = c->next)
		place = find_free(c, bytes);
	if (!place) {
		struct kc_chunk *c = chunk_new(arena, bytes);

		if (!c)
			return -ENOMEM;
		place = c->first;
	}
	r = cut(place, bytes);
	if (r)
		return r;
	place->live = true;
	*out = place;
	return 0;
}

int kc_arena_get(struct kc_arena *arena, uint64_t bytes, uint8_t **out, struct kc_place **place)
{
	int r;

	if (bytes > UINT64_MAX / 2)
		return -ENOMEM;
	bytes = (KC_MAX(bytes, 1) + ALIGN - 1) & ~(uint64_t)(ALIGN - 1);
	pthread_mutex_lock(&arena->lock);
	r = get_locked(arena, bytes, place);
	pthread_mutex_unlock(&arena->lock);
	if (!r)
		*out = (*place)->chunk->base + (*place)->offset;
	return r;
}

/* Takes what follows into a place: both are free. */
static void join_next(struct kc_place *place)
{
	struct kc_place *next = place->next;

	place->bytes += next->bytes;
	place->next = next->next;
	if (next->next)
		next->next->prev = place;
	free(next);
}

static void release_pages(const struct kc_place *place)
{
	uint64_t begin = (place->offset + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
	uint64_t end = (place->offset + place->bytes) & ~(HUGE_PAGE - 1);

	if (begin < end)
		(void)madvise(place->chunk->base + begin, end - begin, MADV_DONTNEED);
}

void kc_arena_put(struct kc_arena *arena, struct kc_place *place)
{
	struct kc_chunk *chunk = place->chunk;

	pthread_mutex_lock(&arena->lock);
	place->live = false;
	if (place->next && !place->next->live)
		join_next(place);
	if (place->prev && !place->prev->live) {
		place = place->prev;
		join_next(place);
	}
	if (place == chunk->first && !place->next)
		chunk_free(arena, chunk);
	else
		release_pages(place);
	pthread_mutex_unlock(&arena->lock);
}
