"""New rows for a posterior that is there already: only they are sampled, and the draws of the old rows are reused."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from shardmc.check import certify_options
from shardmc.clock import Clock
from shardmc.combine import Recenter
from shardmc.combine.moments import symmetric, transport
from shardmc.data import Blocks, Partition
from shardmc.data.blocks import AbsentBlocks, RescaledBlocks
from shardmc.engine import Local
from shardmc.errors import DataError, ModelError, OptionError
from shardmc.fit import open_rows
from shardmc.judge import combine_sampled, judge
from shardmc.locate import (
    DECREMENT,
    KEEP,
    Choice,
    asked_precision,
    choose_precision,
    gradients,
    influential,
    locate,
    locate_shards,
    precision_of_rows,
)
from shardmc.locate.expansion import (
    Conditioned,
    expand_likelihood,
    expand_prior,
    likelihood_at_mode,
    prior_gradients,
)
from shardmc.model import Model, Recipe
from shardmc.posterior import Posterior, ShardTable, load
from shardmc.sample import Auto, Sampled, Sampler, ShardChains, sample
from shardmc.sample import sampler as named_sampler
from shardmc.store.manifest import package_versions
from shardmc.types import Engine, Frame, Located, Mode, Progress

_STEPS = 10
_PURPOSE = 5  # of the seed, beside those of fit
_MUCH = 2.0
"""Growth of the number of rows, since the last fit from scratch, from which on another is advised."""


def append(
    posterior: Posterior | str | os.PathLike[str],
    model: Recipe,
    new_data: Any,
    *,
    old_data: Any = None,
    weights: Any = None,
    old_weights: Any = None,
    shards: int | str = "auto",
    seed: int | None = None,
    keep: float | None = KEEP,
    sampler: str | Sampler | Auto = "auto",
    engine: Engine | None = None,
    check: bool = True,
    precision: str = "auto",
    progress: Progress | None = None,
) -> Posterior:
    """Add rows to a posterior: M new ones to the N that it has seen, in shards of their own.

    The draws at hand are taken as the draws of one large shard, that of the old rows. Rescaled to N' = N + M rows its
    subposterior is log pi + (N' / N) l_old: the draws are moved by theta -> c' + A (theta - c), where c and H are the
    old mode and curvature, H' = P + (N' / N) (H - P) with P the prior's curvature, c' the mode that this implies, and A
    takes H^-1 to H'^-1. That is exact where the posterior of the old rows is Gaussian; their skewness stays as it was
    with N rows and does not shrink with N'. The new rows' shards are sampled as in `fit`, and all draws are
    combined by `Recenter`, in proportion to the rows.

    Parameters
    ----------
    posterior
        What `fit` (or `append`) returned, or the file or run folder that holds it.
    model
        The model it was fitted with.
    new_data
        The new rows: whatever `fit` takes as data.
    old_data
        The old rows. With them the mode of all rows is found exactly and the result is certified. Without them the
        old rows' log-likelihood is taken as the quadratic that the old mode and curvature give, and there is no
        certificate.
    weights, old_weights
        Row weights, as in `fit`.
    shards
        Into how many shards the new rows are split; "auto" makes them about as large as the old ones were.
    seed
        Of the new draws; follows from the posterior's own unless given.
    keep, sampler, engine, check, precision, progress
        As in `fit`.

    Returns
    -------
    Posterior
        With N' / N times as many draws. Its first shard stands for all old rows.

    Examples
    --------
    >>> from shardmc.fit import fit
    >>> y = np.random.default_rng(0).normal(3.0, 1.0, size=12_000)
    >>> model = Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
    >>> first = fit(model, y[:10_000], shards=10, draws=1_000)
    >>> both = append(first, model, y[10_000:], old_data=y[:10_000])
    >>> bool(abs(both.draws["mu"].mean() - y.mean()) < 0.001)
    True
    """
    earlier = posterior if isinstance(posterior, Posterior) else load(Path(posterior))
    old_mode, old_rows, seed = _known(earlier, seed)
    engine, chosen = Local() if engine is None else engine, named_sampler(sampler)
    asked, clock = asked_precision(precision), Clock(progress)
    with precision_of_rows(asked):
        source, bound = clock("read", open_rows, model, new_data, seed)
        _check_names(bound, earlier)
        count = _number_of_shards(shards, source.num_rows, old_rows / earlier.shards.num_shards)
        blocks = clock("split", source.split, Partition(count, weights=weights), seed)
        old_blocks = _old_blocks(old_data, bound, old_weights, earlier, seed)
    growth = (old_rows + blocks.num_rows) / old_rows
    near = Frame.at(old_mode.theta, growth * old_mode.curvature)
    choice = clock(
        "precision",
        choose_precision,
        asked,
        bound,
        RescaledBlocks(blocks, growth / (growth - 1)),
        engine,
        near,
    )
    known = _Known(earlier, old_mode, old_rows, old_blocks)
    with choice.applied():
        return _appended(known, bound, blocks, chosen, engine, clock, choice, seed, keep, check)


@dataclass(frozen=True)
class _Known:
    """The posterior of the old rows, and the rows themselves where they are given."""

    posterior: Posterior
    mode: Mode
    rows: int
    blocks: Blocks | None


def _appended(
    known: _Known,
    bound: Model,
    blocks: Blocks,
    chosen: Sampler | Auto,
    engine: Engine,
    clock: Clock,
    choice: Choice,
    seed: int,
    keep: float | None,
    check: bool,
) -> Posterior:
    """The posterior of old and new rows, computed in the present precision."""
    earlier, old_mode, old_rows, old_blocks = known.posterior, known.mode, known.rows, known.blocks
    growth = (old_rows + blocks.num_rows) / old_rows
    fitted_rows = int(earlier.plan.get("fitted_rows", old_rows))

    mode = clock("locate", locate_with_earlier, bound, old_mode, old_blocks, blocks, engine)
    arrived = _kept(bound, RescaledBlocks(blocks, growth / (growth - 1)), mode, keep, engine, clock)
    located = clock("locate shards", locate_shards, bound, arrived, mode, engine)
    num_draws = max(1, math.ceil(earlier.num_draws * blocks.capacity / old_rows - 0.5))
    sampled = clock("sample", sample, bound, arrived, located, chosen, engine, num_draws=num_draws, seed=seed)
    draws, rescaled_mode = rescaled_draws(bound, _finite(earlier), old_mode, growth)
    old = _old_chains(earlier, draws)
    sizes = np.array([old_rows, *blocks.sizes])
    whole = _joined(sizes, rescaled_mode, old, located, sampled)
    result = clock(
        "combine",
        combine_sampled,
        bound,
        whole.blocks,
        Recenter(),
        whole.sampled,
        whole.located,
        engine,
        seed,
    )
    judged = clock(
        "check",
        judge,
        bound,
        whole.blocks,
        whole.located,
        whole.sampled,
        result,
        engine,
        seed,
        certified=certify_options(check and old_blocks is not None),
        score=_score(bound, [blocks] if old_blocks is None else [old_blocks, blocks], mode, engine),
    )
    return Posterior(
        draws=result.natural,
        theta=result.theta,
        names=earlier.names,
        shard=result.shard,
        shards=_with_few_draws(judged.shards, num_draws),
        mode=mode.theta,
        curvature=mode.curvature,
        certificate=judged.certificate,
        findings=judged.findings,
        notes=(
            *choice.notes,
            *_notes(growth * old_rows / fitted_rows, old_blocks),
            *sampled.notes,
            *result.notes,
        ),
        plan={
            **{name: value for name, value in earlier.plan.items() if not name.startswith("noise_")},
            **choice.plan,
            "rows": int(sizes.sum()),
            "shards": len(sizes),
            "draws": len(result.theta),
            "seed": seed,
            "kept_rows": arrived.num_kept,
            "appended_rows": blocks.num_rows,
            "fitted_rows": fitted_rows,
        },
        seconds=clock.seconds,
        passes=clock.passes,
        versions=package_versions(),
    )


def rescaled_draws(model: Model, draws: np.ndarray, mode: Mode, growth: float) -> tuple[np.ndarray, Mode]:
    """Draws of log pi + l made draws of log pi + growth * l, by the affine map that does so for a Gaussian.

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
        Mode and curvature of the density they are draws of.
    """
    target = likelihood_at_mode(model, mode).times(growth) + expand_prior(model, mode.theta)
    if np.linalg.eigvalsh(target.curvature)[0] <= 0:
        raise ModelError(
            "The old rows alone do not hold every parameter: their likelihood has no maximum in some direction, so "
            "that their draws cannot be rescaled. Fit all rows from scratch."
        )
    moved = Mode(mode.theta + target.step, target.curvature, target.decrement, 0.0)
    narrower = transport(symmetric(np.linalg.inv(mode.curvature)), symmetric(np.linalg.inv(moved.curvature)))
    return moved.theta + (draws - mode.theta) @ narrower.T, moved


def locate_with_earlier(model: Model, earlier: Mode, old: Blocks | None, new: Blocks, engine: Engine) -> Mode:
    """Mode and curvature of the posterior of old and new rows, from the mode and curvature of the old rows' posterior.

    The old rows are first taken by their quadratic. Where they can be read, Newton steps over all rows follow.
    """
    conditioned = cast(Model, Conditioned(model, likelihood_at_mode(model, earlier)))
    mode = locate(conditioned, new, engine)
    if old is None:
        return mode
    passes = mode.passes * new.num_rows / (old.num_rows + new.num_rows)
    for _ in range(_STEPS):
        frame = Frame.at(mode.theta, mode.curvature)
        both = expand_likelihood(model, old, frame, engine) + expand_likelihood(model, new, frame, engine)
        total = both + expand_prior(model, both.center)
        passes += 1
        mode = Mode(total.center + total.step, total.curvature, total.decrement, passes)
        # A Newton step from there leaves about the square of the decrement.
        if total.decrement**2 < DECREMENT:
            return mode
    raise ModelError(
        f"The mode of old and new rows was not found in {_STEPS} steps: the new rows disagree with the old ones, or "
        "old_data are not the rows that the posterior is of. Fit all rows from scratch."
    )


@dataclass(frozen=True)
class _Whole:
    """All shards, that of the old rows first."""

    blocks: AbsentBlocks
    located: Located
    sampled: Sampled


def _joined(sizes: np.ndarray, old_mode: Mode, old: ShardChains, new: Located, sampled: Sampled) -> _Whole:
    blocks = AbsentBlocks(sizes, sizes)
    located = Located(
        new.mode,
        blocks.shares,
        np.concatenate([old_mode.theta[None], new.shard_modes]),
        np.concatenate([old_mode.curvature[None], new.shard_curvatures]),
        np.append(old_mode.decrement, new.decrements),
        np.append(True, new.found),
    )
    return _Whole(blocks, located, Sampled((old, *sampled.chains), blocks.shares, "rescaled", 0.0))


def _known(earlier: Posterior, seed: int | None) -> tuple[Mode, int, int]:
    """Mode and curvature of the old rows, their number, and the seed of the new draws."""
    if earlier.mode is None or earlier.curvature is None or "rows" not in earlier.plan:
        raise OptionError(
            "The posterior has no mode and curvature of all rows, without which nothing can be appended to it. Fit all "
            "rows from scratch."
        )
    if seed is not None and (not isinstance(seed, int | np.integer) or seed < 0):
        raise OptionError(f"seed must be a whole number that is not negative, not {seed!r}.")
    rows = int(earlier.plan["rows"])
    if seed is None:
        # Not the posterior's own: its first shards would share their random numbers with the new ones.
        parts = [int(earlier.plan.get("seed", 0)), _PURPOSE, rows]
        seed = int(np.random.SeedSequence(parts).generate_state(1)[0] >> 1)
    return Mode(earlier.mode, earlier.curvature, np.nan, 0.0), rows, int(seed)


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


def _old_blocks(data: Any, model: Model, weights: Any, earlier: Posterior, seed: int) -> Blocks | None:
    """The old rows in any shards: only sums over all of them are taken."""
    if data is None:
        return None
    source, _ = open_rows(model, data, seed)
    if source.num_rows != earlier.plan["rows"]:
        raise DataError(
            f"old_data has {source.num_rows} rows, but the posterior is of {earlier.plan['rows']}; give the rows that "
            "it was fitted to."
        )
    shards = min(max(earlier.shards.num_shards, 16), source.num_rows)
    return source.split(Partition(shards, weights=weights), seed)


def _kept(
    model: Model, arrived: RescaledBlocks, mode: Mode, keep: float | None, engine: Engine, clock: Clock
) -> RescaledBlocks:
    """The new shards, with those rows in all of them that matter much."""
    if keep is None or arrived.num_shards == 1:
        return arrived
    # The bar is `keep` times the largest share of all rows; the shares here are those of the new rows.
    bar = keep / arrived.factor
    found = clock("keep", influential, model, arrived.blocks, mode, engine, bar)
    return arrived.keep(found.positions)


def _finite(earlier: Posterior) -> np.ndarray:
    """The old draws; some may have left the support on the natural scale."""
    return earlier.theta[np.isfinite(earlier.theta).all(axis=1)]


def _old_chains(earlier: Posterior, draws: np.ndarray) -> ShardChains:
    layout = earlier.chains if len(draws) == earlier.num_draws else (1, len(draws))
    return ShardChains(
        draws.reshape(*layout, draws.shape[1]),
        float(np.nanmean(earlier.shards.acceptance)),
        int(np.sum(earlier.shards.divergences)),
        "earlier draws",
    )


def _score(
    model: Model, parts: Sequence[Blocks], mode: Mode, engine: Engine
) -> Callable[[np.ndarray], np.ndarray]:
    """Gradients of the log posterior of the rows of all parts, in which the prior counts once."""

    def score(points: np.ndarray) -> np.ndarray:
        total = sum(gradients(model, part, mode, points, engine) for part in parts)
        return total - (len(parts) - 1) * prior_gradients(model, points)

    return score


def _with_few_draws(table: ShardTable, most: int) -> ShardTable:
    """The table with as many draws of the old rows' shard as of the others, evenly taken."""
    length = int(np.isfinite(table.draws[0, :, 0]).sum())
    evenly = np.arange(min(most, length)) * length // min(most, length)
    draws = table.draws[:, :most].copy()
    draws[0, : len(evenly)] = table.draws[0, evenly]
    return replace(table, draws=draws)


def _notes(growth: float, old_blocks: Blocks | None) -> tuple[str, ...]:
    notes = []
    if old_blocks is None:
        notes.append(
            "The old rows were not given: their log-likelihood was taken as the quadratic at their mode, and the "
            "result is not certified."
        )
    if growth > _MUCH:
        notes.append(
            f"There are {growth:.1f} times as many rows as at the last fit from scratch, and the skewness of its draws "
            "is still that of its rows. A fit from scratch is due."
        )
    return tuple(notes)
