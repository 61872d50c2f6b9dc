# SPDX-License-Identifier: Apache-2.0
"""/v1/embeddings: against hidden states that a tool computes without a daemon, to the bit; and what is refused."""
import array
import base64
import concurrent.futures
import json
import math
import random
import re
import subprocess
import sys

import conftest
import pytest
import webclient

PATH = "/v1/embeddings"
N_EMBD = 64


def embed(web, inputs, **fields):
    """The vectors, and usage."""
    r = web.ok(PATH, {"input": inputs, **fields}).json
    assert r["object"] == "list" and [d["index"] for d in r["data"]] == list(range(len(r["data"])))
    assert all(d["object"] == "embedding" for d in r["data"])
    return [d["embedding"] for d in r["data"]], r["usage"]


def floats(text):
    values = array.array("f")
    values.frombytes(base64.b64decode(text, validate=True))
    if sys.byteorder == "big":
        values.byteswap()
    return list(values)


def states(model, ids, folder):
    """Final hidden states of every position, by the tool."""
    path = folder / "hidden"
    subprocess.run([conftest.BUILD / "tests/tools/kvd-logits", "--hidden", path, "--chunk", "7", model],
                   input=" ".join(map(str, ids)).encode(), check=True, stdout=subprocess.DEVNULL)
    values = array.array("f", path.read_bytes())
    assert len(values) == len(ids) * N_EMBD
    return [values[i * N_EMBD:(i + 1) * N_EMBD] for i in range(len(ids))]


def f32(x):
    return array.array("f", [x])[0]


def pooled(rows, pooling):
    """The vector of length 1, in the same order of sums: positions ascend, in double precision."""
    if pooling == "last":
        values = list(rows[-1])
    else:
        sums = [0.0] * N_EMBD
        for row in rows:
            sums = [s + v for s, v in zip(sums, row)]
        values = [f32(s / len(rows)) for s in sums]
    length, total = 0.0, 0.0
    for v in values:
        total += v * v
    length = math.sqrt(total)
    return [f32(v / length) for v in values]


def tokenize(model, text, folder):
    """With a BOS where the model asks for one, control tokens taken for text."""
    path = folder / "text"
    path.write_text(text)
    out = subprocess.run([conftest.BUILD / "tests/tools/kvd-tokenize", "--bos", model, path], check=True,
                         stdout=subprocess.PIPE).stdout
    return [int(w) for w in out.split()]


def random_ids(seed, n):
    draw = random.Random(seed)
    return [draw.randrange(3, 500) for _ in range(n)]


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_values(web, bytes_model, pooling, tmp_path):
    for n in (1, 2, 16, 17, 300):
        ids = random_ids(n, n)
        want = pooled(states(bytes_model, ids, tmp_path), pooling)
        (got,), usage = embed(web, ids, pooling=pooling)
        assert [f32(v) for v in got] == want
        (text,), _ = embed(web, ids, pooling=pooling, encoding_format="base64")
        assert floats(text) == want
        assert usage["prompt_tokens"] == usage["total_tokens"] == n
        assert abs(math.fsum(v * v for v in got) - 1) < 1e-6


def test_kinds_of_input(web, bytes_model, tmp_path):
    """Text gets a BOS where the model has one; what looks like a control token in it is text."""
    text = "Some text <|im_end|> and more."
    ids = tokenize(bytes_model, text, tmp_path)
    want, usage = embed(web, text)
    assert usage["prompt_tokens"] == len(ids)
    for same in ([text], ids, [ids]):
        assert embed(web, same)[0] == want
    both, usage = embed(web, [text, "other", text])
    assert both == [want[0], *embed(web, "other")[0], want[0]]
    assert embed(web, [ids, [7], ids])[0] == [want[0], *embed(web, [7])[0], want[0]]


def test_many(web, bytes_model, tmp_path):
    """As many as may be, beside each other, in order, each as if it were alone."""
    texts = [f"{'long ' * (i % (6 if conftest.SANITIZED else 40))}text number {i}" for i in range(256)]
    got, usage = embed(web, texts)
    assert len(got) == 256 and len({str(v) for v in got}) == 256
    for i in (0, 1, 77, 255):
        assert embed(web, texts[i], prompt_cache_key="alone")[0] == [got[i]]
    assert len(tokenize(bytes_model, texts[77], tmp_path)) == embed(web, texts[77])[1]["prompt_tokens"]
    assert usage["prompt_tokens"] == sum(embed(web, texts[i:i + 64])[1]["prompt_tokens"] for i in range(0, 256, 64))
    web.refused(PATH, {"input": ["x"] * 257}, "input")


