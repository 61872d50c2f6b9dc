# SPDX-License-Identifier: Apache-2.0
"""Through HTTP: work that nobody waits for stops, memory is bounded, and what one client does costs the others nothing.

What test_cancel.py and test_memory_flat.py try through shared memory.  Where a count of steps matters, the engine sleeps
before each step, and counters tell what was computed.
"""
import os
import random
import threading
import time

import kvdclient as k
import pytest
from conftest import LONG, PATIENCE, SANITIZED, make_tiny
from httpclient import Connection, call
from test_cancel import STEP_MS, phases, settled
from test_memory_flat import slope

TRANSPORTS = ("unix", "tcp")


@pytest.fixture
def slow(http_daemons, tiny_model):
    return http_daemons("--model", tiny_model, "--max-seqs", "2", "--prefill-quantum", "16", "--kv-memory", "64M",
                        env={"KVD_TEST_STEP_DELAY_MS": str(STEP_MS)})


@pytest.fixture
def http_daemons(daemons, directory):
    """As daemons, each with .addresses of both transports."""
    def begin(*options, **kw):
        path = directory / f"http-{time.monotonic_ns()}.sock"
        d = daemons(*options, "--http", "127.0.0.1:0", "--http", f"unix:{path}", **kw)
        d.addresses = {"unix": ("unix", path), "tcp": ("tcp", d.http_port)}
        return d
    return begin


