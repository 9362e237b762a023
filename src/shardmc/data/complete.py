"""A table without the rows in which a used column has no value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

import numpy as np
import pyarrow as pa

from shardmc.data.reader import TableReader
from shardmc.errors import DataError


@final
class CompleteReader(TableReader):
    """Reads the rows of a table in which none of some columns is missing; a first pass counts them."""

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
            # NaN in a floating-point column is how NumPy and pandas say missing.
            keep &= ~column.is_null(nan_is_null=pa.types.is_floating(column.type)).to_numpy()
        return piece.filter(pa.array(keep))

    def sample(self, names: Sequence[str], count: int, seed: int) -> pa.Table:
        wanted = list(dict.fromkeys([*names, *self._columns]))
        # Rows without a value are dropped after sampling, so more are asked for.
        more = min(4 * count, -(-count * self._reader.num_rows // self.num_rows) + 16)
        return self._complete(self._reader.sample(wanted, more, seed)).select(list(names)).slice(0, count)

    @property
    def fingerprint(self) -> str:
        return f"{self._reader.fingerprint} without rows missing {', '.join(self._columns)}"
