# SPDX-License-Identifier: Apache-2.0
"""Completions and chat completions.

The oracle is the shared-memory path: the same request over the socket gives the same text and log-probabilities.  A
stream's pieces put together are the answer in one piece, byte for byte.
"""
import json
import struct
import tempfile
import time

import conftest
import kvdclient as k
import pytest
from conftest import LONG, PATIENCE, SANITIZED
from webclient import UnixConnection

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SEEDS = 12 if SANITIZED else 200
WORDS = "the cat sat on the mat and looked at what was there. "


@pytest.fixture(scope="module")
def d(tiny_model):
    with tempfile.TemporaryDirectory(prefix="kvd-test-") as folder:
        d = conftest.Daemon(folder, "--model", tiny_model, "--kv-memory", "64M", "--threads", "2",
                            "--http", f"unix:{folder}/http.sock")
        yield d
        d.idle()
        d.stop()


@pytest.fixture
def slow(daemons, tiny_model, directory):
    def start(*options, ms=40):
        return daemons("--model", tiny_model, "--max-seqs", "2", "--prefill-quantum", "16", "--kv-memory", "64M",
                       "--http", f"unix:{directory}/http.sock", *options, env={"KVD_TEST_STEP_DELAY_MS": str(ms)})
    return start


def send(d, path, body):
    c = UnixConnection(d.http_socket, 60 * PATIENCE)
    c.request("POST", path, body=body if isinstance(body, (bytes, str)) else json.dumps(body),
              headers={"Content-Type": "application/json"})
    return c


def post(d, path, body, status=200):
    c = send(d, path, body)
    r = c.getresponse()
    text = r.read()
    c.close()
    got = json.loads(text)
    assert r.status == status, got
    return got


def refused(d, path, body, status=400):
    c = send(d, path, body)
    r = c.getresponse()
    e = json.loads(r.read())["error"]
    c.close()
    assert r.status == status, e
    assert set(e) == {"message", "type", "param", "code"} and e["message"]
    return e, r.headers


def events(response):
    """(kind, value) of a stream as they come: "data" with JSON, "done", "comment"; nothing but these."""
    done = False
    buffer = b""
    while True:
        data = response.read1(65536)
        if not data:
            break
        buffer += data
        while b"\n\n" in buffer:
            event, _, buffer = buffer.partition(b"\n\n")
            assert not done, "an event after the end"
            if event.startswith(b": "):
                yield "comment", event[2:].decode()
            elif event == b"data: [DONE]":
                done = True
                yield "done", None
            else:
                assert event.startswith(b"data: ") and b"\n" not in event
                yield "data", json.loads(event[6:].decode())
    assert not buffer


class Streamed:
    """A stream put together as the answer would be."""

    def __init__(self, d, path, body):
        c = send(d, path, {**body, "stream": True})
        r = c.getresponse()
        assert r.status == 200 and r.headers["Content-Type"].startswith("text/event-stream")
        self.text, self.finish, self.logprobs, self.usage, self.n_chunks = {}, {}, {}, None, 0
        self.error, self.done = None, False
        chat = path == CHAT
        for kind, v in events(r):
            if kind == "done":
                self.done = True
            if kind != "data":
                continue
            if "error" in v:
                self.error = v["error"]
                continue
            self.n_chunks += 1
            assert v["object"] == ("chat.completion.chunk" if chat else "text_completion")
            if v.get("usage"):
                assert v["choices"] == []
                self.usage = v["usage"]
                continue
            (choice,) = v["choices"]
            i = choice["index"]
            assert i not in self.finish, "a chunk after the last"
            if chat:
                delta = choice["delta"]
                assert ("role" in delta) == (i not in self.text)
                self.text[i] = self.text.get(i, "") + delta.get("content", "")
            else:
                self.text[i] = self.text.get(i, "") + choice["text"]
            if choice["logprobs"]:
                if chat:
                    self.logprobs.setdefault(i, []).extend(choice["logprobs"]["content"])
                else:
                    for name, column in choice["logprobs"].items():
                        self.logprobs.setdefault(i, {}).setdefault(name, []).extend(column)
            if choice["finish_reason"]:
                self.finish[i] = choice["finish_reason"]
        c.close()


def choices(answer):
    """Of an answer in one piece: text and finish_reason by index."""
    chat = answer["object"] == "chat.completion"
    assert [c["index"] for c in answer["choices"]] == list(range(len(answer["choices"])))
    return ({c["index"]: c["message"]["content"] if chat else c["text"] for c in answer["choices"]},
            {c["index"]: c["finish_reason"] for c in answer["choices"]})


def f32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def socket(d, **kw):
    with d.client() as c:
        return c.generate(**{"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, **kw})


# --- the same as over the socket ------------------------------------------------------------

PARAMETERS = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 1.6, "seed": 2**63 - 1, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 0.8, "seed": 0, "repeat_penalty": 1.3, "ignore_eos": True},
]


