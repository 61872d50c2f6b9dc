# SPDX-License-Identifier: Apache-2.0
"""kvctl bench: every table with a tiny model, its three forms, and its end by Ctrl-C.  Nothing is said about times."""
import html.parser
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree

import pytest
from conftest import BUILD, LONG, PATIENCE, SANITIZED, make_tiny

ROUNDS, TOKENS, INPUT, OUTPUT = 1 if SANITIZED else 2, 32, 64, 64
CTX = 2304
# make_tiny_gguf's own: 2 layers, 2 KV heads of 16 channels.
LAYERS, KV_HEADS, HEAD_DIM = 2, 2, 32
TABLES = ["limits", "compare", "batch", "context", "layout", "arrangement", "clients", "first-token", "http"]
TEXT = "".join(f"The {n}th line of a text that says nothing of interest, but is long enough. " for n in range(60))


def bench(*args, program="kvctl", **kw):
    command = [BUILD / "bin" / program, *(["bench"] if program == "kvctl" else []), *map(str, args)]
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=100 * PATIENCE, check=False, **kw)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf", "--ctx", str(CTX), "--layers", str(LAYERS),
                     "--kv-heads", str(KV_HEADS), "--head-dim", str(HEAD_DIM))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_text(TEXT, encoding="ascii")
    return path


@pytest.fixture(scope="module")
def everything(model, text, tmp_path_factory):
    """One run of all tables: (JSON, its text, page, standard error, folder of the daemons)."""
    folder = tmp_path_factory.mktemp("d")
    page = folder / "page.html"
    daemons = folder / "daemons"
    daemons.mkdir()
    r = bench("--json", "-m", model, "-r", ROUNDS, "-n", TOKENS, "--input", INPUT, "--output", OUTPUT, "--html", page,
              "--text", text, "--directory", daemons, "-t", 2, "--probe-memory", 16)
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout), r.stdout, page.read_text(encoding="utf-8"), r.stderr, daemons


def table(results, name):
    return next(t for t in results["tables"] if t["name"] == name)


def rows(results, name):
    return {r["name"]: r["cells"] for r in table(results, name)["rows"]}


def middle(values):
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


# --- what is measured --------------------------------------------------------------


def test_every_table_is_whole(everything):
    results = everything[0]
    assert [t["name"] for t in results["tables"]] == TABLES
    assert not results["interrupted"]
    for t in results["tables"]:
        assert t["whole"] and t["rows"] and t["notes"], t["name"]
        assert not [r for r in t["rows"] if "not_available" in r], t
        names = {c["name"] for c in t["columns"]}
        for row in t["rows"]:
            assert row["cells"] and set(row["cells"]) <= names, row


def test_samples_fit_their_medians(everything):
    results = everything[0]
    series = [c for t in results["tables"] for r in t["rows"] for c in r["cells"].values()] + results["ratios"]
    for s in series:
        assert 1 <= len(s["samples"]) <= ROUNDS
        assert s["min"] == min(s["samples"]) and s["max"] == max(s["samples"])
        assert s["median"] == pytest.approx(middle(s["samples"]), rel=1e-4)
    # What does not depend on the clock is there once or always the same.
    for name in ("F16 KV", "Q8 KV", "Q4 KV"):
        assert rows(results, "compare")[name]["kv_mb"]["min"] == rows(results, "compare")[name]["kv_mb"]["max"]


def test_head_names_machine_and_model(everything):
    results = everything[0]
    assert results["program"] == "kvd-bench" and results["schema"] == 1 and results["threads"] == 2
    assert results["machine"]["cpus"] == len(os.sched_getaffinity(0)) and results["machine"]["cpu"]
    assert results["model"]["name"] == "tiny" and results["model"]["weight_bytes"] > 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", results["date"])


