# SPDX-License-Identifier: Apache-2.0
"""One request against fifty, over HTTP: by user over the Unix socket and over TCP, and by key.

What each got is counted in two listings, each of which is made between two steps, as in test_fairness.py.
"""
import multiprocessing
import os
import select

import kvdclient as k
import pytest
from conftest import PATIENCE, make_tiny
from httpclient import Connection
from test_fairness import MANY, N, ONE

KEYS = {"one": "sk-0123456789abcdef-one", "many": "sk-0123456789abcdef-many"}


def crowd(address, uid, headers, count, ready):
    """A process of that uid which reads so many streams, for ever."""
    if uid:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    open_ones = [Connection(address, timeout=60 * PATIENCE) for _ in range(count)]
    for i, c in enumerate(open_ones):
        c.send("/v1/completions", {"prompt": f"prompt {i}", "max_tokens": N, "stream": True, "ignore_eos": True},
               headers=headers)
    ready.set()
    while True:
        for sock in select.select([c.sock for c in open_ones], [], [])[0]:
            if not sock.recv(65536):
                return


@pytest.fixture
def crowds():
    context, started = multiprocessing.get_context("fork"), []

    def start(address, uid, key, count):
        ready = context.Event()
        headers = [f"Authorization: Bearer {KEYS[key]}"] if key else []
        p = context.Process(target=crowd, args=(address, uid, headers, count, ready), daemon=True)
        p.start()
        started.append(p)
        assert ready.wait(60 * PATIENCE)
    yield start
    for p in started:
        p.kill()
        p.join()


def generated(c):
    """{account: {session: tokens}} now."""
    found = {}
    for p in c.call(k.PS)["processes"]:
        found.setdefault(p["uid"], {})[p["session"]] = p["generated_tokens"]
    return found


def share_of_one(d, n, n_places=16):
    """The part of all tokens that the account with one request gets, while it makes n."""
    with d.client() as c:
        d.until(lambda: sorted(p["phase"] for p in c.call(k.PS)["processes"] if p["phase"] not in ("queued", "parked"))
                == ["decode"] * n_places, "places taken", 60)
        before = generated(c)
        one, many = sorted(before, key=lambda account: len(before[account]))
        assert (len(before[one]), len(before[many])) == (1, 50)
        d.until(lambda: sum(generated(c)[one].values()) >= sum(before[one].values()) + n, "tokens", 60)
        after = generated(c)
    assert set(after[many]) == set(before[many]), "one has ended: this counts no more"
    got = {a: sum(after[a].values()) - sum(before[a].values()) for a in (one, many)}
    return got[one] / sum(got.values())


@pytest.mark.parametrize("by", ["uid, unix", "uid, tcp", "key, tcp"])
def test_one_against_fifty(daemons, directory, crowds, by):
    """Whoever comes first."""
    if by.startswith("uid") and os.geteuid() != 0:
        pytest.skip("takes other uids, so root")
    model, keys = make_tiny(directory / "model.gguf", "--ctx", "4096"), directory / "keys"
    keys.write_text("".join(f"{name} {key}\n" for name, key in KEYS.items()))
    keys.chmod(0o600)
    for first in ("one", "many"):
        path = directory / f"{first}.sock"
        http = ["--http", f"unix:{path}"] if "unix" in by else ["--http", "127.0.0.1:0"]
        if "key" in by:
            http += ["--http-keys", keys]
        d = daemons("--model", model, "--kv-memory", "64M", "--socket-mode", "0666", *http,
                    env={"KVD_TEST_STEP_DELAY_MS": "1"})
        address = ("unix", path) if "unix" in by else ("tcp", d.http_port)
        for name in (first, "many" if first == "one" else "one"):
            uid = (ONE if name == "one" else MANY) if "uid" in by else 0
            crowds(address, uid, name if "key" in by else None, 1 if name == "one" else 50)
        share = share_of_one(d, 150)
        print(f"{by}, {first} first: {share:.3f}")
        assert share >= 0.4
        d.stop()        # with all of them open
