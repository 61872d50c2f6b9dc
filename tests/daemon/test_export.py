# SPDX-License-Identifier: Apache-2.0
"""The cache as bytes: what one daemon exports another takes, and answers the same to the bit; nobody else gets it; whatever
is wrong with the file, nothing but a miss comes of it; what is stored is compared with what is computed."""
import os
import random
import signal
import stat
import struct
import subprocess
import threading
import time

import kvdclient as k
import prefix
import pytest
from conftest import BUILD, LONG, PATIENCE, make_tiny
from kvtypes import kv_types
from test_cache_control import UIDS, as_user, clients, needs_root  # noqa: F401

BLOCK = 16
SEED = int(os.environ.get("KVD_TEST_SEED", "1"))
SHAPE = ("--type", "q4_1", "--layers", "4", "--kv-heads", "4", "--heads", "4", "--head-dim", "32", "--vocab",
         str(prefix.N_VOCAB), "--ctx", "2048")     # 2 KiB of keys and values for each token


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf", *SHAPE)


@pytest.fixture
def start(daemons, directory, model):
    n = iter(range(100))

    def start(*options, memory="16M", file=None, block=BLOCK, **kw):
        return daemons("--model", file or model, "--kv-memory", memory, "--threads", "1", "--socket-mode", "0666",
                       "--block-tokens", block, *options, socket=directory / f"kvd{next(n)}.sock", **kw)
    return start


@pytest.fixture
def judge(start):
    j = prefix.Judge(start("--no-cache"))
    yield j
    j.close()


@pytest.fixture
def start_type(start, kv_type):
    def start_one(*options, **kw):
        return start("--kv-type", kv_type, *options, block=prefix.block_of(kv_type, BLOCK), **kw)
    return start_one


@pytest.fixture
def judge_type(start_type, kv_type):
    j = prefix.Judge(start_type("--no-cache"), kv_type)
    yield j
    j.close()


# Of SHAPE: 4 layers of 4 heads of 32 channels.  In turn: a number of 16 bits; 8, and a scale for 32; 4, and two scales
# for 32, once for a token's values and, for the keys, a channel's 32 tokens.
TOKEN_BYTES = {"f16": 4 * 4 * 2 * 64, "q8": 4 * 4 * 2 * 34, "q4": 4 * 4 * 2 * 20}


def random_ids(seed, n):
    rng = random.Random(seed)
    return [rng.randrange(3, prefix.N_VOCAB) for _ in range(n)]


def branches(seed=1):
    """Prompts with common beginnings, of lengths around a block's."""
    a, b = random_ids(seed, 300), random_ids(seed + 100, 70)
    return [a, a[:150] + random_ids(seed + 1, 90), a[:64] + random_ids(seed + 2, 17), b, b[:33] + random_ids(seed + 3, 100)]


def fill(d, prompts, **fields):
    with d.client() as c:
        for ids in prompts:
            assert not prefix.ask(c, ids, 2, **fields).error


def export(d, path, user=None, **fields):
    with d.client() as c:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            return c.share(k.CACHE_EXPORT, fd, **fields)
        finally:
            os.close(fd)


def take(c, path, **fields):
    fd = os.open(path, os.O_RDONLY)
    try:
        return c.share(k.CACHE_IMPORT, fd, **fields)
    finally:
        os.close(fd)


def all_cached(d, judge, prompts, **fields):
    """Each prompt is found but for its last token, and answered as without a cache."""
    with d.client() as c:
        for ids in prompts:
            r = prefix.ask(c, ids, 6, **fields)
            assert r.usage["cached"] == prefix.reusable(len(ids), judge.kv_type), (len(ids), r.usage)
            judge.right(ids, r)


def refused(code, fn, *args, **fields):
    with pytest.raises(k.Refused) as e:
        fn(*args, **fields)
    assert e.value.code == code, e.value.fields
    return e.value.fields["message"]


def nothing_cached(d, prompts, **fields):
    with d.client() as c:
        for ids in prompts:
            assert prefix.ask(c, ids, 1, **fields).usage["cached"] == 0


