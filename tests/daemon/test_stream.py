# SPDX-License-Identifier: Apache-2.0
"""From a prompt to tokens, through the socket and shared memory."""
import os
import subprocess

import kvdclient as k
import pytest
from conftest import PATIENCE, SANITIZED
from kvtypes import kv_types


def test_tokens_and_text(daemon):
    with daemon.client() as c:
        r = c.generate("Once upon a time", n=40, ignore_eos=True)
        assert r.reason == k.LENGTH
        assert len(r.ids) == 40
        assert r.usage["prompt"] > 0 and r.usage["generated"] == 40 and r.usage["cached"] == 0
        assert r.text.decode() == r.token_bytes.decode(errors="replace")


def test_greedy_repeats(daemon):
    with daemon.client() as c:
        a = c.generate("What a beautiful", n=30, ignore_eos=True, logprobs=3)
        for _ in range(5):
            b = c.generate("What a beautiful", n=30, ignore_eos=True, logprobs=3)
            assert (a.ids, a.logprobs, a.alternatives) == (b.ids, b.logprobs, b.alternatives)
        assert all(top[0][0] == i and top[0][1] == lp
                   for i, lp, top in zip(a.ids, a.logprobs, a.alternatives))


def test_seed(daemon):
    with daemon.client() as c:
        def ids(seed):
            return c.generate("The", n=20, ignore_eos=True, temperature=1.5, seed=seed).ids
        assert ids(1) == ids(1)
        assert len({tuple(ids(s)) for s in range(6)}) > 1


@kv_types("f16", "q8", "q4")
def test_many_in_one_session(daemons, tiny_model, kv_type):
    daemon = daemons("--model", tiny_model, "--kv-memory", "64M", "--threads", "2", "--kv-type", kv_type)
    prompts = [f"{i} bottles of beer on the wall, " * (1 + i % 5) for i in range(20)]
    with daemon.client() as c:
        alone = [c.generate(p, n=25, ignore_eos=True, logprobs=0) for p in prompts]
        rids = [c.submit(p, n=25, ignore_eos=True, logprobs=0) for p in prompts]
        got = c.collect(*rids)
        for a, rid in zip(alone, rids):
            assert (a.ids, a.logprobs, a.text) == (got[rid].ids, got[rid].logprobs, got[rid].text)


def test_small_ring_parks_one_and_not_the_others(daemons, tiny_model):
    """A client that doesn't read is parked once its ring is full; others go on; nothing is lost."""
    d = daemons("--model", tiny_model, "--kv-memory", "64M")
    with d.client(ring=65536) as slow, d.client() as other:
        expected = other.generate("Hello", n=2000, ignore_eos=True).ids
        rid = slow.submit("Hello", n=2000, ignore_eos=True)
        d.until(lambda: d.status()["n_parked"] == 1, "parked")
        assert len(other.generate("World", n=50, ignore_eos=True).ids) == 50
        assert slow.collect(rid)[rid].ids == expected


def test_parked_is_preempted_when_blocks_are_needed(daemons, tiny_model):
    """A parked client holds no memory that others need, and still gets its whole answer."""
    d = daemons("--model", tiny_model, "--kv-memory", "2M", "--max-seqs", "8")
    with d.client(ring=65536) as slow, d.client() as other:
        expected = other.generate("Hello", n=2000, ignore_eos=True).ids
        rid = slow.submit("Hello", n=2000, ignore_eos=True)
        d.until(lambda: d.status()["n_parked"] == 1, "parked")
        for turn in range(1 if SANITIZED else 3):
            rids = [other.submit(f"{i} {turn} " * 100, n=800, ignore_eos=True) for i in range(8)]
            others = other.collect(*rids)
            assert all(len(r.ids) == 800 for r in others.values())
        assert d.status()["preemptions"] > 0
        assert slow.collect(rid)[rid].ids == expected


