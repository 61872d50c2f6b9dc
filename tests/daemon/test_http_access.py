# SPDX-License-Identifier: Apache-2.0
"""HTTP: who may come, whose cache that is, and what web pages may do."""
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import textwrap

import conftest
import pytest
import webclient
from conftest import HERE, PATIENCE

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="other uids need root")
OPTIONS = ("--kv-memory", "64M", "--threads", "2")
ALICE, ROBOTS, POOR, MONITOR = "sk-alice-0123456789", "sk-robots-0123456789", "sk-poor-0123456789ab", \
    "sk-monitor-0123456789"
KEYS = f"""\
# name	key	options
alice	{ALICE}	weight=200
robots	{ROBOTS}	namespace=public	# whoever

poor	{POOR}	sessions=1 requests=1 memory=1M
monitor	{MONITOR}	metrics=all
"""


@contextlib.contextmanager
def serving(*options):
    """As conftest's, but over TCP."""
    with conftest.serving(*options) as (web, d):
        yield webclient.Web(web.port), d


def words(seed, n=120):
    """Two of them have no beginning in common."""
    return chr(64 + seed) + " ".join(str((seed * 7919 + i * i) % 1000) for i in range(n))


def completion(prompt):
    return {"prompt": prompt, "max_tokens": 4, "temperature": 0}


def ask(d, uid, body, path=None):
    """The answer to /v1/completions for a user of this number, over TCP or the Unix socket."""
    program = textwrap.dedent("""
        import json, sys
        import webclient
        port, path, body = json.loads(sys.stdin.read())
        r = webclient.Web(port, path).post("/v1/completions", body)
        print(json.dumps([r.status, r.data.decode()]))
    """)
    r = subprocess.run([sys.executable, "-c", program], user=uid, group=uid, extra_groups=[], cwd="/", text=True,
                       input=json.dumps([d.http_port, path and str(path), body]), capture_output=True,
                       env={"PYTHONPATH": str(HERE), "PYTHONDONTWRITEBYTECODE": "1"}, timeout=120 * PATIENCE)
    if r.returncode:
        return None, r.stderr
    status, text = json.loads(r.stdout)
    return status, json.loads(text)


def cached(answer):
    status, body = answer
    assert status == 200, body
    return body["usage"]["prompt_tokens_details"]["cached_tokens"]


# --- keys -------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def keyed(tiny_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(KEYS)
    path.chmod(0o600)
    with serving("--model", tiny_model, *OPTIONS, "--http-keys", path, "--cache-public") as (web, d):
        web.daemon = d
        yield web


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("value", [
    None, "", "Bearer", "Bearer ", "Bearer x", f"Bearer {ALICE[:-1]}", f"Bearer {ALICE}x", f"Bearer x{ALICE[1:]}",
    f"Bearer {ALICE.upper()}", f"Basic {ALICE}", ALICE, f"Bearer {ALICE} {ALICE}", f"Bearer {ALICE}, {ROBOTS}",
    "Bearer " + "x" * 128, "Bearer " + "x" * 5000,
])
def test_without_a_valid_key(keyed, value):
    headers = {"Authorization": value} if value is not None else {}
    r = keyed.get("/v1/models", headers=headers)
    assert r.status == 401 and r.headers["www-authenticate"].startswith("Bearer")
    assert (r.error["type"], r.error["code"]) == ("authentication_error", "invalid_api_key")
    assert ALICE not in r.data.decode()
    # A path that is not there is not told, either.
    assert keyed.get("/nothing", headers=headers).status == 401
    assert keyed.post("/v1/completions", completion("x"), headers=headers).status == 401
    assert keyed.get("/health", headers=headers).status == 200
    assert keyed.get("/openapi.json", headers=headers).status == 200


def test_valid_keys(keyed):
    for key in (ALICE, ROBOTS):
        for form in (f"Bearer {key}", f"bearer   {key}"):
            assert keyed.get("/v1/models", headers={"Authorization": form}).status == 200
    # On the Unix socket the kernel says who it is.
    unix = webclient.Web(path=keyed.daemon.http_socket)
    assert unix.get("/v1/models").status == 200
    assert unix.get("/v1/models", headers=bearer("whatever it may be")).status == 200


