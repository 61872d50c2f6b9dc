# SPDX-License-Identifier: Apache-2.0
"""A state directory that is too small, read-only, harmed or gone: right answers all along, and a line for each trouble."""
import ctypes
import errno
import os
import random
import shutil
import stat
import subprocess
import threading
import time

import disk
import prefix
import pytest
from conftest import BUILD, LONG, SANITIZED
from faults import Faults
from test_disk_bits import judge, restarts
from test_prefix_bits import models, random_ids

__all__ = ["judge", "models", "restarts"]       # fixtures
KVD_FAULTS = BUILD / "tests/kvd-faults"
BLOCK = 16
POOL = ("--kv-memory", "4M")    # a few prompts: what else there is comes from disk
RETRY_S = 1      # RETRY_NS of daemon/cache/store.c
N_ASKED = 60 if LONG else 8 if SANITIZED else 14
CLONE_NEWNS, MS_RDONLY, MS_REMOUNT, MS_REC, MS_PRIVATE = 0x20000, 1, 32, 0x4000, 1 << 18
UID = 20013
libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def arch(models):
    return models("llama")


@pytest.fixture
def right(judge, arch):
    """right(client, ids, **fields) -> how much of it was cached; the answer is the judge's."""
    j = judge(arch)

    def ask(c, ids, n=4, **fields):
        r = prefix.ask(c, ids, n, **fields)
        assert not r.error, r.error
        j.right(ids, r)
        return r.usage["cached"]
    return ask


@pytest.fixture
def small(directory):
    """small(size) -> the state directory, a file system of its own that nobody else sees."""
    state = directory / "state"
    mounted = []

    def make(size):
        if os.geteuid() != 0 or libc.unshare(CLONE_NEWNS) or libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None):
            pytest.skip("may not mount")
        state.mkdir(mode=0o700)
        if libc.mount(b"kvd-test", str(state).encode(), b"tmpfs", 0, f"size={size},mode=0700".encode()):
            pytest.skip("may not mount")
        mounted.append(state)
        return state
    yield make
    for path in mounted:
        libc.umount2(str(path).encode(), 2)


def remount(path, flags):
    assert libc.mount(None, str(path).encode(), None, MS_REMOUNT | flags, None) == 0, os.strerror(ctypes.get_errno())


def troubles(d):
    """Lines of the log about the disk, but for the one at the start."""
    return [line for line in d.log.read_text().splitlines() if "cache on disk, root" in line]


def some(c, right, seed, n=N_ASKED, **fields):
    """Prompts that come again; returns the tokens that were cached."""
    rng = random.Random(seed)
    return sum(right(c, random_ids(seed * 100 + rng.randrange(8), 300) + random_ids(rng.random(), rng.randrange(1, 40)),
                     **fields) for _ in range(n))


def stores_again(d, right, seed, full=False):
    """By and by it writes, and that is there after a restart.  full: the medium was."""
    before, turn = d.d.status().get("disk_written", 0), [0]

    def writes():
        turn[0] += 1
        with d.d.client() as c:
            right(c, random_ids(seed * 1000 + turn[0], 200))
        return d.d.status().get("disk_written", 0) > before + 8
    d.d.until(writes, "it stores again", 60)
    d("stop", cut=full)
    with d.d.client() as c:
        assert right(c, random_ids(seed * 1000 + turn[0], 200)) == 192


# --- a medium that is full, read-only, or fails ---

def fill_up(path):
    """A file with all that is left; even the file itself may be too much."""
    try:
        with open(path, "wb", buffering=0) as f:
            while True:
                f.write(bytes(65536))
    except OSError as e:
        assert e.errno == errno.ENOSPC


def few_troubles(d, begin):
    """A medium in trouble is tried again after pauses, the first of RETRY_S: what takes longer sees more of them."""
    return len(troubles(d)) <= 4 + 2 * (time.monotonic() - begin) / RETRY_S


def test_medium_smaller_than_the_limit(small, restarts, arch, right):
    """Of 8 MiB, where 64 may be used: what fits is kept, also over a restart; then others fill it up, and go."""
    state = small("8m")
    d = restarts([arch], BLOCK, *POOL, "--disk", "64M")
    begin = time.monotonic()
    with d.d.client() as c:
        for turn in range(3):
            some(c, right, turn)
        assert few_troubles(d.d, begin), troubles(d.d)
        kept = d.d.status()
        d("stop", cut=True)
    assert len(d.committed) > 0 and kept["disk_errors"] < 30
    begin = time.monotonic()
    with d.d.client() as c:
        assert some(c, right, 2) > 0
        fill_up(state / "filler")
        for turn in range(3, 6):
            some(c, right, turn)
        assert few_troubles(d.d, begin), troubles(d.d)
    (state / "filler").unlink(missing_ok=True)
    stores_again(d, right, 7, full=True)