def head_bytes(kind, tokens):
    """Of a layer and head, in a whole number of blocks of 32; as kernels/backend.h says."""
    n = -(-tokens // 32) * 32
    if kind == "F16":
        return 4 * n * HEAD_DIM
    if kind == "Q8":
        return 2 * n * (HEAD_DIM + 2 * (HEAD_DIM // 32))
    return n * HEAD_DIM + n // 32 * (4 * HEAD_DIM + 4 * 32 * (HEAD_DIM // 32))


def kv_mb(kind, tokens):
    open_block = 4 * 32 * HEAD_DIM if kind == "Q4" else 0
    return (head_bytes(kind, tokens) + open_block) * LAYERS * KV_HEADS / 1e6


@pytest.mark.parametrize("kind", ["F16", "Q8", "Q4"])
def test_memory_of_keys_and_values(everything, kind):
    results = everything[0]
    cell = rows(results, "compare")[f"{kind} KV"]["kv_mb"]["median"]
    assert cell == pytest.approx(kv_mb(kind, INPUT + OUTPUT), rel=1e-4)
    for context in (0, 512, 1024, 2048):
        cell = rows(results, "context")[f"{kind}, {context}"]["kv_mb"]["median"]
        assert cell == pytest.approx(kv_mb(kind, context + TOKENS), rel=1e-4)


def test_nothing_is_kept_without_a_cache(everything):
    row = rows(everything[0], "compare")["no cache"]
    assert row["kv_mb"]["samples"] == [0]
    assert row["total_mb"]["median"] > 0
    # And it is said that not every token was measured.
    assert any(n.startswith("no cache: sampled: 8 of the 64") for n in table(everything[0], "compare")["notes"])


def test_sums_hold(everything):
    results = everything[0]
    for n, row in rows(results, "batch").items():
        for all_of, each in zip(row["tokens_per_s"]["samples"], row["tokens_per_s_each"]["samples"]):
            assert all_of == pytest.approx(int(n) * each, rel=1e-3)
    for row in rows(results, "context").values():
        for s, p in zip(row["ms_per_token_p50"]["samples"], row["ms_per_token_p99"]["samples"]):
            assert s <= p
    one = rows(results, "batch")["1"]["tokens_per_s"]["samples"]
    ratio = next(r for r in results["ratios"] if r["name"].startswith("batch 8"))
    eight = rows(results, "batch")["8"]["tokens_per_s"]["samples"]
    assert ratio["samples"] == pytest.approx([a / b for a, b in zip(eight, one)], rel=1e-3)
    assert ratio["asked"] == 5.3
    assert all(v == 1 for v in rows(results, "batch")["1"]["of_one"]["samples"])


def test_shares_of_the_probe(everything):
    found = rows(everything[0], "limits")
    probe = found["probe: reading as much as the weights"]["read_gb_per_s"]["samples"]
    for name in ("decode 1 at context 0", "decode 8 at context 0"):
        for rate, read, share in zip(probe, found[name]["read_gb_per_s"]["samples"],
                                     found[name]["of_probe_read_percent"]["samples"]):
            assert share == pytest.approx(100 * read / rate, rel=1e-3)
    ratio = next(r for r in everything[0]["ratios"] if "read probe" in r["name"])
    share = found["decode 1 at context 0"]["of_probe_read_percent"]["samples"]
    assert ratio["samples"] == pytest.approx([s / 100 for s in share], rel=1e-3) and ratio["asked"] == 0.85


def test_shared_prefixes_are_computed_once(everything):
    found = rows(everything[0], "clients")
    for prefix in (256, 1024):
        one = found[f"shared prefix of {prefix}, 1 client"]["computed_tokens"]["median"]
        assert prefix <= one <= prefix + 16
        shared = found[f"shared prefix of {prefix}, 8 clients"]["computed_tokens"]["median"]
        assert prefix <= shared <= prefix + 8 * (16 + 16)
        own = found[f"own prefix of {prefix}, 8 clients"]["computed_tokens"]["median"]
        assert own > 7.5 * prefix


def test_first_tokens_come_from_where_they_should(everything):
    found = rows(everything[0], "first-token")
    assert found["cold"]["cached_tokens"]["median"] < 32
    for name, row in found.items():
        if name != "cold":
            # Of the disk there are whole blocks.
            assert row["cached_tokens"]["min"] >= 2047 - 64, name


def test_perplexity_is_that_of_the_command(everything, model, text, directory):
    socket = directory / "kvd.sock"
    # A private daemon would stay for a while.
    daemon = subprocess.Popen([BUILD / "bin/kvd", "--socket", socket, "--model", model, "--disk", "off"],
                              stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60 * PATIENCE
        while not socket.exists() and time.monotonic() < end:
            time.sleep(0.02)
        r = subprocess.run([BUILD / "bin/kvctl", "--socket", socket, "--json", "perplexity", "-q", text], check=True,
                           stdout=subprocess.PIPE, timeout=60 * PATIENCE)
    finally:
        daemon.terminate()
        daemon.wait()
    theirs = json.loads(r.stdout)
    ours = rows(everything[0], "compare")
    assert theirs["windows"] <= 16
    assert ours["F16 KV"]["perplexity"]["median"] == pytest.approx(theirs["perplexity"], rel=1e-4)
    assert "perplexity" not in ours["no cache"]
    assert ours["Q8 KV"]["perplexity"]["median"] == pytest.approx(theirs["perplexity"], rel=0.1)
    assert "same_likeliest_percent" not in ours["F16 KV"]
    # Random weights: near ties are rare, and chance would be one in the vocabulary.
    assert 50 < ours["Q4 KV"]["same_likeliest_percent"]["median"] <= ours["Q8 KV"]["same_likeliest_percent"]["median"] <= 100
    ratio = next(r for r in everything[0]["ratios"] if r["name"].startswith("most likely token of Q8"))
    assert ratio["asked"] == 0.99
    assert ratio["median"] == pytest.approx(ours["Q8 KV"]["same_likeliest_percent"]["median"] / 100, rel=1e-4)


def test_it_says_how_long_it_takes(everything):
    assert re.search(r"this takes about \d+ s \(limits \d+ s, .*http \d+ s\)", everything[3])
    for name in TABLES:
        assert f"{name}: round {ROUNDS} of {ROUNDS}" in everything[3]


def test_nothing_is_left_behind(everything):
    assert not list(everything[4].iterdir())


# --- forms ---------------------------------------------------------------------------


class Page(html.parser.HTMLParser):
    """Elements that are open at the end; texts of elements that matter; attributes that fetch."""
    VOID = {"meta", "br", "img", "link", "input", "hr"}

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.fetches, self.data, self.json = [], [], {}, ""

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        self.fetches += [(tag, k, v) for k, v in attrs if k in ("src", "href", "data", "action", "xlink:href")]

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (self.open, tag)
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.json += data
        elif self.open:
            self.data.setdefault(self.open[-1], []).append(data)


def test_page_needs_nothing_else(everything):
    page = Page()
    page.feed(everything[2])
    page.close()
    assert not page.open and not page.fetches
    assert "url(" not in everything[2] and "@import" not in everything[2]
    assert json.loads(page.json) == everything[0]
    shown = "".join(page.data["th"])
    for t in everything[0]["tables"]:
        for row in t["rows"]:
            assert row["name"] in shown


def test_plots_are_well_formed(everything):
    svgs = re.findall(r"<svg .*?</svg>", everything[2], re.DOTALL)
    assert len(svgs) == len(TABLES)
    for svg in svgs:
        root = xml.etree.ElementTree.fromstring(svg)
        _, _, width, height = map(float, root.get("viewBox").split())
        texts = root.findall("{http://www.w3.org/2000/svg}text")
        assert len(texts) > 4
        for e in texts:
            assert 0 <= float(e.get("x")) <= width and 0 <= float(e.get("y")) <= height, e.text
        assert "nan" not in svg and "inf" not in svg


def test_text_fits_a_terminal(model):
    r = bench("-q", "-m", model, "-r", 2, "-n", 8, "--max-context", 512, "--input", 32, "--output", 32, "--probe-memory", 4,
              "compare", "batch", "context", "limits")
    assert r.returncode == 0 and not r.stderr, r.stderr
    assert max(map(len, r.stdout.splitlines())) <= 100
    for part in ("limits: ", "compare: ", "batch: ", "context: ", "ratios: ", "no cache ", "Q4, 512 ", "machine "):
        assert f"\n{part}" in r.stdout, part


def test_what_is_left_out_says_so(model):
    r = bench("--json", "-q", "-m", model, "-r", 1, "-n", 8, "--input", 32, "--output", 32, "--kv-type", "f16", "compare",
              "context", "--max-context", 512)
    results = json.loads(r.stdout)
    assert [x["name"] for x in table(results, "compare")["rows"] if "not_available" in x] == ["Q8 KV", "Q4 KV"]
    assert [x["name"] for x in table(results, "context")["rows"]] == ["F16, 0", "F16, 512"]
    # A prompt that is longer than the context, and a daemon that is not there.
    r = bench("--json", "-q", "-m", model, "-r", 1, "-n", 8, "--input", 2 * CTX, "--output", 8, "compare", "http",
              env={**os.environ, "KVD_DAEMON": "/nonexistent/kvd"})
    results = json.loads(r.stdout)
    assert r.returncode == 0 and len(results["tables"]) == 2
    assert all("context" in x["not_available"] for x in table(results, "compare")["rows"])
    assert all("did not start" in x["not_available"] for x in table(results, "http")["rows"])


@pytest.mark.skipif(SANITIZED, reason="a model of 76 MB")
def test_synthetic_model():
    r = bench("--json", "-q", "--synthetic", "smollm2-135m:q4_0", "-r", 1, "-n", 2, "--max-context", 64, "context", "http")
    assert r.returncode == 0, r.stderr
    results = json.loads(r.stdout)
    assert results["model"]["name"] == "smollm2-135m:q4_0" and len(rows(results, "context")) == 3
    assert len(rows(results, "http")) == 4 and all(rows(results, "http").values())


@pytest.mark.skipif(not LONG, reason="three models of 500 MB")
def test_comparison_of_synthetic_models():
    r = bench("--json", "-q", "--synthetic", "smollm2-135m:q4_0", "-r", 1, "-n", 2, "--input", 32, "--output", 8, "compare",
              "batch")
    assert r.returncode == 0, r.stderr
    found = rows(json.loads(r.stdout), "compare")
    assert list(found) == ["F16 weights, no cache", "F16 weights + F16 KV", "Q8_0 weights + Q8 KV", "Q4_0 weights + Q4 KV"]
    total = [row["total_mb"]["median"] for row in found.values()]
    assert total[0] == total[1] > 1.5 * total[2] > 2 * total[3]
    # The model that was named is there again for what follows.
    assert rows(json.loads(r.stdout), "batch")


def test_answers_on_request(model):
    asked = ("prefill 16\ndecode 2 0 4 f16\ndecode 1 32 4 f16\ndecode 1 32 4 q8\ndecode 1 32 4 q4\n"
             "nonsense\ndecode 3 32 4 f16\ndecode 1 32 4 f32\ndecode 1 32 4\nabout\n")
    r = subprocess.run([BUILD / "bin/kvd-bench", "--peer-worker", "-m", model], input=asked, text=True, timeout=60 * PATIENCE,
                       stdout=subprocess.PIPE, check=True)
    answers = r.stdout.splitlines()
    assert len(answers) == 10
    assert all(float(a) > 0 for a in answers[:5]) and all(a.startswith("- ") for a in answers[5:9])
    assert re.fullmatch(r"\S+ llama, level \S+, \d+ threads", answers[9])


# A llama_cpp that computes nothing, and notes in what contexts it was asked to.
FAKE_PEER = """
import ctypes, os, types
__version__ = "0"
LLAMA_FLASH_ATTN_TYPE_ENABLED, LLAMA_FLASH_ATTN_TYPE_DISABLED, GGML_TYPE_F16, GGML_TYPE_Q8_0 = 1, 0, 1, 8
Array = ctypes.c_int * 512
Batch = lambda: types.SimpleNamespace(n_tokens=0, token=Array(), pos=Array(), n_seq_id=Array(), logits=Array(),
                                      seq_id=[Array() for _ in range(512)])
llama_log_callback = lambda f: f
llama_log_set = lambda f, data: None
llama_backend_init = lambda: None
llama_model_default_params = llama_context_default_params = types.SimpleNamespace
llama_model_load_from_file = lambda path, params: 1
llama_model_get_vocab = lambda model: 1
llama_n_vocab = lambda vocab: 256
llama_batch_init = lambda n, embd, seqs: Batch()
llama_print_system_info = lambda: b"FAKE = 1 | "
llama_init_from_model = lambda model, params: params
llama_free = llama_synchronize = lambda context: None
llama_get_memory = lambda context: context
llama_memory_clear = lambda memory, data: None
llama_memory_seq_rm = lambda memory, seq, start, end: True
def llama_decode(context, batch):
    assert batch.n_tokens <= context.n_batch and max(batch.pos[:batch.n_tokens]) < context.n_ctx
    with open(os.environ["FAKE_LOG"], "a") as f:
        print(context.flash_attn_type, context.n_seq_max, batch.n_tokens, max(batch.pos[:batch.n_tokens]), file=f)
    return 0
"""


def peer(model, folder, *args):
    (folder / "llama_cpp.py").write_text(FAKE_PEER)
    env = {**os.environ, "PYTHONPATH": str(folder), "FAKE_LOG": str(folder / "log")}
    r = subprocess.run([pathlib.Path(__file__).parent.parent / "bench/bench-peer", "--build", BUILD, "--peer-python",
                        sys.executable, "-m", model, "--threads", "1", *args], env=env, capture_output=True, text=True,
                       timeout=60 * PATIENCE, check=True)
    return r.stdout


def test_peer_in_turn(model, tmp_path):
    out = json.loads(peer(model, tmp_path, "--json", "--rounds", "3", "--tokens", "4", "--pieces",
                          "batch-8,prefill-256,decode-8000-q8"))
    found = out["models"][model.name]
    assert "FAKE = 1" in found["peer"] and "llama" in found["kvd"]
    rows = {row["piece"]: row for row in found["pieces"]}
    # In an order of its own, since contexts grow.
    assert list(rows) == ["prefill-256", "batch-8", "decode-8000-q8"]
    for name in ("prefill-256", "batch-8"):
        row = rows[name]
        ratios = sorted(a / b for a, b in zip(row["kvd"], row["peer"]))
        assert len(ratios) == 3 and [row["ratio_min"], row["ratio"], row["ratio_max"]] == pytest.approx(ratios)
        assert row["asked"] == 6
    assert rows["decode-8000-q8"]["left_out"] == "longer than the model's context"
    log = [tuple(map(int, line.split())) for line in (tmp_path / "log").read_text().splitlines()]
    # Both ways of attention were tried, then one was measured: 3 rounds of 256 tokens, of 4 steps of 8.
    prompts = [line[0] for line in log if line[1:] == (1, 256, 255)]
    assert set(prompts[:4]) == {0, 1} and len(prompts) == 4 + 3 and len(set(prompts[4:])) == 1
    steps = [line[3] for line in log if line[1:3] == (8, 8)][-12:]
    assert steps == [0, 1, 2, 3] * 3


def test_peer_ends_in_time(model, tmp_path):
    out = json.loads(peer(model, tmp_path, "--json", "--max-time", "0.001"))
    assert out["models"][model.name]["pieces"] == []


# --- the end of it --------------------------------------------------------------------


def processes(word):
    """Command lines that have the word."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if word.encode() in line:
            found.append(line)
    return found


@pytest.mark.parametrize("where, number", [("batch: round", signal.SIGINT), ("clients: round", signal.SIGINT),
                                           ("first-token: round", signal.SIGTERM)])
def test_ctrl_c_ends_it_with_what_is_there(model, tmp_path, where, number):
    daemons = tmp_path / "daemons"
    daemons.mkdir()
    page = tmp_path / "page.html"
    name = where.split(":", maxsplit=1)[0]
    tables = ["batch"] if name == "batch" else ["batch", name]
    p = subprocess.Popen([BUILD / "bin/kvctl", "--json", "bench", "-m", model, "-r", "64" if name == "batch" else "3", "-n",
                          "2000" if name == "batch" else "64", "--directory", daemons, "--html", page, *tables],
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        for line in p.stderr:
            if where in line:
                break
        p.send_signal(number)
        out, err = p.communicate(timeout=60 * PATIENCE)
    finally:
        p.kill()
    assert p.returncode == 130, err
    results = json.loads(out)
    assert results["interrupted"] and not results["tables"][-1]["whole"]
    assert [t["name"] for t in results["tables"]] == tables
    assert "interrupted" in page.read_text(encoding="utf-8")
    assert not list(daemons.iterdir())
    assert not processes(str(daemons))


def test_killed_it_leaves_no_daemon(model, tmp_path):
    p = subprocess.Popen([BUILD / "bin/kvd-bench", "-m", model, "-r", "3", "-n", "64", "--directory", tmp_path, "clients"],
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for line in p.stderr:
        if "clients: round" in line:
            break
    assert processes(str(tmp_path / "kvd-bench"))
    p.kill()
    p.communicate()
    end = time.monotonic() + 20 * PATIENCE
    while processes(str(tmp_path / "kvd-bench")):
        assert time.monotonic() < end
        time.sleep(0.02)


WRONG = [["nonsense"], ["-r", "0"], ["-r", "65"], ["-r", "1x"], ["-n", ""], ["--threads", "-1"], ["--block-tokens", "48"],
         ["--block-tokens", "15"], ["--kv-type", "f32"], ["--kv-type", "f16,"], ["--kv-type", ""], ["--level", "mmx"],
         ["--synthetic", "llama-2-7b"], ["--synthetic", "nothing:q4_0"], ["--unknown"], ["--html"], ["--max-time", "0"],
         ["--products", "batch"], ["--input", "99999999999999999999"]]


@pytest.mark.parametrize("args", WRONG, ids=" ".join)
def test_wrong_options_are_refused(args):
    r = bench(*(args if args[0] == "--synthetic" else ["-m", "/nonexistent", *args]),
              env={k: v for k, v in os.environ.items() if k != "KVD_TEST_MODEL"})
    assert r.returncode == 2 and not r.stdout, r
    assert "kvd-bench: " in r.stderr


def test_no_model(tmp_path):
    env = {k: v for k, v in os.environ.items() if k != "KVD_TEST_MODEL"}
    r = bench("batch", env=env)
    assert r.returncode == 2 and "--model" in r.stderr
    r = bench("-m", tmp_path / "none.gguf", "batch")
    assert r.returncode == 1 and "none.gguf: No such file" in r.stderr
    r = bench("-m", tmp_path / "none.gguf", "--html", tmp_path / "no" / "page", "batch")
    assert r.returncode == 1 and "page: No such file" in r.stderr


def test_help_names_every_table():
    r = bench("--help")
    assert r.returncode == 0 and all(f"\n  {name} " in r.stdout for name in TABLES)


def test_kvctl_without_kvd_bench(tmp_path):
    shutil.copy(BUILD / "bin/kvctl", tmp_path)
    r = subprocess.run([tmp_path / "kvctl", "bench"], env={**os.environ, "PATH": str(tmp_path)}, stderr=subprocess.PIPE,
                       text=True, timeout=20 * PATIENCE, check=False)
    assert r.returncode == 1 and "kvd-bench is not installed" in r.stderr
    r = subprocess.run([tmp_path / "kvctl", "--socket", "x", "bench"], stderr=subprocess.PIPE, text=True,
                       timeout=20 * PATIENCE, check=False)
    assert r.returncode == 2 and "--socket" in r.stderr
    # It may be where programs are that people don't call.
    (tmp_path / "bin").mkdir()
    (tmp_path / "libexec/kvd").mkdir(parents=True)
    shutil.copy(BUILD / "bin/kvctl", tmp_path / "bin")
    (tmp_path / "libexec/kvd/kvd-bench").symlink_to(BUILD / "bin/kvd-bench")
    r = subprocess.run([tmp_path / "bin/kvctl", "bench", "--help"], env={**os.environ, "PATH": str(tmp_path)},
                       stdout=subprocess.PIPE, text=True, timeout=20 * PATIENCE, check=False)
    assert r.returncode == 0 and r.stdout.startswith("usage: kvd-bench")
