# SPDX-License-Identifier: Apache-2.0
"""A client that makes requests as it is told on its standard input; run under a uid of its own.

    asker.py SOCKET

Each line is a JSON object {"op": ..., ...}: "generate" with the fields of Client.submit(), answered when it has ended;
"status" and "page": what this uid can see.  Answers are one line each.
"""
import json
import struct
import subprocess
import sys
import time

import kvdclient as k

# In the order of struct kvd_stats; the first ones are the same on every page, and times differ.
PAGE_FIRST = 5


class Asker:
    """The other end, for the test."""

    def __init__(self, script, socket, uid=None):
        user = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
        self.proc = subprocess.Popen([sys.executable, script, socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     text=True, **user)

    def __call__(self, op, **fields):
        self.begin(op, **fields)
        return self.end()

    def begin(self, op, **fields):
        self.proc.stdin.write(json.dumps({"op": op, **fields}) + "\n")
        self.proc.stdin.flush()

    def end(self):
        line = self.proc.stdout.readline()
        assert line, "the asker died"
        return json.loads(line)

    def close(self):
        self.proc.stdin.close()
        self.proc.wait()
        self.proc.stdout.close()


def page(c):
    """The figures of the statistics page that are not times."""
    n_words, = struct.unpack_from("<I", c.stats, 16)
    for _ in range(1000):
        before = k.words(c.stats)[64 // 8]
        words = struct.unpack_from(f"<{n_words}Q", c.stats, 72)
        after = k.words(c.stats)[64 // 8]
        if before == after and before % 2 == 0:
            return words[PAGE_FIRST:]
    raise AssertionError("the page is always being written")


def generate(c, fields):
    begin = time.monotonic_ns()
    rid, result, first = c.submit(**fields), k.Result(), 0
    while not result.ended:
        kind, got, payload = c.next_record(120)
        if got == rid:
            if kind == k.TOKEN and not first:
                first = time.monotonic_ns() - begin
            result.add(kind, c.decode(kind, payload))
    return {"ids": result.ids, "logprobs": [str(v) for v in result.logprobs], "usage": result.usage,
            "progress": result.progress, "error": str(result.error or ""), "first_ns": first}


def main():
    with k.Client(sys.argv[1], name="asker", timeout=60) as c:
        for line in sys.stdin:
            fields = json.loads(line)
            op = fields.pop("op")
            if op == "generate":
                answer = generate(c, fields)
            elif op == "status":
                answer = c.call(k.STATUS)
            else:
                answer = page(c)
            print(json.dumps(answer, default=repr), flush=True)


if __name__ == "__main__":
    main()
