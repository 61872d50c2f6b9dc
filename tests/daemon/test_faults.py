# SPDX-License-Identifier: Apache-2.0
"""Allocation, reading, mapping, threads and files fail: one after the other, and at random.

The daemon may refuse, end a request or a session with an error, or fail to
start, each time in words.  It may not crash, hang, leak, or answer wrongly,
and afterwards it serves as before.
"""
import random
import tempfile
import threading
import time

import pytest

import kvdclient as k
from conftest import BUILD, LONG, PATIENCE, SANITIZED, Daemon, make_tiny
from faults import COMMON, Faults

KVD_FAULTS = BUILD / "tests/kvd-faults"
PROMPT = "The quick brown fox jumps over the lazy dog. " * 3
OPTIONS = ("--kv-memory", "16M", "--host-memory", "8M", "--threads", "2", "--max-seqs", "4")

pytestmark = pytest.mark.skipif(not KVD_FAULTS.exists(), reason="kvd-faults is not built")


@pytest.fixture
def faults(directory):
    return Faults(directory / "faults")


# --- at the start ---------------------------------------------------------------------------

def start(directory, model, faults):
    """Starts, asks for a few tokens, and stops: the exit status, what it said, and the answer."""
    d = Daemon(directory, "--model", model, *OPTIONS, env=faults.environment(), wait=False, program=KVD_FAULTS)
    answer = None
    end = time.monotonic() + 30 * PATIENCE
    try:
        while d.proc.poll() is None:
            assert time.monotonic() < end, "it neither serves nor exits: " + faults.where(KVD_FAULTS)
            try:
                with d.client() as c:
                    if c.call(k.STATUS)["state"] == "ready":
                        faults.disarm()
                        answer = c.generate(PROMPT, n=4, ignore_eos=True).ids
                        break
            except (OSError, k.Closed, k.Refused):
                pass
            time.sleep(0.01)
        if answer is not None:
            d.proc.terminate()
        return d.proc.wait(20 * PATIENCE), d.log.read_text(), answer
    finally:
        d.kill()


