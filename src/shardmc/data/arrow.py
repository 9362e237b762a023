"""Columns of Arrow tables: what they become on the device, as NumPy arrays, and as groups of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardmc.data.columns import Column, device_type
from shardmc.data.source import Source
from shardmc.errors import DataError

if TYPE_CHECKING:
    import pandas as pd


def as_column(name: str, kind: pa.DataType) -> Column:
    """What an Arrow column becomes on the device. A column that is not numeric is an error with advice."""
    plain = _plain(kind)
    if pa.types.is_fixed_size_list(plain):
        inner = as_column(name, plain.value_type)
        return Column(name, inner.dtype, (plain.list_size, *inner.shape), from_table=True)
    if not is_number_type(plain):
        raise DataError(f"Column {name!r} holds {_what(kind)}; {_advice(kind)}")
    return Column(name, device_type(name, _numpy_type(plain)), from_table=True)


def is_number_type(kind: pa.DataType) -> bool:
    """Whether entries of this type are numbers, or lists of numbers of a fixed size."""
    plain = _plain(kind)
    if pa.types.is_fixed_size_list(plain):
        return is_number_type(plain.value_type)
    numeric = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(check(plain) for check in numeric)


def as_numpy(array: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """Entries as a NumPy array. Numbers with missing entries become floats with NaN.

    Examples
    --------
    >>> as_numpy(pa.array([1, None]))
    array([ 1., nan])
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
        if isinstance(array, pa.ChunkedArray):  # no chunks, or too much text for one chunk
            return np.concatenate([as_numpy(chunk) for chunk in array.chunks])
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if pa.types.is_dictionary(kind):
        return as_numpy(array.dictionary_decode())
    if pa.types.is_fixed_size_list(kind):
        whole = array.fill_null([None] * kind.list_size) if array.null_count else array
        entries = as_numpy(whole.flatten())
        return entries.reshape(len(array), kind.list_size, *entries.shape[1:])
    if (
        pa.types.is_decimal(kind)
        or (pa.types.is_boolean(kind) and array.null_count)
        or pa.types.is_null(kind)
    ):
        array = pc.cast(pc.cast(array, pa.int8()) if pa.types.is_boolean(kind) else array, pa.float64())
    elif pa.types.is_temporal(kind):
        array = pc.cast(array, pa.int64() if kind.bit_width == 64 else pa.int32())
    return array.to_numpy(zero_copy_only=False)


def as_arrow(array: np.ndarray) -> pa.Array:
    """A NumPy array, one entry per row, as an Arrow array. Further axes become lists of a fixed size.

    Examples
    --------
    >>> as_arrow(np.zeros((4, 2))).type
    FixedSizeListType(fixed_size_list<item: double>[2])
    """
    if array.ndim == 1:
        return pa.array(array.tolist() if _holds_nul(array) else array)
    inner = as_arrow(array.reshape(-1, *array.shape[2:]))
    return pa.FixedSizeListArray.from_arrays(inner, array.shape[1])


def _holds_nul(array: np.ndarray) -> bool:
    """Whether any text continues after a NUL. Arrow would cut it there, and two levels could become one."""
    if array.dtype.kind != "U" or not array.size or array.dtype.itemsize == 0:
        return False
    codes = np.ascontiguousarray(array).view(np.uint32).reshape(len(array), -1)
    return bool(((codes[:, :-1] == 0) & (codes[:, 1:] != 0)).any())


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of the entries: the values of a category, the storage of an extension."""
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    return _plain(kind.value_type) if pa.types.is_dictionary(kind) else kind


def _numpy_type(kind: pa.DataType) -> np.dtype:
    return np.dtype(np.float64) if pa.types.is_decimal(kind) else np.dtype(kind.to_pandas_dtype())


def _what(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        return f"categories ({kind.value_type})"
    if pa.types.is_duration(kind):
        return f"durations ({kind})"
    if pa.types.is_temporal(kind):
        return f"dates or times ({kind})"
    if pa.types.is_null(kind):
        return "nothing but missing values"
    if pa.types.is_nested(kind):
        return f"lists or records ({kind})"
    return (
        f"text ({kind})" if pa.types.is_large_string(kind) or pa.types.is_string(kind) else f"{kind} entries"
    )


def _advice(kind: pa.DataType) -> str:
    if pa.types.is_duration(kind):
        return "convert it to numbers first, such as seconds."
    if pa.types.is_temporal(kind):
        return "convert it to numbers first, such as days since some date."
    if pa.types.is_null(kind) or pa.types.is_nested(kind):
        return "leave it out of the columns used, or convert it to numbers first."
    return "encode its levels as integers first, or leave it out of the columns used."


SEPARATOR = "\x1f"
"""Between the parts of a group's label, if several columns name a group."""


def find_levels(source: Source, columns: Sequence[str], advice: str) -> tuple[pd.Index, np.ndarray]:
    """The groups that these columns name, sorted, and the number of rows of each. One pass over the rows.

    `advice` says what to do with rows whose group is missing, which are refused.
    """
    import pandas as pd

    counts: list[pd.Series] = []  # the first counts all tables that the others do not
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
            f"{'have' if several else 'has'} {missing} missing value{'s' if missing > 1 else ''}. Give these rows a "
            f"group of their own, or {advice}."
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


def _entries(column: pa.ChunkedArray) -> np.ndarray:
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
