# SPDX-License-Identifier: Apache-2.0
"""What the official openai package gets from the daemon; test_http_openai.py runs this in a process that has it.

    outside_openai.py SETTINGS      (JSON: url, model, letters, slow_url, busy_url, keys_url, key)

Prints one line of JSON for each check_*: its name, and what went wrong. model is a tiny one; letters another one that
says printable ASCII only.
"""
import asyncio
import base64
import inspect
import json
import math
import struct
import sys
import traceback
import urllib.request

import openai

GREEDY = {"temperature": 0, "extra_body": {"ignore_eos": True}}


class Setting:
    def __init__(self, fields):
        self.__dict__.update(fields)
        self.client = self.at(self.url)

    @staticmethod
    def at(url, key="none", **options):
        return openai.OpenAI(base_url=url, api_key=key, **{"max_retries": 0, "timeout": 120, **options})

    def tokenize(self, text, **fields):
        """Not part of OpenAI's interface."""
        body = json.dumps({"model": self.model, "content": text, **fields}).encode()
        with urllib.request.urlopen(self.url.removesuffix("/v1") + "/tokenize", body, 120) as r:
            return json.load(r)["tokens"]

    def complete(self, prompt, **fields):
        return self.client.completions.create(**{"model": self.model, "prompt": prompt, "max_tokens": 12, **GREEDY, **fields})

    def chat(self, content, **fields):
        return self.client.chat.completions.create(**{
            "model": self.model, "messages": [{"role": "user", "content": content}], "max_tokens": 12, **GREEDY, **fields})


def refused(error, call, *args, param=None, code=None, **fields):
    """The exception that it must be."""
    try:
        call(*args, **fields)
    except error as e:
        assert type(e) is error, repr(e)
        assert param is None or e.param == param, (e.param, str(e))
        assert code is None or e.code == code, (e.code, str(e))
        assert e.body["message"] and e.type
        return e
    raise AssertionError(f"not refused: {fields}")


def drawn(seed):
    return {"temperature": 1.6, "seed": seed, "extra_body": {"ignore_eos": True}}


# --- completions -----------------------------------------------------------------

def check_completion(s):
    r = s.complete("Once upon a time")
    assert r.object == "text_completion" and r.model == s.model and r.id and r.created > 0
    assert [c.index for c in r.choices] == [0] and r.choices[0].text and r.choices[0].finish_reason == "length"
    u = r.usage
    assert u.prompt_tokens > 0 and u.completion_tokens == 12 and u.total_tokens == u.prompt_tokens + 12
    assert u.prompt_tokens_details.cached_tokens == 0
    again = s.complete("Once upon a time")
    assert again.choices[0].text == r.choices[0].text
    # A short prompt is less than a block.
    assert again.usage.prompt_tokens_details.cached_tokens <= u.prompt_tokens - 1
    assert again.system_fingerprint == r.system_fingerprint


def check_completion_default_length(s):
    r = s.client.completions.create(model=s.model, prompt="x", extra_body={"ignore_eos": True})
    assert r.usage.completion_tokens == 16


def check_completion_streamed(s):
    for seed in range(20):
        want = s.complete("é世", **drawn(seed)).choices[0].text
        got = [c for c in s.complete("é世", stream=True, **drawn(seed))]
        assert "".join(c.choices[0].text for c in got) == want, seed
        assert [c.choices[0].finish_reason for c in got][-1] == "length"
        assert all(c.choices[0].finish_reason is None for c in got[:-1]) and len({c.id for c in got}) == 1
        assert all(c.usage is None for c in got)


def check_completion_n(s):
    for seed in (1, 2):
        one = s.complete("many", **drawn(seed)).choices[0].text
        r = s.complete("many", n=4, **drawn(seed))
        assert [c.index for c in r.choices] == [0, 1, 2, 3] and r.choices[0].text == one
        assert len({c.text for c in r.choices}) > 1, "each choice has a seed of its own"
        assert r.usage.completion_tokens == 48
        texts, ends = [""] * 4, [0] * 4
        for chunk in s.complete("many", n=4, stream=True, **drawn(seed)):
            for c in chunk.choices:
                texts[c.index] += c.text
                ends[c.index] += c.finish_reason is not None
        assert texts == [c.text for c in r.choices] and ends == [1] * 4


