# SPDX-License-Identifier: Apache-2.0
"""A second implementation of the client side of ipc/PROTOCOL.md.

Independent of libkvd on purpose: it is the oracle for the protocol document,
and it can misbehave in ways that a library refuses to.  It has no memory
fences, so it sleeps by the `wait` message.
"""
import array
import mmap
import os
import select
import socket
import struct
import time

import msgpack

VERSION = 5
HELLO, GENERATE, CANCEL, ROOM, WAIT, TOKENIZE, STATUS, MODELS, PS = (
    0x01, 0x10, 0x11, 0x12, 0x13, 0x18, 0x20, 0x21, 0x22)
WELCOME, REFUSED, ERROR, WAKE, TOKENIZED = 0x81, 0x82, 0x90, 0x92, 0x98
LOAD, UNLOAD, LOADED, UNLOADED, LOADING = 0x28, 0x29, 0xa8, 0xa9, 0xaa
STATUS_REPLY, MODELS_REPLY, PS_REPLY = 0xa0, 0xa1, 0xa2
CACHE_LS, CACHE_SHOW, CACHE_PIN, CACHE_UNPIN, CACHE_DROP, CACHE_WIPE = 0x30, 0x31, 0x32, 0x33, 0x34, 0x35
CACHE_EXPORT, CACHE_IMPORT, CACHE_VERIFY = 0x36, 0x37, 0x38
CACHE_LS_REPLY, CACHE_SHOW_REPLY, CACHE_DONE = 0xb0, 0xb1, 0xb2
CACHE_SHARED, CACHE_VERIFIED, CACHE_PROGRESS = 0xb3, 0xb4, 0xb5
MESSAGE_MAX = 65536
CACHE_LS_MAX = 120
DATA = 4096
MAGIC = 0x474e5252
READ_INDEX, READER_WAITING = 0, 64              # in the client segment
WRITE_INDEX, WRITER_WAITING, CLOSED = 64, 128, 132   # in the ring

PAD, TOKEN, TEXT, ALTERNATIVES, PROMPT, PROGRESS, USAGE, DONE, ERROR_REC = range(9)
STOP, STOP_STRING, LENGTH, CANCELLED = 1, 2, 3, 4
(MISS_NONE, MISS_NO_CACHE, MISS_EMPTY, MISS_DIFFERS, MISS_EXPIRED, MISS_EVICTED, MISS_NAMESPACE, MISS_LOGPROBS,
 MISS_KEY, MISS_BLOCK) = range(10)


class Refused(Exception):
    def __init__(self, fields):
        super().__init__(str(fields))
        self.fields = fields
        self.code = fields.get("code")
        self.field = fields.get("field", "")


class Closed(Exception):
    pass


def words(memory):
    """
    Its words of 8 bytes.  An item of such a view is read and written by one access, as the protocol asks of indexes;
    struct goes byte by byte, and the other side would now and then see half an index.
    """
    return memoryview(memory).cast("Q")


