/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz.h - what every fuzz target has.
 *
 * A target is one file fuzz-NAME.c with the function below, linked either with
 * libFuzzer, which makes up inputs, or with replay.c, which gives it files.
 * It checks more than that nothing crashes: FUZZ_CHECK() ends the process where
 * the code under test and the target's own idea of what is right differ.
 *
 * Thread: one.
 */
#ifndef KVD_TEST_FUZZ_H
#define KVD_TEST_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Always returns 0, as libFuzzer demands. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define FUZZ_CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			abort(); \
		} \
	} while (0)

/* The input, taken piece by piece from its beginning; what is missing is zero. */
struct fuzz_input {
	const uint8_t *data;
	size_t n;
};

static inline uint8_t fuzz_u8(struct fuzz_input *in)
{
	if (!in->n)
		return 0;
	in->n--;
	return *in->data++;
}

static inline uint64_t fuzz_number(struct fuzz_input *in, size_t n_bytes)
{
	uint64_t v = 0;

	for (size_t i = 0; i < n_bytes; i++)
		v |= (uint64_t)fuzz_u8(in) << 8 * i;
	return v;
}

/* Makes sure that all bytes can be read, as far as a sanitizer watches, and that they are not optimised away. */
static inline void fuzz_touch(const void *p, size_t n)
{
	static volatile uint8_t sink;
	const uint8_t *bytes = p;
	uint8_t sum = 0;

	for (size_t i = 0; i < n; i++)
		sum ^= bytes[i];
	sink = sum;
	(void)sink;
}

/* A copy of exactly n bytes, so that a sanitizer sees reads behind them; free() it. */
static inline uint8_t *fuzz_copy(const uint8_t *data, size_t n)
{
	uint8_t *copy = malloc(n ? n : 1);

	FUZZ_CHECK(copy);
	if (n)
		memcpy(copy, data, n);
	return copy;
}

#endif
