# SPDX-License-Identifier: Apache-2.0
"""Hashes that collide do no harm: a kvd that finds prefixes by 8 bits of them gives the right answers.

With more than 256 blocks in the tree some must collide; kvd-hash8 tells how many did.
"""
import os
import random
import re

import make_tiny_gguf as tiny
import prefix
from conftest import BUILD, LONG, SANITIZED
from kvtypes import kv_types

SEED = int(os.environ.get("KVD_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
N_PROMPTS = 1000 if LONG else 300 if SANITIZED else 500


@kv_types("q8")
def test_eight_bits(daemons, tmp_path, kv_type):
    print(f"KVD_TEST_SEED={SEED}")
    path = tmp_path / "model.gguf"
    tiny.build(**prefix.ARCHS["llama"]).write(path)
    of = ("--model", path, "--kv-type", kv_type)
    judge = prefix.Judge(daemons(*of, "--no-cache", "--threads", 1, socket=tmp_path / "judge.sock"), kv_type)
    d = daemons(*of, "--kv-memory", "32M", program=BUILD / "tests/kvd-hash8")
    rng, cached = random.Random(SEED), 0
    prompts = prefix.Prompts(rng, prefix.N_VOCAB, 200)
    with d.client() as c:
        for i in range(N_PROMPTS):
            ids = prompts.next()
            r = prefix.ask(c, ids, 4)
            assert not r.error
            judge.right(ids, r, f"prompt {i}")
            cached += r.usage["cached"]
    judge.close()
    assert judge.n_judged == N_PROMPTS
    d.stop()
    collisions, hits = map(int, re.search(r"hash8: (\d+) collisions, (\d+) hits", d.log.read_text()).groups())
    print(f"{collisions} collisions, {hits} hits, {cached} tokens cached")
    assert collisions > N_PROMPTS and hits > N_PROMPTS // 4