def test_medium_full_for_long(small, restarts, arch, right):
    """The last slots are cut off: what was in them is a miss, nothing else is, and it comes back when there is room."""
    state = small("8m")
    d = restarts([arch], BLOCK, *POOL, "--disk", "64M")
    turn = [0]

    def size():
        return sum(os.path.getsize(r / "slots") for r in disk.root_dirs(state))

    with d.d.client() as c:
        some(c, right, 1)
        while size() < 3 << 20:
            right(c, random_ids(turn[0], 300))
            turn[0] += 1
        fill_up(state / "filler")
        before = size()

        def smaller():
            turn[0] += 1
            right(c, random_ids(turn[0], 300))
            return size() < before
        d.d.until(smaller, "slots are cut off", 60)
    d("stop", cut=True)
    assert 0 < len(d.committed)
    with d.d.client() as c:
        for ids in range(turn[0]):
            right(c, random_ids(ids, 300))
    (state / "filler").unlink(missing_ok=True)
    stores_again(d, right, 8, full=True)


def test_read_only(small, restarts, arch, right):
    """A start on a file system that is read-only is a line, and a daemon without a disk, or one that reads."""
    state = small("64m")
    d = restarts([arch], BLOCK, *POOL, "--disk", "32M")
    with d.d.client() as c:
        some(c, right, 1)
    d.d.stop()
    remount(state, MS_RDONLY)
    d.d = d.start()
    with d.d.client() as c:
        some(c, right, 1)
        some(c, right, 2)
    assert 1 <= d.d.log.read_text().count("cache on disk") <= 3
    d.d.stop()
    remount(state, 0)
    d.d = d.start()
    with d.d.client() as c:
        assert some(c, right, 1) > 0
    stores_again(d, right, 3)


@pytest.mark.skipif(os.geteuid() != 0, reason="runs a daemon under another uid")
def test_chmod_meanwhile(restarts, directory, arch, right):
    """Directories of a daemon that is not root's lose their write permission: what is open goes on, a start does without."""
    home = directory / "home"
    home.mkdir()
    os.chown(home, UID, UID)
    shutil.copy(arch, home / "model.gguf")
    os.chmod(home / "model.gguf", 0o644)
    (directory / "state").mkdir()
    os.chown(directory / "state", UID, UID)
    d = restarts([home / "model.gguf"], BLOCK, *POOL, "--disk", "32M", "--socket-mode", "0666", user=UID,
                 socket=home / "kvd.sock")
    folders = []
    with d.d.client() as c:
        some(c, right, 1)
        folders = [*disk.root_dirs(d.state), d.state / "cache"]
        assert len(folders) == 2
        for folder in folders:
            os.chmod(folder, 0o500)
        some(c, right, 2)
        some(c, right, 1)
        assert len(troubles(d.d)) <= 2, troubles(d.d)
    d.d.stop()
    d.d = d.start()
    with d.d.client() as c:
        some(c, right, 1)
        some(c, right, 3)
    assert len(troubles(d.d)) <= 2, troubles(d.d)
    for folder in folders:
        os.chmod(folder, 0o700)
    stores_again(d, right, 5)


@pytest.mark.skipif(not KVD_FAULTS.exists(), reason="kvd-faults is not built")
def test_errors_of_the_disk(restarts, directory, arch, right):
    """EIO now and then, and for a while all the time."""
    faults = Faults(directory / "faults")
    d = restarts([arch], BLOCK, *POOL, "--disk", "32M", program=KVD_FAULTS, env=faults.environment())
    with d.d.client() as c:
        for turn in range(3):
            faults.at_random(turn, disk=8)
            some(c, right, turn)
        faults.at_random(9, disk=1)
        some(c, right, 1)
        some(c, right, 9)
        # Not tried again for each block.
        assert 0 < faults.injected("disk") < 50
        assert len(troubles(d.d)) <= 12, troubles(d.d)
        faults.disarm()
    stores_again(d, right, 10)
    d("stop")
    with d.d.client() as c:
        some(c, right, 1)


