"""Generalised linear models from a formula and a table: from two passes over the rows to variables named by terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, final

import numpy as np

from shardmc.check.check import ordered
from shardmc.data import Source
from shardmc.data.arrow import SEPARATOR
from shardmc.data.row_weights import SurveyWeights
from shardmc.errors import DataError, OptionError, counted, knows_its_options
from shardmc.formulas.chunk import refuse_unknown
from shardmc.formulas.design import Design
from shardmc.formulas.families import Family, named_family
from shardmc.formulas.formula import is_intercept
from shardmc.formulas.groups import Factor, split_formula
from shardmc.formulas.linear_model import location_name, model_of, named_draws, note_on_location
from shardmc.formulas.mixed import effect_parameter
from shardmc.formulas.predictive_check import with_predictive_check
from shardmc.formulas.preparing import Prepared, prepare
from shardmc.formulas.priors import Prior
from shardmc.formulas.robust import Robust
from shardmc.formulas.roles import RoleOptions
from shardmc.model import Model
from shardmc.model.variables import Label, Variable
from shardmc.names import quoted_where_taken
from shardmc.pipeline import fit, open_rows
from shardmc.posterior import Posterior, Regression
from shardmc.types import Data, Finding, RowValues


@knows_its_options(fit)
def glm(
    formula: str,
    data: Data,
    family: str | Family = "gaussian",
    priors: Mapping[str, str | Prior] | None = None,
    *,
    offset: str | None = None,
    exposure: str | None = None,
    trials: str | int | None = None,
    censored: str | None = None,
    drop_missing: bool = False,
    drop_collinear: bool = False,
    survey_weights: RowValues = None,
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
        center, scale, standardize, bs, cr, cc, cs, poly; `.` stands for all other columns. (1 + x | g) adds an
        intercept and a slope for every group of column g, (1 + x || g) the same without correlation, (1 | a/b) nested
        groups.
    data
        A pandas, polars or Arrow table, a dictionary of arrays or lists, or the path of a Parquet file or folder, or of
        a CSV file.
    family
        "gaussian", "bernoulli" ("bernoulli(link=probit)"), "binomial", "poisson", "negative_binomial",
        "zero_inflated_poisson", "zero_inflated_negative_binomial", "gamma", "lognormal", "inverse_gaussian",
        "weibull", "beta", "student_t" ("student_t(df=4)"), "ordinal", "categorical", "multinomial", or a `Family`.
        Names of other programs, such as "normal" and "negbinomial", are known too.
    priors
        Name of a coefficient or term, "coefficients", "Intercept", "sigma", ... -> "normal(0, 1)" and the like, in the
        columns' own units. The prior of the intercept is for all predictors at their means. Group terms have priors of
        the sds of their effects, such as "sd_g__Intercept", and of their correlations: "cor_g" -> "lkj(2)". See
        `choose_priors` for the defaults. `posterior.regression.priors` has the priors that were used.
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
        and reads the table once more. It is left out for tables of more than 5 million rows;
        `posterior.predictive_check` works for these, too.
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
        priors: Mapping[str, str | Prior] | None,
        roles: RoleOptions,
        drop: Mapping[str, bool],
        rowwise: Mapping[str, RowValues | SurveyWeights],
        robust: Robust | None = None,
        predictive: bool = False,
    ) -> None:
        self._predictive = predictive
        self._text, self._family, self._priors = text, family, priors
        self._roles, self._drop, self._rowwise, self._robust = roles, drop, rowwise, robust
        self._prepared: Prepared | None = None
        self.mode_for = "" if robust is None else "robust and survey_weights"

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

    def _given(self, option: str) -> RowValues:
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
            were = "was" if prepared.dropped == 1 else "were"
            notes = (*notes, f"{counted(prepared.dropped, 'row')} with missing values {were} dropped.")
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
                fixes_variance=design.family.fixes_variance,
            ),
        )


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
            f"keeps {'the coefficient' if len(names) == 1 else 'the coefficients'} finite.",
            "Merge the level with another, leave the column out, or give its coefficient a prior that you believe, "
            f'such as priors={{{names[0]!r}: "normal(0, 2.5)"}}.',
            {"columns": names},
        ),
    )


def variables_of(design: Design, draws: Mapping[str, np.ndarray]) -> tuple[Variable, ...]:
    """The variables of a formula's draws: terms with several columns, cutpoints, and effects of groups.

    A category is one variable with the axis `<name>_dim` of its levels, without the reference level. Splines and
    other terms of several columns have numbers from 1 on, and products have labels such as "south, 1". With several
    linear predictors, all have the axis `<response>_dim` of the response's levels.
    """
    terms = [term for term in design.encoder.formula.predictors if not is_intercept(term)]
    factors = {str(term): [factor.expr for factor in term.factors] for term in terms}
    equations = _equations(design)
    response = f"{design.roles.response.text}_dim"
    entries: dict[str, dict[str | None, Sequence[str]]] = {}  # term -> label of a column -> its coefficients
    for place, column in enumerate(design.encoder.names):
        names = design.names[place * len(equations) : (place + 1) * len(equations)]
        term, label = _place(column, factors)
        if (label is not None or len(names) > 1) and set(names) <= set(draws):
            columns = entries.setdefault(term, {})
            columns[column if label in columns else label] = names  # a level may look like another coding
    location = [f"{design.family.location}[{equation}]" for equation in equations]
    if len(location) > 1 and set(location) <= set(draws):
        entries[design.family.location] = {None: location}
    stacked = {name for columns in entries.values() for names in columns.values() for name in names}
    titles = quoted_where_taken(entries, [name for name in draws if name not in stacked])
    found = []
    for title, columns in zip(titles, entries.values(), strict=True):
        coords: dict[str, tuple[Label, ...]] = {}
        labels = tuple(label for label in columns if label is not None)
        if labels:
            coords[f"{title}_dim"] = labels
        if len(equations) > 1:
            coords[response] = equations
        found.append(
            Variable(title, tuple(coords), coords, tuple(n for names in columns.values() for n in names))
        )
    found += _cutpoints(design, draws)
    found += [_effects(factor) for factor in design.factors if effect_parameter(factor) in draws]
    return tuple(found)


def _equations(design: Design) -> tuple[str, ...]:
    """Levels of the response that have a linear predictor of their own; one empty text for a single predictor.

    Coefficients of a column `x` are then called `x[level]`.
    """
    columns = design.encoder.names
    if len(design.names) == len(columns):
        return ("",)
    names = design.names[: len(design.names) // len(columns)]
    quotes = 0 if names[0].startswith(f"{columns[0]}[") else 2
    return tuple(name[len(columns[0]) + quotes + 1 : -1] for name in names)


def _place(column: str, factors: Mapping[str, Sequence[str]]) -> tuple[str, str | None]:
    """The term of a column of the design, and the column's label in it; None if the term has just one column."""
    matches = []
    for term, expressions in factors.items():
        labels = labels_in(column, expressions)
        if labels is not None:
            used, found = labels
            matches.append((used == len(expressions), used, term, ", ".join(found) if found else None))
    if not matches:
        return column, None
    _, _, term, label = max(matches, key=lambda match: match[:2])
    return term, label


