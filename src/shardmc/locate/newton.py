"""The mode and curvature of the posterior of all rows, by a trust-region Newton method over sums of shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import jax.numpy as jnp
import numpy as np

from shardmc.data.batch import Blocks
from shardmc.errors import ModelError
from shardmc.locate.improper import FAR, Flat, in_words, prior_lets_go, prove_flat
from shardmc.locate.terms import Evaluator, Terms
from shardmc.locate.trust_region import Quadratic, inverse
from shardmc.model import Density
from shardmc.model.precision import double_precision
from shardmc.types import Engine, Frame, Mode

DECREMENT = 0.01
"""A mode is found when the Newton decrement, its error in posterior standard deviations, is below this."""

_MAX_STEPS = 100
_START_ROWS = 20_000
_PART = 32
_FLAT = 1e-4
"""Curvature along a direction, relative to what it was one step before, that may be all rounding."""
_SETTLED = 0.45
"""The same below which curvature still changes too much for the step to be the last."""
_STEADY = 0.1
"""Relative change of the curvature over the last step, in any direction, up to which the next may end unseen."""
_ENDLESS = 5
"""Slow steps in a row after which the summit may be at infinity."""
_LIMIT = 1e12
"""No mode is looked for beyond this."""
_STARTS = (0.0, 0.1, 1.0, 1.0, 3.0)
"""Distances from the model's own starting point at which the search begins again, where it failed from there."""

OnStep = Callable[[int, float], None]


