"""Modes and curvatures of the shards' rescaled subposteriors, batched, from the mode of all rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.data.batch import Blocks
from shardmc.engine import Engine, in_order
from shardmc.locate.ascent import DECREMENT, arrives, left_after
from shardmc.locate.terms import SubposteriorScores, SubposteriorTerms, is_large, shard_slopes
from shardmc.model import Density, Model
from shardmc.target import DeviceFrame
from shardmc.types import Frame, Located, Mode, ShardTerms

_SCORE_ROUNDS = 20
_LONGEST_SCORE_STEP = 3.0
"""The longest step, in posterior standard deviations of all rows, on average over parameters."""
_FEWEST, _PER_PARAMETER = 2_000, 50
"""Groups that a shard needs, in all and per parameter, so that products of their scores show its curvature."""


@final
class ScoreSteps:
    """The search of one shard, in the coordinates of a frame."""

    def __init__(self, dim: int) -> None:
        self.u = np.zeros(dim)
        self.curvature = np.full((dim, dim), np.nan)
        """At the point before the last step."""
        self.decrement = np.inf

    def advance(self, gradient: np.ndarray, curvature: np.ndarray) -> bool:
        """Take the next step from gradient and curvature at `u`. Returns whether another one is needed."""
        if not (np.isfinite(gradient).all() and np.isfinite(curvature).all()):
            self.decrement = np.inf
            return False
        step = np.linalg.lstsq(curvature, gradient)[0]
        self.curvature = curvature
        self.decrement = float(np.sqrt(max(gradient @ step, 0.0)))
        longest = _LONGEST_SCORE_STEP * np.sqrt(len(step))
        self.u = self.u + step * min(1.0, longest / max(float(np.linalg.norm(step)), 1e-300))
        return not self.arrived

    @property
    def arrived(self) -> bool:
        return self.decrement < DECREMENT


def modes_by_scores(
    model: Density, blocks: Blocks, frame: Frame, engine: Engine
) -> tuple[list[ScoreSteps], float]:
    """The searches of all shards, from the mode of all rows at the frame's centre, and the passes over all rows.

    Products of scores sum to about the curvature, up to chance and to what is wrong with the model. The latter is the
    same for all shards: it is measured at the centre, where the curvature of all rows is known to be 1.
    """
    searches = [ScoreSteps(frame.dim) for _ in range(blocks.num_shards)]
    searching, passes, device = list(range(blocks.num_shards)), 0.0, DeviceFrame.of(frame)
    scale = np.eye(frame.dim)
    for count in range(_SCORE_ROUNDS):
        at = np.stack([search.u for search in searches]).astype(jnp.result_type(float))
        results = engine.map(SubposteriorScores(model), blocks, at, device, searching)
        found = {
            shard: [np.asarray(t, np.float64) for t in terms] for shard, terms in in_order(results, searching)
        }
        passes += float(blocks.shares[searching].sum())
        if count == 0:
            parts = [blocks.shares[shard] * products for shard, (_, products) in found.items()]
            scale = _inverse_root(np.sum(parts, axis=0))
        searching = [
            shard
            for shard, (slope, products) in found.items()
            if searches[shard].advance(slope, scale @ products @ scale)
        ]
        if not searching:
            break
    return searches, passes


def shows_curvature(blocks: Blocks, dim: int) -> bool:
    """Whether every shard has enough groups for its curvature to be the sum of products of their scores."""
    return bool(blocks.sizes.min() >= max(_FEWEST, _PER_PARAMETER * dim))


def _inverse_root(matrix: np.ndarray) -> np.ndarray:
    """M^-1/2, symmetric. Zero eigenvalues count as tiny ones."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return vectors / np.sqrt(np.maximum(values, 1e-12 * values.max())) @ vectors.T


_ROUNDS = 4
_MOST_ROUNDS = 60
_SHORTEST = 0.5**7
"""The shortest part of a Newton step that a damped search tries."""
_FARTHEST = 100.0
"""The longest step that a damped search tries, in posterior standard deviations of all rows. Where a separated level
has almost no curvature, Newton's step is thousands of them long, and no part of it that is tried climbs."""
_LONGEST = 1.0
"""The longest last step of a plain search, in posterior standard deviations, if its end is not evaluated."""


_SAME = 0.005
"""The curvature counts as the same at both ends of a Newton step if at most this part of the step remains after it.
That part is half of the relative change of the curvature."""


