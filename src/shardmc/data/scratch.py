"""Folders of shard files with checksums. A folder is written once, and gets its name when it is complete."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import weakref
import zlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, final

import numpy as np

from shardmc.data.columns import Column
from shardmc.data.partition import Placement, Sink
from shardmc.errors import DataError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_DONE, _CHECKSUMS, _PART = "complete.json", "checksums.npy", ".part"
_GUARD = 'read -r _; rm -rf -- "$1"'


@final
class Scratch:
    """A folder of column files: in a place that the user names, where it stays, or a temporary one.

    A folder in a named place gets its name when it is complete. Until then it has a name of its own, so that two runs
    never write the same files. A temporary folder is deleted with the object that made it, or when the process ends,
    also by a signal. A copy of the object in another process only reads.
    """

    def __init__(self, place: str | os.PathLike[str] | None, key: str) -> None:
        self._key = key
        self._lock: int | None = None
        # A worker that reads the files may have another working directory.
        self._place = None if place is None else Path(place).absolute()
        name = hashlib.sha256(key.encode()).hexdigest()[:16]
        self._target = None if self._place is None else self._place / name
        self.path = self._target or Path(tempfile.gettempdir())

    def __getstate__(self) -> dict[str, object]:
        return {"path": self.path, "_key": self._key}

    def column_file(self, number: int) -> Path:
        return self.path / f"{number}.bin"

    @property
    def is_complete(self) -> bool:
        """Whether a pass over the same rows, with the same partition and seed, was completed."""
        return self._target is not None and self._is_complete(self._target)

    def begin(self) -> None:
        """Make the folder, under a name that no other run uses."""
        try:
            if self._place is None:
                self.path = temporary_folder(self, "shardmc-rows-")
                return
            self._place.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(self._place)
            token = secrets.token_hex(8)
            # Locked before it has a name that another run may take for abandoned.
            own = self._place / f".{token}"
            own.mkdir()
            self._lock = _locked(own)
            self.path = own.rename(f"{self._target}.{token}{_PART}")
        except OSError as error:
            raise DataError(
                f"shardmc cannot make a scratch folder in {str(self._place or tempfile.gettempdir())!r}: "
                f"{error.strerror or error}. Choose a folder that you can write to: scratch= of "
                "shardmc.data.as_source, or --scratch."
            ) from error

    def complete(self, checksums: np.ndarray) -> None:
        """Record that all rows have been written, with checksums (column, shard), and give the folder its name."""
        np.save(self.path / _CHECKSUMS, checksums)
        (self.path / _DONE).write_text(json.dumps({"key": self._key}))
        if self._target is not None:
            self._publish(self._target)

    def discard(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._unlock()

    def check(self, number: int, shard: int, entries: np.ndarray) -> None:
        """Compare the entries of a column's stretch with its checksum, the first time that this process reads them."""
        if self._checked[number, shard]:
            return
        if zlib.crc32(entries.reshape(-1).view(np.uint8).data) != self._checksums[number, shard]:
            raise DataError(
                f"The shard files in {str(self.path)!r} are damaged (column {number}, shard {shard}): their checksum "
                "differs. Remove that folder and run again."
            )
        self._checked[number, shard] = True

    def is_checked(self, number: int, shard: int) -> bool:
        """Whether this process has compared a stretch with its checksum."""
        return bool(self._checked[number, shard])

    @cached_property
    def _checksums(self) -> np.ndarray:
        try:
            return np.load(self.path / _CHECKSUMS, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(
                f"The shards in {str(self.path)!r} can no longer be read (no checksums). Remove that folder and run "
                "again. On a cluster, choose a folder that all workers can read: scratch= of shardmc.data.as_source, "
                "or --scratch."
            ) from error

    @cached_property
    def _checked(self) -> np.ndarray:
        return np.zeros(self._checksums.shape, bool)

    def _is_complete(self, path: Path) -> bool:
        try:
            return json.loads((path / _DONE).read_text())["key"] == self._key
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _publish(self, target: Path) -> None:
        """Give the folder its name. If another run was faster, use the folder of that run, which holds the same."""
        for _ in range(2):
            try:
                self.path = self.path.rename(target)
            except OSError:
                if self._is_complete(target):
                    self.discard()
                    self.path = target
                    return
                # Not a folder of a run, which is complete as soon as it has its name: somebody changed it.
                with contextlib.suppress(OSError):
                    shutil.rmtree(
                        target.rename(f"{target}.{secrets.token_hex(8)}{_PART}"), ignore_errors=True
                    )
            else:
                self._unlock()
                return

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _locked(folder: Path) -> int | None:
    """A descriptor that holds a lock of the folder for as long as the process lives; None where there are no locks."""
    if fcntl is None:
        return None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_abandoned(place: Path) -> None:
    """Remove what killed runs had not finished: folders whose lock nobody holds."""
    for folder in place.glob(f"*{_PART}"):
        with contextlib.suppress(OSError):
            if (lock := _locked(folder)) is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


@final
class ScratchSink(Sink):
    """Columns in files. Each shard is one stretch of every file, at a place known before any row is read."""

    def __init__(self, scratch: Scratch, columns: Sequence[Column], sizes: np.ndarray) -> None:
        scratch.begin()
        self._scratch = scratch
        self._widths = [column.row_bytes for column in columns]
        self._checksums = np.zeros((len(columns), len(sizes)), np.uint32)
        self._files: list[BinaryIO] = []
        try:
            self._open(int(sizes.sum()))
        except BaseException:
            self._close(complete=False)
            raise

    def _open(self, num_rows: int) -> None:
        needed, free = num_rows * sum(self._widths), shutil.disk_usage(self._scratch.path).free
        if needed > free:
            raise self._full(f"they take {needed / 1e9:.2f} GB and {free / 1e9:.2f} GB are free")
        try:
            for number in range(len(self._widths)):
                self._files.append(self._scratch.column_file(number).open("wb", buffering=0))
        except OSError as error:
            raise self._full(error.strerror or str(error)) from error

    def write(self, number: int, entries: np.ndarray, placement: Placement) -> None:
        width, file, checksums = self._widths[number], self._files[number], self._checksums[number]
        data = memoryview(entries[placement.order].reshape(-1).view(np.uint8).data)
        try:
            for shard in np.flatnonzero(placement.counts):
                start = int(placement.starts[shard]) * width
                part = data[start : start + int(placement.counts[shard]) * width]
                file.seek(int(placement.targets[shard]) * width)
                _write_all(file, part)
                checksums[shard] = zlib.crc32(part, int(checksums[shard]))
        except OSError as error:
            raise self._full(error.strerror or str(error)) from error

    def _full(self, reason: str) -> DataError:
        return DataError(
            f"The shards cannot be written to {str(self._scratch.path)!r}: {reason}. "
            "Choose a folder with more space (scratch= of shardmc.data.as_source, or --scratch), or raise its memory= "
            "(--memory)."
        )

    def __enter__(self) -> ScratchSink:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(complete=kind is None)

    def _close(self, *, complete: bool) -> None:
        for file in self._files:
            file.close()
        if not complete:
            self._scratch.discard()
            return
        try:
            self._scratch.complete(self._checksums)
        except OSError as error:
            self._scratch.discard()
            raise self._full(error.strerror or str(error)) from error


def _write_all(file: BinaryIO, data: memoryview) -> None:
    while len(data):
        written = file.write(data)  # an unbuffered write to an almost full disk may be partial
        data = data[written:]


def temporary_folder(owner: object, prefix: str) -> Path:
    """A new temporary folder that is deleted with `owner`, or when the process ends, also by a signal.

    A process that is killed cannot delete anything. So a small guard process waits at a pipe, which the system closes
    when this process ends, and then deletes the folder. The guard has its own session: Ctrl-C does not reach it.
    """
    folder = tempfile.mkdtemp(prefix=prefix)
    guard = None
    if os.name == "posix":
        command = ["/bin/sh", "-c", _GUARD, "sh", folder]
        guard = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
    weakref.finalize(owner, _delete, folder, guard, os.getpid())
    return Path(folder)


def _delete(folder: str, guard: subprocess.Popen[bytes] | None, process: int) -> None:
    if os.getpid() != process:
        return  # a forked child has a copy of the owner, but the folder is its parent's
    shutil.rmtree(folder, ignore_errors=True)
    if guard is not None and guard.stdin is not None:
        guard.stdin.close()
        guard.wait()
