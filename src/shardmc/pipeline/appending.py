"""Add rows to a posterior: only the new rows are sampled, and the draws of the old rows are reused."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np

from shardmc.check import Certify, Score, certify_options
from shardmc.combiners import Recenter
from shardmc.combiners.moments import symmetric, transport
from shardmc.data import Blocks, Partition
from shardmc.data.blocks import AbsentBlocks, RescaledBlocks
from shardmc.engine import Engine, Local
from shardmc.errors import DataError, ModelError, OptionError
from shardmc.locate import KEEP, asked_precision, gradients, locate, precision_of_rows
from shardmc.locate.ascent import arrives
from shardmc.locate.expansion import (
    Conditioned,
    expand_likelihood,
    expand_prior,
    likelihood_at_mode,
    prior_gradients,
)
from shardmc.model import Model, Recipe
from shardmc.pipeline.checking import CheckDraws
from shardmc.pipeline.driver import Driver
from shardmc.pipeline.fitting import check_keep, open_rows
from shardmc.pipeline.progress import shows_progress
from shardmc.pipeline.stage import Job, Log, Stage, State, known
from shardmc.pipeline.stages import ChoosePrecision, Combine, KeepRows, LocateShards, SampleShards
from shardmc.posterior import Posterior, ShardTable, load
from shardmc.sample import Auto, Sampler, ShardChains, named_sampler
from shardmc.seeds import Purpose, checked_seed, derived_seed
from shardmc.types import Data, Frame, Gradients, Located, Mode, Progress, RowValues

_STEPS = 10
"""Newton steps over old and new rows that are tried."""
_MUCH = 2.0
"""If the number of rows grows by more than this since the last fit from scratch, another fit is advised."""


@shows_progress
def append(
    posterior: Posterior | str | os.PathLike[str],
    model: Recipe,
    new_data: Data,
    *,
    old_data: Data = None,
    weights: RowValues = None,
    old_weights: RowValues = None,
    shards: int | str = "auto",
    seed: int | None = None,
    keep: float | None = KEEP,
    sampler: str | Sampler | Auto = "auto",
    engine: Engine | None = None,
    check: bool = True,
    certify: Certify | bool = True,
    precision: str = "auto",
    progress: Progress | bool | None = None,
) -> Posterior:
    """Add M new rows to a posterior of N rows, in shards of their own.

    The old rows become one large shard, and the posterior's draws are the draws of that shard. Rescaled to N' = N + M
    rows, its subposterior is log pi + (N' / N) l_old. The draws are moved by theta -> c' + A (theta - c), where c and H
    are the old mode and curvature, H' = P + (N' / N) (H - P) with the prior's curvature P, c' is the mode that this
    implies, and A takes H^-1 to H'^-1. That is exact if the posterior of the old rows is Gaussian; otherwise their
    skewness stays as it was with N rows. The new shards are sampled as in `fit`, and `Recenter` combines all draws in
    proportion to the rows.

    Parameters
    ----------
    posterior
        What `fit` (or `append`) returned, or the file or run folder that holds it.
    model
        The model it was fitted with.
    new_data
        The new rows: whatever `fit` takes as data.
    old_data
        The old rows. With them, the mode of all rows is exact and the result is certified. Without them, a quadratic
        at the old mode approximates the old rows' log-likelihood, and there is no certificate.
    weights, old_weights
        Row weights, as in `fit`. `old_weights` must be given with `old_data` if the posterior was fitted with weights.
    shards
        The number of shards of the new rows. "auto" makes them about as large as the old ones.
    seed
        The seed of the new draws. By default it is derived from the seed of the posterior.
    keep, sampler, engine, check, certify, precision, progress
        As in `fit`.

    Returns
    -------
    Posterior
        It has N' / N times as many draws. Its first shard is that of all old rows.

    Examples
    --------
    >>> from shardmc.pipeline import fit
    >>> y = np.random.default_rng(0).normal(3.0, 1.0, size=12_000)
    >>> model = Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
    >>> first = fit(model, y[:10_000], shards=10, draws=1_000)
    >>> both = append(first, model, y[10_000:], old_data=y[:10_000])
    >>> bool(abs(both.draws["mu"].mean() - y.mean()) < 0.001)
    True
    """
    certified = certify_options(certify, check)
    if certified is not None and certified.rows not in ("auto", 1):
        raise OptionError("append certifies with all rows: leave out rows= of shardmc.Certify.")
    check_keep(keep)
    earlier = posterior if isinstance(posterior, Posterior) else load(Path(posterior))
    _refuse_kind(earlier)
    _check_old_weights(earlier, old_data, old_weights)
    old_mode, seed = _known(earlier, seed)
    old_rows, precision, driver = earlier.plan.rows, asked_precision(precision), Driver(progress=progress)
    with precision_of_rows(precision):
        source, bound = driver.timed("read", open_rows, model, new_data, seed)
        _check_names(bound, earlier)
        count = _number_of_shards(shards, source.num_rows, old_rows / earlier.shards.num_shards)
        blocks = driver.timed("split", source.split, Partition(count, weights=weights), seed)
        old_blocks = _old_blocks(old_data, bound, old_weights, earlier, seed)
    growth = (old_rows + blocks.num_rows) / old_rows
    factor = growth / (growth - 1)
    job = Job(
        model=bound,
        blocks=blocks,
        engine=Local() if engine is None else engine,
        seed=seed,
        combiner=Recenter(),
        sampler=named_sampler(sampler),
        draws_per_shard=max(1, math.ceil(earlier.num_draws * blocks.capacity / old_rows - 0.5)),
        precision=precision,
        # The bar is `keep` times the largest share of all rows; the shares here are those of the new rows.
        keep=None if keep is None or count == 1 else keep / factor,
        certify=certified if old_blocks is not None else None,
        shuffled=None,  # rows are random within old and new ones, not between them
        options=frozenset({"shards", "keep"}),
    )
    stages = (
        ChoosePrecision(near=Frame.at(old_mode.theta, growth * old_mode.curvature)),
        LocateAllRows(old_mode, old_blocks),
        KeepRows(),
        LocateShards(),
        SampleShards(),
        JoinEarlierDraws(earlier, old_mode, growth),
        Combine(),
        CheckDraws(score=_score_of([blocks] if old_blocks is None else [old_blocks, blocks])),
    )
    fitted_rows = earlier.plan.fitted_rows or old_rows
    notes = _notes(growth * old_rows / fitted_rows, old_blocks)
    state = driver.run(job, stages, State(blocks, RescaledBlocks(blocks, factor), notes=notes))
    plan = replace(
        earlier.plan,
        rows=old_rows + blocks.num_rows,
        shards=1 + count,
        draws=len(known(state.combined).theta),
        seed=seed,
        kept_rows=sum(map(len, state.kept or ())),
        appended_rows=blocks.num_rows,
        fitted_rows=fitted_rows,
        weighted=True if weights is not None else earlier.plan.weighted,
        noise_log_density=None,
        noise_gradient=None,
    )
    both = driver.posterior(job, state, plan)
    return replace(
        both, shards=_with_few_draws(both.shards, job.draws_per_shard), regression=earlier.regression
    )


@final
@dataclass(frozen=True, eq=False)
class LocateAllRows(Stage):
    """Find the mode of old and new rows."""

    name = "locate"
    earlier: Mode
    old: Blocks | None

    def run(self, job: Job, state: State, log: Log) -> State:
        mode = locate_with_earlier(job.model, self.earlier, self.old, state.blocks, job.engine)
        return state.after(self, passes=mode.passes, mode=mode)


@final
@dataclass(frozen=True, eq=False)
class JoinEarlierDraws(Stage):
    """Make the old rows one more shard, the first: their draws are those of the earlier posterior, rescaled."""

    name = "join"
    earlier: Posterior
    mode: Mode
    growth: float

    def run(self, job: Job, state: State, log: Log) -> State:
        new, sampled = known(state.located), known(state.sampled)
        finite = self.earlier.theta[np.isfinite(self.earlier.theta).all(axis=1)]
        draws, mode = rescaled_draws(job.model, finite, self.mode, self.growth)
        sizes = np.array([self.earlier.plan.rows, *state.blocks.sizes])
        blocks = AbsentBlocks(sizes, sizes)
        located = Located(
            new.mode,
            np.concatenate([mode.theta[None], new.shard_modes]),
            np.concatenate([mode.curvature[None], new.shard_curvatures]),
            np.append(True, new.found),
        )
        chains = (_old_chains(self.earlier, draws), *sampled.chains)
        return state.after(
            self,
            blocks=blocks,
            shards=blocks,
            located=located,
            sampled=replace(sampled, chains=chains),
        )


def rescaled_draws(model: Model, draws: np.ndarray, mode: Mode, growth: float) -> tuple[np.ndarray, Mode]:
    """Turn draws of log pi + l into draws of log pi + growth * l, by the affine map that is exact for a Gaussian.

    Parameters
    ----------
    draws
        (draw, dim), of the posterior with this mode and curvature.
    growth
        The factor of the log-likelihood.

    Returns
    -------
    draws : (draw, dim)
    mode
        Mode and curvature of the density that the returned draws are from.
    """
    target = likelihood_at_mode(model, mode).times(growth) + expand_prior(model, mode.theta)
    if np.linalg.eigvalsh(target.curvature)[0] <= 0:
        raise ModelError(
            "The old rows alone do not determine every parameter: their likelihood has no maximum in some direction. "
            "Their draws cannot be rescaled. Fit all rows from scratch."
        )
    moved = Mode(mode.theta + target.step, target.curvature, target.decrement, 0.0)
    narrower = transport(symmetric(np.linalg.inv(mode.curvature)), symmetric(np.linalg.inv(moved.curvature)))
    return moved.theta + (draws - mode.theta) @ narrower.T, moved


def locate_with_earlier(model: Model, earlier: Mode, old: Blocks | None, new: Blocks, engine: Engine) -> Mode:
    """Mode and curvature of the posterior of old and new rows, from the mode and curvature of the old rows' posterior.

    The old rows are first taken by their quadratic. Where they can be read, Newton steps over all rows follow.
    """
    mode = locate(Conditioned(model, likelihood_at_mode(model, earlier)), new, engine)
    if old is None:  # the new shards' own terms have another prior
        return replace(mode, shard_terms=None, shard_starts=None)
    passes = mode.passes * new.num_rows / (old.num_rows + new.num_rows)
    for _ in range(_STEPS):
        frame = Frame.at(mode.theta, mode.curvature)
        both = expand_likelihood(model, old, frame, engine) + expand_likelihood(model, new, frame, engine)
        total = both + expand_prior(model, both.center)
        passes += 1
        mode = Mode(total.center + total.step, total.curvature, total.decrement, passes)
        # A Newton step leaves about the square of its decrement.
        if arrives(total.decrement, total.decrement**2):
            return mode
    raise ModelError(
        f"The mode of old and new rows was not found in {_STEPS} steps: the new rows disagree with the old ones, or "
        "old_data are not the rows of that posterior. Fit all rows from scratch."
    )


def _known(earlier: Posterior, seed: int | None) -> tuple[Mode, int]:
    """Mode and curvature of the old rows, and the seed of the new draws."""
    if earlier.mode is None or earlier.curvature is None:
        raise OptionError(
            "Nothing can be appended to this posterior, because it has no mode and curvature of all rows. Fit all rows "
            "from scratch."
        )
    if seed is None:
        # Not the posterior's own: its first shards would share their random numbers with the new ones.
        seed = derived_seed(earlier.plan.seed, Purpose.APPEND, earlier.plan.rows)
    return Mode(earlier.mode, earlier.curvature, np.nan, 0.0), checked_seed(seed)


def _check_old_weights(earlier: Posterior, old_data: Data, old_weights: RowValues) -> None:
    if old_data is None:
        if old_weights is not None:
            raise OptionError("old_weights are the weights of old_data: give both, or neither.")
    elif earlier.plan.weighted and old_weights is None:
        raise OptionError("The posterior was fitted with weights: give those of old_data as old_weights=.")
    elif earlier.plan.weighted is False and old_weights is not None:
        raise OptionError("The posterior was fitted without weights: leave old_weights out.")


def _refuse_kind(earlier: Posterior) -> None:
    if earlier.adjusted is not None:
        raise OptionError(
            "Rows cannot be appended to a posterior that was adjusted (robust or survey_weights). Fit all rows again "
            "with shardmc.glm."
        )
    if earlier.regression is not None and earlier.regression.has_group_terms:
        raise OptionError(
            "Rows cannot be appended to a mixed model, because they may belong to groups that it already has. Fit all "
            "rows again with shardmc.glm."
        )


def _check_names(model: Model, earlier: Posterior) -> None:
    if tuple(model.names) != earlier.names:
        raise OptionError(
            f"The model has the parameters {', '.join(model.names)}, the posterior {', '.join(earlier.names)}; give "
            "the model that it was fitted with."
        )


def _number_of_shards(shards: int | str, num_rows: int, usual: float) -> int:
    if shards == "auto":
        return max(1, round(num_rows / usual))
    if isinstance(shards, bool) or not isinstance(shards, int | np.integer) or not 1 <= shards <= num_rows:
        raise OptionError(f'shards must be "auto" or a whole number from 1 to {num_rows}, not {shards!r}.')
    return int(shards)


def _old_blocks(data: Data, model: Model, weights: RowValues, earlier: Posterior, seed: int) -> Blocks | None:
    """The old rows in any shards; only sums over all of them are needed."""
    if data is None:
        return None
    source, _ = open_rows(model, data, seed)
    if source.num_rows != earlier.plan.rows:
        raise DataError(
            f"old_data has {source.num_rows} rows, but the posterior was computed from {earlier.plan.rows}; give "
            "exactly those rows."
        )
    shards = min(max(earlier.shards.num_shards, 16), source.num_rows)
    return source.split(Partition(shards, weights=weights), seed)


def _old_chains(earlier: Posterior, draws: np.ndarray) -> ShardChains:
    layout = earlier.chains if len(draws) == earlier.num_draws else (1, len(draws))
    return ShardChains(
        draws.reshape(*layout, draws.shape[1]),
        float(np.nanmean(earlier.shards.acceptance)),
        int(np.sum(earlier.shards.divergences)),
        "earlier draws",
    )


def _score_of(parts: Sequence[Blocks]) -> Callable[[Job, State], Score]:
    """Gradients of the log posterior of the rows of all parts, in which the prior counts once."""

    def of(job: Job, state: State) -> Score:
        mode = known(state.located).mode

        def score(points: np.ndarray) -> Gradients:
            total = sum(gradients(job.model, part, mode, points, job.engine) for part in parts)
            return Gradients(total - (len(parts) - 1) * prior_gradients(job.model, points))

        return score

    return of


def _with_few_draws(table: ShardTable, most: int) -> ShardTable:
    """The table with as many draws of the old rows' shard as of the others, evenly spaced."""
    length = int(np.isfinite(table.draws[0, :, 0]).sum())
    evenly = np.arange(min(most, length)) * length // min(most, length)
    draws = table.draws[:, :most].copy()
    draws[0, : len(evenly)] = table.draws[0, evenly]
    return replace(table, draws=draws)


def _notes(growth: float, old_blocks: Blocks | None) -> tuple[str, ...]:
    notes = []
    if old_blocks is None:
        notes.append(
            "The old rows were not given: a quadratic at their mode approximates their log-likelihood. The result is "
            "not certified."
        )
    if growth > _MUCH:
        notes.append(
            f"The posterior has {growth:.1f} times as many rows as the last fit from scratch, but the skewness of its "
            "draws is still that of the earlier rows. Fit all rows from scratch."
        )
    return tuple(notes)
