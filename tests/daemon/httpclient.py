# SPDX-License-Identifier: Apache-2.0
"""An HTTP client that is strict about what it gets, and can misbehave in ways that libraries refuse to.

Parser has no sockets: bytes go in, replies come out.  Connection uses it for one thread; test_http_load.py for many
streams at once.  An address is ("unix", PATH) or ("tcp", PORT).
"""
import json
import socket
import struct


class Parser:
    """Replies of one connection."""

    def __init__(self):
        self.buffer = b""
        self.status = None      # of the reply that is coming; None: none
        self.headers = {}
        self.left = None        # bytes of the body, or of the chunk; None: a line is due
        self.chunked = False
        self.in_trailer = False

    def feed(self, data):
        """A list of what it completes: ("head", status, headers), ("data", bytes), ("end",)."""
        self.buffer += data
        out = []
        while self._step(out):
            pass
        return out

    def _line(self):
        line, found, rest = self.buffer.partition(b"\r\n")
        if not found:
            assert len(self.buffer) < 65536, "a line without an end"
            return None
        self.buffer = rest
        return line

    def _end(self, out):
        self.status, self.left, self.chunked, self.in_trailer = None, None, False, False
        out.append(("end",))

    def _step(self, out):
        if self.status is None:
            return self._head(out)
        if self.left is None:
            return self._chunk_line(out)
        if self.left:
            data, self.buffer = self.buffer[:self.left], self.buffer[self.left:]
            self.left -= len(data)
            if data:
                out.append(("data", data))
        if self.left:
            return False
        if not self.chunked:
            self._end(out)
            return bool(self.buffer)
        if len(self.buffer) < 2:
            return False
        assert self.buffer[:2] == b"\r\n", "a chunk has no end"
        self.buffer = self.buffer[2:]
        self.left = None
        return True

    def _head(self, out):
        head, found, rest = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return False
        self.buffer = rest
        first, *lines = head.decode("ascii").split("\r\n")
        version, status, _ = first.split(" ", 2)
        assert version == "HTTP/1.1", first
        self.headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            assert name.lower() not in self.headers, f"{name} twice"
            self.headers[name.lower()] = value.strip()
        out.append(("head", int(status), self.headers))
        if int(status) < 200:
            return True
        self.status = int(status)
        self.chunked = self.headers.get("transfer-encoding") == "chunked"
        assert self.chunked != ("content-length" in self.headers), self.headers
        self.left = None if self.chunked else int(self.headers["content-length"])
        return True

    def _chunk_line(self, out):
        line = self._line()
        if line is None:
            return False
        if self.in_trailer:
            if not line:
                self._end(out)
            return True
        self.left = int(line, 16)
        if not self.left:
            self.left, self.in_trailer = None, True
        return True


class Events:
    """Server-sent events out of the pieces of a body."""

    def __init__(self):
        self.buffer = b""
        self.done = False

    def feed(self, data):
        """The objects of events; pings are None."""
        self.buffer += data
        out = []
        while b"\n\n" in self.buffer:
            event, _, self.buffer = self.buffer.partition(b"\n\n")
            assert not self.done, "an event after the last"
            if event.startswith(b":"):
                out.append(None)
                continue
            assert event.startswith(b"data: ") and b"\n" not in event, event
            if event == b"data: [DONE]":
                self.done = True
            else:
                out.append(json.loads(event[6:].decode()))
        return out


def request(path, body=None, method=None, headers=()):
    """The bytes of a request; body: a dict, or bytes."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    lines = [f"{method or ('GET' if body is None else 'POST')} {path} HTTP/1.1", "Host: localhost", *headers]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, "", ""]).encode() + data


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)


class Connection:
    def __init__(self, address, timeout=20, receive_buffer=0):
        kind, place = address
        self.sock = socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET)
        if receive_buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(timeout)
        self.sock.connect(str(place) if kind == "unix" else ("127.0.0.1", place))
        self.parser = Parser()
        self.waiting = []       # what has come and was not asked for

    def send(self, *args, **kw):
        self.sock.sendall(request(*args, **kw))

    def _next(self):
        while not self.waiting:
            data = self.sock.recv(65536)
            if not data:
                raise ConnectionError("the connection was closed")
            self.waiting += self.parser.feed(data)
        return self.waiting.pop(0)

    def head(self):
        kind, status, headers = self._next()
        assert kind == "head"
        return status, headers

    def pieces(self):
        while True:
            kind, *rest = self._next()
            if kind == "end":
                return
            assert kind == "data"
            yield rest[0]

    def reply(self):
        status, headers = self.head()
        return Reply(status, headers, b"".join(self.pieces()))

    def call(self, *args, **kw):
        self.send(*args, **kw)
        return self.reply()

    def events(self):
        """After a request with "stream": its events, until the last one."""
        status, headers = self.head()
        if status != 200:
            raise AssertionError((status, b"".join(self.pieces())))
        assert headers["content-type"].startswith("text/event-stream")
        events = Events()
        for piece in self.pieces():
            yield from events.feed(piece)
        assert events.done and not events.buffer

    def reset(self):
        """Ends by a reset where the transport has one."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


def call(address, *args, timeout=20, **kw):
    with Connection(address, timeout) as c:
        return c.call(*args, **kw)
