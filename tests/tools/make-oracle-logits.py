#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/data/oracle-{logits,embeddings}*: what independent implementations say about the two real models.

    make-oracle-logits.py NAME tokens    MODEL    needs llama-cpp-python; writes the texts' token ids
    make-oracle-logits.py NAME reference MODEL    needs numpy, torch, transformers, gguf
    make-oracle-logits.py NAME peer      MODEL    needs llama-cpp-python
    make-oracle-logits.py NAME embeddings      MODEL    as reference
    make-oracle-logits.py NAME embeddings-peer MODEL    as peer

NAME: smollm2 or gemma3.  `reference`: the weights are dequantised to FP32 by the `gguf` package and put into
`transformers`' class, everything in FP32.  `peer`: llama-cpp-python with an F16 cache, its divergence from
the reference, measured as the test measures ours.  The formats are described in tests/data/README.md.
"""
import hashlib
import json
import math
import pathlib
import struct
import sys

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"

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
    # other languages
    "Am Morgen nach dem Fest war der Platz leer bis auf die Stühle, die niemand weggeräumt hatte. 东京的春天来得比往年早, "
    "人们在河边散步. Le train de nuit pour Marseille partira avec vingt minutes de retard en raison d'un incident.",
]


CHATML = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat should I do with a bicycle that makes a clicking noise when I pedal uphill?<|im_end|>\n"
    "<|im_start|>assistant\nA clicking noise under load usually comes from the drivetrain. Check these things, in "
    "this order:\n\n1. The chain: clean it, oil it and look for stiff links.\n2. The pedals: tighten them and grease "
    "the threads.\n3. The bottom bracket: if the crank arms move sideways, the bearings are worn.<|im_end|>\n")
TURNS = (
    "<start_of_turn>user\nWhat should I do with a bicycle that makes a clicking noise when I pedal uphill?"
    "<end_of_turn>\n<start_of_turn>model\nA clicking noise under load usually comes from the drivetrain. Check these "
    "things, in this order:\n\n1. The chain: clean it, oil it and look for stiff links.\n2. The pedals: tighten them "
    "and grease the threads.<end_of_turn>\n")


class Task:
    """One model: texts (text, first recorded position), how many likeliest tokens, how an id is stored."""

    def __init__(self, name, texts, top, id_format):
        self.texts, self.top = texts, top
        self.index_path = DATA / ("oracle-logits%s.json" % name)
        self.values_path = DATA / ("oracle-logits%s.bin" % name)
        self.embeddings_path = DATA / ("oracle-embeddings%s.bin" % name)
        self.record = struct.Struct("<%d%s%dff" % (top, id_format, top))
        self.index = json.loads(self.index_path.read_text()) if self.index_path.exists() else {}

    def save(self):
        self.index_path.write_text(json.dumps(self.index, indent=1, ensure_ascii=False) + "\n")


# Gemma's last sequence is longer than its window of 512.
TASKS = {
    "smollm2": lambda: Task("", [(t, 0) for t in TEXTS[:3] + [CHATML] + TEXTS[3:]], 64, "H"),
    "gemma3": lambda: Task("-gemma3", [(t, 0) for t in TEXTS[:3] + [TURNS] + TEXTS[3:]]
                           + [("\n\n".join(TEXTS + TEXTS[:1]), 560)], 32, "I"),
}


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def make_tokens(task, model):
    import llama_cpp
    llm = llama_cpp.Llama(model, vocab_only=True, verbose=False)
    bos = llama_cpp.llama_vocab_get_add_bos(llama_cpp.llama_model_get_vocab(llm.model))
    texts = []
    for text, first in task.texts:
        ids = llm.tokenize(text.encode(), add_bos=bos, special=True)
        texts.append(dict({"text": text, "ids": ids}, **({"first": first} if first else {})))
    task.index.update(model_sha256=sha256(model), texts=texts, n_top=task.top,
                      n_positions=sum(len(t["ids"]) - t.get("first", 0) for t in texts))
    if task.record.format.find("I") >= 0:
        task.index["id_bytes"] = 4
    task.save()
    print("%d positions" % task.index["n_positions"])


def llama_config(meta, tied):
    import transformers
    config = transformers.LlamaConfig(
        vocab_size=meta["vocab_size"], hidden_size=meta["embedding_length"],
        intermediate_size=meta["feed_forward_length"], num_hidden_layers=meta["block_count"],
        num_attention_heads=meta["attention.head_count"], num_key_value_heads=meta["attention.head_count_kv"],
        max_position_embeddings=meta["context_length"], rms_norm_eps=meta["attention.layer_norm_rms_epsilon"],
        rope_theta=meta["rope.freq_base"], tie_word_embeddings=tied, attn_implementation="eager")
    # The rotation's base moved between two versions of transformers: make sure that it arrived.
    rope = getattr(config, "rope_parameters", None) or {"rope_theta": config.rope_theta}
    assert rope["rope_theta"] == meta["rope.freq_base"], rope
    return config


def gemma3_config(meta, tied):
    import oracle_models
    import transformers
    n = meta["block_count"]
    return transformers.Gemma3TextConfig(
        vocab_size=meta["vocab_size"], hidden_size=meta["embedding_length"],
        intermediate_size=meta["feed_forward_length"], num_hidden_layers=n,
        num_attention_heads=meta["attention.head_count"], num_key_value_heads=meta["attention.head_count_kv"],
        head_dim=meta["attention.key_length"], max_position_embeddings=meta["context_length"],
        rms_norm_eps=meta["attention.layer_norm_rms_epsilon"], tie_word_embeddings=tied,
        query_pre_attn_scalar=meta["attention.key_length"], sliding_window=meta["attention.sliding_window"],
        layer_types=oracle_models.gemma3_layer_types(n, 6), attn_implementation="eager",
        rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": meta["rope.freq_base"]},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}})


def reference_model(path):
    """The file's weights in FP32, in the class of its architecture."""
    import gguf
    import numpy as np
    import oracle_models

    reader = gguf.GGUFReader(path)
    arch = reader.fields["general.architecture"].contents()
    meta = {k[len(arch) + 1:]: f.contents() for k, f in reader.fields.items() if k.startswith(arch + ".")}
    meta.setdefault("vocab_size", len(reader.fields["tokenizer.ggml.tokens"].data))
    tied = not any(t.name == "output.weight" for t in reader.tensors)
    config = {"llama": llama_config, "gemma3": gemma3_config}[arch](meta, tied)
    return oracle_models.load(arch, config, (
        (t.name, gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)) for t in reader.tensors))


