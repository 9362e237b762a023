"""What is wrong with a design: columns that say nothing new, and group terms that cannot be learned."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
from scipy.linalg import solve_triangular

from shardmc.errors import DataError, ModelError
from shardmc.formulas.encoder import Encoder
from shardmc.formulas.mixed import MOST_BY_QUADRATURE, needs_whole_groups
from shardmc.formulas.scan import DesignSummary
from shardmc.types import Finding

if TYPE_CHECKING:
    from shardmc.data import Source
    from shardmc.formulas.design import Design
    from shardmc.formulas.groups import Factor


_DEPENDENT = 1e-6
"""A column is dependent if less than this share of it is left without the others: float32 cannot resolve less."""
_PARTNERS = 4  # columns that a message lists
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
            f"Columns {first.partners[0]!r} and {first.name!r} of the formula hold the same information "
            f"({first.name!r} is {first.why(has_location)}); leave one of them out{how}."
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


_MOST_PARAMETERS = 1_000
"""Effects, of all factors that are not integrated out, that may be parameters."""
_MOST_CORRELATIONS = 200
_MOST_PADDED = 20
"""The most that padding may multiply rows by: groups with many effects are padded to the size of the largest."""
_FEW_GROUPS = 8


def refuse_groups(design: Design) -> None:
    """Refuse factors whose effects cannot be learned or computed."""
    for factor in design.factors:
        _refuse_levels(factor, design)
        _refuse_effects(factor, design)
        for other in design.factors:
            _refuse_same(factor, other)
    _refuse_parameters(design.factors)


def _refuse_levels(factor: Factor, design: Design) -> None:
    name, levels = factor.name, len(factor.levels)
    if levels == 1:
        raise DataError(
            f"The group column {name!r} has one level in all rows, so its effect cannot vary. Leave the term out."
        )
    if levels == design.num_rows and not design.family.learns_from_one_row:
        raise DataError(
            f"The group column {name!r} has a different level in every row. With family {design.family.name!r} a group "
            "of one row says nothing about its effect. Leave the term out, or choose a coarser column."
        )
    response = design.roles.response.columns
    if set(factor.columns) & set(response):
        raise ModelError(f"The response {response[0]!r} also names groups. Leave it out of the group term.")
    category = (f"{name}[", f"C({name})[")
    if "Intercept" in factor.effects and any(n.startswith(category) and ":" not in n for n in design.names):
        raise ModelError(
            f"{name!r} is a predictor with a coefficient for each level, and also a group with an effect for each "
            f"level: the two cannot be told apart. Leave out one of them."
        )


def _refuse_effects(factor: Factor, design: Design) -> None:
    size = len(factor.effects)
    padded = int(factor.counts.max()) * len(factor.levels)
    if factor.integrated and needs_whole_groups(design) and padded > _MOST_PADDED * design.num_rows:
        raise ModelError(
            f"Each group of {factor.name!r} has {size} effects. With more than {MOST_BY_QUADRATURE} and family "
            f"{design.family.name!r}, groups must be of similar size, but the largest has {factor.counts.max():,} rows "
            f"and the average one {design.num_rows / len(factor.levels):,.1f}. Leave out slopes, or leave out groups "
            "that are so large that they can be fitted by themselves."
        )
    correlations = len(factor.correlation_names)
    if correlations > _MOST_CORRELATIONS:
        raise ModelError(
            f"Each group of {factor.name!r} has {size} effects with {correlations:,} correlations; at most "
            f"{_MOST_CORRELATIONS} are possible. Make the effects independent, as in (1 + x || {factor.name}), or "
            "leave some out."
        )


def _refuse_same(factor: Factor, other: Factor) -> None:
    """Refuse a/b where every a has only one b: then a and a:b are the same groups."""
    inner = [name for name in other.columns if name not in factor.columns]
    shared = set(factor.effects) & set(other.effects)
    if len(factor.columns) + len(inner) != len(other.columns) or not inner or not shared:
        return
    if len(factor.levels) == len(other.levels):
        within = ":".join(inner)
        raise DataError(
            f"Every level of {factor.name!r} has only one level of {within!r}, so the groups of {other.name!r} are "
            f"those of {factor.name!r} and their effects cannot be told apart. If {factor.name!r} is nested in "
            f"{within!r}, write (1 | {within}/{factor.name})."
        )


def _refuse_parameters(factors: Sequence[Factor]) -> None:
    counts = {f.name: len(f.levels) * len(f.effects) for f in factors if not f.integrated}
    if sum(counts.values()) <= _MOST_PARAMETERS:
        return
    integrated = next(f.name for f in factors if f.integrated)
    listed = ", ".join(f"{name!r} has {count:,}" for name, count in counts.items())
    raise ModelError(
        f"The effects of {integrated!r} are integrated out, and those of all other factors are parameters. At most "
        f"{_MOST_PARAMETERS:,} of these are possible, but {listed}. Merge levels, leave a factor out, or use a program "
        "for large crossed factors, such as lme4 or INLA."
    )


def group_findings(design: Design, source: Source) -> tuple[Finding, ...]:
    """Warnings about factors with few groups, and about slopes that vary in no group."""
    few = (_few(factor) for factor in design.factors if len(factor.levels) < _FEW_GROUPS)
    constant = (
        _constant(factor, names)
        for factor in design.factors
        if (names := _same_in_group(factor, design, source))
    )
    return (*few, *constant)


def _few(factor: Factor) -> Finding:
    count, sds = len(factor.levels), ", ".join(factor.sd_names)
    return Finding(
        "warning",
        "few groups",
        f"{factor.name!r} has {count} groups: too few to learn the sd of their effects, so the prior decides much of "
        f"{sds}.",
        f'Give a prior that you believe, such as priors={{"{factor.sd_names[0]}": "half_normal(1)"}}, or make '
        f"{factor.name!r} a predictor instead of a group.",
        {"factor": factor.name, "groups": count},
    )


def _constant(factor: Factor, names: Sequence[str]) -> Finding:
    listed = ", ".join(map(repr, names))
    return Finding(
        "warning",
        "constant slopes",
        f"{listed} {'is' if len(names) == 1 else 'are'} constant within every group of {factor.name!r}, so no group "
        "says anything about its slope. Its sd only lets the variance between groups change with the column.",
        "Leave the column out of the group term unless you mean that; it can stay a predictor.",
        {"factor": factor.name, "columns": list(names)},
    )


def _same_in_group(factor: Factor, design: Design, source: Source) -> list[str]:
    """Effects, other than the intercept, whose column is constant within every group.

    It reads rows only until every column was seen to vary: the first piece, as a rule.
    """
    candidates = [k for k, name in enumerate(factor.effects) if name != "Intercept"]
    first = np.full((len(factor.levels), len(factor.effects)), np.nan)
    columns = list(dict.fromkeys([*design.columns, *factor.columns]))
    for table in source.tables(columns) if candidates else ():
        codes, values = factor.codes(table), factor.matrix(design.chunk(table), len(table))
        present, places = np.unique(codes, return_index=True)
        new = np.isnan(first[present, 0])
        first[present[new]] = values[places[new]]
        varies = (values != first[codes]).any(axis=0)
        candidates = [k for k in candidates if not varies[k]]
        if not candidates:
            break
    return [factor.effects[k] for k in candidates]
