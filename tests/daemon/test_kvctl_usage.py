# SPDX-License-Identifier: Apache-2.0
"""kvctl by itself, and against a daemon that is a script: arguments, exit statuses, order of things."""
import array
import fcntl
import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import threading

import kvdclient as k
import msgpack
import pytest
from conftest import BUILD, PATIENCE
from terminal import run_on_terminal

RING, ARENA = 1 << 20, 4 << 20
SEALS_RO = 0x1 | 0x2 | 0x4 | 0x10       # SEAL SHRINK GROW FUTURE_WRITE
SEALS_RW = 0x1 | 0x2 | 0x4
F_ADD_SEALS = 1033
MODEL = {"name": "m", "arch": "llama", "title": "M", "state": "ready", "chat_template": "chatml", "n_ctx": 1, "n_ctx_train": 1,
         "n_vocab": 1, "n_layers": 1, "n_embd": 1, "n_params": 1, "file_bytes": 1, "weight_bytes": 1, "hash": "00",
         "percent": 100, "uid": 0, "is_default": True, "block_tokens": 16, "block_bytes": 1}
STATUS = {"version": "1", "device": "d", "level": "l", "state": "ready", "pid": 1, "n_threads": 1, "n_models": 1,
          "n_sessions": 1, "n_running": 0, "n_queued": 0, "n_parked": 0, "uptime_ns": 0, "kv_bytes": 0,
          "kv_bytes_used": 0, "weight_bytes": 0, "prompt_tokens": 0, "generated_tokens": 0, "requests_done": 0,
          "requests_cancelled": 0, "preemptions": 0, "loading_percent": 0, "no_cache": False, "blocks_used": 0,
          "blocks_cached": 0, "blocks_free": 0, "cache_lookups": 0, "cache_hits": 0, "cached_tokens": 0,
          "cache_evicted": 0, "kv_type": "f16"}


