"""The mode and curvature of the posterior of all rows, by a damped Newton method over sums of shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.data.batch import Blocks, Rows
from shardmc.errors import ModelError
from shardmc.model import Model
from shardmc.order import in_order
from shardmc.target import DeviceFrame, Target
from shardmc.types import Engine, Frame, Mode

DECREMENT = 0.01
"""A mode is found when the Newton decrement, its error in posterior standard deviations, is below this."""

_MAX_STEPS = 60
_START_ROWS = 20_000
_PART = 32
_FLAT = 1e-4
"""Curvature along a direction, relative to what it was one step before, below which nothing holds the parameter."""


@dataclass(frozen=True)
class SubposteriorTerms:
    """Program: value, gradient and curvature of a shard's rescaled log subposterior at a point u of a frame.

    The value is the gain over the frame's centre. Weighted by the shards' shares they sum to those of all rows.
    """

    model: Model
    rows_together: ClassVar = 1 << 20
    """Of shards side by side on an accelerator: second derivatives make many numbers of a row."""

    def __call__(
        self, rows: Rows, weights: jax.Array, u: jax.Array, frame: DeviceFrame
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        return expanded(Target(self.model, rows, weights, frame).log_density, u)


@dataclass(frozen=True)
class _Terms:
    """Log posterior gain over a frame's centre, gradient and curvature at a point, in the frame's coordinates."""

    gain: float
    gradient: np.ndarray
    curvature: np.ndarray

    @property
    def finite(self) -> bool:
        return bool(
            np.isfinite(self.gain) and np.isfinite(self.gradient).all() and np.isfinite(self.curvature).all()
        )


@dataclass(frozen=True)
class _Step:
    """A Newton step in a frame: in which coordinates to look next, and where to go in them."""

    u: np.ndarray
    basis: np.ndarray
    decrement: float
    smallest: float

    @staticmethod
    def of(terms: _Terms, whitened: bool = False) -> _Step:
        """Newton step with the curvature's negative eigenvalues turned, so that it always climbs.

        In the coordinates of the last curvature (`whitened`) a direction that has lost all of it keeps its scale:
        divided by rounding errors the step would go anywhere.
        """
        diagonal = np.abs(np.diag(terms.curvature))
        scale = 1 / np.sqrt(np.where((diagonal > 0) & (not whitened), diagonal, 1.0))
        values, vectors = np.linalg.eigh(scale[:, None] * terms.curvature * scale)
        size = np.abs(values)
        size = np.where(size < _FLAT, 1.0, size) if whitened else np.maximum(size, 1e-7)
        basis = scale[:, None] * vectors / np.sqrt(size)
        pull = basis.T @ terms.gradient
        return _Step(pull, basis, float(np.linalg.norm(pull)), float(values[0]))

    def frame(self, frame: Frame) -> Frame:
        """The coordinates to look in next, at the same centre."""
        return Frame(frame.center, frame.basis @ self.basis)


class _Evaluator:
    """Sums of the log posterior over shards, for the Newton iteration; counts the passes over the data."""

    def __init__(self, model: Model, blocks: Blocks, engine: Engine) -> None:
        self.model, self.blocks, self.engine = model, blocks, engine
        self.passes = 0.0
        self._last: tuple[Frame, np.ndarray, list[tuple[np.ndarray, np.ndarray]]]

    def __call__(self, frame: Frame, u: np.ndarray, shards: Sequence[int] | None = None) -> _Terms:
        """Terms at the point u of the frame from all shards, or from some that stand for all."""
        wanted = range(self.blocks.num_shards) if shards is None else shards
        shares = self.blocks.shares[list(wanted)]
        at = np.broadcast_to(u.astype(jnp.result_type(float)), (self.blocks.num_shards, len(u)))
        results = self.engine.map(
            SubposteriorTerms(self.model), self.blocks, at, DeviceFrame.of(frame), shards
        )
        total = float(shares.sum())
        self.passes += total
        gain, gradient, curvature = 0.0, np.zeros(len(u)), np.zeros((len(u), len(u)))
        self._last = (frame, u, [])
        for weight, (_, terms) in zip(shares / total, in_order(results, wanted), strict=True):
            gain += weight * float(terms[0])
            gradient += weight * terms[1]
            curvature += weight * terms[2]
            self._last[2].append(terms[1:])
        return _Terms(gain, gradient, (curvature + curvature.T) / 2)

    def shard_starts(self) -> np.ndarray:
        """Where an undamped Newton step from the last point leads every shard, (shard, dim); NaN if it is singular."""
        frame, u, terms = self._last
        steps = np.stack([_full_step(*(np.asarray(t, np.float64) for t in each)) for each in terms])
        return frame.to_theta(u + steps)


def _full_step(gradient: np.ndarray, curvature: np.ndarray) -> np.ndarray:
    try:
        return np.linalg.solve(curvature, gradient)
    except np.linalg.LinAlgError:
        return np.full(len(gradient), np.nan)


def expanded(
    function: Callable[[jax.Array], jax.Array], origin: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Value, gradient and curvature (minus the Hessian) at a point, sharing what they have in common."""

    def slope(u: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        value, gradient = jax.value_and_grad(function)(u)
        return gradient, (value, gradient)

    hessian, (value, gradient) = jax.jacfwd(slope, has_aux=True)(origin)
    return value, gradient, -hessian


def locate(
    model: Model,
    blocks: Blocks,
    engine: Engine,
    *,
    on_step: Callable[[int, float], None] | None = None,
) -> Mode:
    """Mode and curvature of the posterior of all rows, by a damped Newton method.

    Values, gradients and Hessians are float32 sums within shards and float64 sums over them, each taken in the
    coordinates of the last curvature, where the problem is well conditioned however the columns are scaled. The
    iteration starts on a sample of the shards, so that few passes over all rows remain.

    Raises
    ------
    ModelError
        If there is no mode: the message names the parameters along which the posterior does not fall.
    """
    evaluate = _Evaluator(model, blocks, engine)
    # Off the starting point by a hair: at a point such as zero a likelihood written with abs or max has a kink.
    theta = np.asarray(model.initial, dtype=np.float64) + 1e-3 * np.random.default_rng(0).normal(
        size=model.dim
    )
    frame = Frame(theta, np.eye(model.dim))
    for some in _samples_of_shards(blocks, model.dim):
        frame, _ = _climb(evaluate, frame, some, model, on_step, tolerance=1.0, may_fail=True)
    frame, mode = _climb(evaluate, frame, None, model, on_step, tolerance=DECREMENT, may_fail=False)
    assert mode is not None
    return mode


def left_after(decrement: float, previous: float) -> float:
    """The decrement that a Newton step leaves, from its own and that of the full step before it.

    Newton's convergence is quadratic, dec_2 = C dec_1^2, so the next is C dec_2^2; twice that, as C is known from one
    step only. Where the way was not shortened to a fifth there is no telling, and it may stay as it is.

    >>> left_after(0.5, 5.0), left_after(0.5, 1.0)
    (0.01, 0.5)
    """
    fast = decrement < 0.2 * previous
    return 2 * decrement**3 / previous**2 if fast else decrement


def newton_steps(model: Model, blocks: Blocks, start: np.ndarray, steps: int, engine: Engine) -> np.ndarray:
    """The point reached from `start` by so many plain Newton steps on the posterior of all rows (Remark 1)."""
    evaluate = _Evaluator(model, blocks, engine)
    frame = Frame(np.asarray(start, np.float64), np.eye(model.dim))
    for _ in range(steps):
        step = _Step.of(evaluate(frame, np.zeros(model.dim)))
        frame = step.frame(frame).moved(step.u)
    return frame.center


def _samples_of_shards(blocks: Blocks, dim: int) -> Iterator[range]:
    """The first few shards, enough rows to start from, then a larger part of them; none that is most of the data."""
    wanted = max(_START_ROWS, 200 * dim)
    few = int(np.searchsorted(np.cumsum(blocks.sizes), wanted)) + 1
    if 4 * few <= blocks.num_shards:
        yield range(few)
    if 4 * few <= blocks.num_shards // _PART:
        yield range(blocks.num_shards // _PART)


@dataclass
class _Ascent:
    """Damped Newton: where it stands, in which coordinates, and how it has gone so far."""

    evaluate: _Evaluator
    shards: Sequence[int] | None
    frame: Frame
    terms: _Terms
    step: _Step
    length: float = 1.0
    slow: int = 0
    """Steps in a row that shortened the way by a constant factor only: so it goes where the summit is at infinity."""
    flat: int = 0
    """Steps in a row after which nothing holds some direction."""
    remaining: float = np.inf
    """The decrement that one more step would leave, by Newton's quadratic convergence."""

    def try_step(self) -> None:
        """One step, taken if it climbs; shortened otherwise."""
        step, length = self.step, self.length
        frame, u = step.frame(self.frame), length * step.u
        there = self.evaluate(frame, u, self.shards)
        predicted = step.decrement**2 * (length - length**2 / 2)
        # Within float32 noise of the summit the gain says nothing: a step that small is taken on trust.
        noise = 0.05 if step.decrement < 0.5 else 0.0
        if there.finite and there.gain >= 1e-3 * predicted - noise:
            self.frame, self.terms, self.length = frame.moved(u), there, 1.0
            self.step = _Step.of(there, whitened=True)
            ratio = self.step.decrement / max(step.decrement, 1e-300)
            near = step.decrement < 1.0 and length == 1.0
            self.slow = self.slow + 1 if near and 0.4 < ratio < 0.95 else 0
            full = length == 1.0
            self.remaining = left_after(self.step.decrement, step.decrement if full else 0.0)
            self.flat = self.flat + 1 if self.step.smallest < _FLAT else 0
        else:
            self.length = length / 4

    def arrived(self, tolerance: float) -> bool:
        """Whether the next step, which needs no evaluation, ends at the mode."""
        small = self.step.decrement < tolerance or (
            self.step.decrement < 0.3 and self.remaining < tolerance / 10
        )
        # A step that was just found to lead nowhere is none to be taken on trust.
        return small and self.length == 1.0 and self.flat == 0 and self.slow < 2

    @property
    def way(self) -> np.ndarray:
        """The next step, in the user's coordinates."""
        return self.step.frame(self.frame).basis @ self.step.u

    @property
    def hopeless(self) -> bool:
        return self.length < 1e-6 or (self.flat > 3 and self.step.decrement < 1.0) or self.slow > 5


def _climb(
    evaluate: _Evaluator,
    frame: Frame,
    shards: Sequence[int] | None,
    model: Model,
    on_step: Callable[[int, float], None] | None,
    tolerance: float,
    may_fail: bool,
) -> tuple[Frame, Mode | None]:
    """Damped Newton from the frame's centre until the decrement is below the tolerance."""
    terms = evaluate(frame, np.zeros(model.dim), shards)
    if not terms.finite:
        if may_fail:
            return frame, None
        raise ModelError(_not_finite(terms, model))
    ascent = _Ascent(evaluate, shards, frame, terms, _Step.of(terms))
    for count in range(_MAX_STEPS):
        if on_step is not None:
            on_step(count, ascent.step.decrement)
        # The first coordinates are the user's: curvature can be judged only in those of a curvature.
        if count > 0 and ascent.arrived(tolerance):
            step, here = ascent.step, ascent.frame
            end = step.frame(here).moved(step.u)
            inverse = np.linalg.inv(here.basis)
            curvature = inverse.T @ ascent.terms.curvature @ inverse
            decrement = min(step.decrement, ascent.remaining)
            starts = evaluate.shard_starts() if shards is None else None
            return end, Mode(end.center, (curvature + curvature.T) / 2, decrement, evaluate.passes, starts)
        if ascent.hopeless:
            break
        ascent.try_step()
    if may_fail:
        return frame, None
    raise ModelError(_no_mode(ascent, model))


def _largest(direction: np.ndarray, names: Sequence[str]) -> str:
    """The parameters that make up a direction, in words."""
    weight = np.abs(direction) / np.abs(direction).max()
    order = [int(k) for k in np.argsort(-weight) if weight[k] > 0.3][:3]
    named = [repr(names[k]) for k in order]
    return named[0] if len(named) == 1 else ", ".join(named[:-1]) + " and " + named[-1]


def _no_mode(ascent: _Ascent, model: Model) -> str:
    if ascent.flat == 0 and ascent.slow == 0:
        moving = _largest(ascent.way, model.names)
        return (
            f"No mode of the posterior was found in {_MAX_STEPS} Newton steps: the last one still moved {moving}. "
            "Start nearer to it (`initial` of the model), scale the columns, or choose less entangled parameters."
        )
    # The first column of the step's basis is the direction of the smallest curvature.
    flattest = ascent.frame.basis @ ascent.step.basis[:, 0]
    direction = flattest if ascent.flat else ascent.way
    return (
        f"The posterior has no mode: it does not fall along {_largest(direction, model.names)}. Neither rows nor prior "
        "hold that direction (collinear columns, complete separation, or a parameter that no row informs); give it "
        "a proper prior or leave it out."
    )


def _not_finite(terms: _Terms, model: Model) -> str:
    bad = [model.names[k] for k in np.flatnonzero(~np.isfinite(terms.gradient))] or list(model.names)
    return (
        f"The log posterior has no finite gradient at the starting point (for {', '.join(map(repr, bad[:3]))}). "
        "Scale the columns, or give the model an `initial` point where the likelihood is finite."
    )
