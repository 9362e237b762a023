"""Contrasts and marginal effects: how predictions change with a predictor, averaged over rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

import numpy as np
import pyarrow as pa

from shardmc.data.arrow import as_numpy
from shardmc.errors import OptionError, unknown
from shardmc.formulas.chunk import Level
from shardmc.formulas.design import design_of
from shardmc.formulas.families.family import Moments
from shardmc.formulas.piecewise import Averages, averages
from shardmc.formulas.predicting import Predictor
from shardmc.names import shown
from shardmc.posterior import Posterior
from shardmc.posterior.prediction import summarise
from shardmc.posterior.result import INTERVAL, IntervalKind, check_interval
from shardmc.types import Data

if TYPE_CHECKING:
    import pandas as pd

Scale = Literal["mean", "link"]
HowCompared = Literal["difference", "ratio", "odds_ratio"]
_SCALES: tuple[str, ...] = ("mean", "link")
_WAYS: tuple[str, ...] = ("difference", "ratio", "odds_ratio")
_STEP = 1e-4  # of a slope, in standard deviations of the predictor


def contrast(
    posterior: Posterior,
    variable: str,
    values: Sequence[object] | None = None,
    *,
    data: Data | None = None,
    at: Mapping[str, object] | None = None,
    by: str | Sequence[str] = (),
    scale: Scale = "mean",
    compare: HowCompared = "difference",
    interval: float = INTERVAL,
    interval_kind: IntervalKind = "eti",
    draws: int = 1000,
    seed: int = 0,
    groups: str = "known",
) -> pd.DataFrame:
    """Compare predictions between values of a predictor, with everything else as it is.

    Every row is predicted with each of the values. The predictions are averaged over rows, and then the averages are
    compared, draw by draw.

    Parameters
    ----------
    posterior
        What `glm` returned, or `shardmc.load` read.
    variable
        The predictor: a column of the table.
    values
        Two or more of its values. All others are compared with the first. By default all levels of a column of text.
    data
        The rows to average over: a table or a file, read piece by piece. Rows with missing values are left out.
    at
        Columns that have the same value in all rows. Without `data`, all columns that the formula needs.
    by
        A column of `data`, or several: one average for each of their values.
    scale
        "mean": the expected response. "link": the linear predictor.
    compare
        "difference"; "ratio"; or "odds_ratio" of expected responses that are probabilities. On the scale of the linear
        predictor, the ratio for a log link and the odds ratio for a logit link are exponentials of the difference.
    interval, interval_kind
        The interval's probability; "eti" (central) or "hdi" (of highest density).
    draws
        How many of the posterior's draws to use, spread evenly over them.
    seed, groups
        For formulas with group terms, as in `predict`.

    Returns
    -------
    pandas.DataFrame
        Columns mean, sd, lower, upper. One row for each comparison, and for each group and level of the response.

    Examples
    --------
    >>> from shardmc.formulas import glm
    >>> rng = np.random.default_rng(0)
    >>> table = {"x": rng.normal(size=4_000), "g": rng.choice(["a", "b"], 4_000)}
    >>> table["y"] = 2 * table["x"] + (table["g"] == "b") + rng.normal(size=4_000)
    >>> posterior = glm("y ~ x + g", table, draws=1_000)
    >>> contrast(posterior, "g", data=table)["mean"].round().to_dict()
    {'b - a': 1.0}
    """
    if variable in (at or {}):
        raise OptionError(f"{variable!r} changes its value: leave it out of at=.")
    if values is not None and (isinstance(values, str) or len(values) < 2):
        raise OptionError(f"A contrast needs two or more values of {variable!r}; {values!r} was given.")
    chosen = _levels(posterior, variable) if values is None else list(values)
    if data is None:
        at = {**(at or {}), variable: chosen[0]}
    study = _Study.of(posterior, variable, data, at, by, scale, interval, interval_kind, draws, seed, groups)
    return study.compared(chosen, compare, "contrast")


def marginal_effects(
    posterior: Posterior,
    variable: str,
    *,
    data: Data | None = None,
    at: Mapping[str, object] | None = None,
    by: str | Sequence[str] = (),
    scale: Scale = "mean",
    interval: float = INTERVAL,
    interval_kind: IntervalKind = "eti",
    draws: int = 1000,
    seed: int = 0,
    groups: str = "known",
) -> pd.DataFrame:
    """The average slope of predictions in a predictor.

    For a column of numbers it is the derivative of the expected response, averaged over rows. For text, and for true
    or false, it is the difference from the first level: `contrast`.

    Parameters
    ----------
    posterior, variable, data, at, by, scale, interval, interval_kind, draws, seed, groups
        As in `contrast`. Without `data`, `at` has a value of the variable too: where to take the slope.

    Returns
    -------
    pandas.DataFrame
        Columns mean, sd, lower, upper. One row for each effect, and for each group and level of the response.

    Examples
    --------
    >>> from shardmc.formulas import glm
    >>> rng = np.random.default_rng(0)
    >>> table = {"x": rng.normal(size=4_000)}
    >>> table["y"] = rng.random(4_000) < 1 / (1 + np.exp(-2 * table["x"]))
    >>> posterior = glm("y ~ x", table, "bernoulli", draws=1_000)
    >>> effect = marginal_effects(posterior, "x", data=table)  # of the probability, per unit of x
    >>> float(effect.loc["x", "mean"].round(1))
    0.3
    """
    study = _Study.of(posterior, variable, data, at, by, scale, interval, interval_kind, draws, seed, groups)
    if study.kind in ("text", "flag"):
        return study.compared(_levels(posterior, variable), "difference", "effect")
    return study.table(study.averages(2, study.slopes()), [variable], lambda means: means, "effect")


@final
@dataclass(frozen=True)
class _Study:
    """A predictor whose values change, the rows to average over, and how to summarise the result."""

    predictor: Predictor
    variable: str
    data: Data
    at: Mapping[str, object]
    by: tuple[str, ...]
    scale: str
    interval: tuple[float, str]

    @staticmethod
    def of(
        posterior: Posterior,
        variable: str,
        data: Data | None,
        at: Mapping[str, object] | None,
        by: str | Sequence[str],
        scale: str,
        interval: float,
        interval_kind: str,
        draws: int,
        seed: int,
        groups: str,
    ) -> _Study:
        check_interval(interval, interval_kind)
        if scale not in _SCALES:
            raise unknown("scale", scale, _SCALES)
        predictor = Predictor.of(posterior, draws, groups, seed)
        columns = list(dict.fromkeys([*predictor.kinds, *predictor.group_columns]))
        for name in (variable, *(at or {})):
            if name not in columns:
                raise unknown("predictor", name, columns)
        if data is None:
            data = _one_row(columns, at or {})
        names = (by,) if isinstance(by, str) else tuple(by)
        return _Study(predictor, variable, data, at or {}, names, scale, (interval, interval_kind))

    @property
    def kind(self) -> str:
        """What the column holds."""
        return self.predictor.kinds.get(self.variable, "text")

    def with_value(self, rows: pa.Table, value: object) -> pa.Table:
        """The rows with this value of the variable."""
        return _replaced(rows, self.variable, [value] * len(rows))

    def compared(self, values: Sequence[object], compare: str, label: str) -> pd.DataFrame:
        """Averages of predictions with each of the values, compared with those with the first."""
        how = _compared_by(self.predictor, self.scale, compare)
        found = self.averages(
            len(values), lambda rows: [self.predict(self.with_value(rows, value)) for value in values]
        )
        sign = "-" if compare == "difference" else "/"
        first, *others = (shown(str(value)) for value in values)
        names = [f"{other} {sign} {first}" for other in others]
        return self.table(found, names, lambda means: how(means[1:], means[:1]), label)

    def predict(self, rows: pa.Table) -> np.ndarray:
        """(draw, row) or (draw, row, level)."""
        part = self.predictor.linear if self.scale == "link" else self.predictor.expected
        return part(self.predictor.chunk(rows), len(rows))

    def averages(self, count: int, quantities: Callable[[pa.Table], Sequence[np.ndarray]]) -> Averages:
        """Averages of quantities over the rows, with the columns of `at` fixed; `count` predictions at once."""
        return averages(self.predictor, self.data, self.by, count, lambda rows: quantities(self.fixed(rows)))

    def fixed(self, rows: pa.Table) -> pa.Table:
        """The rows with the values of `at`."""
        for name, value in self.at.items():
            rows = _replaced(rows, name, [value] * len(rows))
        return rows

    def slopes(self) -> Callable[[pa.Table], Sequence[np.ndarray]]:
        """Central differences of predictions, divided by the step."""
        encoder = self.predictor.design.encoder
        for name in encoder.categories:
            if self.variable in encoder.formula.expressions[name].columns:
                raise OptionError(
                    f"{self.variable!r} is a category in the formula ({name}): it has no slope. Compare two of its "
                    f"values, as in posterior.contrast({self.variable!r}, (first, second))."
                )
        moments = Moments()
        for piece in self.predictor.pieces(self.data, 1 << 17, needed=self.by):
            moments.add(_numbers(self.fixed(piece.table), self.variable))
        step = _STEP * (float(moments.sd) or max(abs(float(moments.mean)), 1.0))
        # A spline is not defined outside the range that it was fitted on.
        bounded = any("lower_bound" in state for state in encoder.states.values())
        low, high = (moments.low, moments.high) if bounded and moments.sd > 0 else (-np.inf, np.inf)

        def quantities(rows: pa.Table) -> list[np.ndarray]:
            x = _numbers(rows, self.variable)
            below, above = np.clip(x - step, low, high), np.clip(x + step, low, high)
            change = self.predict(_replaced(rows, self.variable, above)) - self.predict(
                _replaced(rows, self.variable, below)
            )
            width = above - below
            return [change / (width if change.ndim == 2 else width[:, None])]

        return quantities

    def table(
        self,
        found: Averages,
        names: Sequence[str],
        compared: Callable[[np.ndarray], np.ndarray],
        label: str,
    ) -> pd.DataFrame:
        """Summaries of the compared averages, (comparison, draw) or (comparison, draw, level), of every group."""
        import pandas as pd

        family = self.predictor.design.family
        labels = family.levels_of_response if self.scale == "mean" else family.equations
        levels = [str(label) for label in labels or ()]
        rows, index = [], []
        for group, means in found.means().items():
            for name, drawn in zip(names, compared(means), strict=True):
                entries = zip(levels, drawn.T, strict=True) if levels else [(None, drawn)]
                for level, values in entries:
                    index.append((*group, name, *([level] if levels else [])))
                    rows.append(summarise(values, "interval", *self.interval))
        titles = [*self.by, label, *(["level"] if levels else [])]
        keys = pd.MultiIndex.from_tuples(index, names=titles)
        table = pd.DataFrame(rows, index=keys).astype(float)
        return table if len(titles) > 1 else table.set_axis(keys.get_level_values(0), axis=0)


def _levels(posterior: Posterior, variable: str) -> list[Level]:
    """The values that a contrast compares if none are given."""
    design = design_of(posterior)
    if design.kinds.get(variable) == "flag":
        return [False, True]
    if variable not in design.predictor_columns:
        raise unknown("predictor", variable, design.predictor_columns)
    if variable not in design.encoder.levels:
        raise OptionError(
            f"Which values of {variable!r} should be compared? Give them, as in "
            f"posterior.contrast({variable!r}, (first, second))."
        )
    return list(design.encoder.levels[variable])


def _compared_by(
    predictor: Predictor, scale: str, compare: str
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """How averages are compared with those of the first value."""
    if compare not in _WAYS:
        raise unknown("comparison", compare, _WAYS)
    family = predictor.design.family
    if compare == "difference":
        return lambda new, old: new - old
    if scale == "link":
        if family.exp_of_link != compare:
            raise OptionError(
                f"The link of family {family.name!r} gives no {compare.replace('_', ' ')} on the scale of the linear "
                "predictor; take scale='mean', or compare='difference'."
            )
        return lambda new, old: np.exp(new - old)
    if compare == "ratio":
        return lambda new, old: new / old
    if not family.mean_is_probability:
        raise OptionError(
            f"The expected response of family {family.name!r} is not a probability, so it has no odds; take "
            "compare='ratio' or 'difference'"
            + (", or scale='link'." if family.exp_of_link == compare else ".")
        )
    return lambda new, old: (new / (1 - new)) / (old / (1 - old))


def _one_row(columns: Sequence[str], at: Mapping[str, object]) -> pa.Table:
    """A table with one row, of the values given."""
    lacking = [name for name in columns if name not in at]
    if lacking:
        raise OptionError(
            f"Give the rows to average over (data=), or values of {', '.join(map(repr, lacking))} (at=)."
        )
    return pa.table({name: [at[name]] for name in columns})


def _replaced(rows: pa.Table, name: str, values: Sequence[object] | np.ndarray) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), name, pa.array(values))


def _numbers(rows: pa.Table, name: str) -> np.ndarray:
    return as_numpy(rows.column(name)).astype(np.float64)
