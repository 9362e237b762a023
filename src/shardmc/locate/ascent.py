"""The climb to the mode: trust-region Newton steps, and the rule that says when the climb has arrived."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import overload

import jax.numpy as jnp
import numpy as np

from shardmc.locate.improper import FAR, Flat, prior_never_falls, prove_flat
from shardmc.locate.terms import Evaluator, Terms
from shardmc.types import Frame, Mode


@dataclass(frozen=True)
class Step:
    """A step in the coordinates of a `Quadratic`."""

    u: np.ndarray  # (dim,)
    predicted: float
    """The gain of the quadratic."""
    bounded: bool
    """Whether the radius ended it before the quadratic's maximum, or there is no maximum."""

    @property
    def length(self) -> float:
        return float(np.linalg.norm(self.u))


@dataclass(frozen=True)
class Quadratic:
    """The log posterior near a point, slope^T u - u^T diag(bends) u / 2, in coordinates of the absolute curvature.

    In these coordinates every bend is about 1, -1, or 0 for a direction without curvature.
    """

    basis: np.ndarray  # (dim, dim) from these coordinates to the frame's
    slope: np.ndarray  # (dim,) gradient
    bends: np.ndarray  # (dim,) curvature, at most 1 in size
    values: np.ndarray  # (dim,) eigenvalues of the curvature in the coordinates before, smallest first

    @staticmethod
    def of(terms: Terms, floor: float, whitened: bool) -> Quadratic:
        """From gradient and curvature in a frame.

        Eigenvalues below `floor` times the largest are lost in rounding. Such a direction is stretched as much as
        rounding allows, so that its curvature is visible from the next point. If the frame's coordinates are not
        those of the last curvature (`whitened`), they are scaled by the diagonal first.
        """
        diagonal = np.abs(np.diag(terms.curvature))
        scale = 1 / np.sqrt(np.where((diagonal > 0) & (not whitened), diagonal, 1.0))
        values, vectors = np.linalg.eigh(scale[:, None] * terms.curvature * scale)
        size = np.maximum(np.abs(values), floor * max(float(np.abs(values).max()), 1e-300))
        basis = scale[:, None] * vectors / np.sqrt(size)
        return Quadratic(basis, basis.T @ terms.gradient, values / size, values)

    @property
    def decrement(self) -> float:
        """Length of the Newton step that takes every bend as 1: the distance to the maximum, if there is one."""
        return float(np.linalg.norm(self.slope))

    @property
    def definite(self) -> bool:
        return bool(self.bends.min() > 0)

    def frame(self, frame: Frame) -> Frame:
        """The frame with these coordinates at the same centre."""
        return Frame(frame.center, frame.basis @ self.basis)

    def length_before(self, u: np.ndarray) -> float:
        """Length in these coordinates of a step u in the frame's."""
        return float(np.linalg.norm(inverse(self.basis) @ u))

    def step(self, radius: float) -> Step:
        """The highest point of the quadratic within the radius."""
        if self.definite:
            u = self.slope / self.bends
            if np.linalg.norm(u) <= radius:
                return self._step(u, bounded=False)
        elif not np.isfinite(radius):
            radius = max(self.decrement, 1.0)
        return self._step(self._on_boundary(radius), bounded=True)

    def _on_boundary(self, radius: float) -> np.ndarray:
        """(bends + shift) u = slope with |u| = radius and a shift that makes all bends positive."""
        least = max(0.0, -float(self.bends.min()))

        def excess(shift: float) -> float:
            return float(np.linalg.norm(self.slope / (self.bends + shift))) - radius

        low, high = least + 1e-9, least + self.decrement / radius + 1e-6
        if excess(low) > 0:
            for _ in range(60):  # the length falls as the shift grows
                middle = (low + high) / 2
                low, high = (middle, high) if excess(middle) > 0 else (low, middle)
            return self.slope / (self.bends + high)
        # The gradient is zero along the direction of the most negative bend: go along it, either way.
        u = self.slope / (self.bends + low)
        lowest = np.zeros_like(u)
        lowest[int(np.argmin(self.bends))] = 1.0
        along = float(u @ lowest)
        return u + (-along + np.sqrt(along**2 + radius**2 - float(u @ u))) * lowest

    def _step(self, u: np.ndarray, *, bounded: bool) -> Step:
        return Step(u, float(self.slope @ u - 0.5 * np.sum(self.bends * u**2)), bounded)