@pytest.mark.skipif(not KVD_FAULTS.exists(), reason="kvd-faults is not built")
@pytest.mark.parametrize("days", [-400, 400])
def test_clock_is_set(restarts, directory, arch, right, days):
    """What has no time to live is not touched by the time; what has may go early or late, and no more."""
    faults = Faults(directory / "faults")
    d = restarts([arch], BLOCK, "--kv-memory", "16M", "--disk", "64M", program=KVD_FAULTS, env=faults.environment())
    for_ever, for_an_hour = random_ids(1, 200), random_ids(2, 200)
    with d.d.client() as c:
        right(c, for_ever)
        right(c, for_an_hour, ttl_s=3600)
        faults.set_clock(86400 * days)
        right(c, random_ids(3, 200))
        right(c, random_ids(4, 200), ttl_s=3600)
    d("stop")
    with d.d.client() as c:
        assert right(c, for_ever) == 192
        assert right(c, random_ids(3, 200)) == 192
        assert right(c, random_ids(4, 200), ttl_s=3600) == 192
        assert right(c, for_an_hour, ttl_s=3600) == (192 if days < 0 else 0)
        faults.set_clock(0)
        some(c, right, 5)
    d("stop")
    with d.d.client() as c:
        assert right(c, for_ever) == 192
        assert right(c, random_ids(3, 200)) == 192
    assert troubles(d.d) == []


# --- others have been at it ---

def plant(way, path, elsewhere):
    """Something else in a file's place; what of `elsewhere` must not change."""
    if way != "mode":
        path.unlink(missing_ok=True)
    if way == "link":
        path.symlink_to(elsewhere)
    elif way == "hard link":
        os.link(elsewhere, path)
    elif way == "fifo":
        os.mkfifo(path)
    elif way == "directory":
        path.mkdir()
    elif way == "full directory":
        path.mkdir()
        (path / "file").write_text("x")
    elif way == "stranger":
        path.write_bytes(b"KVDROOT\nKVDSLOT\n" * 1000)
        os.chown(path, UID, UID)
    elif way == "mode":
        os.chmod(path, 0o666)


WAYS = ["link", "hard link", "fifo", "directory", "full directory", "mode"] + ["stranger"] * (os.geteuid() == 0)
FILES = [*disk.FILES, "identity.new", "index-journal", "index-shm", "index.corrupt", "lock"]


@pytest.mark.parametrize("way", WAYS)
def test_planted(restarts, directory, arch, right, way):
    """Each file is something else; nothing outside is read or written, and it goes on as soon as it can."""
    d = restarts([arch], BLOCK, "--kv-memory", "16M", "--disk", "64M")
    elsewhere = directory / "elsewhere"
    for i, name in enumerate(FILES):
        elsewhere.write_bytes(b"precious" * 100)
        before = elsewhere.read_bytes(), os.stat(elsewhere).st_mode
        ids = random_ids(50 + i, 100)
        with d.d.client() as c:
            right(c, ids)
        d.d.stop()
        root, = disk.root_dirs(d.state)
        path = root / name if name != "lock" else root.parent / name
        if way == "mode" and not path.exists():
            path.write_text("")
        plant(way, path, elsewhere)
        d.d = d.start()
        with d.d.client() as c:
            cached = right(c, ids)
            right(c, ids)
        assert len(troubles(d.d)) <= 2, (name, troubles(d.d))
        d.d.stop()
        assert (elsewhere.read_bytes(), os.stat(elsewhere).st_mode) == before, name
        # What the store has no use for takes nothing with it.
        if way == "mode" or name in ("identity.new", "index-journal", "index-shm", "index.corrupt", "lock"):
            if way != "full directory":
                assert cached == 96, (name, way)
        if way == "full directory" and path.is_dir():
            shutil.rmtree(path)
        if name in ("slots", "index", "identity", "lock") and way != "full directory":
            st = os.lstat(path)
            assert stat.S_ISREG(st.st_mode) and not st.st_mode & 0o077 and st.st_uid == os.geteuid(), name
        d.d = d.start()
        with d.d.client() as c:
            right(c, ids)
            assert d("stop") and right(c2 := d.d.client(), ids) == 96, (name, way)
            c2.close()


@pytest.mark.parametrize("what", ["root", "cache"])
def test_directory_is_a_link(restarts, directory, arch, right, what):
    """To one that is full of somebody's things."""
    d = restarts([arch], BLOCK, "--kv-memory", "16M", "--disk", "64M")
    ids = random_ids(1, 100)
    with d.d.client() as c:
        right(c, ids)
    d.d.stop()
    path = disk.root_dirs(d.state)[0] if what == "root" else d.state / "cache"
    shutil.rmtree(path)
    elsewhere = directory / "elsewhere"
    elsewhere.mkdir()
    for name in disk.FILES:
        (elsewhere / name).write_text("precious")
    path.symlink_to(elsewhere)
    d.d = d.start()
    with d.d.client() as c:
        right(c, ids)
        right(c, ids)
    assert d.d.log.read_text().count("on disk") <= 2
    d.d.stop()
    assert sorted(p.name for p in elsewhere.iterdir()) == sorted(disk.FILES)
    assert all(p.read_text() == "precious" for p in elsewhere.iterdir())