@dataclass
class Ascent:
    """A climb to the summit: where it stands, in which coordinates, and how it has gone so far."""

    evaluate: Evaluator
    shards: Sequence[int] | None
    frame: Frame
    local: Quadratic = field(init=False)
    terms: Terms = field(init=False)
    whitened: bool = False
    """Whether the frame's coordinates are those of a curvature; the first ones are the user's."""
    radius: float = np.inf
    rejected: int = 0
    """Steps in a row that did not climb."""
    slow: int = 0
    """Steps in a row that shortened the way by a constant factor: so it goes where the summit is at infinity."""
    stalled: int = 0
    """Steps in a row that did not shorten the way though the curvature no longer changes: what is left is rounding."""
    flat: int = 0
    """Steps in a row after which nothing holds some direction."""
    remaining: float = np.inf
    """The decrement that one more step would leave, by Newton's quadratic convergence."""

    def __post_init__(self) -> None:
        self.double = jnp.result_type(float) == jnp.float64
        self.terms = self.evaluate(self.frame, np.zeros(self.frame.dim), self.shards)
        if self.terms.finite:
            self.local = self._quadratic(self.terms)

    @property
    def finite(self) -> bool:
        return self.terms.finite

    def _quadratic(self, terms: Terms) -> Quadratic:
        floor = (1e-6, 1e-7)[not self.whitened] if not self.double else 1e-12
        return Quadratic.of(terms, floor, self.whitened)

    def try_step(self) -> None:
        """One step, taken if it climbs; otherwise the radius shrinks."""
        step = self.local.step(self.radius)
        frame = self.local.frame(self.frame)
        there = self.evaluate(frame, step.u, self.shards)
        whitened, self.whitened = self.whitened, True
        local = self._quadratic(there) if there.finite else None
        before, near = self.local.decrement, self.local.definite and not step.bounded
        # Close to the summit rounding may hide the gain: a step that halves the way is taken all the same.
        noise = 0.05 if near and before < 0.5 else 0.0
        climbs = there.gain >= 1e-3 * step.predicted - noise
        if local is not None and near and before < 2.0:
            climbs |= local.definite and local.decrement < 0.5 * before
        if local is None or not climbs:
            self.whitened, self.rejected = whitened, self.rejected + 1
            self.radius = step.length * _shrinkage(there.gain, float(self.local.pull @ step.u))
            return
        self.rejected = 0
        self._adapt_radius(step.length, there.gain / max(step.predicted, 1e-300), step.bounded)
        if np.isfinite(
            self.radius
        ):  # the radius is a distance, and the new coordinates measure it differently
            self.radius *= local.length_before(step.u) / max(step.length, 1e-300)
        self.frame, self.terms, self.local = frame.moved(step.u), there, local
        self._count(before, near)

    def _adapt_radius(self, length: float, ratio: float, bounded: bool) -> None:
        if not bounded and (ratio > 0.25 or length < 0.5):
            self.radius = np.inf
        elif ratio < 0.25:
            self.radius = 0.5 * length
        elif ratio > 0.75:
            self.radius = 2.5 * length

    def _count(self, before: float, near: bool) -> None:
        decrement, values = self.local.decrement, self.local.values
        ratio = decrement / max(before, 1e-300)
        close = near and before < 1.0
        settled = values[0] > 0.7 and values[-1] < 1.4
        self.slow = self.slow + 1 if close and 0.4 < ratio < 0.95 and not settled else 0
        self.stalled = self.stalled + 1 if close and settled and ratio > 0.5 else 0
        self.flat = self.flat + 1 if np.abs(values).min() < _FLAT and decrement < 1.0 else 0
        self.remaining = left_after(decrement, before if near else 0.0)

    def arrived(self, tolerance: float) -> bool:
        """Whether the next step, which needs no evaluation, ends at the mode."""
        # The first coordinates are the user's: curvature can be trusted only in those of a curvature.
        if not (self.whitened and self.local.definite and np.isinf(self.radius)):
            return False
        if self.local.values[0] < _SETTLED or self.slow >= 2:
            return False
        decrement = self.local.decrement
        # The decrement sums over directions: one that is still bending can hide behind the others' convergence.
        steady = np.abs(self.local.values - 1).max() < _STEADY
        quick = steady and decrement < 0.3 and self.remaining < tolerance / 10
        return decrement < tolerance or quick or (self.stalled >= 2 and decrement < 1.0)

    @property
    def hopeless(self) -> bool:
        """Whether going on would not help: no step climbs, or the summit is at infinity."""
        lost = not np.abs(self.frame.center).max() < _LIMIT
        # Close to the summit single precision may hide every gain.
        hidden = not self.double and self.rejected > 3 and self.local.decrement < 10.0
        return lost or hidden or self.radius < 1e-8 or self.flat > 5 or self.is_endless

    @property
    def is_endless(self) -> bool:
        """Whether the rows send the summit to infinity, and in double precision also that the prior lets them."""
        return self.slow > _ENDLESS and (
            not self.double or prior_lets_go(self.evaluate.model, self.frame.center, self.way)
        )

    @property
    def way(self) -> np.ndarray:
        """The next step, in the user's coordinates."""
        return self.local.frame(self.frame).basis @ self.local.step(self.radius).u

    def mode(self) -> Mode:
        """The mode that the last step leads to."""
        end = self.local.frame(self.frame).moved(self.local.step(np.inf).u)
        decrement = self.local.decrement
        left = decrement if self.stalled >= 2 else min(decrement, self.remaining)
        starts = self.evaluate.shard_starts() if self.shards is None else None
        return Mode(end.center, self.curvature, left, self.evaluate.passes, starts)

    @property
    def curvature(self) -> np.ndarray:
        """Minus the Hessian where the climb stands, in the user's coordinates."""
        back = inverse(self.frame.basis)
        curvature = back.T @ self.terms.curvature @ back
        return (curvature + curvature.T) / 2

    def climb(self, tolerance: float, on_step: OnStep | None = None) -> bool:
        """Step until the decrement is below the tolerance; whether that was reached."""
        for count in range(_MAX_STEPS):
            if not self.finite:
                return False
            if on_step is not None:
                on_step(count, self.local.decrement)
            if self.arrived(tolerance):
                return not self.is_flat
            if self.hopeless:
                return False
            self.try_step()
        return False

    @property
    def flattest(self) -> np.ndarray:
        """The direction that is held least, in the user's coordinates, one standard deviation long."""
        basis = self.frame.basis @ self.local.basis
        size = np.abs(self.local.values)
        if size.min() < _FLAT:
            return basis[:, int(np.argmin(size))]
        return basis[:, int(np.argmax(np.max(np.abs(basis) / self.spread[:, None], axis=0)))]

    @property
    def spread(self) -> np.ndarray:
        """Standard deviation of each parameter given the others, (dim,); infinite where nothing holds it."""
        diagonal = np.diag(self.curvature)
        return np.where(diagonal > 0, 1 / np.sqrt(np.abs(diagonal) + (diagonal == 0)), np.inf)

    @property
    def is_flat(self) -> bool:
        """Whether only the rounding of the rows holds some direction."""
        return bool(np.max(np.abs(self.flattest) / self.spread) > FAR)

    def proof(self) -> Flat | None:
        """A direction along which the log posterior of all rows is seen not to fall."""
        if not self.finite:
            return None
        if self.double and self.is_endless:
            return Flat(self.way, rises=True)
        here = Frame(self.frame.center, np.eye(self.frame.dim))
        flat = np.abs(self.local.values).min() < _FLAT or self.is_flat
        for direction in (self.flattest, self.way) if flat else (self.way,):
            found = prove_flat(
                lambda move: self.evaluate(here, move).gain, direction, self.spread, here.center
            )
            if found is not None:
                return found
        return None


