# SPDX-License-Identifier: Apache-2.0
"""Faults that users of other HTTP endpoints reported, each with its kind: stop strings, streams, prompts, the context's end."""
import json
import re

import pytest
import webclient
from conftest import LONG, SANITIZED

BOTH = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


def answer(web, body, streamed, path="/v1/completions"):
    """(text, finish_reason) of choice 0."""
    if not streamed:
        choice = web.ok(path, body).json["choices"][0]
        return choice["text"] if "text" in choice else choice["message"]["content"], choice["finish_reason"]
    chunks = list(web.stream(path, body))
    ends = [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["index"] == 0]
    assert all(e is None for e in ends[:-1]) and ends[-1]
    return webclient.text_of(chunks), ends[-1]


def expected(text, stops):
    """What is before the earliest occurrence of any."""
    found = [text.index(s) for s in stops if s in text]
    return (text[:min(found)], "stop") if found else (text, "length")


# --- stop strings --------------------------------------------------------------------

def plain_body(web, streamed, **body):
    """A request whose answer is ASCII, and the answer: stop strings are bytes, and U+FFFD stands for others."""
    for seed in range(3, 40):
        body = {**body, "seed": seed}
        text, end = answer(web, body, streamed)
        if text.isascii():
            return body, text, end
    raise AssertionError("no seed gives an answer in ASCII")


@BOTH
def test_stop_strings(web, streamed):
    """Cut exactly where they begin: nothing before is lost, nothing of them is shown, wherever tokens begin and end."""
    body, text, end = plain_body(web, streamed, prompt="Stop me: ", max_tokens=48, temperature=1.2, ignore_eos=True,
                                 model="letters")
    assert end == "length" and len(text) > 48
    step = 3 if SANITIZED else 1
    for at in range(0, len(text), step):
        for length in (1, 2, 3, 7, 20):
            if at + length <= len(text):
                stops = [text[at:at + length]]
                assert answer(web, {**body, "stop": stops[0] if at % 2 else stops}, streamed) == expected(text, stops), stops


@BOTH
def test_partial_stop_strings(web, streamed):
    """What only began like a stop string is shown after all, also at the end; several that begin alike."""
    body, text, _ = plain_body(web, streamed, prompt="Stop me: ", max_tokens=40, temperature=1.2, ignore_eos=True,
                               model="letters")
    for length in range(1, len(text), 5 if SANITIZED else 1):
        assert answer(web, {**body, "stop": [text[-length:] + "\n"]}, streamed) == (text, "length"), length
    for at in range(0, len(text) - 12, 6):
        piece = text[at:at + 12]
        for stops in ([piece[:4] + "\x01", piece[2:6]], [piece[1:9] + "\x01", piece], [piece[3:5], piece[:8]], [piece[:8], piece[3:5], piece[0] + "\x01"],
                      [piece + "\x01", piece[5:]] + [piece[i:i + 3] + "\x02" for i in range(9)]):
            assert answer(web, {**body, "stop": stops}, streamed) == expected(text, stops), stops


@BOTH
def test_stop_strings_of_many_bytes(web, streamed):
    """The model says any bytes: characters that were torn are U+FFFD in the text, and a stop string is bytes."""
    body = {"prompt": "é世", "max_tokens": 60, "temperature": 1.5, "ignore_eos": True, "model": "bytes"}
    tried = 0
    for seed in range(30 if SANITIZED else 100):
        text, _ = answer(web, {**body, "seed": seed}, streamed)
        for match in re.finditer("[^\x00-\x7f\ufffd]+.?", text):
            if "\ufffd" not in match[0] and len(match[0].encode()) <= 256:
                got = answer(web, {**body, "seed": seed, "stop": match[0]}, streamed)
                want = expected(text, [match[0]])
                assert got[1] == "stop" and got[0] == want[0], (seed, match[0])
                tried += 1
    assert tried >= 3, "no such character was said: the test shows nothing"


@BOTH
def test_stop_strings_in_chat_and_choices(web, streamed):
    body = {"messages": [{"role": "user", "content": "Say it."}], "max_tokens": 30, "temperature": 1.3, "seed": 9, "n": 3,
            "ignore_eos": True, "model": "letters"}

    def all_of(fields):
        if streamed:
            chunks = list(web.stream("/v1/chat/completions", {**body, **fields}))
            return [webclient.text_of(chunks, i) for i in range(3)]
        return [c["message"]["content"] for c in web.ok("/v1/chat/completions", {**body, **fields}).json["choices"]]
    texts = all_of({})
    for stop in (texts[0][10:13], texts[1][5:6], texts[2][20:24], " "):
        assert all_of({"stop": [stop]}) == [expected(t, [stop])[0] for t in texts], stop


