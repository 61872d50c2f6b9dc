# SPDX-License-Identifier: Apache-2.0
"""How many tokens a model's blocks have: measured once, then kept; what was measured is told by the test."""
import pytest

import kvdclient as k
from conftest import Daemon, make_tiny

FAST_16, FAST_64, EQUAL = "50,100,90", "100,100,50", "96,100,97"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for seed in (1, 2):
        make_tiny(folder / f"m{seed}.gguf", "--seed", str(seed))
    return [folder / "m1.gguf", folder / "m2.gguf"]


class Run:
    """The blocks' sizes of the models of one run, and its log."""

    def __init__(self, directory, times, models, *options):
        d = Daemon(directory, *(w for m in models for w in ("--model", m)), *options, "--threads", "1",
                   env={"KVD_TEST_BLOCK_TIMES": times})
        with d.client() as c:
            self.models = {m["name"]: m for m in c.call(k.MODELS)["models"]}
        d.stop()
        self.log = d.log.read_text()
        self.sizes = [self.models[m.stem]["block_tokens"] for m in models]
        self.by = [self.models[m.stem]["block_tokens_by"] for m in models]


@pytest.mark.parametrize("times,size", [(FAST_16, 16), (FAST_64, 64), (EQUAL, 32), ("100,100,96", 32), ("100,100,94", 64)])
def test_measured_and_kept(directory, models, times, size):
    state = ("--state-dir", directory / "state", "--disk", "off")
    first = Run(directory, times, models[:1], *state)
    assert first.by == ["measured"]
    assert first.sizes == [size] and f"blocks of {size} tokens, measured" in first.log
    for again in ("1,100,100", "100,100,1"):
        kept = Run(directory, again, models[:1], *state)
        assert kept.by == ["kept"]
        assert kept.sizes == [size] and "measured" not in kept.log
    # What is asked for is not kept, and what is kept stays.
    given = Run(directory, times, models[:1], *state, "--block-tokens", 16 if size == 64 else 64)
    assert given.by == ["given"]
    assert given.sizes == [16 if size == 64 else 64] and "measured" not in given.log
    assert Run(directory, "1,100,100", models[:1], *state, "--block-tokens", "auto").sizes == [size]


def test_two_models(directory, models):
    """Each has its own, by content and by the type of keys and values."""
    state = ("--state-dir", directory / "state")
    assert Run(directory, FAST_16, models[:1], *state).sizes == [16]
    assert Run(directory, FAST_64, models, *state).sizes == [16, 64]
    assert Run(directory, EQUAL, models, *state).sizes == [16, 64]
    assert Run(directory, EQUAL, models, *state, "--kv-type", "q8").sizes == [32, 32]
    q4 = Run(directory, FAST_16, models, *state, "--kv-type", "q4")
    assert q4.sizes == [32, 32] and q4.by == ["default", "default"]
    assert len(list((directory / "state/block-tokens").iterdir())) == 4


def test_nowhere_to_keep_it(directory, models):
    """A size that might be another at the next start would cost the cache: no measurement, then."""
    for options in (("--disk", "off"), ("--no-cache", "--state-dir", directory / "state")):
        r = Run(directory, FAST_16, models[:1], *options)
        assert r.sizes == [32] and r.by == ["default"] and "measured" not in r.log
    assert not (directory / "state/block-tokens").exists()


def damaged(text):
    yield b""
    yield text[:-1]
    yield text + b"\n"
    yield text.replace(b"tokens 1", b"tokens 2")
    yield text.replace(b"\n64\n", b"\n16\n")
    yield text.replace(b"\n64\n", b"\n48\n")
    yield bytes(4096)


def test_damaged(directory, models):
    state = ("--state-dir", directory / "state", "--disk", "off")
    assert Run(directory, FAST_64, models, *state).sizes == [64, 64]
    one, two = sorted((directory / "state/block-tokens").iterdir())
    text = one.read_bytes()
    for bad in [*damaged(text), two.read_bytes()]:
        one.write_bytes(bad)
        r = Run(directory, FAST_64, models, *state)
        assert r.sizes == [64, 64] and r.log.count("is damaged, and measured anew") == 1
        assert one.read_bytes() == text
    # Something else in its place: measured each time, and said.
    one.unlink()
    one.mkdir()
    for _ in range(2):
        r = Run(directory, FAST_64, models, *state)
        assert r.sizes == [64, 64] and "can't be kept" in r.log


def test_real_measurement(directory, models):
    """Whatever comes of it: one of the sizes, and the same at the next start."""
    state = ("--state-dir", directory / "state", "--disk", "off")
    for kv_type in ("f16", "q8"):
        first = Run(directory, "", models, *state, "--kv-type", kv_type)
        assert set(first.sizes) <= {16, 32, 64} and first.log.count("measured") == 2
        assert Run(directory, "", models, *state, "--kv-type", kv_type).sizes == first.sizes