class Client:
    def __init__(self, path, name="pytest", ring=0, arena=0, hello=True, timeout=20):
        self.timeout = timeout
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(timeout)
        self.sock.connect(str(path))
        self.ring = self.seg = self.stats = self.ring_words = self.seg_words = None
        self.replies = []
        self.read_index = 0
        self.room_sent = 0
        self.next_id = 1
        self.arena_used = 0
        if hello:
            self.hello(name, ring or 1 << 20, arena or 4 << 20)

    # -- messages ----------------------------------------------------------

    def send(self, msg, fields):
        self.sock.send(msgpack.packb([msg, fields]))

    def hello(self, name, ring, arena):
        try:
            self.send(HELLO, {"version": VERSION, "client": name, "ring": ring, "arena": arena})
        except BrokenPipeError:
            pass        # refused before a greeting: why is there to read
        try:
            data, fds, _, _ = socket.recv_fds(self.sock, MESSAGE_MAX, 8)
        except ConnectionResetError:    # closed with our greeting unread; what it said comes after
            data, fds, _, _ = socket.recv_fds(self.sock, MESSAGE_MAX, 8)
        if not data:
            raise Closed()
        msg, fields = msgpack.unpackb(data)
        if msg != WELCOME:
            for fd in fds:
                os.close(fd)
            raise Refused(fields)
        assert len(fds) == 3
        self.welcome = fields
        self.arena_size = fields["arena"]
        self.ring_size = fields["ring"]
        self.ring_fd_writable = self._can_map_writable(fds[0])
        self.ring = mmap.mmap(fds[0], DATA + self.ring_size, mmap.MAP_SHARED, mmap.PROT_READ)
        self.seg = mmap.mmap(fds[1], DATA + self.arena_size, mmap.MAP_SHARED)
        self.stats = mmap.mmap(fds[2], os.fstat(fds[2]).st_size, mmap.MAP_SHARED, mmap.PROT_READ)
        self.ring_words, self.seg_words = words(self.ring), words(self.seg)
        for fd in fds:
            os.close(fd)
        magic, version, offset, size = struct.unpack_from("<IIQQ", self.ring, 0)
        self.read_index = self.seg_words[READ_INDEX // 8]
        assert (magic, version, offset, size) == (MAGIC, VERSION, DATA, self.ring_size)

    @staticmethod
    def _can_map_writable(fd):
        try:
            mmap.mmap(fd, 4096, mmap.MAP_SHARED).close()
            return True
        except (PermissionError, OSError):
            return False

    def receive(self, timeout=None):
        """The next message that is no wake-up, or None after the time-out."""
        end = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.sock], [], [], left)[0]:
                return None
            data = self.sock.recv(MESSAGE_MAX)
            if not data:
                raise Closed()
            msg, fields = msgpack.unpackb(data)
            if msg != WAKE:
                return msg, fields

    def call(self, msg, fields=None):
        rid = self.next_id
        self.next_id += 1
        self.send(msg, {"id": rid, **(fields or {})})
        while True:
            got = self.receive()
            assert got is not None, "no reply"
            if got[1].get("id") == rid:
                if got[0] == ERROR:
                    raise Refused(got[1])
                return got[1]
            self.replies.append(got)

    def cache_ls(self, **fields):
        """All pages: the entries."""
        entries, after = [], 0
        while True:
            page = self.call(CACHE_LS, {**fields, **({"after": after} if after else {})})
            assert len(page["entries"]) <= CACHE_LS_MAX
            entries += page["entries"]
            if not page.get("next"):
                return entries
            assert page["next"] == entries[-1]["entry"]
            after = page["next"]

    def load(self, path, name, fds=None, wait=True, **fields):
        """Loads a file, or what fds are; the reply, or without waiting the message's id."""
        rid = self.next_id
        self.next_id += 1
        own = [os.open(path, os.O_RDONLY)] if fds is None else []
        socket.send_fds(self.sock, [msgpack.packb([LOAD, {"id": rid, "name": name, **fields}])],
                        own if fds is None else fds)
        for fd in own:
            os.close(fd)
        return self.reply(rid) if wait else rid

    def share(self, msg, fd, wait=True, **fields):
        """cache_export or cache_import of a descriptor; the reply, or without waiting the message's id."""
        rid = self.next_id
        self.next_id += 1
        socket.send_fds(self.sock, [msgpack.packb([msg, {"id": rid, **fields}])], [fd])
        return self.reply(rid) if wait else rid

    def reply(self, rid, timeout=None):
        """The answer to a question that was sent."""
        while True:
            for i, (_, fields) in enumerate(self.replies):
                if fields.get("id") == rid and _ not in (LOADING, CACHE_PROGRESS):
                    del self.replies[i]
                    if _ == ERROR:
                        raise Refused(fields)
                    return fields
            got = self.receive(timeout)
            assert got is not None, "no reply"
            self.replies.append(got)

    def put(self, data):
        """Copies bytes into the arena, returns their offset."""
        offset = (self.arena_used + 7) & ~7
        if offset + len(data) > self.arena_size:
            offset = 0
        assert len(data) <= self.arena_size
        self.seg[DATA + offset:DATA + offset + len(data)] = data
        self.arena_used = offset + len(data)
        return offset

    def submit(self, prompt=None, ids=None, messages=None, **fields):
        rid = self.next_id
        self.next_id += 1
        f = {"id": rid, "temperature": 0.0, **fields}
        if messages is not None:
            f["messages"] = []
            for role, text in messages:
                raw = text.encode() if isinstance(text, str) else text
                is_ids = isinstance(text, list)
                raw = array.array("i", text).tobytes() if is_ids else raw
                f["messages"].append([role, int(is_ids), self.put(raw), len(raw)])
        elif ids is not None:
            raw = array.array("i", ids).tobytes()
            f["prompt"] = [[1, self.put(raw), len(raw)]]
        else:
            raw = prompt.encode() if isinstance(prompt, str) else prompt
            f["prompt"] = [[0, self.put(raw), len(raw)]]
        self.send(GENERATE, f)
        return rid

    def cancel(self, rid):
        self.send(CANCEL, {"id": rid})

    def tokenize(self, text, special=False, bos=False, capacity=None):
        raw = text.encode() if isinstance(text, str) else text
        offset = self.put(raw)
        room = 4 * (capacity if capacity is not None else len(raw) + 16)
        out = self.put(b"\0" * room)
        r = self.call(TOKENIZE, {"offset": offset, "length": len(raw), "special": special, "bos": bos,
                                 "out_offset": out, "out_length": room})
        a = array.array("i")
        a.frombytes(self.seg[DATA + out:DATA + out + 4 * r["count"]])
        return list(a)

    # -- the ring ----------------------------------------------------------

    def write_index(self):
        return self.ring_words[WRITE_INDEX // 8]

    def poll_record(self):
        """The next record as (type, request, payload bytes), or None."""
        while self.read_index != self.write_index():
            at = DATA + self.read_index % self.ring_size
            size, kind, flags, request = struct.unpack_from("<IHHQ", self.ring, at)
            assert size >= 16 and size % 8 == 0 and at + size <= DATA + self.ring_size
            payload = self.ring[at + 16:at + size]
            self.read_index = (self.read_index + size) % (1 << 64)
            self.seg_words[READ_INDEX // 8] = self.read_index
            waiting = struct.unpack_from("<I", self.ring, WRITER_WAITING)[0]
            unread = (self.write_index() - self.read_index) % (1 << 64)
            if waiting and waiting != self.room_sent and unread <= self.ring_size // 2:
                self.room_sent = waiting
                self.send(ROOM, {})
            if kind != PAD:
                return kind, request, payload
        return None

    def next_record(self, timeout=None):
        end = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            r = self.poll_record()
            if r:
                return r
            self.send(WAIT, {})
            left = end - time.monotonic()
            if left <= 0:
                return None
            if select.select([self.sock], [], [], left)[0]:
                data = self.sock.recv(MESSAGE_MAX)
                if not data:
                    r = self.poll_record()
                    if r:
                        return r
                    raise Closed()
                msg, fields = msgpack.unpackb(data)
                if msg == ERROR:
                    raise Refused(fields)
                if msg != WAKE:
                    self.replies.append((msg, fields))

    @staticmethod
    def decode(kind, payload):
        if kind == TOKEN:
            tid, logprob, n, control = struct.unpack_from("<ifII", payload)
            return {"id": tid, "logprob": logprob, "bytes": payload[16:16 + n], "control": bool(control)}
        if kind == TEXT:
            n, _ = struct.unpack_from("<II", payload)
            return {"bytes": payload[8:8 + n]}
        if kind == ALTERNATIVES:
            n, _ = struct.unpack_from("<II", payload)
            items = []
            for i in range(n):
                tid, logprob, nb, off = struct.unpack_from("<ifII", payload, 8 + 16 * i)
                items.append((tid, logprob, payload[off - 16:off - 16 + nb]))
            return {"items": items}
        if kind == PROMPT:
            tid, logprob, position, n = struct.unpack_from("<ifII", payload)
            return {"id": tid, "logprob": logprob, "position": position, "bytes": payload[16:16 + n]}
        if kind == PROGRESS:
            return dict(zip(("done", "total"), struct.unpack_from("<II", payload)))
        if kind == USAGE:
            d = dict(zip(("prompt", "cached", "generated", "miss", "queue_ns", "prefill_ns", "decode_ns", "miss_token",
                          "n_bytes"), struct.unpack_from("<IIIIQQQiI", payload)))
            d["miss_bytes"] = payload[48:48 + d["n_bytes"]]
            return d
        if kind == DONE:
            return dict(zip(("reason", "stop_index"), struct.unpack_from("<II", payload)))
        if kind == ERROR_REC:
            code, n = struct.unpack_from("<II", payload)
            return {"code": code, "text": payload[8:8 + n]}
        return {}

    def collect(self, *rids, timeout=None):
        """Reads until every request has ended; {rid: Result}."""
        results = {r: Result() for r in rids}
        end = time.monotonic() + (120 if timeout is None else timeout)
        while not all(r.ended for r in results.values()):
            rec = self.next_record(max(0.0, end - time.monotonic()))
            assert rec is not None, "request did not end in time"
            kind, rid, payload = rec
            if rid in results:
                results[rid].add(kind, self.decode(kind, payload))
        return results

    def generate(self, prompt=None, timeout=None, **kw):
        rid = self.submit(prompt, **kw)
        return self.collect(rid, timeout=timeout)[rid]

    def close(self):
        self.sock.close()
        for view in (self.ring_words, self.seg_words):
            if view is not None:
                view.release()
        for m in (self.ring, self.seg, self.stats):
            if m is not None:
                m.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


class Result:
    def __init__(self):
        self.ids, self.logprobs, self.alternatives = [], [], []
        self.text = b""
        self.token_bytes = b""
        self.usage = self.reason = self.error = None
        self.progress = []
        self.prompt = []
        self.ended = False

    def add(self, kind, d):
        assert not self.ended, "a record after the last"
        if kind == TOKEN:
            self.ids.append(d["id"])
            self.logprobs.append(d["logprob"])
            if not d["control"]:
                self.token_bytes += d["bytes"]
        elif kind == TEXT:
            d["bytes"].decode()         # whole code points in every record
            self.text += d["bytes"]
        elif kind == ALTERNATIVES:
            self.alternatives.append(d["items"])
        elif kind == PROMPT:
            self.prompt.append(d)
        elif kind == PROGRESS:
            self.progress.append((d["done"], d["total"]))
        elif kind == USAGE:
            self.usage = d
        elif kind == DONE:
            self.reason = d["reason"]
            self.stop_index = d["stop_index"]
            self.ended = True
        elif kind == ERROR_REC:
            self.error = d
            self.ended = True
