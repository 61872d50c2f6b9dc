# SPDX-License-Identifier: Apache-2.0
"""Model files that are well-formed GGUF but no model that can be run: refused, with the field named."""
import os
import re
import struct
import subprocess

import make_tiny_gguf
import pytest

from conftest import BUILD, SANITIZED


def refusal(logits, tmp_path, g):
    path = tmp_path / "bad.gguf"
    path.write_bytes(g if isinstance(g, bytes) else g.to_bytes())
    r = subprocess.run([logits.path, "--random", "3", path], capture_output=True, text=True, timeout=60)
    assert r.returncode == 1, r
    return r.stderr


def sets(key, kind, value):
    return lambda g: g.set(key, kind, value)


def removes(key):
    return lambda g: g.remove(key)


def reshapes(name, *dims):
    def change(g):
        kind, _, data = g.tensors[name]
        g.tensors[name] = (kind, list(dims), data)
    return change


def retypes(name, kind, n_bytes):
    def change(g):
        _, dims, _ = g.tensors[name]
        g.tensors[name] = (kind, dims, bytes(n_bytes))
    return change


def drops(name):
    return lambda g: g.tensors.pop(name)


def adds(name):
    return lambda g: g.vector(name, [1.0] * 64)


A = "llama."
CASES = {
    "no architecture": (removes("general.architecture"), "general.architecture\": missing"),
    "architecture": (sets("general.architecture", "str", "foo"),
                     'general.architecture: "foo" is not supported (supported: llama, gemma3, qwen2, qwen3, phi3)'),
    "architecture's type": (sets("general.architecture", "u32", 1), "general.architecture\": is of type u32"),
    "no block_count": (removes(A + "block_count"), "llama.block_count\": missing"),
    "block_count 0": (sets(A + "block_count", "u32", 0), "llama.block_count\": 0 is out of range"),
    "block_count 3": (sets(A + "block_count", "u32", 3), 'tensor "blk.2.attn_norm.weight": missing'),
    "block_count 1": (sets(A + "block_count", "u32", 1), 'tensor "blk.1.'),
    "block_count 2^31": (sets(A + "block_count", "u32", 2**31), "llama.block_count\": 2147483648 is out of range"),
    "block_count -1": (sets(A + "block_count", "i32", -1), "llama.block_count\": is negative"),
    "block_count 2.0": (sets(A + "block_count", "f32", 2.0), "llama.block_count\": is of type f32"),
    "embedding_length 0": (sets(A + "embedding_length", "u32", 0), "llama.embedding_length\": 0 is out of range"),
    "embedding_length 65": (sets(A + "embedding_length", "u32", 65), "llama.embedding_length\": 65"),
    "embedding_length 128": (sets(A + "embedding_length", "u32", 128), 'tensor "token_embd.weight": is 64 x 512'),
    "embedding_length 2^63": (sets(A + "embedding_length", "u64", 2**63), "llama.embedding_length\": 92233720368547"),
    "feed_forward_length": (sets(A + "feed_forward_length", "u32", 96), 'tensor "blk.0.ffn_gate.weight": is 64 x 128'),
    "context_length 0": (sets(A + "context_length", "u32", 0), "llama.context_length\": 0 is out of range"),
    "context_length 2^32-1": (sets(A + "context_length", "u32", 2**32 - 1), "llama.context_length\": 4294967295"),
    "head_count 0": (sets(A + "attention.head_count", "u32", 0), "llama.attention.head_count\": 0"),
    "head_count 3": (sets(A + "attention.head_count", "u32", 3), "llama.attention.head_count"),
    "head_count_kv 3": (sets(A + "attention.head_count_kv", "u32", 3), "head_count_kv\": 3 is no divisor of the 4"),
    "head_count_kv 4": (sets(A + "attention.head_count_kv", "u32", 4), 'tensor "blk.0.attn_k.weight": is 64 x 32'),
    "head_count_kv by layer": (sets(A + "attention.head_count_kv", "arr:u32", [2, 4]), "layers of different size"),
    "head_count_kv short": (sets(A + "attention.head_count_kv", "arr:u32", [2]), "has 1 elements for 2 layers"),
    "head_count_kv strings": (sets(A + "attention.head_count_kv", "arr:str", ["2", "2"]), "element 0 is not a number"),
    "key_length 24": (sets(A + "attention.key_length", "u32", 24), "key_length\": heads of 24 are not supported"),
    "value_length": (sets(A + "attention.value_length", "u32", 32), "value_length\": 32 differs"),
    "rope dimensions odd": (sets(A + "rope.dimension_count", "u32", 7), "rope.dimension_count\": 7 is odd"),
    "rope dimensions": (sets(A + "rope.dimension_count", "u32", 32), "rope.dimension_count\": 32 is out of range"),
    "rope base 0": (sets(A + "rope.freq_base", "f32", 0), "rope.freq_base\": 0 is out of range"),
    "rope base NaN": (sets(A + "rope.freq_base", "f32", float("nan")), "rope.freq_base\": is not finite"),
    "rope scaling": (sets(A + "rope.scaling.type", "str", "ntk"), 'rope.scaling.type": "ntk" is not supported'),
    "no epsilon": (removes(A + "attention.layer_norm_rms_epsilon"), "layer_norm_rms_epsilon\": missing"),
    "epsilon 0": (sets(A + "attention.layer_norm_rms_epsilon", "f32", 0), "layer_norm_rms_epsilon\": 0 is out"),
    "experts": (sets(A + "expert_count", "u32", 8), "expert_count\": mixtures of experts are not supported"),
    "not causal": (sets(A + "attention.causal", "bool", False), "attention.causal\": only causal attention"),
    "vocab_size": (sets(A + "vocab_size", "u32", 511), "llama.vocab_size\": 511 is out of range"),
    "no tokens": (removes("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens\": missing"),
    "tokens' type": (sets("tokenizer.ggml.tokens", "arr:u32", [1]), "tokenizer.ggml.tokens\": is an array of u32"),
    "scores' type": (sets("tokenizer.ggml.scores", "arr:str", ["0"] * 512), "tokenizer.ggml.scores\": is an array of str"),
    "no embedding": (drops("token_embd.weight"), 'tensor "token_embd.weight": missing'),
    "no norm": (drops("blk.1.ffn_norm.weight"), 'tensor "blk.1.ffn_norm.weight": missing'),
    "tensor not known": (adds("blk.0.attn_q_norm.weight"), 'tensor "blk.0.attn_q_norm.weight": not known'),
    "transposed": (reshapes("blk.0.ffn_up.weight", 128, 64), 'tensor "blk.0.ffn_up.weight": is 128 x 64'),
    "three dimensions": (reshapes("blk.0.attn_q.weight", 64, 32, 2), 'tensor "blk.0.attn_q.weight": is 64 x 32 x 2'),
    "type of a matrix": (retypes("blk.0.attn_q.weight", 24, 64 * 64), 'tensor "blk.0.attn_q.weight": type I8'),
    "type of a norm": (retypes("output_norm.weight", 8, 2 * 34), 'tensor "output_norm.weight": type Q8_0'),
    "factors not positive": (lambda g: g.vector("rope_freqs.weight", [1.0] * 7 + [0.0]), "rope_freqs.weight\": element 7"),
    "factors' length": (lambda g: g.vector("rope_freqs.weight", [1.0] * 7), 'tensor "rope_freqs.weight": is 7 x 1'),
    "four bytes": (lambda g: b"GGUF", "version"),
    "empty": (lambda g: b"", "magic"),
    "not GGUF": (lambda g: b"\x7fELF" + bytes(1000), "magic: not a GGUF file"),
}


@pytest.mark.parametrize("name", CASES)
def test_refused(logits, tmp_path, name):
    change, says = CASES[name]
    g = make_tiny_gguf.build(type="q4_0")
    changed = change(g)
    assert says in refusal(logits, tmp_path, changed if isinstance(changed, bytes) else g)


G, P = "gemma3.", "phi3."
LONG = {"arch": "phi3", "rope_long": 1.2}
YARN = {"rope_yarn": 4.0}
# Of other architectures: options of the model, the change, what is said.
ARCH_CASES = {
    "key not known": ({}, sets(A + "attention.clamp_kqv", "f32", 8.0), 'llama.attention.clamp_kqv": not known'),
    "key of another architecture": ({}, sets(A + "attention.sliding_window", "u32", 8), "sliding_window\": not known"),
    "rope type a number": ({}, sets(A + "rope.scaling.type", "u32", 1), "rope.scaling.type\": is of type u32"),
    "YaRN without factor": (YARN, removes(A + "rope.scaling.factor"), "rope.scaling.factor\": missing"),
    "YaRN without context": (YARN, removes(A + "rope.scaling.original_context_length"), "original_context_length\": miss"),
    "YaRN context 0": (YARN, sets(A + "rope.scaling.original_context_length", "u32", 0), "context_length\": 0 is out"),
    "YaRN factor -1": (YARN, sets(A + "rope.scaling.factor", "f32", -1.0), "rope.scaling.factor\": -1 is out of range"),
    "YaRN beta 0": (YARN, sets(A + "rope.scaling.yarn_beta_fast", "f32", 0.0), "yarn_beta_fast\": 0 is out of range"),
    "YaRN logarithm": (YARN, sets(A + "rope.scaling.yarn_log_multiplier", "f32", 0.1), "yarn_log_multiplier\": not known"),
    "scale infinite": ({}, sets(A + "rope.scaling.attn_factor", "f32", float("inf")), "attn_factor\": is not finite"),
    "no window": ({"arch": "gemma3"}, removes(G + "attention.sliding_window"), "sliding_window\": missing"),
    "window 0": ({"arch": "gemma3"}, sets(G + "attention.sliding_window", "u32", 0), "sliding_window\": 0 is out"),
    "window -1": ({"arch": "phi3"}, sets(P + "attention.sliding_window", "i32", -1), "sliding_window\": is negative"),
    "pattern of 3 layers": ({"arch": "gemma3"}, sets(G + "attention.sliding_window_pattern", "arr:bool", [1, 0, 1]),
                            "sliding_window_pattern\": has 3 elements for 7 layers"),
    "pattern of 2": ({"arch": "gemma3"}, sets(G + "attention.sliding_window_pattern", "arr:u32", [1] * 6 + [2]),
                     "element 6 is neither 0 nor 1"),
    "pattern of strings": ({"arch": "gemma3"}, sets(G + "attention.sliding_window_pattern", "arr:str", ["1"] * 7),
                           "element 0 is neither 0 nor 1"),
    "pattern a string": ({"arch": "gemma3"}, sets(G + "attention.sliding_window_pattern", "str", "6"), "is of type string"),
    "two bases": ({"arch": "gemma3"}, sets(G + "rope.global.freq_base", "f32", 7.0), "differs from \"rope.freq_base\""),
    "two local bases": ({"arch": "gemma3", "local_base": 5.0}, sets(G + "rope.local.freq_base", "f32", 7.0), "differs from"),
    "soft cap -1": ({"arch": "gemma3"}, sets(G + "attn_logit_softcapping", "f32", -1.0), "softcapping\": -1 is out"),
    "soft cap NaN": ({"arch": "gemma3"}, sets(G + "final_logit_softcapping", "f32", float("nan")), "is not finite"),
    "local heads": ({"arch": "gemma3"}, sets(G + "attention.key_length_swa", "u32", 32), "key_length_swa\": 32 is out"),
    "no q norm": ({"arch": "gemma3"}, drops("blk.6.attn_q_norm.weight"), 'tensor "blk.6.attn_q_norm.weight": missing'),
    "no post norm": ({"arch": "gemma3"}, drops("blk.0.post_ffw_norm.weight"), 'blk.0.post_ffw_norm.weight": missing'),
    "no bias": ({"arch": "qwen2"}, drops("blk.0.attn_k.bias"), 'tensor "blk.0.attn_k.bias": missing'),
    "norm of a row": ({"arch": "qwen3"}, reshapes("blk.0.attn_k_norm.weight", 8), 'attn_k_norm.weight": is 8 x 1'),
    "fused rows": ({"arch": "phi3"}, sets(P + "attention.head_count_kv", "u32", 4), 'attn_qkv.weight": is 64 x 128'),
    "fused gate and up": ({"arch": "phi3"}, reshapes("blk.0.ffn_up.weight", 64, 128), "ask for 64 x 256"),
    "gate beside the fused": ({"arch": "phi3"}, adds("blk.0.ffn_gate.weight"), 'blk.0.ffn_gate.weight": not known'),
    "long without short": (LONG, drops("rope_factors_short.weight"), "rope_factors_short.weight\": missing"),
    "short without long": (LONG, drops("rope_factors_long.weight"), "rope_factors_short.weight\": not known"),
    "long's length": (LONG, lambda g: g.vector("rope_factors_long.weight", [1.0] * 7), "is 7 x 1"),
    "long of 0": (LONG, lambda g: g.vector("rope_factors_long.weight", [0.0] * 8), "element 0 is not above 0"),
    "long's type": (LONG, retypes("rope_factors_long.weight", 1, 16), "type F16 is not supported (F32 is)"),
    "long without scale": (LONG, removes(P + "rope.scaling.attn_factor"), "attn_factor\": missing"),
    "long by name alone": ({"arch": "phi3"}, sets(P + "rope.scaling.type", "str", "longrope"), "context_length\": missing"),
    "long for others": ({"arch": "qwen2"}, sets("qwen2.rope.scaling.type", "str", "longrope"), '"longrope" is not supp'),
}


@pytest.mark.parametrize("name", ARCH_CASES)
def test_refused_of_architecture(logits, tmp_path, name):
    options, change, says = ARCH_CASES[name]
    g = make_tiny_gguf.build(vocab=272, **options)
    change(g)
    assert says in refusal(logits, tmp_path, g)


def test_truncated_anywhere(logits, tmp_path):
    """At every 4 KiB: an error that says where, never a crash."""
    data = make_tiny_gguf.build(type="q8_0").to_bytes()
    for n in range(0, len(data), 4096):
        assert "the file's %d bytes" % n in refusal(logits, tmp_path, data[:n])


def test_large_claims(logits, tmp_path):
    """A header of a few bytes and counts as large as they come, before a sparse terabyte."""
    path = tmp_path / "sparse.gguf"
    for counts in ((2**32, 0), (0, 2**63), (65536, 65536), (2**64 - 1, 2**64 - 1)):
        with open(path, "wb") as f:
            f.write(b"GGUF" + struct.pack("<IQQ", 3, *counts))
            f.truncate(2**40)
        process = subprocess.Popen([logits.path, "--random", "3", path], stderr=subprocess.PIPE, text=True)
        text = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 1 and ("number of" in text or "metadata key 0" in text), text
        assert used.ru_maxrss < 150 * 1024  # KiB


@pytest.mark.skipif(SANITIZED, reason="a sanitizer has memory of its own")
def test_memory():
    """One copy of the weights: what a load takes beyond them is the tokenizer's and some pieces."""
    out = subprocess.run([BUILD / "tests/tools/load-bench", "-r", "2", "-t", "4", "smollm2-135m:q8_0"], check=True,
                         capture_output=True, text=True, timeout=100).stdout
    weights, beyond = re.search(r"weights ([0-9.]+) MB, at most ([0-9.]+) MB", out).groups()
    assert float(weights) > 140
    assert 0 < float(beyond) < 40  # as the kernel counts it


EQUIVALENT = {
    "head_count_kv as an array": sets(A + "attention.head_count_kv", "arr:i32", [2, 2]),
    "u64 for u32": sets(A + "block_count", "u64", 2),
    "f64 for f32": sets(A + "rope.freq_base", "f64", 10000.0),
    "no vocab_size": removes(A + "vocab_size"),
    "no rope dimensions": removes(A + "rope.dimension_count"),
    "no rope base": removes(A + "rope.freq_base"),
    "scaling none": sets(A + "rope.scaling.type", "str", "none"),
    "key_length": sets(A + "attention.key_length", "u32", 16),
    "factors of 1": lambda g: g.vector("rope_freqs.weight", [1.0] * 8),
    "alignment 64": lambda g: (setattr(g, "alignment", 64), g.set("general.alignment", "u32", 64)),
    "version 2": lambda g: setattr(g, "version", 2),
    "other order": lambda g: g.tensors.update({n: g.tensors.pop(n) for n in sorted(g.tensors, reverse=True)}),
}


@pytest.mark.parametrize("name", EQUIVALENT)
def test_equivalent(logits, tmp_path, tiny, name):
    """Other ways to say the same: the same logits."""
    g = make_tiny_gguf.build(type="f16")
    EQUIVALENT[name](g)
    g.write(tmp_path / "same.gguf")
    ids = list(range(40))
    assert logits.hashes(tmp_path / "same.gguf", ids) == logits.hashes(tiny(type="f16"), ids)


ARCH_EQUIVALENT = {
    "pattern of 6": ({"arch": "gemma3"}, sets(G + "attention.sliding_window_pattern", "u32", 6)),
    "pattern by layer": ({"arch": "gemma3"}, sets(G + "attention.sliding_window_pattern", "arr:bool", [1, 1, 1, 1, 1, 0, 1])),
    "pattern of numbers": ({"arch": "gemma3"}, sets(G + "attention.sliding_window_pattern", "arr:i32", [1, 1, 1, 1, 1, 0, 1])),
    "local base": ({"arch": "gemma3"}, sets(G + "rope.local.freq_base", "f32", 10000.0)),
    "soft caps of 0": ({"arch": "gemma3"}, sets(G + "final_logit_softcapping", "f32", 0.0)),
    "the base by another name": ({"arch": "gemma3"}, lambda g: (g.remove(G + "rope.freq_base"),
                                                                g.set(G + "rope.global.freq_base", "f32", 1e6))),
    "YaRN's defaults": (YARN, lambda g: (g.set(A + "rope.scaling.yarn_beta_slow", "f32", 1.0),
                                         g.set(A + "rope.scaling.yarn_beta_fast", "f32", 32.0),
                                         g.set(A + "rope.scaling.yarn_ext_factor", "f32", 1.0))),
    "longrope by name": (LONG, sets(P + "rope.scaling.type", "str", "longrope")),
    "window of the context": ({"arch": "phi3"}, sets(P + "attention.sliding_window", "u32", 2048)),
    "window 0 is none": ({"arch": "phi3"}, sets(P + "attention.sliding_window", "u32", 0)),
    "factor without a type": ({"rope_linear": 4.0}, removes(A + "rope.scaling.type")),
    "described only": ({"arch": "gemma3"}, lambda g: (g.set(G + "vision.block_count", "u32", 27),
                                                      g.set(G + "mm.tokens_per_image", "u32", 256))),
}


@pytest.mark.parametrize("name", ARCH_EQUIVALENT)
def test_equivalent_of_architecture(logits, tmp_path, tiny, name):
    options, change = ARCH_EQUIVALENT[name]
    g = make_tiny_gguf.build(vocab=272, **options)
    change(g)
    g.write(tmp_path / "same.gguf")
    ids = list(range(80))
    assert logits.hashes(tmp_path / "same.gguf", ids) == logits.hashes(tiny(vocab=272, **options), ids)


DIFFERENT = {
    "rope base": sets(A + "rope.freq_base", "f32", 20000.0),
    "linear": lambda g: (g.set(A + "rope.scaling.type", "str", "linear"), g.set(A + "rope.scaling.factor", "f32", 2.0)),
    "linear, older key": sets(A + "rope.scale_linear", "f32", 2.0),
    "factors": lambda g: g.vector("rope_freqs.weight", [2.0] * 8),
    "biases": lambda g: [g.vector("blk.0.attn_q.bias", [0.5] * 64)],
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different(logits, tmp_path, tiny, name):
    """What must change the logits does; halved frequencies are the same by all three ways."""
    g = make_tiny_gguf.build(type="f16")
    DIFFERENT[name](g)
    g.write(tmp_path / "other.gguf")
    ids = list(range(40))
    got = logits.hashes(tmp_path / "other.gguf", ids)
    assert got[1:] != logits.hashes(tiny(type="f16"), ids)[1:]
    if name in ("linear", "linear, older key", "factors"):
        assert got == logits.hashes(tiny(type="f16", rope_linear=2.0), ids)
