"""Files of a run: complete or absent, inside their folder, and never read or written through a link."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from shardmc.errors import RunError

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}


def inside(folder: Path, name: object) -> Path:
    """The path of a file or folder named `name` directly in `folder`, or a RunError.

    Only plain names are allowed, so that a name in a file cannot lead outside the folder:

    >>> inside(Path("run"), "report.html").as_posix()
    'run/report.html'
    >>> inside(Path("run"), "../report.html")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    shardmc.errors.RunError: '../report.html' is not a valid name for a file in a run folder: ...
    """
    if not isinstance(name, str) or not _PLAIN_NAME.fullmatch(name):
        raise RunError(
            f"{name!r} is not a valid name for a file in a run folder: use letters, digits, '_', '-' and '.', "
            "not starting with '.' or '-' and without a folder."
        )
    path = folder / name
    if path.is_symlink():
        raise RunError(f"{path} is a link, and files of a run are never links. Remove it and try again.")
    return path


def read_file(path: Path) -> bytes:
    """The content of a regular file; an OSError for a link, a folder, a pipe or a device."""
    # Without O_NONBLOCK, opening a pipe that has no writer would wait forever.
    flags = os.O_RDONLY | _NO_FOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link", str(path))
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    with open(descriptor, "rb") as file:
        return file.read()


def write_file(path: Path, content: bytes) -> None:
    """Write a file. Whatever happens, the result is either the complete old file or the complete new one."""
    with replacing(path) as temporary:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        with open(os.open(temporary, flags, 0o666), "wb", buffering=0) as file:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(file.fileno(), rest) :]


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` for the block to write to; then on the disk and renamed to `path`.

    Whatever goes wrong, the temporary file is removed and `path` is as it was. An OSError becomes a RunError.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
        # The content must be on the disk before the name is: a power cut may not leave a name without it.
        _sync(temporary)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise not_written(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def not_written(path: Path, error: OSError) -> RunError:
    """The error for a file that could not be written."""
    if error.errno in _FULL:
        return RunError(
            f"The disk is full: {path} could not be written. Earlier files are intact; "
            "free some space and repeat the call to continue."
        )
    return RunError(f"{path} could not be written: {error.strerror or error}. Earlier files are intact.")


def remove_temporaries(folder: Path) -> None:
    """Remove what a killed process had not finished writing. Only the holder of the run's lock may do this."""
    for entry in folder.iterdir():
        if is_temporary(entry.name):
            with contextlib.suppress(OSError):
                entry.unlink()


def is_temporary(name: str) -> bool:
    """Whether this is the name of a file that was never finished."""
    return _TEMPORARY.fullmatch(name) is not None


def make_folder(path: Path) -> None:
    """Make a folder if it does not exist."""
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise not_written(path, error) from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(path: Path) -> None:
    if os.name != "posix":
        return  # Windows opens no folders, and needs no such call
    try:
        _sync(path)
    except OSError as error:
        if error.errno not in (
            errno.EINVAL,
            errno.ENOTSUP,
            errno.EBADF,
        ):  # some network file systems have none
            raise
