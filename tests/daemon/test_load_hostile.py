# SPDX-License-Identifier: Apache-2.0
"""Descriptors that are no model, files that change, users who may not: refused, and nobody else is harmed."""
import json
import os
import shutil
import socket
import subprocess
import sys

import kvdclient as k
import msgpack
import pytest
from conftest import BUILD, HERE, PATIENCE, Daemon

MEMORY = ("--kv-memory", "64M", "--threads", "2")
UID, OTHER_UID = 20001, 20002

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs other users")


@pytest.fixture
def d(daemons, several):
    return daemons("--model", several["small"], *MEMORY)


@pytest.fixture
def slow(daemons, several):
    """One that takes a second to load the large model."""
    return daemons("--model", several["small"], *MEMORY, env={"KVD_TEST_LOAD_DELAY_MS": "5"})


@pytest.fixture
def serves(d):
    """The answer is the same before and after; no descriptor stays."""
    yield from serves_on(d)


@pytest.fixture
def serves_slowly(slow):
    yield from serves_on(slow)


def serves_on(d):
    with d.client() as c:
        before = c.generate("serve", n=8, ignore_eos=True).ids
        fds = d.fds()
        yield d
        assert c.generate("serve", n=8, ignore_eos=True).ids == before
        d.until(lambda: d.fds() <= fds, "descriptors are given back")
        assert d.models() == {"small": "ready"}


# --- what a descriptor may be ----------------------------------------------------------------

def open_fifo(folder):
    os.mkfifo(folder / "fifo")
    return os.open(folder / "fifo", os.O_RDONLY | os.O_NONBLOCK)


def open_socket(folder):
    a, b = socket.socketpair()
    b.close()
    return a.detach()


def open_write_only(folder):
    return os.open(folder / "model.gguf", os.O_WRONLY)


DESCRIPTORS = {
    "directory": (lambda f: os.open(f, os.O_RDONLY), "regular"),
    "zero": (lambda f: os.open("/dev/zero", os.O_RDONLY), "regular"),
    "null": (lambda f: os.open("/dev/null", os.O_RDONLY), "regular"),
    "terminal": (lambda f: os.openpty()[0], "regular"),
    "fifo": (open_fifo, "regular"),
    "pipe": (lambda f: os.pipe()[0], "regular"),
    "socket": (open_socket, "regular"),
    "event": (lambda f: os.eventfd(0), "regular"),
    "path": (lambda f: os.open(f / "model.gguf", os.O_PATH), "reading"),
    "write": (open_write_only, "reading"),
    "empty": (lambda f: os.open(f / "empty", os.O_RDONLY), ""),
    "proc": (lambda f: os.open("/proc/self/mem", os.O_RDONLY), ""),
    "text": (lambda f: os.open(__file__, os.O_RDONLY), "magic"),
}


@pytest.mark.parametrize("name", DESCRIPTORS)
def test_descriptors_that_are_no_model(serves, several, directory, name):
    shutil.copy(several["other"], directory / "model.gguf")
    (directory / "empty").touch()
    opens, word = DESCRIPTORS[name]
    fd = opens(directory)
    try:
        with serves.client() as c:
            with pytest.raises(k.Refused) as e:
                c.load(None, "x", fds=[fd])
        assert e.value.code == 16 and word in e.value.fields["message"], e.value.fields
    finally:
        os.close(fd)


def test_an_offset_does_not_matter(d, several):
    """A descriptor is read by position: where it stands, and who else reads it, is nothing to us."""
    fd = os.open(several["other"], os.O_RDWR)
    os.lseek(fd, 12345, os.SEEK_SET)
    with d.client() as c:
        c.load(None, "x", fds=[fd])
        assert os.lseek(fd, 0, os.SEEK_CUR) == 12345
    os.close(fd)


def test_a_deleted_file_can_be_loaded(d, several, directory):
    shutil.copy(several["other"], directory / "gone.gguf")
    fd = os.open(directory / "gone.gguf", os.O_RDONLY)
    os.unlink(directory / "gone.gguf")
    with d.client() as c:
        c.load(None, "gone", fds=[fd])
        assert c.generate("x", n=3, model="gone").ids
    os.close(fd)


