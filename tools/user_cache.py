# SPDX-License-Identifier: Apache-2.0
"""The user's cache directory, where tools keep what they fetched."""
import contextlib
import fcntl
import glob
import os
import pwd
import shutil
import tempfile


def directory(kind):
    base = os.environ.get("XDG_CACHE_HOME")
    if not base:
        home = os.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir
        base = os.path.join(home, ".cache")
    return os.path.join(base, "kvd", kind)


@contextlib.contextmanager
def locked(folder):
    """Makes it, and keeps other calls out; what killed ones left is removed."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, ".lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in glob.glob(os.path.join(folder, ".fetch-*")):
            shutil.rmtree(left, ignore_errors=True)
        yield


@contextlib.contextmanager
def workplace(folder):
    """A directory on the cache's own file system, so that renaming out of it is atomic."""
    work = tempfile.mkdtemp(prefix=".fetch-", dir=folder)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
