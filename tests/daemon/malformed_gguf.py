# SPDX-License-Identifier: Apache-2.0
"""Model files that must be refused: what is wrong with each, and the field that the refusal names.

CASES is { name: (base, change, says) }: `base` names a good tiny model, `change(g)` spoils it (and may
return the file's bytes instead), `says` is a piece of the message.
"""
import struct

import make_tiny_gguf as tiny

SMALL = {"layers": 2, "embd": 64, "heads": 4, "kv_heads": 2, "ff": 64, "vocab": 320}
NAN, INF = float("nan"), float("inf")


class Spoiled(tiny.Gguf):
    """A file whose counts, offsets and order can be made to lie."""

    def __init__(self, good):
        super().__init__(good.version, good.alignment)
        self.metadata, self.tensors = dict(good.metadata), dict(good.tensors)
        self.counts = [None, None]      # tensors, keys: what the file says instead
        self.offsets = {}               # by tensor
        self.more_kv = []               # (bytes of key, bytes of type and value) behind the others
        self.more_tensors = []          # (bytes of name, type, dims, offset)

    def header(self):
        n_tensors, n_kv = len(self.tensors) + len(self.more_tensors), len(self.metadata) + len(self.more_kv)
        said = [n if c is None else c for c, n in zip(self.counts, (n_tensors, n_kv))]
        out = bytearray(b"GGUF" + struct.pack("<IQQ", self.version, *said))
        for key, (kind, value) in self.metadata.items():
            out += tiny.pack_string(key) + tiny.pack_value(kind, value)
        for key, value in self.more_kv:
            out += tiny.pack_string(key) + value
        offset = 0
        for name, (kind, dims, data) in self.tensors.items():
            out += tiny.pack_string(name) + struct.pack("<I%dQ" % len(dims), len(dims), *dims)
            out += struct.pack("<IQ", kind, self.offsets.get(name, offset))
            offset += len(data) + -len(data) % self.alignment
        for name, kind, dims, at in self.more_tensors:
            out += tiny.pack_string(name) + struct.pack("<I%dQ" % len(dims), len(dims), *dims) + struct.pack("<IQ", kind, at)
        return bytes(out)


def sentencepiece(g):
    """Replaces the vocabulary: control tokens, bytes, pieces with scores."""
    n = len(g.metadata["tokenizer.ggml.tokens"][1])
    tokens = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
    kinds = [2, 3, 3] + [6] * 256
    pieces = ["\u2581"] + [chr(c) for c in range(97, 123)] + ["\u2581t", "he", "\u2581the"]
    pieces += ["piece%d" % i for i in range(n - len(tokens) - len(pieces))]
    g.set("tokenizer.ggml.model", "str", "llama")
    g.set("tokenizer.ggml.tokens", "arr:str", tokens + pieces)
    g.set("tokenizer.ggml.token_type", "arr:i32", kinds + [1] * len(pieces))
    g.set("tokenizer.ggml.scores", "arr:f32", [0.0] * len(tokens) + [-1.0 - i for i in range(len(pieces))])
    g.set("tokenizer.ggml.bos_token_id", "u32", 1)
    g.set("tokenizer.ggml.eos_token_id", "u32", 2)
    for key in ("tokenizer.ggml.merges", "tokenizer.ggml.pre", "tokenizer.chat_template", "tokenizer.ggml.padding_token_id",
                "tokenizer.ggml.add_bos_token"):
        g.metadata.pop(key, None)


def make_base(name):
    if name == "gemma3":
        g = tiny.build(arch="gemma3", type="q8_0", **{**SMALL, "layers": 7})
        sentencepiece(g)
    elif name == "phi3":
        g = tiny.build(arch="phi3", type="q4_1", rope_long=1.2, **SMALL)
    elif name == "spm":
        g = tiny.build(type="q8_0", **SMALL)
        sentencepiece(g)
    else:
        g = tiny.build(arch=name, type="q4_0", **SMALL)
    return g


BASES = ["llama", "gemma3", "qwen2", "qwen3", "phi3", "spm"]


