# SPDX-License-Identifier: Apache-2.0
"""HTTP: what is a request and what is none, how large and how slow it may be, and what becomes of the connection."""
import contextlib
import json
import os
import random
import re
import socket
import subprocess
import threading
import time

import pytest
from conftest import PATIENCE, SANITIZED, serving
from webclient import UnixConnection


@pytest.fixture(scope="module")
def shared(tiny_model):
    """One daemon for all that leaves it as it was."""
    with serving("--model", tiny_model, "--kv-memory", "64M", "--threads", "2") as (web, d):
        web.daemon = d
        yield web


@contextlib.contextmanager
def raw(web):
    with socket.create_connection(("127.0.0.1", web.port), timeout=60 * PATIENCE) as s:
        yield s


def replies(data):
    """[(status, headers, body)] of replies that have a length."""
    found = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        lines = head.decode("ascii").split("\r\n")
        assert re.fullmatch(r"HTTP/1\.1 \d{3} [A-Za-z ]+", lines[0]), lines[0]
        headers = dict(line.split(": ", 1) for line in lines[1:])
        n = int(headers.get("Content-Length", 0))
        assert len(data) >= n
        found.append((int(lines[0].split()[1]), headers, data[:n]))
        data = data[n:]
    return found


def exchange(web, data):
    """What comes back until the daemon closes."""
    with raw(web) as s:
        s.sendall(data)
        got = b""
        while more := s.recv(65536):
            got += more
        return replies(got)


GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


# --- routes ---------------------------------------------------------------------------------------

def test_health_and_models(shared):
    unix = UnixConnection(shared.daemon.http_socket, 60)
    unix.request("GET", "/health")
    assert json.loads(unix.getresponse().read()) == {"status": "ok", "models": 1}
    unix.close()
    assert shared.get("/health").json == {"status": "ok", "models": 1}
    models = shared.get("/v1/models").json
    assert models["object"] == "list" and [m["id"] for m in models["data"]] == ["tiny"]
    assert models["data"][0]["object"] == "model" and models["data"][0]["context_length"] == 2048
    assert shared.get("/v1/models/tiny?x=1").json == models["data"][0]
    assert shared.get("/v1/models/t%69ny").json == models["data"][0]
    document = shared.get("/openapi.json").json
    assert document["openapi"].startswith("3.") and "/v1/completions" in document["paths"]


@pytest.mark.parametrize("method,path,status,allow", [
    ("GET", "/", 404, None),
    ("GET", "/v1/models/other", 404, None),
    ("GET", "/v1/models/", 404, None),
    ("GET", "/health/", 404, None),
    ("GET", "//health", 404, None),
    ("GET", "/../../etc/passwd", 404, None),
    ("GET", "/v1/models/..%2f..%2fetc/passwd", 404, None),
    ("POST", "/v1/nothing", 404, None),
    ("POST", "/health", 405, "GET, HEAD"),
    ("OPTIONS", "/health", 405, "GET, HEAD"),
    ("TRACE", "/health", 405, "GET, HEAD"),
    ("BREW", "/v1/models", 405, "GET, HEAD"),
])
def test_errors_have_one_shape_and_keep_the_connection(shared, method, path, status, allow):
    c = shared.connect()
    c.request(method, path, body=b"{}" if method == "POST" else None)
    r = c.getresponse()
    assert (r.status, r.headers["Allow"]) == (status, allow)
    assert set(json.loads(r.read())["error"]) == {"message", "type", "param", "code"}
    c.request("GET", "/health")
    assert c.getresponse().status == 200
    c.close()


def test_head_is_get_without_the_body(shared):
    get, head = shared.get("/health"), shared.call("HEAD", "/health")
    assert head.status == 200 and head.data == b"" and head.headers["content-length"] == str(len(get.data))


def test_no_path_reaches_the_file_system(shared, directory):
    (directory / "here").write_text("secret")
    for path in ("/etc/passwd", f"{directory}/here", "/%2e%2e/%2e%2e/etc/passwd", "/./health", "/health/../health"):
        r = shared.get(path)
        assert r.status == 404 and b"secret" not in r.data and b"root:" not in r.data


