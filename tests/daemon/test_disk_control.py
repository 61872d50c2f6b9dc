# SPDX-License-Identifier: Apache-2.0
"""The cache on disk as an administrator meets it: options, where it lies, who may have it, what is told and removed."""
import json
import os
import random
import re
import struct
import subprocess
import time

import kvdclient as k
import pytest
from conftest import BUILD, make_tiny
from test_cache_control import UIDS, as_user, needs_root

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


# --- figures ---

DISK = ("disk_bytes", "disk_bytes_used", "disk_blocks", "disk_lookups", "disk_hits", "disk_written", "disk_read",
        "disk_evicted", "disk_damaged", "disk_errors")


def figures(d):
    s = d.status()
    return {name: s.get(name, 0) for name in DISK}


def page_words(c):
    """The last words of the statistics page, which are the disk's."""
    n_words, = struct.unpack_from("<I", c.stats, 16)
    return dict(zip(DISK, struct.unpack_from(f"<{n_words}Q", c.stats, 72)[-len(DISK):]))


def test_figures(kept, kvctl, directory):
    d = kept()
    with d.client() as c:
        ask(c, ids(1, 100))
        d.until(lambda: figures(d)["disk_written"] == 6, "six blocks on disk")
        f = figures(d)
        assert f["disk_bytes"] == 64 << 20 and f["disk_blocks"] == 6 and f["disk_lookups"] == 1
        taken = sum(p.stat().st_size for p in (directory / "state").rglob("*"))
        assert 0 < taken <= f["disk_bytes_used"] + 8192 and f["disk_bytes_used"] < f["disk_bytes"]
        d.until(lambda: page_words(c) == f, "the same on the page")
    d.stop()
    d = kept()
    with d.client() as c:
        ask(c, ids(1, 100))
        f = figures(d)
        assert (f["disk_lookups"], f["disk_hits"], f["disk_read"], f["disk_written"], f["disk_blocks"]) == (1, 1, 6, 0, 6)
        v = json.loads(kvctl("--json", "status", socket=d.socket).stdout)
        assert {name: v[name] for name in DISK} == f and v["disk_trouble"] == ""
        out = kvctl("status", socket=d.socket).stdout.decode()
        assert re.search(r"^disk +\S+ \w+ of 64\.0 MiB, 6 blocks; 0 written, 6 read, 0 evicted, 0 damaged\n"
                         r" +1 of 1 prompts found something there; 0 errors\n", out, re.M), out


@needs_root
def test_figures_are_not_for_everybody(kept):
    """Counters must not tell one user about another."""
    d = kept()
    with d.client() as c:
        ask(c, ids(1, 100))
    with as_user(UIDS[0]):
        other = d.client()
    with other:
        ask(other, ids(1, 100))
        d.until(lambda: figures(d)["disk_written"] == 12, "both on disk")
        time.sleep(0.6)
        assert set(page_words(other).values()) == {0}
        assert not [name for name in other.call(k.STATUS) if name.startswith("disk")]


def test_trouble_is_told(kept, directory):
    """What is wrong with the disk is in the status, as long as it is."""
    d = kept()
    with d.client() as c:
        ask(c, ids(1, 100))
        d.until(lambda: figures(d)["disk_written"] == 6, "six blocks on disk")
        assert "disk_trouble" not in d.status()
    d.stop()
    root, = (p for p in (directory / "state/cache").iterdir() if p.is_dir())
    (root / "index").write_bytes(b"x" * 8192)
    d = kept()
    with d.client() as c:
        assert cached(c, ids(1, 100)) == 0
        assert "index is damaged" in d.status()["disk_trouble"]
    assert d.log.read_text().count("the index is damaged") == 1
