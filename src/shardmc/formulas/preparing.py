"""What a formula means on a table: two passes over the rows that find the design and every mistake."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import pyarrow as pa

from shardmc.data import Source
from shardmc.data.grouped import GroupedSource
from shardmc.errors import DataError, ModelError
from shardmc.formulas.chunk import Kind, Level, as_chunk, column_kinds, refuse_unknown
from shardmc.formulas.design import UNIT, ColumnScaling, Design
from shardmc.formulas.design_checks import (
    find_redundant,
    group_findings,
    refuse_groups,
    refuse_redundant,
    without_redundant,
)
from shardmc.formulas.encoder import Encoder
from shardmc.formulas.families import Family, ResponseSummary
from shardmc.formulas.formula import Formula
from shardmc.formulas.groups import Factor, GroupTerm, Varying, find_factors, says_little, split_formula
from shardmc.formulas.mixed import default_priors, needs_whole_groups, reduction_of
from shardmc.formulas.priors import Prior, choose_priors
from shardmc.formulas.roles import RoleOptions, Roles, levels_of
from shardmc.formulas.scan import (
    DesignSummary,
    TableSummary,
    scan_design,
    scan_table,
)
from shardmc.formulas.spelling import one_of, read_spelling, refuse_cbind, split_counts
from shardmc.guards.limits import refuse_above
from shardmc.types import Finding

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
    findings: tuple[Finding, ...] = ()
    """What is doubtful about the groups, and which columns were left out."""


def prepare(
    text: str,
    source: Source,
    family: Family,
    priors: Mapping[str, str | Prior] | None,
    *,
    offset: str | None,
    exposure: str | None,
    trials: str | int | None,
    censored: str | None = None,
    drop_missing: bool,
    drop_collinear: bool = False,
    taken: Sequence[str] = (),
    complete: Sequence[str] = (),
) -> Prepared:
    """The design of a formula on a table. `.` leaves out `taken` columns; `complete` ones may have no missing values.

    These are exact over all rows, however large the table: levels of categories, means and scales of center, scale and
    standardize, bounds of splines, and the means and standard deviations that priors use. Knots of splines at
    quantiles, centring constraints of splines and orthogonal polynomials are learned from 200,000 random rows, if
    there are more.
    """
    options: RoleOptions = {"offset": offset, "exposure": exposure, "trials": trials, "censored": censored}
    parsed = _parsed(text, source.column_names, family, options, taken)
    read = [*parsed.columns, *parsed.grouping]
    refuse_unknown(read, source)
    parsed.formula.refuse_functions(parsed.columns)
    before = source.num_rows
    source = source.drop_missing([*read, *complete]) if drop_missing else source
    table = _read(parsed, source)
    encoder = _encoder(table, parsed.formula, table.found, max(1, len(table.family.equations)))
    if 2 * len(encoder.names) > source.num_rows:
        raise ModelError(
            f"The formula makes {len(encoder.names)} columns for {source.num_rows} rows; there must be far more rows. "
            "Group the levels of a category, or leave terms out."
        )
    has_location = parsed.formula.has_intercept or table.family.location_is_auxiliary
    summary = table.summarise(encoder)
    encoder, summary, left_out = without_redundant(encoder, summary, has_location, drop_collinear)
    scaling = _scaling(summary, table.response, table.family, has_location)
    factors = _factors(table, encoder) if parsed.terms else ()
    needed = {*parsed.roles.columns, *encoder.formula.columns, *parsed.varying_columns}
    kinds: dict[str, Kind] = {name: kind for name, kind in table.kinds.items() if name in needed}
    design = Design(encoder, parsed.roles, table.family, kinds, scaling, {}, source.num_rows, factors)
    _refuse_repeated(design)
    refuse_groups(design)
    findings = (*group_findings(design, source), *left_out)
    design = replace(design, priors=_priors(design, priors, table.response))
    rows = source.transform(
        design.rows, list(dict.fromkeys([*design.columns, *parsed.grouping])), design.label
    )
    if design.unit is not None:
        rows = GroupedSource(
            rows, UNIT, design.unit.counts, reduction_of(design), whole=needs_whole_groups(design)
        )
    separating = tuple(summary.separating(design.column_names, table.family))
    return Prepared(design, rows, table.response, separating, before - source.num_rows, findings)


@final
@dataclass(frozen=True)
class _Parsed:
    """A formula and its options, before a row is read."""

    formula: Formula
    roles: Roles
    family: Family
    terms: tuple[GroupTerm, ...]
    varying: tuple[Formula, ...]
    """The response and the columns whose coefficients vary, of each group term."""

    @property
    def varying_columns(self) -> list[str]:
        return [name for formula in self.varying for name in formula.columns]

    @property
    def columns(self) -> list[str]:
        """All columns but those that name groups."""
        return list(dict.fromkeys([*self.roles.columns, *self.formula.columns, *self.varying_columns]))

    @property
    def grouping(self) -> list[str]:
        """Columns that name groups."""
        return list(dict.fromkeys(name for term in self.terms for name in term.columns))


def _parsed(
    text: str, columns: Sequence[str], family: Family, options: RoleOptions, taken: Sequence[str]
) -> _Parsed:
    """A formula and its options: offset, exposure, trials, censored. Some of them may be part of the text."""
    counts: tuple[str, ...] = ()
    if family.takes_counts:
        text, counts = split_counts(text)
        family = replace(family, levels=counts)  # type: ignore[call-arg]
    spelled = read_spelling(text)
    refuse_cbind(spelled, family)
    options = {
        **options,
        "offset": one_of("offset", spelled.offset, options["offset"]),
        "trials": one_of("trials", spelled.trials, options["trials"]),
    }
    text, terms = split_formula(spelled.text)
    if terms and family.several_predictors:
        raise ModelError(
            f"Family {family.name!r} has a linear predictor for each level, and takes no group terms such as (1 | g); "
            "leave them out, or fit one level against another with family 'bernoulli'."
        )
    grouping = [name for term in terms for name in term.columns]
    others = (*options.values(), *counts, *taken, *grouping, *spelled.columns)
    formula = Formula.parse(text, columns, [n for n in others if isinstance(n, str) and n in columns])
    roles = Roles.of(formula.response, family, columns, **options, counts=counts)
    varying = (Formula.parse(f"{formula.response.text} ~ {term.effects}", columns) for term in terms)
    return _Parsed(formula, roles, family, tuple(terms), tuple(varying))


@final
@dataclass(frozen=True)
class _Table:
    """What the first pass over the rows finds."""

    parsed: _Parsed
    source: Source
    kinds: Mapping[str, Kind]
    levels: Sequence[Level] | None
    """Levels of the response."""
    family: Family
    """The family, with the levels of the response."""
    response: ResponseSummary
    found: TableSummary

    def scan(self, formula: Formula) -> TableSummary:
        """What a pass finds about another formula of the same response."""
        return scan_table(
            self.source,
            formula,
            self.parsed.roles,
            self.kinds,
            family=self.family,
            response_levels=self.levels,
        )

    def summarise(self, encoder: Encoder) -> DesignSummary:
        """What a pass finds about the columns of a design matrix."""
        return scan_design(self.source, encoder, self.parsed.roles, self.kinds, self.family)


def _read(parsed: _Parsed, source: Source) -> _Table:
    formula, roles, family = parsed.formula, parsed.roles, parsed.family
    kinds, ordered = column_kinds(source, parsed.columns, set(roles.columns) - set(formula.columns))
    formula.check_columns(kinds)
    roles.check_columns(kinds)
    levels = levels_of(family, formula.response, source, kinds, ordered)
    found = scan_table(source, formula, roles, kinds, family=family, response_levels=levels)
    family, response = family.with_levels(levels, found.response)
    family.refuse(response)
    return _Table(parsed, source, kinds, levels, family, response, found)


def _factors(table: _Table, encoder: Encoder) -> tuple[Factor, ...]:
    """The grouping factors; effects that are parameters are divided by their sd if the rows say little about them."""

    def pieces(factor: Factor) -> Iterator[tuple[pa.Table, np.ndarray]]:
        for piece in table.source.tables(list(dict.fromkeys([*table.kinds, *factor.columns]))):
            chunk = as_chunk(piece, table.kinds, encoder.levels)
            yield piece, table.parsed.roles.response_values(chunk, table.family.levels_of_response)

    terms, formulas = table.parsed.terms, table.parsed.varying
    varying = [_varying(table, *each) for each in zip(terms, formulas, strict=True)]
    return tuple(
        each if each.integrated else replace(each, standardised=says_little(each, pieces(each)))
        for each in find_factors(terms, varying, table.source)
    )


def _varying(table: _Table, term: GroupTerm, formula: Formula) -> Varying:
    """The columns of a group term whose coefficients vary."""
    found = table.scan(formula)
    if not formula.expressions:
        return Varying(None, formula.has_intercept, np.empty(0), term.correlated)
    encoder = _encoder(table, formula, found)
    summary = table.summarise(encoder)
    refuse_redundant(find_redundant(summary, encoder, formula.has_intercept), formula.has_intercept, how="")
    return Varying(encoder, formula.has_intercept, np.atleast_1d(summary.moments.sd), term.correlated)


def _encoder(table: _Table, formula: Formula, found: TableSummary, num_predictors: int = 1) -> Encoder:
    made = _num_columns(formula, found)
    each = f" for each of {num_predictors} linear predictors" if num_predictors > 1 else ""
    refuse_above(
        "coefficients", made * num_predictors, f"The formula makes about {made:,} columns{each}", ModelError
    )
    kinds = table.kinds
    inside: dict[str, Kind] = {name: kinds[name] for name in formula.columns}
    levels = {name: found.levels[name] for name, kind in kinds.items() if kind == "text"}
    assert found.sample is not None
    sample = as_chunk(found.sample, kinds, levels)
    predictors = {name: sample[name] for name in inside} or sample
    return Encoder.learn(
        formula, inside, levels, found.categories, found.states(formula), predictors, table.source.num_rows
    )


def _num_columns(formula: Formula, found: TableSummary) -> int:
    """About how many columns a formula makes: for each term the product of its factors' levels or columns."""

    def width(name: str) -> int:
        expression = formula.expressions.get(name)
        if expression is None:
            return 1
        levels = found.categories.get(name) or found.levels.get(expression.column or expression.text) or ()
        return max(len(levels), 1, *(int(t.num_columns) for t in expression.transforms))

    return sum(math.prod(width(factor.expr) for factor in term.factors) for term in formula.predictors)


