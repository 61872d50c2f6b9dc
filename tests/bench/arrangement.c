/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/arrangement.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "ipc/base/checked.h"

#define TILE 16u
#define BLOCK 32u
#define SEGMENT 512u	/* positions whose keys are read before their values: NUMERICS.md */
#define BYTES_MAX (UINT64_C(512) << 20)
#define HUGE_PAGE (UINT64_C(2) << 20)

struct arrangements {
	struct arrangement_shape shape;
	uint32_t n_blocks;
	uint32_t *order;		/* [n_blocks], where the blocks lie */
	uint64_t bytes;
	uint8_t *memory;
	/* Of TILE rows, which begin so far apart. */
	uint64_t (*sum)(const uint8_t *at, uint64_t row, uint64_t apart);
	volatile uint64_t result;	/* so that the work is needed */
};

#ifdef __x86_64__

/* Halves to floats, multiplied and added: eight chains. */
__attribute__((target("avx2,fma,f16c"))) static uint64_t sum_floats(const uint8_t *at, uint64_t row, uint64_t apart)
{
	const __m256 weight = _mm256_set1_ps(0.5f);
	__m256 s[8];
	float out[8];

	for (int k = 0; k < 8; k++)
		s[k] = _mm256_setzero_ps();
	for (uint32_t n = 0; n < TILE; n++, at += apart) {
		for (uint64_t i = 0; i < row; i += 128) {
#pragma GCC unroll 8
			for (uint64_t k = 0; k < 8; k++) {
				__m128i halves = _mm_loadu_si128((const void *)(at + i + 16 * k));

				s[k] = _mm256_fmadd_ps(_mm256_cvtph_ps(halves), weight, s[k]);
			}
		}
	}
	for (int k = 1; k < 8; k++)
		s[0] = _mm256_add_ps(s[0], s[k]);
	memcpy(out, &s[0], sizeof(out));
	return (uint64_t)(int64_t)out[0];
}

#endif

static uint64_t sum_words(const uint8_t *at, uint64_t row, uint64_t apart)
{
	uint64_t sum = 0, word;

	for (uint32_t n = 0; n < TILE; n++, at += apart) {
		for (uint64_t i = 0; i < row; i += sizeof(word)) {
			memcpy(&word, at + i, sizeof(word));
			sum += word;
		}
	}
	return sum;
}

static void choose_sum(struct arrangements *a)
{
	a->sum = sum_words;
#ifdef __x86_64__
	/* Whole turns of its loop; every CPU with AVX2 converts halves. */
	if (a->shape.head_dim % 64 == 0 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		a->sum = sum_floats;
#endif
}

/* Keys, or values, of one position. */
static uint64_t row_bytes(const struct arrangements *a)
{
	return 2 * (uint64_t)a->shape.head_dim;
}

/* Keys and values of a block, all layers and heads. */
static uint64_t block_bytes(const struct arrangements *a)
{
	return 2 * row_bytes(a) * BLOCK * a->shape.n_layers * a->shape.n_kv_heads;
}

/* Fisher and Yates, with a generator of Numerical Recipes, section 7.1. */
static void shuffle(uint32_t *order, uint32_t n)
{
	uint32_t random = 1;

	for (uint32_t i = 0; i < n; i++)
		order[i] = i;
	for (uint32_t i = n; i > 1; i--) {
		uint32_t k, t;

		random = random * 1664525u + 1013904223u;
		k = (random >> 8) % i;
		t = order[k];
		order[k] = order[i - 1];
		order[i - 1] = t;
	}
}

int arrangements_new(struct arrangements **out, const struct arrangement_shape *shape)
{
	_cleanup_(arrangements_freep) struct arrangements *a = calloc(1, sizeof(*a));

	if (!a)
		return -ENOMEM;
	a->shape = *shape;
	a->n_blocks = (shape->n_tokens + BLOCK - 1) / BLOCK;
	while (a->shape.n_layers > 1 && a->n_blocks * block_bytes(a) > BYTES_MAX)
		a->shape.n_layers--;
	a->bytes = (a->n_blocks * block_bytes(a) + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
	a->memory = aligned_alloc(HUGE_PAGE, a->bytes);
	a->order = calloc(a->n_blocks, sizeof(*a->order));
	if (!a->memory || !a->order)
		return -ENOMEM;
	madvise(a->memory, a->bytes, MADV_HUGEPAGE);
	memset(a->memory, 0x35, a->bytes);	/* 0.325 */
	shuffle(a->order, a->n_blocks);
	choose_sum(a);
	*out = steal_ptr(a);
	return 0;
}

void arrangements_free(struct arrangements *a)
{
	if (!a)
		return;
	free(a->memory);
	free(a->order);
	free(a);
}

const char *arrangement_name(enum arrangement which)
{
	static const char *const names[N_ARRANGEMENTS] = { "per token", "per tile", "per block", "planes" };

	return names[which];
}

uint32_t arrangements_n_layers(const struct arrangements *a)
{
	return a->shape.n_layers;
}

uint64_t arrangement_bytes(const struct arrangements *a, uint32_t n_tokens)
{
	return 2 * row_bytes(a) * (n_tokens / TILE * TILE) * a->shape.n_layers * a->shape.n_kv_heads;
}

/* A tile's keys, or values. */
static uint64_t read_tile(const struct arrangements *a, enum arrangement which, uint32_t head, uint32_t number,
			  bool is_value)
{
	uint32_t block = number / (BLOCK / TILE), tile = number % (BLOCK / TILE);
	uint64_t row = row_bytes(a), tile_bytes = row * TILE, half = row * BLOCK;
	uint64_t begin = a->order[block] * block_bytes(a), planes = a->n_blocks * block_bytes(a) / 2;
	const uint8_t *at = a->memory + begin + 2 * half * head;

	switch (which) {
	case ARRANGE_TOKEN:
		return a->sum(at + 2 * tile_bytes * tile + is_value * row, row, 2 * row);
	case ARRANGE_TILE:
		return a->sum(at + (2 * tile + is_value) * tile_bytes, row, row);
	case ARRANGE_BLOCK:
		return a->sum(at + tile_bytes * tile + is_value * half, row, row);
	default:
		return a->sum(a->memory + begin / 2 + half * head + tile_bytes * tile + is_value * planes, row, row);
	}
}

/* Tiles from..to-1 of a head: the keys of all, then the values. */
static uint64_t read_segment(const struct arrangements *a, enum arrangement which, uint32_t head, uint32_t from,
			     uint32_t to)
{
	uint64_t sum = 0;

	for (uint32_t i = from; i < to; i++)
		sum += read_tile(a, which, head, i, false);
	for (uint32_t i = from; i < to; i++)
		sum += read_tile(a, which, head, i, true);
	return sum;
}

static double thread_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void arrangement_read(struct arrangements *a, enum arrangement which, uint32_t n_tokens, double *seconds)
{
	uint32_t n_heads = a->shape.n_layers * a->shape.n_kv_heads, n_tiles = n_tokens / TILE;
	double start = thread_seconds();
	uint64_t sum = 0;

	for (uint32_t head = 0; head < n_heads; head++)
		for (uint32_t i = 0; i < n_tiles; i += SEGMENT / TILE)
			sum += read_segment(a, which, head, i, MIN(i + SEGMENT / TILE, n_tiles));
	a->result = sum;
	*seconds = thread_seconds() - start;
}
