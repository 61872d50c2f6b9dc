# SPDX-License-Identifier: Apache-2.0
"""The tier of compressed blocks behind the pool: what went there comes back to the bit, whatever happens to it, and
--host-memory is the most that it takes, seen from outside."""
import os
import random

import kvdclient as k
import prefix
import pytest
from conftest import LONG, SANITIZED
from kvtypes import kv_types
from test_faults import KVD_FAULTS, faults  # noqa: F401
from test_memory_flat import slope
from test_prefix_bits import (MAX_LEN, N_RANDOM, SEED, SMALL_POOL, all_types, cached, models, pair,  # noqa: F401
                              hit_again, random_ids, random_requests)

KV_MEMORY = 4 << 20     # 2,048 tokens of the model named "llama"
HOST_MEMORY = 12 << 20
OPTIONS = ("--kv-memory", KV_MEMORY, "--host-memory", HOST_MEMORY, "--block-tokens", 16, "--prefill-quantum", 96)


def options_of(kv_type):
    """A pool of about as many tokens."""
    return ("--kv-memory", SMALL_POOL[kv_type], "--host-memory", HOST_MEMORY, "--block-tokens", prefix.block_of(kv_type, 16),
            "--prefill-quantum", 96)


def shared(d):
    """Resident, of whatever memfds."""
    return next(int(line.split()[1]) << 10 for line in open(f"/proc/{d.proc.pid}/status")
                if line.startswith("RssShmem:"))


def rounds(c, judge, prompts, n_rounds=2):
    """Asks for all of them again and again; what was cached in the last round, of how many tokens that could be."""
    for _ in range(n_rounds):
        got = [cached(c, judge, ids)[0] for ids in prompts]
    return sum(got), sum(prefix.reusable(len(ids), judge.kv_type) for ids in prompts)