def test_long_body(web):
    """One that a worker reads, long by its blanks: the same answers, and the same refusals."""
    def long(**body):
        return json.dumps(body).replace(",", "," + " " * 2000).encode()
    inputs = [random_ids(i, 20) for i in range(10)]
    assert len(long(input=inputs)) > 200000
    assert [d["embedding"] for d in web.ok(PATH, long(input=inputs)).json["data"]] == embed(web, inputs)[0]
    web.refused(PATH, long(input=[*inputs, [-1]]), "input[10][0]")
    web.refused(PATH, long(input=inputs, pooling="none"), "pooling")
    web.refused(PATH, long(input=inputs, model="nobody"), "model", status=404)
    web.refused(PATH, {"input": [5] * 100000}, "input", code="context_length_exceeded")


def test_beside_others(web):
    """Among requests that generate and embed at the same time: the same bits."""
    inputs = [random_ids(i, 20 + 13 * i) for i in range(12)]
    want = {p: [embed(web, ids, pooling=p)[0][0] for ids in inputs] for p in ("mean", "last")}
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        def one(i):
            if i % 3 == 2:
                return web.complete(f"say {i}", max_tokens=40).status
            p = ("mean", "last")[i % 2]
            return embed(web, inputs, pooling=p, prompt_cache_key=f"k{i % 4}")[0] == want[p]
        assert all(pool.map(one, range(24)))


def test_cache(web):
    """K and V are kept, states are not: "last" computes one token, "mean" all; both leave their blocks."""
    web = webclient.Web(path=web.daemon.http_socket)
    ids = random_ids(99, 200)
    for pooling, cached in (("mean", 0), ("mean", 0), ("last", 199), ("last", 199), ("mean", 0)):
        _, usage = embed(web, ids, pooling=pooling, prompt_cache_key="c")
        assert usage["prompt_tokens_details"]["cached_tokens"] == cached
    assert embed(web, ids, pooling="last", prompt_cache_key="d")[1]["prompt_tokens_details"]["cached_tokens"] == 0
    r = web.ok("/v1/completions", {"prompt": ids, "max_tokens": 1, "prompt_cache_key": "c"})
    assert r.cached == 199


BAD = [
    ({}, "input"), ({"input": None}, "input"), ({"input": []}, "input"), ({"input": ""}, "input"), ({"input": 7}, "input"),
    ({"input": {}}, "input"), ({"input": [""]}, "input[0]"), ({"input": [[]]}, "input[0]"), ({"input": [None]}, "input[0]"),
    ({"input": [1.5]}, "input[0]"), ({"input": [-1]}, "input[0]"), ({"input": [1, 2**31]}, "input[1]"),
    ({"input": [2**63]}, "input[0]"), ({"input": [1, "a"]}, "input[1]"), ({"input": ["a", 1]}, "input[1]"),
    ({"input": [[1], [1, [2]]]}, "input[1]"), ({"input": [512]}, "input"), ({"input": [[5], [512]]}, "input[1]"),
    ({"input": "x", "encoding_format": "int8"}, "encoding_format"), ({"input": "x", "encoding_format": 1}, "encoding_format"),
    ({"input": "x", "dimensions": 63}, "dimensions"), ({"input": "x", "dimensions": 0}, "dimensions"),
    ({"input": "x", "dimensions": 2**63}, "dimensions"), ({"input": "x", "dimensions": 64.5}, "dimensions"),
    ({"input": "x", "pooling": "cls"}, "pooling"), ({"input": "x", "pooling": []}, "pooling"),
    ({"input": "x", "prompt_cache_key": "a/b"}, "prompt_cache_key"), ({"input": "x", "user": 7}, "user"),
    ({"input": "x", "timeout": -1}, "timeout"), ({"input": "x", "model": 7}, "model"), ({"input": "x", "stream": True}, "stream"),
    ({"input": "x", "temperature": 1}, "temperature"),
]


