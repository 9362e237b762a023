"""Would the model make data like these? Statistics of simulated responses beside those of the observed ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardmc.data import as_source
from shardmc.data.reader import spread_positions
from shardmc.errors import unknown
from shardmc.glm.families import Ordinal
from shardmc.glm.predict import Predictor
from shardmc.posterior import Posterior

if TYPE_CHECKING:
    import pandas as pd

_ROWS = 5_000

Statistic = Callable[[np.ndarray], np.ndarray]
"""(draw, row) -> (draw,)."""


def posterior_predictive_check(
    posterior: Posterior, rows: Any, *, sample: int = _ROWS, draws: int = 500, seed: int = 0
) -> pd.DataFrame:
    """Compare the observed responses of some rows with responses that the model simulates for them.

    Parameters
    ----------
    posterior
        What `glm` returned, or `shardmc.load` read.
    rows
        A table or file with the formula's columns, the response among them; as a rule the data that were fitted.
    sample
        How many rows to take, at random from all over the table.
    draws
        How many data sets of these rows to simulate.
    seed
        For the sample and the simulation.

    Returns
    -------
    pandas.DataFrame
        One row per statistic: the observed value, mean and 90 % interval of the simulated ones, and the share p of
        simulated ones at least as extreme (two-sided). A small p says what the model does not reproduce: too many
        zeros, a heavier tail, a trend that it misses in the rows with the lowest or highest predictions.

    Examples
    --------
    >>> from shardmc.glm import glm
    >>> rng = np.random.default_rng(0)
    >>> table = {"x": rng.normal(size=4_000), "y": rng.standard_t(2, size=4_000)}
    >>> posterior = glm("y ~ x", table, draws=1_000)
    >>> bool(posterior_predictive_check(posterior, table).loc["max", "p"] < 0.01)  # tails heavier than the normal
    True
    """
    import pandas as pd

    predictor = Predictor.of(posterior, draws)
    frame = _sampled(predictor, rows, sample, seed)
    count = len(next(iter(frame.values())))
    design = predictor.design
    observed = design.roles.response_values(frame, design.response_levels)
    expected = predictor.expected(frame, count).mean(axis=0)
    if isinstance(design.family, Ordinal):
        expected = expected @ np.arange(len(design.family.levels))
    replicated = predictor.simulated(frame, count, np.random.default_rng([seed, 6]))
    table = {
        name: _compare(statistic(observed[None])[0], statistic(replicated))
        for name, statistic in _statistics(design.family, expected).items()
    }
    return pd.DataFrame.from_dict(table, orient="index").rename_axis("statistic")


def _sampled(predictor: Predictor, rows: Any, sample: int, seed: int) -> dict[str, Any]:
    """Rows from all over a table, with the response."""
    source, columns = as_source(rows), predictor.design.columns
    for name in columns:
        if name not in source.column_names:
            raise unknown("column", name, source.column_names)
    source = source.drop_missing(columns)
    wanted, parts, start = spread_positions(source.num_rows, sample, seed), [], 0
    for table in source.tables(columns):
        parts.append(table.take(wanted[(wanted >= start) & (wanted < start + len(table))] - start))
        start += len(table)
    return predictor.design.frame(pa.concat_tables(parts))


def _statistics(family: Any, expected: np.ndarray) -> dict[str, Statistic]:
    """What to compare: moments, extremes, zeros, and the means where predictions are lowest and highest."""
    order = np.argsort(expected, kind="stable")
    tenth = max(1, len(order) // 10)
    lowest, highest = order[:tenth], order[-tenth:]
    ends: dict[str, Statistic] = {
        "mean, lowest tenth": lambda y: y[:, lowest].mean(axis=1),
        "mean, highest tenth": lambda y: y[:, highest].mean(axis=1),
    }
    if isinstance(family, Ordinal):
        levels = enumerate(map(str, family.levels))
        return {f"share of {name}": _share_of(number) for number, name in levels} | ends
    every: dict[str, Statistic] = {"mean": lambda y: y.mean(axis=1)}
    if family.name == "bernoulli":
        return every | ends
    every |= {
        "sd": lambda y: y.std(axis=1),
        "min": lambda y: y.min(axis=1),
        "max": lambda y: y.max(axis=1),
    }
    if family.name in ("poisson", "negative_binomial", "binomial"):
        every["share of zeros"] = _share_of(0)
    return every | ends


def _share_of(value: float) -> Statistic:
    return lambda y: (y == value).mean(axis=1)


def _compare(observed: float, replicated: np.ndarray) -> dict[str, float]:
    lower, upper = np.quantile(replicated, [0.05, 0.95])
    above, below = (replicated >= observed).mean(), (replicated <= observed).mean()
    return {
        "observed": float(observed),
        "mean": float(replicated.mean()),
        "lower": float(lower),
        "upper": float(upper),
        "p": float(min(1.0, 2 * min(above, below))),
    }