def test_second_daemon(restarts, directory, arch, right):
    """It is refused, in words, however often it tries; the first one goes on storing."""
    d = restarts([arch], BLOCK, "--kv-memory", "16M", "--disk", "64M")
    with d.d.client() as c:
        for i in range(3):
            right(c, random_ids(i, 100))
            r = subprocess.run([BUILD / "bin/kvd", "--socket", directory / "other.sock", "--state-dir", d.state,
                                "--disk", "64M", "--model", arch], stdin=subprocess.DEVNULL, capture_output=True,
                               text=True, timeout=60, check=False)
            assert r.returncode == 1 and "another daemon uses it" in r.stderr
    d("stop")
    with d.d.client() as c:
        assert [right(c, random_ids(i, 100)) for i in range(3)] == [96] * 3


def test_removed_meanwhile(restarts, arch, right):
    """rm -r while it runs: what is open goes on, whole; the next start begins anew."""
    d = restarts([arch], BLOCK, *POOL, "--disk", "64M")
    with d.d.client() as c:
        some(c, right, 1)
        shutil.rmtree(d.state / "cache")
        some(c, right, 1)
        some(c, right, 2)
        assert len(troubles(d.d)) <= 2, troubles(d.d)
    d.d.stop()
    d.d = d.start()
    with d.d.client() as c:
        assert right(c, random_ids(100, 300)) == 0
    d("stop")
    with d.d.client() as c:
        assert right(c, random_ids(100, 300)) == 288


# --- bounds ---

@pytest.mark.parametrize("limit", [2, 3, 7])
def test_limit(restarts, models, right, arch, limit):
    """Seen from outside all the time, with two roots and several clients, restarts between."""
    d = restarts([arch, models("gemma3")], BLOCK, "--kv-memory", "8M", "--disk", f"{limit}M")
    names = [arch.stem, models("gemma3").stem]

    def work(seed):
        rng = random.Random(seed)
        with d.d.client() as c:
            for _ in range(N_ASKED // 2):
                prefix.ask(c, random_ids(rng.random(), rng.randrange(1, 500)), rng.choice([1, 10]),
                           model=names[rng.randrange(2)])
    with disk.Watch(d.state) as watch:
        for turn in range(3):
            threads = [threading.Thread(target=work, args=(10 * turn + i,)) for i in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            with d.d.client() as c:
                right(c, random_ids(1, 100), model=names[0])
            d("stop" if turn else "kill")
    assert (limit << 20) * 0.6 < watch.length <= limit << 20
    assert watch.allocated <= limit << 20
    assert troubles(d.d) == []


def test_smaller_limit(restarts, daemons, models, right, arch):
    """Shrunk between starts, also for roots whose models are not loaded."""
    d = restarts([arch, models("qwen2")], BLOCK, "--kv-memory", "64M", "--disk", "64M")
    with d.d.client() as c:
        for i in range(12):
            right(c, random_ids(i, 600), model=arch.stem)
            prefix.ask(c, random_ids(i, 600), model=models("qwen2").stem)
    d("stop")
    assert disk.sizes(d.state)[0] > 12 << 20
    d.d.stop()
    command = ("--model", arch, "--block-tokens", BLOCK, "--state-dir", d.state, "--disk")
    d.d = daemons(*command, "4M")
    d.d.until(lambda: disk.sizes(d.state)[0] <= 4 << 20, "it is no more than that")
    with disk.Watch(d.state) as watch, d.d.client() as c:
        found = sum(right(c, random_ids(i, 600)) for i in reversed(range(12)))
        some(c, right, 50)
    assert watch.length <= 4 << 20 and found > 0
    d.d.stop()
    disk.Committed(d.state)


def test_descriptors(restarts, arch, right):
    d = restarts([arch], BLOCK, *POOL, "--disk", "4M")
    with d.d.client() as c:
        some(c, right, 1)
        before = d.d.fds(), d.d.threads()
        for turn in range(4):
            some(c, right, turn)
        assert (d.d.fds(), d.d.threads()) == before
