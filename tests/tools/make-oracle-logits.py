#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/data/oracle-logits.{json,bin}: what independent implementations say about the default model.

    make-oracle-logits.py tokens    MODEL    needs llama-cpp-python; writes the texts' token ids
    make-oracle-logits.py reference MODEL    needs numpy, torch, transformers, gguf
    make-oracle-logits.py peer      MODEL    needs llama-cpp-python

`reference`: the weights are dequantised to FP32 by the `gguf` package and put into `transformers`'
LlamaForCausalLM, everything in FP32.  `peer`: llama-cpp-python with an F16 cache, its divergence from
the reference, measured as the test measures ours.  The formats are described in tests/data/README.md.
"""
import hashlib
import json
import math
import pathlib
import struct
import sys

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
INDEX = DATA / "oracle-logits.json"
VALUES = DATA / "oracle-logits.bin"
TOP = 64

TEXTS = [
    # English prose
    "The lighthouse keeper counted the ships that passed each night and wrote their number into a book with a "
    "blue cover. In the first winter there were seldom more than five; in the second he once counted thirty, on "
    "the evening before the great storm, when everything that could float was on its way to the harbour. He did "
    "not know the names of the ships, but he knew their lights, and he could tell from the way a lamp moved "
    "whether the sea beyond the rocks was rough or calm. When the storm had gone, he went down to the beach and "
    "found a wooden chair, two barrels and a violin case. The case was empty. He kept it for eleven years, until "
    "a woman came up the path and asked him whether he had ever found a violin.",
    # explanation, with numbers
    "To estimate the cost of the bridge, the engineers divided the work into four parts: the foundations (about "
    "40 % of the total), the towers (15 %), the cables (25 %) and the deck (20 %). If the foundations cost 12.4 "
    "million, then the whole bridge will cost about 31 million, and the cables about 7.75 million. The largest "
    "uncertainty is the ground below the eastern tower, where the drill samples show clay down to 38 metres; "
    "every additional metre of foundation adds roughly 180,000 to the price.",
    # code
    "#include <stdio.h>\n#include <stdlib.h>\n\nstruct node {\n\tint value;\n\tstruct node *next;\n};\n\n"
    "/* Reverses a singly linked list in place and returns its new head. */\n"
    "static struct node *reverse(struct node *head)\n{\n\tstruct node *previous = NULL;\n\n"
    "\twhile (head) {\n\t\tstruct node *next = head->next;\n\n\t\thead->next = previous;\n"
    "\t\tprevious = head;\n\t\thead = next;\n\t}\n\treturn previous;\n}\n\nint main(void)\n{\n"
    "\tstruct node *list = NULL;\n\n\tfor (int i = 0; i < 10; i++) {\n\t\tstruct node *n = malloc(sizeof(*n));",
    # a conversation
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat should I do with a bicycle that makes a clicking noise when I pedal uphill?<|im_end|>\n"
    "<|im_start|>assistant\nA clicking noise under load usually comes from the drivetrain. Check these things, in "
    "this order:\n\n1. The chain: clean it, oil it and look for stiff links.\n2. The pedals: tighten them and grease "
    "the threads.\n3. The bottom bracket: if the crank arms move sideways, the bearings are worn.<|im_end|>\n",
    # other languages
    "Am Morgen nach dem Fest war der Platz leer bis auf die Stühle, die niemand weggeräumt hatte. 东京的春天来得比往年早, "
    "人们在河边散步. Le train de nuit pour Marseille partira avec vingt minutes de retard en raison d'un incident.",
]


def load_index():
    return json.loads(INDEX.read_text()) if INDEX.exists() else {}


def save_index(index):
    INDEX.write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n")


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def make_tokens(model):
    import llama_cpp
    llm = llama_cpp.Llama(model, vocab_only=True, verbose=False)
    index = load_index()
    index["model_sha256"] = sha256(model)
    index["texts"] = [{"text": t, "ids": llm.tokenize(t.encode(), add_bos=False, special=True)} for t in TEXTS]
    index["n_positions"] = sum(len(t["ids"]) for t in index["texts"])
    index["n_top"] = TOP
    save_index(index)
    print("%d positions" % index["n_positions"])


def reference_model(path):
    """LlamaForCausalLM with the file's weights in FP32."""
    import gguf
    import numpy as np
    import torch
    import transformers

    reader = gguf.GGUFReader(path)
    meta = {k: f.contents() for k, f in reader.fields.items() if k.startswith("llama.")}
    heads, kv_heads = meta["llama.attention.head_count"], meta["llama.attention.head_count_kv"]
    config = transformers.LlamaConfig(
        vocab_size=meta["llama.vocab_size"], hidden_size=meta["llama.embedding_length"],
        intermediate_size=meta["llama.feed_forward_length"], num_hidden_layers=meta["llama.block_count"],
        num_attention_heads=heads, num_key_value_heads=kv_heads,
        max_position_embeddings=meta["llama.context_length"],
        rms_norm_eps=meta["llama.attention.layer_norm_rms_epsilon"], rope_theta=meta["llama.rope.freq_base"],
        tie_word_embeddings=not any(t.name == "output.weight" for t in reader.tensors), attn_implementation="eager")
    # The rotation's base moved between two versions of transformers: make sure that it arrived.
    rope = getattr(config, "rope_parameters", None) or {"rope_theta": config.rope_theta}
    assert rope["rope_theta"] == meta["llama.rope.freq_base"], rope

    def unpermute(w, n):
        # The conversion to GGUF interleaved the two halves that a rotation pairs.
        return w.reshape(n, w.shape[0] // n // 2, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)

    layer_names = {
        "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    state = {}
    for t in reader.tensors:
        w = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        parts = t.name.split(".")
        if parts[0] == "blk":
            if parts[2] == "attn_q":
                w = unpermute(w, heads)
            elif parts[2] == "attn_k":
                w = unpermute(w, kv_heads)
            name = "model.layers.%s.%s.weight" % (parts[1], layer_names[parts[2]])
        else:
            name = names[parts[0]] + ".weight"
        state[name] = torch.from_numpy(np.ascontiguousarray(w))
    model = transformers.LlamaForCausalLM(config).to(torch.float32).eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model


def make_reference(path):
    import gguf
    import importlib.metadata
    import torch
    import transformers

    index = load_index()
    model = reference_model(path)
    with torch.no_grad(), open(VALUES, "wb") as out:
        for text in index["texts"]:
            logits = model(torch.tensor([text["ids"]])).logits[0].double()
            logp = torch.log_softmax(logits, dim=-1)
            top = torch.topk(logp, TOP, dim=-1)
            for values, ids in zip(top.values, top.indices):
                rest = math.log1p(-min(math.fsum(math.exp(v) for v in values.tolist()), 1 - 1e-12))
                out.write(struct.pack("<%dH%dff" % (TOP, TOP), *ids.tolist(), *values.tolist(), rest))
    index["reference"] = {
        "transformers": transformers.__version__, "torch": torch.__version__,
        "gguf": importlib.metadata.version("gguf"),
        "perplexity": perplexity_of_reference(model, index["texts"]),
    }
    save_index(index)


def perplexity_of_reference(model, texts):
    import torch
    total, n = 0.0, 0
    with torch.no_grad():
        for text in texts:
            logp = torch.log_softmax(model(torch.tensor([text["ids"]])).logits[0].double(), dim=-1)
            for i, t in enumerate(text["ids"][1:]):
                total -= logp[i, t].item()
                n += 1
    return math.exp(total / n)


def make_peer(path):
    import llama_cpp
    import numpy as np

    index = load_index()
    record = struct.Struct("<%dH%dff" % (TOP, TOP))
    llm = llama_cpp.Llama(path, n_ctx=2048, n_batch=512, n_threads=2, n_threads_batch=2, logits_all=True, verbose=False)
    total, same, n = 0.0, 0, 0
    with open(VALUES, "rb") as values:
        for text in index["texts"]:
            llm.reset()
            llm.eval(text["ids"])
            scores = np.array(llm.scores[:len(text["ids"])], dtype=np.float64)
            for row in scores:
                r = record.unpack(values.read(record.size))
                ids, logp, rest = r[:TOP], r[TOP:2 * TOP], r[2 * TOP]
                total += divergence(ids, logp, rest, row, np)
                same += int(row.argmax()) == ids[0]
                n += 1
    index["peer"] = {
        "llama_cpp_python": llama_cpp.__version__, "system": llama_cpp.llama_print_system_info().decode().strip(),
        "n_positions": n, "mean_kl": total / n, "same_argmax": same / n,
    }
    save_index(index)
    print(index["peer"])


def divergence(ids, logp, rest, row, np):
    """KL(reference || row) over the top tokens and the remaining mass."""
    q = row - np.logaddexp.reduce(row)
    kl, q_top = 0.0, 0.0
    for i, p in zip(ids, logp):
        kl += math.exp(p) * (p - q[i])
        q_top += math.exp(q[i])
    return kl + math.exp(rest) * (rest - math.log(max(1 - q_top, 1e-12)))


if __name__ == "__main__":
    {"tokens": make_tokens, "reference": make_reference, "peer": make_peer}[sys.argv[1]](sys.argv[2])
