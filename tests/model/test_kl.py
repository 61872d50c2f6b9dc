# SPDX-License-Identifier: Apache-2.0
"""The real models' logits and hidden states against FP32 arithmetic on their dequantised weights.

The values and their format: tests/data/README.md.
"""
import array
import json
import math
import pathlib
import struct

import pytest

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
# By the fixture that names the model's file.
FILES = {"real_model": "oracle-logits", "gemma": "oracle-logits-gemma3"}
POOLINGS = ("mean", "last")


class Reference:
    def __init__(self, name):
        self.index = json.loads((DATA / (name + ".json")).read_text())
        self.top = self.index["n_top"]
        self.record = struct.Struct("<%d%s%dff" % (self.top, {2: "H", 4: "I"}[self.index.get("id_bytes", 2)], self.top))
        self.values = self.record.iter_unpack((DATA / (name + ".bin")).read_bytes())
        embeddings = array.array("f", (DATA / (name.replace("logits", "embeddings") + ".bin")).read_bytes())
        self.n_embd = len(embeddings) // (2 * len(self.index["texts"]))
        self.embeddings = [embeddings[i:i + self.n_embd] for i in range(0, len(embeddings), self.n_embd)]

    def next(self):
        """Of the next position: ids, their log-probabilities, log of the rest's mass; None at the end."""
        r = next(self.values, None)
        return r and (r[:self.top], r[self.top:2 * self.top], r[2 * self.top])


def divergence(ids, logp, rest, row, log_sum):
    """KL(reference || ours) over the top tokens and one bucket for all others."""
    kl, mass = 0.0, 0.0
    for i, p in zip(ids, logp):
        q = row[i] - log_sum
        kl += math.exp(p) * (p - q)
        mass += math.exp(q)
    return kl + math.exp(rest) * (rest - math.log(max(1 - mass, 1e-12)))


def cosine(a, b):
    def dot(x, y):
        return math.fsum(p * q for p, q in zip(x, y))
    return dot(a, b) / math.sqrt(dot(a, a) * dot(b, b))


def pool(states, n_embd):
    """The mean of all, and the last."""
    rows = [states[i:i + n_embd] for i in range(0, len(states), n_embd)]
    return [math.fsum(column) / len(rows) for column in zip(*rows)], rows[-1]


@pytest.fixture(scope="module", params=FILES)
def measured(request, logits, tmp_path_factory):
    """The index; of every position: divergence, whether the likeliest token is the same; of every text: cosines."""
    model = request.getfixturevalue(request.param)
    folder, reference, out, cosines = tmp_path_factory.mktemp("kl"), Reference(FILES[request.param]), [], []
    for text in reference.index["texts"]:
        logits.run(model, ids=text["ids"], threads=2, output=folder / "logits", summary=folder / "summary",
                   hidden=folder / "hidden")
        states = array.array("f", (folder / "hidden").read_bytes())
        cosines.append([cosine(ours, reference.embeddings.pop(0)) for ours in pool(states, reference.n_embd)])
        summary = (folder / "summary").read_text().splitlines()
        n_vocab = (folder / "logits").stat().st_size // 4 // len(summary)
        with open(folder / "logits", "rb") as f:
            for i, line in enumerate(summary):
                row = array.array("f", f.read(4 * n_vocab))
                if i < text.get("first", 0):
                    continue
                best, log_sum = line.split()[:2]
                ids, logp, rest = reference.next()
                out.append((divergence(ids, logp, rest, row, float(log_sum)), int(best) == ids[0]))
                if i == 0:
                    check_summary(row, int(best), float(log_sum))
        (folder / "logits").unlink()
    assert reference.next() is None and not reference.embeddings
    return reference.index, out, cosines


def check_summary(row, best, log_sum):
    """The summary's figures are those of its row."""
    assert row[best] == max(row)
    assert log_sum == pytest.approx(math.log(math.fsum(map(math.exp, row))), abs=1e-6)


def test_enough_positions(measured):
    index, positions, _ = measured
    assert len(positions) == index["n_positions"] >= 500


def test_divergence(measured):
    """As near to FP32 as llama.cpp is, and a tenth."""
    index, positions, _ = measured
    mean = math.fsum(kl for kl, _ in positions) / len(positions)
    print("mean KL %.6f, llama-cpp-python's %.6f" % (mean, index["peer"]["mean_kl"]))
    assert 0 < mean <= 1.1 * index["peer"]["mean_kl"]


def test_embeddings(measured):
    """Of each text the mean of the hidden states, and the last one: about as near to FP32 as llama.cpp is."""
    index, _, cosines = measured
    for pooling, ours in zip(POOLINGS, zip(*cosines)):
        peer = index["embeddings_peer"]["least_cosine"][pooling]
        print("%s: least cosine %.6f, llama-cpp-python's %.6f" % (pooling, min(ours), peer))
        assert min(ours) >= 0.999 and 1 - min(ours) <= 1.5 * (1 - peer)


def test_same_argmax(measured):
    index, positions, _ = measured
    same = sum(same for _, same in positions) / len(positions)
    print("same likeliest token at %.2f %%, llama-cpp-python's %.2f %%" % (
        100 * same, 100 * index["peer"]["same_argmax"]))
    assert same >= 0.97
