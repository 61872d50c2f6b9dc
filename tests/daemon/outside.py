# SPDX-License-Identifier: Apache-2.0
"""Runs programs of others, out of the folder of tests/packages.txt, in processes of their own."""
import json
import os
import pathlib
import subprocess
import sys

from conftest import PATIENCE

HERE = pathlib.Path(__file__).resolve().parent


def environment(packages, hooks=None):
    """Of such a process: nothing that steers proxies, plug-ins or Python.  hooks: a module here, for schemathesis."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
    path = f"{packages}:{HERE}" if hooks else str(packages)
    return {**kept, **({"SCHEMATHESIS_HOOKS": hooks} if hooks else {}), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "NO_PROXY": "*"}


def run(packages, *args, seconds=120, ok=(0,), hooks=None, **kw):
    """python ARGS... to its end; its output, which is shown where it fails."""
    done = subprocess.run([sys.executable, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False, timeout=seconds * PATIENCE,
                          env=environment(packages, hooks), **kw)
    assert done.returncode in ok, done.stdout[-20000:]
    return done.stdout


def checks(packages, script, settings, **kw):
    """{name: what went wrong, or None} of the check_*() of outside_*.py."""
    lines = run(packages, HERE / script, json.dumps(settings), **kw).splitlines()
    return {r["name"]: r["wrong"] for r in map(json.loads, lines)}
