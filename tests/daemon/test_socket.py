# SPDX-License-Identifier: Apache-2.0
"""The socket: who may have it, what happens to it, and what is on it before the model is."""
import os
import socket
import stat
import subprocess

import kvdclient as k
import msgpack
import pytest
from conftest import BUILD, PATIENCE, Daemon


def kvd(*args, umask=None, **kw):
    return subprocess.run([BUILD / "bin/kvd", *map(str, args)], capture_output=True, timeout=30 * PATIENCE,
                          stdin=subprocess.DEVNULL,
                          preexec_fn=(lambda: os.umask(umask)) if umask is not None else None, **kw)


def test_stale_socket_after_kill(daemons, directory, tiny_model):
    d = Daemon(directory, "--model", tiny_model)
    d.kill()
    assert d.socket.exists()
    with pytest.raises(ConnectionRefusedError):
        k.Client(d.socket)
    d2 = daemons("--model", tiny_model)
    with d2.client() as c:
        assert c.generate("x", n=2).ids


def test_second_daemon_is_refused(daemon, tiny_model):
    r = kvd("--model", tiny_model, "--socket", daemon.socket)
    assert r.returncode == 1
    assert b"already" in r.stderr or b"in use" in r.stderr
    with daemon.client() as c:
        assert c.generate("x", n=2).ids


def test_not_a_socket_is_left_alone(directory, tiny_model):
    path = directory / "precious"
    path.write_text("data")
    r = kvd("--model", tiny_model, "--socket", path)
    assert r.returncode == 1 and b"precious" in r.stderr
    assert path.read_text() == "data"


@pytest.mark.parametrize("n", [108, 109, 200, 5000])
def test_long_path(directory, tiny_model, n):
    path = str(directory) + "/" + "s" * (n - len(str(directory)) - 1)
    r = kvd("--model", tiny_model, "--socket", path)
    assert r.returncode in (1, 2)
    assert b"107" in r.stderr or b"too long" in r.stderr.lower()


@pytest.mark.parametrize("umask", [0, 0o022, 0o077, 0o777])
@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_mode_whatever_the_umask(directory, tiny_model, umask, mode):
    old = os.umask(umask)
    try:
        d = Daemon(directory, "--model", tiny_model, "--socket-mode", f"{mode:04o}")
    finally:
        os.umask(old)
    try:
        assert stat.S_IMODE(d.socket.stat().st_mode) == mode
    finally:
        d.stop()


def test_wrong_version(daemon):
    with daemon.client(hello=False) as c:
        c.send(k.HELLO, {"version": 999, "client": "old", "ring": 1 << 20, "arena": 1 << 20})
        msg, fields = c.receive()
        assert msg == k.REFUSED and fields["code"] == 3 and "999" in fields["message"]
        with pytest.raises(k.Closed):
            c.receive()


@pytest.mark.parametrize("field,value", [
    ("ring", 0), ("ring", 65535), ("ring", 1 << 40), ("ring", -1), ("ring", 100000), ("arena", 1),
    ("arena", 1 << 40), ("client", "x" * 1000), ("client", b"\xff"), ("version", "1")])
def test_bad_hello_names_the_field(daemon, field, value):
    with daemon.client(hello=False) as c:
        f = {"version": k.VERSION, "client": "t", "ring": 1 << 20, "arena": 1 << 20}
        f[field] = value
        c.send(k.HELLO, f)
        msg, fields = c.receive()
        assert msg in (k.REFUSED, k.ERROR) and field in fields["message"] + fields.get("field", "")


def test_no_hello(daemon):
    with daemon.client(hello=False) as c:
        c.send(k.STATUS, {"id": 1})
        msg, fields = c.receive()
        assert msg in (k.REFUSED, k.ERROR)


FIELDS = [
    ("n", [-1, 2**63, 2**64 - 1, 1.5, "1", None, []]),
    ("temperature", [-0.1, float("nan"), float("inf"), "hot", None, 1e300]),
    ("top_p", [-0.1, 1.1, float("nan")]), ("min_p", [-0.1, 1.1, float("nan")]),
    ("top_k", [-1, 2**63, 0.5]),
    ("repeat_penalty", [0, -1, float("nan"), float("inf")]),
    ("seed", [-1, 1.5]), ("logprobs", [-1, 33, 2**63]),
    ("stop", [[""], ["x" * 257], ["a"] * 17, "a", [1], [b"\x00"]]),
    ("logit_bias", [[[0]], [[-1, 1.0]], [[2**31, 1.0]], [[0, float("nan")]], [["a", 1.0]], {}, [[0, 1.0]] * 1025]),
    ("model", ["nobody", "../../etc/passwd", "", 7]),
    ("special", [1, "yes"]), ("ignore_eos", [None]), ("unheard_of", [1]),
]


@pytest.mark.parametrize("field,values", FIELDS, ids=[f[0] for f in FIELDS])
def test_bad_generate_names_the_field(daemon, field, values):
    for value in values:
        with daemon.client() as c:
            rid = c.submit("hello", **{"n": 3, field: value})
            with pytest.raises(k.Refused) as e:
                c.collect(rid, timeout=20)
            assert field in e.value.fields["field"] + e.value.fields["message"], (value, e.value)
            assert c.generate("hello", n=2).ids, "the session goes on"


