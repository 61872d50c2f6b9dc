# SPDX-License-Identifier: Apache-2.0
"""Two hundred streaming clients, many of which leave, break off or read slowly: for ten minutes with KVD_TEST_LONG=1.

Nothing is leaked, memory stays where it was, and every answer is the one that the same request gets alone, on a daemon
that caches nothing; of one that was cut short, what had come.
"""
import asyncio
import collections
import gc
import json
import os
import random
import socket
import struct
import time

from conftest import LONG, PATIENCE, SANITIZED, make_tiny
from httpclient import Events, Parser, call, request

N_CLIENTS = 30 if SANITIZED else 200
SECONDS = 600 if LONG else 8 if SANITIZED else 50
N_REQUESTS = 12 if SANITIZED else 60                # different ones
HOWS = ["finish"] * 6 + ["slow", "close", "reset", "reset", "leave", "half"]


def make_requests(rng):
    """Bodies of requests, most with a prefix that others have."""
    bodies = []
    stock = "river house letter question answer winter light stone paper window garden bridge morning evening".split()
    prefixes = [" ".join(rng.choice(stock) for _ in range(n)) for n in (0, 3, 10, 30)]
    for i in range(N_REQUESTS):
        end = " ".join(rng.choice(stock) for _ in range(rng.randrange(1, 12)))
        body = {"max_tokens": rng.choice([1, 5, 20, 40 if SANITIZED else 120]), "temperature": rng.choice([0, 0.8, 1.6]), "seed": i,
                "ignore_eos": rng.random() < 0.7}
        if rng.random() < 0.2:
            body["stop"] = [rng.choice("abcde"), "never"]
        if rng.random() < 0.3:
            body["messages"] = [{"role": "system", "content": rng.choice(prefixes) or "s"}, {"role": "user", "content": end}]
        else:
            body["prompt"] = f"{rng.choice(prefixes)} {end}"
        bodies.append(body)
    return bodies


def path_of(body):
    return "/v1/chat/completions" if "messages" in body else "/v1/completions"


def text_of(choice):
    """Of a reply's choice, or of a stream's."""
    for name in ("message", "delta"):
        if name in choice:
            return choice[name].get("content") or ""
    return choice["text"]


class Answer:
    def __init__(self):
        self.text, self.reason, self.usage, self.whole = "", None, None, False

    def add(self, event):
        assert "error" not in event, event
        self.usage = event.get("usage") or self.usage
        for choice in event["choices"]:
            self.text += text_of(choice)
            self.reason = choice["finish_reason"] or self.reason


class Load:
    """The clients, and what they got."""

    def __init__(self, addresses, bodies, seed):
        self.addresses, self.bodies, self.seed = addresses, bodies, seed
        self.answers = []               # (index of the body, Answer)
        self.counts = collections.Counter()
        self.end = None

    async def connect(self, rng):
        kind, place = rng.choice(self.addresses)
        if kind == "unix":
            return await asyncio.open_unix_connection(place)
        return await asyncio.open_connection("127.0.0.1", place)

    async def one(self, rng, reader, writer, how):
        """One request; whether the connection may have another."""
        index = rng.randrange(len(self.bodies))
        body = dict(self.bodies[index])
        stream = how != "finish" or rng.random() < 0.75
        if stream:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
        data = request(path_of(body), body)
        self.counts[how] += 1
        if how == "half":
            writer.write(data[:rng.randrange(1, len(data))])
            await writer.drain()
            return False
        writer.write(data)
        await writer.drain()
        if how == "leave":
            await asyncio.sleep(rng.random() * 0.05)
            return False
        answer = Answer()
        after = rng.randrange(20) if how in ("close", "reset") else -1
        await self.read(rng, reader, answer, how, after, stream)
        self.answers.append((index, answer))
        return answer.whole

    async def read(self, rng, reader, answer, how, after, stream):
        parser, events, n, plain = Parser(), Events(), 0, b""
        while True:
            data = await asyncio.wait_for(reader.read(65536 if how == "finish" else 300), 120 * PATIENCE)
            assert data, "the daemon closed a connection"
            for kind, *rest in parser.feed(data):
                if kind == "head":
                    assert rest[0] == 200, rest
                elif kind == "data" and stream:
                    for event in events.feed(rest[0]):
                        if event:
                            answer.add(event)
                        n += 1
                elif kind == "data":
                    plain += rest[0]
                elif kind == "end":
                    if stream:
                        assert events.done and not events.buffer
                    else:
                        answer.add(json.loads(plain))
                    answer.whole = True
                    return
            if 0 <= after <= n:
                return
            if how == "slow":
                await asyncio.sleep(rng.random() * 0.1)

    async def client(self, number):
        rng = random.Random(f"{self.seed} {number}")
        while time.monotonic() < self.end:
            reader, writer = await self.connect(rng)
            goes_on = True
            while goes_on and time.monotonic() < self.end:
                how = rng.choice(HOWS)
                goes_on = await self.one(rng, reader, writer, how) and rng.random() < 0.8
            if how == "reset" and not goes_on:
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            await close(writer)

    async def run(self, seconds, watch):
        self.end = time.monotonic() + seconds
        tasks = [asyncio.create_task(self.client(i)) for i in range(N_CLIENTS)]
        watcher = asyncio.create_task(watch(self))
        try:
            await asyncio.gather(*tasks)
        finally:
            watcher.cancel()
            for t in tasks:
                t.cancel()
            await asyncio.gather(*tasks, watcher, return_exceptions=True)