def test_stop_refused(web):
    for path, body in (("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})):
        for stop in ("", [""], ["a", ""], ["a"] * 17, "x" * 257, ["a", "é" * 129], [["a"]], [None], 5, [5]):
            web.refused(path, {**body, "stop": stop}, "stop")
        for stop in (None, [], "a", ["a"] * 16, "x" * 256, ["é" * 128]):
            web.ok(path, {**body, "stop": stop, "max_tokens": 2})


def test_stop_not_in_the_prompt(web):
    """echo shows the prompt whole; a stop string in it ends nothing."""
    text = web.complete("one two three", echo=True, stop=["two"]).text
    assert text.startswith("one two three")


# --- usage, echo, lengths --------------------------------------------------------------

@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_usage_chunk(web, path):
    body = {"max_tokens": 9, "ignore_eos": True, "n": 2}
    body |= {"prompt": "x y"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "x y"}]}
    for options in (None, {}, {"include_usage": False}, {"include_usage": None}):
        chunks = list(web.stream(path, {**body, "stream_options": options}))
        assert all(c["choices"] and c.get("usage") is None for c in chunks)
    *chunks, last = web.stream(path, {**body, "stream_options": {"include_usage": True}})
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 18
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] >= 0
    assert all(c["choices"] and c.get("usage") is None for c in chunks)
    whole = web.ok(path, body).json["usage"]
    assert whole["prompt_tokens"] == last["usage"]["prompt_tokens"]
    assert whole["total_tokens"] == whole["prompt_tokens"] + whole["completion_tokens"]
    web.refused(path, {**body, "stream_options": {"include_usage": True}}, "stream_options")


def test_echo_with_logprobs(web):
    """All positions of prompt and text in order; the first has none; the same as those of the tokens alone."""
    ids = web.tokenize("The quick brown fox", model="letters")
    for n in (0, 1, 5, 20):
        choice = web.complete("The quick brown fox", model="letters", echo=True, logprobs=n).json["choices"][0]
        p = choice["logprobs"]
        assert len(p["tokens"]) == len(p["token_logprobs"]) == len(p["text_offset"]) == len(ids) + 12
        assert "".join(p["tokens"]) == choice["text"] and p["token_logprobs"][0] is None
        assert all(x is not None and x <= 0 for x in p["token_logprobs"][1:])
        for i, (token, offset) in enumerate(zip(p["tokens"], p["text_offset"])):
            assert choice["text"][offset:offset + len(token)] == token
            if n and i:
                top = p["top_logprobs"][i]
                assert n <= len(top) <= n + 1 and abs(top[token] - p["token_logprobs"][i]) < 1e-6
        # Generated tokens scored as a prompt have the same numbers.
        again = web.complete(choice["text"], model="letters", echo=True, logprobs=n, max_tokens=0).json["choices"][0]["logprobs"]
        if again["tokens"] == p["tokens"]:
            assert again["token_logprobs"] == p["token_logprobs"]
        streamed = [c["choices"][0] for c in web.stream("/v1/completions", {
            "prompt": "The quick brown fox", "model": "letters", "echo": True, "logprobs": n, "max_tokens": 12, "temperature": 0,
            "ignore_eos": True})]
        for name in ("tokens", "token_logprobs", "text_offset"):
            assert [x for c in streamed if c["logprobs"] for x in c["logprobs"][name]] == p[name], name
    for echo in (True, False):
        assert web.complete("a b", echo=echo).json["choices"][0]["logprobs"] is None


def test_echo_of_any_bytes(web):
    for prompt in ("é世👩‍👩‍👧", "\x00\x01\x1f\x7f", "\u2028\u2029\ufeff\ufffd", '"\\/\b\f\n\r\t', "</script>", "a" * 500):
        assert web.complete(prompt, model="bytes", echo=True, max_tokens=0).text == prompt
        assert webclient.text_of(web.stream("/v1/completions", {"prompt": prompt, "model": "bytes", "echo": True, "max_tokens": 0})) == prompt


