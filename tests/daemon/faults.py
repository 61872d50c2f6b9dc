# SPDX-License-Identifier: Apache-2.0
"""Drives tests/faults/faults.c: arms faults in a running kvd-faults and reads what happened."""
import mmap
import struct
import subprocess

from kvdclient import words

COMMON = ("alloc", "read", "map", "thread", "file")     # of every daemon
KINDS = (*COMMON, "disk")
TRACE = 256
HEAD = 24
CLOCK = HEAD + 32 * len(KINDS) + 16 * TRACE
SIZE = CLOCK + 8


class Faults:
    """The control block, in a file that the daemon maps too."""

    def __init__(self, path):
        self.path = path
        with open(path, "wb") as f:
            f.truncate(SIZE)
        with open(path, "r+b") as f:
            self.map = mmap.mmap(f.fileno(), SIZE)
        self.words = words(self.map)

    def environment(self):
        return {"KVD_TEST_FAULTS": str(self.path)}

    def _get(self, offset):
        return self.words[offset // 8]

    def _set(self, offset, value):
        self.words[offset // 8] = value

    @staticmethod
    def _kind(kind):
        return HEAD + 32 * KINDS.index(kind)

    def calls(self, kind):
        return self._get(self._kind(kind))

    def injected(self, *kinds):
        return sum(self._get(self._kind(k) + 8) for k in kinds or KINDS)

    def by_count(self, kind, n):
        """The n-th call of this kind from now on fails, once."""
        self.disarm()
        self._set(self._kind(kind) + 16, self.calls(kind) + n)
        self._set(0, 1)

    def at_random(self, seed, **one_in):
        """One call in so many fails, by kind."""
        self.disarm()
        self._set(8, seed)
        for kind, n in one_in.items():
            self._set(self._kind(kind) + 24, n)
        self._set(0, 1)

    def disarm(self):
        self._set(0, 0)
        for kind in KINDS:
            self._set(self._kind(kind) + 16, 0)
            self._set(self._kind(kind) + 24, 0)

    def set_clock(self, seconds):
        """The daemon's time of day is so far ahead, or behind."""
        self._set(CLOCK, (seconds * 10 ** 9) % (1 << 64))

    def where(self, program, last=8):
        """The places of the last faults, newest last, as "kind at function file:line"."""
        n = self._get(16)
        entries = []
        for i in range(max(0, n - min(last, TRACE)), n):
            kind, caller = struct.unpack_from("<QQ", self.map, HEAD + 32 * len(KINDS) + 16 * (i % TRACE))
            entries.append((KINDS[kind], caller))
        if not entries:
            return "none"
        out = subprocess.run(["addr2line", "-f", "-e", program, *(hex(c - 1) for _, c in entries)],
                             stdout=subprocess.PIPE, text=True, check=False).stdout.split("\n")
        return "; ".join(f"{kind} in {out[2 * i]} {out[2 * i + 1].rpartition('/')[2]}"
                         for i, (kind, _) in enumerate(entries) if 2 * i + 1 < len(out))
