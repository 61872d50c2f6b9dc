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


# What the test must see: a case, and a change of the model that the values know nothing of.
WRONG = {
    "window of 47": ("gemma3", lambda g: g.set("gemma3.attention.sliding_window", "u32", 47)),
    "window of 49": ("gemma3", lambda g: g.set("gemma3.attention.sliding_window", "u32", 49)),
    "no layer is global": ("gemma3", lambda g: g.set("gemma3.attention.sliding_window_pattern", "u32", 0)),
    "another layer is global": ("gemma3", lambda g: g.set("gemma3.attention.sliding_window_pattern", "u32", 5)),
    "global base": ("gemma3", lambda g: g.set("gemma3.rope.freq_base", "f32", 1e4)),
    "local base": ("gemma3", lambda g: g.set("gemma3.rope.freq_base_swa", "f32", 11000.0)),
    "no norm of k": ("gemma3", lambda g: g.vector("blk.3.attn_k_norm.weight", [1.0] * 16)),
    "no norm after attention": ("gemma3", lambda g: g.vector("blk.2.post_attention_norm.weight", [1.0] * 64)),
    "local layers scaled too": ("gemma3, every second, bases, linear",
                                lambda g: g.set("gemma3.rope.freq_base_swa", "f32", 500.0 * 8)),
    "no scaling": ("gemma3, every second, bases, linear", lambda g: g.set("gemma3.rope.scaling.type", "str", "none")),
    "no cap of scores": ("gemma3, soft caps", lambda g: g.remove("gemma3.attn_logit_softcapping")),
    "no cap of logits": ("gemma3, soft caps", lambda g: g.remove("gemma3.final_logit_softcapping")),
    "no bias": ("qwen2", lambda g: g.vector("blk.1.attn_k.bias", [0.0] * 32)),
    "YaRN's context": ("qwen2 F16, tied, YaRN",
                       lambda g: g.set("qwen2.rope.scaling.original_context_length", "u32", 2048)),
    "YaRN's scale": ("qwen2 F16, tied, YaRN", lambda g: g.set("qwen2.rope.scaling.yarn_attn_factor", "f32", 1.0)),
    "linear for YaRN": ("llama, YaRN", lambda g: g.set("llama.rope.scaling.type", "str", "linear")),
    "no norm of q": ("qwen3", lambda g: g.vector("blk.0.attn_q_norm.weight", [1.0] * 32)),
    "no window": ("phi3 F16, window", lambda g: g.remove("phi3.attention.sliding_window")),
    "the whole head": ("phi3, part of a head", lambda g: g.remove("phi3.rope.dimension_count")),
    "short for long": ("phi3, LongRoPE, long", lambda g: g.set("phi3.rope.scaling.original_context_length", "u32", 2048)),
    "long for short": ("phi3, LongRoPE, short", lambda g: g.set("phi3.rope.scaling.original_context_length", "u32", 255)),
    "LongRoPE's scale": ("phi3, LongRoPE, long", lambda g: g.set("phi3.rope.scaling.attn_factor", "f32", 1.0)),
}


@pytest.mark.parametrize("name", WRONG)
def test_sees(logits, tmp_path, name):
    case, change = WRONG[name]
    difference = largest_difference(logits, tmp_path, CASES[case], change)
    print("%.3f" % difference)
    assert difference > 20 * BOUND