@all_types
@pytest.mark.parametrize("arch", prefix.ARCHS if LONG else ["llama", "gemma3"])
def test_random(pair, arch, kv_type):  # noqa: F811
    """Prompts with common beginnings, several at once, in a pool that holds about four of the longest."""
    print(f"KVD_TEST_SEED={SEED}")
    d, judge = pair(arch, *options_of(kv_type), kv_type=kv_type)
    n = N_RANDOM if LONG else N_RANDOM // 3
    with d.client() as c:
        found = random_requests(d, judge, SEED, prefix.N_VOCAB, n, MAX_LEN, c.tokenize)
        # Of few it is chance how many were read to their end; two more follow for certain.
        assert SANITIZED or (judge.n_judged > n // 2 and found > 0)
        hit_again(c, judge, prefix.N_VOCAB)
    d.idle()


@all_types
def test_comes_back(pair, daemons, models, kv_type):  # noqa: F811
    """Twice as much as the pool holds, over and over: without the tier each prompt has gone when it comes again."""
    # Of Q4 a pool of the smallest size has room for 3,640 tokens, of the others for 2,048 or less.
    prompts = [random_ids(i, 500 + 7 * i) for i in range(13 if kv_type == "q4" else 8)]
    options = options_of(kv_type)
    d, judge = pair("llama", *options, kv_type=kv_type)
    with d.client() as c:
        found, of = rounds(c, judge, prompts, 3)
        assert found == of
        status = d.status()
        assert 0 < status["host_bytes_used"] <= status["host_bytes"] == HOST_MEMORY
        assert status["host_restored"] > (16 * 15 if kv_type == "q4" else 16 * 30)
        assert status["host_stored"] >= status["host_restored"]
        # Tails, too, and what goes on from them.
        for ids in prompts:
            longer = ids + random_ids(1000 + len(ids), 30)
            assert cached(c, judge, longer)[0] == prefix.common(len(ids), kv_type)
    d.idle()
    small = daemons("--model", models("llama"), "--kv-type", kv_type, *options[:2], *options[4:],
                    socket=d.socket.with_name("small.sock"))
    with small.client() as c:
        found, of = rounds(c, judge, prompts, 3)
        assert found < of // 2


@kv_types("f16", "q4")
def test_beside_running_sequences(pair, kv_type):  # noqa: F811
    """What comes back in several rounds, while others go on and take blocks themselves."""
    d, judge = pair("llama", *options_of(kv_type), kv_type=kv_type)
    prompts = [random_ids(i, 600) for i in range(6)]
    with d.client() as c:
        rounds(c, judge, prompts, 1)
        for at in range(0, 6, 2):
            rids = [c.submit(ids=random_ids(50 + at, 40), n=300, logprobs=1, ignore_eos=True)]
            rids += [c.submit(ids=ids, n=8, logprobs=1, ignore_eos=True) for ids in prompts[at:at + 2]]
            results = c.collect(*rids)
            for rid, ids in zip(rids, [random_ids(50 + at, 40)] + prompts[at:at + 2]):
                judge.right(ids, results[rid])
    d.idle()


@pytest.mark.skipif(SANITIZED, reason="sanitizers hold back what was freed")
def test_budget(pair):  # noqa: F811
    """Prompts that nobody sends again: each tier fills up and stays so, and nothing else grows."""
    d, _ = pair("llama", *OPTIONS)
    rng, points = random.Random(2), []
    before = shared(d)
    with d.client() as c:
        for i in range(4000 if LONG else 1100):
            r = prefix.ask(c, [rng.randrange(3, prefix.N_VOCAB) for _ in range(rng.randrange(20, 300))], 2)
            assert not r.error
            if i % 20 == 0:
                assert d.allocated("kvd-host") <= HOST_MEMORY
                assert d.allocated("kvd-kv") <= KV_MEMORY
                # The client's ring and arena are shared memory, too.
                assert shared(d) <= before + KV_MEMORY + HOST_MEMORY + (4 << 20)
            if i >= 800 and i % 10 == 0:
                points.append((i, d.memory()))
    assert d.allocated("kvd-host") > HOST_MEMORY * 7 // 10
    per_prompt = slope(points)
    print(f"\n{per_prompt:.1f} bytes per prompt; host tier {d.allocated('kvd-host') >> 10} KiB")
    assert per_prompt < 128, points
    d.idle()


@kv_types("q8")
def test_damaged(pair, kv_type):  # noqa: F811
    """Bytes that are not what they were are a miss, and everything goes on."""
    d, judge = pair("llama", *options_of(kv_type), kv_type=kv_type)
    prompts = [random_ids(i, 500) for i in range(12 if kv_type == "q4" else 8)]
    rng = random.Random(3)
    with d.client() as c:
        found, of = rounds(c, judge, prompts)
        assert found == of
        for everything in (False, True):
            for path in d.memfds("kvd-host"):
                with open(path, "r+b", buffering=0) as f:
                    for at in range(0, os.stat(path).st_blocks * 512, 4096):
                        if everything or rng.random() < 0.05:
                            f.seek(at + rng.randrange(4096))
                            f.write(bytes([rng.randrange(256)]))
            found, of = rounds(c, judge, prompts, 1)
            assert found < of
            found, of = rounds(c, judge, prompts, 2)
            assert found == of
    d.idle()


def test_two_models(daemons, several):
    """They share the tier; one that goes takes its blocks along."""
    first, second = list(several.values())[:2]
    d = daemons("--model", first, "--model", second, "--kv-memory", "4M", "--host-memory", "8M")
    rng = random.Random(4)
    prompts = [[rng.randrange(3, 250) for _ in range(400)] for _ in range(20)]
    with d.client() as c:
        answers = {}
        for _ in range(3):
            for i, ids in enumerate(prompts):
                for model in (first.stem, second.stem):
                    r = c.generate(ids=ids, n=4, logprobs=1, ignore_eos=True, model=model)
                    assert not r.error, r.error
                    got = (r.ids, prefix.bits(r.logprobs))
                    assert answers.setdefault((i, model), got) == got
        assert d.allocated("kvd-host") > 0
        c.call(k.UNLOAD, {"model": second.stem})
        d.until(lambda: second.stem not in d.models(), "unloaded")
        for i, ids in enumerate(prompts):
            r = c.generate(ids=ids, n=4, logprobs=1, ignore_eos=True, model=first.stem)
            assert (r.ids, prefix.bits(r.logprobs)) == answers[i, first.stem]
    d.idle()


@pytest.mark.skipif(not KVD_FAULTS.exists(), reason="kvd-faults is not built")
def test_out_of_memory(pair, faults):  # noqa: F811
    """Allocations fail here and there: requests may be refused, answers are right."""
    d, judge = pair("llama", *OPTIONS, env=faults.environment(), program=KVD_FAULTS)
    prompts = [random_ids(i, 300 + 11 * i) for i in range(10)]
    refused = answered = 0
    with d.client() as c:
        found, of = rounds(c, judge, prompts)
        assert found == of
        for seed in range(1, 60 if LONG else 12):
            faults.at_random(seed, alloc=random.Random(seed).choice((50, 200, 600)))
            for ids in prompts:
                try:
                    r = prefix.ask(c, ids)
                except k.Refused:
                    refused += 1
                    continue
                refused += bool(r.error)
                answered += not r.error
                if not r.error:
                    judge.right(ids, r)
            faults.disarm()
        print(f"{faults.injected()} faults, {answered} answers, {refused} refused")
        found, of = rounds(c, judge, prompts, 3)
        assert found == of
    assert answered and faults.injected() > 10
    d.idle()


def test_off(daemons, tiny_model):
    for options in ((), ("--host-memory", "off"), ("--host-memory", "64M", "--no-cache")):
        d = daemons("--model", tiny_model, "--kv-memory", "8M", *options)
        assert not d.memfds("kvd-host") and "host_bytes" not in d.status()
        d.stop()
