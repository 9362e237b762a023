"""The groups that columns of a table name: their levels, the rows of each, and the labels of the rows' groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardmc.data.arrow import as_numpy
from shardmc.data.source import Source
from shardmc.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

SEPARATOR = "\x1f"
"""Between the parts of a group's label, if several columns name a group."""


def find_levels(source: Source, columns: Sequence[str], advice: str) -> tuple[pd.Index, np.ndarray]:
    """The groups that these columns name, sorted, and the number of rows of each. One pass over the rows.

    `advice` says what to do with rows whose group is missing, which are refused.
    """
    import pandas as pd

    counts: list[pd.Series] = []  # the first is of all tables so far but those of the others
    missing = 0
    for table in source.tables(list(columns)):
        missing += sum(_missing(name, table.column(name)) for name in columns)
        if missing:
            continue
        counts.append(level_keys(table, columns).value_counts(sort=False))
        # Adding each table by itself would take time that grows with the square of the number of groups.
        if sum(map(len, counts[1:])) >= len(counts[0]):
            counts = [_added(counts)]
    if missing:
        several = len(columns) > 1
        raise DataError(
            f"The group column{'s' if several else ''} {', '.join(map(repr, columns))} "
            f"{'have' if several else 'has'} {missing} missing values. Give these rows a group of their own, or "
            f"{advice}."
        )
    found = _added(counts).sort_index()
    levels = found.index if len(columns) == 1 else pd.MultiIndex.from_tuples(list(found.index))
    return levels, found.to_numpy().astype(np.int64)


def _added(counts: Sequence[pd.Series]) -> pd.Series:
    """The sums of counts by level."""
    import pandas as pd

    every = pd.concat(counts)
    return pd.Series(every.groupby(level=list(range(every.index.nlevels)), sort=False).sum())


def labels(levels: pd.Index) -> tuple[str, ...]:
    """The levels as text.

    >>> import pandas as pd
    >>> labels(pd.Index([3, 5]))
    ('3', '5')
    """
    import pandas as pd

    if isinstance(levels, pd.MultiIndex):
        return tuple(SEPARATOR.join(map(str, level)) for level in levels)
    return tuple(map(str, levels))


def level_keys(table: pa.Table, columns: Sequence[str]) -> pd.Index:
    """The levels of the rows, one each."""
    import pandas as pd

    arrays = [_entries(table.column(name)) for name in columns]
    return pd.Index(arrays[0]) if len(arrays) == 1 else pd.MultiIndex.from_arrays(arrays)


def labels_of(table: pa.Table, columns: Sequence[str]) -> np.ndarray:
    """The labels of the rows' groups, as text, (row,)."""
    parts = [np.asarray(_entries(table.column(name))).astype(str).astype(object) for name in columns]
    label = parts[0]
    for part in parts[1:]:
        label = label + SEPARATOR + part
    return label


def _entries(column: pa.ChunkedArray) -> Any:
    """Text as objects, numbers as whole numbers."""
    kind = _value_type(column)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return column.cast(pa.string()).to_pandas().to_numpy(object)
    return as_numpy(column).astype(np.int64, copy=False)


def _value_type(column: pa.ChunkedArray) -> pa.DataType:
    return column.type.value_type if pa.types.is_dictionary(column.type) else column.type


def _missing(name: str, column: pa.ChunkedArray) -> int:
    """The number of missing entries of a column that names groups. Columns that cannot do so are refused."""
    kind = _value_type(column)
    floating = pa.types.is_floating(kind)
    missing = int(as_numpy(column.is_null(nan_is_null=floating)).sum())
    # pandas stores whole numbers with missing values as floating-point numbers.
    broken = floating and not missing and bool((as_numpy(column) % 1 != 0).any())
    if broken or pa.types.is_temporal(kind) or pa.types.is_nested(kind):
        raise DataError(
            f"Column {name!r} holds {kind} entries; groups are named by whole numbers or text: convert it."
        )
    return missing
