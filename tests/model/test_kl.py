# SPDX-License-Identifier: Apache-2.0
"""The default model's logits against FP32 arithmetic on its dequantised weights.

The values and their format: tests/data/README.md.
"""
import array
import json
import math
import pathlib
import struct

import pytest

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
INDEX = json.loads((DATA / "oracle-logits.json").read_text())
TOP = INDEX["n_top"]
RECORD = struct.Struct("<%dH%dff" % (TOP, TOP))


def reference():
    """Of every position: ids, their log-probabilities, log of the rest's mass."""
    for r in RECORD.iter_unpack((DATA / "oracle-logits.bin").read_bytes()):
        yield r[:TOP], r[TOP:2 * TOP], r[2 * TOP]


def divergence(ids, logp, rest, row, log_sum):
    """KL(reference || ours) over the top tokens and one bucket for all others."""
    kl, mass = 0.0, 0.0
    for i, p in zip(ids, logp):
        q = row[i] - log_sum
        kl += math.exp(p) * (p - q)
        mass += math.exp(q)
    return kl + math.exp(rest) * (rest - math.log(max(1 - mass, 1e-12)))


@pytest.fixture(scope="module")
def measured(logits, real_model, tmp_path_factory):
    """Of every position: divergence, whether the likeliest token is the same."""
    folder, values, out = tmp_path_factory.mktemp("kl"), reference(), []
    for text in INDEX["texts"]:
        logits.run(real_model, ids=text["ids"], threads=2, output=folder / "logits", summary=folder / "summary")
        rows = array.array("f", (folder / "logits").read_bytes())
        n_vocab = len(rows) // len(text["ids"])
        for i, line in enumerate((folder / "summary").read_text().splitlines()):
            best, log_sum = line.split()
            ids, logp, rest = next(values)
            row = rows[i * n_vocab:(i + 1) * n_vocab]
            out.append((divergence(ids, logp, rest, row, float(log_sum)), int(best) == ids[0]))
            if i == 0:
                check_summary(row, int(best), float(log_sum))
    assert next(values, None) is None
    return out


def check_summary(row, best, log_sum):
    """The summary's figures are those of its row."""
    assert row[best] == max(row)
    assert log_sum == pytest.approx(math.log(math.fsum(map(math.exp, row))), abs=1e-6)


def test_enough_positions(measured):
    assert len(measured) == INDEX["n_positions"] >= 500


def test_divergence(measured):
    """As near to FP32 as llama.cpp is, and a tenth."""
    mean = math.fsum(kl for kl, _ in measured) / len(measured)
    print("mean KL %.6f, llama-cpp-python's %.6f" % (mean, INDEX["peer"]["mean_kl"]))
    assert 0 < mean <= 1.1 * INDEX["peer"]["mean_kl"]


def test_same_argmax(measured):
    same = sum(same for _, same in measured) / len(measured)
    print("same likeliest token at %.2f %%, llama-cpp-python's %.2f %%" % (
        100 * same, 100 * INDEX["peer"]["same_argmax"]))
    assert same >= 0.97
