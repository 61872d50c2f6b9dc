# SPDX-License-Identifier: Apache-2.0
"""Tiny models that differ, and one that takes a while to load."""
import make_tiny_gguf as tiny

# Names, and what tells them apart: geometry, vocabulary, architecture.
KINDS = {
    "small": {},
    "other": {"layers": 3, "heads": 4, "kv_heads": 4, "head_dim": 32, "seed": 7, "vocab": 400},
    "third": {"arch": "qwen2", "biases": True, "layers": 1, "seed": 9},
}


def make_all(folder):
    """{name: path} of all kinds."""
    paths = {}
    for name, options in KINDS.items():
        paths[name] = folder / f"{name}.gguf"
        tiny.build(**options).write(paths[name])
    return paths


class Zeros:
    """So many bytes of a tensor's data, as a hole in the file."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n


def make_large(path, layers=16, ff=8192):
    """A model of a hundred MB that takes no space on the disk: its feed-forward weights are zero."""
    g = tiny.build(layers=1)
    g.set("llama.block_count", "u32", layers)
    g.set("llama.feed_forward_length", "u32", ff)
    first = {name: t for name, t in g.tensors.items() if name.startswith("blk.0.")}
    for i in range(layers):
        for name, (kind, dims, data) in first.items():
            if ".ffn_" in name and "norm" not in name:
                dims = [ff if n != 64 else n for n in dims]
                data = Zeros(dims[0] * dims[1] * 4)
            g.tensors[name.replace("blk.0.", f"blk.{i}.")] = (kind, dims, data)
    with open(path, "wb") as f:
        f.write(g.header())
        f.seek(-f.tell() % g.alignment, 1)
        for _, _, data in g.tensors.values():
            if isinstance(data, Zeros):
                f.seek(len(data), 1)
            else:
                f.write(data)
            f.seek(-f.tell() % g.alignment, 1)
        f.truncate(f.tell())
    return path