def sets(key, kind, value):
    return lambda g: g.set(key, kind, value)


def removes(key):
    return lambda g: g.metadata.pop(key)


def patches(at, data):
    def change(g):
        raw = g.to_bytes()
        return raw[:at] + data + raw[at + len(data):]
    return change


def says_counts(tensors=None, keys=None):
    def change(g):
        g.counts = [tensors, keys]
    return change


def adds_kv(key, value):
    return lambda g: g.more_kv.append((key, value))


def adds_tensor(name, kind, dims, at=0):
    return lambda g: g.more_tensors.append((name, kind, dims, at))


def moves(name, at):
    return lambda g: g.offsets.update({name: at})


def reshapes(name, *dims):
    def change(g):
        kind, _, data = g.tensors[name]
        g.tensors[name] = (kind, list(dims), data)
    return change


def retypes(name, kind):
    def change(g):
        _, dims, data = g.tensors[name]
        g.tensors[name] = (kind, dims, data)
    return change


def drops(name):
    return lambda g: g.tensors.pop(name)


def edits(key, edit):
    """edit(list) changes an array in place or returns another."""
    def change(g):
        kind, values = g.metadata[key]
        values = list(values)
        g.metadata[key] = (kind, edit(values) or values)
    return change


def item(i, value):
    def edit(values):
        values[i] = value
    return edit


def array(element, n, data=b""):
    return struct.pack("<IIQ", 9, element, n) + data


def fills(name, pattern):
    def change(g):
        kind, dims, data = g.tensors[name]
        g.tensors[name] = (kind, dims, (pattern * len(data))[:len(data)])
    return change


def aligned(alignment, said=None):
    def change(g):
        g.alignment = alignment
        g.set("general.alignment", "u32", alignment if said is None else said)
    return change


K = 'metadata key "%s"'
L = "llama."
T = "tokenizer.ggml."
GOOD_KV = struct.pack("<IB", 0, 1)

