# SPDX-License-Identifier: Apache-2.0
"""A client process that behaves in a chosen way; run under a uid of its own.

    peer.py MODE SOCKET PROMPT N

Prints "ready" once its request runs.  It never ends by itself within a minute:
the test ends it.
"""
import os
import random
import socket
import struct
import sys
import time

import kvdclient as k
import msgpack


def until_first_token(c):
    while True:
        r = c.next_record(60)
        assert r is not None
        if r[0] == k.TOKEN:
            return


def ready():
    print("ready", flush=True)


def reader(c, prompt, n):
    """Reads all; the test kills or stops it in the middle."""
    c.submit(prompt, n=n, ignore_eos=True)
    until_first_token(c)
    ready()
    while True:
        c.next_record(60)


def many(c, prompt, n):
    """Has PEER_COUNT requests at once, of different prompts, and reads all."""
    for i in range(int(os.environ["PEER_COUNT"])):
        c.submit(f"{i} {prompt}", n=n, ignore_eos=True)
    until_first_token(c)
    ready()
    while True:
        c.next_record(60)


def garbage(c, prompt, n):
    """Writes garbage all over its segment, read index and waiting flag included."""
    c.submit(prompt, n=n, ignore_eos=True)
    until_first_token(c)
    rng = random.Random(1)
    ready()
    try:
        for turn in range(3000):
            c.seg[:k.DATA] = rng.randbytes(k.DATA)
            if turn % 100 == 0:
                c.seg[k.DATA:k.DATA + 65536] = rng.randbytes(65536)
                c.send(k.ROOM, {})
            time.sleep(0.001)
        c.seg[:] = b"\xff" * len(c.seg)
        c.submit(prompt, n=n)
    except OSError:
        pass            # the daemon may end such a session
    time.sleep(60)


def malformed(c, prompt, n):
    """Sends messages that are none, too large, of wrong types, or carry descriptors."""
    rng = random.Random(2)
    c.submit(prompt, n=n, ignore_eos=True)
    until_first_token(c)
    path = sys.argv[2]
    messages = [b"", b"\xc1", b"\x92", b"\x92\x10", b"\x92\x10\x80", b"\xdd\xff\xff\xff\xff",
                b"\x92\x10\xdf\xff\xff\xff\xff", b"\x91" * 60000, msgpack.packb([0x7777, {}]),
                msgpack.packb([k.GENERATE, {"id": 0}]),
                msgpack.packb([k.GENERATE, {"id": 9, "prompt": [[0, 2**63, 2**63]]}]),
                msgpack.packb([k.GENERATE, {"id": 9, "prompt": [[0, c.arena_size - 1, 2]]}]),
                msgpack.packb([k.GENERATE, {"id": 9, "prompt": [[7, 0, 4]]}]),
                msgpack.packb([k.GENERATE, {"id": 9, "prompt": [[1, 1, 4]]}]),
                msgpack.packb([k.GENERATE, {"id": 9, "prompt": [[0, 0, 4]], "temperature": float("nan")}]),
                msgpack.packb([k.GENERATE, {"id": 9, "prompt": [[0, 0, 4]], "n": -1}]),
                msgpack.packb([k.GENERATE, {"id": 9, "prompt": [[0, 0, 4]], "stop": [""]}]),
                msgpack.packb([k.GENERATE, {"id": 9, "prompt": [[0, 0, 4]], "stop": ["x"] * 1000}]),
                msgpack.packb([k.GENERATE, {"id": 9, "model": "../../etc/passwd", "prompt": [[0, 0, 4]]}]),
                msgpack.packb([k.WELCOME, {}]), msgpack.packb([k.HELLO, {"version": k.VERSION}]),
                msgpack.packb([k.TOKENIZE, {"id": 3, "offset": 0, "length": 8, "out_offset": 2**64 - 4,
                                            "out_length": 8}]),
                msgpack.packb([k.CANCEL, {"id": "x" * 60000}])]
    ready()
    for i in range(40):
        try:
            s = k.Client(path, name="malformed")
            s.sock.settimeout(1)
            for _ in range(12):
                m = rng.choice(messages)
                if rng.random() < 0.3:
                    m = bytes(rng.randbytes(rng.randrange(1, 300)))
                s.sock.send(m)
            big = b"\x92\x10" + b"\x00" * (k.MESSAGE_MAX + 10)
            try:
                s.sock.send(big)
            except OSError:
                pass
            fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(4)]
            socket.send_fds(s.sock, [msgpack.packb([k.STATUS, {"id": 5}])], fds)
            for fd in fds:
                os.close(fd)
            s.close()
        except (OSError, k.Closed, k.Refused, AssertionError):
            pass
    time.sleep(60)


def deaf(c, prompt, n):
    """Never reads its socket, and asks for more and more."""
    c.submit(prompt, n=n, ignore_eos=True)
    ready()
    c.sock.setblocking(False)
    sent = 0
    for _ in range(200000):
        try:
            c.send(k.STATUS, {"id": 77})
            struct.pack_into("<I", c.seg, k.READER_WAITING, 1)
            sent += 1
        except BlockingIOError:
            time.sleep(0.01)
            if sent > 20000:
                break
        except OSError:
            break
    time.sleep(60)


def main():
    mode, path, prompt, n = sys.argv[1:5]
    with k.Client(path, name=mode, timeout=60) as c:
        {"reader": reader, "many": many, "garbage": garbage, "malformed": malformed, "deaf": deaf}[mode](c, prompt, int(n))


main()
