# SPDX-License-Identifier: Apache-2.0
"""A machine with a real systemd in a container, in which kvd is a service.

Needs root, mmdebstrap, systemd-nspawn and a package mirror (the sources of this machine); the root file system is made once
in a temporary folder in memory, each machine gets a copy of it.
"""
import glob
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

from conftest import BUILD, PATIENCE

import kvdclient

TOOLS = ("mmdebstrap", "systemd-nspawn", "nsenter")
LIBRARIES = ("libevent-core-2.1-7,libevent-pthreads-2.1-7,libmsgpackc2,libpcre2-8-0,libsqlite3-0,libzstd1,libxxhash0,"
             "libinih1,libjansson4,libsystemd0")


def missing():
    """Why there can be no machine; "": there can."""
    if os.geteuid() != 0:
        return "not root"
    return ", ".join(t for t in TOOLS if not shutil.which(t))


def make_root(folder):
    """A file system with systemd and what kvd is linked with, or None where there is no mirror."""
    root = folder / "base"
    sources = sorted(glob.glob("/etc/apt/sources.list.d/*.sources")) or ["/etc/apt/sources.list"]
    made = subprocess.run(["mmdebstrap", "--variant=minbase", f"--include=systemd-sysv,dbus,procps,{LIBRARIES}", "bookworm",
                           root, sources[0]], capture_output=True, check=False)
    if made.returncode:
        print(made.stderr.decode(errors="replace"))
        return None
    # Else it counts as a first boot.
    (root / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    return root


def own_groups():
    """Folders of the control groups that we are in, of the hierarchies that systemd uses."""
    groups = dict(line.strip().split(":", 2)[1:] for line in open("/proc/self/cgroup"))
    mounts = [line.split() for line in open("/proc/mounts")]
    return [pathlib.Path(place + groups[key].rstrip("/")) for _, place, kind, options, *_ in mounts
            for key in (["name=systemd"] if "name=systemd" in options.split(",") else [""] if kind == "cgroup2" else [])
            if key in groups]


class Machine:
    count = 0

    def __init__(self, folder, base, files, unit):
        """A copy of base below folder.  files: {path in it: file}; unit: the text of kvd.service."""
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvd-machine-", dir=folder))
        self.root = self.folder / "root"
        subprocess.run(["cp", "-a", base, self.root], check=True)
        for path, file in {"opt/kvd": BUILD / "bin/kvd", **files}.items():
            shutil.copy(file, self.root / path)
        (self.root / "etc/systemd/system/kvd.service").write_text(unit)
        self.leader = self.process = None
        Machine.count += 1
        name = f"kvd-{os.getpid()}-{Machine.count}"
        # It makes groups below its own, which would be ours.
        self.groups = [g / name for g in own_groups()]
        for g in self.groups:
            g.mkdir()

        def enter():
            for g in self.groups:
                (g / "cgroup.procs").write_text("0")
        with open(self.folder / "console", "wb") as console:
            self.process = subprocess.Popen(
                ["systemd-nspawn", "-q", "-D", self.root, "-M", name, "--boot", "--register=no", "--keep-unit",
                 "--console=read-only", "--private-network", "--link-journal=no"],
                stdin=subprocess.DEVNULL, stdout=console, stderr=console, preexec_fn=enter,
                env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"})
        try:
            self.until(self.booted, "booted")
        except AssertionError:
            self.close()
            raise

    def booted(self):
        found = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False)
        if not found.stdout.strip():
            return False
        self.leader = int(found.stdout.split()[0])
        return self.run("systemctl", "is-system-running", check=False).strip() in ("running", "degraded")

    def until(self, condition, what, seconds=60):
        end = time.monotonic() + seconds * PATIENCE
        while not condition():
            assert self.process.poll() is None, "the machine has ended: " + \
                (self.folder / "console").read_text(errors="replace")
            assert time.monotonic() < end, f"not in time: {what}\n{self.journal() if self.leader else ''}"
            time.sleep(0.05)

    def run(self, *command, check=True):
        done = subprocess.run(["nsenter", "-t", str(self.leader), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", *command],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, (command, done.stdout, done.stderr, self.journal())
        return done.stdout

    def systemctl(self, *words):
        return self.run("systemctl", *words)

    def show(self, name):
        return self.run("systemctl", "show", "-P", name, "kvd.service").strip()

    def journal(self):
        return self.run("journalctl", "--no-pager", "-o", "cat", "-u", "kvd.service", check=False)

    def client(self):
        """From outside: who runs this is root there, too."""
        return kvdclient.Client(f"/proc/{self.leader}/root/run/kvd/kvd.sock", timeout=20 * PATIENCE)

    def active(self):
        return self.run("systemctl", "is-active", "kvd.service", check=False).strip() == "active"

    def close(self):
        if self.leader and self.process.poll() is None:
            subprocess.run(["kill", "-s", "RTMIN+4", str(self.leader)], check=False)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for g in self.groups:
            for folder, _, _ in os.walk(g, topdown=False):
                os.rmdir(folder)
        shutil.rmtree(self.folder, ignore_errors=True)
