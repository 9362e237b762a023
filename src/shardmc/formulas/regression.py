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
from shardmc.data.row_weights import SurveyWeights
from shardmc.errors import DataError, ModelError, OptionError, knows_its_options
from shardmc.formulas.chunk import Kind, as_chunk, column_kinds, refuse_unknown
from shardmc.formulas.collinear import find_redundant, refuse_redundant, without_redundant
from shardmc.formulas.design import UNIT, Design, Scaling, build_model, named_draws, note_on_location
from shardmc.formulas.encoder import Encoder
from shardmc.formulas.families import Family, ResponseSummary, named_family
from shardmc.formulas.fit_check import with_predictive_check
from shardmc.formulas.formula import Formula, Roles, levels_of
from shardmc.formulas.group_checks import group_findings, refuse_groups
from shardmc.formulas.groups import Factor, GroupTerm, Varying, find_factors, says_little, split_formula
from shardmc.formulas.level_counts import split_counts
from shardmc.formulas.mixed import default_priors, start_of
from shardmc.formulas.priors import Prior, choose_priors
from shardmc.formulas.robust import Robust
from shardmc.formulas.scan import (
    DesignSummary,
    TableSummary,
    scan_design,
    scan_table,
)
from shardmc.formulas.spelling import one_of, read_spelling, refuse_cbind
from shardmc.formulas.variables import variables_of
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
    """The design of a formula on a table. `taken` columns are not part of `.`, `complete` ones may not be missing.

    These are exact over all rows, however large the table: levels of categories, means and scales of center, scale and
    standardize, bounds of splines, and the means and standard deviations that priors use. Knots of splines at
    quantiles, centring constraints of splines and orthogonal polynomials are learned from 200,000 random rows, if
    there are more.
    """
    columns = source.column_names
    counts: tuple[str, ...] = ()
    if family.takes_counts:
        text, counts = split_counts(text)
        family = replace(family, levels=counts)  # type: ignore[call-arg]
    spelled = read_spelling(text)
    refuse_cbind(spelled, family)
    offset, trials = one_of("offset", spelled.offset, offset), one_of("trials", spelled.trials, trials)
    text, group_terms = split_formula(spelled.text)
    if group_terms and family.several_predictors:
        raise ModelError(
            f"Family {family.name!r} has a linear predictor for each level, and takes no group terms such as (1 | g); "
            "leave them out, or fit one level against another with family 'bernoulli'."
        )
    grouping = list(dict.fromkeys(name for term in group_terms for name in term.columns))
    taken = [*taken, *grouping, *spelled.columns]
    named = [
        name
        for name in (offset, exposure, trials, censored, *counts, *taken)
        if isinstance(name, str) and name in columns
    ]
    formula = Formula.parse(text, columns, named)
    roles = Roles.of(formula.response, family, columns, offset, exposure, trials, censored, counts)
    varying = [Formula.parse(f"{formula.response.text} ~ {term.effects}", columns) for term in group_terms]
    used = list(dict.fromkeys([*roles.columns, *formula.columns, *(n for f in varying for n in f.columns)]))
    refuse_unknown([*used, *grouping], source)
    formula.refuse_functions(used)
    before = source.num_rows
    source = source.drop_missing([*used, *grouping, *complete]) if drop_missing else source
    kinds, ordered = column_kinds(source, used, set(roles.columns) - set(formula.columns))
    formula.check_columns(kinds)
    roles.check_columns(kinds)
    levels = levels_of(family, formula.response, source, kinds, ordered)
    found = scan_table(source, formula, roles, kinds, family=family, response_levels=levels)
    family, response = family.with_levels(levels, found.response)
    family.refuse(response)
    encoder = _encoder(formula, kinds, found, source.num_rows, max(1, len(family.equations)))
    if 2 * len(encoder.names) > source.num_rows:
        raise ModelError(
            f"The formula makes {len(encoder.names)} columns for {source.num_rows} rows; there must be far more rows. "
            "Group the levels of a category, or leave terms out."
        )
    summary = scan_design(source, encoder, roles, kinds, family)
    has_location = formula.has_intercept or family.location_is_auxiliary
    encoder, summary, left_out = without_redundant(encoder, summary, has_location, drop_collinear)
    scaling = _scaling(summary, response, family, has_location)
    factors: tuple[Factor, ...] = ()
    if group_terms:
        scan = partial(
            scan_table,
            source,
            roles=roles,
            kinds=kinds,
            family=family,
            response_levels=levels,
        )
        effects = [
            _varying(f, t, source, roles, kinds, family, scan(f))
            for f, t in zip(varying, group_terms, strict=True)
        ]
        factors = find_factors(group_terms, effects, source)
        factors = _with_choice_of_scale(factors, source, roles, encoder, kinds, family)
    needed = {*roles.columns, *encoder.formula.columns, *(n for f in varying for n in f.columns)}
    of_design: dict[str, Kind] = {name: kind for name, kind in kinds.items() if name in needed}
    design = Design(encoder, roles, family, of_design, scaling, {}, source.num_rows, factors)
    _refuse_repeated(design)
    refuse_groups(design)
    findings = (*group_findings(design, source), *left_out)
    scale = family.coefficient_scale(response)
    of_groups = {name: prior for factor in factors for name, prior in default_priors(factor, scale).items()}
    chosen = choose_priors(
        priors, family, response, design.names, _terms(design), _sds(design), has_location, of_groups
    )
    design = replace(design, priors=chosen)
    read = list(dict.fromkeys([*design.columns, *grouping]))
    rows = source.transform(design.rows, read, design.label)
    if design.unit is not None:
        rows = GroupedSource(rows, UNIT, design.unit.counts)
    separating = tuple(summary.separating(design.column_names, family))
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
    refuse_redundant(find_redundant(summary, encoder, formula.has_intercept), formula.has_intercept, how="")
    return Varying(encoder, formula.has_intercept, np.atleast_1d(summary.moments.sd), term.correlated)