@pytest.mark.parametrize("body,param", BAD, ids=[json.dumps(b)[:60] for b, _ in BAD])
def test_refused(web, body, param):
    web.refused(PATH, body, param)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"input": "\xff"}', b'{"input": NaN}', b'{"input": 1e999}',
                                  b'{"input": "x", "input": "y"}', b"[" * 10000, b'{"input":' + b"[" * 10000])
def test_malformed(web, body):
    r = web.post(PATH, body)
    assert r.status == 400 and r.error
    assert web.get(PATH).status == 405


def test_too_long_and_unknown(web):
    for inputs, n in ((random_ids(1, 5000), 5000), ([5] * 2048, 2048), (["short", "x" * 50000], None)):
        error = web.refused(PATH, {"input": inputs}, "input", code="context_length_exceeded")
        numbers = [int(w) for w in re.findall(r"\d+", error["message"])]
        assert numbers[1] == 2048 and (numbers[0] == n if n else numbers[0] > 2048)
    web.refused(PATH, {"input": "x", "model": "nobody"}, "model", status=404, code="model_not_found")
    assert embed(web, "x", dimensions=N_EMBD, user="u", encoding_format=None, pooling=None)[0] == embed(web, "x")[0]


def test_few_requests_at_once(web_of, bytes_model):
    """A user who may have two requests at a time may send many inputs all the same."""
    web, _ = web_of("--model", bytes_model, "--kv-memory", "64M", "--threads", "2", "--uid-requests", "2", "--max-queue", "3")
    texts = [f"text {i} " * 20 for i in range(40)]
    got, _ = embed(web, texts)
    assert got[17] == embed(web, texts[17])[0][0]


def test_over_the_limit_of_memory(web_of, bytes_model):
    web, d = web_of("--model", bytes_model, "--kv-memory", "64M", "--threads", "2", "--uid-memory", "8M")
    web = webclient.Web(path=d.http_socket)
    with d.client():        # takes five of it
        r = web.post(PATH, {"input": ["x"] * 256})
        assert r.status == 429 and int(r.headers["retry-after"]) >= 1 and r.error["type"] == "rate_limit_error"
        assert len(embed(web, ["x"] * 8)[0]) == 8
    assert len(embed(web, ["x"] * 256)[0]) == 256
    d.idle()


def test_client_goes(web):
    """Nothing of it goes on, wherever it is: with the workers, in the queue, in prefill."""
    d = web.daemon
    want = embed(web, "unharmed")[0]
    for seconds in (0, 0.01, 0.1):
        c, body = web.connect(), json.dumps({"input": [random_ids(i, 2000) for i in range(200)]}).encode()
        c.request("POST", PATH, body, {"Content-Type": "application/json"})
        d.until(lambda: seconds == 0 or d.status()["n_running"] > 0, "it runs")
        c.close()
        d.until(lambda: d.status()["n_running"] + d.status()["n_queued"] == 0, "nothing is left")
        assert embed(web, "unharmed")[0] == want
    done = d.status()["prompt_tokens"]
    assert done < 200 * 2000


def test_deadline(web):
    error = web.refused(PATH, {"input": [random_ids(i, 2000) for i in range(100)], "timeout": 0.02}, status=408)
    assert error["code"] == "deadline_exceeded"


def test_official_client(web, packages, bytes_model):
    """The `openai` package, which asks for base64 and gives floats."""
    script = """
import openai, sys, json
c = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
r = c.embeddings.create(model=sys.argv[2], input=["one", "two"], user="me")
f = c.embeddings.create(model=sys.argv[2], input=["one", "two"], encoding_format="float", extra_body={"pooling": "last"})
try:
    c.embeddings.create(model=sys.argv[2], input="one", dimensions=3)
    raise SystemExit("not refused")
except openai.BadRequestError as e:
    assert e.param == "dimensions", e
print(json.dumps([[d.embedding for d in r.data], [d.embedding for d in f.data], r.usage.total_tokens]))
"""
    out = subprocess.run([sys.executable, "-c", script, web.url, bytes_model.stem], check=True, stdout=subprocess.PIPE,
                         env={"PYTHONPATH": str(packages), "PATH": "/usr/bin:/bin"}).stdout
    mean, last, total = json.loads(out)
    assert [[f32(v) for v in x] for x in embed(web, ["one", "two"])[0]] == mean
    assert embed(web, ["one", "two"], pooling="last")[0] == last
    assert total == embed(web, ["one", "two"])[1]["total_tokens"]
