# SPDX-License-Identifier: Apache-2.0
"""What comes back from disk is what was computed, to the bit; and nothing that was stored is computed again.

prefix.Judge says what is right, disk.Committed what must be found.
"""
import random
import re
import time

import disk
import kvdclient as k
import prefix
import pytest
from conftest import LONG, SANITIZED
from kvtypes import kv_types, paired
from test_prefix_bits import HOST, MAX_LEN, SEED, all_types, models, random_ids, random_requests
from test_prefix_real import MODELS, path_of

__all__ = ["models"]    # a fixture
N_RANDOM = 160 if LONG else 16 if SANITIZED else 64
BLOCKS = (16, 32, 64)
WAYS = {
    # Room for all: what was computed is there after a stop, what was committed after a kill.
    "roomy": ("--kv-memory", "64M", "--disk", "256M"),
    # A pool of about four of the longest prompts: blocks are read while others run, and go meanwhile.
    "small pool": ("--kv-memory", "4M", "--disk", "256M"),
    "small pool and host": ("--kv-memory", "4M", "--disk", "256M", *HOST),
    # Of which the disk holds no more.
    "small disk": ("--kv-memory", "2M", "--disk", "4M"),
}
# In `make check` each architecture has one way, one size of blocks and one type of keys and values.
RANDOM = [(arch, way, prefix.block_of(kv_type, BLOCKS[(i + j) % 3]), kv_type) for i, arch in enumerate(prefix.ARCHS)
          for j, way in enumerate(WAYS) for t, kv_type in enumerate(prefix.KV_TYPES)
          if LONG or (j == i % len(WAYS) and t == (i + 1) % 3)]


class Restarts:
    """A daemon with a disk that is stopped, or killed, and started again; what it must find is known then."""

    def __init__(self, start, state, block_tokens, seed=0):
        self.start, self.state, self.block_tokens = start, state, block_tokens
        self.rng = random.Random(seed)
        self.d = start()
        self.committed = None
        self.computed = []      # tokens of requests that ended
        self.ways = []

    def __call__(self, way=None, cut=False):
        way = way or self.rng.choice(["stop", "kill"])
        self.ways.append(way)
        if way == "stop":
            self.d.stop()
        else:
            self.d.kill()
        self.committed = disk.Committed(self.state, cut=cut)
        self.d = self.start()
        return self.d

    def found(self, fields, result):
        """Nothing that was committed is computed again."""
        ids = fields["ids"]
        n = min(len(ids), fields.get("prompt_logprobs", len(ids)))      # what it computes anyhow is not asked for
        if self.committed and result.reason != k.CANCELLED:
            want = self.committed.found(ids[:n], self.block_tokens)
            assert result.usage["cached"] >= want, f"{want} of {len(ids)} tokens were stored: {result.usage}"

    def note(self, results):
        """What was computed: all but the last token; of one that was cancelled nobody knows."""
        self.computed += [fields["ids"] + r.ids[:-1] for fields, r in results if r.reason != k.CANCELLED]

    def nothing_lost(self):
        """After a stop: whole blocks of all that was computed."""
        lost = [len(ids) for ids in self.computed if not self.committed.has(ids, self.block_tokens)]
        assert not lost, f"{len(lost)} of {len(self.computed)} sequences are not all on disk, of {lost} tokens"


@pytest.fixture
def judge(daemons, tmp_path):
    """judge(path of a model) -> the judge of its answers."""
    judges = []

    def start(path, *options, kv_type="f16"):
        daemon = daemons("--model", path, "--no-cache", "--kv-type", kv_type,
                         *(options or ("--kv-memory", "512M", "--threads", 1)),
                         socket=tmp_path / f"judge{len(judges)}.sock")
        judges.append(prefix.Judge(daemon, kv_type))
        return judges[-1]
    yield start
    for j in judges:
        j.close()


@pytest.fixture
def restarts(daemons, directory):
    """restarts(models, block_tokens, *options) -> Restarts of a daemon on the directory's state."""
    def make(paths, block_tokens, *options, seed=0, **kw):
        models_of = [word for path in paths for word in ("--model", path)]
        state = directory / "state"

        def start(kv_type=None):
            return daemons(*models_of, "--block-tokens", block_tokens, "--state-dir", state, *options,
                           *(("--kv-type", kv_type) if kv_type else ()), **kw)
        return Restarts(start, state, block_tokens, seed)
    return make


