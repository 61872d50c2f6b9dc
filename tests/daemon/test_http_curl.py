# SPDX-License-Identifier: Apache-2.0
"""curl as people use it: over the Unix socket and over TCP, streamed, with a body out of a file."""
import json
import shutil
import signal
import subprocess

import pytest
from conftest import PATIENCE

GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture
def curl(web, tmp_path):
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")

    def run(*args, status=0, unix=True):
        where = ["--unix-socket", web.daemon.http_socket] if unix else []
        url = "http://localhost" if unix else web.url
        cmd = ["curl", "--disable", "--noproxy", "*", "--silent", "--show-error", *where,
               *(a.replace("URL", url, 1) if isinstance(a, str) else a for a in args)]
        done = subprocess.run(cmd, stdin=subprocess.DEVNULL, capture_output=True, timeout=60 * PATIENCE, cwd=tmp_path, check=False)
        assert done.returncode == status, (done.returncode, done.stderr, done.stdout[:2000])
        return done.stdout
    run.folder = tmp_path
    return run


@pytest.mark.parametrize("unix", [True, False], ids=["unix", "tcp"])
def test_get(curl, unix):
    assert json.loads(curl("URL/health", unix=unix))["status"] == "ok"
    assert {m["id"] for m in json.loads(curl("URL/v1/models", unix=unix))["data"]} == {"bytes", "letters"}
    assert curl("--head", "URL/health", unix=unix).startswith(b"HTTP/1.1 200")
    assert json.loads(curl("URL/openapi.json", unix=unix))["info"]["title"] == "kvd"


@pytest.mark.parametrize("unix", [True, False], ids=["unix", "tcp"])
def test_post(curl, web, unix):
    """A body on the command line, in a file, with and without a content type, in pieces, and after 100 Continue."""
    body = json.dumps({"prompt": "curl", **GREEDY})
    want = web.complete("curl").text
    (curl.folder / "body.json").write_text(body)
    (curl.folder / "large.json").write_text(json.dumps({"prompt": "curl", **GREEDY, "metadata": {"x": "y" * 500000}}))
    for args in (["--json", body], ["--data", body], ["--data", "@body.json"], ["--data-binary", "@body.json"], ["--json", "@large.json"],
                 ["-H", "Content-Type: application/json", "-d", "@body.json"], ["-H", "Transfer-Encoding: chunked", "-d", "@body.json"],
                 ["-H", "Expect: 100-continue", "--data", "@large.json"], ["--http1.0", "--json", body], ["--compressed", "--json", body],
                 ["-H", "Content-Type: text/plain; charset=utf-8", "-d", "@body.json"]):
        got = json.loads(curl(*args, "URL/v1/completions", unix=unix))
        assert got["choices"][0]["text"] == want, args


@pytest.mark.parametrize("unix", [True, False], ids=["unix", "tcp"])
def test_stream(curl, web, unix):
    body = json.dumps({"messages": [{"role": "user", "content": "curl"}], "stream": True, **GREEDY})
    out = curl("-N", "--json", body, "URL/v1/chat/completions", unix=unix).decode()
    data = [line[6:] for line in out.splitlines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    text = "".join(c["delta"].get("content") or "" for d in data[:-1] for c in json.loads(d)["choices"])
    assert text == web.chat("curl").text


def test_several_on_one_connection(curl):
    """A connection is kept for the next request."""
    out = curl("-w", "%{num_connects} %{http_code}\n", "URL/health", "URL/health", "-o", "a", "-o", "b")
    assert out.split(b"\n")[:2] == [b"1 200", b"0 200"]
    out = curl("-w", "%{num_connects} %{http_code}\n", "--json", json.dumps({"prompt": "x", "max_tokens": 1}),
               "URL/v1/completions", "URL/tokenize", "URL/v1/completions", "-o", "a", "-o", "b", "-o", "c")
    assert out.split(b"\n")[:3] == [b"1 200", b"0 400", b"0 200"]


def test_errors(curl):
    error = json.loads(curl("--json", '{"prompt": "x", "temperature": "hot"}', "URL/v1/completions"))["error"]
    assert error["param"] == "temperature"
    curl("--fail", "--json", "{", "URL/v1/completions", status=22)
    assert b"HTTP/1.1 405" in curl("-i", "-X", "DELETE", "URL/v1/completions")
    assert b"Allow: POST" in curl("-i", "URL/v1/completions")
    assert json.loads(curl("URL/nothing"))["error"]["type"] == "not_found_error"
    for path in ("/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/v1/models/../../../etc/passwd", "//etc/passwd"):
        got = curl("--path-as-is", "-i", "URL" + path)
        assert b"root:" not in got and got.split()[1] in (b"404", b"400"), path


def test_interrupted(curl, web):
    """Ctrl-C ends the work."""
    before = web.daemon.status()["requests_cancelled"]
    body = json.dumps({"prompt": "on and on", "stream": True, "ignore_eos": True, "max_tokens": 2000, "n": 16})
    p = subprocess.Popen(["curl", "--disable", "-s", "-N", "--unix-socket", web.daemon.http_socket, "--json", body, "http://localhost/v1/completions"],
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         # Whoever runs the tests in the background has it ignored, and so have all its children.
                         preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert p.stdout.readline()
    p.send_signal(signal.SIGINT)
    p.wait(60 * PATIENCE)
    p.stdout.close()
    web.daemon.idle()
    assert web.daemon.status()["requests_cancelled"] - before == 16
