# SPDX-License-Identifier: Apache-2.0
"""What several sequences have in common is computed once and there once, also while they run.

Tokens that the engine computed are counted by `status` (prompt_tokens), those that a request did not by its usage.
The engine sleeps before each step where something has to happen in the middle of a prefill.
"""
import random
import signal
import threading

import make_tiny_gguf as tiny
import kvdclient as k
import prefix
import pytest
from asker import Asker
from conftest import HERE, LONG, PATIENCE, SANITIZED
from kvtypes import kv_types, paired

N_PREFIX, N_OWN, N_CLIENTS = 3000 if LONG else 700 if SANITIZED else 1400, 5, 8
OPTIONS = ("--kv-memory", "64M", "--ctx", "4096", "--prefill-quantum", "128")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("once") / "model.gguf"
    tiny.build(**{**prefix.ARCHS["llama"], "ctx": 4096}).write(path)
    return path


@pytest.fixture
def block(kv_type):
    return prefix.block_of(kv_type, 16)


@pytest.fixture
def judged(daemons, model, tmp_path, kv_type, block):
    """start(options...): a daemon, and the judge of its answers."""
    judges = []

    def start(*options, **kw):
        of = ("--model", model, "--kv-type", kv_type)
        judge = daemons(*of, "--no-cache", "--ctx", "4096", socket=tmp_path / "judge.sock")
        judges.append(prefix.Judge(judge, kv_type))
        return daemons(*of, *OPTIONS, "--block-tokens", block, *options, **kw), judges[-1]
    yield start
    for j in judges:
        j.close()


def random_ids(seed, n):
    rng = random.Random(seed)
    return [rng.randrange(3, prefix.N_VOCAB) for _ in range(n)]


def prompts(n_clients=N_CLIENTS, n_prefix=N_PREFIX):
    """One beginning, and ends that differ from their first token on."""
    common = random_ids(1, n_prefix)
    return [common + [3 + i] + random_ids(i, N_OWN - 1) for i in range(n_clients)]


def computed(d):
    return d.status()["prompt_tokens"]


def blocks_in_use(c):
    """Asked for, since the statistics page is written now and then, and all may end between two of them."""
    return c.call(k.STATUS)["blocks_used"]


@kv_types("f16", "q8", "q4")
def test_eight_at_once(judged, block):
    d, judge = judged()
    before = computed(d)
    clients, asked = [d.client() for _ in range(N_CLIENTS)], prompts()
    most = [0]
    stop = threading.Event()

    def watch():
        with d.client() as c:
            while not stop.is_set():
                most[0] = max(most[0], blocks_in_use(c))
                stop.wait(0.005)
    watcher = threading.Thread(target=watch)
    watcher.start()
    rids = [c.submit(ids=ids, n=200, ignore_eos=True, logprobs=1) for c, ids in zip(clients, asked)]
    results = [c.collect(rid)[rid] for c, rid in zip(clients, rids)]
    stop.set()
    watcher.join()
    for ids, r in zip(asked, results):
        judge.right(ids, r)
    cached = sorted(r.usage["cached"] for r in results)
    # One computes the prefix, all others have its full blocks.
    assert cached[0] == 0 and cached[1] >= N_PREFIX // block * block, cached
    own = N_OWN + N_PREFIX % block
    assert computed(d) - before == N_PREFIX + N_OWN + sum(N_PREFIX + N_OWN - c for c in cached[1:])
    assert computed(d) - before <= N_PREFIX + N_CLIENTS * own
    # One copy of the prefix, and of each what is its own: its end, 200 tokens, a block not yet full.
    each = (own + 200) // block + 2
    assert 0 < most[0] <= N_PREFIX // block + N_CLIENTS * each, most
    for c in clients:
        c.close()
    d.idle()


@kv_types("f16", "q8", "q4")
def test_identical_at_once(judged, block):
    """The same prompt from all: it is computed once, but for what is under a block."""
    d, judge = judged()
    ids, before = prompts(1)[0], computed(d)
    clients = [d.client() for _ in range(N_CLIENTS)]
    rids = [c.submit(ids=ids, n=8, ignore_eos=True, logprobs=1) for c in clients]
    results = [c.collect(rid)[rid] for c, rid in zip(clients, rids)]
    for r in results:
        judge.right(ids, r)
        assert (r.ids, prefix.bits(r.logprobs)) == (results[0].ids, prefix.bits(results[0].logprobs))
    assert computed(d) - before <= len(ids) + (N_CLIENTS - 1) * block
    for c in clients:
        c.close()