def inverse(basis: np.ndarray) -> np.ndarray:
    """The inverse of a basis, or its pseudo-inverse if a direction was stretched beyond the range of numbers."""
    try:
        return np.linalg.inv(basis)
    except np.linalg.LinAlgError:
        return np.linalg.pinv(basis)


DECREMENT = 0.01
"""A mode is found when the Newton decrement (its error in posterior standard deviations) is below this."""

FAST = 0.2
"""A step that reduces the decrement to less than this fraction shows quadratic convergence."""

MAX_STEPS = 100
_FLAT = 1e-4
"""Curvature along a direction, relative to one step before, that may be only rounding."""
_SETTLED = 0.45
"""Below this ratio the curvature still changes too much for the step to be the last."""
_STEADY = 0.1
"""If the curvature changed more than this over the last step, in any direction, the next step is evaluated."""
_ENDLESS = 5
"""Number of slow steps in a row after which the mode may be at infinity."""
_LIMIT = 1e12
"""The search for a mode stops here."""

OnStep = Callable[[int, float], None]


@dataclass
class Ascent:
    """A climb to the mode: its position, its coordinates, and its progress so far."""

    evaluate: Evaluator
    shards: Sequence[int] | None
    frame: Frame
    is_estimated: bool = False
    """Whether the curvature at the starting point is the frame's own, which was found from a sample of the rows."""
    local: Quadratic = field(init=False)
    terms: Terms = field(init=False)
    whitened: bool = False
    """Whether the frame's coordinates are those of a curvature. The first ones are the user's."""
    radius: float = np.inf
    rejected: int = 0
    """Number of steps in a row that did not climb."""
    slow: int = 0
    """Number of steps in a row that reduced the distance by a constant factor, as if the mode were at infinity."""
    stalled: int = 0
    """Number of steps in a row without progress although the curvature is constant: the rest is rounding."""
    flat: int = 0
    """Number of steps in a row after which some direction has no curvature."""
    remaining: float = np.inf
    """The decrement that one more step would leave, by Newton's quadratic convergence."""

    def __post_init__(self) -> None:
        self.double = jnp.result_type(float) == jnp.float64
        self.whitened |= self.is_estimated
        self._evaluate_here()

    def _evaluate_here(self) -> None:
        if self.is_estimated:
            self.terms = self.evaluate.with_unit_curvature(self.frame)
        else:
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
        """Try one step. It is taken if it climbs; otherwise the radius shrinks."""
        step = self.local.step(self.radius)
        frame = self.local.frame(self.frame)
        there = self.evaluate(frame, step.u, self.shards)
        whitened, self.whitened = self.whitened, True
        local = self._quadratic(there) if there.finite else None
        before, near = self.local.decrement, self.local.definite and not step.bounded
        # Close to the mode rounding may hide the gain. A step that halves the distance is taken anyway.
        noise = 0.05 if near and before < 0.5 else 0.0
        climbs = there.gain >= 1e-3 * step.predicted - noise
        if local is not None and near and before < 2.0:
            climbs |= local.definite and local.decrement < 0.5 * before
        if self.is_estimated and (local is None or not climbs):
            self.is_estimated = False
            self._evaluate_here()
            return
        self.is_estimated = False
        if local is None or not climbs:
            self.whitened, self.rejected = whitened, self.rejected + 1
            self.radius = step.length * _shrinkage(there.gain, float(self.local.slope @ step.u))
            return
        self.rejected = 0
        self._adapt_radius(step.length, there.gain / max(step.predicted, 1e-300), step.bounded)
        if np.isfinite(self.radius):  # the radius in the new coordinates
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
        """Whether the next step, which is not evaluated, ends at the mode."""
        # Curvature can be trusted only in coordinates of a curvature, not in the user's.
        if self.is_estimated or not (self.whitened and self.local.definite and np.isinf(self.radius)):
            return False
        if self.local.values[0] < _SETTLED or self.slow >= 2:
            return False
        decrement = self.local.decrement
        # The decrement sums over directions, so one that still bends can hide behind others that have converged.
        steady = np.abs(self.local.values - 1).max() < _STEADY
        remaining = self.remaining if steady else np.inf
        return arrives(decrement, remaining, tolerance) or (self.stalled >= 2 and decrement < 1.0)

    @property
    def hopeless(self) -> bool:
        """Whether more steps would not help: no step climbs, or the mode is at infinity."""
        lost = not np.abs(self.frame.center).max() < _LIMIT
        # Close to the mode single precision may hide every gain.
        hidden = not self.double and self.rejected > 3 and self.local.decrement < 10.0
        return lost or hidden or self.radius < 1e-8 or self.flat > 5 or self.is_endless

    @property
    def is_endless(self) -> bool:
        """Whether the rows move the mode to infinity. In double precision also whether the prior allows it."""
        return self.slow > _ENDLESS and (
            not self.double or prior_never_falls(self.evaluate.model, self.frame.center, self.way)
        )

    @property
    def way(self) -> np.ndarray:
        """The next step, in the user's coordinates."""
        return self.local.frame(self.frame).basis @ self.local.step(self.radius).u

    def mode(self, shard_curvatures: bool = False) -> Mode:
        """The mode that the last step leads to, with the curvatures of the shards there if they are asked for."""
        end = self.local.frame(self.frame).moved(self.local.step(np.inf).u)
        decrement = self.local.decrement
        left = decrement if self.stalled >= 2 else min(decrement, self.remaining)
        curvatures = self.evaluate.shard_curvatures() if shard_curvatures else None
        starts = terms = None
        if self.shards is None:
            starts, terms = self.evaluate.shard_starts(), self.evaluate.shard_terms()
        return Mode(end.center, self.curvature, left, self.evaluate.passes, starts, curvatures, terms)

    @property
    def curvature(self) -> np.ndarray:
        """Minus the Hessian at the current point, in the user's coordinates."""
        back = inverse(self.frame.basis)
        curvature = back.T @ self.terms.curvature @ back
        return (curvature + curvature.T) / 2

    def climb(self, tolerance: float, on_step: OnStep | None = None) -> bool:
        """Step until the decrement is below the tolerance. Returns whether that was reached."""
        for count in range(MAX_STEPS):
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
        """The direction of least curvature, in the user's coordinates, one standard deviation long."""
        basis = self.frame.basis @ self.local.basis
        size = np.abs(self.local.values)
        if size.min() < _FLAT:
            return basis[:, int(np.argmin(size))]
        return basis[:, int(np.argmax(np.max(np.abs(basis) / self.spread[:, None], axis=0)))]

    @property
    def spread(self) -> np.ndarray:
        """Standard deviation of each parameter given the others, (dim,); infinite without curvature."""
        diagonal = np.diag(self.curvature)
        return np.where(diagonal > 0, 1 / np.sqrt(np.abs(diagonal) + (diagonal == 0)), np.inf)

    @property
    def is_flat(self) -> bool:
        """Whether the curvature of some direction is only rounding of the rows."""
        return bool(np.max(np.abs(self.flattest) / self.spread) > FAR)

    def proof(self) -> Flat | None:
        """A direction along which the log posterior of all rows does not fall, if one is found."""
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
    """How much to shorten a step that does not climb: to the maximum of the parabola through the known values."""
    if not np.isfinite(gain):
        return 0.1
    return float(np.clip(0.5 * slope / max(slope - gain, 1e-300), 0.02, 0.5))


