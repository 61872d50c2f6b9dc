/* SPDX-License-Identifier: Apache-2.0 */
/* The arena's allocator against a naive map of who has which 8 bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "client/lib/arena.h"

#define UNITS 64
#define BLOCKS 24

static uint8_t map[UNITS];	/* 0: free, else block + 1 */

static uint32_t naive_largest(void)
{
	uint32_t run = 0, best = 0;

	for (uint32_t i = 0; i < UNITS; i++) {
		run = map[i] ? 0 : run + 1;
		best = run > best ? run : best;
	}
	return best;
}

static uint32_t naive_first_fit(uint32_t units)
{
	uint32_t run = 0;

	for (uint32_t i = 0; i < UNITS; i++) {
		run = map[i] ? 0 : run + 1;
		if (run == units)
			return i + 1 - units;
	}
	return UINT32_MAX;
}

static uint32_t next_random(uint32_t *state)
{
	*state = *state * 1664525u + 1013904223u;
	return *state >> 8;
}

static void against_naive(void **state)
{
	struct arena_block blocks[BLOCKS];
	struct arena a;
	uint32_t rng = 7;

	arena_init(&a, UNITS * ARENA_ALIGN);
	for (int i = 0; i < BLOCKS; i++)
		arena_block_init(&blocks[i]);
	for (int step = 0; step < 20000; step++) {
		uint32_t b = next_random(&rng) % BLOCKS;
		if (blocks[b].size) {
			memset(map + blocks[b].offset / ARENA_ALIGN, 0, blocks[b].size / ARENA_ALIGN);
			arena_free(&blocks[b]);
			arena_free(&blocks[b]);
			continue;
		}
		uint64_t size = next_random(&rng) % 100;
		uint32_t units = size ? (uint32_t)(size + 7) / 8 : 1;
		uint32_t at = naive_first_fit(units);
		assert_int_equal(arena_largest(&a), naive_largest() * ARENA_ALIGN);
		int r = arena_alloc(&a, &blocks[b], size);
		if (at == UINT32_MAX) {
			assert_int_equal(r, -ENOSPC);
			assert_int_equal(blocks[b].size, 0);
			continue;
		}
		assert_int_equal(r, 0);
		assert_int_equal(blocks[b].offset, at * ARENA_ALIGN);
		assert_int_equal(blocks[b].size, units * ARENA_ALIGN);
		memset(map + at, (int)b + 1, units);
	}
}

static void sizes_that_cannot_be(void **state)
{
	struct arena_block b;
	struct arena a;

	arena_init(&a, 65536);
	arena_block_init(&b);
	assert_int_equal(arena_alloc(&a, &b, 65537), -ENOSPC);
	assert_int_equal(arena_alloc(&a, &b, UINT64_MAX), -ENOSPC);
	assert_int_equal(arena_alloc(&a, &b, 65536), 0);
	assert_int_equal(arena_largest(&a), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(against_naive),
		cmocka_unit_test(sizes_that_cannot_be),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