def random_restarts(d, j, n_vocab, n, max_len, tokenize, way="roomy", longest=40, **more):
    """Random requests, and a stop or a kill -9 after every few."""
    def between(results):
        if way != "small disk" and "ttl_s" not in more:
            for fields, r in results:
                d.found(fields, r)
        d.note(results)
        d()
        if way == "roomy" and d.ways[-1] == "stop" and "ttl_s" not in more:
            d.nothing_lost()
        if d.ways[-1] == "kill":
            d.computed.clear()
        return d.d
    cached = random_requests(d.d, j, SEED, n_vocab, n, max_len, tokenize, longest, between, **more)
    assert j.n_judged > n // 2
    assert cached > 0
    assert len(d.ways) == (n - 1) // 16
    d.d.idle()


@pytest.mark.parametrize("arch,way,block_tokens,kv_type", RANDOM)
def test_random(judge, restarts, models, arch, way, block_tokens, kv_type):
    """Random prompts with common beginnings."""
    print(f"KVD_TEST_SEED={SEED}")
    path = models(arch)
    j = judge(path, kv_type=kv_type)
    d = restarts([path], block_tokens, "--prefill-quantum", "96", "--kv-type", kv_type, *WAYS[way], seed=SEED)
    random_restarts(d, j, prefix.N_VOCAB, N_RANDOM, MAX_LEN, j.client.tokenize, way)


@pytest.mark.parametrize("variable", MODELS)
@pytest.mark.skipif(SANITIZED, reason="hours; the tiny models go the same ways")
def test_real(judge, restarts, variable):
    path = path_of(variable)
    j = judge(path, "--ctx", 4096)
    d = restarts([path], 32 if variable == MODELS[0] else 16, "--ctx", 4096, "--disk", "1G", "--kv-memory", "64M",
                 seed=SEED)
    n_vocab = j.client.call(k.MODELS)["models"][0]["n_vocab"]
    random_restarts(d, j, n_vocab, 112 if LONG else 17, 300 if LONG else 60, j.client.tokenize,
                    "small pool" if LONG else "roomy", 6 if LONG else 3)


