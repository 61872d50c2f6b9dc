# SPDX-License-Identifier: Apache-2.0
"""The socket's path: what may lie there already, who races for it, where it is when nobody says; and what happens on it while a
model loads."""
import os
import shutil
import signal
import socket
import stat
import subprocess
import threading

import kvdclient as k
import pytest
from conftest import BUILD, PATIENCE, Daemon

UID = 20004


def kvd(*args, env=None, **kw):
    return subprocess.run([BUILD / "bin/kvd", *map(str, args)], capture_output=True, timeout=30 * PATIENCE,
                          stdin=subprocess.DEVNULL, env=env, **kw)


def answers(path):
    with k.Client(path, timeout=20 * PATIENCE) as c:
        return bool(c.generate("x", n=2, ignore_eos=True).ids)


# --- what lies there ---------------------------------------------------------------

def lay(kind, path, directory):
    """Puts something at path; returns what must still be so afterwards."""
    if kind == "folder":
        path.mkdir()
        return path.is_dir
    if kind == "file":
        path.write_text("precious")
        return lambda: path.read_text() == "precious"
    if kind == "fifo":
        os.mkfifo(path)
        return lambda: stat.S_ISFIFO(path.lstat().st_mode)
    target = directory / "target"
    if kind == "link to a file":
        target.write_text("precious")
    elif kind == "link to a folder":
        target.mkdir()
    elif kind == "link to a socket":
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.bind(str(target))
    path.symlink_to(target)
    return lambda: path.is_symlink() and (kind != "link to a file" or target.read_text() == "precious") \
        and (kind == "link to nothing") != target.exists()


@pytest.mark.parametrize("kind", ["folder", "file", "fifo", "link to a file", "link to a folder", "link to a socket", "link to nothing"])
def test_what_is_no_socket_stays(directory, tiny_model, kind):
    path = directory / "kvd.sock"
    intact = lay(kind, path, directory)
    r = kvd("--model", tiny_model, "--socket", path)
    assert r.returncode == 1 and str(path).encode() in r.stderr and len(r.stderr.splitlines()) == 1
    assert intact()


@pytest.mark.parametrize("kind,name", [(socket.SOCK_STREAM, "stream"), (socket.SOCK_DGRAM, "datagram"), (socket.SOCK_SEQPACKET, "same")])
def test_somebody_elses_socket_stays(directory, tiny_model, kind, name):
    """A program of another kind that listens there is not put out."""
    path = directory / "kvd.sock"
    with socket.socket(socket.AF_UNIX, kind) as s:
        s.bind(str(path))
        if kind != socket.SOCK_DGRAM:
            s.listen(1)
        inode = path.stat().st_ino
        r = kvd("--model", tiny_model, "--socket", path)
        assert r.returncode == 1 and str(path).encode() in r.stderr
        assert path.stat().st_ino == inode


@pytest.mark.parametrize("parent", ["missing/deeper", "file", "dev/null"])
def test_no_such_folder(directory, tiny_model, parent):
    (directory / "file").write_text("x")
    path = "/dev/null/s" if parent == "dev/null" else directory / parent / "s"
    r = kvd("--model", tiny_model, "--socket", path)
    assert r.returncode == 1 and b"socket" in r.stderr and len(r.stderr.splitlines()) == 1


def test_one_missing_folder_is_made(daemons, directory, tiny_model):
    d = daemons("--model", tiny_model, socket=directory / "new" / "kvd.sock")
    assert answers(d.socket)


@pytest.mark.parametrize("n", [1, 107])
def test_longest_path_works(daemons, directory, tiny_model, n):
    """Up to the 107 bytes that the kernel has room for; a relative one too."""
    path = str(directory) + "/" + "s" * max(1, n - len(str(directory)) - 1)
    assert n == 1 or len(path) == 107
    d = daemons("--model", tiny_model, socket=path)
    assert answers(path)
    assert d.socket.exists()


# --- who races for it ----------------------------------------------------------------

def test_kill_and_start_again(directory, tiny_model):
    """Twenty times `kill -9`, each followed by a start on the stale socket."""
    for _ in range(20):
        d = Daemon(directory, "--model", tiny_model, "--kv-memory", "4M")
        d.kill()
        assert d.socket.exists()
    d = Daemon(directory, "--model", tiny_model, "--kv-memory", "4M")
    assert answers(d.socket)
    d.stop()
    assert not [f for f in os.listdir(directory) if not f.endswith(".log")], "nothing is left"


