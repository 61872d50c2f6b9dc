# SPDX-License-Identifier: Apache-2.0
"""An engine that does not get on is noticed: in the log, by the service manager's watchdog, and in /health.

The engine is held up before each step for longer than the limit; order alone is looked at.
"""
import http.client
import json
import socket

import kvdclient
import pytest
from manager import Manager

STEP_MS = 2000
SLOW = {"KVD_TEST_STEP_DELAY_MS": str(STEP_MS)}
STUCK, GOES_ON = "the engine is stuck", "the engine goes on"


@pytest.fixture
def manager(directory, tiny_model):
    m = Manager(directory, "--model", tiny_model, "--stuck-limit", "1", "--kv-memory", "16M")
    yield m
    m.close()


def pings(m):
    m.tell_self(b"sync")
    with m.lock:
        return sum("WATCHDOG" in message for message in m.messages)


def test_watchdog(manager):
    d = manager.start(env={**SLOW, "WATCHDOG_USEC": "300000"})
    d.until(lambda: pings(manager) > 3, "it is fed")
    with d.client() as c:
        rid = c.submit("x", n=2, ignore_eos=True)
        d.until(lambda: STUCK in manager.log(), "noticed")
        before = pings(manager)
        # The loop answers all the while.
        while GOES_ON not in manager.log():
            assert c.call(kvdclient.STATUS)["state"] == "ready"
            assert pings(manager) <= before or GOES_ON in manager.log()
        assert c.collect(rid)[rid].ended
    d.until(lambda: pings(manager) > before + 3, "it is fed again")
    log = manager.log()
    assert log.index(STUCK) < log.index(GOES_ON)


def test_no_watchdog(manager):
    """Nobody asked for it: nobody is told; the log has it once for each time."""
    d = manager.start(env=SLOW)
    with d.client() as c:
        rid = c.submit("x", n=1, ignore_eos=True)
        c.collect(rid)
    d.until(lambda: GOES_ON in manager.log(), "both lines")
    assert manager.log().count(STUCK) == 1
    assert pings(manager) == 0


def test_not_stuck(manager):
    """Steps that come one after the other are not one long one."""
    d = manager.start(env={"KVD_TEST_STEP_DELAY_MS": "50"})
    with d.client() as c:
        c.collect(c.submit("x", n=40, ignore_eos=True))
    assert STUCK not in manager.log()


def health(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(20)
        s.connect(str(path))
        c = http.client.HTTPConnection("localhost")
        c.sock = s
        c.request("GET", "/health")
        r = c.getresponse()
        return r.status, json.loads(r.read())


def test_health(manager, directory):
    path = directory / "http.sock"
    d = manager.start("--http", f"unix:{path}", env=SLOW)
    assert health(path)[0] == 200
    with d.client() as c:
        rid = c.submit("x", n=1, ignore_eos=True)
        d.until(lambda: health(path)[0] == 503, "it says so")
        assert health(path)[1]["error"]["code"] == "stuck"
        c.collect(rid)
    d.until(lambda: health(path)[0] == 200, "all is well")
