# SPDX-License-Identifier: Apache-2.0
"""Runs kvd-logits of the build that KVD_BUILD names (default: build)."""
import os
import pathlib
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS / "tools"))
BUILD = pathlib.Path(os.environ.get("KVD_BUILD") or TESTS.parent / "build")
LONG = os.environ.get("KVD_TEST_LONG") == "1"
SANITIZED = "sanitize" in os.environ.get("KVD_BUILD", "build")


class Logits:
    """kvd-logits with options, as words or as keywords (block_tokens=32: --block-tokens 32)."""

    def __init__(self, path):
        self.path = path
        self.levels = self.run("--levels").split()

    def run(self, *words, ids=None, **options):
        command = [self.path, *map(str, words)]
        for name, value in options.items():
            command += ["--" + name.replace("_", "-"), str(value)]
        text = None if ids is None else " ".join(map(str, ids))
        r = subprocess.run(command, input=text, capture_output=True, text=True, timeout=600)
        assert r.returncode == 0, "%s\n%s" % (" ".join(map(str, command)), r.stderr)
        return r.stdout

    def hashes(self, model, ids, **options):
        """A hash of the logits and the hidden state of every position."""
        out = self.run(model, "--hash", ids=ids, **options).split()
        assert len(out) == len(ids)
        return out


@pytest.fixture(scope="session")
def logits():
    return Logits(BUILD / "tests/tools/kvd-logits")


def model_of(variable):
    path = os.environ.get(variable)
    if not path:
        pytest.skip(variable + " is not set")
    return path


@pytest.fixture(scope="session")
def real_model():
    return model_of("KVD_TEST_MODEL")


@pytest.fixture(scope="session")
def gemma():
    return model_of("KVD_TEST_GEMMA")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """tiny(**options of make_tiny_gguf.build): a file, made once for the same options."""
    import make_tiny_gguf
    folder, made = tmp_path_factory.mktemp("tiny"), {}

    def make(**options):
        key = repr(sorted(options.items()))
        if key not in made:
            made[key] = folder / ("tiny-%d.gguf" % len(made))
            make_tiny_gguf.build(**options).write(made[key])
        return made[key]
    return make
