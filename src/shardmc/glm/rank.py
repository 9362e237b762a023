"""Columns of a design matrix that are linear combinations of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from shardmc.errors import ModelError

_DEPENDENT = 1e-6
"""What is left of a column, relative to its size, when others are taken out of it: below this float32 sees nothing."""


@final
@dataclass(frozen=True)
class Dependence:
    """A column, and those that it is a combination of; none where it is zero."""

    name: str
    partners: tuple[str, ...]


def find_dependence(products: np.ndarray, names: Sequence[str]) -> Dependence | None:
    """The first column found that says nothing new.

    Columns are taken in one by one, the one of which most is left first (a Cholesky factorisation with pivots), until
    nothing is left of any.

    Parameters
    ----------
    products
        Inner products of the columns, (column, column), each with its mean taken out where there is an intercept.
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


def refuse(found: Dependence, has_location: bool) -> None:
    """Raise the sentence about a column that says nothing new."""
    if len(found.partners) == 1:
        constant = ", up to a constant" if has_location else ""
        raise ModelError(
            f"Columns {found.partners[0]!r} and {found.name!r} of the formula say the same (one is a multiple of the "
            f"other{constant}); leave one of them out."
        )
    listed = ", ".join(map(repr, found.partners[:6]))
    more = f" and {len(found.partners) - 6} more" if len(found.partners) > 6 else ""
    constant = " and a constant" if has_location else ""
    advice = "Columns that mark every group need no intercept beside them: write '0 + ...', or leave out one group."
    if found.name.startswith(("cr(", "cs(", "cc(")):
        advice = "Splines of this kind hold a constant: write constraints='center' in them, or '0 + ...'."
    raise ModelError(
        f"Column {found.name!r} of the formula is a linear combination of {listed}{more}{constant}; leave one of them "
        f"out. {advice}"
    )
