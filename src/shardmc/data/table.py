"""Tables with named columns, in memory or in files: how they are read a piece at a time, and as a source of rows."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, final

import jax
import narwhals as nw
import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from shardmc.data.arrow import as_column, as_numpy, is_number_type
from shardmc.data.assignment import spread_positions
from shardmc.data.batch import Blocks
from shardmc.data.blocks import ArrayBlocks, StreamBlocks
from shardmc.data.columns import (
    Column,
    InternalKey,
    cast_sample,
    device_type,
    leaf_name,
    refuse_repeated,
    shapes_of,
)
from shardmc.data.gathered import MEMORY, Limits, return_unused_memory, warn_of_memory
from shardmc.data.partition import MemorySink, Partitioner
from shardmc.data.scratch import Scratch, ScratchSink
from shardmc.data.source import Partition, Source, Transform, hash_arrays
from shardmc.errors import DataError, unknown
from shardmc.guards.limits import refuse_above
from shardmc.types import Rows, Structure

if TYPE_CHECKING:
    from narwhals.typing import IntoDataFrame


class TableReader(ABC):
    """Reads named columns as Arrow tables, a piece at a time, in row order."""

    num_rows: int
    types: Mapping[str, pa.DataType]
    """All columns and their types."""
    in_memory: bool
    """Whether the rows are already in memory. They are then written to disk only if the user sets a limit."""

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


def rows_at(source: Source, columns: Sequence[str], positions: np.ndarray) -> pa.Table:
    """The rows of a table or file at these positions, which are sorted."""
    parts, start = [], 0
    for table in source.tables(columns):
        parts.append(table.take(positions[(positions >= start) & (positions < start + len(table))] - start))
        start += len(table)
    return pa.concat_tables(parts)


def refuse_wide(num_columns: int) -> None:
    """Refuse a table with more columns than the limit."""
    refuse_above("columns", num_columns, f"The table has {num_columns:,} columns", DataError)


_LOOK_ENTRIES = 1000  # entries from which the type of a column of Python objects is learned


@final
class FrameReader(TableReader):
    """Reads a pandas, polars or Arrow table in memory, through narwhals."""

    in_memory = True

    def __init__(self, frame: nw.DataFrame[IntoDataFrame]) -> None:
        self.num_rows = len(frame)
        if self.num_rows == 0:
            raise DataError("The table is empty: it has no rows.")
        refuse_wide(len(frame.columns))
        # pandas allows any object as a column's name. Everything else needs text.
        refuse_repeated([str(name) for name in frame.columns])
        self._frame = frame.rename({name: str(name) for name in frame.columns if not isinstance(name, str)})
        self.types = {name: self._type(name, kind) for name, kind in self._frame.schema.items()}

    def _type(self, name: str, kind: nw.dtypes.DType) -> pa.DataType:
        # pandas may store text as objects, whose type is known from the entries only.
        rows = _LOOK_ENTRIES if kind in (nw.Object, nw.String, nw.Unknown) else 0
        try:
            return self._frame.select(name)[:rows].to_arrow().schema.field(0).type
        except (pa.ArrowException, TypeError, ValueError):
            return pa.binary()

    def _arrow(self, names: Sequence[str], rows: slice | list[int]) -> pa.Table:
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


def _check_column(name: str, part: nw.DataFrame[IntoDataFrame]) -> None:
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
            raise DataError(
                f"Every row has a missing value in one of the columns {', '.join(columns)}. Impute them, or "
                "leave out a column."
            )

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


_LOOK_ROWS = 16  # rows from which the output of a transformation is learned


@final
class TableSource(Source):
    """Rows of a table: the columns named, or all numeric ones, or what a transformation makes of them."""

    def __init__(
        self,
        reader: TableReader,
        columns: Sequence[str] | None = None,
        limits: Limits | None = None,
        transform: Transform | None = None,
        label: str = "",
    ) -> None:
        self.num_rows = reader.num_rows
        self.column_names = tuple(reader.types)
        self._reader, self._limits = reader, limits or Limits()
        self._transform, self._label = transform, label
        self.is_table = transform is None
        self._implied = columns is None
        numeric = (name for name, kind in reader.types.items() if is_number_type(kind))
        self._names = tuple(numeric if columns is None else dict.fromkeys(columns))
        for name in self._names:
            if name not in reader.types:
                raise unknown("column", name, self.column_names)
        if not self._names:
            raise DataError(
                f"None of the columns holds numbers; the columns are {', '.join(self.column_names)}."
            )

    def select(self, columns: Sequence[str]) -> TableSource:
        return TableSource(self._reader, columns, self._limits) if self.is_table else self

    def transform(self, function: Transform, columns: Sequence[str], label: str) -> TableSource:
        return TableSource(self._reader, columns, self._limits, function, label)

    def drop_missing(self, columns: Sequence[str] | None = None) -> TableSource:
        used = self._names if columns is None else TableSource(self._reader, columns)._names
        reader = CompleteReader(self._reader, used)
        return TableSource(
            reader, None if self._implied else self._names, self._limits, self._transform, self._label
        )

    def tables(self, columns: Sequence[str], count: int = 1 << 17) -> Iterator[pa.Table]:
        return self._reader.pieces(TableSource(self._reader, columns)._names, count)

    def sample(self, count: int, seed: int) -> Rows:
        columns, structure = self._layout()
        found = self._reader.sample(self._names, count, seed)
        entries = self._entries(found, [column.key for column in columns])
        return jax.tree.unflatten(structure, cast_sample(columns, entries))

    def row_shapes(self) -> Rows:
        columns, structure = self._layout()
        return jax.tree.unflatten(structure, shapes_of(columns))

    def split(self, partition: Partition, seed: int) -> Blocks:
        columns, structure = self._layout()
        names = dict(zip(self.column_names, self.column_names, strict=True))
        partitioner = Partitioner(self._read, columns, names, self.num_rows, partition, seed)
        needed = self.num_rows * sum(column.row_bytes for column in partitioner.columns)
        memory = self._limits.memory
        if memory is None:
            memory = needed if self._reader.in_memory else MEMORY
        if needed > memory:
            warn_of_memory(memory, needed, len(partitioner.sizes))
            return self._stream(partitioner, structure, memory, partition, seed)
        sink = MemorySink(partitioner.columns, self.num_rows, partitioner.sizes)
        partitioner.run(sink)
        arrays = sink.on_device()
        weights = arrays.pop() if partitioner.has_weights else None
        return ArrayBlocks(
            jax.tree.unflatten(structure, arrays), weights, partitioner.sizes, partitioner.starts
        )

    def _stream(
        self, partitioner: Partitioner, structure: Structure, memory: int, partition: Partition, seed: int
    ) -> StreamBlocks:
        place, key = self._limits.scratch, ""
        if place is not None:
            columns, parts = repr(partitioner.columns), partition.fingerprint
            key = json.dumps([self.fingerprint, columns, str(structure), parts, seed])
        scratch = Scratch(place, key)
        if not scratch.is_complete:
            with ScratchSink(scratch, partitioner.columns, partitioner.sizes) as sink:
                partitioner.run(sink)
            return_unused_memory()
        largest = int(partitioner.sizes.max()) * sum(column.row_bytes for column in partitioner.columns)
        return StreamBlocks(
            scratch=scratch,
            columns=tuple(partitioner.columns),
            structure=structure,
            has_weights=partitioner.has_weights,
            sizes=partitioner.sizes,
            starts=partitioner.starts,
            most_in_memory=max(1, memory // largest) if memory else None,
        )

    def _layout(self) -> tuple[list[Column], Structure]:
        """The columns of the rows, and their pytree structure."""
        if self._transform is None:
            types = self._reader.types
            structure = jax.tree.structure(dict.fromkeys(self._names, 0))  # JAX sorts its leaves by name
            return [
                replace(as_column(n, types[n]), implied=self._implied) for n in sorted(self._names)
            ], structure
        rows = self._transform(next(self._reader.pieces(self._names, _LOOK_ROWS)))
        paths, structure = jax.tree_util.tree_flatten_with_path(rows)
        named = [(self._computed(leaf_name(path)), np.asarray(leaf)) for path, leaf in paths]
        return [
            Column(
                name,
                device_type(name, a.dtype),
                a.shape[1:],
                from_table=True,
                own_key=InternalKey("computed", number),
            )
            for number, (name, a) in enumerate(named)
        ], structure

    def _computed(self, name: str) -> str:
        """The name of what the transformation makes, for messages: a column that it passes on keeps its own."""
        return name if name in self._names else f"{name} (computed)"

    def _read(self, keys: Sequence[Hashable], count: int) -> Iterator[list[np.ndarray]]:
        raw = [key for key in keys if isinstance(key, str)]
        needed = raw if len(raw) == len(keys) else [*self._names, *raw]
        for piece in self._reader.pieces(list(dict.fromkeys(needed)), count):
            yield self._entries(piece, keys)

    def _entries(self, piece: pa.Table, keys: Sequence[Hashable]) -> list[np.ndarray]:
        """The entries of the table's own columns (keyed by name) and of computed ones (keyed by number)."""
        computed: list[ArrayLike] = []
        if self._transform is not None and any(isinstance(key, InternalKey) for key in keys):
            computed = jax.tree.leaves(self._transform(piece.select(list(self._names))))
        return [
            np.asarray(computed[key.number])
            if isinstance(key, InternalKey)
            else as_numpy(piece.column(str(key)))
            for key in keys
        ]

    @property
    def fingerprint(self) -> str:
        return f"{self._reader.fingerprint}{self._label and ' ' + self._label}"