def left_after(decrement: float, previous: float) -> float:
    """The decrement that remains after a Newton step, from its own and that of the full step before it.

    Newton's convergence is quadratic, dec_2 = C dec_1^2, so the next is C dec_2^2. Twice that, as C is known from one
    step only. If the last step did not reduce the decrement to a fifth, nothing is known, and it may stay the same.

    >>> left_after(0.5, 5.0), left_after(0.5, 1.0)
    (0.01, 0.5)
    """
    fast = decrement < FAST * previous
    return 2 * decrement**3 / previous**2 if fast else decrement


@overload
def arrives(decrement: float, remaining: float, tolerance: float = ..., longest: float = ...) -> bool: ...
@overload
def arrives(
    decrement: np.ndarray, remaining: np.ndarray, tolerance: float = ..., longest: float = ...
) -> np.ndarray: ...
def arrives(
    decrement: float | np.ndarray,
    remaining: float | np.ndarray,
    tolerance: float = DECREMENT,
    longest: float = 0.3,
) -> bool | np.ndarray:
    """Whether a Newton step ends at the mode: the one rule for all rows and for single shards.

    Either its decrement is below the tolerance; or it is below `longest`, and quadratic convergence leaves less than a
    tenth of the tolerance.

    >>> arrives(0.2, 0.0005), arrives(0.2, 0.05), arrives(0.005, 0.005)
    (True, False, True)
    """
    return (decrement < tolerance) | ((decrement < longest) & (remaining < tolerance / 10))