def test_a_file_larger_than_the_memory(serves, directory):
    with open(directory / "huge.gguf", "wb") as f:
        f.truncate(1 << 42)
    memory = serves.memory()
    with serves.client() as c:
        with pytest.raises(k.Refused) as e:
            c.load(directory / "huge.gguf", "huge")
    assert e.value.code == 10 and "memory" in e.value.fields["message"]
    assert serves.memory() < memory + (1 << 20)


# --- descriptors where they do not belong -------------------------------------------------------

def test_number_of_descriptors(serves, several):
    fds = [os.open(several["other"], os.O_RDONLY) for _ in range(4)]
    with serves.client() as c:
        for n in (0, 2, 3, 4):
            rid = c.load(None, "x", fds=fds[:n], wait=False)
            msg, fields = c.receive()
            assert msg == k.ERROR and fields["code"] == 1 and fields["id"] == (rid if n == 0 else 0)
        for message in ([k.STATUS, {"id": 5}], [k.ROOM, {}], [k.UNLOAD, {"id": 6, "model": "small"}],
                        [k.CANCEL, {"id": 7}], [k.LOAD, {"id": 8}], [k.LOAD, {"id": 9, "name": "a/b"}], "garbage"):
            socket.send_fds(c.sock, [msgpack.packb(message)], fds[:1])
            msg, fields = c.receive()
            assert msg == k.ERROR and fields["code"] in (1, 2), (message, fields)
        assert c.call(k.STATUS)["state"] == "ready"
    with pytest.raises((k.Refused, k.Closed)):
        with serves.client(hello=False) as c:
            socket.send_fds(c.sock, [msgpack.packb([k.HELLO, {"version": k.VERSION, "client": "x"}])], fds[:1])
            raise k.Refused(msgpack.unpackb(c.sock.recv(65536))[1])
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize("name", ["", "a/b", "../a", "a\nb", "\x1b[2J", "x" * 128, b"\xff", 5, None, "a\0b"])
def test_names(serves, several, name):
    with serves.client() as c:
        with pytest.raises(k.Refused) as e:
            c.load(several["other"], name)
        assert e.value.code == 2 and e.value.field == "name"


def test_too_many_loads_of_one_session(serves_slowly, large_model):
    with serves_slowly.client() as c:
        rids = [c.load(large_model, f"m{i}", wait=False) for i in range(20)]
        codes = []
        for rid in rids[15:]:
            with pytest.raises(k.Refused) as e:
                c.reply(rid)
            codes.append(e.value.code)
        assert set(codes) <= {4, 6}
    serves_slowly.until(lambda: serves_slowly.models() == {"small": "ready"}, "all are given up")


# --- files that change -----------------------------------------------------------------------------

def test_truncated_at_every_place(serves, several, directory):
    """Cut anywhere: an error that says where, at once, and nothing kept."""
    data = several["other"].read_bytes()
    path = directory / "cut.gguf"
    with serves.client() as c:
        for n in [*range(0, 400, 7), *range(4096, len(data), 32768), len(data) - 1]:
            path.write_bytes(data[:n])
            with pytest.raises(k.Refused) as e:
                c.load(path, "cut")
            assert e.value.code == 16 and e.value.fields["message"], n


def test_cut_while_it_loads(serves_slowly, large_model, directory):
    path = directory / "large.gguf"
    shutil.copy(large_model, path)
    with serves_slowly.client() as c:
        rid = c.load(path, "large", wait=False)
        serves_slowly.until(lambda: serves_slowly.models().get("large") == "loading", "the load has begun")
        os.truncate(path, 100000)
        with pytest.raises(k.Refused) as e:
            c.reply(rid)
        assert e.value.code == 16


def test_replaced_or_removed_while_it_loads(slow, several, large_model, directory):
    path = directory / "large.gguf"
    shutil.copy(large_model, path)
    with slow.client() as c:
        rid = c.load(path, "large", wait=False)
        slow.until(lambda: slow.models().get("large") == "loading", "the load has begun")
        os.rename(shutil.copy(several["other"], directory / "new.gguf"), path)
        os.unlink(path)
        c.reply(rid)
        assert c.generate("x", n=3, model="large").ids