# --- from one daemon to another ------------------------------------------------------------


@kv_types(*prefix.KV_TYPES)
def test_same_answers(start_type, judge_type, directory, kv_type):
    start, judge = start_type, judge_type
    prompts, keyed = branches(), [random_ids(50, 100)]
    a = start()
    fill(a, prompts)
    fill(a, keyed, cache_key="k \u00e9")
    fill(a, [random_ids(60, 50)], ttl_s=1000)
    r = export(a, directory / "x")
    with a.client() as c:
        entries = c.cache_ls()
    assert (r["n_entries"], r["n_tokens"]) == (len(entries), sum(e["n_tokens"] for e in entries)) and r["code"] == 0
    assert r["bytes"] == r["n_tokens"] * TOKEN_BYTES[kv_type]
    assert r["bytes"] < os.stat(directory / "x").st_size < r["bytes"] * 1.1
    if kv_type == "q4":
        assert all(e["n_tokens"] % prefix.Q4_BLOCK == 0 for e in entries)
    b = start()
    with b.client() as c:
        got = take(c, directory / "x")
        assert (got["n_entries"], got["n_tokens"], got["n_there"], got["n_left"], got["code"]) == \
            (r["n_entries"], r["n_tokens"], 0, 0, 0)
        there = c.cache_ls()
        assert sorted((e["namespace"], e["first"], e["n_tokens"], e["words"]) for e in there) == \
            sorted((e["namespace"], e["first"], e["n_tokens"], e["words"]) for e in entries)
        assert all(0 < e["ttl_ns"] <= 1000 * 10**9 for e in there if "ttl_ns" in e)
        assert sum("ttl_ns" in e for e in there) == (1 if kv_type == "q4" else 4)
        # Again: all of it is there.
        got = take(c, directory / "x")
        assert (got["n_entries"], got["n_there"]) == (0, r["n_entries"])
        computed = b.status()["prompt_tokens"]
        assert computed == 0
        v = c.call(k.CACHE_VERIFY, {"count": 2**32 - 1})
        assert (v["n_entries"], v["n_tokens"], v["n_differ"]) == (r["n_entries"], r["n_tokens"], 0)
    all_cached(b, judge, prompts)
    all_cached(b, judge, keyed, cache_key="k \u00e9")
    nothing_cached(b, keyed)
    # All in one place.
    d = start()
    with d.client() as c:
        assert take(c, directory / "x", cache_key="one")["n_entries"] == r["n_entries"]
    all_cached(d, judge, prompts + keyed, cache_key="one")
    nothing_cached(d, prompts[:1])


@kv_types("f16", "q4")
def test_from_the_host_tier(start_type, judge_type, directory, kv_type):
    """What lies behind the pool, coded, leaves it as it was computed."""
    start, judge = start_type, judge_type
    prompts = [random_ids(i, 500 + i) for i in range({"f16": 8, "q8": 12, "q4": 20}[kv_type])]
    a = start("--host-memory", "12M", memory="4M" if kv_type == "f16" else "2M")
    fill(a, prompts)
    with a.client() as c:
        assert sum(e["tier"] == "host" for e in c.cache_ls()) > 100
        v = c.call(k.CACHE_VERIFY, {"count": 120})
        assert v["n_entries"] >= 120 and v["n_differ"] == 0
    export(a, directory / "x")
    b = start()
    with b.client() as c:
        take(c, directory / "x")
    all_cached(b, judge, prompts)
    a.idle()


def test_part(start, directory):
    """A namespace below one's own, alone."""
    a = start()
    fill(a, branches()[:1])
    fill(a, [random_ids(9, 40)], cache_key="k")
    assert export(a, directory / "x", namespace="own/k")["n_entries"] == 3
    b = start()
    with b.client() as c:
        assert take(c, directory / "x")["n_entries"] == 3
        assert {e["namespace"] for e in c.cache_ls()} == {f"uid:{os.geteuid()}"}


