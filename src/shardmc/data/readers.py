"""Readers of files of rows: CSV, in which quotes must be closed, and Parquet, a piece at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from shardmc.data.assignment import spread_positions
from shardmc.data.columns import refuse_repeated
from shardmc.data.locations import File, find_files, fingerprint_of, first_line
from shardmc.data.table import TableReader, refuse_wide
from shardmc.errors import DataError
from shardmc.guards.untrusted import CountedStream

_MOST = 1 << 22  # bytes of one entry
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_QUOTE, _NEW_LINE, _RETURN = b'"\n\r'


@dataclass(frozen=True)
class UnclosedQuoteError(ValueError):
    """An entry starts with a quote and does not end with one."""

    line: int
    """Where it starts, counted from 1."""


def find_line_breaks(blocks: Iterator[bytes], delimiter: str) -> bool:
    r"""Whether a quoted entry may hold a line break. An UnclosedQuoteError for a quote that is not closed.

    A quote opens an entry only at its start, and closes it only at its end; inside, quotes are doubled. Other quotes
    are text.

    >>> find_line_breaks(iter([b'x,note\n1,"a ""b"" c"\n2,5" pipe\n']), ",")
    False
    >>> find_line_breaks(iter([b'x,note\n1,"a\nb"\n']), ",")
    True
    >>> find_line_breaks(iter([b'x,note\n1,"a\n2,b\n']), ",")
    Traceback (most recent call last):
    shardmc.data.readers.UnclosedQuoteError: 2
    """
    scanner = _Scanner(delimiter)
    for number, block in enumerate(blocks):
        scanner.add(block.removeprefix(_BYTE_ORDER_MARK) if number == 0 else block)
    scanner.add(b"\n")
    scanner.finish()
    return scanner.line_breaks


@final
class _Scanner:
    """Follows quotes through a file, block by block."""

    def __init__(self, delimiter: str) -> None:
        end = f"[{delimiter}\r\n]"
        self._is_end = np.zeros(256, bool)
        self._is_end[list(f"{delimiter}\r\n".encode())] = True
        self._complete = re.compile(
            rf'(?:[^"]++|(?<={end})"(?:[^"]++|"")*+"(?= *+{end})|(?<!{end})")*+'.encode()
        )
        self._line_break = re.compile(rf'(?<={end})"(?:[^"\r\n]++|"")*+[\r\n]'.encode())
        self._open = re.compile(rb'"(?:[^"]++|"")*+"? *+\Z')
        self._line = 1
        self._text = b"\n"  # the last byte that is done, and what follows it
        self.line_breaks = False

    def add(self, block: bytes) -> None:
        text = self._text + block
        done = len(text)
        if b'"' in text:
            done = self._whole_lines(text) or self._entries(text)
        self._line += text.count(b"\n", 1, done)
        # The byte before shows whether a quote comes first in an entry.
        self._text = text[done - 1 :]

    def finish(self) -> None:
        if len(self._text) > 1:
            raise UnclosedQuoteError(self._line)

    def _whole_lines(self, text: bytes) -> int:
        """Where the last line ends, if quotes open and close in turn; otherwise 0. This is the usual case, and fast."""
        done = text.rfind(b"\n") + 1
        codes = np.frombuffer(text, np.uint8, done)
        quotes = 1 + np.flatnonzero(codes[1:] == _QUOTE)
        if len(quotes) % 2 or not len(quotes):
            return 0
        opening, closing = quotes[0::2], quotes[1::2]
        doubled = closing[:-1] + 1 == opening[1:]
        starts, stops = self._is_end[codes[opening - 1]], self._is_end[codes[closing + 1]]
        if not (starts[0] and (starts[1:] | doubled).all() and stops[-1] and (stops[:-1] | doubled).all()):
            return 0
        if not self.line_breaks:
            lines = np.flatnonzero((codes == _NEW_LINE) | (codes == _RETURN))
            self.line_breaks = bool(
                (np.searchsorted(lines, opening) != np.searchsorted(lines, closing)).any()
            )
        return done

    def _entries(self, text: bytes) -> int:
        """Where a quote opens an entry that is not complete, or the end."""
        match = self._complete.match(text, 1)
        assert match is not None
        done = match.end()
        self.line_breaks = self.line_breaks or self._line_break.search(text, 0, done) is not None
        if len(text) - done > _MOST or (done < len(text) and self._open.match(text, done) is None):
            raise UnclosedQuoteError(self._line + text.count(b"\n", 1, done))
        return done


SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.bz2", ".csv.zst")
_BLOCK = 1 << 22  # bytes parsed at once


@final
class CsvReader(TableReader):
    """Reads a CSV file with a header line. A first pass finds types that fit all rows."""

    in_memory = False

    def __init__(self, location: str, *, trusted: bool = False) -> None:
        (self._file,) = find_files(location, SUFFIXES)
        self._trusted = trusted
        self._delimiter = "\t" if ".tsv" in self._file.name else ","
        self._refuse_wide()
        self._line_breaks = self._has_line_breaks()
        self.types = {}
        while (column := self._misfit()) is not None:
            self.types = {**self.types, column: _wider(self.types[column])}
        if self.num_rows == 0:
            raise DataError(f"The table {location!r} is empty: it has no rows.")

    def _has_line_breaks(self) -> bool:
        """Whether entries hold line breaks; a DataError if a quote is not closed."""
        try:
            with self._stream() as stream:
                return find_line_breaks(iter(lambda: stream.read(_BLOCK), b""), self._delimiter)
        except UnclosedQuoteError as error:
            raise DataError(
                f"CSV file {self._file.name!r}: the quote that opens in line {error.line} is not closed. An entry that "
                "starts with a quote must end with one; write a quote inside of it twice."
            ) from None
        except (OSError, pa.ArrowException) as error:
            raise self._unreadable(error) from error

    def _refuse_wide(self) -> None:
        """Refuse too many columns by the first line, before the types of all columns are learned."""
        try:
            with self._stream() as stream:
                line = stream.read(_BLOCK).partition(b"\n")[0]
        except (OSError, pa.ArrowException) as error:
            raise self._unreadable(error) from error
        refuse_wide(line.count(self._delimiter.encode()) + 1)

    def _misfit(self) -> str | None:
        """Read all rows with the types found so far. Return the first column that does not fit, if any."""
        self.num_rows = 0
        try:
            with self._open(None) as reader:
                if not self.types:
                    refuse_repeated(reader.schema.names)
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
        parse = pacsv.ParseOptions(delimiter=self._delimiter, newlines_in_values=self._line_breaks)
        try:
            return pacsv.open_csv(self._stream(), pacsv.ReadOptions(block_size=_BLOCK), parse, convert)
        except (OSError, pa.ArrowException) as error:
            raise self._unreadable(error) from error

    def _stream(self) -> pa.NativeFile:
        """The text of the file. What is compressed is refused when it unpacks to far more than its size."""
        opened = self._file.filesystem.open_input_stream(self._file.path, compression="detect")
        if not self._file.name.endswith((".csv", ".tsv")):
            opened = pa.PythonFile(CountedStream(opened, self._file.name, self._file.size), "r")
        return opened

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
        return fingerprint_of([self._file], f"{self.num_rows} {self.types}", trusted=self._trusted)


def _wider(kind: pa.DataType) -> pa.DataType:
    """The next type to try if a column's entries do not fit this one."""
    return pa.float64() if pa.types.is_integer(kind) or pa.types.is_null(kind) else pa.string()