class _Steps:
    """Plain Newton steps of all shards together, each from a guess, in the frame of the full posterior."""

    def __init__(self, guesses: np.ndarray) -> None:
        count, dim = guesses.shape
        self.u = guesses.copy()  # (shard, dim)
        self.curvatures = np.full((count, dim, dim), np.nan)
        self.decrements = np.full(count, np.inf)  # what remains after the last step; infinite without a mode
        self.last = np.full(count, np.nan)  # decrement of the last step

    def advance(self, found: Mapping[int, Sequence[jax.Array]]) -> list[int]:
        """Take the next step of some shards, from their terms. Returns those for which another one is worthwhile."""
        shards = np.array(sorted(found), np.int64)
        gains, gradients, curvatures = (
            np.stack([np.asarray(found[i][k], np.float64) for i in sorted(found)]) for k in range(3)
        )
        steps, exist = _newton_steps(gradients, curvatures)
        # Within float32 noise of the centre the gain has no meaning.
        good = exist & (gains > -0.05)
        self.u[shards[~good]] = 0.0
        shards, steps = shards[good], steps[good]
        gradients, curvatures = gradients[good], curvatures[good]
        decrements, before = _lengths(gradients, steps), self.last[shards]
        # A guess is a Newton step from the centre, approximately so if rows were kept since.
        guesses = self.u[shards]
        before = np.where(np.isnan(before), _lengths(guesses, _times(curvatures, guesses)), before)
        remaining = np.array([left_after(*each) for each in zip(decrements, before, strict=True)])
        self.last[shards] = decrements
        arrived = arrives(decrements, remaining, longest=_LONGEST)
        self.curvatures[shards[arrived]] = curvatures[arrived]
        self.decrements[shards[arrived]] = remaining[arrived]
        moving = arrived | (decrements < before)
        self.u[shards[moving]] += steps[moving]
        return shards[moving & ~arrived].tolist()


class _Damped:
    """A damped Newton search of one shard: a step that does not climb is halved."""

    def __init__(self, start: np.ndarray) -> None:
        self.u = start.copy()  # (dim,) where it is evaluated next
        self.curvature = np.full((len(start), len(start)), np.nan)
        self.remaining = math.inf
        """The decrement that remains after the last step; infinite without a mode."""
        self._at: np.ndarray | None = None
        self._gain, self._step, self._length, self._decrement = -0.05, np.zeros_like(start), 1.0, math.inf

    def advance(self, terms: Sequence[jax.Array]) -> bool:
        """Take the next step. Returns whether another one is worthwhile."""
        gain, gradient, curvature = (np.asarray(t, np.float64) for t in terms)
        sound = np.isfinite(gain) and np.isfinite(gradient).all() and np.isfinite(curvature).all()
        if self._at is None and not (sound and gain > self._gain):
            # Plain steps may have led to a worse point than the centre, or diverged.
            there, self.u = self.u, np.zeros_like(self.u)
            return bool(there.any())
        # Near the mode rounding hides the gain of a step.
        near = self._decrement < 0.5
        if self._at is not None and not (sound and (gain > self._gain or near)):
            self._length /= 2
            self.u = self._at + self._length * self._step
            return self._length >= _SHORTEST
        found = _newton_step(gradient, curvature)
        # In the frame of the full posterior, the identity replaces a curvature that is not definite.
        self._step = gradient if found is None else found
        decrement = math.inf if found is None else math.sqrt(max(gradient @ found, 0.0))
        before = self._decrement if math.isfinite(self._decrement) else 0.0  # nothing is known of convergence
        self.remaining, self._decrement = left_after(decrement, before), decrement
        self._step = self._step * min(1.0, _FARTHEST / max(float(np.linalg.norm(self._step)), 1e-300))
        self._at, self._gain, self._length = self.u, float(gain), 1.0
        self.u, self.curvature = self.u + self._step, curvature
        if arrives(decrement, self.remaining):
            return False
        self.remaining = math.inf
        return True


def _chords(
    found: _Steps, model: Model, blocks: Blocks, frame: Frame, engine: Engine, terms: ShardTerms
) -> float:
    """One more step of every shard with the curvature that it has near the mode of all rows. Returns the passes.

    It needs the gradients only, and is enough for a shard whose curvature is nearly the same at its own mode: then the
    gradient is nearly zero already where the first step ended. A step with the same curvature as the one before leaves
    the same part of the way.
    """
    slopes = shard_slopes(model, blocks, engine, frame, found.u)
    curvatures = frame.basis.T @ terms.curvatures @ frame.basis
    origin = np.linalg.solve(frame.basis, terms.point - frame.center)
    gaps, (steps, exist) = found.u - origin, _newton_steps(slopes, curvatures)
    decrements, before = (_lengths(x, _times(curvatures, x)) for x in (steps, gaps))
    rates = decrements / np.maximum(before, 1e-300)
    good = exist & (rates < _SAME) & (rates * decrements < DECREMENT / 2)
    found.u[good] += steps[good]
    found.curvatures[good], found.decrements[good] = curvatures[good], (rates * decrements)[good]
    return 1.0


