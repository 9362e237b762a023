"""The mode and curvature of the posterior of all rows: where the climb starts, and what to do if it fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import jax.numpy as jnp
import numpy as np

from shardmc.data.batch import Blocks
from shardmc.engine import Engine
from shardmc.errors import ModelError
from shardmc.locate.ascent import DECREMENT, MAX_STEPS, Ascent, OnStep, Quadratic
from shardmc.locate.gradient_sums import SampledGradients
from shardmc.locate.improper import named_direction
from shardmc.locate.terms import Evaluator, is_large
from shardmc.model import Density, Model
from shardmc.model.precision import double_precision
from shardmc.types import Frame, Mode

_START_ROWS = 20_000
_PART = 32
_FEWEST_SHARDS = 16
"""The least number of shards from which the gradient at the end of a step is estimated."""
_SHORT, _STEADY = 0.3, 0.01
"""Limits on the next step, in posterior standard deviations, and on the relative change of the curvature. Beyond them
another pass is needed."""
_PROBES, _APART = 8, 0.3
"""Directions in which the curvature at the end of a step is compared with that at its start, and the distance, in
posterior standard deviations, of the points at which it is measured."""
_CHANGED = 0.1
"""Limit on the norm of the change of the curvature, relative to the curvature itself."""
_STARTS = (0.0, 0.1, 1.0, 1.0, 3.0)
"""Distances from the model's own starting point at which the search starts again if it failed."""


@dataclass(frozen=True)
class Start:
    """A point near the mode from which `locate` continues, and coordinates in which the posterior is about standard."""

    frame: Frame
    found: bool
    """Whether a mode was found there, so that the frame's coordinates are those of the posterior."""
    passes: float
    ascent: Ascent | None = field(default=None, repr=False, compare=False)
    """The climb itself, if it used all rows."""


def near_mode(model: Density, blocks: Blocks, engine: Engine, *, on_step: OnStep | None = None) -> Start:
    """Find a point near the mode, from a sample of the shards if there are enough, otherwise from all rows."""
    evaluate = Evaluator(model, blocks, engine)
    frame, found, sampled = Frame(next(_starting_points(model)), np.eye(model.dim)), False, False
    for some in _samples_of_shards(blocks, model.dim):
        ascent = Ascent(evaluate, some, frame)
        sampled, found = True, ascent.climb(1.0, on_step)
        if not found:
            ascent = _again(evaluate, some, model, 1.0)
            if ascent is None:
                break
        frame = ascent.local.frame(ascent.frame).moved(ascent.local.step(np.inf).u)
    if sampled:
        return Start(frame, found, evaluate.passes)
    ascent = Ascent(evaluate, None, frame)
    found = ascent.climb(1.0, on_step)
    here = ascent.local.frame(ascent.frame) if ascent.finite else frame
    return Start(here, found, evaluate.passes, ascent)


def locate(
    model: Density,
    blocks: Blocks,
    engine: Engine,
    *,
    start: Start | None = None,
    on_step: OnStep | None = None,
    shard_curvatures: bool = False,
) -> Mode:
    """Mode and curvature of the posterior of all rows, by a trust-region Newton method.

    Values, gradients and Hessians are summed within shards in the precision of the computation, and over shards in
    float64, in the coordinates of the last curvature. There the problem is well conditioned, whatever the scale of the
    columns. The iteration starts on a sample of the shards, so that it needs few passes over all rows. If it fails, it
    is repeated in double precision and from other starting points before the model is refused.

    Parameters
    ----------
    start
        The result of `near_mode`. By default it is computed here.
    shard_curvatures
        Whether the mode has the curvatures of the shards too.

    Raises
    ------
    ModelError
        If there is no mode: the message names the parameters along which the posterior does not fall. Also if no
        mode was found: the message says so.
    """
    start = near_mode(model, blocks, engine, on_step=on_step) if start is None else start
    ascent, double = start.ascent, jnp.result_type(float) == jnp.float64
    if ascent is None or ascent.double != double:
        evaluate = Evaluator(model, blocks, engine)
        evaluate.passes = start.passes
        large = start.found and is_large(blocks, model.dim)
        ascent = Ascent(evaluate, None, start.frame, whitened=large)
        mode = mode_after_one_step(ascent) if large and not shard_curvatures else None
        if mode is not None:
            return mode
    if not ascent.climb(DECREMENT, on_step):
        ascent = _in_double(ascent, model, start)
    return ascent.mode(shard_curvatures)


