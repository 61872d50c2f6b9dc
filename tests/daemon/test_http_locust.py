# SPDX-License-Identifier: Apache-2.0
"""locust, a load generator of others, against the daemon: no request fails, and no answer changes under load."""
import json

import outside
from conftest import LONG, SANITIZED

SECONDS = 120 if LONG else 8 if SANITIZED else 12


def test_load(packages, web_of, bytes_model):
    web, d = web_of("--model", bytes_model, "--max-seqs", "8", "--max-queue", "512", "--uid-requests", "512", "--kv-memory", "32M")
    out = outside.run(packages, "-m", "locust", "-f", outside.HERE / "outside_locust.py", "--headless", "--users", 16,
                      "--spawn-rate", 50, "--run-time", f"{SECONDS}s", "--host", web.url, "--json", "--loglevel", "WARNING",
                      "--exit-code-on-error", 1, seconds=SECONDS + 60)
    # What it says for people is around it.
    rows, _ = json.JSONDecoder().raw_decode(out[out.index("[\n"):])
    assert {r["name"] for r in rows} == {"completions", "chat", "completions, streamed", "chat, streamed", "left", "/v1/models",
                                         "/health", "/metrics", "/tokenize"}
    assert all(r["num_failures"] == 0 for r in rows) and sum(r["num_requests"] for r in rows) > (50 if SANITIZED else 200)
    d.idle()
