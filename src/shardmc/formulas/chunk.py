"""Some rows of a table as formulas take them: columns of numbers, or of text with its levels."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa

from shardmc.data import Source
from shardmc.data.arrow import as_numpy, is_number_type
from shardmc.errors import DataError, counted, unknown

Kind = Literal["number", "whole", "flag", "text"]
"""What a column holds: numbers, whole numbers, true or false, text or the levels of a category."""

MOST_LEVELS = 1000
Level = str | int | float | bool
Chunk = dict[str, np.ndarray | pd.Categorical]
"""Some rows of a table: column name -> entries; a pandas Categorical for text and categories."""

_CONSTANTS = {"pi": "np.pi", "TRUE": "True", "FALSE": "False"}
"""What other programs call numbers and truth values."""
_LARGEST_DICTIONARY = 10_000  # levels, used or not, whose order is read


def kind_of(name: str, given: pa.DataType) -> Kind:
    """What a column of that Arrow type holds: a category if that is its type. Dates, lists and the like are refused.

    >>> kind_of("age", pa.int16()), kind_of("code", pa.dictionary(pa.int8(), pa.int64()))
    ('whole', 'text')
    """
    if pa.types.is_dictionary(given):
        return "text"
    kind = given
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
        if name not in source.column_names and name in _CONSTANTS:
            raise DataError(f"There is no column {name!r}. In a formula it is written {_CONSTANTS[name]}.")
        if name not in source.column_names:
            raise unknown("column", name, source.column_names)


def column_kinds(
    source: Source, columns: Sequence[str], as_values: Collection[str] = ()
) -> tuple[dict[str, Kind], dict[str, list[Level]]]:
    """What each column holds, and the declared order of those that are ordered categories.

    Of the columns `as_values`, a category without an order holds what its levels are.
    """
    kinds: dict[str, Kind] = {}
    ordered: dict[str, list[Level]] = {}
    for table in source.tables(columns):
        for name in columns:
            column = table.column(name)
            if name in kinds or pa.types.is_null(column.type):
                continue  # all entries of this piece are missing
            is_ordered = pa.types.is_dictionary(column.type) and column.type.ordered
            as_value = name in as_values and not is_ordered
            kinds[name] = kind_of(name, value_type(column) if as_value else column.type)
            if is_ordered:
                ordered[name] = _levels(column.chunk(0).dictionary)
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


def value_type(column: pa.ChunkedArray) -> pa.DataType:
    """The type of a column's entries: of a category, that of its levels."""
    return column.type.value_type if pa.types.is_dictionary(column.type) else column.type


def _levels(values: pa.Array) -> list[Level]:
    """Levels as names and JSON can hold them: dates and the like become text."""
    plain = (str, int, float, bool)
    return [v if isinstance(v, plain) else str(v).removesuffix(" 00:00:00") for v in values.to_pylist()]


def levels_in(column: pa.ChunkedArray) -> list[Level]:
    """The different levels in a column, in no particular order."""
    if not pa.types.is_dictionary(column.type):
        return _levels(column.unique().drop_null())
    used = (chunk.dictionary.take(chunk.indices.unique().drop_null()) for chunk in column.chunks)
    return list({level for levels in used for level in _levels(levels)})


def level_order(table: pa.Table, name: str) -> list[Level]:
    """The order of the levels of a category, from its dictionary; empty if it has none.

    Categorical columns of polars (not its Enum) have none: their levels come in the order in which they appear.
    """
    column, metadata = table.column(name), table.schema.field(name).metadata or {}
    if not pa.types.is_dictionary(column.type) or any(k.startswith(b"_PL_CATEGORICAL") for k in metadata):
        return []
    order: list[Level] | None = []
    for chunk in column.chunks:
        if len(chunk.dictionary) <= _LARGEST_DICTIONARY and order is not None:
            order = merged_order(order, _levels(chunk.dictionary))
    return order or []


def merged_order(known: Sequence[Level], more: Sequence[Level]) -> list[Level] | None:
    """One order of levels that agrees with both orders; None if they contradict each other.

    >>> merged_order(["low", "high"], ["low", "mid", "high"]), merged_order(["a", "b"], ["b", "a"])
    (['low', 'mid', 'high'], None)
    """
    place = {level: number for number, level in enumerate(known)}
    common = [place[level] for level in more if level in place]
    if common != sorted(common):
        return None
    merged, end = list(known), len(known)
    for level in reversed(more):
        if level in place:
            end = merged.index(level)
        else:
            merged.insert(end, level)
    return merged


def ordered_levels(source: Source, name: str) -> list[Level]:
    """The different levels in a column of all rows: in the order of its dictionary, if it has one, else sorted."""
    found: set[Level] = set()
    order: list[Level] | None = []
    for table in source.tables([name]):
        found.update(levels_in(table.column(name)))
        order = None if order is None else merged_order(order, level_order(table, name))
        if len(found) > MOST_LEVELS:
            raise DataError(f"The response {name!r} has more than {MOST_LEVELS} levels; merge the rare ones.")
    return in_order(found, order or ())


def in_order(found: Collection[Level], declared: Sequence[Level]) -> list[Level]:
    """Levels in their declared order, and others after them, sorted."""
    place = {level: number for number, level in enumerate(declared)}
    return sorted(found, key=lambda level: (place.get(level, len(place)), level))


def as_levels(name: str, column: pa.ChunkedArray, levels: Sequence[Level]) -> pd.Categorical:
    """Text or levels as a categorical; one that is not a level is refused by name."""
    encoded = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(encoded, pa.ChunkedArray):
        encoded = pa.concat_arrays(encoded.chunks)
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    texts = _levels(encoded.dictionary)
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
        f"{name!r} has the level {first!r}{more} in {counted(len(found), 'row')}, which no row of the fit had; the "
        f"known levels are {shown}. Drop those rows, or fit the model with rows that have it."
    )


def as_chunk(
    table: pa.Table, kinds: Mapping[str, Kind], levels: Mapping[str, Sequence[Level]] | None = None
) -> Chunk:
    """Some rows without missing entries, for expressions and formulas; `levels` of text as given, or else as found."""
    chunk: Chunk = {}
    for name, kind in kinds.items():
        column = table.column(name)
        if kind == "text":
            known = sorted(levels_in(column)) if levels is None else levels[name]
            of_text = all(isinstance(level, str) for level in known)
            if len(column) and of_text and is_number_type(value_type(column)):
                raise _mismatch(name, "numbers", "text")
            chunk[name] = as_levels(name, column, known)
        else:
            here = kind_of(name, value_type(column)) if len(column) else kind
            if here == "text":
                raise _mismatch(name, "text", "numbers")
            chunk[name] = values(column, here)
    return chunk


def _mismatch(name: str, found: str, needed: str) -> DataError:
    return DataError(
        f"Column {name!r} holds {found} where the model needs {needed}; convert the column first."
    )