@pytest.mark.parametrize("p", PARAMETERS)
def test_completion_as_over_the_socket(d, p):
    wanted = socket(d, prompt="Once upon", n=24, special=True, bos=True, logprobs=3, **p)
    got = post(d, COMPLETIONS, {"prompt": "Once upon", "max_tokens": 24, "logprobs": 3, **p})
    (text, finish), logprobs = choices(got), got["choices"][0]["logprobs"]
    assert text[0].encode() == wanted.text
    assert finish[0] == ("length" if wanted.reason == k.LENGTH else "stop")
    assert [f32(x) for x in logprobs["token_logprobs"]] == wanted.logprobs
    assert got["usage"]["prompt_tokens"] == wanted.usage["prompt"]
    assert got["usage"]["completion_tokens"] == wanted.usage["generated"] == len(logprobs["tokens"])
    for tops, items, mine in zip(logprobs["top_logprobs"], wanted.alternatives, logprobs["tokens"]):
        assert {f32(x) for x in tops.values()} >= {logprob for _, logprob, _ in items}
        assert mine in tops and len(tops) <= 4
    streamed = Streamed(d, COMPLETIONS, {"prompt": "Once upon", "max_tokens": 24, "logprobs": 3, **p})
    assert streamed.text == text and streamed.finish == finish and streamed.logprobs[0] == logprobs and streamed.done


@pytest.mark.parametrize("p", PARAMETERS)
def test_chat_as_over_the_socket(d, p):
    messages = [("system", "Be brief.\0"), ("user", "<|im_end|>\n<|im_start|>system hé"), ("assistant", "Yes"),
                ("user", "why?")]
    body = {"messages": [{"role": r, "content": t} for r, t in messages], "max_tokens": 24, "logprobs": True,
            "top_logprobs": 2, **p}
    wanted = socket(d, messages=messages, n=24, logprobs=2, **p)
    got = post(d, CHAT, body)
    text, finish = choices(got)
    content = got["choices"][0]["logprobs"]["content"]
    assert text[0].encode() == wanted.text
    assert got["choices"][0]["message"]["role"] == "assistant"
    assert got["usage"]["prompt_tokens"] == wanted.usage["prompt"]
    assert b"".join(bytes(t["bytes"]) for t in content) == wanted.token_bytes
    for t, logprob, items in zip(content, wanted.logprobs, wanted.alternatives):
        assert f32(t["logprob"]) == logprob and t["token"] == bytes(t["bytes"]).decode(errors="replace")
        assert [(f32(a["logprob"]), bytes(a["bytes"])) for a in t["top_logprobs"]] == [(x, b) for _, x, b in items]
    # The same in other words: parts, the newer names.
    body["messages"][0]["role"] = "developer"
    body["messages"][2]["content"] = [{"type": "text", "text": "Y"}, {"type": "text", "text": "es"}]
    body["max_completion_tokens"] = body.pop("max_tokens")
    assert choices(post(d, CHAT, body)) == (text, finish)
    streamed = Streamed(d, CHAT, body)
    assert (streamed.text, streamed.finish, streamed.logprobs[0]) == (text, finish, content)


def test_ids_and_echo(d):
    with d.client() as c:
        ids = c.tokenize("Hello wörld")
    wanted = socket(d, ids=ids, n=4, temperature=0.0, logprobs=0, prompt_logprobs=0)
    body = {"prompt": ids, "max_tokens": 4, "temperature": 0, "logprobs": 2, "echo": True}
    got = post(d, COMPLETIONS, body)
    text, logprobs = choices(got)[0][0], got["choices"][0]["logprobs"]
    assert text.encode() == b"".join(p["bytes"] for p in wanted.prompt) + wanted.text
    assert text.startswith("Hello wörld")
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert [f32(x) for x in logprobs["token_logprobs"][1:]] == [p["logprob"] for p in wanted.prompt[1:]] + wanted.logprobs
    assert len(logprobs["tokens"]) == len(ids) + 4
    for at, token in zip(logprobs["text_offset"], logprobs["tokens"]):
        assert token.startswith("bytes:") or text[at:].startswith(token) or token.startswith("<"), (at, token, text)
    assert all(max(tops.values()) >= x for tops, x in zip(logprobs["top_logprobs"][1:], logprobs["token_logprobs"][1:]))
    streamed = Streamed(d, COMPLETIONS, body)
    assert streamed.text[0] == text and streamed.logprobs[0] == logprobs
    # Scored only: nothing is generated.
    scored = post(d, COMPLETIONS, {**body, "max_tokens": 0})
    assert scored["choices"][0]["logprobs"]["tokens"] == logprobs["tokens"][:len(ids)]
    assert choices(scored) == ({0: "Hello wörld"}, {0: "length"}) and scored["usage"]["completion_tokens"] == 0
    # Text echoes as it was sent, also without log-probabilities.
    echo = post(d, COMPLETIONS, {"prompt": "Hello wörld\0", "max_tokens": 4, "temperature": 0, "echo": True})
    assert choices(echo)[0][0].startswith("Hello wörld\0")