# --- what is a request ------------------------------------------------------------------------------

@pytest.mark.parametrize("request_, status", [
    (b"GET /health HTTP/1.1\r\n\r\n", 400),                                     # no Host
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
    (b"GET /health\r\n\r\n", 400),                                              # HTTP/0.9
    (b"GET /health\r\nHost: localhost\r\n\r\n", 400),
    (b"GET  /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"GET /health  HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"GET /health HTTP/1.1 \r\nHost: localhost\r\n\r\n", 400),
    (b"GET\t/health\tHTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"GET /health HTTP/2.0\r\nHost: localhost\r\n\r\n", 505),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    (b"GET /health HTTP/1.1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"GET /health http/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"GET /health HTTP/x\r\nHost: localhost\r\n\r\n", 400),
    (b"G@T /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b" /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"A" * 33 + b" /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"GET health HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"GET ftp://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"GET http:///health HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"GET http://me@localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"GET /health#x HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"GET /he\xc3\xa4lth HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"GET /health%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"GET /health%0 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"GET /health%zz HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"GET /health% HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\nHost: localhost\n\n", 400),                        # lines without CR
    (b"GET /health HTTP/1.1\r\nHost: localhost\n\r\n", 400),
    (b"GET /health HTTP/1.1\rHost: localhost\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\x01b\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX : a\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\n: a\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n", 400),    # folded
    (b"GET /health HTTP/1.1\r\n Host: localhost\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nExpect: 200-ok\r\n\r\n", 417),
    (b"GET /" + b"a" * 8192 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 100 + b"\r\n", 431),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 65536 + b"\r\n\r\n", 431),
    (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415),
])
def test_what_is_no_request(shared, request_, status):
    """It is answered, nothing behind it is, and the daemon serves the next."""
    got = exchange(shared, request_ + GET)
    assert [r[0] for r in got] == [status]
    assert got[0][1]["Connection"] == "close" and set(json.loads(got[0][2])["error"]) >= {"message", "type"}
    assert shared.get("/health").status == 200


@pytest.mark.parametrize("framing, status", [
    ("Content-Length: 3\r\nTransfer-Encoding: chunked", 400),
    ("Transfer-Encoding: chunked\r\nContent-Length: 3", 400),
    ("Content-Length: 3\r\nContent-Length: 3", 400),
    ("Content-Length: 3, 3", 400),
    ("Content-Length: -1", 400),
    ("Content-Length: +3", 400),
    ("Content-Length: 0x3", 400),
    ("Content-Length: 3 3", 400),
    ("Content-Length:", 400),
    ("Content-Length: 33554433", 413),
    ("Content-Length: 18446744073709551619", 413),
    ("Content-Length: 99999999999999999999999999999999", 413),
    ("Transfer-Encoding: gzip, chunked", 501),
    ("Transfer-Encoding: chunked, identity", 501),
    ("Transfer-Encoding: xchunked", 501),
    ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", 400),
])
def test_lengths_that_could_smuggle(shared, framing, status):
    head = f"POST /v1/nothing HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n\r\n".encode()
    assert [r[0] for r in exchange(shared, head + b"0\r\n\r\n" + GET)] == [status]
    assert shared.get("/health").status == 200


@pytest.mark.parametrize("chunks, status", [
    (b"3\r\nabc\r\n0\r\n\r\n", 404),
    (b"3;a=b\r\nabc\r\n00\r\nTrailer: x\r\n\r\n", 404),
    (b"A\r\n0123456789\r\n1\r\nx\r\n0\r\n\r\n", 404),
    (b"3\r\nabcd\r\n0\r\n\r\n", 400),
    (b"3\nabc\r\n0\r\n\r\n", 400),
    (b"3\r\nabc0\r\n\r\n", 400),
    (b"\r\n", 400), (b"-1\r\n", 400), (b"+1\r\n", 400), (b"0x1\r\n", 400), (b" 1\r\n", 400), (b"1 x\r\n", 400), (b"g\r\n", 400),
    (b"2000001\r\n", 413), (b"ffffffffffffffff\r\n", 413), (b"10000000000000000\r\n", 413), (b"7fffffffffffffff\r\n", 413),
    (b"0\r\nno header\r\n\r\n", 400), (b"0\r\n" + b"X: y\r\n" * 2000 + b"\r\n", 431), (b"1;" + b"x" * 9000 + b"\r\n", 431),
])
def test_chunks(shared, chunks, status):
    head = b"POST /v1/nothing HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    got = exchange(shared, head + chunks + (LAST if status == 404 else GET))
    assert [r[0] for r in got] == ([404, 200] if status == 404 else [status])


def test_forms_that_are_allowed(shared):
    assert exchange(shared, b"GET /health HTTP/1.0\r\n\r\n")[0][0] == 200
    assert exchange(shared, b"\r\n\r\nGET /health HTTP/1.1\r\nhOST:\t localhost \r\nConnection: x, CLOSE\r\n\r\n")[0][0] == 200
    absolute = b"GET http://localhost:1/health?x HTTP/1.1\r\nHost: other.example\r\nConnection: close\r\n\r\n"
    assert exchange(shared, absolute)[0][0] == 200
    kept = b"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    assert [r[0] for r in exchange(shared, kept + b"GET /health HTTP/1.0\r\n\r\n")] == [200, 200]
    body = b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nGET /"
    assert [r[0] for r in exchange(shared, body + LAST)] == [200, 200]
    # That of HEAD is not the next request, either.
    with raw(shared) as s:
        s.sendall(body.replace(b"GET", b"HEAD", 1) + LAST)
        got = b""
        while more := s.recv(65536):
            got += more
    assert got.count(b"HTTP/1.1 200 OK") == 2 and got.count(b"HTTP/1.1 ") == 2


def test_pipelining(shared):
    """Many requests at once, in pieces of any size: as many replies, in order."""
    n = 300
    data = b"".join(b"GET /v1/models/%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % i for i in range(n)) + LAST
    with raw(shared) as s:
        got = b""
        for i in range(0, len(data), 977):
            s.sendall(data[i:i + 977])
        while more := s.recv(65536):
            got += more
    found = replies(got)
    assert len(found) == n + 1 and found[-1][0] == 200
    assert [int(re.search(rb'\\"(\d+)\\"', r[2])[1]) for r in found[:-1]] == list(range(n))


def test_byte_by_byte(shared):
    data = b"POST /v1/nothing HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n" + LAST
    with raw(shared) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for b in data:
            s.sendall(bytes([b]))
        got = b""
        while more := s.recv(65536):
            got += more
    assert [r[0] for r in replies(got)] == [404, 200]


def test_expect_continue(shared):
    head = b"GET %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    with raw(shared) as s:
        s.sendall(head % b"/v1/nothing")
        # Who is refused need not send its body at all.
        assert replies(s.recv(65536))[0][0] == 404
        assert s.recv(1) == b""
    with raw(shared) as s:
        s.sendall(head % b"/health")
        assert s.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        s.sendall(b"{}")
        assert replies(s.recv(65536))[0][0] == 200


def test_large_bodies(web_of, tiny_model):
    """Up to the limit they are taken, above it refused at once; a reply comes although the client still sends."""
    web, d = web_of("--model", tiny_model, "--http-max-body", "1M", "--uid-memory", "512M")
    for n, status in ((1 << 20, 404), ((1 << 20) + 1, 413), (30 << 20, 413)):
        r = web.post("/v1/nothing", b"x" * n)
        assert r.status == status and r.error
    before = d.memory()
    for _ in range(20):
        assert web.post("/v1/nothing", b"x" * (1 << 20)).status == 404
    assert d.memory() - before < 4 << 20


# --- time ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("data, status", [
    (b"", None),
    (b"GET /health HTT", 408),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{", 408),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1", 408),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n", 408),
])
def test_slow_senders(web_of, tiny_model, data, status):
    """Also one that always sends a little more: time is counted from the first byte."""
    web, _ = web_of("--model", tiny_model, "--http-request-time", "1")
    with raw(web) as s:
        s.sendall(data)
        s.settimeout(0.2)
        got, end = b"", time.monotonic() + 30 * PATIENCE
        while time.monotonic() < end:
            try:
                more = s.recv(65536)
                got += more
                if not more:
                    break
            except TimeoutError:
                if data and not data.endswith(b"{"):
                    continue
                with contextlib.suppress(OSError):
                    s.sendall(b"\r\n" if not data else b" ")
            except ConnectionResetError:
                break
        else:
            raise AssertionError("never closed")
    got = got.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert [r[0] for r in replies(got)] == ([status] if status else [])