@BOTH
def test_max_tokens_0(web, streamed):
    """Prefills and says nothing: the next one finds it."""
    for path, field, body in (("/v1/completions", "max_tokens", {"prompt": f"prewarm {streamed} " * 40}),
                              ("/v1/chat/completions", "max_tokens", {"messages": [{"role": "user", "content": f"warm {streamed} " * 40}]}),
                              ("/v1/chat/completions", "max_completion_tokens",
                               {"messages": [{"role": "user", "content": f"pre {streamed} " * 40}]})):
        assert answer(web, {**body, field: 0}, streamed, path) == ("", "length")
        usage = web.ok(path, {**body, "max_tokens": 1}).json["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1, usage


# --- prompts -----------------------------------------------------------------------------

def test_token_ids(web):
    """What is no id is refused by its place, in every field that takes ids, and harms nobody after it."""
    want = web.complete([5, 6, 7]).text
    n_vocab = 512
    bad = [[-1], [1.5], [None], [n_vocab], [2**31], [2**32], [2**63], [2**64], [-2**63], [5, -1], [5, 6, n_vocab], ["5", 5], [5, "x"],
           [True], [[5], 6], [[]], [[5], []], [[5], [-1]], [[5], [n_vocab]], [[[5]]], [[5], None], [{}], [[5, None]], [[1.5]], [[], [5]]]
    for ids in bad:
        web.refused("/v1/completions", {"prompt": ids}, "prompt")
        web.refused("/v1/embeddings", {"input": ids}, "input")
        web.refused("/detokenize", {"tokens": ids}, "tokens")
        assert web.complete([5, 6, 7]).text == want
    for empty in ([], "", [""], ["x", ""], None, {}, 5, True):
        web.refused("/v1/completions", {"prompt": empty}, "prompt")
        web.refused("/v1/embeddings", {"input": empty}, "input")
    for body in ({}, {"n": 1}):
        web.refused("/v1/completions", body, "prompt")
        web.refused("/v1/embeddings", {}, "input")
        web.refused("/v1/chat/completions", body, "messages")
        web.refused("/tokenize", {}, "content")
        web.refused("/detokenize", {}, "tokens")
    assert web.tokenize("") == [] and web.ok("/detokenize", {"tokens": []}).json["content"] == ""
    # 1.0 is the same number as 1.
    assert web.post("/v1/completions", b'{"prompt": [5.0, 6, 7e0], "max_tokens": 12.0, "temperature": 0, "ignore_eos": true}').text == want


def test_messages(web):
    path = "/v1/chat/completions"
    for messages, param in (([], "messages"), (None, "messages"), ("x", "messages"), ({}, "messages"), ([None], "messages[0]"),
                            (["x"], "messages[0]"), ([{}], "messages[0]"), ([{"role": "user"}], "messages[0].content"),
                            ([{"content": "x"}], "messages[0].role"), ([{"role": "user", "content": None}], "messages[0].content"),
                            ([{"role": "user", "content": 5}], "messages[0].content"), ([{"role": "user", "content": []}], "messages[0].content"),
                            ([{"role": "user", "content": [None]}], "messages[0].content[0]"),
                            ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
                            ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
                            ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type"),
                            ([{"role": "user", "content": "x"}, {"role": "assistant", "content": None}], "messages[1].content"),
                            ([{"role": "", "content": "x"}], "messages[0].role"), ([{"role": "User", "content": "x"}], "messages[0].role"),
                            ([{"role": "user", "content": "x", "extra": 1}], "messages[0].extra"),
                            ([{"role": "user", "content": "x"}] * 5000, "messages")):
        web.refused(path, {"messages": messages}, param)
    for messages in ([{"role": "user", "content": ""}], [{"role": "system", "content": "x"}], [{"role": "user", "content": "x", "name": "me"}],
                     [{"role": "developer", "content": "x"}, {"role": "user", "content": "x"}],
                     [{"role": "user", "content": [{"type": "text", "text": ""}, {"type": "text", "text": "y"}]}]):
        assert web.chat(messages).text


def test_context_length(web):
    """A prompt that does not fit is refused with both numbers; one that just fits is answered; nothing is cut silently."""
    limit = 2048
    for n in (limit + 1, limit + 100, 5000, 100000):
        error = web.refused("/v1/completions", {"prompt": [5] * n}, "prompt", code="context_length_exceeded")
        numbers = [int(x.replace(",", "")) for x in re.findall(r"\d[\d,]*", error["message"])]
        assert limit in numbers and n in numbers, error
    r = web.complete([5] * (limit - 4), max_tokens=4)
    assert r.json["usage"]["prompt_tokens"] == limit - 4 and r.json["usage"]["completion_tokens"] == 4
    # More than fits may be asked for: the answer ends where the context does, and says so.
    r = web.complete([5] * (limit - 4), max_tokens=1000)
    assert r.json["choices"][0]["finish_reason"] == "length" and r.json["usage"]["completion_tokens"] <= 5
    for words in (3000, 40000):
        for path, body, param in (("/v1/completions", {"prompt": "word " * words}, "prompt"),
                                  ("/v1/completions", {"prompt": ["x", "word " * words]}, "prompt"),
                                  ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * words}]}, "messages"),
                                  ("/v1/embeddings", {"input": ["x", "word " * words]}, "input")):
            for stream in (False, True) if path != "/v1/embeddings" else (None,):
                error = web.refused(path, {**body, "stream": stream} if stream is not None else body, param, code="context_length_exceeded")
                assert str(limit) in error["message"].replace(",", ""), error