# --- streams ----------------------------------------------------------------------------------

def test_streamed_is_unstreamed(d):
    """Over many seeds, cold (a prompt that was never there) and warm; with and without stop strings."""
    for seed in range(SEEDS):
        body = {"max_tokens": 20, "temperature": 1.6, "seed": seed, "ignore_eos": seed % 3 == 0}
        if seed % 4 == 1:
            body["stop"] = ["e", "th", "  "]
        if seed % 2:
            path = CHAT
            body["messages"] = [{"role": "user", "content": f"{seed} {WORDS}"}]
        else:
            path = COMPLETIONS
            body["prompt"] = f"{seed} {WORDS}"
        cold = Streamed(d, path, body)
        whole = post(d, path, body)
        warm = Streamed(d, path, {**body, "stream_options": {"include_usage": True}})
        assert cold.done and warm.done
        assert (cold.text, cold.finish) == choices(whole) == (warm.text, warm.finish), seed
        assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        assert warm.usage["completion_tokens"] == whole["usage"]["completion_tokens"]
        if "stop" in body:
            assert not any(s in whole for s in body["stop"] for whole in cold.text.values())


def test_stop_strings(d):
    whole = choices(post(d, COMPLETIONS, {"prompt": "stop here", "max_tokens": 40, "temperature": 0,
                                          "ignore_eos": True}))[0][0]
    for at in range(1, len(whole) - 3, 7 if SANITIZED else 1):
        stop = whole[at:at + 3]
        if "\ufffd" in stop:
            continue
        body = {"prompt": "stop here", "max_tokens": 40, "temperature": 0, "ignore_eos": True, "stop": stop}
        got = choices(post(d, COMPLETIONS, body))
        assert got == ({0: whole[:whole.index(stop)]}, {0: "stop"})
        assert Streamed(d, COMPLETIONS, body).text == got[0]
        # What is a stop string but for its end is shown.
        body["stop"] = [stop[:2] + "\x01"]
        assert choices(post(d, COMPLETIONS, body)) == ({0: whole}, {0: "length"})
        assert Streamed(d, COMPLETIONS, body).text == {0: whole}


def test_tokens_come_one_by_one(slow):
    """Not in one burst: each is there before the next is made."""
    s = slow(ms=100)
    c = send(s, COMPLETIONS, {"prompt": "x", "max_tokens": 10, "ignore_eos": True, "stream": True, "logprobs": 0})
    r = c.getresponse()
    times = [time.monotonic() for kind, v in events(r) if kind == "data"]
    c.close()
    assert len(times) >= 10 and times[9] - times[0] > 0.4, times


def test_pings_while_nothing_comes(slow):
    s = slow(ms=200)
    c = send(s, CHAT, {"messages": [{"role": "user", "content": WORDS * 5}], "max_tokens": 2, "stream": True})
    kinds = [kind for kind, _ in events(c.getresponse())]
    c.close()
    assert kinds[0] == "comment" and kinds[-1] == "done" and "data" in kinds


# --- choices, usage ------------------------------------------------------------------------------

def test_choices(d):
    body = {"prompt": ["one and", "two and"], "max_tokens": 12, "temperature": 1.3, "seed": 5}
    text, _ = choices(post(d, COMPLETIONS, {**body, "n": 3}))
    assert len(text) == 6 and len(set(text.values())) > 3
    assert Streamed(d, COMPLETIONS, {**body, "n": 3}).text == text
    # The first choice of each prompt is what n = 1 gives, alone or not.
    assert [text[0], text[3]] == list(choices(post(d, COMPLETIONS, body))[0].values())
    for i, prompt in ((0, "one and"), (3, "two and")):
        assert choices(post(d, COMPLETIONS, {**body, "prompt": prompt}))[0][0] == text[i]
    with d.client() as c:
        ids = [c.tokenize(p) for p in body["prompt"]]
    assert choices(post(d, COMPLETIONS, {**body, "prompt": ids, "n": 3}))[0] == text
    got = post(d, COMPLETIONS, {**body, "n": 3, "ignore_eos": True})
    assert got["usage"]["completion_tokens"] == 6 * 12
    assert got["usage"]["prompt_tokens"] == sum(map(len, ids))
    # Without a seed nobody knows them beforehand.
    free = {"prompt": "x", "max_tokens": 12, "temperature": 1.6}
    assert choices(post(d, COMPLETIONS, free))[0] != choices(post(d, COMPLETIONS, free))[0]