def _newton_steps(gradients: np.ndarray, curvatures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Steps (shard, dim) to the maxima of quadratics, and which of them exist. The others are zero."""
    exist = np.asarray(np.isfinite(curvatures).all(axis=(1, 2)))
    factors = np.broadcast_to(np.eye(gradients.shape[1]), curvatures.shape).copy()
    symmetric = (curvatures + curvatures.transpose(0, 2, 1)) / 2
    try:
        factors[exist] = np.linalg.cholesky(symmetric[exist])
    except np.linalg.LinAlgError:
        for shard in np.flatnonzero(exist):
            try:
                factors[shard] = np.linalg.cholesky(symmetric[shard])
            except np.linalg.LinAlgError:
                exist[shard] = False
    inner = np.linalg.solve(factors, gradients[:, :, None])
    steps = np.linalg.solve(factors.transpose(0, 2, 1), inner)[:, :, 0]
    exist &= np.isfinite(steps).all(axis=1)
    return np.where(exist[:, None], steps, 0.0), exist


def _newton_step(gradient: np.ndarray, curvature: np.ndarray) -> np.ndarray | None:
    """The step (dim,) to the maximum of one quadratic; None if it has no maximum."""
    steps, exist = _newton_steps(gradient[None], curvature[None])
    return steps[0] if exist[0] else None


def _times(matrices: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    return (matrices @ vectors[:, :, None])[:, :, 0]


def _lengths(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """sqrt(x^T y) of each pair of rows, 0 where that is negative."""
    return np.sqrt(np.maximum(np.sum(one * other, axis=1), 0.0))


def locate_shards(model: Model, blocks: Blocks, mode: Mode, engine: Engine) -> Located:
    """Modes and curvatures of the rescaled subposteriors, each from one step off the mode of all rows.

    Most shards need one more step. Shards whose plain steps do not converge are searched with damped steps. A shard
    without a mode (not converged, or curvature not positive definite) is marked; it is not an error.
    """
    frame, count = mode.frame, blocks.num_shards
    inverse = np.linalg.inv(frame.basis)
    guesses = np.zeros((count, model.dim))
    if mode.shard_starts is not None and mode.shard_starts.shape == guesses.shape:
        guesses = np.nan_to_num((mode.shard_starts - frame.center) @ inverse.T, posinf=0.0, neginf=0.0)
    device, real = DeviceFrame.of(frame), jnp.result_type(float)
    near: list[ScoreSteps] = []
    passes = 0.0
    if mode.shard_curvatures is not None:
        near, passes = modes_by_scores(model, blocks, frame, engine)
        guesses = np.stack([search.u for search in near])
    found = _Steps(guesses)
    if mode.shard_terms is not None and is_large(blocks, model.dim) and not blocks.num_kept:
        passes += _chords(found, model, blocks, frame, engine, mode.shard_terms)
        guesses[np.isfinite(found.decrements)] = 0.0
    for shard, search in enumerate(near if shows_curvature(blocks, model.dim) else ()):
        if search.arrived:
            found.curvatures[shard], found.decrements[shard] = search.curvature, search.decrement
            guesses[shard] = 0.0
    converging = [int(i) for i in np.flatnonzero(guesses.any(axis=1))]
    for _ in range(_ROUNDS):
        if not converging:
            break
        results = engine.map(SubposteriorTerms(model), blocks, found.u.astype(real), device, converging)
        passes += float(blocks.shares[converging].sum())
        converging = found.advance(dict(results))
    rest = {int(i): _Damped(found.u[i]) for i in np.flatnonzero(np.isinf(found.decrements))}
    searching = sorted(rest)
    for _ in range(_MOST_ROUNDS):
        if not searching:
            break
        at = found.u.copy()
        at[searching] = [rest[shard].u for shard in searching]
        results = engine.map(SubposteriorTerms(model), blocks, at.astype(real), device, searching)
        passes += float(blocks.shares[searching].sum())
        searching = sorted(shard for shard, terms in results if rest[shard].advance(terms))
    for shard, search in rest.items():
        found.u[shard], found.curvatures[shard] = search.u, search.curvature
        found.decrements[shard] = search.remaining
    arrived = (found.decrements < DECREMENT) & np.isfinite(found.u).all(axis=1)
    definite = arrived.copy()
    definite[arrived] = np.linalg.eigvalsh(found.curvatures[arrived])[:, 0] > 0
    modes = np.where(arrived[:, None], frame.to_theta(found.u), np.nan)
    curvatures = inverse.T @ found.curvatures @ inverse
    curvatures = np.where(arrived[:, None, None], (curvatures + curvatures.transpose(0, 2, 1)) / 2, np.nan)
    return Located(mode, modes, curvatures, definite, passes)
