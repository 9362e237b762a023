"""Leave-one-out cross-validation by Pareto-smoothed importance sampling, on a sample of the rows of a large table.

The cheap value of a row is its log-likelihood at the mean of the draws. It is summed over all rows. The difference from
the row's own PSIS-LOO value is estimated on a simple random sample of the rows (Magnusson et al., 2019 and 2020).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.data import Source, as_source
from shardmc.data.arrow import as_numpy
from shardmc.errors import DataError, ModelError, OptionError, unknown
from shardmc.model import Model
from shardmc.model.effects import refuse_effects
from shardmc.model.model import Recipe
from shardmc.model.precision import double_precision
from shardmc.model.user_functions import calling, num_rows, take
from shardmc.posterior.elpd import Loo
from shardmc.posterior.prediction import AT_ONCE, pieces_of
from shardmc.programs.compiled import jit
from shardmc.seeds import Purpose, checked_seed, generator
from shardmc.types import Data, Rows, RowValues

if TYPE_CHECKING:
    from shardmc.posterior.posterior import Posterior

_PIECE = 1 << 17  # rows that are read at once
_SAMPLE_ROWS = 64  # rows on which a model is bound

Pieces = Iterable[tuple[Rows, np.ndarray | float]]
"""Consecutive rows as the model takes them, and what to add to their log-likelihoods."""


def loo_of_model(
    posterior: Posterior,
    data: Data,
    model: Recipe,
    *,
    weights: RowValues,
    sample: int,
    draws: int,
    seed: int,
) -> Loo:
    """`Posterior.loo` for a model without a formula."""
    source, bound, pieces = rows_of_model(data, model)
    counted = row_weights(posterior, source, weights)
    return leave_one_out(
        posterior, bound, pieces, source.num_rows, weights=counted, sample=sample, draws=draws, seed=seed
    )


def rows_of_model(data: Data, model: Recipe) -> tuple[Source, Model, Pieces]:
    """The rows of a model without a formula, the model for them, and the rows piece by piece."""
    if not isinstance(model, Recipe):
        raise ModelError(
            "Give the model that was fitted: a shardmc.Model, or what shardmc.from_numpyro or shardmc.from_pymc "
            f"returns, not {type(model).__name__}."
        )
    source = as_source(data)
    few = source.sample(_SAMPLE_ROWS, 0)
    if source.is_table:
        few = source.select(model.columns_used(few)).sample(_SAMPLE_ROWS, 0)
    bound = model.bind(few)
    refuse_effects(bound)
    names = set(few) if isinstance(few, dict) else None

    def pieces() -> Iterator[tuple[Rows, float]]:
        for rows in pieces_of(data, _PIECE):
            yield rows if names is None else {name: rows[name] for name in names}, 0.0

    return source, bound, pieces()


def row_weights(posterior: Posterior, source: Source, weights: RowValues) -> np.ndarray | None:
    """The weights of the rows that the posterior was fitted with, as numbers, (row,)."""
    if weights is None:
        if posterior.plan.weighted:
            raise OptionError("The posterior was fitted with weights: give them here too, as weights=.")
        return None
    if posterior.plan.weighted is False:
        raise OptionError("The posterior was fitted without weights, so weights= must be left out.")
    if isinstance(weights, str):
        if weights not in source.column_names:
            raise unknown("weights column", weights, source.column_names)
        weights = np.concatenate([as_numpy(t.column(weights)) for t in source.tables([weights])])
    given = np.asarray(weights)
    if given.dtype.kind not in "fiub":
        raise OptionError(f"weights holds {given.dtype} entries; it must hold numbers.")
    found = given.astype(np.float64)
    if found.shape != (source.num_rows,):
        raise OptionError(
            f"weights has shape {found.shape}; it must be a column's name, or hold one entry for each of the "
            f"{source.num_rows:,} rows."
        )
    if not (found >= 0).all():
        raise DataError("weights has entries that are negative or missing; give those of the fit.")
    return found


def leave_one_out(
    posterior: Posterior,
    model: Model,
    pieces: Pieces,
    count: int,
    *,
    weights: np.ndarray | None,
    sample: int,
    draws: int,
    seed: int,
) -> Loo:
    """PSIS-LOO of `count` rows that come piece by piece, with importance sampling for `sample` of them."""
    refuse_below(2, sample=sample, draws=draws)
    refuse_other_model(posterior, model)
    chosen = chosen_rows(count, sample, seed)
    index, layout = thinned(posterior, draws)
    theta = posterior.theta[index]
    with double_precision():
        total, squares, kept, cheap = _one_pass(model, theta.mean(axis=0), pieces, weights, chosen)
        efficiency = relative_efficiency(posterior, index, layout)
        found = [importance(values, layout, efficiency) for values in over_draws(model, theta, kept)]
    elpd, pareto_k, p = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return Loo.estimated(
        elpd,
        cheap,
        p,
        pareto_k,
        total=total,
        squares=squares,
        rows=count,
        positions=chosen,
        draws=len(index),
        weights_i=None if weights is None else weights[chosen],
        total_weight=None if weights is None else float(weights.sum()),
    )


def refuse_other_model(posterior: Posterior, model: Model) -> None:
    """Refuse a model that is not that of the posterior, as far as its names show."""
    if list(posterior.names) != list(model.names):
        raise ModelError(
            f"The model has the coordinates {', '.join(model.names)}, but the posterior has "
            f"{', '.join(posterior.names)}: give the model that was fitted."
        )


def refuse_below(least: int, **given: int) -> None:
    """Refuse options that are not whole numbers, or are smaller than `least`."""
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise OptionError(f"{name} must be a whole number, {least} or more; {value!r} was given.")


def chosen_rows(count: int, sample: int, seed: int) -> np.ndarray:
    """A simple random sample of row numbers, sorted: the same for all models of these rows."""
    if count <= sample:
        return np.arange(count)
    rng = generator(checked_seed(seed), Purpose.LEAVE_ONE_OUT)
    return np.sort(rng.choice(count, sample, replace=False, shuffle=False))


def thinned(posterior: Posterior, draws: int) -> tuple[np.ndarray, tuple[int, int]]:
    """Positions of about that many draws, evenly spread over each chain, and their layout (chain, draw)."""
    finite = np.isfinite(posterior.theta).all(axis=1)
    chains, length = posterior.chains if finite.all() else (1, int(finite.sum()))
    whole = np.flatnonzero(finite).reshape(chains, length)
    each = min(length, max(1, draws // chains))
    return whole[:, np.linspace(0, length - 1, each).astype(int)].ravel(), (chains, each)


def relative_efficiency(posterior: Posterior, index: np.ndarray, layout: tuple[int, int]) -> float:
    """Effective draws divided by draws, averaged over parameters, as ArviZ computes it; 1 for a single chain."""
    from arviz_stats.base.array import array_stats

    if layout[0] == 1:
        return 1.0
    values = np.stack([values[index] for values in posterior.flat().values()], axis=-1)
    ess = array_stats.ess(values.reshape(*layout, -1), chain_axis=0, draw_axis=1, method="mean")
    return float(np.mean(ess)) / len(index)


def _one_pass(
    model: Model, point: np.ndarray, pieces: Pieces, weights: np.ndarray | None, chosen: np.ndarray
) -> tuple[float, float, list[tuple[Rows, np.ndarray | float]], np.ndarray]:
    """Sums of the log-likelihoods at a point and of their squares, the chosen rows, and their log-likelihoods there."""
    log_likelihood = jit(model.log_likelihood)
    total = squares = 0.0
    kept, cheap, start = [], [], 0
    for rows, base in pieces:
        with calling("The log-likelihood"):
            values = np.asarray(log_likelihood(jnp.asarray(point), _doubled(rows)), np.float64) + base
        if not np.isfinite(values).all():
            first = start + int(np.flatnonzero(~np.isfinite(values))[0])
            raise DataError(
                f"The log-likelihood of row {first} is not finite at the mean of the draws. Missing values must be "
                "dropped first, and the rows must be those that were fitted."
            )
        counts = np.ones(len(values)) if weights is None else weights[start : start + len(values)]
        total, squares = total + float(counts @ values), squares + float(counts @ values**2)
        here = chosen[(chosen >= start) & (chosen < start + len(values))] - start
        if len(here):
            kept.append((take(rows, here), base[here] if isinstance(base, np.ndarray) else base))
            cheap.append(values[here])
        start += len(values)
    return total, squares, kept, np.concatenate(cheap)


def over_draws(
    model: Model, theta: np.ndarray, kept: Iterable[tuple[Rows, np.ndarray | float]]
) -> Iterator[np.ndarray]:
    """Log-likelihoods (draw, row), a few rows at a time."""
    program = jit(jax.vmap(model.log_likelihood, in_axes=(0, None)))
    at_once = max(1, math.ceil(AT_ONCE / len(theta)))
    for rows, base in kept:
        count = num_rows(rows)
        for start in range(0, count, at_once):
            part = np.arange(start, min(start + at_once, count))
            values = np.asarray(program(jnp.asarray(theta), _doubled(take(rows, part))), np.float64)
            yield values + (base[part] if isinstance(base, np.ndarray) else base)


def importance(
    values: np.ndarray, layout: tuple[int, int], efficiency: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """PSIS-LOO value, Pareto k and effective parameters of rows, each (row,), from log-likelihoods (draw, row)."""
    from arviz_stats.base.array import array_stats

    of_rows = np.moveaxis(values.reshape(*layout, -1), -1, 0)  # (row, chain, draw)
    elpd, pareto_k, p = array_stats.loo(of_rows, r_eff=efficiency)
    return elpd, pareto_k, p


def _doubled(rows: Rows) -> Rows:
    """Rows with floating-point entries in double precision."""
    return jax.tree.map(
        lambda leaf: np.asarray(leaf, np.float64) if np.asarray(leaf).dtype.kind == "f" else np.asarray(leaf),
        rows,
    )