def test_changed_once_loaded(d, several, directory):
    """What is loaded is a copy: cut, overwritten or removed, the answers stay."""
    path = directory / "changing.gguf"
    shutil.copy(several["other"], path)
    with d.client() as c:
        c.load(path, "changing")
        want = c.generate("once", n=20, ignore_eos=True, model="changing").ids
        with open(path, "r+b") as f:
            f.write(b"\xff" * 100000)
        assert c.generate("once", n=20, ignore_eos=True, model="changing").ids == want
        os.truncate(path, 0)
        assert c.generate("once", n=20, ignore_eos=True, model="changing").ids == want
        os.unlink(path)
        assert c.generate("once", n=20, ignore_eos=True, model="changing").ids == want


def test_overwritten_while_it_loads(serves, several, directory):
    """The header that was checked is the one that is used, whatever the file says a moment later."""
    data = several["other"].read_bytes()
    path = directory / "racing.gguf"
    path.write_bytes(data)
    child = subprocess.Popen([sys.executable, "-c", (
        "import sys\n"
        "f = open(sys.argv[1], 'r+b', buffering=0)\n"
        "good = f.read(65536)\n"
        "while True:\n"
        "    f.seek(8); f.write(b'\\xff' * 65000)\n"
        "    f.seek(0); f.write(good)\n"), str(path)])
    try:
        with serves.client() as c:
            for _ in range(200):
                try:
                    c.load(path, "racing")
                    c.generate("x", n=2, model="racing")
                    c.call(k.UNLOAD, {"model": "racing"})
                except k.Refused as e:
                    assert e.code == 16, e.fields
    finally:
        child.kill()
        child.wait()


# --- clients that go -------------------------------------------------------------------------------

