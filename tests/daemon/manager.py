# SPDX-License-Identifier: Apache-2.0
"""A service manager with one service, kvd: what systemd does for it, and strict about what it is told.

It listens on NOTIFY_SOCKET, keeps the descriptors that are sent there (FDSTORE=1, SCM_RIGHTS), passes them to the next
process (LISTEN_FDS, LISTEN_FDNAMES), with or without a listening socket, and forgets those of a name (FDSTOREREMOVE=1).
As systemd 252 does: a file that is in the store already is not stored twice, one more than fits is not stored, all are lost
when the service is stopped for good.  What no good service would send is a fault, which check() raises.
"""
import array
import fcntl
import os
import re
import signal
import socket
import stat
import struct
import threading
import time

from conftest import BUILD, PATIENCE, SANITIZED, Daemon

KEYS = {"READY", "STOPPING", "STATUS", "WATCHDOG", "FDSTORE", "FDSTOREREMOVE", "FDNAME"}
F_GET_SEALS, F_SEAL_SHRINK = 1034, 2


def sanitizers():
    """Signals that a test sends are no findings; a crash of its own ends the process, too, which is one."""
    off = ":".join(f"handle_{name}=0" for name in ("segv", "sigbus", "abort", "sigill", "sigfpe"))
    return {name: ":".join(o for o in (os.environ.get(name), off) if o)
            for name in ("ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS")} if SANITIZED else {}


class Kept:
    """A descriptor in the store."""

    def __init__(self, name, fd):
        self.name, self.fd = name, fd
        st = os.fstat(fd)
        self.file = (st.st_dev, st.st_ino)


class Managed(Daemon):
    """A daemon whose socket may be the manager's."""

    def __init__(self, manager, *args, **kw):
        super().__init__(*args, **kw)
        self.leaves_socket = bool(manager.listening)

    def crash(self, number=signal.SIGKILL):
        self.stopped = True
        self.proc.send_signal(number)
        assert self.proc.wait(20 * PATIENCE) == -number, self.log.read_text()


