# SPDX-License-Identifier: Apache-2.0
"""Same tokens, same bits: nothing but a sequence's tokens may change its logits.

The oracle is the sequence alone, in one chunk, on one thread; every other way
to compute it must give the same 128-bit hash of the logits at every position.
kvd-logits fills the pool with NaN and shuffles the blocks, so that reading a
position that was not written shows too.
"""
import random

import pytest
from conftest import LONG

# More positions than one segment of attention has (512), and than any chunk below.
N_TINY = 1100 if LONG else 600
N_REAL = 1100 if LONG else 530

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
C_WAYS = WAYS if LONG else ["chunk 7", "batch 8, 2 threads"]  # the plain path is slow
MODELS = {
    "f32": {"type": "f32"},
    "f16": {"type": "f16"},
    "bf16": {"type": "bf16"},
    "q8_0": {"type": "q8_0"},
    "q4_0": {"type": "q4_0"},
    "q4_1": {"type": "q4_1"},
    "odd": {"type": "q4_1", "layers": 3, "embd": 96, "heads": 6, "kv_heads": 2, "head_dim": 48, "ff": 160,
            "vocab": 317, "biases": True, "rope_freqs": True, "rope_linear": 2.0, "tied": True},
}


def random_ids(n_vocab, n):
    rng = random.Random(n)
    return [rng.randrange(n_vocab) for _ in range(n)]


def first_difference(a, b):
    return next(i for i, (x, y) in enumerate(zip(a, b)) if x != y)


def check_ways(logits, model, ids, level, ways):
    alone = logits.hashes(model, ids, chunk=2048, level=level)
    assert len(set(alone)) > len(ids) * 9 // 10
    for way in ways:
        got = logits.hashes(model, ids, level=level, **WAYS[way])
        assert got == alone, "%s: differs from position %d on" % (way, first_difference(got, alone))
    return alone


@pytest.mark.parametrize("name", MODELS)
def test_tiny(logits, tiny, name):
    """Every way on every CPU level that this machine has; and all levels agree."""
    options = MODELS[name]
    ids = random_ids(options.get("vocab", 512), N_TINY)
    by_level = {level: check_ways(logits, tiny(**options), ids, level, C_WAYS if level == "c" else WAYS)
                for level in logits.levels}
    for level, hashes in by_level.items():
        assert hashes == by_level["c"], "%s differs from c at position %d" % (
            level, first_difference(hashes, by_level["c"]))


@pytest.mark.parametrize("way", WAYS)
def test_real(logits, real_model, real_alone, way):
    ids, alone = real_alone
    got = logits.hashes(real_model, ids, **WAYS[way])
    assert got == alone, "differs from position %d on" % first_difference(got, alone)


@pytest.fixture(scope="module")
def real_alone(logits, real_model):
    ids = random_ids(49152, N_REAL)
    return ids, logits.hashes(real_model, ids, chunk=2048)
