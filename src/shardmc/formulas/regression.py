"""Generalised linear models from a formula and a table: two passes that find every mistake, then one call to fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, final

import numpy as np
import pyarrow as pa

from shardmc.check.check import ordered
from shardmc.data import Source
from shardmc.data.grouped import GroupedSource
from shardmc.errors import DataError, ModelError
from shardmc.formulas.chunk import Kind, as_chunk, column_kinds, refuse_unknown
from shardmc.formulas.design import UNIT, Design, Scaling, build_model, named_draws, note_on_location
from shardmc.formulas.encoder import Encoder
from shardmc.formulas.families import Family, ResponseSummary, named_family
from shardmc.formulas.fit_check import with_predictive_check
from shardmc.formulas.formula import Formula, Roles, declared_levels
from shardmc.formulas.group_checks import group_findings, refuse_groups
from shardmc.formulas.groups import Factor, GroupTerm, Varying, find_factors, says_little, split_formula
from shardmc.formulas.mixed import default_priors, start_of
from shardmc.formulas.priors import Prior, choose_priors
from shardmc.formulas.scan import (
    DesignSummary,
    TableSummary,
    refuse_constant,
    refuse_dependent,
    scan_design,
    scan_table,
)
from shardmc.guards.limits import refuse_above
from shardmc.model import Model
from shardmc.pipeline import fit, open_rows
from shardmc.posterior import Posterior, Regression
from shardmc.types import Data, Finding

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
    """What is doubtful about the groups."""


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
    text, group_terms = split_formula(text)
    grouping = list(dict.fromkeys(name for term in group_terms for name in term.columns))
    taken = [*taken, *grouping]
    named = [name for name in (offset, exposure, trials, *taken) if isinstance(name, str) and name in columns]
    formula = Formula.parse(text, columns, named)
    roles = Roles.of(formula.response, family, columns, offset, exposure, trials)
    varying = [Formula.parse(f"{formula.response.text} ~ {term.effects}", columns) for term in group_terms]
    used = list(dict.fromkeys([*roles.columns, *formula.columns, *(n for f in varying for n in f.columns)]))
    refuse_unknown([*used, *grouping], source)
    formula.refuse_functions(used)
    before = source.num_rows
    source = source.drop_missing([*used, *grouping]) if drop_missing else source
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
    factors: tuple[Factor, ...] = ()
    if group_terms:
        scan = partial(
            scan_table,
            source,
            roles=roles,
            kinds=kinds,
            family=family,
            ordered=ordered,
            response_levels=levels,
        )
        effects = [
            _varying(f, t, source, roles, kinds, family, scan(f))
            for f, t in zip(varying, group_terms, strict=True)
        ]
        factors = find_factors(group_terms, effects, source)
        factors = _with_choice_of_scale(factors, source, roles, encoder, kinds, family)
    design = Design(encoder, roles, family, kinds, scaling, {}, source.num_rows, factors)
    _refuse_repeated(design)
    refuse_groups(design)
    findings = group_findings(design, source)
    scale = family.coefficient_scale(response)
    of_groups = {name: prior for factor in factors for name, prior in default_priors(factor, scale).items()}
    chosen = choose_priors(
        priors, family, response, design.names, _terms(design), scaling.sds, has_location, of_groups
    )
    design = replace(design, priors=chosen)
    read = list(dict.fromkeys([*design.columns, *grouping]))
    rows = source.transform(design.rows, read, design.label)
    if design.unit is not None:
        rows = GroupedSource(rows, UNIT, design.unit.counts)
    separating = tuple(summary.separating(design.names, family))
    return Prepared(design, rows, response, separating, before - source.num_rows, findings)


def _with_choice_of_scale(
    factors: tuple[Factor, ...],
    source: Source,
    roles: Roles,
    encoder: Encoder,
    kinds: Mapping[str, Kind],
    family: Family,
) -> tuple[Factor, ...]:
    """The factors, with effects that are parameters divided by their sd where the rows say little of them."""

    def pieces(factor: Factor) -> Iterator[tuple[pa.Table, np.ndarray]]:
        for table in source.tables(list(dict.fromkeys([*kinds, *factor.columns]))):
            chunk = as_chunk(table, kinds, encoder.levels)
            yield table, roles.response_values(chunk, family.levels_of_response)

    return tuple(
        each if each.integrated else replace(each, standardised=says_little(each, pieces(each)))
        for each in factors
    )


def _varying(
    formula: Formula,
    term: GroupTerm,
    source: Source,
    roles: Roles,
    kinds: Mapping[str, Kind],
    family: Family,
    found: TableSummary,
) -> Varying:
    """The columns of a group term whose coefficients vary."""
    if not formula.expressions:
        return Varying(None, formula.has_intercept, np.empty(0), term.correlated)
    encoder = _encoder(formula, kinds, found, source.num_rows)
    summary = scan_design(source, encoder, roles, kinds, family)
    refuse_constant(summary, encoder.names, formula.has_intercept)
    refuse_dependent(summary, encoder.names, formula.has_intercept)
    return Varying(encoder, formula.has_intercept, np.atleast_1d(summary.moments.sd), term.correlated)


def _encoder(formula: Formula, kinds: Mapping[str, Kind], found: TableSummary, num_rows: int) -> Encoder:
    made = _num_columns(formula, found)
    refuse_above("coefficients", made, f"The formula makes about {made:,} columns", ModelError)
    inside: dict[str, Kind] = {name: kinds[name] for name in formula.columns}
    levels = {name: found.levels[name] for name, kind in kinds.items() if kind == "text"}
    assert found.sample is not None
    sample = as_chunk(found.sample, kinds, levels)
    predictors = {name: sample[name] for name in inside} or sample
    return Encoder.learn(
        formula, inside, levels, found.categories, found.states(formula), predictors, num_rows
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


def glm(
    formula: str,
    data: Data,
    family: str | Family = "gaussian",
    priors: Mapping[str, Any] | None = None,
    *,
    offset: str | None = None,
    exposure: str | None = None,
    trials: str | int | None = None,
    drop_missing: bool = False,
    predictive: bool = True,
    **fit_options: Any,
) -> Posterior:
    """Fit a generalised linear model, or a mixed model, to a table of any size.

    Parameters
    ----------
    formula
        `response ~ predictors`, such as "claims ~ age + C(region) + bs(power, df=4) + age:power". Columns of text are
        categories; numbers are made so by C(...). Functions must be elementwise (np.log, np.sqrt, ...) or one of C,
        center, scale, standardize, bs, cr, cc, poly; `.` stands for all other columns. (1 + x | g) adds an intercept
        and a slope for every group of column g, (1 + x || g) the same without correlation, (1 | a/b) nested groups.
    data
        A pandas, polars or Arrow table, a dictionary of arrays, or the path of a Parquet file or folder, or of a CSV
        file.
    family
        "gaussian", "bernoulli" ("bernoulli(link=probit)"), "binomial", "poisson", "negative_binomial", "gamma",
        "student_t" ("student_t(df=4)"), "ordinal", or a `Family`. Names of other programs, such as "normal" and
        "negbinomial", are known too.
    priors
        Name of a coefficient or term, "coefficients", "Intercept", "sigma", ... -> "normal(0, 1)" and the like, in the
        columns' own units. The intercept's is for all predictors at their means. Of group terms: the sds of effects,
        such as "sd_g__Intercept", and their correlations, "cor_g" -> "lkj(2)". See `choose_priors` for the defaults;
        `posterior.regression.priors` has those used.
    offset
        A column, or an expression of columns, added to the linear predictor.
    exposure
        A column, or an expression of columns, to whose value the expected response is proportional (log link).
    trials
        The number of trials of each row of family "binomial": a column or a whole number.
    drop_missing
        Whether rows with missing values in the formula's columns are left out; otherwise they are refused.
    predictive
        Whether to compare a sample of 2,000 rows with simulated ones, for the report. It takes a fraction of a second,
        and reads the table once more. Tables of more than 5 million rows are left out; `predictive_check` takes them.
    **fit_options
        Everything that `shardmc.fit` takes: shards, draws, seed, weights, stratify, run_dir, progress, ...

    Returns
    -------
    Posterior
        Draws named "Intercept", after the design's columns ("age", "C(region)[T.b]"), "sigma", "shape" or "nu", and
        "sd_g__x" and "cor_g__Intercept__x" of group terms, all in the columns' own units. Its `predict` works also
        after it was saved and loaded.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=5_000)
    >>> table = {"x": x, "y": rng.poisson(np.exp(0.5 + 0.3 * x))}
    >>> posterior = glm("y ~ x", table, family="poisson", draws=1_000)
    >>> list(posterior.draws), posterior.regression.priors["x"]
    (['Intercept', 'x'], 'normal(0, 2.511)')
    """
    weights, strata = fit_options.get("weights"), fit_options.get("stratify")
    regression = _Formula(
        formula,
        named_family(family),
        priors,
        offset,
        exposure,
        trials,
        drop_missing,
        weights,
        strata,
        predictive,
    )
    return fit(regression, data, **fit_options)


@final
class _Formula:
    """A formula as a front end of `fit`: it reads the rows to learn the design, and names the draws after it."""

    def __init__(
        self,
        text: str,
        family: Family,
        priors: Mapping[str, Any] | None,
        offset: str | None,
        exposure: str | None,
        trials: str | int | None,
        drop_missing: bool,
        weights: Any,
        strata: Any,
        predictive: bool = False,
    ) -> None:
        self._predictive = predictive
        self._text, self._family, self._priors = text, family, priors
        self._roles = {"offset": offset, "exposure": exposure, "trials": trials}
        self._drop_missing = drop_missing
        self._rowwise = {"weights": weights, "stratify": strata}
        self._prepared: Prepared | None = None

    def open(self, source: Source, seed: int) -> tuple[Source, Model]:
        self._rows = source, seed
        weights = self._rowwise["weights"]
        prepared = prepare(
            self._text,
            source,
            self._family,
            self._priors,
            **self._roles,
            drop_missing=self._drop_missing,
            taken=[weights] if isinstance(weights, str) else [],
        )
        for option, given in self._rowwise.items():
            if prepared.dropped and given is not None and not isinstance(given, str):
                raise DataError(
                    f"{option} was given as an array of all rows, but {prepared.dropped} rows with missing values are "
                    f"dropped; make it a column of the table and give its name."
                )
        self._prepared = prepared
        model = model_of(prepared)
        # The likelihood of groups is ours, and known to be right; that of rows may have a user's own family.
        return (prepared.source, model) if prepared.design.unit else open_rows(model, prepared.source, seed)

    def finish(self, posterior: Posterior) -> Posterior:
        """The posterior in the terms of the formula, with a predictive check unless that is switched off."""
        named = self._named(posterior)
        return with_predictive_check(named, *self._rows) if self._predictive else named

    def _named(self, posterior: Posterior) -> Posterior:
        """The posterior with its design and priors, the intercept first, and with notes and findings."""
        prepared = self._prepared
        assert prepared is not None
        design = prepared.design
        notes = (*posterior.notes, *note_on_location(design))
        if prepared.dropped:
            notes = (*notes, f"{prepared.dropped} rows with missing values were dropped.")
        groups = posterior.groups
        if groups is not None and design.unit is not None:
            groups = replace(groups, labels=design.unit.labels)
        return replace(
            posterior,
            groups=groups,
            draws=named_draws(design, posterior.draws),
            notes=notes,
            findings=tuple(ordered((*posterior.findings, *_separation(prepared), *prepared.findings))),
            regression=Regression(
                formula=" + ".join([design.encoder.formula.text, *map(str, split_formula(self._text)[1])]),
                family=str(design.family),
                priors={name: str(prior) for name, prior in design.priors.items()},
                dropped_rows=prepared.dropped,
                design=design.to_dict(),
            ),
        )


def model_of(prepared: Prepared) -> Model:
    """The model of a formula on a table: the same object, with its compiled programs, when both come again."""
    design, start = prepared.design, _start(prepared)
    return _built(_Asked(f"{design.label} {start}", type(design.family), design, start))


@dataclass(frozen=True)
class _Asked:
    """A design and where to start, known by their text and the kind of family, which may be a user's own."""

    text: str
    family: type
    design: Design = field(compare=False)
    start: dict[str, Any] = field(compare=False)


