# SPDX-License-Identifier: Apache-2.0
"""The cache outlives the process, in the service manager's store of descriptors, and is right.

manager.Manager is the service manager; prefix.Judge says what is right.  KVD_TEST_SEED=N repeats what a failure printed.
"""
import mmap
import os
import pathlib
import random
import shutil
import signal
import socket
import struct
import threading
import time

import kvdclient as k
import prefix
import pytest
from asker import Asker
from conftest import HERE, LONG, SANITIZED, make_tiny
from kvtypes import kv_types, paired
from manager import Manager
from test_prefix_bits import SEED, models, random_ids, random_requests  # noqa: F401  (models is a fixture)
from test_prefix_real import MODELS, path_of

BLOCK = 16
OPTIONS = ("--kv-memory", "32M", "--block-tokens", BLOCK, "--prefill-quantum", "64")
ENDS = ["restart", signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT]
NAMES = {"kvd-pool", "kvd-index", "kvd-life"}


@pytest.fixture
def managers(directory):
    """start(*options) -> Manager, whose daemon does not run yet."""
    made = []

    def start(*options, **kw):
        folder = directory / f"m{len(made)}"
        folder.mkdir()
        made.append(Manager(folder, *options, **kw))
        return made[-1]
    yield start
    errors = []
    for m in made:
        try:
            m.close()
        except AssertionError as e:
            errors.append(e)
    if errors:
        raise errors[0]


@pytest.fixture
def judge_of(daemons, models, tmp_path):
    """judge(name or path) -> Judge"""
    judges = []

    def judge(model, *options, kv_type="f16"):
        path = models(model) if model in prefix.ARCHS else model
        d = daemons("--model", path, "--no-cache", "--kv-memory", "256M", "--kv-type", kv_type,
                    *(options or ("--threads", 1)),
                    socket=tmp_path / f"judge{len(judges)}.sock")
        judges.append(prefix.Judge(d, kv_type))
        return judges[-1]
    yield judge
    for j in judges:
        j.close()


def end(manager, how, *options, **kw):
    """The process ends in this way, and the next one is there."""
    if how == "restart":
        return manager.restart(*options, **kw)
    return manager.crash(*options, number=how, **kw)


def ask(d, judge, ids, n=8, **fields):
    """An answer that is right; how much of its prompt was cached."""
    with d.client() as c:
        r = prefix.ask(c, ids, n, **fields)
    assert not r.error, r.error
    judge.right(ids, r)
    return r.usage["cached"]


# --- what is computed once is not computed again ---

def options_of(kv_type):
    return ("--kv-memory", "32M", "--prefill-quantum", "64", "--kv-type", kv_type,
            "--block-tokens", prefix.block_of(kv_type, BLOCK))


@paired("how", *((how, "f16") for how in ENDS), ("restart", "q8"), ("restart", "q4"), (signal.SIGKILL, "q4"))
def test_all_is_there(managers, models, judge_of, how, kv_type):
    """Prompts of lengths around a block's: all that can be of use, in the next process and in the one after it."""
    m, judge = managers("--model", models("llama"), *options_of(kv_type)), judge_of("llama", kv_type=kv_type)
    d = m.start()
    assert set(m.names()) == NAMES
    asked = [random_ids(i, n) for i, n in enumerate([1, 2, 15, 16, 17, 31, 32, 33, 64, 300, 513, 700])]
    files = {name: os.fstat(m.fd(name)).st_ino for name in NAMES}
    for ids in asked:
        assert ask(d, judge, ids) == 0
    for turn in range(2):
        d.idle()
        d = end(m, how)
        assert {name: os.fstat(m.fd(name)).st_ino for name in NAMES} == files
        before = d.status()["prompt_tokens"]
        for ids in asked:
            assert ask(d, judge, ids) == prefix.reusable(len(ids), kv_type), f"{len(ids)} tokens, turn {turn}"
        computed = sum(len(ids) - prefix.reusable(len(ids), kv_type) for ids in asked)
        assert d.status()["prompt_tokens"] - before == computed
        # What is new goes beside what was there.
        more = random_ids(100 + turn, 200)
        assert ask(d, judge, asked[-1] + more) == prefix.common(len(asked[-1]), kv_type)
        asked.append(asked[-1] + more)
    m.check()


