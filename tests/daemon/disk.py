# SPDX-License-Identifier: Apache-2.0
"""What lies in a state directory's cache, read by a second implementation of daemon/cache/FORMAT.md; and harm done to it.

Committed() is what must be found again.  It is read from a copy, since looking at a database of SQLite's changes it.
"""
import collections
import ctypes
import os
import pathlib
import random
import shutil
import sqlite3
import struct
import tempfile
import threading
import time

HEADER = 4096
NO_SLOT = -1
NEVER = (1 << 63) - 1
FILES = ("slots", "index", "index-wal", "identity")

xxhash = ctypes.CDLL("libxxhash.so.0")
xxhash.XXH3_64bits_withSeed.restype = ctypes.c_uint64
xxhash.XXH3_64bits_withSeed.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64)


def xxh3(data, seed=0):
    return xxhash.XXH3_64bits_withSeed(data, len(data), seed)


def signed(word):
    return word - (1 << 64) if word >> 63 else word


def root_dirs(state):
    """Of all roots that lie there."""
    cache = pathlib.Path(state) / "cache"
    return sorted(d for d in cache.glob("?" * 32) if d.is_dir()) if cache.is_dir() else []


def sizes(state):
    """Bytes of all files below: by their lengths, and by what is allocated for them."""
    length = allocated = 0
    for folder, _, files in os.walk(pathlib.Path(state) / "cache"):
        for name in files:
            try:
                st = os.lstat(os.path.join(folder, name))
            except FileNotFoundError:
                continue
            length += st.st_size
            allocated += st.st_blocks * 512
    return length, allocated


class Watch:
    """The most that sizes() says while the block runs."""

    def __init__(self, state):
        self.state, self.length, self.allocated = state, 0, 0
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.done.is_set():
            length, allocated = sizes(self.state)
            self.length, self.allocated = max(self.length, length), max(self.allocated, allocated)
            time.sleep(0.003)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *exc):
        self.done.set()
        self.thread.join()


def wait_until_clock(ns):
    while time.time_ns() <= ns:
        time.sleep(0.05)


