# SPDX-License-Identifier: Apache-2.0
"""kvctl perplexity, and the log-probabilities of prompts that it is made of.

The oracle: logits of every position as kvd-logits writes them, without daemon, scheduler or sampler, and the definition
in double precision here.
"""
import array
import json
import math
import os
import pathlib
import subprocess

import kvdclient as k
import pytest
from conftest import BUILD, PATIENCE, make_tiny

TEXT = ("Once upon a time there was a small house near the sea, and in the house there lived a man who wrote letters to "
        "everyone he had ever known. He wrote about the weather, the boats and the birds; nobody answered.\n") * 3
WINDOW = 32
MEMORY = ("--kv-memory", "64M", "--threads", "2")
GPL = pathlib.Path("/usr/share/common-licenses/GPL-3")


def prompt_logprobs(model, ids):
    """Natural log-probability of each token but the first, from the logits of the one before."""
    out = pathlib.Path(f"{model}.logits")
    r = subprocess.run([BUILD / "tests/tools/kvd-logits", "--output", out, model], input=" ".join(map(str, ids)),
                       capture_output=True, text=True, timeout=60 * PATIENCE)
    assert r.returncode == 0, r.stderr
    logits = array.array("f", out.read_bytes())
    n_vocab = len(logits) // len(ids)
    result = [math.nan]
    for i in range(1, len(ids)):
        row = logits[(i - 1) * n_vocab:i * n_vocab]
        top = max(row)
        result.append(row[ids[i]] - top - math.log(math.fsum(math.exp(x - top) for x in row)))
    return result


