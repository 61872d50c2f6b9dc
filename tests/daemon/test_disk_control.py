# SPDX-License-Identifier: Apache-2.0
"""The cache on disk as an administrator meets it: options, where it lies, who may have it, what is told and removed."""
import json
import os
import random
import re
import struct
import subprocess
import time

import kvdclient as k
import pytest
from conftest import BUILD, make_tiny
from test_cache_control import UIDS, as_user, needs_root
from test_restart import managers  # noqa: F401  (a fixture)

BLOCK = 16


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf", "--ctx", "2048")


@pytest.fixture
def start(daemons, model):
    def start(*options, memory="16M", **kw):
        return daemons("--model", model, "--kv-memory", memory, "--threads", "1", "--socket-mode", "0666",
                       "--block-tokens", BLOCK, *options, **kw)
    return start


@pytest.fixture
def kept(start, directory):
    """kept() -> a daemon on the directory's only state."""
    def kept(*options, disk="64M", **kw):
        return start("--state-dir", directory / "state", "--disk", disk, *options, **kw)
    return kept


def ids(seed, n):
    rng = random.Random(seed)
    return [rng.randrange(3, 250) for _ in range(n)]


def ask(c, tokens, n=0, **kw):
    r = c.generate(ids=tokens, n=n, ignore_eos=True, **kw)
    assert not r.error, r.error
    return r


def cached(c, tokens, **kw):
    return ask(c, tokens, **kw).usage["cached"]


# --- where it lies ---

def test_survives_restart(kept, directory):
    prompt = ids(1, 300)
    d = kept()
    with d.client() as c:
        first = ask(c, prompt, n=8, temperature=0, logprobs=1)
    d.stop()
    assert os.stat(directory / "state").st_mode & 0o7777 == 0o700
    assert os.stat(directory / "state/cache").st_mode & 0o7777 == 0o700
    d = kept()
    assert "cache on disk: in" in d.log.read_text()
    with d.client() as c:
        again = ask(c, prompt, n=8, temperature=0, logprobs=1)
        assert again.usage["cached"] == 300 // BLOCK * BLOCK
        assert (again.ids, again.logprobs) == (first.ids, first.logprobs)


def test_off_unless_asked_for(start, directory):
    """Nobody's prompts get to a disk who has not said so."""
    home = {"HOME": str(directory), "XDG_STATE_HOME": str(directory / "xdg")}
    config = directory / "empty.conf"
    config.write_text("[kvd]\n")
    d = start("--config", config, env=home)
    with d.client() as c:
        ask(c, ids(1, 100))
    assert "on disk" not in d.log.read_text()
    d.stop()
    assert sorted(p.name for p in directory.iterdir() if "kvd" not in p.name) == ["empty.conf"]


def test_directory_of_the_service_manager(start, directory):
    (directory / "first").mkdir()
    config = directory / "empty.conf"
    config.write_text("[kvd]\n")
    d = start("--config", config, env={"STATE_DIRECTORY": f"{directory}/first:{directory}/second"})
    assert f"in {directory}/first, at most" in d.log.read_text()
    assert (directory / "first/cache/lock").exists()


