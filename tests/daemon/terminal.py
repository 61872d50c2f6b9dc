# SPDX-License-Identifier: Apache-2.0
"""Programs on a terminal of their own."""
import os
import pty


def run_on_terminal(args, answer=b""):
    """(exit status, output in bytes) of a program on a terminal where this is typed."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(args[0], [str(a) for a in args])
    os.write(fd, answer)
    out = b""
    while True:
        try:
            data = os.read(fd, 65536)
        except OSError:
            break
        if not data:
            break
        out += data
    os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), out
