# SPDX-License-Identifier: Apache-2.0
"""Work that nobody waits for any more stops, and what one client does costs the others nothing.

Where a count of steps matters, the engine sleeps before each step, so that a few of them are a known time, and
counters tell what was computed.
"""
import os
import signal
import subprocess

import kvdclient as k
import pytest
from conftest import LONG, PATIENCE, SANITIZED, make_tiny
from kvtypes import kv_types

STEP_MS = 40


@pytest.fixture
def slow(daemons, tiny_model):
    return daemons("--model", tiny_model, "--max-seqs", "2", "--prefill-quantum", "16", "--kv-memory", "64M",
                   env={"KVD_TEST_STEP_DELAY_MS": str(STEP_MS)})


def phases(c):
    return sorted(p["phase"] for p in c.call(k.PS)["processes"])


def settled(d, *counters):
    """The counters after ten more steps, without what these steps were made for: what still runs takes part in them."""
    own = {"prompt_tokens": 1, "generated_tokens": 10}
    with d.client(name="settled") as c:
        r = c.generate(ids=[5], n=10, ignore_eos=True)
        assert len(r.ids) == 10 and r.usage["cached"] == 0
    s = d.status()
    return [s[name] - own[name] for name in counters]


@pytest.mark.parametrize("how", ["close", "kill", "cancel"])
def test_decode_stops_within_a_step(slow, kvctl, how):
    with slow.client() as watch:
        if how == "kill":
            p = subprocess.Popen([kvctl.path, "--socket", slow.socket, "generate", "--raw", "-n", "100000", "--ignore-eos", "x"],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        else:
            gone = slow.client()
            rid = gone.submit("x", n=100000, ignore_eos=True)
        slow.until(lambda: phases(watch) == ["decode"], "decodes")
        if how == "kill":
            p.kill()
            p.wait()
            p.stdout.close()
        elif how == "cancel":
            gone.cancel(rid)
        else:
            gone.close()
        # The request leaves the list with the step in which it ended, and nothing is computed after that.
        slow.until(lambda: not phases(watch), "gone")
        made = watch.call(k.STATUS)["generated_tokens"]
        assert settled(slow, "generated_tokens") == [made]
        if how == "cancel":
            r = gone.collect(rid)[rid]
            assert r.reason == k.CANCELLED and r.usage["generated"] == len(r.ids)
            gone.close()
        assert watch.call(k.STATUS)["requests_cancelled"] == 1
    slow.idle()


def test_prefill_stops_within_a_step(slow):
    """1,600 tokens are a hundred steps; one that is left after some of them computes no more."""
    with slow.client() as watch:
        gone = slow.client()
        gone.submit("word " * 400, n=5, progress=True)
        slow.until(lambda: phases(watch) == ["prefill"] and watch.call(k.STATUS)["prompt_tokens"] > 0, "prefills")
        gone.close()
        slow.until(lambda: not phases(watch), "gone")
        done = settled(slow, "prompt_tokens", "generated_tokens")
        # So many steps had passed by then, not all.
        assert 0 < done[0] < 16 * 60 and done[1] == 0, done
    slow.idle()


def test_queued_ones_never_run(slow):
    with slow.client() as busy, slow.client() as watch:
        first = [busy.submit(p, n=60, ignore_eos=True) for p in ("one", "two")]
        slow.until(lambda: len(phases(watch)) == 2, "two run")
        gone = [slow.client() for _ in range(5)]
        for c in gone:
            for _ in range(4):
                c.submit("never " * 50, n=1000, ignore_eos=True)
        slow.until(lambda: phases(watch).count("queued") == 20, "twenty wait")
        for c in gone:
            c.close()
        slow.until(lambda: phases(watch).count("queued") == 0, "none wait")
        got = busy.collect(*first)
        assert all(len(r.ids) == 60 for r in got.values())
        s = watch.call(k.STATUS)
        # What was computed is what the two asked for.
        assert s["generated_tokens"] == 120 and s["requests_cancelled"] == 20
        assert s["prompt_tokens"] == sum(r.usage["prompt"] for r in got.values())
    slow.idle()


@kv_types("f16", "q8", "q4")
def test_cancel_of_many_leaves_one_alone(daemons, tiny_model, kv_type):
    """Clients come and go in every phase; the one that stays gets what it gets alone."""
    d = daemons("--model", tiny_model, "--kv-memory", "8M", "--max-seqs", "4", "--prefill-quantum", "32", "--kv-type", kv_type)
    with d.client() as c:
        want = c.generate("stay", n=400, ignore_eos=True, logprobs=1)
        rid = c.submit("stay", n=400, ignore_eos=True, logprobs=1)
        for i in range(60):
            gone = d.client()
            rids = [gone.submit("word " * (7 * i % 200 + 1), n=500, ignore_eos=True) for _ in range(3)]
            if i % 3 == 0:
                gone.cancel(rids[1])
            if i % 4 == 0:
                gone.next_record(5 * PATIENCE)
            gone.close()
        got = c.collect(rid)[rid]
        assert (got.ids, got.logprobs) == (want.ids, want.logprobs)
    d.idle()


def test_stopped_reader_costs_nothing(daemons, tiny_model, kvctl):
    """SIGSTOP: parked once its ring is full, memory bounded, others unharmed; SIGCONT: the whole answer."""
    d = daemons("--model", tiny_model, "--kv-memory", "16M", "--ctx", "2048")
    args = [kvctl.path, "--socket", d.socket, "--json", "generate", "--raw", "-t", "0", "-n", "2000", "--logprobs", "32",
            "--ignore-eos", "Hello"]
    alone = subprocess.run(args, stdin=subprocess.DEVNULL, capture_output=True, timeout=60 * PATIENCE, check=True).stdout
    text = [line for line in alone.splitlines() if b'"text"' in line or b'"token"' in line]
    with d.client() as other:
        want = other.generate("bystander", n=50, ignore_eos=True).ids
        memory = d.memory()
        p = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        head = os.read(p.stdout.fileno(), 100)
        p.send_signal(signal.SIGSTOP)
        try:
            d.until(lambda: d.status()["n_parked"] == 1, "parked")
            for _ in range(5):
                assert other.generate("bystander", n=50, ignore_eos=True).ids == want
            assert SANITIZED or d.memory() - memory < 8 << 20
            assert d.status()["n_parked"] == 1
        finally:
            p.send_signal(signal.SIGCONT)
        rest = p.communicate(timeout=60 * PATIENCE)[0]
    got = [line for line in (head + rest).splitlines() if b'"text"' in line or b'"token"' in line]
    assert p.returncode == 0
    # All but the times of the last line.
    assert got[:-1] == text[:-1]


@pytest.mark.skipif(SANITIZED, reason="sanitizers hold back what was freed")
def test_memory_over_500_prompts(daemons, tiny_model):
    """A client for each, each prompt another: the least-squares slope of the daemon's memory is nothing."""
    d = daemons("--model", tiny_model, "--kv-memory", "8M")

    def one(i):
        with d.client() as c:
            if i % 2:
                c.generate(f"unique {i} " * (i % 37 + 1), n=3, logprobs=2, stop=[f"never {i}"])
            else:
                c.generate(messages=[("system", f"number {i}"), ("user", "x" * (i % 300))], n=3)
    for i in range(1000):       # until allocators have what they keep
        one(i)
    points = []
    for i in range(2000 if LONG else 500):
        one(1000 + i)
        if i % 25 == 24:
            points.append((i, d.memory()))
    n, sx, sy = len(points), sum(x for x, _ in points), sum(y for _, y in points)
    slope = (n * sum(x * y for x, y in points) - sx * sy) / (n * sum(x * x for x, _ in points) - sx * sx)
    print(f"\n{slope:.0f} bytes per prompt, {points[0][1] >> 10} to {points[-1][1] >> 10} KiB")
    assert slope < 256, f"{slope:.0f} bytes per prompt, {points}"


def test_context_exceeded_concerns_one(daemons, tiny_model):
    """One that reaches the end of its context, and one whose prompt is too long, beside others that go on."""
    d = daemons("--model", tiny_model, "--ctx", "256", "--max-seqs", "8", "--kv-memory", "32M")
    prompts = ["a", "bb", "ccc " * 10]
    with d.client() as c:
        want = [c.generate(p, n=150, ignore_eos=True).ids for p in prompts]
        rids = [c.submit(p, n=150, ignore_eos=True) for p in prompts]
        ends = [c.submit("word " * 40, n=100000, ignore_eos=True) for _ in range(3)]
        with d.client() as other:
            for _ in range(5):
                rid = other.submit("word " * 2000, n=5)
                with pytest.raises(k.Refused) as e:
                    other.collect(rid)
                assert e.value.code == 7
        got = c.collect(*rids, *ends)
        assert [got[r].ids for r in rids] == want
        for r in ends:
            assert got[r].reason == k.LENGTH and 255 <= got[r].usage["prompt"] + got[r].usage["generated"] <= 257
    d.idle()


def test_long_prefill_does_not_stall_streams(daemons, tmp_path):
    """Every step that takes a piece of the long prompt also gives each stream its token."""
    path = make_tiny(tmp_path / "long.gguf", "--ctx", "4096")
    d = daemons("--model", path, "--prefill-quantum", "64", "--kv-memory", "64M")
    with d.client() as c:
        # They outlast the prompt, also where measured times allow only a few tokens of it in each step.
        streams = [c.submit(p, n=4000, ignore_eos=True) for p in ("first", "second")]
        seen = {r: 0 for r in streams}
        while min(seen.values()) < 3:
            kind, rid, _ = c.next_record(20 * PATIENCE)
            seen[rid] += kind == k.TOKEN
        long = c.submit("word " * 900, n=2, ignore_eos=True, progress=True)
        # All are in one ring: the order of records is that of the steps.
        pieces, gaps, since = 0, [], {r: 0 for r in streams}
        while True:
            kind, rid, payload = c.next_record(60 * PATIENCE)
            if rid == long and kind == k.PROGRESS:
                gaps.append(min(since.values()))
                since = {r: 0 for r in streams}
                pieces += 1
            elif rid == long and kind == k.TOKEN:
                break
            elif kind == k.TOKEN:
                since[rid] += 1
        assert pieces >= 900 // 64
        # One step's order may put the progress before or after the tokens.
        assert all(a + b >= 1 for a, b in zip(gaps[1:], gaps[2:])), gaps
        assert sum(gaps[1:]) >= pieces - 2, gaps
        for r in (*streams, long):
            c.cancel(r)
        d.until(lambda: c.call(k.STATUS)["n_running"] == 0, "ended")
