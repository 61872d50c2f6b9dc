# SPDX-License-Identifier: Apache-2.0
"""kvd as a service of a real systemd: what its store of descriptors brings back.  Part of `make check-long`.

KVD_TEST_ROOT=DIR names a file system that systemd.make_root() has made before, which takes a minute.
"""
import os
import pathlib
import shutil
import tempfile

import prefix
import pytest
import systemd
from conftest import LONG, SANITIZED, make_tiny
from test_prefix_bits import random_ids

pytestmark = pytest.mark.skipif(not LONG or SANITIZED, reason="boots a machine: for the full counts")

UNIT = """[Service]
Type=notify
ExecStart=/opt/kvd --model /opt/tiny.gguf --socket /run/kvd/kvd.sock --kv-memory 32M --disk off
RuntimeDirectory=kvd
FileDescriptorStoreMax=8
Restart=always
RestartSec=0
{}
"""
# As in kvd.8, for another result than oom-kill.
AFTER_A_KILL = """NotifyAccess=exec
ExecStopPost=-/bin/sh -c 'test "$SERVICE_RESULT" != signal || exec systemd-notify FDSTOREREMOVE=1 FDNAME=kvd-pool'"""


@pytest.fixture(scope="module")
def base():
    if why := systemd.missing():
        pytest.skip(f"no machine: {why}")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="kvd-machines-", dir="/dev/shm"))
    given = os.environ.get("KVD_TEST_ROOT")
    root = pathlib.Path(given) if given else systemd.make_root(folder)
    if not root:
        pytest.skip("no mirror of packages")
    yield folder, root
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def machine(base, tmp_path):
    """start(more): a machine whose unit has these lines, too."""
    made, model = [], make_tiny(tmp_path / "tiny.gguf")

    def start(more=""):
        made.append(systemd.Machine(*base, {"opt/tiny.gguf": model}, UNIT.format(more)))
        made[-1].systemctl("start", "kvd.service")
        return made[-1]
    yield start
    for m in made:
        m.close()


def cached(m, ids):
    with m.client() as c:
        r = prefix.ask(c, ids)
    assert not r.error
    return r.usage["cached"], r.ids, prefix.bits(r.logprobs)


def again(m, *how):
    pid = m.show("MainPID")
    m.systemctl(*how, "kvd.service")
    m.until(lambda: m.active() and m.show("MainPID") != pid, "another process")


def test_store(machine):
    """Restarted, killed, crashed: all is there.  Stopped: nothing is."""
    m, ids = machine(), random_ids(1, 300)
    n, *answer = cached(m, ids)
    assert n == 0 and m.show("NFileDescriptorStore") == "3"
    for how in (("restart",), ("kill", "-s", "KILL"), ("kill", "-s", "SEGV"), ("restart",)):
        again(m, *how)
        assert cached(m, ids) == (299, *answer), (how, m.journal())
        assert m.show("NFileDescriptorStore") == "3"
    assert "not taken" not in m.journal() and "is dropped" not in m.journal()
    m.systemctl("stop", "kvd.service")
    assert m.show("NFileDescriptorStore") == "0"
    m.systemctl("start", "kvd.service")
    assert cached(m, ids) == (0, *answer)


def test_dropped_by_the_unit(machine):
    """ExecStopPost= may take it out of the store, by how the service ended."""
    m, ids = machine(AFTER_A_KILL), random_ids(1, 300)
    cached(m, ids)
    again(m, "restart")
    assert cached(m, ids)[0] == 299
    again(m, "kill", "-s", "KILL")
    assert "kvd-index: it came without pool" in m.journal()
    assert cached(m, ids)[0] == 0
    again(m, "restart")
    assert cached(m, ids)[0] == 299
