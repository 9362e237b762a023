"""Tables in memory: pandas, polars and Arrow, through narwhals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, final

import narwhals as nw
import numpy as np
import pyarrow as pa

from shardmc.data.arrow import as_numpy, is_number_type
from shardmc.data.columns import refuse_repeated
from shardmc.data.fingerprint import hash_arrays
from shardmc.data.reader import TableReader, spread_positions
from shardmc.errors import DataError

_LOOK = 1000  # entries of a column of Python objects that tell its type


@final
class FrameReader(TableReader):
    """Reads a table in memory."""

    in_memory = True

    def __init__(self, frame: nw.DataFrame[Any]) -> None:
        self.num_rows = len(frame)
        if self.num_rows == 0:
            raise DataError("The table is empty: it has no rows.")
        # pandas names columns by anything; all others, and formulas, by text.
        refuse_repeated([str(name) for name in frame.columns])
        self._frame = frame.rename({name: str(name) for name in frame.columns if not isinstance(name, str)})
        self.types = {name: self._type(name) for name in self._frame.columns}

    def _type(self, name: str) -> pa.DataType:
        # pandas keeps text, and anything else, as objects, which an empty table tells nothing about.
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
        """What tells a column from any other: its numbers, or its distinct values and which of them each row has."""
        try:
            for piece in self.pieces([name], 1 << 20):
                if is_number_type(self.types[name]):
                    yield as_numpy(piece.column(0))
                    continue
                for chunk in piece.column(0).dictionary_encode(null_encoding="encode").chunks:
                    yield np.array([repr(value) for value in chunk.dictionary.to_pylist()], dtype=object)
                    yield as_numpy(chunk.indices)
        except (DataError, pa.ArrowNotImplementedError):
            return  # a column of lists or of mixed types, which nothing can use


def _check_column(name: str, part: nw.DataFrame[Any]) -> None:
    try:
        part.to_arrow()
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(
            f"Column {name!r} mixes types ({error.args[0]}); give it one numeric type, or leave it out of the "
            "columns used."
        ) from error