class Manager:
    """options: of every start; more may be added to each."""

    def __init__(self, directory, *options, listen=False, abstract=False, max_fds=8, notify=True):
        self.dir, self.options = directory, options
        self.socket_path = directory / "managed.sock"
        self.max_fds, self.notify = max_fds, notify
        self.store = []             # of Kept, in order
        self.refused = []           # names that had no room
        self.messages = []          # of dicts, in order
        self.faults = []
        self.pids = set()
        self.ready = threading.Event()
        self.ready_at = None        # time.perf_counter() of it
        self.lock = threading.Lock()
        self.synced = threading.Event()
        self.daemon = None
        self.listening = None
        if listen:
            self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.listening.bind(str(self.socket_path))
            self.listening.listen(64)
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        # What is abstract begins with a NUL, which is @ in the environment.
        self.notify_path = f"@{directory}/notify" if abstract else str(directory / "notify")
        self.sock.bind("\0" + self.notify_path[1:] if abstract else self.notify_path)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    # -- what it is told ----------------------------------------------------

    def run(self):
        while True:
            data, control, flags, _ = self.sock.recvmsg(65536, 4096, socket.MSG_CMSG_CLOEXEC)
            fds, pid = array.array("i"), None
            for level, kind, payload in control:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds.frombytes(payload[:len(payload) - len(payload) % 4])
                elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                    pid = struct.unpack("3i", payload)[0]
            if pid == os.getpid():
                # One of our own: all before it has been taken in.
                self.synced.set()
                if data == b"end":
                    return
                continue
            with self.lock:
                try:
                    self.told(data, list(fds), pid, flags)
                except Exception as e:      # pylint: disable=broad-except
                    self.faults.append(f"{data!r}: {e!r}")

    def fault(self, condition, what, data):
        if not condition:
            self.faults.append(f"{what}: {data!r}")

    def told(self, data, fds, pid, flags):
        self.fault(not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC), "cut", data)
        self.pids.add(pid)
        pairs = [line.split("=", 1) for line in data.decode("ascii").split("\n") if line]
        self.fault(all(len(p) == 2 for p in pairs), "not an assignment", data)
        message = dict(pairs)
        self.fault(len(message) == len(pairs), "a key twice", data)
        self.fault(set(message) <= KEYS, "unknown keys", data)
        self.fault(bool(fds) == ("FDSTORE" in message), "descriptors and FDSTORE go together", data)
        self.fault("FDNAME" not in message or "FDSTORE" in message or "FDSTOREREMOVE" in message, "a name of nothing", data)
        for key in ("READY", "STOPPING", "WATCHDOG", "FDSTORE", "FDSTOREREMOVE"):
            self.fault(message.get(key, "1") == "1", "not 1", data)
        self.messages.append({**message, "fds": len(fds)})
        if "FDSTORE" in message or "FDSTOREREMOVE" in message:
            self.keep(message, fds, data)
        if "READY" in message:
            self.ready_at = time.perf_counter()
            self.ready.set()

    def keep(self, message, fds, data):
        name = message.get("FDNAME", "")
        self.fault(re.fullmatch(r"[!-9;-~]{1,255}", name), "not a name", data)
        if "FDSTOREREMOVE" in message:
            self.forget(name)
        for fd in fds:
            kept = Kept(name, fd)
            st = os.fstat(fd)
            self.fault(stat.S_ISREG(st.st_mode), "not a file", data)
            try:
                seals = fcntl.fcntl(fd, F_GET_SEALS)
            except OSError:
                seals = 0
            self.fault(seals & F_SEAL_SHRINK, f"seals {seals:#x}", data)
            self.fault(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR, "not for reading and writing", data)
            if any(k.file == kept.file for k in self.store):
                self.fault(False, "stored already", data)
                os.close(fd)
            elif len(self.store) >= self.max_fds:
                self.refused.append(name)
                os.close(fd)
            else:
                self.fault(all(k.name != name for k in self.store), "a name twice", data)
                self.store.append(kept)

    def forget(self, name=None):
        for k in [k for k in self.store if name in (None, k.name)]:
            os.close(k.fd)
            self.store.remove(k)

    def tell_self(self, what):
        """Waits for all that was sent before."""
        self.synced.clear()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.sendto(what, self.sock.getsockname())
        assert self.synced.wait(20 * PATIENCE)

    # -- the service --------------------------------------------------------

    def names(self):
        with self.lock:
            return [k.name for k in self.store]

    def fd(self, name):
        """The stored descriptor of a name."""
        with self.lock:
            found = [k.fd for k in self.store if k.name == name]
        assert len(found) == 1, self.names()
        return found[0]

    def put(self, name, fd):
        """Puts something there that nobody sent; taken over."""
        with self.lock:
            self.store.append(Kept(name, fd))

    def start(self, *options, env=None, program=None, sockets=(), wait=True, **kw):
        """sockets: more of them, for the service to refuse."""
        # What the last process has sent comes before its end, as with systemd.
        self.tell_self(b"sync")
        passed = [("kvd.socket", s.fileno()) for s in (self.listening, *sockets) if s]
        with self.lock:
            passed += [(k.name, k.fd) for k in self.store]
        # Out of the way of the numbers that they get.
        fds = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 200) for _, fd in passed]
        env = {**(env or {}), **sanitizers(), **({"NOTIFY_SOCKET": self.notify_path} if self.notify else {})}
        command = [BUILD / "tests/tools/pass-fds", ",".join(map(str, fds)) or "none",
                   ":".join(name for name, _ in passed)]
        self.ready.clear()
        try:
            self.daemon = Managed(self, self.dir, *self.options, *options, env=env, socket=self.socket_path,
                                  program=program, before=command, pass_fds=fds, wait=False, **kw)
        finally:
            for fd in fds:
                os.close(fd)
        if wait:
            self.wait_ready()
        return self.daemon

    def wait_ready(self):
        if not self.notify:
            self.daemon.wait_ready()
            return
        end = time.monotonic() + 60 * PATIENCE
        while not self.ready.wait(0.05):
            assert self.daemon.proc.poll() is None, \
                f"kvd exited {self.daemon.proc.returncode}:\n{self.daemon.log.read_text()}"
            assert time.monotonic() < end, f"kvd is not ready:\n{self.daemon.log.read_text()}"

    def restart(self, *options, **kw):
        """As `systemctl restart` does: what is in the store stays."""
        self.daemon.stop()
        return self.start(*options, **kw)

    def crash(self, *options, number=signal.SIGKILL, **kw):
        """It ends by a signal and is started again."""
        self.daemon.crash(number)
        return self.start(*options, **kw)

    def stop(self):
        """For good: the store is emptied."""
        self.daemon.stop()
        with self.lock:
            self.forget()

    def log(self):
        return self.daemon.log.read_text()

    # -- the end ---------------------------------------------------------------

    def check(self):
        with self.lock:
            assert not self.faults, self.faults

    def close(self):
        if self.daemon:
            self.daemon.stop()
        self.tell_self(b"end")
        self.thread.join()
        self.sock.close()
        if self.listening:
            self.listening.close()
        with self.lock:
            self.forget()
        self.check()