def body(prompt, n_tokens, **more):
    return {"prompt": prompt, "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True, **more}


def generate(address, prompt, n_tokens, **more):
    reply = call(address, "/v1/completions", body(prompt, n_tokens, **more), timeout=60 * PATIENCE)
    assert reply.status == 200, (reply.status, reply.body)
    return reply.json["choices"][0]["text"]


def begin(address, prompt, n_tokens, path="/v1/completions", **more):
    """A connection that waits for its answer."""
    c = Connection(address, timeout=60 * PATIENCE)
    c.send(path, body(prompt, n_tokens, **more))
    return c


def leave(c, how):
    if how == "reset":
        c.reset()
    else:
        c.close()


# --- the client is gone ---------------------------------------------------------------------

@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("how", ["close", "reset", "shutdown"])
@pytest.mark.parametrize("stream", [True, False])
def test_decode_stops_within_a_step(slow, transport, how, stream):
    with slow.client() as watch:
        gone = begin(slow.addresses[transport], "x", 100000, stream=stream)
        slow.until(lambda: phases(watch) == ["decode"], "decodes")
        if how == "shutdown":       # it sends no more and takes no more: as gone as one can tell
            gone.sock.shutdown(2)
        else:
            leave(gone, how)
        slow.until(lambda: not phases(watch), "gone")
        made = watch.call(k.STATUS)["generated_tokens"]
        assert settled(slow, "generated_tokens") == [made]
        assert watch.call(k.STATUS)["requests_cancelled"] == 1
        gone.close()
    slow.idle()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_prefill_stops_within_a_step(slow, transport):
    with slow.client() as watch:
        gone = begin(slow.addresses[transport], "word " * 400, 5, stream=True)
        slow.until(lambda: phases(watch) == ["prefill"] and watch.call(k.STATUS)["prompt_tokens"] > 0, "prefills")
        gone.reset()
        slow.until(lambda: not phases(watch), "gone")
        done = settled(slow, "prompt_tokens", "generated_tokens")
        assert 0 < done[0] < 16 * 60 and done[1] == 0, done
    slow.idle()


def test_queued_ones_never_run(slow):
    with slow.client() as watch:
        # These run until they are told not to, so that no place comes free meanwhile, however slow all is.
        first = [begin(slow.addresses["tcp"], p, 100000, stream=True) for p in ("one", "two")]
        slow.until(lambda: phases(watch) == ["decode"] * 2, "two run")
        before = watch.call(k.STATUS)
        gone = [begin(slow.addresses[TRANSPORTS[i % 2]], "never " * 50, 1000, stream=i % 3 == 0, n=1 + i % 2)
                for i in range(12)]
        slow.until(lambda: phases(watch).count("queued") == 18, "all wait")
        for i, c in enumerate(gone):
            leave(c, "reset" if i % 2 else "close")
        slow.until(lambda: phases(watch).count("queued") == 0, "none wait")
        made = watch.call(k.STATUS)["generated_tokens"]
        assert made > before["generated_tokens"] and phases(watch) == ["decode"] * 2
        slow.until(lambda: watch.call(k.STATUS)["generated_tokens"] > made, "the two go on")
        for c in first:
            c.close()
        slow.until(lambda: not phases(watch), "gone")
        s = watch.call(k.STATUS)
        assert s["prompt_tokens"] == before["prompt_tokens"] and s["requests_cancelled"] == 20
    slow.idle()


def test_others_are_unharmed(http_daemons, tiny_model):
    """Clients come and go in every phase; the one that stays gets what it gets alone."""
    d = http_daemons("--model", tiny_model, "--kv-memory", "8M", "--max-seqs", "4", "--prefill-quantum", "32")
    want = generate(d.addresses["tcp"], "stay", 400)
    stays = begin(d.addresses["tcp"], "stay", 400, stream=True)
    for i in range(60):
        c = begin(d.addresses[TRANSPORTS[i % 2]], "word " * (7 * i % 200 + 1), 500, stream=i % 3 > 0, n=1 + i % 3)
        if i % 3 > 0 and i % 4 == 0:
            next(c.events())
        leave(c, "reset" if i % 5 == 0 else "close")
    assert "".join(e["choices"][0]["text"] for e in stays.events() if e) == want
    stays.close()
    d.idle()


def test_ps_shows_them(slow):
    """Those of HTTP beside those of a program that is attached."""
    with slow.client(name="attached") as c:
        held = [begin(slow.addresses[t], "x", 100000, stream=True) for t in TRANSPORTS]
        c.submit("y", n=100000, ignore_eos=True)
        slow.until(lambda: len(phases(c)) == 3, "all are there")
        seen = c.call(k.PS)["processes"]
        assert sorted((p["client"], p["uid"], p["pid"] > 0) for p in seen) == [
            ("attached", os.geteuid(), True), ("http", os.geteuid(), False), ("http", os.geteuid(), False)]
        assert len({p["session"] for p in seen}) == 3
        for h in held:
            h.close()


# --- slow readers, and memory --------------------------------------------------------------------

def test_stopped_reader_costs_nothing(http_daemons, tiny_model):
    """It stalls itself alone, in bounded memory; the whole answer is there when it reads again."""
    d = http_daemons("--model", tiny_model, "--kv-memory", "16M", "--ctx", "2048")
    more = {"logprobs": 20}
    want = call(d.addresses["unix"], "/v1/completions", body("Hello", 2000, **more), timeout=60 * PATIENCE).json
    beside = generate(d.addresses["unix"], "bystander", 50)
    memory = d.memory()
    stopped = Connection(d.addresses["tcp"], timeout=60 * PATIENCE, receive_buffer=4096)
    stopped.send("/v1/completions", body("Hello", 2000, stream=True, **more))
    d.until(lambda: d.status()["n_parked"] == 1, "parked")
    for _ in range(5):
        assert generate(d.addresses["tcp"], "bystander", 50) == beside
    assert SANITIZED or d.memory() - memory < 8 << 20
    d.until(lambda: d.status()["n_parked"] == 1, "still parked")
    got = "".join(e["choices"][0]["text"] for e in stopped.events() if e)
    assert got == want["choices"][0]["text"]
    # One that never reads again.
    stopped.send("/v1/completions", body("Hello", 2000, stream=True, **more))
    d.until(lambda: d.status()["n_parked"] == 1, "parked again")
    stopped.reset()
    d.idle()


@pytest.mark.skipif(SANITIZED, reason="sanitizers hold back what was freed")
def test_memory_over_500_prompts(http_daemons, tiny_model):
    """Each prompt is another, on kept connections and new ones: the slope of the daemon's memory is nothing."""
    d = http_daemons("--model", tiny_model, "--kv-memory", "8M")
    kept = Connection(d.addresses["tcp"])

    def one(i):
        more = {"stream": i % 3 == 0, "logprobs": 2, "stop": [f"never {i}"]}
        if i % 4:
            path, b = "/v1/completions", body(f"unique {i} " * (i % 37 + 1), 3, **more)
        else:
            path, b = "/v1/chat/completions", {"messages": [{"role": "user", "content": f"{i} " + "x" * (i % 300)}],
                                               "max_tokens": 3, "stream": i % 3 == 0}
        reply = kept.call(path, b) if i % 2 else call(d.addresses["unix"], path, b)
        assert reply.status == 200, reply.body
    for i in range(1000):
        one(i)
    points = []
    for i in range(2000 if LONG else 500):
        one(1000 + i)
        if i % 25 == 24:
            points.append((i, d.memory()))
    kept.close()
    per_prompt = slope(points)
    print(f"\n{per_prompt:.0f} bytes per prompt, {points[0][1] >> 10} to {points[-1][1] >> 10} KiB")
    assert per_prompt < 256, f"{per_prompt:.0f} bytes per prompt, {points}"


def test_context_exceeded_concerns_one(http_daemons, tiny_model):
    """One that reaches the end of its context, and one whose prompt is too long, beside others that go on."""
    d = http_daemons("--model", tiny_model, "--ctx", "256", "--max-seqs", "8", "--kv-memory", "32M")
    a = d.addresses["tcp"]
    prompts = ["a", "bb", "ccc " * 10]
    want = [generate(a, p, 150) for p in prompts]
    run = [begin(a, p, 150) for p in prompts]
    ends = [begin(a, "word " * 40, 100000) for _ in range(3)]
    for _ in range(5):
        refused = call(a, "/v1/completions", body("word " * 2000, 5))
        assert refused.status == 400 and refused.json["error"]["code"] == "context_length_exceeded"
        assert "256" in refused.json["error"]["message"]
    assert [c.reply().json["choices"][0]["text"] for c in run] == want
    for c in ends:
        r = c.reply().json
        assert r["choices"][0]["finish_reason"] == "length" and 255 <= r["usage"]["total_tokens"] <= 257, r
    for c in (*run, *ends):
        c.close()
    d.idle()


def test_more_than_there_is_room_for(http_daemons, tmp_path):
    """A prompt that the pool, or the account, can never hold is refused at once; what fits is served beside it."""
    path = make_tiny(tmp_path / "long.gguf", "--ctx", "65536", "--layers", "8", "--kv-heads", "4")
    d = http_daemons("--model", path, "--kv-memory", "2M", "--uid-memory", "8M")
    a = d.addresses["unix"]
    want = generate(a, "small", 20)
    for n in (5000, 20000, 300000, 3000000):
        r = call(a, "/v1/completions", body("word " * n, 2), timeout=60 * PATIENCE)
        assert 400 <= r.status < 500 and r.json["error"]["message"], (n, r.status, r.body[:300])
        if n <= 20000:
            assert r.status == 400 and r.json["error"]["code"] == "context_length_exceeded", r.body[:300]
        assert generate(a, "small", 20) == want
    d.idle()


# --- queues and health ---------------------------------------------------------------------------

def test_queue_limits(http_daemons, tiny_model):
    """One too many: 429 with Retry-After, at once; after the others it is served."""
    for options, n in ((("--max-queue", "3"), 5), (("--uid-requests", "4"), 4)):
        d = http_daemons("--model", tiny_model, "--max-seqs", "2", "--kv-memory", "64M", *options,
                         env={"KVD_TEST_STEP_DELAY_MS": str(STEP_MS)})
        a = d.addresses["tcp"]
        with d.client() as watch:
            held = []
            for i in range(n):
                held.append(begin(a, f"number {i}", 100000, stream=True))
                # One that has not its place yet is one of the queue.
                d.until(lambda: len(phases(watch)) == len(held) and d.status()["n_running"] == min(len(held), 2),
                        "it is there")
            for stream in (True, False):
                for path in ("/v1/completions", "/v1/chat/completions"):
                    b = body("late", 2, stream=stream)
                    if "chat" in path:
                        b["messages"] = [{"role": "user", "content": b.pop("prompt")}]
                    r = call(a, path, b)
                    assert r.status == 429, (r.status, r.body)
                    assert 1 <= int(r.headers["retry-after"]) <= 3600
                    assert r.json["error"]["type"] == "rate_limit_error" and r.json["error"]["message"]
            assert len(phases(watch)) == n
            for c in held:
                c.reset()
        d.idle()
        assert generate(a, "late", 2)
        d.stop()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_health_during_prefill(slow, transport):
    """Answered again and again before a long prefill ends."""
    a = slow.addresses[transport]
    with slow.client() as watch:
        long = begin(a, "word " * 400, 2)
        slow.until(lambda: phases(watch) == ["prefill"], "prefills")
        for path in ("/health", "/v1/models", "/metrics"):
            for _ in range(5):
                assert call(a, path).status == 200
        # Fifteen answers, and the hundred steps are not over.
        assert phases(watch) == ["prefill"]
        assert slow.status()["prompt_tokens"] < 16 * 100
        long.reset()
    slow.idle()


def test_health_while_all_is_full(http_daemons, tiny_model):
    """The queue is full and the engine at work; whoever asks for health gets it, all the time."""
    d = http_daemons("--model", tiny_model, "--max-seqs", "2", "--max-queue", "4", "--kv-memory", "64M",
                     env={"KVD_TEST_STEP_DELAY_MS": "250"})
    a = d.addresses["tcp"]
    held = []
    with d.client() as watch:
        for i in range(6):
            held.append(begin(a, f"{i}", 100000))
            d.until(lambda: len(phases(watch)) == len(held), "it is there")
        steps = watch.call(k.STATUS)["generated_tokens"]
        for _ in range(20):
            assert call(a, "/health").status == 200
        # A step makes two tokens.  Twenty answers took fewer steps: they did not wait for steps.
        assert watch.call(k.STATUS)["generated_tokens"] - steps < 2 * 20
        for c in held:
            c.close()
    d.idle()


def test_more_threads_than_processors(http_daemons, tiny_model):
    d = http_daemons("--model", tiny_model, "--threads", "16", "--kv-memory", "16M")
    one = http_daemons("--model", tiny_model, "--threads", "1", "--kv-memory", "16M",
                       socket=d.dir / "one.sock")
    results = {}

    def ask(i):
        results[i] = generate(d.addresses[TRANSPORTS[i % 2]], f"number {i}", 30)
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == {i: generate(one.addresses["unix"], f"number {i}", 30) for i in range(8)}


def test_pieces_come_with_their_steps(slow):
    """Not in one burst at the end: with the first ones there, most is still to be computed."""
    with slow.client() as watch:
        c = begin(slow.addresses["tcp"], "x", 60, stream=True)
        events = (e for e in c.events() if e and e["choices"][0]["text"])
        for _ in range(3):
            next(events)
        assert phases(watch) == ["decode"] and watch.call(k.STATUS)["generated_tokens"] < 60
        assert len(list(events)) > 30
        c.close()
    slow.idle()


def test_random_sizes_of_reads(http_daemons, tiny_model):
    """However slowly and in whatever pieces it is read, an answer is the same."""
    d = http_daemons("--model", tiny_model, "--kv-memory", "16M")
    rng = random.Random(5)
    want = generate(d.addresses["tcp"], "pieces", 200)
    for transport in TRANSPORTS:
        c = begin(d.addresses[transport], "pieces", 200, stream=True)
        original = c.sock
        c.sock = Trickle(original, rng)
        assert "".join(e["choices"][0]["text"] for e in c.events() if e) == want
        original.close()


class Trickle:
    def __init__(self, sock, rng):
        self.sock, self.rng = sock, rng

    def recv(self, _):
        return self.sock.recv(self.rng.choice([1, 2, 3, 7, 64, 500]))
