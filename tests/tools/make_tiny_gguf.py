#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tiny random GGUF models for tests: a few hundred kB, the same bytes for the same options.

The weights are scaled so that greedy text wanders instead of repeating one token,
and control tokens are never likely, so that a generation runs to its limit.
Python's standard library only.  As a library:

    import make_tiny_gguf as tiny
    g = tiny.build(type="q4_1", layers=3)
    g.set("llama.context_length", "u32", 64)
    g.write("model.gguf")
"""
import argparse
import itertools
import random
import struct
import sys

import tiny_blocks
import tiny_vocab

TYPES = {name: number for name, (number, _, _) in tiny_blocks.TYPES.items()}
VALUE_TYPES = {"u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "str": 8,
               "arr": 9, "u64": 10, "i64": 11, "f64": 12}
FORMATS = {"u8": "<B", "i8": "<b", "u16": "<H", "i16": "<h", "u32": "<I", "i32": "<i", "f32": "<f", "bool": "<B",
           "u64": "<Q", "i64": "<q", "f64": "<d"}

CHATML = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
          "{{ '<|im_start|>system\nYou are a helpful assistant<|im_end|>\n' }}{% endif %}"
          "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
UNKNOWN_TEMPLATE = "{% for m in messages %}[[{{ m.role }}]] {{ m.content }} {% endfor %}[[reply]]"

# The merges are learned from this.
TEXT = """The quick brown fox jumps over the lazy dog while the river runs under the old stone bridge.
Once upon a time there was a small house near the sea, and in the house there lived a man who wrote letters
to everyone he had ever known. He wrote about the weather and the water, about the boats that came in the
morning and the birds that left in the evening. Nobody answered, but he was not unhappy: the writing was
what he wanted. There are things that one says and things that one keeps, and the difference is not always
in the words. When the winter came he stopped writing and began to read what the others had written to
him, years before, and found that they had asked him the same questions that he was asking them now.
int main(void) { return 0; } for (int i = 0; i < 10; i++) printf("%d\\n", i); 1234567890 3.14159
"""


def byte_to_unicode():
    """GPT-2's reversible map of bytes to printable characters."""
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, extra = {}, 0
    for b in range(256):
        if b in keep:
            table[b] = chr(b)
        else:
            table[b] = chr(256 + extra)
            extra += 1
    return table


def learn_merges(count):
    """Byte-pair merges of TEXT, most frequent first (ties: in the order of the characters)."""
    table = byte_to_unicode()
    words = {}
    for i, word in enumerate(TEXT.replace("\n", " ").split(" ")):
        symbols = tuple(table[b] for b in ((" " if i else "") + word).encode())
        words[symbols] = words.get(symbols, 0) + 1
    merges = []
    while len(merges) < count:
        pairs = {}
        for symbols, n in words.items():
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] = pairs.get(pair, 0) + n
        if not pairs:
            break
        best = min(pairs, key=lambda p: (-pairs[p], p))
        merges.append(best)
        words = merge_words(words, best)
    return merges


def merge_words(words, pair):
    out = {}
    for symbols, n in words.items():
        merged, i = [], 0
        while i < len(symbols):
            if symbols[i:i + 2] == pair:
                merged.append(symbols[i] + symbols[i + 1])
                i += 2
            else:
                merged.append(symbols[i])
                i += 1
        merged = tuple(merged)
        out[merged] = out.get(merged, 0) + n
    return out


def f16(x):
    return struct.unpack("<e", struct.pack("<e", x))[0]


def encode_bf16(row):
    out = bytearray()
    for x in row:
        bits = struct.unpack("<I", struct.pack("<f", x))[0]
        out += struct.pack("<H", ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) & 0xffff)
    return bytes(out)


def encode_q8_0(row):
    out = bytearray()
    for i in range(0, len(row), 32):
        block = row[i:i + 32]
        d = f16(max(abs(x) for x in block) / 127)
        out += struct.pack("<e32b", d, *(max(-127, min(127, round(x / d))) if d else 0 for x in block))
    return bytes(out)


def pack_nibbles(q):
    """Element j of the first half lies in the low nibble of byte j, of the second half in the high one."""
    return bytes(q[j] | q[j + 16] << 4 for j in range(16))


