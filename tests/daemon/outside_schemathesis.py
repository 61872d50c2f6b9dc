# SPDX-License-Identifier: Apache-2.0
"""
Hooks of schemathesis (SCHEMATHESIS_HOOKS): which refusals of a request that fits the schemas are right all the same.
A JSON Schema does not say these; everything else is a broken contract.
"""
import re

import schemathesis
from schemathesis.openapi.checks import RejectedPositiveData

# Limits in bytes of UTF-8, where a schema counts characters.
BYTES = {"stop": 256, "prompt_cache_key": 64, "model": 127}


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def is_not_of_the_assistant(param, body):
    """What only messages of the assistant have."""
    found = re.fullmatch(r"messages\[(\d+)\]\.token_ids", param)
    return bool(found) and body["messages"][int(found[1])]["role"] != "assistant"


def is_right(error, body):
    """Why it was refused, if that was right."""
    param = error["param"] or ""
    field = param.split("[")[0].split(".")[0]
    value = body.get(field) if isinstance(body, dict) else None
    return any((
        error["code"] == "context_length_exceeded",
        error["code"] == "deadline_exceeded" and body.get("timeout"),
        # One field needs another.
        field == "top_logprobs" and not body.get("logprobs"),
        field == "stream_options" and not body.get("stream"),
        field == "best_of" and body.get("n", 1) != value,
        is_not_of_the_assistant(param, body),
        field in BYTES and any(len(s.encode("utf-8", "surrogatepass")) > BYTES[field] or "\0" in s for s in strings(value)),
    ))


@schemathesis.hook
def filter_failure(context, failure, case, response):
    if not isinstance(failure, RejectedPositiveData) or response.status_code not in (400, 408):
        return True
    return not is_right(response.json()["error"], case.body)