def make_reference(task, path):
    import importlib.metadata
    import torch
    import transformers

    model, top, total, n = reference_model(path), task.top, 0.0, 0
    with torch.no_grad(), open(task.values_path, "wb") as out:
        for text in task.index["texts"]:
            ids = text["ids"]
            logits = model(torch.tensor([ids])).logits[0]
            for i in range(text.get("first", 0), len(ids)):
                logp = torch.log_softmax(logits[i].double(), dim=-1)
                values, best = (x.tolist() for x in torch.topk(logp, top))
                rest = math.log1p(-min(math.fsum(math.exp(v) for v in values), 1 - 1e-12))
                out.write(task.record.pack(*best, *values, rest))
                if i + 1 < len(ids):
                    total -= logp[ids[i + 1]].item()
                    n += 1
            print("%d positions" % len(ids), flush=True)
    task.index["reference"] = {
        "transformers": transformers.__version__, "torch": torch.__version__,
        "gguf": importlib.metadata.version("gguf"), "perplexity": math.exp(total / n),
    }
    task.save()


def make_peer(task, path):
    import llama_cpp
    import numpy as np

    top = task.top
    llm = llama_cpp.Llama(path, n_ctx=2048, n_batch=512, n_threads=2, n_threads_batch=2, logits_all=True, verbose=False)
    total, same, n = 0.0, 0, 0
    with open(task.values_path, "rb") as values:
        for text in task.index["texts"]:
            llm.reset()
            llm.eval(text["ids"])
            for i in range(text.get("first", 0), len(text["ids"])):
                row = np.array(llm.scores[i], dtype=np.float64)
                r = task.record.unpack(values.read(task.record.size))
                ids, logp, rest = r[:top], r[top:2 * top], r[2 * top]
                total += divergence(ids, logp, rest, row, np)
                same += int(row.argmax()) == ids[0]
                n += 1
    task.index["peer"] = {
        "llama_cpp_python": llama_cpp.__version__, "system": llama_cpp.llama_print_system_info().decode().strip(),
        "n_positions": n, "mean_kl": total / n, "same_argmax": same / n,
    }
    task.save()
    print(task.index["peer"])


def divergence(ids, logp, rest, row, np):
    """KL(reference || row) over the top tokens and the remaining mass."""
    q = row - np.logaddexp.reduce(row)
    kl, q_top = 0.0, 0.0
    for i, p in zip(ids, logp):
        kl += math.exp(p) * (p - q[i])
        q_top += math.exp(q[i])
    return kl + math.exp(rest) * (rest - math.log(max(1 - q_top, 1e-12)))


def make_embeddings(task, path):
    """Of each text the mean of the final hidden states of all its tokens, then the last one's."""
    import torch

    model = reference_model(path)
    with torch.no_grad(), open(task.embeddings_path, "wb") as out:
        for text in task.index["texts"]:
            states = model.model(torch.tensor([text["ids"]])).last_hidden_state[0]
            logits = model(torch.tensor([text["ids"]])).logits[0, -1]       # these are what the head gets
            assert torch.allclose(model.lm_head(states[-1:])[0], logits, atol=1e-3), text["text"][:20]
            for vector in (states.double().mean(dim=0), states[-1]):
                out.write(vector.float().numpy().astype("<f4").tobytes())
            print("%d positions" % len(text["ids"]), flush=True)


def make_embeddings_peer(task, path):
    import llama_cpp
    import numpy as np

    n = len(task.index["texts"])
    values = np.fromfile(task.embeddings_path, dtype="<f4").reshape(n, 2, -1).astype(np.float64)
    worst = {}
    for k, name in enumerate(("mean", "last")):
        kind = getattr(llama_cpp, "LLAMA_POOLING_TYPE_" + name.upper())
        llm = llama_cpp.Llama(path, embedding=True, pooling_type=kind, n_ctx=2048, n_batch=2048, n_ubatch=2048, n_threads=2,
                              verbose=False)
        cosines = []
        for i, text in enumerate(task.index["texts"]):
            llm.tokenize = lambda *_, ids=text["ids"], **__: ids
            v = np.array(llm.embed("the ids", normalize=False), dtype=np.float64)
            cosines.append(float(v @ values[i, k] / np.linalg.norm(v) / np.linalg.norm(values[i, k])))
        worst[name] = min(cosines)
    task.index["embeddings_peer"] = {"llama_cpp_python": llama_cpp.__version__, "least_cosine": worst}
    task.save()
    print(worst)


if __name__ == "__main__":
    {"tokens": make_tokens, "reference": make_reference, "peer": make_peer, "embeddings": make_embeddings,
     "embeddings-peer": make_embeddings_peer}[sys.argv[2]](
        TASKS[sys.argv[1]](), sys.argv[3])
