# SPDX-License-Identifier: Apache-2.0
"""Same tokens, same bits: nothing but a sequence's tokens may change its logits and hidden states.

The oracle is the sequence alone, in one chunk, on one thread; every other way
to compute it must give the same 128-bit hash of both at every position.
kvd-logits fills the pool with NaN and shuffles the blocks, so that reading a
position that was not written shows too.
"""
import random

import pytest
import tiny_blocks
from conftest import LONG, SANITIZED

# More positions than one segment of attention has (512), and than any chunk or window below.
N_TINY = 1100 if LONG else 600
N_REAL = 1100 if LONG else 530
# The plain path is slow, and the kernels' own tests compare it with the others.
N_PLAIN = N_TINY if LONG else 34
# Around blocks of 16, 32 and 64, the windows of 48 and 520, and segments of 512.
LENGTHS = [1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 511, 512, 513, 519, 520, 521]

# batch: together with 7 random sequences; chunk: how the prompt is cut.
WAYS = {
    "again": {"seed": 2},
    "chunk 1": {"chunk": 1},
    "chunk 7": {"chunk": 7},
    "chunk 64": {"chunk": 64},
    "chunk 512": {"chunk": 512},
    "2 threads": {"threads": 2},
    "2 threads, chunk 512": {"threads": 2, "chunk": 512},
    "blocks of 32": {"block_tokens": 32, "chunk": 64},
    "blocks of 64": {"block_tokens": 64, "chunk": 7},
    "batch 8": {"batch": 8, "chunk": 64},
    "batch 8, 2 threads": {"batch": 8, "chunk": 7, "threads": 2, "seed": 3},
    "batch 8, decoding": {"batch": 8, "chunk": 1, "threads": 2, "seed": 4, "block_tokens": 32},
}
# What is left out repeats, for another type of weights, what does not depend on it.
TYPE_WAYS = WAYS if LONG else ["chunk 1", "2 threads, chunk 512", "blocks of 64", "batch 8, 2 threads"]
# Sanitizers look at the memory that the ways touch; these touch all of it.
ARCH_WAYS = ["chunk 7", *TYPE_WAYS[1:], "batch 8, decoding"] if SANITIZED and not LONG else WAYS
PLAIN_WAYS = WAYS if LONG else ["chunk 7"]
# The second model is large; each of these has something that no other has.
GEMMA_WAYS = WAYS if LONG else {
    "2 threads, chunk 512": WAYS["2 threads, chunk 512"],
    "batch 3, blocks of 64": {"batch": 3, "chunk": 61, "threads": 2, "block_tokens": 64, "seed": 3},
}

SMALL = {"vocab": 272}
WIDE = {"vocab": 272, "embd": 256, "ff": 256, "layers": 1}  # blocks of 256 weights
TYPES = {name: dict(WIDE if weights == 256 else SMALL, type=name)
         for name, (_, weights, _) in tiny_blocks.TYPES.items()}
TYPES["mixed"] = dict(WIDE, type="q5_0,q4_k,q8_0,q6_k,f16,q4_1,bf16", layers=2)
ARCHS = {
    "llama": {"type": "q4_1", "layers": 3, "embd": 96, "heads": 6, "kv_heads": 2, "head_dim": 48, "ff": 160, "vocab": 317,
              "biases": True, "rope_freqs": True, "rope_linear": 2.0, "tied": True},
    "gemma3": {"type": "q4_1", **SMALL},
    "gemma3, window 520": {"arch": "gemma3", "type": "q8_0", "window": 520, "window_pattern": 2, "layers": 3,
                           "head_dim": 48, "kv_heads": 1, "attn_softcap": 20.0, "final_softcap": 15.0, **SMALL},
    "qwen2": {"type": "q5_1", "rope_yarn": 4.0, **SMALL},
    "qwen3": {"type": "q4_0", "head_dim": 32, "kv_heads": 4, **SMALL},
    "phi3": {"type": "q4_1", "window": 48, "head_dim": 32, "rope_dims": 24, **SMALL},
    "phi3, LongRoPE": {"arch": "phi3", "type": "f16", "rope_long": 1.19, **SMALL},
}
for arch, arch_options in ARCHS.items():
    arch_options.setdefault("arch", arch)


def random_ids(n_vocab, n):
    rng = random.Random(n)
    return [rng.randrange(n_vocab) for _ in range(n)]


def same(got, want):
    """Says where the first difference is."""
    first = next((i for i, (x, y) in enumerate(zip(got, want)) if x != y), None)
    assert first is None, "differs from position %d on" % first


def check_ways(logits, model, ids, level, ways):
    alone = logits.hashes(model, ids, chunk=2048, level=level)
    assert len(set(alone)) > len(ids) * 9 // 10
    for way in ways:
        print(way)
        same(logits.hashes(model, ids, level=level, **WAYS[way]), alone)
    return alone


def check_model(logits, model, n_vocab, ways):
    """Every way on every CPU level that this machine has; and all levels agree."""
    ids = random_ids(n_vocab, N_TINY)
    best = check_ways(logits, model, ids, logits.levels[0], ways)
    for level in logits.levels[1:]:
        n = N_PLAIN if level == "c" else N_TINY
        print(level)
        same(check_ways(logits, model, ids[:n], level, PLAIN_WAYS if level == "c" else ways), best)
    return ids, best


@pytest.mark.parametrize("name", TYPES)
def test_types(logits, tiny, name):
    check_model(logits, tiny(**TYPES[name]), SMALL["vocab"], TYPE_WAYS)


@pytest.mark.parametrize("name", ARCHS)
def test_architectures(logits, tiny, name):
    options = ARCHS[name]
    model = tiny(**options)
    ids, best = check_model(logits, model, options["vocab"], ARCH_WAYS)
    for n in LENGTHS:
        print("length %d" % n)
        same(logits.hashes(model, ids[:n], chunk=512, threads=2), best)
        same(logits.hashes(model, ids[:n], chunk=7, batch=3, block_tokens=32, seed=n), best)


@pytest.mark.parametrize("way", WAYS)
def test_real(logits, real_model, real_alone, way):
    ids, alone = real_alone
    same(logits.hashes(real_model, ids, **WAYS[way]), alone)


@pytest.fixture(scope="module")
def real_alone(logits, real_model):
    ids = random_ids(49152, N_REAL)
    return ids, logits.hashes(real_model, ids, chunk=2048)


@pytest.mark.parametrize("way", GEMMA_WAYS)
def test_gemma(logits, gemma, gemma_alone, way):
    ids, alone = gemma_alone
    same(logits.hashes(gemma, ids, **GEMMA_WAYS[way]), alone)


@pytest.fixture(scope="module")
def gemma_alone(logits, gemma):
    ids = random_ids(262144, N_REAL)
    return ids, logits.hashes(gemma, ids, chunk=256)
