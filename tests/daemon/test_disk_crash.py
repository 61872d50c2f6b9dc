# SPDX-License-Identifier: Apache-2.0
"""kill -9 at random instants under load, and in every other cycle harm to what lies on disk.

Every answer is the judge's, also one that was cut off; every start succeeds; what was committed and is whole is found again.
"""
import random
import threading
import time

import disk
import kvdclient as k
import prefix
import pytest
from conftest import LONG, SANITIZED
from kvtypes import kv_types
from manager import Manager
from test_disk_bits import judge
from test_prefix_bits import SEED, models
from test_restart import flip as flip_memory

__all__ = ["judge", "models"]   # fixtures
N_CYCLES = 100 if LONG else 8 if SANITIZED else 20
ARCHS = ["llama", "qwen2"]      # a root each
# Pools of a few prompts.
MEMORY = {"f16": "6M", "q8": "4M", "q4": "2M"}
# Troubles of the disk that a cycle may have to tell of: some of each root, not one for each block.
MAX_LINES = 8


class Load:
    """Clients that ask without end, until they are told to stop or the daemon is gone."""

    def __init__(self, daemon, prompts, names, n_clients, seed):
        self.daemon, self.prompts, self.names = daemon, prompts, names
        self.lock = threading.Lock()
        self.results = []       # (which model, ids, Result), also of those that were cut off
        self.stop = False
        self.error = None
        self.threads = [threading.Thread(target=self.run, args=(random.Random(seed + i),)) for i in range(n_clients)]
        for t in self.threads:
            t.start()

    def run(self, rng):
        try:
            with self.daemon.client(name="load") as c:
                while not self.stop:
                    self.one(c, rng)
        except (OSError, k.Closed, k.Refused) as e:
            if not self.stop:
                self.error = e
        except BaseException as e:      # pylint: disable=broad-except
            self.error = e

    def one(self, c, rng):
        which, result = rng.randrange(len(self.names)), k.Result()
        with self.lock:
            ids = self.prompts[which].next()
        rid = c.submit(ids=ids, n=rng.choice([1, 4, 20]), ignore_eos=True, logprobs=1, model=self.names[which])
        with self.lock:
            self.results.append((which, ids, result))
        while not result.ended:
            record = c.next_record(60)
            assert record is not None, "no answer"
            result.add(record[0], c.decode(record[0], record[2]))
        assert not result.error, result.error
        with self.lock:
            self.prompts[which].remember(ids + result.ids)

    def end(self):
        self.stop = True
        for t in self.threads:
            t.join()
        if self.error:
            raise self.error


class Cycles:
    """A daemon of two models that is killed again and again; state: its directory."""

    def __init__(self, start, judges, names, block, state, seed):
        self.start, self.judges, self.names, self.block, self.state = start, judges, names, block, state
        self.rng = random.Random(seed)
        self.prompts = [prefix.Prompts(random.Random(seed + i), prefix.N_VOCAB, 400) for i in range(len(names))]
        self.must = None        # what has to be found: Committed, or None
        self.asked = []         # (which model, ids) of the cycle before
        self.n_found = self.n_must = self.n_must_known = 0
        self.ways = []

    def find_again(self, d):
        """What was committed is found: of some prompts, each asked for the first time since the start."""
        self.rng.shuffle(self.asked)
        with d.client() as c:
            for which, ids in self.asked[:6]:
                r = prefix.ask(c, ids, 1, model=self.names[which])
                assert not r.error, r.error
                self.judges[which].right(ids, r, self.ways[-1:])
                want = self.must.found(ids, self.block) if self.must else 0
                assert r.usage["cached"] >= want, f"after {self.ways[-1:]}: {want} were stored: {r.usage}"
                self.n_must += want
                self.n_found += r.usage["cached"]

    def one(self, harm):
        d = self.start()
        self.find_again(d)
        load = Load(d, self.prompts, self.names, self.rng.choice([4, 6, 8]), self.rng.random())
        time.sleep(self.rng.random() * 0.25)
        assert d.proc.poll() is None, d.log.read_text()
        load.stop = True
        getattr(d, "crash", d.kill)()       # of a manager's the same
        load.end()
        told = [line for line in d.log.read_text().splitlines() if "cache on disk, root" in line]
        assert len(told) <= MAX_LINES, told
        for which, ids, result in load.results:
            self.judges[which].right(ids, result, self.ways[-1:])
        self.asked = [(which, ids) for which, ids, _ in load.results] or self.asked
        if harm and len(self.ways) % 2:
            way, self.must = harm.do()
        else:
            way, self.must = "killed", harm.committed() if harm else disk.Committed(self.state)
        self.ways.append(way)
        self.n_must_known += self.must is not None


@pytest.fixture
def cycles(daemons, judge, models, directory, kv_type):
    """cycles(*options) -> Cycles"""
    paths, block = [models(arch) for arch in ARCHS], prefix.block_of(kv_type, 16)
    judges = [judge(path, kv_type=kv_type) for path in paths]

    def make(*options, service=None):
        print(f"KVD_TEST_SEED={SEED}")
        command = (*(word for path in paths for word in ("--model", path)), "--block-tokens", block,
                   "--kv-type", kv_type, "--kv-memory", MEMORY[kv_type], "--state-dir", directory / "state", *options)
        return Cycles(lambda: (service.start if service else daemons)(*command), judges, [path.stem for path in paths],
                      block, directory / "state", SEED)
    return make


class HarmBoth(disk.Harm):
    """Also to the memory that a service manager keeps; often to that alone."""

    def __init__(self, state, seed, service):
        super().__init__(state, seed)
        self.service = service

    def do(self):
        done = "", self.committed()
        if self.rng.random() < 0.5:
            done = super().do()
        for name in self.service.names():
            flip_memory(self.rng, self.service.fd(name), self.rng.choice([0, 1, 8, 64]))
        return done[0] + " and memory", done[1]


@kv_types("q4")
def test_killed_and_damaged(cycles):
    """A pool of a few prompts, so that the disk is read all the time; a disk for all of them."""
    c = cycles("--disk", "256M")
    harm = disk.Harm(c.state, SEED)
    try:
        for _ in range(N_CYCLES):
            c.one(harm)
    finally:
        print(c.ways)
        print(f"{c.n_must} tokens had to be found, {c.n_found} were; {c.n_must_known} times it was known")
        harm.close()
    assert c.n_must > 0 and c.n_must_known > N_CYCLES // 4


@kv_types("q8")
def test_kept_memory_damaged(cycles, directory):
    """The same where memory is kept, too: what is damaged there is not served, and what is on disk is found."""
    service = Manager(directory)
    try:
        c = cycles("--disk", "256M", service=service)
        harm = HarmBoth(c.state, SEED, service)
        try:
            for _ in range(N_CYCLES):
                c.one(harm)
        finally:
            print(c.ways)
            harm.close()
        assert c.n_must > 0 and service.names()
    finally:
        service.close()


@kv_types("f16")
def test_killed_on_a_small_disk(cycles):
    """Where blocks make room for others all the time, in files of slots that move and shrink."""
    c = cycles("--disk", "5M")
    with disk.Watch(c.state) as watch:
        for i in range(10 * N_CYCLES):
            # Where all is slow, less is stored before each kill.
            if i >= N_CYCLES // 2 and watch.length > 1 << 20:
                break
            c.one(None)
            # By now others may have taken its place.
            c.must = None
    assert 1 << 20 < watch.length <= 5 << 20 and watch.allocated <= 5 << 20