PARTS = [[[0, 0, 0]], [[0, 2**63, 1]], [[0, 2**64 - 1, 2]], [[0, 4 << 20, 1]], [[1, 2, 4]], [[1, 0, 3]], [[2, 0, 4]],
         [[0, 0]], [[0, -1, 4]], [], 5, [[0, 0, 1]] * 2000]


@pytest.mark.parametrize("parts", PARTS, ids=[str(p)[:24] for p in PARTS])
def test_bad_prompt(daemon, parts):
    with daemon.client() as c:
        c.send(k.GENERATE, {"id": 5, "prompt": parts, "n": 3})
        msg, fields = c.receive()
        assert msg == k.ERROR and fields["code"] in (1, 2), fields
        assert "prompt" in fields["field"] + fields["message"] or fields["code"] == 1
        assert c.generate("hello", n=2).ids


@pytest.mark.parametrize("ids", [[-1], [2**31 - 1], [10**6], [0, 5, -2**31]])
def test_bad_token_id_is_refused_and_poisons_nothing(daemon, ids):
    with daemon.client() as c:
        before = c.generate("hello", n=10, ignore_eos=True).ids
        rid = c.submit(ids=ids, n=3)
        with pytest.raises(k.Refused):
            c.collect(rid)
        assert c.generate("hello", n=10, ignore_eos=True).ids == before


def test_ids_equal_text(daemon):
    with daemon.client() as c:
        ids = c.tokenize("The same text", bos=True)
        assert c.generate(ids=ids, n=12, ignore_eos=True).ids == \
            c.generate("The same text", n=12, ignore_eos=True).ids


def test_duplicate_request_id(daemon):
    with daemon.client() as c:
        rid = c.submit("hello", n=5000, ignore_eos=True)
        c.next_id = rid
        c.submit("again", n=5)
        with pytest.raises(k.Refused):
            c.collect(rid)


def test_connections_per_uid_are_capped(daemon):
    clients = []
    try:
        with pytest.raises((k.Refused, k.Closed, ConnectionError)) as e:
            for _ in range(300):
                clients.append(daemon.client())
        assert len(clients) >= 16
        if e.type is k.Refused:
            assert e.value.code == 4
    finally:
        for c in clients:
            c.close()

    def free():
        try:
            with daemon.client():
                return True
        except (k.Refused, k.Closed):
            return False
    daemon.until(free, "sessions given back")
    daemon.idle()


def test_half_open_sessions_time_out_or_are_bounded(daemon):
    """Connections that never say hello do not keep others out of their share for ever, and hold no segments."""
    socks = []
    for _ in range(20):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.connect(str(daemon.socket))
        socks.append(s)
    with daemon.client() as c:
        assert c.generate("x", n=2).ids
    for s in socks:
        s.close()
    daemon.idle()


def test_garbage_descriptors_are_closed(daemon):
    with daemon.client() as c:
        c.call(k.STATUS)
        before = daemon.fds()
        for i in range(50):
            fd = os.open("/dev/null", os.O_RDONLY)
            try:
                socket.send_fds(c.sock, [msgpack.packb([k.STATUS, {"id": 10000 + i}])], [fd] * 3)
            except OSError:
                break
            finally:
                os.close(fd)
            try:
                c.receive()
            except (k.Closed, ConnectionResetError):
                break
    daemon.until(lambda: daemon.fds() <= before, "descriptors closed")


def test_stop_while_streaming(daemons, tiny_model):
    d = daemons("--model", tiny_model, env={"KVD_TEST_STEP_DELAY_MS": "5"})
    with d.client() as c:
        rid = c.submit("x", n=100000, ignore_eos=True)
        got = k.Result()
        while not got.ids:
            kind, _, payload = c.next_record()
            got.add(kind, c.decode(kind, payload))
        d.stop()
        try:
            while not got.ended:
                kind, r, payload = c.next_record(5 * PATIENCE)
                assert r == rid
                got.add(kind, c.decode(kind, payload))
        except (k.Closed, ConnectionResetError):
            pass
        assert got.ended and got.error["code"] == 11


def test_idle_exit(directory, tiny_model):
    d = Daemon(directory, "--model", tiny_model, "--idle-exit", "1")
    assert d.proc.wait(30 * PATIENCE) == 0
    assert not d.socket.exists()
    d.stopped = True


def test_file_removed_while_loaded(daemons, directory, tiny_model):
    copy = directory / "copy.gguf"
    copy.write_bytes(tiny_model.read_bytes())
    d = daemons("--model", copy)
    with d.client() as c:
        before = c.generate("hello", n=10, ignore_eos=True).ids
        copy.write_bytes(b"")
        copy.unlink()
        assert c.generate("hello", n=10, ignore_eos=True).ids == before


@pytest.mark.parametrize("data", [b"", b"G", b"GGUF", b"GGUF" + b"\xff" * 60])
def test_bad_model_file(directory, data):
    f = directory / "bad.gguf"
    f.write_bytes(data)
    r = kvd("--model", f, "--socket", directory / "s")
    assert r.returncode == 1 and b"bad.gguf" in r.stderr
    assert not (directory / "s").exists()