def test_idle_connections_are_closed(web_of, tiny_model):
    web, d = web_of("--model", tiny_model, "--http-idle-time", "1")
    fds = d.fds()
    with raw(web) as s:
        s.sendall(GET)
        assert s.recv(65536).startswith(b"HTTP/1.1 200")
        assert s.recv(1) == b""
    d.until(lambda: d.fds() <= fds, "the connection is gone")


def test_a_client_that_takes_nothing(web_of, tiny_model):
    """Its replies wait in bounded memory, then it is closed; others are served."""
    web, d = web_of("--model", tiny_model, "--http-idle-time", "1")
    fds, before = d.fds(), d.memory()
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", web.port))
        s.setblocking(False)
        with contextlib.suppress(OSError):
            for _ in range(20000):
                s.send(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
        assert d.memory() - before < 8 << 20
        assert web.get("/health").status == 200
        d.until(lambda: d.fds() <= fds, "the connection is gone")


def test_who_floods_does_not_keep_others_waiting(shared):
    """One client sends requests as fast as it can: others get theirs in between, each after a turn of all."""
    data = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000
    stop = threading.Event()
    answered = [0]

    def flood():
        with raw(shared) as s:
            s.settimeout(0.05)
            while not stop.is_set():
                with contextlib.suppress(TimeoutError):
                    s.sendall(data)
                with contextlib.suppress(TimeoutError):
                    answered[0] += s.recv(1 << 20).count(b"HTTP/1.1 200")

    def gap():
        before = answered[0]
        assert shared.get("/health").status == 200
        return answered[0] - before
    threads = [threading.Thread(target=flood) for _ in range(2)]
    for t in threads:
        t.start()
    try:
        shared.daemon.until(lambda: answered[0] > 2000, "they flood")
        # Of the flooders' replies that come between question and answer, most wait in sockets already.
        assert sorted(gap() for _ in range(9))[4] < 50000
    finally:
        stop.set()
        for t in threads:
            t.join()


# --- number ----------------------------------------------------------------------------------------

def test_connections_of_one_user(web_of, tiny_model):
    web, d = web_of("--model", tiny_model, "--uid-sessions", "4")
    held = [socket.create_connection(("127.0.0.1", web.port)) for _ in range(4)]
    for s in held:
        s.sendall(GET)
        assert s.recv(65536).startswith(b"HTTP/1.1 200")
    r = web.get("/health")
    assert r.status == 429 and r.headers["retry-after"] and r.error["type"] == "rate_limit_error"
    held.pop().close()
    d.until(lambda: web.get("/health").status == 200, "a place is free again")
    for s in held:
        s.close()


def test_connections_in_all(web_of, tiny_model):
    web, d = web_of("--model", tiny_model, "--max-sessions", "3")
    held = [socket.create_connection(("127.0.0.1", web.port)) for _ in range(3)]
    for s in held:
        s.sendall(GET)
        assert s.recv(65536).startswith(b"HTTP/1.1 200")
    with raw(web) as s:
        assert replies(s.recv(65536))[0][0] == 503
    # Programs that attach have places of their own.
    assert d.status()["state"] == "ready"
    for s in held:
        s.close()
    d.until(lambda: web.get("/health").status == 200, "places are free again")


def test_no_descriptors_left(web_of, tiny_model):
    """The daemon waits, rather than spins, until there are some again."""
    web, d = web_of("--model", tiny_model, "--uid-sessions", "512")
    used = d.fds()
    subprocess.run(["prlimit", "--pid", str(d.proc.pid), f"--nofile={used + 4}"], check=True)
    held = [socket.create_connection(("127.0.0.1", web.port), timeout=60) for _ in range(16)]
    d.until(lambda: d.fds() >= used + 4 and "cannot accept" in d.log.read_text(), "none is left")
    ticks = os.sysconf("SC_CLK_TCK")

    def spent():
        return sum(int(v) for v in open(f"/proc/{d.proc.pid}/stat").read().rsplit(")", 1)[1].split()[11:13]) / ticks
    before = spent()
    time.sleep(1)
    assert spent() - before < 0.5
    for s in held[:-1]:
        s.close()
    held[-1].sendall(GET)
    assert held[-1].recv(65536).startswith(b"HTTP/1.1 200")
    held[-1].close()


def test_idle_exit_waits_for_connections(web_of, tiny_model):
    web, d = web_of("--model", tiny_model, "--idle-exit", "1")
    with raw(web) as s:
        s.sendall(GET)
        assert s.recv(65536).startswith(b"HTTP/1.1 200")
        time.sleep(2)
        s.sendall(GET)
        assert s.recv(65536).startswith(b"HTTP/1.1 200")
    assert d.proc.wait(30 * PATIENCE) == 0


# --- rubbish ---------------------------------------------------------------------------------------

def test_random_changes_of_requests(shared):
    """Whatever comes, what goes back is whole replies, and the daemon serves."""
    seed = int(os.environ.get("KVD_TEST_SEED", 0)) or random.randrange(1, 1 << 32)
    print(f"KVD_TEST_SEED={seed}")
    rng = random.Random(seed)
    body = json.dumps({"content": "x" * 40}).encode()
    whole = [
        GET, b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body,
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"
        % (len(body), body),
    ]
    bits = [b"\r\n", b"\0", b"\xff", b":", b" ", b"0", b"\r", b"\n", b"%", b"Content-Length: 1\r\n", b"Transfer-Encoding: chunked\r\n"]
    for _ in range(100 if SANITIZED else 400):
        data = bytearray(b"".join(rng.choice(whole) for _ in range(rng.randint(1, 3))))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            data[at:at + rng.choice((0, 0, 1, 2, 20))] = rng.choice(bits)
        with raw(shared) as s:
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
            got = b""
            with contextlib.suppress(ConnectionResetError):
                while more := s.recv(65536):
                    got += more
        assert all(r[0] in (200, 400, 403, 404, 405, 413, 414, 415, 417, 431, 501, 505) for r in replies(got)), (data, got)
    assert shared.get("/health").status == 200


# --- the end ---------------------------------------------------------------------------------------

SLOW = {"KVD_TEST_STEP_DELAY_MS": "20"}


def post(body):
    body = json.dumps(body).encode()
    return b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def long_one(**more):
    return post({"prompt": "x", "max_tokens": 2000, "ignore_eos": True, **more})


@contextlib.contextmanager
def client(web, over):
    if over == "tcp":
        with raw(web) as s:
            yield s
    else:
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(60 * PATIENCE)
            s.connect(str(web.daemon.http_socket))
            yield s


@pytest.fixture(scope="module")
def slow(tiny_model):
    with serving("--model", tiny_model, "--kv-memory", "64M", "--threads", "1", "--max-seqs", "1",
                 "--prefill-quantum", "4", env=SLOW) as (web, d):
        web.daemon = d
        yield web


@pytest.mark.parametrize("over", ["tcp", "unix"])
@pytest.mark.parametrize("how", ["close", "half", "reset"])
@pytest.mark.parametrize("phase", ["queue", "prefill", "decode"])
@pytest.mark.parametrize("stream", [False, True])
def test_end_of_the_stream_is_cancel(slow, over, how, phase, stream):
    d = slow.daemon
    d.idle()
    with client(slow, "unix") as first, client(slow, over) as s:
        if phase == "queue":
            first.sendall(long_one())
            d.until(lambda: d.status()["n_running"] == 1, "one runs")
        prompt = "x" * 600 if phase == "prefill" else "x"
        s.sendall(long_one(prompt=f"{over}{how}{phase}{stream}{prompt}", stream=stream))
        d.until(lambda: d.status()["n_queued" if phase == "queue" else "n_running"] == 1, "it is there")
        if phase == "decode":
            made = d.status()["generated_tokens"]
            d.until(lambda: d.status()["generated_tokens"] > made, "it is made")
        computed = d.status()["generated_tokens"]
        if how == "reset" and over == "tcp":
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        if how == "half":
            s.shutdown(socket.SHUT_WR)
        else:
            s.close()
        if phase == "queue":
            d.until(lambda: d.status()["n_queued"] == 0, "it is gone")
            assert d.status()["n_running"] == 1
        else:
            d.until(lambda: d.status()["n_running"] == 0, "it is gone")
            # 2000 tokens would take forty seconds.
            assert d.status()["generated_tokens"] - computed < 200
    d.idle()


def test_stop_with_requests_open(web_of, tiny_model):
    """What streams ends with an error that says so; the rest gets 503, or the end."""
    web, d = web_of("--model", tiny_model, "--max-seqs", "2", "--uid-requests", "16", env=SLOW)
    web.daemon = d
    with contextlib.ExitStack() as stack:
        whole, stream, queued, partial, idle = (stack.enter_context(raw(web)) for _ in range(5))
        whole.sendall(long_one())
        stream.sendall(long_one(stream=True))
        d.until(lambda: d.status()["n_running"] == 2, "two run")
        queued.sendall(long_one())
        d.until(lambda: d.status()["n_queued"] == 1, "one waits")
        partial.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{")
        idle.sendall(GET)
        assert idle.recv(65536).startswith(b"HTTP/1.1 200")
        path = d.http_socket
        assert path.exists()
        d.stop()
        assert not path.exists()

        def rest(s):
            got = b""
            with contextlib.suppress(ConnectionResetError):
                while more := s.recv(65536):
                    got += more
            return got
        for s in (whole, queued):
            assert replies(rest(s))[0][0] == 503
        assert b'"error"' in rest(stream)
        assert rest(partial) == rest(idle) == b""


def test_stop_while_requests_come(web_of, tiny_model):
    """Who is not served any more is told that the daemon stops, not that the queue is full, wherever its request was."""
    web, d = web_of("--model", tiny_model, "--max-seqs", "2", "--uid-requests", "128", "--uid-sessions", "128", env=SLOW)
    web.daemon = d
    with contextlib.ExitStack() as stack:
        asked = [stack.enter_context(raw(web)) for _ in range(40)]
        for s in asked[:2]:
            s.sendall(long_one())
        d.until(lambda: d.status()["n_running"] == 2, "two run")
        # Long enough for most to be with the workers, or before them, when the daemon stops.
        for s in asked[2:]:
            s.sendall(long_one(prompt="word " * 300))
        d.stop()
        for s in asked:
            got = b""
            with contextlib.suppress(ConnectionResetError):
                while more := s.recv(65536):
                    got += more
            assert not got or replies(got)[0][0] == 503, got


def test_two_daemons_on_one_address(shared, daemons):
    for address, word in ((f"127.0.0.1:{shared.port}", "bind"), (f"unix:{shared.daemon.http_socket}", "already")):
        d = daemons("--http", address, wait=False)
        assert d.proc.wait(20 * PATIENCE) == 1
        d.stopped = True
        assert word in d.log.read_text()
    assert shared.get("/health").status == 200
