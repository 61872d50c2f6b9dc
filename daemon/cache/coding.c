/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/cache/coding.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "ipc/base/checked.h"

#define LEVEL 1
/* zstd's own blocks have no more, each with its own Huffman code: a larger window would take memory for nothing. */
#define WINDOW_LOG 17
#define HASH_LOG 12
#define TABLES_MAX (UINT64_C(1) << 20)	/* the encoder's tables at that level and window, at most */
#define N_MAX ((size_t)1 << 30)

struct coder {
	ZSTD_CCtx *encoder;
	ZSTD_DCtx *decoder;
	uint8_t *plain, *high, *coded;
	size_t n_reserved;
	uint64_t n_tables;	/* bytes of the encoder for such inputs; zstd may take fewer for smaller ones */
};

int coder_new(struct coder **out)
{
	_cleanup_(coder_freep) struct coder *c = calloc(1, sizeof(*c));

	if (!c)
		return -ENOMEM;
	c->encoder = ZSTD_createCCtx();
	c->decoder = ZSTD_createDCtx();
	if (!c->encoder || !c->decoder)
		return -ENOMEM;
	if (ZSTD_isError(ZSTD_CCtx_setParameter(c->encoder, ZSTD_c_compressionLevel, LEVEL)) ||
	    ZSTD_isError(ZSTD_CCtx_setParameter(c->encoder, ZSTD_c_windowLog, WINDOW_LOG)) ||
	    ZSTD_isError(ZSTD_CCtx_setParameter(c->encoder, ZSTD_c_hashLog, HASH_LOG)) ||
	    ZSTD_isError(ZSTD_CCtx_setParameter(c->encoder, ZSTD_c_contentSizeFlag, 1)))
		return -EINVAL;
	c->n_tables = ZSTD_sizeof_CCtx(c->encoder);
	*out = steal_ptr(c);
	return 0;
}

static void free_buffers(struct coder *c)
{
	free(c->plain);
	free(c->high);
	free(c->coded);
	c->plain = c->high = c->coded = NULL;
	c->n_reserved = 0;
}

void coder_free(struct coder *c)
{
	if (!c)
		return;
	free_buffers(c);
	ZSTD_freeCCtx(c->encoder);
	ZSTD_freeDCtx(c->decoder);
	free(c);
}

size_t coder_bound(size_t n)
{
	return ZSTD_compressBound(n / 2) + n / 2;
}

static uint64_t buffer_bytes(size_t n)
{
	return n ? n + n / 2 + coder_bound(n) : 0;
}

uint64_t coder_needs(const struct coder *c, size_t n)
{
	uint64_t tables = TABLES_MAX - MIN(TABLES_MAX, c->n_tables);

	return n <= c->n_reserved ? 0 : tables + buffer_bytes(n) - buffer_bytes(c->n_reserved);
}

int coder_reserve(struct coder *c, size_t n)
{
	if (n % 2 || n > N_MAX)
		return -EINVAL;
	if (n <= c->n_reserved)
		return 0;
	free_buffers(c);
	c->plain = calloc(1, n);
	c->high = calloc(1, n / 2);
	c->coded = malloc(coder_bound(n));
	if (!c->plain || !c->high || !c->coded) {
		free_buffers(c);
		return -ENOMEM;
	}
	/* zstd takes its tables at first use. */
	if (ZSTD_isError(ZSTD_compress2(c->encoder, c->coded, coder_bound(n), c->high, n / 2))) {
		free_buffers(c);
		return -ENOMEM;
	}
	c->n_reserved = n;
	c->n_tables = MAX(c->n_tables, (uint64_t)ZSTD_sizeof_CCtx(c->encoder));
	return 0;
}

uint64_t coder_bytes(const struct coder *c)
{
	return c->n_tables + ZSTD_sizeof_DCtx(c->decoder) + buffer_bytes(c->n_reserved);
}

void *coder_plain(struct coder *c)
{
	return c->plain;
}

void *coder_coded(struct coder *c)
{
	return c->coded;
}

/* Compilers make vectors of these two. */
static void split(uint8_t *restrict high, uint8_t *restrict low, const uint8_t *restrict plain, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		low[i] = plain[2 * i];
		high[i] = plain[2 * i + 1];
	}
}

static void merge(uint8_t *restrict plain, const uint8_t *restrict high, const uint8_t *restrict low, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		plain[2 * i] = low[i];
		plain[2 * i + 1] = high[i];
	}
}

int coder_encode(struct coder *c, size_t n, size_t *n_coded)
{
	size_t half = n / 2, n_high;

	if (!n || n % 2 || n > c->n_reserved)
		return -EINVAL;
	/* The low bytes go to the end of the frame once its length is known. */
	split(c->high, c->coded + coder_bound(n) - half, c->plain, half);
	n_high = ZSTD_compress2(c->encoder, c->coded, coder_bound(n) - half, c->high, half);
	if (ZSTD_isError(n_high))
		return -ENOMEM;
	memmove(c->coded + n_high, c->coded + coder_bound(n) - half, half);
	*n_coded = n_high + half;
	return 0;
}

int coder_decode(struct coder *c, size_t n_coded, size_t n)
{
	size_t half = n / 2, n_high;

	if (!n || n % 2 || n > c->n_reserved || n_coded > coder_bound(c->n_reserved))
		return -EINVAL;
	if (n_coded < half)
		return CODER_E_DAMAGED;
	n_high = ZSTD_decompressDCtx(c->decoder, c->high, half, c->coded, n_coded - half);
	if (ZSTD_isError(n_high) || n_high != half)
		return CODER_E_DAMAGED;
	merge(c->plain, c->high, c->coded + n_coded - half, half);
	return 0;
}
