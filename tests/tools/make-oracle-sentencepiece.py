#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make-oracle-sentencepiece.py - token ids by the `sentencepiece` package.

    make-oracle-sentencepiece.py --train > tests/data/sentencepiece-vocab.txt
    make-oracle-sentencepiece.py GEMMA.gguf > tests/data/sentencepiece-oracle.txt

Needs the packages gguf, protobuf, sentencepiece and tokenizers.  The forms of
both files are told in tests/data/README.md.
"""

import importlib.util
import io
import os
import re
import sys

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as model_pb2

HERE = os.path.dirname(os.path.abspath(__file__))
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SPACE = "\u2581"


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, os.path.join(HERE, path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tokens = load("make_oracle_tokens", "make-oracle-tokens.py")
tiny_gguf = load("make_tiny_gguf", "make_tiny_gguf.py")
tiny_vocab = load("tiny_vocab", "tiny_vocab.py")

# What SentencePiece does specially, beside the texts of make-oracle-tokens.py.
MORE = {
    "sp-spaces-1-to-40": "".join("x" + " " * n for n in range(1, 41)),
    "sp-spaces-leading": "     five before",
    "sp-spaces-trailing": "five behind     ",
    "sp-spaces-around": "   a   b   ",
    "sp-newlines-1-to-40": "".join("x" + "\n" * n for n in range(1, 41)),
    "sp-tabs-1-to-40": "".join("x" + "\t" * n for n in range(1, 41)),
    "sp-newline-space": "\n \n  \n   \n    a\n",
    "sp-space-mark": "\u2581",
    "sp-space-marks": "\u2581\u2581\u2581a\u2581b \u2581c\u2581 d",
    "sp-space-mark-mixed": "a \u2581 \u2581\u2581  \u2581b",
    "sp-byte-names": "<0x0A><0x41><0xFF> <0x0a> <0xG0> \n<0x20>",
    "sp-byte-fallback": "\u0378\U000e01ef\U0010ffff\ue000 a\U0001f9ffb\ufdd0",
    "sp-byte-fallback-words": "x\U00012345y \U00012345\U00012345 z\U0001e900",
    "sp-tags-inside": "wo<b>rd</b>s <table><tr><td>1</td></tr></table>x<i>",
    "sp-tags-cut": "<b <b>> <<b>> </b <tab <table>< table>",
    "sp-tags-small": "a<tag>b</tag> <tag><tag> tag>x <tag>x <ta<tag>g>",
    "sp-tag-first": "<b>bold</b>",
    "sp-tag-first-small": "<tag>first",
    "sp-newline-first": "\nfirst",
    "sp-space-then-tag": " <b> x",
    "sp-control-names": "<bos>Hi<eos> <pad><unk><mask> <start_of_turn>user\nHi<end_of_turn>\n",
    "sp-control-first": "<bos> a",
    "sp-control-twice": "<bos><bos>a<bos>",
    "sp-control-small": "<s>Hi</s> <s> x</s>\n<s><tag></s>",
    "sp-control-cut": "<bo<bos>s> <start_of_tur <start_of_turn",
    "sp-unknown-small": "\u4e00\u4e8c\u4e09 \u0416x\u0416 \u0416\u0416\n\u0416",
    "sp-mixed-scripts": "abcабвαβγ漢字カナ한글עבריתعربىไทยहिन्दी123",
    "sp-mixed-scripts-spaced": "abc абв αβγ 漢字 カナ 한글 עברית عربى ไทย हिन्दी 123",
    "sp-leading-letters": "the quick the the thethe",
    "sp-unused-words": "there where other others answer answered water writing",
    "sp-long-word": "".join(chr(97 + (i * i + 7 * i) % 26) for i in range(700)),
    "sp-run-the": "the " * 150,
    "sp-run-mark": "\u2581" * 200,
    "sp-run-mark-space": "\u2581 " * 100,
    "sp-run-tags": "<b>" * 80,
    "sp-run-bytes": "\U00012345" * 40,
    "sp-emoji-zwj-run": "👩\u200d🚀" * 30,
    "sp-digits-grouped": "1 22 333 4444 55555 1,234,567.89",
    "sp-escapes": "\\u2581 &nbsp; %20 \\n\\t",
    "sp-nbsp": "a\u00a0b \u00a0 c\u3000d",
    "sp-cr": "a\r\n\r\nb\r",
}


def processor(pieces, flags, byte_fallback=True):
    """pieces: (text, score, type); flags: add_dummy_prefix, remove_extra_whitespaces."""
    m = model_pb2.ModelProto()
    for i, (text, score, kind) in enumerate(pieces):
        m.pieces.add(piece=text.replace(" ", SPACE) if kind == USER_DEFINED else text, score=score, type=kind)
        if kind == UNKNOWN:
            m.trainer_spec.unk_id, m.trainer_spec.unk_piece = i, text
    m.trainer_spec.model_type = model_pb2.TrainerSpec.BPE
    m.trainer_spec.byte_fallback = byte_fallback
    m.normalizer_spec.name = "identity"
    m.normalizer_spec.add_dummy_prefix, m.normalizer_spec.remove_extra_whitespaces = flags
    m.normalizer_spec.escape_whitespaces = True
    p = sentencepiece.SentencePieceProcessor()
    p.LoadFromSerializedProto(m.SerializeToString())
    return p


def read_gguf(path):
    from gguf import GGUFReader
    fields = GGUFReader(path).fields
    texts, scores, types, unknown = (fields["tokenizer.ggml." + k].contents()
                                     for k in ("tokens", "scores", "token_type", "unknown_token_id"))
    types[unknown] = UNKNOWN
    return list(zip(texts, scores, types))


def with_special(p, pieces, text):
    """Control tokens by leftmost, longest match; what lies between by p, which adds no prefix."""
    names = sorted((t for t, _, kind in pieces if kind in (CONTROL, UNKNOWN)), key=len, reverse=True)
    ids = {t: i for i, (t, _, _) in enumerate(pieces)}
    out = []
    for part in re.split("(%s)" % "|".join(map(re.escape, names)), text):
        out += [ids[part]] if part in names else p.EncodeAsIds(part)
    return out


def second_opinion(pieces):
    """The same by `tokenizers`, with merges as converters for transformers derive them from the scores."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers
    normal = {t: (i, s) for i, (t, s, kind) in enumerate(pieces) if kind == NORMAL}
    merges = []
    for whole, (_, score) in normal.items():
        local = [(whole[:k], whole[k:]) for k in range(1, len(whole))
                 if whole[:k] in normal and whole[k:] in normal]
        merges += [(-score, normal[a][0], normal[b][0], a, b) for a, b in local]
    merges.sort(key=lambda m: m[:3])
    vocab = {t.replace(" ", SPACE): i for i, (t, _, _) in enumerate(pieces)}
    t = Tokenizer(models.BPE(vocab, [m[3:] for m in merges], byte_fallback=True, fuse_unk=True,
                             unk_token="<unk>"))
    t.normalizer = normalizers.Replace(" ", SPACE)
    t.add_tokens([AddedToken(x.replace(" ", SPACE), normalized=True) for x, _, kind in pieces
                  if kind == USER_DEFINED])
    return t


