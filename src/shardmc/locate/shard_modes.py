"""Modes and curvatures of the shards' rescaled subposteriors, batched, from the mode of all rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardmc.data.batch import Blocks
from shardmc.engine import Engine
from shardmc.locate.ascent import DECREMENT, FAST, arrives, left_after
from shardmc.locate.terms import SubposteriorTerms
from shardmc.model import Model
from shardmc.target import DeviceFrame, Target
from shardmc.types import Located, Mode, Rows

_ROUNDS = 4
_LONGEST = 1.0
"""The longest last step of a plain search, in posterior standard deviations, if its end is not evaluated."""


class _Search(NamedTuple):
    """A Newton search: its position, and the curvature and decrement before its last step."""

    steps: jax.Array
    u: jax.Array  # (dim,)
    curvature: jax.Array  # (dim, dim)
    decrement: jax.Array
    remaining: jax.Array
    """The decrement that remains after the last step, by quadratic convergence."""
    arrived: jax.Array


@dataclass(frozen=True)
class ShardMode:
    """Program: mode and curvature of one shard's rescaled subposterior, in the frame of the full posterior."""

    model: Model
    max_steps: int = 40
    density_only: ClassVar = True

    def __call__(
        self, rows: Rows, weights: jax.Array, start: jax.Array, frame: DeviceFrame
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        target = Target(self.model, rows, weights, frame)
        lengths = 0.5 ** jnp.arange(8.0)

        def slope(u: jax.Array) -> tuple[jax.Array, jax.Array]:
            gradient = jax.grad(target.log_density)(u)
            return gradient, gradient

        def newton(u: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            curvature, gradient = jax.jacfwd(slope, has_aux=True)(u)
            curvature = -curvature
            factor = jnp.linalg.cholesky(curvature)
            step = jax.scipy.linalg.cho_solve((factor, True), gradient)
            definite = jnp.isfinite(factor).all() & jnp.isfinite(step).all()
            # In the frame of the full posterior, the identity replaces a curvature that is not definite.
            step = jnp.where(definite, step, gradient)
            decrement = jnp.where(definite, jnp.sqrt(jnp.maximum(gradient @ step, 0)), jnp.inf)
            return step, curvature, decrement

        def length_of(u: jax.Array, step: jax.Array) -> jax.Array:
            """1 if the full Newton step climbs, otherwise the best of the shorter steps."""
            gains = target.log_densities(u + lengths[:, None] * step) - target.log_density(u)
            gains = jnp.where(jnp.isfinite(gains), gains, -jnp.inf)
            return jnp.where(gains[0] > 0, 1.0, lengths[jnp.argmax(gains)])

        def searching(state: _Search) -> jax.Array:
            return (state.steps < self.max_steps) & ~state.arrived

        def advance(state: _Search) -> _Search:
            step, curvature, decrement = newton(state.u)
            ratio = decrement / state.decrement
            # As `left_after`, for arrays.
            fast = jnp.isfinite(state.decrement) & (ratio < FAST)
            remaining = jnp.where(fast, 2 * ratio**2 * decrement, decrement)
            length = lax.cond(decrement < 0.5, lambda u, step: jnp.ones(()), length_of, state.u, step)
            end = state.u + length * step
            arrived = arrives(decrement, remaining)
            return _Search(state.steps + 1, end, curvature, decrement, remaining, arrived)

        # Plain steps may have led to a worse point than the centre, or diverged.
        start = jnp.where(target.log_density(start) > -0.05, start, 0)
        far = jnp.asarray(jnp.inf, start.dtype)
        curvature = jnp.zeros((*start.shape, *start.shape))
        begin = _Search(jnp.int32(0), start, curvature, far, far, jnp.array(False))
        end = lax.while_loop(searching, advance, begin)
        return end.u, end.curvature, jnp.where(end.arrived, end.remaining, jnp.inf), end.steps


class _Steps:
    """Plain Newton steps of all shards together, each from a guess, in the frame of the full posterior."""

    def __init__(self, guesses: np.ndarray) -> None:
        count, dim = guesses.shape
        self.u = guesses.copy()  # (shard, dim)
        self.curvatures = np.full((count, dim, dim), np.nan)
        self.decrements = np.full(count, np.inf)  # what remains after the last step; infinite without a mode
        self.last = np.full(count, np.nan)  # decrement of the last step

    def advance(self, shard: int, terms: Sequence[jax.Array]) -> bool:
        """Take a shard's next step. Returns whether another one is worthwhile."""
        gain, gradient, curvature = (np.asarray(t, np.float64) for t in terms)
        step = _newton_step(gradient, curvature)
        # Within float32 noise of the centre the gain has no meaning.
        if step is None or not gain > -0.05:
            self.u[shard] = 0.0
            return False
        decrement, before = math.sqrt(max(gradient @ step, 0.0)), self.last[shard]
        if math.isnan(before):
            # A guess is a Newton step from the centre, approximately so if rows were kept since.
            before = math.sqrt(max(self.u[shard] @ curvature @ self.u[shard], 0.0))
        remaining = left_after(decrement, before)
        closer = decrement < before
        self.last[shard] = decrement
        if arrives(decrement, remaining, longest=_LONGEST):
            self.curvatures[shard], self.decrements[shard] = curvature, remaining
        elif not closer:
            return False
        self.u[shard] += step
        return not np.isfinite(self.decrements[shard])


def _newton_step(gradient: np.ndarray, curvature: np.ndarray) -> np.ndarray | None:
    """The step to the maximum of a quadratic, if it has one."""
    if not np.isfinite(curvature).all():
        return None
    try:
        factor = np.linalg.cholesky((curvature + curvature.T) / 2)
    except np.linalg.LinAlgError:
        return None
    step = np.linalg.solve(factor.T, np.linalg.solve(factor, gradient))
    return step if np.isfinite(step).all() else None


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
    found = _Steps(guesses)
    device, real = DeviceFrame.of(frame), jnp.result_type(float)
    passes = 0.0
    converging = [int(i) for i in np.flatnonzero(guesses.any(axis=1))]
    for _ in range(_ROUNDS):
        if not converging:
            break
        results = engine.map(SubposteriorTerms(model), blocks, found.u.astype(real), device, converging)
        passes += float(blocks.shares[converging].sum())
        converging = sorted(shard for shard, terms in results if found.advance(shard, terms))
    rest = [int(i) for i in np.flatnonzero(np.isinf(found.decrements))]
    searched = engine.map(ShardMode(model), blocks, found.u.astype(real), device, rest) if rest else ()
    for shard, result in searched:
        found.u[shard], found.curvatures[shard], found.decrements[shard], steps = result
        passes += float(blocks.shares[shard]) * int(steps)
    arrived = (found.decrements < DECREMENT) & np.isfinite(found.u).all(axis=1)
    definite = arrived.copy()
    definite[arrived] = np.linalg.eigvalsh(found.curvatures[arrived])[:, 0] > 0
    modes = np.where(arrived[:, None], frame.to_theta(found.u), np.nan)
    curvatures = inverse.T @ found.curvatures @ inverse
    curvatures = np.where(arrived[:, None, None], (curvatures + curvatures.transpose(0, 2, 1)) / 2, np.nan)
    return Located(mode, modes, curvatures, definite, passes)
