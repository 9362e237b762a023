"""Files from others: they must be regular, lead to no other file, and not unpack to far more than their size."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

import numpy as np

from shardmc.errors import RunError
from shardmc.guards.limits import limit, refuse_above

if TYPE_CHECKING:
    import h5py
    from _typeshed import WriteableBuffer

SMALL = 64 * 2**20
"""Bytes to which any file may unpack, however well it was compressed."""

_HDF5 = b"\x89HDF\r\n\x1a\n"


def refuse_special(path: Path) -> None:
    """Refuse a pipe, a device or a socket: reading it could take forever."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a pipe, a device or a socket"
        raise RunError(f"{path} is not a regular file but {what}; shardmc does not read it.")


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file. A pipe is refused at once, even if nobody writes to it."""
    refuse_special(path)
    try:
        # What was a file a moment ago may be a pipe now.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}.") from error
    return open(descriptor, "rb")


def refuse_unsafe_netcdf(path: Path) -> None:
    """Refuse a file that is not netCDF-4, that leads to other files, or that is too deep or too large.

    HDF5, on which netCDF-4 is built, can keep the values of a variable in another file (external storage, virtual
    datasets) and link to another file. Whoever made such a file could read any file of the user who opens it. netCDF
    uses none of these, and no links within the file.
    """
    with open_regular(path) as file:
        start = file.read(len(_HDF5))
    if start != _HDF5:
        kind = "a netCDF-3 file, " if start.startswith(b"CDF") else ""
        raise RunError(f"{path} is {kind}not a netCDF-4 file; shardmc reads only netCDF-4.")
    import h5py

    try:
        with h5py.File(path, "r") as opened:
            total = sum(_bytes(dataset) for dataset in _datasets(opened, path))
    except RunError:
        raise
    except Exception as error:  # h5py has many for a damaged file
        raise RunError(f"{path} cannot be read; it is damaged or holds something else: {error}.") from error
    refuse_unpacking(path, path.stat().st_size, total)


def unpacked(path: Path) -> BinaryIO:
    """The content of a file, unpacked by its suffix (.gz, .bz2, .xz, .zip), and refused where it becomes too large."""
    opened = open_regular(path)
    kind = path.suffix.lower()
    try:
        if kind == ".zip":
            archive = zipfile.ZipFile(opened)
            (name,) = archive.namelist()
            plain: Readable = archive.open(name)
        else:
            openers = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
            plain = openers[kind](opened) if kind in openers else opened
    except (ValueError, zipfile.BadZipFile, OSError, RuntimeError) as error:  # the last for a password
        raise RunError(f"{path} cannot be unpacked: it must hold one file, without a password.") from error
    return io.BufferedReader(CountedStream(plain, str(path), path.stat().st_size))


class Readable(Protocol):
    """A stream of bytes, such as those of `open`, gzip and Arrow."""

    def read(self, size: int, /) -> bytes: ...

    def close(self) -> None: ...


class CountedStream(io.RawIOBase):
    """The content of a compressed file. Damage raises an OSError, unpacking to far more than its size a RunError."""

    def __init__(self, stream: Readable, name: str, packed: int) -> None:
        super().__init__()
        self._stream, self._name, self._packed, self._count = stream, name, packed, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        try:
            data = self._stream.read(len(view))
        except (zlib.error, lzma.LZMAError, zipfile.BadZipFile, EOFError) as error:
            raise OSError(f"its compressed content is damaged ({error})") from error
        view[: len(data)] = data
        self._count += len(data)
        refuse_unpacking(self._name, self._packed, self._count)
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()


def refuse_unpacking(path: Path | str, packed: int, unpacked: int) -> None:
    """Refuse a compressed file of `packed` bytes that holds `unpacked` bytes, where that is far more."""
    if unpacked > SMALL:
        sentence = f"{path} has {packed / 1e6:,.2f} MB and unpacks to {unpacked / 1e9:,.1f} GB"
        times = -(-unpacked // max(packed, 1))
        refuse_above("unpacking", times, f"{sentence}, {times:,} times its size", RunError, " times")


def _datasets(opened: h5py.File, path: Path) -> Iterator[h5py.Dataset]:
    """Every variable of an HDF5 file. Links, loops and variables that are stored elsewhere are refused."""
    import h5py
    from h5py import h5o  # pyright: ignore[reportAttributeAccessIssue] - a compiled module

    waiting: list[tuple[h5py.Group, str, int]] = [(opened, "", 0)]
    seen = {h5o.get_info(opened.id).addr}
    while waiting:
        group, name, depth = waiting.pop()
        refuse_above("depth", depth, f"{path} has groups that are nested {depth} levels deep", RunError)
        for child in group:
            place = f"{name}/{child}"
            if not isinstance(group.get(child, getlink=True), h5py.HardLink):
                raise RunError(f"{path} has a link at {place!r}; shardmc does not read files with links.")
            if len(seen) > limit("objects"):
                many = f"{path} has more than {limit('objects'):,} groups and variables"
                refuse_above("objects", len(seen), many, RunError)
            found = group[child]
            address = h5o.get_info(found.id).addr
            if address in seen:
                raise RunError(f"{path} is damaged, or was made to mislead: {place!r} is in it twice.")
            seen.add(address)
            if isinstance(found, h5py.Group):
                waiting.append((found, place, depth + 1))
            elif isinstance(found, h5py.Dataset):
                _refuse_elsewhere(found, path, place)
                yield found


def _refuse_elsewhere(dataset: h5py.Dataset, path: Path, place: str) -> None:
    import h5py

    properties = dataset.id.get_create_plist()
    if properties.get_external_count() or properties.get_layout() == h5py.h5d.VIRTUAL:
        raise RunError(
            f"{path} keeps the values of {place!r} in another file, which may be any file of yours; shardmc does not "
            "read them. Ask for a file with the values inside."
        )


def _bytes(dataset: h5py.Dataset) -> int:
    stored = dataset.id
    return int(np.prod([float(n) for n in stored.shape])) * stored.dtype.itemsize if stored.shape else 0
