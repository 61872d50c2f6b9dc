# SPDX-License-Identifier: Apache-2.0
"""Models of `transformers` with the weights of GGUF files, for the scripts that make oracle values.

Needs numpy, torch and transformers.
"""
import numpy as np
import torch
import transformers

CLASSES = {
    "llama": transformers.LlamaForCausalLM, "qwen2": transformers.Qwen2ForCausalLM,
    "qwen3": transformers.Qwen3ForCausalLM, "phi3": transformers.Phi3ForCausalLM,
    "gemma3": transformers.Gemma3ForCausalLM,
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_qkv": "self_attn.qkv_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
GEMMA_NAMES = dict(LAYER_NAMES, post_attention_norm="post_attention_layernorm", ffn_norm="pre_feedforward_layernorm",
                   post_ffw_norm="post_feedforward_layernorm")
PHI_NAMES = dict(LAYER_NAMES, ffn_up="mlp.gate_up_proj")
END_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def unpermute(w, n):
    """The conversion to GGUF interleaves, for llama, the two halves that a rotation pairs."""
    return w.reshape(n, w.shape[0] // n // 2, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def parameter(arch, config, name, w):
    """The name and the value of a tensor of the file, FP32, as the model's class has them."""
    parts = name.split(".")
    if arch == "llama" and parts[-2] in ("attn_q", "attn_k"):
        w = unpermute(w, config.num_attention_heads if parts[-2] == "attn_q" else config.num_key_value_heads)
    if arch == "gemma3" and parts[-2].endswith("norm"):
        w = w - 1   # the file's has it added
    if parts[0] == "blk":
        names = {"gemma3": GEMMA_NAMES, "phi3": PHI_NAMES}.get(arch, LAYER_NAMES)
        return "model.layers.%s.%s.%s" % (parts[1], names[parts[2]], parts[3]), w
    return END_NAMES[parts[0]] + ".weight", w


def load(arch, config, tensors):
    """tensors: pairs of the file's name and FP32 values, rope's lists left out."""
    state = {}
    for name, w in tensors:
        key, value = parameter(arch, config, name, w)
        state[key] = torch.from_numpy(np.array(value, dtype=np.float32, order="C"))
    model = CLASSES[arch](config).to(torch.float32).eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model


def gemma3_layer_types(n, every):
    return ["sliding_attention" if i % every < every - 1 else "full_attention" for i in range(n)]