def train():
    text = tiny_gguf.TEXT + tokens.GERMAN + "\n" + tokens.CODE_C + tokens.CODE_PY + tokens.TEXTS["lorem"]
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(line for line in text.split("\n") if line.strip()), model_writer=out,
        model_type="bpe", vocab_size=640, byte_fallback=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False, character_coverage=0.995, split_digits=True, minloglevel=2,
        control_symbols=["<start_of_turn>", "<end_of_turn>"],
        user_defined_symbols=["\n", "\n\n", SPACE * 2, SPACE * 4, "<tag>", "</tag>", "tag>x"])
    m = model_pb2.ModelProto.FromString(out.getvalue())
    for i, p in enumerate(m.pieces):
        kind, text = p.type, p.piece
        # One user-defined token as converters write it; every ninth merged piece unused.
        if text == SPACE * 4:
            text = "    "
        if kind == NORMAL and len(text) > 2 and i % 9 == 0:
            kind = UNUSED
        print("piece", kind, "%g" % p.score, tokens.escape(text))


def main():
    if sys.argv[1:] == ["--train"]:
        return train()
    gemma = read_gguf(sys.argv[1])
    small = tiny_vocab.read_pieces()
    no_bytes = [(t, s, CONTROL if kind == BYTE else kind) for t, s, kind in small]
    by_gemma, second = processor(gemma, (False, False)), second_opinion(gemma)
    by_small = [("small", processor(small, (True, False))), ("bare", processor(small, (False, False))),
                ("trimmed", processor(small, (True, True))),
                ("unknown", processor(no_bytes, (True, False), byte_fallback=False))]
    n_agreed = 0
    for name, text in {**tokens.TEXTS, **MORE}.items():
        ids = by_gemma.EncodeAsIds(text)
        n_agreed += second.encode(text, add_special_tokens=False).ids == ids
        print("text", name, tokens.escape(text))
        print("gemma", *ids)
        special = with_special(by_gemma, gemma, text)
        if special != ids:
            print("gemma-special", *special)
        for kind, p in by_small:
            print(kind, *p.EncodeAsIds(text))
    print("%d of %d texts have the same ids by tokenizers" % (n_agreed, len(tokens.TEXTS) + len(MORE)),
          file=sys.stderr)


if __name__ == "__main__":
    main()