def test_second_daemon(start, kept, directory, model):
    """It is refused before it is ready where the directory was named; in the default place it does without."""
    d = kept()
    r = subprocess.run([BUILD / "bin/kvd", "--socket", directory / "other.sock", "--state-dir", directory / "state",
                        "--model", model], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert r.returncode == 1 and "another daemon uses it" in r.stderr and "ready" not in r.stderr
    with d.client() as c:
        assert cached(c, ids(1, 100)) == 0
    if os.geteuid() == 0:
        return      # a place for all of the machine
    home = {"XDG_STATE_HOME": str(directory / "xdg")}
    first = start("--disk", "64M", env=home, socket=directory / "a.sock")
    second = start("--disk", "64M", env=home, socket=directory / "b.sock")
    assert "at most 64 MiB" in first.log.read_text()
    assert "no cache on disk:" in second.log.read_text()


@pytest.mark.parametrize("spoil, word", [
    (lambda p: p.write_text("x"), "Not a directory"),
    (lambda p: p.parent.rmdir(), "No such file"),
])
def test_impossible_directories_are_refused(directory, spoil, word):
    path = directory / "in/state"
    path.parent.mkdir()
    spoil(path)
    r = subprocess.run([BUILD / "bin/kvd", "--socket", directory / "s", "--state-dir", path], text=True,
                       stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    assert r.returncode == 1 and word in r.stderr, r.stderr


def test_unusable_directory_is_one_line(kept, directory):
    """A cache is no reason not to start: here a link is where it should lie."""
    (directory / "state").mkdir()
    (directory / "elsewhere").mkdir()
    (directory / "state/cache").symlink_to(directory / "elsewhere")
    d = kept()
    assert d.log.read_text().count("no cache on disk:") == 1
    with d.client() as c:
        assert cached(c, ids(1, 100)) == 0
        assert cached(c, ids(1, 100)) == 99
    assert list((directory / "elsewhere").iterdir()) == []


# --- figures ---

DISK = ("disk_bytes", "disk_bytes_used", "disk_blocks", "disk_lookups", "disk_hits", "disk_written", "disk_read",
        "disk_evicted", "disk_damaged", "disk_errors")


def figures(d):
    s = d.status()
    return {name: s.get(name, 0) for name in DISK}


def page_words(c):
    """The last words of the statistics page, which are the disk's."""
    n_words, = struct.unpack_from("<I", c.stats, 16)
    return dict(zip(DISK, struct.unpack_from(f"<{n_words}Q", c.stats, 72)[-len(DISK):]))


def test_figures(kept, kvctl, directory):
    d = kept()
    with d.client() as c:
        ask(c, ids(1, 100))
        d.until(lambda: figures(d)["disk_written"] == 6, "six blocks on disk")
        f = figures(d)
        assert f["disk_bytes"] == 64 << 20 and f["disk_blocks"] == 6 and f["disk_lookups"] == 1
        taken = sum(p.stat().st_size for p in (directory / "state").rglob("*"))
        assert 0 < taken <= f["disk_bytes_used"] + 8192 and f["disk_bytes_used"] < f["disk_bytes"]
        d.until(lambda: page_words(c) == f, "the same on the page")
    d.stop()
    d = kept()
    with d.client() as c:
        ask(c, ids(1, 100))
        f = figures(d)
        assert (f["disk_lookups"], f["disk_hits"], f["disk_read"], f["disk_written"], f["disk_blocks"]) == (1, 1, 6, 0, 6)
        v = json.loads(kvctl("--json", "status", socket=d.socket).stdout)
        assert {name: v[name] for name in DISK} == f and v["disk_trouble"] == ""
        out = kvctl("status", socket=d.socket).stdout.decode()
        assert re.search(r"^disk +\S+ \w+ of 64\.0 MiB, 6 blocks; 0 written, 6 read, 0 evicted, 0 damaged\n"
                         r" +1 of 1 prompts found something there; 0 errors\n", out, re.M), out


@needs_root
def test_figures_are_not_for_everybody(kept):
    """Counters must not tell one user about another."""
    d = kept()
    with d.client() as c:
        ask(c, ids(1, 100))
    with as_user(UIDS[0]):
        other = d.client()
    with other:
        ask(other, ids(1, 100))
        d.until(lambda: figures(d)["disk_written"] == 12, "both on disk")
        time.sleep(0.6)
        assert set(page_words(other).values()) == {0}
        assert not [name for name in other.call(k.STATUS) if name.startswith("disk")]


def test_trouble_is_told(kept, directory):
    """What is wrong with the disk is in the status, as long as it is."""
    d = kept()
    with d.client() as c:
        ask(c, ids(1, 100))
        d.until(lambda: figures(d)["disk_written"] == 6, "six blocks on disk")
        assert "disk_trouble" not in d.status()
    d.stop()
    root, = (p for p in (directory / "state/cache").iterdir() if p.is_dir())
    (root / "index").write_bytes(b"x" * 8192)
    d = kept()
    with d.client() as c:
        assert cached(c, ids(1, 100)) == 0
        assert "index is damaged" in d.status()["disk_trouble"]
    assert d.log.read_text().count("the index is damaged") == 1


# --- what people ask ---

def blocks(d):
    return figures(d)["disk_blocks"]


def on_disk(d, n):
    d.until(lambda: blocks(d) == n, f"{n} blocks on disk")


def tiers(entries):
    return [e["tier"] for e in entries]


def holds(directory, tokens):
    """Whether some file has these ids one after the other."""
    needle = struct.pack(f"<{len(tokens)}i", *tokens)
    return any(needle in p.read_bytes() for p in (directory / "state").rglob("*") if p.is_file())


def test_listing_tells_the_tier(kept):
    a, b = ids(1, 100), ids(2, 80)
    d = kept()
    with d.client() as c:
        ask(c, a)
        ask(c, b)
        on_disk(d, 11)
        # 100 = 6 blocks and a tail, which is in memory alone.
        assert tiers(c.cache_ls()) == ["memory+disk"] * 6 + ["memory"] + ["memory+disk"] * 5
    d.stop()
    d = kept()
    with d.client() as c:
        entries = c.cache_ls()
        assert tiers(entries) == ["disk"] * 11
        assert [e["first"] for e in entries] == [BLOCK * i for i in range(6)] + [BLOCK * i for i in range(5)]
        numbers = [e["entry"] for e in entries]
        assert len(set(numbers)) == 11
        assert [e["parent"] for e in entries] == [0, *numbers[:5], 0, *numbers[6:10]]
        assert all(e["uid"] == os.getuid() and e["namespace"] == f"uid:{os.getuid()}" and e["words"] and e["bytes"] > 0
                   and e["n_pins"] == 0 and e["priority"] == 1 and "ttl_ns" not in e for e in entries)
        assert [e["joined"] for e in entries] == [False] + [True] * 5 + [False] + [True] * 4
        page = c.call(k.CACHE_LS, {"after": numbers[3]})
        assert [e["entry"] for e in page["entries"]] == numbers[4:]
        # What is read is in both, and the rest still after it.
        ask(c, a[:50] + ids(3, 30))
        on_disk(d, 13)
        entries = c.cache_ls()
        assert sorted(tiers(entries)) == ["disk"] * 8 + ["memory+disk"] * 5
        memory = [e["entry"] for e in entries if e["tier"] != "disk"]
        after = next(e for e in entries if e["tier"] == "disk" and e["first"] == 48)
        assert after["parent"] == memory[2] and not after["joined"]


def test_pages_of_both(kept):
    d = kept()
    with d.client() as c:
        for i in range(3):
            ask(c, ids(i, 1600))
        on_disk(d, 300)
    d.stop()
    d = kept()
    with d.client() as c:
        ask(c, ids(0, 1600))
        # The last block was computed again, and found to be there.
        d.until(lambda: len(c.cache_ls()) == 300, "known")
        entries = c.cache_ls()
        assert len(entries) == len({e["entry"] for e in entries}) == 300
        assert tiers(entries) == ["memory+disk"] * 100 + ["disk"] * 200
        assert sum(e["n_tokens"] for e in entries) == 4800


def test_show_and_drop(kept, directory, kvctl):
    a, b = ids(1, 96), ids(2, 96)
    d = kept()
    with d.client() as c:
        for prompt in (a, b):
            ask(c, prompt)
        on_disk(d, 12)
    d.stop()
    d = kept()
    with d.client() as c:
        entries = c.cache_ls()
        r = c.call(k.CACHE_SHOW, {"entry": entries[3]["entry"]})
        assert (r["n_path"], r["n_below"], r["chain"]) == (4, 2, entries[0]["entry"])
        assert r["entries"][0]["entry"] == entries[3]["entry"] and r["text"].endswith(r["own"]) and r["own"]
        done = c.call(k.CACHE_DROP, {"entry": entries[3]["entry"]})
        assert (done["disk_entries"], done["n_entries"]) == (3, 0)
        assert len(c.cache_ls()) == 9 and blocks(d) == 9
        assert not holds(directory, a[48:64]) and not holds(directory, a[80:96]) and holds(directory, a[32:48])
        with pytest.raises(k.Refused) as e:
            c.call(k.CACHE_DROP, {"entry": entries[3]["entry"]})
        assert e.value.code == 18
        assert cached(c, a) == 48
        # In memory and on disk: both.
        on_disk(d, 12)
        first = c.cache_ls()[0]
        assert first["tier"] == "memory+disk"
        done = c.call(k.CACHE_DROP, {"entry": first["entry"]})
        assert done["n_entries"] == done["disk_entries"] == 6
        assert not holds(directory, a[:16]) and holds(directory, b[:16])
        assert cached(c, a) == 0
        # By the number that it had on disk alone, in the meantime in memory.
        on_disk(d, 12)
        assert cached(c, b) == 80
        done = c.call(k.CACHE_DROP, {"entry": entries[6]["entry"]})
        assert done["n_entries"] == done["disk_entries"] == 6
        assert cached(c, b) == 0
    out = kvctl("cache", "ls", socket=d.socket).stdout.decode()
    assert "memory+disk" in out


def test_drop_of_a_chain(kept, kvctl):
    """kvctl shows what is joined as one row, and drops it so."""
    d = kept()
    with d.client() as c:
        ask(c, ids(1, 96))
        on_disk(d, 6)
    d.stop()
    d = kept()
    row, = kvctl("cache", "ls", socket=d.socket).stdout.decode().splitlines()[1:]
    assert row.split("\t")[6] == "disk" and row.split("\t")[3] == "96"
    r = kvctl("cache", "drop", row.split("\t")[1], socket=d.socket)
    assert b"on disk 6" in r.stdout, r
    assert blocks(d) == 0


def test_wipe(kept, directory, kvctl, model):
    """Everything under a name goes, in memory and from the files, also where no model is loaded."""
    own, keyed = ids(1, 96), ids(2, 96)
    d = kept()
    with d.client() as c:
        ask(c, own)
        ask(c, keyed, cache_key="k")
        on_disk(d, 12)
        done = c.call(k.CACHE_WIPE, {"namespace": "own/k"})
        assert (done["n_entries"], done["disk_entries"]) == (6, 6)
        assert holds(directory, own[:16]) and not holds(directory, keyed[:16]) and not holds(directory, keyed[-16:])
        ask(c, keyed, cache_key="k")
        on_disk(d, 12)
    d.stop()
    d = kept()
    with d.client() as c:
        r = json.loads(kvctl("--json", "cache", "wipe", "--yes", socket=d.socket).stdout)
        assert (r["n_entries"], r["disk_entries"]) == (0, 12)
        assert not holds(directory, own[:16]) and not holds(directory, keyed[:16])
        assert cached(c, own) == 0
        on_disk(d, 6)
    assert "wiped 0 entries of the cache, 12 on disk" in d.log.read_text()
    d.stop()


def test_wipe_without_a_model(kept, daemons, directory):
    d = kept()
    with d.client() as c:
        ask(c, ids(1, 96))
        on_disk(d, 6)
    d.stop()
    d = daemons("--state-dir", directory / "state", "--disk", "64M")
    with d.client() as c:
        done = c.call(k.CACHE_WIPE, {"namespace": "uid:4294"})
        assert done.get("disk_entries", 0) == 0
        done = c.call(k.CACHE_WIPE)
        assert done["disk_entries"] == 6
        assert not holds(directory, ids(1, 96)[:16])
        done = c.call(k.CACHE_WIPE, {"all": True})
    d.stop()


def test_wipe_while_it_runs(kept, directory):
    """Again and again under load: nothing of what was wiped is found by those who come after."""
    d = kept(env={"KVD_TEST_STEP_DELAY_MS": "2"})
    with d.client() as c, d.client() as other:
        for i in range(12):
            prompt = ids(i, 200)
            if i % 2:
                ask(c, prompt)
            rid = c.submit(ids=prompt, n=4, ignore_eos=True)
            time.sleep(0.003 * i)
            other.call(k.CACHE_WIPE)
            c.collect(rid)
            other.call(k.CACHE_WIPE)
            assert cached(other, prompt) == 0
        d.until(lambda: blocks(d) > 0, "written")
        other.call(k.CACHE_WIPE)
        assert blocks(d) == 0
        assert not any(holds(directory, ids(i, 200)[:16]) for i in range(12))


@needs_root
def test_nobody_sees_or_wipes_what_is_others(kept, directory):
    d = kept()
    one, two = UIDS
    with d.client() as root:
        for uid in UIDS:
            with as_user(uid):
                c = d.client()
            with c:
                ask(c, ids(uid, 96))
        on_disk(d, 12)
    d.stop()
    d = kept()
    with as_user(one):
        c = d.client()
    with c, d.client() as root:
        everything = root.cache_ls()
        assert [e["uid"] for e in everything] == [one] * 6 + [two] * 6
        entries = c.cache_ls()
        assert [e["uid"] for e in entries] == [one] * 6 and tiers(entries) == ["disk"] * 6
        # Numbers say nothing of each other; what is others' does not exist.
        assert sorted(e["entry"] for e in entries) != [e["entry"] for e in entries]
        for op in (k.CACHE_SHOW, k.CACHE_DROP, k.CACHE_PIN, k.CACHE_UNPIN):
            with pytest.raises(k.Refused) as e:
                c.call(op, {"entry": everything[-1]["entry"]})
            assert e.value.code == 18
        assert c.cache_ls(namespace=f"uid:{two}") == []
        with pytest.raises(k.Refused) as e:
            c.call(k.CACHE_WIPE, {"namespace": f"uid:{two}"})
        assert e.value.code == 5
        assert cached(c, ids(two, 96)) == 0
        on_disk(d, 18)
        assert c.call(k.CACHE_WIPE)["disk_entries"] == 12
        assert holds(directory, ids(two, 96)[:16]) and not holds(directory, ids(one, 96)[:16])
        assert root.call(k.CACHE_WIPE, {"namespace": f"uid:{two}"})["disk_entries"] == 6


# --- how long it stays ---

def test_ttl_survives(kept, directory):
    d = kept()
    with d.client() as c:
        ask(c, ids(1, 96), ttl_s=3)
        ask(c, ids(2, 96), ttl_s=1000)
        d.until(lambda: figures(d)["disk_written"] == 12, "written")
    d.stop()
    d = kept()
    with d.client() as c:
        left = [e["ttl_ns"] / 1e9 for e in c.cache_ls() if e["ttl_ns"] > 10e9]
        assert len(left) == 6 and all(500 < t <= 1000 for t in left)
        d.until(lambda: len(c.cache_ls()) == 6, "expired")
        # It goes from the files, too, though nobody does anything.
        d.until(lambda: not holds(directory, ids(1, 96)[:16]), "gone")
        assert holds(directory, ids(2, 96)[:16])
        on_disk(d, 6)
        assert cached(c, ids(1, 96), ttl_s=1000) == 0
        assert cached(c, ids(2, 96), ttl_s=1000) == 80


def test_pins_survive(kept):
    """Pinned by a request or by hand; on disk as long as it is, and in memory again once it is read."""
    prompts = [ids(i, 96) for i in range(3)]
    d = kept(disk="8M")
    with d.client() as c:
        ask(c, prompts[0], pin=True)
        for p in prompts[1:]:
            ask(c, p)
        on_disk(d, 18)
        last = [e["entry"] for e in c.cache_ls() if e["first"] == 80]
        c.call(k.CACHE_PIN, {"entry": last[1]})
    d.stop()
    d = kept(disk="8M")
    with d.client() as c:
        pinned = [e for e in c.cache_ls() if e["pinned"]]
        assert [(e["first"], e["tier"], e["n_pins"]) for e in pinned] == [(80, "disk", 1)] * 2
        assert cached(c, prompts[1] + [5] * 20) == 96
        assert [(e["first"], e["tier"], e["n_pins"]) for e in c.cache_ls() if e["pinned"]] == \
            [(80, "memory+disk", 1), (80, "disk", 1)]
        # Much more than there is room for.
        for i in range(10, 200):
            ask(c, ids(i, 480))
        d.until(lambda: figures(d)["disk_evicted"] > 100, "evicted")
    d.stop()
    d = kept(disk="8M")
    with d.client() as c:
        assert cached(c, prompts[2]) == 0
        for p in prompts[:2]:
            assert cached(c, p + [5] * 20) == 96
        for e in c.cache_ls():
            if e["pinned"]:
                c.call(k.CACHE_UNPIN, {"entry": e["entry"]})
        assert not [e for e in c.cache_ls() if e["pinned"]]
    d.stop()
    d = kept(disk="8M")
    with d.client() as c:
        assert not [e for e in c.cache_ls() if e["pinned"]]


def test_unpin_on_disk(kept):
    d = kept()
    with d.client() as c:
        ask(c, ids(1, 96), pin=True)
        on_disk(d, 6)
    d.stop()
    d = kept()
    with d.client() as c:
        entry, = (e["entry"] for e in c.cache_ls() if e["pinned"])
        assert c.call(k.CACHE_SHOW, {"entry": entry})["pinned_by"] == [os.getuid()]
        c.call(k.CACHE_UNPIN, {"entry": entry})
        d.until(lambda: not [e for e in c.cache_ls() if e["pinned"]], "unpinned")
        with pytest.raises(k.Refused):
            c.call(k.CACHE_UNPIN, {"entry": entry})
        c.call(k.CACHE_PIN, {"entry": entry})
        d.until(lambda: [e["entry"] for e in c.cache_ls() if e["pinned"]] == [entry], "pinned")


def test_what_is_kept_in_memory_is_told_once(managers, model, directory):
    """After a restart that kept the memory the tree does not know what of it is on disk, until somebody looks."""
    m = managers("--model", model, "--kv-memory", "16M", "--threads", "1", "--block-tokens", BLOCK,
                 "--state-dir", directory / "state", "--disk", "64M")
    d = m.start()
    with d.client() as c:
        for i in range(3):
            ask(c, ids(i, 1600))
        on_disk(d, 300)
        assert tiers(c.cache_ls()) == ["memory+disk"] * 300
        assert c.call(k.CACHE_DROP, {"entry": c.cache_ls()[100]["entry"]})["disk_entries"] == 100
    d = m.restart()
    with d.client() as c:
        entries = c.cache_ls()
        assert len(entries) == len({e["entry"] for e in entries}) == 200
        assert tiers(c.cache_ls()) == ["memory+disk"] * 200
        assert c.call(k.CACHE_DROP, {"entry": entries[0]["entry"]})["disk_entries"] == 100
        assert blocks(d) == 100
