# SPDX-License-Identifier: Apache-2.0
"""The cache by commands: what is listed, pinned, dropped and wiped, and by whom; namespaces, keys, TTL; why a prompt missed."""
import contextlib
import grp
import os
import random
import time

import kvdclient as k
import prefix
import pytest
from conftest import PATIENCE, make_tiny
from kvtypes import kv_types

BLOCK = 16
UIDS = (20021, 20022)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="takes other uids, so root")


@contextlib.contextmanager
def as_user(uid, gid=None, groups=()):
    """Who connects meanwhile is this user: the kernel records it then."""
    had = os.getgroups()
    os.setgroups(list(groups))
    os.setegid(gid if gid is not None else uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(had)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf", "--ctx", "2048")


@pytest.fixture
def start(daemons, model):
    def start(*options, memory="16M", kv_type="f16", **kw):
        return daemons("--model", model, "--kv-memory", memory, "--threads", "1", "--socket-mode", "0666", "--kv-type", kv_type,
                       "--block-tokens", prefix.block_of(kv_type, BLOCK), *options, **kw)
    return start


@pytest.fixture
def clients(start):
    """clients(user, ...) -> attached as each of these uids."""
    made = []

    def attach(d, *uids, **kw):
        for uid in uids:
            with as_user(uid, **kw):
                made.append(d.client())
        return made[-len(uids):] if len(uids) > 1 else made[-1]
    yield attach
    for c in made:
        c.close()


def ids(seed, n):
    rng = random.Random(seed)
    return [rng.randrange(3, 250) for _ in range(n)]


def ask(c, tokens, n=0, **kw):
    r = c.generate(ids=tokens, n=n, ignore_eos=True, **kw)
    assert not r.error, r.error
    return r.usage


def refused(code, field, call, *args, **kw):
    with pytest.raises(k.Refused) as e:
        call(*args, **kw)
    assert (e.value.code, e.value.field) == (code, field), e.value
    return e.value.fields["message"]


def plain(entries):
    return [(e["first"], e["n_tokens"], e["uid"], e["namespace"]) for e in entries]


# --- listing ---

def test_listing(start):
    """Entries are listed as they were made, with their tree, and go on a page at a time."""
    with start().client() as c:
        assert c.cache_ls() == []
        a, b = ids(1, 100), ids(1, 40) + ids(2, 40)
        ask(c, a)
        ask(c, b)
        entries = c.cache_ls()
        uid = f"uid:{os.getuid()}"
        # 100 = 6 blocks and a tail of 4; 80 shares two blocks.
        assert plain(entries) == [(16 * i, 16 if i < 6 else 4, os.getuid(), uid) for i in range(7)] + \
            [(32 + 16 * i, 16, os.getuid(), uid) for i in range(3)]
        by_id = {e["entry"]: e for e in entries}
        numbers = [e["entry"] for e in entries]
        assert len(set(numbers)) == len(numbers)
        assert [e["parent"] for e in entries[:7]] == [0] + numbers[:6]
        assert entries[7]["parent"] == numbers[1]
        assert [e["joined"] for e in entries] == [False, True, False, True, True, True, True, False, True, True]
        assert all(e["tier"] == "memory" and e["bytes"] > 0 and e["priority"] == 1 and not e["pinned"]
                   and e["n_pins"] == 0 and e["n_users"] == 0 and "ttl_ns" not in e for e in entries)
        assert [e["hits"] for e in entries[:4]] == [1, 1, 1, 0]
        assert by_id[numbers[0]]["idle_ns"] <= by_id[numbers[0]]["age_ns"]
        assert all(e["words"] for e in entries)
        for n in (1, 7, 10):
            page = c.call(k.CACHE_LS, {"after": numbers[n - 1]})
            assert [e["entry"] for e in page["entries"]] == numbers[n:]


def test_pages(start):
    """More entries than one message holds."""
    with start().client() as c:
        for i in range(5):
            ask(c, ids(i, 1600))
        entries = c.cache_ls()
        assert len(entries) == 500
        assert len({e["entry"] for e in entries}) == 500
        assert sum(e["n_tokens"] for e in entries) == 5 * 1600
        page = c.call(k.CACHE_LS)
        assert len(page["entries"]) == k.CACHE_LS_MAX and page["next"] == page["entries"][-1]["entry"]
        assert page["block_tokens"] == BLOCK and page["model"] == "tiny"


def test_show(start):
    with start().client() as c:
        c.generate("Once upon a time\nthere was a very small model that knew only letters, and the end.", n=0)
        entries = c.cache_ls()
        last = entries[-1]
        r = c.call(k.CACHE_SHOW, {"entry": last["entry"]})
        assert r["entries"][0]["entry"] == last["entry"] and r["entries"][0]["first"] == last["first"]
        assert r["n_path"] == len(entries) and r["n_below"] == 0 and r["chain"] == entries[0]["entry"]
        assert r["pinned_by"] == []
        assert r["text"].endswith("Once upon a time there was a very small model that knew only letters, and the end.")
        assert r["text"].endswith(r["own"])
        first = c.call(k.CACHE_SHOW, {"entry": entries[0]["entry"]})
        assert first["n_below"] == len(entries) - 1 and first["n_path"] == 1
        assert r["text"].startswith(first["text"])
        assert first["entries"][0]["words"] in first["text"]
        refused(18, "entry", c.call, k.CACHE_SHOW, {"entry": 2 ** 63})
        refused(8, "model", c.call, k.CACHE_SHOW, {"entry": 1, "model": "other"})


# --- pins, drop, wipe ---

@kv_types("f16", "q4")
def test_pin(start, kv_type):
    d, block = start(memory="2M", kv_type=kv_type), prefix.block_of(kv_type, BLOCK)
    with d.client() as c:
        a = ids(1, 6 * block)
        ask(c, a)
        entries = c.cache_ls()
        before = c.call(k.STATUS)
        r = c.call(k.CACHE_PIN, {"entry": entries[3]["entry"]})
        assert (r["n_entries"], r["n_tokens"], r["bytes"]) == (4, 4 * block, 4 * entries[0]["bytes"])
        after = c.call(k.STATUS)
        # Kept by a pin is in use, not cached.
        assert after["blocks_used"] - before["blocks_used"] == 4
        assert after["blocks_cached"] - before["blocks_cached"] == -4
        assert c.call(k.CACHE_SHOW, {"entry": entries[3]["entry"]})["pinned_by"] == [os.getuid()]
        assert [e["pinned"] for e in c.cache_ls()] == [False] * 3 + [True] + [False] * 2
        assert [e["joined"] for e in c.cache_ls()] == [False, True, True, True, False, True]
        # All that fits goes through the pool; what is pinned is still there.
        n_blocks = after["blocks_used"] + after["blocks_cached"] + after["blocks_free"]
        for i in range(3 * n_blocks * block // 1000 + 1):
            ask(c, ids(100 + i, 1000))
        u = ask(c, a + [7, 8])
        assert u["cached"] == 4 * block and u["miss"] in (k.MISS_EVICTED, k.MISS_EMPTY), u
        c.call(k.CACHE_UNPIN, {"entry": entries[3]["entry"]})
        refused(2, "entry", c.call, k.CACHE_UNPIN, {"entry": entries[3]["entry"]})
        assert not any(e["pinned"] for e in c.cache_ls())


def test_pins_are_bounded(start):
    d = start(memory="2M")
    with d.client() as c:
        for i in range(100):
            ask(c, ids(i, 300))
            last = c.cache_ls()[-1]["entry"]
            try:
                c.call(k.CACHE_PIN, {"entry": last})
            except k.Refused as e:
                assert (e.code, e.field) == (4, "entry") and "pinned" in str(e)
                break
        else:
            pytest.fail("everything could be pinned")
        # Others still get on.
        ask(c, ids(1000, 600), n=20)


def test_pin_with_a_request(start):
    with start().client() as c:
        a = ids(1, 5 * BLOCK + 3)
        ask(c, a, n=8, pin=True)
        assert [(e["first"], e["n_pins"]) for e in c.cache_ls() if e["pinned"]] == [(4 * BLOCK, 1)]
        # Less than a block has nothing to pin.
        ask(c, ids(2, 5), pin=True)
        assert sum(e["n_pins"] for e in c.cache_ls()) == 1
        refused(2, "pin", c.generate, ids=a, n=1, pin=True, namespace="none")


def test_pin_of_a_request_is_refused_in_words(start):
    with start(memory="2M").client() as c:
        for i in range(50):
            r = c.generate(ids=ids(i, 500), n=4, pin=True)
            if r.error:
                break
        assert r.error["code"] == 4 and b"pinned" in r.error["text"], r.error
        assert not r.ids


@kv_types("f16", "q4")
def test_drop(start, kv_type):
    block = prefix.block_of(kv_type, BLOCK)
    with start(kv_type=kv_type).client() as c:
        a, b = ids(1, 6 * block), ids(1, 3 * block) + ids(2, 3 * block)
        ask(c, a)
        ask(c, b)
        numbers = [e["entry"] for e in c.cache_ls()]
        assert len(numbers) == 9
        # The last of a chain: the chain begins where the prompts part.
        r = c.call(k.CACHE_DROP, {"entry": numbers[5], "chain": True})
        assert (r["n_entries"], r["n_tokens"]) == (3, 3 * block)
        assert [e["entry"] for e in c.cache_ls()] == numbers[:3] + numbers[6:]
        u = ask(c, a)
        assert u["cached"] == 3 * block and u["miss"] in (k.MISS_DIFFERS, k.MISS_EMPTY, k.MISS_EVICTED)
        assert ask(c, b)["cached"] == prefix.reusable(6 * block, kv_type)
        r = c.call(k.CACHE_DROP, {"entry": numbers[1]})
        assert [e["first"] for e in c.cache_ls()] == [0]
        refused(18, "entry", c.call, k.CACHE_DROP, {"entry": numbers[1]})


@kv_types("f16", "q8", "q4")
def test_drop_while_it_is_used(start, kv_type):
    """The request goes on with the same answer; nobody finds it any more."""
    with start(kv_type=kv_type, env={"KVD_TEST_STEP_DELAY_MS": "5"}).client() as c:
        a = ids(1, 40)
        right = c.generate(ids=a, n=60, ignore_eos=True, namespace="none").ids
        rid = c.submit(ids=a, n=60, ignore_eos=True)
        first = c.next_record()
        assert first[0] == k.TOKEN
        used = [e for e in c.cache_ls() if e["n_users"]]
        assert used
        c.call(k.CACHE_DROP, {"entry": used[0]["entry"], "chain": True})
        assert c.cache_ls() == []
        result = k.Result()
        result.add(first[0], c.decode(first[0], first[2]))
        while not result.ended:
            kind, got, payload = c.next_record()
            assert got == rid
            result.add(kind, c.decode(kind, payload))
        assert result.ids == right


def test_wipe(start):
    d = start()
    with d.client() as c:
        for key in (None, "a", "b"):
            ask(c, ids(1, 40), **({"cache_key": key} if key else {}))
        uid = f"uid:{os.getuid()}"
        assert sorted({e["namespace"] for e in c.cache_ls()}) == [uid, f"{uid}/a", f"{uid}/b"]
        assert len(c.cache_ls(namespace="own/a")) == len(c.cache_ls(namespace=f"{uid}/b")) == 3
        assert len(c.cache_ls(namespace="own")) == 9 and c.cache_ls(namespace="own/c") == []
        r = c.call(k.CACHE_WIPE, {"namespace": "own/a"})
        assert (r["n_entries"], r["n_tokens"]) == (3, 40)
        assert sorted({e["namespace"] for e in c.cache_ls()}) == [uid, f"{uid}/b"]
        assert c.call(k.CACHE_WIPE)["n_entries"] == 6
        assert c.cache_ls() == []
        # "uid:1" is not below "uid:10".
        ask(c, ids(1, 40))
        assert c.call(k.CACHE_WIPE, {"namespace": uid[:-1]})["n_entries"] == 0 if len(uid) > 5 else True
        assert c.call(k.CACHE_WIPE, {"all": True, "model": "tiny"})["n_entries"] == 3


# --- why a prompt missed ---

def test_misses(start):
    with start().client() as c:
        a = ids(1, 50)
        u = ask(c, a)
        assert (u["cached"], u["miss"], u["miss_token"]) == (0, k.MISS_EMPTY, a[0])
        u = ask(c, a)
        assert (u["cached"], u["miss"], u["miss_token"]) == (49, k.MISS_NONE, a[49])
        b = a[:30] + [a[30] + 1 if a[30] < 249 else 3] + a[31:]
        u = ask(c, b)
        assert (u["cached"], u["miss"], u["miss_token"]) == (30, k.MISS_DIFFERS, b[30])
        assert u["miss_bytes"]
        u = ask(c, a + [5, 6])
        assert (u["cached"], u["miss"], u["miss_token"]) == (50, k.MISS_EMPTY, 5)
        u = ask(c, a, namespace="none")
        assert (u["cached"], u["miss"]) == (0, k.MISS_NO_CACHE)
        u = ask(c, a, cache_key="x")
        assert (u["cached"], u["miss"]) == (0, k.MISS_KEY)
        u = ask(c, ids(3, 40), cache_key="x")
        assert (u["cached"], u["miss"]) == (0, k.MISS_DIFFERS)
        u = ask(c, ids(3, 40))
        assert (u["cached"], u["miss"]) == (0, k.MISS_KEY)
        u = ask(c, a, prompt_logprobs=20, n=1)
        assert (u["cached"], u["miss"]) == (19, k.MISS_LOGPROBS)
        c.call(k.CACHE_WIPE)
        u = ask(c, a)
        assert u["cached"] == 0 and u["miss"] in (k.MISS_EMPTY, k.MISS_EVICTED)


def test_ttl(start):
    with start().client() as c:
        a, b = ids(1, 3 * BLOCK), ids(2, 3 * BLOCK)
        ask(c, a, ttl_s=1)
        ask(c, b, ttl_s=3600)
        listed = {e["first"]: e for e in c.cache_ls()}
        assert 3500e9 < listed[0]["ttl_ns"] <= 3600e9
        end = time.monotonic() + 20 * PATIENCE
        while any(e["ttl_ns"] <= 1e9 for e in c.cache_ls()):
            assert time.monotonic() < end, "it does not expire"
            time.sleep(0.1)
        u = ask(c, a)
        assert (u["cached"], u["miss"]) == (0, k.MISS_EXPIRED)
        assert ask(c, b)["cached"] == 3 * BLOCK - 1


def test_priority(start):
    with start().client() as c:
        for i in range(3):
            ask(c, ids(i, BLOCK), priority=i)
        assert [e["priority"] for e in c.cache_ls()] == [0, 1, 2]


def test_no_cache(start):
    with start("--no-cache").client() as c:
        u = ask(c, ids(1, 40))
        assert (u["cached"], u["miss"]) == (0, k.MISS_NO_CACHE)
        assert c.cache_ls() == []
        assert c.call(k.CACHE_WIPE)["n_entries"] == 0
        refused(2, "pin", c.generate, ids=ids(1, 40), pin=True)


def test_status(start):
    with start().client() as c:
        s = c.call(k.STATUS)
        assert (s["blocks_used"], s["blocks_cached"], s["cache_lookups"], s["cache_hits"], s["cached_tokens"]) == (0,) * 5
        total = s["blocks_free"]
        a = ids(1, 50)
        for _ in range(3):
            ask(c, a)
        ask(c, a, namespace="none")
        s = c.call(k.STATUS)
        assert (s["cache_lookups"], s["cache_hits"], s["cached_tokens"]) == (3, 2, 98)
        assert s["blocks_cached"] == 4 and s["blocks_used"] == 0
        assert s["blocks_free"] == total - 4
        assert s["cache_evicted"] == 0


# --- whose it is ---

@needs_root
def test_another_user(start, clients):
    """Neither lists, shows, pins, drops nor wipes what is another's, nor sees it in a figure."""
    d = start()
    one, two = clients(d, *UIDS)
    a = ids(1, 100)
    before = two.call(k.STATUS)
    ask(one, a, n=4)
    ask(one, a, n=4, cache_key="k", pin=True)
    own = one.cache_ls()
    assert {e["namespace"] for e in own} == {f"uid:{UIDS[0]}", f"uid:{UIDS[0]}/k"}
    after = two.call(k.STATUS)
    for key, v in before.items():
        if key not in ("id", "uptime_ns"):
            assert after[key] == v, key
    assert two.cache_ls() == []
    assert two.cache_ls(namespace=f"uid:{UIDS[0]}") == []
    for e in own:
        for op in (k.CACHE_SHOW, k.CACHE_PIN, k.CACHE_UNPIN, k.CACHE_DROP):
            there = refused(18, "entry", two.call, op, {"entry": e["entry"]})
            # As if there were none.
            assert there.replace(str(e["entry"]), "N") == \
                refused(18, "entry", two.call, op, {"entry": 10 ** 9}).replace(str(10 ** 9), "N")
    refused(5, "all", two.call, k.CACHE_UNPIN, {"entry": own[0]["entry"], "all": True})
    refused(5, "all", two.call, k.CACHE_WIPE, {"all": True})
    for name in (f"uid:{UIDS[0]}", f"uid:{UIDS[0]}/k", "public", "group:root", "uid:"):
        refused(5, "namespace", two.call, k.CACHE_WIPE, {"namespace": name})
    refused(5, "namespace", two.generate, ids=a, namespace=f"uid:{UIDS[0]}")
    assert two.call(k.CACHE_WIPE)["n_entries"] == 0
    u = ask(two, a, n=4)
    assert (u["cached"], u["miss"]) == (0, k.MISS_EMPTY)
    assert {e["namespace"] for e in two.cache_ls()} == {f"uid:{UIDS[1]}"}
    assert [e["entry"] for e in one.cache_ls()] == [e["entry"] for e in own]
    s = two.call(k.STATUS)
    assert (s["cache_lookups"], s["cache_hits"], s["cached_tokens"], s["blocks_cached"]) == (1, 0, 0, 7)
    # Root sees and may do everything.
    with d.client() as root:
        assert {e["uid"] for e in root.cache_ls()} == set(UIDS)
        pinned = [e for e in root.cache_ls() if e["n_pins"]]
        assert len(pinned) == 1 and not pinned[0]["pinned"]
        assert root.call(k.CACHE_SHOW, {"entry": pinned[0]["entry"]})["pinned_by"] == [UIDS[0]]
        refused(2, "entry", root.call, k.CACHE_UNPIN, {"entry": pinned[0]["entry"]})
        root.call(k.CACHE_UNPIN, {"entry": pinned[0]["entry"], "all": True})
        root.call(k.CACHE_DROP, {"entry": pinned[0]["entry"], "chain": True})
        assert root.call(k.CACHE_WIPE, {"namespace": f"uid:{UIDS[0]}"})["n_entries"] == 7
        assert {e["uid"] for e in root.cache_ls()} == {UIDS[1]}
        root.call(k.CACHE_WIPE, {"all": True})
        assert root.cache_ls() == two.cache_ls() == []


@needs_root
def test_numbers_tell_nothing_of_others(start, clients):
    """Numbers don't ascend, and those of the same prompts differ from daemon to daemon, whatever others do."""
    seen = []
    for i in range(2):
        d = start(socket=f"/tmp/kvd-test-{os.getpid()}-{i}.sock")
        one = clients(d, UIDS[0])
        ask(one, ids(1, 64 * BLOCK))
        numbers = [e["entry"] for e in one.cache_ls()]
        assert len(set(numbers)) == 64 and numbers != sorted(numbers)
        ups = sum(a < b for a, b in zip(numbers, numbers[1:]))
        assert 10 < ups < 54
        seen.append(numbers)
    assert not set(seen[0]) & set(seen[1])


@needs_root
def test_shared_namespaces_need_permission(start, clients):
    c = clients(start(), UIDS[0], groups=(0,))
    a = ids(1, 40)
    refused(5, "namespace", c.generate, ids=a, namespace="public")
    refused(5, "namespace", c.generate, ids=a, namespace="group:root")
    refused(5, "namespace", c.generate, ids=a, namespace="group:nosuchgroup")
    refused(2, "namespace", c.generate, ids=a, namespace="group:")
    refused(2, "namespace", c.generate, ids=a, namespace="everybody")


@needs_root
def test_public(start, clients):
    """All may use it; each lists and pins his own there; only administrators drop."""
    d = start("--cache-public")
    one, two = clients(d, *UIDS)
    a, b = ids(1, 4 * BLOCK), ids(1, 4 * BLOCK) + ids(2, 2 * BLOCK)
    assert ask(one, a, namespace="public")["cached"] == 0
    u = ask(two, a)
    assert (u["cached"], u["miss"]) == (0, k.MISS_NAMESPACE)
    u = ask(two, b, namespace="public", ttl_s=50)
    assert u["cached"] == 4 * BLOCK
    mine, theirs = one.cache_ls(), two.cache_ls(namespace="public")
    assert plain(mine) == [(16 * i, 16, UIDS[0], "public") for i in range(4)]
    assert plain(theirs) == [(16 * i, 16, UIDS[1], "public") for i in range(4, 6)]
    # What tells of the others' use is left out.
    assert all(e["hits"] == 0 and e["n_users"] == 0 and e["idle_ns"] == e["age_ns"] and "ttl_ns" not in e for e in mine)
    last = theirs[-1]["entry"]
    two.call(k.CACHE_PIN, {"entry": last})
    assert sum(e["n_pins"] for e in one.cache_ls()) == 0
    shown = two.call(k.CACHE_SHOW, {"entry": last})
    assert shown["pinned_by"] == [UIDS[1]] and shown["n_path"] == 6
    assert one.call(k.CACHE_SHOW, {"entry": mine[-1]["entry"]})["n_below"] == 0
    refused(18, "entry", one.call, k.CACHE_SHOW, {"entry": last})
    refused(5, "entry", one.call, k.CACHE_DROP, {"entry": mine[0]["entry"]})
    refused(5, "namespace", one.call, k.CACHE_WIPE, {"namespace": "public"})
    with d.client() as root:
        listed = root.cache_ls(namespace="public")
        assert len(listed) == 6 and listed[0]["hits"] and "ttl_ns" in listed[5]
        assert root.call(k.CACHE_WIPE, {"namespace": "public"})["n_entries"] == 6


@needs_root
def test_group(start, clients):
    """Members share, by their supplementary groups or their own; others are refused."""
    g = next(g for g in grp.getgrall() if 0 < g.gr_gid < 60000)
    d = start("--cache-groups", g.gr_name)
    member = clients(d, UIDS[0], groups=(g.gr_gid,))
    by_gid = clients(d, UIDS[1], gid=g.gr_gid)
    other = clients(d, 20023, groups=(g.gr_gid + 1,))
    a, name = ids(1, 40), f"group:{g.gr_name}"
    assert ask(member, a, namespace=name)["cached"] == 0
    assert ask(by_gid, a, namespace=name)["cached"] == 39
    assert ask(by_gid, a, namespace=name, cache_key="z")["miss"] == k.MISS_KEY
    assert ask(by_gid, a)["miss"] == k.MISS_NAMESPACE
    refused(5, "namespace", other.generate, ids=a, namespace=name)
    u = ask(other, a)
    assert (u["cached"], u["miss"]) == (0, k.MISS_EMPTY)
    assert {e["namespace"] for e in other.cache_ls()} == {"uid:20023"}


def test_groups_are_checked(daemons, model, directory):
    import subprocess
    from conftest import BUILD
    for value, word in (("nosuchgroup", "nosuchgroup"), ("", "empty"), ("root,,root", "no group"), ("nogroup", "nogroup")):
        r = subprocess.run([BUILD / "bin/kvd", "--model", model, "--check-config", "--cache-groups", value],
                           capture_output=True, text=True)
        assert r.returncode != 0 and word in r.stderr, (value, r.stderr)
    r = subprocess.run([BUILD / "bin/kvd", "--model", model, "--check-config", "--cache-groups", "root, 0"],
                       capture_output=True, text=True)
    assert r.returncode == 0, r.stderr
    r = subprocess.run([BUILD / "bin/kvd", "--print-config", "--cache-groups", "root", "--cache-public"],
                       capture_output=True, text=True)
    assert "cache-groups = root\n" in r.stdout and "cache-public = yes\n" in r.stdout


# --- and while much goes on ---

@needs_root
def test_who_asks_much_is_put_off(start, clients):
    """What is too much at once is refused; others are answered, and so are all of one's own statuses."""
    d = start(env={"KVD_TEST_STEP_DELAY_MS": "20"})
    one, two, again = clients(d, UIDS[0], UIDS[1], UIDS[0])
    ask(one, ids(1, 500))
    rid = two.submit(ids=ids(2, 10), n=200, ignore_eos=True)
    sent = list(range(1000, 1016))
    for i in sent:
        one.send(k.CACHE_LS, {"id": i})
    # A session of the same user has no turn of its own, another user has.
    assert len(two.cache_ls()) <= 1
    answered = {"page": 0, "busy": 0}
    for i in sent:
        try:
            assert len(one.reply(i)["entries"]) == 32
            answered["page"] += 1
        except k.Refused as e:
            assert e.code == 6
            answered["busy"] += 1
    assert answered["page"] >= 4 and answered["page"] + answered["busy"] == 16, answered
    assert len(again.cache_ls()) == 32
    for i in sent:
        one.send(k.STATUS, {"id": i})
    assert all(one.reply(i)["blocks_cached"] == 32 for i in sent)
    two.cancel(rid)


@kv_types("f16", "q4")
def test_while_others_work(start, clients, kv_type):
    """Listing, pinning and dropping at random while requests run: answers stay right, nothing is left over."""
    d = start(memory="2M", kv_type=kv_type)
    rng = random.Random(5)
    prompts = [ids(i % 3, 40 + 16 * (i % 5)) + ids(10 + i, 20) for i in range(12)]
    with d.client() as c, d.client() as control:
        right = {}
        for round_ in range(6):
            rids = {c.submit(ids=p, n=8, ignore_eos=True): i for i, p in enumerate(prompts)}
            entries = control.cache_ls()
            for e in rng.sample(entries, min(6, len(entries))):
                op = rng.choice([k.CACHE_PIN, k.CACHE_UNPIN, k.CACHE_DROP, k.CACHE_SHOW])
                with contextlib.suppress(k.Refused):
                    control.call(op, {"entry": e["entry"]})
            for rid, r in c.collect(*rids).items():
                assert not r.error, r.error
                assert right.setdefault(rids[rid], r.ids) == r.ids
        control.call(k.CACHE_WIPE)
        assert control.cache_ls() == []
        s = control.call(k.STATUS)
        assert (s["blocks_used"], s["blocks_cached"]) == (0, 0)
