"""From a formula and a table to a design, in two passes over all rows that find every mistake before a fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from shardmc.data import Source
from shardmc.errors import DataError, ModelError
from shardmc.formulas.chunk import Kind, as_chunk, column_kinds, refuse_unknown
from shardmc.formulas.design import Design, Scaling
from shardmc.formulas.design_scan import DesignSummary, refuse_constant, refuse_dependent, scan_design
from shardmc.formulas.encoder import Encoder
from shardmc.formulas.families import Family, ResponseSummary
from shardmc.formulas.formula import Formula
from shardmc.formulas.priors import Prior, choose_priors
from shardmc.formulas.roles import Roles, declared_levels
from shardmc.formulas.table_scan import TableSummary, scan_table

_FAR = 10.0
"""A column is shifted if its mean is more than this many standard deviations from zero."""


@final
@dataclass(frozen=True)
class Prepared:
    """A design, its rows, and what else the two passes found."""

    design: Design
    source: Source
    response: ResponseSummary
    separating: tuple[str, ...]
    """Coefficients without an estimate, because their column separates the responses."""
    dropped: int


def prepare(
    text: str,
    source: Source,
    family: Family,
    priors: Mapping[str, str | Prior] | None,
    *,
    offset: str | None,
    exposure: str | None,
    trials: str | int | None,
    drop_missing: bool,
    taken: Sequence[str] = (),
) -> Prepared:
    """The design of a formula on a table.

    These are exact over all rows, however large the table: levels of categories, means and scales of center, scale and
    standardize, bounds of splines, and the means and standard deviations that priors use. Knots of splines at
    quantiles, centring constraints of splines and orthogonal polynomials are learned from 200,000 random rows, if
    there are more.
    """
    columns = source.column_names
    named = [name for name in (offset, exposure, trials, *taken) if isinstance(name, str) and name in columns]
    formula = Formula.parse(text, columns, named)
    roles = Roles.of(formula.response, family, columns, offset, exposure, trials)
    used = list(dict.fromkeys([*roles.columns, *formula.columns]))
    refuse_unknown(used, source)
    formula.refuse_functions(used)
    before = source.num_rows
    source = source.drop_missing(used) if drop_missing else source
    kinds, ordered = column_kinds(source, used)
    formula.check_columns(kinds)
    roles.check_columns(kinds)
    levels = declared_levels(family, formula.response, kinds, ordered)
    found = scan_table(source, formula, roles, kinds, family=family, ordered=ordered, response_levels=levels)
    family, response = family.with_levels(levels, found.response)
    family.refuse(response)
    encoder = _encoder(formula, kinds, found, source.num_rows)
    if 2 * len(encoder.names) > source.num_rows:
        raise ModelError(
            f"The formula makes {len(encoder.names)} columns for {source.num_rows} rows; there must be far more rows. "
            "Group the levels of a category, or leave terms out."
        )
    summary = scan_design(source, encoder, roles, kinds, family)
    has_location = formula.has_intercept or family.location_is_auxiliary
    if encoder.names:
        refuse_constant(summary, encoder.names, has_location)
        refuse_dependent(summary, encoder.names, has_location)
    scaling = _scaling(summary, response, family, has_location)
    design = Design(encoder, roles, family, kinds, scaling, {}, source.num_rows)
    _refuse_repeated(design)
    chosen = choose_priors(priors, family, response, design.names, _terms(design), scaling.sds, has_location)
    design = replace(design, priors=chosen)
    rows = source.transform(design.rows, design.columns, design.label)
    separating = tuple(summary.separating(design.names, family))
    return Prepared(design, rows, response, separating, before - source.num_rows)


def _encoder(formula: Formula, kinds: Mapping[str, Kind], found: TableSummary, num_rows: int) -> Encoder:
    inside: dict[str, Kind] = {name: kinds[name] for name in formula.columns}
    levels = {name: found.levels[name] for name, kind in kinds.items() if kind == "text"}
    assert found.sample is not None
    sample = as_chunk(found.sample, kinds, levels)
    predictors = {name: sample[name] for name in inside} or sample
    return Encoder.learn(
        formula, inside, levels, found.categories, found.states(formula), predictors, num_rows
    )


def _scaling(
    summary: DesignSummary, response: ResponseSummary, family: Family, has_location: bool
) -> Scaling:
    moments = summary.moments
    means, sds = np.atleast_1d(moments.mean), np.atleast_1d(moments.sd)
    if moments.mean.ndim == 0:  # no columns
        means = sds = np.empty(0)
    size = np.where(sds > 0, sds, np.abs(means))  # a constant column without an intercept
    far = (np.abs(means) > _FAR * size) & has_location
    shifts = np.where(far, means, 0.0)
    if not family.location_scale:
        return Scaling(means, size, shifts)
    is_far = has_location and abs(response.mean) > _FAR * response.sd
    return Scaling(means, size, shifts, response.mean if is_far else 0.0, response.sd)


def _terms(design: Design) -> dict[str, list[str]]:
    """Coefficients of each term that has more than one, or whose name differs from its column's."""
    terms: dict[str, list[str]] = {}
    for name in design.names:
        if name in design.encoder.formula.columns:
            continue  # the name of a column may contain anything
        # 'C(region)[T.b]' belongs to the term 'C(region)', 'C(a)[T.b]:x' to 'C(a):x'.
        term = ":".join(part.rpartition("[")[0] or part for part in name.split(":"))
        terms.setdefault(term, []).append(name)
    return {term: names for term, names in terms.items() if names != [term]}


def _refuse_repeated(design: Design) -> None:
    """Refuse names that are equal in spite of quotes."""
    for name in design.names:
        if design.names.count(name) > 1:
            raise DataError(
                f"Two columns of the formula would both be called {name!r}; rename one of them in the table."
            )
