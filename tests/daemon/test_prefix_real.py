# SPDX-License-Identifier: Apache-2.0
"""The cached answer is the answer, with the real models, and what users of other servers saw go wrong there."""
import os
import pathlib
import random
import threading

import kvdclient as k
import prefix
import pytest
from conftest import LONG, PATIENCE, SANITIZED
from kvtypes import kv_types
from test_prefix_bits import SEED, hit_again, random_requests

pytestmark = pytest.mark.skipif(SANITIZED, reason="hours; the tiny models go the same ways")
N_RANDOM = 200 if LONG else 12
MAX_LEN = 900 if LONG else 120
N_LONG = 1500 if LONG else 560      # more than the second model's window of 512
MODELS = ["KVD_TEST_MODEL", "KVD_TEST_GEMMA"]


def path_of(variable):
    if not os.environ.get(variable):
        pytest.skip(f"{variable} is not set")
    return pathlib.Path(os.environ[variable])


@pytest.fixture
def real_pair(daemons, tmp_path):
    """start(variable, *options): a daemon with that model, and the judge of its answers."""
    judges = []

    def start(variable, *options, no_cache=("--no-cache",), kv_type="f16"):
        of = ("--model", path_of(variable), "--ctx", 4096, "--kv-type", kv_type)
        judge = daemons(*of, *no_cache, socket=tmp_path / "judge.sock")
        judges.append(prefix.Judge(judge, kv_type))
        return daemons(*of, *options), judges[-1]
    yield start
    for j in judges:
        j.close()


@pytest.mark.parametrize("kv_type", prefix.KV_TYPES)
@pytest.mark.parametrize("variable", MODELS)
def test_random(real_pair, variable, kv_type):
    """A pool of a few of the longest prompts; the sizes of blocks take turns."""
    print(f"KVD_TEST_SEED={SEED}")
    # KV of a token: 22.5 KiB the one, 18 KiB the other; of Q8 and Q4 about a half and a third of that.
    d, judge = real_pair(variable, "--kv-memory", "64M" if LONG else {"f16": "12M", "q8": "6M", "q4": "4M"}[kv_type],
                         "--block-tokens", prefix.block_of(kv_type, 32 if variable == MODELS[0] else 16), kv_type=kv_type)
    n = N_RANDOM if LONG else N_RANDOM // 3
    with d.client() as c:
        n_vocab = c.call(k.MODELS)["models"][0]["n_vocab"]
        cached = random_requests(d, judge, SEED, n_vocab, n, MAX_LEN, c.tokenize, longest=12 if LONG else 6)
        # So few may have nothing in common, or nothing that fills a block.
        assert (judge.n_judged > n // 2 and cached > 0) or not LONG
        hit_again(c, judge, n_vocab)
    d.idle()


WORDS = ["Zanzibar", "periwinkle", "obsidian", "marzipan", "trombone", "quicksilver"]


def in_threads(works):
    """Runs each in a thread of its own; what they return, in order."""
    results = [None] * len(works)

    def run(i):
        results[i] = works[i]()
    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(works))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return results