def reader_process(d, ids):
    """A client process that prefills; it may be killed or stopped."""
    a = Asker(HERE / "asker.py", d.socket)
    a.begin("generate", ids=ids, n=400, ignore_eos=True, logprobs=32)
    return a


@paired("how", ("cancelled", "f16"), ("cancelled", "q4"), ("closed", "q8"), ("killed", "q4"))
def test_follower_takes_over(judged, block, how):
    """The one that computes goes in the middle; a follower goes on from where it was."""
    d, judge = judged(env={"KVD_TEST_STEP_DELAY_MS": "20"})
    asked, before = prompts(3), computed(d)
    owner = reader_process(d, asked[0]) if how == "killed" else d.client()
    if how != "killed":
        rid = owner.submit(ids=asked[0], n=400, ignore_eos=True)
    d.until(lambda: computed(d) > before, "the owner prefills")
    followers = [d.client() for _ in range(2)]
    rids = [c.submit(ids=ids, n=8, ignore_eos=True, logprobs=1) for c, ids in zip(followers, asked[1:])]
    d.until(lambda: computed(d) - before > N_PREFIX // 4, "some of it")
    assert computed(d) - before < N_PREFIX
    if how == "cancelled":
        owner.cancel(rid)
    elif how == "closed":
        owner.close()
    else:
        owner.proc.kill()
        owner.proc.wait()
    results = [c.collect(rid, timeout=60 * PATIENCE)[rid] for c, rid in zip(followers, rids)]
    for ids, r in zip(asked[1:], results):
        judge.right(ids, r)
    cached = sorted(r.usage["cached"] for r in results)
    print(cached)
    # What the owner had computed was kept, and of the rest one follower computed all, the other but its own end.
    assert cached[0] >= N_PREFIX // 4 // block * block
    assert cached[1] >= N_PREFIX // block * block
    assert computed(d) - before <= N_PREFIX + 128 + 3 * (N_OWN + block)
    for c in followers:
        c.close()
    if how == "cancelled":
        owner.close()


@kv_types("f16", "q4")
def test_owner_stops_reading(judged):
    """The owner's ring is full in the middle of its prefill: it is parked, and a follower goes on."""
    d, judge = judged()
    asked = prompts(2, 3000)
    with d.client(ring=65536) as owner, d.client() as follower:
        # Records of prompt tokens fill the ring long before the prompt is computed.
        rid = owner.submit(ids=asked[0], n=8, ignore_eos=True, logprobs=1, prompt_logprobs=0)
        d.until(lambda: d.status()["n_parked"] == 1, "parked")
        assert computed(d) < 3000
        r = prefix.ask(follower, asked[1], timeout=20 * PATIENCE)
        judge.right(asked[1], r)
        # All that the owner computed before it was parked.
        assert r.usage["cached"] > 0
        got = owner.collect(rid)[rid]
        judge.right(asked[0], got)
        assert len(got.prompt) == len(asked[0])
    # The owner had to have the logits of all of its prompt; it may have computed some again.
    d.idle()


@kv_types("q8", "q4")
def test_stopped_process_with_followers(judged, block):
    """SIGSTOP to the owner while it decodes: parked, and others take its prefix all the same."""
    d, judge = judged()
    asked = prompts(3)
    owner = reader_process(d, asked[0])
    d.until(lambda: d.status()["generated_tokens"] > 0, "decodes")
    owner.proc.send_signal(signal.SIGSTOP)
    try:
        with d.client() as c:
            for ids in asked[1:]:
                r = prefix.ask(c, ids)
                judge.right(ids, r)
                assert r.usage["cached"] >= N_PREFIX // block * block
    finally:
        owner.proc.send_signal(signal.SIGCONT)
    assert len(owner.end()["ids"]) == 400
    owner.close()
