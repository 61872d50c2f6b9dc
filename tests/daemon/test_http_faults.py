# SPDX-License-Identifier: Apache-2.0
"""Allocations and the like fail while HTTP requests are served: test_faults.py, through the other door.

A request may be refused, its stream may end with an error, its connection may be closed; the daemon may not crash, hang,
leak, or answer wrongly, and the next request is served.
"""
import itertools
import threading

import pytest

import kvdclient as k
import test_faults
from conftest import PATIENCE, SANITIZED
from faults import Faults
from httpclient import Connection, Events, Reply
from test_faults import KVD_FAULTS, OPTIONS, PROMPT, settle, steps

PATHS = ("/v1/completions", "/v1/chat/completions")

pytestmark = pytest.mark.skipif(not KVD_FAULTS.exists(), reason="kvd-faults is not built")


class Refused(k.Refused):
    def __init__(self, status, error):
        assert error["message"] and error["type"], error
        super().__init__({"code": status})


class Scenario(test_faults.Scenario):
    def __init__(self, daemon, addresses):
        super().__init__(daemon, None)
        self.addresses = itertools.cycle(addresses)

    def connect(self):
        return Connection(next(self.addresses), timeout=30 * PATIENCE)

    def steps(self, c):
        chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "temperature": 0}
        text = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
        yield "health", lambda: self.get(c, "/health")["status"]
        yield "models", lambda: [m["id"] for m in self.get(c, "/v1/models")["data"]]
        yield "metrics", lambda: len(self.plain(c, "/metrics")) > 1000
        yield "completion", lambda: self.answer(c, PATHS[0], {**text, "logprobs": 2})
        yield "sampled", lambda: self.answer(c, PATHS[0], {**text, "n": 2, "temperature": 1, "seed": 7, "stop": ["zq"]})
        yield "stream", lambda: self.stream(c, PATHS[0], {**text, "logprobs": 1})
        yield "chat", lambda: self.answer(c, PATHS[1], chat)
        yield "chat stream", lambda: self.stream(c, PATHS[1], {**chat, "logprobs": True, "top_logprobs": 2})
        yield "key", lambda: self.answer(c, PATHS[0], {**text, "prompt_cache_key": "k"})
        yield "tokenize", lambda: self.post(c, "/tokenize", {"content": "Hello, world! \u00e9\U0001f600"})["tokens"]
        yield "detokenize", lambda: self.post(c, "/detokenize", {"tokens": [5, 6, 7]})["content"]
        yield "embeddings", lambda: self.post(c, "/v1/embeddings", {"input": ["one", "two"],
                                                                    "encoding_format": "float"})["data"]
        yield "bad", lambda: self.bad(c)
        yield "left", lambda: self.left(c)

    @staticmethod
    def check(reply):
        if reply.status >= 400:
            error = reply.json["error"]
            # A fault is never the client's mistake.
            assert reply.status in (429, 500, 503, 507), reply.body
            raise Refused(reply.status, error)
        assert reply.status == 200, reply.status
        return reply

    def plain(self, c, path):
        return self.check(c.call(path)).body

    def get(self, c, path):
        return self.check(c.call(path)).json

    def post(self, c, path, body):
        return self.check(c.call(path, body)).json

    def answer(self, c, path, body):
        choices = self.post(c, path, body)["choices"]
        return [(i["index"], i.get("text") or i["message"]["content"], i["finish_reason"], i["logprobs"]) for i in choices]

    def stream(self, c, path, body):
        """What has come; an error in the middle ends it as well as one before."""
        text, reason = "", None
        c.send(path, {**body, "stream": True})
        status, headers = c.head()
        if status != 200:
            self.check(Reply(status, headers, b"".join(c.pieces())))
        error, events = None, Events()
        for piece in c.pieces():
            for event in events.feed(piece):
                if event is None:
                    continue
                error = event.get("error", error)
                for choice in event.get("choices", []):
                    text += choice.get("text") or choice.get("delta", {}).get("content") or ""
                    reason = choice["finish_reason"] or reason
        if error:
            raise Refused(500, error)
        assert events.done and not events.buffer
        return text, reason

    def bad(self, c):
        reply = c.call(PATHS[0], b'{"prompt": ')
        if reply.status != 400:
            self.check(reply)
        return reply.json["error"]["type"]

    def left(self, c):
        """Another connection, which is closed in the middle."""
        with self.connect() as other:
            other.send(PATHS[0], {"prompt": PROMPT, "max_tokens": 4000, "stream": True})
            status, headers = other.head()
            if status != 200:
                self.check(Reply(status, headers, b"".join(other.pieces())))


@pytest.fixture
def faults(directory):
    return Faults(directory / "faults")


@pytest.fixture
def scenario(daemons, directory, tiny_model, faults):
    path = directory / "http.sock"
    d = daemons("--model", tiny_model, *OPTIONS, "--http", f"unix:{path}", "--http", "127.0.0.1:0",
                env=faults.environment(), program=KVD_FAULTS)
    s = Scenario(d, [("unix", path), ("tcp", d.http_port)])
    assert s.run() == 0 and s.run() == 0, "without faults nothing is refused"
    d.idle()
    return s


def test_each_fails_once(scenario, faults):
    d = scenario.daemon
    before = faults.calls("alloc")
    scenario.run()
    n = faults.calls("alloc") - before
    assert n > 100
    for i in steps(n, 40 if SANITIZED else 1000):
        faults.by_count("alloc", i)
        try:
            scenario.run()
        except Exception as e:
            raise AssertionError(f"{e!r}: {faults.where(KVD_FAULTS, 1)}\n{d.log.read_text()[-2000:]}") from None
        faults.disarm()
    settle(scenario, faults, faults.where(KVD_FAULTS))
    print(f"{n} calls in the scenario, {faults.injected()} faults")


def test_at_random(scenario, faults):
    """Several clients at once; afterwards no descriptor and no memory is missing."""
    d = scenario.daemon
    settle(scenario, faults, "nothing")
    fds, want, seed, failures = d.fds(), 200 if SANITIZED else 1000, 1, []

    def work():
        try:
            scenario.run()
        except Exception as e:      # pylint: disable=broad-except
            failures.append(repr(e))
    while faults.injected() < want and not failures:
        faults.at_random(seed, alloc=(20, 60, 200)[seed % 3], map=5, thread=3, file=5)
        threads = [threading.Thread(target=work) for _ in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        seed += 1
    assert not failures, f"seed {seed - 1}: {failures[0]}: {faults.where(KVD_FAULTS)}\n{d.log.read_text()[-2000:]}"
    settle(scenario, faults, faults.where(KVD_FAULTS))
    d.until(lambda: d.fds() <= fds, "descriptors of closed connections are gone")
    print(f"{faults.injected()} faults in {seed - 1} rounds")