def perplexity(model, ids, window, bos=None):
    scored = []
    for at in range(0, len(ids) - window + 1, window):
        piece = ids[at:at + window]
        if bos is not None:
            piece[0] = bos
        scored += prompt_logprobs(model, piece)[window // 2:]
    return math.exp(-math.fsum(scored) / len(scored)), len(scored)


@pytest.fixture
def served(daemons, directory):
    """A daemon with a model that begins with BOS and one that does not; their files."""
    files = {"plain": make_tiny(directory / "plain.gguf"),
             "bos": make_tiny(directory / "bos.gguf", "--seed", "5", "--set", "tokenizer.ggml.add_bos_token=bool:true")}
    d = daemons("--model", files["plain"], "--model", files["bos"], *MEMORY)
    text = directory / "text"
    text.write_text(TEXT)
    return d, files, text


@pytest.mark.parametrize("name", ["plain", "bos"])
def test_equals_the_definition(served, kvctl, name):
    d, files, text = served
    with d.client() as c:
        def tokenize(t):
            raw = t.encode()
            out = c.put(b"\0" * 4096)
            n = c.call(k.TOKENIZE, {"offset": c.put(raw), "length": len(raw), "bos": True, "model": name,
                                    "out_offset": out, "out_length": 4096})["count"]
            return list(array.array("i", c.seg[k.DATA + out:k.DATA + out + 4 * n]))
        ids, bos = tokenize(TEXT), tokenize("")
    assert len(bos) == (name == "bos") and len(ids) > 4 * WINDOW and len(ids) % WINDOW
    want, scored = perplexity(files[name], ids, WINDOW, *bos)
    r = kvctl("--json", "perplexity", "-m", name, "--ctx", WINDOW, text, socket=d.socket)
    assert r.returncode == 0 and r.stderr == b"", r.stderr
    got = json.loads(r.stdout)
    assert got == {"model": name, "n_ctx": WINDOW, "windows": len(ids) // WINDOW, "tokens": len(ids), "scored": scored,
                   "perplexity": got["perplexity"], "mean_nll": got["mean_nll"]}
    assert math.isclose(got["perplexity"], want, rel_tol=1e-5)
    assert math.isclose(math.exp(got["mean_nll"]), got["perplexity"], rel_tol=1e-7)
    r = kvctl("perplexity", "-m", name, "--ctx", WINDOW, "-", socket=d.socket, stdin=TEXT.encode())
    assert r.stdout.decode() == f"{got['perplexity']:.4f}\n"


def test_prompt_records(served):
    """Every position that was asked for, in order, with the token's bytes; the first has no log-probability."""
    d, files, _ = served
    with d.client() as c:
        ids = c.tokenize(TEXT)
        want = prompt_logprobs(files["plain"], ids)
        for first in (0, 1, len(ids) // 2, len(ids) - 1, len(ids), 1 << 31):
            r = c.generate(ids=ids, n=0, prompt_logprobs=first)
            assert [p["position"] for p in r.prompt] == list(range(first, len(ids)))
            assert [p["id"] for p in r.prompt] == ids[first:]
            for p in r.prompt:
                if p["position"]:
                    assert math.isclose(p["logprob"], want[p["position"]], rel_tol=1e-4, abs_tol=1e-5)
                else:
                    assert math.isnan(p["logprob"])
            assert r.ids == [] and r.usage["generated"] == 0 and r.usage["prompt"] == len(ids)
        r = c.generate(ids=ids, n=0, prompt_logprobs=0)
        assert b"".join(p["bytes"] for p in r.prompt) == TEXT.encode()
        assert c.generate(ids=ids, n=0).prompt == []
        # Generation goes on as without.
        both = c.generate(ids=ids, n=20, ignore_eos=True, logprobs=0, prompt_logprobs=5)
        plain = c.generate(ids=ids, n=20, ignore_eos=True, logprobs=0)
        assert (both.ids, both.logprobs) == (plain.ids, plain.logprobs)


def test_the_same_bits_in_company_and_through_a_small_ring(served, kvctl):
    d, files, text = served
    want = kvctl("--json", "perplexity", "--ctx", WINDOW, text, socket=d.socket).stdout
    with d.client(ring=1 << 16) as c:
        ids = c.tokenize(TEXT * 12)[:2000]
        busy = [c.submit("abc" * i, n=300, ignore_eos=True) for i in range(1, 4)]
        assert kvctl("--json", "perplexity", "--ctx", WINDOW, text, socket=d.socket).stdout == want
        c.collect(*busy)
        # More records than the ring holds: the request waits for room and loses none.
        a, b = (c.generate(ids=ids, n=0, prompt_logprobs=1).prompt for _ in range(2))
        assert a == b and len(a) == 1999


def test_what_cannot_be_measured(served, kvctl, directory):
    d, files, text = served

    def refused(*args, **kw):
        r = kvctl("perplexity", *args, socket=d.socket, **kw)
        assert r.returncode == 1 and r.stdout == b"" and r.stderr.count(b"\n") == 1
        return r.stderr.decode()

    assert "fewer than one window of 512" in refused("-", stdin=b"short")
    assert "fewer than one window" in refused("-", stdin=b"")
    assert "shorter than the context" in refused("--ctx", "2048", text)
    assert "No such file" in refused(directory / "absent")
    assert "no model" in refused("-m", "absent", text)
    for window in (2, 3):
        assert kvctl("perplexity", "--ctx", window, text, socket=d.socket).returncode == 0


def test_the_longest_window(served, kvctl, directory):
    d, files, _ = served
    (directory / "long").write_text(TEXT * 12)
    r = kvctl("--json", "perplexity", "--ctx", "2047", directory / "long", socket=d.socket)
    assert r.returncode == 0, r.stderr
    assert json.loads(r.stdout)["scored"] == 1024 * json.loads(r.stdout)["windows"]


def test_ctrl_c(daemons, directory, tiny_model):
    d = daemons("--model", tiny_model, *MEMORY, env={"KVD_TEST_STEP_DELAY_MS": "20"})
    (directory / "long").write_text(TEXT * 50)
    child = subprocess.Popen([BUILD / "bin/kvctl", "--socket", d.socket, "perplexity", "--ctx", "16", directory / "long"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    d.until(lambda: d.status()["n_running"] > 1, "several windows are under way")
    child.send_signal(2)
    assert child.communicate(timeout=20 * PATIENCE) == (b"", b"") and child.returncode == 130
    d.idle()


def test_private_daemon(kvctl, directory, tiny_model):
    (directory / "text").write_text(TEXT)
    env = {"KVD_SOCKET": str(directory / "private" / "s"), "KVD_DAEMON": str(BUILD / "bin/kvd")}
    try:
        r = kvctl("perplexity", "-m", tiny_model, "--ctx", WINDOW, directory / "text", env=env)
        assert r.returncode == 0 and float(r.stdout) > 1
    finally:
        pid = json.loads(kvctl("--json", "status", env=env).stdout)["pid"]
        os.kill(pid, 15)


# --- the real models -----------------------------------------------------------------------------

@pytest.mark.parametrize("variable, want", [("KVD_TEST_MODEL", 18.40), ("KVD_TEST_GEMMA", 15.24)])
def test_real_models(daemons, kvctl, directory, variable, want):
    """The first 24,000 bytes of the GPL, within 1 % of what an independent implementation gives."""
    model = os.environ.get(variable)
    if not model or not GPL.exists():
        pytest.skip(f"{variable} is not set, or there is no {GPL}")
    (directory / "text").write_bytes(GPL.read_bytes()[:24000])
    d = daemons("--model", model)
    r = kvctl("perplexity", directory / "text", socket=d.socket, timeout=1200)
    assert r.returncode == 0, r.stderr
    assert abs(float(r.stdout) / want - 1) < 0.01