def test_nothing(start, directory):
    a = start()
    assert export(a, directory / "x")["n_entries"] == 0
    with a.client() as c:
        r = take(c, directory / "x")
        assert (r["n_entries"], r["code"]) == (0, 0)
        assert c.call(k.CACHE_VERIFY)["n_entries"] == 0


def test_pipes(start, judge, directory):
    """From one to the other without a file; readers that are slow, and that go."""
    prompts = branches()
    a, b = start(), start()
    fill(a, prompts)
    with a.client() as ca, b.client() as cb:
        r, w = os.pipe()
        one = ca.share(k.CACHE_EXPORT, w, wait=False)
        os.close(w)
        two = cb.share(k.CACHE_IMPORT, r, wait=False)
        os.close(r)
        sent, got = ca.reply(one), cb.reply(two)
        assert sent["n_entries"] == got["n_entries"] > 30
        # Nobody reads: others go on, and the export ends when it is given up, and when its reader goes.
        r, w = os.pipe()
        rid = ca.share(k.CACHE_EXPORT, w, wait=False, progress=True)
        for ids in prompts:
            assert prefix.ask(ca, ids, 4).usage["cached"] == len(ids) - 1
        ca.send(k.CANCEL, {"id": rid})
        refused(15, ca.reply, rid)
        rid = ca.share(k.CACHE_EXPORT, w, wait=False)
        os.close(w)
        assert ca.receive(0.3) is None
        os.close(r)
        assert "Broken pipe" in refused(19, ca.reply, rid)
        # Nobody writes.
        r, w = os.pipe()
        rid = ca.share(k.CACHE_IMPORT, r, wait=False)
        assert ca.receive(0.3) is None
        os.close(w)
        assert "ends in the middle" in refused(19, ca.reply, rid)
        os.close(r)
    all_cached(b, judge, prompts)
    a.idle()


# --- whose --------------------------------------------------------------------------------


@needs_root
def test_uids(start, clients, judge, directory):  # noqa: F811
    prompts = branches()
    a, b = start("--cache-public"), start("--cache-public")
    one, two = clients(a, *UIDS)
    one_b, two_b = clients(b, *UIDS)
    for ids in prompts:
        prefix.ask(one, ids, 2)
        prefix.ask(two, ids[:20], 2, namespace="public")
    path = directory / "x"

    def export_as(c, **fields):
        with open(path, "wb") as f:
            return c.share(k.CACHE_EXPORT, f.fileno(), **fields)
    # Nothing of another's, and nothing of what is shared.
    assert export_as(two)["n_entries"] == 0
    for name in (f"uid:{UIDS[0]}", f"uid:{UIDS[0]}/k", "public", "own2", f"uid:{UIDS[1]}0"):
        refused(5, export_as, two, namespace=name)
    with a.client() as root:
        assert export_as(root)["n_entries"] == 0
        assert export_as(root, namespace="public")["n_entries"] > 0
        n = export_as(root, namespace=f"uid:{UIDS[0]}")["n_entries"]
        assert n == len([e for e in root.cache_ls() if e["namespace"] == f"uid:{UIDS[0]}"]) > 30
    assert export_as(one)["n_entries"] == n
    # It becomes the other's own, whoever's it was; the first has nothing there.
    assert take(two_b, path)["n_entries"] == n
    with b.client() as root:
        assert {(e["namespace"], e["uid"]) for e in root.cache_ls()} == {(f"uid:{UIDS[1]}", UIDS[1])}
    for ids in prompts:
        r = prefix.ask(one_b, ids, 2)
        assert r.usage["miss"] == k.MISS_EMPTY or r.usage["cached"] < len(ids) - 1
        judge.right(ids, r)
        r = prefix.ask(two_b, ids, 2)
        assert r.usage["cached"] == len(ids) - 1
        judge.right(ids, r)
    # A made-up file's blocks are its importer's alone: in a daemon of the first's own, two's lie is never met.
    lie(path)
    c = start()
    one_c, two_c = clients(c, *UIDS)
    take(two_c, path)
    assert prefix.ask(two_c, prompts[0], 2).usage["cached"] == len(prompts[0]) - 1
    r = prefix.ask(one_c, prompts[0], 4)
    assert r.usage["cached"] == 0
    judge.right(prompts[0], r)
    # Who asks for it learns that it is one.
    assert two_c.call(k.CACHE_VERIFY, {"count": 2**32 - 1})["n_differ"] > 0