def encode_q4_0(row):
    out = bytearray()
    for i in range(0, len(row), 32):
        block = row[i:i + 32]
        d = f16(max(block, key=abs) / -8)
        out += struct.pack("<e", d) + pack_nibbles([max(0, min(15, int(x / d + 8.5))) if d else 8 for x in block])
    return bytes(out)


def encode_q4_1(row):
    out = bytearray()
    for i in range(0, len(row), 32):
        block = row[i:i + 32]
        m = f16(min(block))
        d = f16((max(block) - m) / 15)
        out += struct.pack("<ee", d, m) + pack_nibbles([max(0, min(15, round((x - m) / d))) if d else 0 for x in block])
    return bytes(out)


ENCODERS = {
    "f32": lambda row: struct.pack("<%df" % len(row), *row),
    "f16": lambda row: struct.pack("<%de" % len(row), *row),
    "bf16": encode_bf16,
    "q8_0": encode_q8_0,
    "q4_0": encode_q4_0,
    "q4_1": encode_q4_1,
}


def pack_string(s):
    data = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(data)) + data


def pack_value(kind, value):
    """kind: a name of VALUE_TYPES, or "arr:ELEMENT"."""
    if kind.startswith("arr:"):
        element = kind[4:]
        body = b"".join(pack_value(element, v)[4:] for v in value)
        return struct.pack("<IIQ", VALUE_TYPES["arr"], VALUE_TYPES[element], len(value)) + body
    head = struct.pack("<I", VALUE_TYPES[kind])
    if kind == "str":
        return head + pack_string(value)
    return head + struct.pack(FORMATS[kind], value)


class Gguf:
    """A file in the making: metadata in order, tensors in order."""

    def __init__(self, version=3, alignment=32):
        self.version = version
        self.alignment = alignment
        self.metadata = {}
        self.tensors = {}

    def set(self, key, kind, value):
        self.metadata[key] = (kind, value)

    def remove(self, key):
        del self.metadata[key]

    def tensor(self, name, kind, dims, data):
        """dims in the file's order: the fastest first."""
        self.tensors[name] = (TYPES.get(kind, kind), list(dims), data)

    def matrix(self, name, kind, rows):
        self.tensor(name, kind, [len(rows[0]), len(rows)], b"".join(ENCODERS[kind](r) for r in rows))

    def vector(self, name, values):
        self.tensor(name, "f32", [len(values)], ENCODERS["f32"](values))

    def header(self):
        out = bytearray(b"GGUF" + struct.pack("<IQQ", self.version, len(self.tensors), len(self.metadata)))
        for key, (kind, value) in self.metadata.items():
            out += pack_string(key) + pack_value(kind, value)
        offset = 0
        for name, (kind, dims, data) in self.tensors.items():
            out += pack_string(name) + struct.pack("<I", len(dims)) + struct.pack("<%dQ" % len(dims), *dims)
            out += struct.pack("<IQ", kind, offset)
            offset += len(data) + -len(data) % self.alignment
        return bytes(out)

    def to_bytes(self):
        out = bytearray(self.header())
        out += bytes(-len(out) % self.alignment)
        for _, _, data in self.tensors.values():
            out += data + bytes(-len(data) % self.alignment)
        return bytes(out)

    def write(self, path):
        with open(path, "wb") as f:
            f.write(self.to_bytes())


def add_bpe(g, vocab, pre, chat_template):
    """Byte-level BPE in the order of SmolLM2: control tokens, bytes, merges, then unused ones."""
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    merges = learn_merges(vocab - len(control) - 256)
    tokens = control + list(byte_to_unicode().values()) + [a + b for a, b in merges]
    kinds = [3] * len(control) + [1] * (len(tokens) - len(control))
    for i in range(vocab - len(tokens)):
        tokens.append("<unused%d>" % i)
        kinds.append(5)
    g.set("tokenizer.ggml.model", "str", "gpt2")
    g.set("tokenizer.ggml.pre", "str", pre)
    g.set("tokenizer.ggml.tokens", "arr:str", tokens)
    g.set("tokenizer.ggml.token_type", "arr:i32", kinds)
    g.set("tokenizer.ggml.merges", "arr:str", ["%s %s" % m for m in merges])
    g.set("tokenizer.ggml.bos_token_id", "u32", 1)
    g.set("tokenizer.ggml.eos_token_id", "u32", 2)
    g.set("tokenizer.ggml.unknown_token_id", "u32", 0)
    g.set("tokenizer.ggml.padding_token_id", "u32", 2)
    g.set("tokenizer.ggml.add_bos_token", "bool", False)
    add_chat_template(g, chat_template)
    return kinds