def mode_after_one_step(ascent: Ascent) -> Mode | None:
    """The mode, if one step leads to it or very close. A sample of the shards shows that, without another pass.

    With gradients and curvatures of all shards at the start of the step, the gradient at its end is known except for
    what third derivatives add (see `SampledGradients`). With very many rows that is little, and some shards are enough
    to estimate it and its standard error. It is corrected by one more, short step. Gradients at a few points beside the
    end show whether the curvature is still that of the start, also along a direction in which the step was short.
    """
    evaluate = ascent.evaluate
    model, blocks = evaluate.model, evaluate.blocks
    if not (isinstance(model, Model) and ascent.finite and ascent.local.definite):
        return None
    end = ascent.mode()
    if end.shard_terms is None:
        return None
    count = min(max(_FEWEST_SHARDS, blocks.num_shards // _PART), blocks.num_shards)
    sample = np.linspace(0, blocks.num_shards - 1, count).astype(int).tolist()
    score = SampledGradients(model, blocks, end, evaluate.engine, sample, terms=end.shard_terms)
    basis, probes = end.frame.basis, _directions(model.dim)
    found = score(end.theta + _APART * np.vstack([np.zeros(model.dim), probes]) @ basis.T)
    short = found.values[0] @ basis
    bent = (found.values[1:] - found.values[0]) @ basis / _APART + probes  # 0 if the curvature is the same
    # Of directions at random the mean square is that of all, on average.
    turned = float(np.linalg.norm(bent)) / (1.0 if len(probes) == model.dim else np.sqrt(len(probes)))
    length = float(np.linalg.norm(short))
    noise = 0.0 if found.noise is None else float(np.linalg.norm(found.noise[:, 0] @ basis))
    # A third derivative that adds this part of a step to the gradient changes the curvature by twice that part.
    change = 2 * length / max(ascent.local.decrement, 1e-300)
    left = noise + change * length
    if not (length < _SHORT and change < _STEADY and turned < _CHANGED and left < DECREMENT):
        return None
    return replace(end, theta=end.theta + basis @ short, decrement=left, passes=end.passes + score.passes)


def _directions(dim: int) -> np.ndarray:
    """All coordinates if they are few, otherwise some directions at random, (direction, dim)."""
    return np.eye(dim) if dim <= _PROBES else np.random.default_rng(0).normal(size=(_PROBES, dim))


def newton_steps(model: Density, blocks: Blocks, start: np.ndarray, steps: int, engine: Engine) -> np.ndarray:
    """The point reached from `start` by this many plain Newton steps on the posterior of all rows (Remark 1)."""
    evaluate = Evaluator(model, blocks, engine)
    frame = Frame(np.asarray(start, np.float64), np.eye(model.dim))
    for _ in range(steps):
        local = Quadratic.of(evaluate(frame, np.zeros(model.dim)), 1e-7, whitened=False)
        frame = local.frame(frame).moved(local.slope)
    return frame.center


def _in_double(failed: Ascent, model: Density, start: Start) -> Ascent:
    """Climb again in double precision, from where it ended and from other points. Without a mode: an error."""
    evaluate = failed.evaluate
    with double_precision():
        last = failed
        frames = [failed.frame, start.frame] if failed.finite else []
        for frame in (*frames, *(Frame(point, np.eye(model.dim)) for point in _starting_points(model))):
            ascent = Ascent(evaluate, None, frame)
            if not ascent.finite:
                continue
            last = ascent
            if ascent.climb(DECREMENT):
                return ascent
            flat = ascent.proof()
            if flat is not None:
                raise ModelError(flat.sentence(model.names))
    raise ModelError(_not_found(last, model))


def _again(evaluate: Evaluator, shards: Sequence[int], model: Density, tolerance: float) -> Ascent | None:
    """Climb on some shards in double precision, from other points until it succeeds."""
    with double_precision():
        for point in _starting_points(model):
            ascent = Ascent(evaluate, shards, Frame(point, np.eye(model.dim)))
            if ascent.climb(tolerance):
                return ascent
    return None


def _starting_points(model: Density) -> Iterator[np.ndarray]:
    """A point very close to the model's starting point, and points farther and farther away.

    Not exactly there: at a point such as zero, a likelihood written with abs or max has a kink.
    """
    rng = np.random.default_rng(0)
    noise = partial(rng.normal, size=model.dim)
    initial = np.asarray(model.initial, dtype=np.float64)
    yield initial + 1e-3 * noise()
    for distance in _STARTS:
        yield initial + distance * noise()


def _samples_of_shards(blocks: Blocks, dim: int) -> Iterator[range]:
    """The first few shards, with enough rows to start from, then a larger part. Never most of the data."""
    wanted = max(_START_ROWS, 200 * dim)
    few = int(np.searchsorted(np.cumsum(blocks.sizes), wanted)) + 1
    if 4 * few <= blocks.num_shards:
        yield range(few)
    if 4 * few <= blocks.num_shards // _PART:
        yield range(blocks.num_shards // _PART)


def _not_found(ascent: Ascent, model: Density) -> str:
    if not ascent.finite:
        bad = [model.names[k] for k in np.flatnonzero(~np.isfinite(ascent.terms.gradient))] or list(
            model.names
        )
        return (
            f"The log posterior has no finite gradient at the starting point (for {', '.join(map(repr, bad[:3]))}). "
            "Scale the columns. A shardmc.Model can also start where the likelihood is finite (initial=)."
        )
    moving = named_direction(ascent.way, model.names)
    return (
        f"No mode of the posterior was found in {MAX_STEPS} Newton steps: the last one still moved {moving}. "
        "Scale the columns, choose less correlated parameters, or use a stronger prior. A shardmc.Model can also start "
        "closer to the mode (initial=)."
    )
