"""Tables with named columns, in memory or in files, as a source of rows."""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import jax
import numpy as np
import pyarrow as pa

from shardmc.data.arrow import as_column, as_numpy, is_number_type
from shardmc.data.batch import Blocks, Rows
from shardmc.data.blocks import ArrayBlocks
from shardmc.data.columns import Column, InternalKey, cast_sample, device_type, leaf_name
from shardmc.data.partition import MemorySink, Partitioner
from shardmc.data.reader import CompleteReader, TableReader
from shardmc.data.source import Partition, Source, Transform
from shardmc.data.stream import Scratch, ScratchSink, StreamBlocks
from shardmc.errors import DataError, unknown

_LOOK = 16  # rows from which the output of a transformation is learned

MEMORY = 1 << 30
"""The rows of files are held in memory up to this many bytes, by default."""


@dataclass(frozen=True)
class Limits:
    """How much memory the rows of a file may take, and where on disk larger ones go."""

    memory: int = MEMORY
    scratch: str | os.PathLike[str] | None = None


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

    def split(self, partition: Partition, seed: int) -> Blocks:
        columns, structure = self._layout()
        names = dict(zip(self.column_names, self.column_names, strict=True))
        partitioner = Partitioner(self._read, columns, names, self.num_rows, partition, seed)
        needed = self.num_rows * sum(column.row_bytes for column in partitioner.columns)
        if not self._reader.in_memory and needed > self._limits.memory:
            return self._stream(partitioner, structure, partition, seed)
        sink = MemorySink(partitioner.columns, self.num_rows)
        partitioner.run(sink)
        arrays = sink.on_device()
        weights = arrays.pop() if partitioner.has_weights else None
        return ArrayBlocks(
            jax.tree.unflatten(structure, arrays), weights, partitioner.sizes, partitioner.starts
        )

    def _stream(
        self, partitioner: Partitioner, structure: Any, partition: Partition, seed: int
    ) -> StreamBlocks:
        key = [self.fingerprint, repr(partitioner.columns), str(structure), partition.fingerprint, seed]
        scratch = Scratch(self._limits.scratch, json.dumps(key))
        if not scratch.is_complete:
            with ScratchSink(scratch, partitioner.columns, self.num_rows) as sink:
                partitioner.run(sink)
        return StreamBlocks(
            scratch,
            tuple(partitioner.columns),
            structure,
            partitioner.has_weights,
            partitioner.sizes,
            partitioner.starts,
        )

    def _layout(self) -> tuple[list[Column], Any]:
        """The columns of the rows, and their pytree structure."""
        if self._transform is None:
            types = self._reader.types
            structure = jax.tree.structure(dict.fromkeys(self._names, 0))  # JAX sorts its leaves by name
            return [
                replace(as_column(n, types[n]), implied=self._implied) for n in sorted(self._names)
            ], structure
        rows = self._transform(next(self._reader.pieces(self._names, _LOOK)))
        paths, structure = jax.tree_util.tree_flatten_with_path(rows)
        named = [(f"{leaf_name(path)} (computed)", np.asarray(leaf)) for path, leaf in paths]
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

    def _read(self, keys: Sequence[Hashable], count: int) -> Iterator[list[np.ndarray]]:
        raw = [key for key in keys if isinstance(key, str)]
        needed = raw if len(raw) == len(keys) else [*self._names, *raw]
        for piece in self._reader.pieces(list(dict.fromkeys(needed)), count):
            yield self._entries(piece, keys)

    def _entries(self, piece: pa.Table, keys: Sequence[Hashable]) -> list[np.ndarray]:
        """The entries of the table's own columns (keyed by name) and of computed ones (keyed by number)."""
        computed: list[Any] = []
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