def add_sentencepiece(g, vocab, pre, chat_template):
    fields, kinds = tiny_vocab.sentencepiece(vocab=vocab)
    for key, kind, value in fields:
        g.set(key, kind, value)
    add_chat_template(g, chat_template)
    return kinds


def add_chat_template(g, chat_template):
    if chat_template == "chatml":
        g.set("tokenizer.chat_template", "str", CHATML)
    elif chat_template == "unknown":
        g.set("tokenizer.chat_template", "str", UNKNOWN_TEMPLATE)


ARCHS = ["llama", "gemma3", "qwen2", "qwen3", "phi3"]
# Each adds tokenizer.ggml.* of so many tokens and returns their types.
TOKENIZERS = {"gpt2": add_bpe, "llama": add_sentencepiece}


class Maker:
    """One model in the making: its sizes, its file, its random numbers."""

    def __init__(self, o):
        self.__dict__.update(o)
        self.rng = random.Random(self.seed)
        self.types = itertools.cycle(self.type.split(","))
        self.g = Gguf()

    def set(self, key, kind, value):
        self.g.set("%s.%s" % (self.arch, key), kind, value)

    def matrix(self, name, n_out, n_in, scale, zero=()):
        """Elements have a standard deviation of scale / sqrt(n_in); the rows in zero are 0."""
        std, kind = scale / n_in ** 0.5, next(self.types)
        if kind not in ENCODERS:
            data = tiny_blocks.random_rows(kind, n_out, n_in, self.rng, std, frozenset(zero))
            self.g.tensor(name, kind, [n_in, n_out], data)
            return
        rows = [[self.rng.gauss(0, std) for _ in range(n_in)] for _ in range(n_out)]
        for i in zero:
            rows[i] = [0.0] * n_in
        self.g.matrix(name, kind, rows)

    def norm(self, name, n, mean=1.0):
        self.g.vector(name, [mean + self.rng.uniform(-0.2, 0.2) for _ in range(n)])

    def bias(self, name, n):
        self.g.vector(name, [self.rng.gauss(0, 0.3) for _ in range(n)])


def set_sizes(m):
    for key, value in (("block_count", m.layers), ("context_length", m.ctx), ("embedding_length", m.embd),
                       ("feed_forward_length", m.ff), ("attention.head_count", m.heads),
                       ("attention.head_count_kv", m.kv_heads), ("vocab_size", m.vocab),
                       ("rope.dimension_count", m.rope_dims)):
        m.set(key, "u32", value)
    if m.head_dim * m.heads != m.embd:
        m.set("attention.key_length", "u32", m.head_dim)
        m.set("attention.value_length", "u32", m.head_dim)
    m.set("rope.freq_base", "f32", m.rope_base)
    m.set("attention.layer_norm_rms_epsilon", "f32", 1e-5)
    if m.window is not None:
        m.set("attention.sliding_window", "u32", m.window)
    if m.window_pattern is not None:
        m.set("attention.sliding_window_pattern", "u32", m.window_pattern)
    if m.local_base is not None:
        m.set("rope.freq_base_swa", "f32", m.local_base)
    if m.attn_softcap is not None:
        m.set("attn_logit_softcapping", "f32", m.attn_softcap)
    if m.final_softcap is not None:
        m.set("final_logit_softcapping", "f32", m.final_softcap)


def set_rope_scaling(m):
    if m.rope_linear:
        m.set("rope.scaling.type", "str", "linear")
        m.set("rope.scaling.factor", "f32", m.rope_linear)
    if m.rope_yarn:
        m.set("rope.scaling.type", "str", "yarn")
        m.set("rope.scaling.factor", "f32", m.rope_yarn)
        m.set("rope.scaling.original_context_length", "u32", m.ctx_orig)
    if m.rope_long:
        m.set("rope.scaling.attn_factor", "f32", m.rope_long)
        m.set("rope.scaling.original_context_length", "u32", m.ctx_orig)