@lru_cache(maxsize=8)
def _built(asked: _Asked) -> Model:
    return build_model(asked.design, asked.start)


def _start(prepared: Prepared) -> dict[str, Any]:
    """Where to look for the mode first: the null model, whatever the user's priors."""
    design, response = prepared.design, prepared.response
    start: dict[str, Any] = {
        name: prior.middle for name, prior in design.family.default_priors(response).items()
    }
    start |= design.family.start(response)
    scale = design.family.coefficient_scale(response)
    for factor in design.factors:
        start |= start_of(factor, scale)
    location = design.family.location
    if not design.has_location:
        start.pop(location, None)
    elif design.scaling.response_shift:
        start[location] = start[location] - design.scaling.response_shift
    return start


def _separation(prepared: Prepared) -> tuple[Finding, ...]:
    names = list(prepared.separating)
    if not names:
        return ()
    listed = ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    response = prepared.design.roles.response.text
    return (
        Finding(
            "warning",
            "separation",
            f"Complete separation: {listed} by {'itself' if len(names) == 1 else 'themselves'} "
            f"predict{'s' if len(names) == 1 else ''} some outcomes of {response!r} without error, so only the prior "
            "keeps the coefficient finite.",
            "Merge the level with another, leave the column out, or give its coefficient a prior that you believe, "
            f'such as priors={{{names[0]!r}: "normal(0, 2.5)"}}.',
            {"columns": names},
        ),
    )
