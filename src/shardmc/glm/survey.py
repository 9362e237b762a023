"""The first reading of a table: levels, ranges, means and missing entries of everything that a formula names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import pyarrow as pa

from shardmc.data import Source
from shardmc.data.reader import spread_positions
from shardmc.errors import DataError
from shardmc.glm.expression import Expression
from shardmc.glm.families import Family, Moments, Seen
from shardmc.glm.formula import Formula
from shardmc.glm.raw import Frame, Kind, Level, as_frame, levels_in, missing
from shardmc.glm.roles import Roles

SAMPLE = 200_000
"""Rows from which knots of splines are learned; a table of up to that many rows is its own sample."""

_MOST_LEVELS = 1000
_PIECE = 1 << 17


@final
@dataclass
class Survey:
    """What one reading of all rows tells."""

    incomplete: int = 0
    """Rows with missing entries."""
    missing: dict[str, int] = field(default_factory=dict)
    levels: dict[str, list[str]] = field(default_factory=dict)
    """Texts of each column of text: in the order of ordered categories, else sorted."""
    categories: dict[str, list[Level]] = field(default_factory=dict)
    """Levels of each factor C(...)."""
    ranges: dict[str, Moments] = field(default_factory=dict)
    """Moments of what each transform is applied to, by the transform's key."""
    seen: Seen = field(default_factory=lambda: Seen(""))
    sample: pa.Table | None = None

    def states(self, formula: Formula) -> dict[str, dict[str, Any]]:
        """What the transforms of a formula must know and all rows tell: means, scales, bounds."""
        transforms = (t for expression in formula.expressions.values() for t in expression.transforms)
        return {transform.key: transform.state(self.ranges[transform.key]) for transform in transforms}


def survey(
    source: Source,
    formula: Formula,
    roles: Roles,
    kinds: Mapping[str, Kind],
    *,
    family: Family,
    ordered: Mapping[str, Sequence[str]],
    response_levels: Sequence[Any] | None,
) -> Survey:
    """Read the columns of a formula once, piece by piece."""
    result = Survey(seen=Seen(roles.response.text))
    wanted = spread_positions(source.num_rows, SAMPLE, seed=0)
    texts: dict[str, set[str]] = {name: set() for name, kind in kinds.items() if kind == "text"}
    values: dict[str, set[Level]] = {}
    parts: list[pa.Table] = []
    for start, table in _pieces(source, list(kinds)):
        if _count_missing(table, list(kinds), result):
            continue  # the numbers are of no use, but missing entries are counted to the end
        for name, found in texts.items():
            found.update(levels_in(table.column(name)))
            _refuse_many(name, found, bare=name in formula.expressions)
        frame = as_frame(table, kinds)
        _look_at_response(frame, roles, response_levels, family, result)
        _look_at_predictors(frame, formula, kinds, values, result)
        parts.append(table.take(wanted[(wanted >= start) & (wanted < start + len(table))] - start))
    if result.missing:
        raise DataError(_missing_sentence(result, source.num_rows))
    result.levels = {name: _in_order(found, ordered.get(name, ())) for name, found in texts.items()}
    for name, found in result.levels.items():
        if name in formula.expressions:
            _refuse_numbers_as_text(name, found)
    result.categories = {
        name: sorted(values[name]) if name in values else _listed(expression, result.levels)
        for name, expression in formula.expressions.items()
        if expression.category is not None
    }
    result.sample = pa.concat_tables(parts)
    return result


def _in_order(found: set[str], declared: Sequence[str]) -> list[str]:
    place = {level: number for number, level in enumerate(declared)}
    return sorted(found, key=lambda level: (place.get(level, len(place)), level))


def _pieces(source: Source, columns: list[str]) -> Iterator[tuple[int, pa.Table]]:
    start = 0
    for table in source.tables(columns, _PIECE):
        yield start, table
        start += len(table)


def _count_missing(table: pa.Table, columns: Sequence[str], result: Survey) -> bool:
    """Whether entries are missing in this piece or were in one before; they are counted."""
    found = missing(table, columns)
    for name, mask in found.items():
        result.missing[name] = result.missing.get(name, 0) + int(mask.sum())
    result.incomplete += int(np.any(list(found.values()), axis=0).sum()) if found else 0
    return bool(result.missing)


def _look_at_response(
    frame: Frame, roles: Roles, levels: Sequence[Any] | None, family: Family, result: Survey
) -> None:
    count = len(next(iter(frame.values())))
    roles.refuse(frame, count)
    response = roles.explained(frame, levels, family)
    bad = ~np.isfinite(response)
    if bad.any():
        raise DataError(
            f"The response {roles.response.text!r} is not finite in {int(bad.sum())} rows or more, such as "
            f"{response[bad][0]}; drop those rows."
        )
    offset = None if family.location_scale else roles.offset_values(frame)
    result.seen.add(response, roles.trial_values(frame, count), offset)


def _look_at_predictors(
    frame: Frame, formula: Formula, kinds: Mapping[str, Kind], values: dict[str, set[Level]], result: Survey
) -> None:
    """Take in levels of categories that are not simply a column's texts, and moments of transforms."""
    for name, expression in formula.expressions.items():
        if expression.category is not None and not is_listed(expression, kinds):
            found = np.unique(expression.values(frame, expression.category)).tolist()
            values.setdefault(name, set()).update(found)
            _refuse_many(name, values[name], bare=False)
        for transform in expression.transforms:
            inner = expression.values(frame, transform.inner).astype(np.float64)
            result.ranges.setdefault(transform.key, Moments()).add(inner)


def is_listed(expression: Expression, kinds: Mapping[str, Kind]) -> bool:
    """Whether the levels of a category are known otherwise: listed in the formula, or the texts of a column."""
    return expression.levels is not None or kinds.get(str(expression.category_column)) == "text"


def _listed(expression: Expression, levels: Mapping[str, list[str]]) -> list[Level]:
    if expression.levels is not None:
        return list(expression.levels)
    return list(levels[str(expression.category_column)])


def _refuse_many(name: str, found: set[Any], *, bare: bool) -> None:
    if len(found) > _MOST_LEVELS:
        if bare:
            _refuse_numbers_as_text(name, sorted(found))
        raise DataError(
            f"{name!r} has more than {_MOST_LEVELS} levels, each of which would have a coefficient; group them, or "
            "take a number that describes them instead."
        )


def _refuse_numbers_as_text(name: str, found: Sequence[str]) -> None:
    """Numbers that became text because some entries are none; levels that are numbers are written C(...)."""
    others = [text for text in found if not _is_number(text)]
    if len(found) > 2 and len(others) <= 0.5 * len(found):
        but = f" except {others[0]!r}" if others else ""
        raise DataError(
            f"Column {name!r} holds text, though its entries are numbers{but}; make the column numbers first, or write "
            f"C({name}) if they are levels."
        )


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True


def _missing_sentence(result: Survey, num_rows: int) -> str:
    pairs = sorted(result.missing.items(), key=lambda pair: -pair[1])
    listed = ", ".join(f"{name!r} ({count})" for name, count in pairs)
    columns = f"Column {listed} has" if len(pairs) == 1 else f"Columns {listed} have"
    return (
        f"{columns} missing values, {result.incomplete} of {num_rows} rows in all. Impute them "
        "first, or drop those rows: drop_missing=True (--drop-missing on the command line)."
    )
