"""The files of rows, local or at a URL: each found once, whatever links lead to it, and hashed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeVar
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from shardmc.errors import DataError
from shardmc.guards.files import stamped

T = TypeVar("T")
_NULL = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = 1 << 29
"""Files up to this size in total are hashed completely, which takes less than a second; larger ones in part."""
_STRETCHES, _STRETCH, _READ = 32, 1 << 16, 1 << 24


@dataclass(frozen=True)
class File:
    """One file of a data set: its location, and the keys in its folder names (key=value)."""

    filesystem: pafs.FileSystem
    path: str
    size: int
    keys: dict[str, str | None]
    stamp: str
    """Its modification time and, for a local file, its inode."""

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
        return [File(filesystem, path, info.size or 0, {}, _stamp(filesystem, info))]
    files = [
        File(filesystem, entry.path, entry.size or 0, _keys(entry.path, path), _stamp(filesystem, entry))
        for entry in _readable(os.fspath(location), lambda: _entries(filesystem, path, suffixes))
    ]
    if not files:
        raise DataError(f"Folder {os.fspath(location)!r} holds no {' or '.join(suffixes)} files.")
    return files


def _entries(filesystem: pafs.FileSystem, folder: str, suffixes: tuple[str, ...]) -> list[pafs.FileInfo]:
    """The files of a folder with one of these suffixes, sorted by name, without hidden ones."""

    def wanted(path: str) -> bool:
        return path.endswith(suffixes) and not _hidden(path, folder)

    if isinstance(filesystem, pafs.LocalFileSystem):
        found = filesystem.get_file_info([path for path in local_files(folder) if wanted(path)])
        for entry in found:
            if entry.type == pafs.FileType.NotFound:
                raise DataError(
                    f"{entry.path!r} is a link that points to nothing. Remove it, or restore its file."
                )
        return found
    found = filesystem.get_file_info(pafs.FileSelector(folder, recursive=True))
    files = [entry for entry in found if entry.type == pafs.FileType.File and wanted(entry.path)]
    return sorted(files, key=lambda entry: entry.path)


def _stamp(filesystem: pafs.FileSystem, info: pafs.FileInfo) -> str:
    inode = os.stat(info.path).st_ino if isinstance(filesystem, pafs.LocalFileSystem) else ""
    return f"{info.mtime_ns} {inode}"


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
    above = PurePosixPath(base.replace("\\", "/")).parts
    return PurePosixPath(path.replace("\\", "/")).parts[len(above) :]


def _hidden(path: str, base: str) -> bool:
    return any(part.startswith(("_", ".")) and "=" not in part for part in _parts(path, base))


def _keys(path: str, base: str) -> dict[str, str | None]:
    pairs = (part.split("=", 1) for part in _parts(path, base)[:-1] if "=" in part)
    return {key: None if value == _NULL else unquote(value) for key, value in pairs}


def local_files(folder: str) -> list[str]:
    """The paths of the files in a folder and below, sorted.

    A link leads to the file or folder that it points to. A file that several paths lead to counts once, under its own
    name if it is in the folder. (Hard links are files of their own.) A link to a folder that contains it is refused.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     open(os.path.join(folder, "rows.csv"), "w").close()
    ...     os.symlink(os.path.join(folder, "rows.csv"), os.path.join(folder, "again.csv"))
    ...     [os.path.basename(path) for path in local_files(folder)]
    ['rows.csv']
    """
    found: dict[str, str] = {}  # real path -> path
    folders, links, file_links = [folder], [], []
    seen: set[str] = set()
    while folders or links:
        # Links come last, so that files that are really there keep their names.
        parent = folders.pop() if folders else links.pop(0)
        real_parent = os.path.realpath(parent)
        if real_parent in seen:
            continue
        seen.add(real_parent)
        for entry in sorted(os.scandir(parent), key=lambda entry: entry.name):
            if entry.is_dir():
                if entry.is_symlink():
                    _refuse_loop(entry.path, real_parent)
                (links if entry.is_symlink() else folders).append(entry.path)
            elif entry.is_symlink():
                file_links.append(entry.path)
            elif entry.is_file():
                found.setdefault(os.path.join(real_parent, entry.name), entry.path)
    for path in sorted(file_links):
        found.setdefault(os.path.realpath(path), path)
    return sorted(found.values())


def _refuse_loop(link: str, real_parent: str) -> None:
    target = os.path.realpath(link)
    if os.path.commonpath([target, real_parent]) == target:
        raise DataError(f"{link!r} is a link to a folder that contains it. Remove it.")


def fingerprint_of(files: Sequence[File], described: str, *, trusted: bool) -> str:
    """A hash of files. If they are too large to be hashed completely, they get a stamp, unless they are trusted."""
    digest = hashlib.sha256(described.encode())
    whole = sum(file.size for file in files) <= _WHOLE
    for file in files:
        digest.update(f"{file.name if len(files) > 1 else ''} {file.keys} {file.size} ".encode())
        with file.open() as opened:
            for start, count in _stretches(file.size, whole):
                digest.update(opened.read_at(count, start))
    if whole or trusted:
        return digest.hexdigest()
    return stamped(digest.hexdigest(), [file.stamp for file in files])


def _stretches(size: int, whole: bool) -> list[tuple[int, int]]:
    """(start, count) of what is hashed: everything, or stretches from all over the file, up to its end."""
    if whole or size <= _STRETCHES * _STRETCH:
        return [(start, _READ) for start in range(0, size, _READ)]
    return [(int(start), _STRETCH) for start in np.linspace(0, size - _STRETCH, _STRETCHES)]
