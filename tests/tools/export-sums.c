/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export-sums - make the checksums of exported blocks fit, whatever was changed in them.
 *
 *     export-sums BYTES_OF_A_TOKEN < FILE > FILE
 *
 * So that tests can lie: this knows daemon/cache/EXPORT.md, and not the code that reads and writes it.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/hash.h"

#define HEAD 48u

static uint32_t u32_at(const uint8_t *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));	/* tests run on little-endian machines */
	return v;
}

/* Of a record, whose checksum field is set to that of the one before. */
static uint64_t sum_record(uint8_t *p, size_t n_names, size_t n_kv, uint64_t before)
{
	memcpy(p + 40, &before, sizeof(before));
	before = hash_u64(p, HEAD, 0);
	if (n_names + n_kv)
		before = hash_u64(p + HEAD + n_names, n_kv, hash_u64(p + HEAD, n_names, before));
	memcpy(p + 40, &before, sizeof(before));
	return before;
}

static void mend(uint8_t *p, size_t n, size_t token_bytes)
{
	size_t at = 32;
	uint64_t sum;

	if (n < 40 || u32_at(p + 24) > n - 40)
		return;
	at += u32_at(p + 24);
	sum = hash_u64(p, at, 0);
	memcpy(p + at, &sum, sizeof(sum));
	at += sizeof(sum);
	while (n - at >= HEAD) {
		uint64_t n_tokens = u32_at(p + at + 4), n_names = u32_at(p + at + 12) + 4 * n_tokens;
		uint64_t size = HEAD + n_names + n_tokens * token_bytes;

		if (u32_at(p + at) == 2)
			size = HEAD;
		if (size > n - at)
			return;
		if (size == HEAD) {
			(void)sum_record(p + at, 0, 0, sum);
			return;
		}
		sum = sum_record(p + at, n_names, n_tokens * token_bytes, sum);
		at += size;
	}
}

int main(int argc, char **argv)
{
	size_t capacity = 1 << 20, n = 0, got;
	uint8_t *p = malloc(capacity);
	int status;

	if (argc != 2 || !p)
		return 2;
	while ((got = fread(p + n, 1, capacity - n, stdin)) > 0) {
		n += got;
		if (n == capacity) {
			uint8_t *larger = realloc(p, capacity *= 2);

			if (!larger)
				return 1;
			p = larger;
		}
	}
	mend(p, n, strtoul(argv[1], NULL, 10));
	status = fwrite(p, 1, n, stdout) == n && !fflush(stdout) ? 0 : 1;
	free(p);
	return status;
}
