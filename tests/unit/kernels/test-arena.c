/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for weights: places that do not overlap, and that are given out again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <cmocka.h>

#include "kernels/cpu/cpu.h"

#define N_PLACES 200u
#define MIB ((uint64_t)1 << 20)

struct held {
	struct kc_place *place;
	uint8_t *data;
	size_t bytes;
	uint8_t mark;
};

static uint32_t random_below(uint64_t *state, uint32_t n)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(*state >> 33) % n;
}

static void take(struct kc_arena *arena, struct held *h, size_t bytes, uint8_t mark)
{
	assert_int_equal(kc_arena_get(arena, bytes, &h->data, &h->place), 0);
	assert_int_equal((uintptr_t)h->data % 64, 0);
	h->bytes = bytes;
	h->mark = mark;
	memset(h->data, mark, bytes);
}

static void give_back(struct kc_arena *arena, struct held *h)
{
	for (size_t i = 0; i < h->bytes; i++)
		assert_int_equal(h->data[i], h->mark);
	kc_arena_put(arena, h->place);
	*h = (struct held){ 0 };
}

/* Each has a pattern of its own, which nobody else's may change. */
static void test_places_do_not_overlap(void **state)
{
	static struct held held[N_PLACES];
	struct kc_arena *arena;
	uint64_t seed = 1;

	assert_int_equal(kc_arena_new(&arena), 0);
	for (uint32_t i = 0; i < 4000; i++) {
		struct held *h = &held[random_below(&seed, N_PLACES)];

		if (h->place)
			give_back(arena, h);
		else
			take(arena, h, 1 + random_below(&seed, i % 50 ? 5000 : 3000000), (uint8_t)(1 + i % 255));
	}
	for (uint32_t i = 0; i < N_PLACES; i++) {
		if (held[i].place)
			give_back(arena, &held[i]);
	}
	kc_arena_free(arena);
}

/* Resident memory of a range, by the kernel's own word. */
static size_t resident(const uint8_t *p, size_t bytes)
{
	unsigned char pages[4096];
	size_t n = 0;

	assert_true(bytes / 4096 <= sizeof(pages));
	assert_int_equal(mincore((void *)(uintptr_t)p, bytes, pages), 0);
	for (size_t i = 0; i < bytes / 4096; i++)
		n += pages[i] & 1;
	return n * 4096;
}

/* Models that come and go beside one that stays: no memory is used but theirs, and none is left. */
static void test_places_are_used_again(void **state)
{
	struct held stays, model[8];
	struct kc_arena *arena;
	uint8_t *first = NULL;
	size_t order[] = { 3, 0, 7, 1, 2, 6, 5, 4 };

	assert_int_equal(kc_arena_new(&arena), 0);
	take(arena, &stays, 3 * MIB + 100, 7);
	for (int round = 0; round < 100; round++) {
		for (uint32_t i = 0; i < 8; i++)
			take(arena, &model[i], MIB + 64 * i + 1, (uint8_t)(i + 1));
		if (!first)
			first = model[0].data;
		assert_ptr_equal(model[0].data, first);
		for (uint32_t i = 0; i < 8; i++)
			give_back(arena, &model[order[i]]);
	}
	/* All but the huge pages that the place shares with its neighbours. */
	first = (uint8_t *)(((uintptr_t)first + 2 * MIB - 1) & ~(uintptr_t)(2 * MIB - 1));
	assert_int_equal(resident(first, 6 * MIB), 0);
	give_back(arena, &stays);
	kc_arena_free(arena);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_places_do_not_overlap),
		cmocka_unit_test(test_places_are_used_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