def check_completion_prompts(s):
    """Several prompts, as text and as ids; choices of prompt i begin at i * n."""
    prompts = ["alpha beta", "gamma", "delta epsilon zeta"]
    alone = [s.complete(p).choices[0].text for p in prompts]
    r = s.complete(prompts, n=2)
    assert [c.index for c in r.choices] == list(range(6))
    assert [c.text for c in r.choices] == [t for t in alone for _ in range(2)]
    ids = [s.tokenize(p, add_special=True) for p in prompts]
    assert [c.text for c in s.complete(ids).choices] == alone
    assert s.complete(ids[0]).choices[0].text == alone[0]


def check_completion_stop(s):
    text = s.complete("stop here", model=s.letters, max_tokens=60).choices[0].text
    for length in (1, 2, 3, 5):
        stop = text[20:20 + length]
        for stream in (False, True):
            r = s.complete("stop here", model=s.letters, max_tokens=60, stop=["never in it", stop], stream=stream)
            choices = [c.choices[0] for c in r] if stream else [r.choices[0]]
            assert "".join(c.text for c in choices) == text[:text.index(stop)], (stop, stream)
            assert choices[-1].finish_reason == "stop"
    r = s.complete("stop here", model=s.letters, max_tokens=60, stop=text[20:30] + "\x01")
    assert r.choices[0].text == text and r.choices[0].finish_reason == "length"


def check_completion_logprobs(s):
    r = s.complete("log", model=s.letters, logprobs=3, max_tokens=20).choices[0]
    p = r.logprobs
    assert len(p.tokens) == len(p.token_logprobs) == len(p.top_logprobs) == len(p.text_offset) == 20
    assert "".join(p.tokens) == r.text and all(x <= 0 for x in p.token_logprobs)
    for token, logprob, top, offset in zip(p.tokens, p.token_logprobs, p.top_logprobs, p.text_offset):
        assert 1 <= len(top) <= 4 and abs(top[token] - logprob) < 1e-6 and max(top.values()) == top[token]
        assert r.text[offset:offset + len(token)] == token
    streamed = [c.choices[0] for c in s.complete("log", model=s.letters, logprobs=3, max_tokens=20, stream=True)]
    assert sum((c.logprobs.tokens for c in streamed if c.logprobs), []) == p.tokens
    assert sum((c.logprobs.token_logprobs for c in streamed if c.logprobs), []) == p.token_logprobs
    assert sum((c.logprobs.text_offset for c in streamed if c.logprobs), []) == p.text_offset


def check_completion_echo(s):
    prompt = "The quick brown fox"
    plain = s.complete(prompt, model=s.letters).choices[0].text
    r = s.complete(prompt, model=s.letters, echo=True, logprobs=2).choices[0]
    assert r.text == prompt + plain
    p = r.logprobs
    assert "".join(p.tokens) == r.text and p.token_logprobs[0] is None and p.top_logprobs[0] is None
    assert all(x <= 0 for x in p.token_logprobs[1:]) and p.text_offset == sorted(p.text_offset)
    assert all(len(top) in (2, 3) for top in p.top_logprobs[1:])
    only = s.complete(prompt, model=s.letters, echo=True, logprobs=2, max_tokens=0).choices[0]
    assert only.text == prompt and only.logprobs.token_logprobs == p.token_logprobs[:len(only.logprobs.tokens)]
    streamed = [c.choices[0] for c in s.complete(prompt, model=s.letters, echo=True, stream=True)]
    assert "".join(c.text for c in streamed) == prompt + plain


def check_completion_max_tokens_0(s):
    prompt = "prewarm " * 60
    r = s.complete(prompt, max_tokens=0)
    assert r.choices[0].text == "" and r.choices[0].finish_reason == "length" and r.usage.completion_tokens == 0
    warm = s.complete(prompt, max_tokens=1).usage
    assert warm.prompt_tokens_details.cached_tokens > warm.prompt_tokens * 0.8, warm


def check_completion_bias(s):
    tokens = s.complete("bias", logprobs=0).choices[0].logprobs.tokens
    assert tokens
    ids = s.tokenize(tokens[0])
    if len(ids) == 1:
        banned = s.complete("bias", logprobs=0, logit_bias={str(ids[0]): -100}).choices[0].logprobs.tokens
        assert tokens[0] not in banned
    forced = s.complete("bias", logit_bias={"70": 100}, logprobs=0).choices[0].logprobs.tokens
    assert len(set(forced)) == 1


def check_completion_penalties(s):
    """Eight tokens are likely: the penalties even them out."""
    def said(**fields):
        r = s.complete("x", max_tokens=64, logprobs=0, logit_bias={str(i): 60 for i in range(70, 78)},
                       **{**drawn(3), "temperature": 1}, **fields)
        return r.choices[0].logprobs.tokens
    plain = said()
    assert len(set(plain)) <= 8
    often = max(plain.count(t) for t in plain)
    assert said(presence_penalty=0, frequency_penalty=0) == plain and said(presence_penalty=2) != plain
    evened = said(frequency_penalty=2)
    assert max(evened.count(t) for t in evened) < often, (plain, evened)


