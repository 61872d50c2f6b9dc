# SPDX-License-Identifier: Apache-2.0
"""Tokenising a text of one kind takes work in proportion to its length, whatever it is.

Work is counted, not timed: instructions, by valgrind.  What an empty text takes (the vocabulary's loading)
is taken off.
"""
import concurrent.futures
import os
import pathlib
import random
import re
import shutil
import subprocess

import make_tiny_gguf
import pytest
import tiny_vocab

LONG = os.environ.get("KVD_TEST_LONG") == "1"
BUILD = pathlib.Path(os.environ.get("KVD_BUILD") or pathlib.Path(__file__).resolve().parents[2] / "build")
SHORT_BYTES = 10_000 if LONG else 5_000
FACTOR = 100 if LONG else 10
# The last merges of a long stretch may cost log n.
BOUND = 1.15

RNG = random.Random(1)
UNITS = {
    "A": b"A",
    "spaces": b" ",
    "newlines": b"\n",
    "tabs": b"\t",
    "digits": b"1234567890",
    "zeros": b"0",
    "emoji": "\U0001f680".encode(),
    "emoji-joined": "\U0001f469\u200d\U0001f4bb".encode(),
    "cjk": "\u54c8".encode(),
    "punctuation": b"!?.,;:-_()[]{}<>/\\|@#$%^&*+=~`'\"",
    "dashes": b"-",
    "ill-formed": b"\xff\xe2\x96\xc3",
    "space-mark": "\u2581".encode(),
    "long-word": bytes(RNG.choice(b"abcdefghijklmnopqrstuvwxyz") for _ in range(26_000)),
    "words": make_tiny_gguf.TEXT.encode(),
    "combining": "a\u0301".encode(),
    "control-token-openers": b"<|",
    "turns": b"<|im_start|>",
}
if not LONG:
    UNITS = {kind: UNITS[kind] for kind in ("A", "spaces", "newlines", "digits", "emoji", "cjk", "punctuation", "ill-formed",
                                            "space-mark", "long-word")}
RUNS = ["A", " ", "\n", "\t", "0", "-", "\U0001f680", "\u54c8", "a\u0301"]


def sentencepiece():
    """The small vocabulary with tokens for runs of 2 to 16."""
    g = make_tiny_gguf.Gguf()
    fields, types = tiny_vocab.sentencepiece()
    fields = {key: (kind, value) for key, kind, value in fields}
    texts, scores = fields["tokenizer.ggml.tokens"][1], fields["tokenizer.ggml.scores"][1]
    for unit in RUNS:
        for n in (1, 2, 4, 8, 16):
            text = unit.replace(" ", "\u2581") * n
            if text not in texts:
                texts.append(text)
                scores.append(-1000.0 - len(texts))
                types.append(tiny_vocab.NORMAL)
    fields["tokenizer.ggml.token_type"] = ("arr:i32", types)
    for key, (kind, value) in fields.items():
        g.set(key, kind, value)
    return g


def bpe(pre):
    """Bytes, the merges of make_tiny_gguf, and merges for runs."""
    g = make_tiny_gguf.Gguf()
    table = make_tiny_gguf.byte_to_unicode()
    merges = make_tiny_gguf.learn_merges(300)
    tokens = list(table.values()) + [a + b for a, b in merges]
    for unit in RUNS:
        parts = [table[b] for b in unit.encode()]
        pairs = [("".join(parts[:i]), parts[i]) for i in range(1, len(parts))]
        pairs += [("".join(parts) * n,) * 2 for n in (1, 2, 4, 8)]
        for a, b in pairs:
            if a + b not in tokens:
                tokens.append(a + b)
                merges.append((a, b))
    control = ["<|im_start|>", "<|im_end|>"]
    g.set("tokenizer.ggml.model", "str", "gpt2")
    g.set("tokenizer.ggml.pre", "str", pre)
    g.set("tokenizer.ggml.tokens", "arr:str", tokens + control)
    g.set("tokenizer.ggml.token_type", "arr:i32", [1] * len(tokens) + [3] * len(control))
    g.set("tokenizer.ggml.merges", "arr:str", ["%s %s" % m for m in merges])
    return g


MODELS = {
    "sentencepiece": sentencepiece,
    "gpt-2": lambda: bpe("gpt-2"),
    **({name: lambda name=name: bpe(name) for name in ("llama-bpe", "smollm", "gpt-4o", "deepseek-llm")} if LONG else {}),
}


def instructions(model, text, folder):
    path = folder / "text"
    path.write_bytes(text)
    r = subprocess.run(["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null",
                        str(BUILD / "tests/tools/kvd-tokenize"), "--special", "--count", str(model), str(path)],
                       capture_output=True, text=True, timeout=600, check=True)
    return int(re.search(r"I\s+refs:\s*([0-9,]+)", r.stderr)[1].replace(",", "")), int(r.stdout)


def text_of(unit, n):
    return (unit * (n // len(unit) + 1))[:n]


@pytest.fixture(autouse=True)
def valgrind():
    if not shutil.which("valgrind"):
        pytest.skip("valgrind is not installed")
    program = (BUILD / "tests/tools/kvd-tokenize").read_bytes()
    if b"__asan_init" in program or b"__tsan_init" in program or b"__ubsan_handle" in program:
        pytest.skip("an instrumented build")


@pytest.mark.parametrize("name", MODELS)
def test_work_grows_with_the_text(name, tmp_path):
    model = tmp_path / "model.gguf"
    MODELS[name]().write(model)
    empty, _ = instructions(model, b"", tmp_path)

    def growth(item):
        kind, unit = item
        folder = tmp_path / kind
        folder.mkdir()
        (short, n_short), (long, n_long) = (
            instructions(model, text_of(unit, n), folder) for n in (SHORT_BYTES, SHORT_BYTES * FACTOR))
        assert n_short > 0 and n_long > n_short * FACTOR / 2, kind
        return kind, (long - empty) / (short - empty) / FACTOR

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = dict(pool.map(growth, UNITS.items()))
    print({kind: round(g, 3) for kind, g in found.items()})
    assert {kind: round(g, 3) for kind, g in found.items() if g > BOUND} == {}


def test_the_count_sees_more_work(tmp_path):
    """The oracle can fail: twice the text is twice the work."""
    model = tmp_path / "model.gguf"
    MODELS["gpt-2"]().write(model)
    counts = [instructions(model, text_of(b"the ", n), tmp_path)[0] for n in (0, 20_000, 40_000)]
    assert 1.9 < (counts[2] - counts[0]) / (counts[1] - counts[0]) < 2.1
