"""Parquet files and folders, read a piece at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardmc.data.files import File, find_files, first_line, hash_file
from shardmc.data.reader import TableReader, spread_positions
from shardmc.errors import DataError

_BUFFER = 1 << 20  # bytes read at once, so that no row group is in memory as a whole
_GROUPS = 16  # row groups that a sample is taken from


@final
class ParquetReader(TableReader):
    """Reads a Parquet file, or all Parquet files of a folder, as one table."""

    in_memory = False

    def __init__(self, location: str) -> None:
        self._files = find_files(location, (".parquet", ".parq", ".pq"))
        self._groups: list[np.ndarray] = []  # per file: rows of its row groups
        self._conflicts: dict[str, str] = {}
        self.types = {}
        for file in self._files:
            with _opened(file) as parquet:
                metadata = parquet.metadata
                self._groups.append(
                    np.array(
                        [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)],
                        dtype=np.int64,
                    )
                )
                self._join_schema(file, parquet.schema_arrow)
        self._keys = self._key_types()
        self.types = {**self.types, **self._keys}
        self.num_rows = int(sum(groups.sum() for groups in self._groups))
        if self.num_rows == 0:
            raise DataError(f"The table {str(location)!r} is empty: it has no rows.")

    def _join_schema(self, file: File, schema: pa.Schema) -> None:
        types = {field.name: field.type for field in schema}
        if not self.types:
            self.types = types
            return
        first = self._files[0].name
        for name in self.types.keys() | types.keys():
            here, there = types.get(name), self.types.get(name)
            if here != there and name not in self._conflicts:
                self._conflicts[name] = (
                    f"Column {name!r} is {_said(there)} in {first!r} but {_said(here)} in {file.name!r}; "
                    "write all files with one schema."
                )

    def _key_types(self) -> dict[str, pa.DataType]:
        """The types of columns in folder names (key=value): integers if all values are, else text."""
        values: dict[str, list[str | None]] = {}
        for key in {key for file in self._files for key in file.keys}:
            values[key] = [file.keys.get(key) for file in self._files]
        return {
            key: pa.int64() if all(map(_is_whole, found)) else pa.string() for key, found in values.items()
        }

    def pieces(self, names: Sequence[str], count: int) -> Iterator[pa.Table]:
        for number in range(len(self._files)):
            yield from self._file_pieces(number, names, count)

    def _file_pieces(
        self, number: int, names: Sequence[str], count: int, groups: Sequence[int] | None = None
    ) -> Iterator[pa.Table]:
        for name in names:
            if name in self._conflicts:
                raise DataError(self._conflicts[name])
        file = self._files[number]
        inside = [name for name in names if name not in self._keys]
        with _opened(file) as parquet:
            try:
                for batch in parquet.iter_batches(count, row_groups=groups, columns=inside, use_threads=True):
                    yield self._table(file, batch, names)
            except (OSError, pa.ArrowException) as error:
                raise _damaged(file, error) from error

    def _table(self, file: File, batch: pa.RecordBatch, names: Sequence[str]) -> pa.Table:
        def column(name: str) -> pa.Array:
            if name not in self._keys:
                return batch.column(name)
            value, kind = file.keys.get(name), self._keys[name]
            return pa.repeat(pa.scalar(value, pa.string()).cast(kind), batch.num_rows)

        return pa.table([column(name) for name in names], names=list(names))

    def sample(self, names: Sequence[str], count: int, seed: int) -> pa.Table:
        groups = [(number, group) for number, sizes in enumerate(self._groups) for group in range(len(sizes))]
        chosen = [groups[p] for p in spread_positions(len(groups), _GROUPS, seed)]
        each = -(-count // len(chosen))
        parts = []
        for number, group in chosen:
            rows, start = spread_positions(int(self._groups[number][group]), each, seed + group), 0
            for piece in self._file_pieces(number, names, 1 << 16, [group]):
                parts.append(piece.take(rows[(rows >= start) & (rows < start + len(piece))] - start))
                start += len(piece)
        return pa.concat_tables(parts).slice(0, count)

    @cached_property
    def fingerprint(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        digest = hashlib.sha256(f"{self.num_rows} {self.types}".encode())
        for file in self._files:
            digest.update(f"{file.name} {file.keys} ".encode())
            with file.open() as opened:
                hash_file(digest, opened, file.size)
        return digest.hexdigest()


@contextmanager
def _opened(file: File) -> Iterator[pq.ParquetFile]:
    try:
        parquet = pq.ParquetFile(file.open(), pre_buffer=False, buffer_size=_BUFFER)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(file, error) from error
    with parquet:
        yield parquet


def _damaged(file: File, error: Exception) -> DataError:
    return DataError(
        f"Parquet file {file.name!r} cannot be read ({first_line(error)}): it is missing, truncated, damaged or "
        "not a Parquet file. Write or copy it again."
    )


def _is_whole(value: str | None) -> bool:
    return value is not None and value.removeprefix("-").isdigit()


def _said(kind: pa.DataType | None) -> str:
    return "absent" if kind is None else str(kind)
