# SPDX-License-Identifier: Apache-2.0
"""Every field of every request, out of the OpenAPI document: what is not within its limits is refused by its name."""
import json

import pytest
import webclient
from conftest import LONG, SANITIZED

# What is wrong somewhere, as it is written in JSON; NaN and its like are not JSON at all.
NO_JSON = ["NaN", "-NaN", "Infinity", "-Infinity", "nan", "0x10", "1.", ".5", "01", "+1", "1e", "--1", "1_000"]
NUMBERS = ["1e999", "-1e999", "-1", "-0.5", "-1e-7", "1.5", "2147483648", "4294967296", "9007199254740993", "9223372036854775807",
           "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "18446744073709551615", "18446744073709551616",
           "1e19", "1e308", "-1e308", "1" + "0" * 400, "0." + "0" * 400 + "1", "1e-400", "-0"]
OTHERS = ['"1"', '"NaN"', "true", "false", "[]", "{}", '[1]', '{"a": 1}', '"x"', "[[]]", "[null]"]
REQUESTS = dict(webclient.requests())
VALID = {
    "/v1/completions": {"prompt": "x", "max_tokens": 1},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    "/v1/embeddings": {"input": "x"},
    "/tokenize": {"content": "x"},
    "/detokenize": {"tokens": [5]},
}


class Raw:
    """Stands in a body for what is written as it is."""

    def __init__(self, text):
        self.text = text


def written(body):
    """JSON with Raw values."""
    raws = []

    def replace(value):
        raws.append(value.text)
        return f"\0{len(raws) - 1}\0"
    text = json.dumps(body, default=replace)
    for i, raw in enumerate(raws):
        text = text.replace(f'"\\u0000{i}\\u0000"', raw)
    return text.encode("utf-8", "surrogatepass")


def put(value, where, raw):
    """A copy of a body with raw at the place; what is missing on the way there is made."""
    if not where:
        return Raw(raw)
    if where[0] == 0:
        return [put(value[0] if isinstance(value, list) and value else None, where[1:], raw)]
    value = dict(value) if isinstance(value, dict) else {}
    if where[0] == "cache_control" and len(where) > 1:
        value.setdefault(where[0], {"type": "ephemeral"})
    if where[0] == "top_logprobs":
        value["logprobs"] = True
    if where[0] == "stream_options":
        value["stream"] = True
    value[where[0]] = put(value.get(where[0]), where[1:], raw)
    return value


def param_of(where):
    return where[0] + "".join(f"[{x}]" if x == 0 else f".{x}" for x in where[1:])


def fits(number, kind):
    """Whether the literal is within a schema of a number."""
    try:
        x = int(number)
    except ValueError:
        x = float(number)
        if x != x or x in (float("inf"), float("-inf")):
            return False
        if kind["type"] == "integer":
            if not x.is_integer():
                return False
            x = int(x)
    return not (x < kind.get("minimum", x) or x > kind.get("maximum", x) or x <= kind.get("exclusiveMinimum", x - 1))


def find_places():
    """[(path, where, alternatives)], each place once."""
    found = {}
    for path, schema in REQUESTS.items():
        for where, alternatives in webclient.places(schema):
            found.setdefault((path, where), []).extend(alternatives)
    return [(path, where, alternatives) for (path, where), alternatives in found.items()]


PLACES = find_places()


def test_places_are_found():
    found = {(path, param_of(where)) for path, where, _ in PLACES}
    for place in (("/v1/completions", "temperature"), ("/v1/chat/completions", "cache_control.ttl"), ("/detokenize", "tokens[0]"),
                  ("/v1/completions", "prompt[0][0]"), ("/v1/chat/completions", "messages[0].content[0].text"),
                  ("/v1/completions", "logit_bias.5"), ("/v1/completions", "stream_options.include_usage")):
        assert place in found, place


@pytest.mark.parametrize("path", REQUESTS)
def test_numbers(web, path):
    """In each place of a number."""
    for op, where, alternatives in PLACES:
        numeric = [k for k in alternatives if k["type"] in ("integer", "number")]
        if op != path or not numeric:
            continue
        for literal in NUMBERS:
            r = web.post(path, written(put(VALID[path], where, literal)))
            if any(fits(literal, k) for k in numeric):
                # What else is wrong with it, such as an id that the vocabulary has not, is told as well.
                assert r.status in (200, 400), (where, literal, r.data)
            else:
                assert r.status == 400 and (r.error["param"] or "").startswith(where[0]), (where, literal, r.status, r.data)
        for literal in NO_JSON:
            assert web.post(path, written(put(VALID[path], where, literal))).status == 400, (where, literal)
    assert web.ok(path, VALID[path])


