"""The two passes over a table: first its columns and levels, then the columns of its design matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np
import pyarrow as pa

from shardmc.data import Source
from shardmc.data.assignment import spread_positions
from shardmc.errors import DataError, counted
from shardmc.formulas.chunk import (
    MOST_LEVELS,
    Chunk,
    Kind,
    Level,
    as_chunk,
    in_order,
    level_order,
    levels_in,
    merged_order,
    missing,
)
from shardmc.formulas.encoder import Encoder, State
from shardmc.formulas.expression import Expression
from shardmc.formulas.families import Family, Moments, ResponseSummary
from shardmc.formulas.formula import Formula
from shardmc.formulas.roles import Roles

SAMPLE = 200_000
"""Number of rows from which knots of splines are learned; a smaller table is used whole."""

_PIECE = 1 << 17  # rows of a table at once


@final
@dataclass
class TableSummary:
    """What one pass over all rows finds."""

    incomplete: int = 0
    """Rows with missing entries."""
    missing: dict[str, int] = field(default_factory=dict)
    levels: dict[str, list[Level]] = field(default_factory=dict)
    """Levels of each column of text or categories: in the order of its dictionary, if it has one, else sorted."""
    categories: dict[str, list[Level]] = field(default_factory=dict)
    """Levels of each factor C(...)."""
    ranges: dict[str, Moments] = field(default_factory=dict)
    """Moments of the argument of each transform, by the transform's key."""
    response: ResponseSummary = field(default_factory=lambda: ResponseSummary(""))
    sample: pa.Table | None = None

    def states(self, formula: Formula) -> dict[str, State]:
        """What the transforms of a formula must know of all rows: means, scales, bounds."""
        transforms = (t for expression in formula.expressions.values() for t in expression.transforms)
        return {t.key: t.state(self.ranges[t.key], formula.has_intercept) for t in transforms}


def scan_table(
    source: Source,
    formula: Formula,
    roles: Roles,
    kinds: Mapping[str, Kind],
    *,
    family: Family,
    response_levels: Sequence[Level] | None,
) -> TableSummary:
    """Read the columns of a formula once, piece by piece."""
    response = ResponseSummary(roles.response_text, with_logs=family.summarises_logs)
    result = TableSummary(response=response)
    wanted = spread_positions(source.num_rows, SAMPLE, seed=0)
    texts: dict[str, set[Level]] = {name: set() for name, kind in kinds.items() if kind == "text"}
    orders: dict[str, list[Level] | None] = {}
    values: dict[str, set[Level]] = {}
    parts: list[pa.Table] = []
    for start, table in _pieces(source, list(kinds)):
        if _count_missing(table, list(kinds), result):
            continue  # the fit is refused anyway, but with a count of all missing entries
        for name, found in texts.items():
            found.update(levels_in(table.column(name)))
            is_category = pa.types.is_dictionary(table.column(name).type)
            if is_category:
                known = orders.get(name, [])
                orders[name] = None if known is None else merged_order(known, level_order(table, name))
            _refuse_many(name, found, bare=name in formula.expressions and not is_category)
        chunk = as_chunk(table, kinds)
        _scan_response(chunk, roles, response_levels, family, result)
        _scan_predictors(chunk, formula, kinds, values, result)
        parts.append(table.take(wanted[(wanted >= start) & (wanted < start + len(table))] - start))
    if result.missing:
        raise DataError(_missing_sentence(result, source.num_rows))
    result.levels = {name: in_order(found, orders.get(name) or ()) for name, found in texts.items()}
    for name, found in result.levels.items():
        if name in formula.expressions and name not in orders:
            _refuse_numbers_as_text(name, [str(level) for level in found])
    result.categories = {
        name: sorted(values[name]) if name in values else _listed(expression, result.levels)
        for name, expression in formula.expressions.items()
        if expression.category is not None
    }
    result.sample = pa.concat_tables(parts)
    return result


def _pieces(source: Source, columns: list[str]) -> Iterator[tuple[int, pa.Table]]:
    start = 0
    for table in source.tables(columns, _PIECE):
        yield start, table
        start += len(table)


def _count_missing(table: pa.Table, columns: Sequence[str], result: TableSummary) -> bool:
    """Count missing entries; whether there are any in this piece or an earlier one."""
    found = missing(table, columns)
    for name, mask in found.items():
        result.missing[name] = result.missing.get(name, 0) + int(mask.sum())
    result.incomplete += int(np.any(list(found.values()), axis=0).sum()) if found else 0
    return bool(result.missing)


def _scan_response(
    chunk: Chunk, roles: Roles, levels: Sequence[Level] | None, family: Family, result: TableSummary
) -> None:
    count = len(next(iter(chunk.values())))
    roles.refuse(chunk, count)
    response = roles.explained(chunk, levels, family)
    bad = ~np.isfinite(response)
    if bad.any():
        raise DataError(
            f"The response {roles.response_text!r} is not finite in {int(bad.sum())} rows or more, such as "
            f"{response[bad][0]}; drop those rows."
        )
    offset = None if family.location_scale else roles.offset_values(chunk)
    result.response.censored += int(roles.censored_values(chunk, count).sum())
    result.response.add(response, roles.trial_values(chunk, count), offset)


