#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/data/blocks-oracle.bin: blocks of every type of weights and the numbers that they stand for.

    make-oracle-blocks.py        needs numpy and gguf

The numbers are those of the `gguf` package.  The format is described in tests/data/README.md.
"""
import pathlib
import random
import struct

import gguf
import numpy

OUT = pathlib.Path(__file__).resolve().parent.parent / "data" / "blocks-oracle.bin"

# name: where the block's F16 numbers lie; the elements of unquantised types are 32 to a block here
FLOATS = {"F32": (), "F16": (), "BF16": (), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,),
          "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,),
          "IQ4_XS": (0,)}
EXTREMES = (0x00, 0xff, 0x80, 0x7f, 0x0f, 0xf0)
SCALES = (1.0, -0.0078125, 65504.0, 6e-8, -3.1e-5)      # the last two are subnormal in F16


def blocks_of(name, rng):
    weights, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    if weights == 1:
        # Finite numbers only, of all magnitudes.
        kind = {"F32": "<f", "F16": "<e", "BF16": "<f"}[name]
        top = {"F32": 120, "F16": 15, "BF16": 120}[name]
        values = [0.0, -0.0, 2.0 ** -24, 65504.0] + [rng.uniform(-1, 1) * 2.0 ** rng.randint(-20, top) for _ in range(60)]
        raw = [struct.pack(kind, v) for v in values]
        data = b"".join(r[2:] if name == "BF16" else r for r in raw)
        return [data[:32 * size], data[32 * size:]]
    filled = [bytes([b]) * size for b in EXTREMES] + [rng.randbytes(size) for _ in range(10 if weights == 32 else 5)]
    blocks = []
    for i, block in enumerate(filled):
        block = bytearray(block)
        for j, at in enumerate(FLOATS[name]):
            block[at:at + 2] = struct.pack("<e", SCALES[(i + 2 * j) % len(SCALES)])
        blocks.append(bytes(block))
    return blocks


def main():
    rng = random.Random(4)
    out = bytearray()
    for name in FLOATS:
        qtype = gguf.GGMLQuantizationType[name]
        blocks = blocks_of(name, rng)
        raw = b"".join(blocks)
        values = gguf.quants.dequantize(numpy.frombuffer(raw, dtype=numpy.uint8).reshape(1, -1), qtype) \
            if name not in ("F32", "F16") else \
            numpy.frombuffer(raw, dtype="<f4" if name == "F32" else "<f2").astype(numpy.float32)
        values = values.reshape(-1)
        assert numpy.isfinite(values).all()
        out += struct.pack("<4I", int(qtype), len(values) // len(blocks), len(blocks[0]), len(blocks))
        out += raw + values.astype("<f4").tobytes()
    OUT.write_bytes(out)
    print(f"{OUT}: {len(out)} bytes")


if __name__ == "__main__":
    main()
