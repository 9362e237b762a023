"""The second pass over a table: moments of the design matrix's columns, and which columns cannot be used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np

from shardmc.data import Source
from shardmc.errors import DataError, ModelError
from shardmc.formulas.chunk import Kind, as_chunk
from shardmc.formulas.encoder import Encoder
from shardmc.formulas.families import Family, Moments
from shardmc.formulas.roles import Roles

_PIECE = 1 << 16  # rows of a design matrix in float64 at once
_DEPENDENT = 1e-6
"""A column is dependent if less than this share of it is left without the others: float32 cannot see less."""


@final
@dataclass
class DesignSummary:
    """Moments of the design matrix's columns in all rows, and in those with the lowest and the highest response."""

    moments: Moments = field(default_factory=Moments)
    products: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    """Inner products of the columns about their means, (column, column)."""
    lowest: Moments = field(default_factory=Moments)
    highest: Moments = field(default_factory=Moments)
    not_finite: np.ndarray | int = 0

    def add(self, matrix: np.ndarray) -> None:
        """Add rows of the design matrix, (row, column)."""
        before, step = self.moments.count, matrix.mean(axis=0) - self.moments.mean
        centered = matrix - matrix.mean(axis=0)
        weight = before * len(matrix) / (before + len(matrix))
        here = centered.T @ centered + weight * np.outer(step, step)
        self.products = self.products + here if before else centered.T @ centered
        self.moments.add(matrix)

    def separating(self, names: Sequence[str], family: Family) -> list[str]:
        """Columns that separate the lowest responses from the highest, so that their coefficient has no estimate."""
        if not (self.lowest.count and self.highest.count and names):
            return []
        found = family.separates(self.lowest, self.highest, self.moments.count)
        return [name for name, is_separated in zip(names, found, strict=True) if is_separated]


def scan_design(
    source: Source, encoder: Encoder, roles: Roles, kinds: Mapping[str, Kind], family: Family
) -> DesignSummary:
    """Read all rows once more, piece by piece, and encode them."""
    result = DesignSummary()
    for table in source.tables(list(kinds), _PIECE):
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
            result.lowest.add(matrix[extremes[0]])
            result.highest.add(matrix[extremes[1]])
    if np.any(result.not_finite):
        _refuse_not_finite(np.asarray(result.not_finite), encoder.names)
    return result


def _refuse_not_finite(counts: np.ndarray, names: Sequence[str]) -> None:
    worst = int(counts.argmax())
    raise DataError(
        f"{names[worst]!r} is not finite in {int(counts[worst])} rows (a logarithm of zero, a division by zero, or "
        "infinity in the data); drop or correct those rows, or change the formula."
    )


def refuse_dependent(design: DesignSummary, names: Sequence[str], has_location: bool) -> None:
    """Refuse columns that are linear combinations of others, or of others and the intercept."""
    products, mean = design.products, design.moments.mean
    if not has_location:
        products = products + design.moments.count * np.outer(mean, mean)
    found = find_dependence(products, names)
    if found is not None:
        raise ModelError(_dependence_message(found, has_location))


def refuse_constant(design: DesignSummary, names: Sequence[str], has_location: bool) -> None:
    """Refuse columns with the same value in all rows."""
    low, high = design.moments.low, design.moments.high
    for name, a, b in zip(names, np.atleast_1d(low), np.atleast_1d(high), strict=True):
        if a == b == 0:
            raise DataError(
                f"Column {name!r} of the formula is 0 in every row, so no row informs its coefficient; leave it out."
            )
        if a == b and has_location:
            raise DataError(
                f"Column {name!r} of the formula is {a:g} in every row, like the intercept; leave it out."
            )


@final
@dataclass(frozen=True)
class Dependence:
    """A column, and the columns that it is a combination of; none if the column is zero."""

    name: str
    partners: tuple[str, ...]


def find_dependence(products: np.ndarray, names: Sequence[str]) -> Dependence | None:
    """A column that is a linear combination of others; None if there is none.

    This is a Cholesky factorisation with pivots: it takes the columns one by one, the one with the largest remainder
    first, until no remainder is left.

    Parameters
    ----------
    products
        Inner products of the columns, (column, column), about their means if there is an intercept.
    names
        Names of the columns.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(100, 2))
    >>> matrix = np.column_stack([x, x[:, 0] - 2 * x[:, 1]])
    >>> find_dependence(matrix.T @ matrix, ["a", "b", "c"])
    Dependence(name='c', partners=('a', 'b'))
    """
    sizes = np.sqrt(np.diag(products))
    if (sizes == 0).any():
        return Dependence(names[int(np.flatnonzero(sizes == 0)[0])], ())
    left = products / np.outer(sizes, sizes)
    scaled = left.copy()
    taken: list[int] = []
    for _ in names:
        remaining = np.diag(left).copy()
        remaining[taken] = -1.0
        pivot = int(remaining.argmax())
        if remaining[pivot] < _DEPENDENT**2:
            weights = np.linalg.solve(scaled[np.ix_(taken, taken)], scaled[taken, pivot])
            partners = sorted(taken[k] for k in np.flatnonzero(np.abs(weights) > 1e-4))
            return Dependence(names[pivot], tuple(names[k] for k in partners))
        left = left - np.outer(left[:, pivot], left[pivot]) / left[pivot, pivot]
        taken.append(pivot)
    return None


def _dependence_message(found: Dependence, has_location: bool) -> str:
    if len(found.partners) == 1:
        constant = ", up to a constant" if has_location else ""
        return (
            f"Columns {found.partners[0]!r} and {found.name!r} of the formula say the same (one is a multiple of the "
            f"other{constant}); leave one of them out."
        )
    listed = ", ".join(map(repr, found.partners[:6]))
    more = f" and {len(found.partners) - 6} more" if len(found.partners) > 6 else ""
    constant = " and a constant" if has_location else ""
    advice = "If columns mark every group, remove the intercept (write '0 + ...') or leave out one group."
    if found.name.startswith(("cr(", "cs(", "cc(")):
        advice = (
            "Splines of this kind include a constant: give them constraints='center', or write '0 + ...'."
        )
    return (
        f"Column {found.name!r} of the formula is a linear combination of {listed}{more}{constant}; leave one of them "
        f"out. {advice}"
    )