_BUFFER = 1 << 20  # bytes read at once, so that no row group is in memory as a whole
_GROUPS = 16  # row groups that a sample is taken from
_WHOLE = re.compile("-?[0-9]{1,30}")


@final
class ParquetReader(TableReader):
    """Reads a Parquet file, or all Parquet files of a folder, as one table."""

    in_memory = False

    def __init__(self, location: str, *, trusted: bool = False) -> None:
        self._trusted = trusted
        self._files = find_files(location, (".parquet", ".parq", ".pq"))
        self._groups: list[np.ndarray] = []  # per file: rows of its row groups
        self._conflicts: dict[str, str] = {}
        self.types = {}
        for file in self._files:
            with _opened(file) as parquet:
                metadata = parquet.metadata
                refuse_wide(metadata.num_columns)
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
        refuse_repeated(schema.names)
        for key in file.keys.keys() & set(schema.names):
            self._conflicts[key] = (
                f"Column {key!r} is in {file.name!r} and in the name of its folder; rename one of them."
            )
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
        return fingerprint_of(self._files, f"{self.num_rows} {self.types}", trusted=self._trusted)


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
    """Whether a text is a whole number of 64 bits.

    >>> _is_whole("-7"), _is_whole("\u00b2"), _is_whole("99999999999999999999")
    (True, False, False)
    """
    return value is not None and _WHOLE.fullmatch(value) is not None and -(1 << 63) <= int(value) < 1 << 63


def _said(kind: pa.DataType | None) -> str:
    return "absent" if kind is None else str(kind)
