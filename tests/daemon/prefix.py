# SPDX-License-Identifier: Apache-2.0
"""What the tests of the shared prefix cache have in common: prompts that share prefixes, and the judge of answers.

The judge is a second daemon that runs with --no-cache: it computes every sequence from its first token on.  An answer
is right if the judge, given its prompt and its tokens as one prompt, finds the same log-probability to the bit for each
of them, and each was the most likely one.  Requests that draw at random are made again there, and compared whole.
"""
import random
import struct
import time

import kvdclient as k

# Around blocks of 16, 32 and 64, a window of 48 and segments of 512.
BORDERS = [16, 32, 48, 64, 128, 256, 512]

# What tells architectures apart; 1 or 2 KiB of KV for each token, so that few of them fill a pool.
ARCHS = {
    "llama": {"type": "q4_1", "layers": 4, "kv_heads": 4, "heads": 4, "head_dim": 32},
    "gemma3": {"type": "q8_0", "kv_heads": 2, "head_dim": 32, "layers": 7},
    "gemma3, window 520": {"arch": "gemma3", "type": "q8_0", "window": 520, "window_pattern": 2, "layers": 4,
                           "kv_heads": 2, "head_dim": 48, "attn_softcap": 20.0, "final_softcap": 15.0},
    "qwen2": {"type": "q5_1", "rope_yarn": 4.0, "layers": 4, "kv_heads": 4},
    "qwen3": {"type": "q4_0", "head_dim": 32, "kv_heads": 4, "layers": 4},
    "phi3": {"type": "q4_1", "window": 48, "head_dim": 32, "rope_dims": 24, "kv_heads": 4, "layers": 4},
}
N_VOCAB = 272
# Types of keys and values; of the last one blocks have 32 tokens and are of use as a whole.
KV_TYPES = ("f16", "q8", "q4")
Q4_BLOCK = 32
for arch, arch_options in ARCHS.items():
    arch_options.setdefault("arch", arch)
    arch_options.setdefault("vocab", N_VOCAB)


def words(rng, n):
    """English enough: n words."""
    vocabulary = ("the a of and to in is was he that it his her with as had for she not at but be on they have him "
                  "which said from all this one were when there would their been what out so up if who no more could "
                  "into them then some time about river house letter question answer winter light stone paper").split()
    return " ".join(rng.choice(vocabulary) for _ in range(n)) + rng.choice([".", "?", "!\n", " "])