# --- chat ------------------------------------------------------------------------

def check_chat(s):
    r = s.chat("Hello")
    assert r.object == "chat.completion" and r.choices[0].message.role == "assistant"
    assert r.choices[0].message.content and r.choices[0].finish_reason == "length"
    assert r.usage.completion_tokens == 12 and r.usage.prompt_tokens_details.cached_tokens == 0
    parts = s.chat([{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}])
    assert parts.choices[0].message.content == r.choices[0].message.content
    again = s.chat("Hello", max_tokens=openai.NOT_GIVEN, max_completion_tokens=12)
    assert again.choices[0].message.content == r.choices[0].message.content
    assert again.usage.prompt_tokens_details.cached_tokens > 0


def check_chat_conversation(s):
    messages = [{"role": "system", "content": "Be brief."}]
    cached = 0
    for turn in range(4):
        messages.append({"role": "user", "content": f"Question {turn} " + "and more of it " * 8})
        r = s.chat("", messages=messages)
        assert r.usage.prompt_tokens_details.cached_tokens >= cached, "the turns before are there"
        cached = r.usage.prompt_tokens // 2
        messages.append({"role": "assistant", "content": r.choices[0].message.content})


def check_chat_streamed(s):
    for seed in range(20):
        want = s.chat("é世", **drawn(seed)).choices[0].message.content
        got = list(s.chat("é世", stream=True, **drawn(seed)))
        assert got[0].choices[0].delta.role == "assistant" and got[0].object == "chat.completion.chunk"
        assert "".join(c.choices[0].delta.content or "" for c in got) == want, seed
        assert got[-1].choices[0].finish_reason == "length" and all(c.usage is None for c in got)


def check_chat_usage_chunk(s):
    got = list(s.chat("usage", stream=True, stream_options={"include_usage": True}))
    assert got[-1].choices == [] and got[-1].usage.completion_tokens == 12
    assert got[-1].usage.prompt_tokens_details.cached_tokens >= 0
    assert all(c.usage is None and c.choices for c in got[:-1])
    text = list(s.complete("usage", stream=True, stream_options={"include_usage": True}))
    assert text[-1].choices == [] and text[-1].usage.completion_tokens == 12 and all(c.choices for c in text[:-1])


def check_chat_n(s):
    r = s.chat("many", n=3, **drawn(5))
    assert [c.index for c in r.choices] == [0, 1, 2]
    assert r.choices[0].message.content == s.chat("many", **drawn(5)).choices[0].message.content
    texts = [""] * 3
    for chunk in s.chat("many", n=3, stream=True, **drawn(5)):
        for c in chunk.choices:
            texts[c.index] += c.delta.content or ""
    assert texts == [c.message.content for c in r.choices]


def check_chat_logprobs(s):
    """bytes are the token's own, also where they are no characters."""
    torn = 0
    for seed in range(10):
        r = s.chat("é世", logprobs=True, top_logprobs=5, max_tokens=30, **drawn(seed)).choices[0]
        content = r.logprobs.content
        assert len(content) == 30
        raw = b"".join(bytes(t.bytes) for t in content)
        assert raw.decode(errors="replace") == r.message.content
        for t in content:
            assert len(t.top_logprobs) == 5 and t.logprob <= t.top_logprobs[0].logprob <= 0
            assert bytes(t.bytes).decode(errors="replace") == t.token
            torn += "\ufffd" in t.token
    assert torn, "no token was part of a character: the test shows nothing"
    streamed = [c.choices[0] for c in s.chat("é世", logprobs=True, top_logprobs=5, max_tokens=30, stream=True, **drawn(9))]
    assert [t.bytes for c in streamed if c.logprobs for t in c.logprobs.content] == [t.bytes for t in content]
    assert r.logprobs.content == s.chat("é世", logprobs=True, top_logprobs=5, max_tokens=30, **drawn(9)).choices[0].logprobs.content


def check_chat_seed(s):
    texts = {s.chat("seed", temperature=1.5, seed=i, extra_body={"ignore_eos": True}).choices[0].message.content
             for i in (1, 2, 3, -1, 2**63 - 1, -2**63)}
    assert len(texts) == 6
    assert len({s.chat("seed", temperature=1.5).choices[0].message.content for _ in range(3)}) > 1, "drawn at random"


