"""Only one process at a time writes to a run folder: a lock, and a note that names the process that holds it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import final

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from shardmc.errors import RunError
from shardmc.guards.files import not_written, read_file, write_file
from shardmc.store.files import inside

NAME = "lock"
EXCLUSIVE_NAME = "lock.exclusive"
NOTE_NAME = "lock.json"
NAMES = (NAME, EXCLUSIVE_NAME, NOTE_NAME)

_NOT_SUPPORTED = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL}
_PATIENCE = 1.0  # seconds in which the marker of a dead process is replaced


@final
@dataclass(frozen=True)
class Owner:
    """The process that holds, or held, the lock of a run."""

    pid: int
    host: str
    process_start: str
    """When the process started, as the system writes it. A later process with the same pid has another start."""
    since: str
    """When it took the lock (ISO 8601)."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @staticmethod
    def this_process() -> Owner:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return Owner(os.getpid(), socket.gethostname(), process_start(os.getpid()) or "", now)

    def is_alive(self) -> bool | None:
        """Whether that process still runs; None if this machine cannot tell."""
        if self.host != socket.gethostname() or os.name != "posix":
            return None
        return process_start(self.pid) == self.process_start


def process_start(pid: int) -> str | None:
    """When a process on this POSIX machine started; None if it does not run."""
    if sys.platform == "linux":
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return None
        # The command ends at the last bracket and may itself contain blanks and brackets. The state follows it. The
        # start, counted from the boot, comes 19 fields later (man 5 proc).
        state, *_, start = stat.rpartition(")")[2].split()[:20]
        return None if state in "ZX" else f"{boot}/{start}"
    if os.name != "posix":
        return None
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    shown = subprocess.run(command, capture_output=True, text=True, check=False, env=environment).stdout
    state, _, start = shown.strip().partition(" ")
    return None if state.startswith("Z") else start.strip() or None


def read_owner(folder: Path) -> Owner | None:
    """The process that holds the lock, or that ended without releasing it; None if the last one released it."""
    try:
        owner = Owner(**json.loads(read_file(folder / NOTE_NAME)))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    texts = (owner.host, owner.process_start, owner.since)
    valid = type(owner.pid) is int and owner.pid > 0 and all(isinstance(text, str) for text in texts)
    return owner if valid else None


@final
class Lock:
    """The lock of a run folder, held until `release` or the end of the process.

    The lock is `filelock`'s: `flock` on POSIX and a locked byte on Windows. The kernel releases both when the process
    ends, also by SIGKILL. A forked child neither holds nor releases the lock of its parent. If the file system has no
    `flock`, a marker file takes its place. It names its process, and a process that is dead for certain is replaced.
    The note about the owner only serves messages and `status`.
    """

    previous: Owner | None
    """The process that held the lock before and ended without releasing it."""

    def __init__(self, folder: Path) -> None:
        """Take the lock, or raise a RunError that names the process that holds it."""
        for name in NAMES:
            inside(folder, name)
        self._note = folder / NOTE_NAME
        self._lock = _acquired(folder)
        try:
            self.previous = read_owner(folder)
            write_file(self._note, json.dumps(asdict(Owner.this_process())).encode())
        except BaseException:
            self._lock.release()
            raise
        _held.add(self)

    @property
    def is_held(self) -> bool:
        """Whether this process holds it; False in a forked child."""
        return self._lock.is_locked

    def release(self, *, remove: bool = False) -> None:
        """Remove the note and release the lock; with `remove`, leave no file of the lock behind."""
        _held.discard(self)
        if self.is_held:
            # Files are removed while the lock is held: afterwards they may be another process's.
            for path in (self._note, *([Path(self._lock.lock_file)] if remove else [])):
                with contextlib.suppress(OSError):
                    path.unlink()
            self._lock.release()


_held: set[Lock] = set()
"""The locks of this process: `filelock` releases a lock that nobody refers to."""


def _acquired(folder: Path) -> BaseFileLock:
    # Not local to a thread: one thread may take the lock and another release it.
    native = FileLock(folder / NAME, timeout=0, thread_local=False, fallback_to_soft=False)
    marker = SoftFileLock(folder / EXCLUSIVE_NAME, timeout=_PATIENCE, thread_local=False)
    for lock in (native, marker):
        try:
            lock.acquire()
        except Timeout as error:
            raise _refused(folder, lock is marker) from error
        except OSError as error:
            if lock is native and error.errno in _NOT_SUPPORTED:
                continue
            raise not_written(Path(lock.lock_file), error) from error
        return lock
    raise AssertionError("The loop returns or raises.")


def _refused(folder: Path, by_marker: bool) -> RunError:
    owner, marker = read_owner(folder), folder / EXCLUSIVE_NAME
    alive = None if owner is None else owner.is_alive()
    advice = "Wait for it to end, or use another folder."
    if by_marker and alive is False and _names(marker, owner):
        advice = f"That process has ended, but this file system has no locks: delete {marker} to go on."
    elif by_marker and alive is not True:
        advice = (
            "This file system has no locks, so shardmc cannot tell whether that process still runs. If it does not, "
            f"delete {marker}."
        )
    who = "another process" if owner is None else f"{owner} since {owner.since}"
    return RunError(f"Run folder {folder} is in use by {who}. {advice}")


def _names(marker: Path, owner: Owner | None) -> bool:
    """Whether a marker file is that of this process: the note may be older than the marker."""
    with contextlib.suppress(OSError):
        return owner is not None and read_file(marker).split()[:1] == [str(owner.pid).encode()]
    return False