class Prompts:
    """Token ids of prompts, each with a beginning that some earlier one has, too."""

    def __init__(self, rng, n_vocab, max_len, tokenize=None):
        self.rng, self.n_vocab, self.max_len = rng, n_vocab, max_len
        self.tokenize = tokenize        # of text, for prompts of real words
        self.made = []

    def length(self):
        rng = self.rng
        if rng.random() < 0.5:
            n = rng.choice(BORDERS) * rng.choice([1, 1, 1, 2, 3]) + rng.choice([-2, -1, 0, 0, 1, 2])
        else:
            n = rng.randrange(1, self.max_len)
        return max(1, min(n, self.max_len))

    def ids(self, n):
        if self.tokenize and self.rng.random() < 0.5:
            ids = self.tokenize(words(self.rng, n))
            if ids:
                return (ids * (n // len(ids) + 1))[:n]
        return [self.rng.randrange(3, self.n_vocab) for _ in range(n)]

    def remember(self, ids):
        """So that others begin with it: the next turn of a chat begins with the answer, too."""
        if len(ids) < self.max_len:
            self.made.append(ids)

    def next(self):
        rng = self.rng
        way = rng.choice(["new", "same", "branch", "branch", "rewind", "longer", "longer", "hole"])
        if way == "new" or not self.made:
            ids = self.ids(self.length())
        else:
            old = rng.choice(self.made[-40:])
            cut = min(len(old), self.length()) if rng.random() < 0.7 else rng.randrange(len(old) + 1)
            more = rng.choice([1, 2, 15, 16, 17, rng.randrange(1, 100)])
            ids = {"same": lambda: list(old),
                   "branch": lambda: old[:cut] + self.ids(more),
                   "rewind": lambda: old[:max(1, cut)],
                   "longer": lambda: old + self.ids(more),
                   "hole": lambda: old[:cut] + old[cut + more:] or list(old)}[way]()
        ids = ids[:self.max_len]
        self.made.append(ids)
        return ids


def bits(values):
    """Floats as they were on the wire: NaN is equal to itself, and 0 is not -0."""
    return struct.pack(f"<{len(values)}f", *values)


class Judge:
    """daemon: runs with --no-cache, and with the same type of keys and values.  For one thread."""

    def __init__(self, daemon, kv_type="f16"):
        self.client = daemon.client(name="judge")
        self.kv_type = kv_type
        self.logprobs = {}
        self.n_judged = 0

    def close(self):
        self.client.close()

    def score(self, ids, first):
        """Log-probabilities of ids[first:], each after what is before it."""
        key = (tuple(ids), first)
        if key not in self.logprobs:
            r = self.client.generate(ids=ids, n=1, prompt_logprobs=first, ignore_eos=True)
            assert not r.error, r.error
            assert [p["id"] for p in r.prompt] == list(ids[first:]) and r.usage["cached"] == 0
            self.logprobs[key] = [p["logprob"] for p in r.prompt]
        return self.logprobs[key]

    def right(self, ids, result, note=""):
        """A greedy answer, with logprobs=1 or more, also one that was cut short."""
        n = len(ids)
        if result.usage and result.usage["miss"] not in (k.MISS_NONE, k.MISS_NO_CACHE):
            missed, whole = result.usage["cached"], self.kv_type == "q4"
            # What differs is somewhere in the block that was not of use.
            n_same = Q4_BLOCK if whole and result.usage["miss"] == k.MISS_DIFFERS else 1
            assert result.usage["miss_token"] in ids[missed:missed + n_same], f"{note}: {result.usage}"
            assert result.usage["miss"] != k.MISS_BLOCK or (whole and n - 1 - missed < Q4_BLOCK), f"{note}: {result.usage}"
            assert not whole or missed % Q4_BLOCK == 0, f"{note}: {result.usage}"
        first = result.prompt[0]["position"] if result.prompt else n
        got = [p["logprob"] for p in result.prompt] + result.logprobs
        if not got:
            return
        # One that was cancelled may have had a part of the prompt.
        known = list(ids) + result.ids
        n_known = n if result.ids or not result.prompt else first + len(result.prompt)
        assert [p["id"] for p in result.prompt] == known[first:n_known], f"{note}: not the prompt's tokens"
        want = self.score(known[:n_known] + result.ids, first)
        if bits(got) != bits(want):
            at = next(i for i in range(len(got)) if bits(got[i:i + 1]) != bits(want[i:i + 1]))
            raise AssertionError(f"{note}: position {first + at} of a prompt of {n}, {result.usage}: "
                                 f"{got[at]!r} instead of {want[at]!r}")
        for i, (token, others) in enumerate(zip(result.ids, result.alternatives)):
            assert others[0][0] == token, f"{note}: token {i} was not the most likely one"
        self.n_judged += 1

    def same(self, request, result, note=""):
        """Any request that ended, made again: text, tokens, log-probabilities."""
        want = self.client.generate(**request)
        assert not want.error, want.error
        assert (result.ids, result.text, result.reason) == (want.ids, want.text, want.reason), note
        for a, b in ((result.logprobs, want.logprobs),
                     ([p["logprob"] for p in result.prompt], [p["logprob"] for p in want.prompt])):
            assert bits(a) == bits(b), note
        self.n_judged += 1


def ask(client, ids, n=8, **fields):
    """One greedy request, to its end."""
    return client.generate(ids=ids, n=n, ignore_eos=True, **{"logprobs": 1, **fields})


def block_of(kv_type, block_tokens):
    """Tokens of a block of the type, where others have so many."""
    return Q4_BLOCK if kv_type == "q4" else block_tokens


def common(n, kv_type):
    """Of n tokens that a prompt has in common with what is stored: how many are of use."""
    return n // Q4_BLOCK * Q4_BLOCK if kv_type == "q4" else n


def reusable(n_prompt, kv_type="f16"):
    """Of a prompt of n tokens: the last one's logits are needed."""
    return common(n_prompt - 1, kv_type)


class Worker:
    """A client that makes requests of a plan, some of which it leaves, or reads slowly; run() is for a thread."""

    def __init__(self, daemon, seed, plan, patience=1):
        self.daemon, self.plan = daemon, plan
        self.rng = random.Random(seed)
        self.results = []       # (request, Result)
        self.error = None
        self.patience = patience

    def run(self):
        try:
            while True:
                request = self.plan()
                if request is None:
                    return
                self.one(*request)
        except BaseException as e:      # pylint: disable=broad-except
            self.error = e

    def one(self, fields, how):
        with self.daemon.client(name=how, ring=65536 if how == "slow" else 0) as c:
            rid = c.submit(**fields)
            result = k.Result()
            if how == "leave":
                time.sleep(self.rng.random() * 0.01)
                return
            after = self.rng.randrange(6) if how == "cancel" else -1
            self.read(c, rid, result, how, after)
            self.results.append((fields, result))

    def read(self, c, rid, result, how, after):
        n = 0
        while not result.ended:
            if n == after:
                c.cancel(rid)
            if how == "slow" and n % 16 == 0:
                time.sleep(0.02)
            record = c.next_record(60 * self.patience)
            assert record is not None, "no answer"
            result.add(record[0], c.decode(record[0], record[2]))
            n += 1