def test_quota(start, directory):
    """An import stops at its uid's share, and takes nothing away from what was used meanwhile."""
    a = start()
    fill(a, [random_ids(1, 1000)])
    export(a, directory / "x")
    b = start("--uid-kv-memory", "1M")
    with b.client() as c:
        r = take(c, directory / "x")
        assert r["code"] == 4 and 0 < r["n_entries"] < 62, r
        # What it had is less worth than what it takes now, once nobody uses it.
        prefix.ask(c, random_ids(2, 100), 2)
        r = take(c, directory / "x")
        assert r["code"] == 4
        assert r["n_there"] + r["n_entries"] > 0
    b.idle()


def test_room(start, judge, directory):
    """It takes free room, and its own user's that is not used; never others'."""
    long = [random_ids(i, 900) for i in range(3)]
    a = start()
    fill(a, long)
    export(a, directory / "x")
    b = start(memory="4M")      # 2,048 tokens
    own = [random_ids(10 + i, 300) for i in range(4)]
    fill(b, own)
    with b.client() as c:
        r = take(c, directory / "x")
        assert r["code"] == 10 and "room" in r["message"] and r["n_entries"] > 100
        # All of what was there before made room.
        entries = c.cache_ls()
        assert len(entries) == r["n_entries"]
        rng = random.Random(1)
        for _ in range(20):
            ids = rng.choice(long + own)
            judge.right(ids, prefix.ask(c, ids, 3))
    b.idle()


@needs_root
def test_room_of_others(start, clients, judge, directory):  # noqa: F811
    a = start()
    fill(a, [random_ids(i, 900) for i in range(3)])
    export(a, directory / "x")
    b = start(memory="4M")
    one, two = clients(b, *UIDS)
    theirs = [random_ids(20 + i, 300) for i in range(4)]
    for ids in theirs:
        prefix.ask(one, ids, 1)
    before = {e["entry"] for e in one.cache_ls()}
    r = take(two, directory / "x")
    assert r["code"] == 10 and 0 < r["n_entries"] < 60
    assert {e["entry"] for e in one.cache_ls()} == before
    for ids in theirs:
        judge.right(ids, prefix.ask(one, ids, 4))


# --- what is wrong with a file -------------------------------------------------------------


def sums(data):
    """The file with its checksums made right."""
    return subprocess.run([BUILD / "tests/tools/export-sums", "2048"], input=data, stdout=subprocess.PIPE, check=True).stdout


def lie(path):
    """Keys and values that nobody computed, with checksums that fit."""
    data = bytearray(path.read_bytes())
    at = 32 + struct.unpack_from("<I", data, 24)[0] + 8
    at += 48 + 4 * 16 + 100
    data[at] ^= 0x40
    path.write_bytes(sums(bytes(data)))


def test_damaged(start, judge, directory):
    """Bytes that are not what they were, anywhere: what is taken is right, and nothing ends."""
    prompts = [random_ids(1, 40), random_ids(1, 20) + random_ids(2, 21)]
    a, b = start(), start()
    fill(a, prompts)
    export(a, directory / "x")
    good = (directory / "x").read_bytes()
    rng, n_taken, n_refused = random.Random(SEED), 0, 0
    with b.client() as c:
        for i in range(1000 if LONG else 200):
            data = bytearray(good)
            for _ in range(rng.choice([1, 1, 1, 2, 50])):
                # Headers are a small part of it.
                at = rng.randrange(300) if rng.random() < 0.3 else rng.randrange(len(data))
                data[at] ^= 1 << rng.randrange(8)
            if rng.random() < 0.2:
                data = data[:rng.randrange(len(data))]
            (directory / "y").write_bytes(data)
            try:
                r = take(c, directory / "y")
                assert r["code"] == 19 or bytes(data[:len(good)]) == good
                n_taken += r["n_entries"]
            except k.Refused as e:
                assert e.code == 19
                n_refused += 1
            if i % 20 == 0:
                for ids in prompts:
                    judge.right(ids, prefix.ask(c, ids, 3))
            c.call(k.CACHE_WIPE)
    assert n_taken > 20 and n_refused > 20
    b.idle()


