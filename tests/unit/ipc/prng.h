/* SPDX-License-Identifier: Apache-2.0 */
/* The same numbers on every run: splitmix64 (Steele, Lea, Flood 2014). */
#ifndef KVD_TEST_PRNG_H
#define KVD_TEST_PRNG_H

#include <stdint.h>

static inline uint64_t prng(uint64_t *s)
{
	uint64_t z = *s += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

/* 0 ... n - 1 */
static inline uint32_t prng_below(uint64_t *s, uint32_t n)
{
	return (uint32_t)((prng(s) >> 32) * n >> 32);
}

#endif