def test_a_client_killed_during_its_load(serves_slowly, large_model):
    child = subprocess.Popen([BUILD / "bin/kvctl", "--socket", serves_slowly.socket, "load", large_model],
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    serves_slowly.until(lambda: "large" in serves_slowly.models(), "it loads")
    child.kill()
    child.wait()
    serves_slowly.until(lambda: serves_slowly.models() == {"small": "ready"}, "the load is given up")


# --- users ------------------------------------------------------------------------------------------

def as_user(uid, d, *args, stdin=None, timeout=60):
    return subprocess.run([d.dir / "kvctl", "--socket", d.socket, *map(str, args)], stdin=stdin or subprocess.DEVNULL,
                          capture_output=True, timeout=timeout * PATIENCE, user=uid, group=uid, extra_groups=[])


@pytest.fixture
def shared(daemons, several, directory):
    def start(*options):
        shutil.copy(BUILD / "bin/kvctl", directory)
        return daemons("--model", several["small"], "--socket-mode", "0666", *MEMORY, *options)
    return start


@needs_root
def test_other_users_may_not_load(shared, several):
    d = shared()
    r = as_user(UID, d, "load", several["other"])
    assert r.returncode == 4 and b"only root" in r.stderr
    r = as_user(UID, d, "unload", "small")
    assert r.returncode == 4 and b"may unload" in r.stderr
    assert d.models() == {"small": "ready"}


@needs_root
def test_share_of_weights(shared, several):
    """Each user may load so many bytes, no more, and unload its own only."""
    size = {n: p.stat().st_size for n, p in several.items()}
    d = shared("--uid-weights", size["other"] + size["third"])
    assert as_user(UID, d, "load", several["other"]).returncode == 0
    r = as_user(UID, d, "load", several["small"], "--name", "mine")
    assert r.returncode == 4 and b"loaded" in r.stderr
    assert as_user(UID, d, "load", several["third"]).returncode == 0
    assert as_user(OTHER_UID, d, "load", several["third"], "--name", "theirs").returncode == 0
    for name in ("small", "other"):
        assert as_user(OTHER_UID, d, "unload", name).returncode == 4
    with d.client() as c:
        owners = {m["name"]: m["uid"] for m in c.call(k.MODELS)["models"]}
        assert owners == {"small": 0, "other": UID, "third": UID, "theirs": OTHER_UID}
        # Root is charged nothing, and unloads what it likes.
        for i in range(5):
            c.load(several["other"], f"root{i}")
        c.call(k.UNLOAD, {"model": "third"})
    # The share is free again after unloading, and after a load that failed.
    assert as_user(UID, d, "load", HERE / "conftest.py", "--name", "bad").returncode == 1
    assert as_user(UID, d, "load", several["third"], "--name", "again").returncode == 0
    assert as_user(UID, d, "unload", "again").returncode == 0
    assert as_user(UID, d, "unload", "other").returncode == 0


@needs_root
def test_the_file_needs_no_rights_of_the_daemon(several, directory):
    """A daemon of a user without access to the file is handed it open."""
    secret = directory / "secret.gguf"
    shutil.copy(several["other"], secret)
    secret.chmod(0o600)
    run = directory / "run"
    run.mkdir()
    os.chown(run, UID, UID)
    shutil.copy(BUILD / "bin/kvd", directory / "kvd")
    d = Daemon(run, *MEMORY, program=directory / "kvd", user=UID)
    try:
        with d.client() as c:
            assert c.load(secret, "secret")["name"] == "secret"
            assert c.generate("x", n=3).ids
    finally:
        d.stop()
    r = subprocess.run([directory / "kvd", "--model", secret, "--socket", run / "s"], user=UID, group=UID,
                       extra_groups=[], capture_output=True, timeout=60 * PATIENCE)
    assert r.returncode == 1 and b"Permission denied" in r.stderr


# --- kvctl -------------------------------------------------------------------------------------------

def test_ctrl_c_gives_the_load_up(serves_slowly, large_model):
    child = subprocess.Popen([BUILD / "bin/kvctl", "--socket", serves_slowly.socket, "load", large_model],
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    serves_slowly.until(lambda: "large" in serves_slowly.models(), "it loads")
    child.send_signal(2)
    out, err = child.communicate(timeout=20 * PATIENCE)
    assert (child.returncode, out, err) == (130, b"", b"")
    serves_slowly.until(lambda: serves_slowly.models() == {"small": "ready"}, "the load is given up")


def test_ctrl_c_leaves_an_unload_alone(daemons, several):
    d = daemons("--model", several["small"], *MEMORY, env={"KVD_TEST_STEP_DELAY_MS": "5"})
    with d.client() as c:
        rid = c.submit("x", n=200, ignore_eos=True)
        d.until(lambda: d.status()["n_running"] == 1, "it runs")
        child = subprocess.Popen([BUILD / "bin/kvctl", "--socket", d.socket, "unload", "small"],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        d.until(lambda: d.models().get("small") == "unloading", "it is asked for")
        child.send_signal(2)
        assert child.communicate(timeout=20 * PATIENCE) == (b"", b"") and child.returncode == 130
        assert len(c.collect(rid)[rid].ids) == 200
        d.until(lambda: d.models() == {}, "it is gone")


def test_kvctl_load_and_unload(kvctl, d, several, directory):
    def ctl(*args):
        return kvctl(*args, socket=d.socket)

    r = ctl("load", several["other"])
    assert (r.returncode, r.stdout, r.stderr) == (0, b"", b"")
    assert ctl("load", several["third"], "--name", "a third", "--ctx", "64").returncode == 0
    listed = json.loads(ctl("--json", "models").stdout)
    assert [(m["name"], m["n_ctx"], m["is_default"]) for m in listed] == \
        [("small", 2048, True), ("other", 2048, False), ("a third", 64, False)]
    assert b"a third" in ctl("status").stdout
    assert ctl("generate", "--raw", "-n", "2", "-m", "a third", "x").returncode == 0
    r = ctl("load", several["other"])
    assert r.returncode == 1 and b"already" in r.stderr
    r = ctl("load", directory / "absent.gguf")
    assert r.returncode == 1 and b"No such file" in r.stderr
    r = ctl("load", directory)
    assert r.returncode == 1 and b"not a regular file" in r.stderr
    os.mkfifo(directory / "fifo.gguf")
    r = ctl("load", directory / "fifo.gguf")
    assert r.returncode == 1 and b"not a regular file" in r.stderr
    assert ctl("load", several["other"], "--name", "a/b").returncode == 1
    r = ctl("unload", "absent")
    assert r.returncode == 1 and b"absent" in r.stderr
    for name in ("small", "other", "a third"):
        r = ctl("unload", name)
        assert (r.returncode, r.stdout, r.stderr) == (0, b"", b"")
    assert d.models() == {}
    r = ctl("generate", "x")
    assert r.returncode == 1 and b"no model is loaded" in r.stderr


def test_no_daemon(kvctl, several, directory):
    for args in (("load", several["other"]), ("unload", "x")):
        assert kvctl(*args, socket=directory / "none").returncode == 3
