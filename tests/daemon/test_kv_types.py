# SPDX-License-Identifier: Apache-2.0
"""Types of keys and values as users see them: what they take, seen from outside, and what is said of them."""
import contextlib
import json
import random
import subprocess
import urllib.request

import kvdclient as k
import prefix
import pytest
from conftest import BUILD, PATIENCE, SANITIZED, make_tiny

LAYERS, HEADS, DIM, CTX = 4, 4, 32, 8192
SHAPE = ("--type", "q4_1", "--layers", LAYERS, "--kv-heads", HEADS, "--heads", HEADS, "--head-dim", DIM,
         "--vocab", prefix.N_VOCAB, "--ctx", CTX)
# Of a token, layer and head.  F16: two bytes for each channel.  Q8: one, and two for each 32 channels.  Q4: half a
# byte; keys four bytes for each channel's 32 tokens, values four for each 32 channels.
HEAD_BYTES = {"f16": 2 * 2 * DIM, "q8": 2 * (DIM + 2 * DIM // 32), "q4": DIM + 4 * DIM // 32 + 4 * DIM // 32}
OPEN_BYTES = LAYERS * HEADS * HEAD_BYTES["f16"] * prefix.Q4_BLOCK


def token_bytes(kv_type):
    return LAYERS * HEADS * HEAD_BYTES[kv_type]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("types") / "tiny.gguf", *map(str, SHAPE))


def random_ids(seed, n):
    rng = random.Random(seed)
    return [rng.randrange(3, prefix.N_VOCAB) for _ in range(n)]


@pytest.mark.parametrize("kv_type", prefix.KV_TYPES)
def test_memory(daemons, model, kvctl, kv_type):
    """What a token takes is what status and the listing say, and what the pool's memory grows by."""
    d = daemons("--model", model, "--kv-type", kv_type, "--kv-memory", "64M", "--http", "127.0.0.1:0")
    with d.client() as c:
        m = c.call(k.MODELS)["models"][0]
        block = prefix.block_of(kv_type, m["block_tokens"])
        assert (m["block_tokens"], m["block_bytes"]) == (block, block * token_bytes(kv_type))
        before, n = d.allocated("kvd-kv"), 3000
        prefix.ask(c, random_ids(1, n), 1)
        d.idle(2)
        entries = c.cache_ls()
        # One token was never computed; of Q4 the last block is not full.
        assert sum(e["n_tokens"] for e in entries) == prefix.common(n, kv_type)
        for e in entries:
            assert e["bytes"] == block * token_bytes(kv_type), e
        grown = d.allocated("kvd-kv") - before
        # In pages, and blocks lie side by side in chunks of 2 MiB.
        assert len(entries) * block * token_bytes(kv_type) <= grown <= n * token_bytes(kv_type) + (2 << 20)
    s = json.loads(kvctl("--json", "status", socket=d.socket).stdout)
    assert s["kv_type"] == kv_type
    s = json.loads(kvctl("--json", "models", socket=d.socket).stdout)
    assert s[0]["block_bytes"] == block * token_bytes(kv_type) and s[0]["block_tokens"] == block
    text = kvctl("status", socket=d.socket).stdout.decode()
    assert f"type {kv_type}" in text and f"in blocks of {block}" in text, text
    with urllib.request.urlopen(f"{d.http_url}/metrics", timeout=20 * PATIENCE) as reply:
        text = reply.read().decode()
    assert f'kv_type="{kv_type}"' in text and f'kvd_model_block_bytes{{model="tiny"}} {block * token_bytes(kv_type)}\n' in text


# KV heads and channels as SmolLM2-135M and Gemma 3 270M have them; layers don't matter here, and make it slower.
REAL_HEADS = {"smollm2": (3, 64), "gemma3": (1, 256)}


@pytest.mark.skipif(SANITIZED, reason="the same figures, later")
@pytest.mark.parametrize("shape", REAL_HEADS)
def test_saved(daemons, tmp_path, shape):
    """Of a sequence of 8,000 tokens, by the daemon's own figures: with what is open, tails and scales."""
    heads, dim = REAL_HEADS[shape]
    path = make_tiny(tmp_path / "tiny.gguf", *map(str, ("--type", "q4_1", "--layers", 1, "--kv-heads", heads, "--heads", heads,
                                                        "--head-dim", dim, "--vocab", prefix.N_VOCAB, "--ctx", CTX)))
    used, taken, n = {}, {}, 7990
    for kv_type in prefix.KV_TYPES:
        d = daemons("--model", path, "--kv-type", kv_type, "--kv-memory", "64M", "--prefill-quantum", 2048)
        with d.client() as c:
            rid = c.submit(ids=random_ids(1, n), n=10000, ignore_eos=True, progress=True)
            d.until(lambda: d.status()["generated_tokens"] >= 10, "8,000 tokens")
            s = d.status()
            n_tokens = n + s["generated_tokens"]
            c.cancel(rid)
            c.collect(rid)
        used[kv_type] = (s["kv_bytes_used"] + s.get("open_bytes", 0)) / n_tokens
        taken[kv_type] = d.allocated("kvd-kv")
        d.stop()
    saved = {kv_type: 1 - used[kv_type] / used["f16"] for kv_type in prefix.KV_TYPES}
    print(f"{shape}: bytes of a token and layer {used}, saved {saved}, memory of the pool {taken}")
    assert saved["q8"] >= 0.45 and saved["q4"] >= 0.67
    # A token's numbers alone, with nothing for scales, tails and what is open, are a bound from below.
    assert used["f16"] >= 4 * heads * dim and used["q8"] >= 2 * heads * dim and used["q4"] >= heads * dim
    assert taken["q4"] < taken["q8"] < taken["f16"]


def test_open_blocks(daemons, model):
    """A block that is not full is F16, beside the pool: one for each that runs, at most --max-seqs, charged while it is there."""
    d = daemons("--model", model, "--kv-type", "q4", "--kv-memory", "16M", "--max-seqs", "3",
                env={"KVD_TEST_STEP_DELAY_MS": "5"})
    with d.client() as c:
        rids = [c.submit(ids=random_ids(i, 40), n=40, ignore_eos=True) for i in range(6)]
        seen = set()

        def some():
            seen.add(d.status().get("open_bytes", 0))
            return 3 * OPEN_BYTES in seen
        d.until(some, "three run")
        got = c.collect(*rids)
        assert all(not got[rid].error for rid in rids)
    assert max(seen) == 3 * OPEN_BYTES and all(n % OPEN_BYTES == 0 for n in seen)
    d.idle()


def test_user_without_memory(daemons, model):
    """The less memory his session leaves, the sooner he is refused, and told why: when he asks, or when it would run."""
    d = daemons("--model", model, "--kv-type", "q4", "--uid-memory", "6M", "--kv-memory", "16M")
    said = []
    for arena in range(5 << 20, 4 << 20, -16384):
        try:
            with d.client(arena=arena) as c:
                r = c.generate(ids=random_ids(1, 100), n=4, ignore_eos=True)
        except k.Refused as e:
            assert e.code == 4, e.fields
            continue
        if not r.error:
            break
        assert r.error["code"] == 4, r.error
        said.append(r.error["text"].decode())
    assert not r.error and len(r.ids) == 4
    assert "the request needs more memory than its user may have" in said, said

    def may_attach():
        with contextlib.suppress(k.Refused):
            d.client().close()
            return True
        return False
    # What the last session had comes back once the daemon has seen that it is gone.
    d.until(may_attach, "his memory is back")
    d.idle()


def test_misses(daemons, model, kvctl):
    """What a prompt missed for, where blocks are of use as a whole."""
    d = daemons("--model", model, "--kv-type", "q4", "--kv-memory", "16M")
    a = random_ids(1, 100)

    def usage(ids, **fields):
        with d.client() as c:
            return prefix.ask(c, ids, 2, **fields).usage

    def missed(u):
        return u["cached"], u["miss"], u["miss_token"]
    assert missed(usage(a)) == (0, k.MISS_EMPTY, a[0])
    assert missed(usage(a)) == (96, k.MISS_BLOCK, a[96])
    assert missed(usage(a[:97])) == (96, k.MISS_NONE, a[96])
    assert missed(usage(a[:64])) == (32, k.MISS_BLOCK, a[32])
    b = a[:45] + [a[45] + 1 if a[45] < 200 else 3] + a[46:]
    assert missed(usage(b)) == (32, k.MISS_DIFFERS, b[45])
    assert missed(usage(a + random_ids(2, 50))) == (96, k.MISS_EMPTY, a[96])
    assert missed(usage(a, cache_key="x"))[:2] == (0, k.MISS_KEY)
    assert missed(usage(a, prompt_logprobs=70))[:2] == (64, k.MISS_LOGPROBS)


def test_refused(model):
    for options, word in ((("--kv-type", "q4", "--block-tokens", "16"), "32 tokens, not 16"),
                          (("--kv-type", "q5"), "not f16, q8 or q4")):
        r = subprocess.run([BUILD / "bin/kvd", "--model", model, *options, "--check-config"], capture_output=True, timeout=60)
        assert r.returncode == 2 and word in r.stderr.decode(), r.stderr
    r = subprocess.run([BUILD / "bin/kvd", "--model", model, "--kv-type", "q4", "--print-config"], capture_output=True,
                       timeout=60)
    assert b"\nkv-type = q4\nblock-tokens = auto\n" in r.stdout
