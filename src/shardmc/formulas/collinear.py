"""Columns of a design matrix that say nothing new: all of them, named in one message or left out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.linalg import solve_triangular

from shardmc.errors import DataError, ModelError
from shardmc.formulas.encoder import Encoder
from shardmc.formulas.scan import DesignSummary
from shardmc.types import Finding

_DEPENDENT = 1e-6
"""A column is dependent if less than this share of it is left without the others: float32 cannot see less."""
_PARTNERS = 4  # that a message lists
_HOW = "drop_collinear=True (--drop-collinear on the command line)"


@final
@dataclass(frozen=True)
class Redundant:
    """A column that others imply, or a term that makes no column."""

    name: str
    partners: tuple[str, ...] = ()
    """The columns that it combines."""
    value: float | None = None
    """Its value, if that is the same in all rows."""
    one_level: bool = False
    """Whether it is a category with one level."""

    def why(self, has_location: bool) -> str:
        """The reason, in a few words."""
        if self.one_level:
            return "the same level in every row"
        if self.value is not None:
            return f"{self.value:g} in every row" + (", like the intercept" if self.value else "")
        if len(self.partners) == 1:
            return f"a multiple of {self.partners[0]!r}" + (", up to a constant" if has_location else "")
        listed = ", ".join(map(repr, self.partners[:_PARTNERS]))
        more = len(self.partners) - _PARTNERS
        constant = " and a constant" if has_location else ""
        return f"a linear combination of {listed}{f' and {more} more' if more > 0 else ''}{constant}"


def find_redundant(design: DesignSummary, encoder: Encoder, has_location: bool) -> list[Redundant]:
    """Columns that earlier columns of the formula (and the intercept) imply, in the order of the formula."""
    empty = [Redundant(term, one_level=True) for term in encoder.empty]
    moments, products, names = design.moments, design.products, encoder.names
    if not names:
        return empty
    found: dict[int, Redundant] = {}
    low, high = np.atleast_1d(moments.low), np.atleast_1d(moments.high)
    for k in np.flatnonzero((low == high) & ((low == 0) | has_location)):
        found[int(k)] = Redundant(names[k], value=float(low[k]))
    if not has_location:
        products = products + moments.count * np.outer(moments.mean, moments.mean)
    others = [k for k in range(len(names)) if k not in found]
    for k, partners in find_dependences(products[np.ix_(others, others)]).items():
        found[others[k]] = Redundant(names[others[k]], tuple(names[others[p]] for p in partners))
    return empty + [found[k] for k in sorted(found)]


def find_dependences(products: np.ndarray) -> dict[int, list[int]]:
    """Each column that is a linear combination of earlier columns -> the columns that it combines.

    This is one Cholesky factorisation that passes over columns without a remainder: of two equal columns the later one
    is found, as in R.

    Parameters
    ----------
    products
        Inner products of the columns, (column, column), about their means if there is an intercept.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(100, 2))
    >>> matrix = np.column_stack([x, x[:, 0] - 2 * x[:, 1], 3 * x[:, 1]])
    >>> find_dependences(matrix.T @ matrix)
    {2: [0, 1], 3: [1]}
    """
    sizes = np.sqrt(np.diag(products))
    scaled = products / np.outer(sizes, sizes)
    with suppress(np.linalg.LinAlgError):  # not positive definite: there are dependent columns
        if np.diag(np.linalg.cholesky(scaled)).min(initial=1.0) > _DEPENDENT:
            return {}
    taken: list[int] = []
    found: list[int] = []
    lower = np.zeros_like(scaled)
    for k in range(len(scaled)):
        count = len(taken)
        row = solve_triangular(lower[:count, :count], scaled[taken, k], lower=True, check_finite=False)
        left = scaled[k, k] - row @ row
        if left <= _DEPENDENT**2:
            found.append(k)
            continue
        lower[count, :count], lower[count, count] = row, np.sqrt(left)
        taken.append(k)
    weights = np.linalg.solve(scaled[np.ix_(taken, taken)], scaled[np.ix_(taken, found)])
    return {
        k: [taken[p] for p in np.flatnonzero(np.abs(of) > 1e-4)]
        for k, of in zip(found, weights.T, strict=True)
    }


def without_redundant(
    encoder: Encoder, design: DesignSummary, has_location: bool, drop: bool
) -> tuple[Encoder, DesignSummary, tuple[Finding, ...]]:
    """Encoder and design without columns that others imply, and a note on these; without `drop` they are refused."""
    found = find_redundant(design, encoder, has_location)
    if not drop:
        refuse_redundant(found, has_location)
    if not found:
        return encoder, design, ()
    names = [each.name for each in found]
    kept = ~np.isin(encoder.names, names)
    return encoder.without(names), design if kept.all() else design.keep(kept), _left_out(found, has_location)


def refuse_redundant(found: Sequence[Redundant], has_location: bool, how: str = f", or give {_HOW}") -> None:
    """Refuse columns that others imply, all of them in one message."""
    if not found:
        return
    first = found[0]
    if len(found) > 1:
        listed = "; ".join(f"{each.name!r} ({each.why(has_location)})" for each in found)
        text = f"{len(found)} columns of the formula follow from the others: {listed}. Leave them out{how}."
    elif len(first.partners) == 1:
        text = (
            f"Columns {first.partners[0]!r} and {first.name!r} of the formula say the same ({first.name!r} is "
            f"{first.why(has_location)}); leave one of them out{how}."
        )
    else:
        text = f"Column {first.name!r} of the formula is {first.why(has_location)}; leave it out{how}."
    if has_location and any(len(each.partners) > 1 for each in found):
        text += " If columns mark every group, you can also remove the intercept (write '0 + ...')."
    only_constant = not any(each.partners for each in found)
    raise (DataError if only_constant else ModelError)(text)


def _left_out(found: Sequence[Redundant], has_location: bool) -> tuple[Finding, ...]:
    """The note about columns that were left out."""
    if not found:
        return ()
    listed = "; ".join(f"{each.name!r} ({each.why(has_location)})" for each in found)
    what = "1 column follows" if len(found) == 1 else f"{len(found)} columns follow"
    return (
        Finding(
            "note",
            "collinear",
            f"{what} from the others and {'was' if len(found) == 1 else 'were'} left out: {listed}.",
            "Coefficients of the columns that stay include the effects of those that were left out.",
            {"columns": [each.name for each in found]},
        ),
    )
