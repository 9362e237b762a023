"""Generalised linear models from a formula and a table, in one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, final

from shardmc.check.check import ordered
from shardmc.data import Source
from shardmc.errors import DataError
from shardmc.formulas.design import Design
from shardmc.formulas.families import Family, named_family
from shardmc.formulas.model import build_model, named_draws
from shardmc.formulas.prepare import Prepared, prepare
from shardmc.model import Model
from shardmc.pipeline import fit, open_rows
from shardmc.posterior import Posterior, Regression
from shardmc.types import Finding


def glm(
    formula: str,
    data: Any,
    family: str | Family = "gaussian",
    priors: Mapping[str, Any] | None = None,
    *,
    offset: str | None = None,
    exposure: str | None = None,
    trials: str | int | None = None,
    drop_missing: bool = False,
    **fit_options: Any,
) -> Posterior:
    """Fit a generalised linear model to a table of any size.

    Parameters
    ----------
    formula
        `response ~ predictors`, such as "claims ~ age + C(region) + bs(power, df=4) + age:power". Columns of text are
        categories; numbers are made so by C(...). Functions must be elementwise (np.log, np.sqrt, ...) or one of C,
        center, scale, standardize, bs, cr, cc, poly; `.` stands for all other columns.
    data
        A pandas, polars or Arrow table, a dictionary of arrays, or the path of a Parquet file or folder, or of a CSV
        file.
    family
        "gaussian", "bernoulli" ("bernoulli(link=probit)"), "binomial", "poisson", "negative_binomial", "gamma",
        "student_t" ("student_t(df=4)"), "ordinal", or a `Family`.
    priors
        Name of a coefficient or term, "coefficients", "Intercept", "sigma", ... -> "normal(0, 1)" and the like, in the
        columns' own units. The intercept's is for all predictors at their means. See `choose_priors` for the
        defaults; `posterior.regression.priors` has those used.
    offset
        A column, or an expression of columns, added to the linear predictor.
    exposure
        A column, or an expression of columns, to whose value the expected response is proportional (log link).
    trials
        The number of trials of each row of family "binomial": a column or a whole number.
    drop_missing
        Whether rows with missing values in the formula's columns are left out; otherwise they are refused.
    **fit_options
        Everything that `shardmc.fit` takes: shards, draws, seed, weights, stratify, run_dir, progress, ...

    Returns
    -------
    Posterior
        Draws named "Intercept", after the design's columns ("age", "C(region)[T.b]"), and "sigma", "shape" or "nu",
        all in the columns' own units. Its `predict` works also after it was saved and loaded.

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
        formula, named_family(family), priors, offset, exposure, trials, drop_missing, weights, strata
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
    ) -> None:
        self._text, self._family, self._priors = text, family, priors
        self._roles = {"offset": offset, "exposure": exposure, "trials": trials}
        self._drop_missing = drop_missing
        self._rowwise = {"weights": weights, "stratify": strata}
        self._prepared: Prepared | None = None

    def open(self, source: Source, seed: int) -> tuple[Source, Model]:
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
        return open_rows(model_of(prepared), prepared.source, seed)

    def finish(self, posterior: Posterior) -> Posterior:
        """The posterior with its design and priors, the intercept first, and with notes and findings."""
        prepared = self._prepared
        assert prepared is not None
        design, notes = prepared.design, posterior.notes
        if prepared.dropped:
            notes = (*notes, f"{prepared.dropped} rows with missing values were dropped.")
        return replace(
            posterior,
            draws=named_draws(design, posterior.draws),
            notes=notes,
            findings=tuple(ordered((*posterior.findings, *_separation(prepared)))),
            regression=Regression(
                formula=design.encoder.formula.text,
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
