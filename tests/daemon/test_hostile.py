# SPDX-License-Identifier: Apache-2.0
"""Clients that misbehave harm nobody but themselves."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

from conftest import BUILD, HERE, PATIENCE, SANITIZED

N_GOOD = 11
UIDS = (20001, 20002, 20003)
PROMPTS = [f"Tell me a story about number {i} and the " + "abc def " * (7 * i % 23) for i in range(N_GOOD)]


@pytest.fixture
def bin_dir(directory):
    """Copies that other uids can run, wherever the checkout lies."""
    for f in (BUILD / "bin/kvctl", HERE / "peer.py", HERE / "kvdclient.py"):
        shutil.copy(f, directory)
    return directory


def as_uid(i):
    if os.geteuid() != 0:
        return {}
    return {"user": UIDS[i % 3], "group": UIDS[i % 3], "extra_groups": []}


def generate_args(socket, i, n):
    return ["--socket", socket, "--json", "generate", "--raw", "-n", str(n), "-t", "0" if i % 2 else "1.2",
            "--seed", str(i), "--ignore-eos", PROMPTS[i]]


def text_and_ids(stdout):
    """The text and token ids of a --json run."""
    events = [json.loads(line) for line in stdout.decode().splitlines()]
    return ("".join(e["text"] for e in events if e["type"] == "text"),
            [e["id"] for e in events if e["type"] == "token"])


def test_sixteen_clients(daemons, bin_dir, tiny_model):
    d = daemons("--model", tiny_model, "--kv-memory", "32M", "--threads", "2", "--socket-mode", "0666",
                env={"KVD_TEST_STEP_DELAY_MS": "2"})
    kvctl = bin_dir / "kvctl"
    n = 120
    alone = []
    for i in range(N_GOOD):
        r = subprocess.run([kvctl, *generate_args(d.socket, i, n)], stdin=subprocess.DEVNULL,
                           capture_output=True, timeout=60 * PATIENCE, **as_uid(i))
        assert r.returncode == 0, r.stderr
        alone.append(text_and_ids(r.stdout))
        assert len(alone[-1][1]) == n
    assert len({a[0] for a in alone}) > N_GOOD // 2, "the texts must differ for the test to mean anything"
    d.idle()
    fds, memory = d.fds(), d.memory()

    def peer(mode, uid):
        p = subprocess.Popen([sys.executable, bin_dir / "peer.py", mode, d.socket, "Hello " * 9, "100000"],
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             cwd=bin_dir, **as_uid(uid))
        line = p.stdout.readline()
        assert line == b"ready\n", p.stderr.read()
        return p
    peers = [peer(m, i) for i, m in enumerate(("reader", "reader", "garbage", "malformed", "deaf"))]
    try:
        good = [subprocess.Popen([kvctl, *generate_args(d.socket, i, n)], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, **as_uid(i))
                for i in range(N_GOOD)]
        peers[0].send_signal(signal.SIGKILL)
        peers[1].send_signal(signal.SIGSTOP)
        for i, p in enumerate(good):
            out, err = p.communicate(timeout=120 * PATIENCE)
            assert p.returncode == 0, err
            assert text_and_ids(out) == alone[i], f"client {i} got another text than alone"
        # Sanitizers hold back what was freed.
        assert SANITIZED or d.memory() - memory < 64 << 20
    finally:
        for p in peers:
            p.kill()
            p.wait()
            p.stdout.close()
            p.stderr.close()
    d.idle()
    # The session that asked whether all is idle is itself just going.
    d.until(lambda: d.fds() <= fds, "descriptors given back")
    # Segments: nothing of a session's shared memory is still mapped.
    maps = pathlib.Path(f"/proc/{d.proc.pid}/maps")
    d.until(lambda: "memfd:kvd-ring" not in maps.read_text(), "segments unmapped")
