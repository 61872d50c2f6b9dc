# SPDX-License-Identifier: Apache-2.0
"""Malformed model files: refused at once with the field named, by a private start and by a running daemon."""
import re
import resource
import subprocess

import kvdclient as k
import malformed_gguf
import pytest
from conftest import BUILD, PATIENCE, SANITIZED, Daemon, make_tiny

MUTATE = BUILD / "tests/tools/gguf-mutate"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All the files."""
    d = tmp_path_factory.mktemp("malformed")
    for name in malformed_gguf.CASES:
        (d / file_of(name)).write_bytes(malformed_gguf.make(name))
    for name in malformed_gguf.BASES:
        (d / f"good-{name}.gguf").write_bytes(malformed_gguf.good(name).to_bytes())
    return d


def file_of(name):
    return "%03d-%s.gguf" % (list(malformed_gguf.CASES).index(name), re.sub(r"\W+", "-", name))


def test_there_are_enough():
    assert len(malformed_gguf.CASES) >= 60
    assert len({malformed_gguf.make(n) for n in malformed_gguf.CASES}) == len(malformed_gguf.CASES)


@pytest.mark.parametrize("base", malformed_gguf.BASES)
def test_good_ones_load(directory, folder, base):
    """What the others are made from is not refused."""
    d = Daemon(directory, "--model", folder / f"good-{base}.gguf", "--kv-memory", "8M")
    with d.client() as c:
        assert len(c.generate("hello", n=3, ignore_eos=True).ids) == 3
    d.stop()


# A start needs 140 MiB of addresses (programs, libraries, stacks of threads), whatever the file says.
LIMITED = [] if SANITIZED else ["/bin/sh", "-c", 'ulimit -v 180000; exec "$@"', "sh"]


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_private_start(directory, folder):
    """kvd says what is wrong with each file, in one line of text, and ends; without much work or memory."""
    slowest = (0.0, "")
    for name, (_, _, says) in malformed_gguf.CASES.items():
        path, before = folder / file_of(name), processor_seconds()
        r = subprocess.run([*LIMITED, BUILD / "bin/kvd", "--model", path, "--socket", directory / "s"], capture_output=True,
                           stdin=subprocess.DEVNULL, timeout=30 * PATIENCE)
        slowest = max(slowest, (processor_seconds() - before, name))
        text = r.stderr.decode()
        assert r.returncode == 1, (name, r)
        line = text.splitlines()[-1]
        assert says in line and path.name in text, (name, text)
        assert line.isprintable(), (name, line)
        assert not (directory / "s").exists(), name
    print(f"\n{len(malformed_gguf.CASES)} files; most processor time: {slowest[0]:.3f} s, {slowest[1]}")
    assert slowest[0] < 1 * PATIENCE, slowest


@pytest.mark.parametrize("name", list(malformed_gguf.CASES)[::9])
def test_kvctl_says_it_too(directory, folder, kvctl, name):
    """kvctl -m, which starts a daemon, shows its reason."""
    run_dir = directory / "run"
    run_dir.mkdir(mode=0o700)
    r = kvctl("generate", "-m", folder / file_of(name), "x", env={"XDG_RUNTIME_DIR": str(run_dir), "HOME": str(directory)},
              socket=directory / "private.sock")
    assert r.returncode == 1 and r.stdout == b""
    assert malformed_gguf.CASES[name][2] in r.stderr.decode()


def answers(c):
    """What a model says; the same whenever it is asked."""
    return [(r.ids, r.logprobs) for r in (c.generate(p, n=8, ignore_eos=True, logprobs=1, model="good") for p in ("Hello", "abc " * 30))]


def test_running_daemon(daemons, directory, folder):
    """`load` of each file is refused the same way, while another model goes on answering the same; nothing of it stays."""
    (directory / "good.gguf").write_bytes((folder / "good-llama.gguf").read_bytes())
    d = daemons("--model", directory / "good.gguf", "--kv-memory", "8M")
    with d.client() as c, d.client() as loader, d.client() as other:
        want = answers(c)

        def round_of_loads(check):
            busy = other.submit("a long story " * 20, n=1000, ignore_eos=True, model="good")
            for name, (_, _, says) in malformed_gguf.CASES.items():
                with pytest.raises(k.Refused) as e:
                    loader.load(folder / file_of(name), "bad")
                assert e.value.code == 16, (name, e.value)
                text = e.value.fields["message"]
                assert says in text and text.isprintable(), (name, text)
            if check:
                assert answers(c) == want
            other.cancel(busy)
            other.collect(busy)
        round_of_loads(True)
        models = c.call(k.MODELS)["models"]
        assert [(m["name"], m["state"]) for m in models] == [("good", "ready")]
        d.idle(sessions=4)
        fds, memory = d.fds(), d.memory()
        for _ in range(3):
            round_of_loads(False)
        d.idle(sessions=4)
        assert answers(c) == want
        assert d.fds() <= fds
        # Three times 171 files; one that kept a page of each would show.
        assert SANITIZED or d.memory() - memory < 1 << 20, (memory, d.memory())
        # The name is free, and the way of the good ones open.
        assert loader.load(folder / "good-spm.gguf", "bad")["name"] == "bad"
        assert len(c.generate("x", n=4, ignore_eos=True, model="bad").ids) == 4
        assert answers(c) == want


@pytest.mark.parametrize("name", list(malformed_gguf.CASES)[::19])
def test_kvctl_load(daemon, folder, kvctl, name):
    r = kvctl("load", folder / file_of(name), socket=daemon.socket)
    assert r.returncode == 1 and r.stdout == b""
    assert malformed_gguf.CASES[name][2] in r.stderr.decode()


def test_absurd_but_legal(directory, tmp_path):
    """A context of four million tokens is announced, not used: nothing is made for it."""
    path = make_tiny(tmp_path / "long.gguf", "--ctx", str(1 << 22))
    d = Daemon(directory, "--model", path, "--kv-memory", "4M")
    with d.client() as c:
        assert len(c.generate("hello", n=5, ignore_eos=True).ids) == 5
    assert SANITIZED or d.memory() < 32 << 20
    d.stop()


NUMBERS = {
    "NaN": b"\0\0\xc0\x7f", "infinity": b"\0\0\x80\x7f", "huge": b"\xff\xff\x7f\x7f", "zero": bytes(4),
    "subnormal": b"\1\0\0\0",
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("tensor", ["token_embd.weight", "blk.0.attn_norm.weight", "blk.1.ffn_down.weight", "output.weight"])
def test_weights_that_are_no_numbers(directory, tmp_path, name, tensor):
    """Weights may be anything; such a model is of no use, but its daemon lives and answers."""
    g = malformed_gguf.Spoiled(malformed_gguf.tiny.build(type="f32", **malformed_gguf.SMALL))
    malformed_gguf.fills(tensor, NUMBERS[name])(g)
    path = tmp_path / "odd.gguf"
    g.write(path)
    d = Daemon(directory, "--model", path, "--kv-memory", "4M")
    with d.client() as c:
        for options in ({}, {"temperature": 1.0, "seed": 1}, {"temperature": 0.7, "top_k": 5, "logprobs": 3}):
            r = c.generate("hello there", n=6, ignore_eos=True, **options)
            assert r.error or len(r.ids) == 6
            assert all(0 <= i < 320 for i in r.ids)
        assert c.call(0x20)["state"] == "ready"
    d.idle()
    d.stop()


@pytest.mark.parametrize("base", malformed_gguf.BASES)
def test_truncated_at_every_4_kib(folder, base):
    r = subprocess.run([MUTATE, "truncate", "4096", folder / f"good-{base}.gguf"], capture_output=True, text=True,
                       timeout=60 * PATIENCE)
    assert r.returncode == 0 and r.stdout.startswith("0 loaded, "), r.stdout + r.stderr
    assert int(r.stdout.split()[2]) == ((folder / f"good-{base}.gguf").stat().st_size + 4095) // 4096


@pytest.mark.parametrize("base", malformed_gguf.BASES)
def test_every_bit_of_the_first_2_kib(tmp_path, base):
    """A turned bit is harmless, or refused with a reason."""
    small = {"layers": 1, "embd": 32, "heads": 2, "kv_heads": 1, "ff": 32, "vocab": 300}
    path = tmp_path / "small.gguf"
    arch = {"spm": "llama"}.get(base, base)
    g = malformed_gguf.tiny.build(arch=arch, type="q8_0", chat_template="none", **small, **({"rope_long": 1.1} if arch == "phi3" else {}))
    if base in ("gemma3", "spm"):
        malformed_gguf.sentencepiece(g)
    g.write(path)
    r = subprocess.run([MUTATE, "flip", "0", "2048", path], capture_output=True, text=True, timeout=120 * PATIENCE)
    assert r.returncode == 0, r.stdout[-4000:] + r.stderr
    loaded, refused = (int(r.stdout.split()[i]) for i in (0, 2))
    assert loaded + refused == 2048 * 8 and refused > 1000