class Fake:
    """One session's daemon; `generate` is called with each generate message."""

    def __init__(self, path, generate=None, refuse=None, model=None, chatter=None):
        self.path, self.on_generate, self.refuse, self.chatter = path, generate, refuse, chatter
        self.model = {**MODEL, **(model or {})}
        self.got = []
        self.cancelled = threading.Event()
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.bind(str(path))
        self.sock.listen(8)
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.shutdown(socket.SHUT_RDWR)
        self.thread.join(20 * PATIENCE)
        self.sock.close()

    @staticmethod
    def segment(size, head, at, seals):
        fd = os.memfd_create("fake", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        m = mmap.mmap(fd, size)
        m[at:at + len(head)] = head
        fcntl.fcntl(fd, F_ADD_SEALS, seals)
        return fd, m

    def send(self, msg, fields):
        self.conn.send(msgpack.packb([msg, fields]))

    def serve(self):
        while True:
            try:
                self.conn, _ = self.sock.accept()
            except OSError:
                return
            with self.conn:
                try:
                    self.session()
                except (BrokenPipeError, ConnectionResetError):
                    pass

    def session(self):
        msgpack.unpackb(self.conn.recv(k.MESSAGE_MAX))
        if self.refuse:
            self.send(k.REFUSED, self.refuse)
            return
        ring, self.ring = self.segment(k.DATA + RING, struct.pack("<IIQQ", k.MAGIC, k.VERSION, k.DATA, RING), 0,
                                       SEALS_RO)
        seg, self.seg = self.segment(k.DATA + ARENA, struct.pack("<IIQQ", 0x474d4553, k.VERSION, k.DATA, ARENA),
                                     128, SEALS_RW)
        stats, _ = self.segment(4096, b"", 0, SEALS_RO)
        self.written = 0
        socket.send_fds(self.conn, [msgpack.packb([k.WELCOME, {
            "version": k.VERSION, "session": 1, "ring": RING, "arena": ARENA, "server": "fake", "state": "ready"}])],
            [ring, seg, stats])
        for fd in (ring, seg, stats):
            os.close(fd)
        if self.chatter:
            self.conn.send(self.chatter)
        while data := self.conn.recv(k.MESSAGE_MAX):
            msg, f = msgpack.unpackb(data)
            self.got.append((msg, f))
            if msg == k.STATUS:
                self.send(k.STATUS_REPLY, {"id": f["id"], **STATUS})
            elif msg == k.MODELS:
                self.send(k.MODELS_REPLY, {"id": f["id"], "models": [self.model]})
            elif msg == k.GENERATE and self.on_generate:
                self.on_generate(self, f)
            elif msg == k.CANCEL:
                self.cancelled.set()

    # records

    def put(self, kind, request, body):
        size = (16 + len(body) + 7) & ~7
        at = k.DATA + self.written
        self.ring[at:at + size] = (struct.pack("<IHHQ", size, kind, 0, request) + body).ljust(size, b"\0")
        self.written += size
        k.words(self.ring)[k.WRITE_INDEX // 8] = self.written
        if struct.unpack_from("<I", self.seg, k.READER_WAITING)[0]:
            struct.pack_into("<I", self.seg, k.READER_WAITING, 0)
            self.send(k.WAKE, {})

    def text(self, f, data):
        self.put(k.TEXT, f["id"], struct.pack("<II", len(data), 0) + data)

    def token(self, f, ident, data, logprob=-0.5):
        self.put(k.TOKEN, f["id"], struct.pack("<ifII", ident, logprob, len(data), 0) + data)

    def done(self, f, reason=k.STOP):
        self.put(k.DONE, f["id"], struct.pack("<II", reason, 0))

    def prompt(self, f):
        return b"".join(bytes(self.seg[k.DATA + p[-2]:k.DATA + p[-2] + p[-1]]) for p in
                        f.get("prompt", []) + f.get("messages", []))


@pytest.fixture
def fake(directory):
    made = []

    def make(**kw):
        made.append(Fake(directory / "fake.sock", **kw).__enter__())
        return made[-1]
    yield make
    for f in made:
        f.__exit__()


# --- arguments -------------------------------------------------------------

WRONG = [
    ([], "no command"),
    (["nonsense"], "nonsense"),
    (["--nonsense", "ps"], "--nonsense"),
    (["--socket"], "--socket"),
    (["--socket", "", "ps"], "--socket"),
    (["perplex", "x"], "perplex"),
    (["ps", "extra"], "extra"),
    (["ps", "-x"], "-x"),
    (["help", "nonsense"], "nonsense"),
    (["generate", "--nonsense", "x"], "--nonsense"),
    (["generate", "a", "b"], "b"),
    (["generate", "-t", "abc", "x"], "-t: not a number: abc"),
    (["generate", "-t", "1x", "x"], "-t: not a number: 1x"),
    (["generate", "-t", "", "x"], "-t: not a number"),
    (["generate", "-t", "nan", "x"], "-t: not a number"),
    (["generate", "-t", "inf", "x"], "-t: not a number"),
    (["generate", "-t", "0x1p3", "x"], "-t: not a number"),
    (["generate", "-t", " 1", "x"], "-t: not a number"),
    (["generate", "--temperature", "-0.1", "x"], "--temperature: not between"),
    (["generate", "-t", "1e999", "x"], "-t: not between"),
    (["generate", "-n", "-1", "x"], "-n: not a whole number"),
    (["generate", "-n", "1.5", "x"], "-n: not a whole number"),
    (["generate", "-n", "4294967296", "x"], "-n: not between"),
    (["generate", "-n", "99999999999999999999999", "x"], "-n: not between"),
    (["generate", "--top-k", "+1", "x"], "--top-k: not a whole number"),
    (["generate", "--top-p", "1.01", "x"], "--top-p: not between"),
    (["generate", "--min-p", "-1", "x"], "--min-p: not between"),
    (["generate", "--repeat-penalty", "0", "x"], "--repeat-penalty: not between"),
    (["generate", "--seed", "18446744073709551616", "x"], "--seed: not between"),
    (["generate", "--logprobs", "33", "x"], "--logprobs: not between"),
    (["generate", "--stop", "", "x"], "--stop"),
    (["generate", "--stop", "x" * 257, "x"], "--stop"),
    (["generate", *["--stop", "x"] * 17, "x"], "--stop: more than 16"),
    (["generate", "--raw", "--chat", "x"], "--chat"),
    (["generate", "--raw", "--system", "s", "x"], "--system"),
    (["generate", "-f", "/etc/hostname", "x"], "-f"),
    (["generate", "-m", "", "x"], "-m"),
    (["generate", "-n"], "-n: a value is missing"),
    (["generate", "--top-k"], "--top-k: a value is missing"),
    (["generate", "--raw=yes", "x"], "--raw=yes"),
    (["chat", "hello"], "hello"),
    (["chat", "--logprobs", "1"], "--logprobs"),
    (["tokenize", "a", "b"], "b"),
    (["load"], "no file"), (["load", ""], "no file"), (["load", "a", "b"], "b"),
    (["load", "--ctx", "0", "a"], "--ctx: not between"), (["load", "--ctx", "1k", "a"], "--ctx: not a whole"),
    (["load", "--name"], "--name: a value is missing"), (["load", "--now", "a"], "--now"),
    (["unload"], "no model"), (["unload", "a", "b"], "b"), (["unload", "--now=1", "a"], "--now=1"),
    (["perplexity"], "no file"), (["perplexity", "a", "b"], "b"),
    (["perplexity", "--ctx", "1", "a"], "--ctx: not between"), (["perplexity", "--ctx", "x", "a"], "--ctx"),
    (["perplexity", "-n", "5", "a"], "-n"),
    (["generate", "--ttl", "10", "x"], "--ttl: not a duration"), (["generate", "--ttl", "1w", "x"], "--ttl: not a duration"),
    (["generate", "--ttl", "0s", "x"], "--ttl: not between"), (["generate", "--ttl", "h", "x"], "--ttl: not a duration"),
    (["generate", "--ttl", "99999999999d", "x"], "--ttl: not between"), (["generate", "--ttl", "1h1", "x"], "--ttl"),
    (["generate", "--priority", "urgent", "x"], "--priority: not low"),
    (["generate", "--namespace", "", "x"], "--namespace: not 1 to"),
    (["generate", "--cache-key", "a/b", "x"], "--cache-key: must have no '/'"),
    (["generate", "--cache-key", "k" * 65, "x"], "--cache-key: not 1 to"),
    (["chat", "--namespace", "public", "--no-cache"], "exclude each other"),
    (["cache"], "no command"), (["cache", "export"], "export"), (["cache", "--nonsense"], "--nonsense"),
    (["cache", "ls", "x"], "takes no argument"), (["cache", "ls", "--namespace", ""], "--namespace: must not be empty"),
    (["cache", "show"], "no entry"), (["cache", "show", "1", "2"], "one entry only"), (["cache", "show", "0"], "not the number"),
    (["cache", "pin"], "no entry"), (["cache", "pin", "1", "x"], "not the number of an entry: x"),
    (["cache", "pin", "--all", "1"], "--all"), (["cache", "drop", "-1"], "-1"),
    (["cache", "drop", "18446744073709551616"], "not the number"),
    (["cache", "wipe", "--all", "--namespace", "own"], "exclude each other"), (["cache", "wipe", "5"], "takes no argument"),
    (["cache", "warm", "-n", "5", "x"], "-n"), (["cache", "warm", "a", "b"], "b"), (["cache", "warm", "--no-cache", "x"], "--no-cache"),
]


@pytest.mark.parametrize("args,says", WRONG, ids=[" ".join(a)[:40] or "none" for a, _ in WRONG])
def test_wrong_usage(kvctl, directory, args, says):
    r = kvctl(*args, env={"KVD_SOCKET": str(directory / "none")})
    err = r.stderr.decode()
    assert r.returncode == 2 and r.stdout == b""
    assert err.startswith("kvctl: ") and says in err and "--help" in err
    assert err.count("\n") == 1 and err.endswith("\n")


def test_control_characters_in_arguments_are_shown_not_sent(kvctl):
    r = kvctl("\x1b]0;title\x07")
    assert r.returncode == 2 and b"\x1b" not in r.stderr and b"^[" in r.stderr


def test_help(kvctl):
    text = kvctl("--help").stdout
    assert kvctl("help").stdout == text
    for cmd in ("generate", "chat", "tokenize", "ps", "status", "models", "load", "unload", "perplexity", "version", "help"):
        assert cmd.encode() in text
        a, b = kvctl(cmd, "--help"), kvctl("help", cmd)
        assert a.returncode == b.returncode == 0 and a.stdout == b.stdout and a.stderr == b""
        assert b"usage: kvctl" in a.stdout and b"--socket" in a.stdout
    assert kvctl("generate", "-h").stdout == kvctl("help", "generate").stdout


def test_global_options_before_and_after(kvctl, directory):
    none = directory / "none"
    for args in (["--socket", none, "--json", "version"], ["version", "--json", "--socket", none],
                 [f"--socket={none}", "version", "--json"]):
        r = kvctl(*args)
        assert r.returncode == 0
        v = json.loads(r.stdout)
        assert v["daemon"] is None and v["protocol"] == k.VERSION and v["client"]


# --- exit statuses -----------------------------------------------------------

def test_no_daemon(kvctl, directory):
    none = directory / "none"
    for args in (["ps"], ["status"], ["models"], ["generate", "x"], ["generate", "-m", "name", "x"], ["chat"],
                 ["tokenize", "x"]):
        r = kvctl(*args, socket=none)
        assert r.returncode == 3 and str(none).encode() in r.stderr and b"kvd --model" in r.stderr
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stale.bind(str(none))
    stale.close()
    assert kvctl("ps", socket=none).returncode == 3


@pytest.mark.parametrize("code,status", [(4, 4), (5, 4), (6, 4), (11, 4), (3, 1)])
def test_refused_at_the_door(kvctl, fake, code, status):
    f = fake(refuse={"code": code, "message": "no \x1b[31mentry"})
    r = kvctl("ps", socket=f.path)
    assert r.returncode == status and b"entry" in r.stderr and b"\x1b" not in r.stderr


@pytest.mark.parametrize("code,status", [(1, 1), (2, 1), (4, 4), (5, 4), (6, 4), (7, 1), (8, 1), (9, 1), (10, 1), (12, 1)])
def test_request_refused(kvctl, fake, code, status):
    f = fake(generate=lambda f, m: f.send(k.ERROR, {"id": m["id"], "code": code, "field": "prompt", "message": "why"}))
    r = kvctl("generate", "x", socket=f.path)
    assert (r.returncode, r.stdout) == (status, b"")
    assert r.stderr.startswith(b"kvctl: generate: why") and r.stderr.count(b"\n") == 1
    assert (b"--raw" in r.stderr) == (code == 9)
    r = kvctl("--json", "generate", "x", socket=f.path)
    assert r.returncode == status
    assert json.loads(r.stdout) | {"code": ""} == {"type": "error", "code": "", "error": "why", "field": "prompt"}


def test_error_record(kvctl, fake):
    def generate(f, m):
        f.text(m, b"some")
        f.put(k.ERROR_REC, m["id"], struct.pack("<II", 6, 4) + b"busy")
    r = kvctl("generate", "x", socket=fake(generate=generate).path)
    assert (r.returncode, r.stdout) == (4, b"some") and b"busy" in r.stderr


def test_daemon_dies_in_the_middle(kvctl, fake):
    def generate(f, m):
        f.text(m, b"some")
        f.conn.shutdown(socket.SHUT_RDWR)
    r = kvctl("generate", "x", socket=fake(generate=generate).path)
    assert (r.returncode, r.stdout) == (1, b"some") and b"gone" in r.stderr


@pytest.mark.parametrize("noise", [b"\xc1", b"\x92\xcc\xa0\x80", b"\x91" * 5000, bytes(range(255, -1, -1)) * 200],
                         ids=["never", "empty", "deep", "noise"])
def test_hostile_daemon(kvctl, fake, noise):
    f = fake(chatter=noise)
    for cmd in (["ps"], ["status"], ["generate", "x"]):
        r = kvctl(*cmd, socket=f.path)
        assert r.returncode == 1 and r.stdout == b"" and b"protocol" in r.stderr


# --- what is sent and shown --------------------------------------------------

def answer(f, m):
    f.token(m, 7, b"ok")
    f.text(m, b"ok")
    f.done(m)


def test_options_arrive(kvctl, fake):
    f = fake(generate=answer)
    r = kvctl("generate", "-m", "/some/where/m.gguf", "-n", "9", "-t", "0.5", "--top-k", "4", "--top-p", "0.25", "--min-p", "0",
              "--repeat-penalty", "1.5", "--seed", "18446744073709551615", "--stop", "a", "--stop", "b", "--raw",
              "--ignore-eos", "--", "-x", socket=f.path)
    assert (r.returncode, r.stdout) == (0, b"ok")
    m = next(m for i, m in f.got if i == k.GENERATE)
    want = {"model": "m", "n": 9, "temperature": 0.5, "top_k": 4, "top_p": 0.25, "min_p": 0, "repeat_penalty": 1.5,
            "seed": 2**64 - 1, "stop": ["a", "b"], "ignore_eos": True}
    assert {key: m[key] for key in want} == want
    assert m["prompt"][0][0] == 0 and "messages" not in m and f.prompt(m) == b"-x"


def test_defaults_and_system(kvctl, fake):
    f = fake(generate=answer)
    assert kvctl("generate", "--system", "S", "x", socket=f.path).returncode == 0
    m = next(m for i, m in f.got if i == k.GENERATE)
    assert [p[0] for p in m["messages"]] == ["system", "user"] and f.prompt(m) == b"Sx"
    want = {"n": 512, "temperature": 0.8, "top_p": 0.95, "min_p": 0.05}
    assert {key: pytest.approx(m.get(key, v)) for key, v in want.items()} == want
    seeds = set()
    for _ in range(3):
        kvctl("generate", "x", socket=f.path)
        seeds.add([m for i, m in f.got if i == k.GENERATE][-1]["seed"])
    assert len(seeds) == 3


@pytest.mark.parametrize("template,args,chat", [
    ("chatml", [], True), ("chatml", ["--raw"], False), ("none", [], False), ("none", ["--chat"], None),
    ("unknown", [], None), ("unknown", ["--raw"], False), ("none", ["--system", "s"], None)])
def test_template(kvctl, fake, template, args, chat):
    f = fake(generate=answer, model={"chat_template": template})
    r = kvctl("generate", *args, "x", socket=f.path)
    sent = [m for i, m in f.got if i == k.GENERATE]
    if chat is None:
        assert r.returncode == 1 and not sent and b"template" in r.stderr
    else:
        assert r.returncode == 0 and ("messages" in sent[0]) == chat


def test_chat_gives_back_generated_ids(kvctl, fake):
    f = fake(generate=answer)
    r = kvctl("chat", "--system", "S", socket=f.path, stdin=b"one\ntwo\n/reset\nthree\n")
    assert (r.returncode, r.stdout, r.stderr) == (0, b"ok\nok\nok\n", b"")
    a, b, c = [m["messages"] for i, m in f.got if i == k.GENERATE]
    assert [(p[0], p[1]) for p in a] == [("system", 0), ("user", 0)]
    assert [(p[0], p[1]) for p in b] == [("system", 0), ("user", 0), ("assistant", 1), ("user", 0)]
    assert [p[0] for p in c] == ["system", "user"]
    ids = array.array("i")
    ids.frombytes(bytes(f.seg[k.DATA + b[2][2]:k.DATA + b[2][2] + b[2][3]]))
    assert ids.tolist() == [7]


def test_each_piece_is_shown_before_the_next_exists(directory, fake):
    """The daemon writes a piece only when the one before has come out of kvctl."""
    go = threading.Semaphore(0)

    def generate(f, m):
        for i in range(5):
            f.text(m, b"%d" % i)
            if not go.acquire(timeout=20 * PATIENCE):
                return
        f.done(m)
    f = fake(generate=generate)
    p = subprocess.Popen([BUILD / "bin/kvctl", "--socket", f.path, "generate", "x"], stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE)
    for i in range(5):
        assert os.read(p.stdout.fileno(), 10) == b"%d" % i
        go.release()
    assert p.wait(20 * PATIENCE) == 0
    p.stdout.close()


def test_interrupt_cancels_and_a_second_one_quits(fake):
    f = fake(generate=lambda f, m: f.text(m, b"some"))
    p = subprocess.Popen([BUILD / "bin/kvctl", "--socket", f.path, "generate", "x"], stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert os.read(p.stdout.fileno(), 10) == b"some"
    p.send_signal(signal.SIGINT)
    assert f.cancelled.wait(20 * PATIENCE)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=20 * PATIENCE)
    assert (p.returncode, out, err) == (130, b"", b"")


def test_interrupt_keeps_what_came(fake):
    f = fake(generate=lambda f, m: f.text(m, b"some"))
    end = threading.Thread(target=lambda: (f.cancelled.wait(20 * PATIENCE), f.done({"id": f.got[-2][1]["id"]}, k.CANCELLED)))
    end.start()
    p = subprocess.Popen([BUILD / "bin/kvctl", "--socket", f.path, "--json", "generate", "x"], stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE)
    first = os.read(p.stdout.fileno(), 1000)
    p.send_signal(signal.SIGINT)
    rest, _ = p.communicate(timeout=20 * PATIENCE)
    end.join()
    lines = [json.loads(x) for x in (first + rest).splitlines()]
    assert p.returncode == 130
    assert lines[-1]["type"] == "done" and lines[-1]["finish"] == "cancelled" and lines[-1]["text"] == "some"


def test_reader_that_leaves_cancels_although_nothing_comes(fake):
    f = fake(generate=lambda f, m: f.text(m, b"some"))
    p = subprocess.Popen([BUILD / "bin/kvctl", "--socket", f.path, "generate", "x"], stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert os.read(p.stdout.fileno(), 10) == b"some"
    p.stdout.close()
    assert f.cancelled.wait(20 * PATIENCE)
    assert p.wait(20 * PATIENCE) == 1 and p.stderr.read() == b""
    p.stderr.close()


def test_json_lines(kvctl, fake):
    def generate(f, m):
        f.token(m, 3, b"\xff\x00", float("nan"))
        f.put(k.ALTERNATIVES, m["id"], struct.pack("<II", 1, 0) + struct.pack("<ifII", 5, -1.5, 1, 40) + b"a")
        f.text(m, b"\xe2\x82\xac")
        f.put(k.USAGE, m["id"], struct.pack("<IIIIQQQiI", 4, 1, 2, k.MISS_DIFFERS, 5, 6, 7, 8, 2) + b" \xff")
        f.done(m, k.LENGTH)
    r = kvctl("generate", "--json", "--logprobs", "1", "x", socket=fake(generate=generate).path)
    assert r.returncode == 0
    assert [json.loads(x) for x in r.stdout.splitlines()] == [
        {"type": "token", "id": 3, "logprob": None, "control": False, "text": "�\0", "bytes": [255, 0],
         "alternatives": [{"id": 5, "logprob": -1.5, "text": "a", "bytes": [97]}]},
        {"type": "text", "text": "€"},
        {"type": "done", "finish": "length", "text": "€",
         "usage": {"prompt_tokens": 4, "cached_tokens": 1, "generated_tokens": 2, "queue_ns": 5, "prefill_ns": 6,
                   "decode_ns": 7, "miss": "differs", "miss_token": 8, "miss_text": " \ufffd",
                   "miss_bytes": [32, 255]}}]


NASTY = b"a\x1b[2Jb\r\x07\x7f\xc2\x9bc\tB\xc3\xa4\xff\xe2\x82"


def test_terminal_and_pipe(kvctl, fake):
    """Controls are made visible on a terminal only; a newline ends the text there only."""
    def generate(f, m):
        f.text(m, NASTY)
        f.done(m)
    f = fake(generate=generate)
    assert kvctl("generate", "x", socket=f.path).stdout == NASTY
    rc, out = run_on_terminal([BUILD / "bin/kvctl", "--socket", f.path, "generate", "-q", "x"])
    assert rc == 0
    assert out == "a^[[2Jb^M^G^?<U+009B>c\tBä���\r\n".encode()


def test_figures_go_to_a_terminal_only(fake):
    def generate(f, m):
        f.put(k.PROGRESS, m["id"], struct.pack("<II", 3, 9))
        f.text(m, b"word")
        f.put(k.USAGE, m["id"], struct.pack("<IIIIQQQiI", 9, 0, 1, 0, 5, 6, 10**9, -1, 0))
        f.done(m)
    f = fake(generate=generate)
    rc, out = run_on_terminal([BUILD / "bin/kvctl", "--socket", f.path, "generate", "x"])
    assert rc == 0 and b"prefill 3/9" in out and b"word\r\n" in out and b"9 prompt tokens" in out
    assert b"first that" not in out
    assert next(m for i, m in f.got if i == k.GENERATE)["progress"] is True


def test_why_a_prompt_missed_is_told(fake):
    def generate(f, m):
        f.text(m, b"word")
        f.put(k.USAGE, m["id"], struct.pack("<IIIIQQQiI", 3012, 3000, 1, k.MISS_DIFFERS, 5, 6, 10**9, 7, 9) + b" Pa\x1bris\"\xff")
        f.done(m)
    f = fake(generate=generate)
    rc, out = run_on_terminal([BUILD / "bin/kvctl", "--socket", f.path, "generate", "x"])
    assert rc == 0
    assert b'[3000 of 3012 prompt tokens cached; first that differs: " Pa\\x1bris\\"\\xff"]' in out, out


def test_cache_options_reach_the_daemon(kvctl, fake):
    def generate(f, m):
        f.done(m)
    f = fake(generate=generate)
    r = kvctl("generate", "--namespace", "group:staff", "--cache-key", "k", "--ttl", "7d", "--priority", "high", "--pin", "x",
              socket=f.path)
    assert r.returncode == 0, r.stderr
    r = kvctl("generate", "--no-cache", "x", socket=f.path)
    assert r.returncode == 0, r.stderr
    one, two = (m for i, m in f.got if i == k.GENERATE)
    assert (one["namespace"], one["cache_key"], one["ttl_s"], one["priority"], one["pin"]) == \
        ("group:staff", "k", 7 * 86400, 2, True)
    assert two["namespace"] == "none" and "cache_key" not in two and "ttl_s" not in two and two["pin"] is False
    assert two["priority"] == 1


# --- a private daemon that is a script ---------------------------------------

def script(path, text):
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def test_private_daemon_arguments_and_log(kvctl, directory):
    (directory / "m.gguf").write_bytes(b"GGUF")
    daemon = script(directory / "kvd", 'echo "args: $@"\necho "stderr: $@" >&2\necho "cwd $(pwd)" >&2\nexit 9\n')
    sock = directory / "run" / "kvd.sock"
    r = kvctl("generate", "-m", "m.gguf", "x", socket=sock, env={"KVD_DAEMON": str(daemon)}, cwd=directory)
    assert r.returncode == 1
    assert b"exit status 9" in r.stderr
    want = f"stderr: --model {directory}/m.gguf --socket {sock} --idle-exit 300"
    assert want.encode() in r.stderr and b"cwd /\n" in r.stderr
    assert b"args:" not in r.stderr
    assert (directory / "run").stat().st_mode & 0o777 == 0o700
    assert (directory / "run" / "kvd.sock.log").stat().st_mode & 0o777 == 0o600


def test_private_daemon_not_found(kvctl, directory):
    (directory / "m.gguf").write_bytes(b"GGUF")
    r = kvctl("generate", "-m", directory / "m.gguf", "x", socket=directory / "s",
              env={"KVD_DAEMON": str(directory / "nothing")})
    assert r.returncode == 3 and b"nothing" in r.stderr


def test_private_daemon_inherits_nothing(kvctl, directory):
    (directory / "m.gguf").write_bytes(b"GGUF")
    daemon = script(directory / "kvd", "ls -l /proc/self/fd >&2\nexit 1\n")
    r, w = os.pipe()
    os.set_inheritable(w, True)
    out = kvctl("generate", "-m", directory / "m.gguf", "x", socket=directory / "s", env={"KVD_DAEMON": str(daemon)},
                pass_fds=[w])
    os.close(r)
    os.close(w)
    assert out.returncode == 1 and b"pipe:" not in out.stderr


def test_the_log_is_no_link(kvctl, directory):
    """A link where the log goes must not be followed."""
    (directory / "m.gguf").write_bytes(b"GGUF")
    victim = directory / "victim"
    victim.write_text("precious")
    (directory / "s.log").symlink_to(victim)
    r = kvctl("generate", "-m", directory / "m.gguf", "x", socket=directory / "s", env={"KVD_DAEMON": "/bin/false"})
    assert r.returncode == 1 and victim.read_text() == "precious"
