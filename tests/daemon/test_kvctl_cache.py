# SPDX-License-Identifier: Apache-2.0
"""kvctl cache: what it prints, asks and refuses, against a daemon."""
import json
import os
import re
import shutil
import subprocess

import pytest
from conftest import BUILD, PATIENCE, make_tiny
from terminal import run_on_terminal

BEGIN = "Once upon a time there was a very small model, which knew letters and nothing else; it went to the river and "
UID = os.getuid()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf", "--ctx", "2048")


@pytest.fixture
def daemon(daemons, model):
    return daemons("--model", model, "--kv-memory", "16M", "--threads", "1", "--socket-mode", "0666")


@pytest.fixture
def cache(kvctl, daemon):
    """cache(ARGUMENT...) -> the output of `kvctl cache ARGUMENT...`, which must succeed."""
    def run(*args, status=0, **kw):
        r = kvctl("cache", *args, socket=daemon.socket, **kw)
        assert r.returncode == status, r.stderr
        return (r.stderr if status else r.stdout).decode()
    return run


def rows(text):
    lines = [line.split("\t") for line in text.splitlines()]
    return [dict(zip(lines[0], line)) for line in lines[1:]]


def test_warm(cache, daemon):
    n = int(cache("warm", "--raw", BEGIN).split()[0])
    assert cache("warm", "--raw", BEGIN).startswith(f"{n} tokens: {n - 1} were there, 1 computed in ")
    v = json.loads(cache("--json", "warm", "--raw", BEGIN + "swam", "--ttl", "1h"))
    # The last blank may become a part of the word after it.
    assert v["prompt_tokens"] > n and n - 1 <= v["cached_tokens"] <= n
    assert v["computed_tokens"] == v["prompt_tokens"] - v["cached_tokens"]
    assert v["miss"] in ("empty", "differs") and v["miss_text"]
    assert cache("warm", "--raw", "-f", "-", stdin=BEGIN.encode()).startswith(f"{n} tokens: {n - 1} were there")


def test_ls_joins_and_branches(cache):
    for end in ("swam over to the other side of it.", "stayed where it was for a while.", "swam back to where it had been."):
        cache("warm", "--raw", BEGIN + end)
    r = rows(cache("ls"))
    assert len(r) >= 4 and all(x["MODEL"] == "tiny" and x["UID"] == str(UID) and x["TIER"] == "memory" for x in r)
    assert r[0]["AFTER"] == "0" and r[0]["FIRST"] == "0" and int(r[0]["TOKENS"]) % 16 == 0
    ids = {x["ID"]: x for x in r}
    for x in r[1:]:
        up = ids[x["AFTER"]]
        assert int(x["FIRST"]) == int(up["FIRST"]) + int(up["TOKENS"])
    entries = json.loads(cache("ls", "--json"))
    assert [m["model"] for m in entries] == ["tiny"]
    entries = entries[0]["entries"]
    assert sum(e["n_tokens"] for e in entries) == sum(int(x["TOKENS"]) for x in r)
    assert sum(not e["joined"] for e in entries) == len(r)
    assert r[0]["TEXT"].startswith('"Once upon')


def test_ls_on_a_terminal(cache, daemon):
    for end in ("swam over to the other side of it.", "stayed where it was for a while."):
        cache("warm", "--raw", BEGIN + end)
    status, out = run_on_terminal([BUILD / "bin/kvctl", "--socket", daemon.socket, "cache", "ls"])
    lines = out.decode().splitlines()
    assert status == 0 and lines[0].split() == ["ID", "TOKENS", "SIZE", "TIER", "AGE", "USED", "HITS", "PINS", "EXPIRES", "UID",
                                                "NAMESPACE", "TEXT"]
    at = lines[0].index("TEXT")
    assert lines[1][at:].startswith('"Once upon')
    assert [line[at] for line in lines[2:-1]] == ["\u251c", "\u2514"]
    assert re.fullmatch(r"memory: \d+ entries, \d+ tokens, \S+ \S+", lines[-1]), lines[-1]


