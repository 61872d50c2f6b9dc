# SPDX-License-Identifier: Apache-2.0
"""A uid can't tell what another has on disk, also after a restart; and has all of its own, in the same test.

What uid 2 sees after the prompt P, which uid 1 has stored, is what it sees after a random Q; test_isolation.py says how.
"""
import os
import random
import statistics

import kvdclient as k
import prefix
import pytest
from conftest import LONG, SANITIZED
from kvtypes import paired
from test_isolation import N_PROMPT, ask, askers, prompt, rank_sum, seen, served

__all__ = ["askers", "served"]  # fixtures
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="takes other uids, so root")
BLOCK = 16
WHOLE = (N_PROMPT - 1) // BLOCK * BLOCK     # the same in blocks of 32


@pytest.fixture
def stored(served, directory):
    """stored(*options): as served(), on the directory's state."""
    def start(*options, disk="256M", kv_type="f16", **kw):
        return served("--state-dir", directory / "state", "--disk", disk, "--kv-type", kv_type, "--block-tokens",
                      prefix.block_of(kv_type, BLOCK), "--prefill-quantum", "64", *options, **kw)
    return start


@paired("end,order", *(((end, order), kv_type) for end, order, kv_type in (
    ("stop", 0, "f16"), ("stop", 1, "q8"), ("kill", 0, "q4"), ("kill", 1, "f16"))))
def test_restart(stored, end, order, kv_type):
    d, one, two = stored("--kv-memory", "16M", kv_type=kv_type)
    rng = random.Random(1)
    p, q, own = prompt(rng), prompt(rng), prompt(rng)
    first = ask(one, p)
    # So that something of its own is on disk.
    ask(two, own)
    # All full blocks of what was computed, without tokens that are open.
    n_blocks = 2 * ((N_PROMPT + 3) // prefix.block_of(kv_type, BLOCK))
    d.until(lambda: d.status().get("disk_written", 0) == n_blocks, "all is stored")
    getattr(d, end)()
    d, one, two = stored("--kv-memory", "16M", kv_type=kv_type)
    assert ask(two, own)["usage"]["cached"] == WHOLE
    got = [seen(two, ids, kv_type == "q4") for ids in ((p, q) if order else (q, p))]
    assert got[0] == got[1]
    assert got[0]["usage"]["cached"] == 0 and got[0]["usage"]["miss"] == k.MISS_DIFFERS
    again = ask(one, p)
    assert again["usage"]["cached"] == WHOLE
    assert (again["ids"], again["logprobs"]) == (first["ids"], first["logprobs"])
    # What uid 2 filled in is its own, after the next one as well.
    d.stop()
    d, one, two = stored("--kv-memory", "16M", kv_type=kv_type)
    assert ask(two, p)["usage"]["cached"] == WHOLE


def test_read_back(stored):
    """A pool that has gone to disk: uid 1 reads there what uid 2 does not find."""
    for order in range(2):
        d, one, two = stored("--kv-memory", "2M")
        rng = random.Random(2 + order)
        p, q = prompt(rng, 700), prompt(rng, 700)
        ask(one, p)
        for _ in range(4):
            ask(one, prompt(rng, 700))
        ask(two, prompt(rng, 20))
        got = [seen(two, ids) for ids in ((p, q) if order else (q, p))]
        assert got[0] == got[1] and got[0]["usage"]["cached"] == 0
        assert ask(one, p)["usage"]["cached"] == 699 // BLOCK * BLOCK
        d.stop()


def test_names_are_not_prefixes(stored):
    """A key's blocks are the key's, on disk, too."""
    p = prompt(random.Random(3), 200)
    d, one, _ = stored("--kv-memory", "16M")

    def ask_with(asker, **fields):
        return asker("generate", ids=p, n=1, ignore_eos=True, logprobs=1, **fields)["usage"]["cached"]
    assert ask_with(one, cache_key="a") == 0
    d.stop()
    d, one, two = stored("--kv-memory", "16M")
    for asker, fields, cached in ((one, {}, 0), (one, {"cache_key": "ab"}, 0), (one, {"cache_key": "b"}, 0),
                                  (two, {"cache_key": "a"}, 0), (one, {"namespace": "none"}, 0),
                                  (one, {"cache_key": "a"}, 192)):
        assert ask_with(asker, **fields) == cached, fields


@pytest.mark.skipif(not LONG or SANITIZED, reason="measures time")
def test_first_token_times(stored):
    """From disk: no difference for uid 2 between P and random Q, and a plain one for uid 1."""
    d, one, two = stored("--kv-memory", "4M")
    rng = random.Random(5)
    known, random_ones, own = [], [], []
    for turn in range(100):
        p, q = prompt(rng), prompt(rng)
        ask(one, p, 1)
        for _ in range(4):
            ask(one, prompt(rng), 1)        # what was in the pool goes
        for ids in ((p, q) if turn % 2 else (q, p)):
            (known if ids is p else random_ones).append(ask(two, ids, 1)["first_ns"])
        own.append(ask(one, p, 1)["first_ns"])
    z, z_own = rank_sum(known, random_ones), rank_sum(own, random_ones)
    print(f"\n{z:.3f} standard deviations for uid 2, {z_own:.3f} for uid 1; medians in ms",
          *(statistics.median(times) / 1e6 for times in (known, random_ones, own)))
    assert abs(z) < 4
    assert z_own > 5
