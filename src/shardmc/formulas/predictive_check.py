"""Predictive checks: observed responses compared with simulated ones, on request and at the end of a fit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardmc.check.check import ordered
from shardmc.data import Source, as_source
from shardmc.data.assignment import spread_positions
from shardmc.data.table import rows_at
from shardmc.errors import OptionError, ShardmcError
from shardmc.formulas.chunk import Chunk, refuse_unknown
from shardmc.formulas.families import Family, Statistic
from shardmc.formulas.predicting import Predictor
from shardmc.posterior import Posterior
from shardmc.posterior.records import PredictiveCheck
from shardmc.posterior.result import ends as interval_ends
from shardmc.seeds import Purpose, checked_seed, generator
from shardmc.types import Data, Finding

if TYPE_CHECKING:
    import pandas as pd

SAMPLE, DRAWS = 2_000, 200
"""Rows and data sets that are simulated: a fraction of a second."""
MOST_ROWS = 5_000_000
"""Of larger tables no sample is taken, because that reads the table once more."""
_UNLIKELY = 0.01


def posterior_predictive_check(
    posterior: Posterior, rows: Data, *, sample: int = 5_000, draws: int = 500, seed: int = 0
) -> pd.DataFrame:
    """Would the model produce data like these? Compare observed responses with simulated ones.

    Parameters
    ----------
    posterior
        What `glm` returned, or `shardmc.load` read.
    rows
        A table or file with the formula's columns, including the response; usually the data that were fitted.
    sample
        How many rows to take, at random from the whole table.
    draws
        How many data sets of these rows to simulate.
    seed
        For the sample and the simulation. Groups of a mixed model get new effects, drawn from their distribution, in
        every simulated data set.

    Returns
    -------
    pandas.DataFrame
        One row per statistic: the observed value, mean and 95 % interval of the simulated values, and the share p of
        simulated values at least as extreme (two-sided). A small p shows what the model does not reproduce: too many
        zeros, a heavier tail, or a trend that it misses in the rows with the lowest or highest predictions.

    Examples
    --------
    >>> from shardmc.formulas import glm
    >>> rng = np.random.default_rng(0)
    >>> table = {"x": rng.normal(size=4_000), "y": rng.standard_t(2, size=4_000)}
    >>> posterior = glm("y ~ x", table, draws=1_000)
    >>> bool(posterior_predictive_check(posterior, table).loc["max", "p"] < 0.01)  # tails heavier than the normal
    True
    """
    import pandas as pd

    # The effects of the fitted groups were learnt from these responses, so both comparisons do without them.
    predictor, ranking = (Predictor.of(posterior, draws, groups, seed) for groups in ("new", "population"))
    if predictor.design.roles.censored is not None:
        raise OptionError(
            "A predictive check compares simulated responses with observed ones, and censored times are not observed: "
            "it is not available with censored=."
        )
    chunk = _sampled(predictor, rows, sample, seed)
    count = len(next(iter(chunk.values())))
    design, family = predictor.design, predictor.design.family
    observed = design.roles.response_values(chunk, family.levels_of_response)
    expected = ranking.expected(chunk, count).mean(axis=0)
    ends = _shares_at_ends(expected, family) if family.equations else _means_at_ends(expected, family)
    rng = generator(checked_seed(seed), Purpose.PREDICTIVE_CHECK)
    totals = observed.sum(axis=1) if family.takes_counts else None
    replicated = predictor.simulated(chunk, count, rng, totals)
    table = {
        name: _compare(statistic(observed[None])[0], statistic(replicated))
        for name, statistic in (family.statistics | ends).items()
    }
    return pd.DataFrame.from_dict(table, orient="index").rename_axis("statistic")


def _sampled(predictor: Predictor, rows: Data, sample: int, seed: int) -> Chunk:
    """Random rows of a table, with the response."""
    source = as_source(rows)
    columns = list(dict.fromkeys([*predictor.design.columns, *predictor.group_columns]))
    refuse_unknown(columns, source)
    source = source.drop_missing(columns)
    table = rows_at(source, columns, spread_positions(source.num_rows, sample, seed))
    return predictor.with_groups(predictor.design.chunk(table), table)


def _shares_at_ends(expected: np.ndarray, family: Family) -> dict[str, Statistic]:
    """The share of each level among the rows where it is most probable; `expected` is (row, level)."""
    tenth = max(1, len(expected) // 10)
    found: dict[str, Statistic] = {}
    for number, level in enumerate(family.levels_of_response or ()):
        likely = np.argsort(expected[:, number], kind="stable")[-tenth:]
        found[f"share of {level}, highest tenth"] = lambda y, rows=likely, k=number: family.share(k)(
            y[:, rows]
        )
    return found


def _means_at_ends(expected: np.ndarray, family: Family) -> dict[str, Statistic]:
    """The means of the rows with the lowest and the highest predictions, (row,) or of ordered levels (row, level)."""
    if family.levels_of_response is not None:
        expected = expected @ np.arange(len(family.levels_of_response))
    order = np.argsort(expected, kind="stable")
    tenth = max(1, len(order) // 10)
    lowest, highest = order[:tenth], order[-tenth:]
    return {
        "mean, lowest tenth": lambda y: y[:, lowest].mean(axis=1),
        "mean, highest tenth": lambda y: y[:, highest].mean(axis=1),
    }


def _compare(observed: float, replicated: np.ndarray) -> dict[str, float]:
    lower, upper = interval_ends(replicated)
    above, below = (replicated >= observed).mean(), (replicated <= observed).mean()
    return {
        "observed": float(observed),
        "mean": float(replicated.mean()),
        "lower": float(lower),
        "upper": float(upper),
        "p": float(min(1.0, 2 * min(above, below))),
    }


def with_predictive_check(posterior: Posterior, source: Source, seed: int) -> Posterior:
    """The posterior with a predictive check on a sample of the rows, and a note on what the model does not reproduce.

    Parameters
    ----------
    posterior
        The posterior of a formula.
    source
        The rows that were fitted.
    seed
        For the sample and the simulation.
    """
    if source.num_rows > MOST_ROWS:
        return posterior
    try:
        table = posterior_predictive_check(posterior, source, sample=SAMPLE, draws=DRAWS, seed=seed)
    except (ShardmcError, NotImplementedError) as error:  # a user's own family may not simulate
        return replace(posterior, notes=(*posterior.notes, f"There is no predictive check: {error}"))
    found = PredictiveCheck(
        min(SAMPLE, posterior.plan.rows), DRAWS, {str(k): v for k, v in table.to_dict("index").items()}
    )
    odd = [name for name, row in found.statistics.items() if row["p"] < _UNLIKELY]
    if not odd:
        return replace(posterior, predictive=found)
    return replace(
        posterior, predictive=found, findings=tuple(ordered((*posterior.findings, _finding(found, odd))))
    )


def _finding(found: PredictiveCheck, odd: list[str]) -> Finding:
    row = found.statistics[odd[0]]
    more = f", and {len(odd) - 1} more of {len(found.statistics)} statistics" if len(odd) > 1 else ""
    return Finding(
        "note",
        "predictive",
        f"The model does not reproduce this feature of the rows: {odd[0]} ({row['observed']:.4g}; simulated rows have "
        f"{row['lower']:.4g} to {row['upper']:.4g}){more}.",
        "Look at the predictive check, and consider another family or other terms. The certificate does not examine "
        "whether the model fits.",
        {"statistics": odd},
    )
