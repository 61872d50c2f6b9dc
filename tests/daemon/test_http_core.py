# SPDX-License-Identifier: Apache-2.0
"""HTTP: what is a request, what is none, and what stands at the routes that need no model to answer."""
import http.client
import json
import socket
import tempfile

import conftest
import pytest


@pytest.fixture(scope="module")
def shared(tiny_model):
    """One daemon for all that leaves it as it was."""
    with tempfile.TemporaryDirectory(prefix="kvd-test-") as folder:
        d = conftest.Daemon(folder, "--model", tiny_model, "--kv-memory", "64M", "--threads", "2",
                            "--http", "127.0.0.1:0", "--http", f"unix:{folder}/http.sock")
        yield d
        d.stop()


def ask(d, method="GET", path="/health", body=None, headers=None, over="tcp"):
    """(status, headers, text) of one request."""
    c = connect(d, over)
    c.request(method, path, body=body, headers=headers or {})
    r = c.getresponse()
    text = r.read()
    c.close()
    return r.status, r.headers, text


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, **kw):
        super().__init__("localhost", **kw)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


def connect(d, over="tcp"):
    if over == "unix":
        return UnixConnection(d.http_socket, timeout=60)
    return http.client.HTTPConnection("127.0.0.1", d.http_port, timeout=60)


def test_health_and_models(http_daemon):
    d = http_daemon()
    for over in ("tcp", "unix"):
        status, headers, text = ask(d, over=over)
        assert (status, json.loads(text)) == (200, {"status": "ok", "models": 1})
        assert headers["Content-Type"] == "application/json"
        status, _, text = ask(d, path="/v1/models", over=over)
        models = json.loads(text)
        assert models["object"] == "list" and [m["id"] for m in models["data"]] == ["tiny"]
        assert models["data"][0]["object"] == "model" and models["data"][0]["context_length"] == 2048
        assert ask(d, path="/v1/models/tiny?x=1", over=over)[2] == json.dumps(models["data"][0],
                                                                              separators=(",", ":")).encode()


@pytest.mark.parametrize("method,path,status,allow", [
    ("GET", "/", 404, None),
    ("GET", "/v1/models/other", 404, None),
    ("GET", "/v1/models/", 404, None),
    ("GET", "/health/", 404, None),
    ("GET", "//health", 404, None),
    ("GET", "/../../etc/passwd", 404, None),
    ("POST", "/v1/nothing", 404, None),
    ("POST", "/health", 405, "GET, HEAD"),
    ("BREW", "/v1/models", 405, "GET, HEAD"),
])
def test_errors_have_one_shape(shared, method, path, status, allow):
    got, headers, text = ask(shared, method, path, body=b"{}" if method == "POST" else None)
    assert got == status and headers["Allow"] == allow
    error = json.loads(text)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    # The connection is as good as before.
    c = connect(shared)
    c.request(method, path)
    c.getresponse().read()
    c.request("GET", "/health")
    assert c.getresponse().status == 200


def test_head_is_get_without_the_body(shared):
    get, head = ask(shared), ask(shared, "HEAD")
    assert head[0] == get[0] and head[2] == b"" and head[1]["Content-Length"] == str(len(get[2]))
