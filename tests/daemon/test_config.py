# SPDX-License-Identifier: Apache-2.0
"""Configuration as an administrator meets it: --check-config, --print-config, and the pages that describe it."""
import re
import subprocess

import pytest

import kvdclient as k
from conftest import BUILD, ROOT, make_tiny

KVD = BUILD / "bin/kvd"


def kvd(*args):
    return subprocess.run([KVD, *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60, check=False)


def written(directory, text):
    path = directory / "kvd.conf"
    path.write_text(text)
    return path


def test_pages_name_every_setting():
    """What --help lists is in kvd(8); what a file may hold is in kvd.conf(5), and nothing else is."""
    options = set(re.findall(r"^ +--([a-z-]+)", kvd("--help").stdout, re.M))
    page = (ROOT / "man/kvd.8").read_text()
    assert options == set(re.findall(r"Fl -([a-z-]+)", page))
    settings = set(re.findall(r"^\.It Ic ([a-z-]+)", (ROOT / "man/kvd.conf.5").read_text(), re.M))
    assert settings == options - {"config", "check-config", "print-config", "version", "help"}


def test_print_config_is_complete(directory):
    """Every setting is printed (those that have no value yet are not), and what is printed is accepted."""
    r = kvd("--model", "m.gguf", "--cpu-level", "c", "--cache-groups", "root", "--fair-weights", "root:200",
            "--state-dir", directory, "--http-keys", "keys", "--http-hosts", "llm.lan",
            "--http-origins", "http://app.lan", "--synthetic", "tiny:q4_0", "--print-config")
    assert r.returncode == 0
    printed = set(re.findall(r"^([a-z-]+) = ", r.stdout, re.M))
    assert printed == set(re.findall(r"^\.It Ic ([a-z-]+)", (ROOT / "man/kvd.conf.5").read_text(), re.M))
    again = kvd("--config", written(directory, r.stdout), "--print-config")
    assert (again.returncode, again.stdout) == (0, r.stdout)


def test_example_of_the_page_is_accepted(directory):
    page = (ROOT / "man/kvd.conf.5").read_text()
    example = re.search(r"\.Bd -literal\n(.*?)\.Ed", page, re.S).group(1)
    r = kvd("--config", written(directory, example), "--check-config")
    assert (r.returncode, r.stderr) == (0, "")


@pytest.mark.parametrize("line, word", [
    ("uid-memory = 1K", "uid-memory"), ("uid-sessions = 0", "uid-sessions"), ("max-queue = -1", "max-queue"),
    ("uid-kv-memory = lots", "uid-kv-memory"), ("max-seqs = 99999", "max-seqs"), ("colour = red", "colour"),
    ("max-sessions", "name = value"), ("[other]\nmax-seqs = 2", "[other]"), ("max-seqs = 2\nmax-seqs = 2", "twice"),
])
def test_check_config_names_what_is_wrong(directory, line, word):
    path = written(directory, f"[kvd]\nmodel = m\n{line}\n")
    r = kvd("--config", path, "--check-config")
    assert r.returncode == 2
    assert word in r.stderr and re.search(re.escape(str(path)) + r":[34]:", r.stderr), r.stderr


# --- the limits hold ----------------------------------------------------------------------------

def test_sessions_of_one_user(daemons, tiny_model):
    d = daemons("--model", tiny_model, "--uid-sessions", 3)
    held = [d.client() for _ in range(3)]
    with pytest.raises(k.Refused) as e:
        d.client()
    assert e.value.code == 4 and "sessions" in e.value.fields["message"]
    held.pop().close()
    d.until(lambda: can_attach(d), "a place is free again")
    for c in held:
        c.close()


def can_attach(d):
    try:
        d.client().close()
        return True
    except k.Refused:
        return False


def test_sessions_in_all(daemons, tiny_model):
    d = daemons("--model", tiny_model, "--max-sessions", 2)
    held = [d.client() for _ in range(2)]
    with pytest.raises(k.Refused) as e:
        d.client()
    assert "in all" in e.value.fields["message"]
    for c in held:
        c.close()
    d.until(lambda: can_attach(d), "a place is free again")


def test_requests_of_one_user(daemons, tiny_model):
    d = daemons("--model", tiny_model, "--uid-requests", 2, env={"KVD_TEST_STEP_DELAY_MS": "5"})
    with d.client() as c:
        rids = [c.submit("abc", n=100000, ignore_eos=True) for _ in range(2)]
        with pytest.raises(k.Refused) as e:
            c.generate("abc", n=1)
        assert e.value.code == 4
        for r in rids:
            c.cancel(r)
        c.collect(*rids)
        d.until(lambda: answers(c), "a place is free again")


def answers(c):
    try:
        return c.generate("abc", n=1).error is None
    except k.Refused:
        return False


def test_queue_in_all(daemons, tiny_model):
    d = daemons("--model", tiny_model, "--max-queue", 1, "--max-seqs", 1, env={"KVD_TEST_STEP_DELAY_MS": "5"})
    with d.client() as c:
        rids = [c.submit("abc", n=100000, ignore_eos=True)]
        d.until(lambda: d.status()["n_running"] == 1, "the first one runs")
        rids.append(c.submit("abc", n=2, ignore_eos=True))
        d.until(lambda: d.status()["n_queued"] == 1, "the second one waits")
        rids.append(c.submit("abc", n=2, ignore_eos=True))
        with pytest.raises(k.Refused) as e:
            c.collect(rids[2])
        assert e.value.code == 6, "busy: it may be tried again"
        # Two workers: the third may have been there before the second.
        rids.remove(e.value.fields["id"])
        c.cancel(rids[0])
        results = c.collect(*rids)
        assert len(results[rids[1]].ids) == 2


def test_memory_of_one_user(daemons, tiny_model):
    d = daemons("--model", tiny_model, "--uid-memory", "12M")
    with d.client(ring=1 << 20, arena=1 << 20) as c:
        with pytest.raises(k.Refused) as e:
            d.client(ring=1 << 20, arena=12 << 20)
        assert e.value.code == 4 and "memory" in e.value.fields["message"]
        assert len(c.generate("abc", n=2, ignore_eos=True).ids) == 2, "who is attached is not harmed"


def test_keys_and_values_of_one_user(daemons, directory):
    """2 KiB for a token, so that a whole context of 2,048 does not fit 1 MiB."""
    model = make_tiny(directory / "wide.gguf", "--kv-heads", "4", "--heads", "4", "--head-dim", "64")
    d = daemons("--model", model, "--uid-kv-memory", "1M", "--kv-memory", "64M")
    with d.client() as c:
        alone = c.generate("abc", n=40, ignore_eos=True)
        assert len(alone.ids) == 40
        long = c.generate("a b " * 900, n=4000, ignore_eos=True)
        assert long.error and long.error["code"] == 4, "it can never fit, and is told so"
        assert b"KV" in long.error["text"]
        rids = [c.submit("abc", n=40, ignore_eos=True) for _ in range(24)]
        for r in c.collect(*rids).values():
            assert r.ids == alone.ids, "those that fit wait for each other"