def test_stop_strings(daemon):
    with daemon.client() as c:
        whole = c.generate("Once", n=60, ignore_eos=True).text.decode()
        middle = whole[len(whole) // 2:len(whole) // 2 + 3]
        r = c.generate("Once", n=60, ignore_eos=True, stop=["never there", middle])
        assert r.reason == k.STOP_STRING and r.stop_index == 1
        assert r.text.decode() == whole[:whole.index(middle)]


def test_context_full_is_length(daemons, tiny_model):
    d = daemons("--model", tiny_model, "--ctx", "64")
    with d.client() as c:
        r = c.generate("a", n=100000, ignore_eos=True)
        assert r.reason == k.LENGTH
        assert r.usage["prompt"] + r.usage["generated"] in (64, 65)
        rid = c.submit("word " * 200)
        with pytest.raises(k.Refused) as e:
            c.collect(rid)
        assert e.value.code == 7
        n = len(c.tokenize("word " * 200))
        assert str(n) in e.value.fields["message"] and "64" in e.value.fields["message"]


@kv_types("f16", "q8", "q4")
def test_no_cache_gives_the_same(daemons, tiny_model, kv_type):
    a = daemons("--model", tiny_model, "--kv-type", kv_type)
    with a.client() as c:
        x = c.generate("A longer prompt to begin with", n=40, ignore_eos=True, logprobs=2)
    a.stop()
    b = daemons("--model", tiny_model, "--no-cache", "--kv-type", kv_type)
    with b.client() as c:
        y = c.generate("A longer prompt to begin with", n=40, ignore_eos=True, logprobs=2)
    assert (x.ids, x.logprobs, x.alternatives) == (y.ids, y.logprobs, y.alternatives)


@pytest.mark.parametrize("phase", ["queued", "prefill", "decode", "parked"])
def test_cancel(daemons, tiny_model, phase):
    d = daemons("--model", tiny_model, "--max-seqs", "2", "--prefill-quantum", "8",
                env={"KVD_TEST_STEP_DELAY_MS": "0" if phase == "parked" else "10"})
    with d.client(ring=65536) as c, d.client() as other:
        if phase == "queued":
            busy = [other.submit("x", n=4000, ignore_eos=True) for _ in range(2)]
            d.until(lambda: d.status()["n_running"] == 2, "both run")
        prompt = "word " * 400 if phase == "prefill" else "x"
        rid = c.submit(prompt, n=4000, ignore_eos=True)

        def there():
            return [p["phase"] for p in c.call(k.PS)["processes"]
                    if (p["session"], p["request"]) == (c.welcome["session"], rid)] == [phase]
        d.until(there, phase)
        before = d.status()["generated_tokens"]
        c.cancel(rid)
        r = c.collect(rid)[rid]
        assert r.reason == k.CANCELLED
        if phase == "queued":
            for b in busy:
                other.cancel(b)
            other.collect(*busy)
        d.until(lambda: d.status()["n_running"] + d.status()["n_queued"] + d.status()["n_parked"] == 0, "gone")
        if phase in ("queued", "prefill"):
            assert r.ids == [] and before >= 0


@pytest.mark.parametrize("phase", ["queued", "prefill", "decode"])
def test_client_gone(daemons, tiny_model, phase):
    d = daemons("--model", tiny_model, "--max-seqs", "2", "--prefill-quantum", "8",
                env={"KVD_TEST_STEP_DELAY_MS": "10"})
    with d.client() as other:
        alone = other.generate("bystander", n=30, ignore_eos=True).ids
        n_busy = 2 if phase == "queued" else 0
        busy = [other.submit("x", n=300, ignore_eos=True) for _ in range(n_busy)]
        if busy:
            d.until(lambda: d.status()["n_running"] == 2, "both run")
        gone = d.client()
        gone.submit("word " * 400 if phase == "prefill" else "x", n=100000, ignore_eos=True)
        d.until(lambda: any(p["phase"] == phase for p in gone.call(k.PS)["processes"]), phase)
        gone.close()
        rid = other.submit("bystander", n=30, ignore_eos=True)
        got = other.collect(rid, *busy)
        assert got[rid].ids == alone
    d.idle()


def test_each_token_is_shown_at_once(daemons, tiny_model, kvctl):
    """With a slow engine, kvctl has shown a token before the engine has made the next but one."""
    d = daemons("--model", tiny_model, env={"KVD_TEST_STEP_DELAY_MS": "120"})
    p = subprocess.Popen([kvctl.path, "--socket", d.socket, "--json", "generate", "--raw", "-t", "0", "-n", "12",
                          "--ignore-eos", "Hello"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    shown = 0
    with d.client() as c:
        while True:
            data = os.read(p.stdout.fileno(), 65536)
            if not data:
                break
            made = c.call(k.STATUS)["generated_tokens"]
            shown += data.count(b'"type":"token"') + data.count(b'"type": "token"')
            assert made <= shown + 1, "tokens were held back"
    assert p.wait(20 * PATIENCE) == 0
    assert shown == 12
    p.stdout.close()


def test_descriptors_cannot_be_misused(daemon):
    with daemon.client() as c:
        assert not c.ring_fd_writable


def test_loading_waits(daemons, real_model):
    d = daemons("--model", real_model, wait=False)
    d.until(d.socket.exists, "listening")
    with d.client() as c:
        r = c.generate("Hello", n=3)
        assert len(r.ids) >= 1


@pytest.mark.skipif(SANITIZED, reason="sanitizers hold back what was freed")
def test_memory_is_flat(daemons, tiny_model):
    d = daemons("--model", tiny_model, "--kv-memory", "2M")
    with d.client() as c:
        def some(n, start):
            for i in range(n):
                c.generate(f"unique {start + i} " * 20, n=4)
        some(100, 0)    # the cache is full then
        before = d.memory()
        some(200, 1000)
        assert d.memory() - before < 1 << 20
