"""Finding, opening and hashing files: local paths, folders, and URLs of any PyArrow or fsspec filesystem."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, TypeVar
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from shardmc.errors import DataError

T = TypeVar("T")

_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class File:
    """One file of a data set: its location, and the keys in its folder names (key=value)."""

    filesystem: pafs.FileSystem
    path: str
    size: int
    keys: dict[str, str | None]

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    def open(self) -> pa.NativeFile:
        return self.filesystem.open_input_file(self.path)


def find_files(location: str | os.PathLike[str], suffixes: tuple[str, ...]) -> list[File]:
    """The file at a location, or the files of a folder with one of these suffixes, sorted by name."""
    filesystem, path = _open_location(os.fspath(location))
    info = _readable(os.fspath(location), lambda: filesystem.get_file_info(path))
    if info.type == pafs.FileType.NotFound:
        raise DataError(f"There is no file or folder {os.fspath(location)!r}.")
    if info.type == pafs.FileType.File:
        return [File(filesystem, path, info.size or 0, {})]
    selector = pafs.FileSelector(path, recursive=True)
    found = _readable(os.fspath(location), lambda: filesystem.get_file_info(selector))
    files = [
        File(filesystem, entry.path, entry.size or 0, _keys(entry.path, path))
        for entry in sorted(found, key=lambda entry: entry.path)
        if entry.type == pafs.FileType.File
        and not _hidden(entry.path, path)
        and entry.path.endswith(suffixes)
    ]
    if not files:
        raise DataError(f"Folder {os.fspath(location)!r} holds no {' or '.join(suffixes)} files.")
    return files


def _readable(location: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{location!r} cannot be read: {first_line(error)}.") from error


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without its full stop."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _open_location(location: str) -> tuple[pafs.FileSystem, str]:
    if "://" not in location:
        return pafs.LocalFileSystem(), os.path.abspath(os.path.expanduser(location))
    try:
        return pafs.FileSystem.from_uri(location)
    except (pa.ArrowException, OSError, ValueError) as error:
        return _fsspec_location(location, error)


def _fsspec_location(location: str, reason: Exception) -> tuple[pafs.FileSystem, str]:
    try:
        import fsspec
    except ImportError as error:
        raise DataError(
            f"{location!r} cannot be opened by PyArrow ({first_line(reason)}); installing fsspec may help."
        ) from error
    try:
        filesystem, path = fsspec.core.url_to_fs(location)
    except (ImportError, ValueError, OSError) as error:
        raise DataError(f"{location!r} cannot be opened: {first_line(error)}.") from error
    return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem)), path


def _parts(path: str, base: str) -> tuple[str, ...]:
    inside: Any = PurePosixPath(path.replace("\\", "/"))
    return inside.parts[len(PurePosixPath(base.replace("\\", "/")).parts) :]


def _hidden(path: str, base: str) -> bool:
    return any(part.startswith(("_", ".")) and "=" not in part for part in _parts(path, base))


def _keys(path: str, base: str) -> dict[str, str | None]:
    pairs = (part.split("=", 1) for part in _parts(path, base)[:-1] if "=" in part)
    return {key: None if value == _NULL else unquote(value) for key, value in pairs}


_WHOLE = 1 << 22  # a file up to this size is hashed completely, a larger one in part
_STRETCHES, _STRETCH = 32, 1 << 16


def hash_file(digest: Any, file: Any, size: int) -> None:
    """Add a file to a hash: its size, its end (Parquet's footer) and stretches from all over it."""
    digest.update(f"{size} ".encode())
    if size <= _WHOLE:
        digest.update(file.read_at(size, 0))
        return
    for start in np.linspace(0, size - _STRETCH, _STRETCHES).astype(int):
        digest.update(file.read_at(_STRETCH, int(start)))