@pytest.mark.parametrize("path", REQUESTS)
def test_types(web, path):
    """A value of a type that the field has not, in each place."""
    names = {str: "string", bool: "boolean", list: "array", dict: "object", int: "number"}
    for op, where, alternatives in PLACES:
        if op != path:
            continue
        types = {k["type"] for k in alternatives} | ({"number"} if any(k["type"] == "integer" for k in alternatives) else set())
        for literal in ["1", *OTHERS]:
            if names[type(json.loads(literal))] in types:
                continue
            r = web.post(path, written(put(VALID[path], where, literal)))
            assert r.status == 400 and (r.error["param"] or "").startswith(where[0]), (where, literal, r.status, r.data)
        if "null" in types:
            r = web.post(path, written(put(VALID[path], where, "null")))
            assert r.status == 200, (where, r.data)
        else:
            assert web.post(path, written(put(VALID[path], where, "null"))).status == 400, where


@pytest.mark.parametrize("path", REQUESTS)
def test_lengths_and_choices(web, path):
    """Strings and arrays just within and just beyond their limits; words that are none of the list."""
    for op, where, alternatives in PLACES:
        if op != path:
            continue
        for k in alternatives:
            if k["type"] == "string" and "maxLength" in k:
                web.refused(path, written(put(VALID[path], where, json.dumps("x" * (k["maxLength"] + 1)))), where[0])
            if k["type"] == "string" and k.get("minLength"):
                web.refused(path, written(put(VALID[path], where, '""')), where[0])
            if k["type"] == "string" and ("enum" in k or "const" in k):
                web.refused(path, written(put(VALID[path], where, '"no such word"')), where[0])
            if k["type"] == "array" and k.get("minItems") and "null" not in [x["type"] for x in alternatives]:
                web.refused(path, written(put(VALID[path], where, "[]")), where[0])
            if k["type"] == "array" and 0 < k.get("maxItems", 0) < 5000:
                item = '"x"' if webclient.kinds(k["items"])[0]["type"] == "string" else "[5]"
                if where[0] == "messages":
                    item = '{"role": "user", "content": "x"}' if len(where) == 1 else '{"type": "text", "text": "x"}'
                many = "[" + ",".join([item] * (k["maxItems"] + 1)) + "]"
                web.refused(path, written(put(VALID[path], where, many)), where[0])


@pytest.mark.parametrize("path", REQUESTS)
def test_names(web, path):
    """Unknown ones, and ones that are there twice, wherever there is an object that says which it has."""
    objects = [()] + [w for op, w, alternatives in PLACES
                      if op == path and any(k["type"] == "object" and k.get("additionalProperties") is False for k in alternatives)]
    for where in objects:
        for name in ("no_such_field", "Temperature", "", "é", "a\u0000b", "x" * 5000, "__proto__", "\u202e"):
            body = put(VALID[path], (*where, name), "1")
            web.refused(path, written(body))
    for name, value in VALID[path].items():
        twice = json.dumps(VALID[path])[:-1] + f", {json.dumps(name)}: {json.dumps(value)}}}"
        web.refused(path, twice.encode(), name)


