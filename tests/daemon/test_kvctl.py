# SPDX-License-Identifier: Apache-2.0
"""kvctl as a person uses it."""
import json
import os
import shutil
import signal
import socket
import subprocess
import time

import kvdclient as k
import pytest
from conftest import BUILD, PATIENCE, make_tiny
from terminal import run_on_terminal


def test_generate_prints_the_text_and_nothing_else(daemon, kvctl):
    with daemon.client() as c:
        want = c.generate("Hello", n=20, ignore_eos=True).text
    r = kvctl("generate", "--raw", "-n", 20, "-t", 0, "--ignore-eos", "Hello", socket=daemon.socket)
    assert (r.returncode, r.stdout, r.stderr) == (0, want, b"")


def test_prompt_sources_agree(daemon, kvctl, directory):
    f = directory / "prompt"
    f.write_bytes(b"From a file\n")
    args = ["generate", "--raw", "-n", 10, "-t", 0, "--ignore-eos"]
    a = kvctl(*args, "-f", f, socket=daemon.socket)
    b = kvctl(*args, "-", socket=daemon.socket, stdin=b"From a file\n")
    c = kvctl(*args, socket=daemon.socket, stdin=b"From a file\n")
    assert a.returncode == b.returncode == c.returncode == 0
    assert a.stdout == b.stdout == c.stdout != b""


def test_chat_template_is_the_default(daemon, kvctl):
    with daemon.client() as c:
        want = c.generate(messages=[("user", "Hello")], n=20).text
    r = kvctl("generate", "-n", 20, "-t", 0, "Hello", socket=daemon.socket)
    assert r.returncode == 0 and r.stdout == want


def test_exit_codes(daemon, kvctl, directory):
    none = directory / "nothing"
    assert kvctl("generate", "x", socket=none, env={"HOME": str(directory)}).returncode == 3
    assert kvctl("status", socket=none).returncode == 3
    for model, why in (("no/such.gguf", b"No such file"), ("absent.gguf", b"No such file"), (directory, b"")):
        r = kvctl("generate", "-m", model, "x", socket=none)
        assert r.returncode == 1 and str(model).encode() in r.stderr and why in r.stderr
    assert kvctl("nonsense", socket=daemon.socket).returncode == 2
    assert kvctl("generate", "-t", "hot", "x", socket=daemon.socket).returncode == 2
    r = kvctl("generate", "--raw", "-", stdin=b"word " * 30000, socket=daemon.socket)
    assert r.returncode == 1 and r.stdout == b"" and b"context" in r.stderr
    assert kvctl("generate", "-m", "nobody", "x", socket=daemon.socket).returncode == 1