def labels_in(column: str, expressions: Sequence[str]) -> tuple[int, list[str]] | None:
    """How many of a term's factors a column of the design is made of, and their levels; None if it is of another term.

    >>> labels_in("region[T.south]:bs(x, df=4)[2]", ["region", "bs(x, df=4)"])
    (2, ['south', '2'])
    >>> labels_in("age:region[T.south]", ["region"])
    """
    rest, used, found = column, 0, []
    for number, expression in enumerate(expressions):
        after = rest.removeprefix(expression)
        if not rest.startswith(expression) or after[:1] not in ("", ":", "["):
            continue  # formulaic leaves out factors that other columns cover
        used += 1
        if after[:1] == "[":
            # Levels of products hold no "]:", see the encoder.
            product = number < len(expressions) - 1 and "]:" in after
            inside, rest = after[1:].split("]:", 1) if product else (after[1:-1], "")
            found.append(inside.removeprefix("T."))
        else:
            rest = after[1:]
    return (used, found) if used and not rest else None


def _cutpoints(design: Design, draws: Mapping[str, np.ndarray]) -> list[Variable]:
    """Cutpoints lie between two levels of the response."""
    levels = design.family.levels_of_response
    if not design.family.location_is_auxiliary or levels is None:
        return []
    names = dict.fromkeys([design.family.location, location_name(design)])
    labels = tuple(f"{low} | {high}" for low, high in pairwise(levels))
    dim = f"{design.family.location}_dim"
    return [
        Variable(name, (dim,), {dim: labels})
        for name in names
        if name in draws and np.shape(draws[name])[1:] == (len(labels),)
    ]


def _effects(factor: Factor) -> Variable:
    """The effects of a factor that is not integrated out, with bambi's names of axes."""
    levels, effects = f"{factor.name}__factor_dim", f"{factor.name}__expr_dim"
    coords: dict[str, tuple[Label, ...]] = {
        levels: tuple(label.replace(SEPARATOR, ":") for label in factor.labels)
    }
    name = effect_parameter(factor)
    if len(factor.effects) == 1:
        return Variable(name, (levels,), coords)
    return Variable(name, (levels, effects), coords | {effects: factor.effects})
