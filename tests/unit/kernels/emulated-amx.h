/* SPDX-License-Identifier: Apache-2.0 */
/*
 * emulated-amx.h - the tile instructions of AMX-INT8 in plain C, under the names of
 * the intrinsics, after "Intel 64 and IA-32 Architectures Software Developer's
 * Manual", volume 2.  Where the CPU would fault, the test fails.
 */
#ifndef KERNELS_EMULATED_AMX_H
#define KERNELS_EMULATED_AMX_H

#include <immintrin.h>
#include <stdbool.h>

#include "fixture.h"

#define EMULATED_TILES 8
#define EMULATED_ROWS 16
#define EMULATED_BYTES 64

static struct {
	bool configured;
	unsigned rows[EMULATED_TILES], bytes[EMULATED_TILES];
	uint8_t data[EMULATED_TILES][EMULATED_ROWS][EMULATED_BYTES];
	uint64_t n_products;
} emulated_amx;

static inline void amx_require(bool condition, const char *what)
{
	if (!condition)
		fail_msg("AMX: %s", what);
}

static inline void amx_require_tile(int tile)
{
	amx_require(emulated_amx.configured, "tiles are not configured");
	amx_require(tile >= 0 && tile < EMULATED_TILES && emulated_amx.rows[tile], "the tile is not configured");
}

/* LDTILECFG, palette 1 */
static inline void amx_loadconfig(const void *memory)
{
	uint8_t m[64];

	memcpy(m, memory, sizeof(m));
	amx_require(m[0] == 1 && m[1] == 0, "palette or start row");
	for (int i = 2; i < 16; i++)
		amx_require(m[i] == 0, "reserved bytes");
	memset(&emulated_amx.data, 0, sizeof(emulated_amx.data));
	for (int i = 0; i < 16; i++) {
		unsigned bytes = m[16 + 2 * i] + 256u * m[17 + 2 * i], rows = m[48 + i];

		amx_require(!bytes == !rows, "rows without columns");
		amx_require(bytes <= EMULATED_BYTES && rows <= EMULATED_ROWS, "a tile that is too large");
		amx_require(i < EMULATED_TILES || !rows, "a tile that does not exist");
		if (i < EMULATED_TILES) {
			emulated_amx.bytes[i] = bytes;
			emulated_amx.rows[i] = rows;
		}
	}
	emulated_amx.configured = true;
}

static inline void amx_release(void)
{
	memset(&emulated_amx, 0, offsetof(__typeof__(emulated_amx), n_products));
}

static inline void amx_zero(int tile)
{
	amx_require_tile(tile);
	memset(emulated_amx.data[tile], 0, sizeof(emulated_amx.data[tile]));
}

static inline void amx_load(int tile, const void *base, ptrdiff_t stride)
{
	amx_zero(tile);
	for (unsigned i = 0; i < emulated_amx.rows[tile]; i++)
		memcpy(emulated_amx.data[tile][i], (const uint8_t *)base + (ptrdiff_t)i * stride,
		       emulated_amx.bytes[tile]);
}

static inline void amx_store(int tile, void *base, ptrdiff_t stride)
{
	amx_require_tile(tile);
	for (unsigned i = 0; i < emulated_amx.rows[tile]; i++)
		memcpy((uint8_t *)base + (ptrdiff_t)i * stride, emulated_amx.data[tile][i], emulated_amx.bytes[tile]);
}

static inline int32_t amx_byte(uint8_t byte, bool is_signed)
{
	return is_signed ? (int8_t)byte : byte;
}

/* TDPBSSD, TDPBSUD, TDPBUSD: c += a times b, four bytes at a time. */
static inline void amx_multiply(int c, int a, int b, bool a_signed, bool b_signed)
{
	uint32_t sums[EMULATED_BYTES / 4];

	amx_require_tile(a);
	amx_require_tile(b);
	amx_require_tile(c);
	amx_require(a != b && b != c && a != c, "operands must be three tiles");
	amx_require(emulated_amx.bytes[a] % 4 == 0 && emulated_amx.bytes[b] % 4 == 0, "bytes of a row");
	amx_require(emulated_amx.rows[c] == emulated_amx.rows[a], "rows of the sums");
	amx_require(emulated_amx.bytes[c] == emulated_amx.bytes[b], "columns of the sums");
	amx_require(emulated_amx.rows[b] == emulated_amx.bytes[a] / 4, "what is added up");
	for (unsigned m = 0; m < emulated_amx.rows[c]; m++) {
		memcpy(sums, emulated_amx.data[c][m], sizeof(sums));
		for (unsigned k = 0; k < emulated_amx.rows[b]; k++) {
			const uint8_t *x = &emulated_amx.data[a][m][4 * k], *w = emulated_amx.data[b][k];

			for (unsigned i = 0; i < emulated_amx.bytes[b]; i++)
				sums[i / 4] += (uint32_t)(amx_byte(x[i % 4], a_signed) * amx_byte(w[i], b_signed));
		}
		memcpy(emulated_amx.data[c][m], sums, emulated_amx.bytes[c]);
	}
	emulated_amx.n_products++;
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _tile_dpbusd
#define _tile_loadconfig(memory) amx_loadconfig(memory)
#define _tile_release() amx_release()
#define _tile_zero(tile) amx_zero(tile)
#define _tile_loadd(tile, base, stride) amx_load(tile, base, stride)
#define _tile_stored(tile, base, stride) amx_store(tile, base, stride)
#define _tile_dpbssd(c, a, b) amx_multiply(c, a, b, true, true)
#define _tile_dpbsud(c, a, b) amx_multiply(c, a, b, true, false)
#define _tile_dpbusd(c, a, b) amx_multiply(c, a, b, false, true)

#endif
