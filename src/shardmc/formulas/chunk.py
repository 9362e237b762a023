"""Some rows of a table as formulas take them: columns of numbers, or of text with its levels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa

from shardmc.data import Source
from shardmc.data.columns import as_numpy, is_number_type
from shardmc.errors import DataError, unknown

Kind = Literal["number", "whole", "flag", "text"]
"""What a column holds: numbers, whole numbers, true or false, text."""

_MOST_LEVELS = 1000
Level = str | int | float | bool
Chunk = dict[str, np.ndarray | pd.Categorical]
"""Some rows of a table: column name -> entries; a pandas Categorical for text."""


def kind_of(name: str, given: pa.DataType) -> Kind:
    """What a column of that Arrow type holds. Dates, lists and the like are refused.

    >>> kind_of("age", pa.int16()), kind_of("region", pa.dictionary(pa.int8(), pa.string()))
    ('whole', 'text')
    """
    kind = given.value_type if pa.types.is_dictionary(given) else given
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_boolean(kind):
        return "flag"
    if pa.types.is_integer(kind):
        return "whole"
    if is_number_type(kind) and not pa.types.is_nested(kind):
        return "number"
    if any(check(kind) for check in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)):
        return "text"
    if pa.types.is_temporal(kind):
        raise DataError(
            f"Column {name!r} holds dates or times ({given}); turn it into numbers first, such as days since some "
            "date, or into text for levels."
        )
    raise DataError(f"Column {name!r} holds {given} entries; a formula needs numbers or text.")


def refuse_unknown(columns: Iterable[str], source: Source) -> None:
    """Refuse columns that a table does not have."""
    for name in columns:
        if name not in source.column_names:
            raise unknown("column", name, source.column_names)


def column_kinds(source: Source, columns: Sequence[str]) -> tuple[dict[str, Kind], dict[str, list[str]]]:
    """What each column holds, and the declared order of those that are ordered categories."""
    kinds: dict[str, Kind] = {}
    ordered: dict[str, list[str]] = {}
    for table in source.tables(columns):
        for name in columns:
            column = table.column(name)
            if name in kinds or pa.types.is_null(column.type):
                continue  # all entries of this piece are missing
            kinds[name] = kind_of(name, column.type)
            if kinds[name] == "text" and pa.types.is_dictionary(column.type) and column.type.ordered:
                ordered[name] = column.chunk(0).dictionary.to_pylist()
        if len(kinds) == len(columns):
            return {name: kinds[name] for name in columns}, ordered
    name = next(name for name in columns if name not in kinds)
    raise DataError(f"Column {name!r} holds nothing but missing values; leave it out of the formula.")


def missing(table: pa.Table, columns: Sequence[str]) -> dict[str, np.ndarray]:
    """Masks (row,) of missing entries (null or NaN), for the columns that have some."""
    found = {}
    for name in columns:
        column = table.column(name)
        floating = pa.types.is_floating(column.type)
        if column.null_count == 0 and not floating:
            continue
        mask = as_numpy(column.is_null(nan_is_null=floating))
        if mask.any():
            found[name] = mask
    return found


def values(column: pa.ChunkedArray, kind: Kind) -> np.ndarray:
    """Entries of a column of numbers without missing entries, as int64, float64 or bool."""
    target = {"number": np.float64, "whole": np.int64, "flag": np.bool_}[kind]
    return as_numpy(column).astype(target, copy=False)


def levels_in(column: pa.ChunkedArray) -> list[str]:
    """The different texts in a column, in no particular order."""
    if pa.types.is_dictionary(column.type):
        encoded = column.combine_chunks()
        chunks = encoded.chunks if isinstance(encoded, pa.ChunkedArray) else [encoded]
        used = (chunk.dictionary.take(chunk.indices.unique().drop_null()).to_pylist() for chunk in chunks)
        return sorted({text for texts in used for text in texts})
    return column.unique().to_pylist()


def texts_in(source: Source, name: str) -> set[str]:
    """The different texts in a column of all rows."""
    found: set[str] = set()
    for table in source.tables([name]):
        found.update(text for text in levels_in(table.column(name)) if text is not None)
        if len(found) > _MOST_LEVELS:
            raise DataError(
                f"The response {name!r} has more than {_MOST_LEVELS} levels; merge the rare ones."
            )
    return found


def as_levels(name: str, column: pa.ChunkedArray, levels: Sequence[Level]) -> pd.Categorical:
    """Text as a categorical; a text that is not a level is refused by name."""
    encoded = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(encoded, pa.ChunkedArray):
        encoded = pa.concat_arrays(encoded.chunks)
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    position = {level: number for number, level in enumerate(levels)}
    codes = np.array([position.get(text, -1) for text in texts] or [-1], dtype=np.int32)
    chosen = codes[as_numpy(encoded.indices)] if len(encoded) else np.empty(0, np.int32)
    if (chosen < 0).any():
        bad = as_numpy(encoded.indices)[chosen < 0]
        refuse_level(name, [texts[i] for i in bad], levels)
    return pd.Categorical.from_codes(chosen, categories=pd.Index(list(levels)))


def refuse_level(name: str, found: Sequence[Level], levels: Sequence[Level]) -> None:
    """Raise the error about levels that the fit did not see; `found` has one per row."""
    first = found[0]
    others = len(set(found)) - 1
    more = f" (and {others} more)" if others else ""
    shown = ", ".join(repr(level) for level in levels[:8]) + (", ..." if len(levels) > 8 else "")
    raise DataError(
        f"{name!r} has the level {first!r}{more} in {len(found)} rows, which no row of the fit had; the known levels "
        f"are {shown}. Drop those rows, or fit the model with rows that have it."
    )


def as_chunk(
    table: pa.Table, kinds: Mapping[str, Kind], levels: Mapping[str, Sequence[Level]] | None = None
) -> Chunk:
    """Some rows without missing entries, for expressions and formulas; `levels` of text as given, or else as found."""
    chunk: Chunk = {}
    for name, kind in kinds.items():
        column = table.column(name)
        here = kind_of(name, column.type) if len(column) else kind
        if (here == "text") != (kind == "text"):
            raise DataError(
                f"Column {name!r} holds {'text' if here == 'text' else 'numbers'} where the model needs "
                f"{'text' if kind == 'text' else 'numbers'}; convert the column first."
            )
        if kind == "text":
            known = sorted(levels_in(column)) if levels is None else levels[name]
            chunk[name] = as_levels(name, column, known)
        else:
            chunk[name] = values(column, here)
    return chunk
