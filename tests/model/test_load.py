# SPDX-License-Identifier: Apache-2.0
"""Model files that are well-formed GGUF but no model that can be run: refused, with the field named."""
import os
import struct
import subprocess

import make_tiny_gguf
import pytest


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
    "type of a matrix": (retypes("blk.0.attn_q.weight", 6, 64 * 2 * 22), 'tensor "blk.0.attn_q.weight": type Q5_0'),
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