@kv_types("f16", "q8", "q4")
def test_answers_go_on(managers, models, judge_of, kv_type):
    """Turns of a chat over processes: what was generated is there, too."""
    m = managers("--model", models("qwen3"), *options_of(kv_type), listen=True, abstract=True)
    judge = judge_of("qwen3", kv_type=kv_type)
    d = m.start()
    ids, known = random_ids(2, 40), 0
    for turn in range(8):
        n = [1, 2, 15, 16, 17, 40][turn % 6]
        with d.client() as c:
            r = prefix.ask(c, ids, n)
        judge.right(ids, r)
        assert r.usage["cached"] == prefix.common(known, kv_type), f"turn {turn}"
        known = len(ids) + n - 1
        ids = ids + r.ids + random_ids(100 + turn, 7)
        d.idle()
        d = end(m, ENDS[turn % 3 if turn < 4 else turn % 2])


@pytest.mark.parametrize("arch,block_tokens,kv_type", [
    ("llama", 16, "f16"), ("gemma3", 32, "q4"), ("gemma3, window 520", 64, "q8"), ("qwen2", 16, "f16"), ("phi3", 32, "q4")])
def test_random(managers, models, judge_of, arch, block_tokens, kv_type):
    """Random prompts with common beginnings, several clients at once, in a small pool, and processes that end in every way."""
    print(f"KVD_TEST_SEED={SEED}")
    m = managers("--model", models(arch), "--kv-memory", "6M" if kv_type == "f16" else "2M", "--kv-type", kv_type,
                 "--block-tokens", block_tokens, "--prefill-quantum", "96")
    judge, rng = judge_of(arch, kv_type=kv_type), random.Random(SEED)
    d, n_cached = m.start(), 0
    for turn in range(30 if LONG else 2 if SANITIZED else 4):
        with d.client() as c:
            # The same prompts every other time, so that there is something to find.
            n_cached += random_requests(d, judge, SEED + turn // 2, prefix.N_VOCAB, 24 if LONG else 12, 600, c.tokenize)
        d.idle()
        d = end(m, rng.choice(ENDS[:2]) if turn % 4 else ENDS[2])
    assert n_cached > 0
    d.idle()


@pytest.mark.skipif(SANITIZED, reason="hours; the tiny models go the same ways")
@pytest.mark.parametrize("variable", MODELS)
def test_random_real(managers, judge_of, variable):
    """The same with the real models; every prompt a second time in another process, where all of it is found."""
    print(f"KVD_TEST_SEED={SEED}")
    path = path_of(variable)
    m, judge = managers("--model", path, "--ctx", 4096, "--kv-memory", "256M"), judge_of(path, "--ctx", 4096)
    d, rng, n_cached = m.start(), random.Random(SEED), 0
    with d.client() as c:
        n_vocab = c.call(k.MODELS)["models"][0]["n_vocab"]
    for turn in range(10 if LONG else 2):
        with d.client() as c:
            n_cached += random_requests(d, judge, SEED + turn // 2, n_vocab, 12 if LONG else 4, 400 if LONG else 80,
                                        c.tokenize, longest=12 if LONG else 4)
            ids = c.tokenize(prefix.words(rng, 200 if LONG else 40))
        assert ask(d, judge, ids) < len(ids) - 1
        d.idle()
        d = end(m, ENDS[turn % 2])
        assert ask(d, judge, ids) == len(ids) - 1
    assert n_cached > 0
    d.idle()


def test_nothing_is_kept(managers, models, judge_of):
    """No service manager, one that keeps nothing, and --no-cache."""
    m, judge = managers("--model", models("llama"), *OPTIONS, notify=False), judge_of("llama")
    ids = random_ids(1, 100)
    d = m.start()
    ask(d, judge, ids)
    assert ask(m.restart(), judge, ids) == 0
    assert not m.messages
    m = managers("--model", models("llama"), *OPTIONS, max_fds=0)
    d = m.start()
    assert set(m.refused) == NAMES
    ask(d, judge, ids)
    assert ask(m.restart(), judge, ids) == 0
    # One that does without takes what is there out of the store.
    m = managers("--model", models("llama"), *OPTIONS)
    ask(m.start(), judge, ids)
    m.restart("--no-cache")
    assert m.names() == ["kvd-life"]
    assert ask(m.restart(), judge, ids) == 0
    assert ask(m.restart(), judge, ids) == len(ids) - 1


def test_children_get_nothing(managers, models):
    """What came is close-on-exec, and there is no more of it with each process."""
    m = managers("--model", models("llama"), *OPTIONS, listen=True)
    m.start()
    n = m.restart().fds()
    for _ in range(4):
        d = m.restart()
        # What it has open for a moment may be among them, then and now.
        d.until(lambda: d.fds() <= n, "as many descriptors as before")
        for fd in os.listdir(f"/proc/{d.proc.pid}/fd"):
            try:
                info = pathlib.Path(f"/proc/{d.proc.pid}/fdinfo/{fd}").read_text()
            except FileNotFoundError:
                continue  # closed since it was listed
            flags = int(info.split("flags:")[1].split()[0], 8)
            assert int(fd) < 3 or flags & os.O_CLOEXEC, os.readlink(f"/proc/{d.proc.pid}/fd/{fd}")


# --- another size, other blocks, other models ---

def test_other_size(managers, models, judge_of):
    """What fits is there, in a pool of another size; and all answers are right."""
    m, judge = managers("--model", models("llama"), "--block-tokens", BLOCK), judge_of("llama")
    asked = [random_ids(i, 400) for i in range(6)]
    d = m.start("--kv-memory", "16M")
    for ids in asked:
        ask(d, judge, ids)
    d = m.restart("--kv-memory", "16M")
    assert [ask(d, judge, ids) for ids in asked] == [399] * 6
    for size in (8, 2, 64, 16):
        d = m.restart("--kv-memory", f"{size}M")
        assert set(m.names()) == NAMES
        found = [ask(d, judge, ids) for ids in asked]
        # The file can't be made shorter, but what is beyond is given back.
        assert os.fstat(m.fd("kvd-pool")).st_blocks * 512 <= size << 20
        # What found no room before was computed again, and fits now.
        assert (size in (2, 64)) or found == [399] * 6, (size, found)
    assert [ask(m.restart(), judge, ids) for ids in asked] == [399] * 6


def test_other_blocks(managers, models, judge_of):
    m, judge = managers("--model", models("llama"), "--kv-memory", "32M"), judge_of("llama")
    ids = random_ids(1, 300)
    ask(m.start("--block-tokens", 16), judge, ids)
    assert ask(m.restart("--block-tokens", 32), judge, ids) == 0
    assert ask(m.restart("--block-tokens", 64), judge, ids) == 0
    # They are of different roots: none takes another's, and each finds its own.
    for block in (16, 32, 64):
        assert ask(m.restart("--block-tokens", block), judge, ids) == 299


def test_other_type(managers, models, judge_of):
    """Of a type there is what was computed of that type, after another had the memory, too."""
    m, ids = managers("--model", models("llama"), "--kv-memory", "32M", "--block-tokens", 32), random_ids(1, 300)
    judges = {kv_type: judge_of("llama", kv_type=kv_type) for kv_type in prefix.KV_TYPES}
    assert ask(m.start("--kv-type", "f16"), judges["f16"], ids) == 0
    assert ask(m.restart("--kv-type", "q8"), judges["q8"], ids) == 0
    assert ask(end(m, signal.SIGKILL, "--kv-type", "q4"), judges["q4"], ids) == 0
    for kv_type in prefix.KV_TYPES:
        assert ask(m.restart("--kv-type", kv_type), judges[kv_type], ids) == prefix.reusable(300, kv_type)


def test_other_level(managers, models, judge_of):
    """Numbers of another CPU level are another's, although they happen to agree."""
    m, judge = managers("--model", models("llama"), *OPTIONS), judge_of("llama", "--cpu-level", "c")
    ids = random_ids(1, 100)
    ask(m.start("--cpu-level", "c"), judge, ids)
    d = m.restart()
    with d.client() as c:
        assert prefix.ask(c, ids).usage["cached"] == 0
    assert ask(m.restart("--cpu-level", "c"), judge, ids) == 99


def test_other_weights(managers, models, judge_of):
    """Another file at the same path, of the same shape: nothing of one is the other's, and each finds its own."""
    files = [models("llama"), models("llama", seed=77)]
    judges = [judge_of(f) for f in files]
    m, ids = managers(*OPTIONS), random_ids(1, 200)
    path = m.dir / "model.gguf"
    for turn in range(4):
        shutil.copy(files[turn % 2], path)
        d = m.restart("--model", path) if turn else m.start("--model", path)
        assert ask(d, judges[turn % 2], ids) == (0 if turn < 2 else 199)


def test_models_come_and_go(managers, models, judge_of):
    """Two models, one of them, both again; and what another file at the same path is."""
    a, b = models("llama"), models("gemma3")
    judges = {a: judge_of("llama"), b: judge_of("gemma3")}
    m = managers(*OPTIONS)
    asked = {a: random_ids(1, 333), b: random_ids(2, 222)}

    def check(d, model, want):
        assert ask(d, judges[model], asked[model], model=model.stem) == want
    both = ("--model", a, "--model", b)
    d = m.start(*both)
    check(d, a, 0)
    check(d, b, 0)
    d = m.restart("--model", b)
    check(d, b, 221)
    d = m.crash("--model", a)
    check(d, a, 332)
    d = m.restart(*both)
    check(d, a, 332)
    check(d, b, 221)
    # Another model of the same name.
    folder = m.dir / "same"
    folder.mkdir()
    shutil.copy(b, folder / a.name)
    d = m.restart("--model", folder / a.name)
    with d.client() as c:
        assert prefix.ask(c, asked[a], 4).usage["cached"] == 0
        assert prefix.ask(c, asked[b], 4).usage["cached"] == 221
    # None at the start: what is stored stays, for one that is loaded later.
    d = m.restart()
    assert set(m.names()) == NAMES
    d = m.restart()
    with d.client() as c:
        c.load(a, a.stem)
    check(d, a, 332)


@kv_types("q8")
def test_swap(managers, models, judge_of, kv_type):
    """A model that is unloaded and loaded again finds its blocks; in the same process and in the next."""
    a, b = models("llama"), models("gemma3")
    judges = {a: judge_of("llama", kv_type=kv_type), b: judge_of("gemma3", kv_type=kv_type)}
    m = managers("--model", a, *options_of(kv_type))
    d, ids = m.start(), random_ids(3, 300)
    again = prefix.reusable(300, kv_type)
    assert ask(d, judges[a], ids) == 0
    for turn in range(3):
        with d.client() as c:
            c.call(k.UNLOAD, {"model": a.stem})
            c.load(b, b.stem)
        assert ask(d, judges[b], ids, model=b.stem) == (again if turn else 0)
        with d.client() as c:
            c.call(k.UNLOAD, {"model": b.stem})
            c.load(a, a.stem)
        assert ask(d, judges[a], ids, model=a.stem) == again
        d.idle()
        d = end(m, ENDS[turn])


def test_expired(managers, models, judge_of):
    """What expires does so while nobody runs."""
    m, judge = managers("--model", models("llama"), *OPTIONS), judge_of("llama")
    short, long = random_ids(1, 100), random_ids(2, 100)
    d = m.start()
    ask(d, judge, short, ttl_s=2)
    ask(d, judge, long, ttl_s=3600)
    d.idle()
    d.crash()
    time.sleep(2.1)
    d = m.start()
    assert ask(d, judge, short) == 0
    assert ask(d, judge, long) == 99


@pytest.mark.skipif(os.geteuid() != 0, reason="takes other uids, so root")
def test_users(managers, directory):
    """After a restart a uid has all of its own, and nothing of another's."""
    for f in ("asker.py", "kvdclient.py"):
        shutil.copy(HERE / f, directory)
    m = managers("--model", make_tiny(directory / "model.gguf", "--layers", "4", "--ctx", "2048"), "--socket-mode", "0666",
                 *OPTIONS)
    os.chmod(m.dir, 0o755)
    asked = {uid: random_ids(uid, 500, 500) for uid in (20011, 20012)}

    def cached(uid, ids):
        asker = Asker(directory / "asker.py", d.socket, uid)
        try:
            r = asker("generate", ids=ids, n=4, ignore_eos=True)
            assert not r["error"], r
            return r["usage"]["cached"], r["usage"]["miss"]
        finally:
            asker.close()
    d = m.start()
    for uid, ids in asked.items():
        assert cached(uid, ids)[0] == 0
    for how in ("restart", signal.SIGKILL):
        d.idle()
        d = end(m, how)
        one, two = asked.values()
        # As a prompt that nobody ever sent.
        assert cached(20012, one) == cached(20012, random_ids(how, 500, 500))
        assert cached(20011, two) == cached(20011, random_ids(f"{how} 2", 500, 500))
        assert cached(20011, one) == (499, k.MISS_NONE)
        assert cached(20012, two) == (499, k.MISS_NONE)
        asked = {uid: random_ids(f"{uid} {how}", 500, 500) for uid in asked}
        for uid, ids in asked.items():
            cached(uid, ids)
    # A name in the index that somebody has changed makes it nobody's.
    d.idle()
    d.stop()
    assert replace(m.fd("kvd-index"), b"uid:20011", b"uid:20012")
    d = m.start()
    one, two = asked.values()
    assert cached(20012, one) == cached(20012, random_ids("nobody's", 500, 500))
    assert cached(20011, one)[0] == 0
    assert cached(20012, two) == (499, k.MISS_NONE)


# --- descriptors that are not what they should be ---

def memory(n=4096, seals=3, data=b""):
    fd = os.memfd_create("test", os.MFD_CLOEXEC | 2)
    os.ftruncate(fd, n)
    os.pwrite(fd, data, 0)
    if seals:
        import fcntl
        fcntl.fcntl(fd, 1033, seals)
    return fd


def copy(fd, seals=3, size=None):
    """A memfd with the same bytes."""
    n = os.fstat(fd).st_size if size is None else size
    with mmap.mmap(fd, os.fstat(fd).st_size, prot=mmap.PROT_READ) as m:
        return memory(n, seals, m[:n])


def wrong_descriptors(pool, index):
    """{what: (name, descriptor)...} to put in place of what was stored."""
    r, w = os.pipe()
    os.close(w)
    rng = random.Random(1)
    size = os.fstat(index).st_size
    # The index knows its pool by the inode, so that a pool's copy is none: what is wrong with an index shows beside the pool.
    return {
        "a pipe": [("kvd-pool", r), ("kvd-index", copy(index))],
        "an empty pool": [("kvd-pool", memory(0)), ("kvd-index", copy(index))],
        "a cut pool": [("kvd-pool", copy(pool, size=os.fstat(pool).st_size // 2)), ("kvd-index", copy(index))],
        "a copied pool": [("kvd-pool", copy(pool)), ("kvd-index", os.dup(index))],
        "a copied index": [("kvd-pool", os.dup(pool)), ("kvd-index", copy(index))],
        "a cut index": [("kvd-pool", os.dup(pool)), ("kvd-index", copy(index, size=size // 2))],
        "a short index": [("kvd-pool", os.dup(pool)), ("kvd-index", copy(index, size=4096))],
        "an odd index": [("kvd-pool", os.dup(pool)), ("kvd-index", copy(index, size=size - 5))],
        "an empty index": [("kvd-pool", os.dup(pool)), ("kvd-index", memory(0))],
        "an unsealed pool": [("kvd-pool", copy(pool, seals=0)), ("kvd-index", copy(index))],
        "an unsealed index": [("kvd-pool", os.dup(pool)), ("kvd-index", copy(index, seals=0))],
        "sealed against writing": [("kvd-pool", os.dup(pool)), ("kvd-index", copy(index, seals=3 | 8))],
        "sealed against mapping": [("kvd-pool", os.dup(pool)), ("kvd-index", copy(index, seals=3 | 16))],
        "sealed against growing": [("kvd-pool", os.dup(pool)), ("kvd-index", copy(index, seals=3 | 4))],
        "a random index": [("kvd-pool", os.dup(pool)), ("kvd-index", memory(size, data=rng.randbytes(min(size, 1 << 20))))],
        "a zero index": [("kvd-pool", os.dup(pool)), ("kvd-index", memory(size))],
        "exchanged names": [("kvd-index", copy(pool)), ("kvd-pool", copy(index))],
        "one for both": [("kvd-index", copy(index)), ("kvd-pool", copy(index))],
        "a pool alone": [("kvd-pool", copy(pool))],
        "an index alone": [("kvd-index", copy(index))],
        "two pools": [("kvd-pool", copy(pool)), ("kvd-pool", copy(pool)), ("kvd-index", copy(index))],
        "a directory": [("kvd-pool", os.open("/", os.O_RDONLY)), ("kvd-index", os.open("/", os.O_RDONLY))],
        "a device": [("kvd-pool", os.open("/dev/zero", os.O_RDWR)), ("kvd-index", os.open("/dev/null", os.O_RDWR))],
        "others": [("stored", memory()), ("kvd-poo", memory()), ("kvd-life", memory())],
    }


WRONG = sorted(wrong_descriptors(memory(8), memory(8)))


@pytest.mark.parametrize("what", WRONG)
def test_wrong_descriptors(managers, models, judge_of, what):
    """It starts, answers, has taken what it was given out of the store, and keeps what is new."""
    m, judge = managers("--model", models("llama"), "--block-tokens", BLOCK), judge_of("llama")
    ids = random_ids(1, 200)
    d = m.start("--kv-memory", "8M")
    ask(d, judge, ids)
    d.idle()
    d.stop()
    for other, put in wrong_descriptors(m.fd("kvd-pool"), m.fd("kvd-index")).items():
        if other != what:
            for _, fd in put:
                os.close(fd)
        else:
            chosen = put
    m.forget()
    for name, fd in chosen:
        m.put(name, fd)
    # Growing is no wrong: it may not fit as well as it did.
    d = m.start("--kv-memory", "16M" if "growing" in what else "8M")
    assert ask(d, judge, ids) in (0, 199)
    assert set(m.names()) == NAMES
    assert all(os.fstat(m.fd(name)).st_size > 0 for name in NAMES)
    m.restart()
    assert ask(m.daemon, judge, ids) == 199


def test_of_another_run(managers, models, judge_of):
    """A pool and an index that are each good, and do not belong together."""
    judge = judge_of("llama")
    ms = [managers("--model", models("llama"), "--kv-memory", "8M", "--block-tokens", BLOCK) for _ in range(2)]
    asked = [random_ids(i, 200) for i in range(2)]
    for m, ids in zip(ms, asked):
        ask(m.start(), judge, ids)
        m.daemon.stop()
    indexes = [os.dup(m.fd("kvd-index")) for m in ms]
    for m, fd in zip(ms, reversed(indexes)):
        m.forget("kvd-index")
        m.put("kvd-index", fd)
        d = m.start()
        for ids in asked:
            assert ask(d, judge, ids) == 0


def test_sockets(managers, models):
    """More than one socket, and one under a name of ours."""
    m = managers("--model", models("llama"), *OPTIONS, listen=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(str(m.dir / "other.sock"))
        other.listen(1)
        d = m.start(sockets=(other,), wait=False)
        assert d.proc.wait(20) == 1
        assert "passed 2 sockets, one is wanted" in m.log()
        d.stopped = True
        m.put("kvd-pool", os.dup(other.fileno()))
        d = m.start()
        assert "kvd-pool: it is not a file in memory" in m.log()
        d.idle()


# --- damage, and ends at any instant ---

def flip(rng, fd, n):
    """Bits of a memfd where it has data; some beside others."""
    size, extents, at = os.fstat(fd).st_size, [], 0
    while at < size:
        try:
            begin = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            break
        at = os.lseek(fd, begin, os.SEEK_HOLE)
        extents.append((begin, at))
    for _ in range(n if extents else 0):
        begin, stop = rng.choice(extents)
        for _ in range(30):
            # Heads and the first records are small and matter most; most of the rest is zero, and not in use.
            at = rng.randrange(begin, stop if rng.random() < 0.5 else min(stop, begin + 8192))
            if os.pread(fd, 1, at) != b"\0":
                break
        for place in range(at, min(at + rng.choice([1, 1, 1, 8, 64]), size)):
            old = os.pread(fd, 1, place)[0]
            os.pwrite(fd, bytes([rng.choice([old ^ 1 << rng.randrange(8), rng.randrange(256), 0, 255])]), place)


def replace(fd, old, new):
    """Bytes of a memfd, wherever they are; how often."""
    with mmap.mmap(fd, os.fstat(fd).st_size) as memory_of:
        n, at = 0, memory_of.find(old)
        while at >= 0:
            memory_of[at:at + len(new)] = new
            n, at = n + 1, memory_of.find(old, at + 1)
        return n


def test_other_tokens(managers, models, judge_of):
    """The index says that keys and values are of other tokens than those that they are of; somebody asks for these."""
    m, judge = managers("--model", models("llama"), *OPTIONS), judge_of("llama")
    d = m.start()
    asked = [random_ids(i, 100) for i in range(6)]
    for ids in asked:
        ask(d, judge, ids)
    d.idle()
    d.stop()
    for i, ids in enumerate(asked):
        other = list(ids)
        at = BLOCK * i + i
        other[at] = ids[at] + 1 if ids[at] + 1 < prefix.N_VOCAB else 3
        # The whole block's, or the rest's.
        part = slice(at // BLOCK * BLOCK, min(len(ids), (at // BLOCK + 1) * BLOCK))
        n = len(ids[part])
        assert replace(m.fd("kvd-index"), struct.pack(f"<{n}i", *ids[part]), struct.pack(f"<{n}i", *other[part])) == 1
        asked[i] = other
    d = m.start()
    for i, ids in enumerate(asked):
        assert ask(d, judge, ids) <= BLOCK * i


@kv_types("q8")
def test_flips(managers, models, judge_of, kv_type):
    """Bits that fell over between two processes: every start succeeds and every answer is right."""
    print(f"KVD_TEST_SEED={SEED}")
    m = managers("--model", models("llama"), "--kv-memory", "4M", *options_of(kv_type)[2:])
    judge, rng = judge_of("llama", kv_type=kv_type), random.Random(SEED)
    common = random_ids(0, 150)
    asked = [common[:rng.choice([0, 40, 150])] + random_ids(i, rng.randrange(20, 200)) for i in range(8)]
    d, n_cached = m.start(), 0
    for turn in range(400 if LONG else 10 if SANITIZED else 40):
        for ids in asked:
            n_cached += ask(d, judge, ids, n=4)
        if turn % 2:
            d.stop()
        else:
            d.idle()
            d.crash()
        for name, most in (("kvd-index", 4), ("kvd-pool", 4), ("kvd-life", 1)):
            flip(rng, m.fd(name), rng.choice([0, 1, most]) if turn % 10 else 200)
        d = m.start()
    assert n_cached > 0
    d.idle()


@kv_types("q4")
def test_killed_under_load(managers, models, judge_of, kv_type):
    """kill -9 at random instants, in every other round with bits that fall over: nothing that was there is lost, or wrong."""
    print(f"KVD_TEST_SEED={SEED}")
    m, block = managers("--model", models("gemma3"), *options_of(kv_type)), prefix.block_of(kv_type, BLOCK)
    judge, rng = judge_of("gemma3", kv_type=kv_type), random.Random(SEED)
    prompts = prefix.Prompts(rng, prefix.N_VOCAB, 400)
    d, there = m.start(), []
    for turn in range(100 if LONG else 6 if SANITIZED else 16):
        # Nothing is evicted here, so that what has an answer must be there.
        asked = [prompts.next() for _ in range(8)]
        done, lock = [], threading.Lock()

        def work(part, daemon=d, done=done, lock=lock):
            try:
                with daemon.client() as c:
                    for ids in part:
                        r = prefix.ask(c, ids, 6)
                        with lock:
                            done.append((ids, r))
            except (OSError, k.Closed, AssertionError):
                pass
        threads = [threading.Thread(target=work, args=(asked[i::4],)) for i in range(4)]
        for t in threads:
            t.start()
        time.sleep(rng.random() * (0.2 if turn % 3 else 0.05))
        d.crash()
        for t in threads:
            t.join()
        flipped = turn % 2 == 1
        if flipped:
            for name in ("kvd-index", "kvd-pool"):
                flip(rng, m.fd(name), 3)
        for _ in range(rng.choice([0, 0, 1, 3])):
            # While it starts, and finds what is there.
            m.start(wait=False)
            time.sleep(rng.random() * 0.1)
            m.daemon.crash()
        d = m.start()
        for ids, r in done:
            if r.reason:
                judge.right(ids, r)
                there.append(ids)
        for ids in rng.sample(there, min(6, len(there))) if flipped else there[-12:]:
            cached = ask(d, judge, ids, n=3)
            assert flipped or cached >= (len(ids) - 1) // block * block, f"turn {turn}: {cached} of {len(ids)}"
        if flipped:
            for ids in there:
                ask(d, judge, ids, n=3)
    d.idle()


# --- ends that count against what is left ---

@pytest.fixture
def kernel(directory):
    """kernel(n): it has killed so often since memory ran out."""
    folder = directory / "proc"
    folder.mkdir()

    def kills(n):
        (folder / "vmstat").write_text(f"nr_free_pages 100\noom_kill {n}\nballoon_inflate 0\n")
    kills(3)
    kills.env = {"KVD_TEST_PROC": str(folder)}
    return kills


def test_out_of_memory(managers, models, judge_of, kernel):
    """Killed since memory ran out: what took it is given back before anything else."""
    m, judge, ids = managers("--model", models("llama"), *OPTIONS), judge_of("llama"), random_ids(1, 300)
    d = m.start(env=kernel.env)
    ask(d, judge, ids)
    assert ask(m.crash(env=kernel.env), judge, ids) == 299
    d, pool = m.daemon, os.fstat(m.fd("kvd-pool")).st_ino
    # The kernel counts, then kills.
    kernel(4)
    d.crash()
    d = m.start(env=kernel.env)
    assert "dropped: memory ran out" in m.log()
    assert os.fstat(m.fd("kvd-pool")).st_ino != pool and set(m.names()) == NAMES
    assert ask(d, judge, ids) == 0
    # That is over now.
    assert ask(m.crash(env=kernel.env), judge, ids) == 299
    # One that ends in order was not killed, whoever was.
    kernel(5)
    assert ask(m.restart(env=kernel.env), judge, ids) == 299
    # Counts that go back, or are not told, are another machine's or another boot's.
    kernel(1)
    assert ask(m.crash(env=kernel.env), judge, ids) == 299
    assert ask(m.crash(env={"KVD_TEST_PROC": "/nonexistent"}), judge, ids) == 299
    kernel(9)
    assert ask(m.crash(env=kernel.env), judge, ids) == 299


def test_crashes_in_a_row(managers, models, judge_of):
    """Who crashes again and again does so without what was left, in the end; who is killed keeps it."""
    m, judge, ids = managers("--model", models("llama"), *OPTIONS), judge_of("llama"), random_ids(1, 300)
    ask(m.start(), judge, ids)
    for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT, signal.SIGKILL):
        assert ask(m.crash(number=number), judge, ids) == 299
    d = m.crash(number=signal.SIGBUS)
    assert "dropped: it crashed again and again" in m.log()
    assert ask(d, judge, ids) == 0
    assert ask(m.crash(number=signal.SIGSEGV), judge, ids) == 299
    for _ in range(6):
        assert ask(m.crash(), judge, ids) == 299