class Root:
    """One root: what its identity says, and its committed entries."""

    def __init__(self, folder):
        self.dir = folder
        self.name = folder.name
        self.entries, self.free, self.names, self.owners = {}, [], {}, {}
        self.block_tokens = self.block_bytes = self.stride = self.n_slots = 0
        if (folder / "identity").exists():
            self.read_identity()
            self.read_index()
        else:
            self.assert_empty()

    def assert_empty(self):
        """It was being made, or emptied: nothing was committed."""
        slots = self.dir / "slots"
        assert not slots.exists() or not slots.stat().st_size

    def read_identity(self):
        data = (self.dir / "identity").read_bytes()
        assert data[:8] == b"KVDROOT\n" and struct.unpack("<Q", data[-8:])[0] == xxh3(data[:-8])
        version, self.block_tokens, self.block_bytes, n_fields = struct.unpack_from("<IIQI", data, 8)
        assert version == 1 and len(data) == 32 + n_fields + 8
        self.stride = HEADER + (self.block_bytes + 4095) // 4096 * 4096

    def read_index(self):
        with tempfile.TemporaryDirectory() as copy:
            for name in ("index", "index-wal"):
                if (self.dir / name).exists():
                    shutil.copy(self.dir / name, copy)
            db = sqlite3.connect(f"{copy}/index")
            try:
                self.read_rows(db)
            finally:
                db.close()

    def read_rows(self, db):
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        if not db.execute("SELECT name FROM sqlite_master").fetchall():
            self.assert_empty()
            return
        seed = int.from_bytes(bytes.fromhex(self.name)[:8], "little")
        state, = db.execute("SELECT root, seed, next_id, n_slots, n_free, use, n_pinned, sum FROM state")
        assert state[0].hex() == self.name
        assert state[7] == signed(xxh3(state[0] + struct.pack("<6q", *state[1:7]), seed))
        self.next_id, self.n_slots, n_free = state[2:5]
        self.free = [row[0] for row in db.execute("SELECT slot FROM free")]
        assert len(self.free) == n_free
        for key, name, total in db.execute("SELECT id, name, sum FROM namespace"):
            assert total == signed(xxh3(name, xxh3(struct.pack("<q", key), seed)))
            self.names[key] = name
        keys = ("id", "parent", "ns", "hash", "created", "expires", "rank", "slot", "uid", "first", "children", "pins",
                "priority")
        for row in db.execute(f"SELECT {', '.join(keys)}, tokens, sum FROM entry ORDER BY first"):
            entry = dict(zip(keys, row), tokens=struct.unpack(f"<{len(row[13]) // 4}I", row[13]))
            assert row[14] == signed(xxh3(struct.pack("<8q6I", *row[:13], len(entry["tokens"]))
                                          + row[13].ljust(256, b"\0"), seed))
            self.entries[entry["id"]] = entry
        for row in db.execute("SELECT entry, uid, sum FROM pin"):
            assert row[2] == signed(xxh3(struct.pack("<2q", *row[:2]), seed)) and row[0] in self.entries
        for row in db.execute("SELECT uid, n, used, sum FROM owner"):
            assert row[3] == signed(xxh3(struct.pack("<3q", *row[:3]), seed))
            self.owners[row[0]] = row[1]

    def slot(self, f, entry):
        """Whether the entry's slot is what the format says; f: the file."""
        f.seek(entry["slot"] * self.stride)
        data = f.read(HEADER + self.block_bytes)
        if len(data) < HEADER + self.block_bytes:
            return False
        head = data[:80] + bytes(8) + data[88:HEADER]
        name = bytes(self.names[entry["ns"]])
        want = (b"KVDSLOT\n" + struct.pack("<II", 1, len(entry["tokens"])) + bytes.fromhex(self.name)
                + struct.pack("<QQQQIIII", entry["id"], entry["parent"], entry["created"], self.block_bytes,
                              entry["uid"], entry["first"], len(name), int(len(entry["tokens"]) < self.block_tokens)))
        want += bytes(16) + name.ljust(256, b"\0")
        want += struct.pack(f"<{len(entry['tokens'])}I", *entry["tokens"]).ljust(256, b"\0")
        return head == want.ljust(HEADER, b"\0") and \
            struct.unpack_from("<Q", data, 80)[0] == xxh3(data[HEADER:], xxh3(head))

    def was_cut(self, f, entry):
        """Whether nothing is left of the entry's slot: zeros, or the file ends before."""
        f.seek(entry["slot"] * self.stride)
        return not f.read(self.stride).strip(b"\0")

    def check(self, cut=False):
        """
        What holds after any end of the process: every row's parent and slot are there, and no slot is of two.  cut: the
        medium was full, so that the last slots may have been cut off.  Ids of the entries that can be read.
        """
        taken = [e["slot"] for e in self.entries.values() if e["slot"] != NO_SLOT]
        assert len(set(taken + self.free)) == len(taken + self.free), "a slot is of two"
        assert set(taken + self.free) <= set(range(self.n_slots))
        n_children = {}
        assert self.owners == collections.Counter(e["uid"] for e in self.entries.values())
        if not self.entries:
            return set()
        good = set(self.entries)
        with open(self.dir / "slots", "rb") as f:
            for e in self.entries.values():
                if e["slot"] != NO_SLOT and not self.slot(f, e):
                    assert cut and self.was_cut(f, e), f"slot {e['slot']} is not what its row says"
                    good.remove(e["id"])
                if e["parent"] == e["ns"]:
                    assert e["first"] == 0
                    continue
                parent = self.entries.get(e["parent"])
                assert parent, "an entry without what is before it"
                assert parent["ns"] == e["ns"] and parent["first"] + self.block_tokens == e["first"]
                assert parent["expires"] >= e["expires"]
                n_children[e["parent"]] = n_children.get(e["parent"], 0) + 1
        for key, e in self.entries.items():
            assert e["children"] == n_children.get(key, 0)
            assert 0 < key < self.next_id
        return good

    def whole(self):
        """Ids of the entries whose slots are as they were written, in a namespace that is still known."""
        if not self.entries:
            return set()
        with open(self.dir / "slots", "rb") as f:
            return {key for key, e in self.entries.items()
                    if e["slot"] != NO_SLOT and e["ns"] in self.names and self.slot(f, e)}

    def prefixes(self, name, good):
        """All token prefixes that can be read from their beginning on, of entries that are good."""
        known = {}      # id: tokens up to its end
        for e in self.entries.values():
            if e["slot"] == NO_SLOT or e["id"] not in good or self.names[e["ns"]] != name:
                continue
            before = () if e["parent"] == e["ns"] else known.get(e["parent"])
            if before is not None:
                known[e["id"]] = before + e["tokens"]
        return set(known.values())