def test_ctrl_c_cancels(daemon, kvctl):
    p = subprocess.Popen([kvctl.path, "--socket", daemon.socket, "generate", "--raw", "-n", "1000000", "--ignore-eos",
                          "-t", "0", "x"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.read(p.stdout.fileno(), 1)
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=20 * PATIENCE)
    assert p.returncode == 130
    daemon.idle()
    assert daemon.status()["requests_cancelled"] >= 1


def test_closed_pipe_cancels(daemon, kvctl):
    p = subprocess.Popen([kvctl.path, "--socket", daemon.socket, "generate", "--raw", "-n", "1000000", "--ignore-eos",
                          "x"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.read(p.stdout.fileno(), 1)
    p.stdout.close()
    err = p.stderr.read()
    p.stderr.close()
    p.wait(20 * PATIENCE)
    assert err == b""
    daemon.idle()


def test_terminal_shows_no_control_characters(daemon, kvctl):
    """What a model says must not steer the terminal."""
    _, out = run_on_terminal([kvctl.path, "--socket", daemon.socket, "generate", "--raw", "-t", "2",
                              "--seed", "3", "-n", "400", "--ignore-eos", "x"])
    body = out.replace(b"\r\n", b"\n")
    # Our own progress line may return to the line's start and clear it.
    for own in (b"\r\x1b[K", b"\r", b"\x1b[K"):
        body = body.replace(own, b"")
    assert not [b for b in body if b < 32 and b not in (9, 10)], body


def test_status_ps_models_json(daemon, kvctl):
    s = json.loads(kvctl("--json", "status", socket=daemon.socket).stdout)
    assert s["state"] == "ready" and s["pid"] == daemon.proc.pid
    m = json.loads(kvctl("--json", "models", socket=daemon.socket).stdout)
    assert m[0]["name"] == "tiny" and m[0]["chat_template"] == "chatml"
    with daemon.client() as c:
        c.submit("x", n=4000, ignore_eos=True)
        p = json.loads(kvctl("--json", "ps", socket=daemon.socket).stdout)
        assert len(p) == 1 and p[0]["client"] == "pytest"
    for cmd in ("status", "ps", "models", "version"):
        r = kvctl(cmd, socket=daemon.socket)
        assert r.returncode == 0 and r.stdout


def test_tokenize_round_trip(daemon, kvctl):
    r = kvctl("tokenize", "--ids", "Grüße, 世界 👩‍👩‍👧", socket=daemon.socket)
    assert r.returncode == 0
    ids = [int(x) for x in r.stdout.split()]
    with daemon.client() as c:
        assert ids == c.tokenize("Grüße, 世界 👩‍👩‍👧")


def test_chat_keeps_generated_ids(daemon, kvctl):
    r = kvctl("chat", socket=daemon.socket, stdin=b"Hello\nAnd again\n/quit\n")
    assert r.returncode == 0, r.stderr
    assert r.stdout


@pytest.fixture
def home(directory):
    run = directory / "run"
    run.mkdir(mode=0o700)
    env = {"XDG_RUNTIME_DIR": str(run), "HOME": str(directory)}
    yield env, run / "kvd" / "kvd.sock"
    sock = run / "kvd" / "kvd.sock"
    if sock.exists():
        with k.Client(sock) as c:
            pid = c.call(k.STATUS)["pid"]
        os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + 20 * PATIENCE
        while sock.exists() and time.monotonic() < end:
            time.sleep(0.02)
        assert not sock.exists()


def test_private_daemon(home, kvctl, tiny_model):
    env, sock = home
    env.pop("KVD_SOCKET", None)
    procs = [subprocess.Popen([kvctl.path, "generate", "-m", tiny_model, "--raw", "-t", "0", "-n", "10", "--ignore-eos",
                               "Hello"], env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) for _ in range(4)]
    outs = [p.communicate(timeout=60 * PATIENCE) for p in procs]
    assert [p.returncode for p in procs] == [0] * 4, outs
    assert len({o[0] for o in outs}) == 1
    with k.Client(sock) as c:
        s = c.call(k.STATUS)
        assert s["requests_done"] == 4, "all four used one daemon"


def test_private_daemon_is_no_service(home, kvctl, tiny_model, directory):
    """Where a service runs kvctl, its manager hears nothing of that."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(directory / "notify"))
        r = kvctl("generate", "-m", tiny_model, "--raw", "-n", "3", "Hello",
                  env={**home[0], "NOTIFY_SOCKET": str(directory / "notify"), "LISTEN_FDS": "1", "LISTEN_PID": "1"})
        assert r.returncode == 0, r.stderr
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.recv(4096)


def test_second_file_for_a_daemon_that_runs(home, kvctl, directory, tiny_model):
    """-m FILE means that file, whichever the daemon had before."""
    other = make_tiny(directory / "other.gguf", "--seed", "9")
    args = ("--raw", "-t", "0", "-n", "10", "--ignore-eos", "Hello")
    first = kvctl("generate", "-m", tiny_model, *args, env=home[0])
    second = kvctl("generate", "-m", other, *args, env=home[0])
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert first.stdout != second.stdout
    with k.Client(home[1]) as c:
        assert [m["name"] for m in c.call(k.MODELS)["models"]] == ["tiny", "other"]
    bad = directory / "bad.gguf"
    bad.write_bytes(b"GGUF")
    r = kvctl("generate", "-m", bad, *args, env=home[0])
    assert r.returncode == 1 and b"version: 4 bytes at 4 reach beyond the file" in r.stderr, r.stderr
    again = kvctl("generate", "-m", tiny_model, *args, env=home[0])
    assert again.stdout == first.stdout, "a file that cannot be loaded harms nobody"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_second_file_of_a_user_who_may_not_load(daemons, bin_dir_of_user, directory, tiny_model):
    d = daemons("--model", tiny_model, "--socket-mode", "0666")
    other = make_tiny(directory / "other.gguf", "--seed", "9")
    r = subprocess.run([bin_dir_of_user / "kvctl", "--socket", d.socket, "generate", "-m", other, "Hi"],
                       stdin=subprocess.DEVNULL, capture_output=True, user=20001, group=20001, extra_groups=[],
                       timeout=60 * PATIENCE, check=False)
    assert r.returncode == 1
    assert b'no model "other"; it has: tiny' in r.stderr


@pytest.fixture
def bin_dir_of_user(directory):
    """A copy that another user can run, wherever the checkout lies."""
    shutil.copy(BUILD / "bin/kvctl", directory)
    return directory


def test_private_daemon_that_cannot_start_says_why(home, kvctl, directory):
    bad = directory / "bad.gguf"
    bad.write_bytes(b"GGUF\x63\0\0\0" + b"\0" * 100)
    r = kvctl("generate", "-m", bad, "x", env=home[0])
    assert r.returncode == 1
    assert b"version" in r.stderr
