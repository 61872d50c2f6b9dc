# SPDX-License-Identifier: Apache-2.0
"""Tiny random models of every architecture and kind of rope scaling against `transformers`.

The values and how they were made: tests/data/README.md.  They are FP32 arithmetic on keys and values
rounded to F16, as ours are.  What remains are orders of sums, and a key or value on the edge between two
F16 numbers now and then; a wrong window, base, scale or a missing norm differs a hundred times as much.
"""
import array
import hashlib
import json
import pathlib

import make_tiny_gguf
import pytest

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
INDEX = json.loads((DATA / "oracle-arch.json").read_text())
CASES = {c["name"]: c for c in INDEX["cases"]}
# Of the logits' standard deviation.  Many layers make more of a difference.
BOUND = 0.005
BOUNDS = {"gemma3, 62 layers": 0.2}


def ids_of(n_vocab, n):
    """As make-oracle-arch.py has them."""
    x, ids = 12345, []
    for _ in range(n):
        x = (x * 1103515245 + 12345) % 2**31
        ids.append((x >> 8) % n_vocab)
    return ids


def largest_difference(logits, folder, case, change=None):
    """In standard deviations of the logits."""
    n_vocab = case["options"]["vocab"]
    g = make_tiny_gguf.build(**case["options"])
    assert hashlib.sha256(g.to_bytes()).hexdigest() == case["sha256"], "the values are of another model"
    if change:
        change(g)
    g.write(folder / "model.gguf")
    context = {"ctx": case["ctx"]} if case["ctx"] else {}
    logits.run(folder / "model.gguf", ids=ids_of(n_vocab, INDEX["n_ids"]), output=folder / "logits", **context)
    got = array.array("f", (folder / "logits").read_bytes())
    return max(abs(got[p * n_vocab + i] - v)
               for p, row in zip(INDEX["positions"], case["logits"]) for i, v in enumerate(row)) / case["std"]


@pytest.mark.parametrize("name", CASES)
def test_logits(logits, tmp_path, name):
    difference = largest_difference(logits, tmp_path, CASES[name])
    print("%.5f" % difference)
    assert difference < BOUNDS.get(name, BOUND)