def _shrinkage(gain: float, slope: float) -> float:
    """By how much to shorten a step that does not climb: to the summit of the parabola through what is known."""
    if not np.isfinite(gain):
        return 0.1
    return float(np.clip(0.5 * slope / max(slope - gain, 1e-300), 0.02, 0.5))


def left_after(decrement: float, previous: float) -> float:
    """The decrement that a Newton step leaves, from its own and that of the full step before it.

    Newton's convergence is quadratic, dec_2 = C dec_1^2, so the next is C dec_2^2; twice that, as C is known from one
    step only. Where the way was not shortened to a fifth there is no telling, and it may stay as it is.

    >>> left_after(0.5, 5.0), left_after(0.5, 1.0)
    (0.01, 0.5)
    """
    fast = decrement < 0.2 * previous
    return 2 * decrement**3 / previous**2 if fast else decrement


@dataclass(frozen=True)
class Start:
    """A point near the mode from which `locate` goes on, and coordinates in which the posterior is about standard."""

    frame: Frame
    found: bool
    """Whether a summit was found there, so that the frame's coordinates are those of the posterior."""
    passes: float
    ascent: Ascent | None = field(default=None, repr=False, compare=False)
    """The climb itself where it went over all rows."""


def near_mode(model: Density, blocks: Blocks, engine: Engine, *, on_step: OnStep | None = None) -> Start:
    """A point near the mode, from a sample of the shards where there are enough of them, otherwise from all rows."""
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
) -> Mode:
    """Mode and curvature of the posterior of all rows, by a trust-region Newton method.

    Values, gradients and Hessians are sums within shards in the precision of the computation and float64 sums over
    them, each taken in the coordinates of the last curvature, where the problem is well conditioned however the
    columns are scaled. The iteration starts on a sample of the shards, so that few passes over all rows remain. Where
    it fails, it is repeated in double precision, and from other starting points, before the model is refused.

    Parameters
    ----------
    start
        What `near_mode` found; looked for unless given.

    Raises
    ------
    ModelError
        If there is no mode: the message names parameters along which the posterior was seen not to fall. If none was
        found: the message says so.
    """
    start = near_mode(model, blocks, engine, on_step=on_step) if start is None else start
    ascent, double = start.ascent, jnp.result_type(float) == jnp.float64
    if ascent is None or ascent.double != double:
        evaluate = Evaluator(model, blocks, engine)
        evaluate.passes = start.passes
        ascent = Ascent(evaluate, None, start.frame)
    if not ascent.climb(DECREMENT, on_step):
        ascent = _in_double(ascent, model, start)
    return ascent.mode()


def newton_steps(model: Density, blocks: Blocks, start: np.ndarray, steps: int, engine: Engine) -> np.ndarray:
    """The point reached from `start` by so many plain Newton steps on the posterior of all rows (Remark 1)."""
    evaluate = Evaluator(model, blocks, engine)
    frame = Frame(np.asarray(start, np.float64), np.eye(model.dim))
    for _ in range(steps):
        local = Quadratic.of(evaluate(frame, np.zeros(model.dim)), 1e-7, whitened=False)
        frame = local.frame(frame).moved(local.pull)
    return frame.center


def _in_double(failed: Ascent, model: Density, start: Start) -> Ascent:
    """The climb again in double precision: from where it ended, and from other points. Refuses what has no mode."""
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
    """The climb on some shards in double precision, from other points until it succeeds."""
    with double_precision():
        for point in _starting_points(model):
            ascent = Ascent(evaluate, shards, Frame(point, np.eye(model.dim)))
            if ascent.climb(tolerance):
                return ascent
    return None


def _starting_points(model: Density) -> Iterator[np.ndarray]:
    """The model's own starting point, off it by a hair, and points further and further away.

    Exactly there, at a point such as zero, a likelihood written with abs or max has a kink.
    """
    rng = np.random.default_rng(0)
    noise = partial(rng.normal, size=model.dim)
    initial = np.asarray(model.initial, dtype=np.float64)
    yield initial + 1e-3 * noise()
    for distance in _STARTS:
        yield initial + distance * noise()


def _samples_of_shards(blocks: Blocks, dim: int) -> Iterator[range]:
    """The first few shards, enough rows to start from, then a larger part of them; none that is most of the data."""
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
            "Scale the columns, or give the model an `initial` point where the likelihood is finite."
        )
    moving = in_words(ascent.way, model.names)
    return (
        f"No mode of the posterior was found in {_MAX_STEPS} Newton steps: the last one still moved {moving}. "
        "Start nearer to it (`initial` of the model), scale the columns, or choose less entangled parameters."
    )