def _scan_predictors(
    chunk: Chunk,
    formula: Formula,
    kinds: Mapping[str, Kind],
    values: dict[str, set[Level]],
    result: TableSummary,
) -> None:
    """Collect levels of categories that are not a column of text, and moments for transforms."""
    for name, expression in formula.expressions.items():
        if expression.category is not None and not _is_listed(expression, kinds):
            found = np.unique(expression.values(chunk, expression.category)).tolist()
            values.setdefault(name, set()).update(found)
            _refuse_many(name, values[name], bare=False)
        for transform in expression.transforms:
            inner = expression.values(chunk, transform.inner).astype(np.float64)
            result.ranges.setdefault(transform.key, Moments()).add(inner)


def _is_listed(expression: Expression, kinds: Mapping[str, Kind]) -> bool:
    """Whether a category's levels are listed in the formula or are the texts of a column."""
    return expression.levels is not None or kinds.get(str(expression.category_column)) == "text"


def _listed(expression: Expression, levels: Mapping[str, list[Level]]) -> list[Level]:
    if expression.levels is not None:
        return list(expression.levels)
    return list(levels[str(expression.category_column)])


def _refuse_many(name: str, found: set[Level], *, bare: bool) -> None:
    if len(found) > MOST_LEVELS:
        if bare:
            _refuse_numbers_as_text(name, sorted(map(str, found)))
        raise DataError(
            f"{name!r} has more than {MOST_LEVELS} levels, each of which would have a coefficient; group them, or "
            "take a number that describes them instead."
        )


def _refuse_numbers_as_text(name: str, found: Sequence[str]) -> None:
    """Refuse numbers that became text because some entries are not numbers; C(...) allows numbers as levels."""
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


def _missing_sentence(result: TableSummary, num_rows: int) -> str:
    pairs = sorted(result.missing.items(), key=lambda pair: -pair[1])
    listed = ", ".join(f"{name!r} ({count})" for name, count in pairs)
    columns = f"Column {listed} has" if len(pairs) == 1 else f"Columns {listed} have"
    return (
        f"{columns} missing values, {result.incomplete:,} of {num_rows:,} rows in all. Impute them "
        "first, or drop those rows: drop_missing=True (--drop-missing on the command line)."
    )


_DESIGN_PIECE = 1 << 16  # rows of a design matrix in float64 at once


@final
@dataclass
class DesignSummary:
    """Moments of the design matrix's columns in all rows, and in parts of them that no column may separate."""

    moments: Moments = field(default_factory=Moments)
    products: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    """Inner products of the columns about their means, (column, column)."""
    parts: tuple[Moments, ...] = ()
    not_finite: np.ndarray | int = 0

    def keep(self, columns: np.ndarray) -> DesignSummary:
        """The same without the columns that are False in a mask (column,)."""
        return DesignSummary(
            self.moments.keep(columns),
            self.products[np.ix_(columns, columns)],
            tuple(part.keep(columns) for part in self.parts),
        )

    def add(self, matrix: np.ndarray) -> None:
        """Add rows of the design matrix, (row, column)."""
        before, mean = self.moments.count, matrix.mean(axis=0)
        centered, step = matrix - mean, mean - self.moments.mean
        here = centered.T @ centered
        weight = before * len(matrix) / (before + len(matrix))
        self.products = self.products + here + weight * np.outer(step, step) if before else here
        self.moments.add(matrix)

    def separating(self, names: Sequence[str], family: Family) -> list[str]:
        """Columns that separate parts of the responses, so that their coefficient has no estimate."""
        if not (self.parts and names and all(part.count for part in self.parts)):
            return []
        found = family.separates(self.parts, self.moments.count)
        return [name for name, is_separated in zip(names, found, strict=True) if is_separated]


def scan_design(
    source: Source, encoder: Encoder, roles: Roles, kinds: Mapping[str, Kind], family: Family
) -> DesignSummary:
    """Read all rows once more, piece by piece, and encode them."""
    result = DesignSummary()
    for table in source.tables(list(kinds), _DESIGN_PIECE):
        chunk = as_chunk(table, kinds, encoder.levels)
        matrix = encoder.matrix(chunk)
        finite = np.isfinite(matrix)
        if not finite.all():
            result.not_finite = result.not_finite + (~finite).sum(axis=0)
            continue
        result.add(matrix)
        response = roles.response_values(chunk, family.levels_of_response)
        extremes = family.extremes(response, roles.trial_values(chunk, len(response)))
        if extremes is not None:
            result.parts = result.parts or tuple(Moments() for _ in extremes)
            for part, chosen in zip(result.parts, extremes, strict=True):
                part.add(matrix[chosen])
    if np.any(result.not_finite):
        _refuse_not_finite(np.asarray(result.not_finite), encoder.names)
    return result


def _refuse_not_finite(counts: np.ndarray, names: Sequence[str]) -> None:
    worst = int(counts.argmax())
    raise DataError(
        f"{names[worst]!r} is not finite in {counted(int(counts[worst]), 'row')} (a logarithm of zero, a division by "
        "zero, or infinity in the data); drop or correct those rows, or change the formula."
    )
