"""The folder of compiled programs: the user's own, bounded in size, and safe to share between processes."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

from shardmc.errors import OptionError

_VARIABLE = "SHARDMC_PROGRAMS"
_GIB = 1 << 30
_UNFINISHED = 3600.0
"""Seconds after which a file that was not written to the end belongs to no living process."""


@dataclass(frozen=True)
class ProgramFolder:
    """A folder of compiled programs, and the most bytes that it may hold."""

    path: Path
    most_bytes: int


_NOT_CHOSEN: Final = "not chosen"
_chosen: ProgramFolder | Literal["not chosen"] | None = _NOT_CHOSEN
_lock = threading.Lock()


def keep_programs(folder: str | os.PathLike[str] | bool = True, *, size: float = 1.0) -> Path | None:
    """Choose where compiled programs are kept for the next process, or that none are.

    Without this call they are kept in `shardmc` in the user's cache folder (`~/.cache` on Linux), which no other user
    can read or write. A second process then neither traces nor compiles the programs of the first. The environment
    variable `SHARDMC_PROGRAMS` does the same as this call: `off`, or a folder. JAX's own options stay as they are.

    Parameters
    ----------
    folder
        Where to keep them. True is the user's cache folder. False keeps none. Several processes may use a folder at
        the same time.
    size
        The most that the folder may hold, in GiB. Programs that were not used for the longest time go first.

    Returns
    -------
    Path or None
        The folder, if there is one. You may delete it at any time.

    Examples
    --------
    >>> import shardmc
    >>> shardmc.keep_programs("programs")  # doctest: +SKIP
    PosixPath('/home/me/programs')
    >>> shardmc.keep_programs(False)  # doctest: +SKIP
    """
    global _chosen
    if not size > 0:
        raise OptionError(f"size must be a positive number of GiB, not {size!r}.")
    chosen = None
    if folder is not False:
        path = cache_folder() if folder is True else Path(folder).absolute()
        _make(path)
        chosen = ProgramFolder(path, int(size * _GIB))
    with _lock:
        _chosen = chosen
    return None if chosen is None else chosen.path


def folder_in_use() -> ProgramFolder | None:
    """The folder that was chosen, or else the usual one; None if no programs are kept."""
    global _chosen
    with _lock:
        if _chosen == _NOT_CHOSEN:
            _chosen = _usual()
        return _chosen


def _usual() -> ProgramFolder | None:
    """The folder without a call of `keep_programs`. Where that cannot be used, no programs are kept."""
    said = os.environ.get(_VARIABLE, "")
    if said.lower() in ("off", "0", "no", "false"):
        return None
    try:
        path = Path(said).absolute() if said else cache_folder()
        _make(path)
    except (OptionError, OSError, RuntimeError):  # no home, no rights, a full disk
        return None
    return ProgramFolder(path, _GIB)


def cache_folder() -> Path:
    """The user's own folder of compiled programs: one per kind of processor, because machines may share a home."""
    if sys.platform == "darwin":
        root = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        root = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "shardmc" / f"{platform.machine()}-{processor()}"


def read_program(path: Path) -> bytes | None:
    """The content of a file of this user's; None if there is none, or if it was damaged."""
    try:
        with open(path, "rb") as file:
            if not _is_own(os.fstat(file.fileno())):
                return None
            checksum, content = file.read(32), file.read()
        if hashlib.sha256(content).digest() != checksum:
            return None
        os.utime(path)  # used now, so that others go first
    except OSError:
        return None
    return content


def write_program(folder: Path, name: str, content: bytes) -> None:
    """Write a file as a whole, then delete those that were not used for the longest time if there are too many."""
    chosen = folder_in_use()
    handle, unfinished = tempfile.mkstemp(suffix=".unfinished", dir=folder)  # mode 600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(content).digest() + content)
        os.replace(unfinished, folder / name)
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        raise
    if chosen is not None and chosen.path == folder:
        _drop_oldest(chosen)


def _drop_oldest(folder: ProgramFolder) -> None:
    with os.scandir(folder.path) as entries:
        files = [(entry.stat(), entry.path) for entry in entries if entry.is_file(follow_symlinks=False)]
    held = 0
    for status, path in sorted(files, key=lambda file: -file[0].st_mtime):
        if path.endswith(".unfinished"):
            if status.st_mtime < time.time() - _UNFINISHED:
                Path(path).unlink(missing_ok=True)
        elif path.endswith(".program"):
            held += status.st_size
            if held > folder.most_bytes:
                Path(path).unlink(missing_ok=True)


def _make(path: Path) -> None:
    """Make the folder, for this user only. What others can write could be other programs."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise OptionError(
            f"shardmc cannot keep programs in {str(path)!r}: {error.strerror or error}."
        ) from error
    if not _is_own(status):
        raise OptionError(
            f"shardmc does not keep programs in {str(path)!r}: other users can write there. Choose another folder, or "
            "make it yours alone (chmod 700)."
        )


def _is_own(status: os.stat_result) -> bool:
    return not hasattr(os, "getuid") or (status.st_uid == os.getuid() and not status.st_mode & 0o022)


@cache
def processor() -> str:
    """A short name of the instruction set that compiled code may use."""
    try:
        with open("/proc/cpuinfo") as lines:
            said = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        said = platform.processor()
    return hashlib.sha256(said.encode()).hexdigest()[:12]