CASES = {
    # the beginning
    "empty": ("llama", lambda g: b"", "magic"),
    "four bytes": ("llama", lambda g: b"GGUF", "version"),
    "other magic": ("llama", patches(0, b"GGML"), "magic"),
    "an ELF file": ("llama", lambda g: b"\x7fELF" + bytes(5000), "magic"),
    "version 0": ("llama", patches(4, struct.pack("<I", 0)), "version: 0"),
    "version 1": ("llama", patches(4, struct.pack("<I", 1)), "version: 1"),
    "version 99": ("llama", patches(4, struct.pack("<I", 99)), "version: 99"),
    "big-endian": ("llama", patches(4, struct.pack(">I", 3)), "big-endian"),
    # counts and lengths
    "tensors 2^32": ("llama", says_counts(tensors=2**32), "number of tensors: 4294967296"),
    "tensors 2^63": ("llama", says_counts(tensors=2**63), "number of tensors: 9223372036854775808"),
    "tensors 65536": ("llama", says_counts(tensors=65536), "number of tensors"),
    "one tensor too many": ("llama", lambda g: g.counts.__setitem__(0, len(g.tensors) + 1), "tensor"),
    "one tensor too few": ("gemma3", lambda g: g.counts.__setitem__(0, len(g.tensors) - 1), "output_norm.weight"),
    "no tensors": ("llama", lambda g: g.tensors.clear(), "token_embd.weight"),
    "keys 2^32 - 1": ("llama", says_counts(keys=2**32 - 1), "number of metadata keys: 4294967295"),
    "keys 2^64 - 1": ("llama", says_counts(keys=2**64 - 1), "number of metadata keys"),
    "one key too many": ("llama", lambda g: g.counts.__setitem__(1, len(g.metadata) + 1), "tensor 0"),
    "no keys": ("llama", lambda g: g.metadata.clear(), "general.architecture"),
    "key of 2^63 bytes": ("llama", patches(24, struct.pack("<Q", 2**63)), "metadata key 0"),
    "key of 2^32 bytes": ("llama", patches(24, struct.pack("<Q", 2**32)), "metadata key 0"),
    "key of 65536 bytes": ("llama", adds_kv(b"k" * 65536, GOOD_KV), "its name has 65536 bytes"),
    "key without a name": ("llama", adds_kv(b"", GOOD_KV), "its name has 0 bytes"),
    "key not UTF-8": ("llama", adds_kv(b"a\xffb", GOOD_KV), "is not UTF-8"),
    "key with NUL": ("llama", adds_kv(b"a\0b", GOOD_KV), "control character"),
    "key twice": ("llama", adds_kv(b"llama.block_count", struct.pack("<II", 4, 2)),
                  K % "llama.block_count" + ": appears twice"),
    "string of 2^63 bytes": ("llama", adds_kv(b"k", struct.pack("<IQ", 8, 2**63)), K % "k"),
    "string of 2^32 - 1 bytes": ("llama", adds_kv(b"k", struct.pack("<IQ", 8, 2**32 - 1)), K % "k"),
    "value type 13": ("llama", adds_kv(b"k", struct.pack("<IQ", 13, 0)), "value type 13"),
    "bool 7": ("llama", adds_kv(b"k", struct.pack("<IB", 7, 7)), "7 is not a bool"),
    # arrays
    "array of 2^63": ("llama", adds_kv(b"k", array(0, 2**63)), K % "k"),
    "array that wraps": ("llama", adds_kv(b"k", array(10, 2**61 + 1, bytes(8))), "2305843009213693953 elements"),
    "array of 2^32 strings": ("llama", adds_kv(b"k", array(8, 2**32)), "4294967296 strings"),
    "array of arrays": ("llama", adds_kv(b"k", array(9, 1, array(0, 1, b"x"))), "arrays of arrays"),
    "array of nothing known": ("llama", adds_kv(b"k", array(44, 1, b"x")), "element type 44"),
    "array of bools of 2": ("llama", adds_kv(b"k", array(7, 2, b"\1\2")), "2 is not a bool"),
    # alignment
    "alignment 0": ("llama", aligned(32, 0), "general.alignment"),
    "alignment 7": ("llama", aligned(32, 7), "general.alignment"),
    "alignment 2^31": ("llama", aligned(32, 2**31), "general.alignment"),
    "alignment of type string": ("llama", sets("general.alignment", "str", "32"), "general.alignment"),
    "alignment other than used": ("llama", aligned(8, 4096), "alignment"),
    # what kind of model
    "architecture unknown": ("llama", sets("general.architecture", "str", "mamba"), 'general.architecture: "mamba"'),
    "architecture not UTF-8": ("llama", sets("general.architecture", "str", b"lla\xffma"), "general.architecture"),
    "architecture with NUL": ("llama", sets("general.architecture", "str", b"llama\0"), "general.architecture"),
    "architecture a number": ("llama", sets("general.architecture", "u32", 1), "general.architecture"),
    "architecture another one": ("llama", sets("general.architecture", "str", "qwen3"), "qwen3.block_count"),
    # hyper-parameters
    "block_count missing": ("llama", removes(L + "block_count"), K % (L + "block_count") + ": missing"),
    "block_count 0": ("llama", sets(L + "block_count", "u32", 0), L + "block_count"),
    "block_count 3": ("llama", sets(L + "block_count", "u32", 3), "blk.2."),
    "block_count 1": ("llama", sets(L + "block_count", "u32", 1), "blk.1."),
    "block_count 2^32 - 1": ("llama", sets(L + "block_count", "u32", 2**32 - 1), L + "block_count"),
    "block_count -1": ("llama", sets(L + "block_count", "i32", -1), L + "block_count\": is negative"),
    "block_count a fraction": ("llama", sets(L + "block_count", "f32", 2.0), L + "block_count"),
    "block_count an array": ("llama", sets(L + "block_count", "arr:u32", [2]), L + "block_count"),
    "context 0": ("llama", sets(L + "context_length", "u32", 0), L + "context_length"),
    "context 2^31": ("llama", sets(L + "context_length", "u32", 2**31), L + "context_length"),
    "context 2^63": ("llama", sets(L + "context_length", "u64", 2**63), L + "context_length"),
    "embedding 0": ("llama", sets(L + "embedding_length", "u32", 0), L + "embedding_length"),
    "embedding odd": ("llama", sets(L + "embedding_length", "u32", 63), L + "embedding_length"),
    "embedding 2^31": ("llama", sets(L + "embedding_length", "u32", 2**31), L + "embedding_length"),
    "embedding not the tensors'": ("llama", sets(L + "embedding_length", "u32", 128), 'tensor "token_embd.weight"'),
    "feed-forward 0": ("llama", sets(L + "feed_forward_length", "u32", 0), L + "feed_forward_length"),
    "feed-forward not the tensors'": ("llama", sets(L + "feed_forward_length", "u32", 96), "ffn_"),
    "heads 0": ("llama", sets(L + "attention.head_count", "u32", 0), L + "attention.head_count"),
    "heads 5": ("llama", sets(L + "attention.head_count", "u32", 5), L + "attention.head_count"),
    "heads 2^30": ("llama", sets(L + "attention.head_count", "u32", 2**30), L + "attention.head_count"),
    "KV heads 3": ("llama", sets(L + "attention.head_count_kv", "u32", 3), L + "attention.head_count_kv"),
    "KV heads 0": ("llama", sets(L + "attention.head_count_kv", "u32", 0), L + "attention.head_count_kv"),
    "KV heads by layer, too few": ("llama", sets(L + "attention.head_count_kv", "arr:u32", [2]),
                                   L + "attention.head_count_kv"),
    "KV heads by layer, strings": ("llama", sets(L + "attention.head_count_kv", "arr:str", ["2", "2"]),
                                   L + "attention.head_count_kv"),
    "head of 1": ("llama", sets(L + "attention.key_length", "u32", 1), L + "attention.key_length"),
    "head of 2^20": ("llama", sets(L + "attention.key_length", "u32", 2**20), L + "attention.key_length"),
    "values of another size": ("llama", sets(L + "attention.value_length", "u32", 8), L + "attention.value_length"),
    "rope dimensions 0": ("llama", sets(L + "rope.dimension_count", "u32", 0), L + "rope.dimension_count"),
    "rope dimensions odd": ("llama", sets(L + "rope.dimension_count", "u32", 15), L + "rope.dimension_count"),
    "rope dimensions many": ("llama", sets(L + "rope.dimension_count", "u32", 2**31), L + "rope.dimension_count"),
    "rope base 0": ("llama", sets(L + "rope.freq_base", "f32", 0.0), L + "rope.freq_base"),
    "rope base NaN": ("llama", sets(L + "rope.freq_base", "f32", NAN), L + "rope.freq_base"),
    "rope base -1": ("llama", sets(L + "rope.freq_base", "f32", -1.0), L + "rope.freq_base"),
    "rope scaling of an unknown kind": ("llama", sets(L + "rope.scaling.type", "str", "ntk"), L + "rope.scaling.type"),
    "rope scaling by 0": ("llama", lambda g: (g.set(L + "rope.scaling.type", "str", "linear"),
                                             g.set(L + "rope.scaling.factor", "f32", 0.0))[0], L + "rope.scaling.factor"),
    "rope scaling by infinity": ("llama", lambda g: (g.set(L + "rope.scaling.type", "str", "linear"),
                                                    g.set(L + "rope.scaling.factor", "f64", INF))[0],
                                 L + "rope.scaling.factor"),
    "epsilon missing": ("llama", removes(L + "attention.layer_norm_rms_epsilon"), "layer_norm_rms_epsilon"),
    "epsilon NaN": ("llama", sets(L + "attention.layer_norm_rms_epsilon", "f32", NAN), "layer_norm_rms_epsilon"),
    "epsilon -1": ("llama", sets(L + "attention.layer_norm_rms_epsilon", "f32", -1.0), "layer_norm_rms_epsilon"),
    "epsilon a string": ("llama", sets(L + "attention.layer_norm_rms_epsilon", "str", "1e-5"),
                         "layer_norm_rms_epsilon"),
    "vocabulary of another size": ("llama", sets(L + "vocab_size", "u32", 319), L + "vocab_size"),
    "vocabulary of 2^63": ("llama", sets(L + "vocab_size", "u64", 2**63), L + "vocab_size"),
    "experts": ("llama", sets(L + "expert_count", "u32", 8), L + "expert_count"),
    # tensors
    "tensor twice": ("llama", adds_tensor("output_norm.weight", 0, [64]), 'tensor "output_norm.weight": appears twice'),
    "tensor missing": ("llama", drops("blk.1.ffn_down.weight"), 'tensor "blk.1.ffn_down.weight": missing'),
    "tensor unheard of": ("llama", adds_tensor("blk.0.surprise", 0, [8], 2**16), "blk.0.surprise"),
    "tensor of a layer beyond": ("llama", lambda g: g.vector("blk.7.attn_norm.weight", [1.0] * 64),
                                 "blk.7.attn_norm.weight"),
    "tensor name of 65 bytes": ("llama", adds_tensor("n" * 65, 0, [8]), "its name has 65 bytes"),
    "tensor name not UTF-8": ("llama", adds_tensor(b"\xc0\x80", 0, [8]), "is not UTF-8"),
    "tensor of 0 dimensions": ("llama", reshapes("output_norm.weight"),
                               'tensor "output_norm.weight": has 0 dimensions'),
    "tensor of 5 dimensions": ("llama", reshapes("output_norm.weight", 64, 1, 1, 1, 1), "has 5 dimensions"),
    "tensor of 2^32 - 1 dimensions": ("llama", lambda g: g.to_bytes().replace(
        tiny.pack_string("output_norm.weight") + struct.pack("<I", 1),
        tiny.pack_string("output_norm.weight") + struct.pack("<I", 2**32 - 1)), "has 4294967295 dimensions"),
    "dimension 0": ("llama", reshapes("blk.0.attn_q.weight", 64, 0), "dimension 1 is 0"),
    "dimensions that wrap": ("llama", reshapes("output_norm.weight", 2**32, 2**32), "product of its dimensions"),
    "dimensions that wrap to the right size": ("llama", reshapes("output_norm.weight", 2**63, 2, 64),
                                               "product of its dimensions"),
    "size that wraps": ("llama", reshapes("output_norm.weight", 2**62), "output_norm.weight"),
    "size of a terabyte": ("llama", reshapes("output_norm.weight", 2**38), "output_norm.weight"),
    "part of a block": ("llama", reshapes("blk.0.attn_q.weight", 48, 64), 'tensor "blk.0.attn_q.weight"'),
    "transposed": ("llama", reshapes("blk.0.attn_k.weight", 32, 64), 'tensor "blk.0.attn_k.weight"'),
    "type 31": ("llama", retypes("blk.0.attn_q.weight", 31), "type 31 is not known"),
    "type 2^32 - 1": ("llama", retypes("blk.0.attn_q.weight", 2**32 - 1), "type 4294967295"),
    "norm in blocks": ("llama", lambda g: g.tensors.update({"output_norm.weight": (8, [64], bytes(68))}),
                       "output_norm.weight"),
    "offset out of the file": ("llama", moves("output_norm.weight", 2**20), 'tensor "output_norm.weight"'),
    "offset 2^64 - 32": ("llama", moves("output_norm.weight", 2**64 - 32), 'tensor "output_norm.weight"'),
    "offset unaligned": ("llama", moves("output_norm.weight", 4), "output_norm.weight\": offset 4 is no multiple"),
    "tensors overlap": ("llama", moves("blk.0.attn_q.weight", 32), "overlaps"),
    "tensors on one place": ("llama", moves("blk.1.ffn_up.weight", 0), "overlaps"),
    "data cut by one byte": ("llama", lambda g: g.to_bytes()[:-1], "beyond the file's"),
    "data missing": ("llama", lambda g: g.header(), "beyond the file's"),
    "rope divisors of 0": ("llama", lambda g: g.vector("rope_freqs.weight", [1.0] * 7 + [0.0]), "rope_freqs.weight"),
    "rope divisors NaN": ("llama", lambda g: g.vector("rope_freqs.weight", [1.0] * 7 + [NAN]), "rope_freqs.weight"),
    "rope divisors of another number": ("llama", lambda g: g.vector("rope_freqs.weight", [1.0] * 6),
                                        "rope_freqs.weight"),
    # vocabulary
    "tokenizer missing": ("llama", removes(T + "model"), T + "model"),
    "tokenizer unknown": ("llama", sets(T + "model", "str", "rwkv"), T + "model"),
    "tokenizer a number": ("llama", sets(T + "model", "u32", 5), T + "model"),
    "pre-tokenizer unknown": ("llama", sets(T + "pre", "str", "klingon"), T + "pre"),
    "pre-tokenizer not UTF-8": ("llama", sets(T + "pre", "str", b"\xff\xfe"), T + "pre"),
    "tokens missing": ("llama", removes(T + "tokens"), T + "tokens"),
    "tokens numbers": ("llama", sets(T + "tokens", "arr:u32", list(range(320))), T + "tokens"),
    "no tokens at all": ("llama", sets(T + "tokens", "arr:str", []), T + "tokens"),
    "tokens not an array": ("llama", sets(T + "tokens", "str", "a b c"), T + "tokens"),
    "one token less": ("llama",
                       lambda g: (edits(T + "tokens", lambda v: v[:-1])(g), g.metadata.pop(L + "vocab_size"))[0],
                       "token"),
    "tokens the same": ("llama", edits(T + "tokens", item(300, "!")), "are the same"),
    "tokens the same, not UTF-8": ("llama", lambda g: (edits(T + "tokens", item(300, b"\xff\0"))(g),
                                                      edits(T + "tokens", item(301, b"\xff\0"))(g))[0], "are the same"),
    "token types of another number": ("llama", edits(T + "token_type", lambda v: v[:-1]), T + "token_type"),
    "token type 99": ("llama", edits(T + "token_type", item(5, 99)), T + "token_type"),
    "token type -1": ("llama", edits(T + "token_type", item(5, -1)), T + "token_type"),
    "token types as strings": ("llama", sets(T + "token_type", "arr:str", ["1"] * 320), T + "token_type"),
    "scores as strings": ("llama", sets(T + "scores", "arr:str", ["0"] * 320), T + "scores"),
    "scores as whole numbers": ("llama", sets(T + "scores", "arr:i32", [0] * 320), T + "scores"),
    "scores of another number": ("llama", sets(T + "scores", "arr:f32", [0.0] * 7), T + "scores"),
    "merges missing": ("llama", removes(T + "merges"), T + "merges"),
    "merges numbers": ("llama", sets(T + "merges", "arr:u32", [1]), T + "merges"),
    "merge of one": ("llama", edits(T + "merges", item(0, "ab")), T + "merges: merge 0"),
    "merge of three": ("llama", edits(T + "merges", item(0, "a b c")), T + "merges: merge 0"),
    "merge of unknown tokens": ("llama", edits(T + "merges", item(0, "\u4e16 \u754c")), T + "merges: merge 0"),
    "merge empty": ("llama", edits(T + "merges", item(0, "")), T + "merges: merge 0"),
    "merge not UTF-8": ("llama", edits(T + "merges", item(0, b"\xff \xfe")), T + "merges: merge 0"),
    "BOS out of range": ("llama", sets(T + "bos_token_id", "u32", 320), T + "bos_token_id"),
    "BOS 2^32 - 1": ("llama", sets(T + "bos_token_id", "u32", 2**32 - 1), T + "bos_token_id"),
    "EOS negative": ("llama", sets(T + "eos_token_id", "i32", -1), T + "eos_token_id"),
    "EOS a string": ("llama", sets(T + "eos_token_id", "str", "</s>"), T + "eos_token_id"),
    "adds BOS by a number": ("llama", sets(T + "add_bos_token", "u32", 1), T + "add_bos_token"),
    "chat template a number": ("llama", sets("tokenizer.chat_template", "u32", 1), "tokenizer.chat_template"),
    # SentencePiece
    "scores missing": ("spm", removes(T + "scores"), T + "scores"),
    "scores NaN": ("spm", edits(T + "scores", item(300, NAN)), T + "scores"),
    "scores infinite": ("spm", edits(T + "scores", item(300, INF)), T + "scores"),
    "scores cut": ("spm", edits(T + "scores", lambda v: v[:100]), T + "scores"),
    "byte token of another name": ("spm", edits(T + "tokens", item(3, "<0xZZ>")), "tokenizer.ggml.token_type: token 3"),
    "byte tokens twice": ("spm", edits(T + "tokens", item(4, "<0x00>")), "tokenizer.ggml.tokens"),
    # the other architectures
    "window missing": ("gemma3", removes("gemma3.attention.sliding_window"), "gemma3.attention.sliding_window"),
    "window 0": ("gemma3", sets("gemma3.attention.sliding_window", "u32", 0), "gemma3.attention.sliding_window"),
    "window 2^31": ("gemma3", sets("gemma3.attention.sliding_window", "u32", 2**31), "gemma3.attention.sliding_window"),
    "window pattern too short": ("gemma3", sets("gemma3.attention.sliding_window_pattern", "arr:bool", [True] * 6),
                                 "gemma3.attention.sliding_window_pattern"),
    "window pattern of strings": ("gemma3", sets("gemma3.attention.sliding_window_pattern", "arr:str", ["1"] * 7),
                                  "gemma3.attention.sliding_window_pattern"),
    "window pattern of 2": ("gemma3", sets("gemma3.attention.sliding_window_pattern", "arr:u32", [1, 1, 1, 1, 1, 2, 1]),
                            "gemma3.attention.sliding_window_pattern"),
    "soft cap -1": ("gemma3", sets("gemma3.attn_logit_softcapping", "f32", -1.0), "gemma3.attn_logit_softcapping"),
    "soft cap NaN": ("gemma3", sets("gemma3.final_logit_softcapping", "f32", NAN), "gemma3.final_logit_softcapping"),
    "local rope base 0": ("gemma3", sets("gemma3.rope.freq_base_swa", "f32", 0.0), "gemma3.rope.freq_base_swa"),
    "q norm missing": ("gemma3", drops("blk.3.attn_q_norm.weight"), "blk.3.attn_q_norm.weight"),
    "q norm of another size": ("qwen3", lambda g: g.vector("blk.0.attn_q_norm.weight", [1.0] * 8),
                               "blk.0.attn_q_norm.weight"),
    "bias missing": ("qwen2",
                     lambda g: [g.tensors.pop(n) for n in list(g.tensors) if n.endswith("attn_q.bias")][:0] or None,
                     "attn_q.bias"),
    "fused rows too few": ("phi3", lambda g: reshapes("blk.0.attn_qkv.weight", 64, 96)(g), "blk.0.attn_qkv.weight"),
    "long divisors of 0": ("phi3", fills("rope_factors_long.weight", struct.pack("<f", 0.0)),
                           "rope_factors_long.weight"),
    "long divisors without short ones": ("phi3", drops("rope_factors_short.weight"), "rope_factors_"),
    "original context 0": ("phi3", sets("phi3.rope.scaling.original_context_length", "u32", 0),
                           "phi3.rope.scaling.original_context_length"),
}


def make(name):
    """The bytes of a malformed file."""
    base, change, _ = CASES[name]
    g = Spoiled(good(base))
    changed = change(g)
    return changed if isinstance(changed, bytes) else g.to_bytes()


_made = {}


def good(base):
    if base not in _made:
        _made[base] = make_base(base)
    return _made[base]
