# SPDX-License-Identifier: Apache-2.0
"""Users who have work at once share the device, whoever asks for how much.

What each of them got is counted in two listings, each of which is made between two steps: never by the clock.
"""
import os
import shutil
import subprocess
import sys

import kvdclient as k
import pytest
from conftest import HERE, make_tiny

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="takes other uids, so root")
ONE, MANY = 20021, 20022
N = 3000        # tokens of each request: none ends by itself


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("fair") / "model.gguf", "--ctx", "4096")


@pytest.fixture
def peers(directory):
    """start(daemon, uid, count): so many requests of a uid, whose client reads all."""
    for f in ("peer.py", "kvdclient.py"):
        shutil.copy(HERE / f, directory)
    started = []

    def start(d, uid, count):
        p = subprocess.Popen([sys.executable, directory / "peer.py", "many", d.socket, "a prompt", str(N)],
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, user=uid, group=uid, extra_groups=[],
                             env={**os.environ, "PEER_COUNT": str(count)})
        started.append(p)
        assert p.stdout.readline() == b"ready\n"
        return p
    yield start
    for p in started:
        p.kill()
        p.wait()


@pytest.fixture
def served(daemons, model):
    def start(*options, delay=1):
        return daemons("--model", model, "--socket-mode", "0666", "--kv-memory", "64M", *options,
                       env={"KVD_TEST_STEP_DELAY_MS": str(delay)})
    return start


def generated(c):
    """{uid: {request: tokens}} now."""
    found = {}
    for p in c.call(k.PS)["processes"]:
        found.setdefault(p["uid"], {})[p["request"]] = p["generated_tokens"]
    return found


def shares(d, n, n_places=16):
    """{uid: tokens} while the first of them makes n; when so many decode."""
    with d.client() as c:
        # All that have a place have their prompts behind them.
        d.until(lambda: sorted(p["phase"] for p in c.call(k.PS)["processes"] if p["phase"] not in ("queued", "parked"))
                == ["decode"] * n_places, "places taken")
        before = generated(c)
        d.until(lambda: sum(generated(c)[ONE].values()) >= sum(before[ONE].values()) + n, "tokens", 60)
        after = generated(c)
    assert set(after[MANY]) == set(before[MANY]), "one has ended: this counts no more"
    return {uid: sum(after[uid].values()) - sum(before[uid].values()) for uid in (ONE, MANY)}, before, after


def test_one_against_fifty(served, peers):
    """Whoever comes first, also when all places are taken."""
    for order in (((ONE, 1), (MANY, 50)), ((MANY, 50), (ONE, 1))):
        d = served()
        for uid, count in order:
            peers(d, uid, count)
        got, before, after = shares(d, 200)
        assert abs(got[ONE] - got[MANY]) <= 1, got
        # Those of the many that have a place take turns.
        places = [after[MANY][i] - before[MANY][i] for i in after[MANY] if after[MANY][i] > before[MANY][i]]
        assert len(places) == 15 and max(places) - min(places) <= 1, places
        d.kill()


def test_weights(served, peers):
    d = served("--fair-weights", f"{ONE}:300")
    peers(d, MANY, 5)
    peers(d, ONE, 7)
    got, _, _ = shares(d, 300, 12)
    assert abs(got[ONE] - 3 * got[MANY]) <= 4, got


def test_none(served, peers):
    """All that have a place are in every step, then."""
    d = served("--fairness", "none")
    peers(d, ONE, 1)
    peers(d, MANY, 50)
    got, _, _ = shares(d, 100)
    assert got[MANY] == 15 * got[ONE]


def test_alone(served, peers):
    """Who is alone has all that there is: each of its requests a token in each step."""
    d = served()
    p = peers(d, ONE, 1)
    peers(d, MANY, 16)
    p.kill()
    p.wait()
    with d.client() as c:
        d.until(lambda: [x["phase"] for x in c.call(k.PS)["processes"]] == ["decode"] * 16, "the other is gone")
        before = generated(c)[MANY]
        first = min(before)
        d.until(lambda: generated(c)[MANY][first] >= before[first] + 50, "tokens")
        after = generated(c)[MANY]
    assert len({after[i] - before[i] for i in after}) == 1


def test_new_one_needs_no_place_to_come_free(served, peers):
    """All places are one user's, for longer than anybody waits."""
    d = served("--max-seqs", "4")
    peers(d, MANY, 30)
    peers(d, ONE, 1)        # ready with its first token
    with d.client() as c:
        phases = [p["phase"] for p in c.call(k.PS)["processes"] if p["uid"] == MANY]
    assert phases.count("decode") == 3, phases
