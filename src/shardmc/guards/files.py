"""Files that are complete or absent: written under a temporary name and then renamed, with a checksum at their end.

Files that are too large to be hashed completely have a fingerprint: a hash of some parts, and a stamp.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from shardmc.errors import RunError

if TYPE_CHECKING:
    import xarray as xr

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
_NO_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}  # of network file systems that cannot sync a folder
_LABEL = b"\nshardmc-sha256:"
_LENGTH = len(_LABEL) + 64
_PIECE = 1 << 22


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
    rest = (
        "Name a file in a folder that exists" if error.errno == errno.ENOENT else "Earlier files are intact"
    )
    return RunError(f"{path} could not be written: {error.strerror or error}. {rest}.")


def is_temporary(name: str) -> bool:
    """Whether this is the name of a file that was never finished."""
    return _TEMPORARY.fullmatch(name) is not None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(path: Path) -> None:
    if os.name != "posix":
        return  # Windows cannot open a folder, and does not need this
    try:
        _sync(path)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def write_netcdf(tree: xr.DataTree, path: Path) -> None:
    """Write a tree as a netCDF file with a checksum. It replaces an existing file once it is complete."""
    # In memory first: HDF5 may crash the process when the disk is full.
    with _without_cluster():
        content = bytes(tree.to_netcdf(engine="h5netcdf"))
    write_file(path, with_checksum(content))


@contextlib.contextmanager
def _without_cluster() -> Iterator[None]:
    """Keep xarray from asking a default Dask client for a lock: a file in memory has none."""
    if "dask" not in sys.modules:
        yield
        return
    import dask.config

    with dask.config.set(scheduler="threads"):
        yield


def with_checksum(content: bytes) -> bytes:
    """The content of a file, followed by its checksum, where programs that read netCDF do not look.

    >>> len(with_checksum(b"")), with_checksum(b"")[:24]
    (80, b'\\nshardmc-sha256:e3b0c442')
    """
    return content + _LABEL + hashlib.sha256(content).hexdigest().encode()


def verify_checksum(path: Path, *, required: bool) -> None:
    """Refuse a file that differs from what was written; and, if a checksum is required, one that has none."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            rest = max(os.fstat(file.fileno()).st_size - _LENGTH, 0)
            while rest and (piece := file.read(min(_PIECE, rest))):
                digest.update(piece)
                rest -= len(piece)
            trailer = file.read(_LENGTH)
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not trailer.startswith(_LABEL):
        if required:
            raise RunError(
                f"{path} has no checksum at its end: it was cut short, damaged, or written by another program. Restore "
                "it from a copy, or repeat the fit. If you trust it: "
                f"shardmc.Posterior.from_tree(xarray.open_datatree({str(path)!r}))."
            )
    elif trailer[len(_LABEL) :] != digest.hexdigest().encode():
        raise RunError(
            f"{path} is damaged: its content does not match its checksum. Restore it from a copy, or repeat "
            "the call that wrote it."
        )


_STAMP = re.compile(r" stamped [0-9a-f]{16}")


def stamped(fingerprint: str, stamps: Iterable[str]) -> str:
    """A fingerprint with a stamp: it changes with the files' modification times and inodes.

    >>> stamped("3f2a", ["1700000000 12"]) == stamped("3f2a", ["1700000001 12"])
    False
    """
    return f"{fingerprint} stamped {hashlib.sha256(repr(list(stamps)).encode()).hexdigest()[:16]}"


def without_stamps(fingerprint: str) -> str:
    """The same fingerprint for files whose times do not count.

    >>> without_stamps(stamped("3f2a", ["1700000000 12"]) + " in groups g")
    '3f2a in groups g'
    """
    return _STAMP.sub("", fingerprint)


def same_rows(there: str, here: str) -> bool:
    """Whether a fingerprint that was stored fits that of the present files. Files that are trusted have no stamp.

    >>> same_rows(stamped("3f2a", ["1700000000 12"]), "3f2a")
    True
    >>> same_rows("3f2a", stamped("3f2a", ["1700000000 12"]))
    False
    """
    return here in (there, without_stamps(there))
