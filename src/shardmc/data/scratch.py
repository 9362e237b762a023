"""A folder of column files in which dealt rows wait on disk until their shard is needed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np

from shardmc.data.columns import Column
from shardmc.data.dealing import Hand, Sink
from shardmc.errors import DataError

_DONE = "dealt.json"


@final
class Scratch:
    """A folder for dealt rows: one in a place that the user names and that stays, or a temporary one.

    A temporary folder goes when the object that made it goes, or when the process ends. A copy in another process only
    reads.
    """

    def __init__(self, place: str | os.PathLike[str] | None, key: str) -> None:
        try:
            if place is None:
                self.path = Path(tempfile.mkdtemp(prefix="shardmc-rows-"))
                self._remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
            else:
                # A worker that reads the files may have another working directory.
                self.path = Path(place).absolute() / hashlib.sha256(key.encode()).hexdigest()[:16]
                self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(
                f"No scratch folder can be made in {str(place or 'the temporary folder')!r}: {error}."
            ) from error
        self._key = key

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_key": self._key}

    def column_file(self, number: int) -> Path:
        return self.path / f"{number}.bin"

    @property
    def is_complete(self) -> bool:
        """Whether an earlier pass over the same rows, with the same partition and seed, has come to its end."""
        try:
            return json.loads((self.path / _DONE).read_text())["key"] == self._key
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def complete(self) -> None:
        """Note that all rows have been written."""
        temporary = self.path / f"{_DONE}.part"
        temporary.write_text(json.dumps({"key": self._key}))
        temporary.replace(self.path / _DONE)

    def discard(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.path, ignore_errors=True)


@final
class ScratchSink(Sink):
    """Columns in files: a shard's rows are one stretch of each, whose place is known before the first row is read."""

    def __init__(self, scratch: Scratch, columns: Sequence[Column], num_rows: int) -> None:
        self._scratch = scratch
        self._widths = [column.row_bytes for column in columns]
        needed, free = num_rows * sum(self._widths), shutil.disk_usage(scratch.path).free
        if needed > free:
            raise self._full(f"it takes {needed / 1e9:.2f} GB and {free / 1e9:.2f} GB are free")
        self._files: list[BinaryIO] = []
        try:
            for number in range(len(columns)):
                self._files.append(scratch.column_file(number).open("wb", buffering=0))
        except OSError as error:
            raise self._full(error.strerror or str(error)) from error

    def write(self, number: int, entries: np.ndarray, hand: Hand) -> None:
        width, file = self._widths[number], self._files[number]
        data = memoryview(entries[hand.order].reshape(-1).view(np.uint8).data)
        try:
            for shard in np.flatnonzero(hand.counts):
                start = int(hand.starts[shard]) * width
                file.seek(int(hand.targets[shard]) * width)
                _write_all(file, data[start : start + int(hand.counts[shard]) * width])
        except OSError as error:
            raise self._full(error.strerror or str(error)) from error

    def _full(self, reason: str) -> DataError:
        return DataError(
            f"The rows dealt to shards cannot be written to {str(self._scratch.path)!r}: {reason}. "
            "Name a folder with more room as scratch, or allow more memory."
        )

    def __enter__(self) -> ScratchSink:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for file in self._files:
            file.close()
        if kind is None:
            self._scratch.complete()
        else:
            self._scratch.discard()


def _write_all(file: BinaryIO, data: memoryview) -> None:
    while len(data):
        written = file.write(data)  # unbuffered, a disk about to be full takes only a part
        data = data[written:]
