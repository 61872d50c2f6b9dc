# SPDX-License-Identifier: Apache-2.0
"""The cache on disk as an administrator meets it: options, where it lies, who may have it, what is told and removed."""
import os
import random
import subprocess

import pytest
from conftest import BUILD, make_tiny

BLOCK = 16


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf", "--ctx", "2048")


@pytest.fixture
def start(daemons, model):
    def start(*options, memory="16M", **kw):
        return daemons("--model", model, "--kv-memory", memory, "--threads", "1", "--socket-mode", "0666",
                       "--block-tokens", BLOCK, *options, **kw)
    return start


@pytest.fixture
def kept(start, directory):
    """kept() -> a daemon on the directory's only state."""
    def kept(*options, disk="64M", **kw):
        return start("--state-dir", directory / "state", "--disk", disk, *options, **kw)
    return kept


def ids(seed, n):
    rng = random.Random(seed)
    return [rng.randrange(3, 250) for _ in range(n)]


def ask(c, tokens, n=0, **kw):
    r = c.generate(ids=tokens, n=n, ignore_eos=True, **kw)
    assert not r.error, r.error
    return r


def cached(c, tokens, **kw):
    return ask(c, tokens, **kw).usage["cached"]


# --- where it lies ---

def test_survives_restart(kept, directory):
    prompt = ids(1, 300)
    d = kept()
    with d.client() as c:
        first = ask(c, prompt, n=8, temperature=0, logprobs=1)
    d.stop()
    assert os.stat(directory / "state").st_mode & 0o7777 == 0o700
    assert os.stat(directory / "state/cache").st_mode & 0o7777 == 0o700
    d = kept()
    assert "cache on disk: in" in d.log.read_text()
    with d.client() as c:
        again = ask(c, prompt, n=8, temperature=0, logprobs=1)
        assert again.usage["cached"] == 300 // BLOCK * BLOCK
        assert (again.ids, again.logprobs) == (first.ids, first.logprobs)


def test_off_unless_asked_for(start, directory):
    """Nobody's prompts get to a disk who has not said so."""
    home = {"HOME": str(directory), "XDG_STATE_HOME": str(directory / "xdg")}
    config = directory / "empty.conf"
    config.write_text("[kvd]\n")
    d = start("--config", config, env=home)
    with d.client() as c:
        ask(c, ids(1, 100))
    assert "on disk" not in d.log.read_text()
    d.stop()
    assert sorted(p.name for p in directory.iterdir() if "kvd" not in p.name) == ["empty.conf"]


def test_directory_of_the_service_manager(start, directory):
    (directory / "first").mkdir()
    config = directory / "empty.conf"
    config.write_text("[kvd]\n")
    d = start("--config", config, env={"STATE_DIRECTORY": f"{directory}/first:{directory}/second"})
    assert f"in {directory}/first, at most" in d.log.read_text()
    assert (directory / "first/cache/lock").exists()


def test_second_daemon(start, kept, directory, model):
    """It is refused before it is ready where the directory was named; in the default place it does without."""
    d = kept()
    r = subprocess.run([BUILD / "bin/kvd", "--socket", directory / "other.sock", "--state-dir", directory / "state",
                        "--model", model], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert r.returncode == 1 and "another daemon uses it" in r.stderr and "ready" not in r.stderr
    with d.client() as c:
        assert cached(c, ids(1, 100)) == 0
    if os.geteuid() == 0:
        return      # a place for all of the machine
    home = {"XDG_STATE_HOME": str(directory / "xdg")}
    first = start("--disk", "64M", env=home, socket=directory / "a.sock")
    second = start("--disk", "64M", env=home, socket=directory / "b.sock")
    assert "at most 64 MiB" in first.log.read_text()
    assert "no cache on disk:" in second.log.read_text()


@pytest.mark.parametrize("spoil, word", [
    (lambda p: p.write_text("x"), "Not a directory"),
    (lambda p: p.parent.rmdir(), "No such file"),
])
def test_impossible_directories_are_refused(directory, spoil, word):
    path = directory / "in/state"
    path.parent.mkdir()
    spoil(path)
    r = subprocess.run([BUILD / "bin/kvd", "--socket", directory / "s", "--state-dir", path], text=True,
                       stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    assert r.returncode == 1 and word in r.stderr, r.stderr


def test_unusable_directory_is_one_line(kept, directory):
    """A cache is no reason not to start: here a link is where it should lie."""
    (directory / "state").mkdir()
    (directory / "elsewhere").mkdir()
    (directory / "state/cache").symlink_to(directory / "elsewhere")
    d = kept()
    assert d.log.read_text().count("no cache on disk:") == 1
    with d.client() as c:
        assert cached(c, ids(1, 100)) == 0
        assert cached(c, ids(1, 100)) == 99
    assert list((directory / "elsewhere").iterdir()) == []