@pytest.mark.parametrize("turn", range(4))
def test_many_starts_at_once(directory, tiny_model, turn):
    """Of eight that start on a stale socket at once one serves, seven say why not; nobody takes it from the one."""
    d = Daemon(directory, "--model", tiny_model)
    d.kill()
    procs = [subprocess.Popen([BUILD / "bin/kvd", "--model", tiny_model, "--socket", d.socket, "--kv-memory", "4M"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(8)]
    lost = []
    while len(lost) < 7:
        for p in procs:
            if p not in lost and p.poll() is not None:
                assert p.returncode == 1 and b"already" in p.stderr.read()
                p.stderr.close()
                lost.append(p)
    left, = [p for p in procs if p not in lost]
    assert answers(d.socket)
    left.terminate()
    assert left.wait(20 * PATIENCE) == 0
    left.stderr.close()
    assert not d.socket.exists()


def test_a_later_daemon_keeps_its_socket(directory, tiny_model):
    """The first one's socket is removed behind its back; when it stops, the second one's stays."""
    a = Daemon(directory, "--model", tiny_model)
    a.socket.unlink()
    (directory / "kvd.sock.lock").unlink(missing_ok=True)
    b = Daemon(directory, "--model", tiny_model)
    a.proc.send_signal(signal.SIGTERM)
    assert a.proc.wait(20 * PATIENCE) == 0
    assert answers(b.socket)
    b.stop()


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_never_another_mode(directory, tiny_model, umask, mode):
    """From the first moment on the socket has its configured mode: looked at all the time while it comes."""
    seen, path, stop = set(), directory / "kvd.sock", threading.Event()

    def look():
        while not stop.is_set():
            try:
                seen.add(stat.S_IMODE(os.lstat(path).st_mode))
            except FileNotFoundError:
                pass
    thread = threading.Thread(target=look)
    thread.start()
    old = os.umask(umask)
    try:
        d = Daemon(directory, "--model", tiny_model, "--socket-mode", f"{mode:04o}", "--kv-memory", "4M")
        d.stop()
    finally:
        os.umask(old)
        stop.set()
        thread.join()
    assert seen == {mode}


# --- where it is ------------------------------------------------------------------

def environment(**more):
    return {key: v for key, v in os.environ.items() if key not in ("XDG_RUNTIME_DIR", "KVD_SOCKET")} | more


@pytest.mark.parametrize("how", ["XDG_RUNTIME_DIR", "KVD_SOCKET", "both"])
def test_default_paths_agree(directory, tiny_model, how):
    """Without --socket a user's kvd listens where kvctl looks, whatever the environment says."""
    for f in (BUILD / "bin/kvd", BUILD / "bin/kvctl"):
        shutil.copy(f, directory)
    shutil.copy(tiny_model, directory / "m.gguf")
    run = directory / "run"
    run.mkdir(mode=0o700)
    more = {"XDG_RUNTIME_DIR": str(run)} if how != "KVD_SOCKET" else {"XDG_RUNTIME_DIR": "relative"}
    if how != "XDG_RUNTIME_DIR":
        more["KVD_SOCKET"] = str(run / "own.sock")
    user = {}
    if os.geteuid() == 0:
        user = {"user": UID, "group": UID, "extra_groups": []}
        os.chown(run, UID, UID)
    env, path = environment(HOME=str(directory), **more), run / ("kvd/kvd.sock" if how == "XDG_RUNTIME_DIR" else "own.sock")
    daemon = subprocess.Popen([directory / "kvd", "--model", directory / "m.gguf", "--kv-memory", "4M"], env=env, stdin=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, cwd=directory, **user)
    try:
        assert str(path).encode() in daemon.stderr.readline()
        r = subprocess.run([directory / "kvctl", "generate", "--raw", "-n", "2", "x"], env=env, stdin=subprocess.DEVNULL, capture_output=True,
                           timeout=30 * PATIENCE, cwd=directory, **user)
        assert r.returncode == 0 and r.stdout, r
    finally:
        daemon.terminate()
        daemon.communicate(timeout=30 * PATIENCE)


@pytest.mark.parametrize("runtime", [None, "", "relative/path"])
def test_no_socket_anywhere(directory, runtime):
    """Nowhere to look but in the system's place, and that is what kvctl names."""
    env = environment(HOME=str(directory), KVD_SOCKET="", **({} if runtime is None else {"XDG_RUNTIME_DIR": runtime}))
    (directory / "relative/path/kvd").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.bind(str(directory / "relative/path/kvd/kvd.sock"))
        s.listen(1)
        r = subprocess.run([BUILD / "bin/kvctl", "status"], env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=30 * PATIENCE,
                           cwd=directory)
    assert (r.returncode == 3 and b"/run/kvd/kvd.sock" in r.stderr) or os.path.exists("/run/kvd/kvd.sock")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another uid")
def test_no_runtime_dir(directory, tiny_model):
    """Without XDG_RUNTIME_DIR a user's daemon has nowhere to listen, and says so; with --socket it works."""
    shutil.copy(BUILD / "bin/kvd", directory)
    shutil.copy(tiny_model, directory / "m.gguf")
    user = {"user": UID, "group": UID, "extra_groups": []}
    r = subprocess.run([directory / "kvd", "--model", directory / "m.gguf"], capture_output=True, env=environment(), timeout=30 * PATIENCE,
                       stdin=subprocess.DEVNULL, **user)
    assert r.returncode == 1 and b"/run/kvd" in r.stderr and len(r.stderr.splitlines()) == 1


# --- while a model loads -----------------------------------------------------------

@pytest.fixture
def large_model(directory, tiny_model):
    """A tiny model with a gibibyte of nothing behind it, which is read all the same."""
    path = directory / "large.gguf"
    shutil.copy(tiny_model, path)
    os.truncate(path, 1 << 30)
    return path


def test_connect_while_loading(daemons, directory, large_model):
    """Programs attach at once; questions are answered, requests wait for the model, those who leave are forgotten."""
    d = daemons("--model", large_model, wait=False)
    d.until(d.socket.exists, "listening")
    d.until(lambda: connects(d.socket), "connects")
    with d.client() as c, d.client() as many, d.client() as chat:
        loading = c.call(k.STATUS)["state"] == "loading"
        rids = [many.submit("Hello", n=5, ignore_eos=True) for _ in range(20)]
        gone = [d.client() for _ in range(10)]
        for g in gone:
            g.submit("never", n=100000, ignore_eos=True)
            g.close()
        rid = chat.submit(messages=[("user", "Hello")], n=5, ignore_eos=True)
        cancelled = c.submit("cancelled", n=100000, ignore_eos=True)
        c.cancel(cancelled)
        m = c.call(k.MODELS)["models"]
        assert m[0]["name"] == "large" and (not loading or m[0]["state"] in ("loading", "ready"))
        got = many.collect(*rids)
        assert len({tuple(r.ids) for r in got.values()}) == 1 and all(len(r.ids) == 5 for r in got.values())
        assert len(chat.collect(rid)[rid].ids) == 5
        assert c.collect(cancelled)[cancelled].reason == k.CANCELLED
        assert len(c.tokenize("Hello")) > 0
    d.idle()
    assert loading, "it was loaded too soon: the test shows nothing"


def connects(path):
    try:
        with k.Client(path):
            return True
    except (FileNotFoundError, ConnectionRefusedError):
        return False


def test_stop_while_loading(directory, large_model):
    d = Daemon(directory, "--model", large_model, wait=False)
    d.until(lambda: connects(d.socket), "connects")
    with d.client() as c:
        c.submit("waits", n=5)
        d.stop()


def test_file_cut_while_loading(directory, large_model):
    """What is not there any more cannot be read, weights or metadata: an error that says so, and an end."""
    d = Daemon(directory, "--model", large_model, wait=False)
    d.until(lambda: connects(d.socket), "connects")
    os.truncate(large_model, 5000)
    rc = d.proc.wait(60 * PATIENCE)
    d.stopped = True
    log = d.log.read_text()
    assert rc == 1 and ("cannot be read" in log or "reach beyond the file's 5000 bytes" in log), log
    assert not d.socket.exists()