def test_keys_have_namespaces_of_their_own(keyed):
    def used(headers, n, **more):
        r = keyed.post("/v1/completions", {**completion(words(n)), **more}, headers=headers)
        assert r.status == 200, r.data
        return r.cached
    assert used(bearer(ALICE), 1) == 0
    assert used(bearer(ALICE), 1) > 50
    assert used(bearer(ROBOTS), 1) == 0
    assert used(bearer(POOR), 1) == 0
    assert used(bearer(ROBOTS), 2) == 0
    assert used(bearer(ROBOTS), 2) > 50
    # What robots fill is the public cache; root's own is another.
    unix = webclient.Web(path=keyed.daemon.http_socket)
    assert unix.post("/v1/completions", completion(words(2))).cached == 0


def test_metrics_of_a_key(keyed):
    """Its own, unless the file says that it is told of all."""
    for key in (ALICE, MONITOR):
        assert keyed.post("/v1/completions", completion("x"), headers=bearer(key)).status == 200
    names = {}
    for key in (ALICE, MONITOR):
        text = keyed.get("/metrics", headers=bearer(key)).data.decode()
        names[key] = {line.split("{")[0].split()[0] for line in text.splitlines() if not line.startswith("#")}
    assert "kvd_generated_tokens_total" in names[ALICE] and names[ALICE] < names[MONITOR]
    assert not any(name.startswith(("kvd_http_", "kvd_account_")) for name in names[ALICE])
    assert any(name.startswith("kvd_account_") for name in names[MONITOR])


def test_limits_of_a_key(keyed):
    c = keyed.connect()
    c.request("GET", "/v1/models", headers=bearer(POOR))
    assert c.getresponse().read()
    r = keyed.get("/v1/models", headers=bearer(POOR))
    assert r.status == 429 and r.headers["retry-after"]
    assert keyed.get("/v1/models", headers=bearer(ALICE)).status == 200
    # The same connection with another key counts for that one.
    c.request("GET", "/v1/models", headers=bearer(ALICE))
    assert c.getresponse().read()
    assert keyed.get("/v1/models", headers=bearer(POOR)).status == 200
    c.close()
    r = keyed.post("/v1/completions", b" " * (2 << 20), headers=bearer(POOR))
    assert r.status == 429


def test_who_has_no_key_keeps_nobody_out(tiny_model, tmp_path):
    """Connections that show no key give way to those that come."""
    path = tmp_path / "keys"
    path.write_text(KEYS)
    path.chmod(0o600)
    with serving("--model", tiny_model, *OPTIONS, "--http-keys", path, "--max-sessions", "8") as (web, d):
        held = [socket.create_connection(("127.0.0.1", web.port)) for _ in range(30)]
        for s in held:
            with contextlib.suppress(OSError):
                s.sendall(b"GET /v1/models HTTP/1.1\r\n")
        assert web.get("/v1/models", headers=bearer(ALICE)).status == 200
        for s in held:
            s.close()


@pytest.mark.parametrize("text, word", [
    ("", "no key"), ("# nothing\n", "no key"), ("alice\n", ":1:"), ("alice short\n", ":1:"),
    (f"al/ice {ALICE}\n", "a name"), (f"alice {ALICE} colour=red\n", "colour"), (f"alice {ALICE} weight=0\n", "weight"),
    (f"alice {ALICE} namespace=own\n", "namespace"), (f"alice {ALICE} namespace=key:bob\n", "namespace"),
    (f"alice {ALICE} requests=-1\n", "requests"), (f"alice {ALICE}\nalice {ROBOTS}\n", "twice"),
    (f"\n\nalice {ALICE}\nbob {ALICE}\n", ":4:"), (f"alice {ALICE}\0\n", "NUL"),
])
def test_files_that_are_refused(daemons, tiny_model, tmp_path, text, word):
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(0o600)
    assert word in fails(daemons, path)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o620, 0o660, 0o602, 0o601])
def test_files_that_others_can_read(daemons, tmp_path, mode):
    path = tmp_path / "keys"
    path.write_text(KEYS)
    path.chmod(mode)
    assert "mode" in fails(daemons, path)


@ROOT_ONLY
def test_files_of_somebody_else(daemons, tmp_path):
    path = tmp_path / "keys"
    path.write_text(KEYS)
    path.chmod(0o600)
    os.chown(path, 1234, 0)
    assert "belongs to uid 1234" in fails(daemons, path)
    os.chown(path, 0, 0)
    path.chmod(0o640)
    d = daemons("--http", "127.0.0.1:0", "--http-keys", path)
    d.stop()


