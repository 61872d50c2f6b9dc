# SPDX-License-Identifier: Apache-2.0
"""The official openai package, unchanged, against the daemon: outside_openai.py asks, and its findings are counted here."""
import re

import outside
import pytest
from conftest import serving

SCRIPT = "outside_openai.py"
CHECKS = re.findall(r"^(?:async )?def (check_\w+)", (outside.HERE / SCRIPT).read_text(encoding="utf-8"), re.MULTILINE)
KEY = "kvd-test-0123456789abcdef"


@pytest.fixture(scope="module")
def findings(packages, web, bytes_model, tmp_path_factory):
    """{check: what went wrong}; "cancelled": how many requests the slow daemon has cancelled."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"tester {KEY}\n")
    keys.chmod(0o600)
    model = ("--model", bytes_model, "--kv-memory", "64M")
    with serving(*model, env={"KVD_TEST_STEP_DELAY_MS": "20"}) as (slow, slow_daemon), \
            serving(*model, "--max-seqs", "1", "--max-queue", "2", env={"KVD_TEST_STEP_DELAY_MS": "10"}) as (busy, _), \
            serving(*model, "--http-keys", keys) as (keyed, _):
        found = outside.checks(packages, SCRIPT, {
            "url": web.url + "/v1", "model": "bytes", "letters": "letters", "slow_url": slow.url + "/v1",
            "busy_url": busy.url + "/v1", "keys_url": keyed.url + "/v1", "key": KEY}, seconds=240)
        slow_daemon.idle()
        found["cancelled"] = slow_daemon.status()["requests_cancelled"]
    return found


@pytest.mark.parametrize("name", CHECKS)
def test_openai(findings, name):
    assert findings[name] is None, findings[name]


def test_who_left_was_noticed(findings):
    """Three closed streams and three time-outs: their work ended with them."""
    assert findings["cancelled"] == 6
