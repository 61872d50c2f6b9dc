# SPDX-License-Identifier: Apache-2.0
"""A kvd on a private socket for each test that asks for one."""
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent / "tools"))

import kvdclient  # noqa: E402
import tinymodels  # noqa: E402
import webclient  # noqa: E402

BUILD = pathlib.Path(os.environ.get("KVD_BUILD", ROOT / "build")).resolve()
LONG = os.environ.get("KVD_TEST_LONG") == "1"
SANITIZED = "sanitize" in str(BUILD)
# Sanitizers slow the daemon; bounds on waiting are multiplied, nothing else.
PATIENCE = 6 if SANITIZED else 1


class Daemon:
    def __init__(self, directory, *options, env=None, socket=None, wait=True, program=None, user=None, before=(),
                 pass_fds=()):
        """before: a command that runs kvd."""
        self.dir = pathlib.Path(directory)
        self.socket = pathlib.Path(socket) if socket else self.dir / "kvd.sock"
        self.log = self.dir / f"kvd-{time.monotonic_ns()}.log"
        self.stopped = False
        # Nothing is left behind, or found, where a test does not ask for it.
        if not any(str(o).startswith(("--disk", "--state-dir", "--config")) for o in options):
            options = (*options, "--disk", "off")
        # What tests count tokens by; test_block_size.py has how it is chosen.
        given = any(str(o).startswith(("--block-tokens", "--config", "--kv-type=q4")) for o in options)
        if not given and "q4" not in options and "KVD_TEST_BLOCK_TIMES" not in (env or {}):
            options = (*options, "--block-tokens", "16")
        self.leaves_socket = False      # where somebody else made it
        with open(self.log, "wb") as log:
            self.proc = subprocess.Popen(
                [*before, program or BUILD / "bin/kvd", "--socket", self.socket, *map(str, options)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=pass_fds,
                env={**os.environ, **(env or {})},
                **({"user": user, "group": user, "extra_groups": []} if user else {}))
        if wait:
            self.wait_ready()

    def wait_ready(self, seconds=60):
        end = time.monotonic() + seconds * PATIENCE
        while True:
            assert self.proc.poll() is None, f"kvd exited {self.proc.returncode}:\n{self.log.read_text()}"
            try:
                with self.client() as c:
                    if c.call(kvdclient.STATUS)["state"] == "ready":
                        return
            except (FileNotFoundError, ConnectionRefusedError):
                pass
            assert time.monotonic() < end, f"kvd not ready:\n{self.log.read_text()}"
            time.sleep(0.02)

    @property
    def http_port(self):
        """Of its TCP address, which may have been given as port 0."""
        return int(re.search(r"http: listening on \S+:(\d+)$", self.log.read_text(), re.MULTILINE)[1])

    @property
    def http_url(self):
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def http_socket(self):
        """Path of its Unix socket for HTTP."""
        return pathlib.Path(re.search(r"http: listening on unix:(\S+)$", self.log.read_text(), re.MULTILINE)[1])

    def client(self, **kw):
        return kvdclient.Client(self.socket, timeout=20 * PATIENCE, **kw)

    def status(self):
        with self.client(name="status") as c:
            return c.call(kvdclient.STATUS)

    def models(self):
        """{name: state}"""
        with self.client(name="models") as c:
            return {m["name"]: m["state"] for m in c.call(kvdclient.MODELS)["models"]}

    def threads(self):
        return len(os.listdir(f"/proc/{self.proc.pid}/task"))

    def fds(self):
        return len(os.listdir(f"/proc/{self.proc.pid}/fd"))

    def memfds(self, name):
        """Paths of its memfds whose names begin so; others may close while this looks."""
        folder, found = f"/proc/{self.proc.pid}/fd", []
        for fd in os.listdir(folder):
            try:
                if os.readlink(f"{folder}/{fd}").startswith(f"/memfd:{name}"):
                    found.append(f"{folder}/{fd}")
            except FileNotFoundError:
                pass
        return found

    def allocated(self, name):
        """Bytes of those memfds, mapped or not."""
        return sum(os.stat(fd).st_blocks * 512 for fd in self.memfds(name))

    def memory(self):
        """Anonymous memory, resident and swapped, in bytes."""
        kb = 0
        for line in open(f"/proc/{self.proc.pid}/status"):
            if line.startswith(("RssAnon:", "VmSwap:")):
                kb += int(line.split()[1])
        return kb * 1024

    def until(self, condition, what, seconds=20):
        end = time.monotonic() + seconds * PATIENCE
        while not condition():
            assert self.proc.poll() is None, f"kvd died:\n{self.log.read_text()}"
            assert time.monotonic() < end, f"not in time: {what}\n{self.log.read_text()}"
            time.sleep(0.01)

    def idle(self, sessions=1):
        """Waits until nothing runs and only this many sessions (ours) are there."""
        def nothing():
            s = self.status()
            return (s["n_running"], s["n_queued"], s["n_parked"], s["kv_bytes_used"]) == (0, 0, 0, 0) \
                and s["n_sessions"] <= sessions and "open_bytes" not in s
        self.until(nothing, "daemon idle")

    def stop(self):
        """SIGTERM must end it cleanly, whatever has happened before."""
        if self.stopped:
            return
        self.stopped = True
        if self.proc.poll() is None:
            self.proc.send_signal(signal.SIGTERM)
        try:
            rc = self.proc.wait(20 * PATIENCE)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
            raise AssertionError(f"kvd did not stop:\n{self.log.read_text()}") from None
        log = self.log.read_text()
        assert rc == 0, f"kvd exited {rc}:\n{log}"
        for word in ("Sanitizer", "runtime error:", "WARNING: ThreadSanitizer"):
            assert word not in log, log
        assert self.socket.exists() == self.leaves_socket

    def kill(self):
        self.stopped = True
        self.proc.kill()
        self.proc.wait()


@pytest.fixture
def directory():
    """A directory that other uids may enter."""
    d = tempfile.mkdtemp(prefix="kvd-test-")
    os.chmod(d, 0o755)
    yield pathlib.Path(d)
    shutil.rmtree(d, ignore_errors=True)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf")


def make_tiny(path, *options):
    subprocess.run([sys.executable, HERE.parent / "tools/make_tiny_gguf.py", *options, "-o", path],
                   check=True, stdout=subprocess.DEVNULL)
    return path


@pytest.fixture(scope="session")
def real_model():
    path = os.environ.get("KVD_TEST_MODEL")
    if not path:
        pytest.skip("KVD_TEST_MODEL is not set")
    return pathlib.Path(path)


@pytest.fixture(scope="session")
def packages():
    """The folder of the Python packages of tests/packages.txt, for PYTHONPATH."""
    path = os.environ.get("KVD_TEST_PACKAGES")
    if not path:
        missing = "KVD_TEST_PACKAGES is not set (tools/fetch-packages)"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(missing)
    return pathlib.Path(path)


@pytest.fixture
def daemons(directory):
    """start(*options) -> Daemon; all are stopped and checked at the end."""
    started = []

    def start(*options, **kw):
        d = Daemon(directory, *options, **kw)
        started.append(d)
        return d
    yield start
    errors = []
    for d in started:
        try:
            d.stop()
        except AssertionError as e:
            errors.append(e)
    if errors:
        raise errors[0]


@pytest.fixture(scope="session")
def several():
    """{name: path} of tiny models that differ, where other uids may read them."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="kvd-test-"))
    os.chmod(folder, 0o755)
    yield tinymodels.make_all(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def large_model(tmp_path_factory):
    """A model that takes a while to load."""
    return tinymodels.make_large(tmp_path_factory.mktemp("large") / "large.gguf")


@pytest.fixture
def daemon(daemons, tiny_model):
    return daemons("--model", tiny_model, "--kv-memory", "64M", "--threads", "2")


@contextlib.contextmanager
def serving(*options, **kw):
    """(Web, Daemon) with the endpoint on a port of its own and on a Unix socket, stopped and checked at the end."""
    with tempfile.TemporaryDirectory(prefix="kvd-test-") as folder:
        d = Daemon(folder, "--http", "127.0.0.1:0", "--http", f"unix:{folder}/http.sock", *options, **kw)
        try:
            yield webclient.Web(d.http_port, d.http_socket), d
            d.stop()
        finally:
            if not d.stopped:
                d.kill()


@pytest.fixture(scope="session")
def letters_model(tmp_path_factory):
    """Its tokens are printable ASCII, nearly always."""
    return make_tiny(tmp_path_factory.mktemp("letters") / "letters.gguf", "--ascii", "--seed", "5")


@pytest.fixture(scope="session")
def bytes_model(tmp_path_factory):
    """Says any bytes."""
    return make_tiny(tmp_path_factory.mktemp("bytes") / "bytes.gguf")


@pytest.fixture(scope="module")
def web(letters_model, bytes_model):
    """One daemon for the tests of a file, with two models."""
    with serving("--model", bytes_model, "--model", letters_model, "--kv-memory", "64M", "--threads", "2",
                 "--uid-requests", "1024", "--max-queue", "1024", "--uid-memory", "1G") as (endpoint, d):
        endpoint.daemon = d
        yield endpoint


@pytest.fixture
def web_of():
    """start(*options) -> (Web, Daemon); all are stopped and checked at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda *options, **kw: stack.enter_context(serving(*options, **kw))


@pytest.fixture
def http_daemon(daemons, tiny_model, directory):
    """start(*options) -> Daemon that serves HTTP on a port (http_port) and a Unix socket (http_socket)."""
    def start(*options, model=tiny_model, **kw):
        return daemons("--model", model, "--kv-memory", "64M", "--threads", "2", "--http", "127.0.0.1:0",
                       "--http", f"unix:{directory}/http.sock", *options, **kw)
    return start


@pytest.fixture
def kvctl():
    def run(*args, stdin=None, socket=None, env=None, timeout=60, **kw):
        cmd = [BUILD / "bin/kvctl"]
        if socket:
            cmd += ["--socket", socket]
        return subprocess.run([*cmd, *map(str, args)], input=stdin,
                              stdin=None if stdin is not None else subprocess.DEVNULL,
                              capture_output=True, timeout=timeout * PATIENCE,
                              env={**os.environ, **(env or {})}, **kw)
    run.path = BUILD / "bin/kvctl"
    return run
