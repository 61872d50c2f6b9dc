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
from conftest import LONG, PATIENCE, SANITIZED

SEED = int(os.environ.get("KVD_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
MAX_LEN = 700
# Prompts of each architecture.
N_RANDOM = 400 if LONG else 12 if SANITIZED else 48
BLOCKS = (16, 32, 64)
# In `make check` each architecture has one size of blocks, each size some, and each type a third of the prompts.
RANDOM = [(arch, b, kv_type) for i, arch in enumerate(prefix.ARCHS) for kv_type in prefix.KV_TYPES
          for j, b in enumerate((prefix.Q4_BLOCK,) if kv_type == "q4" else BLOCKS)
          if LONG or kv_type == "q4" or j == i % 3]
# Of about as many tokens.
SMALL_POOL = {"f16": "4M", "q8": "2M", "q4": "2M"}
# Half of them have a host tier behind the pool.
HOST = ("--host-memory", "8M")


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

    def start(model, *options, kv_type="f16", **kw):
        path = models(model) if model in prefix.ARCHS else model
        judge = daemons("--model", path, "--no-cache", "--kv-memory", "512M", "--threads", 1, "--kv-type", kv_type,
                        socket=tmp_path / "judge.sock")
        judges.append(prefix.Judge(judge, kv_type))
        return daemons("--model", path, "--kv-type", kv_type, *options, **kw), judges[-1]
    yield start
    for j in judges:
        j.close()


def requests(rng, prompts, n, longest, more):
    """A plan for workers: n requests and how they are read, then None for ever.  longest: of most answers."""
    lock, left = threading.Lock(), [n]

    def next_one():
        with lock:
            if not left[0]:
                return None
            left[0] -= 1
            ids = prompts.next()
            fields = {"ids": ids, "n": min(longest, rng.choice([1, 2, 5, 8, 17, 40])), "logprobs": 1,
                      "ignore_eos": True, **more}
            if rng.random() < 0.2:
                fields["prompt_logprobs"] = rng.choice([0, len(ids) // 2, max(0, len(ids) - 2)])
            elif rng.random() < 0.2:
                fields.update(temperature=0.9, seed=rng.getrandbits(32), n=6)
            how = rng.choice(["read"] * 6 + ["slow", "cancel", "leave"])
            if how == "slow":
                fields.update(logprobs=32, n=2 * longest + 10)
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


def random_requests(d, judge, seed, n_vocab, n, max_len, tokenize, longest=40, between=None, **more):
    """
    Rounds of one to eight clients; what they got goes to the judge, and into later prompts.  between: gets the results
    of a round, and returns the daemon to go on with.  more: fields of all requests.
    """
    rng = random.Random(seed)
    prompts = prefix.Prompts(rng, n_vocab, max_len, tokenize)
    cached, results = 0, None
    while n > 0:
        if between and results is not None:
            d = between(results)
        n_now = min(n, 16)
        n -= n_now
        plan = requests(rng, prompts, n_now, longest, more)
        workers = [prefix.Worker(d, rng.random(), plan, PATIENCE) for _ in range(rng.choice([1, 2, 4, 8]))]
        run_all(workers)
        results = [done for w in workers for done in w.results]
        for fields, result in results:
            assert not result.error, result.error
            note = f"{len(fields['ids'])} tokens, {result.usage}"
            cached += result.usage["cached"]
            assert result.usage["cached"] <= prefix.reusable(len(fields["ids"]), judge.kv_type), note
            if fields.get("temperature"):
                if result.reason != k.CANCELLED:
                    judge.same(fields, result, note)
            else:
                judge.right(fields["ids"], result, note)
            prompts.remember(fields["ids"] + result.ids)
    return cached


def hit_again(c, judge, n_vocab):
    """Whatever the random ones had in common: after them a prompt that is asked twice is found."""
    ids = random_ids(SEED, 100, n_vocab)
    cached(c, judge, ids)
    assert cached(c, judge, ids)[0] == prefix.reusable(len(ids), judge.kv_type)


@pytest.mark.parametrize("arch,block_tokens,kv_type", RANDOM)
def test_random(pair, arch, block_tokens, kv_type):
    """Prompts with common beginnings, in a pool that holds about four of the longest (of Q4: seven)."""
    print(f"KVD_TEST_SEED={SEED}")
    host = HOST if RANDOM.index((arch, block_tokens, kv_type)) % 2 else ()
    d, judge = pair(arch, "--kv-memory", SMALL_POOL[kv_type], "--block-tokens", block_tokens, "--prefill-quantum", "96",
                    *host, kv_type=kv_type)
    n = N_RANDOM if LONG else N_RANDOM // 3
    with d.client() as c:
        found = random_requests(d, judge, SEED, prefix.N_VOCAB, n, MAX_LEN, c.tokenize)
        # Of few it is chance how many were read to their end; two more follow for certain.
        assert SANITIZED or (judge.n_judged > n // 2 and found > 0)
        hit_again(c, judge, prefix.N_VOCAB)
    d.idle()


# --- one way at a time: what is reused is counted, and the answer judged ---

BLOCK = 16
SMALL_QUANTUM = ("--prefill-quantum", "32", "--block-tokens", BLOCK)
all_types = pytest.mark.parametrize("kv_type", prefix.KV_TYPES)


def small_quantum(kv_type):
    return ("--prefill-quantum", "32", "--block-tokens", prefix.block_of(kv_type, BLOCK))


def random_ids(seed, n, n_vocab=prefix.N_VOCAB):
    rng = random.Random(seed)
    return [rng.randrange(3, n_vocab) for _ in range(n)]


def other_than(token):
    return token + 1 if token + 1 < prefix.N_VOCAB else 3


def cached(c, judge, ids, n=8, **fields):
    """Asks, has the answer judged, and returns what was cached and the tokens that came."""
    r = prefix.ask(c, ids, n, **fields)
    assert not r.error, r.error
    judge.right(ids, r)
    return r.usage["cached"], r.ids


@all_types
def test_warm_is_cold(pair, kv_type):
    """The same prompt again: all but the last token, whose logits are needed; and the log-probabilities of the prompt."""
    d, judge = pair("gemma3, window 520", "--kv-memory", "32M", *small_quantum(kv_type), kv_type=kv_type)
    with d.client() as c:
        for i, n in enumerate([1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 511, 512, 513, 600]):
            # Each begins with a token of its own.
            ids = [3 + i] + random_ids(n, n - 1)
            want = prefix.ask(c, ids)
            assert want.usage["cached"] == 0
            for _ in range(3):
                r = prefix.ask(c, ids)
                assert r.usage["cached"] == prefix.reusable(n, kv_type)
                assert r.usage["miss"] == (k.MISS_NONE if r.usage["cached"] == n - 1 else k.MISS_BLOCK)
                assert (r.ids, prefix.bits(r.logprobs)) == (want.ids, prefix.bits(want.logprobs))
            judge.right(ids, want)
            # Nothing is taken from the first position on whose log-probability is wanted.
            for first in {0, n // 2, n - 1}:
                r = prefix.ask(c, ids, prompt_logprobs=first)
                judge.right(ids, r)
                assert r.usage["cached"] == prefix.common(max(0, first - 1), kv_type) and len(r.prompt) == n - first


@all_types
def test_branches_and_rewinds(pair, kv_type):
    """To the token, or to the block: at every length around the borders of blocks and segments."""
    d, judge = pair("llama", "--kv-memory", "64M", *small_quantum(kv_type), kv_type=kv_type)
    ids = random_ids(1, 600)
    with d.client() as c:
        cached(c, judge, ids)
        for cut in [1, 5, 15, 16, 17, 31, 32, 100, 255, 256, 257, 511, 512, 513, 590]:
            # Rewound to where it was, and then another token instead of the next one.
            assert cached(c, judge, ids[:cut])[0] == prefix.reusable(cut, kv_type)
            branch = ids[:cut] + [other_than(ids[cut])] + random_ids(cut, 20)
            assert cached(c, judge, branch)[0] == prefix.common(cut, kv_type)
            assert cached(c, judge, branch)[0] == prefix.reusable(len(branch), kv_type)
            # A hole in the middle: what is behind it is at other positions now.
            hole = ids[:cut] + ids[cut + 7:] if ids[cut] != ids[cut + 7] else ids[:cut] + ids[cut + 8:]
            assert cached(c, judge, hole)[0] == prefix.common(cut, kv_type)


@all_types
def test_turns_go_on_from_generated_tokens(pair, kv_type):
    """Only the last token of an answer was never computed."""
    d, judge = pair("qwen3", "--kv-memory", "16M", *small_quantum(kv_type), kv_type=kv_type)
    with d.client() as c:
        ids, known = random_ids(2, 40), 0
        for turn in range(12):
            n = [1, 2, 15, 16, 17, 40][turn % 6]
            got, answer = cached(c, judge, ids, n)
            assert got == prefix.common(known, kv_type), f"turn {turn}"
            known = len(ids) + n - 1
            ids = ids + answer + random_ids(100 + turn, 7)


def test_chat_turns(pair):
    """The same with messages: the answers go back as the ids that they were."""
    d, judge = pair("llama", "--kv-memory", "16M", *SMALL_QUANTUM)
    with d.client() as c:
        messages, known = [("system", "You are a clock."), ("user", "What time is it?")], 0
        for turn in range(6):
            r = c.generate(messages=messages, n=20, ignore_eos=True, logprobs=1)
            assert not r.error
            # The template puts the same before each question: some of it may be there at the first turn.
            assert r.usage["cached"] >= known, f"turn {turn}: {r.usage}, {known}"
            known = r.usage["prompt"] + len(r.ids) - 1
            messages += [("assistant", r.ids), ("user", f"And {turn} minutes later?")]


@all_types
def test_joined(pair, kv_type):
    """A second one, a third with another end, while the first prefills."""
    d, judge = pair("gemma3", "--kv-memory", "16M", *small_quantum(kv_type), kv_type=kv_type,
                    env={"KVD_TEST_STEP_DELAY_MS": "5"})
    ids = random_ids(3, 650)
    asked = [ids, ids, ids[:500] + random_ids(4, 60), ids[:48], ids[:300]]
    clients, rids = [d.client() for _ in asked], []
    for c, i in zip(clients, asked):
        rids.append(c.submit(ids=i, n=20, ignore_eos=True, logprobs=1))
        d.until(lambda: d.status()["prompt_tokens"] > 0, "the first prefills")
    results = [c.collect(rid)[rid] for c, rid in zip(clients, rids)]
    for c, i, r in zip(clients, asked, results):
        judge.right(i, r)
        assert (r is results[0]) == (r.usage["cached"] == 0)
        c.close()
    # Of the second, the fourth and the fifth only ends of blocks; of the third what is its own as well.
    assert d.status()["prompt_tokens"] <= 650 + 60 + 4 * prefix.block_of(kv_type, BLOCK)


@all_types
def test_preempted(pair, kv_type):
    """More at once than fits: some give way in the middle, and go on."""
    d, judge = pair("phi3", "--kv-memory", SMALL_POOL[kv_type], "--max-seqs", "8", *small_quantum(kv_type), kv_type=kv_type)
    asked = [random_ids(10 + i % 3, 150) + random_ids(20 + i, 200) for i in range(8)]
    with d.client() as c:
        rids = [c.submit(ids=ids, n=200, ignore_eos=True, logprobs=1) for ids in asked]
        got = c.collect(*rids)
        assert d.status()["preemptions"] > 0
        for ids, rid in zip(asked, rids):
            judge.right(ids, got[rid])
            assert len(got[rid].ids) == 200
    d.idle()


@all_types
@pytest.mark.parametrize("host", [(), HOST])
def test_evicted_in_the_middle(pair, host, kv_type):
    """What was there goes for others, whole or from its end; what is left is used, and no more.  A host tier has all."""
    d, judge = pair("qwen2", "--kv-memory", "2M", *small_quantum(kv_type), *host, kv_type=kv_type)
    rng, seen = random.Random(5), set()
    asked = [random_ids(i, 600) for i in range({"f16": 5, "q8": 9, "q4": 15}[kv_type])]
    with d.client() as c:
        for ids in asked:
            cached(c, judge, ids, 4)
        for _ in range(60):
            seen.add(cached(c, judge, rng.choice(asked), 4)[0])
    print(sorted(seen))
    if host:
        # Less only by what is under a block, or by one that was still on its way.
        assert min(seen) >= 599 - 2 * prefix.block_of(kv_type, BLOCK)
    else:
        assert seen - {0, prefix.reusable(600, kv_type)}
    d.idle()


@all_types
def test_parked_and_resumed(pair, kv_type):
    """A reader that stops while others use, and drive out, what it had."""
    d, judge = pair("llama", "--kv-memory", SMALL_POOL[kv_type], *small_quantum(kv_type), kv_type=kv_type)
    ids = random_ids(7, 300)
    with d.client(ring=65536) as slow, d.client() as c:
        rid = slow.submit(ids=ids, n=300, ignore_eos=True, logprobs=32)
        d.until(lambda: d.status()["n_parked"] == 1, "parked")
        for i in range(6):
            assert cached(c, judge, ids + random_ids(i, 5))[0] >= prefix.common(299, kv_type) or i
            cached(c, judge, random_ids(50 + i, 700))
        r = slow.collect(rid)[rid]
        assert len(r.ids) == 300
        judge.right(ids, r)


@all_types
def test_cancelled_in_the_middle(pair, kv_type):
    """In prefill and in decode: what was computed stays, and is right."""
    d, judge = pair("gemma3", "--kv-memory", "16M", *small_quantum(kv_type), kv_type=kv_type)
    block = prefix.block_of(kv_type, BLOCK)
    with d.client() as c:
        for turn in range(20):
            ids = random_ids(turn, 600)
            rid = c.submit(ids=ids, n=100, ignore_eos=True, logprobs=1, progress=True)
            for _ in range(turn):
                c.next_record()
            c.cancel(rid)
            r = c.collect(rid)[rid]
            judge.right(ids, r)
            got, answer = cached(c, judge, ids, 20)
            assert got >= (max((done for done, _ in r.progress), default=0)) // block * block - 1
            assert r.ids == answer[:len(r.ids)] or len(r.ids) > 20
    d.idle()


def test_share_of_a_user(pair):
    """What a uid may hold counts what is kept for it: its own cache gives way to what it runs, and nothing fails."""
    d, judge = pair("llama", "--kv-memory", "16M", "--uid-kv-memory", "1400K", "--max-seqs", "4", *SMALL_QUANTUM)
    rng = random.Random(8)
    common = random_ids(8, 200)
    with d.client() as c:
        for _ in range(20):
            asked = [common[:rng.randrange(200)] + random_ids(rng.random(), rng.randrange(1, 150)) for _ in range(6)]
            rids = [c.submit(ids=ids, n=30, ignore_eos=True, logprobs=1) for ids in asked]
            got = c.collect(*rids)
            for ids, rid in zip(asked, rids):
                assert not got[rid].error, got[rid].error
                judge.right(ids, got[rid])
    d.idle()


@all_types
def test_models_share_a_pool(daemons, models, tmp_path, kv_type):
    """Three models of different geometry take the pool from each other, and one is unloaded and loaded while it is in use."""
    names = ["llama", "gemma3", "qwen2"]
    files = [models(name) for name in names]
    judges = [prefix.Judge(daemons("--model", f, "--no-cache", "--kv-type", kv_type, socket=tmp_path / f"{i}.sock"), kv_type)
              for i, f in enumerate(files)]
    d = daemons(*(word for f in files for word in ("--model", f)), "--kv-memory", "6M", "--kv-type", kv_type,
                *small_quantum(kv_type), *HOST)
    rng = random.Random(9)
    kept = [prefix.Prompts(random.Random(i), prefix.N_VOCAB, 500) for i in range(3)]
    n_cached = 0
    with d.client() as c:
        for turn in range(25):
            asked = [(i, kept[i].next()) for i in rng.choices(range(3), k=4)]
            rids = [c.submit(ids=ids, n=20, ignore_eos=True, logprobs=1, model=files[i].stem) for i, ids in asked]
            if turn % 8 == 7:
                # Its requests end first, and its cache with it.
                unloaded = c.next_id
                c.next_id += 1
                c.send(k.UNLOAD, {"id": unloaded, "model": files[2].stem})
                got = c.collect(*rids)
                c.reply(unloaded)
                c.load(files[2], files[2].stem)
            else:
                got = c.collect(*rids)
            for (i, ids), rid in zip(asked, rids):
                assert not got[rid].error, got[rid].error
                judges[i].right(ids, got[rid])
                n_cached += got[rid].usage["cached"]
    for j in judges:
        j.close()
    assert n_cached > 0
    d.idle()