@kv_types("q8")
def test_ttl(judge, restarts, models, kv_type):
    """Some of it expires, meanwhile or while nobody runs."""
    path = models("llama")
    j = judge(path, kv_type=kv_type)
    d = restarts([path], prefix.block_of(kv_type, 16), "--kv-type", kv_type, *WAYS["small pool"], seed=SEED)
    random_restarts(d, j, prefix.N_VOCAB, N_RANDOM // 2, MAX_LEN, j.client.tokenize, ttl_s=1)


def test_expires_while_nobody_runs(restarts, models):
    d = restarts([models("qwen2")], 16, *WAYS["roomy"])
    short, long = random_ids(1, 100), random_ids(2, 100)
    with d.d.client() as c:
        prefix.ask(c, short, ttl_s=1)
        prefix.ask(c, long, ttl_s=3600)
    d("stop")
    expires = min(e["expires"] for e in d.committed.roots[0].entries.values())
    assert disk.NEVER > max(e["expires"] for e in d.committed.roots[0].entries.values()) > expires
    disk.wait_until_clock(expires)
    with d.d.client() as c:
        assert prefix.ask(c, short).usage["cached"] == 0
        assert prefix.ask(c, long).usage["cached"] == 96


@all_types
def test_counted(judge, restarts, models, kv_type):
    """Exactly whole blocks, from each of many lengths; what is generated is there as well; open tails are not."""
    path, block = models("gemma3"), prefix.block_of(kv_type, 16)
    j = judge(path, kv_type=kv_type)
    d = restarts([path], block, "--kv-type", kv_type, *WAYS["roomy"])
    lengths = [1, 15, 16, 17, 31, 32, 33, 48, 100, 511, 512, 513, 600]
    with d.d.client() as c:
        answers = [prefix.ask(c, random_ids(n, n), 20).ids for n in lengths]
    d("stop")
    lost = 0
    with d.d.client() as c:
        for n, answer in zip(lengths, answers):
            ids = random_ids(n, n) + answer
            r = prefix.ask(c, ids)
            j.right(ids, r)
            # The last token of the answer was not computed, and the last of a prompt always is.
            assert r.usage["cached"] == (len(ids) - 1) // block * block
            lost += len(ids) - 1 - r.usage["cached"]
    print(f"tokens of open tails that were computed again: {lost / len(lengths):.1f} of each sequence")


@paired("end", ("stop", "f16"), ("kill", "f16"), ("stop", "q8"), ("kill", "q4"))
def test_in_the_middle(judge, restarts, models, end, kv_type):
    """It ends while it computes and writes: what was committed by then is found, and a stop loses nothing."""
    path = models("llama")
    j = judge(path, kv_type=kv_type)
    d = restarts([path], prefix.block_of(kv_type, 16), "--kv-type", kv_type, *WAYS["roomy"],
                 env={"KVD_TEST_STEP_DELAY_MS": "1"})
    n_found = 0
    for turn in range(16 if LONG else 5):
        ids = random_ids(100 + turn, 650)
        with d.d.client() as c:
            c.submit(ids=ids, n=100, ignore_eos=True)
            d.d.until(lambda: d.d.status()["prompt_tokens"] > 40 * turn % 600, "it computes")
            d(end)
        with d.d.client() as c:
            r = prefix.ask(c, ids)
            d.found({"ids": ids}, r)
            j.right(ids, r)
            n_found += r.usage["cached"]
    assert n_found > 0 or end == "kill"


@kv_types("f16", "q4")
def test_cancelled_while_it_reads(judge, restarts, models, kv_type):
    """A pool that has to read everything again; requests end at any moment of that, and the next reads it all the same."""
    path, block = models("qwen3"), prefix.block_of(kv_type, 16)
    j = judge(path, kv_type=kv_type)
    d = restarts([path], block, "--kv-type", kv_type, "--kv-memory", "2M", "--disk", "64M")
    # More than twice what the pool holds.
    asked = [random_ids(i, 600) for i in range({"f16": 4, "q8": 8, "q4": 12}[kv_type])]
    with d.d.client() as c:
        for ids in asked:
            prefix.ask(c, ids)
        for turn in range(60 if LONG else 20):
            ids = asked[turn % len(asked)]
            rid = c.submit(ids=ids, n=4, ignore_eos=True, logprobs=1)
            time.sleep(d.rng.choice([0, 1, 1]) * d.rng.random() * 0.004)
            c.cancel(rid)
            j.right(ids, c.collect(rid)[rid])
            r = prefix.ask(c, ids)
            j.right(ids, r)
            assert r.usage["cached"] >= 599 // block * block
    d.d.idle()


def test_other_type(judge, restarts, models):
    """Blocks of each type are that type's alone, side by side in one directory."""
    path = models("llama")
    judges = {kv_type: judge(path, kv_type=kv_type) for kv_type in prefix.KV_TYPES}
    d, ids, made = restarts([path], 32, *WAYS["roomy"]), random_ids(4, 300), set()
    start = d.start
    for kv_type in prefix.KV_TYPES * 2:
        d.start = lambda kv_type=kv_type: start(kv_type=kv_type)
        d("stop" if kv_type == "q8" else "kill")
        with d.d.client() as c:
            r = prefix.ask(c, ids)
            judges[kv_type].right(ids, r)
            assert r.usage["cached"] == (288 if kv_type in made else 0)
        d.d.until(lambda: d.d.status().get("disk_blocks", 0) >= 9, "written")
        told = re.findall(r"the type of keys and values was (\w+), is (\w+)", d.d.log.read_text())
        assert sorted(told) == sorted((other, kv_type) for other in made - {kv_type})
        made.add(kv_type)
    assert len(disk.Committed(d.state).roots) == 3


@kv_types("q4")
def test_model_swap(judge, restarts, models, kv_type):
    """A model that comes back, in the same daemon or after a restart, has its blocks; others' are others'."""
    names = ["llama", "qwen2", "phi3"]
    paths = [models(name) for name in names]
    judges = [judge(path, kv_type=kv_type) for path in paths]
    d = restarts(paths[:1], prefix.block_of(kv_type, 16), "--kv-type", kv_type, *WAYS["roomy"])
    asked = random_ids(3, 300)
    for turn in range(4):
        with d.d.client() as c:
            for i in range(3):
                if i:
                    c.load(paths[i], names[i])
                r = prefix.ask(c, asked, model=names[i] if i else paths[0].stem)
                judges[i].right(asked, r)
                # What memory has kept is there to the token, what the disk has to the block.
                assert r.usage["cached"] in ((288, prefix.reusable(300, kv_type)) if turn else (0,))
                if i:
                    c.call(k.UNLOAD, {"model": names[i]})
        if turn % 2:
            d("kill" if turn == 1 else "stop")
            assert len(d.committed.roots) == 3