def add_attention(m, p):
    q, kv = m.heads * m.head_dim, m.kv_heads * m.head_dim
    if m.arch == "phi3":
        m.matrix(p + "attn_qkv.weight", q + 2 * kv, m.embd, 1.6)
    else:
        m.matrix(p + "attn_q.weight", q, m.embd, 1.7)
        m.matrix(p + "attn_k.weight", kv, m.embd, 1.7)
        m.matrix(p + "attn_v.weight", kv, m.embd, 1.5)
    if m.biases or m.arch == "qwen2":
        for b, n in (("q", q), ("k", kv), ("v", kv)):
            m.bias(p + "attn_%s.bias" % b, n)
    if m.arch in ("qwen3", "gemma3"):
        m.norm(p + "attn_q_norm.weight", m.head_dim, 1.7)
        m.norm(p + "attn_k_norm.weight", m.head_dim, 1.7)
    m.matrix(p + "attn_output.weight", m.embd, q, 1.5)


def add_layer(m, p):
    m.norm(p + "attn_norm.weight", m.embd)
    add_attention(m, p)
    if m.arch == "gemma3":
        m.norm(p + "post_attention_norm.weight", m.embd)
    m.norm(p + "ffn_norm.weight", m.embd)
    if m.arch == "phi3":
        m.matrix(p + "ffn_up.weight", 2 * m.ff, m.embd, 1.5)
    else:
        m.matrix(p + "ffn_gate.weight", m.ff, m.embd, 1.5)
        m.matrix(p + "ffn_up.weight", m.ff, m.embd, 1.5)
    m.matrix(p + "ffn_down.weight", m.embd, m.ff, 1.5)
    if m.arch == "gemma3":
        m.norm(p + "post_ffw_norm.weight", m.embd)