def _scaling(
    summary: DesignSummary, response: ResponseSummary, family: Family, has_location: bool
) -> ColumnScaling:
    moments = summary.moments
    means, sds = np.atleast_1d(moments.mean), np.atleast_1d(moments.sd)
    if moments.mean.ndim == 0:  # no columns
        means = sds = np.empty(0)
    size = np.where(sds > 0, sds, np.abs(means))  # a constant column without an intercept
    far = (np.abs(means) > _FAR * size) & has_location
    shifts = np.where(far, means, 0.0)
    if not family.location_scale:
        return ColumnScaling(means, size, shifts)
    is_far = has_location and abs(response.mean) > _FAR * response.sd
    return ColumnScaling(means, size, shifts, response.mean if is_far else 0.0, response.sd)


def _priors(
    design: Design, given: Mapping[str, str | Prior] | None, response: ResponseSummary
) -> dict[str, Prior]:
    """The user's priors, and defaults for the rest."""
    family = design.family
    scale = family.coefficient_scale(response)
    of_groups = {
        name: prior for factor in design.factors for name, prior in default_priors(factor, scale).items()
    }
    sds = np.repeat(design.scaling.sds, max(1, len(family.equations)))
    location = design.entries_of(family.location) if design.has_location else ()
    return choose_priors(given, family, response, design.names, _terms(design), sds, location, of_groups)


def _terms(design: Design) -> dict[str, list[str]]:
    """Coefficients of each term that has more than one, or whose name differs from its column's."""
    terms: dict[str, list[str]] = {}
    each = max(1, len(design.family.equations))
    for number, column in enumerate(design.column_names):
        names = list(design.names[number * each : (number + 1) * each])
        if each > 1:
            terms.setdefault(column, names)
        if column in design.encoder.formula.columns:
            continue  # the name of a column may contain anything
        # 'C(region)[T.b]' belongs to the term 'C(region)', 'C(a)[T.b]:x' to 'C(a):x'.
        term = ":".join(part.rpartition("[")[0] or part for part in column.split(":"))
        if term != column or each == 1:
            terms.setdefault(term, []).extend(names)
    return {term: names for term, names in terms.items() if names != [term]}


def _refuse_repeated(design: Design) -> None:
    """Refuse names that are equal in spite of quotes."""
    for name in design.names:
        if design.names.count(name) > 1:
            raise DataError(
                f"Two columns of the formula would both be called {name!r}; rename one of them in the table."
            )
