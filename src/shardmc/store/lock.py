"""One process at a time writes to a run folder: a lock that the kernel releases however its holder ends."""

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

from shardmc.errors import RunError
from shardmc.store.files import inside, not_written, read_file

NAME = "lock"
EXCLUSIVE_NAME = "lock.exclusive"
NAMES = (NAME, EXCLUSIVE_NAME)

_NOT_SUPPORTED = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL}
_HELD = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK}
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
_LOCKED_BYTE = 1 << 30  # on Windows; far behind the text, which others may then read


@final
@dataclass(frozen=True)
class Owner:
    """The process that holds, or held, the lock of a run."""

    pid: int
    host: str
    process_start: str
    """When the process started, in the system's own words: a later process with the same pid has another one."""
    since: str
    """When it took the lock (ISO 8601)."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @staticmethod
    def this_process() -> Owner:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return Owner(os.getpid(), socket.gethostname(), process_start(os.getpid()) or "", now)

    def is_alive(self) -> bool | None:
        """Whether that process still runs; None where this machine cannot tell."""
        if self.host != socket.gethostname() or os.name != "posix":
            return None
        return process_start(self.pid) == self.process_start


def process_start(pid: int) -> str | None:
    """When a process of this POSIX machine started; None if it does not run (any more)."""
    if sys.platform == "linux":
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return None
        # The command comes before the last bracket and may itself hold blanks and brackets; the state follows, and
        # the start is 19 fields on, counted from the boot (man 5 proc).
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
    """Who the lock files say holds the lock, or held it and ended without a word; None after an orderly end."""
    for name in NAMES:
        try:
            owner = Owner(**json.loads(read_file(folder / name)))
        except (OSError, ValueError, TypeError, RecursionError):
            continue
        texts = (owner.host, owner.process_start, owner.since)
        if type(owner.pid) is int and owner.pid > 0 and all(isinstance(text, str) for text in texts):
            return owner
    return None


@final
class Lock:
    """The lock of a run folder, held until `release` or the end of the process.

    On POSIX it is `flock`, on Windows a locked byte: the kernel lets go of both when the process ends, also by
    SIGKILL, and what the file says serves only the message. Where the file system has no `flock`, a second file
    that must not exist before takes its place, and the start time of its owner tells whether that one still lives.
    """

    previous: Owner | None
    """The process from which the lock was taken over, since it had ended without releasing it."""

    def __init__(self, folder: Path) -> None:
        """Take the lock, or raise a RunError that names the process that has it."""
        self._path = inside(folder, NAME)
        self._descriptor: int | None = None
        try:
            self._take(folder)
        except BaseException as error:
            self._close()
            if isinstance(error, BlockingIOError):
                raise _refused(folder, self._path) from error
            if isinstance(error, OSError):
                raise not_written(self._path, error) from error
            raise
        _held.add(self)

    def _take(self, folder: Path) -> None:
        self._descriptor = os.open(self._path, _FLAGS, 0o666)
        locked = _lock(self._descriptor)
        self.previous = read_owner(folder)
        if not locked:
            self._close()
            self._path = inside(folder, EXCLUSIVE_NAME)
            self._descriptor = _create(self._path, self.previous)
        _write(self._descriptor, json.dumps(asdict(Owner.this_process())).encode())

    def release(self) -> None:
        """Let go of the lock; what the file says of its owner goes first."""
        if self._descriptor is None:
            return
        with contextlib.suppress(OSError):
            _write(self._descriptor, b"")
        self._close()
        if self._path.name == EXCLUSIVE_NAME:
            # The other kind of file stays: somebody may hold it open and lock it next.
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _close(self) -> None:
        _held.discard(self)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _lock(descriptor: int) -> bool:
    """Lock an open file; False where the file system cannot, BlockingIOError where another process has it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NOT_SUPPORTED:
            return False
        if error.errno in _HELD:
            raise BlockingIOError(error.errno, error.strerror) from error
        raise
    return True


def _create(path: Path, owner: Owner | None) -> int:
    """Create the exclusive file, after removing that of an owner who is dead for certain."""
    if owner is not None and owner.is_alive() is False:
        path.unlink(missing_ok=True)
    try:
        return os.open(path, _FLAGS | os.O_EXCL, 0o666)
    except FileExistsError as error:
        raise BlockingIOError(error.errno, error.strerror) from error


def _write(descriptor: int, content: bytes) -> None:
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, content)


def _refused(folder: Path, path: Path) -> RunError:
    owner = read_owner(folder)
    advice = "Wait for it to end, or use another folder."
    if path.name == EXCLUSIVE_NAME and (owner is None or owner.is_alive() is None):
        advice = f"This file system cannot tell whether it still runs: if it does not, delete {path}."
    if owner is None:
        return RunError(f"Run folder {folder} is in use by another process. {advice}")
    return RunError(f"Run folder {folder} is in use by {owner} since {owner.since}. {advice}")


_held: set[Lock] = set()


def _forget_all() -> None:
    # A forked child shares the parent's lock: it would keep it beyond the parent's death, or release it for both.
    for lock in list(_held):
        lock._close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