@kv_types("f16")
def test_planted_words(real_pair, kv_type):
    """Six chats with a word each, then two of them at a time: nobody hears another's word."""
    d, judge = real_pair(MODELS[0], "--kv-memory", "32M", "--max-seqs", "8", no_cache=(), kv_type=kv_type)
    system = ("system", "You keep one secret word for the user and tell it when you are asked for it.")
    chats = [[system, ("user", f"My secret word is {w}. Keep it.")] for w in WORDS]

    def turn(i, more=None, n=12):
        """The answer of chat i; what it costs is judged by the tokens that the template makes of it."""
        with d.client() as c:
            r = c.generate(messages=chats[i] + ([("user", more)] if more else []), n=n, ignore_eos=True, logprobs=1)
            assert not r.error
            return r

    def answered(i):
        r = turn(i)
        chats[i].append(("assistant", r.ids))
        return r
    first = in_threads([lambda i=i: answered(i) for i in range(6)])
    question = "What is my secret word?"
    alone = {}
    for i in range(6):
        # A namespace of none: as on a daemon of its own.
        r = judge.client.generate(messages=chats[i] + [("user", question)], n=12, ignore_eos=True, logprobs=1,
                                  namespace="none")
        assert r.usage["cached"] == 0
        alone[i] = (r.ids, prefix.bits(r.logprobs))
    rng = random.Random(1)
    for _ in range(20 if LONG else 6):
        pair = rng.sample(range(6), 2)
        for i, r in zip(pair, in_threads([lambda i=i: turn(i, question) for i in pair])):
            assert (r.ids, prefix.bits(r.logprobs)) == alone[i], f"chat {i}"
            said = r.text.decode().lower()
            assert not any(w.lower() in said for w in WORDS if w != WORDS[i]), said
            assert r.usage["cached"] >= prefix.common(first[i].usage["prompt"] + len(first[i].ids) - 1, kv_type)
    d.idle()


@kv_types("f16")
@pytest.mark.parametrize("prompt", ["Content-Type: text/", "What a beautiful"])
def test_the_same_again_and_again(real_pair, prompt, kv_type):
    d, judge = real_pair(MODELS[0], "--kv-memory", "32M", kv_type=kv_type)
    with d.client() as c:
        want = judge.client.generate(prompt, n=16, logprobs=1)
        for i in range(100 if LONG else 10):
            r = c.generate(prompt, n=16, logprobs=1)
            assert (r.ids, r.text, prefix.bits(r.logprobs)) == (want.ids, want.text, prefix.bits(want.logprobs)), i
            assert r.usage["cached"] == (prefix.reusable(r.usage["prompt"], kv_type) if i else 0)


@pytest.mark.parametrize("kv_type", prefix.KV_TYPES if LONG else ["f16"])
@pytest.mark.parametrize("variable", MODELS)
def test_long_prompt_again(real_pair, variable, kv_type):
    """The same long prompt again, and with a word more, less, or another: all that can be is reused, window or not."""
    d, judge = real_pair(variable, "--kv-memory", "128M", kv_type=kv_type)
    rng = random.Random(2)
    with d.client() as c:
        ids = c.tokenize(prefix.words(rng, N_LONG))[:N_LONG]
        word = c.tokenize(" elephant")
        assert len(ids) == N_LONG
        for asked, want in ((ids, 0), (ids, N_LONG - 1), (ids + word, N_LONG), (ids[:-40], N_LONG - 41),
                            (ids[:520] + word + ids[530:], 520)):
            r = prefix.ask(c, asked, 4)
            # The answer of an earlier one may begin with the word, too.
            most = want + (len(word) if asked[want:want + 1] == word[:1] else 0)
            assert prefix.common(want, kv_type) <= r.usage["cached"] <= prefix.common(most, kv_type)
            judge.right(asked, r)


@kv_types("f16")
def test_several_long_in_a_small_pool(real_pair, kv_type):
    """They wait for each other, and none fails."""
    memory = {"f16": 64, "q8": 34, "q4": 22} if LONG else {"f16": 18, "q8": 10, "q4": 6}
    d, judge = real_pair(MODELS[1], "--kv-memory", f"{memory[kv_type]}M", "--max-seqs", "8", kv_type=kv_type)
    rng = random.Random(3)
    with d.client() as c:
        asked = [c.tokenize(prefix.words(rng, N_LONG))[:N_LONG] for _ in range(6 if LONG else 3)]
        for turn in range(2 if LONG else 1):
            rids = [c.submit(ids=ids, n=4, ignore_eos=True, logprobs=1) for ids in asked]
            got = c.collect(*rids, timeout=600 * PATIENCE)
            for ids, rid in zip(asked, rids):
                assert not got[rid].error, got[rid].error
                judge.right(ids, got[rid])
    d.idle()
