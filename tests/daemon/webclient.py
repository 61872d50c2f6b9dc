# SPDX-License-Identifier: Apache-2.0
"""A plain HTTP client for tests, over TCP or a Unix socket, by the standard library; and the document's fields."""
import http.client
import json
import pathlib
import socket
import unicodedata

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DOCUMENT = json.loads((ROOT / "daemon/server/openapi.json").read_text(encoding="utf-8"))


class Answer:
    def __init__(self, response, data):
        self.status, self.data = response.status, data
        self.headers = {name.lower(): value for name, value in response.getheaders()}

    @property
    def json(self):
        """Strictly: UTF-8, no NaN, no name twice."""
        def once(pairs):
            assert len(dict(pairs)) == len(pairs), pairs
            return dict(pairs)

        def never(word):
            raise AssertionError(word)
        return json.loads(self.data.decode("utf-8"), object_pairs_hook=once, parse_constant=never)

    @property
    def error(self):
        """The error object, whose form is checked; it can be shown anywhere."""
        assert self.headers["content-type"].startswith("application/json"), self.headers
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"] and error["type"], error
        for text in error.values():
            assert text is None or not any(unicodedata.category(c) == "Cc" for c in text), error
        return error

    @property
    def text(self):
        """Of choice 0."""
        choice = self.json["choices"][0]
        return choice["text"] if "text" in choice else choice["message"]["content"]

    @property
    def cached(self):
        return self.json["usage"]["prompt_tokens_details"]["cached_tokens"]


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Web:
    """To one endpoint; each request has a connection of its own.  fields: what every body has beside its own."""

    def __init__(self, port=None, path=None, headers=None, timeout=360, **fields):
        self.port, self.path, self.headers, self.timeout, self.fields = port, path, headers or {}, timeout, fields

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def connect(self):
        if self.path:
            return UnixConnection(self.path, self.timeout)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout)

    def send(self, method, target, body=None, headers=None):
        """(connection, response) whose body is unread."""
        c = self.connect()
        if isinstance(body, dict):
            body = json.dumps({**self.fields, **body}).encode()
        kind = {"Content-Type": "application/json"} if body is not None else {}
        c.request(method, target, body, {**kind, **self.headers, **(headers or {})})
        return c, c.getresponse()

    def call(self, method, target, body=None, headers=None):
        c, response = self.send(method, target, body, headers)
        try:
            return Answer(response, response.read())
        finally:
            c.close()

    def get(self, target, **kw):
        return self.call("GET", target, **kw)

    def post(self, target, body, **kw):
        return self.call("POST", target, body, **kw)

    def ok(self, target, body):
        r = self.post(target, body)
        assert r.status == 200, r.data
        return r

    def refused(self, target, body, param=None, status=400, code=None):
        r = self.post(target, body)
        assert r.status == status, (r.status, r.data[:500], str(body)[:300])
        if param is not None:
            assert (r.error["param"] or "").startswith(param), (r.error, str(body)[:300])
        assert code is None or r.error["code"] == code, r.error
        return r.error

    def complete(self, prompt, **fields):
        return self.ok("/v1/completions", {"prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True, **fields})

    def chat(self, messages, **fields):
        messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        return self.ok("/v1/chat/completions",
                       {"messages": messages, "max_tokens": 12, "temperature": 0, "ignore_eos": True, **fields})

    def tokenize(self, text, **fields):
        return self.ok("/tokenize", {"content": text, **fields}).json["tokens"]

    def stream(self, target, body):
        """Yields the events' objects as they come; the stream must end as it should."""
        c, response = self.send("POST", target, {**body, "stream": True})
        try:
            assert response.status == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            for data in events(response):
                if data == "[DONE]":
                    assert response.read() == b""
                    return
                yield json.loads(data)
            raise AssertionError("the stream has no end")
        finally:
            c.close()


def events(response):
    """What follows `data: `, of events of one line each; comments are passed over.  All of it is UTF-8."""
    data = None
    for line in iter(response.readline, b""):
        assert line.endswith(b"\n"), line
        line = line.decode("utf-8").rstrip("\r\n")
        if line.startswith("data: "):
            assert data is None, "two lines of data in an event"
            data = line[6:]
        elif not line:
            if data is not None:
                yield data
            data = None
        else:
            assert line.startswith(":"), line


def text_of(chunks, index=0):
    """The text of one choice, put together."""
    text = ""
    for chunk in chunks:
        for c in chunk["choices"]:
            if c["index"] == index:
                text += c["text"] if "text" in c else c["delta"].get("content") or ""
    return text


# --- the document ------------------------------------------------------------------

def resolve(schema):
    while "$ref" in schema:
        schema = DOCUMENT["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def kinds(schema):
    """The alternatives of a schema, each with one type."""
    schema = resolve(schema)
    if "anyOf" in schema:
        return [k for s in schema["anyOf"] for k in kinds(s)]
    types = schema.get("type", [])
    return [{**schema, "type": t} for t in (types if isinstance(types, list) else [types])]


def requests():
    """(path, schema) of each operation that has a body."""
    for path, item in DOCUMENT["paths"].items():
        if "post" in item:
            yield path, resolve(item["post"]["requestBody"]["content"]["application/json"]["schema"])


def places(schema, where=()):
    """(where, alternatives) of every value that a body of this schema can have: names, and 0 in arrays."""
    for name, value in schema.get("properties", {}).items():
        yield from below(value, (*where, name))


def below(schema, where):
    alternatives = kinds(schema)
    yield where, alternatives
    for kind in alternatives:
        if kind["type"] == "object":
            yield from places(kind, where)
            extra = kind.get("additionalProperties")
            if isinstance(extra, dict):
                yield from below(extra, (*where, "5"))      # names that are numbers: token ids
        elif kind["type"] == "array" and kind.get("maxItems", 1):
            yield from below(kind["items"], (*where, 0))