def test_unsupported(web):
    """What can't be done here is refused by name, also where it makes no sense; never ignored."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    chat = {
        "tools": [[tool], [{}], "x"], "tool_choice": ["auto", "required", {"type": "function", "function": {"name": "f"}}],
        "functions": [[{"name": "f"}]], "function_call": ["auto", {"name": "f"}], "parallel_tool_calls": [True],
        "response_format": [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 5}}},
                            {"type": "grammar"}, {}, {"type": None}, "text"],
        "grammar": ["root ::= \"a\"", "root ::= (", ""], "json_schema": [{}, {"type": "nonsense"}, "x"],
        "lora": [[{"id": 0, "scale": 1}]], "adapter": ["x"], "guided_json": ["{"], "guided_regex": ["("],
        "structured_outputs": [{"regex": "("}],
        "modalities": [["audio"], ["text", "audio"], []], "audio": [{"voice": "alloy", "format": "wav"}],
        "prediction": [{"type": "content", "content": "x"}], "reasoning_effort": ["high"], "store": [True],
        "service_tier": ["flex", "priority"], "web_search_options": [{}], "best_of": [2],
    }
    completions = {"suffix": ["x"], "best_of": [3], "grammar": ["("], "json_schema": [{}], "response_format": [{"type": "json_object"}],
                   "tools": [[tool]], "lora": [[1]], "mirostat": [2], "infill": [1]}
    for path, all_fields in (("/v1/chat/completions", chat), ("/v1/completions", completions)):
        for name, values in all_fields.items():
            for value in values:
                web.refused(path, {**VALID[path], name: value}, name)
    for content in ([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}],
                    [{"type": "text", "text": "x"}, {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}],
                    [{"type": "file", "file": {"file_id": "x"}}], [{"type": "refusal", "refusal": "x"}]):
        web.refused("/v1/chat/completions", {"messages": [{"role": "user", "content": content}]}, "messages[0].content")
    for message in ({"role": "tool", "content": "x", "tool_call_id": "y"}, {"role": "function", "name": "f", "content": "x"},
                    {"role": "assistant", "content": None, "tool_calls": [{"id": "x", "type": "function"}]},
                    {"role": "assistant", "content": "x", "tool_calls": [{"id": "x"}]}):
        web.refused("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}, message]}, "messages[1]")


# --- JSON itself ----------------------------------------------------------------------

@pytest.mark.parametrize("path", REQUESTS)
def test_no_json(web, path):
    whole = json.dumps(VALID[path]).encode()
    for cut in range(len(whole)):
        web.refused(path, whole[:cut])
    for body in (b"", b" ", b"null", b"1", b'"x"', b"[]", b"[" + whole + b"]", whole + b"x", whole + whole, whole + b"\0", b"\xef\xbb\xbf" + whole,
                 whole.replace(b'"', b"'"), b"// x\n" + whole, whole[:-1] + b",}", whole.replace(b":", b"="), b"\xff" + whole,
                 whole.decode().encode("utf-16"), whole.decode().encode("utf-32-le"), b"\0" * 100, b"x" * 100000, b"[" * 1000000):
        web.refused(path, body)
    assert web.post(path, b" \t\r\n" + whole + b"\n\n").status == 200


@pytest.mark.parametrize("path", REQUESTS)
def test_deep(web, path):
    """Ten thousand arrays and objects inside each other, closed or not, in every field."""
    n = 10000
    deep = ["[" * n + "]" * n, '{"a":' * n + "1" + "}" * n, "[" * n, '[{"a":' * (n // 2), "[" * n + "]" * (n - 1), '{"":[' * n + "]}" * n]
    for text in deep:
        web.refused(path, text.encode())
    fields = list(REQUESTS[path]["properties"]) + ["no_such_field"]
    for name in fields[::4 if SANITIZED else 1]:
        for text in deep:
            web.refused(path, written({**VALID[path], name: Raw(text)}))
    if LONG:
        web.refused(path, b"[" * 30000000)


@pytest.mark.parametrize("path", REQUESTS)
def test_invalid_utf8(web, path):
    """In names and values; the refusal is well-formed."""
    bad = [b"\xff", b"\xc3", b"\xe2\x82", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf", b"\xf8\x88\x80\x80\x80", b"a\x80", b"\xed\xbf\xbf"]
    for raw in bad:
        for template in (b'{"model": "@"}', b'{"@": 1}', b'{"user": "@", "stop": ["@"]}', b'{"content": "@", "prompt": "@", "input": "@"}',
                         b'{"messages": [{"role": "user", "content": "@"}]}', b'{"messages": [{"role": "@", "content": "x"}]}', b"@"):
            web.refused(path, template.replace(b"@", raw))
    for escape in (r"\ud800", r"\udc00", r"\ud800\ud800", r"\udc00\ud800", r"\ud83dx", r"\u12", r"\x41", r"\u00g0", "\\"):
        web.refused(path, ('{"model": "%s"}' % escape).encode())
        web.refused(path, ('{"%s": 1}' % escape).encode())
    # Control characters must be written as escapes.
    for byte in (0, 1, 8, 9, 10, 13, 31):
        web.refused(path, b'{"model": "a%cb"}' % byte)


def test_invalid_utf8_elsewhere(web):
    """In paths and headers."""
    for target in ("/v1/models/%ff%fe", "/v1/models/%00", "/%c3%28", "/v1/models/a%0d%0aX:%20y", "/v1/models/%e2%80%ae"):
        r = web.get(target)
        assert r.status in (400, 404), target
        assert r.error
    r = web.get("/v1/models", headers={"X-Thing": "\xff\xfe", "User-Agent": "\xe2\x82"})
    assert r.status in (200, 400)
    assert web.get("/v1/models").json["data"]
