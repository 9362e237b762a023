"""The second reading of a table: what the columns of the design matrix look like, and which cannot be used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from shardmc.data import Source
from shardmc.errors import DataError
from shardmc.glm.encoder import Encoder
from shardmc.glm.families import Family, Moments
from shardmc.glm.rank import find_dependence, refuse
from shardmc.glm.raw import Frame, Kind, as_frame
from shardmc.glm.roles import Roles

_PIECE = 1 << 16  # rows of a design matrix in float64 at once


@final
@dataclass
class Columns:
    """Moments of the design matrix's columns, also where the response is lowest and highest."""

    moments: Moments = field(default_factory=Moments)
    products: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    """Inner products of the columns less their means, (column, column)."""
    lowest: Moments = field(default_factory=Moments)
    highest: Moments = field(default_factory=Moments)
    not_finite: np.ndarray | int = 0

    def add(self, matrix: np.ndarray) -> None:
        """Take in more rows of the design matrix, (row, column)."""
        before, step = self.moments.count, matrix.mean(axis=0) - self.moments.mean
        centered = matrix - matrix.mean(axis=0)
        weight = before * len(matrix) / (before + len(matrix))
        here = centered.T @ centered + weight * np.outer(step, step)
        self.products = self.products + here if before else centered.T @ centered
        self.moments.add(matrix)

    def separating(self, names: Sequence[str], family: Family) -> list[str]:
        """Columns that by themselves tell a response of none from one, so that their likelihood has no maximum.

        A column does where its values with the lowest response and those with the highest do not overlap, but for one
        common value; for counts, which have no highest value, where it is constant unless the count is zero.
        """
        if family.name not in ("bernoulli", "binomial", "poisson", "negative_binomial"):
            return []
        low, high = self.lowest, self.highest
        if not (low.count and high.count) or not names:
            return []
        if family.name in ("bernoulli", "binomial"):
            if low.count + high.count < self.moments.count:
                return []  # a row with both successes and failures
            apart = (low.high <= high.low) | (high.high <= low.low)
        else:
            apart = (high.low == high.high) & ((high.low == low.low) | (high.high == low.high))
        return [name for name, found in zip(names, apart, strict=True) if found]


def look_at_columns(
    source: Source, encoder: Encoder, roles: Roles, kinds: dict[str, Kind], levels: Any, family: Family
) -> Columns:
    """Read all rows once more, as the encoder sees them, piece by piece."""
    result = Columns()
    for table in source.tables(list(kinds), _PIECE):
        frame = as_frame(table, kinds, encoder.levels)
        matrix = encoder.matrix(frame)
        finite = np.isfinite(matrix)
        if not finite.all():
            result.not_finite = result.not_finite + (~finite).sum(axis=0)
            continue
        result.add(matrix)
        low, high = _extremes(frame, roles, levels, family)
        result.lowest.add(matrix[low])
        result.highest.add(matrix[high])
    if np.any(result.not_finite):
        _refuse_not_finite(np.asarray(result.not_finite), encoder.names)
    return result


def _extremes(frame: Frame, roles: Roles, levels: Any, family: Family) -> tuple[np.ndarray, np.ndarray]:
    """Which rows have the lowest possible response, and which the highest (a count: not the lowest)."""
    response = roles.response_values(frame, levels)
    low = response == 0
    if family.takes_trials:
        return low, response == roles.trial_values(frame, len(response))
    return low, ~low


def _refuse_not_finite(counts: np.ndarray, names: Sequence[str]) -> None:
    worst = int(counts.argmax())
    raise DataError(
        f"{names[worst]!r} is not finite in {int(counts[worst])} rows (a logarithm of zero, a division by zero, or "
        "infinity in the data); drop or mend those rows, or change the formula."
    )


def refuse_dependent(columns: Columns, names: Sequence[str], has_location: bool) -> None:
    """Refuse columns that are linear combinations of others, and with an intercept of a constant."""
    products, mean = columns.products, columns.moments.mean
    if not has_location:
        products = products + columns.moments.count * np.outer(mean, mean)
    found = find_dependence(products, names)
    if found is not None:
        refuse(found, has_location)


def refuse_constant(columns: Columns, names: Sequence[str], has_location: bool) -> None:
    """Refuse columns with one value in all rows: the intercept already says that, or nothing can."""
    low, high = columns.moments.low, columns.moments.high
    for name, a, b in zip(names, np.atleast_1d(low), np.atleast_1d(high), strict=True):
        if a == b == 0:
            raise DataError(
                f"Column {name!r} of the formula is 0 in every row: no row tells about it; leave it out."
            )
        if a == b and has_location:
            raise DataError(
                f"Column {name!r} of the formula is {a:g} in every row, which the intercept says already; leave it out."
            )