def steps(n, few):
    """1..n, or some of them spread evenly."""
    return range(1, n + 1) if LONG or n <= few else sorted({1 + i * (n - 1) // (few - 1) for i in range(few)})


@pytest.mark.parametrize("kind", COMMON)
def test_start(directory, tiny_model, faults, kind):
    status, log, expected = start(directory, tiny_model, faults)
    assert status == 0 and expected, log
    n = faults.calls(kind)
    assert n, "such calls are counted"
    refused = 0
    for i in steps(n, 20 if SANITIZED else 60):
        faults.by_count(kind, i)
        before = faults.injected()
        status, log, answer = start(directory, tiny_model, faults)
        where = faults.where(KVD_FAULTS, 1)
        assert status in (0, 1), f"exit status {status}: {where}\n{log}"
        assert "Sanitizer" not in log and "runtime error" not in log, f"{where}\n{log}"
        if status == 1:
            refused += 1
            assert log.strip(), f"it failed without a word: {where}"
        if answer is not None:
            assert answer == expected, f"another answer: {where}"
        faults.disarm()
        assert faults.injected() - before <= 1
    print(f"{kind}: {n} calls, {faults.injected()} faults, {refused} starts refused")


# --- while it runs ------------------------------------------------------------------------------

class Scenario:
    """What a client does, each step with the answer it has without faults."""

    def __init__(self, daemon, second):
        self.daemon = daemon
        self.second = second            # the file of a second model, which is loaded and unloaded
        self.expected = {}

    def steps(self, c):
        yield "tokenize", lambda: c.tokenize("Hello, world! \u00e9\U0001f600")
        yield "status", lambda: c.call(k.STATUS)["state"]
        yield "models", lambda: c.call(k.MODELS)["models"][0]["name"]
        yield "generate", lambda: self.answer(c, PROMPT, n=6, ignore_eos=True, logprobs=2)
        yield "sampled", lambda: self.answer(c, PROMPT, n=6, ignore_eos=True, temperature=1.0, seed=7)
        yield "stop", lambda: self.answer(c, "abc", n=40, stop=["zq", "e"], ignore_eos=True)
        yield "chat", lambda: self.answer(c, messages=[("user", "Hi")], n=5, ignore_eos=True)
        yield "many", lambda: self.many(c)
        yield "cancel", lambda: self.cancelled(c)
        name = f"second-{threading.get_ident()}"
        yield "load", lambda: self.loaded(c, name)
        yield "generate on it", lambda: self.answer(c, PROMPT, n=6, ignore_eos=True, model=name)
        yield "prompt", lambda: self.answer(c, PROMPT, n=0, prompt_logprobs=1)
        yield "cache", lambda: self.cached(c, f"key-{threading.get_ident()}")
        yield "share", lambda: self.shared(c, f"key-{threading.get_ident()}")
        yield "unload", lambda: c.call(k.UNLOAD, {"model": name}) and None

    @staticmethod
    def check(result):
        if result.error:
            assert result.error["text"].decode(), "an error says why"
            raise k.Refused({"code": result.error["code"]})
        return result

    def answer(self, c, *args, **kw):
        r = self.check(c.generate(*args, timeout=30 * PATIENCE, **kw))
        return r.ids, r.text, r.reason

    def loaded(self, c, name):
        """Also where it has stayed, since nobody heard that it was there."""
        try:
            c.call(k.UNLOAD, {"model": name, "now": True})
        except k.Refused:
            pass
        c.load(self.second, name)

    def cached(self, c, key):
        """Also where a pin has stayed."""
        c.call(k.CACHE_WIPE, {"namespace": f"own/{key}"})
        self.check(c.generate(PROMPT, n=0, cache_key=key, timeout=30 * PATIENCE))
        entries = c.cache_ls(namespace=f"own/{key}")
        if not entries:
            raise k.Refused({"code": 10})       # there was no memory to keep it
        last = {"entry": entries[-1]["entry"]}
        shown = c.call(k.CACHE_SHOW, last)
        c.call(k.CACHE_PIN, last)
        c.call(k.CACHE_UNPIN, last)
        dropped = c.call(k.CACHE_DROP, {**last, "chain": True})
        if shown["n_path"] != dropped["n_entries"]:
            raise k.Refused({"code": 10})
        return shown["text"], dropped["n_tokens"], c.cache_ls(namespace=f"own/{key}")

    def shared(self, c, key):
        """Out of one key and into another; what is less than all is as good as refused."""
        for name in (key, key + "-2"):
            c.call(k.CACHE_WIPE, {"namespace": f"own/{name}"})
        self.check(c.generate(PROMPT, n=0, cache_key=key, timeout=30 * PATIENCE))
        n = len(c.cache_ls(namespace=f"own/{key}"))
        with tempfile.TemporaryFile() as f:
            sent = c.share(k.CACHE_EXPORT, f.fileno(), namespace=f"own/{key}")
            f.seek(0)
            got = c.share(k.CACHE_IMPORT, f.fileno(), cache_key=key + "-2")
        verified = c.call(k.CACHE_VERIFY, {"namespace": f"own/{key}-2", "count": 2**32 - 1})
        assert verified["n_differ"] == 0, verified
        if not n == sent["n_entries"] == got["n_entries"] == verified["n_entries"] or got["code"]:
            raise k.Refused({"code": 10})
        return got["n_tokens"]

    def many(self, c):
        rids = [c.submit(f"{i} " + PROMPT, n=8, ignore_eos=True) for i in range(6)]
        results = c.collect(*rids, timeout=30 * PATIENCE)
        return [self.check(results[r]).ids for r in rids]

    def cancelled(self, c):
        rid = c.submit(PROMPT, n=4000, ignore_eos=True)
        c.cancel(rid)
        return self.check(c.collect(rid, timeout=30 * PATIENCE)[rid]).reason

    def connect(self):
        return self.daemon.client()

    def run(self):
        """Every step answers as it should or is refused; how many were."""
        refused = 0
        c = None
        try:
            for name, step in list(self.steps(None)):
                try:
                    if c is None:
                        c = self.connect()
                    got = dict(self.steps(c))[name]()
                except k.Refused:
                    refused += 1
                    continue
                except (k.Closed, OSError) as e:
                    assert not isinstance(e, TimeoutError), f"{name}: no answer"
                    refused += 1
                    if c is not None:
                        c.close()
                    c = None
                    continue
                assert got == self.expected.setdefault(name, got), f"{name}: a wrong answer"
        finally:
            if c is not None:
                c.close()
        return refused


@pytest.fixture
def scenario(daemons, directory, tiny_model, faults):
    d = daemons("--model", tiny_model, *OPTIONS, env=faults.environment(), program=KVD_FAULTS)
    s = Scenario(d, make_tiny(directory / "second.gguf", "--seed", "5", "--layers", "3"))
    assert s.run() == 0 and s.run() == 0, "without faults nothing is refused"
    d.idle()
    return s


def settle(scenario, faults, note):
    """After the faults: nothing is left behind, and all is as before."""
    faults.disarm()
    with scenario.daemon.client() as c:         # what a refused unpin has left
        c.call(k.CACHE_WIPE, {"all": True})
    scenario.daemon.idle()
    with scenario.daemon.client() as c:         # what a refused unload has left
        for m in c.call(k.MODELS)["models"][1:]:
            c.call(k.UNLOAD, {"model": m["name"]})
    assert scenario.run() == 0, f"refused without a fault, after {note}"


def test_running_by_count(scenario, faults):
    d = scenario.daemon
    for kind in COMMON:
        before = faults.calls(kind)
        scenario.run()
        n = faults.calls(kind) - before
        for i in steps(n, 40 if SANITIZED else 100):
            faults.by_count(kind, i)
            try:
                scenario.run()
            except AssertionError as e:
                raise AssertionError(f"{e}: {faults.where(KVD_FAULTS, 1)}\n{d.log.read_text()[-2000:]}") from None
            faults.disarm()
        settle(scenario, faults, f"{kind}: {faults.where(KVD_FAULTS)}")
        print(f"{kind}: {n} calls in the scenario, {faults.injected(kind)} faults")


def test_running_at_random(scenario, faults):
    """Several clients at once; every kind may fail."""
    d = scenario.daemon
    settle(scenario, faults, "nothing")
    fds, memory = d.fds(), None
    want = 400 if SANITIZED and not LONG else 2000
    failures = []
    seed = 1
    while faults.injected() < want and not failures:
        faults.at_random(seed, alloc=random.Random(seed).choice((20, 60, 200)), read=50, map=5, thread=3, file=5)

        def work():
            try:
                scenario.run()
            except AssertionError as e:
                failures.append(e)
        threads = [threading.Thread(target=work) for _ in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        seed += 1
        assert not failures, f"seed {seed - 1}: {failures[0]}: {faults.where(KVD_FAULTS)}\n{d.log.read_text()[-2000:]}"
        if seed % 10 == 0:
            settle(scenario, faults, f"seed {seed - 1}: {faults.where(KVD_FAULTS)}")
            if memory is None and faults.injected() > want / 2:
                memory = d.memory()     # by now every thread has its heap
    settle(scenario, faults, faults.where(KVD_FAULTS))
    d.idle()
    d.until(lambda: d.fds() <= fds, "descriptors of closed sessions are gone")
    if not SANITIZED:       # what a sanitizer keeps back is no leak; its own check at the exit finds those
        assert d.memory() < memory + (2 << 20), "memory leaks"
    print(f"{faults.injected()} faults in {seed - 1} rounds: "
          + ", ".join(f"{kind} {faults.injected(kind)}" for kind in COMMON))
