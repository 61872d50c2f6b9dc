#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/data/oracle-arch.json and tests/data/rope-oracle.txt: what `transformers` says about architectures.

    make-oracle-arch.py     needs numpy, torch, transformers

Logits: tiny random models of every architecture and kind of scaling are made by make_tiny_gguf.py, their weights
put into `transformers`' models in FP32 with plain attention, and keys and values rounded to F16, since that
is how they are stored.  Frequencies: those of ROPE_INIT_FUNCTIONS.  The formats are described in
tests/data/README.md.
"""
import hashlib
import json
import math
import pathlib
import sys

import numpy as np
import torch
import transformers
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS / "tools"))
import make_tiny_gguf  # noqa: E402
import oracle_models  # noqa: E402

DATA = TESTS / "data"
N_IDS = 200     # beyond the windows of 48, several blocks of every size
N_LOGITS = 24   # of a position, the first ones
POSITIONS = [0, 1, 15, 16, 47, 48, 49, 50, 100, 199]
SMALL = {"vocab": 272}

# name: options of make_tiny_gguf.build(), and the context that the model is opened with
CASES = {
    "llama": ({"arch": "llama"}, None),
    "llama, linear": ({"arch": "llama", "rope_linear": 4.0}, None),
    "llama, YaRN": ({"arch": "llama", "rope_yarn": 8.0, "ctx_orig": 64, "head_dim": 32}, None),
    "llama, rope_freqs, tied": ({"arch": "llama", "rope_freqs": True, "tied": True}, None),
    "gemma3": ({"arch": "gemma3"}, None),
    "gemma3 F16": ({"arch": "gemma3", "type": "f16", "seed": 2}, None),
    "gemma3, every second, bases, linear": (
        {"arch": "gemma3", "window_pattern": 2, "layers": 4, "rope_base": 50000.0, "local_base": 500.0, "rope_linear": 8.0,
         "window": 20, "head_dim": 48}, None),
    "gemma3, soft caps": ({"arch": "gemma3", "attn_softcap": 3.0, "final_softcap": 2.0, "layers": 6}, None),
    "gemma3, 62 layers": (
        {"arch": "gemma3", "layers": 62, "embd": 32, "ff": 32, "heads": 2, "kv_heads": 1, "head_dim": 32}, None),
    "qwen2": ({"arch": "qwen2"}, None),
    "qwen2 F16, tied, YaRN": (
        {"arch": "qwen2", "type": "f16", "tied": True, "rope_yarn": 4.0, "ctx_orig": 128, "head_dim": 32}, None),
    "qwen3": ({"arch": "qwen3", "head_dim": 32}, None),
    "qwen3 F16, tied": ({"arch": "qwen3", "type": "f16", "tied": True, "kv_heads": 1}, None),
    "phi3": ({"arch": "phi3"}, None),
    "phi3 F16, window": ({"arch": "phi3", "type": "f16", "window": 48, "kv_heads": 4}, None),
    "phi3, part of a head": ({"arch": "phi3", "head_dim": 32, "rope_dims": 24}, None),
    "phi3, LongRoPE, long": ({"arch": "phi3", "rope_long": 1.19, "ctx_orig": 128}, None),
    "phi3, LongRoPE, short": ({"arch": "phi3", "rope_long": 1.19, "ctx_orig": 256}, 256),
}

def ids_of(n_vocab):
    """Token ids by a linear congruence, the same in the test."""
    x, ids = 12345, []
    for _ in range(N_IDS):
        x = (x * 1103515245 + 12345) % 2**31
        ids.append((x >> 8) % n_vocab)
    return ids


def rope_parameters(o, half):
    """What the options say, in the words of a configuration."""
    p = {"rope_type": "default", "rope_theta": o.get("rope_base", 1e6 if o["arch"] == "gemma3" else 10000.0)}
    if o.get("rope_linear"):
        p.update(rope_type="linear", factor=o["rope_linear"])
    if o.get("rope_yarn"):
        p.update(rope_type="yarn", factor=o["rope_yarn"], original_max_position_embeddings=o["ctx_orig"])
    if o.get("rope_long"):
        p.update(rope_type="longrope", attention_factor=o["rope_long"], original_max_position_embeddings=o["ctx_orig"],
                 long_factor=[1 + 1.5 * i for i in range(half)], short_factor=[1 + 0.1 * i for i in range(half)])
    return p


def config_of(o):
    arch, embd, heads = o["arch"], o.get("embd", 64), o.get("heads", 4)
    head_dim = o.get("head_dim") or embd // heads
    rope_dims = o.get("rope_dims") or head_dim
    rope = rope_parameters(o, rope_dims // 2)
    common = {
        "vocab_size": SMALL["vocab"], "hidden_size": embd, "intermediate_size": o.get("ff", 128),
        "num_hidden_layers": o.get("layers") or (7 if arch == "gemma3" else 2), "num_attention_heads": heads,
        "num_key_value_heads": o.get("kv_heads", 2), "head_dim": head_dim, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": bool(o.get("tied", arch == "gemma3")), "rope_parameters": rope,
        "attn_implementation": "eager", "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
    }
    if arch == "llama":
        return transformers.LlamaConfig(**common)
    if arch == "qwen2":
        return transformers.Qwen2Config(**common)
    if arch == "qwen3":
        return transformers.Qwen3Config(**common)
    if arch == "phi3":
        rope["partial_rotary_factor"] = rope_dims / head_dim
        return transformers.Phi3Config(sliding_window=o.get("window"), resid_pdrop=0.0,
                                       original_max_position_embeddings=o.get("ctx_orig", 2048), **common)
    n, every = common["num_hidden_layers"], o.get("window_pattern", 6)
    common["rope_parameters"] = {
        "full_attention": rope,
        "sliding_attention": {"rope_type": "default", "rope_theta": o.get("local_base", 10000.0)},
    }
    return transformers.Gemma3TextConfig(
        sliding_window=o.get("window", 48), final_logit_softcapping=o.get("final_softcap"),
        query_pre_attn_scalar=embd // heads if n == 62 else head_dim, hidden_activation="gelu_pytorch_tanh",
        layer_types=oracle_models.gemma3_layer_types(n, every), **common)


def model_of(g, o):
    config = config_of(o)
    tensors = [(name, np.frombuffer(data, {0: "<f4", 1: "<f2"}[kind]).astype(np.float32).reshape(dims[::-1]))
               for name, (kind, dims, data) in g.tensors.items()]
    model = oracle_models.load(o["arch"], config, [t for t in tensors if not t[0].startswith("rope_")])
    if o.get("rope_freqs"):
        model.model.rotary_emb.inv_freq /= torch.from_numpy(dict(tensors)["rope_freqs.weight"].copy())
    return model


class StoredLayer(DynamicLayer):
    """Keys and values as they are stored."""

    def update(self, key_states, value_states, *args, **kwargs):
        return super().update(key_states.half().float(), value_states.half().float(), *args, **kwargs)


def logits_of(model, ids, softcap):
    cache = DynamicCache()
    cache.layer_class_to_replicate = StoredLayer
    more = {"softcap": softcap} if softcap else {}
    with torch.no_grad():
        out = model(torch.tensor([ids]), past_key_values=cache, use_cache=True, **more).logits[0]
    assert len(cache.layers) == model.config.num_hidden_layers and isinstance(cache.layers[0], StoredLayer)
    return out


def make_logits():
    cases = []
    for name, (options, ctx) in CASES.items():
        options = dict(SMALL, **options)
        g = make_tiny_gguf.build(**options)
        rows = logits_of(model_of(g, options), ids_of(SMALL["vocab"]), options.get("attn_softcap"))
        cases.append({
            "name": name, "options": options, "ctx": ctx, "sha256": hashlib.sha256(g.to_bytes()).hexdigest(),
            "std": round(rows.std().item(), 4),
            "logits": [[float("%.7g" % v) for v in rows[p, :N_LOGITS].tolist()] for p in POSITIONS],
        })
        print("%-40s std %.3f" % (name, rows.std().item()))
    index = {"transformers": transformers.__version__, "torch": torch.__version__, "n_ids": N_IDS,
             "positions": POSITIONS, "cases": cases}
    text = json.dumps(index, separators=(",", ":")).replace('{"name"', '\n{"name"').replace('"logits":', '\n"logits":')
    (DATA / "oracle-arch.json").write_text(text + "\n")


def llama3_divisors(base, n, factor, low, high, orig):
    """rope_freqs.weight as the conversion to GGUF computes it (Llama 3.1's scaling)."""
    out = []
    for i in range(n // 2):
        wavelength = 2 * math.pi * base ** (2 * i / n)
        if wavelength < orig / high:
            out.append(1.0)
        elif wavelength > orig / low:
            out.append(factor)
        else:
            smooth = (orig / wavelength - low) / (high - low)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return out


def make_frequencies():
    long = [1 + 0.37 * i for i in range(48)]
    short = [1 + 0.01 * i for i in range(48)]
    kinds = {
        "unscaled": ("default", 64, 10000.0, {}, ""),
        "linear": ("linear", 256, 1e6, {"factor": 8.0}, "factor=8"),
        "yarn": ("yarn", 128, 1e6, {"factor": 4.0, "original_max_position_embeddings": 32768},
                 "factor=4 ctx_orig=32768"),
        "yarn-betas": ("yarn", 64, 10000.0, {"factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 24.0,
                                             "beta_slow": 2.0, "attention_factor": 1.25},
                       "factor=40 ctx_orig=4096 yarn_fast=24 yarn_slow=2 yarn_attn=1.25"),
        "longrope-short": ("longrope", 96, 10000.0, {"long_factor": long, "short_factor": short, "factor": 32.0,
                                                     "original_max_position_embeddings": 4096}, "short"),
        "longrope-long": ("longrope", 96, 10000.0, {"long_factor": long, "short_factor": short, "factor": 32.0,
                                                    "original_max_position_embeddings": 4096}, "long"),
        "llama3": ("llama3", 128, 500000.0, {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                             "original_max_position_embeddings": 8192}, "llama3"),
    }
    lines = []
    for name, (kind, n, base, parameters, words) in kinds.items():
        config = transformers.LlamaConfig(
            hidden_size=n, num_attention_heads=1, head_dim=n, max_position_embeddings=131072,
            rope_parameters=dict(parameters, rope_type=kind, rope_theta=base))
        divisors = []
        if kind == "default":
            rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
            inv_freq, scale = rotary.inv_freq, rotary.attention_scaling
        elif words == "long":
            inv_freq, scale = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=4097)
        else:
            inv_freq, scale = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
        if words in ("short", "long"):
            divisors, words = (long if words == "long" else short), "ctx_orig=4096 attn_factor=%.9g" % scale
        if words == "llama3":
            divisors, words = llama3_divisors(base, n, 8.0, 1.0, 4.0, 8192), ""
        lines.append("case %s %s n_dims=%d base=%.9g %s" % (
            name, {"default": "none", "llama3": "none"}.get(kind, kind), n, base, words))
        if divisors:
            lines.append("divisors " + " ".join("%.9g" % d for d in divisors))
        lines.append("scale %.9g" % scale)
        lines.append("inv_freq " + " ".join("%.9g" % f for f in inv_freq.tolist()))
    (DATA / "rope-oracle.txt").write_text("\n".join(l.rstrip() for l in lines) + "\n")


if __name__ == "__main__":
    make_frequencies()
    make_logits()
