"""CSV files, plain or compressed, read a piece at a time."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from shardmc.data.files import find_files, first_line, hash_file
from shardmc.data.reader import TableReader, spread_positions
from shardmc.errors import DataError

SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.bz2", ".csv.zst")
_BLOCK = 1 << 22  # bytes parsed at once


@final
class CsvReader(TableReader):
    """Reads a CSV file with a header line. A first pass finds types that fit all rows."""

    in_memory = False

    def __init__(self, location: str) -> None:
        (self._file,) = find_files(location, SUFFIXES)
        self.types = {}
        while (column := self._misfit()) is not None:
            self.types = {**self.types, column: _wider(self.types[column])}
        if self.num_rows == 0:
            raise DataError(f"The table {location!r} is empty: it has no rows.")

    def _misfit(self) -> str | None:
        """Read all rows with the types found so far. Return the first column that does not fit, if any."""
        self.num_rows = 0
        try:
            with self._open(None) as reader:
                if not self.types:
                    self.types = {field.name: field.type for field in reader.schema}
                for batch in reader:
                    self.num_rows += batch.num_rows
        except pa.ArrowInvalid as error:
            if (found := re.search(r"In CSV column #(\d+)", str(error))) is None:
                raise self._unreadable(error) from error
            return list(self.types)[int(found[1])]
        return None

    def _open(self, names: Sequence[str] | None) -> pacsv.CSVStreamingReader:
        convert = pacsv.ConvertOptions(
            column_types=dict(self.types), include_columns=list(names or ()), strings_can_be_null=True
        )
        parse = pacsv.ParseOptions(delimiter="\t" if ".tsv" in self._file.name else ",")
        try:
            stream = self._file.filesystem.open_input_stream(self._file.path, compression="detect")
            return pacsv.open_csv(stream, pacsv.ReadOptions(block_size=_BLOCK), parse, convert)
        except (OSError, pa.ArrowException) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> DataError:
        return DataError(f"CSV file {self._file.name!r} cannot be read: {first_line(error)}.")

    def pieces(self, names: Sequence[str], count: int) -> Iterator[pa.Table]:
        try:
            with self._open(names) as reader:
                for batch in reader:
                    for start in range(0, batch.num_rows, count):
                        yield pa.table(batch.slice(start, count))
        except (OSError, pa.ArrowException) as error:
            raise self._unreadable(error) from error

    def sample(self, names: Sequence[str], count: int, seed: int) -> pa.Table:
        rows, start, parts = spread_positions(self.num_rows, count, seed), 0, []
        for piece in self.pieces(names, 1 << 16):
            inside = (rows >= start) & (rows < start + len(piece))
            parts.append(piece.take(np.asarray(rows[inside] - start)))
            start += len(piece)
        return pa.concat_tables(parts)

    @cached_property
    def fingerprint(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        digest = hashlib.sha256(f"{self.num_rows} {self.types}".encode())
        with self._file.open() as opened:
            hash_file(digest, opened, self._file.size)
        return digest.hexdigest()


def _wider(kind: pa.DataType) -> pa.DataType:
    """The next type to try if a column's entries do not fit this one."""
    return pa.float64() if pa.types.is_integer(kind) or pa.types.is_null(kind) else pa.string()
