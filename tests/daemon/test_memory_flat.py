# SPDX-License-Identifier: Apache-2.0
"""A cache that is full takes no more memory, whatever comes: --kv-memory is the most, seen from outside.

Of the daemon's own memory (RssAnon and VmSwap) the least-squares slope over the prompts is nothing.
"""
import random

import prefix
import pytest
from conftest import LONG, SANITIZED, make_tiny

N_PROMPTS = 3000 if LONG else 500
KV_MEMORY = 4 << 20


def resident(d, name):
    """Of what is mapped of it."""
    inside, kb = False, 0
    for line in open(f"/proc/{d.proc.pid}/smaps"):
        words = line.split()
        if "-" in words[0] and ":" not in words[0]:
            inside = "/memfd:" + name in line
        elif inside and words[0] == "Rss:":
            kb += int(words[1])
    return kb << 10


def slope(points):
    n, sx, sy = len(points), sum(x for x, _ in points), sum(y for _, y in points)
    return (n * sum(x * y for x, y in points) - sx * sy) / (n * sum(x * x for x, _ in points) - sx * sx)


@pytest.mark.skipif(SANITIZED, reason="sanitizers hold back what was freed")
@pytest.mark.parametrize("host_memory", [0, 8 << 20])
def test_unique_prompts(daemons, tmp_path, host_memory):
    path = make_tiny(tmp_path / "model.gguf", "--layers", "8", "--kv-heads", "4", "--vocab", "272")
    options = ("--host-memory", host_memory) if host_memory else ()
    d = daemons("--model", path, "--kv-memory", KV_MEMORY, "--max-seqs", "4", *options)
    rng, points, most, most_host = random.Random(1), [], 0, 0

    def one(c, i):
        ids = [rng.randrange(3, 272) for _ in range(rng.randrange(20, 200))]
        r = prefix.ask(c, ids, 4, stop=[f"never {i}"])
        assert not r.error
    with d.client() as c:
        for i in range(1000):   # until all is full several times over and allocators have what they keep
            one(c, i)
        for i in range(N_PROMPTS):
            one(c, i)
            if i % 20 == 0:
                most, most_host = max(most, resident(d, "kvd-kv")), max(most_host, resident(d, "kvd-host"))
                points.append((i, d.memory()))
    per_prompt = slope(points)
    print(f"\n{per_prompt:.1f} bytes per prompt, {points[0][1] >> 10} to {points[-1][1] >> 10} KiB; KV {most >> 10} KiB, "
          f"host {most_host >> 10} KiB")
    assert per_prompt < 128, f"{per_prompt:.1f} bytes per prompt: {points}"
    # Full, and never more.
    assert KV_MEMORY // 2 < most <= KV_MEMORY
    assert KV_MEMORY // 2 < d.allocated("kvd-kv") <= KV_MEMORY
    assert host_memory // 2 <= most_host <= host_memory
    assert d.allocated("kvd-host") <= host_memory