def check_chat_stream_helper(s):
    """The package's own accumulator of events, which wants answers that ended by themselves."""
    text = s.chat("Hello", model=s.letters, max_tokens=40).choices[0].message.content
    with s.client.chat.completions.stream(model=s.letters, messages=[{"role": "user", "content": "Hello"}], max_tokens=40,
                                          stop=[text[30:34]], **GREEDY) as stream:
        deltas = [e.delta for e in stream if e.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content == text[:text.index(text[30:34])]


def check_raw_response(s):
    raw = s.client.chat.completions.with_raw_response.create(
        model=s.model, messages=[{"role": "user", "content": "Hello"}], max_tokens=4)
    assert raw.status_code == 200 and raw.headers["content-type"].startswith("application/json")
    assert raw.parse().usage.completion_tokens <= 4
    with s.client.chat.completions.with_streaming_response.create(
            model=s.model, messages=[{"role": "user", "content": "Hello"}], max_tokens=4, stream=True) as r:
        assert r.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in r.iter_lines() if line and not line.startswith(":")]
    assert lines[-1] == "data: [DONE]" and all(line.startswith("data: ") for line in lines)


# --- what is refused ---------------------------------------------------------------

def check_bad_request(s):
    error = openai.BadRequestError
    for fields, param in (({"temperature": -1}, "temperature"), ({"top_p": 1.5}, "top_p"), ({"n": 0}, "n"),
                          ({"max_tokens": -1}, "max_tokens"), ({"presence_penalty": 3}, "presence_penalty"),
                          ({"stop": [""]}, "stop"), ({"extra_body": {"min_p": 2}}, "min_p"),
                          ({"extra_body": {"no_such_field": 1}}, "no_such_field")):
        e = refused(error, s.chat, "x", **fields)
        assert e.param.startswith(param) and e.type == "invalid_request_error", (fields, e.param)
    refused(error, s.chat, "x", messages=[], param="messages")
    refused(error, s.chat, "x", messages=[{"role": "nobody", "content": "x"}], param="messages[0].role")
    refused(error, s.chat, "x", messages=[{"role": "user", "content": None}], param="messages[0].content")