def test_show_pin_drop(cache):
    cache("warm", "--raw", BEGIN, "--cache-key", "k", "--priority", "low")
    row = rows(cache("ls", "--namespace", "own/k"))[0]
    last, n = row["ID"], int(row["TOKENS"])
    assert row["NAMESPACE"] == f"uid:{UID}/k" and rows(cache("ls", "--namespace", "own/j")) == []
    out = cache("show", last)
    assert "priority low" in out and "pinned      no" in out and "Once upon a time" in out and "expires     never" in out
    assert cache("pin", last).startswith(f"pinned {last}: ") and f"by uid {UID}" in cache("show", last)
    v = json.loads(cache("show", "--json", last))
    assert v["pinned_by"] == [UID] and v["pinned"] is True and v["n_pins"] == 1 and v["entry"] == int(last)
    assert "not pinned" in cache("unpin", "99999", last, last, status=1)
    assert f"there is no entry {10 ** 9}" in cache("drop", 10 ** 9, status=1)
    # One line of the listing goes as one.
    assert f", {n} tokens, " in cache("drop", last)
    assert rows(cache("ls")) == []


def test_wipe_asks(cache, daemon):
    kvctl = [BUILD / "bin/kvctl", "--socket", daemon.socket, "cache", "wipe"]
    cache("warm", "--raw", BEGIN)
    status, out = run_on_terminal(kvctl, b"n\n")
    assert status == 1 and b"Remove all entries of this user" in out and b"nothing was removed" in out
    assert len(rows(cache("ls"))) == 1
    status, out = run_on_terminal(kvctl, b"y\n")
    assert status == 0 and b"removed: " in out
    assert rows(cache("ls")) == []
    cache("warm", "--raw", BEGIN)
    status, out = run_on_terminal([*kvctl, "--all", "--yes"])
    assert status == 0 and b"Remove" not in out
    cache("warm", "--raw", BEGIN)
    assert cache("wipe").startswith("removed: ")


def test_status(cache, kvctl, daemon):
    cache("warm", "--raw", BEGIN)
    cache("warm", "--raw", BEGIN)
    v = json.loads(kvctl("status", "--json", socket=daemon.socket).stdout)
    assert (v["cache_lookups"], v["cache_hits"]) == (2, 1) and v["cached_tokens"] > 0 and v["blocks_cached"] > 0
    out = kvctl("status", socket=daemon.socket).stdout.decode()
    assert "1 of 2 requests found something (50 %)" in out and f'{v["blocks_cached"]} cached' in out


@pytest.mark.skipif(os.geteuid() != 0, reason="takes another uid, so root")
def test_refused(cache, daemon, directory):
    """What is another's is not there; what is not permitted exits 4."""
    shutil.copy(BUILD / "bin/kvctl", directory)
    cache("warm", "--raw", BEGIN, "--pin")
    last = rows(cache("ls"))[0]["ID"]

    def other(*args):
        r = subprocess.run([directory / "kvctl", "--socket", daemon.socket, *args], stdin=subprocess.DEVNULL, capture_output=True,
                           text=True, timeout=60 * PATIENCE, user=20031, group=20031, extra_groups=[])
        return r.returncode, r.stdout, r.stderr
    status, out, _ = other("cache", "ls")
    assert status == 0 and rows(out) == []
    for command in ("show", "pin", "unpin", "drop"):
        status, _, err = other("cache", command, last)
        assert status == 1 and f"there is no entry {last}" in err
    for args in (("wipe", "--all"), ("wipe", "--namespace", "uid:0"), ("unpin", "--all", last)):
        assert other("cache", *args)[0] == 4
    status, _, err = other("generate", "--raw", "-n", "1", "--namespace", "public", "x")
    assert status == 4 and "public" in err
    assert other("cache", "wipe")[1].startswith("removed: 0 entries")
    assert rows(cache("ls"))[0]["ID"] == last