async def close(writer):
    """What is left to be sent may keep a connection open, with nobody to see to it when the loop has ended."""
    writer.close()
    try:
        await asyncio.wait_for(writer.wait_closed(), 5)
    except (OSError, asyncio.TimeoutError):
        writer.transport.abort()


def slope(points):
    """Least squares: of y for one of x."""
    n, sx, sy = len(points), sum(x for x, _ in points), sum(y for _, y in points)
    return (n * sum(x * y for x, y in points) - sx * sy) / (n * sum(x * x for x, _ in points) - sx * sx)


def expected(d, address, body):
    """What the request gets alone."""
    answer = Answer()
    reply = call(address, path_of(body), body, timeout=60 * PATIENCE)
    assert reply.status == 200, reply.body
    answer.add(reply.json)
    return answer


def test_two_hundred_clients(daemons, tmp_path, directory):
    model = make_tiny(tmp_path / "model.gguf", "--ctx", "512", "--layers", "6", "--kv-heads", "4")
    options = ("--model", model, "--kv-memory", "2M", "--max-seqs", "16", "--uid-requests", "1024", "--uid-sessions",
               "1024", "--max-sessions", "2048")
    unix = directory / "http.sock"
    d = daemons(*options, "--http", "127.0.0.1:0", "--http", f"unix:{unix}")
    seed = int(os.environ.get("KVD_TEST_SEED", 0)) or random.randrange(1, 1 << 30)
    print(f"KVD_TEST_SEED={seed}")
    bodies = make_requests(random.Random(seed))
    load = Load([("unix", str(unix)), ("tcp", d.http_port)], bodies, seed)
    points = []

    async def watch(_):
        while True:
            await asyncio.sleep(0.5)
            points.append((time.monotonic(), d.memory()))
    # Threads and allocators have what they keep, and all sequences were there once.
    asyncio.run(load.run(min(30, SECONDS / 4), watch))
    d.idle()
    before = (d.fds(), d.threads())
    points.clear()
    asyncio.run(load.run(SECONDS, watch))
    d.idle()
    # What this process itself still has, of a loop that has ended, ends with its objects.
    gc.collect()
    d.until(lambda: d.fds() <= before[0], "descriptors of connections are gone")
    assert d.threads() == before[1]
    growth, preempted = slope(points) * SECONDS, d.status()["preemptions"]
    whole = [a for _, a in load.answers if a.whole]
    print(f"{len(whole)} answers, {len(load.answers) - len(whole)} cut short, {dict(load.counts)}; memory "
          f"{points[0][1] >> 10} to {points[-1][1] >> 10} KiB, {growth / 1024:.0f} KiB by its slope; {preempted} times blocks were taken away")
    if not SANITIZED:
        assert growth < 2 << 20, points
    judge = daemons(*options, "--no-cache", "--http", "127.0.0.1:0", socket=directory / "judge.sock")
    check(judge, load)


def check(judge, load):
    """Each answer against the one that its request gets alone."""
    want = {}
    assert load.answers
    for index, got in load.answers:
        if index not in want:
            want[index] = expected(judge, ("tcp", judge.http_port), load.bodies[index])
        right = want[index]
        if got.whole:
            assert (got.text, got.reason) == (right.text, right.reason), load.bodies[index]
            assert got.usage["completion_tokens"] == right.usage["completion_tokens"]
            assert got.usage["prompt_tokens"] == right.usage["prompt_tokens"]
        else:
            assert right.text.startswith(got.text), load.bodies[index]
