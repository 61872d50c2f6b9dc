# SPDX-License-Identifier: Apache-2.0
"""A uid can't tell what another has in the cache, and has all of its own.

What uid 2 sees after it sends the prompt P, which uid 1 has sent, is what it sees after a random Q: the tokens that
were cached, why the others were not, the steps that it took (progress), and every counter.
"""
import os
import random
import shutil
import statistics

import kvdclient as k
import prefix
import pytest
from asker import Asker
from conftest import HERE, LONG, SANITIZED, make_tiny
from kvtypes import kv_types, paired

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="takes other uids, so root")
UIDS = (20011, 20012)
N_PROMPT = 1000
HOST = ("--host-memory", "8M")


@pytest.fixture
def askers(directory):
    for f in ("asker.py", "kvdclient.py"):
        shutil.copy(HERE / f, directory)
    made = []

    def start(socket, uid):
        made.append(Asker(directory / "asker.py", socket, uid))
        return made[-1]
    yield start
    for a in made:
        a.close()


@pytest.fixture
def served(daemons, directory, askers):
    """A daemon, and an asker of either uid."""
    path = make_tiny(directory / "model.gguf", "--layers", "4", "--ctx", "2048")

    def start(*options, model=path):
        d = daemons("--model", model, "--socket-mode", "0666", *options)
        return (d, *(askers(d.socket, uid) for uid in UIDS))
    return start


def prompt(rng, n=N_PROMPT, n_vocab=512):
    return [rng.randrange(3, n_vocab) for _ in range(n)]


def ask(asker, ids, n=4):
    r = asker("generate", ids=ids, n=n, ignore_eos=True, logprobs=1, progress=True)
    assert not r["error"], r
    return r


def seen(asker, ids, whole_blocks=False):
    """All but times and the answer itself."""
    before, page_before = asker("status"), asker("page")
    r = ask(asker, ids)
    after, page_after = asker("status"), asker("page")
    missed, n_same = r["usage"]["cached"], prefix.Q4_BLOCK if whole_blocks else 1
    assert r["usage"]["miss_token"] in ids[missed:missed + n_same]
    usage = {key: v for key, v in r["usage"].items()
             if not key.endswith("_ns") and key not in ("miss_token", "miss_bytes", "n_bytes")}
    # The page is written some times a second: only what does not depend on when is looked at.
    return {"usage": usage, "progress": r["progress"],
            "status": {key: after[key] - v if isinstance(v, int) else v for key, v in before.items()
                       if not key.endswith("_ns") and key not in ("id", "kv_bytes_used")},
            "page": len(page_after) - len(page_before)}


@kv_types("f16", "q4")
def test_own_hits_others_do_not(served, kv_type):
    d, one, two = served("--kv-memory", "16M", "--prefill-quantum", "64", "--kv-type", kv_type)
    rng = random.Random(1)
    p, q = prompt(rng), prompt(rng)
    # So that something of its own is there both times.
    ask(two, prompt(rng))
    first = ask(one, p)
    assert first["usage"]["cached"] == 0
    ours, theirs = seen(two, p, kv_type == "q4"), seen(two, q, kv_type == "q4")
    assert ours == theirs
    assert ours["usage"]["cached"] == 0 and ours["usage"]["miss"] == k.MISS_DIFFERS
    assert len(ours["progress"]) >= N_PROMPT // 64
    # What uid 2 filled in is its own ...
    assert ask(two, p)["usage"]["cached"] == prefix.reusable(N_PROMPT, kv_type)
    # ... and uid 1 has its own.
    again = ask(one, p)
    assert again["usage"]["cached"] == prefix.reusable(N_PROMPT, kv_type)
    assert (again["ids"], again["logprobs"]) == (first["ids"], first["logprobs"])


