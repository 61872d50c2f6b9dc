# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document against the code: it is valid, it has each route and no other, and the daemon keeps to it."""
import json
import re

import outside
import webclient
from conftest import LONG, ROOT, SANITIZED, make_tiny

DOCUMENT = ROOT / "daemon/server/openapi.json"


def test_document_is_valid(packages):
    outside.run(packages, "-m", "openapi_spec_validator", "--schema", "3.1", DOCUMENT)


def test_references_resolve_and_are_used():
    """Nothing in components is left over."""
    text = DOCUMENT.read_text(encoding="utf-8")
    doc = webclient.DOCUMENT
    used = set(re.findall(r'"#/components/(\w+/\w+)"', text))
    there = {f"{kind}/{name}" for kind in ("schemas", "responses") for name in doc["components"][kind]}
    assert used == there


def test_routes_are_those_of_the_code():
    source = (ROOT / "daemon/server/http-route.c").read_text(encoding="utf-8")
    rows = {(method, path) for method, path in re.findall(r'\{\s*"([A-Z]+)",\s*"(/[^"]*)"', source)}
    assert len(rows) > 3, "http-route.c has its table written another way"
    doc = {(method.upper(), re.sub(r"\{\w+\}$", "", path)) for path, item in webclient.DOCUMENT["paths"].items() for method in item}
    assert rows == doc


def test_document_is_served(web):
    assert web.get("/openapi.json").json == webclient.DOCUMENT


# --- schemathesis ----------------------------------------------------------------------

# Not among its checks: what it can't know. positive_data_acceptance has its exceptions in outside_schemathesis.py.
LEFT_OUT = [
    "use_after_free", "ensure_resource_availability", "object_level_authorization",     # nothing is made or deleted here
]
N_VOCAB, N_EMBD = 512, 64


def for_model():
    """The document, with what depends on the model filled in: names, ids, the size of vectors."""
    doc = json.loads(json.dumps(webclient.DOCUMENT))
    schemas = doc["components"]["schemas"]
    schemas["TokenId"]["maximum"] = N_VOCAB - 1
    schemas["Model"]["enum"] = ["tiny", "", None]
    schemas["LogitBias"]["propertyNames"]["pattern"] = "^([0-9]|[1-9][0-9]|[1-4][0-9][0-9]|50[0-9]|51[01])$"
    schemas["EmbeddingsRequest"]["properties"]["dimensions"] = {"type": ["integer", "null"], "enum": [N_EMBD, None]}
    return doc


def test_schemathesis(packages, web_of, tmp_path):
    """Requests that fit the document are answered as it says, those that don't are refused, and nothing fails."""
    model = make_tiny(tmp_path / "tiny.gguf", "--ctx", "256")
    web, daemon = web_of("--model", model, "--kv-memory", "64M", "--uid-requests", 4096, "--max-queue", 4096)
    document = tmp_path / "document.json"
    document.write_text(json.dumps(for_model()))
    # The first phase has about 1,400 requests, whatever is asked for.
    phases, examples, wanted = ("fuzzing", 40, 150) if SANITIZED else ("coverage,fuzzing", 2000 if LONG else 125, 2000)
    outside.run(packages, "-c", "import schemathesis.cli; schemathesis.cli.schemathesis()", "run", document, "--url", web.url,
                "--phases", phases, "--checks", "all", "--exclude-checks", ",".join(LEFT_OUT),
                "--max-examples", examples, "--seed", 7, "--request-timeout", 60, "--no-shrink", "--continue-on-failure",
                "--report", "json", "--report-json-path", tmp_path / "report.json", hooks="outside_schemathesis", seconds=600,
                cwd=tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    assert not report["failures"] and not report["errors"]
    assert report["test_cases"]["generated"] >= wanted, report["test_cases"]
    # Neither all refused nor all let in: each request with a body was tried both ways.
    for path, _ in webclient.requests():
        rates = report["valid_rates"][f"POST {path}"]
        assert sum(r["accepted"] for r in rates.values()) > 5, (path, rates)
    daemon.idle()
