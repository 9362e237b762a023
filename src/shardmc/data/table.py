"""Tables with named columns, in memory or in files, as a source of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from shardmc.data.arrow import as_column, as_numpy, is_numeric
from shardmc.data.batch import Blocks, Rows
from shardmc.data.blocks import ArrayBlocks
from shardmc.data.columns import Column
from shardmc.data.dealing import Dealing, MemorySink
from shardmc.data.faults import Tally
from shardmc.data.reader import TableReader
from shardmc.data.source import Partition, Source
from shardmc.errors import DataError, unknown


@final
class TableSource(Source):
    """Rows of a table as a dictionary of its columns: those named, or all that are numbers."""

    is_table = True

    def __init__(self, reader: TableReader, columns: Sequence[str] | None = None) -> None:
        self._reader = reader
        self.num_rows = reader.num_rows
        self.column_names = tuple(reader.types)
        for name in columns or ():
            if name not in reader.types:
                raise unknown("column", name, self.column_names)
        self._implied = columns is None
        self._names = tuple(columns) if columns is not None else self._numeric()

    def _numeric(self) -> tuple[str, ...]:
        return tuple(name for name, kind in self._reader.types.items() if is_numeric(kind))

    def select(self, columns: Sequence[str]) -> TableSource:
        return TableSource(self._reader, columns)

    def _columns(self) -> list[Column]:
        if not self._names:
            raise DataError(f"No column holds numbers; the columns are {', '.join(self.column_names)}.")
        return [
            replace(as_column(name, self._reader.types[name]), implied=self._implied) for name in self._names
        ]

    def _read(self, names: Sequence[str], count: int) -> Iterator[list[np.ndarray]]:
        for piece in self._reader.pieces(list(dict.fromkeys(names)), count):
            yield [as_numpy(piece.column(name)) for name in names]

    def sample(self, count: int, seed: int) -> Rows:
        columns = self._columns()
        rows = self._reader.sample(self._names, count, seed)
        return {column.name: Tally(column).cast(as_numpy(rows.column(column.name))) for column in columns}

    def split(self, partition: Partition, seed: int) -> Blocks:
        dealing = Dealing(self._read, self._columns(), self.column_names, self.num_rows, partition, seed)
        sink = MemorySink(dealing.columns, self.num_rows)
        dealing.run(sink)
        dealt: list[Any] = sink.on_device()
        weights = dealt.pop() if dealing.has_weights else None
        return ArrayBlocks(dict(zip(self._names, dealt, strict=True)), weights, dealing.sizes, dealing.starts)

    @property
    def fingerprint(self) -> str:
        return self._reader.fingerprint
