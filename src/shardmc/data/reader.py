"""Tables read a piece at a time: what a reader promises, and the readers of tables in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, final

import narwhals as nw
import numpy as np
import pyarrow as pa

from shardmc.data.arrow import as_numpy, is_number_type
from shardmc.data.columns import refuse_repeated
from shardmc.data.shuffle import seed_for
from shardmc.data.source import hash_arrays
from shardmc.errors import DataError


class TableReader(ABC):
    """Reads named columns as Arrow tables, a piece at a time, in row order."""

    num_rows: int
    types: Mapping[str, pa.DataType]
    """All columns and their types."""
    in_memory: bool
    """Whether the rows are already in memory, so that writing shards to disk saves nothing."""

    @abstractmethod
    def pieces(self, names: Sequence[str], count: int) -> Iterator[pa.Table]:
        """The named columns, at most `count` rows at a time."""

    @abstractmethod
    def sample(self, names: Sequence[str], count: int, seed: int) -> pa.Table:
        """At most `count` rows from all over the table, without reading all of it."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash that changes when the rows change."""


def spread_positions(num_rows: int, count: int, seed: int) -> np.ndarray:
    """Sorted random row numbers, one from each of `count` equal stretches of the rows.

    Examples
    --------
    >>> spread_positions(1000, 4, seed=0) // 250
    array([0, 1, 2, 3])
    """
    if num_rows <= count:
        return np.arange(num_rows)
    edges = np.arange(count + 1) * num_rows // count
    return np.random.default_rng(seed_for("sample", seed)).integers(edges[:-1], edges[1:])


_LOOK = 1000  # entries from which the type of a column of Python objects is learned


@final
class FrameReader(TableReader):
    """Reads a pandas, polars or Arrow table in memory, through narwhals."""

    in_memory = True

    def __init__(self, frame: nw.DataFrame[Any]) -> None:
        self.num_rows = len(frame)
        if self.num_rows == 0:
            raise DataError("The table is empty: it has no rows.")
        # pandas allows any object as a column's name. Everything else needs text.
        refuse_repeated([str(name) for name in frame.columns])
        self._frame = frame.rename({name: str(name) for name in frame.columns if not isinstance(name, str)})
        self.types = {name: self._type(name) for name in self._frame.columns}

    def _type(self, name: str) -> pa.DataType:
        # pandas may store text as objects, whose type is known from the entries only.
        rows = _LOOK if self._frame.schema[name] in (nw.Object, nw.String, nw.Unknown) else 0
        try:
            return self._frame.select(name)[:rows].to_arrow().schema.field(0).type
        except (pa.ArrowException, TypeError, ValueError):
            return pa.binary()

    def _arrow(self, names: Sequence[str], rows: Any) -> pa.Table:
        part = self._frame.select(*names)[rows]
        try:
            return part.to_arrow()
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            for name in names:
                _check_column(name, part.select(name))
            raise DataError(f"The table's columns cannot be read: {error.args[0]}.") from error

    def pieces(self, names: Sequence[str], count: int) -> Iterator[pa.Table]:
        for start in range(0, self.num_rows, count):
            yield self._arrow(names, slice(start, start + count))

    def sample(self, names: Sequence[str], count: int, seed: int) -> pa.Table:
        return self._arrow(names, spread_positions(self.num_rows, count, seed).tolist())

    @cached_property
    def fingerprint(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        entries = (array for name in self.types for array in self._entries(name))
        return hash_arrays(f"{self.num_rows} {self.types}", entries)

    def _entries(self, name: str) -> Iterator[np.ndarray]:
        """The content of a column: its numbers, or its distinct values and each row's index into them."""
        try:
            for piece in self.pieces([name], 1 << 20):
                if is_number_type(self.types[name]):
                    yield as_numpy(piece.column(0))
                    continue
                for chunk in piece.column(0).dictionary_encode(null_encoding="encode").chunks:
                    yield np.array([repr(value) for value in chunk.dictionary.to_pylist()], dtype=object)
                    yield as_numpy(chunk.indices)
        except (DataError, pa.ArrowNotImplementedError):
            return  # a column of lists or of mixed types, which no model can use


def _check_column(name: str, part: nw.DataFrame[Any]) -> None:
    try:
        part.to_arrow()
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(
            f"Column {name!r} mixes types ({error.args[0]}); convert it to one numeric type, or leave it out of the "
            "columns used."
        ) from error


@final
class CompleteReader(TableReader):
    """Reads the rows of a table in which no given column is missing. A first pass counts them."""

    def __init__(self, reader: TableReader, columns: Sequence[str]) -> None:
        self._reader = reader
        self._columns = tuple(columns)
        self.types = reader.types
        self.in_memory = reader.in_memory
        self.num_rows = sum(len(piece) for piece in self.pieces(columns, 1 << 17))
        if self.num_rows == 0:
            raise DataError(f"Every row has a missing value in one of the columns {', '.join(columns)}.")

    def pieces(self, names: Sequence[str], count: int) -> Iterator[pa.Table]:
        for piece in self._reader.pieces(list(dict.fromkeys([*names, *self._columns])), count):
            complete = self._complete(piece)
            if len(complete):
                yield complete.select(list(names))

    def _complete(self, piece: pa.Table) -> pa.Table:
        keep = np.ones(len(piece), dtype=bool)
        for name in self._columns:
            column = piece.column(name)
            # NumPy and pandas use NaN for a missing number.
            keep &= ~column.is_null(nan_is_null=pa.types.is_floating(column.type)).to_numpy()
        return piece.filter(pa.array(keep))

    def sample(self, names: Sequence[str], count: int, seed: int) -> pa.Table:
        wanted = list(dict.fromkeys([*names, *self._columns]))
        # Rows with missing values are dropped after sampling, so sample more.
        more = min(4 * count, -(-count * self._reader.num_rows // self.num_rows) + 16)
        return self._complete(self._reader.sample(wanted, more, seed)).select(list(names)).slice(0, count)

    @property
    def fingerprint(self) -> str:
        return f"{self._reader.fingerprint} without rows missing {', '.join(self._columns)}"