def check_unsupported(s):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    refused(openai.BadRequestError, s.chat, "x", tools=[tool], param="tools")
    refused(openai.BadRequestError, s.chat, "x", tool_choice="required", param="tool_choice")
    refused(openai.BadRequestError, s.chat, "x", functions=[tool["function"]], param="functions")
    for kind in ({"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}):
        e = refused(openai.BadRequestError, s.chat, "x", response_format=kind)
        assert e.param.startswith("response_format")
    e = refused(openai.BadRequestError, s.chat, [{"type": "image_url", "image_url": {"url": "http://x/"}}])
    assert e.param.startswith("messages[0].content")
    refused(openai.BadRequestError, s.complete, "x", suffix="y", param="suffix")
    for field in ("grammar", "json_schema", "guided_json", "lora"):
        refused(openai.BadRequestError, s.chat, "x", extra_body={field: "x"}, param=field)


def check_context_length(s):
    e = refused(openai.BadRequestError, s.complete, "word " * 3000, code="context_length_exceeded")
    numbers = [int(w) for w in "".join(c if c.isdigit() else " " for c in str(e.body["message"])).split()]
    assert 2048 in numbers and max(numbers) > 2048, e.body
    refused(openai.BadRequestError, s.chat, "word " * 3000, code="context_length_exceeded")


def check_not_found(s):
    refused(openai.NotFoundError, s.chat, "x", model="no-such-model", code="model_not_found")
    refused(openai.NotFoundError, s.complete, "x", model="../../etc/passwd", code="model_not_found")
    refused(openai.NotFoundError, s.client.models.retrieve, "no-such-model")
    try:
        s.client.responses.create(model=s.model, input="x")
    except openai.NotFoundError:
        return
    raise AssertionError("there is a path /v1/responses")


def check_authentication(s):
    for key in ("wrong", s.key[:-1], s.key + "x"):
        refused(openai.AuthenticationError, s.at(s.keys_url, key).models.list)
    client = s.at(s.keys_url, s.key)
    assert [m.id for m in client.models.list()]
    assert client.completions.create(model=s.model, prompt="x", max_tokens=2).choices[0].text is not None


def check_rate_limit(s):
    """More than may queue: some are refused, with the time to wait; who waits gets an answer."""
    async def many():
        async with openai.AsyncOpenAI(base_url=s.busy_url, api_key="none", max_retries=0, timeout=120) as client:
            calls = [client.completions.create(model=s.model, prompt=f"prompt {i}", max_tokens=30, **GREEDY) for i in range(12)]
            return await asyncio.gather(*calls, return_exceptions=True)
    answers = asyncio.run(many())
    limited = [a for a in answers if isinstance(a, openai.RateLimitError)]
    assert limited and all(int(a.response.headers["retry-after"]) >= 1 and a.type == "rate_limit_error" for a in limited)
    served = [a for a in answers if not isinstance(a, Exception)]
    assert served and len(served) + len(limited) == 12, [a for a in answers if isinstance(a, Exception)]
    assert s.at(s.busy_url, max_retries=5).completions.create(model=s.model, prompt="x", max_tokens=2).choices


# --- the rest -----------------------------------------------------------------------

def check_models(s):
    models = s.client.models.list()
    assert {s.model, s.letters} <= {m.id for m in models} and all(m.object == "model" for m in models)
    assert s.client.models.retrieve(s.model).id == s.model


def check_embeddings(s):
    texts = ["The quick brown fox", "jumps over", "the lazy dog"]
    r = s.client.embeddings.create(model=s.model, input=texts)      # as base64, which the package decodes
    assert r.object == "list" and [d.index for d in r.data] == [0, 1, 2] and r.usage.prompt_tokens > 3
    assert r.usage.total_tokens == r.usage.prompt_tokens
    floats = s.client.embeddings.create(model=s.model, input=texts, encoding_format="float")
    coded = s.client.embeddings.create(model=s.model, input=texts, encoding_format="base64")
    for a, b, c in zip(r.data, floats.data, coded.data):
        assert abs(math.sqrt(sum(x * x for x in a.embedding)) - 1) < 1e-4
        assert struct.pack(f"{len(a.embedding)}f", *a.embedding) == struct.pack(f"{len(b.embedding)}f", *b.embedding)
        raw = base64.b64decode(c.embedding) if isinstance(c.embedding, str) else None
        assert raw is None or raw == struct.pack(f"<{len(a.embedding)}f", *a.embedding)
    assert s.client.embeddings.create(model=s.model, input=texts[0]).data[0].embedding == r.data[0].embedding
    refused(openai.BadRequestError, s.client.embeddings.create, model=s.model, input="", param="input")
    refused(openai.BadRequestError, s.client.embeddings.create, model=s.model, input="x", dimensions=3, param="dimensions")


def check_cancel_by_close(s):
    """test_http_openai.py counts what the daemon has cancelled: three here, three below."""
    client = s.at(s.slow_url)
    for call in (lambda: client.completions.create(model=s.model, prompt="on and on", max_tokens=2000, stream=True, **GREEDY),
                 lambda: client.chat.completions.create(model=s.model, messages=[{"role": "user", "content": "x"}],
                                                        max_tokens=1900, stream=True, **GREEDY)):
        stream = call()
        assert len([next(stream) for _ in range(3)]) == 3
        stream.close()
    with client.completions.create(model=s.model, prompt="on and on", max_tokens=2000, stream=True, **GREEDY) as stream:
        next(stream)


def check_cancel_by_timeout(s):
    for i in range(3):
        try:
            s.at(s.slow_url, timeout=1.0).completions.create(model=s.model, prompt=f"{i} word " * 200, max_tokens=1000, **GREEDY)
        except openai.APITimeoutError:
            continue
        raise AssertionError("no time-out")


async def check_async_streams(s):
    """Sixteen at once: each gets what it gets alone."""
    prompts = [f"stream number {i} " * (i % 5 + 1) for i in range(16)]
    alone = [s.complete(p, max_tokens=40, **drawn(i)).choices[0].text for i, p in enumerate(prompts)]

    async def one(client, i):
        stream = await client.completions.create(model=s.model, prompt=prompts[i], max_tokens=40, stream=True, **drawn(i))
        return "".join([c.choices[0].text async for c in stream])

    async with openai.AsyncOpenAI(base_url=s.url, api_key="none", max_retries=0, timeout=120) as client:
        for _ in range(2):
            assert await asyncio.gather(*(one(client, i) for i in range(16))) == alone


def main():
    s = Setting(json.loads(sys.argv[1]))
    for name, check in list(globals().items()):
        if not name.startswith("check_"):
            continue
        wrong = None
        try:
            if inspect.iscoroutinefunction(check):
                asyncio.run(check(s))
            else:
                check(s)
        except Exception:       # pylint: disable=broad-except
            wrong = traceback.format_exc()
        print(json.dumps({"name": name, "wrong": wrong}), flush=True)


main()