class Committed:
    """
    What a state directory has for a namespace: how much of a prompt must be found again.  damaged: only what is whole
    down from the beginning counts; otherwise all of it must be.  cut: but for what a full medium made it give up.
    """

    def __init__(self, state, name=b"uid:%d" % os.getuid(), damaged=False, cut=False):
        self.by_block_tokens = {}
        self.roots = [Root(d) for d in root_dirs(state)]
        for r in self.roots:
            good = r.whole() if damaged else r.check(cut)
            self.by_block_tokens.setdefault(r.block_tokens, set()).update(r.prefixes(name, good))

    def found(self, ids, block_tokens):
        """Tokens of a prompt, of which the last one is always computed."""
        prefixes, n = self.by_block_tokens.get(block_tokens, set()), 0
        while n + block_tokens < len(ids) and tuple(ids[:n + block_tokens]) in prefixes:
            n += block_tokens
        return n

    def has(self, ids, block_tokens):
        """Whether all whole blocks of computed tokens are there."""
        n = len(ids) // block_tokens * block_tokens
        return not n or tuple(ids[:n]) in self.by_block_tokens.get(block_tokens, set())

    def __len__(self):
        return sum(len(p) for p in self.by_block_tokens.values())


# --- harm ---

def flip(rng, path, n):
    size = os.path.getsize(path)
    if not size:
        return
    with open(path, "r+b") as f:
        for _ in range(n):
            at = rng.randrange(size)
            f.seek(at)
            byte = f.read(1)
            f.seek(at)
            f.write(bytes([byte[0] ^ rng.randrange(1, 256)]))


def zero_pages(rng, path, n):
    size = os.path.getsize(path)
    with open(path, "r+b") as f:
        for _ in range(n if size else 0):
            at = rng.randrange(size) // 4096 * 4096
            f.seek(at)
            f.write(bytes(min(4096, size - at)))


def cut(rng, path):
    os.truncate(path, rng.choice([0, 1, os.path.getsize(path) // 2, max(0, os.path.getsize(path) - rng.randrange(5000))]))


class Harm:
    """Ways to damage a state directory that no daemon uses; remembers old copies of it to put back."""

    def __init__(self, state, seed):
        self.cache, self.rng = pathlib.Path(state) / "cache", random.Random(seed)
        self.state = state
        self.folder = tempfile.mkdtemp(prefix="kvd-old-")
        self.old = pathlib.Path(self.folder) / "cache"

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def save(self):
        shutil.rmtree(self.old, ignore_errors=True)
        shutil.copytree(self.cache, self.old)

    def some_files(self, k):
        files = [d / name for d in root_dirs(self.state) for name in FILES if (d / name).is_file()]
        return self.rng.sample(files, min(k, len(files)))

    def flipped(self):
        for path in self.some_files(self.rng.choice([1, 1, 2, 8])):
            flip(self.rng, path, self.rng.choice([1, 1, 2, 8, 64]))

    def zeroed(self):
        for path in self.some_files(self.rng.choice([1, 2])):
            zero_pages(self.rng, path, self.rng.choice([1, 4]))

    def truncated(self):
        for path in self.some_files(1):
            cut(self.rng, path)

    def removed(self):
        for path in self.some_files(1):
            path.unlink()

    def exchanged(self):
        """The same file of two roots; where there is one root, two files of it."""
        dirs, name = root_dirs(self.state), self.rng.choice(FILES)
        a, b = (dirs[0] / name, dirs[1] / name) if len(dirs) > 1 else (dirs[0] / "index", dirs[0] / "slots")
        if a.exists() and b.exists():
            a.rename(self.cache / "x")
            b.rename(a)
            (self.cache / "x").rename(b)

    def put_back(self, *names):
        paths = [d / name for d in root_dirs(self.folder) for name in names]
        paths = [p for p in paths if p.exists() and (self.cache / p.parent.name).is_dir()]
        for path in paths:
            shutil.copy(path, self.cache / path.parent.name / path.name)

    def old_index(self):
        self.put_back("index", "index-wal")

    def old_slots(self):
        self.put_back("slots")

    def old_log(self):
        self.put_back("index-wal")

    def old_all(self):
        """A backup of the whole: nothing of it is damaged."""
        shutil.rmtree(self.cache)
        shutil.copytree(self.old, self.cache)

    def do(self):
        """One of them: its name, and what of the directory says now what there must be: Committed, or None."""
        ways = ["flipped"] * 6 + ["zeroed", "zeroed", "truncated", "truncated", "removed", "exchanged"]
        if self.old.exists():
            ways += ["old_index", "old_slots", "old_log", "old_all"]
        if not root_dirs(self.state):
            return "nothing", None
        if self.rng.random() < 0.3:
            self.save()
        way = self.rng.choice(ways)
        getattr(self, way)()
        return way, self.committed()

    def committed(self):
        """What there must be, where something was harmed some time; None: an index is, so that it may begin cold."""
        try:
            return Committed(self.state, damaged=True)
        except (AssertionError, ValueError, TypeError, OSError, struct.error, sqlite3.Error):
            return None
