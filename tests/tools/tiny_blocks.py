# SPDX-License-Identifier: Apache-2.0
"""Random weights in every type that GGUF knows, for tiny models.  Python's standard library only.

    import tiny_blocks
    data = tiny_blocks.random_rows("q4_k", 64, 256, random.Random(1), std=0.1)

Quants and small scales are random bytes; the F16 numbers of a block are chosen so that the weights that come out
have about the standard deviation asked for and a mean near zero.  The same generator gives the same bytes.
"""
import struct

# name: (number in GGUF, weights per block, bytes per block)
TYPES = {
    "f32": (0, 1, 4), "f16": (1, 1, 2), "q4_0": (2, 32, 18), "q4_1": (3, 32, 20), "q5_0": (6, 32, 22), "q5_1": (7, 32, 24),
    "q8_0": (8, 32, 34), "q2_k": (10, 256, 84), "q3_k": (11, 256, 110), "q4_k": (12, 256, 144), "q5_k": (13, 256, 176),
    "q6_k": (14, 256, 210), "iq4_nl": (20, 32, 18), "iq4_xs": (23, 256, 136), "bf16": (30, 1, 2),
}

# name: (offset of d, offset of m or None, m / d, root mean square of the weights for d = 1)
# The last: of a uniform quant times a uniform scale, and of the minimum's spread where there is one.
BLOCKS = {
    "q4_0": (0, None, 0, 4.64), "q4_1": (0, 2, -7.5, 4.61), "q5_0": (0, None, 0, 9.25), "q5_1": (0, 2, -15.5, 9.23),
    "q8_0": (0, None, 0, 73.9), "q2_k": (80, 82, 1.5, 13.9), "q3_k": (108, None, 0, 43.4), "q4_k": (0, 2, 7.5, 257.0),
    "q5_k": (0, 2, 15.5, 523.0), "q6_k": (208, None, 0, 1366.0), "iq4_nl": (0, None, 0, 67.5),
    "iq4_xs": (0, None, 0, 1248.0),
}


def random_block(name, rng, std):
    d_at, m_at, ratio, size = BLOCKS[name]
    block = bytearray(rng.randbytes(TYPES[name][2]))
    d = rng.choice((-1, 1)) * std / size
    struct.pack_into("<e", block, d_at, d)
    if m_at is not None:
        struct.pack_into("<e", block, m_at, d * ratio)
    return bytes(block)


def random_element(name, rng, std):
    x = rng.gauss(0, std)
    if name == "bf16":
        return struct.pack("<f", x)[2:]
    return struct.pack("<f" if name == "f32" else "<e", x)


def random_rows(type_name, rows, cols, rng, std=0.1, zero=()):
    """rows x cols weights as they lie in a file; the rows whose numbers are in zero are 0."""
    _, weights, size = TYPES[type_name]
    if cols % weights:
        raise ValueError("%d columns are no whole blocks of %s" % (cols, type_name))
    make = random_element if weights == 1 else random_block
    out = bytearray()
    for row in range(rows):
        n = cols // weights
        out += bytes(n * size) if row in zero else b"".join(make(type_name, rng, std) for _ in range(n))
    return bytes(out)