def test_cut(start, directory):
    """What comes before the end stays, and the answer says where it was."""
    a, b = start(), start()
    fill(a, branches())
    n = export(a, directory / "x")["n_entries"]
    good = (directory / "x").read_bytes()
    with b.client() as c:
        for size in (0, 1, 31, 32, 100, len(good) // 3, len(good) - 49, len(good) - 48, len(good) - 1):
            (directory / "y").write_bytes(good[:size])
            if size < 2000:
                assert "ends in the middle" in refused(19, take, c, directory / "y")
                continue
            r = take(c, directory / "y")
            assert r["code"] == 19 and "ends in the middle" in r["message"]
            assert 0 < r["n_entries"] + r["n_there"] <= n
        assert len(c.cache_ls()) == n


def test_of_something_else(start, directory, tmp_path):
    """Another model, level, block size, type: refused, with the field."""
    a = start()
    fill(a, branches())
    export(a, directory / "x")
    other = make_tiny(tmp_path / "other.gguf", *SHAPE, "--seed", "5")
    for options, kw, word in (((), {"file": other}, "model"), (("--cpu-level", "c"), {}, "CPU level"),
                              ((), {"block": 32}, "layout of a block"), (("--kv-type", "q8"), {}, "type of keys and values")):
        b = start(*options, **kw)
        with b.client() as c:
            assert word in refused(19, take, c, directory / "x")
            assert not c.cache_ls()
    with a.client() as c:
        for data, word in ((b"KVDSLOT\n" + bytes(100), "not an export"), (b"GGUF", "ends in the middle"),
                           (b"KVDEXPT\n\2" + bytes(100), "version 2"), (bytes(5000), "not an export"),
                           (b"KVDEXPT\n\1\0\0\0\x10\0\0\0" + bytes(8) + b"\xff\xff\xff\xff" + bytes(50), "damaged")):
            (directory / "y").write_bytes(data)
            assert word in refused(19, take, c, directory / "y")


def test_lies_with_checksums(start, judge, directory):
    """Made up as a whole: it answers the one who took it wrongly, and is found out."""
    ids = random_ids(1, 100)
    a = start()
    fill(a, [ids])
    export(a, directory / "x")
    good = (directory / "x").read_bytes()
    assert sums(good) == good
    lie(directory / "x")
    b = start()
    with b.client() as c:
        assert take(c, directory / "x")["code"] == 0
        v = c.call(k.CACHE_VERIFY, {"count": 2**32 - 1})
        assert v["n_differ"] == 1 and f"namespace uid:{os.geteuid()}" in v["message"] and "tokens 0 to 15" in v["message"]
        # It went with all that follows.
        assert not c.cache_ls()
        judge.right(ids, prefix.ask(c, ids, 3))
    assert "differ from what is computed" in b.log.read_text()


def seek_as_far_as_possible(fd):
    low, high = 0, 2**63
    while high - low > 1:
        try:
            low = os.lseek(fd, (low + high) // 2, os.SEEK_SET)
        except OSError:
            high = (low + high) // 2
    os.lseek(fd, low, os.SEEK_SET)


def test_descriptors(start, directory):
    """Only what can be written, or read, and never keeps anybody waiting."""
    a = start()
    fill(a, branches()[:1])
    (directory / "x").write_bytes(b"")
    with a.client() as c:
        for path, flags in (("/dev/null", os.O_RDWR), ("/", os.O_RDONLY), ("/dev/zero", os.O_RDWR)):
            fd = os.open(path, flags)
            for msg in (k.CACHE_EXPORT, k.CACHE_IMPORT):
                refused(2, c.share, msg, fd)
            os.close(fd)
        fd = os.open(directory / "x", os.O_RDONLY)
        refused(2, c.share, k.CACHE_EXPORT, fd)
        os.close(fd)
        fd = os.open(directory / "x", os.O_WRONLY)
        refused(2, c.share, k.CACHE_IMPORT, fd)
        os.close(fd)
        fd = os.open(directory / "x", os.O_PATH)
        for msg in (k.CACHE_EXPORT, k.CACHE_IMPORT):
            refused(2, c.share, msg, fd)
        os.close(fd)
        import socket
        one, two = socket.socketpair()
        for msg in (k.CACHE_EXPORT, k.CACHE_IMPORT):
            refused(2, c.share, msg, one.fileno())
        fd = os.open(f"/proc/{os.getpid()}/comm", os.O_RDWR)
        for msg in (k.CACHE_EXPORT, k.CACHE_IMPORT):
            refused(2, c.share, msg, fd)
        os.close(fd)
        # A place that no file reaches.
        fd = os.open(directory / "x", os.O_WRONLY)
        seek_as_far_as_possible(fd)
        assert "File too large" in refused(19, c.share, k.CACHE_EXPORT, fd)
        os.close(fd)
        # A pipe whose flags the client changes while nobody reads it.
        r, w = os.pipe()
        rid = c.share(k.CACHE_EXPORT, w, wait=False)
        for _ in range(20):
            os.set_blocking(w, False)
            os.set_blocking(w, True)
            time.sleep(0.01)
        c.send(k.CANCEL, {"id": rid})
        refused(15, c.reply, rid)
        os.close(r)
        os.close(w)
        # No descriptor, or one where none is wanted.
        c.send(k.CACHE_EXPORT, {"id": 900})
        assert c.receive()[0] == k.ERROR
        one.close(), two.close()
    fds = a.fds()
    a.until(lambda: a.fds() <= fds, "no descriptor is left")


def test_full_disk(start, directory, kvctl):
    target = directory / "full"
    target.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", target]).returncode:
        pytest.skip("no tmpfs can be mounted")
    try:
        a = start()
        fill(a, branches())
        r = kvctl("cache", "export", target / "x", socket=a.socket)
        assert r.returncode == 1 and b"No space left on device" in r.stderr
        assert not (target / "x").exists()      # it was not whole
        assert kvctl("cache", "export", directory / "x", socket=a.socket).returncode == 0
    finally:
        subprocess.run(["umount", target], check=True)


def test_many(start, directory):
    """Two of one uid are at work at once, and one more is told so."""
    a = start()
    fill(a, branches())
    with a.client() as c:
        pipes = [os.pipe() for _ in range(3)]
        rids = [c.share(k.CACHE_EXPORT, w, wait=False) for _, w in pipes]
        refused(6, c.reply, rids[2])
        refused(6, c.call, k.CACHE_VERIFY)
        for rid in rids[:2]:
            c.send(k.CANCEL, {"id": rid})
        for rid in rids[:2]:
            refused(15, c.reply, rid)
        for r, w in pipes:
            os.close(r), os.close(w)
        assert c.call(k.CACHE_VERIFY)["n_entries"] > 0


def test_model_goes(start, several, directory):
    """One that is unloaded at once takes its exports along; otherwise it waits for them, as for requests."""
    a = start("--model", several["other"])
    fill(a, branches())
    for now in (True, False):
        with a.client() as c, a.client() as other:
            r, w = os.pipe()
            rid = c.share(k.CACHE_EXPORT, w, wait=False, model="tiny")
            os.close(w)
            time.sleep(0.1)
            other.send(k.UNLOAD, {"id": 1, "model": "tiny", "now": now})
            if now:
                refused(14, c.reply, rid)
                other.reply(1)
                os.close(r)
                with a.client() as again:
                    again.load(a.proc.args[a.proc.args.index("--model") + 1], "tiny")
                fill(a, [b[:50] for b in branches()], model="tiny")
            else:
                n = 0
                while chunk := os.read(r, 1 << 16):
                    n += len(chunk)
                os.close(r)
                assert c.reply(rid)["bytes"] < n
                other.reply(1)


def test_clients_go(start, directory):
    """A client that is killed, and a daemon that is stopped, in the middle."""
    a = start()
    fill(a, branches())
    fds, threads = a.fds(), a.threads()
    for _ in range(5):
        r, w = os.pipe()
        c = a.client()
        for _ in range(2):
            c.share(k.CACHE_EXPORT, w, wait=False)
        os.close(w)
        c.sock.close()
        # The pipe ends when the daemon lets go of it.
        while os.read(r, 1 << 16):
            pass
        os.close(r)
    a.until(lambda: a.fds() <= fds, "no descriptor is left")
    assert a.threads() <= threads + 8
    r, w = os.pipe()
    with a.client() as c:
        c.share(k.CACHE_EXPORT, w, wait=False)
        c.share(k.CACHE_IMPORT, r, wait=False)
        time.sleep(0.05)
        a.stop()
    os.close(r), os.close(w)


# --- verification -------------------------------------------------------------------------


def flip(d, name, at, mask=0x10):
    for path in d.memfds(name):
        with open(path, "r+b", buffering=0) as f:
            f.seek(at)
            byte = f.read(1)[0]
            f.seek(at)
            f.write(bytes([byte ^ mask]))


@kv_types("f16", "q8", "q4")
def test_verify_finds_a_bit(start_type, judge_type, kv_type):
    """One bit of one block in the pool: found, dropped with what follows it, logged; all else is right."""
    start, judge, block_bytes = start_type, judge_type, TOKEN_BYTES[kv_type] * prefix.block_of(kv_type, BLOCK)
    prompts = [random_ids(i, 200) for i in range(4)]
    a = start()
    fill(a, prompts)
    with a.client() as c:
        n = len(c.cache_ls())
        assert c.call(k.CACHE_VERIFY, {"count": 2**32 - 1})["n_entries"] == n
        for path in a.memfds("kvd-kv"):
            size = os.stat(path).st_size
        rng = random.Random(SEED)
        # Blocks come one after the other.
        flip(a, "kvd-kv", rng.randrange(1, 6 if kv_type == "q4" else 12) * block_bytes + rng.randrange(block_bytes))
        v = c.call(k.CACHE_VERIFY, {"count": 2**32 - 1})
        assert v["n_differ"] == 1 and size >= 1 << 20
        assert len(c.cache_ls()) < n
        v = c.call(k.CACHE_VERIFY, {"count": 2**32 - 1})
        assert v["n_differ"] == 0 and v["n_entries"] == len(c.cache_ls())
        for ids in prompts:
            judge.right(ids, prefix.ask(c, ids, 4))
    assert "differ from what is computed" in a.log.read_text()


@kv_types("f16", "q4")
def test_verify_with_a_disk(start_type, judge_type, directory, kv_type):
    """What is dropped does not come back from disk."""
    start, judge, block = start_type, judge_type, prefix.block_of(kv_type, BLOCK)
    prompts = [random_ids(i, 200) for i in range(4)]
    a = start("--state-dir", directory / "state", "--disk", "64M")
    fill(a, prompts)
    with a.client() as c:
        v = c.call(k.CACHE_VERIFY, {"count": 2**32 - 1})
        # Of a prompt's end, where it fills no block, there is an open tail, in memory.
        assert v["n_entries"] == 4 * (200 // block + (kv_type != "q4")) and v["n_differ"] == 0
        a.until(lambda: a.status().get("disk_written", 0) >= 4 * (200 // block), "all is on disk")
        flip(a, "kvd-kv", 5 * TOKEN_BYTES[kv_type] * block + 77)
        v = c.call(k.CACHE_VERIFY, {"count": 2**32 - 1})
        assert v["n_differ"] == 1
        found = [prefix.ask(c, ids, 4) for ids in prompts]
        assert sum(r.usage["cached"] < prefix.reusable(200, kv_type) for r in found) == 1
        for ids, r in zip(prompts, found):
            judge.right(ids, r)


@kv_types("q8")
def test_verify_beside_requests(start_type, judge_type, kv_type):
    """It goes on while others run, in a full pool, and changes no answer."""
    start, judge = start_type, judge_type
    a = start("--host-memory", "8M", memory="4M" if kv_type == "f16" else "2M")
    prompts = [random_ids(i, 300) for i in range(10)]
    fill(a, prompts)
    stop = threading.Event()
    plan = iter([({"ids": ids, "n": 20, "logprobs": 1, "ignore_eos": True}, "read") for ids in prompts * 2])
    workers = [prefix.Worker(a, i, lambda: None if stop.is_set() else next(plan, None), PATIENCE) for i in range(2)]
    threads = [threading.Thread(target=w.run) for w in workers]
    for t in threads:
        t.start()
    n = 0
    try:
        with a.client() as c:
            for _ in range(5):
                v = c.call(k.CACHE_VERIFY, {"count": 30})
                assert v["n_differ"] == 0
                n += v["n_entries"]
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert n > 50
    for w in workers:
        if w.error:
            raise w.error
        for fields, result in w.results:
            judge.right(fields["ids"], result)
    a.idle()


# --- kvctl --------------------------------------------------------------------------------


def test_kvctl(start, kvctl, directory, judge):
    prompts = branches()
    a, b = start(), start()
    fill(a, prompts)
    r = kvctl("cache", "export", directory / "x", socket=a.socket)
    assert r.returncode == 0 and r.stdout.startswith(b"exported: "), r
    assert stat.S_IMODE(os.stat(directory / "x").st_mode) == 0o600
    # What is there is not written over.
    before = (directory / "x").read_bytes()
    r = kvctl("cache", "export", directory / "x", socket=a.socket)
    assert r.returncode == 1 and b"File exists" in r.stderr and (directory / "x").read_bytes() == before
    r = kvctl("cache", "export", "-", socket=a.socket)
    assert r.returncode == 0 and r.stdout == before and b"exported: " in r.stderr
    r = kvctl("--json", "cache", "import", "-", stdin=before, socket=b.socket)
    assert r.returncode == 0 and b'"whole":true' in r.stdout
    r = kvctl("cache", "verify", "--all", socket=b.socket)
    assert r.returncode == 0 and r.stdout.startswith(b"verified: ") and b" 0 differ" in r.stdout
    all_cached(b, judge, prompts)
    (directory / "y").write_bytes(before[:-1])
    r = kvctl("cache", "import", "--cache-key", "k", directory / "y", socket=b.socket)
    assert r.returncode == 1 and b"imported: " in r.stdout and b"ends in the middle" in r.stderr
    lie(directory / "x")
    assert kvctl("cache", "wipe", "--yes", socket=b.socket).returncode == 0
    assert kvctl("cache", "import", directory / "x", socket=b.socket).returncode == 0
    r = kvctl("cache", "verify", "--all", socket=b.socket)
    assert r.returncode == 1 and b"differ" in r.stdout and b"was dropped" in r.stderr
    for args, status in ((["export"], 2), (["import", "a", "b"], 2), (["verify", "x"], 2), (["verify", "-n", "0"], 2),
                         (["import", directory / "missing"], 1), (["export", "--namespace", "", "x"], 2),
                         (["export", "-m", "missing", directory / "z"], 1)):
        assert kvctl("cache", *args, socket=a.socket).returncode == status, args
    assert not (directory / "z").exists()


def test_kvctl_is_interrupted(start, kvctl, directory):
    """Ctrl-C, and a kill: the daemon lets go at once."""
    a = start()
    fill(a, branches())
    fds = a.fds()
    for sig, status in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        r, w = os.pipe()
        with subprocess.Popen([kvctl.path, "--socket", a.socket, "cache", "export", "-"], stdout=w,
                              stderr=subprocess.PIPE) as p:
            os.close(w)
            a.until(lambda: a.status()["n_sessions"] > 1, "kvctl is there")
            time.sleep(0.2)
            p.send_signal(sig)
            assert p.wait(20 * PATIENCE) == status
        while os.read(r, 1 << 16):
            pass
        os.close(r)
    a.until(lambda: a.fds() <= fds, "no descriptor is left")