def test_running_prefix_is_not_joined(served):
    """Uid 1 is in the middle of P: uid 2 does not wait for it, and computes all of it."""
    d, one, two = served("--kv-memory", "16M", "--prefill-quantum", "64")
    rng = random.Random(2)
    for i in range(5):
        p = prompt(rng)
        one.begin("generate", ids=p, n=100, ignore_eos=True)
        r = ask(two, p)
        assert r["usage"]["cached"] == 0 and r["usage"]["miss"] == (k.MISS_DIFFERS if i else k.MISS_EMPTY)
        mine = one.end()
        assert mine["usage"]["cached"] == 0
    assert d.status()["prompt_tokens"] == 10 * N_PROMPT


@paired("order,host", *(((order, host), kv_type) for order, host, kv_type in (
    (0, (), "f16"), (1, (), "q4"), (0, HOST, "q8"), (1, HOST, "f16"))))
def test_pressure_tells_nothing(served, order, host, kv_type):
    """In a pool that is full of uid 1's blocks, P and Q are alike, too, whichever comes first."""
    d, one, two = served("--kv-memory", "2M", "--prefill-quantum", "64", "--kv-type", kv_type, *host)
    rng = random.Random(3)
    p, q = prompt(rng, 700), prompt(rng, 700)
    for _ in range({"f16": 12, "q8": 18, "q4": 30}[kv_type]):
        ask(one, prompt(rng, 700))
    assert d.status()["cache_evicted"] > 0 or d.status()["host_stored"] > 0
    ask(one, p)
    # So that something of its own is there both times: a block.
    ask(two, prompt(rng, 40))
    got = [seen(two, ids, kv_type == "q4") for ids in ((p, q) if order else (q, p))]
    assert got[0] == got[1]


def test_figures_of_a_user_are_its_own(served):
    """What uid 1 does changes nothing that uid 2 can see."""
    d, one, two = served("--kv-memory", "16M")
    rng = random.Random(4)
    ask(two, prompt(rng, 100))

    def figures():
        status = two("status")
        return {key: v for key, v in status.items() if not key.endswith("_ns") and key != "id"}
    d.until(lambda: 100 in two("page") and 1 not in two("page")[2:5], "the page says so")
    before, before_page = figures(), two("page")
    for _ in range(3):
        ask(one, prompt(rng, 300))
    assert figures() == before
    # Longer than the page's interval.
    d.until(lambda: d.status()["requests_done"] == 4, "done")
    assert two("page") == before_page


def rank_sum(a, b):
    """Mann-Whitney: how many standard deviations the ranks of a are from those of b."""
    u = sum((x < y) + 0.5 * (x == y) for x in a for y in b)
    n, m = len(a), len(b)
    return (u - n * m / 2) / (n * m * (n + m + 1) / 12) ** 0.5


@pytest.mark.skipif(not LONG or SANITIZED, reason="measures time")
@pytest.mark.parametrize("which", ["tiny", "real"])
def test_first_token_times(served, which, request):
    """First-token times of P, sent before by uid 1, and of random Q: no difference for uid 2, and a plain one for uid 1."""
    real = which == "real"
    model = {"model": request.getfixturevalue("real_model")} if real else {}
    d, one, two = served("--kv-memory", "512M", **model)
    rng, n_vocab, turns = random.Random(5), 40000 if real else 512, 30 if real else 200
    known, random_ones, own = [], [], []
    for turn in range(turns):
        p, q = prompt(rng, n_vocab=n_vocab), prompt(rng, n_vocab=n_vocab)
        ask(one, p, 1)
        for ids in ((p, q) if turn % 2 else (q, p)):
            (known if ids is p else random_ones).append(ask(two, ids, 1)["first_ns"])
        own.append(ask(one, p, 1)["first_ns"])
    z, z_own = rank_sum(known, random_ones), rank_sum(own, random_ones)
    print(f"\n{z:.3f} standard deviations for uid 2, {z_own:.3f} for uid 1; medians in ms",
          *(statistics.median(times) / 1e6 for times in (known, random_ones, own)))
    assert abs(z) < 4
    assert z_own > 5