def test_files_that_are_none(daemons, tmp_path):
    assert "missing" in fails(daemons, tmp_path / "missing")
    assert "regular" in fails(daemons, tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert "regular" in fails(daemons, tmp_path / "pipe")


def fails(daemons, path):
    d = daemons("--http", "127.0.0.1:0", "--http-keys", path, wait=False)
    assert d.proc.wait(20 * PATIENCE) == 1
    d.stopped = True
    log = d.log.read_text()
    for key in (ALICE, ROBOTS, POOR):
        assert key not in log
    return log


def test_other_machines_need_keys(daemons, tmp_path):
    d = daemons("--http", "0.0.0.0:0", wait=False)
    assert d.proc.wait(20 * PATIENCE) == 2
    d.stopped = True
    assert "http-keys" in d.log.read_text()
    path = tmp_path / "keys"
    path.write_text(KEYS)
    path.chmod(0o600)
    d = daemons("--http", "0.0.0.0:0", "--http", "[::1]:0", "--http-keys", path)
    assert webclient.Web(d.http_port).get("/v1/models", headers=bearer(ALICE)).status == 200


# --- users over TCP and the Unix socket ----------------------------------------------------------------

@pytest.fixture(scope="module")
def plain(tiny_model):
    with serving("--model", tiny_model, *OPTIONS, "--http-origins", "http://app.lan:3000,https://b.example",
                 "--http-hosts", "llm.lan, other.lan") as (web, d):
        os.chmod(d.dir, 0o755)
        web.daemon = d
        yield web


@ROOT_ONLY
def test_users_have_caches_of_their_own(plain):
    """Over TCP and the Unix socket alike: hits for oneself, none for another."""
    d, path = plain.daemon, plain.daemon.http_socket
    body = completion(words(11))
    assert cached(ask(d, 1001, body)) == 0
    assert cached(ask(d, 1001, body)) > 50
    assert cached(ask(d, 1001, body, path)) > 50
    assert cached(ask(d, 1002, body)) == 0
    assert cached(ask(d, 1002, body, path)) > 50
    assert plain.post("/v1/completions", body).cached == 0


@ROOT_ONLY
def test_over_ipv6(daemons, tiny_model):
    d = daemons("--model", tiny_model, *OPTIONS, "--http", "[::1]:0")
    program = "import http.client, sys; c = http.client.HTTPConnection('::1', int(sys.argv[1])); " \
              "c.request('POST', '/v1/completions', sys.argv[2]); print(c.getresponse().read().decode())"

    def used(uid):
        r = subprocess.run([sys.executable, "-c", program, str(d.http_port), json.dumps(completion(words(12)))],
                           user=uid, group=uid, extra_groups=[], cwd="/", capture_output=True, text=True)
        return json.loads(r.stdout)["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert used(1001) == 0 and used(1001) > 50 and used(1002) == 0


@ROOT_ONLY
@pytest.mark.parametrize("end, seed", [("close", 21), ("reset", 22), ("exit", 23)])
def test_who_closes_at_once_gets_no_ones_cache(plain, end, seed):
    """The daemon accepts when the client is gone; a closed socket's owner looks like uid 0."""
    d = plain.daemon
    body = json.dumps(completion(words(seed))).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    os.kill(d.proc.pid, signal.SIGSTOP)
    try:
        child = os.fork()
        if not child:
            os.setuid(1001)
            s = socket.create_connection(("127.0.0.1", plain.port))
            s.sendall(head + body)
            if end == "reset":
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if end != "exit":
                s.close()
            os._exit(0)
        os.waitpid(child, 0)
    finally:
        os.kill(d.proc.pid, signal.SIGCONT)
    assert plain.get("/health").status == 200
    d.idle()
    asked = completion(words(seed))
    assert plain.post("/v1/completions", asked).cached == 0
    assert cached(ask(d, 1001, asked)) == 0


@ROOT_ONLY
@pytest.mark.parametrize("uid", [65534, 2**31, 2**32 - 2])
def test_users_who_are_nobody(plain, uid):
    """The overflow uid, and numbers that stand for other accounts, are turned away wherever they come."""
    d = plain.daemon
    for path in (None, d.http_socket):
        status, _ = ask(d, uid, completion("x"), path)
        assert status is None
    program = "import sys, kvdclient as k\ntry:\n k.Client(sys.argv[1])\nexcept k.Refused as e:\n print(e.fields)"
    r = subprocess.run([sys.executable, "-c", program, str(d.socket)], user=uid, group=65534, extra_groups=[], cwd="/",
                       env={"PYTHONPATH": str(HERE), "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True)
    assert "not known" in r.stdout, r.stderr
    assert plain.get("/health").status == 200


# --- Host and Origin --------------------------------------------------------------------------------------

@pytest.mark.parametrize("host, fine", [
    ("localhost", True), ("localhost:80", True), ("LocalHost:99999", True), ("a.localhost", True), ("localhost.", True),
    ("127.0.0.1", True), ("127.0.0.1:1", True), ("127.1.2.3", True), ("[::1]:80", True), ("llm.lan:80", True),
    ("OTHER.lan", True),
    ("evil.example", False), ("llm.lan.evil.example", False), ("localhost.evil.example", False), ("evillocalhost", False),
    ("127.0.0.1.evil.example", False), ("192.168.1.1", False), ("[::2]", False), ("localhost:x", False), (":80", False),
    ("localhost:80:80", False), ("[::1", False), ("0x7f000001", False), ("2130706433", False), ("", False),
    ("localhost,evil.example", False),
])
def test_host(plain, host, fine):
    with socket.create_connection(("127.0.0.1", plain.port)) as s:
        s.sendall(f"GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        assert s.recv(4096).startswith(b"HTTP/1.1 200" if fine else b"HTTP/1.1 403")
    with socket.create_connection(("127.0.0.1", plain.port)) as s:
        s.sendall(f"GET http://{host or 'x'}/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert s.recv(4096).startswith(b"HTTP/1.1 200" if fine else b"HTTP/1.1 403")
    unix = webclient.Web(path=plain.daemon.http_socket)
    assert unix.get("/health", headers={"Host": host}).status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "", "http://app.lan", "http://app.lan:30000",
                                    "https://app.lan:3000", "http://app.lan:3000, x", "http://127.0.0.1:8080", "*"])
def test_web_pages_are_refused(plain, origin):
    for web in (plain, webclient.Web(path=plain.daemon.http_socket)):
        for method in ("GET", "POST", "OPTIONS"):
            r = web.call(method, "/v1/models", headers={"Origin": origin, "Access-Control-Request-Method": "GET"})
            assert r.status == 403 and r.error["type"] == "permission_error"
            assert not any(name.startswith("access-control") for name in r.headers)


def test_web_pages_that_are_allowed(plain):
    for origin in ("http://app.lan:3000", "https://b.example"):
        r = plain.get("/v1/models", headers={"Origin": origin})
        assert r.status == 200 and r.headers["access-control-allow-origin"] == origin and r.headers["vary"] == "Origin"
        r = plain.call("OPTIONS", "/v1/chat/completions", headers={
            "Origin": origin, "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang"})
        assert r.status == 204 and r.data == b""
        assert r.headers["access-control-allow-origin"] == origin
        assert r.headers["access-control-allow-methods"] == "POST"
        assert "x-stainless-lang" in r.headers["access-control-allow-headers"]
        r = plain.get("/nothing", headers={"Origin": origin})
        assert r.status == 404 and r.headers["access-control-allow-origin"] == origin
    with socket.create_connection(("127.0.0.1", plain.port)) as s:
        s.sendall(b"OPTIONS /health HTTP/1.1\r\nHost: localhost\r\nOrigin: https://b.example\r\nExpect: 100-continue\r\n"
                  b"Access-Control-Request-Method: GET\r\nContent-Length: 3\r\n\r\n")
        got = b""
        while more := s.recv(4096):
            got += more
        assert got.startswith(b"HTTP/1.1 204 ") and got.endswith(b"\r\n\r\n") and got.count(b"\r\n\r\n") == 1
    assert plain.call("OPTIONS", "/nothing", headers={"Origin": "https://b.example",
                                                       "Access-Control-Request-Method": "GET"}).status == 404


def test_a_browser_asks_before_it_has_a_key(tiny_model, tmp_path):
    path = tmp_path / "keys"
    path.write_text(KEYS)
    path.chmod(0o600)
    with serving("--model", tiny_model, *OPTIONS, "--http-keys", path, "--http-origins", "http://app.lan") as (web, _):
        headers = {"Origin": "http://app.lan", "Access-Control-Request-Method": "GET"}
        assert web.call("OPTIONS", "/v1/models", headers=headers).status == 204
        r = web.get("/v1/models", headers=headers)
        assert r.status == 401 and r.headers["access-control-allow-origin"] == "http://app.lan"
        assert web.get("/v1/models", headers={**headers, **bearer(ALICE)}).status == 200
