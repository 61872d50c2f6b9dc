# SPDX-License-Identifier: Apache-2.0
"""The cached answer is the answer: text and log-probabilities are those of the request alone, to the bit.

prefix.Judge says how that is known.  KVD_TEST_SEED=N repeats what a failure printed.
"""
import os
import random
import threading

import kvdclient as k
import make_tiny_gguf as tiny
import prefix
import pytest
from conftest import LONG, PATIENCE

SEED = int(os.environ.get("KVD_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
MAX_LEN = 700
# Prompts of each architecture.
N_RANDOM = 400 if LONG else 48
BLOCKS = (16, 32, 64)
# In `make check` each architecture has one size of blocks, each size some.
RANDOM = [(arch, b) for i, arch in enumerate(prefix.ARCHS) for j, b in enumerate(BLOCKS) if LONG or j == i % 3]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("prefix"), {}

    def make(name, **more):
        key = repr((name, sorted(more.items())))
        if key not in made:
            made[key] = folder / f"{len(made)}.gguf"
            tiny.build(**{**prefix.ARCHS[name], **more}).write(made[key])
        return made[key]
    return make


@pytest.fixture
def pair(daemons, models, tmp_path):
    """start(name, *options): a daemon with a cache, and the judge of its answers."""
    judges = []

    def start(model, *options):
        path = models(model) if model in prefix.ARCHS else model
        judge = daemons("--model", path, "--no-cache", "--kv-memory", "512M", socket=tmp_path / "judge.sock")
        judges.append(prefix.Judge(judge))
        return daemons("--model", path, *options), judges[-1]
    yield start
    for j in judges:
        j.close()


def requests(rng, prompts, n):
    """A plan for workers: n requests and how they are read, then None for ever."""
    lock, left = threading.Lock(), [n]

    def next_one():
        with lock:
            if not left[0]:
                return None
            left[0] -= 1
            ids = prompts.next()
            fields = {"ids": ids, "n": rng.choice([1, 2, 5, 8, 17, 40]), "logprobs": 1, "ignore_eos": True}
            if rng.random() < 0.2:
                fields["prompt_logprobs"] = rng.choice([0, len(ids) // 2, max(0, len(ids) - 2)])
            elif rng.random() < 0.2:
                fields.update(temperature=0.9, seed=rng.getrandbits(32), n=6)
            how = rng.choice(["read"] * 6 + ["slow", "cancel", "leave"])
            if how == "slow":
                fields.update(logprobs=32, n=90)
            return fields, how
    return next_one


def run_all(workers):
    threads = [threading.Thread(target=w.run) for w in workers]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for w in workers:
        if w.error:
            raise w.error


def random_requests(d, judge, seed, n_vocab, n, max_len, tokenize):
    """Rounds of one to eight clients; what they got goes to the judge, and into later prompts."""
    rng = random.Random(seed)
    prompts = prefix.Prompts(rng, n_vocab, max_len, tokenize)
    cached = 0
    while n > 0:
        n_now = min(n, 16)
        n -= n_now
        plan = requests(rng, prompts, n_now)
        workers = [prefix.Worker(d, rng.random(), plan, PATIENCE) for _ in range(rng.choice([1, 2, 4, 8]))]
        run_all(workers)
        for fields, result in (done for w in workers for done in w.results):
            assert not result.error, result.error
            note = f"{len(fields['ids'])} tokens, {result.usage}"
            cached += result.usage["cached"]
            assert result.usage["cached"] <= prefix.reusable(len(fields["ids"])), note
            if fields.get("temperature"):
                if result.reason != k.CANCELLED:
                    judge.same(fields, result, note)
            else:
                judge.right(fields["ids"], result, note)
            prompts.remember(fields["ids"] + result.ids)
    return cached


@pytest.mark.parametrize("arch,block_tokens", RANDOM)
def test_random(pair, arch, block_tokens):
    """Prompts with common beginnings, in a pool that holds about four of the longest."""
    print(f"KVD_TEST_SEED={SEED}")
    d, judge = pair(arch, "--kv-memory", "4M", "--block-tokens", block_tokens, "--prefill-quantum", "96")
    with d.client() as c:
        cached = random_requests(d, judge, SEED, prefix.N_VOCAB, N_RANDOM, MAX_LEN, c.tokenize)
    assert judge.n_judged > N_RANDOM // 2
    assert cached > 0
    d.idle()
