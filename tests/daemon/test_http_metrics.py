# SPDX-License-Identifier: Apache-2.0
"""GET /metrics: read by the parser of Prometheus' own client, against what was asked for; and what is told to whom."""
import json
import multiprocessing
import os
import subprocess
import sys

import pytest
from conftest import PATIENCE, make_tiny
from httpclient import Connection, call
from test_http_limits import TRANSPORTS, body, http_daemons  # noqa: F401  pylint: disable=unused-import

UIDS = (20011, 20012)
NOT_OF_OTHERS = ("kvd_uptime_seconds",)

# Reads metrics from its standard input; prints {name and labels: value}.
READER = """
import json, sys
from prometheus_client.parser import text_string_to_metric_families
out = {}
for family in text_string_to_metric_families(sys.stdin.read()):
    assert family.documentation and family.type in ("counter", "gauge", "histogram"), family
    for s in family.samples:
        key = s.name + json.dumps(s.labels, sort_keys=True) if s.labels else s.name
        assert key not in out, key
        out[key] = s.value
print(json.dumps(out))
"""


def metrics(address):
    reply = call(address, "/metrics", timeout=20 * PATIENCE)
    assert reply.status == 200 and reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return reply.body.decode()


def values(text):
    """{name with its labels as they stand: value}, of samples; the heads are checked."""
    out, typed = {}, set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            assert line.split()[2] not in typed
            typed.add(line.split()[2])
        elif not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            assert name not in out
            out[name] = float(value)
    return out


def as_uid(uid, fn, *args):
    """What fn gives in a process of that uid."""
    here, there = multiprocessing.get_context("fork").Pipe()

    def work():
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        there.send(fn(*args))
    p = multiprocessing.get_context("fork").Process(target=work)
    p.start()
    there.close()
    try:
        return here.recv()
    finally:
        p.join()


def ask(address, prompt, n=5, **more):
    r = call(address, "/v1/completions", body(prompt, n, **more), timeout=30 * PATIENCE)
    assert r.status == 200, r.body
    return r.json["usage"]


def test_prometheus_reads_it(http_daemons, tmp_path, packages):  # noqa: F811
    path = make_tiny(tmp_path / 'a "model" \\ with odd ☃ name.gguf')
    d = http_daemons("--model", path, "--kv-memory", "16M", "--host-memory", "8M")
    usage = [ask(d.addresses["tcp"], f"{i // 2} some words to keep", n=4) for i in range(6)]
    text = metrics(d.addresses["unix"])
    read = subprocess.run([sys.executable, "-c", READER], input=text, stdout=subprocess.PIPE, text=True, check=True,
                          env={"PYTHONPATH": str(packages), "PATH": "/usr/bin:/bin"}).stdout
    got = json.loads(read)
    label = json.dumps({"model": 'a "model" \\ with odd ☃ name'})
    assert got["kvd_model_context_tokens" + label] > 0
    assert got["kvd_model_generated_tokens_total" + label] == 24
    assert got["kvd_generated_tokens_total"] == 24
    assert got["kvd_prompt_tokens_total"] == sum(u["prompt_tokens"] for u in usage)
    assert got["kvd_cache_tokens_total"] == sum(u["prompt_tokens_details"]["cached_tokens"] for u in usage) > 0
    assert got['kvd_requests_total{"outcome": "done"}'] == 6
    assert got["kvd_first_token_seconds_count"] == got["kvd_queue_seconds_count"] == 6
    assert got["kvd_token_gap_seconds_count"] == 18
    assert got['kvd_http_requests_total{"route": "/v1/completions", "status": "2xx"}'] == 6
    assert got['kvd_account_generated_tokens_total{"account": "uid:%d"}' % os.geteuid()] == 24
    assert len(got) == len(values(text))


def test_routes_and_streams(http_daemons, tiny_model):  # noqa: F811
    d = http_daemons("--model", tiny_model, "--kv-memory", "16M")
    a = d.addresses["tcp"]

    def got(name):
        return values(metrics(d.addresses["unix"])).get(name, 0)
    for path, status, route in (("/health", 200, "/health"), ("/nowhere/1", 404, "other"), ("/nowhere/2", 404, "other"),
                                ("/v1/models", 200, "/v1/models"), ("/v1/completions", 405, "other")):
        name = f'kvd_http_requests_total{{route="{route}",status="{status // 100}xx"}}'
        before = got(name)
        assert call(a, path).status == status
        assert got(name) == before + 1, name
    open_before = got("kvd_http_connections")
    with Connection(a) as c:
        c.send("/v1/completions", body("x", 100000, stream=True))
        next(c.events())
        assert got("kvd_http_streams") == 1 and got("kvd_http_streams_total") == 1
        assert got("kvd_http_connections") == open_before + 1
        assert got("kvd_http_sent_bytes_total") > 0 and got("kvd_http_received_bytes_total") > 0
    d.until(lambda: got("kvd_http_streams") == 0, "the stream has ended")
    assert got('kvd_http_requests_total{route="/v1/completions",status="gone"}') == 1
    d.until(lambda: got('kvd_requests_total{outcome="cancelled"}') == 1, "its request has ended")
    d.until(lambda: got("kvd_http_connections") == open_before, "the connection is gone")


@pytest.mark.skipif(os.geteuid() != 0, reason="takes other uids, so root")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_nobody_learns_of_others(http_daemons, tiny_model, transport):  # noqa: F811
    """What one does changes nothing of what another sees, and is in what oneself and administrators see."""
    d = http_daemons("--model", tiny_model, "--kv-memory", "16M", "--socket-mode", "0666")
    a = d.addresses[transport]

    def seen(uid):
        return {name: v for name, v in values(as_uid(uid, metrics, a)).items() if name not in NOT_OF_OTHERS}
    for uid in UIDS:
        as_uid(uid, ask, a, f"of {uid}")
    before = [seen(uid) for uid in UIDS]
    all_before = values(metrics(a))
    for i in range(3):
        as_uid(UIDS[0], ask, a, "of the first " * (3 * i + 1))
    after = [seen(uid) for uid in UIDS]
    assert after[1] == before[1]
    assert after[0]["kvd_generated_tokens_total"] == before[0]["kvd_generated_tokens_total"] + 15 == 20
    assert values(metrics(a))["kvd_generated_tokens_total"] == all_before["kvd_generated_tokens_total"] + 15
    for name in after[1]:
        assert not name.startswith(("kvd_engine", "kvd_http", "kvd_account", "kvd_host", "kvd_disk", "kvd_kept")), name