def test_more_choices_than_allowed(web_of, bytes_model):
    """What can never be served is wrong; only what may be served later is to be tried again."""
    web, _ = web_of("--model", bytes_model, "--kv-memory", "64M", "--uid-requests", "4")
    for streamed in (False, True):
        for prompt, n, param in (("x", 5, "n"), ("x", 16, "n"), (["x"] * 5, 1, "prompt"), (["x"] * 2, 3, "n"), ([[5]] * 64, 16, "n")):
            error = web.refused("/v1/completions", {"prompt": prompt, "n": n, "stream": streamed}, param)
            assert "4" in error["message"]
        for prompt, n in (("x", 4), (["x"] * 4, 1), (["x", "y"], 2)):
            assert web.ok("/v1/completions", {"prompt": prompt, "n": n, "max_tokens": 2, "stream": streamed})
    web.refused("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "n": 5}, "n")


@pytest.fixture
def web_slow(web_of, letters_model):
    return web_of("--model", letters_model, "--kv-memory", "64M", "--prefill-quantum", "32", env={"KVD_TEST_STEP_DELAY_MS": "40"})


# --- streams -------------------------------------------------------------------------------

def test_streams_come_as_they_are_made(web_slow):
    """Each token is sent when it is made: while chunks arrive, the engine has more to do."""
    web, daemon = web_slow
    n, behind = 60, []
    with daemon.client() as c:
        before = daemon.status()["generated_tokens"]
        body = {"prompt": "slowly", "max_tokens": n, "ignore_eos": True, "temperature": 0, "model": "letters"}
        for i, chunk in enumerate(web.stream("/v1/completions", body)):
            if i in (0, 1, 10, 30):
                behind.append((i, daemon.status()["generated_tokens"] - before))
            n_text = i + 1 if chunk["choices"] and chunk["choices"][0]["text"] else n_text
        assert c
    # It may have gone on while this process slept, but not to the end.
    assert all(made < n for i, made in behind if i < 30), behind
    assert n_text >= n, "one chunk for each token: each is text of its own"


def test_pings_while_nothing_comes(web_slow):
    """During a long prefill a client hears something, and it breaks no event."""
    web, daemon = web_slow
    c, response = web.send("POST", "/v1/completions", {"prompt": [7] * 1600, "max_tokens": 2, "stream": True, "ignore_eos": True})
    lines = response.read().decode().splitlines()
    c.close()
    assert any(line.startswith(": ping") for line in lines)
    assert [line for line in lines if line.startswith("data: ")][-1] == "data: [DONE]"
    daemon.idle()


def test_each_event_is_text(web):
    """No event has a part of a character, a raw control character, or a line of its own."""
    torn = 0
    for seed in range(60 if LONG else 15):
        body = {"prompt": "é世\n\r\u2028", "max_tokens": 60, "temperature": 1.6, "seed": seed, "ignore_eos": True, "model": "bytes", "echo": True}
        c, response = web.send("POST", "/v1/completions", {**body, "stream": True})
        raw = response.read()
        c.close()
        for line in raw.split(b"\n"):
            assert all(byte >= 32 for byte in line.rstrip(b"\r")) and line.decode("utf-8") is not None
        texts = [json.loads(line[6:])["choices"][0]["text"] for line in raw.decode().split("\n")
                 if line.startswith("data: ") and line != "data: [DONE]"]
        assert "".join(texts) == web.ok("/v1/completions", body).text
        torn += "".join(texts).count("\ufffd")
    assert torn