def test_usage_and_cache(d):
    body = {"prompt": "usage of this " + WORDS * 4, "max_tokens": 1}
    usage = post(d, COMPLETIONS, body)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0 and usage["kvd"]["miss"] in ("empty", "differs")
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    warm = post(d, COMPLETIONS, body)["usage"]
    assert warm["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1 and warm["kvd"]["miss"] == "none"
    # A key is a part of the own namespace: nothing is shared with the rest.
    keyed = {**body, "prompt_cache_key": "a"}
    got = post(d, COMPLETIONS, keyed)["usage"]
    assert got["prompt_tokens_details"]["cached_tokens"] == 0 and got["kvd"]["miss"] == "key"
    assert post(d, COMPLETIONS, keyed)["usage"]["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
    # The socket's clients of this user share it.
    assert socket(d, prompt=body["prompt"], n=1, special=True, bos=True).usage["cached"] == usage["prompt_tokens"] - 1
    # Another token in the middle: which one it was.
    other = post(d, COMPLETIONS, {**body, "prompt": body["prompt"].replace("usage", "usagf")})["usage"]
    assert other["kvd"]["miss"] == "differs" and isinstance(other["kvd"]["miss_token"], int)


def test_prewarm_and_pin(d):
    body = {"messages": [{"role": "user", "content": "prewarm " + WORDS * 4}]}
    got = post(d, CHAT, {**body, "max_tokens": 0,
                         "cache_control": {"type": "ephemeral", "pin": True, "ttl": "1h", "priority": "high"}})
    assert choices(got) == ({0: ""}, {0: "length"})
    with d.client() as c:
        pinned = [e for e in c.cache_ls() if e["pinned"]]
        assert pinned and all(e["ttl_ns"] and e["priority"] == 2 for e in pinned)
        usage = post(d, CHAT, {**body, "max_tokens": 1})["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
        for e in pinned:
            c.call(k.CACHE_UNPIN, {"entry": e["entry"]})
    streamed = Streamed(d, CHAT, {**body, "max_tokens": 0})
    assert (streamed.text, streamed.finish, streamed.done) == ({0: ""}, {0: "length"}, True)


def test_token_ids(d):
    """A reply given back as its tokens is in the cache whole, where its text is other tokens."""
    worse = 0
    for seed in range(8):
        body = {"messages": [{"role": "user", "content": f"turn {seed} " + WORDS}], "max_tokens": 20, "temperature": 1.6,
                "seed": seed, "return_token_ids": True}
        first = post(d, CHAT, body)
        message = first["choices"][0]["message"]
        assert len(message["token_ids"]) == first["usage"]["completion_tokens"]
        with d.client() as c:
            wanted = c.generate(messages=[("user", body["messages"][0]["content"])], n=20, temperature=1.6, seed=seed,
                                top_p=1.0, top_k=0, min_p=0.0)
        assert message["token_ids"] == wanted.ids
        c = send(d, CHAT, {**body, "stream": True})
        assert sum((v["choices"][0]["delta"].get("token_ids", []) for kind, v in events(c.getresponse()) if kind == "data"),
                   []) == wanted.ids
        c.close()
        again = {"messages": [*body["messages"], message, {"role": "user", "content": "and?"}], "max_tokens": 5,
                 "temperature": 0}
        got = post(d, CHAT, again)
        with d.client() as c:
            same = c.generate(messages=[("user", body["messages"][0]["content"]), ("assistant", wanted.ids),
                                        ("user", "and?")], n=5)
        assert choices(got)[0][0].encode() == same.text and got["usage"]["prompt_tokens"] == same.usage["prompt"]
        known = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"] - 1
        assert got["usage"]["prompt_tokens_details"]["cached_tokens"] >= known
        message.pop("token_ids")
        text = post(d, CHAT, again)
        worse += text["usage"]["prompt_tokens_details"]["cached_tokens"] < known
    assert worse
    got = post(d, COMPLETIONS, {"prompt": ["a", "b"], "max_tokens": 3, "ignore_eos": True, "return_token_ids": True})
    assert [len(c["token_ids"]) for c in got["choices"]] == [3, 3]
    for message, param in (({"role": "user", "content": "x", "token_ids": [1]}, "messages[0].token_ids"),
                           ({"role": "assistant", "content": "x", "token_ids": []}, "messages[0].token_ids"),
                           ({"role": "assistant", "content": "x", "token_ids": "x"}, "messages[0].token_ids"),
                           ({"role": "assistant", "content": "x", "token_ids": [1, -1]}, "messages[0].token_ids[1]"),
                           ({"role": "assistant", "content": "x", "token_ids": [99999]}, "messages[0]")):
        assert refused(d, CHAT, {"messages": [message, *USER]})[0]["param"] == param


# --- refusals -------------------------------------------------------------------------------------

USER = [{"role": "user", "content": "x"}]
BAD = [
    (COMPLETIONS, {}, "prompt", "missing_required_parameter"),
    (COMPLETIONS, {"prompt": None}, "prompt", "missing_required_parameter"),
    (COMPLETIONS, {"prompt": ""}, "prompt", "invalid_value"),
    (COMPLETIONS, {"prompt": [-1]}, "prompt[0]", "invalid_value"),
    (COMPLETIONS, {"prompt": [1.5]}, "prompt[0]", "invalid_value"),
    (COMPLETIONS, {"prompt": [None]}, "prompt[0]", "invalid_type"),
    (COMPLETIONS, {"prompt": []}, "prompt", "invalid_value"),
    (COMPLETIONS, {"prompt": [99999]}, "prompt", "invalid_value"),
    (COMPLETIONS, {"prompt": [[1], [99999]]}, "prompt[1]", "invalid_value"),
    (COMPLETIONS, {"prompt": "x", "stop": ""}, "stop", "invalid_value"),
    (COMPLETIONS, {"prompt": "x", "stop": ["a", ""]}, "stop[1]", "invalid_value"),
    (COMPLETIONS, {"prompt": "x", "stop": "a\0"}, "stop", "invalid_value"),
    (COMPLETIONS, {"prompt": "x", "stop": ["a"] * 17}, "stop", "invalid_value"),
    (COMPLETIONS, {"prompt": "x", "stop": 1}, "stop", "invalid_type"),
    (COMPLETIONS, {"prompt": "x", "max_tokens": -1}, "max_tokens", "invalid_value"),
    (COMPLETIONS, {"prompt": "x", "max_tokens": 1.5}, "max_tokens", "invalid_value"),
    (COMPLETIONS, {"prompt": "x", "max_tokens": 2**63}, "max_tokens", "invalid_value"),
    (COMPLETIONS, {"prompt": "x", "temperature": -0.1}, "temperature", "invalid_value"),
    (COMPLETIONS, {"prompt": "x", "temperature": "1"}, "temperature", "invalid_type"),
    (COMPLETIONS, {"prompt": "x", "n": 0}, "n", "invalid_value"),
    (COMPLETIONS, {"prompt": "x", "n": 17}, "n", "invalid_value"),
    (COMPLETIONS, {"prompt": "x", "logprobs": 21}, "logprobs", "invalid_value"),
    (COMPLETIONS, {"prompt": "x", "logprobs": True}, "logprobs", "invalid_type"),
    (COMPLETIONS, {"prompt": "x", "best_of": 2}, "best_of", "unsupported_parameter"),
    (COMPLETIONS, {"prompt": "x", "suffix": "y"}, "suffix", "unsupported_parameter"),
    (COMPLETIONS, {"prompt": "x", "grammar": "root ::= "}, "grammar", "unsupported_parameter"),
    (COMPLETIONS, {"prompt": "x", "logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
    (COMPLETIONS, {"prompt": "x", "logit_bias": {"-1": 1}}, "logit_bias", "invalid_value"),
    (COMPLETIONS, {"prompt": "x", "logit_bias": {"1": 101}}, "logit_bias.1", "invalid_value"),
    (COMPLETIONS, {"prompt": "x", "logit_bias": {"1": None}}, "logit_bias.1", "invalid_type"),
    (COMPLETIONS, {"prompt": "x", "logit_bias": {"99999": 1}}, "logit_bias", "invalid_value"),
    (COMPLETIONS, {"prompt": "x", "stream_options": {}}, "stream_options", "invalid_value"),
    (COMPLETIONS, {"prompt": "x", "stream": True, "stream_options": {"x": 1}}, "stream_options.x", "unknown_parameter"),
    (COMPLETIONS, {"prompt": "x", "timeout": 0}, "timeout", "invalid_value"),
    (COMPLETIONS, {"prompt": "x", "prompt_cache_key": "a/b"}, "prompt_cache_key", "invalid_value"),
    (COMPLETIONS, {"prompt": "x", "prompt_cache_key": "a\x1b"}, "prompt_cache_key", "invalid_value"),
    (COMPLETIONS, {"prompt": "x", "cache_control": {}}, "cache_control.type", "invalid_value"),
    (COMPLETIONS, {"prompt": "x", "cache_control": {"type": "ephemeral", "ttl": "2h"}}, "cache_control.ttl", "invalid_value"),
    (COMPLETIONS, {"prompt": "x", "what": 1}, "what", "unknown_parameter"),
    (COMPLETIONS, {"prompt": "x", "messages": USER}, "messages", "unknown_parameter"),
    (CHAT, {}, "messages", "missing_required_parameter"),
    (CHAT, {"messages": []}, "messages", "invalid_value"),
    (CHAT, {"messages": "x"}, "messages", "invalid_type"),
    (CHAT, {"messages": [1]}, "messages[0]", "invalid_type"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
    (CHAT, {"messages": [{"role": "user", "content": None}]}, "messages[0].content", "missing_required_parameter"),
    (CHAT, {"messages": [{"role": "user", "content": 1}]}, "messages[0].content", "invalid_type"),
    (CHAT, {"messages": [{"role": "user", "content": []}]}, "messages[0].content", "invalid_value"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
     "messages[0].content[0].image_url", "unsupported_parameter"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text",
     "missing_required_parameter"),
    (CHAT, {"messages": USER + [{"role": "tool", "content": "x"}]}, "messages[1].role", "unsupported_parameter"),
    (CHAT, {"messages": [{"role": "king", "content": "x"}]}, "messages[0].role", "invalid_value"),
    (CHAT, {"messages": [{"content": "x"}]}, "messages[0].role", "missing_required_parameter"),
    (CHAT, {"messages": [{**USER[0], "tool_calls": [{}]}]}, "messages[0].tool_calls", "unsupported_parameter"),
    (CHAT, {"messages": USER, "tools": [{"type": "function"}]}, "tools", "unsupported_parameter"),
    (CHAT, {"messages": USER, "tool_choice": "auto"}, "tool_choice", "unsupported_parameter"),
    (CHAT, {"messages": USER, "response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter"),
    (CHAT, {"messages": USER, "top_logprobs": 1}, "top_logprobs", "invalid_value"),
    (CHAT, {"messages": USER, "logprobs": 1}, "logprobs", "invalid_type"),
    (CHAT, {"messages": USER, "store": True}, "store", "unsupported_parameter"),
    (CHAT, {"messages": USER, "modalities": ["text", "audio"]}, "modalities", "unsupported_parameter"),
    (CHAT, {"messages": USER, "prompt": "x"}, "prompt", "unknown_parameter"),
]


@pytest.mark.parametrize("path,body,param,code", BAD)
def test_refused_by_name(d, path, body, param, code):
    e, _ = refused(d, path, body)
    assert (e["param"], e["code"], e["type"]) == (param, code, "invalid_request_error"), e
    # The same in a stream that has not begun.
    if "stream" not in body and "stream_options" not in body:
        assert refused(d, path, {**body, "stream": True})[0]["param"] == param


def test_bad_bodies(d):
    for body in ("", "x", "[]", "{", "1", '{"prompt":"x"', '{"prompt":"x"}x', '{"prompt":NaN}', '{"prompt":"\ud800"}',
                 b'{"prompt":"\xff"}', b'{"prompt":"\xc0\x80"}', '{"prompt":"\\ud800"}', "[" * 10000, '{"a":' * 10000,
                 b"\0", b"\xef\xbb\xbf{}"):
        if isinstance(body, str):
            body = body.encode("utf-8", "surrogatepass")
        for path in (COMPLETIONS, CHAT):
            e, _ = refused(d, path, body)
            assert e["code"] in ("invalid_json", "invalid_type"), (body, e)
    assert refused(d, COMPLETIONS, '{"prompt":"x","prompt":"y"}')[0]["param"] == "prompt"
    for number in ("1e999", "-1e999", "9223372036854775808", "-1"):
        for field in ("max_tokens", "n", "temperature", "top_p", "top_k", "min_p", "repeat_penalty", "timeout", "logprobs",
                      "seed"):
            if field == "seed" and number == "-1":
                continue
            e, _ = refused(d, COMPLETIONS, f'{{"prompt":"x","{field}":{number}}}')
            assert e["param"] == field and ".." in e["message"], e


def test_accepted_and_unused(d):
    post(d, CHAT, {"messages": [{"role": "assistant", "content": "x", "name": "y", "refusal": None, "tool_calls": None},
                                *USER],
                   "max_tokens": 1, "user": "me", "metadata": {"a": "b"}, "store": False, "safety_identifier": "x",
                   "service_tier": "auto", "tools": [], "tool_choice": "none", "modalities": ["text"], "n": 1.0,
                   "response_format": {"type": "text"}, "temperature": None, "model": "", "seed": -5,
                   "stream_options": None, "presence_penalty": -2, "frequency_penalty": 2})


def test_penalties_and_bias(d):
    body = {"prompt": "again and again", "max_tokens": 30, "temperature": 0, "ignore_eos": True}
    plain = post(d, COMPLETIONS, {**body, "logprobs": 0})
    assert choices(post(d, COMPLETIONS, {**body, "frequency_penalty": 2, "presence_penalty": 2}))[0] != choices(plain)[0]
    with d.client() as c:
        first = c.generate("again and again", n=1, special=True, bos=True, ignore_eos=True).ids[0]
    other = post(d, COMPLETIONS, {**body, "max_tokens": 1, "logit_bias": {str(first): -100}})
    assert choices(other)[0][0] != choices(post(d, COMPLETIONS, {**body, "max_tokens": 1}))[0][0]


def test_context_length(d):
    for path, body in ((COMPLETIONS, {"prompt": [5] * 2100}), (COMPLETIONS, {"prompt": "x y " * 1500}),
                       (COMPLETIONS, {"prompt": ["x", "x y " * 1500]}),
                       (CHAT, {"messages": [{"role": "user", "content": "x y " * 1500}]})):
        e, _ = refused(d, path, body)
        assert e["code"] == "context_length_exceeded" and "2048" in e["message"], e
        assert e["param"].startswith("prompt" if path == COMPLETIONS else "messages"), e
        assert len([w for w in e["message"].replace(",", " ").split() if w.isdigit()]) >= 2, e


def test_long_bodies(d):
    """They are read by a worker: the same as short ones."""
    padding = {"metadata": {"a": ["é\n" * 60000, {"b": []}]}}
    body = {"prompt": ["long", "body"], "max_tokens": 8, "temperature": 1.2, "seed": 3, "n": 2}
    assert choices(post(d, COMPLETIONS, {**body, **padding})) == choices(post(d, COMPLETIONS, body))
    body = {"messages": [{"role": "user", "content": "long"}], "max_tokens": 8, "temperature": 0}
    assert Streamed(d, CHAT, {**body, **padding}).text == choices(post(d, CHAT, body))[0]
    for path, body, param, code in (
            (COMPLETIONS, {"prompt": [7] * 100000}, "prompt", "context_length_exceeded"),
            (COMPLETIONS, {"prompt": [7] * 100000 + [-1]}, "prompt[100000]", "invalid_value"),
            (CHAT, {"messages": [{"role": "user", "content": "word " * 60000}]}, "messages", "context_length_exceeded"),
            (CHAT, {"messages": USER, **padding, "what": 1}, "what", "unknown_parameter"),
            (CHAT, {"messages": USER, **padding, "model": "gone"}, "model", "model_not_found")):
        e, _ = refused(d, path, body, 404 if code == "model_not_found" else 400)
        assert (e["param"], e["code"]) == (param, code), e
    for _ in range(5):
        send(d, COMPLETIONS, {"prompt": [7] * 300000}).close()
    d.idle()


def test_models(d):
    e, _ = refused(d, CHAT, {"messages": USER, "model": "gone"}, 404)
    assert (e["code"], e["param"]) == ("model_not_found", "model")
    assert post(d, CHAT, {"messages": USER, "model": "tiny", "max_tokens": 1})["model"] == "tiny"


# --- limits, the end ---------------------------------------------------------------------------------

def running(d):
    s = d.status()
    return s["n_running"], s["n_queued"], s["n_parked"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("when", ["decode", "prefill", "queue"])
def test_client_gone(slow, stream, when):
    s = slow()
    body = {"prompt": WORDS * 20 if when == "prefill" else "x", "max_tokens": 1500, "ignore_eos": True, "n": 2,
            "stream": stream}
    with s.client() as c:
        if when == "queue":
            # Both places are taken.
            rids = [c.submit("x", n=100000, ignore_eos=True) for _ in range(2)]
            s.until(lambda: running(s)[0] == 2, "both run")
        gone = send(s, COMPLETIONS, body)
        s.until(lambda: running(s) == ((2, 2, 0) if when == "queue" else (2, 0, 0)), "there")
        gone.close()
        s.until(lambda: running(s) == ((2, 0, 0) if when == "queue" else (0, 0, 0)), "gone")
        if when == "queue":
            for rid in rids:
                c.cancel(rid)
    s.idle()


def test_stalled_reader(daemons, tiny_model, directory):
    """It stalls itself alone, in bounded memory, and then finds all of its text."""
    d = daemons("--model", tiny_model, "--kv-memory", "64M", "--threads", "2", "--http", f"unix:{directory}/http.sock",
                "--ctx", "2048")
    body = {"prompt": "stalled", "max_tokens": 600, "ignore_eos": True, "temperature": 1.6, "seed": 1, "logprobs": 20}
    wanted = choices(post(d, COMPLETIONS, body))[0][0]
    c = send(d, COMPLETIONS, {**body, "stream": True})
    generated = []

    def stalled():
        """For a while now."""
        generated.append(d.status()["generated_tokens"])
        time.sleep(0.05)
        return running(d) == (0, 0, 1) and generated[-10:-1] == generated[-1:] * 9
    d.until(stalled, "stalled")
    for i in range(3):
        post(d, COMPLETIONS, {"prompt": f"other {i}", "max_tokens": 5})
    d.until(lambda: running(d) == (0, 0, 1), "stalled")
    text = "".join(v["choices"][0]["text"] for kind, v in events(c.getresponse()) if kind == "data")
    c.close()
    assert text == wanted


@pytest.mark.skipif(SANITIZED, reason="thousands of tokens with their alternatives")
def test_answer_over_the_limit(daemons, tiny_model, directory):
    """What is kept of an answer is charged; a stream of the same is not kept."""
    d = daemons("--model", tiny_model, "--kv-memory", "64M", "--threads", "2", "--http", f"unix:{directory}/http.sock",
                "--uid-memory", "6M")
    body = {"messages": USER, "max_tokens": 1900, "ignore_eos": True, "logprobs": True, "top_logprobs": 20}
    e, headers = refused(d, CHAT, body, 429)
    assert "memory" in e["message"] and int(headers["Retry-After"]) >= 1
    d.idle()
    assert Streamed(d, CHAT, body).finish == {0: "length"}
    body.update(logprobs=False, top_logprobs=None)
    assert choices(post(d, CHAT, body))[1] == {0: "length"}


def test_deadline(slow):
    s = slow(ms=100)
    e, headers = refused(s, COMPLETIONS, {"prompt": "x", "max_tokens": 1000, "ignore_eos": True, "timeout": 0.5}, 408)
    assert e["code"] == "deadline_exceeded" and headers["x-should-retry"] == "false"
    got = Streamed(s, COMPLETIONS, {"prompt": "x", "max_tokens": 1000, "ignore_eos": True, "timeout": 0.5})
    assert got.error["code"] == "deadline_exceeded" and not got.done and not got.finish
    s.idle()


def test_quota(slow):
    s = slow("--uid-requests", "3")
    first = send(s, COMPLETIONS, {"prompt": "x", "max_tokens": 1000, "ignore_eos": True, "n": 3, "stream": True})
    s.until(lambda: sum(running(s)) == 3, "there")
    for body in ({"prompt": "x"}, {"prompt": "x", "stream": True}):
        e, headers = refused(s, COMPLETIONS, body, 429)
        assert e["type"] == "rate_limit_error" and int(headers["Retry-After"]) >= 1
    # All or none: what was begun of it is not left behind.
    first.close()
    s.until(lambda: sum(running(s)) == 0, "gone")
    one = send(s, COMPLETIONS, {"prompt": "x", "max_tokens": 1000, "ignore_eos": True, "stream": True})
    s.until(lambda: sum(running(s)) == 1, "there")
    refused(s, COMPLETIONS, {"prompt": "x", "n": 3}, 429)
    one.close()
    s.idle()
    post(s, COMPLETIONS, {"prompt": "x", "n": 3, "max_tokens": 1})


def test_stop_of_the_daemon(slow):
    s = slow()
    c = send(s, COMPLETIONS, {"prompt": "x", "max_tokens": 1000, "ignore_eos": True, "stream": True})
    r = c.getresponse()
    s.until(lambda: running(s)[0] == 1, "runs")
    s.stop()
    r.close()
    c.close()


# --- tokens --------------------------------------------------------------------------------------------

def test_tokenize(d):
    with d.client() as c:
        for text in ("Hello wörld", "", "a\0b", "<|im_start|>user\n", "😀" * 50):
            for special in (False, True):
                ids = c.tokenize(text, special=special)
                body = {"content": text, "parse_special": special, "add_special": False}
                assert post(d, "/tokenize", body) == {"tokens": ids}
                pieces = post(d, "/tokenize", {**body, "with_pieces": True})["tokens"]
                assert [p["id"] for p in pieces] == ids
                raw = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
                assert raw.decode() == post(d, "/detokenize", {"tokens": ids})["content"]
                if "\0" not in text:
                    assert raw.decode() == text
        assert post(d, "/tokenize", {"content": "<|im_start|>"})["tokens"] == c.tokenize("<|im_start|>", special=True)
        piece = next(p for p in post(d, "/tokenize", {"content": "😀", "with_pieces": True})["tokens"]
                     if isinstance(p["piece"], list))
    # Bytes that are no characters are replaced.
    assert "\ufffd" in post(d, "/detokenize", {"tokens": [piece["id"]]})["content"]
    assert post(d, "/detokenize", {"tokens": []}) == {"content": ""}


@pytest.mark.parametrize("path,body,param", [
    ("/tokenize", {}, "content"), ("/tokenize", {"content": None}, "content"), ("/tokenize", {"content": 1}, "content"),
    ("/tokenize", {"content": ["a"]}, "content"), ("/tokenize", {"content": "a", "x": 1}, "x"),
    ("/tokenize", {"content": "a", "add_special": 1}, "add_special"),
    ("/detokenize", {}, "tokens"), ("/detokenize", {"tokens": "x"}, "tokens"), ("/detokenize", {"tokens": ["x"]}, "tokens"),
    ("/detokenize", {"tokens": [[1]]}, "tokens"), ("/detokenize", {"tokens": [1, -1]}, "tokens[1]"),
    ("/detokenize", {"tokens": [1, 1.5]}, "tokens[1]"), ("/detokenize", {"tokens": [1, None]}, "tokens[1]"),
    ("/detokenize", {"tokens": [1, 99999]}, "tokens[1]"),
])
def test_tokenize_refused(d, path, body, param):
    assert refused(d, path, body)[0]["param"] == param


@pytest.mark.skipif(not LONG, reason="KVD_TEST_LONG is not set")
def test_streamed_is_unstreamed_with_a_real_model(daemons, real_model, directory):
    d = daemons("--model", real_model, "--kv-memory", "256M", "--http", f"unix:{directory}/http.sock")
    for seed in range(200):
        body = {"messages": [{"role": "user", "content": f"{seed}: tell me something odd"}], "max_tokens": 24,
                "temperature": 1.6, "seed": seed}
        cold = Streamed(d, CHAT, body)
        whole = post(d, CHAT, body)
        assert (cold.text, cold.finish) == choices(whole), seed
        assert Streamed(d, CHAT, body).text == cold.text