def add_rope_divisors(m):
    half = range(m.rope_dims // 2)
    if m.rope_freqs:
        m.g.vector("rope_freqs.weight", [1 + 0.5 * i for i in half])
    if m.rope_long:
        m.g.vector("rope_factors_long.weight", [1 + 1.5 * i for i in half])
        m.g.vector("rope_factors_short.weight", [1 + 0.1 * i for i in half])


def build(arch="llama", type="f32", layers=None, embd=64, heads=4, kv_heads=2, head_dim=None, ff=128, vocab=512,
          tokenizer="gpt2", pre="smollm", chat_template="chatml", ctx=2048, seed=1, tied=None, biases=False,
          ascii=False, rope_base=None, rope_dims=None, rope_linear=None, rope_freqs=False, rope_yarn=None,
          rope_long=None, ctx_orig=None, window=None, window_pattern=None, local_base=None, attn_softcap=None,
          final_softcap=None, name="tiny"):
    """A complete model.

    type: of all matrices, or several with commas between, for one matrix after the other.  ascii: bytes above 127 are not likely in its text.  rope_linear, rope_yarn: factors; rope_long: the factor of
    sine and cosine; ctx_orig: the original context.  gemma3 has a window of 48, 7 layers, of which the sixth is
    global, and the embedding as its output unless the options say otherwise.
    """
    o = dict(locals())
    if arch not in ARCHS:
        raise ValueError("no such architecture: " + arch)
    if any(t not in TYPES for t in type.split(",")):
        raise ValueError("no such type: " + type)
    if tokenizer == "gpt2" and vocab < 259:
        raise ValueError("vocab: at least 259 (256 bytes and 3 control tokens)")
    if tokenizer not in TOKENIZERS:
        raise ValueError("no such tokenizer: " + tokenizer)
    gemma = arch == "gemma3"
    for key, value in (("layers", 7 if gemma else 2), ("head_dim", embd // heads), ("tied", gemma),
                       ("window", 48 if gemma else None), ("rope_base", 1e6 if gemma else 10000.0), ("ctx_orig", ctx // 4)):
        if o[key] is None:
            o[key] = value
    o["rope_dims"] = rope_dims or o["head_dim"]
    m = Maker(o)
    m.g.set("general.architecture", "str", arch)
    m.g.set("general.name", "str", name)
    m.g.set("general.alignment", "u32", m.g.alignment)
    set_sizes(m)
    set_rope_scaling(m)
    kinds = TOKENIZERS[tokenizer](m.g, vocab, pre, chat_template)

    # The embedding is weak beside what the layers add, and attention is sharp, so that the next
    # token hangs on the whole sequence and not on the last token alone.
    m.matrix("token_embd.weight", vocab, embd, 0.5 * (1 if gemma else embd ** 0.5))
    for i in range(m.layers):
        add_layer(m, "blk.%d." % i)
    m.norm("output_norm.weight", embd)
    add_rope_divisors(m)
    if not m.tied:
        m.matrix("output.weight", vocab, embd, 3.5, zero=unlikely(kinds, ascii))
    return m.g


def unlikely(kinds, ascii):
    """Tokens that must not come: all but normal ones, and perhaps bytes that are no printable ASCII."""
    return [i for i, kind in enumerate(kinds)
            if kind != 1 or (ascii and 3 <= i < 259 and not 32 <= i - 3 < 127)]


def parse_set(text):
    """KEY=TYPE:VALUE"""
    key, _, rest = text.partition("=")
    kind, _, value = rest.partition(":")
    if kind == "str":
        return key, kind, value
    if kind == "bool":
        return key, kind, value in ("1", "true")
    return key, kind, float(value) if kind in ("f32", "f64") else int(value, 0)


def main(argv):
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("-o", "--output", required=True, metavar="FILE")
    p.add_argument("--arch", default="llama", choices=ARCHS)
    p.add_argument("--type", default="f32", help="of all matrices, or several with commas between, in turn: "
                   + " ".join(TYPES))
    p.add_argument("--layers", type=int, help="default 2, gemma3 7")
    p.add_argument("--embd", type=int, default=64, help="a multiple of 32")
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--kv-heads", type=int, default=2)
    p.add_argument("--head-dim", type=int, help="a multiple of 16; default embd / heads")
    p.add_argument("--ff", type=int, default=128, help="a multiple of 32")
    p.add_argument("--vocab", type=int, default=512)
    p.add_argument("--tokenizer", default="gpt2", choices=sorted(TOKENIZERS))
    p.add_argument("--pre", default="smollm")
    p.add_argument("--chat-template", default="chatml", choices=["chatml", "none", "unknown"])
    p.add_argument("--ctx", type=int, default=2048)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--tied", action="store_true", default=None, help="no output.weight")
    p.add_argument("--biases", action="store_true", help="with biases on q, k and v")
    p.add_argument("--ascii", action="store_true", help="bytes other than printable ASCII are not likely")
    p.add_argument("--rope-base", type=float, help="default 10000, gemma3 1000000")
    p.add_argument("--rope-linear", type=float, metavar="FACTOR")
    p.add_argument("--rope-dims", type=int, help="rotated dimensions of a head")
    p.add_argument("--rope-yarn", type=float, metavar="FACTOR")
    p.add_argument("--rope-long", type=float, metavar="FACTOR", help="of sine and cosine, with two lists of divisors")
    p.add_argument("--ctx-orig", type=int, help="original context; default ctx / 4")
    p.add_argument("--rope-freqs", action="store_true")
    p.add_argument("--window", type=int)
    p.add_argument("--window-pattern", type=int)
    p.add_argument("--local-base", type=float, help="rope base of layers with a window")
    p.add_argument("--attn-softcap", type=float)
    p.add_argument("--final-softcap", type=float)
    p.add_argument("--name", default="tiny")
    p.add_argument("--set", action="append", default=[], metavar="KEY=TYPE:VALUE", help="add or replace metadata")
    p.add_argument("--remove", action="append", default=[], metavar="KEY", help="leave metadata out")
    o = vars(p.parse_args(argv))
    output, sets, removes = o.pop("output"), o.pop("set"), o.pop("remove")
    g = build(**o)
    for s in sets:
        g.set(*parse_set(s))
    for key in removes:
        g.remove(key)
    g.write(output)


if __name__ == "__main__":
    main(sys.argv[1:])