def _encoder(
    formula: Formula, kinds: Mapping[str, Kind], found: TableSummary, num_rows: int, num_predictors: int = 1
) -> Encoder:
    made = _num_columns(formula, found)
    each = f" for each of {num_predictors} linear predictors" if num_predictors > 1 else ""
    refuse_above(
        "coefficients", made * num_predictors, f"The formula makes about {made:,} columns{each}", ModelError
    )
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


def _sds(design: Design) -> np.ndarray:
    """The standard deviation of each coefficient's column."""
    return np.repeat(design.scaling.sds, max(1, len(design.family.equations)))


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


@knows_its_options(fit)
def glm(
    formula: str,
    data: Data,
    family: str | Family = "gaussian",
    priors: Mapping[str, Any] | None = None,
    *,
    offset: str | None = None,
    exposure: str | None = None,
    trials: str | int | None = None,
    censored: str | None = None,
    drop_missing: bool = False,
    drop_collinear: bool = False,
    survey_weights: Any = None,
    robust: bool | str = False,
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
        "gaussian", "bernoulli" ("bernoulli(link=probit)"), "binomial", "poisson", "negative_binomial",
        "zero_inflated_poisson", "zero_inflated_negative_binomial", "gamma", "lognormal", "inverse_gaussian",
        "weibull", "beta", "student_t" ("student_t(df=4)"), "ordinal", "categorical", "multinomial", or a `Family`.
        Names of other programs, such as "normal" and "negbinomial", are known too.
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
    censored
        A column of 0 and 1, or true and false, for family "weibull": 1 where the event had not happened yet, so that
        the time is only known to be longer (right censoring).
    drop_missing
        Whether rows with missing values in the formula's columns are left out; otherwise they are refused.
    drop_collinear
        Whether columns that follow from earlier ones are left out, with a note in the findings; otherwise they are
        refused, all of them in one message.
    survey_weights
        Weights of a survey: a column's name, or one number per row, the number of people that the row stands for. They
        are normalised to the effective sample size, and the draws get design-based errors, like those of `robust`.
        `weights`, which `shardmc.fit` describes, are counts: a row of weight 40 is 40 equal rows.
    robust
        True adjusts the draws by a sandwich, so that their spread does not rely on the model's variance. The name of a
        column, such as "worker", lets rows with the same value depend on each other too (clusters). The draws are
        moved affinely about the mode after they were certified; `posterior.adjusted` says how.
    predictive
        Whether to compare a sample of 2,000 rows with simulated ones, for the report. It takes a fraction of a second,
        and reads the table once more. Tables of more than 5 million rows are left out; `predictive_check` takes them.
    **fit_options
        Everything that `shardmc.fit` takes: shards, draws, seed, weights, stratify, run_dir, progress, ...

    Returns
    -------
    Posterior
        Draws named "Intercept", after the design's columns ("age", "C(region)[T.b]"), "sigma", "shape" or "nu", and
        "sd_g__x" and "cor_g__Intercept__x" of group terms, all in the columns' own units; of family "categorical"
        "Intercept[level]" and "age[level]" for each level but the first. Its `predict` works also
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
    weights, strata = fit_options.pop("weights", None), fit_options.get("stratify")
    if survey_weights is not None:
        if weights is not None:
            raise OptionError("Rows have either weights (counts) or survey_weights: give one of the two.")
        weights = SurveyWeights(survey_weights)
    regression = _Formula(
        formula,
        named_family(family),
        priors,
        {"offset": offset, "exposure": exposure, "trials": trials, "censored": censored},
        {"drop_missing": drop_missing, "drop_collinear": drop_collinear},
        {"weights": weights, "stratify": strata},
        Robust.of(robust, weights),
        predictive,
    )
    return fit(regression, data, weights=weights, **fit_options)


@final
class _Formula:
    """A formula as a front end of `fit`: it reads the rows to learn the design, and names the draws after it."""

    def __init__(
        self,
        text: str,
        family: Family,
        priors: Mapping[str, Any] | None,
        roles: Mapping[str, Any],
        drop: Mapping[str, Any],
        rowwise: Mapping[str, Any],
        robust: Robust | None = None,
        predictive: bool = False,
    ) -> None:
        self._predictive = predictive
        self._text, self._family, self._priors = text, family, priors
        self._roles, self._drop, self._rowwise, self._robust = roles, drop, rowwise, robust
        self._prepared: Prepared | None = None

    def open(self, source: Source, seed: int) -> tuple[Source, Model]:
        self._rows = source, seed
        weights, clusters = self._given("weights"), None if self._robust is None else self._robust.clusters
        if clusters is not None:
            refuse_unknown([clusters], source)
        prepared = prepare(
            self._text,
            source,
            self._family,
            self._priors,
            **self._roles,
            **self._drop,
            taken=[name for name in (weights, clusters) if isinstance(name, str)],
            complete=[] if clusters is None else [clusters],
        )
        for option in self._rowwise:
            given = self._given(option)
            if prepared.dropped and given is not None and not isinstance(given, str):
                raise DataError(
                    f"{option} was given as an array of all rows, but {prepared.dropped} rows with missing values are "
                    f"dropped; make it a column of the table and give its name."
                )
        if self._robust is not None:
            self._robust.check(prepared.source, prepared.design)
        self._prepared = prepared
        model = model_of(prepared)
        # The likelihood of groups is ours, and known to be right; that of rows may have a user's own family.
        return (prepared.source, model) if prepared.design.unit else open_rows(model, prepared.source, seed)

    def _given(self, option: str) -> Any:
        """Weights or strata as the user gave them: a column's name, one value per row, or None."""
        given = self._rowwise[option]
        return given.values if isinstance(given, SurveyWeights) else given

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
        if self._robust is not None:
            posterior = self._robust.adjust(posterior, model_of(prepared), prepared.source, design)
        if prepared.dropped:
            notes = (*notes, f"{prepared.dropped} rows with missing values were dropped.")
        notes += tuple(finding.message for finding in prepared.findings if finding.check == "collinear")
        groups = posterior.groups
        if groups is not None and design.unit is not None:
            unit = design.unit
            groups = replace(groups, labels=unit.labels, columns=unit.columns, effects=unit.effects)
        draws = named_draws(design, posterior.draws)
        return replace(
            posterior,
            groups=groups,
            draws=draws,
            variables=variables_of(design, draws),
            notes=notes,
            findings=tuple(ordered((*posterior.findings, *_separation(prepared), *prepared.findings))),
            regression=Regression(
                formula=" + ".join([design.formula_text, *map(str, split_formula(self._text)[1])]),
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
