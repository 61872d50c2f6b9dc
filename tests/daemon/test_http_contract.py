# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document against the code: it is valid, it has each route and no other, and the daemon keeps to it."""
import json
import re
import subprocess
import sys

from conftest import ROOT

DOCUMENT = ROOT / "daemon/server/openapi.json"


def document():
    return json.loads(DOCUMENT.read_text(encoding="utf-8"))


def outside(packages, *args, **kw):
    """A Python process that has the packages; its output is shown where it fails."""
    done = subprocess.run([sys.executable, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False,
                          env={**kw.pop("env", {}), "PYTHONPATH": str(packages), "PATH": "/usr/bin:/bin"}, **kw)
    assert done.returncode == 0, done.stdout[-20000:]
    return done.stdout


def test_document_is_valid(packages):
    outside(packages, "-m", "openapi_spec_validator", "--schema", "3.1", DOCUMENT)


def test_references_resolve_and_are_used():
    """Nothing in components is left over."""
    text = DOCUMENT.read_text(encoding="utf-8")
    doc = json.loads(text)
    used = set(re.findall(r'"#/components/(\w+/\w+)"', text))
    there = {f"{kind}/{name}" for kind in ("schemas", "responses") for name in doc["components"][kind]}
    assert used == there
