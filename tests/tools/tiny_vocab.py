#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small SentencePiece vocabulary for tiny models: that of tests/data/sentencepiece-vocab.txt.

    import tiny_vocab
    fields, types = tiny_vocab.sentencepiece(vocab=512)
    for key, kind, value in fields:
        g.set(key, kind, value)         # of make_tiny_gguf.Gguf

Python's standard library only.
"""
import os
import re

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "sentencepiece-vocab.txt")


def unescape(text):
    return re.sub(rb"%([0-9A-F]{2})", lambda m: bytes([int(m[1], 16)]), text.encode()).decode()


def read_pieces(path=FILE):
    """[(text, score, type)] by id."""
    with open(path, encoding="ascii") as f:
        rows = [line.split() for line in f if line.startswith("piece ")]
    return [(unescape(text), float(score), int(kind)) for _, kind, score, text in rows]


def sentencepiece(vocab=None, add_space_prefix=None, add_bos=True):
    """The tokenizer.ggml.* fields as (key, kind, value), and the tokens' types.

    vocab: so many tokens; what is missing is filled with unused ones, of too many the ones that were
    learned last are left out (303 or more).  A flag that is None is left out of the file.
    """
    pieces = read_pieces()
    vocab = vocab or len(pieces)
    n_kept = next(i for i, (_, _, kind) in enumerate(pieces) if kind in (NORMAL, UNUSED))
    chars = [p for p in pieces[n_kept:] if len(p[0]) == 1]
    merged = [p for p in pieces[n_kept:] if len(p[0]) > 1]
    n_merged = vocab - n_kept - len(chars)
    if n_merged < 0:
        raise ValueError("vocab: at least %d" % (n_kept + len(chars)))
    pieces = pieces[:n_kept] + merged[:n_merged] + chars
    pieces += [("<unused%d>" % i, -1e6, UNUSED) for i in range(vocab - len(pieces))]
    texts, scores, types = (list(column) for column in zip(*pieces))
    fields = [("tokenizer.ggml.model", "str", "llama"),
              ("tokenizer.ggml.pre", "str", "default"),
              ("tokenizer.ggml.tokens", "arr:str", texts),
              ("tokenizer.ggml.scores", "arr:f32", scores),
              ("tokenizer.ggml.token_type", "arr:i32", types),
              ("tokenizer.ggml.bos_token_id", "u32", texts.index("<s>")),
              ("tokenizer.ggml.eos_token_id", "u32", texts.index("</s>")),
              ("tokenizer.ggml.unknown_token_id", "u32", texts.index("<unk>")),
              ("tokenizer.ggml.add_bos_token", "bool", add_bos)]
    if add_space_prefix is not None:
        fields.append(("tokenizer.ggml.add_space_prefix", "bool", add_space_prefix))
    return fields, types


if __name__ == "__main__":
    for text, score, kind in read_pieces():
        print(kind, score, repr(text))
